"""Messages of Kafka, and records of the coordination log, as tests need them.

Of a message that came, and is no report of an error, no field is None.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Message

from marshal_py.protocol.messages import Heartbeat, Membership, MetadataEntry


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


def heartbeat(
    client_id: str,
    seq: int,
    positions: Mapping[int, int] | None = None,
    *,
    instance_id: str = "i",
    group_id: str = "g",
    interval_ms: int = 1_000,
    membership: Membership = 0,
    metadata: Mapping[int, bytes] | None = None,
    member_metadata: bytes | None = None,
    base: int = 0,
) -> Heartbeat:
    """Return a heartbeat; `positions` and `metadata` go by the epochs of claims.

    A position of −1 is left out, as clients leave out what has not changed.
    """
    return Heartbeat(
        2,
        client_id,
        instance_id,
        group_id,
        seq,
        interval_ms,
        membership,
        [
            number
            for epoch, position in (positions or {}).items()
            if position >= 0
            for number in (epoch - base, position)
        ],
        [MetadataEntry(epoch - base, text) for epoch, text in (metadata or {}).items()],
        member_metadata,
    )
