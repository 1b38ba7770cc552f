"""A relay that is busy to the last cycle keeps its lease: heartbeats come before messages."""

from __future__ import annotations

import threading

from harvest import OutboxRecord
from harvest.destinations import Outcome, Policy
from harvest.events import Stats
from harvest.lease import HeartbeatFirst
from harvest.relay_leader import RelayTools
from harvest.routes import Router
from harvest.rows import Row
from harvest.store.memory import MemoryMarkStore, MemoryTable
from harvest.wake import Bell
from tests.unit.test_harvest_reaper import FakeLease

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
    leader = tools.leader(
        lease, stats=stats, on_event=lambda _: None, bell=Bell(), drain_timeout_s=WAIT_S
    )
    thread = threading.Thread(target=leader.run)
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
        leader.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    assert stats.messages == {("d", "delivered"): 50}


def test_work_waits_for_a_late_heartbeat_and_for_nothing_else() -> None:
    lease, over = Shrinking(1), threading.Event()
    first = HeartbeatFirst(lease)
    for lease.left_ms in (1_900.0, 850.0, 0.0):  # full; about to be renewed; lost
        first.wait(over)
    lease.left_ms = 700.0
    went = threading.Event()
    thread = threading.Thread(target=lambda: (first.wait(over), went.set()))
    thread.start()
    assert not went.wait(0.2)
    lease.left_ms = 1_850.0
    assert went.wait(WAIT_S)
    thread.join()
    lease.left_ms = 700.0
    over.set()
    first.wait(over)
