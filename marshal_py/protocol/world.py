"""The world: every coordination partition's state, and questions about it (specs/PROTOCOL.md §2).

`World` is what the fold has built. `Timeline` and `Observer` are one reader's own measurements of
when it saw what (§5.1): they never enter the fold, and two readers' differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import mmh3

from marshal_py.protocol.rationalizer import Cell, CellKey, Member, PartitionState

__all__ = [
    "LEADER_PREFIX",
    "Liveness",
    "Observer",
    "Timeline",
    "World",
    "coordinating_partition",
]

Liveness: TypeAlias = Literal["fresh", "unknown", "stale"]

MS: Final = 1_000_000
"""Nanoseconds in a millisecond."""

LEADER_PREFIX: Final = "leader:"
"""What the virtual topics of elections begin with (§8)."""


def coordinating_partition(group_id: str, partitions: int) -> int:
    """Return which of `partitions` coordination partitions holds everything about a group.

    Murmur3 (x86, 32 bit, seed 0, unsigned) of the group_id in UTF-8, modulo `partitions` (§2.2).
    """
    return mmh3.hash(group_id.encode(), signed=False) % partitions


class MemberView(NamedTuple):
    group_id: str
    client_id: str
    member: Member


class World:
    """The states of all coordination partitions, which the fold changes in place.

    Not thread-safe: `Marshal` guards its own with a lock and hands out copies.
    """

    def __init__(self, partitions: int) -> None:
        self.states: list[PartitionState] = [PartitionState(p) for p in range(partitions)]

    @property
    def partitions(self) -> int:
        """How many coordination partitions there are."""
        return len(self.states)

    def coordinator(self, group_id: str, topic: str, partition: int) -> int:  # noqa: ARG002
        """Return the coordination partition that decides about a cell: that of its group."""
        return coordinating_partition(group_id, len(self.states))

    def home(self, group_id: str) -> int:
        """Return the coordination partition of the group."""
        return coordinating_partition(group_id, len(self.states))

    def cell(self, group_id: str, topic: str, partition: int) -> Cell | None:
        """Return the cell, or None if it was never touched (or was forgotten)."""
        state = self.states[self.coordinator(group_id, topic, partition)]
        return state.cells.get((group_id, topic, partition))

    def version(self, group_id: str, topic: str, partition: int) -> int:
        """Return the offset of the last record that renewed the cell, −1 where there is none."""
        state = self.states[self.coordinator(group_id, topic, partition)]
        return state.version(group_id, topic, partition)

    def cells(self, group_id: str | None = None) -> Iterator[tuple[int, CellKey, Cell]]:
        """Yield (coordination partition, key, cell) of one group or, by default, of all."""
        for state in self.states:
            for key, cell in state.cells.items():
                if group_id is None or key[0] == group_id:
                    yield state.partition, key, cell

    def members(self, group_id: str | None = None) -> Iterator[MemberView]:
        """Yield the members of one group or, by default, of all."""
        for state in self.states:
            for (group, client), member in state.members.items():
                if group_id is None or group == group_id:
                    yield MemberView(group, client, member)

    def groups(self) -> list[str]:
        """Return the names of all groups that have cells, members or a pause, sorted."""
        names: set[str] = set()
        for state in self.states:
            names.update(key[0] for key in state.cells)
            names.update(key[0] for key in state.members)
            names.update(state.paused)
        return sorted(names)

    def paused(self, group_id: str) -> bool:
        """Say whether the group is paused in any coordination partition."""
        return any(group_id in state.paused for state in self.states)


class Timeline:
    """Maps offsets to the time by which they had been seen, exactly or a little late.

    It keeps one point for each tick of `resolution`, not one for each record, so that reading costs
    nothing per record; a look-up never answers a time earlier than the true one. Points older than
    `horizon` are dropped, and what lay before them is answered with the oldest that is left: later
    than true, again. Times are integers of any unit, and never decrease.
    """

    __slots__ = ("_offsets", "_times", "horizon", "resolution")

    def __init__(self, resolution: int, horizon: int) -> None:
        self.resolution = resolution
        self.horizon = horizon
        self._offsets: list[int] = []
        self._times: list[int] = []

    def note(self, offset: int, time: int) -> None:
        """Note that every record up to and including `offset` has been seen at `time`."""
        times, offsets = self._times, self._offsets
        if times:
            time = max(time, times[-1])
            if times[-1] // self.resolution == time // self.resolution:
                offsets[-1] = max(offset, offsets[-1])
                times[-1] = time
                return
        offsets.append(offset)
        times.append(time)
        if times[0] < time - 2 * self.horizon:
            keep = bisect_left(times, time - self.horizon)
            del times[:keep], offsets[:keep]

    def at(self, offset: int) -> int | None:
        """Return the time by which the record at `offset` had been seen, None if it was not."""
        index = bisect_left(self._offsets, offset)
        return self._times[index] if index < len(self._times) else None


class Observer:
    """When this reader saw each record of one coordination partition, on its own monotonic clock.

    `seen` maps offsets to local nanoseconds, from the moment the reader had caught up; `stamped`
    maps them to the broker's append timestamps in milliseconds, for a faster cold start (§5.3).
    """

    __slots__ = ("caught_up_at_offset", "seen", "stamped")

    def __init__(self) -> None:
        self.seen = Timeline(resolution=10 * MS, horizon=600_000 * MS)
        self.stamped = Timeline(resolution=10, horizon=600_000)
        self.caught_up_at_offset: int | None = None
        """The first offset that this reader had not read when it caught up; None before that."""

    def allow(self, interval_ms: int) -> None:
        """Make sure that silences of more than two intervals can be measured."""
        if 4 * interval_ms * MS > self.seen.horizon:
            self.seen.horizon = 4 * interval_ms * MS
            self.seen.resolution = max(10, interval_ms // 1000) * MS
            self.stamped.horizon = 4 * interval_ms
            self.stamped.resolution = max(10, interval_ms // 1000)

    def silence_ns(self, version: int, now_ns: int) -> int | None:
        """Return for how long a version has been the last, None before catching up.

        Never more than the true time since this reader saw the record at `version`.
        """
        seen_at = self.seen.at(version)
        return None if seen_at is None else max(0, now_ns - seen_at)

    def liveness(self, version: int, interval_ms: int, now_ns: int) -> Liveness:
        """Say how alive a holder looks whose cell has this version (§5.1).

        Below one interval fresh, above two stale.
        """
        silence = self.silence_ns(version, now_ns)
        if silence is None:
            return "unknown"
        interval = interval_ms * MS
        if silence < interval:
            return "fresh"
        return "unknown" if silence <= 2 * interval else "stale"
