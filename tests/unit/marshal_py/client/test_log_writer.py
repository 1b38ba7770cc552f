"""The writer without a broker: what becomes of appends that cannot be made."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.client import log_writer as writing
from marshal_py.client.log_writer import LogWriter


class StubProducer:
    """Stands in for librdkafka's producer; `broken` makes every `produce` raise it."""

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.sent: list[bytes] = []
        self.held: list[Any] = []
        self.purged = False

    def produce(self, topic: str, value: bytes, *, on_delivery: Any, **_: Any) -> None:
        if self.broken is not None:
            raise self.broken
        self.sent.append(value)
        self.held.append(on_delivery)

    def purge(self) -> None:
        self.purged = True

    def poll(self, _: float) -> None:
        if self.purged:
            for report in self.held:
                report(KafkaError(KafkaError._PURGE_QUEUE), None)
            self.held.clear()


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[StubProducer]:
    made: list[StubProducer] = []

    def client(*_: object) -> StubProducer:
        made.append(StubProducer())
        return made[-1]

    monkeypatch.setattr(writing, "connect", client)
    return made


@pytest.fixture
def writer(producers: list[StubProducer]) -> LogWriter:
    return LogWriter({}, topic="t", snapshot_topic="s", timeout_ms=1_000)


def test_a_full_queue_is_a_failed_append(writer: LogWriter, producers: list[StubProducer]) -> None:
    producers[0].broken = BufferError("Local: Queue full")
    writer.append(0, 7, b"x")
    assert writer.take_failures() == [(7, "Local: Queue full")]
    assert writer.take_failures() == []


def test_a_producer_that_failed_for_good_is_replaced(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 1, b"before")
    producers[0].broken = KafkaException(KafkaError(KafkaError._FATAL))
    writer.append(0, 2, b"refused")
    writer.append(0, 3, b"after")
    assert producers[0].purged
    assert producers[1].sent == [b"after"]
    assert sorted(seq for seq, _ in writer.take_failures()) == [1, 2]
