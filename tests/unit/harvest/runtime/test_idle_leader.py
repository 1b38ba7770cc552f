"""An idle leader asks the database at most twice a second (specs/HARVEST.md §9), in both modes, in
virtual time: every wait is over at once, and is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from harvest.outbox.record import OutboxRecord
from harvest.runtime.leadership import Leadership, Tools
from harvest.runtime.mark_leader import MarkTools
from harvest.runtime.range_leader import RangeTools
from harvest.runtime.wake import WakeEvent
from harvest.testing.memory_broker import MemoryBroker, MemorySink
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable

SETTLING_S = 10.0
"""From the last row until polling has slowed down."""
IDLE_S = 100.0


class Lease:
    epoch = 7
    held = True
    remaining_ms = 60_000.0

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        threading.Event().wait(timeout_s)
        return False


class Counting:
    """A store whose calls are statements."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def called(*arguments: Any, **named: Any) -> Any:
            self.statements += 1
            return value(*arguments, **named)

        return called


class VirtualWakeEvent(WakeEvent):
    """Nobody wakes. What is waited is added up; `over` is called once the idle time has passed."""

    def __init__(self, *, notified: bool, statements: Callable[[], int]) -> None:
        super().__init__()
        self.listening = notified
        self.over: Callable[[], None] = lambda: None
        self._statements = statements
        self._waited_s = 0.0
        self._before: int | None = None
        self.per_s: float | None = None

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        self._waited_s += timeout_s
        if self._before is None and self._waited_s >= SETTLING_S:
            self._before = self._statements()
        if self._before is not None and self.per_s is None and self._waited_s >= IDLE_S:
            self.per_s = (self._statements() - self._before) / (self._waited_s - SETTLING_S)
            self.over()
        return False


def tools_of(mode: str, one: Any, other: Any) -> Tools:
    sink = MemorySink(MemoryBroker())
    return RangeTools(one, other, sink) if mode == "range" else MarkTools(one, other, sink)


@pytest.mark.parametrize("mode", ["mark", "range"])
@pytest.mark.parametrize("notified", [False, True], ids=["polling", "notified"])
def test_an_idle_leader_asks_at_most_twice_a_second(mode: str, notified: bool) -> None:
    table = MemoryTable()
    table.insert(*[OutboxRecord("t", "k", "v") for _ in range(10)])  # published before it idles
    kind: Any = MemoryRangeStore if mode == "range" else MemoryMarkStore
    stores = [Counting(kind(table)) for _ in range(2)]
    wake_event = VirtualWakeEvent(
        notified=notified, statements=lambda: sum(s.statements for s in stores)
    )
    lease: Any = Lease()
    leadership = Leadership(lease, wake_event=wake_event)
    wake_event.over = leadership.stop
    assert leadership.run(tools_of(mode, *stores).leader(leadership))
    assert wake_event.per_s is not None
    assert 0.5 < wake_event.per_s <= 2.0
