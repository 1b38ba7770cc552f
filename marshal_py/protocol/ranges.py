"""Ranges: messages of a partition, claimed ahead by several members at a time (§5.18). Pure.

An open range is a cell of the protocol whose name says where it starts; what the fold knows besides
is where it ends and how often it was granted. The **book** of a partition is its ordinary cell,
whose position is the frontier (the first offset that was never granted), and its open ranges. Below
the frontier, what lies in no open range is done.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

__all__ = [
    "MAX_OPEN_RANGES",
    "Range",
    "RangeName",
    "Ranges",
    "range_cell",
    "range_of",
]

MAX_OPEN_RANGES: Final = 4096
"""Open ranges that a book may have."""

Unit: TypeAlias = tuple[str, int]
"""(topic, partition)"""

_NAME: Final = re.compile(r"(.+)/(0|[1-9][0-9]{0,9})@(0|[1-9][0-9]{0,18})", re.DOTALL | re.ASCII)


class RangeName(NamedTuple):
    """What the name of a range's cell says: whose messages, and the first that it was made for."""

    topic: str
    partition: int
    start: int


def range_cell(topic: str, partition: int, start: int) -> Unit:
    """Return the cell of the range of topic/partition that starts at `start`."""
    return f"{topic}/{partition}@{start}", 0


@lru_cache(1 << 12)
def range_of(topic: str, partition: int) -> RangeName | None:
    """Return the range that a cell of this name may be; None if it is something else."""
    found = _NAME.fullmatch(topic)
    if found is None or partition or int(found[2]) >= 2**31 or int(found[3]) >= 2**63:
        return None
    return RangeName(found[1], int(found[2]), int(found[3]))


class Range(Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """An open range: the messages of topic/partition from `start` to below `end`."""

    topic: str
    partition: int
    start: int
    end: int
    granted: int = 0
    """How often in a row it was granted at the position `granted_at`: who held it did not get any
    further. It counts what may have been delivered and was not done."""
    granted_at: int = -1

    @property
    def source(self) -> Unit:
        """Whose messages they are."""
        return self.topic, self.partition

    @property
    def cell(self) -> Unit:
        """The (topic, partition) of its cell."""
        return range_cell(self.topic, self.partition, self.start)

    def grants(self, position: int) -> int:
        """Return what `granted` is after one more grant, at this position."""
        return self.granted + 1 if position == self.granted_at else 1

    def grant(self, position: int) -> None:
        """Count a grant of the range whose position is this."""
        self.granted = self.grants(position)
        self.granted_at = position

    def take_back(self) -> None:
        """Its holder says that it has begun nothing of it: the grant does not count."""
        self.granted = max(0, self.granted - 1)

    def split(self, at: int) -> Range:
        """Cut it off at `at`; return the rest, of which this grant has begun nothing."""
        rest = Range(self.topic, self.partition, at, self.end, max(0, self.granted - 1), at)
        self.end = at
        return rest


class _Book:
    """The starts of a partition's open ranges, in order; and of those that nobody holds."""

    __slots__ = ("free", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.free: list[int] = []


class Ranges:
    """The open ranges of a group."""

    __slots__ = ("_books", "of_cell")

    def __init__(self) -> None:
        self.of_cell: dict[Unit, Range] = {}
        """The cell of each open range → what is known of it besides."""
        self._books: dict[Unit, _Book] = {}

    def add(self, found: Range, *, free: bool) -> None:
        """Open a range."""
        self.of_cell[found.cell] = found
        book = self._books.get(found.source)
        if book is None:
            book = self._books[found.source] = _Book()
        insort(book.starts, found.start)
        if free:
            insort(book.free, found.start)

    def remove(self, found: Range) -> None:
        """Close a range, held or free."""
        del self.of_cell[found.cell]
        book = self._books[found.source]
        _discard(book.starts, found.start)
        _discard(book.free, found.start)
        if not book.starts:
            del self._books[found.source]

    def hold(self, found: Range) -> None:
        """Somebody holds it from here on."""
        _discard(self._books[found.source].free, found.start)

    def free(self, found: Range) -> None:
        """Nobody holds it from here on."""
        free = self._books[found.source].free
        _discard(free, found.start)
        insort(free, found.start)

    def count(self, source: Unit) -> int:
        """Return how many ranges of a partition are open."""
        book = self._books.get(source)
        return 0 if book is None else len(book.starts)

    def held(self, source: Unit) -> int:
        """Return how many of them somebody holds."""
        book = self._books.get(source)
        return 0 if book is None else len(book.starts) - len(book.free)

    def lowest_free(self, source: Unit) -> Range | None:
        """Return the first range of a partition that nobody holds."""
        book = self._books.get(source)
        if book is None or not book.free:
            return None
        return self.of_cell[range_cell(*source, book.free[0])]

    def lowest_held(self, source: Unit) -> Range | None:
        """Return the first range of a partition that somebody holds."""
        book = self._books.get(source)
        if book is None or len(book.free) == len(book.starts):
            return None
        for index, start in enumerate(book.starts):
            if index == len(book.free) or book.free[index] != start:
                return self.of_cell[range_cell(*source, start)]
        raise AssertionError("unreachable: not all of them are free")

    def of(self, source: Unit) -> list[Range]:
        """Return the open ranges of a partition, in order."""
        book = self._books.get(source)
        starts = [] if book is None else book.starts
        return [self.of_cell[range_cell(*source, start)] for start in starts]


def _discard(ordered: list[int], number: int) -> None:
    at = bisect_left(ordered, number)
    if at < len(ordered) and ordered[at] == number:
        del ordered[at]
