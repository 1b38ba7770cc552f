"""A Spark application that reads through the claim-gated source, once with each delivery.

python -m tests.spark.source_app MASTER BROKERS TOPIC CLIENT FOLDER runs until it is killed.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from marshal_py.spark.session import spark_session
from marshal_py.spark.source import MarshalSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

DELIVERIES = ("at-least-once", "at-most-once")
WORK_S = 0.2


def recording(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A step that leaves a line in FOLDER/seen for each record that it is given, at once.

    While a task of it works there is a file in FOLDER/working, named by the process that runs it.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = uuid.uuid4().hex
        with (folder / "seen" / name).open("ab", buffering=0) as seen:
            for batch in batches:
                values = batch.column("value").to_pylist()
                seen.write(b"".join([value + b"\n" for value in values]))
                working = folder / "working" / f"{os.getpid()}-{name}"
                working.touch()
                time.sleep(WORK_S)  # so that a kill from outside finds it at work
                working.unlink()
                yield batch

    return run


def begun(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query that has been started and has its source. Spark gives the source's process ten
    seconds to begin, and no more: on a busy machine it is tried again."""
    for _ in range(20):
        query = start()
        while query.isActive and "Initializing" in query.status["message"]:
            time.sleep(0.05)
        if query.isActive or "failed to connect back" not in str(query.exception()):
            break
    return query


def start(
    spark: SparkSession, brokers: str, topic: str, client: str, folder: Path
) -> list[StreamingQuery]:
    """A query for each delivery; its files are in FOLDER/DELIVERY."""
    spark.dataSource.register(MarshalSource)
    queries = []
    for delivery in DELIVERIES:
        here = folder / delivery
        for name in ("seen", "working"):
            (here / name).mkdir(parents=True)
        frame = (
            spark.readStream.format("marshal")
            .option("kafka.bootstrap.servers", brokers)
            .option("groupId", delivery)
            .option("clientId", client)
            .option("topics", topic)
            .option("delivery", delivery)
            .option("intervalMs", "1000")
            .option("coordinationTopic", f"{topic}.marshal")
            .load()
        )
        writer = (
            frame.select("value")
            .mapInArrow(recording(here), "value binary")
            .selectExpr("cast(value AS string) AS value")
            .writeStream.format("json")
            .option("path", str(here / "out"))
            .option("checkpointLocation", str(here / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
        )
        queries.append(begun(writer.start))
    return queries


def main(master: str, brokers: str, topic: str, client: str, folder: str) -> None:
    settings = {"spark.driver.memory": "512m"}
    spark = spark_session(client, master=master, settings=settings, kafka=False)
    start(spark, brokers, topic, client, Path(folder))
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
