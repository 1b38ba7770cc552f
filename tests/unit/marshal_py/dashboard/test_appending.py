"""Records that are appended: of each it is told what became of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.dashboard import appending as module
from marshal_py.dashboard.appending import NewRecord, append
from marshal_py.testing import TestBroker

RECORDS = [NewRecord("orders", p, b"key", b"value", [("name", b"x")]) for p in range(3)]


class Producer:
    """Delivers when it is polled, in no order, unless it fails."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.waiting: list[tuple[int, Callable[[Any, Any], None]]] = []
        self.refuses: dict[int, Exception] = {}
        self.undelivered: dict[int, KafkaError] = {}
        self.failure: Exception | None = None
        self.left = len(RECORDS)
        """It fails when so many wait."""

    def produce(self, _topic: str, _value: bytes, _key: bytes, partition: int, **more: Any) -> None:
        if partition in self.refuses:
            raise self.refuses[partition]
        self.waiting.append((partition, more["on_delivery"]))

    def poll(self, timeout_s: float) -> None:
        if timeout_s == 0:
            return
        if self.failure is not None and len(self.waiting) <= self.left:
            raise self.failure
        partition, told = self.waiting.pop()
        told(self.undelivered.get(partition), SimpleNamespace(offset=lambda: 100 + partition))


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    found = Producer()

    def connect(_kind: object, settings: dict[str, Any]) -> Producer:
        found.settings = settings
        return found

    monkeypatch.setattr(module, "connect", connect)
    return found


def append_all() -> list[tuple[int, int | None]]:
    found = append({"bootstrap.servers": "nowhere:1", "acks": "0"}, RECORDS)
    return [(each.offset, None if each.error is None else each.error.code()) for each in found]


def test_each_record_is_told_its_offset_in_whatever_order_they_arrive(
    producer: Producer,
) -> None:
    assert append_all() == [(100, None), (101, None), (102, None)]


def test_nothing_counts_as_written_before_all_replicas_have_it(producer: Producer) -> None:
    append_all()
    assert producer.settings["acks"] == "all"
    assert producer.settings["enable.idempotence"] is True


def test_one_that_fails_is_told_and_the_others_are_written(producer: Producer) -> None:
    producer.undelivered[1] = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    producer.refuses[2] = BufferError()
    assert append_all() == [
        (100, None),
        (-1, KafkaError.TOPIC_AUTHORIZATION_FAILED),
        (-1, KafkaError._QUEUE_FULL),
    ]
    producer.refuses[2] = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert append_all()[2] == (-1, KafkaError.MSG_SIZE_TOO_LARGE)


def test_what_its_topic_takes_is_put_back_however_large(mock_kafka: TestBroker) -> None:
    """A message that librdkafka's producers would not take by default may be a dead letter."""
    topic = mock_kafka.create_topic("orders")
    (found,) = append(mock_kafka.config, [NewRecord(topic, 0, b"k", bytes(1_040_000), [])])
    assert found == (0, None)


@pytest.mark.parametrize(
    "failure", [KafkaException(KafkaError(KafkaError._FATAL, "fenced")), SystemError("returned")]
)
def test_a_producer_that_fails_for_good_is_not_waited_for(
    producer: Producer, failure: Exception
) -> None:
    producer.failure = failure
    assert append_all() == [(-1, KafkaError._FATAL)] * 3
    producer.waiting.clear()
    producer.left = 1
    assert append_all() == [(-1, KafkaError._FATAL), (101, None), (102, None)], "written before"
