"""The two sides of a reconciliation as data frames of the same columns.

``key_hash`` and ``row_hash`` are Spark's xxhash64, of (topic, key) and of (topic, key, value,
headers); ``a`` and ``b`` place a row (its id, and 0) or a record (partition, offset); ``at_ms`` is
when it was written; `topic` and `key`. Spark reads no column that is not asked for.

All expressions are ones that Spark compiles: a higher-order function (`transform`) is interpreted
for every row, and cost more than reading it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harvest.core.gaps import Range, union
from harvest.core.table_name import TableName
from harvest.errors import ConfigurationError, SchemaError, StoreUnavailable, TableMissing
from harvest.maintenance.archive import file_names
from harvest.spark.compare import within
from marshal_py.spark.kafka import READER_OPTIONS, java_settings
from marshal_py.spark.lake.bronze import HARVEST_ID

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import ConnectionInfo
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ALL",
    "HASHED",
    "Part",
    "as_published",
    "connected",
    "files_of",
    "ids_of_parquet",
    "ids_of_postgres",
    "of_kafka",
    "of_parquet",
    "of_postgres",
    "postgres_rows",
    "ranges_of_ids",
    "read_archive",
    "unless_missing",
]

_OF_AN_ARCHIVE: Final = re.compile(r".+-[0-9]+-[0-9]+\.parquet")
_NO_FILES: Final = {"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"}

HASHED: Final = ("key_hash", "row_hash", "a", "b", "at_ms")

_KEY: Final = "xxhash64(topic, key) AS key_hash"
# It skips NULLs: hence the number of headers, and their keys beside the pairs. Text has the hash of
# its bytes.
_ROW: Final = "xxhash64(topic, key, value, size(headers), header_keys, headers) AS row_hash"


class Part(NamedTuple):
    """Which rows: with ids from `low`, written from `since_ms` to before `until_ms`."""

    low: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def conditions(self, moment: str) -> list[str]:
        """As SQL; `moment` makes a time of milliseconds."""
        found = [] if self.low is None else [f"id >= {self.low:d}"]
        if self.since_ms is not None:
            found.append(f"create_time >= {moment.format(self.since_ms)}")
        if self.until_ms is not None:
            found.append(f"create_time < {moment.format(self.until_ms)}")
        return found


ALL: Final = Part()


def _hashed(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(_KEY, _ROW, "a", "b", "at_ms", "topic", "key")


def as_published(frame: DataFrame) -> DataFrame:
    """Bring the outbox's columns to what Kafka's side has: no headers are NULL; `a` is the id.

    Raises `ConfigurationError` for a column that is missing.
    """
    from pyspark.sql import functions as F

    types = dict(frame.dtypes)
    _check_names(types.keys())

    def in_bytes(column: str) -> str:
        """As it is published: other types in their text form."""
        return column if types[column] == "binary" else f"cast({column} AS string)"

    frame = frame.selectExpr(
        "kafka_topic AS topic",
        f"cast({in_bytes('kafka_key')} AS binary) AS key",
        f"{in_bytes('kafka_value')} AS value",
        "coalesce(kafka_header_keys, array()) AS header_keys",
        "coalesce(kafka_header_values, array()) AS header_values",
        "cast(id AS bigint) AS a",
        "0L AS b",
        "unix_millis(create_time) AS at_ms",
    )
    some = "size(header_keys) > 0 OR size(header_values) > 0"
    return frame.withColumns(
        {
            "headers": F.expr(f"IF({some}, arrays_zip(header_keys, header_values), NULL)"),
            "header_keys": F.expr(f"IF({some}, header_keys, NULL)"),
        }
    )


def _check_names(found: Iterable[str]) -> None:
    missing = _NEEDED - set(found)
    if missing:
        raise ConfigurationError(
            f"the outbox has no column {sorted(missing)[0]!r}: see the table in specs/HARVEST.md §1"
        )


_NEEDED: Final = {
    "id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
}


_IDS: Final = """
SELECT min(id), max(id)
FROM (
  SELECT id, id - row_number() OVER (ORDER BY id) AS island
  FROM unnest(%s::bigint[], %s::bigint[]) AS wanted (low, high)
  JOIN {table} ON id BETWEEN low AND high
) AS found
GROUP BY island ORDER BY 1
"""


@contextlib.contextmanager
def connected(dsn: str, table: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of this process's for questions about a table.

    Raises `ConfigurationError` for a connection string that cannot be read, `TableMissing`,
    `SchemaError` where a column or a right is missing, and `StoreUnavailable`.
    """
    import psycopg

    from harvest.databases.postgres.conninfo import parsed_conninfo

    parsed_conninfo(dsn, "the connection string")
    try:
        opened = psycopg.connect(dsn)
    except psycopg.ProgrammingError:  # a value of it
        raise ConfigurationError("the connection string cannot be read") from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database cannot be reached: {_in_a_line(error)}") from error
    try:
        with opened as connection:
            yield connection
    except psycopg.errors.UndefinedTable as error:
        raise TableMissing(f"the table {table} does not exist: name another by --table") from error
    except (psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege) as error:
        raise SchemaError(f"the table {table} cannot be read: {_in_a_line(error)}") from error
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"the database broke off a statement: {_in_a_line(error)}"
        ) from error


def _in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def ids_of_postgres(dsn: str, table: str, wanted: Sequence[Range]) -> list[Range]:
    """Return which ids of `wanted` are in the table, as ranges; seen at one moment.

    Raises as `connected` does.
    """
    from psycopg import sql

    parts = TableName.parse(table).parts
    query = sql.SQL(_IDS).format(table=sql.Identifier(*parts))
    with connected(dsn, table) as connection:
        ends = [low for low, _ in wanted], [high for _, high in wanted]
        return [(low, high) for low, high in connection.execute(query, ends).fetchall()]


def read_archive(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Return the rows of an outbox that are in a folder of Parquet files.

    Raises `ConfigurationError` if it has none.
    """
    frame = unless_missing(lambda: spark.read.parquet(path))
    if frame is None:
        raise ConfigurationError(f"{path}: there are no Parquet files")
    names = [PurePosixPath(file).name for file in frame.inputFiles()]
    own = files_of(frame, names, table)
    if own is None:
        raise ConfigurationError(
            f"{path}: there are no Parquet files of the outbox {table}, but {min(names)}, say: "
            "name the outbox by --table"
        )
    return own


def files_of(frame: DataFrame, names: Sequence[str], table: str) -> DataFrame | None:
    """Return of files of these names those of the outbox `table`; None: there are none of it.

    Outboxes may share a folder, where files have the names that `harvest partitions` gives them.
    Of files with other names it returns all.
    """
    if not any(map(_OF_AN_ARCHIVE.fullmatch, names)):
        return frame
    own = file_names(table)
    if not any(map(own.fullmatch, names)):
        return None
    return frame.filter(frame["_metadata.file_name"].rlike(f"^{own.pattern}$"))


def unless_missing(read: Callable[[], DataFrame]) -> DataFrame | None:
    """Return what `read` does; None: there is no such file."""
    from pyspark.errors import AnalysisException

    try:
        frame = read()
        frame.schema  # noqa: B018 (with Spark Connect, nothing is looked at before)
    except AnalysisException as error:
        if error.getCondition() not in _NO_FILES:
            raise
        return None
    return frame


def ids_of_parquet(
    spark: SparkSession, path: str, table: str, wanted: Sequence[Range]
) -> list[Range]:
    """Return which ids of `wanted` are in the archive, as ranges. Ids stay with the workers."""
    rows = read_archive(spark, path, table).selectExpr("cast(id AS bigint) AS id")
    found = (
        rows.filter(rows["id"] >= wanted[0][0])
        .repartitionByRange("id")
        .sortWithinPartitions("id")
        .mapInArrow(ranges_of_ids(wanted), "low bigint, high bigint")
        .collect()
    )
    return union((low, high) for low, high in found)


def ranges_of_ids(
    wanted: Sequence[Range],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what makes ranges of the ids of a task, which come sorted; those of `wanted` alone."""

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow

        for batch in batches:
            ids = batch.column(0).to_numpy()
            ids = ids[within(ids, wanted)]
            first = np.flatnonzero(np.r_[True, np.diff(ids) > 1][: len(ids)])
            last = np.r_[first[1:] - 1, len(ids) - 1][: len(first)]
            yield pyarrow.RecordBatch.from_arrays(
                [pyarrow.array(ids[first]), pyarrow.array(ids[last])], names=["low", "high"]
            )

    return join


def of_parquet(
    spark: SparkSession, path: str, table: str, shards: int, part: Part = ALL
) -> DataFrame:
    """Return the rows of a Parquet archive with the outbox's columns; a key is in one partition."""
    frame = read_archive(spark, path, table)
    for condition in part.conditions("timestamp_millis({:d})"):
        frame = frame.filter(condition)
    return _hashed(as_published(frame)).repartition(shards, "key_hash")


def of_postgres(
    spark: SparkSession, dsn: str, table: str, shards: int, part: Part = ALL
) -> DataFrame:
    """Return the rows of a table in PostgreSQL, read by `shards` connections; a key by one.

    Raises as `postgres_rows` does.
    """
    conditions = part.conditions("to_timestamp({:d} / 1000.0)")
    predicates = [
        " AND ".join([*conditions, _SHARD.format(shards=shards, n=n)]) for n in range(shards)
    ]
    return _hashed(as_published(postgres_rows(spark, dsn, table, predicates)))


def postgres_rows(
    spark: SparkSession, dsn: str, table: str, predicates: Sequence[str]
) -> DataFrame:
    """Return the rows of a table in PostgreSQL, each predicate by a connection of its own.

    Where it is and who reads it is what libpq finds: environment, service and password files count.
    Raises as `connected` does, and `ConfigurationError` for a table name that cannot be read, and
    for a setting that the workers' driver does not have.
    """
    from harvest.databases.postgres.conninfo import parsed_conninfo

    given = parsed_conninfo(dsn, "the connection string")
    host = str(given.get("host") or "")
    if host.startswith("/"):
        raise ConfigurationError(
            f"host={host}: Spark's workers connect over TCP; give a host name instead of a socket"
        )
    name = TableName.parse(table).quoted()
    with connected(dsn, table) as connection:
        url, properties = _url(connection.info), _driver_settings(connection.info)
        looked = connection.execute(f"SELECT * FROM {name} LIMIT 0")  # noqa: S608 # type: ignore[arg-type]
        types = {column.name: column.type_code for column in looked.description or ()}
        _check_names(types)
    created = _AS_UTC if types["create_time"] in _WITHOUT_ZONE else "create_time"
    return spark.read.jdbc(
        url, _TABLE.format(created, name), predicates=list(predicates), properties=properties
    )


def _url(info: ConnectionInfo) -> str:
    host = "localhost" if info.host.startswith("/") else info.host
    return f"jdbc:postgresql://{f'[{host}]' if ':' in host else host}:{info.port}/{info.dbname}"


def _driver_settings(info: ConnectionInfo) -> dict[str, str]:
    """Return what libpq was given in the words of the Java driver."""
    found = {"driver": "org.postgresql.Driver", **_DRIVER}
    if info.password:
        found["password"] = info.password
    for name, value in info.get_parameters().items():
        if name in _JAVA_NAMES and (name, value) != ("sslrootcert", "system"):
            found[_JAVA_NAMES[name]] = value
        elif name in _UNKNOWN_TO_JAVA:
            raise ConfigurationError(
                f"{name} has no translation for the Java driver of Spark's workers: give a "
                "connection string without it (of TLS they know sslmode, and sslrootcert as the "
                "path of a file that each of them has)"
            )
    return found


_DRIVER: Final = {
    "fetchsize": "20000",
    "prepareThreshold": "-1",  # values come in binary from the first row on
    "tcpKeepAlive": "true",  # else who waits for a server that vanished waits for ever
}
_JAVA_NAMES: Final = {
    "user": "user",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslnegotiation": "sslNegotiation",
    "channel_binding": "channelBinding",
    "gssencmode": "gssEncMode",
    "options": "options",
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
}
_UNKNOWN_TO_JAVA: Final = {
    *("sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslcrldir", "require_auth"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "scram_client_key"),
}
"""The driver would connect otherwise than libpq does. What else there is means nothing to one who
reads, over TCP, at the address that libpq has found."""
_TABLE: Final = """(
  SELECT id, {}, kafka_topic, kafka_key, kafka_value,
    nullif(kafka_header_keys, '{{}}') AS kafka_header_keys,
    nullif(kafka_header_values, '{{}}') AS kafka_header_values
  FROM {}
) AS outbox"""
"""Most rows have no headers, and an empty array is as dear to read as a value."""
_WITHOUT_ZONE: Final = {1082, 1114}  # date, timestamp
_AS_UTC: Final = "create_time::timestamp AT TIME ZONE 'UTC' AS create_time"
"""As in an archive. Spark would read a time of its machine's zone."""
_SHARD: Final = "mod(coalesce(hashtext(kafka_key::text), 0)::bigint & 2147483647, {shards}) = {n}"

_OWN_HEADERS: Final = f"""
IF(try_element_at(headers, -1).key = '{HARVEST_ID}',
  IF(size(headers) = 1, NULL, slice(headers, 1, size(headers) - 1)), headers)
"""


def of_kafka(
    spark: SparkSession,
    config: Mapping[str, Any],
    starts: Mapping[str, Mapping[int, int]],
    ends: Mapping[str, Mapping[int, int]],
) -> DataFrame:
    """Return the committed records of topics, between offsets; a partition in one task.

    Without the header ``harvest-id`` at the end, which the harvester adds and no row has.
    """
    wanted = {topic: sorted(parts) for topic, parts in ends.items()}
    frame = (
        spark.read.format("kafka")
        .options(**READER_OPTIONS)
        .options(**java_settings(config))
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .option("assign", json.dumps(wanted))
        .option("startingOffsets", json.dumps(_named(starts)))
        .option("endingOffsets", json.dumps(_named(ends)))
        .load()
    )
    return _hashed(
        frame.selectExpr(
            "topic",
            "key",
            "value",
            f"{_OWN_HEADERS} AS headers",
            "cast(partition AS bigint) AS a",
            "offset AS b",
            "unix_millis(timestamp) AS at_ms",
        ).selectExpr("*", "headers.key AS header_keys")
    )


def _named(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {t: {str(p): offset for p, offset in parts.items()} for t, parts in offsets.items()}
