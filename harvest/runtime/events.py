"""What a harvester tells its host program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from harvest.core.mark_checkpoint import Term

__all__ = [
    "Event",
    "LeaderAcquired",
    "LeaderFenced",
    "LeaderRefreshed",
    "LeaderRevoked",
    "MeterRead",
    "Stats",
]


@dataclass(frozen=True, slots=True)
class LeaderAcquired:
    """This process was elected; `epoch` is its fencing token. Harvesting is about to begin."""

    epoch: int
    shard: int = 0


@dataclass(frozen=True, slots=True)
class LeaderRefreshed:
    """Harvesting begins, or begins anew after a failure, under a new term. For information."""

    epoch: int
    term: Term | None = None
    """In mark mode."""
    shard: int = 0


@dataclass(frozen=True, slots=True)
class LeaderRevoked:
    """Leadership ends in good order. The next leader is elected when the handler has returned."""

    epoch: int
    shard: int = 0


@dataclass(frozen=True, slots=True)
class LeaderFenced:
    """The lease is lost. Another leader may be at work already: stop at once."""

    epoch: int
    shard: int = 0


@dataclass(frozen=True, slots=True)
class MeterRead:
    """What was done since the last reading. Told every few seconds, from a thread of its own."""

    interval_s: float
    published: int
    """Rows, in this interval."""
    rows_per_s: float
    total_published: int
    """Rows, since the process began."""
    in_flight: int


Event: TypeAlias = LeaderAcquired | LeaderRefreshed | LeaderRevoked | LeaderFenced | MeterRead


@dataclass(slots=True)
class Stats:
    """Counts since the process began. Rows, unless the name says otherwise."""

    marked: int = 0
    published: int = 0
    purged: int = 0
    purged_by_others: int = 0
    dead_lettered: int = 0
    found_published: int = 0
    """Deleted at the start of a term, since the checkpoint said that they were published."""
    deliveries: int = 0
    failed_deliveries: int = 0
    terms: int = 0
    elections: int = 0
    fenced: int = 0
    """Leaderships that ended by losing the lease."""
    late: int = 0
    """Published after rows with higher ids, since their transactions committed late (range)."""
    gaps: int = 0
    """Ranges of ids that are open now (range)."""
    dead_ids: int = 0
    """Ids that turned out to belong to no row (range)."""
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Attempts by destination and outcome: delivered, failed, unavailable (relay)."""
    breakers: dict[str, Literal["closed", "open", "gone"]] = field(default_factory=dict)
    """By destination: while the breaker is open, only probes are sent; what is gone wants no more
    (relay)."""

    @classmethod
    def total(cls, all: Sequence[Stats]) -> Stats:
        """The sum of several, which their leaders may be changing."""
        total = cls()
        for stats in all:
            total.breakers |= stats.breakers
            total.messages.update(dict(stats.messages))  # a copy, made in one step
            for f in fields(cls):
                if f.name not in ("breakers", "messages"):
                    setattr(total, f.name, getattr(total, f.name) + getattr(stats, f.name))
        return total
