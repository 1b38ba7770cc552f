"""The faster takeover of a cold start: two append times of the broker are compared (§5.3)."""

from __future__ import annotations

from marshal_py.protocol.world import Observer

__all__ = ["ColdStart"]


class ColdStart:
    """Looks at broker timestamps, as soon as a heartbeat of this instance, the probe, was read.

    `skew_ms` is how far the clocks of two brokers may be apart; None: timestamps are not looked at.
    """

    __slots__ = ("asked", "probe", "skew_ms")

    def __init__(self, skew_ms: int | None, partitions: int) -> None:
        self.skew_ms = skew_ms
        self.probe: list[int | None] = [None] * partitions
        """Offset of this instance's first heartbeat in each coordination partition."""
        self.asked = [False] * partitions
        """Whether a probe was asked for there."""

    def ask(self, coordinator: int) -> bool:
        """Say whether a probe has to be sent, and take it as sent."""
        if self.skew_ms is None or self.probe[coordinator] is not None or self.asked[coordinator]:
            return False
        self.asked[coordinator] = True
        return True

    def is_asking(self, coordinator: int) -> bool:
        """Whether a probe is on its way that may allow a faster takeover."""
        return self.asked[coordinator] and self.probe[coordinator] is None

    def read(self, coordinator: int, offset: int) -> bool:
        """Take in that a heartbeat of this instance was read; say whether it is the first."""
        if self.probe[coordinator] is not None:
            return False
        self.probe[coordinator] = offset
        return True

    def failed(self, coordinator: int) -> None:
        """Take in that a heartbeat was not written: it may have been the probe."""
        if self.probe[coordinator] is None:
            self.asked[coordinator] = False

    def is_stale(
        self, version: int, interval_ms: int, observer: Observer, coordinator: int
    ) -> bool:
        """Say whether a cell's version was appended long enough before the probe."""
        probe = self.probe[coordinator]
        if self.skew_ms is None or probe is None or version >= probe:
            return False
        own_ms = observer.stamped.at(probe)
        last_ms = observer.stamped.at(version)
        if own_ms is None or last_ms is None:
            return False
        # `at` may answer late by one tick: right for the cell, but our own must not be too late.
        own_ms -= observer.stamped.resolution
        return own_ms - last_ms > 2 * interval_ms + self.skew_ms

    def clear(self) -> None:
        """The log was truncated: look for a probe anew."""
        for p in range(len(self.probe)):
            self.probe[p] = None
            self.asked[p] = False
