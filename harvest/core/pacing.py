"""How much to ask a table for, and when: bounds in rows and bytes, polls that back off. Pure.

After a delivery that failed, less is in flight, and so the next one is smaller: what a slow broker
does not take within the time that a transaction may last is taken in smaller pieces, down to one
row. What succeeds is followed by more: twice as much up to half of what failed, then little by
little, for each attempt that is too large costs the whole time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["Limits", "Pace"]

_FIRST_ROWS: Final = 256  # how large a row is, is not known yet
_RAMP: Final = 4
_SMALLER: Final = 4
_GROWTH: Final = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a harvester. All are per outbox."""

    mark_query_records: int = 5_000
    max_in_flight_records: int = 20_000
    max_in_flight_bytes: int = 32 * 1024 * 1024
    max_in_flight_batches: int = 32
    min_poll_interval_ms: int = 2
    max_poll_interval_ms: int = 600
    notified_poll_interval_ms: int = 1_000
    """How often to look all the same, while the database tells of new rows."""
    io_error_backoff_ms: int = 100
    max_io_error_backoff_ms: int = 10_000


@dataclass(slots=True)
class Pace:
    """Decides the size and the delay of the next question, from what the last ones returned."""

    limits: Limits = field(default_factory=Limits)
    idle_ms: int = 0
    """How long to wait before the next question."""
    asked: int = 0
    """How many rows the last question was for."""
    most: float | None = None
    """How many rows may be in flight, if a delivery has failed; None: as many as the limits say."""
    _failed_rows: int = 0
    _failures: int = 0
    _row_bytes: int = 0
    _ramp: int = _FIRST_ROWS

    @property
    def failing(self) -> bool:
        """Whether nothing has come to a good end since the last failure."""
        return self._failures > 0

    @property
    def most_records(self) -> int:
        """How many rows may be in flight now."""
        return self.limits.max_in_flight_records if self.most is None else int(self.most)

    def room(self, batches: int, records: int, size_bytes: int) -> int:
        """For how many rows to ask while so much is in flight; 0: wait until there is more room.

        A small question costs as much as a large one, so small room is no room.
        """
        limits = self.limits
        if batches >= limits.max_in_flight_batches:
            return 0
        most = self.most_records
        wanted = min(limits.mark_query_records, most, self._ramp)
        room = most - records
        if self._row_bytes:
            room = min(room, (limits.max_in_flight_bytes - size_bytes) // self._row_bytes)
            wanted = min(wanted, max(1, limits.max_in_flight_bytes // self._row_bytes))
        limit = min(wanted, room)
        if batches and limit < (wanted + 1) // 2:
            return 0
        self.asked = max(1, limit)
        return self.asked

    def learn(self, records: int, size_bytes: int, *, full: bool) -> None:
        """The question returned so much; `full`: all that it asked for."""
        limits = self.limits
        if not records and not full:
            self.wait_longer()
            return
        if records:
            average = max(1, size_bytes // records)
            self._row_bytes = max(average, (3 * self._row_bytes + average) // 4)
        self.idle_ms = 0 if full else min(limits.min_poll_interval_ms, limits.max_poll_interval_ms)
        if full:
            self._ramp = min(self._ramp * _RAMP, limits.mark_query_records)

    def wait_longer(self) -> None:
        """There is nothing to do: ask later the next time."""
        # By a quarter each time: a row waits at most about a quarter of the silence before it.
        longer = self.idle_ms + max(self.idle_ms // 4, 1)
        limits = self.limits
        self.idle_ms = min(max(longer, limits.min_poll_interval_ms), limits.max_poll_interval_ms)

    def succeeded(self) -> None:
        """A delivery was made: the next failure is a first one, and the next delivery larger."""
        self._failures = 0
        if self.most is None:
            return
        quickly = 4 * self.most <= self._failed_rows
        self.most *= 2 if quickly else 1 + 1 / _GROWTH
        if self.most >= self.limits.max_in_flight_records:
            self.most = None

    def nothing_left(self) -> None:
        """All that there was to do is done: the next failure is a first one."""
        self._failures = 0

    def failed(self, records: int) -> None:
        """A delivery of so many rows failed, for no row's sake: the next one is smaller."""
        self._failed_rows = records if self.most is None else min(records, int(self.most))
        self.most = max(1, self._failed_rows // _SMALLER)

    def backoff_ms(self) -> int:
        """How long to wait after one more failure."""
        self._failures += 1
        doubled = self.limits.io_error_backoff_ms << min(self._failures - 1, 16)
        return min(doubled, self.limits.max_io_error_backoff_ms)
