"""What a harvester needs from a database in wal mode.

The contract that the algorithm rests on (specs/HARVEST.md §18), for every implementation:

1. Only committed transactions come, each whole, in the order of their commit records, and its rows
   in the order in which they were inserted; the same, with the same numbers, whenever read again.
2. A stream that is opened at a place has every transaction whose commit record begins there or
   behind, and may have some that begin before.
3. What is not confirmed can be read again, after any failure, until the slot is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harvest.core.dead_letters import BadRow
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.sink import StillHeld
from harvest.core.row import Row
from harvest.core.wal import ReadDone
from harvest.core.wal_position import WalPosition

__all__ = ["RowDeadLetterStore", "WalSource", "WalStream"]


class WalStream(Protocol):
    """Committed rows, as they come. Used by one thread. Raises `StoreUnavailable`."""

    def fileno(self) -> int:
        """What becomes readable when something has come."""

    def read(self, limit: int, limit_bytes: int) -> ReadDone | None:
        """What has come, about so much of it; None if nothing has. Does not wait."""

    def keep_alive(self) -> None:
        """Answer the server, so that it does not take us for dead. Called at least once a second,
        also while nothing is read."""

    def confirm(self, lsn: int) -> None:
        """What is below `lsn` is not needed any more."""

    def close(self) -> None:
        """End it; the last confirmation reaches the server first."""


class WalSource(Protocol):
    """The slot, and the table if there is one. Used by one thread."""

    def connect(self) -> None:
        """Connect, so that a later `open` is quick. Raises `StoreUnavailable`, `SchemaError`."""

    def open(self, epoch: int, position: WalPosition | None) -> tuple[WalStream, WalPosition]:
        """Stream from `position`, None: from where the slot is; and say where that is.

        Whoever reads the slot is ended first. Raises `StoreUnavailable`, and `CheckpointError` if
        rows would be skipped.
        """

    def purge(self, published: Callable[[], int]) -> int | None:
        """Delete rows that are published, if they are to be deleted; return how many.

        None if some were not published within two seconds: try again later.

        `published`: all rows of transactions whose commit record begins below it are, by now.
        Raises `StoreUnavailable` if the log ends before that: it is another one.
        """

    def cancel(self) -> None:
        """From any thread: break off the statement under way, which then raises."""

    def close(self) -> None:
        """Close the connection. The source can be used again."""


class RowDeadLetterStore(DeadLetterStore, Protocol):
    """Dead letters that are written with their contents, since no table may have them."""

    def add_rows(
        self, rows: Sequence[tuple[Row, BadRow]], still_held: StillHeld = ...
    ) -> frozenset[int]:
        """Make rows dead letters; return the ids that are dead letters now, as `add` does."""
