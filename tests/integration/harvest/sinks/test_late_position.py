"""What Kafka's transactions do not promise: a position that comes late (specs/HARVEST.md §5)."""

from __future__ import annotations

import logging
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import wait_until

pytestmark = pytest.mark.kafka

_TXN_OFFSET_COMMIT = 28
_INVALID_PRODUCER_EPOCH = 47


class _Pid(logging.Handler):
    """Hears what the brokers call a producer: librdkafka tells it nowhere but in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: tuple[int, int] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if pid := re.search(r"PID\{Id:(\d+),Epoch:(\d+)\}", record.getMessage()):
            self.found = int(pid[1]), int(pid[2])


class _Outbox:
    """Transactions that commit a position, as a sink has them."""

    def __init__(self, kafka: EmbeddedKafka, topic: str) -> None:
        self.kafka, self.topic, self.name = kafka, topic, f"late.{topic}"
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        self.reader = Consumer({**servers, "group.id": self.name, "enable.auto.commit": False})
        self.producer, self.pid = self.fence()

    def fence(self) -> tuple[Producer, tuple[int, int]]:
        heard, logger = _Pid(), logging.Logger("late", logging.DEBUG)
        logger.addHandler(heard)
        settings = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "transactional.id": self.name,
            "debug": "eos",
        }
        producer = Producer(settings, logger=logger)
        producer.init_transactions(30)
        wait_until(lambda: producer.poll(0.1) >= 0 and heard.found, "its id in the log")
        assert heard.found is not None
        return producer, heard.found

    def publish(self, position: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.producer.begin_transaction()
        self.producer.produce(self.topic, position)
        self.producer.send_offsets_to_transaction(
            [TopicPartition(self.topic, 0, 0, metadata=position)],
            self.reader.consumer_group_metadata(),
            30,
        )
        meanwhile()
        self.producer.commit_transaction(30)

    def committed(self) -> str:
        (found,) = self.reader.committed([TopicPartition(self.topic, 0)], 30)
        return str(found.metadata)

    def arrive(self, position: str, pid: tuple[int, int]) -> int:
        """What a connection that has been given up may have held back; the broker's error code."""
        body = _text(self.name) + _text(self.name) + struct.pack(">qhi", *pid, -1) + _text("")
        body += b"\0\2" + _text(self.topic) + b"\2" + struct.pack(">iqi", 0, 0, -1)
        body += _text(f"{position}\0") + b"\0\0\0"
        head = struct.pack(">hhih", _TXN_OFFSET_COMMIT, 3, 1, 4) + b"late\0"
        host, _, port = self.kafka.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port)), 30) as connection:
            stream = connection.makefile("rwb")
            stream.write(struct.pack(">i", len(head + body)) + head + body)
            stream.flush()
            (length,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(length)
        code: int = struct.unpack(">h", answer[-5:-3])[0]
        return code


def _text(text: str) -> bytes:
    """Compact, as flexible versions of the protocol have it; for less than 127 bytes."""
    encoded = text.encode()
    return bytes([len(encoded) + 1]) + encoded


@pytest.fixture
def outbox(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> Iterator[_Outbox]:
    made = _Outbox(kafka, kafka_topic(partitions=1))
    with closing(made.reader):
        yield made


def test_a_position_that_comes_late_counts_for_the_transaction_that_is_open_then(
    outbox: _Outbox,
) -> None:
    """Brokers know a producer and its epoch, and not which transaction a position was sent in."""
    codes: list[Any] = []
    outbox.publish("first")
    outbox.publish("second", lambda: codes.append(outbox.arrive("first", outbox.pid)))
    assert codes == [0]
    assert outbox.committed() == "first"


def test_of_a_producer_that_was_fenced_no_position_comes_late(outbox: _Outbox) -> None:
    codes: list[Any] = []
    outbox.publish("first")
    before = outbox.pid
    outbox.producer, outbox.pid = outbox.fence()
    outbox.publish("second", lambda: codes.append(outbox.arrive("first", before)))
    assert codes == [_INVALID_PRODUCER_EPOCH]
    assert outbox.committed() == "second"
