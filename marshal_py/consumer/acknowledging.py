"""What a program says of one message, by the names that Kafka's share groups use (KIP-932)."""

from __future__ import annotations

from enum import Enum

from marshal_py.errors import InvalidArgument

__all__ = ["AcknowledgeType", "check_acknowledgement"]


class AcknowledgeType(Enum):
    """See `Consumer.acknowledge`."""

    ACCEPT = "accept"
    """It is done."""
    RELEASE = "release"
    """It is not done, and comes again, here or elsewhere."""
    REJECT = "reject"
    """It is not done, and is not to come again."""
    RENEW = "renew"
    """It is still being worked on."""


def check_acknowledgement(kind: AcknowledgeType, delay_s: float) -> None:
    """Raise `InvalidArgument` for what `Consumer.acknowledge` does not take."""
    if not isinstance(kind, AcknowledgeType):
        raise InvalidArgument(f"kind = {kind!r} must be an AcknowledgeType")
    if not isinstance(delay_s, int | float) or not 0 <= delay_s < 2**31:
        raise InvalidArgument(f"delay_s = {delay_s!r} must be 0 or more seconds")
