"""Reconciliation: proves what of an outbox arrived in Kafka, and what should not be there.

First both sides are read once, and give a fingerprint for each of 4,096 buckets of keys; nothing
but those leaves the workers. If they are equal, that was all. Otherwise the keys of the buckets
that differ are read again and compared one by one. (specs/AUDIT.md §3)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harvest.core.gaps import Range
from harvest.errors import ConfigurationError
from harvest.spark.compare import BUCKETS, Flag, fingerprints, within
from harvest.spark.details import (
    CARRIED_COLUMNS,
    CARRY,
    FINDING_COLUMNS,
    Rules,
    details,
    output_columns,
)
from harvest.spark.row_hashes import RowHashes
from harvest.spark.sources import (
    ALL,
    Part,
    connected,
    ids_of_parquet,
    ids_of_postgres,
    of_kafka,
    of_parquet,
    of_postgres,
    read_archive,
)
from harvest.spark.state import State, StateFolder
from marshal_py.errors import TopicMissing
from marshal_py.spark.kafka import Offsets, librdkafka_settings
from marshal_py.spark.watch import cluster_watched

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["FINDING_COLUMNS", "KINDS", "Outbox", "Reconciliation", "reconcile"]

KINDS: Final[dict[str, str]] = {
    "missing": "a committed row that is not in Kafka",
    "altered": "a row whose record has another value or other headers",
    "duplicated": "a record beyond the one that its row asked for",
    "reordered": "a record that stands behind a record of a later row of its key",
    "scattered": "records of one key in several partitions: they have no order",
    "never_committed": "a record that no row of the outbox asked for",
    "pending": "a young row that is not in Kafka yet (no finding)",
    "outstanding": "a row that an earlier run has reported as missing, and still is (no finding)",
}

NO_FINDINGS: Final = ("pending", "outstanding")
"""Kinds that are counted, and are no findings."""

_MOST_READERS: Final = 8
_SHIFT: Final = 64 - (BUCKETS.bit_length() - 1)
_MOST_KEYS: Final = 50
_EDGE_MS: Final = 3_600_000
_ELSEWHERE: Final = "elsewhere"


@dataclass(frozen=True)
class Outbox:
    """Where the rows are: a table in PostgreSQL, or a Parquet archive with the same columns.

    Of an archive of `harvest partitions`, which several outboxes may share, the files of `table`
    are read; of one with files of other names, all.

    The table must still hold what was published: that of range mode does, until its partitions are
    dropped; that of mark mode is emptied as it is published, so give the archive of it.

    `shards`: by how many tasks the rows are read, each of which scans the whole table; by default
    one for each of Spark's cores, at most 8.
    """

    dsn: str | None = field(default=None, repr=False)
    table: str = "outbox"
    parquet: str | None = None
    shards: int | None = None

    def __post_init__(self) -> None:
        if (self.dsn is None) == (self.parquet is None):
            raise ConfigurationError("give either the database or the Parquet archive of the rows")
        if self.shards is not None and self.shards < 1:
            raise ConfigurationError(f"shards = {self.shards} must be 1 or more")

    @property
    def name(self) -> str:
        """The table, or where the archive is, and of which table it is if not of `outbox`."""
        if self.parquet is None:
            return self.table
        return self.parquet if self.table == "outbox" else f"{self.parquet}, {self.table}"

    def frame(self, spark: SparkSession, part: Part = ALL) -> DataFrame:
        """Return the rows as `sources` describes them."""
        shards = self.shards or _cores(spark)
        if self.parquet is not None:
            return of_parquet(spark, self.parquet, self.table, shards, part)
        return of_postgres(spark, self.dsn or "", self.table, shards, part)

    def ids(self, spark: SparkSession, wanted: Sequence[Range]) -> list[Range]:
        """Return which of these ids are there now, as ranges."""
        if self.parquet is not None:
            return ids_of_parquet(spark, self.parquet, self.table, wanted)
        return ids_of_postgres(self.dsn or "", self.table, wanted)


@dataclass(frozen=True)
class Reconciliation:
    """What came out. `findings` counts by kind, without what is merely pending.

    `topics` has a line of counts for each topic that differs; `samples` holds the first findings as
    dicts of the columns `FINDING_COLUMNS`; `seconds` is the time of everything but the session.
    `outstanding`: rows that an earlier run has reported as missing, and still are. `hours` counts
    by topic, hour (of the row, or of the record where there is none) and kind; `keys` has the keys
    with the most findings.
    """

    rows: int
    records: int
    buckets_different: int
    findings: dict[str, int]
    pending: int
    topics: dict[str, dict[str, int]]
    samples: list[dict[str, Any]]
    seconds: float
    outstanding: int = 0
    hours: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)

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
    state: str | Path | None = None,
    late_s: float = 86_400.0,
    since_ms: int | None = None,
    until_ms: int | None = None,
    max_samples: int = 1_000,
    timeout_s: float = 30.0,
    tell: Callable[[Reconciliation], None] = lambda _: None,
) -> Reconciliation:
    """Compare every row of the outbox with every committed record of its topics.

    - `config`: librdkafka settings, or just the brokers.
    - `topics`: by default those that the outbox names. Nobody else may write to them. Rows of
      topics that are not read are missing.
    - `grace_s`: a row that is younger, and missing, is pending: it counts as no finding.
    - `out`: a folder for the table of findings (Parquet).
    - `state`: a folder for what the next run goes on from: with it, only what is new is compared.
      The driver and all executors must reach it.
    - `late_s`: how long, with `state`, rows are looked for whose ids were passed.
    - `since_ms`, `until_ms`: only findings about rows (where there is none: records) that were
      written from then to before then, in milliseconds since 1970. Not with `state`.
    - `tell`: called with what came out before the state is replaced. What it raises leaves the
      state as it was: the next run comes to the same findings. What is done with the result after
      this has returned is lost with the process, and no later run tells of it again.

    Records that are written while it runs are left alone. Raises `ConfigurationError`, also where
    no topic is known (nothing compared is nothing proved), or one ends before what `state` says was
    compared; `SchemaError` and `StoreUnavailable` of the database; what Kafka raises; and
    `ClusterLost` (see `cluster_watched`).
    """
    config = {"bootstrap.servers": config} if isinstance(config, str) else dict(config)
    named = None if topics is None else sorted(topics)
    window = _Window(since_ms, until_ms)
    if window != _Window() and state is not None:
        raise ConfigurationError(
            "a window of time (since, until) and a state: a run with a state compares what is new; "
            "give one of the two"
        )
    run = _Run(spark, outbox, config, named, grace_s, out, max_samples, timeout_s, window)
    if state is None:
        with cluster_watched(spark):
            result = run.compare(State(outbox.name), None, 0)[0]
            tell(result)
            return result
    folder = StateFolder(state)
    with folder.locked(), cluster_watched(spark):
        previous = folder.load(outbox.name)
        result, following = run.compare(previous, folder, int(late_s * 1000))
        tell(result)
        folder.store(following)
    return result


@dataclass(frozen=True)
class _Window:
    """Of which time there are findings. Rows and records beside it are read to explain it."""

    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        since_ms, until_ms = self.since_ms, self.until_ms
        if since_ms is not None and until_ms is not None and until_ms <= since_ms:
            raise ConfigurationError("until is not after since: nothing would be compared")

    @property
    def part(self) -> Part:
        """The rows to read."""
        until_ms = None if self.until_ms is None else self.until_ms + _EDGE_MS
        return Part(None, self.first_ms, until_ms)

    @property
    def first_ms(self) -> int | None:
        """When the records begin; all that come after are read."""
        return None if self.since_ms is None else self.since_ms - _EDGE_MS

    def conditions(self) -> list[str]:
        """Which findings are of it."""
        at = "coalesce(row_at_ms, record_at_ms)"
        found = [] if self.since_ms is None else [f"{at} >= {self.since_ms:d}"]
        return found if self.until_ms is None else [*found, f"{at} < {self.until_ms:d}"]


@dataclass(frozen=True)
class _Run:
    spark: SparkSession
    outbox: Outbox
    config: Mapping[str, Any]
    topics: list[str] | None
    grace_s: float
    out: str | None
    max_samples: int
    timeout_s: float
    window: _Window

    def compare(
        self, previous: State, folder: StateFolder | None, late_ms: int
    ) -> tuple[Reconciliation, State]:
        """Compare what is new since `previous`, and carry over to FOLDER; without it everything."""
        started = time.perf_counter()
        spark, outbox = self.spark, self.outbox
        # Kafka's ends first: a record below them has a row that the later look at the table can
        # see.
        now_ms = int(time.time() * 1000)
        names = self.topics or sorted({*_topics(spark, outbox), *previous.offsets})
        if not names:
            outbox.frame(spark, self.window.part)  # raises if it is no outbox
            raise ConfigurationError(
                f"{outbox.name} has no row that names a topic, so there is nothing to compare: "
                "name the topics (--topic), or give the archive of the rows"
            )
        first_ms = self.window.first_ms
        starts, ends = _extent(self.config, names, self.timeout_s, previous.offsets, first_ms)
        rules = Rules(now_ms - int(self.grace_s * 1000), whole=self.window == _Window())
        following = previous
        rows: DataFrame | None
        if folder is None:
            rows = outbox.frame(spark, self.window.part)
        else:
            wanted = outbox.ids(spark, previous.ids_to_look_for())
            others = {t: parts for t, parts in previous.offsets.items() if t not in names}
            following = previous.after(wanted, others | ends, now_ms, late_ms)
            rules = Rules(rules.young_ms, wanted, carrying=True)
            low = None if previous.last_id is None or not wanted else wanted[0][0]
            rows = outbox.frame(spark, Part(low)) if wanted else None
        records = of_kafka(spark, self.config, starts, ends) if ends else None
        ours, theirs = _prints(rows, rules.wanted), _prints(records, None)
        buckets = {
            bucket
            for bucket in ours.keys() | theirs.keys()
            if ours.get(bucket) != theirs.get(bucket)
        }
        carried = None
        if folder is not None and previous.carried:
            carried = spark.read.schema(CARRIED_COLUMNS).parquet(
                _for_spark(folder.carried(previous.run))
            )
            buckets |= {row[0] for row in carried.select(_bucket()).distinct().collect()}
        found = _Findings()
        if buckets:
            sides = []
            if rows is not None:
                sides.append(_only(rows, buckets, "false", previous.last_id))
            if records is not None:
                sides.append(_only(records, buckets, "true", None))
            if carried is not None:
                sides.append(carried)
            keep = None if folder is None else folder.carried(following.run)
            found = self._details(sides, rules, previous, keep)
        elif self.out is not None:  # findings of the run before are none of this one
            self._write(spark.createDataFrame([], FINDING_COLUMNS))
        kinds = found.kinds
        result = Reconciliation(
            _total(ours),
            _total(theirs),
            len(buckets),
            {k: n for k, n in kinds.most_common() if k not in NO_FINDINGS},
            kinds["pending"],
            found.topics,
            found.samples,
            time.perf_counter() - started,
            kinds["outstanding"],
            found.hours,
            found.keys,
        )
        return result, replace(following, carried=found.carried)

    def _details(
        self, sides: list[DataFrame], rules: Rules, previous: State, keep: Path | None
    ) -> _Findings:
        both = sides[0]
        for side in sides[1:]:
            both = both.unionByName(side)
        frame = (
            both.repartition(_cores(self.spark), "key_hash")
            .sortWithinPartitions("key_hash")
            .mapInArrow(details(rules), output_columns())
            .cache()
        )
        with ExitStack() as stack:
            stack.callback(frame.unpersist)
            lines = frame
            if previous.last_id is not None:
                lines = self._with_old_rows(frame, "duplicated", stack)
            elif self.window != _Window():
                lines = self._with_old_rows(frame, _ELSEWHERE, stack)
                for condition in (f"kind <> '{_ELSEWHERE}'", *self.window.conditions()):
                    lines = lines.filter(condition)
            lines = lines.filter(f"kind <> '{CARRY}'").select(*_names(FINDING_COLUMNS))
            found = _Findings.of(lines, self.max_samples)
            if keep is not None:
                columns = [f"_{name} AS {name}" for name in _names(CARRIED_COLUMNS)]
                kept = frame.filter(f"kind = '{CARRY}'").selectExpr(*columns)
                found.carried = kept.count()
                if found.carried:
                    kept.write.mode("overwrite").parquet(_for_spark(keep))
            if self.out is not None:
                self._write(lines)
        return found

    def _write(self, findings: DataFrame) -> None:
        findings.write.mode("overwrite").parquet(f"{self.out}/findings")

    def _with_old_rows(self, frame: DataFrame, kind: str, stack: ExitStack) -> DataFrame:
        """Records that no row here asked for, but another row of the outbox, get another kind."""
        from pyspark.sql import functions as F

        hashes = ["_key_hash", "_row_hash"]
        strange = frame.filter("kind = 'never_committed'").select(*hashes).distinct().cache()
        stack.callback(strange.unpersist)
        if not strange.count():
            return frame
        # As many as records that are there twice: the driver takes none of them.
        known = (
            self.outbox.frame(self.spark)
            .selectExpr("key_hash AS _key_hash", "row_hash AS _row_hash", "a")
            .join(strange, hashes)
            .groupBy(*hashes)
            .agg(F.max("a").alias("old_id"))
            .cache()
        )
        stack.callback(known.unpersist)
        if not known.count():
            return frame
        again = "kind = 'never_committed' AND old_id IS NOT NULL"
        return frame.join(known, hashes, "left").withColumns(
            {
                "kind": F.expr(f"IF({again}, '{kind}', kind)"),
                "id": F.expr(f"IF({again}, old_id, id)"),
            }
        )


@dataclass
class _Findings:
    """The lines of the details, counted."""

    kinds: Counter[str] = field(default_factory=Counter)
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    hours: list[dict[str, Any]] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    carried: int = 0

    @classmethod
    def of(cls, lines: DataFrame, max_samples: int) -> _Findings:
        """Count them by topic, hour and kind, and by key; take samples."""
        found = cls()
        hour = "floor(coalesce(row_at_ms, record_at_ms) / 3600000) * 3600000 AS hour_ms"
        per_hour = lines.selectExpr("topic", "kind", hour).groupBy("topic", "hour_ms", "kind")
        counted_rows = per_hour.count().collect()
        for row in sorted(counted_rows, key=_topic_and_hour):
            found.kinds[row["kind"]] += row["count"]
            counts = found.topics.setdefault(row["topic"], {})
            counts[row["kind"]] = counts.get(row["kind"], 0) + row["count"]
            if row["kind"] not in NO_FINDINGS:
                found.hours.append(row.asDict())
        if not found.hours:
            return found
        names = ", ".join(f"'{kind}'" for kind in NO_FINDINGS)
        counted = lines.filter(f"kind NOT IN ({names})")
        per_key = counted.groupBy("topic", "key", "kind").count()
        ordered = per_key.orderBy("count", "topic", "key", "kind", ascending=[False, *[True] * 3])
        found.keys = [row.asDict() for row in ordered.limit(_MOST_KEYS).collect()]
        samples = counted.orderBy("topic", "key", "id", "offset").limit(max_samples)
        found.samples = [row.asDict() for row in samples.collect()]
        return found


def _topic_and_hour(row: Any) -> tuple[Any, ...]:
    """Neither need be there: a topic may be NULL, and a time infinite."""
    return row["topic"] or "", row["hour_ms"] or 0, row["kind"]


def _for_spark(path: Path) -> str:
    """A path that is no URI but for its scheme: Spark takes what is escaped for the name."""
    return f"file://{path}"


def _cores(spark: SparkSession) -> int:
    """So many tasks at once are worth their connections."""
    try:
        return min(spark.sparkContext.defaultParallelism, _MOST_READERS)
    except AttributeError:  # Spark Connect does not tell
        return _MOST_READERS // 2


def _topics(spark: SparkSession, outbox: Outbox) -> list[str]:
    if outbox.parquet is not None:
        frame = read_archive(spark, outbox.parquet, outbox.table)
        return _those_named(frame.select("kafka_topic").distinct().collect())
    from harvest.core.table_name import TableName

    name = TableName.parse(outbox.table).quoted()
    with connected(outbox.dsn or "", outbox.table) as connection:
        found = connection.execute(f"SELECT DISTINCT kafka_topic FROM {name}")  # noqa: S608 # type: ignore[arg-type]
        return _those_named(found.fetchall())


def _those_named(rows: Iterable[Sequence[str | None]]) -> list[str]:
    """A row whose topic is NULL is in no topic: it is missing."""
    return sorted(topic for (topic,) in rows if topic is not None)


def _extent(
    config: Mapping[str, Any],
    topics: list[str],
    timeout_s: float,
    compared: Mapping[str, Mapping[int, int]],
    first_ms: int | None,
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    with Offsets(librdkafka_settings(config), timeout_s) as offsets:
        for topic in topics:
            try:
                extent = offsets.extent(topic)
            except TopicMissing:
                continue  # every row of it is missing
            before = compared.get(topic, {})
            for p, offset in sorted(before.items()):
                if p not in extent or extent[p][1] < offset:
                    raise ConfigurationError(
                        f"{topic}/{p} was compared up to offset {offset}, and ends before it: the "
                        "topic was made anew, or lost its end. Begin with an empty folder, and a "
                        "full run"
                    )
            if first_ms is not None:
                before = offsets.at(topic, list(extent), first_ms)
            starts[topic] = {
                p: max(begin, before.get(p, begin)) for p, (begin, _) in extent.items()
            }
            # A time may be later than the end was.
            ends[topic] = {p: max(end, starts[topic][p]) for p, (_, end) in extent.items()}
    return starts, ends


# Fingerprints


def _prints(frame: DataFrame | None, wanted: Sequence[Range] | None) -> dict[int, tuple[int, int]]:
    """Return bucket → (count, fingerprint) of one side; of rows, those with ids in `wanted`."""
    found: dict[int, tuple[int, int]] = {}
    if frame is None:
        return found
    narrow = frame.select("key_hash", "row_hash", "a", "b")
    columns = "bucket bigint, count bigint, fingerprint bigint"
    for bucket, count, fingerprint in narrow.mapInArrow(_fingerprint(wanted), columns).collect():
        before = found.get(bucket, (0, 0))
        found[bucket] = (before[0] + count, (before[1] + fingerprint) % 2**64)
    return found


def _total(prints: Mapping[int, tuple[int, int]]) -> int:
    return sum([count for count, _ in prints.values()])


def _fingerprint(wanted: Sequence[Range] | None) -> Any:
    def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow

        with closing(RowHashes()) as hashes:
            for batch in batches:
                if batch.num_rows:
                    key, row, a, b = (batch.column(n).to_numpy() for n in range(4))
                    # A row has b = 0; the records of a task have one a: one number orders either.
                    order = (a << 44) + b if b.any() else a
                    if wanted is not None:
                        kept = within(a, wanted)
                        key, row, order = key[kept], row[kept], order[kept]
                    hashes.add(key, order, row)
            for part in hashes.parts():
                yield pyarrow.RecordBatch.from_arrays(
                    [
                        pyarrow.array(column.astype(np.uint64).view(np.int64))
                        for column in fingerprints(*part)
                    ],
                    names=["bucket", "count", "fingerprint"],
                )

    return compute


def _only(frame: DataFrame, buckets: set[int], in_kafka: str, last_id: int | None) -> DataFrame:
    """Return the items of these buckets with the columns that `details` takes."""
    late = "0" if last_id is None else f"CASE WHEN a <= {last_id:d}L THEN {Flag.LATE:d} ELSE 0 END"
    found = frame.selectExpr(
        "key_hash",
        "row_hash",
        "a",
        "b",
        "at_ms",
        "topic",
        "key",
        f"{in_kafka} AS in_kafka",
        "false AS carried",
        f"cast({late} AS int) AS flags",
    )
    if len(buckets) == BUCKETS:
        return found
    return found.filter(_bucket().isin(sorted(buckets)))


def _bucket() -> Column:
    from pyspark.sql import functions as F

    return F.shiftrightunsigned("key_hash", _SHIFT)


def _names(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(", ")]
