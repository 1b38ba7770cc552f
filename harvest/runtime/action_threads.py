"""The threads that carry out a scheduler's actions.

A thread does one thing at a time, in order; several work at once. What waits for a thread when it
becomes free is handed to it together, so that small pieces of work merge under load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

__all__ = ["ActionThread", "Handler", "InlineActions"]

A = TypeVar("A")

Work = Callable[[Sequence[A]], None]
_END: Final = object()
"""What is put in to end a thread."""

Handler = Callable[[Any], Any]
"""Carries out an action of one type, and returns the event that answers it."""


class ActionThread(Generic[A]):
    """One thread that calls `work` with what was put in, all that waits at once.

    `actions` are the types that a leadership puts in. `cancel` makes the work under way end soon;
    without it, it is waited for.
    """

    def __init__(
        self,
        name: str,
        work: Work[A],
        actions: Iterable[type] = (),
        *,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.actions = tuple(actions)
        self.cancel = cancel
        self._work = work
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._left = 0
        self._idle = threading.Event()
        self._idle.set()
        self._closing = False
        self._before: Callable[[], None] = lambda: None
        self._crashed: Callable[[BaseException], None]
        self._thread = threading.Thread(target=self._run, name=f"harvest-{name}", daemon=True)

    @classmethod
    def answering(
        cls,
        name: str,
        handlers: Mapping[type, Handler],
        report: Callable[[Any], None],
        *,
        cancel: Callable[[], None] | None = None,
    ) -> ActionThread[Any]:
        """A thread that carries out one action after the other, and reports each one's event."""

        def work(actions: Sequence[Any]) -> None:
            for action in actions:
                report(handlers[type(action)](action))

        return ActionThread(name, work, handlers, cancel=cancel)

    def start(
        self,
        crashed: Callable[[BaseException], None],
        *,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin. `before` is called before each `work`.

        If either raises, `crashed` hears of it and the thread ends.
        """
        self._crashed, self._before = crashed, before
        self._thread.start()

    def put(self, action: A) -> None:
        """Add work. Never blocks."""
        with self._lock:
            self._left += 1
            self._idle.clear()
        self._queue.put(action)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all that was put in is done; False if it is not after `timeout_s`."""
        return self._idle.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """End after the work under way; what waits is dropped. False if that takes longer."""
        self._closing = True
        self._queue.put(_END)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closing:
                waiting = [self._queue.get()]
                try:
                    while True:
                        waiting.append(self._queue.get_nowait())
                except Empty:
                    pass
                actions = [action for action in waiting if action is not _END]
                if actions and not self._closing:
                    self._before()
                    self._work(actions)
                    with self._lock:
                        self._left -= len(actions)
                        if not self._left:
                            self._idle.set()
        except BaseException as error:
            self._crashed(error)


class InlineActions(ActionThread[Any]):
    """No thread: what is put in is carried out at once, by whoever puts it in, and not answered."""

    def __init__(self, handlers: Mapping[type, Callable[[Any], object]]) -> None:
        super().__init__("inline", lambda _: None, handlers)
        self._handlers = handlers

    def start(
        self,
        crashed: Callable[[BaseException], None],
        *,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """There is nothing to begin: an error is the caller's."""
        del crashed, before

    def put(self, action: Any) -> None:
        """Carry it out."""
        self._handlers[type(action)](action)

    def close(self, timeout_s: float) -> bool:
        """There is nothing to end."""
        del timeout_s
        return True
