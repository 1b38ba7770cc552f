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
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable

from marshal_py import Marshal
from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import ConfigurationError
from marshal_py.spark.source import TICK, ClaimedReader, MarshalSource, SourceOptions
from tests.spark.source_app import DELIVERIES, begun, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


class Runs:
    """Runs of a query with the trigger availableNow over a topic of two partitions."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, folder: Path) -> None:
        self.spark, self.servers, self.topic, self.folder = spark, servers, topic, folder
        self.batches: list[int] = []
        """Rows of each batch of the last run that had any."""
        self.progress: dict[str, Any] = {}
        spark.dataSource.register(MarshalSource)
        self._producer = Producer({"bootstrap.servers": servers})

    def produce(self, numbers: range) -> None:
        for n in numbers:
            value = None if n % 9 == 0 else f"v{n}"
            headers: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("", None)]
            self._producer.produce(
                self.topic, value, f"k{n}", partition=n % 2, headers=[] if value else headers
            )
        assert self._producer.flush(60) == 0

    def frame(self, **options: str) -> DataFrame:
        reader = (
            self.spark.readStream.format("marshal")
            .option("kafka.bootstrap.servers", self.servers)
            .option("groupId", "g")
            .option("topics", self.topic)
            .option("intervalMs", "500")
            .option("includeHeaders", "true")
            .option("coordinationTopic", f"{self.topic}.marshal")
        )
        return reader.options(**options).load()

    def run(self, checkpoint: str = "c", **options: str) -> list[tuple[Any, ...]]:
        """What a run reads, in the order of the partitions."""
        rows: list[tuple[Any, ...]] = []
        self.batches = []

        def take(batch: DataFrame, _number: int) -> None:
            found = [tuple(row) for row in batch.collect()]
            rows.extend(found)
            self.batches.extend([len(found)] if found else [])

        writer = self.frame(**options).writeStream.foreachBatch(take).trigger(availableNow=True)
        where = str(self.folder / checkpoint)
        query = begun(writer.option("checkpointLocation", where).start)
        assert query.awaitTermination(100)
        self.progress = dict(query.recentProgress[-1]["sources"][0])
        return sorted(rows, key=lambda row: (row[3], row[4]))

    def keys(self, checkpoint: str = "c", **options: str) -> list[int]:
        """The numbers of the records that a run reads."""
        return sorted(int(row[0][1:]) for row in self.run(checkpoint, **options))


@pytest.fixture
def runs(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> Runs:
    return Runs(spark, kafka.bootstrap_servers, kafka_topic(partitions=2), tmp_path)


def test_available_now_reads_what_is_there_as_the_native_source_does(runs: Runs) -> None:
    runs.produce(range(100))
    native = (
        runs.spark.read.format("kafka")
        .option("kafka.bootstrap.servers", runs.servers)
        .option("subscribe", runs.topic)
        .option("includeHeaders", "true")
        .load()
    )
    assert runs.frame().schema == native.schema
    rows = runs.run(maxOffsetsPerTrigger="40")
    assert rows == sorted((tuple(row) for row in native.collect()), key=lambda r: (r[3], r[4]))
    assert max(runs.batches) <= 40
    lag = {name: entry["lag"] for name, entry in json.loads(runs.progress["latestOffset"]).items()}
    assert lag == {f"{runs.topic}/0": 0, f"{runs.topic}/1": 0}
    # At once again, from the same checkpoint: what is new, and nothing else.
    runs.produce(range(100, 110))
    assert runs.keys() == list(range(100, 110))
    # From another checkpoint: where the group is matters, and not what Spark has noted.
    assert runs.keys("another") == []


def test_available_now_leaves_what_a_living_client_holds_and_waits_for_a_dead_one(
    runs: Runs,
) -> None:
    runs.produce(range(10))
    other = Marshal(
        runs.servers,
        group_id="g",
        client_id="other",
        interval_ms=500,
        topic=f"{runs.topic}.marshal",
        create_topics=True,
    ).start()
    other.claim(runs.topic, 1)
    assert runs.keys() == list(range(0, 10, 2))
    assert json.loads(runs.progress["latestOffset"])[f"{runs.topic}/1"] == {"offset": 5, "lag": 5}
    other.close(release=False)  # as one that was killed
    assert runs.keys() == list(range(1, 10, 2))


def test_what_was_deleted_before_it_was_read_keeps_no_query_from_going_on(runs: Runs) -> None:
    runs.produce(range(4))
    assert runs.keys() == [0, 1, 2, 3]
    runs.produce(range(4, 10))
    admin = AdminClient({"bootstrap.servers": runs.servers})
    [deleted] = admin.delete_records([TopicPartition(runs.topic, 0, 4)]).values()
    deleted.result(30)
    assert runs.keys() == [5, 7, 8, 9]


def test_a_batch_ends_at_marks_of_transactions(runs: Runs) -> None:
    """No record is at the last offset, nor will there be one."""
    producer = Producer({"bootstrap.servers": runs.servers, "transactional.id": runs.topic})
    producer.init_transactions()
    for n, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(runs.topic, "v", f"k{n}", partition=0)
        assert producer.flush(30) == 0
        end()
    assert runs.keys() == [0]
    assert runs.keys() == []


def test_latest_is_remembered_from_the_first_run_on(runs: Runs) -> None:
    runs.produce(range(10))
    assert runs.keys(startingOffsets="latest") == []
    runs.produce(range(10, 14))
    assert runs.keys(startingOffsets="latest") == list(range(10, 14))


def test_each_partition_has_its_starting_offset(runs: Runs) -> None:
    runs.produce(range(10))
    each = json.dumps({runs.topic: {"0": 3, "1": -1}})
    chosen = {"delivery": "at-most-once", "startingOffsets": each}
    assert runs.keys(**chosen) == [6, 8]
    runs.produce(range(10, 12))
    assert runs.keys(**chosen) == [10, 11]


@pytest.mark.parametrize("true", ["true", "True"])
def test_at_most_once_refuses_speculation(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, true: str
) -> None:
    class Context:
        @staticmethod
        def getLocalProperty(name: str) -> str:
            return {"spark.speculation": true}[name]

    given = {"kafka.bootstrap.servers": "x", "groupId": "g", "topics": "t"}
    options = SourceOptions.of({**given, "delivery": "at-most-once"})
    reader = ClaimedReader(options)
    (probe,) = reader.partitions({TICK: 0}, reader.latestOffset({TICK: 0}, ReadAllAvailable()))
    assert list(reader.read(probe)) == []
    monkeypatch.setattr(TaskContext, "get", Context)
    with pytest.raises(ConfigurationError, match=r"set spark\.speculation=false"):
        reader.read(probe)


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
        *[
            (
                {"kafka.bootstrap.servers": "x", "groupId": "g", "topics": "t", **wrong},
                next(iter(wrong)),
            )
            for wrong in (
                {"startingOffsets": "5"},
                {"startingOffsets": "first"},
                {"startingOffsets": '{"t": {"0": -3}}'},
                {"startingOffsets": '{"u": {"0": 3}}'},
                {"includeHeaders": "1"},
            )
        ],
    ],
)
def test_wrong_options_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named.replace("?", r"\?")):
        SourceOptions.of(options)
