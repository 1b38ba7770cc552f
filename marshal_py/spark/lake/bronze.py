"""Bronze: what Kafka had, as it was. Spark's own Kafka source reads it, and never twice.

Each stream has a checkpoint, which names the range of offsets of a micro-batch before it is read,
and the table's log has the number of the last batch that it took. So a driver that is killed is
followed by one that writes the same batch, or finds it written. Of two drivers at once one fails.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from marshal_py.client.kafka_clients import read_to_end
from marshal_py.errors import LogHole
from marshal_py.spark.kafka import READER_OPTIONS, Offsets, java_settings, librdkafka_settings
from marshal_py.spark.lake.sql import date_literal
from marshal_py.spark.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["HARVEST_ID", "ingest", "snapshot_topic_of"]

HARVEST_ID: Final = "harvest-id"
"""The header that names the outbox's row of a record: NAME/OUTBOX/ID. Of several the last does."""

_LOOK_S: Final = 1
_AT_ONCE: Final = 4
"""Topics that are looked at at the same time."""
_COMPARED: Final = 10
"""Last records of a partition: where one alone was, a topic made anew may have a marker."""


def snapshot_topic_of(topic: str) -> str:
    """The topic of the snapshots of a coordination topic."""
    return f"{topic}.snapshots"


def ingest(
    spark: SparkSession,
    lake: Lake,
    config: Mapping[str, Any],
    *,
    topic: str,
    published: Sequence[str],
    timeout_s: float,
    progress: Callable[[str], None],
) -> tuple[int, int]:
    """Read what is new of the coordination log and of the topics `published`; return how many each.

    Raises `TopicMissing`; `LogHole` where records that were not read yet are gone, or a topic was
    made anew; `BrokerUnavailable`.
    """
    with Offsets(config, timeout_s) as offsets:
        for name in (topic, *published):
            offsets.partitions(name)  # raises for one that does not exist

        def check(topic_of: tuple[str, str, str]) -> None:
            _check_same_topic(spark, lake, config, offsets, *topic_of, timeout_s)

        with ThreadPoolExecutor(_AT_ONCE) as pool:  # most of it is waiting for small jobs
            list(
                pool.map(
                    check,
                    [
                        ("bronze.coordination", topic, "coordinator"),
                        *(("bronze.published", each, "partition") for each in published),
                    ],
                )
            )
    # Spark looks for it anywhere in a topic's name.
    pattern = f"^{re.escape(topic)}({re.escape(snapshot_topic_of(''))})?$"
    streams = {
        "coordination": (
            "bronze.coordination",
            _source(spark, config, "subscribePattern", pattern).selectExpr(*_COORDINATION),
        )
    }
    for name in published:
        frame = _source(spark, config, "subscribe", name, includeHeaders="true")
        streams[f"published/{name}"] = ("bronze.published", _published(frame))
    if published and not lake.exists(spark, "bronze.published"):
        # Of several streams that make one table, Delta lets the first alone.
        lake.append("bronze.published", lake.frame(spark, "bronze.published"))
    queries: dict[str, StreamingQuery] = {}
    try:
        for name, (table, frame) in streams.items():
            queries[name] = (
                lake_stream(lake, name, frame).partitionBy("day").start(lake.path(table))
            )
        counts = {name: _finish(name, query, progress) for name, query in queries.items()}
    finally:
        for query in queries.values():
            query.stop()
    new = counts.pop("coordination")
    return new, sum(counts.values())


def lake_stream(lake: Lake, name: str, frame: DataFrame) -> Any:
    """A writer of a stream that ends when it has read what there is."""
    return (
        frame.writeStream.format("delta")
        .queryName(name)
        .option("checkpointLocation", lake.checkpoint(name))
        .option("mergeSchema", "true")
        .trigger(availableNow=True)
    )


def _source(
    spark: SparkSession, config: Mapping[str, Any], how: str, what: str, **options: str
) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .options(**READER_OPTIONS)
        .options(**java_settings(config))
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
        .option(how, what)
        .options(**options)
        .load()
    )


_COORDINATION: Final = (
    "topic",
    "cast(partition AS bigint) AS coordinator",
    "offset AS log_offset",
    "timestamp AS at",
    "timestampType = 0 AS create_time",
    "value",
    "to_date(timestamp) AS day",
)


def _published(frame: DataFrame) -> DataFrame:
    number = "try_cast(element_at(split(_id, '/'), -1) AS bigint)"
    outbox = "nullif(regexp_extract(_id, '^(.+/.+)/[^/]*$', 1), '')"
    # The harvester's is behind those that the row has brought along, of another outbox's record.
    last = f"try_element_at(filter(headers, h -> h.key = '{HARVEST_ID}'), -1)"
    return frame.selectExpr("*", f"cast({last}.value AS string) AS _id").selectExpr(
        "topic",
        "cast(partition AS bigint) AS partition",
        "offset",
        "timestamp AS at",
        "key",
        "value",
        "headers",
        f"IF({number} IS NULL, NULL, {outbox}) AS outbox",
        f"IF({outbox} IS NULL, NULL, {number}) AS id",
        "to_date(timestamp) AS day",
    )


def _finish(name: str, query: StreamingQuery, progress: Callable[[str], None]) -> int:
    """Wait until a query has read what there is; return how many records."""
    from pyspark.errors import StreamingQueryException

    seen = -1
    try:
        while not query.awaitTermination(_LOOK_S):
            last = query.lastProgress
            if last is not None and last["batchId"] != seen:
                seen = last["batchId"]
                progress(f"{name}: {last['numInputRows']:,} records")
    except StreamingQueryException as error:
        text = str(error)
        if "data may have been lost" in text or "was changed from" in text:
            raise LogHole(
                f"{name}: records are gone that were not read yet, or the topic was made anew: "
                "keep records in Kafka for longer than between two runs; to go on without them "
                f"begin another lake ({_first_line(text)})"
            ) from None
        raise
    return sum(each["numInputRows"] for each in query.recentProgress)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300]


def _check_same_topic(
    spark: SparkSession,
    lake: Lake,
    config: Mapping[str, Any],
    offsets: Offsets,
    table: str,
    topic: str,
    column: str,
    timeout_s: float,
) -> None:
    """Raise `LogHole` if the last records that were read are other ones in Kafka by now.

    Spark notices a topic that was made anew by its end alone: one that has grown past it would be
    read on from the middle.
    """
    from pyspark.sql import functions as F

    if not lake.exists(spark, table):
        return
    offset = "log_offset" if table == "bronze.coordination" else "offset"
    frame = spark.read.format("delta").load(lake.path(table))
    of_topic = frame.filter(F.col("topic") == topic)

    def last_known(where: str) -> dict[tuple[int, int], int]:
        """(Partition, offset) → timestamp in ms, of the last few of each partition."""
        place = f"PARTITION BY {column} ORDER BY {offset} DESC"
        rows = of_topic.filter(where).selectExpr(
            column, offset, "unix_millis(at)", f"row_number() OVER ({place}) AS nth"
        )
        return {(row[0], row[1]): row[2] for row in rows.filter(f"nth <= {_COMPARED}").collect()}

    known: dict[tuple[int, int], int] = {}
    week_ago = dt.datetime.now(dt.UTC).date() - dt.timedelta(7)
    # The table's log knows the newest day, without a look at rows.
    for where in (frame, of_topic.filter(f"day >= {date_literal(week_ago)}"), of_topic):
        newest = where.selectExpr("max(day)").collect()[0][0]
        known = {} if newest is None else last_known(f"day = DATE '{newest}'")
        if known:
            break
    else:
        return
    extent = offsets.extent(topic)
    for p, at in sorted(known):
        if p not in extent or extent[p][1] <= at:
            raise LogHole(
                f"{topic}/{p} has fewer records than were read from it: it lost its end, or was "
                "made anew; begin another lake"
            )

    def in_kafka() -> dict[tuple[int, int], int]:
        """What is there between the first and the last of those that are known."""
        ends = {p: at + 1 for p, at in sorted(known)}
        starts = {p: max(at, extent[p][0]) for p, at in sorted(known, reverse=True)}
        starts = {p: at for p, at in starts.items() if at < ends[p]}
        if not starts:
            return {}
        deadline = time.monotonic() + timeout_s
        settings = librdkafka_settings(config)
        found = read_to_end(settings, topic, starts, ends, deadline, whole=True)
        stamps = {(m.partition(), m.offset()): m.timestamp()[1] for m in found}
        return {(p, at): at_ms for (p, at), at_ms in stamps.items() if at < ends[p]}

    there = in_kafka()
    if not there or there.keys() - known.keys():
        # Records of older days may have come behind those of the newest one, and between them.
        lowest = {p: max(at, extent[p][0]) for p, at in sorted(known, reverse=True)}
        some = [f"{column} = {p} AND {offset} >= {at}" for p, at in lowest.items()]
        known = last_known(" OR ".join(some))
        oldest = frame.selectExpr("unix_millis(cast(min(day) AS timestamp))").collect()[0][0]
        # What is older was deleted by `maintain`, as soon as it had come.
        there = {place: ms for place, ms in in_kafka().items() if place in known or ms >= oldest}
    for (p, at), at_ms in there.items():
        if known.get((p, at)) != at_ms:
            raise LogHole(
                f"the record at {topic}/{p}/{at} is not the one that was read: the topic was made "
                "anew; begin another lake"
            )
