"""Range partitions of an outbox: created ahead of the ids, dropped behind the positions.

The plan is pure; a `PartitionStore` carries it out. Published rows are not deleted one by one: a
partition goes when every id of it is below the position of every shard, as Kafka has committed it,
no gap is open in it, and its newest row is older than the retention. What is in no partition yet
lands in the default partition, so an insert never fails for want of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from harvest.core.range_checkpoint import Position
from harvest.errors import ArchiveError

__all__ = [
    "Archive",
    "Extent",
    "Inventory",
    "Partition",
    "PartitionPlan",
    "PartitionPolicy",
    "PartitionStore",
    "carry_out",
    "plan",
    "plan_below",
]


@dataclass(frozen=True, slots=True)
class PartitionPolicy:
    """How many ids a partition holds, how many are kept ready, how long published rows are kept."""

    rows: int = 1_000_000
    ahead: int = 4
    retain_s: float = 24 * 3600.0


class Partition(NamedTuple):
    """A partition for ids from `low` up to, and without, `high`.

    `age_s` is that of its newest row; None if it is empty.
    """

    name: str
    low: int
    high: int
    age_s: float | None = None


class Extent(NamedTuple):
    """How many rows there are, and the lowest and highest of their ids."""

    rows: int
    low: int | None = None
    high: int | None = None

    def __str__(self) -> str:
        return f"{self.rows} rows, ids {self.low} to {self.high}" if self.rows else "no rows"


class Inventory(NamedTuple):
    """What there is: the partitions in order, and the highest id that was drawn.

    `stray`: rows in the default partition; in a table that is not `partitioned`, rows that are
    deleted one by one, if it is one whose rows are.
    """

    partitions: Sequence[Partition]
    drawn: int
    stray: int = 0
    partitioned: bool = True


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What to do. `kept` says of partitions that are full and stay, why."""

    create: Sequence[tuple[int, int]] = ()
    drop: Sequence[Partition] = ()
    kept: Sequence[tuple[Partition, str]] = ()
    sweep_below: int | None = None
    """Rows below this id that are in no partition go, too, once they are old enough."""
    swept: int = 0
    unarchived: Sequence[tuple[Partition, str]] = ()
    """What could not be archived and was therefore not dropped, and why."""


class PartitionStore(Protocol):
    """The partitions of one table. Methods raise `StoreUnavailable`."""

    def inventory(self) -> Inventory:
        """Look at them."""

    def create(self, low: int, high: int) -> str | None:
        """Make a partition, return its name; None if rows or another manager are in the way."""

    def extent(self, partition: Partition) -> Extent:
        """Look at what is in it."""

    def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """All of its rows by id, up to `limit` at a time: id, create_time, topic, and as bytes key,
        value, header keys, header values. Raises `ArchiveError` for a row that cannot be read."""

    def drop(self, partition: Partition, expected: Extent | None = None) -> bool:
        """Drop it; False if it is not as it was, has other rows than expected, or is in use."""

    def sweep(self, below: int, retain_s: float) -> int:
        """Delete old rows that are in no partition, with ids below `below`; return how many."""

    def close(self) -> None:
        """Close the connection."""


class Archive(Protocol):
    """Where rows are kept before they are dropped."""

    def keep(self, partition: Partition, store: PartitionStore) -> Extent:
        """Have all rows of a partition on the disk; return what is kept. Raises `ArchiveError`."""


def plan(
    found: Inventory, positions: Sequence[Position | None], policy: PartitionPolicy
) -> PartitionPlan:
    """`positions` are the checkpoints of all shards; None for one that has none yet."""
    floor = min([p.low_id if p is not None else 0 for p in positions], default=0)
    return plan_below(found, floor, policy)


def plan_below(found: Inventory, floor: int, policy: PartitionPolicy) -> PartitionPlan:
    """The same, where all ids below `floor` are published, or the store sees to that itself."""
    if not found.partitioned:
        return PartitionPlan(sweep_below=floor if found.stray else None)
    create = []
    end = found.partitions[-1].high if found.partitions else None
    if found.drawn <= 0 and end is None:
        end = 0
    elif end is None or end <= found.drawn:
        # Behind what will be drawn until it is there, at a round number.
        end = _round_up(found.drawn + policy.rows // 2, policy.rows)
    while end < found.drawn + policy.ahead * policy.rows:
        create.append((end, end + policy.rows))
        end += policy.rows
    drop, kept = [], []
    for partition in found.partitions:
        if partition.high > found.drawn + 1:
            continue  # still being filled
        if partition.high > floor:
            kept.append((partition, f"ids from {floor} on are not published, or may still appear"))
        elif partition.age_s is not None and partition.age_s < policy.retain_s:
            kept.append((partition, f"its newest row is {partition.age_s:.0f} s old"))
        else:
            drop.append(partition)
    return PartitionPlan(tuple(create), tuple(drop), tuple(kept), floor if found.stray else None)


def carry_out(
    todo: PartitionPlan,
    store: PartitionStore,
    policy: PartitionPolicy,
    archive: Archive | None = None,
) -> PartitionPlan:
    """Do it; return what was done. What is in the way now is left for the next time.

    With an `archive`, a partition is dropped only when all its rows are there, and rows of the
    default partition are not deleted.
    """
    created = [bounds for bounds in todo.create if store.create(*bounds) is not None]
    dropped, unarchived = [], []
    for partition in todo.drop:
        try:
            extent = None if archive is None else archive.keep(partition, store)
        except ArchiveError as error:
            unarchived.append((partition, str(error)))
            continue
        if store.drop(partition, extent):
            dropped.append(partition)
    swept = 0
    if todo.sweep_below is not None and archive is None:
        swept = store.sweep(todo.sweep_below, policy.retain_s)
    return PartitionPlan(
        tuple(created), tuple(dropped), todo.kept, todo.sweep_below, swept, tuple(unarchived)
    )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
