"""A message that can be sent to another process: the methods of `confluent_kafka.Message`."""

from __future__ import annotations

from typing import Any

__all__ = ["MessageCopy", "copy_of"]


class MessageCopy:
    """What a handler in another process gets in place of a `confluent_kafka.Message`.

    It answers the same questions in the same way. (confluent-kafka's own messages can be pickled
    only in its newer versions.)
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: tuple[Any, ...]) -> None:
        self._fields = fields

    def topic(self) -> str:
        """The topic."""
        return str(self._fields[0])

    def partition(self) -> int:
        """The partition."""
        return int(self._fields[1])

    def offset(self) -> int:
        """The offset."""
        return int(self._fields[2])

    def key(self) -> Any:
        """The key, as it came or as the deserializer made it."""
        return self._fields[3]

    def value(self) -> Any:
        """The value, as it came or as the deserializer made it."""
        return self._fields[4]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers, None if there are none."""
        headers: list[tuple[str, bytes | None]] | None = self._fields[5]
        return headers

    def timestamp(self) -> tuple[int, int]:
        """The type of the timestamp, and milliseconds since 1970."""
        kind, ms = self._fields[6]
        return kind, ms

    def leader_epoch(self) -> int | None:
        """The leader epoch of the message's batch, if known."""
        epoch: int | None = self._fields[7]
        return epoch

    def error(self) -> None:
        """None: no error is ever handed out."""

    def latency(self) -> None:
        """None: only produced messages have one."""

    def __len__(self) -> int:
        value = self._fields[4]
        return len(value) if isinstance(value, bytes | str) else 0

    def __getstate__(self) -> tuple[Any, ...]:
        return self._fields

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._fields = state

    def __repr__(self) -> str:
        return f"<MessageCopy {self._fields[0]}/{self._fields[1]}@{self._fields[2]}>"


def copy_of(message: Any) -> MessageCopy:
    """Return a copy of a message that can be pickled, if its key and value can be."""
    return MessageCopy(
        (
            message.topic(),
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            message.headers(),
            message.timestamp(),
            message.leader_epoch(),
        )
    )
