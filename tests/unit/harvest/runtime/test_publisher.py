"""The thread that publishes: what goes together, in which order, and under which checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from harvest.core.actions import Open, OpenFailed
from harvest.core.failure import Failure
from harvest.core.row import Row
from harvest.errors import SinkUnavailable
from harvest.runtime import publisher as module
from harvest.runtime.leadership import Leadership
from harvest.runtime.publisher import Publisher

WAIT_S = 20.0
LEASE: Any = SimpleNamespace(epoch=1, held=True, remaining_ms=1_000.0)


class Noting(Leadership):
    """Keeps what is reported."""

    def __init__(self) -> None:
        super().__init__(LEASE)
        self.reported: list[Any] = []

    def report(self, event: Any) -> None:
        self.reported.append(event)

    def crash(self, error: BaseException) -> None:
        self.reported.append(error)


class Send(NamedTuple):
    number: int
    rows: list[Row]


class Sink:
    """Notes what comes, and holds on before the first delivery until it is let go."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.failure: Failure | None = None
        self.still_held: Callable[[], bool] = lambda: False
        self.arrived, self.go_on, self.done = (threading.Event() for _ in range(3))

    def open(self, still_held: Callable[[], bool]) -> str | None:
        assert still_held()
        self.still_held = still_held
        self.seen.append("open")
        return None

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        self.arrived.set()
        assert self.go_on.wait(WAIT_S)
        self.seen.append(([row.id for row in rows], checkpoint))
        if rows[-1].id == 99:
            self.done.set()
        return self.failure

    def close(self) -> None:
        self.seen.append("closed")


def send(number: int, *ids: int) -> Send:
    return Send(number, [Row(id, "t", b"k", b"v") for id in ids])


def publisher(leadership: Leadership, sink: Any, most_rows: int = 3) -> Publisher:
    return Publisher(
        leadership,
        sink,
        Send,
        opened=lambda found: ("opened", found),
        checkpoint=lambda last: f"up to {last.number}",
        settled=lambda sends, failure: ([s.number for s in sends], failure),
        most_rows=most_rows,
    )


@contextmanager
def at_work(sink: Sink, *waiting: object) -> Iterator[list[Any]]:
    """What is reported; `waiting` waits while a first send is under way."""
    leadership = Noting()
    made = publisher(leadership, sink)
    made.thread.start(lambda error: pytest.fail(repr(error)))
    made.thread.put(send(0, 0))
    assert sink.arrived.wait(WAIT_S)
    for action in (*waiting, send(9, 99)):
        made.thread.put(action)
    sink.go_on.set()
    assert sink.done.wait(WAIT_S)
    assert made.thread.wait_idle(WAIT_S)
    yield leadership.reported
    assert made.thread.close(WAIT_S)


def test_what_waits_goes_together_under_the_last_checkpoint() -> None:
    sink = Sink()
    sends = [send(1, 1, 2), send(2, 3), send(3, 4, 5), send(4, 6, 7, 8, 9), send(5, 10)]
    with at_work(sink, *sends) as reported:
        assert sink.seen == [
            ([0], "up to 0"),
            ([1, 2, 3], "up to 2"),
            ([4, 5], "up to 3"),
            ([6, 7, 8, 9], "up to 4"),
            ([10, 99], "up to 9"),
        ]
        assert [numbers for numbers, _ in reported] == [[0], [1, 2], [3], [4], [5, 9]]


def test_what_was_put_in_before_an_open_is_sent_before_it() -> None:
    sink = Sink()
    with at_work(sink, send(1, 1), Open(0), send(2, 2)) as reported:
        assert sink.seen == [([0], "up to 0"), ([1], "up to 1"), "open", ([2, 99], "up to 9")]
        assert reported[2] == ("opened", None)


def test_a_failure_is_that_of_all_that_went_together(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink()
    sink.failure = Failure("no", frozenset({2}))
    with at_work(sink, send(1, 1, 2)) as reported:
        assert reported == [([0], sink.failure), ([1, 9], sink.failure)]
    assert [record.message for record in caplog.records] == ["1 rows were not published: no"], (
        "one failure is told once, however many deliveries it is of"
    )


def test_a_sink_that_cannot_be_opened_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Closed(Sink):
        def open(self, still_held: Callable[[], bool]) -> str | None:
            raise SinkUnavailable("no broker")

    assert publisher(Leadership(LEASE), Closed()).open(Open(0)) == OpenFailed()
    assert "the sink could not be opened: no broker" in caplog.text


class Pipelined(Sink):
    """Leaves what is submitted for the test to settle; may hold on before it returns."""

    atomic = False

    def __init__(self) -> None:
        super().__init__()
        self.settles: list[Callable[[Failure | None], None]] = []
        self.go_on.set()

    def prepare(self) -> None: ...

    def submit(self, rows: Sequence[Row], settle: Callable[[Failure | None], None]) -> None:
        self.seen.append([row.id for row in rows])
        self.settles.append(settle)
        self.arrived.set()
        assert self.go_on.wait(WAIT_S)
        if rows[-1].id == 99:
            self.done.set()


def test_to_a_sink_that_can_the_next_rows_go_before_the_last_are_acknowledged() -> None:
    sink = Pipelined()
    leadership = Noting()
    made = publisher(leadership, sink)
    made.thread.start(lambda error: pytest.fail(repr(error)))
    made.thread.put(send(0, 0))
    assert made.thread.wait_idle(WAIT_S)
    made.thread.put(send(1, 99))
    assert sink.done.wait(WAIT_S)
    assert (sink.seen, leadership.reported) == ([[0], [99]], [])
    for settle in sink.settles:
        settle(None)
    assert leadership.reported == [([0], None), ([1], None)]
    assert made.thread.close(WAIT_S)


def test_a_sink_that_hangs_ends_the_process_and_one_that_gives_signs_of_life_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lease would be held all the while, and nobody would publish."""
    now_s = 1_000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    sink, leadership = Sink(), Noting()
    made = publisher(leadership, sink)
    made.check()
    made.open(Open(0))
    now_s += 200
    made.check()
    assert leadership.reported == [], "nobody waits for it"
    made.thread.start(lambda error: pytest.fail(repr(error)))
    made.thread.put(send(0, 99))
    assert sink.arrived.wait(WAIT_S)
    now_s += module.HANGS_AFTER_S - 1
    made.check()
    assert sink.still_held()
    now_s += module.HANGS_AFTER_S - 1
    made.check()
    assert leadership.reported == []
    now_s += 2
    made.check()
    (error,) = leadership.reported
    assert isinstance(error, SinkUnavailable)
    assert "the sink hangs: it gave no sign of life for 120 s" in str(error)
    sink.go_on.set()
    assert made.thread.close(WAIT_S)
    made.check()
    assert [event for event in leadership.reported if isinstance(event, Exception)] == [error]


@pytest.mark.parametrize("returns", [True, False])
def test_so_does_one_whose_deliveries_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, *, returns: bool
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    sink, leadership = Pipelined(), Noting()
    made = publisher(leadership, sink)
    made.open(Open(0))
    made.thread.start(lambda error: pytest.fail(repr(error)))
    made.thread.put(send(0, 0))
    assert made.thread.wait_idle(WAIT_S)
    now_s += module.HANGS_AFTER_S - 1
    assert sink.still_held(), "asked by the thread that waits for brokers"
    now_s += module.HANGS_AFTER_S - 1
    made.check()
    sink.settles.pop()(None)
    now_s += module.HANGS_AFTER_S
    made.check()
    assert leadership.reported == [([0], None)], "nobody waits for it"
    sink.arrived.clear()
    if not returns:
        sink.go_on.clear()
    made.thread.put(send(1, 99))
    assert sink.arrived.wait(WAIT_S)
    assert made.thread.wait_idle(WAIT_S if returns else 0.0) is returns
    now_s += module.HANGS_AFTER_S + 1
    if not returns:
        assert sink.still_held(), "which shows nothing about the call that does not return"
    made.check()
    assert isinstance(leadership.reported[-1], SinkUnavailable)
    sink.go_on.set()
    assert made.thread.close(WAIT_S)
