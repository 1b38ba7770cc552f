"""Reads topics as an application would."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition


def read_topic(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None, Any]]:
    """Everything that a read_committed reader sees now, partition after partition.

    Up to the end as it is at the call: where records never cease to come, the consumer is never
    told that it has reached the end.
    """
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
        all_of = [TopicPartition(topic, partition, 0) for partition in partitions]
        ends = {part.partition: consumer.get_watermark_offsets(part)[1] for part in all_of}
        consumer.assign(all_of)
        found: dict[int, list[tuple[bytes | None, bytes | None, Any]]] = {p: [] for p in partitions}
        unread = {partition for partition, end in ends.items() if end > 0}
        while unread:
            for message in consumer.consume(1000, timeout=0.1):
                partition = message.partition()
                if message.error() is not None:
                    unread.discard(partition)  # its end: what is left are markers
                    continue
                if message.offset() < ends[partition]:
                    found[partition].append((message.key(), message.value(), message.headers()))
                if message.offset() >= ends[partition] - 1:
                    unread.discard(partition)
        return [m for p in sorted(found) for m in found[p]]
    finally:
        consumer.close()
