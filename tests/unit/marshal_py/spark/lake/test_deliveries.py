"""What executors compute of a day's deliveries, without Spark."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from marshal_py.protocol.slots import slot_of_key
from marshal_py.spark.lake.deliveries import _HASHES, _with_hash

COLUMNS = {
    "outbox": pa.string(),
    "id": pa.int64(),
    "topic": pa.string(),
    "partition": pa.int64(),
    "offset": pa.int64(),
    "key": pa.binary(),
}


class NoPandas:
    """Finds no pandas, though there is one."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}")


def test_the_slot_of_a_record_is_computed_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `executor` has none."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "pandas"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoPandas(), *sys.meta_path])
    rows = [
        ("s/o", 7, "t", 3, 5, b"k"),
        ("s/o", 8, "t", 3, 2**33, None),
        ("s/o", 9, "t", 3, 6, b""),
    ]
    schema = pa.schema(list(COLUMNS.items()))
    given = pa.RecordBatch.from_pylist(
        [dict(zip(COLUMNS, row, strict=True)) for row in rows], schema=schema
    )
    found, none = _with_hash(iter([given, given.slice(0, 0)]))
    assert found.schema == schema.remove(5).append(pa.field("hash", pa.int64())) == none.schema
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (*row[:5], slot_of_key(row[5], row[4], _HASHES)) for row in rows
    ]
    assert not none.num_rows
