"""How groups share their topics, as the log says: what a cell is about, and if it still counts.

A group that went from 8 slots to 16 still has the cells of the 8: their positions mean nothing any
more (specs/PROTOCOL.md §5.17). An open range is a cell as well (§5.18).
"""

from __future__ import annotations

from typing import NamedTuple

from marshal_py.protocol.ranges import Range
from marshal_py.protocol.slots import (
    BY_PARTITIONS,
    BY_RANGES,
    agreement_cell,
    agreement_of,
    slot_of,
)
from marshal_py.protocol.world import World

__all__ = ["Share", "Sharings", "agreed_on", "has_open_ranges", "open_range", "slots_of"]


def agreed_on(world: World, group: str, topic: str) -> int:
    """Return how a group shares a topic: a number of slots, `BY_PARTITIONS` or `BY_RANGES`."""
    cell = world.cell(group, *agreement_cell(topic))
    return BY_PARTITIONS if cell is None else max(BY_PARTITIONS, cell.position)


def slots_of(world: World, group: str, topic: str) -> int:
    """Return how many slots a group divides each partition of a topic in; 0: none (§5.17)."""
    return _slots(agreed_on(world, group, topic))


def _slots(agreed: int) -> int:
    return BY_PARTITIONS if agreed == BY_RANGES else agreed


def open_range(world: World, group: str, topic: str, partition: int) -> Range | None:
    """Return the open range whose cell has this name; None: there is none (§5.18)."""
    found = world.group(group)
    return None if found is None else found.open_ranges.of_cell.get((topic, partition))


def has_open_ranges(world: World, group: str, topic: str, partition: int) -> bool:
    """Whether a partition is shared by ranges now: then nobody can claim it as a whole."""
    found = world.group(group)
    return found is not None and found.open_ranges.count((topic, partition)) > 0


class Share(NamedTuple):
    """What a cell is about: a partition of a topic, or the slot or the open range of it."""

    topic: str
    partition: int
    slot: int | None = None
    range: Range | None = None


class Sharings:
    """How topics are shared, in a world; or by one group of it."""

    def __init__(self, world: World, group: str | None = None) -> None:
        self._world = world
        self._slots: dict[tuple[str, str], int] = {}
        for _, (name, topic, _), cell in world.cells(group):
            about = agreement_of(topic)
            if about is not None and cell.position >= 0:
                self._slots[name, about] = _slots(cell.position)

    def slots(self, group: str, topic: str) -> int:
        """Return how many slots a group divides each partition of a topic in; 0: none."""
        return self._slots.get((group, topic), BY_PARTITIONS)

    def share(self, group: str, topic: str, partition: int) -> Share | None:
        """Return what a cell of this name is about.

        None if it counts for nothing: the group shares that topic otherwise by now, or it is an
        agreement itself.
        """
        if agreement_of(topic) is not None:
            return None
        slot = slot_of(topic, partition)
        if slot is None:
            found = open_range(self._world, group, topic, partition)
            source = (topic, partition) if found is None else found.source
            is_whole = self.slots(group, source[0]) == BY_PARTITIONS
            return Share(*source, range=found) if is_whole else None
        if self.slots(group, slot.topic) != slot.slots:
            return None
        return Share(slot.topic, slot.partition, slot.number)
