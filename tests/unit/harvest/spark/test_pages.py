"""Pages of an outbox that several shards share (harvest/spark/pages.py), without a database."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from harvest.core.gaps import Range, missing, union
from harvest.core.interfaces.range_store import Window
from harvest.spark.pages import Pages

SHARDS = 3


class Table:
    """Rows with these ids; the shard of a row is its id modulo 3."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.reads: list[tuple[int, int]] = []
        self._busy = threading.Lock()

    def read_all(self, after: int, limit: int) -> tuple[Window, list[list[Any]]]:
        assert self._busy.acquire(blocking=False), "by one thread at a time"
        self.reads.append((after, limit))
        found = [id for id in self.ids if id > after][:limit]
        rows: list[Any] = [(id, "t", b"k", b"v", None, None) for id in found]
        shards = [[row for row in rows if row[0] % SHARDS == n] for n in range(SHARDS)]
        last = found[-1] if found else after
        self._busy.release()
        return Window(rows, last, missing(after, found), len(found) == limit), shards


def pages(table: Table, together: int = SHARDS) -> Pages:
    return Pages(table, together)  # type: ignore[arg-type]


def ids(window: Window) -> list[int]:
    return [row[0] for row in window.rows]


def walk(shared: Pages, shard: int, limits: random.Random) -> tuple[list[int], list[Range]]:
    """What a shard sees that reads to the end, in steps of any size."""
    after = 0
    found: list[int] = []
    gaps: list[Range] = []
    while True:
        window = shared.read(shard, after, limits.randint(1, 9))
        assert all(after < id <= window.last_id for id in ids(window))
        found += ids(window)
        gaps += window.missing
        if window.last_id == after:
            assert not window.full
            return found, union(gaps)
        after = window.last_id


@pytest.mark.parametrize("seed", range(20))
def test_each_shard_sees_its_rows_once_in_order_and_all_gaps(seed: int) -> None:
    rng = random.Random(seed)
    table = Table(sorted(rng.sample(range(1, 300), 200)))
    shared = pages(table)
    found: dict[int, Any] = {}

    def run(shard: int) -> None:
        found[shard] = walk(shared, shard, random.Random(seed + shard))

    threads = [threading.Thread(target=run, args=(shard,), daemon=True) for shard in range(SHARDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for shard in range(SHARDS):
        assert found[shard][0] == [id for id in table.ids if id % SHARDS == shard]
        assert found[shard][1] == missing(0, table.ids)


def test_what_one_shard_has_read_the_others_find() -> None:
    table = Table(list(range(1, 31)))
    shared = pages(table)
    assert ids(shared.read(0, 0, 5)) == [3, 6, 9, 12, 15]
    assert shared.read(1, 0, 5) == Window([*shared.read(1, 0, 5).rows], 15, (), True)
    assert ids(shared.read(2, 6, 5)) == [8, 11, 14]
    assert table.reads == [(0, 15)]
    shared.read(2, 15, 5)
    assert table.reads == [(0, 15), (15, 15)]


def test_no_more_rows_than_asked_for() -> None:
    shared = pages(Table([3, 6, 9, 10, 12]))
    window = shared.read(0, 0, 2)
    assert (ids(window), window.last_id, window.full) == ([3, 6], 6, True)
    assert window.missing == [(1, 2), (4, 5)]
    window = shared.read(0, 6, 2)
    assert (ids(window), window.last_id, window.full) == ([9, 12], 12, False)
    assert window.missing == [(7, 8), (11, 11)]


def test_a_shard_far_behind_reads_for_itself() -> None:
    table = Table(list(range(1, 100)))
    shared = pages(table)
    for after in range(0, 75, 15):
        shared.read(0, after, 5)
    assert ids(shared.read(1, 0, 5)) == [1, 4, 7, 10, 13]
    assert table.reads[-1] == (0, 15)
    assert len(table.reads) == 6


def test_an_end_is_not_kept() -> None:
    table = Table([1])
    shared = pages(table)
    assert shared.read(0, 1, 5) == Window([], 1, (), False)
    table.ids.append(3)
    assert ids(shared.read(0, 1, 5)) == [3]
