"""The claim-gated source: what it reads, and two applications of which one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import ConfigurationError
from marshal_py.spark.source import MarshalSource, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

PARTITIONS = 4


class Apps:
    """Spark applications in processes of their own, each with an output folder."""

    def __init__(self, servers: str, topic: str, delivery: str, folder: Path) -> None:
        self.servers, self.topic, self.delivery, self.folder = servers, topic, delivery, folder
        self.producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.written = 0

    def start(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.spark.source_app", self.servers, self.topic]
        with (folder / "log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*command, name, self.delivery, str(folder)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def produce(self, count: int) -> None:
        for n in range(self.written, self.written + count):
            self.producer.produce(self.topic, str(n), partition=n % PARTITIONS)
        self.written += count
        assert self.producer.flush(60) == 0

    def handed_out(self, name: str) -> Counter[int]:
        """Every record in every file, of batches that Spark committed and of others."""
        found: Counter[int] = Counter()
        for path in (self.folder / name / "out").glob("*.json"):
            found.update(int(json.loads(line)["value"]) for line in path.open() if line.strip())
        return found

    def committed(self, name: str) -> set[int]:
        """The records of the batches that Spark committed."""
        found = set()
        for path in (self.folder / name / "out" / "_spark_metadata").glob("[0-9]*"):
            for line in path.read_text().splitlines()[1:]:
                file = Path(json.loads(line)["path"].removeprefix("file:"))
                found.update(int(json.loads(row)["value"]) for row in file.open() if row.strip())
        return found

    def wait(self, what: Callable[[], bool], timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            for name, process in self.running.items():
                if process.poll() is not None:
                    text = (self.folder / name / "log").read_text()
                    pytest.fail(f"{name} ended:\n{text[-4000:]}")
            if time.monotonic() > deadline:
                logs = {n: (self.folder / n / "log").read_text()[-2000:] for n in self.running}
                pytest.fail(f"nothing after {timeout_s} s: {logs}")
            time.sleep(0.1)  # another process writes files: there is nothing to wait on


@pytest.fixture(params=["at-least-once", "at-most-once"])
def apps(
    request: pytest.FixtureRequest,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    tmp_path: Path,
) -> Iterator[Apps]:
    topic = kafka_topic(partitions=PARTITIONS)
    apps = Apps(kafka.bootstrap_servers, topic, request.param, tmp_path)
    yield apps
    for name in list(apps.running):
        apps.kill(name)
    kafka.delete_topic(f"{topic}.marshal")
    kafka.delete_topic(f"{topic}.marshal.snapshots")


@pytest.mark.slow
def test_two_applications_of_which_one_is_killed(apps: Apps) -> None:
    apps.start("a")
    apps.start("b")
    # Both hold something: each has seen records of the partitions that are its own.
    deadline = time.monotonic() + 120
    while not (apps.handed_out("a") and apps.handed_out("b")):
        apps.produce(40)
        assert time.monotonic() < deadline, (apps.handed_out("a"), apps.handed_out("b"))
        time.sleep(0.5)  # a steady trickle while both find their share
    for _ in range(20):
        apps.produce(100)
        time.sleep(0.05)
    apps.kill("a")
    apps.produce(400)
    last = range(apps.written - 400, apps.written)
    apps.wait(lambda: apps.committed("b").issuperset(last))

    everything = set(range(apps.written))
    if apps.delivery == "at-least-once":
        assert apps.committed("a") | apps.committed("b") == everything
    else:
        both = apps.handed_out("a") + apps.handed_out("b")
        assert [n for n, times in both.items() if times > 1] == []
        assert set(both) <= everything


def test_the_columns_and_a_rate_limit(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(100):
        producer.produce(topic, None if n == 7 else f"v{n}", f"k{n}", partition=n % 2)
    producer.flush()
    spark.dataSource.register(MarshalSource)
    frame = (
        spark.readStream.format("marshal")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("groupId", "g")
        .option("topics", topic)
        .option("intervalMs", "1000")
        .option("maxOffsetsPerTrigger", "40")
        .option("coordinationTopic", f"{topic}.marshal")
        .load()
    )
    native = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("subscribe", topic)
        .load()
    )
    assert frame.schema == native.schema
    seen: dict[int, list[tuple[object, ...]]] = {}

    def take(batch: object, number: int) -> None:
        seen[number] = [tuple(row) for row in batch.collect()]  # type: ignore[attr-defined]

    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path)).start()
    try:
        deadline = time.monotonic() + 100
        while sum(map(len, seen.values())) < 100 and time.monotonic() < deadline:
            assert query.exception() is None
            query.processAllAvailable()
    finally:
        query.stop()
    rows = [row for batch in seen.values() for row in batch]
    assert sorted(rows, key=lambda r: (r[3], r[4])) == sorted(
        (tuple(row) for row in native.collect()), key=lambda r: (r[3], r[4])
    )
    assert max(map(len, seen.values())) <= 40


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "x"}, "groupId"),
        ({"kafka.bootstrap.servers": "x", "groupId": "g", "topics": "t", "delivery": "?"}, "'?'"),
        (
            {"kafka.bootstrap.servers": "x", "groupId": "g", "topics": "t", "intervalMs": "soon"},
            "soon",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named.replace("?", r"\?")):
        SourceOptions.of(options)
