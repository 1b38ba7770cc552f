"""What a day costs the lake, and whether a later day costs more than an earlier one."""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.spark.lake.gold import Expectations
from marshal_py.spark.lake.run import LakeSettings, run_lake
from marshal_py.spark.session import spark_session
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, run, say
from tests.benchmarks.spark_audit import bare_read_s
from tests.spark.logs import Record, busy, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 8
FIRST = dt.date(2026, 1, 1)
_DAY_MS = 86_400_000


def _start_ms(day: dt.date) -> int:
    return int(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC).timestamp() * 1000)


def _publish(servers: str, topic: str, day: dt.date, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 500_000})
    for n in range(first, first + count):
        while True:
            try:
                producer.produce(
                    topic,
                    b"x" * 200,
                    f"key-{n % 10_000}".encode(),
                    timestamp=_start_ms(day) + (n - first) * _DAY_MS // count,
                    headers=[("harvest-id", f"shop/outbox/{n}".encode())],
                )
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("the records could not be written")


def _days(spark: SparkSession, kafka: EmbeddedKafka, days: int, count: int) -> list[float]:
    """Seconds of the run of each day: `count` records of the log, and half as many of a topic."""
    servers = kafka.bootstrap_servers
    topic = new_topic(kafka, PARTITIONS)
    published = new_topic(kafka, 4)
    settings = LakeSettings(
        topic=topic, published=[published], expectations=Expectations(allowed=("create_time",))
    )
    log: list[Record] = busy(count * days, partitions=PARTITIONS)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(days):
            day = FIRST + dt.timedelta(n)
            say(f"day {n + 1} of {days}: {count:,} records of the log, {count // 2:,} of a topic")
            part = log[n * count : (n + 1) * count]
            step_ms = _DAY_MS / count
            write(
                servers,
                topic,
                [(p, v, int(_start_ms(day) + i * step_ms)) for i, (p, v, _) in enumerate(part)],
            )
            _publish(servers, published, day, n * count, count // 2)
            started = time.perf_counter()
            done = run_lake(spark, servers, str(Path(folder) / "lake"), [day], settings)
            seconds.append(time.perf_counter() - started)
            if (done.records, done.published) != (count, count // 2):
                raise RuntimeError(f"a wrong run: {done}")
        started = time.perf_counter()
        run_lake(spark, servers, str(Path(folder) / "lake"), [day], settings)
        seconds.append(time.perf_counter() - started)
        seconds.append(bare_read_s(spark, servers, topic))
    return seconds


def measure(options: Options) -> list[Figure]:
    days, count = (4, 50_000) if options.quick else (30, 400_000)
    settings = {"spark.driver.memory": "2g"}
    with EmbeddedKafka() as kafka:
        spark = spark_session("spark_lake", master="local[2]", delta=True, settings=settings)
        try:
            say("warming both runtimes")
            _days(spark, kafka, 1, 10_000)
            *of_days, again_s, read_s = _days(spark, kafka, days, count)
        finally:
            spark.stop()
    second, last = of_days[1], of_days[-1]
    return [
        Figure("run of a day", second, "s"),
        Figure("records of the log in it", count / second, "records/s", count * days / read_s),
        Figure(
            f"day {days}, of what day 2 costs", last, "s", second, "≤ 1.1", last <= 1.1 * second
        ),
        Figure("the same day again, nothing new", again_s, "s", second),
    ]


if __name__ == "__main__":
    run(measure, __doc__)
