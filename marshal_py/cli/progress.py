"""How far a command is that reads a long log, said on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from marshal_py.cli.output import note

__all__ = ["LogProgress"]

_QUIET_S: Final = 2.0
_EVERY_S: Final = 2.0


class LogProgress:
    """Called with the records that were read, and how many there are; speaks after two seconds.

    When the end was reached it is silent: what a command that stays reads later is no work that
    somebody waits for. `clock`: seconds, as `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = clock() + _QUIET_S

    def __call__(self, done: int, total: int) -> None:
        if done >= total:
            self._next_s = math.inf
        elif self._clock() >= self._next_s:
            self._next_s = self._clock() + _EVERY_S
            note(f"read {done:,} of {total:,} records of the log ({done / total:.0%})")
