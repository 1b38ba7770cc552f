"""Throughput of one consumer, 1 KB messages, against a bare confluent-kafka loop in the same run.

Each repeat runs all of them in turn. The clock of a run starts with the first message.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition

from marshal_py import Consumer
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import new_topic, produce_all
from tests.benchmarks.harness import Figure, Options, median, run, say

FETCH: dict[str, Any] = {"fetch.queue.backoff.ms": 5, "queued.min.messages": 300_000}
"""The same for both: librdkafka's defaults rest for up to a second when the queue is full."""

_groups = itertools.count()


def fill(kafka: EmbeddedKafka, count: int, partitions: int) -> str:
    """Create a topic with `count` messages of 1,000 bytes."""
    topic = kafka.create_topic(partitions=partitions)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "queue.buffering.max.messages": 500_000,
            "linger.ms": 20,
            "batch.size": 1_000_000,
        }
    )
    value = os.urandom(1_000)
    produce_all(producer, topic, ((n % partitions, None, value) for n in range(count)))
    return topic


def rate(messages: Iterable[Any], count: int) -> float:
    """Return messages a second, from the first one on."""
    started = 0.0
    for got, _ in enumerate(messages, start=1):
        if got == 1:
            started = time.perf_counter()
        if got == count:
            break
    return (count - 1) / (time.perf_counter() - started)


def bare(kafka: EmbeddedKafka, topic: str, partitions: int, count: int) -> float:
    """The loop that a user would write without us: consume, and look at each message."""
    consumer = KafkaConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "bare",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **FETCH,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    got = 0
    started = 0.0
    while got < count:
        for message in consumer.consume(1_000, 0.1):
            if message.error() is not None:
                raise RuntimeError(message.error())
            if not got:
                started = time.perf_counter()
            got += 1
    seconds = time.perf_counter() - started
    consumer.close()
    return (got - 1) / seconds


def ours(
    kafka: EmbeddedKafka,
    coordination: str,
    topic: str,
    count: int,
    mode: str,
    iterate: Callable[[Consumer], Iterable[Any]],
) -> float:
    with Consumer(
        kafka.bootstrap_servers,
        group_id=f"bench-{next(_groups)}",
        topics=[topic],
        topic=coordination,
        mode=mode,  # type: ignore[arg-type]
        kafka=FETCH,
    ) as consumer:
        return rate(iterate(consumer), count)


def _messages(consumer: Consumer) -> Iterable[Any]:
    return consumer


def _batched(consumer: Consumer) -> Iterable[Any]:
    return itertools.chain.from_iterable(consumer.batches())


def measure(options: Options) -> list[Figure]:
    count = 60_000 if options.quick else 600_000
    figures = []
    with EmbeddedKafka() as kafka:
        coordination = new_topic(kafka)
        for partitions in (1, 6):
            topic = fill(kafka, count, partitions)
            bare(kafka, topic, partitions, count)  # into the page cache
            rates: dict[str, list[float]] = {"bare": [], "ALO": [], "AMO": [], "ALO batches": []}
            for _ in range(options.repeats):
                rates["bare"].append(bare(kafka, topic, partitions, count))
                for name, mode, iterate in (
                    ("ALO", "at_least_once", _messages),
                    ("ALO batches", "at_least_once", _batched),
                    ("AMO", "at_most_once", _messages),
                ):
                    found = ours(kafka, coordination, topic, count, mode, iterate)
                    rates[name].append(found)
                say(f"{partitions}: " + ", ".join(f"{n} {v[-1]:,.0f}" for n, v in rates.items()))
            baseline = median(rates["bare"])
            for name, least in (("ALO", 0.9), ("ALO batches", 0.9), ("AMO", 0.8)):
                value = median(rates[name])
                figures.append(
                    Figure(
                        f"{name}, {partitions} partition{'s' * (partitions > 1)}",
                        value,
                        "messages/s",
                        baseline,
                        f"≥ {least} of a bare loop",
                        value >= least * baseline,
                    )
                )
    return figures


if __name__ == "__main__":
    run(measure, __doc__)
