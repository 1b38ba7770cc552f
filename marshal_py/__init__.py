"""Coordination on nothing but Kafka: claims, leases, fencing epochs and leader election."""

import logging

from marshal_py.client import Claim, Marshal
from marshal_py.consumer import Batch, Consumer
from marshal_py.election import Leader, Leadership, LeaderWatch
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ClaimTimeout,
    Closed,
    ConfigurationError,
    DuplicateClientId,
    GroupInUse,
    GroupPausedError,
    InvalidArgument,
    LogHole,
    MalformedRecord,
    MarshalError,
    NotHeld,
    NotInVersion1,
    PartitionCountChanged,
    SnapshotMismatch,
    TopicMissing,
)
from marshal_py.groups import GroupAdmin

__all__ = [
    "AccessDenied",
    "Batch",
    "BrokerUnavailable",
    "Claim",
    "ClaimTimeout",
    "Closed",
    "ConfigurationError",
    "Consumer",
    "DuplicateClientId",
    "GroupAdmin",
    "GroupInUse",
    "GroupPausedError",
    "InvalidArgument",
    "Leader",
    "LeaderWatch",
    "Leadership",
    "LogHole",
    "MalformedRecord",
    "Marshal",
    "MarshalError",
    "NotHeld",
    "NotInVersion1",
    "PartitionCountChanged",
    "SnapshotMismatch",
    "TopicMissing",
]

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())
