"""Hooks of the user run in a thread of their own, so that a slow one delays no heartbeat."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["HookThread"]


class HookThread:
    """Calls one hook after the other; what one raises is logged. The thread starts when needed."""

    def __init__(self, log: logging.LoggerAdapter[Any], client_id: str) -> None:
        self._log = log
        self._client_id = client_id
        self._hooks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if it does not run yet. The caller holds the client's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="marshal-hooks", daemon=True)
            self._thread.start()

    def call(self, hook: Callable[[], None]) -> None:
        """Have `hook` called, after those that were asked for before."""
        self._hooks.put(hook)

    def close(self, timeout_s: float) -> None:
        """End the thread after what it has to do still; a hook may call this itself."""
        if self._thread is None:
            return
        self._hooks.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (hook := self._hooks.get()) is not None:
            try:
                hook()
            except BaseException:  # `sys.exit` would end this thread, without a word
                self._log.exception("%s: a hook raised", self._client_id)
