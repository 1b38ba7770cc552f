"""The world as it changes, for `marshal top`: pictures of it, with rates and what happened."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from marshal_py.admin.books import book_of
from marshal_py.admin.event_stream import TimedEvent
from marshal_py.admin.event_text import ROUTINE, touches, without_epoch
from marshal_py.admin.sharing import open_range
from marshal_py.admin.world_reader import WorldView
from marshal_py.admin.world_summary import WorldSummary, summarize
from marshal_py.errors import PartitionCountChanged
from marshal_py.protocol.rationalizer import CellKey

__all__ = ["Frame", "LiveWorld"]

KEPT_EVENTS: Final = 50
KEPT_STAMPS: Final = 100_000


@dataclass
class Frame:
    """One picture. Rates are per second, since the picture before; None in the first."""

    at_ms: int
    topic: str
    partitions: int
    records: int
    records_per_s: float | None
    moved_per_s: dict[str, float]
    """Group → offsets by which its positions moved on."""
    summary: WorldSummary
    events: list[TimedEvent]
    mismatches: list[str] = field(default_factory=list)


class LiveWorld:
    """The live world, of one group or of all, and what happened of late."""

    def __init__(self, found: WorldView, *, topic: str, group: str | None = None) -> None:
        self._found = found
        self._topic, self._group = topic, group
        self._events: deque[TimedEvent] = deque(maxlen=KEPT_EVENTS)
        self._before: tuple[float, int, dict[CellKey, int]] | None = None
        found.limit_timestamps(KEPT_STAMPS)

    def watch(self, seconds: float) -> None:
        """Take in what the log brings for so long. Raises `Truncated`, `PartitionCountChanged`."""
        deadline_s = time.monotonic() + seconds
        while True:
            left_s = deadline_s - time.monotonic()
            for stamp, p, event in self._found.watch(max(0.0, min(0.2, left_s))):
                if not isinstance(event, ROUTINE) and touches(event, self._group, None):
                    told = without_epoch(event) if self._found.is_text else event
                    self._events.append(TimedEvent(stamp, p, told))
            error = self._found.reader.partition_count_error
            if error is not None:
                raise PartitionCountChanged(str(error))
            if left_s <= 0:
                return

    def frame(self) -> Frame:
        """Return the picture of this moment."""
        found, now_s = self._found, time.monotonic()
        records = sum(state.next_offset for state in found.world.states)
        positions = self._positions()
        rate: float | None = None
        moved: dict[str, float] = {}
        if self._before is not None:
            then_s, had, was = self._before
            seconds = max(1e-3, now_s - then_s)
            rate = (records - had) / seconds
            for key, at in positions.items():
                by = max(0, at - was.get(key, at))  # the first position of a cell is no way it went
                moved[key[0]] = moved.get(key[0], 0.0) + by / seconds
        self._before = (now_s, records, positions)
        return Frame(
            found.taken_ms,
            self._topic,
            found.world.partitions,
            records,
            rate,
            moved,
            summarize(found, group=self._group),
            list(self._events),
            [str(mismatch) for mismatch in found.reader.mismatches],
        )

    def _positions(self) -> dict[CellKey, int]:
        """Return how far each partition is; one that is shared by ranges, by what is done of it."""
        world, positions = self._found.world, {}
        for _, key, cell in world.cells(self._group):
            if cell.position < 0 or open_range(world, *key) is not None:
                continue
            book = book_of(world, *key)
            left = 0 if book is None else book.lag(0, book.frontier)
            positions[key] = cell.position - left
        return positions
