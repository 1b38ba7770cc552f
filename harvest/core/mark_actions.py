"""Events and actions of the mark algorithm (harvest/core/mark.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from harvest.core.actions import Finish, LeaseLost, Open, OpenFailed, Start, Stop
from harvest.core.dead_letters import AddDeadLetters, AddFailed, DeadLettersAdded, Key
from harvest.core.failure import Failure
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row

__all__ = [
    "Action",
    "AddDeadLetters",
    "AddFailed",
    "Clear",
    "ClearFailed",
    "Cleared",
    "DeadLettersAdded",
    "Event",
    "Mark",
    "MarkFailed",
    "Marked",
    "Opened",
    "Purge",
    "PurgeFailed",
    "Purged",
    "Reset",
    "ResetDone",
    "Send",
    "Settled",
]

# --- Events: what has happened ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The sink is open and every earlier writer fenced; `checkpoint` is the last one committed.

    `waiting`: the keys that have a dead letter, and the lowest id of each.
    """

    term: Term
    checkpoint: Checkpoint | None
    waiting: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cleared:
    """The rows that the checkpoint names are deleted."""


@dataclass(frozen=True, slots=True)
class ClearFailed:
    """The database did not answer; nobody knows whether the rows are deleted."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Mark number `batch` committed and returned `rows`, in id order."""

    batch: int
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class MarkFailed:
    """The database did not answer; the mark may have been committed."""

    batch: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The sink has decided about these batches: published, or not as `failure` says."""

    batches: tuple[int, ...]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Purged:
    """The rows of the last `Purge` are deleted."""


@dataclass(frozen=True, slots=True)
class PurgeFailed:
    """The database did not answer; deleting again is harmless."""


@dataclass(frozen=True, slots=True)
class ResetDone:
    """The reset was made, or failed; either way nothing is left to do about it."""


Event: TypeAlias = (
    Start
    | Opened
    | OpenFailed
    | Cleared
    | ClearFailed
    | Marked
    | MarkFailed
    | Settled
    | Purged
    | PurgeFailed
    | DeadLettersAdded
    | AddFailed
    | ResetDone
    | LeaseLost
    | Stop
)

# --- Actions: what is to be done -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete the rows that `checkpoint` names; answer Cleared or ClearFailed."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Mark:
    """After `delay_ms`, or when new rows are heard of, tag up to `limit` rows.

    Answer Marked or MarkFailed.
    """

    term: Term
    batch: int
    limit: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Send:
    """Publish `rows` in this order, with `checkpoint`; answer Settled. Sends keep their order."""

    batch: int
    rows: Sequence[Row]
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Purge:
    """After `delay_ms`, delete published rows, all or none; answer Purged or PurgeFailed.

    Only rows that carry one of `tags`, which all were sent (see `MarkStore.purge`).
    """

    ids: Sequence[int]
    tags: Sequence[UUID]
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Reset:
    """Untag rows that were marked and never sent; answer ResetDone.

    Only those that still carry `tag`, that of their mark: the others are somebody else's by now.
    """

    ids: tuple[int, ...]
    tag: UUID


Action: TypeAlias = Open | Clear | Mark | Send | Purge | Reset | AddDeadLetters | Finish
