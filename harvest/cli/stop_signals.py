"""SIGTERM and Ctrl-C, from the first moment of a harvesting process to its last.

The standard library alone: this is imported before what takes seconds to import.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

__all__ = ["STOP_SIGNALS", "StopSignals"]

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """What a signal does: until `call`, it ends the process in order, with exit code 0.

    A second Ctrl-C raises `KeyboardInterrupt`; a second SIGTERM changes nothing.
    """

    def __init__(self) -> None:
        self._requested = False
        self._stop: Callable[[], None] | None = None

    def install(self) -> None:
        """Handle the signals from now on."""
        for number in _NUMBERS:
            signal.signal(number, self.received)

    def call(self, stop: Callable[[], None]) -> None:
        """From now on, a signal calls `stop`; and so does one that came before."""
        self._stop = stop
        if self._requested:  # somebody swallowed the SystemExit, an import's clean-up, for example
            stop()

    def ignore(self) -> None:
        """Nothing is left to do: while the interpreter ends, SIGTERM must not change its code."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def received(self, number: int, _: FrameType | None) -> None:
        """The handler."""
        again, self._requested = self._requested, True
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._stop is not None:
            self._stop()
        elif not again:
            raise SystemExit(0)


STOP_SIGNALS: Final = StopSignals()
"""Those of this process."""
