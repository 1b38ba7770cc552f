"""Every error of `harvest`, in one flat hierarchy.

The docstring of a class is its default message. `blame` says whose fault it is:

- ``"usage"``: the calling code,
- ``"configuration"``: what was configured, here, in the database or on the broker,
- ``"environment"``: the network, a server, the machine; trying again may help.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Blame = Literal["usage", "configuration", "environment"]

__all__ = [
    "ArchiveError",
    "Blame",
    "CheckpointError",
    "ConfigurationError",
    "DatabaseChanged",
    "HarvestError",
    "InvalidRecord",
    "NoTransaction",
    "SchemaError",
    "SinkHangs",
    "SinkUnavailable",
    "StoreUnavailable",
    "TableMissing",
    "UnsupportedConnection",
]


class HarvestError(Exception):
    """Something went wrong in harvest."""

    blame: ClassVar[Blame] = "usage"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


class InvalidRecord(HarvestError, ValueError):
    """The outbox record has a field that cannot be relayed."""


class NoTransaction(HarvestError):
    """The connection is in autocommit mode with no open transaction: begin one, then stash."""


class UnsupportedConnection(HarvestError, TypeError):
    """This object is no database connection, cursor or session that the Stasher knows."""


class ConfigurationError(HarvestError, ValueError):
    """The configuration cannot work."""

    blame = "configuration"


class SchemaError(HarvestError):
    """The outbox table does not have the columns it needs."""

    blame = "configuration"


class TableMissing(SchemaError):
    """The outbox table does not exist; run `harvest init`."""


class CheckpointError(HarvestError):
    """The stored checkpoint cannot be read; it was written by something else."""

    blame = "configuration"


class DatabaseChanged(CheckpointError):
    """The database is not the one, or not as far, as it was when rows were published."""


class StoreUnavailable(HarvestError):
    """The database cannot be reached, or broke off a statement; trying again may help."""

    blame = "environment"


class SinkUnavailable(HarvestError):
    """Kafka cannot be reached, or refused to begin; trying again may help."""

    blame = "environment"


class SinkHangs(SinkUnavailable):
    """The sink gives no sign of life any more; only another process helps."""


class ArchiveError(HarvestError):
    """Rows could not be archived, or what is in the archive cannot be read."""

    blame = "environment"
