"""Appending a few records to a topic, each of them awaited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from marshal_py.client.kafka_clients import (
    ANY_SIZE,
    PRODUCER_FAILED,
    RECONNECT,
    connect,
    failure_of,
)
from marshal_py.client.settings import KafkaConfig

__all__ = ["Appended", "NewRecord", "append"]

DELIVERY_MS: Final = 30_000


class NewRecord(NamedTuple):
    """What is to be appended, and where."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Appended(NamedTuple):
    """Where a record is now, or why it is nowhere."""

    offset: int
    error: KafkaError | None


def append(kafka: KafkaConfig, records: Sequence[NewRecord]) -> list[Appended]:
    """Append records in this order, to all in-sync replicas; return what became of each.

    Returns when the brokers have answered for all of them, or have not for 30 s.
    """
    producer = connect(
        Producer,
        {
            **RECONNECT,
            **ANY_SIZE,
            "delivery.timeout.ms": DELIVERY_MS,
            **kafka,
            "acks": "all",
            "enable.idempotence": True,
        },
    )
    done: dict[int, Appended] = {}
    try:
        for index, record in enumerate(records):
            _produce(producer, record, done, index)
            producer.poll(0)
        while len(done) < len(records):  # the producer gives up by itself, after its own timeout
            producer.poll(0.1)
    except PRODUCER_FAILED as error:  # as for want of any right to write
        for index in range(len(records)):
            done.setdefault(index, Appended(-1, failure_of(error)))
    return [done[index] for index in range(len(records))]


def _produce(producer: Any, record: NewRecord, done: dict[int, Appended], index: int) -> None:
    def on_delivery(error: KafkaError | None, message: Any) -> None:
        done[index] = Appended(-1 if error else message.offset(), error)

    try:
        producer.produce(
            record.topic,
            record.value,
            record.key,
            record.partition,
            headers=record.headers,
            on_delivery=on_delivery,
        )
    except KafkaException as error:
        done[index] = Appended(-1, error.args[0])
    except BufferError:
        done[index] = Appended(-1, KafkaError(KafkaError._QUEUE_FULL))
