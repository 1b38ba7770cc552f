"""Coordination on nothing but Kafka: claims, leases, fencing epochs and leader election."""

import importlib
from typing import TYPE_CHECKING

from marshal_py.client.leader_election import Leader, Leadership, LeaderWatch
from marshal_py.client.marshal import Claim, Marshal
from marshal_py.consumer.acknowledging import AcknowledgeType
from marshal_py.consumer.consumer import Batch, Consumer
from marshal_py.consumer.looking import AssignedPartition, Health
from marshal_py.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    ClaimTimeout,
    Closed,
    ConfigurationError,
    DeadLetterFailed,
    DeliveriesExhausted,
    DeserializationFailed,
    DuplicateClientId,
    Forked,
    GroupInUse,
    GroupPausedError,
    HandlerFailed,
    HandlerProcessDied,
    InvalidArgument,
    LogHole,
    MalformedRecord,
    MarshalError,
    MessagesMissing,
    NotHeld,
    NotInVersion1,
    PartitionCountChanged,
    SharingDiffers,
    SnapshotMismatch,
    TopicMissing,
)

if TYPE_CHECKING:
    from marshal_py.admin.group_admin import GroupAdmin
    from marshal_py.client.aio import AsyncClaim, AsyncLeadership, AsyncMarshal
    from marshal_py.consumer.aio import AsyncConsumer
    from marshal_py.consumer.handlers.middleware import CallNext, Middleware
    from marshal_py.consumer.handlers.options import Failure, Retry, Stuck
    from marshal_py.consumer.handlers.run_stats import RunStats
    from marshal_py.consumer.transactions import Transactions
    from marshal_py.consumer.typed import TypedMessage

__all__ = [
    "AccessDenied",
    "AcknowledgeType",
    "AssignedPartition",
    "AsyncClaim",
    "AsyncConsumer",
    "AsyncLeadership",
    "AsyncMarshal",
    "AuthenticationFailed",
    "Batch",
    "BrokerUnavailable",
    "CallNext",
    "Claim",
    "ClaimTimeout",
    "Closed",
    "ConfigurationError",
    "Consumer",
    "DeadLetterFailed",
    "DeliveriesExhausted",
    "DeserializationFailed",
    "DuplicateClientId",
    "Failure",
    "Forked",
    "GroupAdmin",
    "GroupInUse",
    "GroupPausedError",
    "HandlerFailed",
    "HandlerProcessDied",
    "Health",
    "InvalidArgument",
    "Leader",
    "LeaderWatch",
    "Leadership",
    "LogHole",
    "MalformedRecord",
    "Marshal",
    "MarshalError",
    "MessagesMissing",
    "Middleware",
    "NotHeld",
    "NotInVersion1",
    "PartitionCountChanged",
    "Retry",
    "RunStats",
    "SharingDiffers",
    "SnapshotMismatch",
    "Stuck",
    "TopicMissing",
    "Transactions",
    "TypedMessage",
]

_MODULES = {
    "AsyncClaim": "client.aio",
    "AsyncConsumer": "consumer.aio",
    "AsyncLeadership": "client.aio",
    "AsyncMarshal": "client.aio",
    "CallNext": "consumer.handlers.middleware",
    "Failure": "consumer.handlers.options",
    "GroupAdmin": "admin.group_admin",
    "Middleware": "consumer.handlers.middleware",
    "Retry": "consumer.handlers.options",
    "RunStats": "consumer.handlers.run_stats",
    "Stuck": "consumer.handlers.options",
    "Transactions": "consumer.transactions",
    "TypedMessage": "consumer.typed",
}


def __getattr__(name: str) -> object:
    """Import on first use what not everybody needs: a restart is mostly imports."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__version__ = "0.1.0"
