"""What a program says of one message, by the names that Kafka's share groups use (KIP-932)."""

from __future__ import annotations

from enum import Enum

__all__ = ["AcknowledgeType"]


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
