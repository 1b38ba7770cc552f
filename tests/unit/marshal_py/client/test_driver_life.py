"""From start to end of a client, when something comes between."""

from __future__ import annotations

import queue
import signal
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py import BrokerUnavailable, Closed, ConfigurationError, Marshal
from marshal_py.client import forks, log_trimming
from marshal_py.client.log_reader import Batch, LogReader, Truncated
from marshal_py.client.log_trimming import LogTrimmer
from marshal_py.client.marshal import driver_of
from marshal_py.errors import (
    DuplicateClientId,
    Forked,
    MarshalError,
    PartitionCountChanged,
    SnapshotMismatch,
)
from marshal_py.protocol.snapshots import encode_snapshot
from marshal_py.testing import TestBroker


def test_a_client_that_is_closed_while_it_starts_does_not_seem_to_run() -> None:
    """Whoever waited for a claim of it would wait for ever."""
    with TestBroker() as broker:
        marshal = Marshal(broker.config, group_id="g", interval_ms=500, close_on_sigterm=False)
        driver: Any = driver_of(marshal)
        found = driver._found

        def find() -> None:
            found()
            closer = threading.Thread(target=marshal.close)
            closer.start()
            closer.join()

        driver._found = find
        with pytest.raises(Closed, match="closed while"):
            marshal.start()
        assert not driver.running
        with pytest.raises(Closed):
            marshal.want("x", 0)
        driver._found = found
        with marshal:
            assert marshal.claims() == []


def test_a_client_that_is_closed_while_no_broker_answers_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marshal = Marshal("127.0.0.1:1", group_id="g", connect_timeout_ms=20_000)
    opens = LogReader.open

    def closed(reader: LogReader, timeout_s: float) -> None:
        threading.Thread(target=marshal.close).start()
        opens(reader, timeout_s)

    monkeypatch.setattr(LogReader, "open", closed)
    with pytest.raises(Closed, match="closed while it read the log"):
        marshal.start()


def test_a_client_that_is_closed_while_it_founds_a_log_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    state = SimpleNamespace(identity=None, base=0, next_offset=0)
    driver.reader = SimpleNamespace(
        partitions=[0],
        highest_epoch=1,
        check_founding=lambda _: {0: 0},
        poll=lambda _: driver._closing.set(),
        fold=lambda _: (),
        world=SimpleNamespace(states=[state], partitions=1),
    )
    driver._writer = SimpleNamespace(
        append=lambda *_: None, serve=lambda: None, take_failures=list, refusal=None
    )
    with pytest.raises(Closed):
        driver._found()


def of_a_lost_log(driver: Any, replay: Callable[[], None], **reader: Any) -> None:
    """What a driver has when its log is lost; it does not sleep between two attempts."""
    driver._replay, driver._caught_up = replay, lambda: None
    driver._stop = SimpleNamespace(is_set=lambda: False, set=lambda: None, wait=lambda _: None)
    driver._writer = SimpleNamespace(start_over=lambda: None, flush=lambda _: None)
    driver.reader = SimpleNamespace(observers=[], **reader)
    driver.claimant = SimpleNamespace(
        truncated=lambda _: None,
        take_appends=list,
        take_notices=list,
        leaving=False,
        leave=lambda _: None,
        settled=True,
    )


def test_nobody_waits_for_the_lock_while_brokers_do_not_tell_of_a_lost_log() -> None:
    """A call with a time-out of its own, or the event loop of `AsyncMarshal`, stood for 30 s."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    done: list[str] = []

    def use() -> None:
        with driver.lock:
            done.append("used")

    def await_topic(timeout_s: float) -> None:
        assert timeout_s == 30
        user = threading.Thread(target=use, daemon=True)
        user.start()
        user.join(10)
        done.append("told")

    of_a_lost_log(driver, lambda: done.append("read"), await_topic=await_topic)
    driver._truncated(Truncated("cut off"))
    assert done == ["used", "told", "read"]


def test_whoever_closes_a_client_that_waits_for_a_lost_log_has_it_give_up() -> None:
    """And its Kafka client is not closed while it is asked."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    done: list[str] = []
    flushed = threading.Event()
    closer = threading.Thread(target=driver.close, args=(0.0,), kwargs={"release": True})

    def await_topic(_: float) -> None:
        closer.start()
        assert flushed.wait(10)
        closer.join(0.1)  # it waits, too
        done.append("told")

    def close() -> None:
        done.append("closed")

    of_a_lost_log(driver, lambda: done.append("read"), await_topic=await_topic, close=close)
    driver.running, driver._thread = True, SimpleNamespace(join=lambda _: None)
    driver._writer.flush = lambda _: flushed.set()
    with pytest.raises(Closed):
        driver._truncated(Truncated("cut off"))
    closer.join(10)
    assert done == ["told", "closed"]


def test_a_log_that_is_read_anew_is_waited_for_while_the_certificate_is_replaced() -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    tried = []

    def replay() -> None:
        tried.append("again")
        if len(tried) == 1:
            raise ConfigurationError("ssl.key.location: it does not fit the certificate")

    of_a_lost_log(driver, replay, await_topic=lambda _: None)
    driver._stop.wait = lambda wait_s: tried.append(f"after {wait_s:g} s")
    driver._truncated(Truncated("cut off"))
    assert tried == ["again", "after 1 s", "again"]


def test_a_log_that_is_read_anew_is_another_one_for_all_who_knew_the_last() -> None:
    """Nothing is claimed, trimmed or missed by what was known of the one before."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    observer, trimmed = SimpleNamespace(caught_up_at_offset=7), list[int]()
    was_caught_up: list[int | None] = []

    def replay() -> None:
        was_caught_up.append(observer.caught_up_at_offset)
        if len(was_caught_up) == 1:
            raise BrokerUnavailable("no answer")

    of_a_lost_log(driver, replay, await_topic=lambda _: None)
    driver.reader.observers.append(observer)
    driver._trimmer = LogTrimmer({}, "__marshal")
    driver._trimmer._delete = lambda _, below: trimmed.append(below)
    driver._trimmer.written(0, 20)

    def nothing_comes(first_s: int) -> set[int | None]:
        seconds = range(first_s, first_s + int(driver._unread.limit_s))
        return {driver._unread.look({0: 9 + now_s}, {0: 5}, now_s) for now_s in seconds}

    assert nothing_comes(0) == {None}
    driver._truncated(Truncated("cut off"))
    assert was_caught_up == [7, None]
    driver._trimmer.read({0: 30})
    assert trimmed == []
    assert nothing_comes(int(driver._unread.limit_s)) == {None}


def test_what_a_client_has_written_last_is_sent_before_it_ends() -> None:
    """With the claims that it keeps: their positions are stored for the next start."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    did: list[str] = []
    driver.running = True
    driver.claimant = SimpleNamespace(
        keep=lambda _: did.append("keep"), take_appends=list, take_notices=list, leaving=False
    )
    driver._thread = SimpleNamespace(join=lambda _: did.append("join"))
    driver._writer = SimpleNamespace(flush=lambda _: did.append("flush"))
    driver.reader = SimpleNamespace(close=lambda: did.append("close"))
    driver._trimmer = SimpleNamespace(close=lambda: did.append("trim no more"))
    driver.before_heartbeat.append(lambda: did.append("positions"))
    driver.close(1.0, release=False)
    assert did == ["positions", "keep", "join", "flush", "close", "trim no more"]


def test_a_trimmer_that_cannot_connect_now_leaves_it_to_the_next_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trimmed: list[int] = []

    def fail(*_: object) -> Any:
        raise ConfigurationError("ssl.key.location: it does not fit the certificate")

    def delete(parts: Any, *, request_timeout: float) -> dict[Any, Any]:
        assert request_timeout > 0
        trimmed.extend(part.offset for part in parts)
        return {}

    trimmer = LogTrimmer({}, "__marshal")
    with monkeypatch.context() as patch:
        patch.setattr(log_trimming, "connect", fail)
        trimmer.written(0, 10)
        trimmer.read({0: 10})
    assert "does not fit" in caplog.text
    monkeypatch.setattr(log_trimming, "connect", lambda *_: SimpleNamespace(delete_records=delete))
    trimmer.written(0, 20)
    trimmer.read({0: 20})
    assert trimmed == [19]


def of_a_turn(driver: Any, trimmed: list[int]) -> None:
    """What a driver has when nothing comes, and no time passes; what it trims."""
    driver.running = True
    driver.reader = SimpleNamespace(
        poll=lambda _: [],
        fold=lambda _: (),
        partition_count_error=None,
        snapshots_to_write=queue.SimpleQueue(),
        newest_snapshot={0: 20},
        world=SimpleNamespace(states=[]),
    )
    driver._writer = SimpleNamespace(
        serve=lambda: None, take_failures=list, refusal=None, ends={}, refused_now=None
    )
    driver.claimant = SimpleNamespace(
        next_deadline_ns=lambda: None,
        tick=lambda _: None,
        take_appends=list,
        take_notices=list,
        leaving=False,
    )
    driver._end_expired_pauses = lambda: None
    driver._trimmer = LogTrimmer({}, "__marshal")
    driver._trimmer._delete = lambda _, below: trimmed.append(below)


def test_what_a_snapshot_of_its_own_covers_is_trimmed_when_that_was_read() -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    trimmed, appended = list[int](), list[int]()
    of_a_turn(driver, trimmed)
    driver._writer.append_snapshot = lambda p, _: appended.append(p)
    for p in (0, 3):
        value = encode_snapshot(
            b"state", coordinator=p, partitions=4, next_offset=20 + p, anchor=b"", writer="me"
        )
        driver.reader.snapshots_to_write.put((p, value))
    driver.reader.newest_snapshot = {0: 19}
    driver._turn()
    assert (appended, trimmed) == ([0, 3], [])
    driver.reader.newest_snapshot = {0: 20, 3: 22}
    driver._turn()
    assert trimmed == [19]
    driver.reader.newest_snapshot = {0: 20, 3: 23}
    driver._turn()
    assert (appended, trimmed) == ([0, 3], [19, 22])


def test_a_client_that_has_failed_claims_and_trims_nothing_and_says_why() -> None:
    """What made it fail may be that its own state, and so its snapshots, are wrong."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    trimmed: list[int] = []
    of_a_turn(driver, trimmed)
    driver._trimmer.written(0, 20)
    driver.failure = SnapshotMismatch("one of the two is wrong")
    driver._turn()
    assert trimmed == []
    with pytest.raises(SnapshotMismatch):
        driver.check_open()
    driver.failure = DuplicateClientId("another process has its name")
    driver.check_open()  # of what it lost, it is told by the claims
    driver.failure = None
    driver._turn()
    assert trimmed == [19]
    looks: list[bool] = []
    driver._check_reading = lambda: looks.append(True)
    driver._turn()
    assert looks == [True], "whether anything comes of the log"


def test_a_client_that_is_abandoned_sends_nothing_that_waited() -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    did: list[str] = []
    driver.running = True
    driver.claimant = SimpleNamespace(
        stop_claiming=lambda _: did.append("stop"),
        keep=lambda _: did.append("keep"),
        take_appends=list,
        take_notices=list,
        leaving=False,
    )
    driver._writer = SimpleNamespace(purge=lambda: did.append("purge"), flush=lambda _: 0)
    driver._thread = SimpleNamespace(join=lambda _: None)
    driver.reader = SimpleNamespace(close=lambda: None)
    driver.abandon()
    assert did == ["stop", "purge", "keep"]


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize(
    "problem", [SnapshotMismatch("wrong"), Closed("closed while it read"), ValueError("a bug")]
)
def test_what_ends_the_driver_is_why_its_client_claims_nothing_any_more(
    problem: Exception, closing: bool
) -> None:
    """But who is closed while a lost log is read anew has nothing to tell."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    did, heard = list[str](), list[bool]()
    driver.claimant = SimpleNamespace(
        stop_claiming=did.append, take_appends=list, take_notices=list, leaving=False
    )
    driver.on_ended.append(lambda: heard.append(driver.has_ended))
    turns = iter([Truncated("offset 3 came again"), problem])

    def turn() -> None:
        raise next(turns)

    driver._turn, driver._truncated = turn, lambda error: did.append(f"{error}; it goes on")
    if closing:
        driver._closing.set()
    driver._run()
    assert heard == [True]
    assert did.pop(0) == "offset 3 came again; it goes on"
    if closing and isinstance(problem, Closed):
        assert (did, driver.failure) == ([], None)
    elif isinstance(problem, MarshalError):
        assert (did, driver.failure) == ([str(problem)], problem)
    else:
        assert (did, type(driver.failure)) == (["the driver stopped: a bug"], MarshalError)
        assert driver.failure.__cause__ is problem


def test_who_closes_does_not_wait_for_releases_that_nobody_will_hear_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread that reads the log has ended, or ends meanwhile."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    waits = threading.Event()

    class Claimant:
        leaving = False

        @property
        def settled(self) -> bool:
            waits.set()
            return False

        def leave(self, _: int) -> None: ...
        def stop_claiming(self, _: str) -> None: ...
        def take_appends(self) -> list[Any]:
            return []

        take_notices = take_appends

    def turn() -> None:
        raise ValueError("a bug")

    driver.running, driver._turn, driver.claimant = True, turn, Claimant()
    driver._thread = SimpleNamespace(join=lambda _: None)
    driver._writer = SimpleNamespace(flush=lambda _: 0)
    driver.reader = SimpleNamespace(close=lambda: None)
    closing = threading.Thread(target=driver.close, args=(60,), kwargs={"release": True})
    closing.start()
    assert waits.wait(30)
    driver._run()
    closing.join(10)
    assert not closing.is_alive()
    assert "not every release was seen" not in caplog.text


@pytest.mark.parametrize("where", ["written", "read", "compared"])
def test_why_a_client_has_failed_is_told_once_and_does_not_change(where: str) -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    stopped: list[str] = []
    of_a_turn(driver, [])
    driver.claimant.stop_claiming = stopped.append
    problem = SnapshotMismatch("one of the two is wrong")
    if where == "written":
        driver._writer.refusal = problem
    elif where == "read":
        driver.reader.partition_count_error = problem
    else:
        driver.mismatches.append(problem)
    driver._turn()
    assert driver.failure is problem
    driver.mismatches.append(SnapshotMismatch("another one"))
    driver._turn()
    assert (driver.failure, stopped) == (problem, [str(problem)])


def test_positions_are_looked_at_before_a_heartbeat_and_before_one_that_failed_goes_again() -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    did: list[str] = []
    of_a_turn(driver, [])
    driver.before_heartbeat.append(lambda: did.append("positions"))
    driver.claimant.append_failed = lambda seq, _: did.append(f"{seq} failed")
    driver.claimant.tick = lambda _: did.append("tick")
    driver._turn()
    assert did == ["tick"]
    driver._writer.take_failures = lambda: [(7, "timed out")]
    driver._turn()
    assert did[1:] == ["positions", "7 failed", "tick"]
    driver._writer.take_failures, driver.claimant.next_deadline_ns = list, lambda: 0
    driver._turn()
    assert did[4:] == ["positions", "tick"]


@pytest.mark.parametrize("running", [False, True])
def test_a_running_client_looks_at_a_log_that_could_not_be_opened_whole_as_it_is_now(
    running: bool,
) -> None:
    """It may have another number of partitions already; at the start, nothing is claimed yet."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    did: list[str] = []

    def fails(_: float) -> None:
        did.append("open")
        raise BrokerUnavailable("no answer")

    driver.running, driver.reader = running, SimpleNamespace(open=fails)
    driver.claimant = SimpleNamespace(reshape=lambda: did.append("reshape"))
    with pytest.raises(BrokerUnavailable):
        driver._replay()
    assert did == ["open", *["reshape"] * running]


@pytest.mark.usefixtures("no_handler")
def test_sigterm_is_as_it_was_however_often_a_client_has_asked_for_it() -> None:
    """Once as it starts, say, and once as its handlers begin; it is undone once."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    driver.handle_sigterm()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    driver.handle_sigterm()
    driver.take_sigterm_undo()()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    driver.take_sigterm_undo()()


def test_who_closes_goes_on_when_the_last_release_is_in_the_log() -> None:
    """And not when its time is up."""
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    waits, stopped = threading.Event(), list[str]()

    class Claimant:
        leaving, is_settled = False, False

        @property
        def settled(self) -> bool:
            waits.set()
            return self.is_settled

        def leave(self, _: int) -> None: ...
        def take_appends(self) -> list[Any]:
            return []

        take_notices = take_appends

    driver.running, driver.claimant = True, Claimant()
    driver._thread = SimpleNamespace(join=lambda _: None)
    driver._writer = SimpleNamespace(flush=lambda _: 0)
    driver.reader = SimpleNamespace(close=lambda: None)
    driver.on_stopped = lambda: stopped.append("stopped")
    closing = threading.Thread(target=driver.close, args=(60,), kwargs={"release": True})
    closing.start()
    assert waits.wait(30)
    with driver.lock:
        driver.claimant.leaving = True
        driver.carry_out()
        assert driver.running, "one is missing still"
        driver.claimant.is_settled = True
        driver.carry_out()
    closing.join(10)
    assert (stopped, driver.running) == (["stopped"], False)


@pytest.mark.parametrize("error", [BrokerUnavailable("no answer"), KeyboardInterrupt()])
def test_a_start_that_failed_leaves_no_reader(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    closed: list[str] = []
    reader = SimpleNamespace(mismatches=[], close=lambda: closed.append("reader"))
    monkeypatch.setattr("marshal_py.client.driver.LogReader", lambda *_, **__: reader)
    monkeypatch.setattr("marshal_py.client.driver.LogWriter", lambda *_, **__: None)

    def fails() -> None:
        raise error

    driver._replay = fails
    with pytest.raises(type(error)):
        driver.connect()
    assert (closed, driver.started) == (["reader"], False)


def test_a_log_that_was_made_with_another_number_of_partitions_is_neither_founded_nor_used() -> (
    None
):
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    did: list[str] = []
    driver.reader = SimpleNamespace(
        open=lambda _: did.append("open"),
        replay=lambda *, progress: did.append("replay"),
        partition_count_error=PartitionCountChanged("had 4 partitions and now has 8"),
    )
    driver._found = lambda: did.append("found")
    with pytest.raises(PartitionCountChanged):
        driver._replay()
    assert did == ["open", "replay"]


def test_a_program_that_ends_gives_back_what_its_clients_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others would wait for the leases. And no client stays for as long as the program lives."""
    registered: list[Any] = []
    atexit = SimpleNamespace(register=lambda *what: registered.append(what))
    monkeypatch.setattr("marshal_py.client.driver.atexit", atexit)
    monkeypatch.setattr("marshal_py.client.driver._new_claimant", lambda *_: None)
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g", close_on_sigterm=False))
    driver.reader, closed = None, list[tuple[float, bool]]()
    driver._caught_up = driver._run = lambda: None
    driver.start()
    driver.close = lambda timeout_s, *, release: closed.append((timeout_s, release))
    ((close, reference),) = registered
    assert isinstance(reference, weakref.ref)
    close(reference)
    assert closed == [(3.0, True)]
    close(lambda: None)  # it is gone by then
    assert driver in forks._clients, "a child of the process is told"


def test_in_the_child_of_a_fork_a_client_has_nothing_and_says_so() -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    did: list[str] = []
    driver.running, driver.claimant = True, SimpleNamespace(disown=did.append)
    driver.on_stopped = lambda: did.append("stopped")
    driver.forked(Forked("it belongs to process 7"))
    assert did == ["it belongs to process 7", "stopped"]
    for ask in (driver.check_open, driver.check_fork):
        with pytest.raises(Forked, match="process 7"):
            ask()
    driver.close(60, release=True)
    assert not driver._stop.is_set(), "there is no thread to end"


@pytest.mark.parametrize("release", [True, False])
def test_a_release_that_is_not_seen_in_time_is_told(
    caplog: pytest.LogCaptureFixture, release: bool
) -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    driver.running = True
    driver.claimant = SimpleNamespace(
        leave=lambda _: None,
        keep=lambda _: None,
        take_appends=list,
        take_notices=list,
        leaving=True,
        settled=False,
    )
    driver._thread = SimpleNamespace(join=lambda _: None)
    driver._writer = SimpleNamespace(flush=lambda _: 0)
    driver.reader = SimpleNamespace(close=lambda: None)
    driver.close(0.0, release=release)
    assert ("not every release was seen within 0.0 s" in caplog.text) is release


def test_who_listens_hears_of_what_happened_and_who_watches_of_all_that_was_read() -> None:
    driver: Any = driver_of(Marshal("127.0.0.1:1", group_id="g"))
    heard, seen, applied = list[Any](), list[int](), list[Any]()
    event: Any = "event"
    of_a_turn(driver, [])
    driver.hooks = SimpleNamespace(call=lambda hook: hook())
    driver._listeners.append(lambda *what: heard.append(what))
    driver.watchers.append(lambda p, _: seen.append(p))
    driver.claimant.applied = lambda *what: applied.append(what)
    driver.reader.fold = lambda _: [Batch(2, [], 5), Batch(3, [event], 6)]
    driver._turn()
    assert (heard, seen) == ([(3, [event])], [2, 3])
    assert applied == [(2, [], 5), (3, [event], 6)]
