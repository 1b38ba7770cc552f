"""A broker in memory with transactions and fencing: a fake held to the contract of `sink.base`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from harvest.core.failure import Failure
from harvest.core.interfaces.sink import StillHeld
from harvest.core.row import Row, named
from harvest.errors import SinkUnavailable

__all__ = ["REFUSED", "Fault", "MemoryBroker", "MemorySink"]

REFUSED = b"refused"
"""A value that the broker does not accept."""

Fault = Literal["refused", "unknown, published", "unknown, lost", "partial"]


@dataclass
class MemoryBroker:
    """What readers see, one list for the whole broker, and who may write."""

    published: list[Row] = field(default_factory=list)
    checkpoint: str | None = None
    writer: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def of_key(self, topic: str, key: bytes) -> list[int]:
        """The ids published for a key, in order."""
        return [row.id for row in self.published if (row.topic, row.key) == (topic, key)]


class MemorySink:
    """Writes to a `MemoryBroker`. Implements `harvest.core.interfaces.sink.Sink`.

    `fault` makes the next delivery fail: refused; with an outcome that the writer cannot know; or,
    without atomicity, with every other row (by position) failing. `largest`: a delivery of more
    rows takes too long, and fails.
    """

    def __init__(self, broker: MemoryBroker, *, atomic: bool = True) -> None:
        self._broker = broker
        self._atomic = atomic
        self._writer = -1
        self._still_held: StillHeld = lambda: False
        self.fault: Fault | None = None
        self.fail_open = False
        self.largest: int | None = None

    @property
    def atomic(self) -> bool:
        """See `Sink.atomic`."""
        return self._atomic

    def prepare(self) -> None:
        """See `Sink.prepare`."""

    def open(self, still_held: StillHeld) -> str | None:
        """See `Sink.open`."""
        if self.fail_open:
            self.fail_open = False
            raise SinkUnavailable
        with self._broker.lock:
            self._broker.writer += 1
            self._writer = self._broker.writer
            self._still_held = still_held
            return self._broker.checkpoint if self._atomic else None

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        """See `Sink.deliver`."""
        rows = named(rows)
        fault, self.fault = self.fault, None
        with self._broker.lock:
            if self._writer != self._broker.writer:
                self._writer = -1
                return Failure("fenced, or failed before")
            if not self._still_held():
                self._writer = -1
                return Failure("the lease is lost")
            bad = {r.id: "headers" for r in rows if len(r.header_keys) != len(r.header_values)}
            bad |= {r.id: "refused" for r in rows if r.value == REFUSED}
            if bad:
                self._writer = -1
                good = [row for row in rows if row.id not in bad]
                if not self._atomic:
                    self._publish(good, checkpoint)
                undelivered = None if self._atomic else frozenset(bad)
                return Failure("bad rows", undelivered, bad, frozenset(bad))
            if self.largest is not None and len(rows) > self.largest:
                self._writer = -1
                return Failure("the transaction timed out")
            if fault is None:
                self._publish(rows, checkpoint)
                return None
            self._writer = -1
            if fault == "unknown, published":
                self._publish(rows, checkpoint)
            if fault == "partial" and not self._atomic:
                self._publish(rows[::2], checkpoint)
                return Failure(fault, frozenset(row.id for row in rows[1::2]))
            return Failure(fault)

    def close(self) -> None:
        """See `Sink.close`."""
        self._writer = -1

    def _publish(self, rows: Sequence[Row], checkpoint: str) -> None:
        self._broker.published.extend(rows)
        if self._atomic:
            self._broker.checkpoint = checkpoint
