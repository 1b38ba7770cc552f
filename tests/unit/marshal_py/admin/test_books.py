"""Books: what is said of a partition that is shared by ranges."""

from __future__ import annotations

from marshal_py.admin.books import Book, OpenRange
from marshal_py.protocol.ranges import Range
from marshal_py.protocol.rationalizer import Cell


def an_open_range(
    start: int, end: int, granted: int, position: int, granted_at: int | None = None
) -> OpenRange:
    granted_at = position if granted_at is None else granted_at
    about = Range("t", 0, start, end, granted, granted_at)
    return OpenRange(about, Cell(about.cell, next_offset=position))


def test_how_often_a_range_was_granted_counts_where_there_are_messages() -> None:
    """Who waits with one, and is killed over and over, has begun nothing of it."""
    waiting = an_open_range(20, 30, 7, 20)
    book = Book("g", "t", 0, 30, [an_open_range(0, 10, 2, 4), waiting])
    assert book.most_granted(20) == 2
    assert book.most_granted(21) == 7
    assert Book("g", "t", 0, 30, [waiting]).most_granted(20) == 0


def test_who_gets_on_with_what_was_granted_again_is_not_counted() -> None:
    gets_on = an_open_range(0, 10, 3, 4, granted_at=0)
    assert Book("g", "t", 0, 10, [gets_on]).most_granted(10) == 1
    stands = an_open_range(5, 10, 2, 5)
    assert Book("g", "t", 0, 10, [gets_on, stands]).most_granted(10) == 2
