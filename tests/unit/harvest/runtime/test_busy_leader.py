"""A leader that is busy to the last cycle keeps its lease: heartbeats come before rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from harvest import OutboxRecord
from harvest.core.dispatcher import Outcome, Policy
from harvest.core.failure import Failure
from harvest.core.interfaces.range_store import Window
from harvest.core.pacing import Limits
from harvest.core.routes import Router
from harvest.core.row import Row
from harvest.runtime.events import Stats
from harvest.runtime.leadership import Leadership, Tools
from harvest.runtime.lease import HeartbeatGuard
from harvest.runtime.mark_leader import MarkTools
from harvest.runtime.range_leader import RangeTools
from harvest.runtime.relay_leader import RelayTools
from harvest.runtime.wake import WakeEvent
from harvest.testing.memory_broker import MemoryBroker, MemorySink
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable
from tests.unit.harvest.runtime.test_harvester import FakeLease

WAIT_S = 60


class Shrinking(FakeLease):
    """What is left of it is `left_ms`."""

    left_ms = 1_900.0

    @property
    def remaining_ms(self) -> float:
        return self.left_ms


class Counting:
    """A destination in whose middle the heartbeat becomes late."""

    def __init__(self, lease: Shrinking, late_after: int) -> None:
        self.sent: list[int] = []
        self.late = threading.Event()
        self._lease = lease
        self._late_after = late_after

    def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
        del idempotency_key, epoch
        self.sent.append(row.id)
        if len(self.sent) == self._late_after:
            self._lease.left_ms = 700.0
            self.late.set()
        return Outcome(204)

    def close(self) -> None: ...


def test_no_message_is_begun_while_the_heartbeat_is_late() -> None:
    table, lease, stats = MemoryTable(), Shrinking(1), Stats()
    for n in range(50):
        table.insert(OutboxRecord("t", f"k{n}", "v"))
    sink, policy = Counting(lease, late_after=10), Policy(concurrency=1)
    tools = RelayTools(
        MemoryMarkStore(table),
        MemoryMarkStore(table),
        {"d": sink},
        {"d": policy},
        Router({"d": policy}, None, outbox="g", unique="{id}", clock=lambda: (0.0, 0.0)),
    )
    leadership = Leadership(lease, stats=stats, drain_timeout_s=WAIT_S)
    thread = threading.Thread(target=leadership.run, args=(tools.leader(leadership),), daemon=True)
    thread.start()
    try:
        assert sink.late.wait(WAIT_S)
        settled = threading.Event()
        settled.wait(0.3)  # in which a relay that did not look would send the rest
        assert len(sink.sent) == 10
        lease.left_ms = 1_900.0
        for _ in range(WAIT_S * 100):
            if settled.wait(0.01) or not table.committed:
                break
        assert not table.committed
        assert sorted(sink.sent) == list(range(1, 51))
    finally:
        lease.left_ms = 1_900.0
        leadership.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert stats.messages == {("d", "delivered"): 50}


class Late(MemorySink):
    """A sink in whose middle the heartbeat becomes late."""

    def __init__(self, broker: MemoryBroker, lease: Shrinking, late_after: int) -> None:
        super().__init__(broker)
        self.delivered = 0
        self.late = threading.Event()
        self._lease = lease
        self._late_after = late_after

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        self.delivered += 1
        if self.delivered == self._late_after:
            self._lease.left_ms = 700.0
            self.late.set()
        return super().deliver(rows, checkpoint)


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_nothing_is_asked_or_delivered_while_the_heartbeat_is_late(mode: str) -> None:
    table, broker, lease = MemoryTable(), MemoryBroker(), Shrinking(1)
    for n in range(50):
        table.insert(OutboxRecord("t", f"k{n}", "v"))
    sink = Late(broker, lease, late_after=3)
    limits = Limits(mark_query_records=2, max_in_flight_records=2)
    tools: Tools = (
        MarkTools(MemoryMarkStore(table), MemoryMarkStore(table), sink, limits)
        if mode == "mark"
        else RangeTools(MemoryRangeStore(table), MemoryRangeStore(table), sink, limits)
    )
    leadership = Leadership(lease, drain_timeout_s=WAIT_S)
    thread = threading.Thread(target=leadership.run, args=(tools.leader(leadership),), daemon=True)
    thread.start()
    try:
        assert sink.late.wait(WAIT_S)
        settled = threading.Event()
        settled.wait(0.3)  # in which a leader that did not look would deliver the rest
        assert sink.delivered == 3
        lease.left_ms = 1_900.0
        for _ in range(WAIT_S * 100):
            if settled.wait(0.01) or len(broker.published) == 50:
                break
        assert [row.id for row in broker.published] == list(range(1, 51))
    finally:
        lease.left_ms = 1_900.0
        leadership.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


class Slow(MemorySink):
    """A sink whose first delivery lasts until it is released."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.begun = threading.Event()
        self.released = threading.Event()

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        self.begun.set()
        assert self.released.wait(WAIT_S)
        return super().deliver(rows, checkpoint)


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_what_comes_during_a_delivery_is_read_together_after_it(mode: str) -> None:
    table, broker, wake_event = MemoryTable(), MemoryBroker(), WakeEvent()
    wake_event.listening = True
    found: list[list[int]] = []

    class Marks(MemoryMarkStore):
        def mark(self, *arguments: Any) -> list[Row]:
            rows = super().mark(*arguments)
            found.append([row.id for row in rows])
            return rows

    class Ranges(MemoryRangeStore):
        def read(self, after: int, limit: int) -> Window:
            window = super().read(after, limit)
            found.append([row.id for row in window.rows])
            return window

    sink = Slow(broker)
    tools: Tools = (
        MarkTools(Marks(table), MemoryMarkStore(table), sink)
        if mode == "mark"
        else RangeTools(Ranges(table), MemoryRangeStore(table), sink)
    )
    leadership = Leadership(FakeLease(1), wake_event=wake_event, drain_timeout_s=WAIT_S)
    table.insert(OutboxRecord("t", "k", "v"))
    thread = threading.Thread(target=leadership.run, args=(tools.leader(leadership),), daemon=True)
    thread.start()
    try:
        assert sink.begun.wait(WAIT_S)
        for _ in range(3):
            table.insert(OutboxRecord("t", "k", "v"))
            wake_event.wake()
            threading.Event().wait(0.1)  # in which a leader that did not wait would read it
        sink.released.set()
        for _ in range(WAIT_S * 100):
            if len(broker.published) == 4:
                break
            threading.Event().wait(0.01)
        assert broker.of_key("t", b"k") == [1, 2, 3, 4]
        assert [ids for ids in found if ids] == [[1], [2, 3, 4]]
    finally:
        sink.released.set()
        leadership.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def test_work_waits_for_a_late_heartbeat_and_for_nothing_else() -> None:
    lease, over = Shrinking(1), threading.Event()
    first = HeartbeatGuard(lease)
    for lease.left_ms in (1_900.0, 850.0, 0.0):  # full; about to be renewed; lost
        first.wait(over)
    lease.left_ms = 700.0
    went = threading.Event()

    def wait() -> None:
        first.wait(over)
        went.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert not went.wait(0.2)
    lease.left_ms = 1_850.0
    assert went.wait(WAIT_S)
    thread.join()
    lease.left_ms = 700.0
    over.set()
    first.wait(over)
