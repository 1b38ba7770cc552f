"""How far groups are behind, and what is wrong with that: lag that grows, cells that stand still.

No I/O: `log_follower.LogFollower` asks the brokers where topics end.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

from marshal_py.admin.books import book_of, shown_of
from marshal_py.admin.formatting import age, count
from marshal_py.dashboard.alerts import Alerts
from marshal_py.dashboard.cell_grid import FRESH, UNKNOWN, CellGrid, GridRow, RowKey, lag_bucket
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.world import World

__all__ = ["Ends", "Lags"]

Ends: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic → partition → offset after its last message."""

GROWING_MS: Final = 120_000
STUCK_MS: Final = 60_000
STUCK_INTERVALS: Final = 6


class _RowProgress:
    """What was seen of one row: its totals of late, and since when each cell stands still."""

    def __init__(self) -> None:
        self.partitions: list[int] = []
        """Slot → partition, as the row has them; one that is made anew may have another order."""
        self.homes: list[int] = []
        """Slot → coordination partition."""
        self.positions = array("q")
        self.since_ms = array("q")
        """Since when the position is what it is and messages wait for it."""
        self.stuck: set[int] = set()
        self.totals: deque[tuple[int, int]] = deque()


class Lags:
    """The lag of every cell, brought up to date row by row."""

    def __init__(self, world: World, alerts: Alerts) -> None:
        self.ends: Ends = {}
        self.offline: Collection[tuple[str, int]] = frozenset()
        """(topic, partition) of those that have no leader in Kafka."""
        self._world = world
        self._alerts = alerts
        self._seen: dict[RowKey, _RowProgress] = {}

    def of(self, group: str, topic: str, partition: int) -> int | None:
        """Return how many messages the group is behind; None where that is not known."""
        end = self.ends.get(topic, {}).get(partition)
        cell = self._world.cell(group, topic, partition)
        if end is None or cell is None or cell.position < 0:
            return None
        book = book_of(self._world, group, topic, partition)
        return max(0, end - cell.position) if book is None else book.lag(0, end)

    def forget(self, rows: Iterable[GridRow], now_ms: int) -> None:
        """Forget what was seen of other rows than these, and end its alerts."""
        kept = {(row.group, row.topic) for row in rows}
        for place in [place for place in self._seen if place not in kept]:
            self._drop(place, now_ms)

    def unknown(self, grid: CellGrid, row: GridRow, now_ms: int) -> None:
        """Show no lag of a row: it is not known (any more) where its topic ends."""
        self._drop((row.group, row.topic), now_ms)
        if row.lag_total is not None or row.lag_unknown:
            for slot in range(len(row.partitions)):
                row.set_lag(slot, 0)
            _set_totals(row, None, None, 0)
            grid.touch(row)

    def _drop(self, place: RowKey, now_ms: int) -> None:
        seen = self._seen.pop(place, None)
        if seen is not None:
            self._alerts.end(("growing", *place), now_ms)
            for slot in seen.stuck:
                self._alerts.end(("stuck", *place, seen.partitions[slot]), now_ms)

    def update(self, grid: CellGrid, row: GridRow, now_ms: int) -> None:
        """Bring a row's lag up to date; partitions that nobody ever claimed are shown, too."""
        ends = self.ends.get(row.topic, {})
        for partition in ends:
            if partition not in row.slots:
                grid.slot(row, partition)
        seen = self._of(row, now_ms)
        states, buckets = self._world.states, row.lag
        group, topic = row.group, row.topic
        total = most = -1
        unknown = offline = 0
        for slot, partition in enumerate(row.partitions):
            cell = states[seen.homes[slot]].cells.get((group, topic, partition))
            end = ends.get(partition)
            if cell is None or end is None or (position := cell.position) < 0:
                row.set_lag(slot, 0)
                is_offline = (topic, partition) in self.offline
                unknown += is_offline or end is not None  # otherwise it does not exist any more
                offline += is_offline
                self._moves(seen, row, slot, -1, now_ms)
                continue
            lag = max(0, end - position)
            book = book_of(self._world, group, topic, partition)
            if book is not None:
                position, lag = book.position, book.lag(0, end)
                shown = shown_of(self._world, (group, topic, partition))
                cell = cell if shown is None else shown[1]  # that of a range: it has a holder
            bucket = lag_bucket(lag)
            if buckets[slot] != bucket:
                row.set_lag(slot, bucket)
            total = max(total, 0) + lag
            most = max(most, lag)
            if lag and position == seen.positions[slot] and row.live[slot] in (FRESH, UNKNOWN):
                still_ms = now_ms - seen.since_ms[slot]
                if still_ms >= STUCK_MS and still_ms >= STUCK_INTERVALS * cell.interval_ms:
                    self._raise_stuck(row, slot, cell, position, lag, now_ms)
            else:
                self._moves(seen, row, slot, position, now_ms)
        # Where there is no position at all, nothing may be consumed: such claims are mere locks.
        unknown = unknown if total >= 0 or offline else 0
        is_known = total >= 0
        _set_totals(row, total if is_known else None, most if is_known else None, unknown)
        grid.touch(row)
        if total >= 0:
            self._check_growth(row, seen.totals, total, now_ms)

    def _moves(
        self, seen: _RowProgress, row: GridRow, slot: int, position: int, now_ms: int
    ) -> None:
        """Note that a cell does not stand still; −1: where it is, or whether, is not known."""
        seen.positions[slot] = position
        seen.since_ms[slot] = now_ms
        if slot in seen.stuck:
            seen.stuck.discard(slot)
            self._alerts.end(("stuck", row.group, row.topic, row.partitions[slot]), now_ms)

    def _of(self, row: GridRow, now_ms: int) -> _RowProgress:
        place = (row.group, row.topic)
        seen = self._seen.get(place)
        if seen is None:
            seen = self._seen[place] = _RowProgress()
        elif seen.partitions != row.partitions[: len(seen.partitions)]:
            seen = self._seen[place] = self._in_order(seen, row, now_ms)
        for partition in row.partitions[len(seen.partitions) :]:
            self._add(seen, row, partition, -1, 0)
        return seen

    def _add(
        self, seen: _RowProgress, row: GridRow, partition: int, position: int, since_ms: int
    ) -> None:
        seen.partitions.append(partition)
        seen.homes.append(self._world.coordinator(row.group, row.topic, partition))
        seen.positions.append(position)
        seen.since_ms.append(since_ms)

    def _in_order(self, old: _RowProgress, row: GridRow, now_ms: int) -> _RowProgress:
        """Return what was seen of a row, in the order of a grid that was made anew."""
        seen = _RowProgress()
        seen.totals = old.totals
        slots = {partition: slot for slot, partition in enumerate(old.partitions)}
        for slot, partition in enumerate(row.partitions):
            was = slots.pop(partition, None)
            if was is None:
                self._add(seen, row, partition, -1, 0)
                continue
            self._add(seen, row, partition, old.positions[was], old.since_ms[was])
            if was in old.stuck:
                seen.stuck.add(slot)
        for partition, was in slots.items():
            if was in old.stuck:
                self._alerts.end(("stuck", row.group, row.topic, partition), now_ms)
        return seen

    def _check_growth(
        self, row: GridRow, totals: deque[tuple[int, int]], total: int, now_ms: int
    ) -> None:
        totals.append((now_ms, total))
        while len(totals) > 2 and totals[1][0] <= now_ms - GROWING_MS:
            totals.popleft()
        key = ("growing", row.group, row.topic)
        first_ms, first = totals[0]
        values = [value for _, value in totals]
        grew = all(b >= a for a, b in pairwise(values))
        if grew and now_ms - first_ms >= GROWING_MS * 3 // 4 and total > first * 1.2 + 1_000:
            self._alerts.raise_(
                key,
                "growing_lag",
                "low",
                f"the lag of {row.topic} has grown from {first:,} to {total:,} in "
                f"{age(now_ms - first_ms)}, without a break",
                now_ms,
                group=row.group,
                topic=row.topic,
                since_ms=first_ms,
            )
        elif not grew or total <= first:
            self._alerts.end(key, now_ms)

    def _raise_stuck(
        self, row: GridRow, slot: int, cell: Cell, position: int, lag: int, now_ms: int
    ) -> None:
        """A holder that lives, a backlog, and no progress: it may have met a poison message."""
        seen, partition = self._seen[row.group, row.topic], row.partitions[slot]
        offline = (row.topic, partition) in self.offline
        why = "Kafka has no leader for it" if offline else "look at that message"
        seen.stuck.add(slot)
        self._alerts.raise_(
            ("stuck", row.group, row.topic, partition),
            "stuck",
            "high",
            f"{row.topic}/{partition} stands still at offset {position} while {cell.holder} "
            f"holds it and {count(lag, 'message')} wait: {why}",
            now_ms,
            group=row.group,
            topic=row.topic,
            partition=partition,
            client_id=cell.holder,
            since_ms=seen.since_ms[slot],
        )


def _set_totals(row: GridRow, total: int | None, most: int | None, unknown: int) -> None:
    if (row.lag_total, row.lag_unknown) != (total, unknown):
        row.changed[2].add(0)  # the totals travel with the cells
    row.lag_total, row.lag_max, row.lag_unknown = total, most, unknown
