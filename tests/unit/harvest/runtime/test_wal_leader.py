"""What a leader in wal mode tells its scheduler of the sink (specs/HARVEST.md §18)."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core import wal as w
from harvest.core.failure import Failure
from harvest.core.row import Row
from harvest.core.wal_position import WalPosition
from harvest.errors import DatabaseChanged, HarvestError, StoreUnavailable
from harvest.runtime import publisher, wal_leader
from harvest.runtime.leadership import Leadership
from harvest.runtime.wal_leader import WalLeader, WalTools
from tests.unit.harvest.runtime.test_range_leader import Lease, Store

WAIT_S = 60.0
FIRST, SECOND = WalPosition(7, "s", 1, 200), WalPosition(7, "s", 1, 300)


class Sink:
    """Takes checkpoints, or fails."""

    def __init__(self, failure: Failure | None) -> None:
        self.failure = failure
        self.told: list[tuple[int, str]] = []

    def deliver(self, rows: Any, checkpoint: str) -> Failure | None:
        self.told.append((len(rows), checkpoint))
        return self.failure

    def close(self) -> None: ...


class Reporting(Leadership):
    """Keeps what the scheduler would hear."""

    def __init__(self, lease: Any) -> None:
        super().__init__(lease)
        self.reported: SimpleQueue[Any] = SimpleQueue()

    def report(self, event: Any) -> None:
        self.reported.put(event)


@pytest.mark.parametrize(
    ("failure", "event"), [(None, w.Saved(FIRST)), (Failure("no broker answers"), w.SaveFailed())]
)
def test_a_checkpoint_counts_as_saved_only_if_the_sink_has_taken_it(
    failure: Failure | None, event: w.Event
) -> None:
    sink: Any = Sink(failure)
    store: Any = Store()
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, store, sink, pipeline=sink))
    thread = leader.publisher.thread
    thread.start(leadership.report)
    thread.put(w.Save(FIRST))
    assert leadership.reported.get(timeout=WAIT_S) == event
    assert thread.close(WAIT_S)
    assert sink.told == [(0, FIRST.encode())]


@pytest.mark.parametrize("settled", [True, False])
def test_a_sink_of_rows_that_hangs_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, *, settled: bool
) -> None:
    monkeypatch.setattr(publisher, "HANGS_AFTER_S", -1.0)
    settles: list[Any] = []
    sink: Any = SimpleNamespace(submit=lambda _, settle: settles.append(settle))
    store: Any = Store()
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, store, sink, pipeline=sink))
    leader._send(w.Send(1, (), FIRST))
    if settled:
        settles.pop()(None)
    leader.every_tick()
    assert (leadership.hangs is None) is settled


class Purger:
    """Deletes what is published, or fails."""

    def __init__(self, *purged: int | HarvestError) -> None:
        self.answers = list(purged)

    def purge(self, published_lsn: Callable[[], int]) -> int:
        answer = self.answers.pop(0)
        if isinstance(answer, HarvestError):
            raise answer
        return answer

    def cancel(self) -> None: ...


def test_what_could_not_be_deleted_is_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing has been published since, which would be a reason to look again."""
    monkeypatch.setattr(wal_leader, "_PURGE_S", -1.0)
    store: Any = Store()
    sink: Any = Sink(None)
    purger: Any = Purger(StoreUnavailable("it is down"), 3)
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, purger, sink, pipeline=sink))
    (thread,) = [thread for thread in leader.threads if thread.name == "purge"]
    thread.start(leadership.report)
    for left in (1, 0, 0):
        leader.every_tick()
        assert thread.wait_idle(WAIT_S)
        assert len(purger.answers) == left
    assert leadership.stats.purged == 3
    assert thread.close(WAIT_S)


def test_rows_are_deleted_though_nothing_was_published_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where all that came was set aside: such rows would be counted as waiting, and grow old."""
    now_s = [10_000.0]
    monkeypatch.setattr(wal_leader, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    store: Any = Store()
    sink: Any = Sink(None)
    purger: Any = Purger(0, 3)
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, purger, sink, pipeline=sink))
    (thread,) = [thread for thread in leader.threads if thread.name == "purge"]
    thread.start(leadership.report)
    for after_s, left in ((0.0, 1), (2.0, 1), (59.0, 1), (61.0, 0), (63.0, 0)):
        now_s[0] = 10_000.0 + after_s
        leader.every_tick()
        assert thread.wait_idle(WAIT_S)
        assert len(purger.answers) == left
    assert leadership.stats.purged == 3
    assert thread.close(WAIT_S)


def test_a_checkpoint_is_renewed_an_hour_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before Kafka forgets it; and not every second from then on."""
    now_s = [10_000.0]
    monkeypatch.setattr(wal_leader, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    store: Any = Store()
    sink: Any = Sink(None)
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, store, sink, pipeline=sink))
    found = []
    for after_s in (3_599.0, 3_601.0, 7_200.0, 7_202.0):
        now_s[0] = 10_000.0 + after_s
        leader.every_tick()
        refresh = leadership.reported.get(timeout=WAIT_S)
        found.append(refresh.anyway)
        if refresh.anyway:
            leader._confirm(w.Confirm(300))
    assert found == [False, True, False, True]


def test_of_several_checkpoints_the_last_is_saved() -> None:
    sink: Any = Sink(None)
    store: Any = Store()
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, store, sink, pipeline=sink))
    thread = leader.publisher.thread
    for position in (FIRST, SECOND):
        thread.put(w.Save(position))
    thread.start(leadership.report)
    assert leadership.reported.get(timeout=WAIT_S) == w.Saved(SECOND)
    assert thread.close(WAIT_S)
    assert sink.told == [(0, SECOND.encode())]


class DeadStream:
    """Of a server that is gone: whoever tells it something finds that out."""

    def confirm(self, lsn: int) -> None:
        raise StoreUnavailable(f"the stream broke off at {lsn}")

    def close(self) -> None: ...


@pytest.mark.parametrize("closes", [False, True])
def test_of_a_stream_that_was_given_up_meanwhile_nothing_more_is_heard(*, closes: bool) -> None:
    """A delivery fails, too, and is heard of first: then the next stream is being opened, and the
    end of the last one would be taken for its failure: it would be opened a second time."""
    store: Any = Store()
    sink: Any = Sink(None)
    stream: Any = DeadStream()
    leader = WalLeader(Reporting(Lease()), WalTools(store, store, sink))
    leader._stream = stream
    inline = leader.threads[0]
    inline.put(w.Confirm(200))
    if closes:
        inline.put(w.CloseStream())
    assert leader.wait(0.0) == (None if closes else w.StreamFailed())
    assert leader.wait(0.0) is None


class Guard:
    """Of a database that is the one it was, or is not, or does not answer."""

    lease: Any = None

    def __init__(self, *found: HarvestError | None) -> None:
        self.found = list(found)
        self.asked: list[str] = []

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        error = self.found.pop(0)
        if error is not None:
            raise error

    def begin(self) -> None:
        self._ask("begin")

    def look(self) -> None:
        self._ask("look")

    def streamed(self) -> None:
        self.asked.append("rows")


CHANGED, SILENT = DatabaseChanged("it has gone back in time"), StoreUnavailable("it is down")


@pytest.mark.parametrize("found", [None, CHANGED, SILENT])
def test_nothing_is_streamed_from_a_database_that_is_not_known_to_be_the_one_it_was(
    found: HarvestError | None,
) -> None:
    closed: list[bool] = []
    stream = SimpleNamespace(close=lambda: closed.append(True))
    source: Any = SimpleNamespace(open=lambda *_: (stream, FIRST), cancel=lambda: None)
    sink: Any = Sink(None)
    guard: Any = Guard(found)
    lease = Lease(True)
    leadership = Reporting(lease)
    leader = WalLeader(leadership, WalTools(source, source, sink, guard=guard))
    (thread,) = [thread for thread in leader.threads if thread.name == "slot"]
    thread.start(leadership.report)
    thread.put(w.OpenStream(FIRST))
    event = leadership.reported.get(timeout=WAIT_S)
    expected: dict[object, object] = {None: w.StreamOpened(FIRST), SILENT: w.StreamFailed()}
    assert event == expected.get(found, found)
    assert (guard.asked, guard.lease) == (["begin"], lease)
    assert leadership.source_accepted is (found is None)
    assert closed == ([True] if found is SILENT else [])
    assert thread.close(WAIT_S)
    leader.close()
    assert closed == [True], "no stream is left open"


def test_the_database_is_looked_at_while_rows_are_streamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time, visits rise: without them, a copy from before is not told from what was lost."""
    monkeypatch.setattr(wal_leader, "_LOOK_S", -1.0)
    store: Any = Store()
    sink: Any = Sink(None)
    purger: Any = Purger(0)
    guard: Any = Guard(None, SILENT, CHANGED)
    leadership = Reporting(Lease(*[True] * 9))
    leader = WalLeader(leadership, WalTools(store, purger, sink, guard=guard))
    (thread,) = [thread for thread in leader.threads if thread.name == "slot"]
    thread.start(leadership.report)
    leader.every_tick()
    assert guard.asked == [], "it does not work yet"
    leader.scheduler.state = w.State.RUNNING
    leader.observe(w.ReadDone([w.Chunk(200, 0, [Row(1, "t", None, b"")], 210)], 210))
    leader.observe(w.ReadDone([], 300))
    for _ in range(2):
        leader.every_tick()
        assert thread.wait_idle(WAIT_S)
    assert guard.asked == ["rows", "look", "look"]
    leader.every_tick()
    said = [leadership.reported.get(timeout=WAIT_S) for _ in range(5)]
    assert [event for event in said if not isinstance(event, w.Refresh)] == [CHANGED]


def test_all_that_a_leader_was_connected_with_is_closed() -> None:
    closed: list[str] = []

    def part(name: str) -> Any:
        return SimpleNamespace(close=lambda: closed.append(name))

    WalTools(
        part("source"),
        part("purger"),
        part("sink"),
        part("pipeline"),
        dead_letters=part("dead letters"),
        guard=part("guard"),
    ).close()
    assert closed == ["sink", "source", "purger", "pipeline", "dead letters", "guard"]
