"""What wakes an idle leader before its next poll (specs/HARVEST.md §9).

A leader, in any mode, sees a `WakeEvent`. Its rule: `clear` before reading the table, `wait` when
there was nothing to read. A row that becomes visible after the read began sets the event after it
was cleared, so no row is slept through. Who sets it is a
`harvest.core.interfaces.listener.Listener`; without one, the leader polls.
"""

from __future__ import annotations

import threading

__all__ = ["WakeEvent", "WakeEvents"]


class WakeEvent:
    """Set by any thread, waited for by one. Implements `WakeSignal`."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.listening = False
        """Whether new rows wake: then polling is only a safety net, and may be slow."""

    def wake(self) -> None:
        """Wake whoever waits, or will wait next."""
        self._woken.set()

    def clear(self) -> None:
        """Forget earlier calls of `wake`. Before reading what they may have been about."""
        self._woken.clear()

    def wait(self, timeout_s: float) -> bool:
        """Wait to be woken; False if that has not happened after `timeout_s`."""
        return self._woken.wait(timeout_s)


class WakeEvents:
    """The events of all shards, for one listener. Implements `WakeSignal`."""

    def __init__(self) -> None:
        self.listening = False
        self._events: dict[int, WakeEvent] = {}

    def add(self, shard: int) -> WakeEvent:
        """The event of a shard, until it is removed."""
        event = self._events[shard] = WakeEvent()
        event.listening = self.listening
        return event

    def remove(self, shard: int) -> None:
        """Nobody waits for it any more."""
        self._events.pop(shard, None)

    def wake(self) -> None:
        """Wake all."""
        for event in list(self._events.values()):
            event.listening = self.listening
            event.wake()
