"""Ranges, gaps, positions and shards: the arithmetic of range mode."""

from __future__ import annotations

import base64
import contextlib
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harvest.core.gaps import (
    Gaps,
    Holders,
    Range,
    bridged,
    clip,
    count_ids,
    first_ids,
    missing,
    subtract,
    union,
)
from harvest.core.range_checkpoint import Position
from harvest.core.shards import shard_of
from harvest.errors import CheckpointError
from harvest.outbox.record import OutboxRecord
from harvest.runtime.checkpoints import divided
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryTable

ids = st.sets(st.integers(0, 60))


def ranges_of(numbers: set[int]) -> list[Range]:
    return union((n, n) for n in numbers)


def ids_of(ranges: list[Range]) -> set[int]:
    return {n for low, high in ranges for n in range(low, high + 1)}


@given(ids, ids)
@example({1, 3, 5, 9}, {2, 4, 7})
def test_ranges_are_bridged_by_what_lies_next_to_them(a: set[int], b: set[int]) -> None:
    left, fillers = ranges_of(a), ranges_of(b)
    joined = bridged(left, fillers)
    assert a <= ids_of(joined) <= a | b
    assert len(joined) <= len(left)
    assert all(a & ids_of([one]) for one in joined)
    assert joined == [one for one in union((*left, *fillers)) if a & ids_of([one])]


@given(ids, ids)
@example({1, 2, 5, 10, 11, 12}, {2, 5, 9, 11, 20})
@example(set(range(0, 20, 2)), set())
def test_ranges_are_sets_of_ids(a: set[int], b: set[int]) -> None:
    left, right = ranges_of(a), ranges_of(b)
    assert ids_of(left) == a
    assert all(x[1] + 1 < y[0] for x, y in itertools.pairwise(left))
    assert ids_of(subtract(left, right)) == a - b
    assert ids_of(union((*left, *right))) == a | b
    assert ids_of(clip(left, 10, 20)) == {n for n in a if 10 <= n <= 20}
    assert count_ids(left) == len(a)
    assert ids_of(first_ids(left, 7)) == set(sorted(a)[:7])


@given(ids.filter(bool))
@example({0, 1, 2})
@example({3, 4, 9})
def test_missing_is_what_lies_between(seen: set[int]) -> None:
    ordered = sorted(seen)
    assert ids_of(missing(-1, ordered)) == set(range(ordered[-1] + 1)) - seen


@given(st.integers(-5, 1 << 62), st.integers(0, 9), ids)
@example(100_000, 1, {0, 5, 6, 7, 1_000})
@example(7, 0, set())
def test_a_position_is_read_as_it_was_written(last_id: int, epoch: int, below: set[int]) -> None:
    gaps = tuple((last_id - high, last_id - low) for low, high in reversed(ranges_of(below)))
    position = Position(epoch, 2, 5, last_id, gaps)
    assert Position.decode(position.encode()) == position
    assert position.low_id == (gaps[0][0] if gaps else last_id + 1)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 129, 16_383, 16_384, 2**21 - 1, 2**21])
def test_a_position_keeps_distances_and_lengths_of_every_size(number: int) -> None:
    position = Position(
        1, 0, 1, 3 * number + 9, ((5, 5 + number), (6 + 2 * number, 9 + 2 * number))
    )
    assert Position.decode(position.encode()) == position


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[1,2]", '[1,1,"00",1,1,1]', '[2,1,0,1,5,"!~~"]', "{}"],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="own group"):
        Position.decode(text)


def test_a_thousand_scattered_gaps_fit_into_a_checkpoint() -> None:
    gaps = tuple((n, n) for n in range(10**9, 10**9 + 100_000, 100))
    assert len(Position(10**6, 0, 1, 10**9 + 100_000, gaps).encode()) < 4_000


def test_gaps_that_break_off_are_refused() -> None:
    broken = base64.b85encode(b"\x80").decode()
    with pytest.raises(CheckpointError, match="in the middle of a number"):
        Position.decode(f'[2,1,0,1,5,"{broken}",0,0]')


def looked(gaps: Gaps, running: str, *visible: Range, drawn: int = 100, prepared: str = "") -> Gaps:
    holders = Holders(frozenset(running.split()), frozenset(prepared.split()), drawn)
    gaps = gaps.judged(holders)
    return gaps.looked(visible) if gaps.due else gaps


def test_a_gap_lives_as_long_as_one_of_its_suspects() -> None:
    gaps = looked(Gaps().plus([(5, 9)]), "a b")
    gaps = looked(gaps, "b c")
    assert gaps.ranges == [(5, 9)]
    gaps = looked(gaps, "c", (7, 7))
    assert not gaps
    assert gaps.dead_ids == 4


def test_without_news_of_a_suspect_there_is_no_look() -> None:
    gaps = looked(Gaps().plus([(5, 5)]), "a")
    assert not gaps.judged(Holders(frozenset({"a", "b"}))).due
    assert gaps.judged(Holders(frozenset({"b"}))).due


def test_whoever_is_nameless_is_a_suspect_of_everything() -> None:
    gaps = looked(Gaps().plus([(5, 5)]), "a")
    gaps = looked(gaps, "", prepared="x")
    assert gaps.ranges == [(5, 5)]
    assert not looked(gaps, "")


def test_what_is_not_drawn_is_never_dead() -> None:
    gaps = looked(Gaps().plus([(5, 20)]), "", drawn=10)
    assert gaps.ranges == [(11, 20)]
    gaps = looked(gaps, "", drawn=10)
    assert gaps.ranges == [(11, 20)]
    gaps = looked(gaps, "a", (12, 12), drawn=12)
    assert gaps.ranges == [(11, 11), (13, 20)]
    assert looked(gaps, "", drawn=12).ranges == [(13, 20)]


def test_shards_are_computed_as_documented() -> None:
    assert [shard_of(key, 8) for key in (b"", b"a", b"order-1", "ü".encode(), None)] == VECTORS
    assert shard_of(b"anything", 1) == 0


VECTORS = [5, 3, 2, 2, 5]


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_divided_anew_each_row_is_still_to_be_published_once(data: st.DataObject) -> None:
    """Old shards with positions and gaps of any kind; what was unpublished stays so, once."""
    before, after = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    table = MemoryTable()
    keys: dict[int, bytes] = {}
    for n in range(data.draw(st.integers(1, 25))):
        transaction = table.begin()
        key = f"k{n}"
        id = transaction.insert(OutboxRecord("t", key, "v"))
        if data.draw(st.booleans()):
            transaction.commit()
            keys[id] = key.encode()
    last = table.next_id - 1
    stores = [MemoryRangeStore(table, shard, before) for shard in range(before)]
    old, unpublished = [], set()
    for shard in range(before):
        at = data.draw(st.integers(0, last))
        gaps = data.draw(st.sets(st.integers(1, max(1, at)))) if at else set()
        gaps |= {n for n in range(1, at + 1) if n not in keys}  # open transactions
        old.append(Position(shard, shard, before, at, tuple(ranges_of(gaps))))
        unpublished |= {
            id
            for id, key in keys.items()
            if shard_of(key, before) == shard and (id > at or id in gaps)
        }
    new = divided(stores, old, after)
    for shard, position in enumerate(new):
        assert (position.epoch, position.shard, position.shards) == (before - 1, shard, after)
        still = {n for low, high in position.gaps for n in range(low, high + 1)}
        still |= set(range(position.last_id + 1, last + 1))
        assert {n for n in keys if n in still} == unpublished
        assert {n for n in range(1, last + 1) if n not in keys} <= still


def test_a_transaction_in_memory_that_failed_holds_up_nothing() -> None:
    """The fake of a table, as a real one: what it drew is nobody's any more."""
    table = MemoryTable()
    with contextlib.suppress(ZeroDivisionError), table.transaction() as transaction:
        transaction.insert(OutboxRecord("t", "k", "v"))
        raise ZeroDivisionError
    assert MemoryRangeStore(table).holders() == Holders(frozenset(), frozenset(), 1)
    assert MemoryRangeStore(table).read(0, 10).rows == []
