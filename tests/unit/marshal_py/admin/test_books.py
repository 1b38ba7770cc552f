"""Books: what is said of a partition that is shared by ranges."""

from __future__ import annotations

from marshal_py.admin.books import Book, OpenRange, seen_as, shown_of
from marshal_py.protocol.messages import ClaimingPartition, ClaimingRange, Message, encode
from marshal_py.protocol.ranges import Range, range_cell
from marshal_py.protocol.rationalizer import Cell, apply
from marshal_py.protocol.world import World


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


def test_messages_that_were_deleted_or_are_not_there_yet_are_no_lag() -> None:
    book = Book("g", "t", 0, 30, [an_open_range(0, 10, 1, 4), an_open_range(20, 30, 1, 20)])
    assert book.lag(0, 35) == 6 + 10 + 5
    assert book.lag(7, 35) == 3 + 10 + 5, "of the first range three are left in the topic"
    assert book.lag(0, 25) == 6 + 5
    assert book.lag(40, 45) == 5, "all that was granted has been deleted"


def test_a_range_that_is_done_and_not_closed_yet_holds_no_position_back() -> None:
    done, begun = an_open_range(0, 10, 1, 10), an_open_range(10, 20, 1, 13)
    assert Book("g", "t", 0, 40, [done, begun]).position == 13
    assert Book("g", "t", 0, 40, [done]).position == 40


def test_a_cell_stands_for_the_partition_whose_range_it_is_or_was() -> None:
    world = World(1)
    records: list[Message] = [
        ClaimingRange(2, "a", "i", "g", 0, "t", 3, 500, 0, 10),
        ClaimingPartition(2, "a", "i", "g", 1, "u", 1, 500, -1),
    ]
    for offset, record in enumerate(records):
        apply(world.states[0], offset, encode(record))
    topic, partition = range_cell("t", 3, 0)
    assert seen_as(world, ("g", topic, partition)) == ("g", "t", 3)
    ended = range_cell("t", 3, 70)
    assert seen_as(world, ("g", *ended)) == ("g", "t", 3)
    assert seen_as(world, ("g", "u", 1)) == ("g", "u", 1)
    shown = shown_of(world, ("g", "t", 3))
    assert shown is not None
    assert (shown[0], shown[1].holder) == (("g", topic, partition), "a")
