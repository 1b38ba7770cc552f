"""Noticing that the log is not read though there is more of it (specs/PROTOCOL.md §7.1)."""

from __future__ import annotations

from collections.abc import Mapping

from marshal_py.client.pulse import TimeAwake

__all__ = ["UnreadWatch"]


class UnreadWatch:
    """Tells whether what the brokers have taken of this client comes back to it.

    A Kafka client can come to hang: a connection of which the other end is gone, or librdkafka's
    own threads, which wait for each other for ever (its issue 5476). It says nothing then.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._ends: dict[int, tuple[int, float]] = {}
        """Where each partition ends, and since when."""
        self._places: dict[int, int] = {}
        self._waited_s: dict[int, float] = {}
        self._awake = TimeAwake()

    def look(self, ends: Mapping[int, int], places: Mapping[int, int], now_s: float) -> int | None:
        """Return a partition of which nothing has come for `limit_s` though there is more; or None.

        `ends`: the offset behind what is known to be there. `places`: the next offset to read. Time
        in which the brokers take nothing either does not count: nobody is served then.
        """
        passed_s = self._awake.passed_s(now_s)
        for p, end in ends.items():
            place = places[p]
            known, grown_s = self._ends.get(p, (-1, now_s))
            if known != end:
                grown_s = now_s
                self._ends[p] = end, now_s
            if place >= end:
                self._places.pop(p, None)
            elif place != self._places.get(p):
                self._places[p], self._waited_s[p] = place, 0.0
            else:
                if now_s - grown_s <= self.limit_s / 2:
                    self._waited_s[p] += passed_s
                if self._waited_s[p] > self.limit_s:
                    return p
        return None

    def start_over(self) -> None:
        """Forget the log, and how long anything of it was waited for."""
        self._ends.clear()
        self._places.clear()
