"""One run of the lake: what Kafka has by now, folded, and a day's deliveries and gold written."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from marshal_py.client.settings import DEFAULT_TOPIC, kafka_config
from marshal_py.errors import ConfigurationError
from marshal_py.spark.kafka import Offsets, librdkafka_settings
from marshal_py.spark.lake.bronze import ingest
from marshal_py.spark.lake.conflicts import conflicts_told
from marshal_py.spark.lake.deliveries import check_days, days_left, judged_to, write_deliveries
from marshal_py.spark.lake.gold import Expectation, Expectations, write_gold
from marshal_py.spark.lake.silver import fold_new
from marshal_py.spark.lake.sql import STILL_DAYS, date_literal, fill, time_literal
from marshal_py.spark.lake.tables import SCHEMA_VERSION, Lake
from marshal_py.spark.watch import cluster_watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KNOW_MORE: Final = """
SELECT r.day
FROM (SELECT day, count(*) AS rows FROM {rows} GROUP BY day) AS r
LEFT JOIN (SELECT day, sum(rows) AS rows FROM {outboxes} GROUP BY day) AS o ON o.day = r.day
WHERE r.rows > coalesce(o.rows, 0)
UNION
SELECT o.day FROM {outboxes} AS o LEFT JOIN {looked} AS k ON k.outbox = o.outbox
WHERE o.pending > 0 AND date_add(o.day, 1) <= least({pending_from}, k.judged_to)
UNION
SELECT day FROM {outboxes} WHERE arrays_overlap(split(unread, ' '), split('{published}', ' '))
"""
"""Days whose rows came after their tables were written, those that all can be judged of now, and
those whose rows ask for a topic that was not read and is read now. Rows are counted by day alone:
no column of theirs is read."""
_HAVE_ROWS_NOW: Final = """
SELECT DISTINCT d.day
FROM {deliveries} AS d JOIN {rows} AS r ON r.outbox = d.outbox AND r.id = d.id
WHERE d.created_at IS NULL AND r.day < d.day AND r.day >= date_sub(d.day, {late_days})
"""
"""Days with records whose rows, of a day before, came after the day was written. Once it is written
again they are no records without a row any more."""
_OF_BRONZE: Final = ("bronze.coordination", "bronze.published", "bronze.outbox_rows")

_NOTED: Final = """
SELECT day, unix_micros(max(started_at)),
  unix_micros(max(started_at) FILTER (WHERE ended_at IS NOT NULL))
FROM (SELECT explode(split(days, ' ')) AS day, started_at, ended_at FROM {runs})
WHERE day <> '' GROUP BY day
"""
"""When the last run with a day began, and the last that came to its end."""

__all__ = ["LakeRun", "LakeSettings", "last_run", "run_lake"]


@dataclass(frozen=True)
class LakeSettings:
    """What a lake reads, and how it judges.

    - `topic`: the coordination topic. `published`: topics that outboxes are published to. What is
      lost of rows that ask for another one is not known.
    - `sample_s`: how often the position of each claim becomes a row, seconds.
    - `grace_s`: so much younger a row without a record may still be on its way, seconds.
    - `late_days`: on so many days after its row a record is looked for.
    - `lifetime_days`: of findings.
    """

    topic: str = DEFAULT_TOPIC
    published: Sequence[str] = ()
    sample_s: float = 60.0
    grace_s: float = 3_600.0
    late_days: int = 1
    lifetime_days: int = 90
    expectations: Expectations = field(default_factory=Expectations)

    def __post_init__(self) -> None:
        for name, least in (
            ("sample_s", 0.001),
            ("grace_s", 0.0),
            ("late_days", 1),
            ("lifetime_days", 1),
        ):
            value = getattr(self, name)
            if not value >= least:
                raise ConfigurationError(f"{name} = {value} must be {least} or more")


@dataclass(frozen=True)
class LakeRun:
    """What one run did: new records of the log and of topics, the days written, the gates."""

    days: tuple[str, ...]
    records: int
    published: int
    expectations: tuple[Expectation, ...]

    @property
    def met(self) -> bool:
        """Whether all that was expected holds."""
        return all(each.met for each in self.expectations)


@conflicts_told()
def run_lake(
    spark: SparkSession,
    config: Mapping[str, Any] | str,
    place: str,
    days: Sequence[dt.date],
    settings: LakeSettings | None = None,
    *,
    finish: Sequence[dt.date] = (),
    timeout_s: float = 30.0,
    progress: Callable[[str], None] = lambda _: None,
    tell: Callable[[LakeRun], None] = lambda _: None,
) -> LakeRun:
    """Read what is new into the lake at `place`, and write the tables of `days`.

    - `config`: librdkafka settings, or just the brokers; ``kafka.…`` for Spark's Java client.
    - `place`: a folder, absolute or relative, or a URI that Spark and all executors reach.
    - `finish`: days that an earlier run may have left as they were when they were not over. They
      are written, too, but for those of which bronze has nothing any more. So are days that were
      written before their last rows could be judged, or had come, or while their records could
      still come, and those that a run began to write, and did not come to its end.
    - `tell`: called with what was done before that is noted. What it raises leaves the days to the
      next run.

    Killed at any moment and run again, it leaves no row out and has none twice; run again without
    new records it changes nothing but `gold.runs`. Raises `TopicMissing`, `LogHole`,
    `BrokerUnavailable`, `ClusterLost` and `ConfigurationError`, also where another run was first to
    write the same.
    """
    settings = settings or LakeSettings()
    config = {"bootstrap.servers": config} if isinstance(config, str) else dict(config)
    kafka_config(librdkafka_settings(config))
    lake = Lake.to_write(spark, place)
    started = dt.datetime.now(dt.UTC)
    with cluster_watched(spark):
        lake.check_version(spark)
        with Offsets(config, timeout_s) as offsets:
            partitions = len(offsets.partitions(settings.topic))
        progress("reading what is new")
        records, published = ingest(
            spark,
            lake,
            config,
            topic=settings.topic,
            published=settings.published,
            timeout_s=timeout_s,
            progress=progress,
        )
        progress("folding")
        sample_ms = max(1, int(settings.sample_s * 1000))
        fold_new(spark, lake, settings.topic, partitions, sample_ms)
        check_days(spark, lake, days, late_days=settings.late_days)
        before = max(days, default=dt.date.min)
        again = {*finish, *_days_again(spark, lake, started, settings, before)} - {*days}
        days = sorted({*days, *days_left(spark, lake, again, late_days=settings.late_days)})
        if days:
            # Half of their tables may say soon what sends nobody to these days any more.
            _note(spark, lake, started, days)
        gates: list[Expectation] = []
        for day in days:
            progress(f"deliveries and gold of {day}")
            deliveries = partial(
                write_deliveries,
                spark,
                lake,
                day,
                topics=settings.published,
                as_of=started,
                grace_s=settings.grace_s,
                late_days=settings.late_days,
            )
            gates += write_gold(
                spark,
                lake,
                day,
                as_of=started,
                late_days=settings.late_days,
                lifetime_days=settings.lifetime_days,
                expectations=settings.expectations,
                deliveries=deliveries,
                progress=progress,
            )
        done = LakeRun(tuple(map(str, days)), records, published, tuple(gates))
        tell(done)
        _note(spark, lake, started, days, done)
    return done


def last_run(spark: SparkSession, place: str) -> dt.datetime | None:
    """When the last run began that came to its end; None: there was none."""
    runs = Lake.at(place).frame(spark, "gold.runs").filter("ended_at IS NOT NULL")
    micros = runs.selectExpr("unix_micros(max(started_at))").collect()[0][0]
    return None if micros is None else _moment(micros)


def _days_again(
    spark: SparkSession, lake: Lake, now: dt.datetime, settings: LakeSettings, before: dt.date
) -> set[dt.date]:
    """Days that no run has written since more could be said of them than the last one did.

    Also those whose rows have come since, and those that no run has come to its end with: one was
    killed among their tables, or failed before it began with a day that is before `before`.
    """
    since = now.date() - dt.timedelta(STILL_DAYS)
    recent = f"day >= {date_literal(since)}"
    noted = spark.sql(_NOTED, runs=lake.frame(spark, "gold.runs").filter(recent)).collect()
    moments = {dt.date.fromisoformat(day): _moment(at) for day, _, at in noted if at is not None}
    there = {dt.date.fromisoformat(day) for day, began, at in noted if at != began}
    if moments:  # days before all that were written were asked of no run
        first = max(min(moments) + dt.timedelta(1), since)
        between = {first + dt.timedelta(n) for n in range((before - first).days)} - moments.keys()
        if between:
            there |= between & _days_of(spark, lake, _OF_BRONZE, recent)
    again = {day for day, at in moments.items() if _says_more(day, at, now, settings)}
    rows, outboxes = (
        lake.frame(spark, table).filter(recent) for table in ("bronze.outbox_rows", "gold.outboxes")
    )
    query = fill(
        _KNOW_MORE,
        pending_from=time_literal(now - dt.timedelta(0, settings.grace_s)),
        published=" ".join(settings.published),
    )
    looked = judged_to(spark, lake, settings.grace_s)
    more = spark.sql(query, rows=rows, outboxes=outboxes, looked=looked).collect()
    for day in {row[0] for row in more}:
        # Their records may be of the days after it, where they had no row.
        days = {day + dt.timedelta(n) for n in range(settings.late_days + 1)} & moments.keys()
        if day not in moments:  # it will never have tables that know as much as bronze
            days = _have_rows_now(spark, lake, rows, days, settings.late_days)
        again |= days
    return again | there


def _have_rows_now(
    spark: SparkSession, lake: Lake, rows: DataFrame, days: set[dt.date], late_days: int
) -> set[dt.date]:
    """Of these days those whose tables have records without a row that has come since."""
    if not days:
        return days
    between = f"day BETWEEN {date_literal(min(days))} AND {date_literal(max(days))}"
    deliveries = lake.frame(spark, "silver.deliveries").filter(between)
    query = fill(_HAVE_ROWS_NOW, late_days=str(late_days))
    found = spark.sql(query, deliveries=deliveries, rows=rows).collect()
    return {row[0] for row in found} & days


def _days_of(spark: SparkSession, lake: Lake, tables: Sequence[str], where: str) -> set[dt.date]:
    """Days of which one of the tables has something."""
    from pyspark.sql import DataFrame

    frames = [lake.frame(spark, table).filter(where).select("day") for table in tables]
    return {row[0] for row in reduce(DataFrame.union, frames).distinct().collect()}


def _says_more(day: dt.date, at: dt.datetime, now: dt.datetime, settings: LakeSettings) -> bool:
    """Whether, since it was written, its last rows came to be judged, or its last records in."""
    midnight = dt.datetime.combine(day + dt.timedelta(1), dt.time(), dt.UTC)
    judged = midnight + dt.timedelta(seconds=settings.grace_s)
    return any(at < moment <= now for moment in (judged, judged + dt.timedelta(settings.late_days)))


def _moment(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(micros / 1e6, dt.UTC)


def _note(
    spark: SparkSession,
    lake: Lake,
    started: dt.datetime,
    days: Sequence[dt.date],
    done: LakeRun | None = None,
) -> None:
    """Note that a run begins with days, or, `done`, that it has come to its end with them."""
    row = (
        started,
        None if done is None else dt.datetime.now(dt.UTC),
        SCHEMA_VERSION,
        importlib.metadata.version("marshal-py"),
        None if done is None else done.records,
        None if done is None else done.published,
        None if done is None else done.met,
        " ".join(map(str, days)),
        started.date(),
    )
    types = (
        "started_at timestamp, ended_at timestamp, schema_version bigint, library string, "
        "records bigint, published bigint, met boolean, days string, day date"
    )
    lake.append("gold.runs", spark.createDataFrame([row], types))
