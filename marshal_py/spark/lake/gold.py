"""Gold: what each day was like, of each outbox and group; findings; and what was expected of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from marshal_py.spark.lake.sql import (
    PARTS,
    STILL_DAYS,
    date_literal,
    fill,
    table_name,
    time_literal,
)
from marshal_py.spark.lake.tables import LAKE_TABLES, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Expectation", "Expectations", "write_gold"]

_OUTBOXES: Final = """
WITH latencies AS (
  SELECT outbox, latency_ms, count(*) AS n FROM {deliveries}
  WHERE day = {day} AND latency_ms IS NOT NULL
  GROUP BY outbox, latency_ms
), shares AS (
  SELECT outbox, latency_ms,
    sum(n) OVER (PARTITION BY outbox ORDER BY latency_ms) / sum(n) OVER (PARTITION BY outbox)
      AS share
  FROM latencies
), most AS (
  SELECT outbox, min(latency_ms) FILTER (WHERE share >= 0.5) AS latency_p50_ms,
    min(latency_ms) FILTER (WHERE share >= 0.95) AS latency_p95_ms,
    min(latency_ms) FILTER (WHERE share >= 0.99) AS latency_p99_ms,
    max(latency_ms) AS latency_max_ms
  FROM shares GROUP BY outbox
)
SELECT outbox,
  IF(known, count_if(created_at IS NOT NULL), NULL) AS rows,
  count_if(status = 'delivered') AS delivered,
  sum(copies) AS records,
  CASE WHEN known AND (count_if(status = 'lost') > 0 OR count_if(status = 'unread') = 0)
    THEN count_if(status = 'lost') END AS lost,
  count_if(status = 'pending') AS pending,
  IF(known, count_if(status = 'unexpected'), NULL) AS unexpected,
  sum(greatest(copies - 1, 0)) AS duplicated,
  count_if(disordered) AS disordered,
  count_if(altered) AS altered,
  count_if(size(handled) > 0) AS handled,
  nullif(array_join(sort_array(collect_set(IF(status = 'unread', topic, NULL))), ' '), '')
    AS unread,
  latency_p50_ms, latency_p95_ms, latency_p99_ms, latency_max_ms, day
FROM (SELECT *, bool_or(status <> 'unarchived') OVER (PARTITION BY outbox) AS known
      FROM {deliveries} WHERE day = {day}) LEFT JOIN most USING (outbox)
GROUP BY outbox, known, day, latency_p50_ms, latency_p95_ms, latency_p99_ms, latency_max_ms
"""
"""Exact, and so the same in each run: an estimate of many rows depends on who counts them first."""

_GROUPS: Final = """
WITH held AS (
  SELECT group_id, count_if(to_date(from_at) = {day}) AS claims,
    count(DISTINCT client_id) AS clients
  FROM {claims}
  WHERE (day IS NULL OR day >= {day}) AND (from_at IS NULL OR from_at < date_add({day}, 1))
  GROUP BY group_id
), taken AS (
  SELECT group_id, count(*) AS takeovers,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY ms) AS takeover_p50_ms, max(ms) AS takeover_max_ms
  FROM (SELECT group_id, silence_ms + coalesce(first_beat_ms, 0) AS ms
        FROM {takeovers}
        WHERE (day IS NULL OR day = {day}) AND to_date(at) = {day} AND how = 'taken_over')
  GROUP BY group_id
), refused AS (
  SELECT group_id, count(*) AS rejections FROM {rejections} WHERE day = {day} GROUP BY group_id
), strange AS (
  SELECT group_id, count(*) AS anomalies FROM {anomalies} WHERE day = {day} GROUP BY group_id
)
SELECT group_id, coalesce(claims, 0) AS claims, coalesce(clients, 0) AS clients,
  coalesce(takeovers, 0) AS takeovers, takeover_p50_ms, takeover_max_ms,
  coalesce(rejections, 0) AS rejections, coalesce(anomalies, 0) AS anomalies, {day} AS day
FROM held FULL OUTER JOIN taken USING (group_id) FULL OUTER JOIN refused USING (group_id)
  FULL OUTER JOIN strange USING (group_id)
WHERE group_id IS NOT NULL
"""

_LAG: Final = """
WITH hours AS (
  SELECT explode(sequence(1, 24)) AS hour
), moments AS (
  SELECT least(timestampadd(HOUR, hour, cast({day} AS timestamp)), {as_of}) AS at
  FROM hours
  WHERE timestampadd(HOUR, hour - 1, cast({day} AS timestamp)) < {as_of}
), records AS (
  SELECT topic, partition, date_trunc('HOUR', at) AS hour, max(offset) + 1 AS upto,
    min(offset) AS low
  FROM {published} WHERE day BETWEEN date_sub({day}, {days}) AND {day}
  GROUP BY ALL
  UNION ALL
  SELECT topic, partition, date_trunc('HOUR', max(at)), max(offset) + 1, min(offset)
  FROM {published} WHERE day >= date_sub({day}, {still}) AND day < date_sub({day}, {days})
  GROUP BY topic, partition
), ends AS (
  SELECT m.at, topic, partition,
    coalesce(max(upto) FILTER (WHERE r.hour < m.at), min(low)) AS end_offset, min(low) AS low
  FROM moments AS m CROSS JOIN records AS r
  GROUP BY m.at, topic, partition
), names AS (
  SELECT topic AS name,
    coalesce(nullif(regexp_extract(topic, '{parts}', 1), ''), topic) AS topic,
    try_cast(regexp_extract(topic, '{parts}', 2) AS bigint) AS part,
    regexp_extract(topic, '{parts}', 3) AS divided,
    try_cast(regexp_extract(topic, '{parts}', 4) AS bigint) AS start
  FROM (
    SELECT topic FROM {positions}
    WHERE day IS NULL OR day BETWEEN date_sub({day}, {days}) AND date_add({day}, {days})
    UNION SELECT topic FROM {claims} WHERE day IS NULL OR day >= {day}
  )
), steps AS (
  SELECT group_id, topic, partition, day, struct(at, epoch, client_id IS NULL AS nobody) AS moment,
    greatest(coalesce(next_offset, 0), coalesce(claimed_offset, 0)) AS position
  FROM {positions}
), held AS (
  SELECT DISTINCT group_id, topic, partition FROM {claims}
  WHERE (day IS NULL OR day >= {day}) AND (from_at IS NULL OR from_at < date_add({day}, 1))
), last AS (
  SELECT group_id, topic, partition, max(at) AS at
  FROM {positions} LEFT SEMI JOIN held USING (group_id, topic, partition)
  WHERE day >= date_sub({day}, {still}) AND day < date_sub({day}, {days})
  GROUP BY group_id, topic, partition
), cells AS (
  SELECT group_id, n.topic, coalesce(part, partition) AS partition, divided, partition AS slot,
    start, moment, position
  FROM (
    SELECT group_id, topic AS name, partition, moment, position FROM steps
    WHERE day IS NULL OR day BETWEEN date_sub({day}, {days}) AND date_add({day}, {days})
    UNION ALL
    SELECT s.group_id, s.topic, s.partition, moment, position
    FROM steps AS s LEFT SEMI JOIN last AS l ON l.group_id = s.group_id AND l.topic = s.topic
      AND l.partition = s.partition AND l.at = s.moment.at
    WHERE day >= date_sub({day}, {still}) AND day < date_sub({day}, {days})
    UNION ALL
    SELECT group_id, topic, partition, struct(from_at AS at, epoch, false AS nobody), -1
    FROM {claims}
    WHERE (day IS NULL OR day >= {day}) AND from_at < date_add({day}, 1) AND first_offset IS NULL
  ) JOIN names AS n USING (name)
  WHERE n.topic IN (
    SELECT DISTINCT topic FROM {published} WHERE day BETWEEN date_sub({day}, {still}) AND {day}
  )
), hourly AS (
  SELECT group_id, topic, partition, divided, slot,
    greatest(date_trunc('HOUR', moment.at), cast({day} AS timestamp)) AS hour,
    max(moment) AS moment, max_by(position, moment) AS position,
    max(struct(was_at, position > start AS begun, IF(position > start, position, -start) AS place))
      AS furthest
  FROM (
    SELECT *, max(IF(divided = '', moment.at, NULL)) OVER (
        PARTITION BY group_id, topic, partition ORDER BY moment.at, divided = '') AS was_at
    FROM cells WHERE moment.at < {as_of}
  )
  GROUP BY ALL
), seen AS (
  SELECT m.at, group_id, topic, partition, divided, max(moment) AS moment,
    IF(divided = '@', abs(max(furthest).place), max_by(position, moment)) AS position
  FROM moments AS m JOIN hourly ON hour < m.at
  GROUP BY m.at, group_id, topic, partition, divided, slot
), positions AS (
  SELECT at, group_id, topic, partition, min(position) AS position
  FROM (
    SELECT *, max_by(divided, struct(moment.at, divided <> '@', moment))
        OVER (PARTITION BY at, group_id, topic, partition) AS now
    FROM seen
  )
  WHERE divided = now
  GROUP BY at, group_id, topic, partition
)
SELECT e.at AS hour, p.group_id, e.topic, e.partition, e.end_offset,
  nullif(p.position, -1) AS position,
  greatest(0, e.end_offset - IF(p.position < 0, e.low, p.position)) AS lag, {day} AS day
FROM ends AS e JOIN positions AS p
  ON e.at = p.at AND e.topic = p.topic AND e.partition = p.partition
"""
"""What is held stays where it was, and a topic ends where it did, though nothing moves for days. Of
two positions at one moment the later counts: where one was set, the claim ended with that. A group
is as far as its last slot, or its furthest range since the partition itself had a position, as it
shares the topic at that moment. A range of which nothing is done says nothing, but where there are
no others: who has nothing to do holds one far behind the topic's end. Who holds a partition and has
stored no position has it all to do. Of each hour the last position is enough: what is compared with
all moments stays small.
"""

_LEADERSHIP: Final = """
WITH terms AS (
  SELECT group_id, substring(topic, 8) AS name, client_id, from_at,
    CASE WHEN how IN ('taken_over', 'resumed', 'claimed_again') THEN coalesce(last_beat_at, from_at)
      WHEN until_at IS NOT NULL THEN until_at
      WHEN timestampadd(MILLISECOND, 2 * interval_ms, coalesce(last_beat_at, from_at)) < {as_of}
        THEN coalesce(last_beat_at, from_at)
      ELSE {as_of} END AS led_until
  FROM {claims}
  WHERE topic LIKE 'leader:%' AND (day IS NULL OR day >= {day})
), cut AS (
  SELECT *,
    greatest(coalesce(from_at, cast({day} AS timestamp)), cast({day} AS timestamp)) AS low,
    least(led_until, cast(date_add({day}, 1) AS timestamp), {as_of}) AS high
  FROM terms
), on_day AS (
  SELECT * FROM cut WHERE low < least(cast(date_add({day}, 1) AS timestamp), {as_of})
), forgotten AS (
  SELECT group_id, max(at) AS at FROM {operations}
  WHERE what = 'forget' AND at < date_add({day}, 1) AND day >= date_sub({day}, {still})
  GROUP BY group_id
), before AS (
  SELECT group_id, name, cast({day} AS timestamp) AS since
  FROM {elections} AS e LEFT JOIN forgotten AS f USING (group_id)
  WHERE e.day >= date_sub({day}, {still}) AND e.day < {day} AND {day} < {as_of}
  GROUP BY group_id, name
  HAVING max(e.until_at) > max(f.at) OR max(f.at) IS NULL
)
SELECT group_id, name, count(DISTINCT client_id) AS leaders,
  coalesce(sum(greatest(0, unix_millis(high) - unix_millis(low))), 0) AS led_ms,
  greatest(1, unix_millis(least(cast(date_add({day}, 1) AS timestamp), {as_of}))
    - unix_millis(min(coalesce(since, low)))) AS span_ms,
  least(1.0, led_ms / span_ms) AS availability, {day} AS day
FROM on_day FULL OUTER JOIN before USING (group_id, name)
GROUP BY group_id, name
"""
"""A name that had a leader before has a row though it has none on this day: what should be led may
be out of order since. Of a group that was forgotten since, nothing should."""

_FINDINGS: Final = """
SELECT concat_ws('|', kind, outbox, id) AS finding, kind,
  CASE kind
    WHEN 'lost' THEN 'a committed row that is not in Kafka'
    WHEN 'duplicated' THEN concat(copies, ' records of one row')
    WHEN 'disordered' THEN 'behind a record of a later row of its key'
    WHEN 'altered' THEN 'the record has another topic, key or value than its row'
    ELSE 'a record that no row asked for' END AS what,
  outbox, id, cast(NULL AS string) AS group_id, topic, partition, offset, day
FROM (
  SELECT *, explode(filter(array(
      IF(status IN ('lost', 'unexpected'), status, NULL), IF(copies > 1, 'duplicated', NULL),
      IF(disordered, 'disordered', NULL), IF(altered, 'altered', NULL)),
    kind -> kind IS NOT NULL)) AS kind
  FROM {deliveries} WHERE day = {day}
)
UNION ALL
SELECT concat_ws('|', kind, coordinator, log_offset, group_id, topic, partition), kind, what,
  cast(NULL AS string), cast(NULL AS bigint), group_id, topic, partition, log_offset, day
FROM {anomalies} WHERE day = {day}
"""

_STAY_AWAY: Final = """
WITH expected AS (
  SELECT outbox, bool_or(day = {day} AND rows IS NULL) AS unknown,
    bool_or(day = {day}) AS has_some
  FROM {outboxes}
  WHERE day BETWEEN date_sub({day}, {still}) AND {day}
  GROUP BY outbox
  HAVING bool_or(rows IS NOT NULL)
), looked AS (
  SELECT outbox, max(at) AS at FROM {looks} GROUP BY outbox
)
SELECT outbox FROM expected LEFT JOIN looked USING (outbox)
WHERE unknown OR (date_add({day}, 1) <= {as_of} AND (at IS NULL OR at < date_add({day}, 1))
  AND (NOT has_some OR at >= date_sub({day}, 1)))
"""
"""Of a day that is over its last rows were brought by who looked after its end. Where nobody has
looked lately, as in lakes of before there were looks, its own rows are enough."""

_ADD_FINDINGS: Final = """
MERGE INTO {path} AS known
USING {found} AS found
ON known.finding = found.finding AND known.day = found.day AND known.day = {day}
WHEN NOT MATCHED THEN INSERT *
"""


_AT_ONCE: Final = 4
"""Tables that are written at the same time."""


class Expectation(NamedTuple):
    """What was expected of a day, what was found (None: it is not known), and whether it holds."""

    name: str
    found: float | None
    limit: float
    met: bool
    day: dt.date | None = None


class Expectations(NamedTuple):
    """What a day must be like; None: whatever it is like."""

    allowed: Collection[str] = ()
    """Kinds of findings to put up with; of all others there must be none."""
    latency_p99_ms: float | None = None
    lag: int | None = None
    availability: float | None = None
    """Least share of the time in which each of what is led has a leader."""


def write_gold(
    spark: SparkSession,
    lake: Lake,
    day: dt.date,
    *,
    as_of: dt.datetime,
    late_days: int,
    lifetime_days: int,
    expectations: Expectations,
    deliveries: Callable[[], None],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Expectation]:
    """Write a day's tables in place of those that are there, add what was found; return the gates.

    `as_of`: the log was read up to then. `lifetime_days`: of a finding, before retention may
    delete it. `deliveries` writes the day's deliveries, beside the tables that do without them.
    """
    values = {"day": date_literal(day), "as_of": time_literal(as_of)}

    def sql(query: str, *names: str, **more: Any) -> Any:
        frames: dict[str, Any] = {name: lake.frame(spark, f"silver.{name}") for name in names}
        return spark.sql(fill(query, **values), **frames, **more)

    published = lake.frame(spark, "bronze.published")
    lag = fill(_LAG, days=str(late_days), still=str(late_days + STILL_DAYS), parts=PARTS)
    leadership = fill(_LEADERSHIP, still=str(STILL_DAYS))
    of_log = {
        "gold.groups": sql(_GROUPS, "claims", "takeovers", "rejections", "anomalies"),
        "gold.lag": sql(lag, "positions", "claims", published=published),
        "gold.leadership": sql(leadership, "claims", "elections", "operations"),
    }

    def of_deliveries() -> dict[str, int]:
        deliveries()
        added = pool.submit(
            _add_findings,
            spark,
            lake,
            sql(_FINDINGS, "deliveries", "anomalies"),
            day,
            lifetime_days,
        )
        lake.replace_day("gold.outboxes", sql(_OUTBOXES, "deliveries"), day)
        return added.result()

    with ThreadPoolExecutor(_AT_ONCE) as pool:  # most of it is waiting for small jobs
        found = pool.submit(of_deliveries)
        done = [pool.submit(lake.replace_day, *table, day) for table in of_log.items()]
        kinds = found.result()
        for each in done:
            each.result()
    gates = _gates(spark, lake, day, as_of, expectations, kinds, progress)
    rows = spark.createDataFrame(
        [(*gate[:4], day) for gate in gates],
        "name string, found double, `limit` double, met boolean, day date",
    )
    lake.replace_day("gold.expectations", rows, day)
    return [gate._replace(day=day) for gate in gates]


def _add_findings(
    spark: SparkSession, lake: Lake, found: Any, day: dt.date, lifetime_days: int
) -> dict[str, int]:
    """Add those that are not there yet; return how many of each kind there are now."""
    from pyspark.sql import functions as F

    now = dt.datetime.now(dt.UTC)
    expires = now.date() + dt.timedelta(lifetime_days)
    found = found.dropDuplicates(["finding"]).withColumns(
        {"found_at": F.lit(now), "expires_on": F.lit(expires)}
    )
    if not lake.exists(spark, "gold.findings"):
        # Another run may have made it by now, and added what it found.
        lake.append("gold.findings", found.limit(0))
    columns = [column.name for column in LAKE_TABLES["gold.findings"]]
    found = found.select(columns).persist()
    try:
        counted = found.groupBy("kind").count().collect()
        if counted:
            path = table_name(lake.path("gold.findings"))
            spark.sql(fill(_ADD_FINDINGS, path=path, day=date_literal(day)), found=found)
    finally:
        found.unpersist()
    return {row["kind"]: row["count"] for row in counted}


def _rows_stay_away(spark: SparkSession, lake: Lake, day: dt.date, as_of: dt.datetime) -> list[str]:
    """Outboxes whose rows were known lately, and of which is not known what is lost of this day."""
    values = {"day": date_literal(day), "as_of": time_literal(as_of), "still": str(STILL_DAYS)}
    found = spark.sql(
        fill(_STAY_AWAY, **values),
        outboxes=lake.frame(spark, "gold.outboxes"),
        looks=lake.frame(spark, "bronze.outbox_looks"),
    )
    return sorted(row[0] for row in found.collect())


def _without_rows(spark: SparkSession, lake: Lake, day: dt.date) -> list[str]:
    """Outboxes of which more records have no row than have one."""
    outboxes = lake.frame(spark, "gold.outboxes").filter(f"day = {date_literal(day)}")
    found = outboxes.filter("unexpected > delivered").selectExpr("outbox").collect()
    return sorted(row[0] for row in found)


def _not_read(spark: SparkSession, lake: Lake, day: dt.date) -> list[str]:
    """Topics that rows of the day ask for, and that the run did not read."""
    outboxes = lake.frame(spark, "gold.outboxes").filter(f"day = {date_literal(day)}")
    found = outboxes.selectExpr("explode(split(unread, ' '))").distinct()
    return sorted(row[0] for row in found.collect())


_P99: Final = "IF(bool_or(records > 0 AND latency_p99_ms IS NULL), NULL, max(latency_p99_ms))"
"""Of an outbox whose rows nobody has brought it is not known, and then not of all."""


def _gates(
    spark: SparkSession,
    lake: Lake,
    day: dt.date,
    as_of: dt.datetime,
    wanted: Expectations,
    kinds: Mapping[str, int],
    progress: Callable[[str], None],
) -> list[Expectation]:
    """What was expected, and what the day's tables say.

    `kinds`: of findings, how many there are now. The table of them has those of earlier runs too,
    whose records may have come since.
    """

    def one(table: str, what: str) -> float | None:
        of_day = lake.frame(spark, table).filter(f"day = DATE '{day}'")
        value = spark.sql(f"SELECT {what} FROM {{of_day}}", of_day=of_day).collect()[0][0]  # noqa: S608
        return None if value is None else float(value)

    always = ("lost", "duplicated", "disordered", "altered", "unexpected")
    gates = [
        Expectation(f"findings: {kind}", float(kinds.get(kind, 0)), 0.0, not kinds.get(kind))
        for kind in sorted({*always, *kinds} - set(wanted.allowed))
    ]
    away, unread = [], []
    if not kinds.get("lost"):
        away = _rows_stay_away(spark, lake, day, as_of)
        unread = _not_read(spark, lake, day)
    if away:
        progress(f"{day}: rows of {', '.join(away)} are not known: bring them with `harvest lake`")
    if unread:
        options = " ".join(f"--published {topic}" for topic in unread)
        progress(f"{day}: rows ask for topics that were not read: {options}")
    if away or unread:
        unknown = Expectation("findings: lost", None, 0.0, False)
        gates = [unknown if gate.name == unknown.name else gate for gate in gates]
    if kinds.get("unexpected") and (names := _without_rows(spark, lake, day)):
        progress(
            f"{day}: most records of {', '.join(names)} have no row: the lake needs a table that "
            "keeps what was published (mark mode's does not), or its archive"
        )
    for name, limit, table, what, least in (
        ("latency_p99_ms", wanted.latency_p99_ms, "gold.outboxes", _P99, False),
        ("lag", wanted.lag, "gold.lag", "max(struct(hour, lag)).lag", False),
        ("availability", wanted.availability, "gold.leadership", "min(availability)", True),
    ):
        if limit is not None:
            value = one(table, what)
            met = value is not None and (value >= limit if least else value <= limit)
            gates.append(Expectation(name, value, float(limit), met))
    return gates
