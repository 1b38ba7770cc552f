"""Books: partitions that members share by ranges, as a look at the log shows them (§5.18)."""

from __future__ import annotations

from dataclasses import dataclass, field

from marshal_py.admin.sharing import open_range
from marshal_py.protocol.ranges import Range, range_of
from marshal_py.protocol.rationalizer import Cell, CellKey, GroupState
from marshal_py.protocol.text.rationalizer import TextWorld
from marshal_py.protocol.world import World

__all__ = ["Book", "OpenRange", "book_in", "book_of", "seen_as", "shown_of"]


@dataclass(frozen=True)
class OpenRange:
    """An open range, and its cell."""

    about: Range
    cell: Cell

    def left(self, first: int, end: int) -> int:
        """Return how many of the messages from `first` to below `end` it has left to do."""
        return max(0, min(self.about.end, end) - max(self.cell.position, first))

    @property
    def granted(self) -> int:
        """How often in a row it was granted without having got any further since."""
        about = self.about
        return about.granted if about.granted_at == self.cell.position else min(about.granted, 1)


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
    def is_claimed(self) -> bool:
        """Whether it is worked on at most once: what was claimed must not come again."""
        return any(r.cell.claimed_offset >= 0 for r in self.ranges)

    @property
    def goes_on_at(self) -> int:
        """Where the partition goes on when its ranges are closed: what is not done comes again.

        At most once it does not: all that is open is left out.
        """
        return self.frontier if self.is_claimed else self.position

    def most_granted(self, end: int) -> int:
        """Return how often in a row a range was granted without progress, at most.

        Only of those that have messages below `end`: of the others nobody has begun anything.
        """
        return max((r.granted for r in self.ranges if r.cell.position < end), default=0)

    def lag(self, first: int, end: int) -> int:
        """Return how many of the messages from `first` to below `end` are not done."""
        new = max(0, end - max(self.frontier, first))
        return new + sum(r.left(first, end) for r in self.ranges)


def book_of(world: World, group: str, topic: str, partition: int) -> Book | None:
    """Return the book of a partition; None if no range of it is open."""
    found = world.group(group)
    return None if found is None else book_in(found, group, topic, partition)


def book_in(found: GroupState, group: str, topic: str, partition: int) -> Book | None:
    """Return the book of a partition in what is known of a group, as `book_of` does."""
    ranges = found.open_ranges.of((topic, partition))
    if not ranges:
        return None
    cells = found.cells
    return Book(
        *(group, topic, partition, cells[topic, partition].position),
        [OpenRange(r, cells[r.cell]) for r in ranges],
    )


def shown_of(world: World, key: CellKey) -> tuple[CellKey, Cell] | None:
    """Return the cell that stands for one, where there is room for one holder; None: none does.

    It is the cell itself; of a partition that is shared by ranges, the lowest range that is held.
    """
    group, topic, partition = key
    found = world.group(group)
    if found is not None:
        lowest = found.open_ranges.lowest_held((topic, partition))
        if lowest is not None:
            return (group, *lowest.cell), found.cells[lowest.cell]
    cell = world.cell(*key)
    return None if cell is None else (key, cell)


def seen_as(world: World, key: CellKey) -> CellKey:
    """Return the cell of the partition that a range's cell belongs to; any other cell itself.

    A range that has ended counts as one: its cell is gone.
    """
    group, topic, partition = key
    name = range_of(topic, partition)
    if name is None or isinstance(world, TextWorld):
        return key
    is_open = open_range(world, *key) is not None
    return (group, name.topic, name.partition) if is_open or world.cell(*key) is None else key
