"""The world: every coordination partition's state, and questions about it (specs/PROTOCOL.md §2).

`World` is what the fold has built. `Timeline` and `Observer` are one reader's own measurements of
when it saw what (§5.1): they never enter the fold, and two readers' differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

import mmh3

from marshal_py.protocol.rationalizer import Cell, CellKey, GroupState, Member, PartitionState

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

    def group(self, group_id: str) -> GroupState | None:
        """Return what the log says of a group, None for nothing. Version 1 keeps no groups."""
        if not self.states:
            return None
        return self.states[self.home(group_id)].groups.get(group_id)

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
        if group_id is not None:
            group = self.group(group_id)
            if group is not None:
                home = self.home(group_id)
                for (topic, partition), cell in group.cells.items():
                    yield home, (group_id, topic, partition), cell
            return
        for state in self.states:
            for key, cell in state.cells.items():
                yield state.partition, key, cell

    def members(self, group_id: str | None = None) -> Iterator[MemberView]:
        """Yield the members of one group or, by default, of all."""
        if group_id is not None:
            found = self.group(group_id)
            for client, member in found.members.items() if found is not None else ():
                yield MemberView(group_id, client, member)
            return
        for state in self.states:
            for (group, client), member in state.members.items():
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
        """Say whether the group is paused."""
        group = self.group(group_id)
        return group is not None and group.pause is not None


class Timeline:
    """Maps offsets to the time by which they had been seen, exactly or a little late.

    It keeps one point for each tick of `resolution`, not one for each record, so that reading costs
    nothing per record; a look-up never answers a time earlier than the true one. Points older than
    `horizon` are dropped; `coarser` has them at a resolution of its own, for longer. What lay
    before all of them is answered with the oldest that is left: later than true, again. Times are
    integers of any unit, and never decrease.
    """

    __slots__ = ("_offsets", "_times", "coarser", "horizon", "resolution")

    def __init__(self, resolution: int, horizon: int, coarser: Timeline | None = None) -> None:
        self.resolution = resolution
        self.horizon = horizon
        self.coarser = coarser
        self._offsets: list[int] = []
        self._times: list[int] = []

    def note(self, offset: int, time: int) -> None:
        """Note that every record up to and including `offset` has been seen at `time`."""
        times, offsets = self._times, self._offsets
        if times:
            time = max(time, times[-1])
            if times[-1] // self.resolution == time // self.resolution:
                offsets[-1] = offset
                times[-1] = time
                return
            if self.coarser is not None:
                self.coarser.note(offsets[-1], times[-1])
        offsets.append(offset)
        times.append(time)
        if times[0] < time - 2 * self.horizon:
            keep = bisect_left(times, time - self.horizon)
            del times[:keep], offsets[:keep]

    def at(self, offset: int) -> int | None:
        """Return the time by which the record at `offset` had been seen, None if it was not."""
        index = bisect_left(self._offsets, offset)
        if index == len(self._offsets):
            return None
        if index == 0 and self.coarser is not None:
            coarse = self.coarser.at(offset)
            if coarse is not None:
                return min(coarse, self._times[0])
        return self._times[index]


class Observer:
    """When this reader saw each record of one coordination partition, on its own monotonic clock.

    `seen` maps offsets to local nanoseconds, from the moment the reader had caught up; `stamped`
    maps them to the broker's append timestamps in milliseconds, for a faster cold start (§5.3).
    Silences of less than 10 minutes are measured to 10 ms, of 10 hours to 1 s, of 10 days to 30 s.
    """

    __slots__ = ("caught_up_at_offset", "seen", "stamped")

    def __init__(self) -> None:
        self.seen = _timeline(MS)
        self.stamped = _timeline(1)
        self.caught_up_at_offset: int | None = None
        """The first offset that this reader had not read when it caught up; None before that."""

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


def _timeline(ms: int) -> Timeline:
    minute = 60_000 * ms
    coarsest = Timeline(30_000 * ms, 14_400 * minute)
    return Timeline(10 * ms, 10 * minute, Timeline(1_000 * ms, 600 * minute, coarsest))
