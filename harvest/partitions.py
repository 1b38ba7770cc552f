"""Range partitions of an outbox: created ahead of the ids, dropped behind the positions.

The plan is pure; a `PartitionStore` carries it out. Published rows are not deleted one by one: a
partition goes when every id of it is below the position of every shard, as Kafka has committed it,
no gap is open in it, and its newest row is older than the retention. What is in no partition yet
lands in the default partition, so an insert never fails for want of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from harvest.positions import Position

__all__ = [
    "Inventory",
    "Partition",
    "PartitionPlan",
    "PartitionPolicy",
    "PartitionStore",
    "carry_out",
    "plan",
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


class Inventory(NamedTuple):
    """What there is: the partitions in order, and the highest id that was drawn.

    `stray`: rows in the default partition. `partitioned`: whether the table is, at all.
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
    """Rows of the default partition below this id go, too, once they are old enough."""
    swept: int = 0


class PartitionStore(Protocol):
    """The partitions of one table. Methods raise `StoreUnavailable`."""

    def inventory(self) -> Inventory:
        """Look at them."""

    def create(self, low: int, high: int) -> str | None:
        """Make a partition, return its name; None if rows or another manager are in the way."""

    def drop(self, partition: Partition) -> bool:
        """Drop it; False if it is not as it was, or in use just now."""

    def sweep(self, below: int, retain_s: float) -> int:
        """Delete old rows of the default partition with ids below `below`; return how many."""

    def close(self) -> None:
        """Close the connection."""


def plan(
    found: Inventory, positions: Sequence[Position | None], policy: PartitionPolicy
) -> PartitionPlan:
    """`positions` are the checkpoints of all shards; None for one that has none yet."""
    if not found.partitioned:
        return PartitionPlan()
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
    floor = min([p.low_id if p is not None else 0 for p in positions], default=0)
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


def carry_out(todo: PartitionPlan, store: PartitionStore, policy: PartitionPolicy) -> PartitionPlan:
    """Do it; return what was done. What is in the way now is left for the next time."""
    created = [bounds for bounds in todo.create if store.create(*bounds) is not None]
    dropped = [partition for partition in todo.drop if store.drop(partition)]
    swept = 0
    if todo.sweep_below is not None:
        swept = store.sweep(todo.sweep_below, policy.retain_s)
    return PartitionPlan(tuple(created), tuple(dropped), todo.kept, todo.sweep_below, swept)


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
