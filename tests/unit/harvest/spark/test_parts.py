"""The pure parts of the Spark pipelines: bounds, flags, the state of an incremental run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvest.core.gaps import union
from harvest.core.interfaces.range_store import Window
from harvest.errors import ConfigurationError
from harvest.spark.compare import Flag, Item, compare_key, within
from harvest.spark.details import CARRIED_COLUMNS, Rules, details, schema_of
from harvest.spark.sources import ranges_of_ids
from harvest.spark.state import State, StateFolder

LAST = (1 << 63) - 1


def row(id: int, flags: int = Flag.NONE) -> Item:
    return Item((id, 0), 1000 + id, 0, flags)


def record(offset: int, of: int) -> Item:
    return Item((0, offset), 1000 + of, 0)


def window(ids: list[int], missing: list[tuple[int, int]]) -> Window:
    return Window([(id, "t", b"", b"", None, None) for id in ids], ids[-1], missing, True)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("upto", "ids", "last_id", "missing"),
    [
        (20, [6, 7, 12], 12, [(8, 11)]),
        (12, [6, 7, 12], 12, [(8, 11)]),
        (11, [6, 7], 7, []),
        (8, [6, 7], 7, []),
        (7, [6, 7], 7, []),
        (5, [], 5, []),
    ],
)
def test_a_window_ends_at_a_row_that_is_there(
    upto: int, ids: list[int], last_id: int, missing: list[tuple[int, int]]
) -> None:
    found = window([6, 7, 12], [(8, 11)]).upto(upto)
    assert [r[0] for r in found.rows] == ids
    assert (found.last_id, list(found.missing)) == (last_id, missing)
    assert found.full is (upto >= 12)


def test_a_window_of_another_shard_ends_at_the_bound() -> None:
    assert Window((), 12, [(8, 9)], True).upto(10) == Window([], 10, [(8, 9)])


def test_within() -> None:
    numbers = np.array([-5, 0, 1, 3, 4, 9, 10, 11], dtype=np.int64)
    assert within(numbers, [(0, 1), (4, 4), (9, 10)]).tolist() == [
        False, True, True, False, True, True, True, False
    ]  # fmt: skip
    assert not within(numbers, []).any()


def test_a_late_row_is_in_no_order_with_others() -> None:
    records = [record(0, of=9), record(1, of=5)]
    assert [f.kind for f in compare_key([row(5), row(9)], records)] == ["reordered"]
    assert compare_key([row(5, Flag.LATE), row(9)], records) == []


def test_a_row_that_was_overtaken_is_out_of_order_when_it_comes() -> None:
    assert compare_key([row(5)], [record(1, of=5)]) == []
    (found,) = compare_key([row(5, Flag.OVERTAKEN)], [record(1, of=5)])
    assert (found.kind, found.row) == ("reordered", row(5, Flag.OVERTAKEN))


def test_ids_that_were_passed_are_looked_for_until_they_are_given_up() -> None:
    first = State("t").after([(3, 5), (8, 9)], {"a": {0: 7}}, now_ms=100, late_ms=50)
    assert (first.run, first.last_id, first.offsets) == (1, 9, {"a": {0: 7}})
    assert list(first.open_ids) == [(1, 2, 100), (6, 7, 100)]
    assert first.ids_to_look_for() == [(1, 2), (6, 7), (10, LAST)]
    second = first.after([(7, 7), (12, 12)], {}, now_ms=140, late_ms=50)
    assert second.last_id == 12
    assert list(second.open_ids) == [(1, 2, 100), (6, 6, 100), (10, 11, 140)]
    third = second.after([(6, 6)], {}, now_ms=151, late_ms=50)
    assert (third.last_id, list(third.open_ids)) == (12, [(10, 11, 140)])
    assert third.after([], {}, now_ms=999, late_ms=50).ids_to_look_for() == [(13, LAST)]


def test_an_empty_outbox_leaves_everything_to_the_next_run() -> None:
    state = State("t").after([], {}, now_ms=1, late_ms=1)
    assert state.ids_to_look_for() == [(-(1 << 63), LAST)]


def test_a_state_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    assert folder.load("t") == State("t")
    state = State("t", 1, {"a": {0: 7}}, 9, [(1, 2, 100)], carried=2)
    with pytest.raises(ConfigurationError, match=r"has 0 of 2 rows.*all executors reach"):
        folder.store(state)
    assert folder.load("t") == State("t")
    rows = pa.table({"n": [1, 2]})
    folder.carried(1).mkdir()
    pq.write_table(rows, folder.carried(1) / "part-0.parquet")
    folder.store(state)
    assert folder.load("t") == state
    with pytest.raises(ConfigurationError, match="is the state of t, not of u"):
        folder.load("u")
    folder.carried(2).mkdir()  # of a run that is killed before it has stored its state
    assert folder.load("t") == state
    assert sorted(p.name for p in tmp_path.iterdir()) == ["carried-000001", "state.json"]
    folder.store(state.after([(10, 10)], {}, 1, 1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.json"]
    folder.carried(2).mkdir()
    pq.write_table(rows, folder.carried(2) / "part-0.parquet")
    with pytest.raises(ConfigurationError, match=r"has 2 of 0 rows.*empty folder"):
        folder.load("t")
    with folder.locked(), pytest.raises(ConfigurationError, match="another"), folder.locked():
        pass


def test_ids_become_ranges_where_they_are() -> None:
    batches = [
        pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})
        for ids in ([], [1, 2, 2, 4], [5, 6, 20], [21])
    ]
    found = list(ranges_of_ids([(2, 5), (20, 99)])(iter(batches)))
    pairs = [(r["low"], r["high"]) for batch in found for r in batch.to_pylist()]
    assert pairs == [(2, 2), (4, 4), (5, 5), (20, 20), (21, 21)]
    assert union(pairs) == [(2, 2), (4, 5), (20, 21)]


def test_details_are_given_while_they_come() -> None:
    """However many keys differ: not when all of them are in memory."""
    schema, taken = schema_of(CARRIED_COLUMNS), []

    def items(key: int) -> Iterator[dict[str, Any]]:
        of_key = {"key_hash": key, "topic": "t", "key": b"%d" % key, "row_hash": key, "b": 0}
        row = of_key | {"a": key, "at_ms": 0, "in_kafka": False, "carried": False, "flags": 0}
        yield row
        if key % 2:
            yield row | {"a": 0, "b": key, "in_kafka": True}

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 60_000, 1_000):
            taken.append(first)
            rows = [row for key in range(first, first + 1_000) for row in items(key)]
            # A key may go on in the next batch.
            for part in (rows[:-1], rows[-1:]):
                yield pa.RecordBatch.from_pylist(part, schema=schema)

    found, after = [], []
    for batch in details(Rules(young_ms=1))(batches()):
        after.append(len(taken))
        found += batch.column("id").to_pylist()
    assert found == list(range(0, 60_000, 2))
    assert after == [20, 40, 60, 60]
