"""How long handlers take, and how old messages are when they get to them, as histograms."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

__all__ = ["BOUNDS_S", "Counts", "Histogram"]

BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0),
)
"""Upper bounds of the buckets, in seconds; above the last is one more."""


@dataclass(frozen=True)
class Histogram:
    """What was counted up to a moment. `counts`: for each of `bounds_s`, and beyond the last."""

    counts: tuple[int, ...]
    sum_s: float
    bounds_s: tuple[float, ...] = BOUNDS_S

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


class Counts:
    """Counts durations. Not for several threads at once."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one; what is below 0, as clocks differ, counts as 0."""
        duration_s = max(0.0, duration_s)
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    def histogram(self) -> Histogram:
        """Return what was counted so far."""
        return Histogram(tuple(self._counts), self._sum_s)
