"""Every error of `marshal_py`, in one flat hierarchy.

The docstring of a class is its default message. `blame` says whose fault it is:

- ``"usage"``: the calling code,
- ``"configuration"``: what was configured, here or on the broker,
- ``"log"``: a peer wrote nonsense to the coordination topic, or the topic lost records,
- ``"environment"``: the network, a broker, the machine; trying again may help.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from marshal_py.printable import text_of

Blame = Literal["usage", "configuration", "log", "environment"]

__all__ = [
    "AccessDenied",
    "AuthenticationFailed",
    "Blame",
    "BrokerUnavailable",
    "ClaimTimeout",
    "Closed",
    "ClusterLost",
    "ConfigurationError",
    "DeadLetterFailed",
    "DeliveriesExhausted",
    "DeserializationFailed",
    "DuplicateClientId",
    "Forked",
    "GroupInUse",
    "GroupPausedError",
    "HandlerFailed",
    "HandlerProcessDied",
    "InvalidArgument",
    "LogHole",
    "MalformedRecord",
    "MarshalError",
    "MessageRejected",
    "MessagesMissing",
    "NotHeld",
    "NotInVersion1",
    "PartitionCountChanged",
    "SharingDiffers",
    "SnapshotMismatch",
    "TopicMissing",
]


class MarshalError(Exception):
    """Something went wrong in marshal_py."""

    blame: ClassVar[Blame] = "usage"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


class InvalidArgument(MarshalError, ValueError):
    """An argument has a value that cannot be used."""


class Closed(MarshalError):
    """The client has been closed; make a new one."""


class NotHeld(MarshalError):
    """The claim is not held any more; stop the work that it covered."""


class HandlerFailed(MarshalError):
    """A handler failed with a message for the last time, and on_failure says to stop."""


class DeliveriesExhausted(MarshalError):
    """A message was claimed `max_deliveries` times, and nobody who had it got past it.

    It was alone in what was claimed: whoever handled it died, or gave it back.
    """


class MessageRejected(MarshalError):
    """The class of error that a dead letter tells when the program has rejected the message."""


class DeserializationFailed(MarshalError):
    """A deserializer raised for a message; `__cause__` is what it raised.

    `message` is as it came; `topic`, `partition`, `offset` and `key` say which it is, and `field`
    what could not be read: "key" or "value". In a loop it comes again with the next one, unless it
    is acknowledged: ``consumer.ack(error.message)`` passes over it.
    """

    def __init__(self, message: Any, field: str, error: BaseException) -> None:
        self.message = message
        self.field = field
        self.topic: str = message.topic()
        self.partition: int = message.partition()
        self.offset: int = message.offset()
        self.key: bytes | None = message.key()
        key = "none" if self.key is None else repr(self.key[:40]) + "…" * (len(self.key) > 40)
        super().__init__(
            f"the {field} of {self.topic}/{self.partition} at offset {self.offset} (key: {key}) "
            f"cannot be read: its deserializer raised {text_of(error, repr)[:200]}"
        )


class MessagesMissing(MarshalError):
    """Kafka has no message at the stored position any more, and on_missing says to stop."""

    blame = "environment"


class HandlerProcessDied(MarshalError):
    """The process of a handler ended, while it started or while it worked on a message."""


class DeadLetterFailed(MarshalError):
    """The dead-letter topic does not take a message, and trying again would not help."""

    blame = "configuration"


class NotInVersion1(MarshalError):
    """The text records of version 1 cannot carry this; it needs version 2, the default wire."""


class ClaimTimeout(MarshalError, TimeoutError):
    """The claim was not won in the given time."""

    blame = "environment"


class ConfigurationError(MarshalError, ValueError):
    """The configuration cannot work."""

    blame = "configuration"


class AccessDenied(ConfigurationError):
    """The brokers refuse this client something that it needs; an ACL is missing."""


class AuthenticationFailed(ConfigurationError):
    """The brokers and this client do not accept each other: SASL or TLS failed."""


class TopicMissing(MarshalError):
    """The coordination topic does not exist; run `marshal topic create`."""

    blame = "configuration"


class DuplicateClientId(MarshalError):
    """Another process uses the same client_id and group_id; this one has stopped claiming."""

    blame = "configuration"


class Forked(MarshalError):
    """The client was made before the process forked: it is the parent's, and of no use here."""

    blame = "usage"


class SharingDiffers(MarshalError):
    """The group shares a topic otherwise than this member would; the text says how, and what to do.

    By partitions, by keys, and by how many slots, or by ranges: all members of a group do it alike.
    """

    blame = "configuration"


class PartitionCountChanged(MarshalError):
    """The number of partitions of the coordination topic changed, which it never may."""

    blame = "configuration"


class GroupPausedError(MarshalError):
    """The group is paused; `marshal group resume` lets claims in again."""

    blame = "usage"


class GroupInUse(MarshalError):
    """The group has members that live; stop them first."""

    blame = "environment"


class MalformedRecord(MarshalError, ValueError):
    """The bytes are no record of this protocol."""

    blame = "log"


class LogHole(MarshalError):
    """Records that no snapshot covers were deleted from the coordination topic."""

    blame = "log"


class SnapshotMismatch(MarshalError):
    """A snapshot and this process disagree about the state at the same offset."""

    blame = "log"


class ClusterLost(MarshalError):
    """Spark's cluster has no executor for this driver."""

    blame = "environment"


class BrokerUnavailable(MarshalError, ConnectionError):
    """No broker could be reached."""

    blame = "environment"
