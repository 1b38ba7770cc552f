"""Deserializers of keys and values, as for confluent-kafka's DeserializingConsumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["Deserializer", "Deserializers"]

Deserializer: TypeAlias = Callable[..., Any]


class Deserializers:
    """One for keys and one for values, of which each may be missing. False if both are."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    def __bool__(self) -> bool:
        return (self._key, self._value) != (None, None)

    def apply(self, message: Any) -> Any:
        """Replace key and value of a message, and return it."""
        from confluent_kafka.serialization import MessageField, SerializationContext

        headers = message.headers()
        if self._value is not None:
            context = SerializationContext(message.topic(), MessageField.VALUE, headers)
            message.set_value(self._value(message.value(), context))
        if self._key is not None:
            context = SerializationContext(message.topic(), MessageField.KEY, headers)
            message.set_key(self._key(message.key(), context))
        return message
