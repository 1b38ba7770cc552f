"""Reads topics as an application would."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition


def read_topic(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None, Any]]:
    """Everything that a read_committed reader sees, partition after partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: dict[int, list[tuple[bytes | None, bytes | None, Any]]] = {p: [] for p in partitions}
        ended: set[int] = set()
        while len(ended) < len(partitions):
            for message in consumer.consume(1000, timeout=0.1):
                if message.error() is None:
                    found[message.partition()].append(
                        (message.key(), message.value(), message.headers())
                    )
                else:
                    ended.add(message.partition())
        return [m for p in sorted(found) for m in found[p]]
    finally:
        consumer.close()
