"""Histories of whole harvesters with rows that cannot be published, in mark and in range mode.

Some keys have rows whose header arrays do not match, and rows that the broker refuses however often
they are sent. They are set aside; so is, with `key_waits`, what comes after them in their key.
Everything else must come as if they were not there. In mark mode an operator retries them while the
harvest goes on, at first in vain, and at the end with success: then every row must have come.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import UUID

from harvest.core.dead_letters import BadRow, BadRowPolicy, Key
from harvest.core.interfaces.sink import Sink, StillHeld
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.errors import StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.runtime.leadership import Tools
from harvest.runtime.mark_leader import MarkTools
from harvest.runtime.range_leader import RangeTools
from harvest.testing.memory_table import MemoryDeadLetters, MemoryTransaction
from tests.simulation.whole import harvesters
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.green import MS, Hub, Violation
from tests.simulation.whole.harvesters import Harvester
from tests.simulation.whole.outbox import SimPipelinedSink, SimSink, SimStore
from tests.simulation.whole.ranges import SimRangeStore

T = TypeVar("T")

KEYS: Final = tuple("abcdefgh")
BAD_KEYS: Final = ("a", "b", "c")
RETRY_MS: Final = 1_000


@dataclass
class Scenario(harvesters.Scenario):
    """As of other harvesters, with a mode, and what becomes of bad rows."""

    marks: bool = True
    key_waits: bool = True


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    base = harvesters.generate(seed)
    rng = random.Random(f"dead letters {seed}")
    made = Scenario(**vars(base), marks=rng.random() < 0.6, key_waits=rng.random() < 0.7)
    if made.marks:
        for _ in range(rng.randint(1, 4)):
            at = int(rng.uniform(2 * made.interval_ms * MS, made.heal_ns))
            made.incidents.append((at, "retry", 0, (rng.random() < 0.5,)))
        made.incidents.sort()
    else:
        made.atomic = True
    return made


class SimDeadLetters:
    """A `DeadLetterStore` over the simulated network, whose every change is looked at."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = MemoryDeadLetters(world.table)

    def _do(self, work: Callable[[], T]) -> T:
        return self._world.database.call(work, StoreUnavailable)

    def add(
        self, rows: Sequence[BadRow], term: Term | None, still_held: StillHeld = lambda: True
    ) -> frozenset[int]:
        def statement() -> frozenset[int]:
            before = set(self._world.table.dead_letters)
            done = self._store.add(rows, term, still_held)
            self._world.set_aside(self._world.table.dead_letters.keys() - before)
            return done

        return self._do(statement)

    def waiting_keys(self) -> Mapping[Key, int]:
        return self._do(self._store.waiting_keys)

    def close(self) -> None:
        """Nothing is kept open."""


class WatchedStore(SimStore):
    """A `MarkStore` of which every deletion is looked at."""

    def __init__(self, world: World) -> None:
        super().__init__(world.database, world.table)
        self._world = world

    def _watched(self, statement: Callable[[], int]) -> int:
        def work() -> int:
            before = set(self._world.table.committed)
            count = statement()
            self._world.deleted(before - self._world.table.committed.keys())
            return count

        return self._do(work)

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        return self._watched(lambda: self._store.purge(ids, tags))

    def delete(self, ids: Sequence[int]) -> int:
        return self._watched(lambda: self._store.delete(ids))

    def clear(self, checkpoint: Checkpoint) -> int:
        return self._watched(lambda: self._store.clear(checkpoint))


class DeadLetterHarvester(Harvester):
    """One process of ``harvest reap`` with `bad_rows`."""

    world: World

    def store(self) -> SimStore:
        return WatchedStore(self.world)

    def sink(self) -> Sink:
        broker = self.world.broker
        return SimSink(broker) if self.world.scenario.atomic else SimPipelinedSink(broker)

    def tools(self, shard: int) -> Tools:
        del shard
        world, scenario, sink = self.world, self.world.scenario, self.sink()
        policy = BadRowPolicy(key_waits=scenario.key_waits)
        if scenario.marks:
            marker, purger = self.store(), self.store()
            return MarkTools(marker, purger, sink, scenario.limits, SimDeadLetters(world), policy)
        reader, saver = (SimRangeStore(world.database, world.table) for _ in range(2))
        return RangeTools(
            reader,
            saver,
            sink,
            scenario.limits,
            dead_letters=SimDeadLetters(world),
            bad_rows=policy,
        )


class World(harvesters.World):
    """One history."""

    process: type[Harvester] = DeadLetterHarvester
    keys = KEYS
    scenario: Scenario

    def __init__(self, hub: Hub, cluster: Cluster, scenario: Scenario) -> None:
        super().__init__(hub, cluster, scenario)
        self.malformed: set[int] = set()
        """Rows whose header arrays do not match."""
        self.refused: set[int] = set()
        """Rows that the broker refuses."""
        self.were_bad: set[int] = set()
        self.broker.bad = self.refused

    @property
    def bad(self) -> set[int]:
        return self.malformed | self.refused

    @property
    def left(self) -> bool:
        if self.scenario.marks:
            return bool(self.table.committed)
        done = self.seen.keys() | self.table.dead_letters.keys()
        return any(i not in done for ids in self.committed.values() for i in ids)

    # Business

    def insert(self, transaction: harvesters.Transaction, record: OutboxRecord) -> int:
        row_id = super().insert(transaction, record)
        if record.key in BAD_KEYS and self.hub.random.random() < 0.04:
            self.were_bad.add(row_id)
            if self.hub.random.random() < 0.5:
                self.refused.add(row_id)
            else:  # no OutboxRecord can be like this, but a row can
                self.malformed.add(row_id)
                assert isinstance(transaction, MemoryTransaction)
                rows = transaction._rows
                rows[-1] = rows[-1]._replace(header_keys=(b"a",))
        return row_id

    # What is seen

    def published(self, row: Row) -> None:
        if row.id in self.bad:
            self.hub.fail("bad rows are not published", f"row {row.id}")
        if self.scenario.atomic and row.id in self.table.dead_letters:
            self.hub.fail("set aside or published", f"row {row.id} is published and aside")
        super().published(row)

    def first_time(self, key: bytes, row_id: int) -> None:
        if not self.scenario.key_waits:
            if row_id in self.were_bad:
                return  # the key has gone on without it
            while self.committed[key][self.first_times[key]] in self.were_bad:
                self.first_times[key] += 1
        super().first_time(key, row_id)

    def overtaken(self, key: bytes) -> bool:
        gone_on = not self.scenario.key_waits and self.were_bad & set(self.committed[key])
        return bool(gone_on) or super().overtaken(key)

    def deleted(self, ids: set[int]) -> None:
        """Rows are gone from the table, now."""
        for row_id in sorted(ids):
            if not self.seen[row_id]:
                self.hub.fail("only what was published is deleted", f"row {row_id} is gone")

    def set_aside(self, ids: set[int]) -> None:
        """Rows are set aside, now."""
        dead_letters = self.table.dead_letters
        for row_id in sorted(ids):
            row, why = dead_letters[row_id]
            self.hub.counts["set aside, waiting" if why.waits else "set aside"] += 1
            if row_id not in self.committed[row.key or b""]:
                self.hub.fail("only committed rows", f"row {row_id} is set aside")
            if not why.waits and row_id not in self.bad:
                self.hub.fail("only bad rows are set aside", f"row {row_id}: {why.error}")
            if why.waits and not any(
                i < row_id and r.key == row.key for i, (r, _) in dead_letters.items()
            ):
                self.hub.fail("only bad rows are set aside", f"row {row_id} waits for nothing")
            if self.scenario.atomic and self.seen[row_id]:
                self.hub.fail("set aside or published", f"row {row_id} had been published")

    # The operator

    def do_retry(self, _: int, mend: bool) -> None:
        """``harvest dead-letters retry --all``, after the rows were corrected, or in vain."""
        if self.table.dead_letters:
            self.hub.fired["retry after a correction" if mend else "retry in vain"] += 1
            if mend:
                self.mend(set(self.table.dead_letters))
            self.hub.tell("operator", f"retries {sorted(self.table.dead_letters)}")
            MemoryDeadLetters(self.table).retry()

    def mend(self, ids: set[int]) -> None:
        self.refused -= ids
        self.malformed -= ids
        for row_id in ids & self.table.dead_letters.keys():
            row, why = self.table.dead_letters[row_id]
            self.table.dead_letters[row_id] = (row._replace(header_keys=()), why)

    # The end

    def finish(self) -> None:
        dead_letters, waiting = (
            self.table.dead_letters,
            MemoryDeadLetters(self.table).waiting_keys(),
        )
        for key, ids in self.committed.items():
            missing = [i for i in ids if not self.seen[i] and i not in dead_letters]
            if missing:
                raise Violation("bad rows hold up nobody", f"{key!r}: {missing[:5]} never came")
            for row_id in set(ids) & dead_letters.keys():
                row, why = dead_letters[row_id]
                if why.waits and waiting[row.topic, row.key] == row_id:
                    raise Violation("bad rows hold up nobody", f"row {row_id} waits for nothing")
        if not self.scenario.marks:
            return  # what is retried in range mode are new rows
        self.retry_until_all_came()
        super().finish()

    def retry_until_all_came(self) -> None:
        hub = self.hub
        if not any(h.alive and not h.told_to_stop for h in self.harvesters.values()):
            self.do_start(self.scenario.harvesters + 1)
        end = hub.now + 20_000 * MS
        while (
            (self.table.dead_letters or not self.is_done()) and hub.now < end and not hub.violation
        ):
            self.mend(set(self.bad))
            self.do_retry(0, True)
            self.run_until(self.is_done, hub.now + RETRY_MS * MS)
        if hub.violation:
            raise Violation(*hub.violation)


REQUIRED: Final = (
    *(name for name in harvesters.REQUIRED if name != "mark_too_late"),
    "bad_row_refused",
    "retry after a correction",
    "retry in vain",
)
REQUIRED_COUNTS: Final = ("published", "rolled back", "set aside", "set aside, waiting", "stopped")
