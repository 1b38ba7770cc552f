"""Lanes: the threads that carry out a scheduler's actions.

A lane does one thing at a time, in order; several lanes work at once. What waits in a lane when it
becomes free is handed to the worker together, so that small pieces of work merge under load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

__all__ = ["Lane"]

A = TypeVar("A")

Work = Callable[[Sequence[A]], None]


class Lane(Generic[A]):
    """One thread that calls `work` with what was put in, all that waits at once.

    If `work` raises, `crashed` hears of it and the lane ends.
    """

    def __init__(self, name: str, work: Work[A], crashed: Callable[[BaseException], None]) -> None:
        self._work = work
        self._crashed = crashed
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._left = 0
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name=f"harvest-{name}", daemon=True)
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
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    _closing = False

    def _run(self) -> None:
        try:
            while not self._closing:
                waiting = [self._queue.get()]
                try:
                    while True:
                        waiting.append(self._queue.get_nowait())
                except Empty:
                    pass
                actions = [action for action in waiting if action is not None]
                if actions and not self._closing:
                    self._work(actions)
                    with self._lock:
                        self._left -= len(actions)
                        if not self._left:
                            self._idle.set()
        except BaseException as error:
            self._crashed(error)
