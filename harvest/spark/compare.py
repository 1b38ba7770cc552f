"""Two sides of one outbox, compared: fingerprints of many keys at once, and one key in detail.

Rows and records are known by two 64-bit hashes: of (topic, key), and of everything that was to be
published. The fingerprint of a bucket of keys sums, over its keys, hashes of each row together with
its place among those of the same key: it changes when anything is missing, added, altered or
reordered within a key, and not when keys interleave differently. (specs/AUDIT.md §3)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import IntFlag
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUCKETS", "Flag", "Found", "Hashes", "Item", "compare_key", "fingerprints", "within"]

BUCKETS: Final = 4096
_SHIFT: Final = np.uint64(64 - 12)
_A, _B, _C = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_31: Final = np.uint64(31)

Hashes = NDArray[Any]


class Prints(NamedTuple):
    """For each bucket that has rows: its number, how many, and the fingerprint."""

    buckets: Hashes
    counts: Hashes
    fingerprints: Hashes


def fingerprints(key_hash: Hashes, order: Hashes, row_hash: Hashes) -> Prints:
    """Return the fingerprints of rows, given as three int64 arrays of one length.

    All rows of a key must be among them. `order` sorts the rows of a key.
    """
    keys, rows = key_hash.view(np.uint64), row_hash.view(np.uint64)
    sequence = np.lexsort((order, keys))
    keys, rows = keys[sequence], rows[sequence]
    # (Who comes before whom would not do: of equal rows, ABACA and ACABA are the same.)
    at = np.arange(len(keys), dtype=np.uint64)
    first = np.zeros_like(at)
    first[1:] = np.where(keys[1:] == keys[:-1], np.uint64(0), at[1:])
    place = at - np.maximum.accumulate(first)
    mixed = (rows ^ (place * _A)) + keys * _B
    mixed = (mixed ^ (mixed >> _31)) * _C
    mixed ^= mixed >> _31
    buckets = keys >> _SHIFT
    starts = np.flatnonzero(np.r_[True, buckets[1:] != buckets[:-1]][: len(buckets)])
    if not len(starts):
        return Prints(buckets, buckets, buckets)
    counts = np.diff(np.r_[starts, len(buckets)])
    return Prints(buckets[starts], counts, np.add.reduceat(mixed, starts))


def within(numbers: Hashes, ranges: Sequence[tuple[int, int]]) -> Hashes:
    """Say of each number whether it is in one of the ranges: sorted, disjoint, ends included."""
    if not ranges:
        return np.zeros(len(numbers), dtype=bool)
    lows, highs = (np.array(ends, dtype=np.int64) for ends in zip(*ranges, strict=True))
    at = np.searchsorted(lows, numbers, "right") - 1
    return np.asarray((at >= 0) & (numbers <= highs[at]))


class Flag(IntFlag):
    """What an incremental run knows of a row from the runs before."""

    NONE = 0
    LATE = 1
    """It was not to be seen when a run saw later ids: it committed afterwards, in no order."""
    OVERTAKEN = 2
    """A record of a later row of its key was there, and its own was not."""
    TOLD = 4
    """It was reported as missing."""


class Item(NamedTuple):
    """One row (`place` is its id) or one record (its partition and offset) of a key."""

    place: tuple[int, ...]
    row_hash: int
    at_ms: int | None
    flags: int = 0


class Found(NamedTuple):
    """One difference. `row` is None for what is only in Kafka, `record` for what is not there."""

    kind: str
    row: Item | None
    record: Item | None


def compare_key(rows: Sequence[Item], records: Sequence[Item], *, pair: bool = True) -> list[Found]:
    """Return what differs between the rows and the records of one key of one topic.

    - ``missing``: a row without a record;
    - ``never_committed``: a record without a row;
    - ``altered``: both of these at the same place between their neighbours;
    - ``duplicated``: the second and any later record of a row;
    - ``reordered``: a record that stands behind one of a later row (the fewest are named);
    - ``scattered``: the records of the key are in more than one partition, so have no order.

    A late row is in no order with the others. Without `pair`, what is altered is told as
    missing and never committed.
    """
    rows, records = sorted(rows), sorted(records)
    wanted: defaultdict[int, list[int]] = defaultdict(list)
    for n, row in enumerate(rows):
        wanted[row.row_hash].append(n)
    used: Counter[int] = Counter()
    found: list[Found] = []
    pairs: list[tuple[int, int]] = []
    strange: list[int] = []
    for m, record in enumerate(records):
        places = wanted.get(record.row_hash)
        if places is None:
            strange.append(m)
        elif used[record.row_hash] < len(places):
            pairs.append((places[used[record.row_hash]], m))
            used[record.row_hash] += 1
        else:
            found.append(Found("duplicated", rows[places[-1]], record))
    partner = dict(pairs)
    altered = _same_places(partner, len(rows), len(records), strange) if pair else {}
    for n, row in enumerate(rows):
        if n in altered:
            found.append(Found("altered", row, records[altered[n]]))
        elif n not in partner:
            found.append(Found("missing", row, None))
    taken = set(altered.values())
    found += [Found("never_committed", None, records[m]) for m in strange if m not in taken]
    ordered = [(n, m) for n, m in pairs if not rows[n].flags & Flag.LATE]
    in_order = _longest_rising([n for n, _ in ordered])
    if len({record.place[0] for record in records}) > 1:
        first = records[0].place[0]
        other = next(record for record in records if record.place[0] != first)
        found.append(Found("scattered", None, other))
    else:
        found += [
            Found("reordered", rows[n], records[m])
            for position, (n, m) in enumerate(ordered)
            if position not in in_order or rows[n].flags & Flag.OVERTAKEN
        ]
    return found


def _same_places(
    partner: dict[int, int], rows: int, records: int, strange: list[int]
) -> dict[int, int]:
    """Return the rows that a strange record stands for: one between those of their neighbours.

    `strange` is sorted. Each is taken by one row, the first of them by the first row. The cost is
    that of sorting, however many there are.
    """
    after = [records] * (rows + 1)
    for n in range(rows - 1, -1, -1):
        after[n] = partner.get(n, after[n + 1])
    free = list(range(len(strange) + 1))
    """From each place in `strange`, a later one that is nearer to the next that is not taken."""
    found = {}
    before = -1
    for n in range(rows):
        if n in partner:
            before = partner[n]
            continue
        at = bisect_left(strange, before)
        while free[at] != at:
            free[at] = free[free[at]]
            at = free[at]
        if at < len(strange) and strange[at] < after[n]:
            found[n] = strange[at]
            free[at] = at + 1
    return found


def _longest_rising(numbers: list[int]) -> set[int]:
    """Return the positions of a longest rising subsequence: what is in order."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for at, number in enumerate(numbers):
        length = bisect_left(tails, number)
        before.append(ends[length - 1] if length else -1)
        if length == len(tails):
            tails.append(number)
            ends.append(at)
        else:
            tails[length] = number
            ends[length] = at
    kept = set()
    at = ends[-1] if ends else -1
    while at >= 0:
        kept.add(at)
        at = before[at]
    return kept
