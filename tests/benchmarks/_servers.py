"""Servers and logs that the benchmarks of the core share."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import Final, Literal

from confluent_kafka import Producer

from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.messages import ClaimingPartition, Heartbeat, encode
from marshal_py.protocol.world import coordinating_partition

OPTIMIZED: Final = ("-XX:TieredStopAtLevel=4",)
"""JVM options of brokers as they run in production.

The embedded broker leaves its optimizing compiler out, which starts sooner and is as quick with
large batches; at 1,000 requests of one record a second it then takes three times as long for each.
"""


def new_topic(kafka: EmbeddedKafka, partitions: int = 8) -> str:
    """Create a coordination topic with its snapshot topic and return its name."""
    name = f"__marshal.{uuid.uuid4().hex[:8]}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=partitions)
    return name


def one_group_each(partitions: int) -> list[str]:
    """Return the name of a group for each coordination partition."""
    found: dict[int, str] = {}
    for n in itertools.count():
        found.setdefault(coordinating_partition(f"group-{n}", partitions), f"group-{n}")
        if len(found) == partitions:
            return [found[p] for p in range(partitions)]
    raise AssertionError("unreachable")


def produce_all(
    producer: Producer, topic: str, records: Iterable[tuple[int, bytes | None, bytes]]
) -> None:
    """Write (partition, key, value), however many, and wait until the brokers have them."""
    for partition, key, value in records:
        while True:
            try:
                producer.produce(topic, value, key=key, partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError(f"{topic} could not be filled")


def append_all(
    kafka: EmbeddedKafka, topic: str, p: int, records: Iterable[bytes], *, together: bool = False
) -> None:
    """Append records, each in a batch of its own, as clients that write one now and then do.

    With `together`, in batches as large as they get.
    """
    batches = {"linger.ms": 5} if together else {"linger.ms": 0, "batch.num.messages": 1}
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, **batches}
    )
    produce_all(producer, topic, ((p, None, record) for record in records))


def fill_with_heartbeats(
    kafka: EmbeddedKafka, topic: str, count: int, *, cells: int = 1_000, partitions: int = 8
) -> None:
    """Append `cells` claims and then `count` accepted single-claim heartbeats of 100 clients."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 5,
        }
    )
    groups = one_group_each(partitions)
    offsets = [0] * partitions
    beats: list[tuple[int, bytes]] = []
    for n in range(cells):
        group = groups[n % partitions]
        p = coordinating_partition(group, partitions)
        head: tuple[Literal[2], str, str, str, int]
        head = (2, f"client-{n % 100}", f"{n % 100:016x}", group, n)
        producer.produce(topic, encode(ClaimingPartition(*head, "data", n, 5_000, -1)), partition=p)
        beats.append((p, encode(Heartbeat(*head, 5_000, 0, [offsets[p], 1_000]))))
        offsets[p] += 1
    for n in range(count):
        p, value = beats[n % cells]
        while True:
            try:
                producer.produce(topic, value, partition=p)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("the log could not be filled")
