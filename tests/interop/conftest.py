"""A broker of the last series that still takes Go Marshal's old protocol, and topics on it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from marshal_py import Marshal
from marshal_py.embedded import EmbeddedKafka
from tests.interop.processes import PeerProcess
from tests.support.messages import offset_of

HB = 4
_numbers = itertools.count()


@pytest.fixture(scope="session")
def kafka39() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(version="3.9.1") as server:
        yield server


class Stage:
    """One test's coordination topic, data topics and peers."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.kafka = kafka
        self.brokers = kafka.bootstrap_servers
        self.number = f"{os.getpid()}-{next(_numbers)}"
        self.log = kafka.create_topic(name=f"log-{self.number}", partitions=3)
        self.group = f"group-{self.number}"
        self._closing: list[Callable[[], object]] = []
        self._topics = [self.log]

    def topic(self, partitions: int = 2, messages: int = 0) -> str:
        """Create a data topic with `messages` messages in each partition."""
        name = self.kafka.create_topic(
            name=f"data-{self.number}-{len(self._topics)}", partitions=partitions
        )
        self._topics.append(name)
        self.produce(name, partitions, messages)
        return name

    def produce(self, topic: str, partitions: int, messages: int) -> None:
        producer = Producer(
            {"bootstrap.servers": self.brokers, "queue.buffering.max.messages": 1_000_000}
        )
        for number in range(messages):
            for partition in range(partitions):
                producer.produce(topic, str(number).encode(), partition=partition)
        producer.flush()

    def append(self, *values: bytes | None, partition: int) -> None:
        """Append records to the coordination topic as they are."""
        producer = Producer(
            {"bootstrap.servers": self.brokers, "queue.buffering.max.messages": 1_000_000}
        )
        for value in values:
            producer.produce(self.log, value, partition=partition)
        producer.flush()

    def records(self) -> list[Message]:
        """Return all messages of the coordination topic."""
        consumer = Consumer({"bootstrap.servers": self.brokers, "group.id": "none"})
        found: list[Message] = []
        try:
            for p in range(3):
                _, end = consumer.get_watermark_offsets(TopicPartition(self.log, p), timeout=120)
                consumer.assign([TopicPartition(self.log, p, 0)])
                while end and (
                    not found or found[-1].partition() != p or offset_of(found[-1]) + 1 < end
                ):
                    message = consumer.poll(10)
                    assert message is not None
                    found.append(message)
        finally:
            consumer.close()
        return found

    def go(self, client: str, topics: str, *args: object, hb: int = HB) -> PeerProcess:
        """Start a Go client."""
        peer = PeerProcess(
            "tests.interop.gopeer",
            *("-brokers", self.brokers, "-log", self.log, "-magic0"),
            *("-client", client, "-group", self.group, "-topics", topics, *args),
            hb=hb,
        )
        return self.kept(peer)

    def py(self, client: str, topics: str, *args: object, hb: int = HB) -> PeerProcess:
        """Start one of our consumers as a process."""
        peer = PeerProcess(
            "tests.interop.peer",
            *("consume", "-brokers", self.brokers, "-log", self.log),
            *("-client", client, "-group", self.group, "-topics", topics, *args),
            hb=hb,
        )
        return self.kept(peer)

    def kept(self, peer: PeerProcess) -> PeerProcess:
        """Have the peer killed when the test is over."""
        self._closing.append(lambda: peer.__exit__(None, None, None))
        return peer

    def ours(self, client: str, **settings: object) -> Marshal:
        """Start one of our clients in this process."""
        settings = {
            "group_id": self.group,
            "client_id": client,
            "interval_ms": HB * 1000,
            "topic": self.log,
            "wire": "text",
        } | settings
        marshal = Marshal(self.brokers, **settings)  # type: ignore[arg-type]
        marshal.start()
        self._closing.append(marshal.close)
        return marshal

    def close(self) -> None:
        for close in self._closing[::-1]:
            close()
        for topic in self._topics:
            self.kafka.delete_topic(topic)


@pytest.fixture
def stage(kafka39: EmbeddedKafka) -> Iterator[Stage]:
    found = Stage(kafka39)
    yield found
    found.close()
