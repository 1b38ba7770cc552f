"""Throughput of one consumer, 1 KB messages, against a bare confluent-kafka loop in the same run.

Each repeat runs all of them in turn. The first 200,000 messages of a run warm it up: a consumer at
most once measures the pace of its loop before it claims far ahead. What they take is told, too.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition

from marshal_py import Consumer
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import new_topic, produce_all
from tests.benchmarks.harness import Figure, Options, median, run, say

FETCH: dict[str, Any] = {"fetch.queue.backoff.ms": 5, "queued.min.messages": 300_000}
"""The same for both: librdkafka's defaults rest for up to a second when the queue is full."""

LEAST: Final = {"ALO": 0.95, "ALO batches": 0.95, "AMO": 0.9}
"""So much of the bare loop's rate is wanted."""

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


class Pace(NamedTuple):
    """How fast one run was."""

    rate: float
    """Messages a second, after the warm-up."""
    warm_up_ms: float = 0.0
    """How long the warm-up took, from the first message on."""


def pace(messages: Iterable[Any], count: int, warm_up: int = 1) -> Pace:
    """Take so many messages to warm up, and `count` after them."""
    started = warmed = 0.0
    for got, _ in enumerate(messages, start=1):
        if got == 1:
            started = warmed = time.perf_counter()
        if got == warm_up:
            warmed = time.perf_counter()
        elif got == warm_up + count:
            break
    return Pace(count / (time.perf_counter() - warmed), (warmed - started) * 1e3)


def bare(kafka: EmbeddedKafka, topic: str, partitions: int, count: int, warm_up: int = 1) -> Pace:
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
    started = warmed = 0.0
    while got < warm_up + count:
        for message in consumer.consume(1_000, 0.1):
            if message.error() is not None:
                raise RuntimeError(message.error())
            got += 1
            if got == 1:
                started = warmed = time.perf_counter()
            if got == warm_up:
                warmed = time.perf_counter()
    seconds = time.perf_counter() - warmed
    consumer.close()
    return Pace((got - warm_up) / seconds, (warmed - started) * 1e3)


def ours(
    kafka: EmbeddedKafka,
    coordination: str,
    topic: str,
    count: int,
    warm_up: int,
    mode: str,
    iterate: Callable[[Consumer], Iterable[Any]],
) -> Pace:
    with Consumer(
        kafka.bootstrap_servers,
        group_id=f"bench-{next(_groups)}",
        topics=[topic],
        topic=coordination,
        mode=mode,  # type: ignore[arg-type]
        kafka=FETCH,
    ) as consumer:
        return pace(iterate(consumer), count, warm_up)


def _messages(consumer: Consumer) -> Iterable[Any]:
    return consumer


def _batched(consumer: Consumer) -> Iterable[Any]:
    return itertools.chain.from_iterable(consumer.batches())


def measure(options: Options) -> list[Figure]:
    count, warm_up = (100_000, 50_000) if options.quick else (2_000_000, 200_000)
    figures = []
    with EmbeddedKafka() as kafka:
        coordination = new_topic(kafka)
        for partitions in (1, 6):
            topic = fill(kafka, count + warm_up, partitions)
            bare(kafka, topic, partitions, count, warm_up)  # into the page cache
            found: dict[str, list[Pace]] = {name: [] for name in ("bare", *LEAST)}
            for _ in range(options.repeats):
                found["bare"].append(bare(kafka, topic, partitions, count, warm_up))
                for name, mode, iterate in (
                    ("ALO", "at_least_once", _messages),
                    ("ALO batches", "at_least_once", _batched),
                    ("AMO", "at_most_once", _messages),
                ):
                    found[name].append(
                        ours(kafka, coordination, topic, count, warm_up, mode, iterate)
                    )
                say(
                    f"{partitions}: "
                    + ", ".join(
                        f"{name} {last.rate:,.0f} (warm-up {last.warm_up_ms:.0f} ms)"
                        for name, (*_, last) in found.items()
                    )
                )
            of = f"{partitions} partition{'s' * (partitions > 1)}"
            baseline = median([each.rate for each in found["bare"]])
            for name, least in LEAST.items():
                value = median([each.rate for each in found[name]])
                figures.append(
                    Figure(
                        f"{name}, {of}",
                        value,
                        "messages/s",
                        baseline,
                        f"≥ {least} of a bare loop",
                        value >= least * baseline,
                    )
                )
                figures.append(
                    Figure(
                        f"{name}, {of}: the first {warm_up:,}",
                        median([each.warm_up_ms for each in found[name]]),
                        "ms",
                        median([each.warm_up_ms for each in found["bare"]]),
                    )
                )
    return figures


if __name__ == "__main__":
    run(measure, __doc__)
