"""The rows of an outbox, into the lake of `marshal lake`: from a table that keeps them, or from an
archive.

Each row is there once. An archive's files are read once each: Spark's checkpoint names them. Of a
table the rows are read that are not older than `late_s` before the newest known one, and those that
the lake has are passed over; a transaction that takes longer to commit has its rows missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harvest.errors import ConfigurationError
from harvest.spark.sources import as_published, postgres_rows
from marshal_py.spark.lake.sql import fill, table_name
from marshal_py.spark.lake.tables import Lake
from marshal_py.spark.watch import cluster_watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["add_archive", "add_table"]

_ADD: Final = """
MERGE INTO {path} AS known
USING {rows} AS found
ON known.outbox = found.outbox AND known.id = found.id AND known.day = found.day{since}
WHEN NOT MATCHED THEN INSERT *
"""
_CONNECTIONS: Final = 4
_ANY_AGE: Final = "36500d"


def add_archive(spark: SparkSession, place: str, outbox: str, archive: str) -> int:
    """Add the rows of Parquet files that were not read yet; return how many.

    `outbox`: NAME/OUTBOX, as the header ``harvest-id`` has it. `archive`: the folder, as `harvest
    partitions` writes it. Raises `ConfigurationError`, `ClusterLost`.
    """
    from pyspark.errors import AnalysisException

    _check(outbox)
    lake = Lake.to_write(spark, place)
    try:
        types = spark.read.parquet(archive).schema
    except AnalysisException:
        raise ConfigurationError(f"--parquet {archive}: there are no Parquet files") from None
    # By default Spark passes over files that are a week older than the newest that it has seen.
    files = spark.readStream.schema(types).option("maxFileAge", _ANY_AGE).parquet(archive)
    frame = _rows(files, outbox)
    with cluster_watched(spark):
        query = (
            frame.writeStream.format("delta")
            .option("checkpointLocation", lake.checkpoint(f"outbox_rows/{outbox}"))
            .option("mergeSchema", "true")
            .partitionBy("day")
            .trigger(availableNow=True)
            .start(lake.path("bronze.outbox_rows"))
        )
        try:
            query.awaitTermination()
            return sum(each["numInputRows"] for each in query.recentProgress)
        finally:
            query.stop()


def add_table(
    spark: SparkSession, place: str, outbox: str, dsn: str, table: str, *, late_s: float
) -> int:
    """Add the rows of a table in PostgreSQL that the lake does not have; return how many.

    `late_s`: so long may a transaction take, seconds. Raises `ConfigurationError`, `ClusterLost`.
    """
    _check(outbox)
    lake = Lake.to_write(spark, place)
    with cluster_watched(spark):
        known = lake.frame(spark, "bronze.outbox_rows")
        if not lake.exists(spark, "bronze.outbox_rows"):
            lake.append("bronze.outbox_rows", known)
        ours = known.filter(known.outbox == outbox)
        newest = ours.selectExpr("max(day)").collect()[0][0]
        since = condition = ""
        if newest is not None:
            late = ours.filter(f"day = DATE '{newest}'").selectExpr(
                f"max(at) - make_dt_interval(0, 0, 0, {late_s}) AS since"
            )
            since = late.selectExpr("date_format(since, 'yyyy-MM-dd HH:mm:ss.SSSSSS')").collect()[
                0
            ][0]
            condition = f"create_time >= TIMESTAMPTZ '{since}Z' AND "
        predicates = [
            f"{condition}mod(id, {_CONNECTIONS}) IN ({n}, -{n})" for n in range(_CONNECTIONS)
        ]
        rows = _rows(postgres_rows(spark, dsn, table, predicates), outbox).persist()
        try:
            bound = f" AND known.day >= DATE '{since[:10]}'" if since else ""
            query = fill(_ADD, path=table_name(lake.path("bronze.outbox_rows")), since=bound)
            added = spark.sql(query, rows=rows).collect()[0]["num_inserted_rows"]
        finally:
            rows.unpersist()
    return int(added)


def _check(outbox: str) -> None:
    name, slash, table = outbox.partition("/")
    if not (name and slash and table):
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
            "timestamp_millis(at_ms) AS at",
            "topic",
            "key",
            "cast(value AS binary) AS value",
            "to_date(timestamp_millis(at_ms)) AS day",
        )
    )
