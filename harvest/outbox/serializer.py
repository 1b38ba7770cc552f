"""Outbox records from objects, by serialisers: those of a Schema Registry, or your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from confluent_kafka.serialization import MessageField, SerializationContext

from harvest.outbox.record import Headers, OutboxRecord

__all__ = ["RecordSerializer", "Serializer"]

Serializer: TypeAlias = Callable[[Any, SerializationContext], str | bytes | None]


class RecordSerializer:
    """Makes `OutboxRecord`s from keys and values of any kind.

    `key` and `value` are called with the object and a `SerializationContext` (topic, field,
    headers), as confluent-kafka does, so its Avro, JSON Schema and Protobuf serialisers fit::

        records = RecordSerializer(value=AvroSerializer(registry, schema))
        stasher.stash(connection, records.record("orders", "order-7", order))

    Without one, a key or a value is taken as it is. Headers that a serialiser adds are kept. What a
    Schema Registry's serialisers return are bytes: the columns must be BYTEA.

    The schema is looked up, or registered, in the caller's transaction: an unreachable registry
    fails the transaction, not the harvest.
    """

    def __init__(self, *, key: Serializer | None = None, value: Serializer | None = None) -> None:
        self._key = key
        self._value = value

    def record(self, topic: str, key: Any, value: Any, headers: Headers = ()) -> OutboxRecord:
        """The record of an object. Raises what the serialisers and `OutboxRecord` raise."""
        pairs = list(headers.items() if hasattr(headers, "items") else headers)
        if self._key is not None:
            key = self._key(key, SerializationContext(topic, MessageField.KEY, pairs))
        if self._value is not None:
            value = self._value(value, SerializationContext(topic, MessageField.VALUE, pairs))
        return OutboxRecord(topic, key, value, pairs)
