"""How groups share their topics, as the log says: what a cell is about, and if it still counts.

A group that went from 8 slots to 16 still has the cells of the 8: their positions mean nothing any
more (specs/PROTOCOL.md §5.17).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from marshal_py.protocol.rationalizer import Cell, CellKey
from marshal_py.protocol.slots import BY_PARTITIONS, agreement_cell, agreement_of, slot_of
from marshal_py.protocol.world import World

__all__ = ["Share", "Sharings", "slots_of"]


def slots_of(world: World, group: str, topic: str) -> int:
    """Return how many slots a group divides each partition of a topic in; 0: none (§5.17)."""
    cell = world.cell(group, *agreement_cell(topic))
    return BY_PARTITIONS if cell is None else max(BY_PARTITIONS, cell.position)


class Share(NamedTuple):
    """What a cell is about: a partition of a topic, and which slot of it; None: all of it."""

    topic: str
    partition: int
    slot: int | None


class Sharings:
    """How topics are shared, from all cells of a world, or of one group."""

    def __init__(self, cells: Iterable[tuple[CellKey, Cell]]) -> None:
        self._slots: dict[tuple[str, str], int] = {}
        for (group, topic, _), cell in cells:
            about = agreement_of(topic)
            if about is not None and cell.position >= 0:
                self._slots[group, about] = cell.position

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
            is_whole = self.slots(group, topic) == BY_PARTITIONS
            return Share(topic, partition, None) if is_whole else None
        if self.slots(group, slot.topic) != slot.slots:
            return None
        return Share(slot.topic, slot.partition, slot.number)
