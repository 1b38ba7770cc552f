"""A world of leaders, writers and faults around the mark scheduler, driven by one random source.

Every leader executes its actions in three lanes, as the real process does: marks and clears, sends
and opens, purges and resets. Within a lane they keep their order; between lanes anything goes. With
a pipelined sink a fourth lane brings the acknowledgements, and more is sent before they come.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from dataclasses import dataclass, field

from harvest.core import mark as m
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy, Key
from harvest.core.failure import Failure
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.errors import SinkUnavailable, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.testing.memory_broker import REFUSED, MemoryBroker, MemorySink
from harvest.testing.memory_table import (
    MemoryDeadLetters,
    MemoryMarkStore,
    MemoryTable,
    MemoryTransaction,
)

LANE: dict[type, str] = {
    m.Mark: "mark",
    m.Clear: "mark",
    m.Open: "sink",
    m.Send: "sink",
    m.Purge: "purge",
    m.Reset: "purge",
    m.AddDeadLetters: "mark",
}


@dataclass(frozen=True)
class Acknowledge:
    """What is under way first is decided."""


LANE[Acknowledge] = "acknowledgements"
KEYS = ("a", "b", "c")
TOPIC = "t"


@dataclass
class Leader:
    """One leadership: a scheduler, its lanes, and whether it still leads."""

    world: World
    epoch: int
    scheduler: m.MarkScheduler
    sink: MemorySink
    store: MemoryMarkStore
    dead_letters: MemoryDeadLetters
    held: bool = True
    woken: bool = False
    valid_ms: float = 1_000.0
    finished: str | None = None
    lanes: dict[str, deque[m.Action | Acknowledge]] = field(
        default_factory=lambda: {name: deque() for name in LANE.values()}
    )
    under_way: deque[tuple[list[m.Send], list[Row], Failure | None]] = field(default_factory=deque)
    broken: bool = False
    """Whether a pipelined delivery has failed, which the scheduler may not know yet."""

    def feed(self, event: m.Event) -> None:
        for action in self.scheduler.step(event):
            assert self.finished is None, "an action after the end"
            if isinstance(action, m.Finish):
                self.finished = action.reason
            else:
                self.lanes[LANE[type(action)]].append(action)

    def busy_lanes(self) -> list[str]:
        return [name for name, lane in self.lanes.items() if lane]

    def pause(self) -> None:
        """SIGSTOP past the lease. In each lane, the action under way may have passed its check of
        the lease and is carried out after waking; whatever follows it is not."""
        self.woken = True
        self.valid_ms = 0.0
        for lane in self.lanes.values():
            while len(lane) > 1:
                lane.pop()

    def run(self, lane: str) -> None:
        """Carry out the next action of a lane, and tell the scheduler."""
        event = self.execute(self.lanes[lane].popleft())
        if event is not None:
            self.feed(m.LeaseLost() if self.woken else event)

    def waiting(self) -> dict[Key, int]:
        return self.dead_letters.waiting_keys() if self.world.bad_rows.key_waits else {}

    def submit(self, sends: list[m.Send], rows: list[Row]) -> None:
        """Send to a pipelined sink: what was sent before it failed may come, or may not."""
        failure = None
        if not self.broken:
            failure = self.sink.deliver(rows, "")
        elif self.under_way and self.sink_is_ours:  # nobody has heard of the failure yet
            good = [row for row in rows if row.id not in self.world.bad_ids]
            some = [row for row in good if self.world.random.random() < 0.5]
            self.world.broker.published.extend(some)
            failure = Failure("other partitions", frozenset(r.id for r in rows if r not in some))
        else:
            failure = Failure("failed before")
        self.broken = self.broken or failure is not None
        self.under_way.append((sends, rows, failure))
        self.lanes["acknowledgements"].append(Acknowledge())

    @property
    def sink_is_ours(self) -> bool:
        return self.held and self.world.leaders[-1] is self

    def acknowledge(self) -> m.Event | None:
        """What is first, or from the first failure on everything, as one failure."""
        if not self.under_way:
            return None
        sends, _, failure = self.under_way[0]
        if failure is None:
            self.under_way.popleft()
            return m.Settled(tuple(send.batch for send in sends))
        batches: list[int] = []
        undelivered: set[int] = set()
        refused: frozenset[int] = frozenset()
        for sends, rows, failure in self.under_way:
            batches += [send.batch for send in sends]
            if failure is not None:
                ids = frozenset(row.id for row in rows)
                undelivered |= ids if failure.undelivered is None else failure.undelivered
                refused |= failure.refused
        self.under_way.clear()
        return m.Settled(tuple(batches), Failure("", frozenset(undelivered), {}, refused))

    def execute(self, action: m.Action | Acknowledge) -> m.Event | None:
        world, store, sink = self.world, self.store, self.sink
        match action:
            case Acknowledge():
                return self.acknowledge()
            case m.Open():
                assert not self.under_way
                self.broken = False
                try:
                    found = sink.open(lambda: self.held)
                except SinkUnavailable:
                    return m.OpenFailed()
                world.terms += 1
                term = Term.of(world.terms)
                waiting = self.waiting()
                return m.Opened(term, None if found is None else Checkpoint.decode(found), waiting)
            case m.Clear(checkpoint):
                try:
                    store.clear(checkpoint)
                except StoreUnavailable:
                    return m.ClearFailed()
                return m.Cleared()
            case m.Mark(term, batch, limit):
                try:
                    return m.Marked(batch, store.mark(term, batch, limit, self.valid_ms))
                except StoreUnavailable:
                    return m.MarkFailed(batch)
            case m.Send(batch):
                sends = [action]  # a lane may merge what waits in it
                while (
                    self.lanes["sink"]
                    and isinstance(following := self.lanes["sink"][0], m.Send)
                    and world.random.random() < 0.5
                ):
                    sends.append(following)
                    self.lanes["sink"].popleft()
                rows = [row for send in sends for row in send.rows]
                if world.pipelined:
                    self.submit(sends, rows)
                    return None
                failure = sink.deliver(rows, sends[-1].checkpoint.encode())
                return m.Settled(tuple(send.batch for send in sends), failure)
            case m.Purge(ids, tags):
                assert set(ids) <= {row.id for row in world.broker.published}, "purged unpublished"
                try:
                    store.purge(ids, tags)
                except StoreUnavailable:
                    return m.PurgeFailed()
                return m.Purged()
            case m.AddDeadLetters(term, rows):
                try:
                    return m.DeadLettersAdded(self.dead_letters.add(rows, term), self.waiting())
                except StoreUnavailable:
                    return m.AddFailed()
            case m.Reset(ids, tag):
                with contextlib.suppress(StoreUnavailable):
                    store.reset(ids, tag)
                return m.ResetDone()
        raise AssertionError(action)


@dataclass
class World:
    """The table, the broker, the writers and all leaders there ever were."""

    random: random.Random
    atomic: bool = True
    pipelined: bool = False
    """Only without atomicity: sends do not wait for the acknowledgement of those before."""
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    bad: float = 0.0
    """How many of the rows cannot be published."""
    bad_ids: set[int] = field(default_factory=set)
    largest: int | None = None
    """How many rows the broker takes within the time that a delivery has."""
    limits: m.Limits = field(
        default_factory=lambda: m.Limits(mark_query_records=4, max_in_flight_records=10)
    )
    table: MemoryTable = field(default_factory=MemoryTable)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    leaders: list[Leader] = field(default_factory=list)
    terms: int = 0
    open_transactions: dict[str, tuple[MemoryTransaction, list[int]]] = field(default_factory=dict)
    committed: dict[str, list[int]] = field(default_factory=lambda: {key: [] for key in KEYS})

    def elect(self) -> Leader:
        """A new leader; the one before has lost its lease, whether it knows or not."""
        for leader in self.leaders:
            leader.held = False
        leader = Leader(
            self,
            len(self.leaders),
            m.MarkScheduler(len(self.leaders), self.limits, BadRowFilter(self.bad_rows)),
            MemorySink(self.broker, atomic=self.atomic),
            MemoryMarkStore(self.table),
            MemoryDeadLetters(self.table),
        )
        leader.sink.largest = self.largest
        self.leaders.append(leader)
        leader.feed(m.Start())
        return leader

    def write(self) -> None:
        """One step of a writer. A key has one open transaction: the application locks it."""
        key = self.random.choice(KEYS)
        if key not in self.open_transactions:
            self.open_transactions[key] = (MemoryTransaction(self.table), [])
        transaction, ids = self.open_transactions[key]
        match self.random.randrange(4):
            case 0 | 1:
                ids.append(self.insert(transaction, key))
            case 2:
                transaction.commit()
                self.committed[key] += ids
                del self.open_transactions[key]
            case _:
                del self.open_transactions[key]

    def insert(self, transaction: MemoryTransaction, key: str) -> int:
        refused = self.random.random() < self.bad / 2
        value = REFUSED if refused else key
        row_id = transaction.insert(OutboxRecord(TOPIC, key, value))
        broken = not refused and self.random.random() < self.bad / 2
        if broken:  # no OutboxRecord can be like this, but a row can
            rows = transaction._rows
            rows[-1] = rows[-1]._replace(header_keys=(b"a",))
        if refused or broken:
            self.bad_ids.add(row_id)
        return row_id

    def run_to_the_end(self, leader: Leader) -> None:
        """Without further faults, until the table is empty; then stop, and let it finish.

        A connection that is broken stays so: whoever uses it next hears of it.
        """
        leader.sink.fault, leader.sink.fail_open = None, False
        for _ in range(2_000):
            if leader.finished:
                leader = self.elect()
            if not self.table.committed and leader.scheduler.state is m.State.RUNNING:
                break
            leader.run(self.random.choice(leader.busy_lanes()))
        assert not self.table.committed, "rows are never relayed"
        leader.feed(m.Stop())
        while leader.finished is None:
            leader.run(self.random.choice(leader.busy_lanes()))
        assert leader.finished == "stopped"
        assert leader.scheduler.in_flight_records == leader.scheduler.in_flight_bytes == 0

    def published_ids(self, key: str) -> list[int]:
        return self.broker.of_key(TOPIC, key.encode())
