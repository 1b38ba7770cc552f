"""The rows of an outbox, into a lake: of an archive each once, however it is written and moved."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvest.errors import ConfigurationError
from harvest.spark.lake import _of_newest_day, _rows, add_archive
from marshal_py.spark.lake.tables import LAKE_TABLES, Lake, spark_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOX = "shop/outbox"
MIDNIGHT = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


class Archive:
    """A folder of Parquet files, and the lake that its rows are for."""

    def __init__(self, spark: SparkSession, at: Path) -> None:
        self.spark, self.at = spark, at
        self.lake = Lake.at(str(at / "lake"))

    def write(
        self, name: str, *ids: int, folder: str = "archive", endless: Collection[int] = ()
    ) -> Path:
        """A file with these rows, each a millisecond after its day began but the first.

        `endless`: rows whose time is infinite, which is none here.
        """
        (self.at / folder).mkdir(exist_ok=True)
        created = [
            None if id in endless else MIDNIGHT + dt.timedelta(milliseconds=id - 1) for id in ids
        ]
        columns: dict[str, Any] = {
            "id": pa.array(ids, pa.int64()),
            "create_time": pa.array(created, pa.timestamp("us", tz="UTC")),
            "kafka_topic": pa.array(["t"] * len(ids)),
            "kafka_key": pa.array([b"k"] * len(ids), pa.binary()),
            "kafka_value": pa.array([None] * len(ids), pa.binary()),
            "kafka_header_keys": pa.array([[]] * len(ids), pa.list_(pa.string())),
            "kafka_header_values": pa.array([[]] * len(ids), pa.list_(pa.binary())),
        }
        path = self.at / folder / f"{name}.parquet"
        pq.write_table(pa.table(columns), path)
        return path

    def add(self, folder: str = "archive", outbox: str = BOX) -> int:
        return add_archive(self.spark, self.lake.place, outbox, str(self.at / folder))

    def rows(self, *names: str, of: str = "bronze.outbox_rows") -> list[tuple[Any, ...]]:
        found = self.lake.frame(self.spark, of).select(*names).collect()
        return sorted(tuple(row) for row in found)


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path) -> Archive:
    return Archive(spark, tmp_path)


def test_each_file_is_read_once_also_one_that_is_older_than_the_others(archive: Archive) -> None:
    archive.write("b", 1, 2)
    before = dt.datetime.now(dt.UTC)
    assert archive.add() == 2
    assert archive.add() == 0
    looks = archive.rows("outbox", "at", "rows", "day", of="bronze.outbox_looks")
    assert sorted((box, rows) for box, _, rows, _ in looks) == [(BOX, 0), (BOX, 2)]
    assert all(at.astimezone(dt.UTC) >= before for _, at, _, _ in looks)
    # Restored, or copied with its time: a file that was written long before those that are known.
    long_ago = archive.write("a", 0)
    os.utime(long_ago, (1_600_000_000, 1_600_000_000))
    archive.write("c", 3)
    assert archive.add() == 2
    assert archive.rows("id", "day", "key", "value") == [
        (0, dt.date(2026, 2, 28), b"k", None),
        *((id, dt.date(2026, 3, 1), b"k", None) for id in (1, 2, 3)),
    ]


def test_a_look_into_an_archive_knows_rows_up_to_its_newest(archive: Archive) -> None:
    """What is in no file yet, of the last days, has not been looked for."""

    def looks() -> list[dt.datetime | None]:
        found = archive.rows("at", "upto", of="bronze.outbox_looks")
        return [upto and upto.astimezone(dt.UTC) for _, upto in found]

    archive.write("a", 4, 3)
    archive.write("later", 10**12)  # an application's own idea of time
    assert archive.add() == 3
    assert archive.add() == 0  # as late as before
    assert looks() == [MIDNIGHT + dt.timedelta(milliseconds=3)] * 2


def test_the_newest_row_is_looked_for_in_late_days_first(
    spark: SparkSession, archive: Archive
) -> None:
    """A lake keeps rows of months, and this is done every night."""
    today = dt.datetime.combine(dt.datetime.now(dt.UTC), dt.time(), dt.UTC)
    rows = [
        (box, id, moment := today - dt.timedelta(days), "t", b"k", None, moment.date())
        for box, id, days in ((BOX, 1, 0), (BOX, 2, 1), (BOX, 3, 60), ("shop/archived", 4, 5))
    ]
    table = "bronze.outbox_rows"
    archive.lake.append(table, spark.createDataFrame(rows, spark_types(LAKE_TABLES[table])))
    shutil.rmtree(Path(archive.lake.path(table)) / f"day={rows[2][-1]}")  # who reads it fails
    for box, id in ((BOX, 1), ("shop/archived", 4)):
        newest = _of_newest_day(spark, archive.lake, box)
        assert newest is not None
        assert [row["id"] for row in newest.collect()] == [id]


def test_outboxes_have_their_archives_and_their_rows_apart(archive: Archive) -> None:
    archive.write("a", 1, 2)
    archive.write("b", 2, folder="other")
    assert (archive.add(), archive.add("other", "shop/other")) == (2, 1)
    archive.write("c", 3)
    assert (archive.add(), archive.add("other", "shop/other")) == (1, 0)
    assert archive.rows("outbox", "id") == [("shop/other", 2), *((BOX, id) for id in (1, 2, 3))]


def test_outboxes_may_share_a_folder_of_archives(archive: Archive) -> None:
    archive.write("outbox-0-9", 1, 2)
    archive.write("outbox-2-0-9", 7)  # of a table of the name outbox-2
    with pytest.raises(ConfigurationError, match=r"no Parquet files of shop/sales\.orders"):
        archive.add(outbox="shop/sales.orders")
    assert archive.add() == 2
    archive.write("sales.orders-0-9", 2, 3, 4)
    archive.write("outbox-10-19", 10)
    assert (archive.add(), archive.add(outbox="shop/sales.orders")) == (1, 3)
    assert archive.rows("outbox", "id") == [
        *((BOX, id) for id in (1, 2, 10)),
        *(("shop/sales.orders", id) for id in (2, 3, 4)),
    ]


def test_a_row_that_is_in_two_files_or_was_in_a_table_before_is_there_once(
    spark: SparkSession, archive: Archive
) -> None:
    of_table = [(BOX, 1, MIDNIGHT, "t", b"k", None, MIDNIGHT.date())]
    types = spark_types(LAKE_TABLES["bronze.outbox_rows"])
    archive.lake.append("bronze.outbox_rows", spark.createDataFrame(of_table, types))
    archive.write("a", 1, 2)
    archive.write("b", 2, 3)
    assert archive.add() == 2
    archive.write("c", 0, 1, 2, 3)
    assert archive.add() == 1
    assert archive.rows("id") == [(0,), (1,), (2,), (3,)]


def test_a_row_of_no_day_is_there_once_though_its_file_is_read_again(
    spark: SparkSession, archive: Archive
) -> None:
    archive.write("a", 1, 2, endless=[2])
    archive.write("b", 2, 3, endless=[2, 3])
    assert archive.add() == 3
    archive.write("c", 4, endless=[4])  # a batch without a day
    assert archive.add() == 1
    shutil.rmtree(archive.lake.checkpoint(f"outbox_rows/{BOX}"))
    assert archive.add() == 0
    days = [None if id > 1 else MIDNIGHT.date() for id in range(1, 5)]
    assert archive.rows("id", "day") == [*zip(range(1, 5), days, strict=True)]
    # A table's infinite times, as Spark's JDBC reader has them, are no others.
    ends = "TIMESTAMP '9999-12-31 23:59:59.999', TIMESTAMP '0001-01-03', TIMESTAMP '0001-01-01'"
    times = spark.sql(f"SELECT explode(array({ends}, TIMESTAMP '9998-12-31'))")
    of_table = times.selectExpr(
        "1L AS id",
        "col AS create_time",
        "'t' AS kafka_topic",
        "CAST(NULL AS binary) AS kafka_key",
        "CAST(NULL AS binary) AS kafka_value",
        "CAST(array() AS array<string>) AS kafka_header_keys",
        "CAST(array() AS array<binary>) AS kafka_header_values",
    )
    found = [row["day"] for row in _rows(of_table, BOX).collect()]
    assert found == [None, None, None, dt.date(9998, 12, 31)]


def test_an_archive_that_was_moved_is_named_and_read_again_when_the_checkpoint_is_gone(
    archive: Archive,
) -> None:
    archive.write("a", 1, 2)
    assert archive.add() == 2
    (archive.at / "archive").rename(archive.at / "moved")
    archive.write("b", 3, folder="moved")
    checkpoint = archive.lake.checkpoint(f"outbox_rows/{BOX}")
    with pytest.raises(ConfigurationError, match=f"moved: .*was moved, delete {checkpoint}:"):
        archive.add("moved")
    shutil.rmtree(checkpoint)
    assert archive.add("moved") == 1
    assert archive.rows("id") == [(1,), (2,), (3,)]


def test_a_file_of_an_archive_may_go_when_it_was_read(archive: Archive) -> None:
    first = archive.write("a", 1)
    assert archive.add() == 1
    first.unlink()
    archive.write("b", 2)
    assert archive.add() == 1
    assert archive.rows("id") == [(1,), (2,)]


def test_rows_of_two_outboxes_may_be_added_at_once(archive: Archive) -> None:
    both_may_begin = threading.Barrier(2)

    def add(n: int) -> int:
        archive.write("b", *range(10, 20), folder=str(n))
        both_may_begin.wait()
        return archive.add(str(n), f"shop/{n}")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(add, range(2))) == [10, 10]


def test_braces_in_the_place_of_a_lake_are_no_names(spark: SparkSession, tmp_path: Path) -> None:
    archive = Archive(spark, tmp_path)
    archive.lake = Lake.at(str(tmp_path / "{first} of {x}"))
    archive.write("a", 1, 2)
    assert archive.add() == 2
    assert archive.rows("id") == [(1,), (2,)]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_archive_without_a_file_is_refused_unless_there_is_none_yet(
    spark: SparkSession, archive: Archive, is_there: bool
) -> None:
    """The folder comes with the first file, long after the first rows came from the table."""
    folder = archive.at / "archive"
    if is_there:
        folder.mkdir()
    with pytest.raises(ConfigurationError, match="there are no Parquet files"):
        archive.add()
    of_table = [(BOX, 1, MIDNIGHT, "t", b"k", None, MIDNIGHT.date())]
    types = spark_types(LAKE_TABLES["bronze.outbox_rows"])
    archive.lake.append("bronze.outbox_rows", spark.createDataFrame(of_table, types))
    assert archive.add() == 0
    assert archive.rows("rows", of="bronze.outbox_looks") == [(0,)]
    first = archive.write("a", 1, 2)
    assert archive.add() == 1
    first.unlink()  # the disk is not there, say
    with pytest.raises(ConfigurationError, match="there are no Parquet files"):
        archive.add()
