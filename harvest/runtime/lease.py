"""The right to harvest: what a harvester needs from leader election."""

from __future__ import annotations

import threading
from typing import Final, Protocol

__all__ = ["HeartbeatGuard", "Lease"]

_LATE: Final = 0.4
_CHECK_S: Final = 0.02


class Lease(Protocol):
    """The right to act, for a while. `marshal_py.Leadership` is one."""

    @property
    def held(self) -> bool:
        """Whether the holder may act now; false the moment the lease lapses."""

    @property
    def epoch(self) -> int:
        """The fencing token: larger for every later holder."""

    @property
    def remaining_ms(self) -> float:
        """Milliseconds that are left of the lease; 0 when it is not held."""

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the right to act ends; False if it has not after `timeout_s`."""


class HeartbeatGuard:
    """Holds work back while the heartbeat that renews `lease` is late.

    A process that is busy in many threads delays its own heartbeat, and loses a lease that nobody
    else wants. Threads that `wait` before each piece of work leave the processor and Python's lock
    to the heartbeat, in time. Between two heartbeats the lease shrinks to a little less than half;
    below that one is overdue. For any thread.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._full_ms = 0.0
        """The most that was ever left of it."""

    def wait(self, over: threading.Event) -> None:
        """Return when the heartbeat is not late, when the lease is gone, or when it is `over`."""
        while True:
            left_ms = self._lease.remaining_ms
            self._full_ms = max(self._full_ms, left_ms)
            if not 0 < left_ms < self._full_ms * _LATE or over.wait(_CHECK_S):
                return
