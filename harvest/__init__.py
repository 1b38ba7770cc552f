"""Transactional-outbox harvester: rows committed in a database reach Kafka, in order, once."""

import logging

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
from harvest.outbox import OutboxRecord
from harvest.stasher import Stasher

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "HarvestError",
    "InvalidRecord",
    "NoTransaction",
    "OutboxRecord",
    "SchemaError",
    "SinkUnavailable",
    "Stasher",
    "StoreUnavailable",
    "TableMissing",
    "UnsupportedConnection",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
