"""When heartbeats are due, and how many may be on their way (specs/PROTOCOL.md §5.5)."""

from __future__ import annotations

from typing import Final

from marshal_py.protocol.timers import Timers

__all__ = ["MAX_UNREAD_HEARTBEATS", "HeartbeatSchedule"]

MAX_UNREAD_HEARTBEATS: Final = 2
"""Heartbeats a coordination partition may have unread: more would only pile up in an outage."""

_WHEN_READ: Final = -1
"""Due the moment that one of those on their way is read, or fails."""


class HeartbeatSchedule:
    """The next heartbeat of each coordination partition, and those that have not been read yet."""

    __slots__ = ("due_ns", "timers", "unread")

    def __init__(self, timers: Timers, partitions: int) -> None:
        self.timers = timers
        self.due_ns: list[int | None] = [None] * partitions
        self.unread = [0] * partitions

    def arrange(self, coordinator: int, at_ns: int) -> None:
        """Have the next heartbeat at `at_ns`, or earlier if that was arranged before."""
        due_ns = self.due_ns[coordinator]
        if due_ns is None or at_ns < due_ns:
            self.due_ns[coordinator] = at_ns
            self.timers.set(at_ns, "heartbeat", coordinator)

    def begin(self, coordinator: int) -> None:
        """The heartbeat that was due is dealt with."""
        self.due_ns[coordinator] = None

    def hold_back(self, coordinator: int) -> bool:
        """Say whether too many are unread; if so, the next is due when one of them is settled."""
        if self.unread[coordinator] < MAX_UNREAD_HEARTBEATS:
            return False
        self.due_ns[coordinator] = _WHEN_READ
        return True

    def sent(self, coordinator: int) -> None:
        """One more is on its way."""
        self.unread[coordinator] += 1

    def settled(self, coordinator: int, now_ns: int) -> None:
        """One was read, or counts as failed."""
        self.unread[coordinator] = max(0, self.unread[coordinator] - 1)
        if self.due_ns[coordinator] == _WHEN_READ:
            self.due_ns[coordinator] = None
            self.arrange(coordinator, now_ns)

    def clear(self) -> None:
        """Nothing is due, and nothing on its way."""
        for p in range(len(self.due_ns)):
            self.due_ns[p] = None
            self.unread[p] = 0
