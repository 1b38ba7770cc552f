"""Deserializers of keys and values, as for confluent-kafka's DeserializingConsumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from marshal_py.errors import DeserializationFailed

__all__ = ["Deserializer", "Deserializers", "restore"]

Deserializer: TypeAlias = Callable[..., Any]


class Deserializers:
    """One for keys and one for values, of which each may be missing. False if both are."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    @property
    def changes_keys(self) -> bool:
        """Whether a message that went through it has another key than it came with."""
        return self._key is not None

    def __bool__(self) -> bool:
        return (self._key, self._value) != (None, None)

    def apply(self, message: Any) -> Any:
        """Replace key and value of a message, and return it.

        Raises `DeserializationFailed`; the message is as it came then.
        """
        from confluent_kafka.serialization import MessageField, SerializationContext

        headers = message.headers()
        raw = raw_key, raw_value = message.key(), message.value()
        field = MessageField.VALUE
        try:
            if self._value is not None:
                context = SerializationContext(message.topic(), field, headers)
                message.set_value(self._value(raw_value, context))
            if self._key is not None:
                field = MessageField.KEY
                context = SerializationContext(message.topic(), field, headers)
                message.set_key(self._key(raw_key, context))
        except Exception as error:
            restore(message, raw)
            raise DeserializationFailed(message, str(field), error) from error
        return message


def restore(message: Any, raw: tuple[Any, Any]) -> None:
    """Give a message the key and the value that it came with."""
    message.set_key(raw[0])
    message.set_value(raw[1])
