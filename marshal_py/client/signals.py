"""Ctrl-C and SIGTERM in the main thread: an orderly end, not an exception between any two lines.

Python raises `KeyboardInterrupt` wherever the main thread happens to be, which may be in the middle
of our own books. While `Consumer.run` is on, a signal is only a request to stop; the exception is
let through when all is wound up (`StopRequests`). A second signal is let through at once.

A handler that the program has set itself is never touched.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, Self

__all__ = ["StopRequests", "exit_on_sigterm"]

logger = logging.getLogger("marshal_py.consumer")


class StopRequests:
    """While it is entered, in the main thread, signals call `stop`, and are raised at the end."""

    def __init__(self, stop: Callable[[], None], *, name: str) -> None:
        self._stop = stop
        self._name = name
        self._number: int | None = None

    def take(self, number: int) -> bool:
        """Ask for the stop. Returns False if that was done already, so patience has ended."""
        if self._number is not None:
            return False
        self._number = number
        self._stop()
        return True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            _entered.append(self)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, _on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self in _entered:
            _entered.remove(self)
            if not _entered and signal.getsignal(signal.SIGINT) is _on_signal:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._number is None or isinstance(error, KeyboardInterrupt | SystemExit):
            return
        if isinstance(error, Exception):
            logger.error("%s: while it was being stopped: %r", self._name, error)
        raise _exception(self._number) from error


_entered: Final[list[StopRequests]] = []
"""Touched by the main thread alone."""


def exit_on_sigterm() -> Callable[[], None] | None:
    """Turn SIGTERM into SystemExit, unless the program handles it already. Returns the undoing."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None
    signal.signal(signal.SIGTERM, _on_signal)
    return _let_go_of_sigterm


def _let_go_of_sigterm() -> None:
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is _on_signal
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_signal(number: int, _: FrameType | None) -> None:
    taken = [requests.take(number) for requests in list(_entered)]  # all of them
    if not any(taken):
        raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
