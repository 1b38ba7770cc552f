"""Histories of whole harvesters in wal mode: the log is streamed, a slot keeps the place.

Beside what happens to every harvester, the server fails over to a replica that has all that was
committed, with a copy of the slot that lags; and the slot is lost, dropped or made anew. Then every
harvester has to refuse it, until somebody renews it and publishes what the table has.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from harvest.core.row import Row
from harvest.core.wal import ReadDone
from harvest.core.wal_position import WalPosition
from harvest.errors import CheckpointError, ConfigurationError, HarvestError, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.runtime.leadership import Tools
from harvest.runtime.wal_leader import WalTools
from harvest.testing.memory_log import LogTransaction, MemoryLog, MemoryWalSource, MemoryWalStream
from tests.simulation.whole import harvesters
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.green import MS, Hub
from tests.simulation.whole.harvesters import Harvester, Scenario, Transaction
from tests.simulation.whole.outbox import Server, SimPipelinedSink, SimSink
from tests.simulation.whole.sockets import file_number

T = TypeVar("T")

_CHECKPOINTS: Final = 1
"""The channel of the broker where they are, at least once: rows come on another one."""


class SimLog(MemoryLog):
    """A log whose readers wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[Callable[[], None]] = []
        self.open: set[SimTransaction] = set()
        self.table: dict[int, tuple[int, Row]] = {}
        """What is committed and not purged: where its commit record begins, and the row."""

    def begin(self) -> SimTransaction:
        return SimTransaction(self)

    def wake(self) -> None:
        for waiter in list(self.waiters):
            waiter()


class SimTransaction(LogTransaction):
    """A transaction that the server forgets when it fails over."""

    def __init__(self, log: SimLog) -> None:
        super().__init__(log)
        self._sim = log
        self.inserted: list[Row] = []
        self.forgotten = False
        log.open.add(self)

    def insert(self, record: OutboxRecord) -> int:
        row_id = super().insert(record)
        self.inserted.append(self.last)
        return row_id

    def commit(self) -> None:
        self._sim.open.discard(self)
        lsn = self._sim.end
        super().commit()
        self._sim.table.update({row.id: (lsn, row) for row in self.inserted})
        self._sim.wake()

    def rollback(self) -> None:
        self._sim.open.discard(self)
        super().rollback()


class SimWalStream:
    """A `WalStream` that breaks off with its server."""

    def __init__(self, server: Server, log: SimLog, stream: MemoryWalStream, lsn: int) -> None:
        self._server, self._log, self._stream = server, log, stream
        self._lsn = lsn
        self._begun = False
        self.waiters = log.waiters

    def readable(self) -> bool:
        return not self._begun or self._log.end > self._lsn

    def fileno(self) -> int:
        return file_number(self)

    def read(self, limit: int, limit_bytes: int) -> ReadDone | None:
        self._check()
        if not self.readable():
            return None
        done = self._stream.read(limit, limit_bytes)
        assert done is not None
        self._begun = True
        if not any(chunk.rows for chunk in done.chunks):
            self._lsn = self._log.end
        return done

    def keep_alive(self) -> None:
        self._check()
        self._stream.keep_alive()

    def confirm(self, lsn: int) -> None:
        self._check()
        self._stream.confirm(lsn)

    def close(self) -> None:
        self._stream.close()

    def _check(self) -> None:
        if self._server.hub.now < self._server.down_until:
            self._server.hub.fired["stream_broke_off"] += 1
            self._stream.close()
            raise StoreUnavailable("the stream broke off")


class SimWalSource:
    """A `WalSource` over the simulated network."""

    def __init__(self, world: World) -> None:
        self._world, self._server, self._log = world, world.database, world.log
        self._source = MemoryWalSource(world.log)

    def connect(self) -> None:
        self._do(lambda: None)

    def open(self, epoch: int, position: WalPosition | None) -> tuple[SimWalStream, WalPosition]:
        def work() -> tuple[MemoryWalStream, WalPosition] | HarvestError:
            try:
                return self._source.open(epoch, position)
            except (CheckpointError, ConfigurationError) as error:
                self._world.refused(position)
                return error

        found = self._do(work)
        if isinstance(found, HarvestError):
            raise found
        stream, begin = found
        return SimWalStream(self._server, self._log, stream, begin.lsn), begin

    def purge(self, published: Callable[[], int]) -> int | None:
        def work() -> int:
            lsn, table = published(), self._log.table
            published_ids = [row_id for row_id, (at, _) in table.items() if at < lsn]
            for row_id in published_ids:
                del table[row_id]
            return len(published_ids)

        return self._do(work)

    def cancel(self) -> None:
        """The statement under way goes on at the server; nobody waits for it long."""

    def close(self) -> None:
        """Nothing is kept open."""

    def _do(self, work: Callable[[], T]) -> T:
        return self._server.call(work, StoreUnavailable)


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    made = harvesters.generate(seed)
    rng = random.Random(f"wals {seed}")
    interval = made.interval_ms * MS
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = int(rng.uniform(0.5 * interval, made.heal_ns - interval))
        made.incidents.append((at, "failover", 0, ()))
    if rng.random() < 0.4:
        at = int(rng.uniform(2 * interval, made.heal_ns - interval))
        kind = rng.choice(("slot_dropped", "slot_lost", "slot_remade"))
        made.incidents.append((at, kind, 0, ()))
    made.incidents.sort()
    return made


class WalHarvester(Harvester):
    """One process in wal mode."""

    world: World

    def tools(self, shard: int) -> Tools:
        del shard
        world = self.world
        atomic = world.scenario.atomic
        return WalTools(
            SimWalSource(world),
            SimWalSource(world),
            SimSink(world.broker, shard=0 if atomic else _CHECKPOINTS),
            None if atomic else SimPipelinedSink(world.broker),
            world.scenario.limits,
        )


class World(harvesters.World):
    """One history."""

    process = WalHarvester

    def __init__(self, hub: Hub, cluster: Cluster, scenario: Scenario) -> None:
        super().__init__(hub, cluster, scenario)
        self.log = SimLog()
        self.broken = False
        """The slot is not what it was, and was not renewed."""
        self.renewed_lsn = 0

    @property
    def left(self) -> bool:
        return any(not self.seen[i] for ids in self.committed.values() for i in ids)

    def begin(self) -> Transaction:
        return self.log.begin()

    def insert(self, transaction: Transaction, record: OutboxRecord) -> int:
        row_id = super().insert(transaction, record)
        self.rolled_back.discard(row_id)  # of a timeline that ended
        return row_id

    def end_transaction(self, key: str, transaction: Transaction, ids: list[int]) -> None:
        assert isinstance(transaction, SimTransaction)
        if not transaction.forgotten:
            super().end_transaction(key, transaction, ids)

    def do_failover(self, _: int) -> None:
        """To a replica that has all that was committed, and a copy of the slot that lags."""
        log, choose = self.log, self.hub.random
        self.hub.fired["failover"] += 1
        self.hub.tell("database", "fails over")
        for transaction in list(log.open):
            transaction.forgotten = True
            log.open.discard(transaction)
            self.open_keys.discard((transaction.inserted[0].key or b"").decode())
        confirmed = log.confirmed
        log.promote(choose.randint(log.last_end, log.end))
        if not self.broken:
            log.confirmed = min(log.confirmed, choose.randint(100, confirmed))
        log.wake()

    def do_slot_dropped(self, _: int) -> None:
        self._break("slot_dropped")
        self.log.exists = False

    def do_slot_lost(self, _: int) -> None:
        self._break("slot_lost")
        self.log.lost = True

    def do_slot_remade(self, _: int) -> None:
        """After it was dropped, and rows were committed. Without a checkpoint nobody can know."""
        if self._checkpoint() is not None:
            self._break("slot_remade")
            self.log.remake_slot()

    def _break(self, what: str) -> None:
        self.hub.fired[what] += 1
        self.hub.tell("database", what)
        self.broken = True
        self.log.reader += 1

    def _checkpoint(self) -> str | None:
        channel = self.broker.channels.get(0 if self.scenario.atomic else _CHECKPOINTS)
        return None if channel is None else channel.checkpoint

    def refused(self, position: WalPosition | None) -> None:
        """Somebody is told that the slot is not what it was; or asks with an old checkpoint."""
        self.hub.fired["refused"] += 1
        if not self.broken and (position is None or position.lsn >= self.renewed_lsn):
            self.hub.fail("nothing is refused without reason", "a slot as it was")

    def heal(self) -> None:
        super().heal()
        if self.broken:
            self.hub.at(self.hub.now, self.renew)

    def renew(self) -> None:
        """As `harvest slot renew --publish-table`. Published rows that are there come again.

        Exactly once, these are left out here, so that the invariant can stay.
        """
        log = self.log
        self.hub.tell("operator", "renews the slot")
        for channel in self.broker.channels.values():
            channel.writer += 1
        for row_id, (_, row) in sorted(log.table.items()):
            if not (self.scenario.atomic and self.seen[row_id]):
                self.published(row)
        log.remake_slot()
        self.renewed_lsn = log.confirmed
        shard = 0 if self.scenario.atomic else _CHECKPOINTS
        SimSink(self.broker, shard=shard)
        position = WalPosition(0, log.system, log.timeline, log.confirmed)
        self.broker.channels[shard].checkpoint = position.encode()
        self.broken = False
        self.log.wake()


_NOT_HERE: Final = ("mark_too_late",)
REQUIRED: Final = (
    *(name for name in harvesters.REQUIRED if name not in _NOT_HERE),
    "failover",
    "refused",
    "slot_dropped",
    "slot_lost",
    "slot_remade",
    "stream_broke_off",
)
REQUIRED_COUNTS: Final = (
    "published",
    "published again",
    "rolled back",
    "started again",
    "stopped",
    "submitted while others were under way",
)
