"""What every range store must do (harvest/core/interfaces/range_store.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harvest.core.gaps import Gaps, Range, count_ids
from harvest.core.interfaces.range_store import RangeStore
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.core.shards import shard_of
from harvest.outbox.record import OutboxRecord
from tests.contract.conftest import RangeBench, Transaction
from tests.support.databases import MYSQL


def record(number: int, key: str = "k") -> OutboxRecord:
    return OutboxRecord("orders", key, f"v{number}", {"n": str(number)})


def insert(bench: RangeBench, count: int) -> list[int]:
    transaction = bench.begin()
    ids = [transaction.insert(record(i, f"k{i}")) for i in range(count)]
    transaction.commit()
    return ids


def roll_back(bench: RangeBench, count: int) -> list[int]:
    transaction = bench.begin()
    ids = [transaction.insert(record(i)) for i in range(count)]
    transaction.rollback()
    return ids


def judge(store: RangeStore, gaps: Gaps) -> Gaps:
    """One judgement and the look after it, as the scheduler makes them."""
    gaps = gaps.judged(store.holders())
    return gaps.looked(store.lookup(gaps.ranges)) if gaps.due else gaps


def gaps_of(*ranges: Range) -> Gaps:
    return Gaps().plus(ranges)


def test_an_empty_table_has_nothing(range_bench: RangeBench) -> None:
    store = range_bench.store()
    first, last = store.bounds()
    assert last == first - 1
    window = store.read(last, 10)
    assert (list(window.rows), window.last_id, list(window.missing)) == ([], last, [])
    assert not window.full
    assert store.lookup([(first, first + 100)]) == []
    assert store.fetch([(first, first + 100)]) == []
    assert store.backlog(None).rows == 0


def test_a_window_has_the_lowest_ids_in_order_with_their_contents(range_bench: RangeBench) -> None:
    ids = insert(range_bench, 5)
    window = range_bench.store().read(ids[0] - 1, 3)
    assert [row[0] for row in window.rows] == ids[:3]
    assert (window.last_id, list(window.missing), window.full) == (ids[2], [], True)
    first = Row._make(window.rows[0])
    assert (first.topic, first.key, first.value) == ("orders", b"k0", b"v0")
    assert (list(first.header_keys), list(first.header_values)) == ([b"n"], [b"0"])
    rest = range_bench.store().read(ids[2], 10)
    assert [row[0] for row in rest.rows] == ids[3:]
    assert not rest.full
    assert list(range_bench.store().read(ids[-1], 10).rows) == []


def test_bounds_begin_below_ids_that_may_still_appear(range_bench: RangeBench) -> None:
    """Whoever begins anew begins there: a row below that commits later would never come."""
    drawn = roll_back(range_bench, 2)
    insert(range_bench, 1)
    assert range_bench.store().bounds().first <= drawn[0]


def test_bounds_hold_every_id_that_was_drawn(range_bench: RangeBench) -> None:
    store = range_bench.store()
    ids = insert(range_bench, 3)
    assert store.bounds().first <= ids[0]
    assert store.bounds().last == ids[-1]
    gone = roll_back(range_bench, 2)
    assert store.bounds().last >= ids[-1]
    later = insert(range_bench, 1)
    assert store.bounds().last == later[0] > max(gone)


def test_what_is_not_committed_is_missing(range_bench: RangeBench) -> None:
    before = insert(range_bench, 1)
    gone = roll_back(range_bench, 2)
    after = insert(range_bench, 1)
    window = range_bench.store().read(before[0] - 1, 10)
    assert [row[0] for row in window.rows] == before + after
    assert list(window.missing) == [(gone[0], gone[-1])]
    assert list(range_bench.store().read(before[0], 10).missing) == [(gone[0], gone[-1])]


def test_a_rolled_back_gap_is_dead_at_once(range_bench: RangeBench) -> None:
    (before,) = insert(range_bench, 1)
    gone = roll_back(range_bench, 3)
    insert(range_bench, 1)
    store = range_bench.store()
    gaps = judge(store, gaps_of(*store.read(before, 10).missing))
    assert not gaps
    assert gaps.dead_ids == len(gone)


def test_a_late_commit_is_found(range_bench: RangeBench) -> None:
    if range_bench.one_writer:
        pytest.skip("one transaction writes at a time")
    (before,) = insert(range_bench, 1)
    late = range_bench.begin()
    ids = [late.insert(record(n)) for n in range(2)]
    (after,) = insert(range_bench, 1)
    store = range_bench.store()
    window = store.read(before, 10)
    assert [row[0] for row in window.rows] == [after]
    gaps = gaps_of(*window.missing)
    for _ in range(3):
        gaps = judge(store, gaps)
        assert count_ids(gaps.ranges) == len(ids)
    late.commit()
    gaps = gaps.judged(store.holders())
    assert gaps.due
    assert store.lookup(gaps.ranges) == [(ids[0], ids[-1])]
    assert [row[0] for row in store.fetch([(ids[0], ids[-1])])] == ids
    assert not gaps.looked([(ids[0], ids[-1])])


def test_a_late_rollback_is_dead_when_it_ends_and_not_before(range_bench: RangeBench) -> None:
    if range_bench.one_writer:
        pytest.skip("one transaction writes at a time")
    (before,) = insert(range_bench, 1)
    late = range_bench.begin()
    late.insert(record(0))
    insert(range_bench, 1)
    store = range_bench.store()
    gaps = judge(store, gaps_of(*store.read(before, 10).missing))
    assert gaps
    late.rollback()
    assert not judge(store, gaps)


def test_transactions_that_began_later_are_no_suspects(range_bench: RangeBench) -> None:
    if range_bench.one_writer:
        pytest.skip("one transaction writes at a time")
    (before,) = insert(range_bench, 1)
    late = range_bench.begin()
    late.insert(record(0))
    insert(range_bench, 1)
    store = range_bench.store()
    gaps = judge(store, gaps_of(*store.read(before, 10).missing))
    later = range_bench.begin()
    later.insert(record(1))
    assert judge(store, gaps)
    late.rollback()
    assert not judge(store, gaps)
    later.commit()


@pytest.mark.parametrize(
    "range_bench", ["postgres", "mariadb", MYSQL, "two databases"], indirect=True
)
def test_what_is_drawn_while_the_holders_are_looked_for_is_not_dead(
    range_bench: RangeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(range_bench, 1)
    store: Any = range_bench.store()
    store.holders()  # connects
    asking = getattr(store, "_primary", store)
    execute = asking._execute
    late: list[Transaction] = []
    ids: list[int] = []

    def interrupted(*given: Any, **options: Any) -> Any:
        done = execute(*given, **options)
        late.append(range_bench.begin())
        ids.append(late[-1].insert(record(len(ids))))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(asking, "_execute", interrupted)
        patch.setattr(asking, "_looked_s", float("-inf"), raising=False)
        holders = store.holders()
    assert len(ids) > 1
    gaps = gaps_of(*[(id, id) for id in ids])
    for _ in range(2):  # the second look is at other holders
        gaps = gaps.judged(holders)
        if gaps.due:
            gaps = gaps.looked([])
        holders = store.holders()
    assert list(gaps.ranges) == [(ids[0], ids[-1])]
    for transaction in late:
        transaction.rollback()


def test_fetch_and_lookup_take_many_ranges(range_bench: RangeBench) -> None:
    ids = insert(range_bench, 20)
    wanted = [(ids[2], ids[4]), (ids[6], ids[6]), (ids[18], ids[19] + 100)]
    store = range_bench.store()
    assert store.lookup(wanted) == [*wanted[:2], (ids[18], ids[19])]
    assert [row[0] for row in store.fetch(wanted)] == [*ids[2:5], ids[6], *ids[18:]]


def test_shards_divide_the_rows_and_see_the_same_gaps(range_bench: RangeBench) -> None:
    (before,) = insert(range_bench, 1)
    roll_back(range_bench, 1)
    transaction = range_bench.begin()
    keys = [f"key-{n % 13} ü" for n in range(50)]
    ids = [transaction.insert(record(n, key)) for n, key in enumerate(keys)]
    transaction.commit()
    roll_back(range_bench, 1)
    (last,) = insert(range_bench, 1)
    seen: list[int] = []
    for shard in range(3):
        store = range_bench.store(shard, 3)
        window = store.read(before, 100)
        assert (window.last_id, window.full) == (last, False)
        assert list(window.missing) == [(before + 1, before + 1), (ids[-1] + 1, last - 1)]
        mine = [i for i, k in zip(ids, keys, strict=True) if shard_of(k.encode(), 3) == shard]
        assert [row[0] for row in window.rows if row[0] in ids] == mine
        assert [row[0] for row in store.fetch([(ids[0], ids[-1])])] == mine
        assert store.lookup([(ids[0], ids[-1])]) == [(ids[0], ids[-1])]
        half = store.read(before, 20)
        assert (half.last_id, half.full) == (ids[19], True)
        seen += mine
    assert sorted(seen) == ids


def test_the_first_layout_stays(range_bench: RangeBench) -> None:
    assert range_bench.store(0, 2).layout() == 2
    assert range_bench.store(0, 3).layout() == 2
    assert range_bench.store(1, 2).layout() == 2


def test_copies_only_move_forward(range_bench: RangeBench) -> None:
    store = range_bench.store(1, 2)
    assert store.saved() == []
    newer = Position(5, 1, 2, 100, ((3, 7), (50, 50)))
    store.save(newer)
    store.save(Position(9, 1, 2, 99))
    range_bench.store(0, 2).save(Position(5, 0, 2, 40))
    assert store.saved() == [Position(5, 0, 2, 40), newer]
    fewer_gaps = Position(5, 1, 2, 100, ((50, 50),))  # while nobody writes anything new
    store.save(fewer_gaps)
    assert store.saved() == [Position(5, 0, 2, 40), fewer_gaps]


def test_a_rewrite_sets_layout_and_copies(range_bench: RangeBench) -> None:
    store = range_bench.store(0, 2)
    assert store.layout() == 2
    store.save(Position(5, 1, 2, 100))
    store.rewrite(1, [Position(5, 0, 1, 90, ((7, 9),))])
    assert range_bench.store(0, 2).layout() == 1
    assert store.saved() == [Position(5, 0, 1, 90, ((7, 9),))]


class Interrupted(list[Position]):
    """Whoever goes through them is ended behind the first."""

    def __iter__(self) -> Iterator[Position]:
        yield self[0]
        raise KeyboardInterrupt


def test_a_rewrite_that_does_not_end_changes_nothing(range_bench: RangeBench) -> None:
    """Else whoever comes next finds no layout, sets his own, and rows change their shards."""
    store = range_bench.store()
    assert store.layout() == 1
    copy = Position(5, 0, 1, 100)
    store.save(copy)
    with pytest.raises(KeyboardInterrupt):
        store.rewrite(3, Interrupted([Position(6, 0, 3, 100), Position(6, 1, 3, 100)]))
    assert store.layout() == 1
    assert store.saved() == [copy]


def test_the_backlog_is_what_is_above_the_position(range_bench: RangeBench) -> None:
    ids = insert(range_bench, 4)
    backlog = range_bench.store().backlog(Position(1, 0, 1, ids[1]))
    assert backlog.rows == 2
    assert backlog.oldest_age_s is not None
    range_bench.store().save(Position(1, 0, 1, ids[2]))
    assert range_bench.store().backlog().rows == 1


def test_the_backlog_is_that_of_all_shards_with_their_gaps(range_bench: RangeBench) -> None:
    ids = insert(range_bench, 12)
    of = [
        [row[0] for row in range_bench.store(shard, 3).read(ids[0] - 1, 100).rows]
        for shard in range(3)
    ]
    assert sorted(id for rows in of for id in rows) == ids
    store = range_bench.store(0, 3)
    assert store.backlog().rows == 12
    store.save(Position(1, 0, 3, ids[-1]))
    store.save(Position(1, 1, 3, ids[5]))
    late = sum(id > ids[5] for id in of[1])
    assert store.backlog().rows == late + len(of[2])
    assert range_bench.store(2, 3).backlog().rows == late + len(of[2])
    assert store.backlog(Position(0, 0, 1, ids[3])).rows == 8


def test_init_leaves_an_existing_table_alone(range_bench: RangeBench) -> None:
    ids = insert(range_bench, 1)
    assert range_bench.store().init() is False
    assert range_bench.store().bounds().last == ids[0]
    assert all(finding.level == "ok" for finding in range_bench.store().check())


def test_whatever_is_asked_first_of_a_closed_store_connects_again(
    range_bench: RangeBench,
) -> None:
    """Also after an outage, which ends a session of its own accord."""
    (id,) = insert(range_bench, 1)
    store: Any = range_bench.store()
    calls: list[Callable[[], Any]] = [
        lambda: store.bounds().last,
        lambda: store.holders().drawn,
        lambda: store.lookup([(id, id)]),
        lambda: [row[0] for row in store.fetch([(id, id)])],
        lambda: store.source().server,
        store.layout,
        store.saved,
        lambda: store.backlog(Position(1, 0, 1, id - 1)).rows,
    ]
    for call in calls:
        before = call()
        store.close()
        assert call() == before


def test_a_closed_store_connects_again(range_bench: RangeBench) -> None:
    ids = insert(range_bench, 1)
    store = range_bench.store()
    store.connect()
    store.close()
    store.cancel()
    assert [row[0] for row in store.read(ids[0] - 1, 1).rows] == ids
