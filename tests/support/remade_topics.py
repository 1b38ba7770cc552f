"""Doing to a coordination topic what nobody should: deleting it, making it anew, filling it."""

from __future__ import annotations

import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka

__all__ = ["create", "delete", "fill"]


def delete(kafka: EmbeddedKafka, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_topics(list(topics)).values():
        future.result(60)


def create(kafka: EmbeddedKafka, topic: str, partitions: int) -> None:
    """Create it and its snapshot topic, as soon as the brokers have forgotten the old ones."""
    deadline = time.monotonic() + 60
    while True:
        plans = create_topics(kafka.bootstrap_servers, topic=topic, partitions=partitions)
        if not plans[0].existed or time.monotonic() > deadline:
            return


def fill(kafka: EmbeddedKafka, topic: str, records: list[tuple[int, bytes | None]]) -> None:
    """Write (partition, value) records."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
    for partition, value in records:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0
