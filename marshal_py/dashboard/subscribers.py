"""The pages that are open, and what is sent to them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, Literal

import msgspec

__all__ = ["Subscriber", "Subscribers"]

WAITING: Final = 64
"""Documents that a slow page may be behind; it gets everything anew then."""


class Subscriber:
    """One page. Documents wait in a bounded queue; for one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self.overrun = False

    def put(self, item: tuple[str, bytes] | None) -> None:
        """Add a document from any thread; None: there will be no more."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the page with it
            self._loop.call_soon_threadsafe(self._put, item)

    def _put(self, item: tuple[str, bytes] | None) -> None:
        if item is not None and self._queue.qsize() >= WAITING:
            self.overrun = True
            return
        self._queue.put_nowait(item)

    async def get(self, timeout_s: float) -> tuple[str, bytes] | None:
        """Return the next document. Raises `TimeoutError`."""
        return await asyncio.wait_for(self._queue.get(), timeout_s)


class Subscribers:
    """All pages. The caller guards it with a lock; `end` is for any thread, and signal handlers."""

    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._encode = msgspec.json.Encoder().encode

    def __bool__(self) -> bool:
        return bool(self._subscribers)

    def add(self, subscriber: Subscriber, document: dict[str, Any]) -> None:
        """Send everything to a page, and from then on what is sent to all."""
        subscriber.overrun = False
        subscriber.put(("state", self._encode(document)))
        self._subscribers.add(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a page."""
        self._subscribers.discard(subscriber)

    def send(self, kind: Literal["state", "delta"], document: dict[str, Any]) -> None:
        """Send everything (`state`), or what changed (`delta`), to every page."""
        data = self._encode(document)
        for subscriber in self._subscribers:
            subscriber.put((kind, data))

    def end(self) -> None:
        """Tell every page that there will be no more."""
        for subscriber in list(self._subscribers):
            subscriber.put(None)
