"""What a harvester needs from a database in mark mode.

One store is one connection, used by one thread; a harvester opens two, so that purges do not wait
for marks. Every method is one statement and one committed transaction of its own. Every method
raises `StoreUnavailable` when the connection broke or could not be made (whether the statement was
committed is then unknown), and connects again when it is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias
from uuid import UUID

from harvest.core.interfaces.source_store import SourceStore
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row

__all__ = ["COUNTED", "Backlog", "Finding", "MarkStore", "StoreFactory"]


COUNTED: Final = 100_000
"""How many waiting rows are counted."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in the table: committed rows, tagged or not, and the age of the oldest one.

    The first `COUNTED` rows are counted, and looked at for tags and ages. If there are more, those
    behind are `estimated` by their ids, so that the look is short however many there are.
    """

    rows: int
    tagged_rows: int
    oldest_age_s: float | None
    estimated: bool = False

    @classmethod
    def of(cls, counted: int, tagged: int, oldest_age_s: float | None, beyond: int) -> Backlog:
        """What was counted, and how many ids there are beyond.

        The clock that wrote the oldest row may be ahead of the one by which it is `oldest_age_s`
        old.
        """
        age_s = None if oldest_age_s is None else max(0.0, oldest_age_s)
        return cls(counted + max(0, beyond), tagged, age_s, beyond > 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `check`: what was looked at, how it is, and what to do about it."""

    subject: str
    level: Literal["ok", "warning", "error"]
    text: str


class MarkStore(SourceStore, Protocol):
    """The outbox table, seen by the mark algorithm."""

    def connect(self) -> None:
        """Connect and look at the table, so that a later `mark` is quick.

        Raises `TableMissing` and `SchemaError` too.
        """

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        """Tag the `limit` lowest-numbered committed rows that carry no tag of `term` with
        ``term.tag(batch)``, and return them in the order of their ids.

        One statement: when it returns, the tags are committed. Rows tagged by anybody else are
        taken over. A row that another transaction holds locked is waited for, never skipped.

        More than `valid_ms` after this call, by the database's own clock, no row is tagged, not
        even one that somebody else has changed while it was waited for: what a paused leader had
        under way cannot take rows from its successor.
        """

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        """Delete the rows with these ids that carry one of `tags`; return how many there were.

        The tags say which rows they are: in a database that has lost what it had committed, or
        after TRUNCATE, another row may have the id of one that was published.
        """

    def delete(self, ids: Sequence[int]) -> int:
        """Delete the rows, whatever tag they carry; return how many were there.

        For who carries a position over, and holds all claims meanwhile.
        """

    def clear(self, checkpoint: Checkpoint) -> int:
        """Delete the rows that `checkpoint` says are published; return how many there were."""

    def reset(self, ids: Sequence[int], tag: UUID) -> int:
        """Remove the tags of the rows that carry `tag`; return how many there were.

        Who was paused does not take away what its successor has marked, and perhaps published.
        """

    def ping(self) -> None:
        """Ask for an answer, and do nothing else."""

    def backlog(self) -> Backlog:
        """Count what waits. Reads the whole table: for people and for slow gauges."""

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """Create the table if it does not exist; return whether it was created."""

    def check(self) -> list[Finding]:
        """Look at the table, its columns, indexes and privileges. Changes nothing."""

    def cancel(self) -> None:
        """From any thread: break off the statement under way, which then raises."""

    def close(self) -> None:
        """Close the connection. The store can be used again; it then connects again."""


StoreFactory: TypeAlias = Callable[[], MarkStore]
