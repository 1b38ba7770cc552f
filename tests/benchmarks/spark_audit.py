"""How fast the audit turns the coordination log into tables, next to Spark merely reading it."""

from __future__ import annotations

import shutil
import tempfile
import time
from typing import TYPE_CHECKING

from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.spark.audit import audit
from marshal_py.spark.kafka import READER_OPTIONS
from marshal_py.spark.session import spark_session
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.spark.logs import busy, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 8


def bare_read_s(spark: SparkSession, servers: str, topic: str) -> float:
    """Spark's Kafka source with the audit's options, and nothing done with the records."""
    started = time.perf_counter()
    (
        spark.read.format("kafka")
        .options(**READER_OPTIONS)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .load()
        .select("partition", "offset", "value", "timestamp")
        .write.format("noop")
        .mode("overwrite")
        .save()
    )
    return time.perf_counter() - started


def measure(options: Options) -> list[Figure]:
    count = 100_000 if options.quick else 2_000_000
    with EmbeddedKafka() as kafka:
        servers = kafka.bootstrap_servers
        topic = new_topic(kafka, PARTITIONS)
        say(f"writing {count:,} records")
        write(servers, topic, busy(count, partitions=PARTITIONS))
        spark = spark_session("spark_audit", master="local[2]")
        audits, bare = [], []
        try:
            for repeat in range(options.repeats + 1):  # the first one warms both runtimes
                say(f"audit {repeat} of {options.repeats}")
                folder = tempfile.mkdtemp()
                started = time.perf_counter()
                done = audit(spark, servers, folder, topic=topic)
                seconds = time.perf_counter() - started
                shutil.rmtree(folder)
                if done.records != count or done.anomalies or done.open["claims"] != 1_000:
                    raise RuntimeError(f"a wrong audit: {done}")
                read_s = bare_read_s(spark, servers, topic)
                if repeat:
                    audits.append(count / seconds)
                    bare.append(count / read_s)
        finally:
            spark.stop()
    return [
        Figure(
            f"audit of {count:,} records to tables, after session start",
            median(audits),
            "records/s",
            median(bare),
            "≥ 0.75 of the bare read",
            median(audits) >= 0.75 * median(bare),
        )
    ]


if __name__ == "__main__":
    run(measure, __doc__)
