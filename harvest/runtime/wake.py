"""What wakes an idle harvester before its next poll (specs/HARVEST.md §9).

A `Bell` is all that a harvesting algorithm sees, in mark and in range mode alike. Its rule: `clear`
before reading the table, `wait` when there was nothing to read. A row that becomes visible after
the read began rings the bell after it was cleared, so no row is slept through. Who rings it is a
`harvest.core.interfaces.listener.Listener`; without one, the harvester polls.
"""

from __future__ import annotations

import threading

__all__ = ["Bell"]


class Bell:
    """Rung by any thread, waited for by one."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self.armed = False
        """Whether new rows ring: then polling is only a safety net, and may be slow."""

    def ring(self) -> None:
        """Wake whoever waits, or will wait next."""
        self._rung.set()

    def clear(self) -> None:
        """Forget earlier rings. Call it before reading what they may have been about."""
        self._rung.clear()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the bell rings; False if it has not after `timeout_s`."""
        return self._rung.wait(timeout_s)
