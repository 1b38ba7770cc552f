"""What a harvester, and whoever looks after it, needs of the table of dead letters.

Every method is one committed transaction, and raises `StoreUnavailable` when the connection broke,
`SchemaError` when the table cannot be made or used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, TypeAlias

from harvest.core.dead_letters import BadRow, Key
from harvest.core.interfaces.sink import StillHeld
from harvest.core.mark_checkpoint import Term
from harvest.core.table_name import TableName

__all__ = ["DeadLetter", "DeadLetterStore", "DeadLetterTable", "Dropped", "RetryMode", "Selection"]

RetryMode: TypeAlias = Literal["mark", "range", "wal"]
"""How the outbox is harvested, which says where rows are put back."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One row that could not be published, without its value."""

    id: int
    topic: str
    key: bytes | None
    value_bytes: int | None
    error: str
    waits: bool
    dead_lettered_at: datetime
    create_time: datetime | None
    destination: str | None = None
    """Of the last attempt, as the two that follow; None where rows go to Kafka."""
    retries: int | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are meant: those that fit everything that is given.

    `destination`: that refused the message; `since` and `until`: when it was set aside.
    """

    ids: tuple[int, ...] = ()
    topic: str | None = None
    key: str | None = None
    destination: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Dropped(NamedTuple):
    """How many rows were deleted, and how many that had waited for them went back."""

    rows: int
    released: int


class DeadLetterStore(Protocol):
    """Where dead letters are written. Used by one thread at a time."""

    def add(
        self, rows: Sequence[BadRow], term: Term | None, still_held: StillHeld = ...
    ) -> frozenset[int]:
        """Make rows dead letters; return the ids that are dead letters now.

        Mark mode gives its `term`: a row that carries a tag of it is moved, another is left alone,
        for it is another leader's to judge. Range mode gives None: rows are copied. A row that only
        waits is left alone when no earlier row of its key is a dead letter any more.

        `still_held` is asked last before the commit: once it answers False, nothing is added, and
        `StoreUnavailable` is raised. What a paused leader had under way sets nothing aside that its
        successor has published.

        Raises `SchemaError` where a row would be moved whose id another dead letter has.
        """

    def waiting_keys(self) -> Mapping[Key, int]:
        """The keys that have a dead letter, and the lowest id of each."""

    def close(self) -> None:
        """Close the connection. The store can be used again."""


class DeadLetterTable(DeadLetterStore, Protocol):
    """The table, as an operator sees it."""

    @property
    def name(self) -> TableName:
        """Its name."""

    def create(self) -> None:
        """Make the table if it does not exist."""

    def missing_topics(self) -> set[str]:
        """The topics of dead letters whose topic did not exist."""

    def count(self, selection: Selection = Selection()) -> int:
        """How many dead letters there are."""

    def rows(self, selection: Selection, limit: int) -> Sequence[DeadLetter]:
        """The rows of `selection`, in the order of their ids."""

    def ids(self, low: int, high: int) -> frozenset[int]:
        """Which ids from `low` to `high` are dead letters, with an error or behind one."""

    def retry(self, selection: Selection, *, mode: RetryMode, dry_run: bool = False) -> int:
        """Put rows back into the outbox, and the rows that wait behind them; return how many.

        In mark mode they keep their ids, so they come before everything newer. In range mode, whose
        checkpoint has passed these ids, they get new ones, in the old order, and what is left under
        the old ones is deleted from the outbox: it never was published. In wal mode they become
        logical messages: they come in the log when this is committed.
        """

    def drop(self, selection: Selection, *, mode: RetryMode, dry_run: bool = False) -> Dropped:
        """Delete rows for good. Rows that waited for nothing else go back into the outbox.

        In range mode they are deleted from the outbox, too.
        """
