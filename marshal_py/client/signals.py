"""Ctrl-C and SIGTERM in the main thread: an orderly end, not an exception between any two lines.

Python raises `KeyboardInterrupt` wherever the main thread happens to be, which may be in the middle
of our own books. While `Consumer.run` is on, a signal is only a request to stop; the exception is
let through when all is wound up (`StopRequests`). A second signal is let through at once.

A handler that the program has set itself is never touched.

Ctrl-C that ends a loop, or `Consumer.run`, and that nobody catches, ends the program as Python does
(exit code 130 in a shell), but without a traceback through our code and asyncio's: see `hush`.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, Self

__all__ = ["StopRequests", "exit_on_sigterm", "hush"]

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
        exception = _exception(self._number)
        hush(exception)
        raise exception from error


_HUSHED: Final = "_marshal_py_hushed"


def hush(error: BaseException | None) -> None:
    """Have Python print nothing if Ctrl-C, which `error` is or comes from, ends the program.

    asyncio cancels what runs, and raises `KeyboardInterrupt` when that has ended: `error` is the
    cancellation then. What else ends the program is printed as ever.
    """
    if error is None:
        return
    setattr(error, _HUSHED, True)
    if sys.excepthook is not _print_unless_hushed:
        _hooks.append(sys.excepthook)
        sys.excepthook = _print_unless_hushed


_hooks: Final[list[Callable[..., object]]] = []
"""What printed exceptions before; the last one counts."""


def _print_unless_hushed(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    cause: BaseException | None = error
    while isinstance(error, KeyboardInterrupt) and cause is not None:
        if getattr(cause, _HUSHED, False):
            return
        cause = cause.__context__
    _hooks[-1](kind, error, trace)


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
