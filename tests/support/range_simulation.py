"""A world of leaders, writers and faults around the range scheduler, driven by one random source.

Every leader executes its actions in two lanes, as the real process does: questions, and the sink.
Within a lane they keep their order; between lanes anything goes.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from harvest.core import range as r
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy, Key
from harvest.core.mark import Limits
from harvest.core.range_checkpoint import Position
from harvest.core.shards import shard_of
from harvest.errors import SinkUnavailable, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.testing.memory_broker import REFUSED, MemoryBroker, MemorySink
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryDeadLetters, MemoryTable, MemoryTransaction

KEYS = ("a", "b", "c", "d")
TOPIC = "t"
STEPS = 5_000


@dataclass
class Leader:
    """One leadership of one shard."""

    world: World
    scheduler: r.RangeScheduler
    sink: MemorySink
    store: MemoryRangeStore
    dead_letters: MemoryDeadLetters
    held: bool = True
    woken: bool = False
    finished: str | None = None
    lanes: dict[str, deque[r.Action]] = field(
        default_factory=lambda: {"table": deque(), "sink": deque()}
    )

    def feed(self, event: r.Event) -> None:
        for action in self.scheduler.step(event):
            assert self.finished is None, "an action after the end"
            if isinstance(action, r.Finish):
                self.finished = action.reason
            else:
                lane = "sink" if isinstance(action, r.Open | r.Send) else "table"
                self.lanes[lane].append(action)
        assert len(self.lanes["table"]) <= 1, "two questions at once"

    def busy_lanes(self) -> list[str]:
        return [name for name, lane in self.lanes.items() if lane]

    def pause(self) -> None:
        """SIGSTOP past the lease: the action under way may have passed its check of the lease and
        is carried out after waking; whatever follows it is not."""
        self.woken = True
        for lane in self.lanes.values():
            while len(lane) > 1:
                lane.pop()

    def run(self, lane: str) -> None:
        """Carry out the next action of a lane, and tell the scheduler."""
        event = self.execute(self.lanes[lane].popleft())
        self.feed(r.LeaseLost() if self.woken else event)

    def waiting(self) -> dict[Key, int]:
        return self.dead_letters.waiting_keys() if self.world.bad_rows.key_waits else {}

    def execute(self, action: r.Action) -> r.Event:
        try:
            match action:
                case r.Read(after, limit):
                    return r.ReadDone(self.store.read(after, limit))
                case r.AskHolders():
                    return r.HoldersSeen(self.store.holders())
                case r.Lookup(ranges):
                    return r.Found(self.store.lookup(ranges))
                case r.Fetch(ids):
                    return r.Fetched(self.store.fetch(ids))
                case r.CheckTable():
                    return r.TableChecked(self.store.bounds())
                case r.Open():
                    try:
                        found = self.sink.open(lambda: self.held)
                    except SinkUnavailable:
                        return r.OpenFailed()
                    position = None if found is None else Position.decode(found)
                    return r.Opened(position, self.waiting())
                case r.AddDeadLetters(term, bad_rows):
                    try:
                        added = self.dead_letters.add(bad_rows, term)
                    except StoreUnavailable:
                        return r.AddFailed()
                    return r.DeadLettersAdded(added, self.waiting())
                case r.Send():
                    return self.deliver(action)
        except StoreUnavailable:
            return r.AskFailed()
        raise AssertionError(action)

    def deliver(self, send: r.Send) -> r.Settled:
        sends, waiting = [send], self.lanes["sink"]
        while waiting and self.world.random.random() < 0.5:  # a lane may merge what waits in it
            following = waiting[0]
            if not isinstance(following, r.Send):
                break
            sends.append(following)
            waiting.popleft()
        rows = [row for one in sends for row in one.rows]
        checkpoint = sends[-1].position.encode()
        assert len(checkpoint) <= self.scheduler.checkpoint_bytes
        failure = self.sink.deliver(rows, checkpoint)
        return r.Settled(tuple(one.number for one in sends), failure)


@dataclass
class Writer:
    """An open transaction of the application, the keys it has locked, and what it inserted."""

    transaction: MemoryTransaction
    rows: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class World:
    """The table, a broker for each shard, the writers and all leaders there ever were."""

    random: random.Random
    shards: int = 1
    limits: Limits = field(
        default_factory=lambda: Limits(mark_query_records=4, max_in_flight_records=10)
    )
    checkpoint_bytes: int = 4_000
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    bad: float = 0.0
    """How many of the rows cannot be published."""
    bad_ids: set[int] = field(default_factory=set)
    table: MemoryTable = field(default_factory=MemoryTable)
    brokers: list[MemoryBroker] = field(default_factory=list)
    leaders: dict[int, list[Leader]] = field(default_factory=dict)
    writers: list[Writer] = field(default_factory=list)
    committed: dict[str, list[int]] = field(default_factory=lambda: {key: [] for key in KEYS})

    def __post_init__(self) -> None:
        self.brokers = [MemoryBroker() for _ in range(self.shards)]
        self.leaders = {shard: [] for shard in range(self.shards)}

    def elect(self, shard: int = 0) -> Leader:
        """A new leader; the one before has lost its lease, whether it knows or not."""
        earlier = self.leaders[shard]
        for leader in earlier:
            leader.held = False
        leader = Leader(
            self,
            r.RangeScheduler(
                len(earlier),
                shard,
                self.shards,
                self.limits,
                self.checkpoint_bytes,
                BadRowFilter(self.bad_rows),
            ),
            MemorySink(self.brokers[shard]),
            MemoryRangeStore(self.table, shard, self.shards),
            MemoryDeadLetters(self.table),
        )
        earlier.append(leader)
        leader.feed(r.Start())
        return leader

    def write(self) -> None:
        """One step of a writer. A key belongs to one open transaction: the application locks it."""
        roll = self.random.random()
        if roll < 0.2 and len(self.writers) < 3:
            self.writers.append(Writer(self.table.begin()))
        if not self.writers:
            return
        writer = self.random.choice(self.writers)
        if roll < 0.6 and not writer.transaction.prepared:
            locked = {key for other in self.writers if other is not writer for key, _ in other.rows}
            free = [key for key in KEYS if key not in locked]
            for _ in range(self.random.choice([1, 1, 1, 2, 6])):
                if free and self.random.random() < 0.9:
                    key = self.random.choice(free)
                    writer.rows.append((key, self.insert(writer.transaction, key)))
                else:
                    writer.transaction.draw()  # an id for nothing: a savepoint rolled back
        elif roll < 0.65 and not writer.transaction.prepared:
            writer.transaction.prepare()
        elif roll < 0.9:
            self.end(writer, commit=True)
        else:
            self.end(writer, commit=False)

    def insert(self, transaction: MemoryTransaction, key: str) -> int:
        refused = self.random.random() < self.bad / 2
        row_id = transaction.insert(OutboxRecord(TOPIC, key, REFUSED if refused else key))
        malformed = not refused and self.random.random() < self.bad / 2
        if malformed:  # no OutboxRecord can be like this, but a row can
            rows = transaction._rows
            rows[-1] = rows[-1]._replace(header_keys=(b"a",))
        if refused or malformed:
            self.bad_ids.add(row_id)
        return row_id

    def end(self, writer: Writer, *, commit: bool) -> None:
        self.writers.remove(writer)
        if commit:
            writer.transaction.commit()
            for key, id in writer.rows:
                self.committed[key].append(id)
        else:
            writer.transaction.rollback()

    def run_to_the_end(self, shard: int = 0) -> None:
        """No more faults or open transactions: until everything is published and every gap is
        decided; then stop."""
        for writer in list(self.writers):
            self.end(writer, commit=True)
        leader = self.leaders[shard][-1]
        leader.store.fail_next, leader.sink.fault, leader.sink.fail_open = False, None, False
        leader.dead_letters.fail_next = None
        for _ in range(STEPS):
            if leader.finished:
                leader = self.elect(shard)
            scheduler = leader.scheduler
            if scheduler.state is r.State.RUNNING and self.is_drained(leader):
                break
            leader.run(self.random.choice(leader.busy_lanes()))
        else:
            raise AssertionError(f"not drained: {leader.scheduler}")
        leader.feed(r.Stop())
        while leader.finished is None:
            leader.run(self.random.choice(leader.busy_lanes()))
        assert leader.finished == "stopped"
        assert scheduler.in_flight_records == scheduler.in_flight_bytes == 0

    def is_drained(self, leader: Leader) -> bool:
        scheduler, highest = leader.scheduler, max(self.table.committed, default=0)
        if any(isinstance(action, r.AddDeadLetters) for action in leader.lanes["table"]):
            return False
        nothing = not (scheduler.open_gaps or scheduler.in_flight_records or scheduler.crowded)
        return nothing and scheduler.last_id >= highest

    def assert_once_in_order(self) -> None:
        for key in KEYS:
            broker = self.brokers[shard_of(key.encode(), self.shards)]
            assert broker.of_key(TOPIC, key.encode()) == self.expected(key)
        published = sum(len(broker.published) for broker in self.brokers)
        assert published == sum(len(self.expected(key)) for key in KEYS)

    def expected(self, key: str) -> list[int]:
        """What is published of a key: up to its first bad row, or without the bad ones."""
        expected = []
        for row_id in self.committed[key]:
            if row_id not in self.bad_ids:
                expected.append(row_id)
            elif self.bad_rows.key_waits:
                break
        return expected
