"""What wakes an idle harvester before its next poll, for a database (specs/HARVEST.md §9)."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Listener", "WakeSignal"]


class WakeSignal(Protocol):
    """What a `Listener` sets. `harvest.runtime.wake` has it, and the rule by which it is used."""

    listening: bool
    """Whether new rows wake: then polling is only a safety net, and may be slow."""

    def wake(self) -> None:
        """Wake whoever waits, or will wait next."""


class Listener(Protocol):
    """Wakes when rows appear, on a connection and in a thread of its own."""

    def start(self, signal: WakeSignal) -> None:
        """Begin to listen, now and after every outage. Returns at once, raises nothing."""

    def close(self) -> None:
        """Stop listening."""
