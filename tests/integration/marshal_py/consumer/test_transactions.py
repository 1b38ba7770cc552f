"""Exactly once from Kafka to Kafka, whatever is killed, suspended or started twice."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from marshal_py import ConfigurationError, Consumer, GroupAdmin, Transactions
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.integration.marshal_py.consumer.test_topic_made_anew import cut_off
from tests.support.consumers import INTERVAL_MS, Process, fill, pid_suffix, processes, until
from tests.support.messages import number_of, partition_of

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_names = itertools.count()
PARTITIONS = 4

CHILD = """
import json, logging, sys, time
from marshal_py import Consumer, Transactions

logging.basicConfig(level=logging.ERROR)
settings = json.loads(sys.argv[1])
settings.pop("log")
target, pause_s = settings.pop("target"), settings.pop("pause_s")
settings.update(auto_ack=False, batch_size=25)

def copy(batch, producer):
    for message in batch:
        producer.produce(target, message.value(), partition=message.partition())
        time.sleep(pause_s)

with Consumer(settings.pop("servers"), **settings) as consumer:
    with Transactions(consumer) as transactions:
        transactions.run(copy)
"""


def committed(kafka: EmbeddedKafka, topic: str) -> list[tuple[int, int]]:
    """What a reader of committed messages gets: (partition, number)."""
    reader = KafkaConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: list[tuple[int, int]] = []
    ended: set[int | None] = set()
    while len(ended) < PARTITIONS:
        for message in reader.consume(1000, 1.0):
            error = message.error()
            if error is None:
                found.append((partition_of(message), number_of(message)))
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                ended.add(message.partition())
    reader.close()
    return found


class Pipeline:
    """Three processes that copy one topic to another."""

    def __init__(
        self, kafka: EmbeddedKafka, make_topic: Callable[..., str], folder: Path, names: str = "abc"
    ) -> None:
        self.kafka = kafka
        self.source = make_topic(partitions=PARTITIONS)
        self.target = make_topic(partitions=PARTITIONS)
        self.coordination = f"__marshal.tx.{pid_suffix()}.{next(_names)}"
        create_topics(kafka.bootstrap_servers, topic=self.coordination, partitions=4)
        self.group = f"tx-{self.source}"
        settings = {
            "group_id": self.group,
            "topics": [self.source],
            "topic": self.coordination,
            "interval_ms": INTERVAL_MS,
            "target": self.target,
        }
        self.copiers = [
            Process(kafka.bootstrap_servers, folder, name, settings, 0.001, child=CHILD)
            for name in names
        ]

    def consumer(self) -> Consumer:
        """One that reads the source, in this process."""
        return Consumer(
            self.kafka.bootstrap_servers,
            group_id=self.group,
            client_id="a",
            topics=self.source,
            topic=self.coordination,
            auto_ack=False,
        )

    def work(self, count: int, *, begin: int | None = None) -> None:
        """Copy in this process until so many messages are there. `begin`: from this offset on."""
        with (
            self.consumer() as consumer,
            Transactions(consumer) as transactions,
            ThreadPoolExecutor(1) as pool,
        ):
            if begin is not None:
                until(lambda: 0 in {claim.partition for claim in consumer.claims()})
                consumer.seek(self.source, 0, begin)
            running = pool.submit(transactions.run, self.copy)
            try:
                until(lambda: running.done() or len(committed(self.kafka, self.target)) >= count)
            finally:
                consumer.close()
            running.result()

    def copy(self, batch: Any, producer: Any) -> None:
        """What a copier does with a batch."""
        for message in batch:
            producer.produce(self.target, message.value(), partition=batch.partition)

    def done(self) -> int:
        """How many messages of the source count as processed."""
        reader = KafkaConsumer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": self.group}
        )
        where = [TopicPartition(self.source, p) for p in range(PARTITIONS)]
        try:
            return sum(max(0, at.offset) for at in reader.committed(where, timeout=120))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:  # the broker has just started
                raise
            return 0
        finally:
            reader.close()


def harm(pipeline: Pipeline, order: random.Random) -> None:
    victim = order.choice(pipeline.copiers)
    time.sleep(order.random() * 0.6)
    if order.random() < 0.6:
        victim.kill()
        time.sleep(order.random() * 3 * INTERVAL_MS / 1000)
        victim.start()
    else:
        victim.signal(signal.SIGSTOP)
        time.sleep((2 + 2 * order.random()) * INTERVAL_MS / 1000)  # until another has taken over
        victim.signal(signal.SIGCONT)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_message_counts_once_wherever_a_process_is_killed_or_suspended(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path, seed: int
) -> None:
    pipeline = Pipeline(kafka, kafka_topic, tmp_path)
    order, count = random.Random(seed), 4_000
    fill(kafka.bootstrap_servers, pipeline.source, count, partitions=PARTITIONS)
    with processes(*pipeline.copiers):
        for copier in pipeline.copiers:
            copier.start()
        until(lambda: pipeline.done() > 0, what="nothing is copied")
        harmed = 0
        while pipeline.done() < count * 3 // 4 and harmed < 5:
            harm(pipeline, order)
            harmed += 1
        until(lambda: pipeline.done() == count, 90, "some message was never copied")
    assert harmed > 0
    found = committed(kafka, pipeline.target)
    assert [n for n, times in Counter(n for _, n in found).items() if times > 1] == []
    assert sorted(n for _, n in found) == list(range(count))
    for p in range(PARTITIONS):
        mine = [n for q, n in found if q == p]
        assert mine == sorted(mine), "in order, too"


def test_two_processes_of_one_name_write_nothing_twice(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka, kafka_topic, tmp_path, "a")
    first = pipeline.copiers[0]
    (tmp_path / "twin").mkdir()
    twin = Process(first.servers, tmp_path / "twin", "a", first.settings, 0.001, child=CHILD)
    fill(kafka.bootstrap_servers, pipeline.source, 2_000, partitions=PARTITIONS)
    with processes(first, twin):
        first.start()
        until(lambda: pipeline.done() > 100)
        twin.start()
        until(lambda: not first.running, what="the first one should stop with an error")
        until(lambda: pipeline.done() == 2_000, 60)
    assert sorted(n for _, n in committed(kafka, pipeline.target)) == list(range(2_000))


def test_a_transformation_that_fails_writes_nothing_and_is_told(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka, kafka_topic, tmp_path, "a")
    fill(kafka.bootstrap_servers, pipeline.source, 40, partitions=PARTITIONS)

    def half(batch: Any, producer: Any) -> None:
        producer.produce(pipeline.target, batch[0].value(), partition=batch.partition)
        producer.flush(60)
        raise ValueError("half done")

    with (
        pytest.raises(ValueError, match="half done"),
        pipeline.consumer() as one,
        Transactions(one) as transactions,
    ):
        transactions.run(half)
    assert committed(kafka, pipeline.target) == []
    pipeline.work(40)
    assert sorted(n for _, n in committed(kafka, pipeline.target)) == list(range(40))
    # Going back on purpose: Kafka's own offsets follow, so that the messages count again.
    with GroupAdmin(kafka.bootstrap_servers, pipeline.group, topic=pipeline.coordination) as admin:
        admin.set_positions({(pipeline.source, 0): "-5"})
    pipeline.work(45)
    assert len(committed(kafka, pipeline.target)) == 45


@pytest.mark.parametrize("why", ["seek", "cut off"])
def test_messages_from_a_position_on_that_was_set_back_count_again(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path, why: str
) -> None:
    """What Kafka has committed is ahead of it, and of before."""
    pipeline = Pipeline(kafka, kafka_topic, tmp_path, "a")
    for first in (0, 20):
        fill(kafka.bootstrap_servers, pipeline.source, 20, partitions=1, start=first)

    pipeline.work(40)
    assert sorted(n for _, n in committed(kafka, pipeline.target)) == list(range(40))
    if why == "seek":
        again = list(range(20, 40))
        pipeline.work(60, begin=20)
    else:
        kafka.kill()
        cut_off(kafka, pipeline.source, 20)
        kafka.start()
        again = list(range(1_000, 1_030))
        fill(kafka.bootstrap_servers, pipeline.source, 30, partitions=1, start=1_000)
        pipeline.work(70)
    everything = sorted([*range(40), *again])
    assert sorted(n for _, n in committed(kafka, pipeline.target)) == everything
    with pipeline.consumer() as consumer, Transactions(consumer) as transactions:
        transactions.run(pipeline.copy, idle_timeout_s=8)
    assert sorted(n for _, n in committed(kafka, pipeline.target)) == everything


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "auto_ack=False"),
        ({"mode": "at_most_once"}, "mode='at_least_once'"),
        ({"auto_ack": False, "mirror_offsets": True}, "mirror_offsets would overwrite"),
    ],
)
def test_consumers_that_do_not_fit_are_refused(settings: dict[str, Any], text: str) -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics="t", **settings)
    with pytest.raises(ConfigurationError, match=text):
        Transactions(consumer)
