"""Ctrl-C and SIGTERM in the main thread: an orderly end, not an exception between any two lines.

Python raises `KeyboardInterrupt` wherever the main thread happens to be, which may be in the middle
of our own books. While `Consumer.run` is on, a signal is only a request to stop; the exception is
let through when all is wound up (`StopRequests`). A second signal is let through at once.

A handler that the program has set itself is never touched.

Ctrl-C that ends a loop, or `Consumer.run`, and that nobody catches, ends the program as Python does
(exit code 130 in a shell), but without a traceback through our code and asyncio's: see `hush`.

An event loop that sleeps hears of every signal while `wake_on_signals` is on.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:  # what is not asyncio does without
    import asyncio

__all__ = ["StopRequests", "exit_on_sigterm", "hush", "wake_on_signals"]

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
    found = signal.getsignal(signal.SIGTERM)
    if found is signal.SIG_DFL:
        _use_sigterm.clear()  # whoever used it has been overruled since then
    elif found is not _on_signal:
        return None
    user = object()
    _use_sigterm.append(user)
    signal.signal(signal.SIGTERM, _on_signal)
    return partial(_let_go_of_sigterm, user)


_use_sigterm: Final[list[object]] = []
"""Who has asked for it, and has not let go."""


def _let_go_of_sigterm(user: object) -> None:
    with contextlib.suppress(ValueError):  # it has let go before
        _use_sigterm.remove(user)
    if (
        not _use_sigterm
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is _on_signal
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_signal(number: int, _: FrameType | None) -> None:
    taken = [requests.take(number) for requests in list(_entered)]  # all of them
    if not any(taken):
        raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


class _SignalSocket:
    """Has every signal wake an event loop, for as long as somebody uses it there.

    There is one in a process, and it stays open: whoever sets another descriptor meanwhile, as
    uvloop does, puts this one back.
    """

    def __init__(self) -> None:
        import socket

        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._users = 0

    def use(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """See `wake_on_signals`."""
        own = self._writing.fileno()
        before = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
        if before not in (-1, own):
            signal.set_wakeup_fd(before)
            return lambda: None
        if self._loop is not loop:  # the first use, or the last loop has ended without an undoing
            self._users = 0
            self._loop = loop
            loop.add_reader(self._reading, self._drain)
        self._users += 1
        return partial(self._end_use, loop)

    def _end_use(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        self._users -= 1
        if self._users == 0:
            before = signal.set_wakeup_fd(-1)
            if before != self._writing.fileno():  # the loop's own, set since then
                signal.set_wakeup_fd(before)
            loop.remove_reader(self._reading)
            self._loop = None

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._reading.recv(4096)


_sockets: Final[list[_SignalSocket]] = []
"""The one that there is, once it has been used. Touched by the main thread alone."""


def wake_on_signals(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Have signals wake `loop`, which runs in this thread. Returns the undoing, for this thread.

    Python calls a signal's handler in the main thread, between two instructions. When another
    thread receives the signal, or the main thread does just before it goes to sleep, the handler
    would wait for whatever wakes the loop next, which may never come: Ctrl-C would do nothing.
    Where the program or the loop (uvloop's) sees to that already, nothing is changed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or sys.platform == "win32":  # whose loop sees to it
        return lambda: None
    if not _sockets:
        _sockets.append(_SignalSocket())
    return _sockets[0].use(loop)
