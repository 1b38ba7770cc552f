"""Fingerprints and the comparison of one key, against a slow and plain model."""

from __future__ import annotations

import random

import numpy as np
import pytest

from harvest.spark.compare import Item, compare_key, fingerprints

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


def test_no_rows_have_no_fingerprints() -> None:
    assert prints([]) == {}
