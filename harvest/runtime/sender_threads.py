"""Threads that send messages: as many as are needed, up to a limit, each with one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["SenderThreads"]

T = TypeVar("T")


class SenderThreads(Generic[T]):
    """Calls `work` with everything that is `put`, in up to `size` threads.

    If `work` raises, `crashed` hears of it. Threads are daemons: one that hangs holds up nobody.
    """

    def __init__(
        self, size: int, work: Callable[[T], None], crashed: Callable[[BaseException], None]
    ) -> None:
        self._size = size
        self._work = work
        self._crashed = crashed
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open = 0
        """Pieces of work that are put and not done."""

    def put(self, work: T) -> None:
        """Have it done, as soon as a thread is free. Never blocks."""
        with self._lock:
            self._open += 1
            if self._open > len(self._threads) < self._size:
                name = f"harvest-post-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put(work)

    def close(self, timeout_s: float) -> bool:
        """End when what was put is done, and wait for that; False if it takes longer."""
        deadline_s = time.monotonic() + timeout_s
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                self._work(work)
            except BaseException as error:
                self._crashed(error)
            finally:
                with self._lock:
                    self._open -= 1
