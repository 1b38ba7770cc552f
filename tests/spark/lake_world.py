"""A day of coordination and of an outbox, written straight into Kafka, and a lake for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from harvest.spark.lake import add_archive
from marshal_py.spark.lake.gold import Expectations
from marshal_py.spark.lake.run import LakeRun, LakeSettings, run_lake
from marshal_py.spark.lake.tables import LAKE_TABLES, Lake
from tests.spark.logs import write
from tests.unit.marshal_py.protocol.history.test_partition_history import START_MS, Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGAN = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC)
DAY = BEGAN.date()
OUTBOX = "shop/outbox"
SENDERS_TIME = Expectations(allowed=("create_time",))
"""These logs were not written by clients, at the times that they say."""


class Traffic:
    """A coordination topic, a topic that an outbox is published to, and a place for a lake."""

    def __init__(self, servers: str, log: str, topic: str, at: Path) -> None:
        self.servers, self.log, self.topic, self.at = servers, log, topic, at
        self.lake = Lake.at(str(at / "lake"))

    def command(self) -> list[str]:
        """The words of `marshal` for a run of the day."""
        words = ["lake", "run", "-b", self.servers, "--coordination-topic", self.log]
        words += ["--lake", self.lake.place, "--published", self.topic, "--day", str(DAY)]
        return [*words, "--allow", *SENDERS_TIME.allowed]

    def coordinate(self, script: Script, since: int = 0, until: int | None = None) -> None:
        write(self.servers, self.log, [(0, v, at) for _, v, at in script.records[since:until]])

    def publish(self, *ids: int, days_later: int = 0, **other: Any) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for id in ids:
            producer.produce(
                self.topic,
                other.get("value", value_of(id)),
                key_of(id),
                partition=0,
                timestamp=START_MS + 10 * id + 5 + 86_400_000 * days_later,
                headers=[("trace", b"1"), ("harvest-id", f"{OUTBOX}/{id}".encode())],
            )
        assert producer.flush(30) == 0

    def archive(self, ids: Sequence[int]) -> None:
        """Rows, as `harvest partitions` archives them."""
        folder = self.at / "archive"
        folder.mkdir(exist_ok=True)
        columns: dict[str, Any] = {
            "id": pa.array(ids, pa.int64()),
            "create_time": pa.array(
                [BEGAN + dt.timedelta(milliseconds=10 * id) for id in ids],
                pa.timestamp("us", tz="UTC"),
            ),
            "kafka_topic": pa.array([self.topic] * len(ids)),
            "kafka_key": pa.array([key_of(id) for id in ids], pa.binary()),
            "kafka_value": pa.array([value_of(id) for id in ids], pa.binary()),
            "kafka_header_keys": pa.array([[]] * len(ids), pa.list_(pa.string())),
            "kafka_header_values": pa.array([[]] * len(ids), pa.list_(pa.binary())),
        }
        pq.write_table(pa.table(columns), folder / f"outbox-{ids[0]}-{ids[-1]}.parquet")


class World(Traffic):
    """With a session that reads the lake and writes it."""

    def __init__(self, spark: SparkSession, servers: str, log: str, topic: str, at: Path) -> None:
        super().__init__(servers, log, topic, at)
        self.spark = spark
        self.settings = LakeSettings(topic=log, published=[topic], expectations=SENDERS_TIME)

    def run(self, *days: dt.date) -> LakeRun:
        return run_lake(self.spark, self.servers, self.lake.place, days or [DAY], self.settings)

    def add_archive(self) -> int:
        return add_archive(self.spark, self.lake.place, OUTBOX, str(self.at / "archive"))

    def rows(self, table: str, *names: str, where: str = "true") -> list[tuple[Any, ...]]:
        frame = self.lake.frame(self.spark, table).filter(where)
        found = (frame.select(*names) if names else frame).collect()
        return sorted((tuple(row) for row in found), key=repr)

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        return {table: self.rows(table) for table in LAKE_TABLES if table != "gold.runs"}


def key_of(id: int) -> bytes:
    return f"key-{id % 5}".encode()


def value_of(id: int) -> bytes:
    return f"value of {id}".encode()
