"""The follower's parts that need no broker: its lock, its queues, its patience."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from starlette.testclient import TestClient

from marshal_py.admin.connection import Connection
from marshal_py.client.log_reader import boottime_ns
from marshal_py.dashboard import log_follower as f
from marshal_py.dashboard.app import create_app
from marshal_py.dashboard.live_state import LiveState
from marshal_py.dashboard.subscribers import WAITING, Subscriber
from marshal_py.dashboard.topic_ends import TopicEnds
from marshal_py.errors import BrokerUnavailable, InvalidArgument
from marshal_py.protocol.world import Observer, World


def test_whoever_waits_for_the_lock_gets_it_before_who_has_just_had_it() -> None:
    lock, order = f.FairLock(), list[str]()

    def page() -> None:
        with lock:
            order.append("page")

    with lock:
        thread = threading.Thread(target=page, daemon=True)
        thread.start()
        while not lock._next.locked():  # the page stands in line
            threading.Event().wait(0.001)
    with lock:
        order.append("follower")
    thread.join()
    assert order == ["page", "follower"]


def test_a_slow_page_is_told_everything_anew_instead_of_filling_memory() -> None:
    async def run() -> None:
        page = Subscriber()
        for n in range(WAITING + 10):
            page.put(("delta", str(n).encode()))
        await asyncio.sleep(0)
        assert page.overrun
        got = [await page.get(1) for _ in range(WAITING)]
        assert got[-1] == ("delta", str(WAITING - 1).encode())
        with pytest.raises(TimeoutError):
            await page.get(0.01)
        page.put(None)
        assert await page.get(1) is None, "the end is never dropped"

    asyncio.run(run())


class Page(Subscriber):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.overrun = False

    def put(self, item: tuple[str, bytes] | None) -> None:
        assert item is not None
        self.sent.append(item[0])


def test_what_a_new_page_got_as_a_whole_does_not_come_again_as_a_change() -> None:
    follower, page = f.LogFollower(Connection.of_servers("nowhere:1")), Page()
    follower.subscribe(page)
    with follower.lock:
        follower._send_changes()
    assert page.sent == ["state"]
    follower.progress = 0.5
    with follower.lock:
        follower._send_changes()
    assert page.sent == ["state", "delta"]


def test_a_page_that_is_gone_harms_nobody() -> None:
    async def leave() -> Subscriber:
        return Subscriber()

    asyncio.run(leave()).put(("delta", b"{}"))


@pytest.mark.parametrize(
    "path",
    ["cell?group=g&topic=t&partition=0", "lanes?group=g&topic=t&from=0&to=1", "strip?from=0&to=1",
     "activity"],
)  # fmt: skip
def test_while_the_log_is_being_read_nothing_is_said_of_it(path: str) -> None:
    follower = f.LogFollower(Connection.of_servers("nowhere:1"))
    follower.progress = 0.5
    with TestClient(create_app(follower), base_url="http://localhost") as pages:
        answer = pages.get(f"/api/{path}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"error": "the log is being read, 50% so far: ask again"}


@pytest.mark.parametrize(
    ("asked_ms", "first_ms", "known_ms"), [(1_000, 0, 1_000), (1_000, 500, 1_000), (1, 500, 500)]
)
def test_what_is_known_begins_where_the_log_does_and_not_before_what_was_read(
    asked_ms: int, first_ms: int, known_ms: int
) -> None:
    follower: Any = f.LogFollower(Connection.of_servers("nowhere:1"))
    follower.history_from_ms = asked_ms
    follower.live = SimpleNamespace(first_ms=first_ms)
    assert follower.known_from_ms() == known_ms


def test_a_history_that_takes_too_long_to_read_is_shortened_once() -> None:
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), history_s=3_600)
    follower.progress = 0.5
    follower._check_pace(f.PACE_S + 1)
    follower.progress = 0.01
    follower._check_pace(f.PACE_S / 2)
    assert follower.history_s == 3_600, "too early to say"
    with pytest.raises(f._ReadingTooLong):
        follower._check_pace(6.0)
    assert follower.history_s == pytest.approx(3_600 * 30 / 600 / 2)
    follower._check_pace(60.0)


class Ends(TopicEnds):
    """Answers, or fails with what is given."""

    def __init__(self, failure: Exception | None) -> None:
        self.failure = failure

    def ask_log(self, partitions: int) -> None:
        if self.failure is not None:
            raise self.failure

    def ask(self, topics: set[str]) -> dict[str, dict[int, int]]:
        return {}

    def hidden(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if topic == "secret"]


def test_only_an_answer_is_contact_and_only_what_kafka_refuses_is_the_loss_of_it() -> None:
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), ends=(ends := Ends(None)))
    follower.live = live = LiveState(World(1), [Observer()])
    follower.phase = "live"
    ends.offline = {("t", 0)}
    follower._ask_ends(live, {"t"})
    assert live.lags.offline == {("t", 0)}
    first_ns = live.contact_ns
    assert first_ns is not None

    ends.failure = ValueError("a fault of this program's")
    follower._ask_ends(live, set())
    assert (follower.phase, live.contact_ns) == ("live", first_ns)

    ends.failure = BrokerUnavailable("nobody answers for __marshal-0")
    follower._ask_ends(live, set())
    assert (follower.phase, live.contact_ns) == ("lost", first_ns)
    assert "__marshal-0" in follower.trouble

    ends.failure = None
    follower._ask_ends(live, set())
    assert (follower.phase, live.contact_since_ns) == ("live", live.contact_ns)
    assert live.contact_ns != first_ns

    ends.failure = BrokerUnavailable("nobody answers for __marshal-0")
    follower._ask_ends(live, set())
    follower._reopen = True  # the log was lost meanwhile, and was not read anew
    ends.failure = None
    follower._ask_ends(live, set())
    assert (follower.phase, follower._out_of_contact) == ("lost", False)


def test_of_a_log_that_is_read_anew_each_mismatch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were known before are of another log, or of another reader."""
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), ends=Ends(None))
    reader: Any = SimpleNamespace(
        world=World(1),
        observers=[Observer()],
        mismatches=["of before"],
        partition_count_error=None,
        open=lambda *_, **__: None,
        close=lambda: None,
    )

    def poll(_: float) -> list[Any]:
        reader.mismatches.append("snapshots differ")
        follower._stop.set()
        return []

    reader.poll = poll
    monkeypatch.setattr(f, "SEND_S", 0)
    monkeypatch.setattr(f, "_Reader", lambda *_, **__: reader)
    follower._mismatches = 2
    follower._open()
    follower._tail()
    assert follower.live is not None
    assert [alert.text for alert in follower.live.alerts.all()] == ["snapshots differ"]


def test_what_was_asked_for_the_log_before_is_not_told_of_the_next() -> None:
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), ends=(ends := Ends(None)))
    before, now = LiveState(World(1), [Observer()]), LiveState(World(1), [Observer()])
    follower.live, follower.phase = before, "live"

    def ask_log(_: int) -> None:
        follower.live = now

    ends.ask_log = ask_log  # type: ignore[assignment, method-assign]
    follower._ask_ends(before, set())
    assert (before.contact_ns, now.contact_ns) == (None, None)


def test_without_lag_the_brokers_are_asked_once_a_second_whether_they_answer() -> None:
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), ends=Ends(None), lag_every_s=0)
    follower.live, follower.phase = LiveState(World(1), [Observer()]), "live"
    asked, waits = list[set[str]](), list[float | None]()
    follower._ask_ends = lambda _, topics: asked.append(topics)  # type: ignore[assignment, method-assign]

    def wait(timeout_s: float | None = None) -> bool:
        waits.append(timeout_s)
        follower._stop.set()
        return True

    follower._stop.wait = wait  # type: ignore[assignment, method-assign]
    follower._follow_ends()
    assert (asked, waits) == ([set()], [f.CONTACT_S])


def test_pages_are_told_how_far_the_log_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f, "SEND_S", -1)
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), ends=Ends(None))
    follower.live = LiveState(world := World(1), [Observer()])
    told: list[tuple[str, float]] = []

    def history() -> Iterator[None]:
        for _ in range(2):
            world.states[0].next_offset += 50
            yield ()  # type: ignore[misc]

    follower._reader = SimpleNamespace(  # type: ignore[assignment]
        world=world, extent=lambda: {0: (0, 100)}, history=history, close=lambda: None
    )
    follower._send_changes = lambda: told.append((follower.phase, follower.progress))  # type: ignore[method-assign]
    follower._replay()
    assert told == [("reading", 0.5), ("reading", 1.0)]
    assert (follower.phase, follower.progress) == ("live", 1.0)


def test_pages_are_answered_while_a_client_that_has_failed_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f, "RETRY_S", 0)
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), ends=Ends(None))
    answered: list[str] = []

    def close() -> None:
        with follower.lock:
            answered.append(follower.phase)

    reader: Any = SimpleNamespace(close=close)
    follower._reader = reader
    losing = threading.Thread(target=follower._lost, args=("nobody answers",), daemon=True)
    losing.start()
    losing.join(20)
    assert answered == ["lost"]
    assert follower._reader is None


def test_a_topic_that_the_brokers_hide_is_an_alert_with_the_way_out() -> None:
    """Its lag is missing, which looks as though nobody were behind."""
    follower = f.LogFollower(Connection.of_servers("nowhere:1"), ends=Ends(None))
    follower.live = live = LiveState(World(1), [Observer()])
    unseen = {"secret", "later"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "consumed_beyond", lambda ends: unseen - ends.keys())
        follower._ask_ends(live, {"secret"})
        (alert,) = live.alerts.all()
        assert (alert.kind, alert.topic, alert.until_ms) == ("topic_hidden", "secret", None)
        assert "--operation Describe --topic secret" in alert.text
        follower._ask_ends(live, set())
        assert alert.until_ms is None, "this time it was not asked"
        unseen.remove("secret")
        follower._ask_ends(live, {"secret"})
    assert alert.until_ms is not None


class Quiet:
    """A reader of a log that nobody writes to."""

    mismatches: tuple[str, ...] = ()
    partition_count_error = None

    def poll(self, _: float) -> list[Any]:
        return []


@pytest.mark.parametrize("contact_ns", [None, 5, 2**62])
def test_silence_is_judged_as_of_when_the_brokers_last_answered(
    monkeypatch: pytest.MonkeyPatch, contact_ns: int | None
) -> None:
    """What they have not told since, nobody has failed to write."""
    follower: Any = f.LogFollower(Connection.of_servers("nowhere:1"))
    follower._reader, follower.phase = Quiet(), "live"
    follower.live = live = LiveState(World(1), [Observer()])
    live.contact_ns = contact_ns
    judged: list[int] = []

    def tick(now_ns: int) -> None:
        judged.append(now_ns)
        follower._stop.set()

    monkeypatch.setattr(live, "tick", tick)
    before_ns = boottime_ns()
    follower._tail()
    (now_ns,) = judged
    if contact_ns == 2**62:
        assert before_ns <= now_ns <= boottime_ns(), "no later than what has been read"
    else:
        assert now_ns == (contact_ns or 0)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"what": "forget", "group": "g"}', b'{"what": "pause", "group": ""}',
     b'{"what": "pause", "group": "g", "for_s": 0}', b'{"what": "set_position", "group": "g"}',
     b'{"what": "set_position", "group": "g", "topic": "t", "to": " "}', b'\xff',
     b'{"what": "pause", "group": "g", "more": 1}'],
)  # fmt: skip
def test_what_is_no_action_is_refused(body: bytes) -> None:
    from marshal_py.dashboard.operations import decode_action

    with pytest.raises(InvalidArgument):
        decode_action(body)
