"""One leadership, from its beginning to its end, whatever the mode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core.actions import Finish, LeaseLost, Start, Stop
from harvest.errors import HarvestError, SinkUnavailable, StoreUnavailable
from harvest.runtime import leadership as module
from harvest.runtime.action_threads import ActionThread
from harvest.runtime.leadership import Leadership
from harvest.runtime.wake import WakeEvent
from tests.unit.harvest.runtime.test_harvester import FakeLease

WAIT_S = 60.0


@dataclass
class Scheduler:
    """Answers each type of event with the actions that are given."""

    answers: dict[type, Sequence[Any]]
    running: bool = True
    in_flight_records: int = 3
    heard: list[Any] = field(default_factory=list)
    during: Callable[[], None] = lambda: None

    def step(self, event: Any) -> Sequence[Any]:
        self.heard.append(event)
        self.during()
        return self.answers.get(type(event), ())


class Leader:
    """Notes when it is closed."""

    def __init__(self, scheduler: Scheduler, *threads: ActionThread[Any]) -> None:
        self.scheduler = scheduler
        self.threads = threads
        self.closed = 0

    def observe(self, event: Any) -> None: ...
    def every_tick(self) -> None: ...
    def due_s(self) -> float | None:
        return None

    def close(self) -> None:
        self.closed += 1


DONE = (Finish("told to"),)


def ending(leadership: Leadership, leader: Leader) -> list[bool]:
    """What `run` returns, if it does in time."""
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(leadership.run(leader)), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return ended


def test_what_is_not_settled_in_time_is_left_to_the_next_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = Scheduler({LeaseLost: DONE})
    leadership = Leadership(FakeLease(1), drain_timeout_s=0.0)
    leadership.stop()
    assert ending(leadership, Leader(scheduler)) == [True]
    assert scheduler.heard == [Start(), Stop(), LeaseLost()]
    assert "3 rows in flight were not settled within 0 s" in caplog.text


def test_who_is_told_twice_to_stop_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def pass_time() -> None:
        now_s[0] += 6.0

    scheduler = Scheduler({}, during=pass_time)
    leadership = Leadership(FakeLease(1), drain_timeout_s=10.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    scheduler.answers = {LeaseLost: DONE}
    leadership.stop()
    leadership.stop()
    assert leadership._loop(Leader(scheduler))
    assert scheduler.heard == [Start(), Stop(), Stop(), LeaseLost()]
    assert leadership._stop_at_s == 16.0


def test_it_is_cut_off_while_the_last_failure_was_the_databases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    seen: list[float] = []

    def work() -> None:
        event = scheduler.heard[-1]
        scheduler.running = event == "works"
        if isinstance(event, HarvestError):
            leadership.failed("%s", event)
        now_s[0] += 1.0
        seen.append(leadership.cut_off_s)

    scheduler = Scheduler({Stop: DONE}, during=work)
    leadership = Leadership(FakeLease(1))
    leadership._scheduler = scheduler  # as `run` does
    down, gone = StoreUnavailable(), SinkUnavailable()
    for event in (down, "tries", gone, down, "works", "fails", down):
        leadership.report(event)
    leadership.stop()
    assert leadership._loop(Leader(scheduler))
    assert seen == [0.0, 2.0, 3.0, 0.0, 5.0, 0.0, 0.0, 2.0, 3.0]


def test_who_has_ended_acts_no_more_though_the_lease_is_held() -> None:
    lease, leader = FakeLease(1), Leader(Scheduler({Stop: DONE}))
    leadership = Leadership(lease)
    assert leadership.may_act()
    leadership.stop()
    assert ending(leadership, leader) == [True]
    assert lease.held
    assert not leadership.may_act()
    assert leader.closed == 1


def test_a_lease_that_is_lost_ends_it_and_nothing_waits_any_more() -> None:
    lease, leader = FakeLease(1), Leader(Scheduler({LeaseLost: DONE}))
    leadership = Leadership(lease)
    lease.lost.set()
    assert ending(leadership, leader) == [False]
    leadership.pause(WAIT_S * 10_000)
    assert not leadership.wait_for_rows(WAIT_S * 10_000, WAIT_S * 10_000, None)
    assert leader.closed == 1


def stop_once(begun: threading.Event, leadership: Leadership) -> None:
    def stop() -> None:
        assert begun.wait(WAIT_S)
        leadership.stop()

    threading.Thread(target=stop, daemon=True).start()


def busy(
    name: str, until: threading.Event, cancel: Callable[[], None] | None
) -> tuple[ActionThread[str], threading.Event]:
    begun = threading.Event()

    def work(_: object) -> None:
        begun.set()
        assert until.wait(WAIT_S)

    thread: ActionThread[str] = ActionThread(name, work, (str,), cancel=cancel)
    return thread, begun


def test_a_statement_under_way_is_broken_off_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CANCEL_AFTER_S", 0.0)
    cancelled = threading.Event()
    thread, begun = busy("table", cancelled, cancelled.set)
    scheduler = Scheduler({Start: ("ask",), Stop: DONE})
    leader, leadership = Leader(scheduler, thread), Leadership(FakeLease(1))
    stop_once(begun, leadership)
    assert ending(leadership, leader) == [True]
    assert cancelled.is_set()
    assert leader.closed == 1


def test_a_thread_that_hangs_is_left_behind_and_the_sink_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT_S", 0.0)
    go_on = threading.Event()
    thread, begun = busy("sink", go_on, None)
    scheduler = Scheduler({Start: ("send",), Stop: DONE})
    leader, leadership = Leader(scheduler, thread), Leadership(FakeLease(1))
    stop_once(begun, leadership)
    assert ending(leadership, leader) == [True]
    assert "the sink thread hangs; it is left behind" in caplog.text
    assert leader.closed == 1
    go_on.set()


def test_what_rings_while_the_table_is_read_is_heard_after_it() -> None:
    wake_event = WakeEvent()
    wake_event.listening = True
    leadership = Leadership(FakeLease(1), wake_event=wake_event)
    wake_event.wake()
    assert leadership.wait_for_rows(1.0, WAIT_S * 10_000, None), "it had rung before"
    assert not wake_event.wait(0), "what rang is about to be read"
    wake_event.wake()
    assert leadership.wait_for_rows(1.0, WAIT_S * 10_000, None)


def test_for_how_long_it_has_not_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    leadership = Leadership(FakeLease(1))
    now_s[0] = 7.0
    assert leadership.idle_s == 7.0
    scheduler = Scheduler({Stop: DONE})
    leadership.stop()
    assert leadership._loop(Leader(scheduler))
    leadership._scheduler = scheduler
    assert leadership.idle_s == 0.0
    scheduler.running = False
    now_s[0] = 9.0
    assert leadership.idle_s == 2.0


def test_who_ends_reads_no_more_and_waits_for_no_delivery_before() -> None:
    lease: Any = FakeLease(1)
    leadership = Leadership(lease)
    leadership._end_waits()
    busy: Any = SimpleNamespace(wait_idle=lambda _: pytest.fail("it is waited for"))
    assert not leadership.wait_for_rows(1.0, 1.0, busy)
