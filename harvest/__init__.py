"""Transactional-outbox harvester: rows committed in a database reach Kafka, in order, once."""

import importlib
from typing import TYPE_CHECKING

from harvest.errors import (
    CheckpointError,
    ConfigurationError,
    HarvestError,
    InvalidRecord,
    NoTransaction,
    SchemaError,
    SinkUnavailable,
    StoreUnavailable,
    TableMissing,
    UnsupportedConnection,
)
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "Harvest",
    "HarvestError",
    "InvalidRecord",
    "LeaderAcquired",
    "LeaderFenced",
    "LeaderRefreshed",
    "LeaderRevoked",
    "MeterRead",
    "NoTransaction",
    "OutboundStasher",
    "OutboxRecord",
    "RecordSerializer",
    "SchemaError",
    "SinkUnavailable",
    "Stasher",
    "StoreUnavailable",
    "TableMissing",
    "UnsupportedConnection",
    "with_trace_context",
]

if TYPE_CHECKING:
    from harvest.outbox.outbound_stasher import OutboundStasher
    from harvest.outbox.serializer import RecordSerializer
    from harvest.outbox.trace_context import with_trace_context
    from harvest.runtime.embedding import Harvest
    from harvest.runtime.events import (
        LeaderAcquired,
        LeaderFenced,
        LeaderRefreshed,
        LeaderRevoked,
        MeterRead,
    )

_MODULES = {
    "Harvest": "runtime.embedding",
    "LeaderAcquired": "runtime.events",
    "LeaderFenced": "runtime.events",
    "LeaderRefreshed": "runtime.events",
    "LeaderRevoked": "runtime.events",
    "MeterRead": "runtime.events",
    "OutboundStasher": "outbox.outbound_stasher",
    "RecordSerializer": "outbox.serializer",
    "with_trace_context": "outbox.trace_context",
}


def __getattr__(name: str) -> object:
    """Import on first use: most applications need the `Stasher` alone, and no Kafka client."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
