"""What a harvester asks a database about itself, beside the rows (specs/HARVEST.md §20).

Every store of an outbox is one of these, too: it must be asked on the connection on which rows are
read. Every method raises `StoreUnavailable`, as those of the store do.
"""

from __future__ import annotations

from typing import Protocol

from harvest.core.source import Registration, Source

__all__ = ["SourceStore"]


class SourceStore(Protocol):
    """A database, as the source of rows."""

    def source(self) -> Source:
        """What it is now; without visits if nobody is registered. Raises `TableMissing` too."""

    def promoted_at(self) -> int | None:
        """How far the log of its earlier timelines goes; None where that is not known."""

    def log_end(self) -> int:
        """How far its log has come: whatever was committed, and seen, is before it. 0: none."""

    def visit(self, token: str) -> Source:
        """Raise the number of the last visit, durably; return what the database is then."""

    def register(self, ours: Registration) -> Registration:
        """Make ours the registration unless there is one; return the one that there is.

        Raises `SchemaError` when its table is missing and cannot be made.
        """

    def registration(self) -> Registration | None:
        """The registration; None if there is none yet."""

    def register_anew(self, ours: Registration) -> None:
        """Make ours the registration, whatever there is."""
