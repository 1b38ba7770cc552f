"""What a night costs the lake, and whether a later one costs more than an earlier one."""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from harvest.spark.lake import add_archive
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.spark.lake.gold import Expectations
from marshal_py.spark.lake.run import LakeSettings, run_lake
from marshal_py.spark.session import spark_session
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.spark_audit import bare_read_s
from tests.spark.logs import Record, busy, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 8
OUTBOX = "shop/outbox"
_DAY_MS = 86_400_000
_STEP_MS = 20
"""From one record of the log to the next: heartbeats come in time."""


class _Night(NamedTuple):
    """Seconds that the rows of an outbox took, and the run that writes their day."""

    rows_s: float
    run_s: float


def _start_ms(day: dt.date) -> int:
    return int(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC).timestamp() * 1000)


def _key(n: int) -> bytes:
    return f"key-{n % 10_000}".encode()


def _publish(servers: str, topic: str, day: dt.date, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 500_000})
    for n in range(first, first + count):
        while True:
            try:
                producer.produce(
                    topic,
                    b"x" * 200,
                    _key(n),
                    timestamp=_start_ms(day) + (n - first) * _DAY_MS // count + 5,
                    headers=[("harvest-id", f"{OUTBOX}/{n}".encode())],
                )
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("the records could not be written")


def _archive(folder: Path, topic: str, day: dt.date, first: int, count: int) -> None:
    """The rows of these records, as `harvest partitions` archives them."""
    folder.mkdir(exist_ok=True)
    ids = range(first, first + count)
    moments = [(_start_ms(day) + (n - first) * _DAY_MS // count) * 1000 for n in ids]
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "create_time": pa.array(moments, pa.timestamp("us", tz="UTC")),
        "kafka_topic": pa.array([topic] * count),
        "kafka_key": pa.array([_key(n) for n in ids], pa.binary()),
        "kafka_value": pa.array([b"x" * 200] * count, pa.binary()),
        "kafka_header_keys": pa.array([None] * count, pa.list_(pa.binary())),
        "kafka_header_values": pa.array([None] * count, pa.list_(pa.binary())),
    }
    pq.write_table(pa.table(columns), folder / f"outbox-{first}-{first + count - 1}.parquet")


def _nights(
    spark: SparkSession, kafka: EmbeddedKafka, days: int, count: int
) -> tuple[list[_Night], float, float]:
    """Each night's, of days up to yesterday: `count` records of the log, and half as many of a
    topic and rows. Then seconds of the last one's run again, and of a bare read of the log."""
    servers = kafka.bootstrap_servers
    # Not as clients create them: their records would all be of today.
    forever = {"retention.ms": "-1"}
    topic = kafka.create_topic(partitions=PARTITIONS, config=forever)
    kafka.create_topic(f"{topic}.snapshots")
    published = kafka.create_topic(partitions=4, config=forever)
    settings = LakeSettings(
        topic=topic,
        published=[published],
        # The times are the writer's, and nobody beats from one day's log to the next one's.
        expectations=Expectations(allowed=("create_time", "late_heartbeat")),
    )
    log: list[Record] = busy(count * days, partitions=PARTITIONS)
    nights = []
    with tempfile.TemporaryDirectory() as folder:
        place, archive = str(Path(folder) / "lake"), Path(folder) / "archive"
        for n in range(days):
            day = dt.datetime.now(dt.UTC).date() - dt.timedelta(days - n)
            say(f"day {n + 1} of {days}: {count:,} records of the log, {count // 2:,} of a topic")
            part, at_ms = log[n * count : (n + 1) * count], _start_ms(day)
            write(
                servers,
                topic,
                [(p, v, at_ms + i * _STEP_MS) for i, (p, v, _) in enumerate(part)],
            )
            _publish(servers, published, day, n * count, count // 2)
            _archive(archive, published, day, n * count, count // 2)
            started = time.perf_counter()
            added = add_archive(spark, place, OUTBOX, str(archive))
            rows_s = time.perf_counter() - started
            done = run_lake(spark, servers, place, [day], settings)
            nights.append(_Night(rows_s, time.perf_counter() - started - rows_s))
            found = (added, done.records, done.published, done.days, done.met)
            if found != (count // 2, count, count // 2, (str(day),), True):
                raise RuntimeError(f"a wrong night: {added} rows, {done}")
            say(f"rows {nights[-1].rows_s:.1f} s, run {nights[-1].run_s:.1f} s")
        started = time.perf_counter()
        run_lake(spark, servers, place, [day], settings)
        again_s = time.perf_counter() - started
        return nights, again_s, bare_read_s(spark, servers, topic)


def measure(options: Options) -> list[Figure]:
    days, count = (6, 20_000) if options.quick else (30, 400_000)
    settings = {"spark.driver.memory": "2g"}
    with EmbeddedKafka() as kafka:
        spark = spark_session("spark_lake", master="local[2]", delta=True, settings=settings)
        try:
            say("warming both runtimes")
            _nights(spark, kafka, 2, 10_000)
            nights, again_s, read_s = _nights(spark, kafka, days, count)
        finally:
            spark.stop()
    # One night alone is as long as its neighbours to a tenth or so.
    early, late = nights[1:4], nights[-3:]
    second, last = (median(sum(night) for night in some) for some in (early, late))
    run_s, last_s = (median(night.run_s for night in some) for some in (early, late))
    return [
        Figure("night of a day: rows of an outbox, and the run", second, "s"),
        Figure("its run alone", run_s, "s"),
        Figure("records of the log in it", count / run_s, "records/s", count * days / read_s),
        Figure(
            f"day {days}, of what day 2 costs", last, "s", second, "≤ 1.1", last <= 1.1 * second
        ),
        Figure("its run alone, likewise", last_s, "s", run_s),
        Figure("the same day again, nothing new", again_s, "s", run_s),
    ]


if __name__ == "__main__":
    run(measure, __doc__)
