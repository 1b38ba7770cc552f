"""The claim-gated source: what it reads, and two applications of which one is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import ConfigurationError
from marshal_py.spark.source import MarshalSource, SourceOptions
from tests.spark.source_app import DELIVERIES, begun, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

PARTITIONS = 4


class World:
    """A topic, an application in a process of its own, and one in the session of the tests."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, folder: Path) -> None:
        self.servers, self.topic, self.folder = servers, topic, folder
        self.written = 0
        self.producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        self.queries = start(spark, servers, topic, "b", folder / "b")
        command = [sys.executable, "-m", "tests.spark.source_app", "local[2,4]"]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, servers, topic, "a", str(folder / "a")],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def produce(self, count: int) -> None:
        for n in range(self.written, self.written + count):
            self.producer.produce(self.topic, str(n), partition=n % PARTITIONS)
        self.written += count
        assert self.producer.flush(60) == 0

    def seen(self, app: str, delivery: str) -> Counter[int]:
        """Every record that user code was given, in batches that Spark committed and in others."""
        found: Counter[int] = Counter()
        for path in (self.folder / app / delivery / "seen").glob("*"):
            found.update(map(int, path.read_text().split()))
        return found

    def committed(self, app: str, delivery: str) -> set[int]:
        """The records of the batches that Spark committed."""
        found: set[int] = set()
        out = self.folder / app / delivery / "out"
        for path in (out / "_spark_metadata").glob("[0-9]*"):
            for line in path.read_text().splitlines()[1:]:
                file = Path(json.loads(line)["path"].removeprefix("file:"))
                found.update(int(json.loads(row)["value"]) for row in file.open() if row.strip())
        return found

    def all_have_more(self, app: str, before: dict[str, set[int]]) -> bool:
        """Whether something was committed since, for each delivery."""
        return all(self.committed(app, delivery) - seen for delivery, seen in before.items())

    def trickle_until(self, what: Callable[[], object], timeout_s: float = 300) -> Any:
        """A few records again and again, until something is true; return it."""
        deadline = time.monotonic() + timeout_s
        while not (found := what()):
            self.produce(PARTITIONS)
            log = (self.folder / "log").read_text()[-4000:]
            assert self.process.poll() is None, log
            for query in self.queries:
                assert query.exception() is None
            assert time.monotonic() < deadline, log
            time.sleep(0.1)  # another process writes files: there is nothing to wait on
        return found

    def worker(self, delivery: str) -> int:
        """A process that is in the middle of a task of this query of `a` right now, or 0."""
        files = (self.folder / "a" / delivery / "working").glob("*")
        return next((int(path.name.partition("-")[0]) for path in files), 0)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def close(self) -> None:
        self.kill()
        for query in self.queries:
            query.stop()


@pytest.fixture
def world(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> Iterator[World]:
    topic = kafka_topic(partitions=PARTITIONS)
    world = World(spark, kafka.bootstrap_servers, topic, tmp_path)
    yield world
    world.close()
    kafka.delete_topic(f"{topic}.marshal")
    kafka.delete_topic(f"{topic}.marshal.snapshots")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_applications_of_which_workers_and_then_all_of_one_is_killed(world: World) -> None:
    at_least, at_most = DELIVERIES
    # Both applications hold partitions, for both deliveries.
    world.trickle_until(lambda: all(world.seen(app, d) for app in "ab" for d in DELIVERIES))
    for delivery in DELIVERIES:
        worker = world.trickle_until(partial(world.worker, delivery))
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        # Spark tries the task again, and what is new comes through `a` all the same.
        before = {d: world.committed("a", d) for d in DELIVERIES}
        world.trickle_until(partial(world.all_have_more, "a", before))
    world.kill()
    world.produce(100)
    last = set(range(world.written - 100, world.written))
    deadline = time.monotonic() + 150
    while not all(world.committed("b", d) >= last for d in DELIVERIES):
        assert time.monotonic() < deadline
        time.sleep(0.1)  # another process writes files: there is nothing to wait on

    everything = set(range(world.written))
    assert world.committed("a", at_least) | world.committed("b", at_least) == everything
    seen = world.seen("a", at_most) + world.seen("b", at_most)
    assert [n for n, times in seen.items() if times > 1] == []
    assert set(seen) <= everything


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

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    query = begun(writer.start)
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
