"""Reads topics as an application would."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

Record = tuple[bytes | None, bytes | None, Any]


def read_topic(servers: str, topic: str, timeout_s: float = 60.0) -> list[Record]:
    """What a read_committed reader sees, partition after partition.

    Everything that had been written when it was called, also if writing goes on: to wait for a
    moment when there is nothing more to read could take for ever then. Raises AssertionError when
    a transaction stays undecided for `timeout_s`.
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
        partitions = consumer.list_topics(topic, timeout=120).topics[topic].partitions
        deadline = time.monotonic() + timeout_s
        ends = end_offsets(servers, topic, partitions, IsolationLevel.READ_UNCOMMITTED, deadline)
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: dict[int, list[Record]] = {p: [] for p in partitions}
        unread = {p for p in partitions if ends[p] > 0}
        while unread:
            for message in consumer.consume(1000, timeout=0.1):
                p, offset = message.partition(), message.offset()
                if p is None or offset is None:
                    continue  # an error that is not about a place
                if message.error() is None and offset < ends[p]:
                    found[p].append((message.key(), message.value(), message.headers()))
                    offset += 1
                # The last records before the end may be markers, which are not delivered: then
                # the end is known to be reached from a later record, or the report of the end.
                if offset >= ends[p]:
                    unread.discard(p)
            if time.monotonic() > deadline:
                stable = end_offsets(
                    servers, topic, unread, IsolationLevel.READ_COMMITTED, deadline
                )
                state = ", ".join(f"{p} stable to {stable[p]} of {ends[p]}" for p in sorted(unread))
                raise AssertionError(f"{topic} is not at its end after {timeout_s} s: {state}")
        return [record for p in sorted(found) for record in found[p]]
    finally:
        consumer.close()


class TopicCounter:
    """How many records of a topic a read_committed reader has seen; reads each of them once.

    To be asked again and again, from one thread.
    """

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "counter",
                "fetch.wait.max.ms": 20,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=120).topics[topic].partitions
        self._next = dict.fromkeys(partitions, 0)
        self._consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        self._topic = topic
        self._count = 0

    def count(self, timeout_s: float = 60.0) -> int:
        """So many at least as the partitions knew to be committed when it was called. Raises
        AssertionError when these do not come for `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        ends = end_offsets(
            self._servers, self._topic, self._next, IsolationLevel.READ_COMMITTED, deadline
        )
        while any(self._next[p] < end for p, end in ends.items()):
            for message in self._consumer.consume(1000, timeout=0.1):
                p, offset = message.partition(), message.offset()
                error = message.error()
                if p is None or offset is None:
                    continue  # an error that is not about a place
                if error is None:
                    self._count += 1
                    offset += 1
                elif error.code() != KafkaError._PARTITION_EOF:
                    continue
                self._next[p] = max(self._next[p], offset)
            assert time.monotonic() < deadline, f"{self._topic}: {self._next} of {ends}"
        return self._count

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()


def end_offsets(
    servers: str,
    topic: str,
    partitions: Iterable[int],
    isolation: IsolationLevel,
    deadline: float,
) -> dict[int, int]:
    """The high watermarks, or for READ_COMMITTED the last stable offsets."""
    admin = AdminClient({"bootstrap.servers": servers})
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, p): latest for p in partitions}
    while True:
        futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=10)
        try:
            return {where.partition: future.result().offset for where, future in futures.items()}
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # a broker has just been killed, or starts: it has no leaders yet
