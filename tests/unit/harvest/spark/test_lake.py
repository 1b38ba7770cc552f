"""How rows come into a lake beside others, and what a look at them says it knows. No Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from harvest.spark import lake as module
from harvest.spark.lake import add_archive, add_table
from marshal_py.spark.lake.tables import Lake

CONFLICT = RuntimeError("[DELTA_CONCURRENT_APPEND] Files were added by a concurrent update.")


def test_rows_of_another_outbox_may_be_added_at_the_same_moment() -> None:
    failures: list[Exception] = []
    tries: list[int] = []

    def write() -> int:
        tries.append(1)
        if failures:
            raise failures.pop()
        return 7

    failures += [CONFLICT, RuntimeError("[DELTA_METADATA_CHANGED]"), CONFLICT, CONFLICT]
    assert module._beside_others(write) == 7
    assert len(tries) == 5
    failures += [CONFLICT] * 6
    with pytest.raises(RuntimeError, match="DELTA_CONCURRENT_APPEND"):
        module._beside_others(write)
    failures.clear()
    tries.clear()
    failures += [RuntimeError("no space left on device")]
    with pytest.raises(RuntimeError, match="no space left"):
        module._beside_others(write)
    assert len(tries) == 1


def test_a_name_of_a_database_may_have_slashes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    known = SimpleNamespace(schema=None, inputFiles=lambda: ["file:///a/sales.orders-0-9.parquet"])
    stream = SimpleNamespace()
    stream.schema = stream.option = lambda *_: stream
    stream.parquet = lambda _: None
    spark = SimpleNamespace(read=SimpleNamespace(parquet=lambda _: known), readStream=stream)
    monkeypatch.setattr(module, "files_of", lambda _frame, _names, table: asked.append(table))
    module._check("eu/shop/sales.orders")
    module._files(cast(Any, spark), "/a", "eu/shop/sales.orders")
    assert asked == ["sales.orders"]


def test_a_look_knows_the_rows_of_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is inserted while it looks may have been missed: its record has no row yet."""
    began = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    clock = [began]

    def read(*_: object) -> Any:
        clock[0] += dt.timedelta(hours=1)
        return ()

    noted: list[tuple[Any, ...]] = []
    now = SimpleNamespace(now=lambda _zone: clock[0])
    monkeypatch.setattr(module, "dt", SimpleNamespace(datetime=now, UTC=dt.UTC))
    lake = cast(Any, SimpleNamespace(check_version=lambda _: None))
    monkeypatch.setattr(Lake, "to_write", classmethod(lambda *_: lake))
    monkeypatch.setattr(module, "cluster_watched", lambda _: contextlib.nullcontext())
    for name, step in {
        "_of_newest_day": lambda *_: None,
        "postgres_rows": read,
        "_files": read,
        "_rows": lambda *_: None,
        "_add": lambda *_: 3,
        "_add_files": lambda *_: 3,
        "_note": lambda _spark, _lake, *row: noted.append(row),
    }.items():
        monkeypatch.setattr(module, name, step)
    spark = cast(Any, None)
    assert add_table(spark, "/lake", "shop/outbox", "dsn", "outbox", late_s=1.0) == 3
    assert noted == [("shop/outbox", began, 3, began)]
    began = clock[0]
    assert add_archive(spark, "/lake", "shop/outbox", "/archive") == 3
    assert noted[1:] == [("shop/outbox", began, 3, None)]
