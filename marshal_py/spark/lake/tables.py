"""The lake's tables: their columns, where they are, and how a part of one is written once.

A table is a folder of the lake: ``LAKE/silver/claims``. All are partitioned by `day` (UTC). Of
tables with rows that have not ended, those rows have no day; each run replaces them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from marshal_py.errors import ConfigurationError
from marshal_py.spark.audit_tables import TABLES, Column

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

__all__ = [
    "FOLDED",
    "LAKE_TABLES",
    "SCHEMA_VERSION",
    "Lake",
    "columns_of",
    "spark_types",
]

SCHEMA_VERSION: Final = 1
"""Of all tables together. Columns are added under the same version; a lake of a later one is
refused."""

_SPARK_TYPES: Final = {
    "text": "string",
    "int": "bigint",
    "time": "timestamp",
    "bytes": "binary",
    "bool": "boolean",
    "float": "double",
    "date": "date",
    "headers": "array<struct<key:string,value:binary>>",
    "handlers": "array<struct<group_id:string,client_id:string,epoch:bigint,"
    "from_at:timestamp,until_at:timestamp>>",
}


def columns_of(text: str) -> tuple[Column, ...]:
    """Columns from lines of: name, kind, what it holds."""
    return tuple(Column(*line.split(None, 2)) for line in text.strip().splitlines())


_DAY: Final = Column("day", "date", "UTC day")
_ENDED: Final = Column("day", "date", "UTC day in which the row became final; null until then")

FOLDED: Final[dict[str, str]] = {
    "claims": "until_at",
    "rejections": "at",
    "takeovers": "at",
    "positions": "at",
    "batches": "at",
    "ranges": "at",
    "elections": "until_at",
    "operations": "at",
    "anomalies": "at",
}
"""Table that the fold writes → the column that says on which day a row became final."""

LAKE_TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "bronze.coordination": (
        *columns_of(
            """
topic text the coordination topic, or that of its snapshots
coordinator int coordination partition
log_offset int offset of the record
at time the record's timestamp
create_time bool whether that is its sender's time, and not the broker's
value bytes the record as it was; null for a tombstone
"""
        ),
        _DAY,
    ),
    "bronze.published": (
        *columns_of(
            """
topic text topic of the record
partition int partition of the topic
offset int offset of the record
at time the record's timestamp
key bytes key
value bytes value
headers headers headers, in their order
outbox text NAME/OUTBOX of the header harvest-id, the last one; null without one
id int id of the outbox's row, of the same header
"""
        ),
        _DAY,
    ),
    "bronze.outbox_rows": (
        *columns_of(
            """
outbox text NAME/OUTBOX, as in the header harvest-id
id int id of the row
at time when the row was inserted, by the database's clock (its column create_time)
topic text topic that the row asks for
key bytes key that it asks for
value bytes value that it asks for
"""
        ),
        _DAY,
    ),
    "bronze.outbox_looks": (
        *columns_of(
            """
outbox text NAME/OUTBOX
at time when `harvest lake` began to look for rows
rows int how many were new
upto time rows that were inserted before then are known; null: none are, or by an earlier version
"""
        ),
        _DAY,
    ),
    **{f"silver.{name}": (*TABLES[name], _ENDED) for name in FOLDED},
    "silver.fold": columns_of(
        """
coordinator int coordination partition
next_offset int next offset to fold
latest_ms int latest timestamp folded, milliseconds since 1970
records int how many records were folded
state bytes what the fold goes on from
"""
    ),
    "silver.deliveries": (
        *columns_of(
            """
outbox text NAME/OUTBOX
id int id of the outbox's row
status text delivered, lost, unread (its topic was not read), unexpected, pending or unarchived
created_at time when the row was inserted; null where no row is known
topic text topic: of the record, or of the row that has none
key bytes key, likewise
partition int where the row was published first; null: it was not
offset int offset there
published_at time the record's timestamp
latency_ms int from the row's insertion to the record's timestamp, milliseconds
copies int records with this id
altered bool whether the record has another topic, key or value than the row
disordered bool whether an earlier record of the same key belongs to a later row
handled handlers whose claims, of which group, went past the record
"""
        ),
        _DAY,
    ),
    "gold.outboxes": (
        *columns_of(
            """
outbox text NAME/OUTBOX
rows int rows inserted that day; null: none are known
delivered int rows and records that belong together
records int records of those rows, duplicates among them
lost int rows without a record, older than the grace; null: it is not known
pending int younger rows, and younger records, whose other half has not come yet
unexpected int records that no row asked for; null: no rows are known
duplicated int records beyond the first of their row
disordered int records behind one of a later row of the same key
altered int records that differ from their row
handled int records that the claims of some group went past
unread text topics of rows without a record that were not read, with spaces between
latency_p50_ms float half of the rows were published within, milliseconds
latency_p95_ms float 95 % of them
latency_p99_ms float 99 % of them
latency_max_ms float the slowest
"""
        ),
        _DAY,
    ),
    "gold.groups": (
        *columns_of(
            """
group_id text group
claims int claims that were accepted
clients int clients that held something
takeovers int claims taken from a client that was silent
takeover_p50_ms float half of them: from the last sign of the old holder to the first of the new one
takeover_max_ms float the longest
rejections int records, and cells of heartbeats, that were not accepted
anomalies int findings of the fold (§2)
"""
        ),
        _DAY,
    ),
    "gold.lag": (
        *columns_of(
            """
hour time when the hour ended, or the lake's last look
group_id text group
topic text topic; only of those that the lake reads
partition int partition
end_offset int offset behind the last record
position int position of the group: of its last slot, or furthest begun range; null: none was stored
lag int records between them, at most: gaps between offsets count; without a position all of them
"""
        ),
        _DAY,
    ),
    "gold.leadership": (
        *columns_of(
            """
group_id text group
name text what is led
leaders int leaders of that day
led_ms int time with a leader who was heard of, milliseconds
span_ms int time that was looked at: the day up to the last look; a new name's from its election on
availability float led_ms / span_ms
"""
        ),
        _DAY,
    ),
    "gold.findings": (
        *columns_of(
            """
finding text what names the finding: the same in each run that comes to it
kind text lost, duplicated, disordered, altered, unexpected, or a kind of §2
what text what was found, in words
outbox text outbox, of findings about rows
id int id of the row
group_id text group, of findings about the log
topic text topic
partition int partition
offset int offset of the record there; of the coordination log for kinds of §2
found_at time when a run came to it first
expires_on date when retention may delete it
"""
        ),
        _DAY,
    ),
    "gold.expectations": (
        *columns_of(
            """
name text what was expected
found float what was found; null: it is not known
limit float the most, or least, that is allowed
met bool whether it holds; false where nothing is known
"""
        ),
        _DAY,
    ),
    "gold.runs": (
        *columns_of(
            """
started_at time when the run began
ended_at time when its last table was written; null: it begins with them
schema_version int of the tables
library text version of this library
records int records of the coordination log that were new; null: it begins
published int records of topics that were new, likewise
met bool whether all expectations were met, likewise
days text days whose tables it writes, with spaces between; null: by an earlier version
"""
        ),
        _DAY,
    ),
}
"""Table → columns. `specs/AUDIT.md` §7 is checked against this."""


def spark_types(columns: tuple[Column, ...]) -> str:
    """Columns as Spark's DDL."""
    return ", ".join(f"`{c.name}` {_SPARK_TYPES[c.kind]}" for c in columns)


_S3_LOG: Final = "spark.delta.logStore.s3a.impl"
_S3_CHECKPOINTS: Final = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "marshal.spark.ConditionalPutCheckpoints",
)
_NO_TABLE: Final = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND")
"""What Spark says of a folder that is not there, and Delta of one without a table."""
_NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",  # of days, and of times that are written as text
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.sources.partitionOverwriteMode": "static",
    # Rows that have not ended are replaced by ones that have: they belong to another partition.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
}
"""A session of somebody else's has its own."""


@dataclass(frozen=True)
class Lake:
    """Where a lake is: a folder, or a URI that Spark and all executors reach."""

    place: str

    @classmethod
    def at(cls, place: str) -> Lake:
        """The lake at a path or a URI. Raises `ConfigurationError` for one that is not Spark's."""
        if place.partition("://")[0].lower() in ("s3", "s3n"):
            raise ConfigurationError(f"--lake {place}: Spark knows S3 as s3a://")
        return cls(place.rstrip("/") if "://" in place else str(Path(place).absolute()))

    @classmethod
    def to_write(cls, spark: SparkSession, place: str) -> Lake:
        """The lake at a path or a URI, where of two drivers none overwrites what the other wrote.

        Raises `ConfigurationError` where the session would do that.
        """
        lake = cls.at(place)
        scheme = lake.place.partition("://")[0].lower()
        if scheme == "s3a":
            if spark.conf.get(_S3_LOG, None) is None:
                raise ConfigurationError(
                    f"--lake {place}: two drivers could overwrite each other's commits. Start "
                    f"Spark with {_S3_LOG}=marshal.spark.ConditionalPutLogStore, and with the "
                    "jars that `python -m marshal_py.spark.connector delta s3` prints"
                )
            spark.conf.set(*_S3_CHECKPOINTS)
        for name, value in _NEEDED.items():
            spark.conf.set(name, value)
        return lake

    def check_is_there(self, spark: SparkSession) -> None:
        """Raise `ConfigurationError` where no table has been written."""
        if not any(self.exists(spark, table) for table in reversed(LAKE_TABLES)):
            raise ConfigurationError(
                f"there is no lake at {self.place}: `marshal lake run` and `harvest lake` begin one"
            )

    def check_version(self, spark: SparkSession) -> None:
        """Raise `ConfigurationError` for a lake of a later version than this library writes."""
        latest = self.frame(spark, "gold.runs").selectExpr("max(schema_version)").collect()[0][0]
        if latest is not None and latest > SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self.place} has tables of version {latest}, and this library writes version "
                f"{SCHEMA_VERSION}: upgrade it, or begin another lake"
            )

    def path(self, table: str) -> str:
        """The folder of a table."""
        return f"{self.place}/{table.replace('.', '/')}"

    def checkpoint(self, name: str) -> str:
        """The folder in which Spark keeps how far a stream has come."""
        return f"{self.place}/_checkpoints/{name}"

    def exists(self, spark: SparkSession, table: str) -> bool:
        """Whether a table has been written."""
        from pyspark.errors import AnalysisException

        try:
            spark.read.format("delta").load(self.path(table)).schema  # noqa: B018
        except AnalysisException as error:
            if error.getCondition() not in _NO_TABLE:
                raise
            return False
        return True

    def has_none(self, spark: SparkSession, table: str, where: str) -> bool:
        """Whether a table has been written and has no row of this condition."""
        return self.exists(spark, table) and self.frame(spark, table).filter(where).isEmpty()

    def frame(self, spark: SparkSession, table: str) -> DataFrame:
        """A table, with all of its columns; without a row if it was never written."""
        columns = LAKE_TABLES[table]
        if not self.exists(spark, table):
            return spark.createDataFrame([], spark_types(columns))
        found = spark.read.format("delta").load(self.path(table))
        missing = [c for c in columns if c.name not in found.columns]  # of an earlier version
        return found.selectExpr(
            *(
                f"cast(NULL AS {_SPARK_TYPES[c.kind]}) AS `{c.name}`"
                if c in missing
                else f"`{c.name}`"
                for c in columns
            )
        )

    def replace(
        self,
        table: str,
        frame: DataFrame,
        where: str | None,
        *,
        once: tuple[str, int] | None = None,
    ) -> None:
        """Write rows in place of those of the condition `where` (None: of all), in one step.

        `once`: who writes, and a number; what has this number or a lower one of his was written
        before, and is not written again.
        """
        writer = self.writer(table, frame).mode("overwrite")
        if where is not None:
            writer = writer.option("replaceWhere", where)
        if once is not None:
            writer = writer.option("txnAppId", once[0]).option("txnVersion", once[1])
        writer.save(self.path(table))

    def replace_day(self, table: str, frame: DataFrame, day: dt.date) -> None:
        """Write the rows of a day in place of those that are there."""
        self.replace(table, frame, f"day = DATE '{day}'")

    def append(self, table: str, frame: DataFrame) -> None:
        """Add rows."""
        self.writer(table, frame).mode("append").save(self.path(table))

    def writer(self, table: str, frame: DataFrame) -> DataFrameWriter:
        """A writer of rows, whose columns are brought to those of the table."""
        columns = LAKE_TABLES[table]
        typed = frame.selectExpr(
            *(f"cast(`{c.name}` AS {_SPARK_TYPES[c.kind]}) AS `{c.name}`" for c in columns)
        )
        writer = typed.write.format("delta").option("mergeSchema", "true")
        return writer.partitionBy("day") if any(c.name == "day" for c in columns) else writer

    def register(self, spark: SparkSession, schema: str) -> None:
        """Make the tables known to the session's catalog, as ``SCHEMA.silver_claims``.

        Those of another place, as of a lake that was moved, become this one's. Raises
        `ConfigurationError` for what has such a name and is no Delta table at a place of its own.
        """
        among = f"`{_name(schema)}`"
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {among}")
        # It does not look into the tables: their place may be gone.
        shown = spark.sql(f"SHOW TABLE EXTENDED IN {among} LIKE 'bronze_*|silver_*|gold_*'")
        known = {row["tableName"]: row["information"] for row in shown.collect()}
        for table in LAKE_TABLES:
            name = table.replace(".", "_")
            if not self.exists(spark, table):
                continue
            if name in known:
                said = dict(_SAID.findall(known[name]))
                if (said.get("Type"), said.get("Provider")) != ("EXTERNAL", "delta"):
                    raise ConfigurationError(
                        f"--schema {schema}: {name} is there, and no table of a lake: give another "
                        "name"
                    )
                if _is_at(said.get("Location", ""), self.path(table)):
                    continue
                spark.sql(f"DROP TABLE {among}.`{name}`")  # its files stay
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {among}.`{name}` "
                f"USING delta LOCATION '{_text(self.path(table))}'"
            )


_SAID: Final = re.compile(r"^(Type|Provider|Location): (.*)$", re.MULTILINE)
_PLACE: Final = re.compile(r"(?:([a-zA-Z][a-zA-Z0-9+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)


def _is_at(location: str, path: str) -> bool:
    """Whether a catalog's location is this path, which may leave out file: and a host."""
    known, wanted = (_PLACE.fullmatch(place) for place in (location, path))
    assert known is not None and wanted is not None  # noqa: PT018, S101
    return (
        known[1] == (wanted[1] or "file")
        and (wanted[2] or known[2]) == known[2]
        and known[3] == wanted[3]
    )


def _name(text: str) -> str:
    return text.replace("`", "``")


def _text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
