"""The fields of a message that came, and is no report of an error: none of them is None."""

from __future__ import annotations

from confluent_kafka import Message


def partition_of(message: Message) -> int:
    """Return the partition of a message."""
    partition = message.partition()
    assert partition is not None
    return partition


def offset_of(message: Message) -> int:
    """Return the offset of a message."""
    offset = message.offset()
    assert offset is not None
    return offset


def value_of(message: Message) -> bytes:
    """Return the value of a message that has one."""
    value = message.value()
    assert value is not None
    return value


def number_of(message: Message) -> int:
    """Return the number that is the value of a message."""
    return int(value_of(message))
