"""When a claimant has something to do of its own accord."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from marshal_py.protocol.holding import Holding

__all__ = ["Timer", "TimerKind", "Timers"]

TimerKind: TypeAlias = Literal["heartbeat", "lapse", "claim", "release", "unread"]
"""A heartbeat is due or a lease may lapse (in one coordination partition); a claim or a release is
to be tried (of one holding); appends that were never read count as failed."""


class Timer(NamedTuple):
    at_ns: int
    number: int
    """Timers of the same moment go off in the order in which they were set."""
    kind: TimerKind
    coordinator: int
    holding: Holding | None


class Timers:
    """A heap of timers. None is taken back: whoever it is for looks whether it still counts."""

    __slots__ = ("numbers", "pending")

    def __init__(self) -> None:
        self.pending: list[Timer] = []
        self.numbers: Iterator[int] = itertools.count()

    def __len__(self) -> int:
        return len(self.pending)

    def set(
        self, at_ns: int, kind: TimerKind, coordinator: int, holding: Holding | None = None
    ) -> None:
        """Set a timer."""
        heapq.heappush(self.pending, Timer(at_ns, next(self.numbers), kind, coordinator, holding))

    def pop_due(self, now_ns: int) -> Timer | None:
        """Return the earliest timer that is due, and forget it; None if there is none."""
        if self.pending and self.pending[0].at_ns <= now_ns:
            return heapq.heappop(self.pending)
        return None

    def clear(self) -> None:
        """Forget all."""
        self.pending.clear()

    @property
    def next_ns(self) -> int | None:
        """When the earliest is due, None if there is none."""
        return self.pending[0].at_ns if self.pending else None
