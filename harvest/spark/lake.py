"""The rows of an outbox, into the lake of `marshal lake`: from a table that keeps them, or from an
archive, or from one after the other.

Each row is there once, by its id and its day, wherever it came from. An archive's files are read
once each: Spark's checkpoint names them. Of a table the rows are read that are not older than
`late_s` before the newest known one; a transaction that takes longer to commit has its rows missed.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, TypeVar

from harvest.errors import ConfigurationError
from harvest.spark.sources import as_published, files_of, postgres_rows, unless_missing
from marshal_py.spark.lake.conflicts import OTHERS_FIRST, conflicts_told
from marshal_py.spark.lake.sql import date_literal, fill, table_name
from marshal_py.spark.lake.tables import Lake
from marshal_py.spark.watch import cluster_watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

__all__ = ["add_archive", "add_table", "table_of"]

_ADD: Final = """
MERGE INTO {path} AS known
USING {rows} AS found
ON known.outbox = found.outbox AND known.id = found.id AND known.day <=> found.day
  AND {days}
WHEN NOT MATCHED THEN INSERT *
"""
_BETWEEN: Final = "known.day BETWEEN {} AND {}"
_AT: Final = "IF(year(timestamp_millis(at_ms)) BETWEEN 2 AND 9998, timestamp_millis(at_ms), NULL)"
"""An infinite time is none in an archive; of a table's Spark makes the last day of all, or the
first."""
_TRIES: Final = 5
"""Rows of another outbox may be added at the same moment: Delta lets one of two go first."""
_CONNECTIONS: Final = 4
_ANY_AGE: Final = "36500d"
_LATELY: Final = (1, 7, 36_500)
"""Days back in which the newest row is looked for: of most outboxes it is of today or yesterday, of
an archive some days old; a lake keeps rows of months."""


@conflicts_told()
def add_archive(spark: SparkSession, place: str, outbox: str, archive: str) -> int:
    """Add the rows of Parquet files that were not read yet; return how many.

    `outbox`: NAME/OUTBOX, as the header ``harvest-id`` has it. `archive`: the folder, as `harvest
    partitions` writes it. There may be no file yet, where the lake has rows of the outbox and has
    read no archive of it. Raises `ConfigurationError`, `ClusterLost`.
    """
    _check(outbox)
    lake = Lake.to_write(spark, place)
    began = dt.datetime.now(dt.UTC)
    with cluster_watched(spark):
        lake.check_version(spark)
        files = _files(spark, archive, outbox)
        added = 0 if files is None else _add_files(lake, outbox, archive, files)
        newest = _of_newest_day(spark, lake, outbox)
        if files is None and (newest is None or _was_read(spark, lake, outbox)):
            raise ConfigurationError(f"--parquet {archive}: there are no Parquet files of {outbox}")
        upto = None
        if newest is not None:  # an archive gets rows long after they were inserted
            micros = newest.selectExpr("unix_micros(max(at))").collect()[0][0]
            upto = dt.datetime.fromtimestamp(micros / 1e6, dt.UTC)
        _note(spark, lake, outbox, began, added, upto)
    return added


def _files(spark: SparkSession, archive: str, outbox: str) -> DataFrame | None:
    """The rows of an archive, those to come included; None: there is none yet.

    Where files have the names that `harvest partitions` gives them, those of this outbox alone.
    """
    known = unless_missing(lambda: spark.read.parquet(archive))
    if known is None:
        return None
    # By default Spark passes over files that are a week older than the newest that it has seen.
    stream = spark.readStream.schema(known.schema).option("maxFileAge", _ANY_AGE).parquet(archive)
    names = [PurePosixPath(path).name for path in known.inputFiles()]
    return files_of(stream, names, table_of(outbox))


def _was_read(spark: SparkSession, lake: Lake, outbox: str) -> bool:
    """Whether there were files of an archive once: it does not lose all of them by itself."""
    begun = f"{lake.checkpoint(f'outbox_rows/{outbox}')}/metadata"
    return unless_missing(lambda: spark.read.text(begun)) is not None


def _add_files(lake: Lake, outbox: str, archive: str, files: DataFrame) -> int:
    """Add the rows of files that were not read yet; return how many."""
    from pyspark.errors import StreamingQueryException

    checkpoint = lake.checkpoint(f"outbox_rows/{outbox}")
    added = 0

    def add(rows: DataFrame, _batch: int) -> None:
        nonlocal added
        added += _add(rows.sparkSession, lake, rows)

    query = (
        _rows(files, outbox)
        .writeStream.foreachBatch(add)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if "Wrong basePath" not in str(error):
            raise
        raise ConfigurationError(
            f"--parquet {archive}: the archive of {outbox} was read from another folder. If it "
            f"was moved, delete {checkpoint}: its files are read again, and rows that the lake "
            "has are passed over"
        ) from None
    finally:
        query.stop()
    return added


@conflicts_told()
def add_table(
    spark: SparkSession, place: str, outbox: str, dsn: str, table: str, *, late_s: float
) -> int:
    """Add the rows of a table in PostgreSQL that the lake does not have; return how many.

    `late_s`: so long may a transaction take, seconds. Raises `ConfigurationError`, `SchemaError`,
    `StoreUnavailable`, `ClusterLost`.
    """
    _check(outbox)
    if not 0 <= late_s < math.inf:  # rows that are older than the newest one would be missed
        raise ConfigurationError(f"late_s = {late_s} must be 0 or more, seconds")
    lake = Lake.to_write(spark, place)
    began = dt.datetime.now(dt.UTC)
    with cluster_watched(spark):
        lake.check_version(spark)
        newest = _of_newest_day(spark, lake, outbox)
        condition = ""
        if newest is not None:
            late = newest.selectExpr(f"max(at) - make_dt_interval(0, 0, 0, {late_s}) AS since")
            since = late.selectExpr("date_format(since, 'yyyy-MM-dd HH:mm:ss.SSSSSS')").collect()[
                0
            ][0]
            condition = f"create_time >= TIMESTAMPTZ '{since}Z' AND "
        predicates = [
            f"{condition}mod(id, {_CONNECTIONS}) IN ({n}, -{n})" for n in range(_CONNECTIONS)
        ]
        added = _add(spark, lake, _rows(postgres_rows(spark, dsn, table, predicates), outbox))
        _note(spark, lake, outbox, began, added, began)
    return added


def _of_newest_day(spark: SparkSession, lake: Lake, outbox: str) -> DataFrame | None:
    """The known rows of the newest day that has any; None: there are none."""
    known = lake.frame(spark, "bronze.outbox_rows")
    # A row of tomorrow (an application may write its own create_time) says nothing of today's.
    ours = known.filter(known.outbox == outbox).filter("at <= current_timestamp()")
    today = dt.datetime.now(dt.UTC).date()
    for days in _LATELY:
        lately = ours.filter(f"day >= {date_literal(today - dt.timedelta(days))}")
        newest = lately.selectExpr("max(day)").collect()[0][0]
        if newest is not None:
            return ours.filter(f"day = {date_literal(newest)}")
    return None


def _add(spark: SparkSession, lake: Lake, rows: DataFrame) -> int:
    """Add those that the lake does not have; return how many."""
    if not lake.exists(spark, "bronze.outbox_rows"):
        _beside_others(lambda: lake.append("bronze.outbox_rows", rows.limit(0)))
    rows = rows.dropDuplicates(["outbox", "id", "day"]).persist()  # two files may have one row
    try:
        days = rows.selectExpr("min(day)", "max(day)", "count_if(day IS NULL)").collect()[0]
        first, last, without = days
        which = [] if first is None else [_BETWEEN.format(*map(date_literal, (first, last)))]
        which += ["known.day IS NULL"] if without else []
        if not which:
            return 0
        path = table_name(lake.path("bronze.outbox_rows"))
        query = fill(_ADD, path=path, days=f"({' OR '.join(which)})")
        return _beside_others(
            lambda: int(spark.sql(query, rows=rows).collect()[0]["num_inserted_rows"])
        )
    finally:
        rows.unpersist()


def _note(
    spark: SparkSession,
    lake: Lake,
    outbox: str,
    began: dt.datetime,
    added: int,
    upto: dt.datetime | None,
) -> None:
    """Note that somebody has looked: of a day without a row it tells that there was none.

    `upto`: a record of before then has its row in the lake, if there is one.
    """
    row = (outbox, began, added, upto, began.date())
    types = "outbox string, at timestamp, rows bigint, upto timestamp, day date"
    look = spark.createDataFrame([row], types)
    _beside_others(lambda: lake.append("bronze.outbox_looks", look))


def _beside_others(write: Callable[[], T]) -> T:
    """Write a table that others may write to, or make, at the same moment."""
    for left in reversed(range(_TRIES)):
        try:
            return write()
        except Exception as error:  # Java's, which Spark does not translate
            if not left or not any(name in str(error) for name in OTHERS_FIRST):
                raise
    raise AssertionError  # the last try returns or raises


def table_of(outbox: str) -> str:
    """The OUTBOX of NAME/OUTBOX; a name may have slashes."""
    return outbox.rpartition("/")[2]


def _check(outbox: str) -> None:
    name, _, table = outbox.rpartition("/")
    if not (name and table):
        raise ConfigurationError(
            f"--outbox {outbox!r} must be NAME/OUTBOX: the `harvest_id` and the `outbox` of the "
            "harvester's configuration"
        )


def _rows(frame: DataFrame, outbox: str) -> DataFrame:
    from pyspark.sql import functions as F

    return (
        as_published(frame)
        .withColumn("outbox", F.lit(outbox))
        .selectExpr(
            "outbox",
            "a AS id",
            f"{_AT} AS at",
            "topic",
            "key",
            "cast(value AS binary) AS value",
            f"to_date({_AT}) AS day",
        )
    )
