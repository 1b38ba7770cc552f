"""What a lake needs once in a while: few files, and no older ones than are wanted."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from marshal_py.errors import ConfigurationError
from marshal_py.spark.lake.conflicts import conflicts_told
from marshal_py.spark.lake.sql import STILL_DAYS, date_literal, days_before, table_name
from marshal_py.spark.lake.tables import LAKE_TABLES, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["maintain"]

_LEAST_VACUUM_H: Final = 1.0
_CLOCKS_H: Final = 1.0
"""What the clocks of two drivers may differ by."""
_AT_ONCE: Final = 4
"""Tables that are cared for at the same time."""


@conflicts_told()
def maintain(
    spark: SparkSession,
    lake: Lake,
    *,
    today: dt.date,
    bronze_days: int = 90,
    days: int = 400,
    vacuum_h: float = 168.0,
) -> dict[str, int]:
    """Delete old days, compact what was written, and delete files that nobody needs.

    `bronze_days`, `days`: how long days are kept in bronze, and in silver and gold; findings until
    they expire. A day of which bronze has all may be written again, and its gold is made of the
    silver of 30 days before it, too: `days` is at least so much more. Rows that have not ended
    stay. `vacuum_h`: files that were replaced so long ago go:
    whoever reads for longer than that finds them gone. What may not be folded yet stays. Returns
    the rows that each table lost. May be done beside runs, of which one may fail then, and is to be
    started again. Raises `ConfigurationError`, also where there is no lake, or one of a later
    version.
    """
    for name, value, least in (
        ("bronze_days", bronze_days, 2),
        ("vacuum_h", vacuum_h, _LEAST_VACUUM_H),
    ):
        if not value >= least:
            raise ConfigurationError(f"{name} = {value} must be {least} or more")
    if days < bronze_days + STILL_DAYS:
        raise ConfigurationError(
            f"days = {days} must be {bronze_days + STILL_DAYS} or more: while bronze has a day "
            f"(bronze_days = {bronze_days}) it may be written again, and its gold is made of the "
            f"silver of {STILL_DAYS} days before it, too (a smaller bronze_days needs fewer)"
        )
    lake.check_is_there(spark)
    lake.check_version(spark)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")

    unread_h = _unread_h(spark, lake)

    def care(table: str) -> tuple[str, int]:
        columns = LAKE_TABLES[table]
        path = table_name(lake.path(table))
        old, gone = None, 0
        if table == "gold.findings":
            old = f"expires_on < DATE '{today}'"
        elif any(column.name == "day" for column in columns):
            kept = bronze_days if table.startswith("bronze.") else days
            old = f"day < {date_literal(days_before(today, kept))}"
        if old is not None:
            gone = lake.frame(spark, table).filter(old).count()
        if gone:
            spark.sql(f"DELETE FROM {path} WHERE {old}")  # noqa: S608
        spark.sql(f"OPTIMIZE {path}")
        kept_h: float | None = vacuum_h
        if table == "bronze.coordination":
            kept_h = None if unread_h is None else max(vacuum_h, unread_h)
        if kept_h is not None:
            spark.sql(f"VACUUM {path} RETAIN {kept_h} HOURS")
        return table, gone

    tables = [table for table in LAKE_TABLES if lake.exists(spark, table)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {table: gone for table, gone in pool.map(care, tables) if gone}


def _unread_h(spark: SparkSession, lake: Lake) -> float | None:
    """So long ago came what may not have been folded, hours; None: all of it.

    A stream reads each file that was added, also one that was compacted since then, or deleted. A
    run that is noted had read what was there when it began.
    """
    ago = "timestampdiff(MINUTE, max(started_at), current_timestamp()) / 60.0D"
    found = lake.frame(spark, "gold.runs").selectExpr(ago).collect()[0][0]
    return None if found is None else found + _CLOCKS_H
