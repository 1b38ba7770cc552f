"""Fingerprints and the comparison of one key, against a slow and plain model."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest.spark.compare import Flag, Item, compare_key, fingerprints, within

A, B, C, D = 11, 22, 33, 44


def items(hashes: list[int], partition: int | None = None) -> list[Item]:
    return [
        Item((n + 1, 0) if partition is None else (partition, n), h, 0)
        for n, h in enumerate(hashes)
    ]


@pytest.mark.parametrize(
    ("rows", "records", "expected"),
    [
        ([A, B, C], [A, B, C], []),
        ([A, A, B], [A, A, B], []),
        ([A, B, C], [A, C], [("missing", 2, None)]),
        ([A, B], [A, B, B], [("duplicated", 2, 2)]),
        ([A, B], [A, B, A, B], [("duplicated", 1, 2), ("duplicated", 2, 3)]),
        ([A, B, C], [A, C, B], [("reordered", 3, 1)]),
        ([A, B, C], [C, A, B], [("reordered", 3, 0)]),
        ([A, B, C], [A, D, C], [("altered", 2, 1)]),
        ([A], [D], [("altered", 1, 0)]),
        ([A, B, C], [D, A, C], [("missing", 2, None), ("never_committed", None, 0)]),
        ([A, B, C], [A, C, D], [("missing", 2, None), ("never_committed", None, 2)]),
        ([A, B, C], [A, D, B], [("missing", 3, None), ("never_committed", None, 1)]),
        ([A, B, C], [B, D, C], [("missing", 1, None), ("never_committed", None, 1)]),
        (
            [A, B, C],
            [D, A],
            [("missing", 2, None), ("missing", 3, None), ("never_committed", None, 0)],
        ),
        ([A, B], [A, B, D], [("never_committed", None, 2)]),
        ([], [D], [("never_committed", None, 0)]),
        ([A], [], [("missing", 1, None)]),
    ],
)
def test_one_key(
    rows: list[int], records: list[int], expected: list[tuple[str, int | None, int | None]]
) -> None:
    found = [
        (f.kind, f.row and f.row.place[0], f.record and f.record.place[1])
        for f in compare_key(items(rows), items(records, 0))
    ]
    assert found == expected


def plainly_altered(rows: list[int], records: list[int]) -> list[tuple[int, int]]:
    """Each row without a record, and the first strange record between those of its neighbours."""
    used: set[int] = set()
    partner: dict[int, int] = {}
    for m, record in enumerate(records):
        n = next((n for n, r in enumerate(rows) if r == record and n not in partner), None)
        if n is not None:
            partner[n] = m
    strange = [m for m, record in enumerate(records) if record not in rows]
    found = []
    for n in range(len(rows)):
        if n not in partner:
            before = next((partner[i] for i in range(n - 1, -1, -1) if i in partner), -1)
            after = next((partner[i] for i in range(n + 1, len(rows)) if i in partner), 10**9)
            between = [m for m in strange if before < m < after and m not in used]
            if between:
                used.add(between[0])
                found.append((n + 1, between[0]))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_what_is_altered_is_what_the_plain_search_says(seed: int) -> None:
    rng = random.Random(seed)
    rows = [rng.randrange(8) for _ in range(rng.randrange(12))]
    records = [rng.randrange(16) for _ in range(rng.randrange(12))]
    found = compare_key(items(rows), items(records, 0))
    altered = [(f.row, f.record) for f in found if f.kind == "altered"]
    assert [(a.place[0], b.place[1]) for a, b in altered if a and b] == plainly_altered(
        rows, records
    )


FLAGS = st.sampled_from([Flag.NONE, Flag.NONE, Flag.LATE, Flag.OVERTAKEN])


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), FLAGS), max_size=7),
    records=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 19)), max_size=9),
)
def test_what_is_found_is_what_plain_counting_says(
    rows: list[tuple[int, Flag]], records: list[tuple[int, int]]
) -> None:
    """Of random rows and records of one key, each kind of difference, by its definition."""
    outbox = [Item((n + 1, 0), h, 0, flags) for n, (h, flags) in enumerate(rows)]
    topic = [Item((int(p == 0), m), h, 0) for m, (h, p) in enumerate(records)]
    found = compare_key(outbox, topic)
    kinds = Counter(f.kind for f in found)
    written, read = Counter(h for h, _ in rows), Counter(r.row_hash for r in topic)

    lost = sum((written - read).values())
    strange = sum(count for h, count in read.items() if h not in written)
    assert kinds["missing"] + kinds["altered"] == lost
    assert kinds["never_committed"] + kinds["altered"] == strange
    assert kinds["duplicated"] == sum((read - written).values()) - strange
    assert kinds["scattered"] == (len({r.place[0] for r in topic}) > 1)
    if kinds["scattered"]:
        assert not kinds["reordered"]
        return
    # The first record of a hash is that of its first row, the second that of its second …
    pairs = []
    for m, record in enumerate(topic):
        same = [n for n, (h, _) in enumerate(rows) if h == record.row_hash]
        nth = sum(r.row_hash == record.row_hash for r in topic[:m])
        if nth < len(same) and not rows[same[nth]][1] & Flag.LATE:
            pairs.append(same[nth])
    named = {f.row.place[0] - 1 for f in found if f.kind == "reordered" and f.row}
    overtaken = {n for n in pairs if rows[n][1] & Flag.OVERTAKEN}
    assert overtaken <= named
    most = next(
        size
        for size in range(len(pairs), -1, -1)
        if any(list(some) == sorted(some) for some in combinations(pairs, size))
    )
    assert len(named - overtaken) <= len(pairs) - most <= len(named)
    rest = [n for n in pairs if n not in named]
    assert rest == sorted(rest)


@given(
    sides=st.lists(
        st.tuples(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_fingerprints_are_equal_where_nothing_is_found(
    sides: list[tuple[list[int], list[int]]],
) -> None:
    """Two ways to the same answer: of each key, that there is a difference, and which."""

    def side(which: int) -> dict[int, tuple[int, int]]:
        # Every key has a bucket of its own.
        return prints([(key << 53, h) for key, both in enumerate(sides) for h in both[which]])

    rows, records = side(0), side(1)
    for key, (written, read) in enumerate(sides):
        same = rows.get(key << 1) == records.get(key << 1)
        assert same == (not compare_key(items(written), items(read, 0)))
        assert same == (written == read)


def test_a_key_of_which_all_rows_are_altered_costs_no_more_than_its_rows() -> None:
    """A quadratic search would take hours."""
    count = 100_000
    found = compare_key(items(list(range(count))), items(list(range(count, 2 * count)), 0))
    assert [(f.kind, f.row and f.row.place[0]) for f in found] == [
        ("altered", n + 1) for n in range(count)
    ]


def test_a_key_in_two_partitions() -> None:
    records = [*items([A], 0), *items([B], 1)]
    assert [f.kind for f in compare_key(items([A, B]), records)] == ["scattered"]


def prints(pairs: list[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    keys, rows = (np.array([p[n] for p in pairs], dtype=np.int64) for n in (0, 1))
    found = fingerprints(keys, np.arange(len(pairs)), rows)
    return {int(b): (int(c), int(f)) for b, c, f in zip(*found, strict=True)}


@pytest.mark.parametrize("seed", range(20))
def test_fingerprints_see_every_change_and_no_interleaving(seed: int) -> None:
    rng = random.Random(seed)
    keys = [rng.getrandbits(63) - 2**62 for _ in range(20)]
    log = [(rng.choice(keys), rng.getrandbits(63)) for _ in range(200)]
    whole = prints(log)
    assert sum(count for count, _ in whole.values()) == 200

    mixed: list[tuple[int, int]] = []
    waiting = {key: [pair for pair in log if pair[0] == key] for key in keys}
    while any(waiting.values()):
        mixed.append(waiting[rng.choice([k for k in keys if waiting[k]])].pop(0))
    assert prints(mixed) == whole

    at = rng.randrange(200)
    assert prints(log[:at] + log[at + 1 :]) != whole
    assert prints([*log[:at], log[at], *log[at:]]) != whole
    assert prints([*log[:at], (log[at][0], 5), *log[at + 1 :]]) != whole
    same = [n for n, pair in enumerate(log) if pair[0] == log[at][0]]
    if len(same) > 1:
        swapped = list(log)
        swapped[same[0]], swapped[same[-1]] = log[same[-1]], log[same[0]]
        assert prints(swapped) != whole


def test_a_fingerprint_sees_an_order_of_equal_rows_in_which_the_same_follow_one_another() -> None:
    """As of a state that goes back and forth: ABACA, and ACABA."""
    assert prints([(1, h) for h in (A, B, A, C, A)]) != prints([(1, h) for h in (A, C, A, B, A)])


def test_a_fingerprint_is_of_each_row_and_its_place_among_those_of_its_key() -> None:
    """Of a key whose neighbour is exchanged, nothing changes; of two that change places, all."""
    one, other = (1, 10), (1, 20)
    for neighbour in (0, 2):  # before it and after it in the order of keys
        alone, beside = prints([one, other])[0], prints([one, other, (neighbour, 77)])[0]
        own = prints([(neighbour, 77)])[0]
        assert beside == (alone[0] + own[0], (alone[1] + own[1]) % 2**64)
    assert prints([one, other]) != prints([other, one])
    assert prints([one]) != prints([(3, 10)]), "the key is part of it"


def test_what_was_late_or_overtaken_is_in_no_order() -> None:
    rows, records = items([A, B]), items([B, A], 0)
    assert [f.kind for f in compare_key(rows, records)] == ["reordered"]
    late = [rows[0], rows[1]._replace(flags=Flag.LATE)]
    assert compare_key(late, records) == []
    overtaken = [rows[0], rows[1]._replace(flags=Flag.OVERTAKEN)]
    found = compare_key(overtaken, items([A, B], 0))
    assert [(f.kind, f.row and f.row.place[0]) for f in found] == [("reordered", 2)]


def test_without_pairing_what_is_altered_is_missing_and_never_committed() -> None:
    found = compare_key(items([A]), items([D], 0), pair=False)
    assert [f.kind for f in found] == ["missing", "never_committed"]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(3, 5)], [3, 4, 5]),
        ([(0, 0), (2, 3), (9, 9)], [0, 2, 3, 9]),
        ([(-5, 1)], [0, 1]),
        ([(10, 12)], []),
    ],
)
def test_ranges_include_their_ends(ranges: list[tuple[int, int]], expected: list[int]) -> None:
    assert np.flatnonzero(within(np.arange(10), ranges)).tolist() == expected


def test_no_rows_have_no_fingerprints() -> None:
    assert prints([]) == {}
