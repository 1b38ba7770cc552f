"""How rows come into a lake beside others, and what a look at them says it knows. No Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.errors import StreamingQueryException

from harvest.errors import ConfigurationError
from harvest.spark import lake as module
from harvest.spark.lake import add_archive, add_table
from marshal_py import errors
from marshal_py.spark.lake.tables import Lake
from tests.support.watched_cluster import watched_sessions

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


class Stream:
    """Files that come in two batches, and then an end or a failure."""

    def __init__(self, failure: Exception | None) -> None:
        self.writeStream, self._failure, self.stopped = self, failure, 0
        self.checkpoint = ""

    def foreachBatch(self, add: Any) -> Stream:
        for number in range(2):
            add(SimpleNamespace(sparkSession=None), number)
        return self

    def option(self, name: str, value: str) -> Stream:
        assert name == "checkpointLocation"
        self.checkpoint = value
        return self

    def trigger(self, *, availableNow: bool) -> Stream:
        assert availableNow
        return self

    def start(self) -> Stream:
        return self

    def awaitTermination(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize(
    ("failure", "raised", "said"),
    [
        (None, None, ""),
        (StreamingQueryException("Wrong basePath /a"), ConfigurationError, "was moved, delete"),
        (StreamingQueryException("no space left"), StreamingQueryException, "no space left"),
    ],
)
def test_rows_of_all_batches_count_and_a_stream_that_fails_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception | None,
    raised: type[Exception] | None,
    said: str,
) -> None:
    monkeypatch.setattr(module, "_rows", lambda frame, _outbox: frame)
    monkeypatch.setattr(module, "_add", lambda *_: 3)
    stream, lake = Stream(failure), Lake.at("/lake")
    with pytest.raises(raised, match=said) if raised else contextlib.nullcontext():
        assert module._add_files(lake, "shop/outbox", "/archive", cast(Any, stream)) == 6
    assert stream.stopped == 1
    assert stream.checkpoint == "/lake/_checkpoints/outbox_rows/shop/outbox"


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

    watched = watched_sessions(monkeypatch, module)

    def read(*_: object) -> Any:
        assert watched, "it would wait for ever for a cluster that is gone"
        clock[0] += dt.timedelta(hours=1)
        return ()

    noted: list[tuple[Any, ...]] = []
    now = SimpleNamespace(now=lambda _zone: clock[0])
    monkeypatch.setattr(module, "dt", SimpleNamespace(datetime=now, UTC=dt.UTC))
    lake = cast(Any, SimpleNamespace(check_version=lambda _: None))
    monkeypatch.setattr(Lake, "to_write", classmethod(lambda *_: lake))
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

    def note(*_: object) -> None:
        raise CONFLICT

    monkeypatch.setattr(module, "_note", note)
    add_rows: list[Callable[[], int]] = [
        lambda: add_table(spark, "/lake", "shop/outbox", "dsn", "outbox", late_s=0.0),
        lambda: add_archive(spark, "/lake", "shop/outbox", "/archive"),
    ]
    for add in add_rows:
        with pytest.raises(errors.ConfigurationError, match="start this one again"):
            add()


@pytest.mark.parametrize("late_s", [-1.0, float("nan"), float("inf")])
def test_a_time_for_transactions_that_is_none_is_refused(late_s: float) -> None:
    """Of a table the rows between it and the newest one would be missed."""
    with pytest.raises(ConfigurationError, match=f"late_s = {late_s} must be 0 or more"):
        add_table(cast(Any, None), "/lake", "shop/outbox", "dsn", "outbox", late_s=late_s)
