"""Blocking calls, made in threads for an asyncio event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from marshal_py.errors import Closed

__all__ = ["CallThread", "call_in_thread"]

T = TypeVar("T")


class CallThread:
    """A daemon thread that makes one call after the other, started with the first."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it makes no more calls."""
        return self._closed

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have `function` called; the future, of the running loop, tells its outcome."""
        if self._closed:
            raise Closed("the consumer has been closed; make a new one")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="marshal-asyncio", daemon=True)
            self._thread.start()
        future, call = _into_future(function)
        self._calls.put(call)
        return future

    def close(self) -> None:
        """End the thread, after what it has to do still."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


async def call_in_thread(function: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """Call `function` in a thread of its own. If nobody waits any more when it returns: `undo`."""
    future, call = _into_future(function, undo)
    _in_thread(call)
    try:
        return await future
    except asyncio.CancelledError:
        is_done = future.done() and not future.cancelled()  # and this task had not gone on yet
        if undo is not None and is_done and future.exception() is None:
            _in_thread(undo)
        raise


def _in_thread(call: Callable[[], object]) -> None:
    threading.Thread(target=call, name="marshal-asyncio", daemon=True).start()


def _into_future(
    function: Callable[[], T], undo: Callable[[], object] | None = None
) -> tuple[asyncio.Future[T], Callable[[], None]]:
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()  # as `asyncio.to_thread` does
    future: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            tell = partial(_set_result, future, context.run(function), undo)
        except BaseException as error:
            tell = partial(_set_exception, future, error)
        else:
            if undo is not None and future.cancelled():
                undo()
                return
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it who waited
            loop.call_soon_threadsafe(tell)

    return future, call


def _set_result(future: asyncio.Future[T], result: T, undo: Callable[[], object] | None) -> None:
    if not future.done():
        future.set_result(result)
    elif undo is not None:  # cancelled since the call ended
        _in_thread(undo)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        if isinstance(error, StopIteration | KeyboardInterrupt | SystemExit):
            error = RuntimeError(f"{type(error).__name__}: {error}")
        future.set_exception(error)
