"""Deliveries: each row of an outbox with its record in Kafka, and the claims that went past it.

A day's rows are those that were inserted on it (UTC). Their records are looked for on that day, and
on the days after it that may still bring them; a row whose record comes later than that is lost,
and its record is unexpected. Joined by the header ``harvest-id``; order is a matter of windows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from marshal_py.errors import ConfigurationError
from marshal_py.protocol.slots import slot_of_key
from marshal_py.spark.lake.sql import (
    PARTS,
    STILL_DAYS,
    date_literal,
    fill,
    is_topic,
    time_literal,
)
from marshal_py.spark.lake.tables import Lake

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_days", "days_left", "judged_to", "write_deliveries"]

_AGAIN: Final = """
SELECT outbox, id, sort_array(collect_list(at)) AS begun
FROM {rows} GROUP BY outbox, id HAVING count(*) > 1
"""
"""Ids that were given again: the table was made anew, under the name that it had."""

_NUMBERED: Final = """
SELECT f.*, greatest(1, size(filter(begun, moment -> moment <= f.at))) AS nth
FROM {frame} AS f LEFT JOIN {again} AS a ON a.outbox = f.outbox AND a.id = f.id
"""
"""Of several rows with one id: which it is, or, of a record, the last that was there before it."""

_RECORDS: Final = """
SELECT outbox, id, nth, count(*) AS copies,
  min_by(struct(topic, partition, offset, at, key, value), struct(at, topic, partition, offset))
    AS place
FROM {published}
GROUP BY outbox, id, nth
"""
"""Records of the same id are copies, of which the first counts."""

_ORDERED: Final = """
SELECT *, place.key IS NOT NULL AND coalesce(id < max(id) OVER (
    PARTITION BY outbox, place.topic, place.partition, place.key ORDER BY place.offset
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ), false) AS disordered
FROM {records}
"""

_JOINED: Final = """
SELECT coalesce(r.outbox, p.outbox) AS outbox, coalesce(r.id, p.id) AS id,
  CASE
    WHEN r.id IS NOT NULL AND p.id IS NOT NULL THEN 'delivered'
    WHEN p.id IS NULL AND {is_topic}
      AND NOT array_contains(split('{published}', ' '), r.topic) THEN 'unread'
    WHEN p.id IS NULL AND r.at > {pending_from} THEN 'pending'
    WHEN p.id IS NULL THEN 'lost'
    WHEN a.outbox IS NULL THEN 'unarchived'
    WHEN p.place.at > least({pending_from}, k.judged_to) THEN 'pending'
    ELSE 'unexpected'
  END AS status,
  r.at AS created_at,
  coalesce(p.place.topic, r.topic) AS topic,
  IF(p.id IS NULL, r.key, p.place.key) AS key,
  p.place.partition, p.place.offset, p.place.at AS published_at,
  unix_millis(p.place.at) - unix_millis(r.at) AS latency_ms,
  coalesce(p.copies, 0) AS copies,
  r.id IS NOT NULL AND p.id IS NOT NULL AND NOT (
    r.topic = p.place.topic AND r.key <=> p.place.key
    AND (r.value <=> p.place.value OR coalesce({in_event}, false))) AS altered,
  coalesce(p.disordered, false) AS disordered,
  coalesce(r.day, to_date(p.place.at)) AS day
FROM {rows} AS r
FULL OUTER JOIN {ordered} AS p ON r.outbox = p.outbox AND r.id = p.id AND r.nth = p.nth
LEFT JOIN (SELECT DISTINCT outbox FROM {rows}) AS a ON a.outbox = p.outbox
LEFT JOIN {looked} AS k ON k.outbox = p.outbox
"""

_IN_EVENT: Final = """
endswith(p.place.value, concat(encode('"data":', 'UTF-8'), r.value, encode('}', 'UTF-8')))
OR endswith(p.place.value, encode(concat('"data_base64":"',
  translate(base64(r.value), concat(chr(13), chr(10)), ''), '"}'), 'UTF-8'))
"""
"""The value as it stands at the end of a CloudEvent of mode `structured`; Spark's has lines."""

_LOOKED: Final = """
SELECT outbox, max(upto) - make_dt_interval(0, 0, 0, {grace}) AS judged_to
FROM {looks} GROUP BY outbox
"""
"""`least` passes over what is null."""

_CLAIMS: Final = """
WITH named AS (
  SELECT group_id, client_id, epoch, from_at, until_at,
    coalesce(first_offset, try_cast(regexp_extract(topic, '{parts}', 4) AS bigint), 0)
      AS first_offset,
    last_offset,
    IF(divided = '', topic, regexp_extract(topic, '{parts}', 1)) AS topic,
    IF(divided = '', partition, try_cast(regexp_extract(topic, '{parts}', 2) AS bigint))
      AS partition,
    divided LIKE '#%' AS by_keys, nullif(try_cast(substring(divided, 2) AS int), 0) AS slots,
    partition AS slot
  FROM (
    SELECT *, regexp_extract(topic, '{parts}', 3) AS divided
    FROM {claims} WHERE day IS NULL OR day >= {day}
  )
), extents AS (
  SELECT topic, partition, min(offset) AS low, max(offset) AS high
  FROM {published} WHERE day BETWEEN {since} AND {until}
  GROUP BY topic, partition
)
SELECT named.*, explode(sequence(
    greatest(first_offset, low) DIV {block}, least(last_offset - 1, high) DIV {block})) AS block
FROM named JOIN extents USING (topic, partition)
WHERE greatest(first_offset, low) <= least(last_offset - 1, high)
"""
"""Once for each block of offsets: one day may have thousands of claims of ranges, and no record is
compared with all of them."""

_HANDLED: Final = """
SELECT d.outbox, d.id,
  sort_array(collect_list(struct(c.group_id, c.client_id, c.epoch, c.from_at, c.until_at)))
    AS handled
FROM {placed} AS d JOIN {claims} AS c
  ON c.topic = d.topic AND c.partition = d.partition AND c.block = d.offset DIV {block}
  AND d.offset >= c.first_offset AND d.offset < c.last_offset
  AND (NOT c.by_keys OR c.slot = d.hash % c.slots)
GROUP BY d.outbox, d.id
"""

_WITH_HANDLERS: Final = """
SELECT d.*, coalesce(h.handled, array()) AS handled
FROM {days} AS d LEFT JOIN {handled} AS h ON d.outbox = h.outbox AND d.id = h.id
"""

_BLOCK: Final = "10000"
_HASHES: Final = 1 << 62
"""More than there are hashes, and offsets, which stand in for them where there is no key."""


_GONE: Final = (
    "bronze has nothing of {0} any more, which {1} was made of: the tables of {1} stay as they are "
    "(`marshal lake maintain --bronze-days` keeps bronze for longer)"
)


def check_days(
    spark: SparkSession, lake: Lake, days: Collection[dt.date], *, late_days: int
) -> None:
    """Raise `ConfigurationError` for a day that would be written anew without what it was made of.

    Retention deletes bronze before silver and gold: they would lose the day, or have its records
    without their rows; or its rows, where an archive is read again, without their records; or lose
    the lag of topics whose records are of no outbox.
    """
    for gone, wanted in _gone(spark, lake, days, late_days):
        raise ConfigurationError(_GONE.format(gone, wanted))


def days_left(
    spark: SparkSession, lake: Lake, days: Collection[dt.date], *, late_days: int
) -> set[dt.date]:
    """Return those that `check_days` lets be written."""
    return set(days) - {wanted for _, wanted in _gone(spark, lake, days, late_days)}


def _gone(
    spark: SparkSession, lake: Lake, days: Collection[dt.date], late_days: int
) -> Iterator[tuple[dt.date, dt.date]]:
    """Give days of which bronze has nothing any more, each with a day that was made of it."""
    if not days:
        return
    late, still = dt.timedelta(late_days), dt.timedelta(late_days + STILL_DAYS)
    last = max(days)

    def known(
        table: str, which: str = "true", day: str = "day", back: dt.timedelta = late
    ) -> set[dt.date]:
        between = f"day BETWEEN {date_literal(min(days) - back)} AND {date_literal(last)}"
        found = lake.frame(spark, table).filter(between).filter(which)
        return {row[0] for row in found.selectExpr(day).distinct().collect()}

    # Gold tells of both where silver was deleted, to fold the log anew.
    had_rows = known("silver.deliveries", "created_at IS NOT NULL")
    had_rows |= known("gold.outboxes", "rows > 0")
    had_records = known("silver.deliveries", "offset IS NOT NULL", "to_date(published_at)")
    had_records |= known("gold.outboxes", "coalesce(rows, 0) = 0 AND records > 0")
    gone = (had_rows - known("bronze.outbox_rows")) | (had_records - known("bronze.published"))
    for day in sorted(gone):
        for wanted in sorted(days):
            if wanted - late <= day <= wanted:
                yield day, wanted
    if had_lag := known("gold.lag").intersection(days):
        left = known("bronze.published", back=still)
        for wanted in sorted(had_lag):
            if not any(wanted - still <= day <= wanted for day in left):
                yield wanted, wanted


def judged_to(spark: SparkSession, lake: Lake, grace_s: float) -> DataFrame:
    """Outbox, and up to when a record without a row is unexpected: its rows are known that far.

    Null, as of looks of earlier versions: nothing is said of it.
    """
    looks = lake.frame(spark, "bronze.outbox_looks")
    return spark.sql(fill(_LOOKED, grace=str(grace_s)), looks=looks)


def write_deliveries(
    spark: SparkSession,
    lake: Lake,
    day: dt.date,
    *,
    topics: Collection[str],
    as_of: dt.datetime,
    grace_s: float,
    late_days: int,
) -> None:
    """Write the deliveries of a day in place of those that are there.

    `topics`: those that are read; of a row that asks for another nobody knows whether it
    arrived, unless Kafka allows no such name. `as_of`: everything from before then was read into
    bronze. `grace_s`: so much younger a row without a record may still be on its way. `late_days`:
    on so many days after it a record is looked for.
    """
    since, until = day - dt.timedelta(late_days), day + dt.timedelta(late_days)
    bounds = {"since": date_literal(since), "until": date_literal(until)}
    published = lake.frame(spark, "bronze.published").filter("outbox IS NOT NULL")
    rows, records = (
        frame.filter(fill("day BETWEEN {since} AND {until}", **bounds))
        for frame in (lake.frame(spark, "bronze.outbox_rows"), published)
    )
    again = spark.sql(_AGAIN, rows=rows)
    if again.isEmpty():  # as nearly always, and then nothing is joined with it
        rows, records = (frame.selectExpr("*", "1 AS nth") for frame in (rows, records))
    else:
        rows, records = (spark.sql(_NUMBERED, frame=f, again=again) for f in (rows, records))
    ordered = spark.sql(_ORDERED, records=spark.sql(_RECORDS, published=records))
    pending_from = time_literal(as_of - dt.timedelta(seconds=grace_s))
    joined = spark.sql(
        fill(
            _JOINED,
            pending_from=pending_from,
            in_event=_IN_EVENT,
            is_topic=is_topic("r.topic"),
            published=" ".join(topics),
        ),
        rows=rows,
        ordered=ordered,
        looked=judged_to(spark, lake, grace_s),
    )
    days = joined.filter(f"day = {date_literal(day)}")
    claims = spark.sql(
        fill(_CLAIMS, day=date_literal(day), parts=PARTS, block=_BLOCK, **bounds),
        claims=lake.frame(spark, "silver.claims"),
        published=published,
    )
    placed = days.filter("offset IS NOT NULL").select(
        "outbox", "id", "topic", "partition", "offset", "key"
    )
    if claims.filter("slots > 0").limit(1).count():
        placed = placed.mapInArrow(
            _with_hash,
            "outbox string, id bigint, topic string, partition bigint, offset bigint, hash bigint",
        )
    else:
        placed = placed.selectExpr("*", "0L AS hash")
    handled = spark.sql(fill(_HANDLED, block=_BLOCK), placed=placed, claims=claims)
    lake.replace_day(
        "silver.deliveries", spark.sql(_WITH_HANDLERS, days=days, handled=handled), day
    )


def _with_hash(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put the hash in the place of the key, which is the last column. Executors have no pandas."""
    import pyarrow as pa

    for batch in batches:
        pairs = zip(batch["key"].to_pylist(), batch["offset"].to_pylist(), strict=True)
        hashes = [slot_of_key(key, offset, _HASHES) for key, offset in pairs]
        arrays = [*batch.columns[:-1], pa.array(hashes, pa.int64())]
        yield pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names[:-1], "hash"])
