"""Reconciliation: proves what of an outbox arrived in Kafka, and what should not be there.

First both sides are read once, and give a fingerprint for each of 4,096 buckets of keys; nothing
but those leaves the workers. If they are equal, that was all. Otherwise the keys of the buckets
that differ are read again and compared one by one. (specs/AUDIT.md §3)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from harvest.errors import ConfigurationError
from harvest.spark.compare import BUCKETS, Item, compare_key, fingerprints
from harvest.spark.sources import of_kafka, of_parquet, of_postgres
from marshal_py.errors import TopicMissing
from marshal_py.spark.kafka import Offsets, librdkafka_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FINDING_COLUMNS", "KINDS", "Outbox", "Reconciliation", "reconcile"]

KINDS: Final[dict[str, str]] = {
    "missing": "a committed row that is not in Kafka",
    "altered": "a row whose record has another value or other headers",
    "duplicated": "a record beyond the one that its row asked for",
    "reordered": "a record that stands behind a record of a later row of its key",
    "scattered": "records of one key in several partitions: they have no order",
    "never_committed": "a record that no row of the outbox asked for",
    "pending": "a young row that is not in Kafka yet (no finding)",
}

FINDING_COLUMNS: Final = (
    "kind string, topic string, key string, id bigint, row_at_ms bigint, partition bigint, "
    "offset bigint, record_at_ms bigint"
)
"""Columns of the table of findings. `key` is text, or hex where it is no UTF-8; times are in
milliseconds since 1970; `id` is the row's, `partition` and `offset` are the record's."""

_SHARDS: Final = 4


@dataclass(frozen=True)
class Outbox:
    """Where the rows are: a table in PostgreSQL, or a Parquet archive with the same columns.

    The table must still hold what was published: that of range mode does, until its partitions are
    dropped; that of mark mode is emptied as it is published, so give the archive of it.
    """

    dsn: str | None = field(default=None, repr=False)
    table: str = "outbox"
    parquet: str | None = None
    shards: int = _SHARDS

    def __post_init__(self) -> None:
        if (self.dsn is None) == (self.parquet is None):
            raise ConfigurationError("give either the database or the Parquet archive of the rows")
        if self.shards < 1:
            raise ConfigurationError(f"shards = {self.shards} must be 1 or more")

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows as `sources` describes them."""
        if self.parquet is not None:
            return of_parquet(spark, self.parquet, self.shards)
        return of_postgres(spark, self.dsn or "", self.table, self.shards)


@dataclass(frozen=True)
class Reconciliation:
    """What came out. `findings` counts by kind, without what is merely pending.

    `topics` has a line of counts for each topic that differs; `samples` holds the first findings as
    dicts of the columns `FINDING_COLUMNS`; `seconds` is the time of everything but the session.
    """

    rows: int
    records: int
    buckets_different: int
    findings: dict[str, int]
    pending: int
    topics: dict[str, dict[str, int]]
    samples: list[dict[str, Any]]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether everything arrived, once, unaltered, in order, and nothing else."""
        return not self.findings


def reconcile(
    spark: SparkSession,
    outbox: Outbox,
    config: Mapping[str, Any] | str,
    *,
    topics: Iterable[str] | None = None,
    grace_s: float = 60.0,
    out: str | None = None,
    max_samples: int = 1_000,
    timeout_s: float = 30.0,
) -> Reconciliation:
    """Compare every row of the outbox with every committed record of its topics.

    - `config`: librdkafka settings, or just the brokers.
    - `topics`: by default those that the outbox names. Nobody else may write to them.
    - `grace_s`: a row that is younger, and missing, is pending: it counts as no finding.
    - `out`: a folder for the table of findings (Parquet).

    Records that are written while it runs are left alone. Raises `ConfigurationError`, and what
    Kafka and PostgreSQL raise.
    """
    started = time.perf_counter()
    config = {"bootstrap.servers": config} if isinstance(config, str) else dict(config)
    # Kafka's ends first: a record below them has a row that the later look at the table can see.
    now_ms = int(time.time() * 1000)
    rows = outbox.frame(spark)
    names = sorted(topics) if topics is not None else _topics(spark, outbox)
    starts, ends = _extent(config, names, timeout_s)
    records = of_kafka(spark, config, starts, ends) if ends else None
    ours, theirs = _prints(rows), _prints(records) if records is not None else {}
    different = sorted(
        bucket for bucket in ours.keys() | theirs.keys() if ours.get(bucket) != theirs.get(bucket)
    )
    findings: Counter[str] = Counter()
    by_topic: dict[str, Counter[str]] = {}
    samples: list[dict[str, Any]] = []
    if different:
        both = _only(rows, different, "false")
        if records is not None:
            both = both.unionByName(_only(records, different, "true"))
        young_ms = now_ms - int(grace_s * 1000)
        frame = (
            both.repartition(_SHARDS, "key_hash")
            .mapInArrow(_details(young_ms), FINDING_COLUMNS)
            .cache()
        )
        try:
            for row in frame.groupBy("topic", "kind").count().collect():
                findings[row["kind"]] += row["count"]
                by_topic.setdefault(row["topic"], Counter())[row["kind"]] += row["count"]
            counted = frame.filter("kind <> 'pending'").orderBy("topic", "key", "id", "offset")
            samples = [row.asDict() for row in counted.limit(max_samples).collect()]
            if out is not None:
                frame.write.mode("overwrite").parquet(f"{out}/findings")
        finally:
            frame.unpersist()
    pending = findings.pop("pending", 0)
    return Reconciliation(
        sum(count for count, _ in ours.values()),
        sum(count for count, _ in theirs.values()),
        len(different),
        dict(findings.most_common()),
        pending,
        {name: dict(counts) for name, counts in sorted(by_topic.items())},
        samples,
        time.perf_counter() - started,
    )


def _topics(spark: SparkSession, outbox: Outbox) -> list[str]:
    if outbox.parquet is not None:
        frame = spark.read.parquet(outbox.parquet).select("kafka_topic").distinct()
        return sorted(row[0] for row in frame.collect())
    import psycopg

    from harvest.naming import TableName

    name = TableName.parse(outbox.table).quoted()
    with psycopg.connect(outbox.dsn or "") as connection:
        found = connection.execute(f"SELECT DISTINCT kafka_topic FROM {name}")  # noqa: S608 # type: ignore[arg-type]
        return sorted(row[0] for row in found.fetchall())


def _extent(
    config: Mapping[str, Any], topics: list[str], timeout_s: float
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    with Offsets(librdkafka_settings(config), timeout_s) as offsets:
        for topic in topics:
            try:
                extent = offsets.extent(topic)
            except TopicMissing:
                continue  # every row of it is missing
            starts[topic] = {p: begin for p, (begin, _) in extent.items()}
            ends[topic] = {p: end for p, (_, end) in extent.items()}
    return starts, ends


# Fingerprints


def _prints(frame: DataFrame) -> dict[int, tuple[int, int]]:
    """Return bucket → (count, fingerprint) of one side."""
    narrow = frame.select("key_hash", "row_hash", "a", "b")
    found: dict[int, tuple[int, int]] = {}
    parts = narrow.mapInArrow(_fingerprint, "bucket bigint, count bigint, fingerprint bigint")
    for bucket, count, fingerprint in parts.collect():
        before = found.get(bucket, (0, 0))
        found[bucket] = (before[0] + count, (before[1] + fingerprint) % 2**64)
    return found


def _fingerprint(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow

    columns: list[list[Any]] = [[], [], []]
    for batch in batches:
        if batch.num_rows:
            key, row, a, b = (batch.column(n).to_numpy() for n in range(4))
            # A row has b = 0; the records of a task have one a: one number orders either.
            columns[0].append(key)
            columns[1].append((a << 44) + b if b.any() else a)
            columns[2].append(row)
    if not columns[0]:
        return
    prints = fingerprints(*(np.concatenate(column) for column in columns))
    yield pyarrow.RecordBatch.from_arrays(
        [pyarrow.array(part.astype(np.uint64).view(np.int64)) for part in prints],
        names=["bucket", "count", "fingerprint"],
    )


# Details


def _only(frame: DataFrame, buckets: list[int], in_kafka: str) -> DataFrame:
    from pyspark.sql import functions as F

    found = frame.selectExpr("*", f"{in_kafka} AS in_kafka")
    if len(buckets) == BUCKETS:
        return found
    bucket = F.shiftrightunsigned("key_hash", 64 - (BUCKETS.bit_length() - 1))
    return found.filter(bucket.isin(buckets))


def _details(young_ms: int) -> Any:
    """Return the function that compares the keys of one task, each by itself."""

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        keys: dict[tuple[str, bytes | None], tuple[list[Item], list[Item]]] = {}
        for batch in batches:
            names = ("topic", "key", "row_hash", "a", "b", "at_ms", "in_kafka")
            columns = (batch.column(name).to_pylist() for name in names)
            for topic, key, row_hash, a, b, at_ms, in_kafka in zip(*columns, strict=True):
                sides = keys.setdefault((topic, key), ([], []))
                sides[in_kafka].append(Item((a, b), row_hash, at_ms))
        found: list[tuple[Any, ...]] = []
        for (topic, key), (rows, records) in keys.items():
            for kind, row, record in compare_key(rows, records):
                if kind == "missing" and row is not None and row.at_ms > young_ms:
                    kind = "pending"
                found.append(
                    (
                        kind,
                        topic,
                        _text(key),
                        None if row is None else row.place[0],
                        None if row is None else row.at_ms,
                        *((None, None) if record is None else record.place),
                        None if record is None else record.at_ms,
                    )
                )
        schema = pyarrow.schema([(name, kind) for name, kind in _arrow_columns()])
        columns_: list[Any] = list(zip(*found, strict=True)) if found else [[] for _ in schema]
        yield pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array(values, type=f.type)
                for f, values in zip(schema, columns_, strict=True)
            ],
            schema=schema,
        )

    return compare


def _arrow_columns() -> Iterator[tuple[str, str]]:
    for column in FINDING_COLUMNS.split(", "):
        name, kind = column.split()
        yield name, {"bigint": "int64"}.get(kind, kind)


def _text(key: bytes | None) -> str | None:
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()
