"""A world of leaders, writers and faults around the wal scheduler, driven by one random source.

What the thread of the leadership does itself is done in the order in which it was asked for; what
the other threads do comes in any order between.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from harvest.core import wal as w
from harvest.core.dead_letters import BadRow, BadRowFilter, BadRowPolicy, Key
from harvest.core.failure import Failure
from harvest.core.pacing import Limits
from harvest.core.row import Row
from harvest.core.wal_position import WalPosition
from harvest.errors import CheckpointError, SinkUnavailable, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.testing.memory_broker import REFUSED, MemoryBroker, MemorySink
from harvest.testing.memory_log import (
    LogTransaction,
    MemoryLog,
    MemoryWalSource,
    MemoryWalStream,
)

KEYS = ("a", "b", "c", "d")
TOPIC = "t"
STEPS = 5_000


@dataclass
class DeadLetters:
    """The table of dead letters."""

    rows: dict[int, tuple[Row, BadRow]] = field(default_factory=dict)
    fail_next: bool = False

    def add(self, rows: tuple[tuple[Row, BadRow], ...]) -> frozenset[int]:
        if self.fail_next:
            self.fail_next = False
            raise StoreUnavailable
        for row, bad in sorted(rows, key=lambda pair: pair[1].waits):
            before = self.waiting_keys().get((row.topic, row.key), row.id)
            if not bad.waits or before < row.id:
                self.rows.setdefault(row.id, (row, bad))
        return frozenset(bad.id for _, bad in rows if bad.id in self.rows)

    def waiting_keys(self) -> dict[Key, int]:
        lowest: dict[Key, int] = {}
        for row_id, (row, _) in self.rows.items():
            key = (row.topic, row.key)
            lowest[key] = min(row_id, lowest.get(key, row_id))
        return lowest


@dataclass
class Leader:
    """One leadership."""

    world: World
    scheduler: w.WalScheduler
    sink: MemorySink
    source: MemoryWalSource
    held: bool = True
    woken: bool = False
    finished: str | None = None
    refused: CheckpointError | None = None
    stream: MemoryWalStream | None = None
    may_read: w.Read | None = None
    sent: deque[tuple[int, Failure | None]] = field(default_factory=deque)
    """At least once: what the producer has, and will say of it."""
    refused_keys: set[bytes | None] = field(default_factory=set)
    told: deque[w.Event] = field(default_factory=deque)
    """What it has to tell itself."""
    lanes: dict[str, deque[w.Action]] = field(
        default_factory=lambda: {"slot": deque(), "sink": deque()}
    )

    def feed(self, event: w.Event) -> None:
        for action in self.scheduler.step(event):
            assert self.finished is None, "an action after the end"
            match action:
                case w.Finish(reason):
                    self.finished = reason
                case w.Read():
                    assert self.may_read is None, "two readings at once"
                    self.may_read = action
                case w.CloseStream():
                    self.stream = self.may_read = None
                case w.Confirm(lsn):
                    self.confirm(lsn)
                case w.Send() if not self.scheduler.atomic:
                    self.produce(action)
                case w.Open() | w.Send() | w.Save():
                    self.lanes["sink"].append(action)
                case _:
                    self.lanes["slot"].append(action)
        assert len(self.lanes["slot"]) <= 1

    def confirm(self, lsn: int) -> None:
        checkpoint = self.world.broker.checkpoint
        assert checkpoint is not None
        saved = WalPosition.decode(checkpoint)
        assert self.woken or not self.held or saved.lsn >= lsn, "confirmed before it was saved"
        if self.stream is not None:
            try:
                self.stream.confirm(lsn)
            except StoreUnavailable:
                self.stream = self.may_read = None
                self.told.append(w.StreamFailed())

    def choices(self) -> list[Callable[[], None]]:
        """What may happen next."""
        if self.told:
            return [lambda: self.feed(self.told.popleft())]
        busy = [lane for lane, its in self.lanes.items() if its]
        found: list[Callable[[], None]] = [partial(self.run, lane) for lane in busy]
        if self.may_read is not None and self.stream is not None:
            found.append(self.read)
        if self.sent:
            found.append(self.acknowledge)
        if self.scheduler.running:
            found.append(lambda: self.feed(w.Refresh()))
        return found

    def pause(self) -> None:
        """SIGSTOP past the lease: what is under way is carried out after waking; what follows is
        not."""
        self.woken = True
        for lane in self.lanes.values():
            while len(lane) > 1:
                lane.pop()

    def run(self, lane: str) -> None:
        action = self.lanes[lane].popleft()
        event = self.execute(action)
        if event is not None:
            self.feed(w.LeaseLost() if self.woken else event)

    def read(self) -> None:
        wanted, stream = self.may_read, self.stream
        assert wanted is not None
        assert stream is not None
        try:
            event = stream.read(wanted.limit, wanted.limit_bytes)
        except StoreUnavailable:
            self.stream = self.may_read = None
            self.feed(w.StreamFailed())
            return
        if event is not None:
            self.may_read = None
            self.feed(w.LeaseLost() if self.woken else event)

    def produce(self, send: w.Send) -> None:
        """The broker takes rows in the order of the sends. When one is refused, no later row of its
        partition is taken (the producer is gapless); those that time out are not in order."""
        world, choose = self.world, self.world.random
        good, bad = [], []
        for row in send.rows:
            if row.value == REFUSED:
                bad.append(row.id)
                self.refused_keys.add(row.key)
            elif row.key not in self.refused_keys:
                good.append(row)
        failure: Failure | None = None
        too_many = world.largest and self.scheduler.in_flight_records > world.largest
        timed_out = choose.random() < world.fault or too_many
        if timed_out:
            good = [row for row in good if choose.random() < 0.5]
        if timed_out or len(good) < len(send.rows):
            failure = Failure("refused", None, {}, frozenset(bad))
        world.broker.published.extend(good)
        self.sent.append((send.number, failure))

    def acknowledge(self) -> None:
        """The broker's answer about one of the sends, not always the first."""
        at = 0 if self.world.random.random() < 0.7 else self.world.random.randrange(len(self.sent))
        number, failure = self.sent[at]
        del self.sent[at]
        self.feed(w.LeaseLost() if self.woken else w.Settled((number,), failure))

    def waiting(self) -> dict[Key, int]:
        return self.world.dead_letters.waiting_keys() if self.world.bad_rows.key_waits else {}

    def execute(self, action: w.Action) -> w.Event | None:
        match action:
            case w.Open():
                try:
                    found = self.sink.open(lambda: self.held)
                except SinkUnavailable:
                    return w.OpenFailed()
                self.refused_keys.clear()
                position = None if found is None else WalPosition.decode(found)
                return w.Opened(position, self.waiting())
            case w.OpenStream(position):
                if self.woken:
                    return w.LeaseLost()
                try:
                    stream, begin = self.source.open(self.scheduler.epoch, position)
                except StoreUnavailable:
                    return w.StreamFailed()
                except CheckpointError as error:
                    self.refused = error
                    self.finished = "refused"
                    return None
                self.stream, self.may_read = stream, None
                return w.StreamOpened(begin)
            case w.AddRows(rows):
                try:
                    added = self.world.dead_letters.add(rows)
                except StoreUnavailable:
                    return w.AddFailed()
                return w.DeadLettersAdded(added, self.waiting())
            case w.Send():
                failure = self.sink.deliver(action.rows, action.position.encode())
                return w.Settled((action.number,), failure)
            case w.Save(position):
                failure = self.sink.deliver((), position.encode())
                return w.Saved(position) if failure is None else w.SaveFailed()
        raise AssertionError(action)


@dataclass
class Writer:
    """An open transaction of the application, the keys it has locked, and what it inserted."""

    transaction: LogTransaction
    rows: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class World:
    """The log, the broker, the writers and all leaders there ever were."""

    random: random.Random
    atomic: bool = True
    limits: Limits = field(
        default_factory=lambda: Limits(mark_query_records=4, max_in_flight_records=10)
    )
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    bad: float = 0.0
    """How many of the rows cannot be published."""
    fault: float = 0.0
    """How many sends fail, at least once."""
    largest: int | None = None
    """How many rows the broker takes within the time that a delivery has."""
    bad_ids: set[int] = field(default_factory=set)
    log: MemoryLog = field(default_factory=MemoryLog)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    leaders: list[Leader] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    committed: dict[str, list[int]] = field(default_factory=lambda: {key: [] for key in KEYS})

    def elect(self) -> Leader:
        """A new leader; the one before has lost its lease, whether it knows or not."""
        for leader in self.leaders:
            leader.held = False
        leader = Leader(
            self,
            w.WalScheduler(
                len(self.leaders), self.atomic, self.limits, BadRowFilter(self.bad_rows)
            ),
            MemorySink(self.broker),
            MemoryWalSource(self.log),
        )
        leader.sink.largest = self.largest
        self.leaders.append(leader)
        leader.feed(w.Start())
        return leader

    def write(self) -> None:
        """One step of a writer. A key belongs to one open transaction: the application locks it."""
        choose = self.random
        roll = choose.random()
        if roll < 0.1:
            self.log.record()  # of somebody else
        if roll < 0.3 and len(self.writers) < 3:
            self.writers.append(Writer(self.log.begin()))
        if not self.writers:
            return
        writer = choose.choice(self.writers)
        if roll < 0.7:
            locked = {key for other in self.writers if other is not writer for key, _ in other.rows}
            free = [key for key in KEYS if key not in locked]
            for _ in range(choose.choice([1, 1, 1, 2, 6, 15])):
                if free:
                    key = choose.choice(free)
                    writer.rows.append((key, self.insert(writer.transaction, key)))
        else:
            self.end(writer, commit=roll < 0.95)

    def insert(self, transaction: LogTransaction, key: str) -> int:
        refused = self.random.random() < self.bad / 2
        row_id = transaction.insert(OutboxRecord(TOPIC, key, REFUSED if refused else key))
        malformed = not refused and self.random.random() < self.bad / 2
        if malformed:
            transaction.replace_last(transaction.last._replace(header_keys=(b"a",)))
        if refused or malformed:
            self.bad_ids.add(row_id)
        return row_id

    def end(self, writer: Writer, *, commit: bool) -> None:
        self.writers.remove(writer)
        if commit:
            writer.transaction.commit()
            for key, row_id in writer.rows:
                self.committed[key].append(row_id)

    def run_to_the_end(self) -> None:
        """No more faults or open transactions: until everything is published; then stop."""
        for writer in list(self.writers):
            self.end(writer, commit=True)
        self.fault = 0.0
        self.log.fail_next = self.dead_letters.fail_next = False
        leader = self.leaders[-1]
        for _ in range(STEPS):
            leader.sink.fault, leader.sink.fail_open = None, False
            if leader.finished:
                leader = self.elect()
            if leader.scheduler.running and self.is_drained(leader):
                break
            self.random.choice(leader.choices())()
        else:
            raise AssertionError(f"not drained: {leader.scheduler}")
        leader.feed(w.Stop())
        while leader.finished is None:
            self.random.choice(leader.choices())()
        assert leader.finished == "stopped"
        assert leader.scheduler.in_flight_records == leader.scheduler.in_flight_bytes == 0

    def is_drained(self, leader: Leader) -> bool:
        scheduler = leader.scheduler
        settled = scheduler.settled
        busy = scheduler.in_flight_records or any(leader.lanes.values()) or leader.sent
        return not busy and settled is not None and settled.lsn >= self.log.end

    def assert_once_in_order(self) -> None:
        for key in KEYS:
            assert self.broker.of_key(TOPIC, key.encode()) == self.expected(key)

    def assert_last_in_order(self) -> None:
        """At least once: the last occurrence of every row is in order."""
        for key in KEYS:
            found = self.broker.of_key(TOPIC, key.encode())
            last = {row_id: at for at, row_id in enumerate(found)}
            assert [row_id for at, row_id in enumerate(found) if last[row_id] == at] == (
                self.expected(key)
            )

    def expected(self, key: str) -> list[int]:
        """What is published of a key: up to its first bad row, or without the bad ones."""
        expected = []
        for row_id in self.committed[key]:
            if row_id not in self.bad_ids:
                expected.append(row_id)
            elif self.bad_rows.key_waits:
                break
        return expected
