"""How fast the claim-gated source streams, next to Spark's own Kafka source."""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING, Any

from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.spark.session import spark_session
from marshal_py.spark.source import MarshalSource
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.spark.logs import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4


def rate(frame: DataFrame, count: int) -> float:
    """Stream everything into nothing; the records a second of the batches that held them."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp())
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    progress: dict[int, Any] = {}
    try:
        while sum(p["numInputRows"] for p in progress.values()) < count:
            problem = query.exception()
            if problem is not None:
                raise problem
            progress |= {p["batchId"]: p for p in query.recentProgress if p["numInputRows"]}
            time.sleep(0.05)
    finally:
        query.stop()
    took_ms: float = sum(p["durationMs"]["triggerExecution"] for p in progress.values())
    return count / (took_ms / 1000)


def measure(options: Options) -> list[Figure]:
    count = 50_000 if options.quick else 2_000_000
    with EmbeddedKafka() as kafka:
        topic = kafka.create_topic("data", PARTITIONS)
        say(f"writing {count:,} records of 200 B")
        value = b"x" * 200
        write(kafka.bootstrap_servers, topic, ((n % PARTITIONS, value, None) for n in range(count)))
        spark = spark_session("spark_source", master="local[2]")
        spark.dataSource.register(MarshalSource)
        ours, native = [], []
        try:
            for repeat in range(options.repeats + 1):  # the first one warms the runtime
                say(f"stream {repeat} of {options.repeats}")
                claimed = (
                    spark.readStream.format("marshal")
                    .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
                    .option("groupId", f"group-{repeat}")
                    .option("topics", topic)
                )
                theirs = (
                    spark.readStream.format("kafka")
                    .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
                    .option("subscribe", topic)
                    .option("startingOffsets", "earliest")
                )
                pair = rate(claimed.load(), count), rate(theirs.load(), count)
                if repeat:
                    ours.append(pair[0])
                    native.append(pair[1])
        finally:
            spark.stop()
    return [
        Figure(
            f"claim-gated stream of {count:,} records of 200 B",
            median(ours),
            "records/s",
            median(native),
            "≥ the native source",
            median(ours) >= median(native),
        )
    ]


if __name__ == "__main__":
    run(measure, __doc__)
