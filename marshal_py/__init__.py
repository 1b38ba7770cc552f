"""Coordination on nothing but Kafka: claims, leases, fencing epochs and leader election."""

import logging

from marshal_py.aio import AsyncClaim, AsyncConsumer, AsyncLeadership, AsyncMarshal
from marshal_py.client import Claim, Marshal
from marshal_py.consumer import Batch, Consumer
from marshal_py.election import Leader, Leadership, LeaderWatch
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ClaimTimeout,
    Closed,
    ConfigurationError,
    DeadLetterFailed,
    DuplicateClientId,
    GroupInUse,
    GroupPausedError,
    HandlerFailed,
    HandlerProcessDied,
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
from marshal_py.handling import Failure, Retry, Stuck
from marshal_py.runner import RunStats
from marshal_py.transactions import Transactions

__all__ = [
    "AccessDenied",
    "AsyncClaim",
    "AsyncConsumer",
    "AsyncLeadership",
    "AsyncMarshal",
    "Batch",
    "BrokerUnavailable",
    "Claim",
    "ClaimTimeout",
    "Closed",
    "ConfigurationError",
    "Consumer",
    "DeadLetterFailed",
    "DuplicateClientId",
    "Failure",
    "GroupAdmin",
    "GroupInUse",
    "GroupPausedError",
    "HandlerFailed",
    "HandlerProcessDied",
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
    "Retry",
    "RunStats",
    "SnapshotMismatch",
    "Stuck",
    "TopicMissing",
    "Transactions",
]

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())
