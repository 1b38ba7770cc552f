"""Transactional-outbox harvester: rows committed in a database reach Kafka, in order, once."""

import logging
from typing import TYPE_CHECKING, Any

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
    "NoTransaction",
    "OutboxRecord",
    "RecordSerializer",
    "SchemaError",
    "SinkUnavailable",
    "Stasher",
    "StoreUnavailable",
    "TableMissing",
    "UnsupportedConnection",
]

if TYPE_CHECKING:
    from harvest.outbox.serializer import RecordSerializer
    from harvest.runtime.embedding import Harvest


def __getattr__(name: str) -> Any:
    # The Stasher is all that an application needs, and it needs no Kafka client.
    if name == "Harvest":
        from harvest.runtime.embedding import Harvest

        return Harvest
    if name == "RecordSerializer":
        from harvest.outbox.serializer import RecordSerializer

        return RecordSerializer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


logging.getLogger(__name__).addHandler(logging.NullHandler())
