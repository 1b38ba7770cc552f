"""Lag in seconds, and for how long a position has stood still, from samples of a partition."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["LagClock"]

_SAMPLES: Final = 720


class LagClock:
    """What one partition's end and its group's position were, sample by sample.

    Times are seconds of any clock that never goes back.
    """

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._position: int | None = None
        self._moved_s = 0.0

    def note(self, at_s: float, position: int | None, end: int, *, held: bool = True) -> None:
        """Take a sample. An end that is lower than before (a topic made anew) begins afresh.

        `held`: whether somebody is there to move the position; what nobody holds does not stall.
        """
        if self._ends and end < self._ends[-1][1]:
            self._ends.clear()
            self._position = None
        # Of equal ends, the first and the last are enough: when it was reached, and until when.
        if len(self._ends) > 1 and self._ends[-1][1] == self._ends[-2][1] == end:
            self._ends[-1] = (at_s, end)
        else:
            self._ends.append((at_s, end))
        if not held or position != self._position or position is None or position >= end:
            self._position, self._moved_s = position, at_s

    def lag_s(self) -> float:
        """For how long the next message of the group has been there, at least; 0: none waits.

        A message that was there before the first sample is at least as old as that.
        """
        now_s, end = self._ends[-1]
        position = self._position
        if position is None or position >= end:
            return 0.0
        came_s = self._ends[0][0]
        for at_s, there in self._ends:
            if there > position:
                break
            came_s = at_s
        return now_s - came_s

    def stalled_s(self) -> float:
        """For how long the position has stood still, held, while messages waited."""
        return self._ends[-1][0] - self._moved_s
