"""The cell grid: every cell of the world as three small numbers, and what changed of them. No I/O.

A `GridRow` is one (group, topic). Its cells have *slots*, in the order in which they were first
seen, so that a slot never changes its meaning. Of each cell the page gets the holder (an index into
`CellGrid.clients`, 0: nobody), the liveness (`FREE` to `STALE`) and the lag in powers of two. What
does not change costs nothing, however many heartbeats there are.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from marshal_py.dashboard.ranges import by_value, ranges
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.world import Liveness

__all__ = [
    "FREE",
    "FRESH",
    "STALE",
    "UNKNOWN",
    "CellGrid",
    "GridRow",
    "RowKey",
    "lag_bucket",
    "liveness_code",
]

FREE: Final = 0
FRESH: Final = 1
UNKNOWN: Final = 2
STALE: Final = 3

_CODES: Final[dict[Liveness, int]] = {"fresh": FRESH, "unknown": UNKNOWN, "stale": STALE}

RowKey = tuple[str, str]


def liveness_code(liveness: Liveness) -> int:
    """Return the number that stands for a liveness."""
    return _CODES[liveness]


def lag_bucket(lag: int | None) -> int:
    """Return 0 where the lag is not known, 1 for none, and 2 + ⌊log₂ lag⌋ otherwise."""
    if lag is None:
        return 0
    return 1 + max(0, lag).bit_length()


class GridRow:
    """The cells of one group and topic."""

    __slots__ = (
        "changed",
        "due",
        "group",
        "holders",
        "lag",
        "lag_max",
        "lag_total",
        "lag_unknown",
        "live",
        "number",
        "partitions",
        "slots",
        "stale_by",
        "topic",
    )

    def __init__(self, number: int, group: str, topic: str) -> None:
        self.number = number
        self.group = group
        self.topic = topic
        self.partitions: list[int] = []
        """Slot → partition."""
        self.slots: dict[int, int] = {}
        """Partition → slot."""
        self.holders = array("I")
        self.live = bytearray()
        self.due = array("q")
        """Slot → the tick at which its liveness is judged next; for `live_state.LiveState`."""
        self.lag = bytearray()
        self.lag_total: int | None = None
        self.lag_max: int | None = None
        self.lag_unknown = 0
        """Of a topic that is consumed, the partitions whose lag `lag_total` leaves out."""
        self.stale_by: Counter[int] = Counter()
        """Holder → how many of its cells are stale."""
        self.changed: tuple[set[int], set[int], set[int]] = (set(), set(), set())
        """Slots whose holder, liveness or lag changed since the last delta."""

    def slot(self, partition: int) -> int:
        """Return the slot of a partition, a new one if it had none."""
        slot = self.slots.get(partition)
        if slot is None:
            slot = self.slots[partition] = len(self.partitions)
            self.partitions.append(partition)
            self.holders.append(0)
            self.live.append(FREE)
            self.due.append(-1)
            self.lag.append(0)
        return slot

    def set_live(self, slot: int, code: int) -> bool:
        """Set the liveness of a cell; say whether it changed."""
        before = self.live[slot]
        if before == code:
            return False
        if before == STALE:
            self.stale_by[self.holders[slot]] -= 1
        elif code == STALE:
            self.stale_by[self.holders[slot]] += 1
        self.live[slot] = code
        self.changed[1].add(slot)
        return True

    def set_holder(self, slot: int, holder: int) -> None:
        """Set the holder of a cell; nobody (0) makes it free."""
        if self.live[slot] == STALE and self.holders[slot] != holder:
            self.stale_by[self.holders[slot]] -= 1
            self.stale_by[holder] += 1
        if self.holders[slot] != holder:
            self.holders[slot] = holder
            self.changed[0].add(slot)
        if holder == 0:
            self.set_live(slot, FREE)

    def set_lag(self, slot: int, bucket: int) -> None:
        """Set the lag of a cell, as `lag_bucket` returns it."""
        if self.lag[slot] != bucket:
            self.lag[slot] = bucket
            self.changed[2].add(slot)

    def document(self) -> dict[str, Any]:
        """Return the whole row, as the page reads it."""
        return {
            "row": self.number,
            "group": self.group,
            "topic": self.topic,
            "partitions": _in_order(self.partitions),
            "holders": by_value(self.holders),
            "live": by_value(self.live),
            "lag": by_value(self.lag),
            "lag_total": self.lag_total,
            "lag_max": self.lag_max,
            "lag_unknown": self.lag_unknown,
        }


def _in_order(partitions: list[int]) -> str:
    """Return partitions in the order of their slots; runs that go down stay single numbers."""
    parts: list[str] = []
    start = 0
    for index in range(1, len(partitions) + 1):
        if index == len(partitions) or partitions[index] != partitions[index - 1] + 1:
            parts.append(ranges(partitions[start:index]))
            start = index
    return ",".join(parts)


class CellGrid:
    """All rows, and what changed since `take_changes` was last called."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, GridRow] = {}
        self.clients: list[str] = [""]
        """Index → client_id. The first means that nobody holds the cell."""
        self._index: dict[str, int] = {"": 0}
        self._told_clients = 1
        self._next_number = 0
        self._new: dict[int, GridRow] = {}
        self._grown: dict[int, tuple[GridRow, int]] = {}
        self._removed: list[int] = []
        self._touched: dict[int, GridRow] = {}

    def client(self, client_id: str | None) -> int:
        """Return the index of a client, a new one if it has none; 0 for nobody."""
        if client_id is None:
            return 0
        index = self._index.get(client_id)
        if index is None:
            index = self._index[client_id] = len(self.clients)
            self.clients.append(client_id)
        return index

    def row(self, group: str, topic: str) -> GridRow:
        """Return the row of a group and topic, a new one if there is none."""
        row = self.rows.get((group, topic))
        if row is None:
            row = GridRow(self._next_number, group, topic)
            self._next_number += 1
            self.rows[group, topic] = row
            self._new[row.number] = row
        return row

    def add(self, group: str, topic: str, cells: Sequence[tuple[int, str | None]]) -> GridRow:
        """Add a row with all its cells, (partition, holder) in order; their liveness is to come."""
        row = self.row(group, topic)
        row.partitions = [partition for partition, _ in cells]
        row.slots = {partition: slot for slot, partition in enumerate(row.partitions)}
        row.holders = array("I", [self.client(holder) for _, holder in cells])
        row.live, row.lag = bytearray(len(cells)), bytearray(len(cells))
        row.due = array("q", [-1]) * len(cells)
        self._touched[row.number] = row
        return row

    def touch(self, row: GridRow) -> None:
        """Note that something of the row may have changed."""
        self._touched[row.number] = row

    def present(self) -> set[int]:
        """Return the clients that hold something."""
        return set().union(*(row.holders for row in self.rows.values()))

    def groups(self) -> set[str]:
        """Return the groups that have cells."""
        return {group for group, _ in self.rows}

    def slot(self, row: GridRow, partition: int) -> int:
        """Return the slot of a partition; pages are told of a new one."""
        known = len(row.partitions)
        slot = row.slot(partition)
        if slot == known:
            self._grown.setdefault(row.number, (row, known))
            self._touched[row.number] = row
        return slot

    def put(self, group: str, topic: str, partition: int, cell: Cell | None) -> tuple[GridRow, int]:
        """Bring the cell's holder up to date; return where it is."""
        row = self.row(group, topic)
        slot = self.slot(row, partition)
        row.set_holder(slot, self.client(None if cell is None else cell.holder))
        self._touched[row.number] = row
        return row, slot

    def remove_group(self, group: str) -> None:
        """Take a forgotten group's cells off."""
        for key in [key for key in self.rows if key[0] == group]:
            row = self.rows.pop(key)
            if row.number not in self._new:
                self._removed.append(row.number)
            for waiting in (self._new, self._grown, self._touched):
                waiting.pop(row.number, None)

    def document(self) -> dict[str, Any]:
        """Return everything, for a page that has just come."""
        return {
            "clients": self.clients,
            "rows": [row.document() for row in self.rows.values()],
        }

    def take_changes(self) -> dict[str, Any]:
        """Return what changed since the last call, and begin anew; empty: nothing did."""
        changes: dict[str, Any] = {}
        if self._told_clients < len(self.clients):
            changes["clients"] = self.clients[self._told_clients :]
            self._told_clients = len(self.clients)
        if self._removed:
            changes["removed"], self._removed = self._removed, []
        if self._new:
            changes["new"] = [row.document() for row in self._new.values()]
        cells = []
        for number, row in self._touched.items():
            holders, live, lag = row.changed
            row.changed = (set(), set(), set())
            if number in self._new:
                continue
            cell: dict[str, Any] = {"row": number}
            if number in self._grown:
                cell["partitions"] = _in_order(row.partitions[self._grown[number][1] :])
            for name, values, slots in (
                ("holders", row.holders, holders),
                ("live", row.live, live),
                ("lag", row.lag, lag),
            ):
                if slots:
                    cell[name] = by_value(values, sorted(slots))
            if lag:
                cell["lag_total"], cell["lag_max"] = row.lag_total, row.lag_max
                cell["lag_unknown"] = row.lag_unknown
            if len(cell) > 1:
                cells.append(cell)
        if cells:
            changes["cells"] = cells
        self._new.clear()
        self._grown.clear()
        self._touched.clear()
        return changes
