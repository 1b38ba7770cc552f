"""Books: partitions that members share by ranges, as a look at the log shows them (§5.18)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from marshal_py.protocol.ranges import Range
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.world import World

__all__ = ["Book", "OpenRange", "book_of", "books"]


@dataclass(frozen=True)
class OpenRange:
    """An open range, and its cell."""

    about: Range
    cell: Cell

    def left(self, first: int, end: int) -> int:
        """Return how many of the messages from `first` to below `end` it has left to do."""
        return max(0, min(self.about.end, end) - max(self.cell.position, first))


@dataclass(frozen=True)
class Book:
    """The book of a partition that has open ranges, lowest first."""

    group: str
    topic: str
    partition: int
    frontier: int
    """The first message that was never granted."""
    ranges: list[OpenRange] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The lowest message that is not done, as far as the log says: all below it are."""
        undone = (r.cell.position for r in self.ranges if r.cell.position < r.about.end)
        return next(undone, self.frontier)

    @property
    def most_granted(self) -> int:
        """How often in a row that range was granted, without progress, of which it is the most."""
        return max(r.about.granted for r in self.ranges)

    def lag(self, first: int, end: int) -> int:
        """Return how many of the messages from `first` to below `end` are not done."""
        new = max(0, end - max(self.frontier, first))
        return new + sum(r.left(first, end) for r in self.ranges)


def book_of(world: World, group: str, topic: str, partition: int) -> Book | None:
    """Return the book of a partition; None if no range of it is open."""
    found = world.group(group)
    if found is None:
        return None
    ranges = found.open_ranges.of((topic, partition))
    if not ranges:
        return None
    cells = found.cells
    return Book(
        *(group, topic, partition, cells[topic, partition].position),
        [OpenRange(r, cells[r.cell]) for r in ranges],
    )


def books(world: World, group: str | None = None) -> Iterator[Book]:
    """Yield the books of one group or, by default, of all."""
    for name in world.groups() if group is None else [group]:
        found = world.group(name)
        sources = () if found is None else {r.source for r in found.open_ranges.of_cell.values()}
        for source in sorted(sources):
            book = book_of(world, name, *source)
            if book is not None:
                yield book
