"""What becomes of partitions: decisions of the pure plan, and what is done of it."""

from __future__ import annotations

from typing import Any

from harvest.core.range_checkpoint import Position
from harvest.errors import ArchiveError
from harvest.maintenance.partitions import (
    Extent,
    Inventory,
    Partition,
    PartitionPlan,
    PartitionPolicy,
    carry_out,
    plan,
)

POLICY = PartitionPolicy(rows=100, ahead=2, retain_s=60)
OLD, YOUNG = 61.0, 59.0


def at(last_id: int, *gaps: tuple[int, int]) -> Position:
    return Position(1, 0, 1, last_id, gaps)


def part(low: int, age_s: float | None = OLD) -> Partition:
    return Partition(f"p{low}", low, low + 100, age_s)


def test_an_empty_table_gets_partitions_from_the_first_id_on() -> None:
    assert plan(Inventory((), 0), [None], POLICY).create == ((0, 100), (100, 200))


def test_partitions_are_kept_ahead_of_what_is_drawn() -> None:
    found = Inventory((part(0), part(100), part(200)), 120)
    assert plan(found, [at(120)], POLICY).create == ((300, 400),)
    assert plan(found._replace(drawn=99), [at(99)], POLICY).create == ()


def test_ids_that_outran_the_partitions_are_stepped_over() -> None:
    created = plan(Inventory((part(0),), 730, stray=600), [at(730)], POLICY).create
    assert created == ((800, 900), (900, 1000))


def test_where_ids_are_being_drawn_no_partition_is_begun() -> None:
    """Rows that are in the default partition by then would be in its way, again and again."""
    found = Inventory((part(0),), 100, stray=1)
    assert plan(found, [at(100)], POLICY).create == ((200, 300),)
    assert plan(found._replace(drawn=799), [at(799)], POLICY).create == ((900, 1000),)


def test_only_what_every_shard_has_published_is_dropped() -> None:
    found = Inventory((part(0), part(100), part(200)), 250)
    assert plan(found, [at(250), at(150)], POLICY).drop == (part(0),)
    assert plan(found, [at(250), at(250)], POLICY).drop == (part(0), part(100))
    assert plan(found, [at(250), None], POLICY).drop == ()


def test_a_partition_with_an_open_gap_stays_and_the_reason_is_told() -> None:
    found = Inventory((part(0), part(100), part(200)), 250)
    todo = plan(found, [at(250, (150, 151))], POLICY)
    assert todo.drop == (part(0),)
    assert [(p.name, "150" in why) for p, why in todo.kept] == [("p100", True)]


def test_a_young_partition_stays_and_an_empty_one_goes() -> None:
    found = Inventory((part(0, YOUNG), part(100, None), part(200)), 250)
    todo = plan(found, [at(250)], POLICY)
    assert todo.drop == (part(100, None),)
    assert [p.name for p, _ in todo.kept] == ["p0"]


def test_a_partition_that_is_being_filled_stays() -> None:
    assert plan(Inventory((part(0, None),), 50), [at(50)], POLICY).drop == ()


def test_a_partition_goes_when_its_last_id_is_drawn_and_published() -> None:
    """Also where no other id has come since: an outbox may be idle for days."""
    found = Inventory((part(0), part(100)), 99)
    assert plan(found, [at(99)], POLICY).drop == (part(0),)
    assert plan(found, [at(98)], POLICY).drop == ()
    assert plan(found._replace(drawn=98), [at(99)], POLICY).drop == ()


def test_stray_rows_are_swept_below_the_positions_only() -> None:
    found = Inventory((part(0),), 50, stray=3)
    assert plan(found, [at(50), at(20)], POLICY).sweep_below == 21
    assert plan(found._replace(stray=0), [at(50)], POLICY).sweep_below is None


def test_a_table_without_partitions_is_left_alone() -> None:
    todo = plan(Inventory((), 50, partitioned=False), [at(50)], POLICY)
    assert (todo.create, todo.drop) == ((), ())


def test_where_there_are_no_partitions_published_rows_are_swept() -> None:
    found = Inventory((), 0, stray=1, partitioned=False)
    assert plan(found, [at(50), at(20, (7, 9))], POLICY) == PartitionPlan(sweep_below=7)
    assert plan(found, [at(50), None], POLICY).sweep_below == 0


class Store:
    """Makes and drops partitions, but for what is in the way."""

    def __init__(self, *in_the_way: int) -> None:
        self.in_the_way = in_the_way
        self.dropped: list[tuple[int, Extent | None]] = []
        self.swept: list[tuple[int, float]] = []

    def create(self, low: int, high: int) -> str | None:
        del high
        return None if low in self.in_the_way else f"p{low}"

    def drop(self, partition: Partition, expected: Extent | None = None) -> bool:
        self.dropped.append((partition.low, expected))
        return partition.low not in self.in_the_way

    def sweep(self, below: int, retain_s: float) -> int:
        self.swept.append((below, retain_s))
        return 7


class Archive:
    """Keeps all but what does not fit."""

    def keep(self, partition: Partition, store: object) -> Extent:
        del store
        if partition.low == 100:
            raise ArchiveError("the disk is full")
        return Extent(3, partition.low, partition.low + 2)


PLAN = PartitionPlan(
    create=((300, 400), (400, 500)), drop=(part(0), part(100), part(200)), sweep_below=90
)


def test_what_is_in_the_way_is_not_told_as_done() -> None:
    store: Any = Store(400, 100)
    done = carry_out(PLAN, store, POLICY)
    assert done.create == ((300, 400),)
    assert [p.low for p in done.drop] == [0, 200]
    assert (done.swept, done.unarchived) == (7, ())
    assert store.dropped == [(0, None), (100, None), (200, None)]
    assert store.swept == [(90, 60)]


def test_with_an_archive_only_what_is_in_it_goes_and_as_it_is_there() -> None:
    store: Any = Store()
    keeper: Any = Archive()
    done = carry_out(PLAN, store, POLICY, keeper)
    assert [p.low for p in done.drop] == [0, 200]
    assert [(p.low, why) for p, why in done.unarchived] == [(100, "the disk is full")]
    assert store.dropped == [(0, Extent(3, 0, 2)), (200, Extent(3, 200, 202))]
    assert (done.swept, store.swept) == (0, []), "rows of no partition are in no archive"
