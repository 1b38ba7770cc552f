"""Ranges of messages: their names, and what holds of a book whatever lies on the log (§5.18)."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given

from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.ranges import MAX_OPEN_RANGES, Range, RangeName, range_cell, range_of
from marshal_py.protocol.rationalizer import Cell, PartitionState, apply
from tests.support import reference_fold as reference
from tests.support import strategies as some
from tests.support import vector_format
from tests.support.spec import spec
from tests.support.strategies import Log


class Book:
    """A log about partition t/0 of one group."""

    def __init__(self) -> None:
        self.state = PartitionState(0)

    def add(self, record: m.Message) -> list[ev.Event]:
        events: list[ev.Event] = []
        apply(self.state, self.state.next_offset, m.encode(record), events)
        return events

    def claim(self, client: str, count: int, floor: int = 0) -> int:
        """Claim a range; return its start."""
        granted, *_ = self.add(m.ClaimingRange(2, *_who(client), "t", 0, 500, floor, count))
        assert isinstance(granted, ev.RangeGranted), granted
        return granted.start

    def split(self, client: str, start: int, at: int) -> ev.Event:
        epoch = self.state.cells["g", f"t/0@{start}", 0].epoch
        name = f"t/0@{start}"
        (event,) = self.add(m.SplittingRange(2, *_who(client), name, 0, epoch, at))
        return event

    def release(self, client: str, start: int, next_offset: int) -> ev.Event:
        epoch = self.state.cells["g", f"t/0@{start}", 0].epoch
        record = m.ReleasingPartition(2, *_who(client), f"t/0@{start}", 0, epoch, next_offset)
        (event,) = self.add(record)
        return event

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """(start, end, granted) of the open ranges."""
        found = self.state.groups["g"].open_ranges.of(("t", 0))
        return [(one.start, one.end, one.granted) for one in found]


def _who(client: str) -> tuple[str, str, str, int]:
    return client, f"{client}1", "g", 0


# ------------------------------------------------------------------ names


@spec("C-53")
@pytest.mark.parametrize(
    ("topic", "partition", "found"),
    [
        ("orders/2@0", 0, ("orders", 2, 0)),
        ("orders/2@4711", 0, ("orders", 2, 4711)),
        ("a/b@1/0@9", 0, ("a/b@1", 0, 9)),
        ("a\nb/0@9", 0, ("a\nb", 0, 9)),
        (f"t/{2**31 - 1}@{2**63 - 1}", 0, ("t", 2**31 - 1, 2**63 - 1)),
        (f"t/{2**31}@0", 0, None),
        (f"t/0@{2**63}", 0, None),
        ("orders/2@4711", 1, None),
        ("orders/02@4711", 0, None),
        ("orders/2@04711", 0, None),
        ("orders/2@", 0, None),
        ("orders/2@٣", 0, None),
        ("/2@5", 0, None),
        ("orders/2#16", 0, None),
        ("orders", 0, None),
    ],
)
def test_the_cell_of_a_range_has_this_name(
    topic: str, partition: int, found: tuple[str, int, int] | None
) -> None:
    name = range_of(topic, partition)
    assert name == (None if found is None else RangeName(*found))
    if found is not None:
        assert range_cell(*found) == (topic, partition)


def test_the_longest_names_fit_into_a_record() -> None:
    topic, _ = range_cell("t" * m.MAX_RANGE_TOPIC_LENGTH, m.MAX_PARTITION, 2**63 - 1)
    assert len(topic) == m.MAX_TOPIC_LENGTH


# ------------------------------------------------------------------ books


@spec("F-69", "F-70")
def test_members_that_ask_at_once_get_different_messages() -> None:
    book = Book()
    assert [book.claim(client, 10) for client in "abca"] == [0, 10, 20, 30]
    assert book.ranges == [(0, 10, 1), (10, 20, 1), (20, 30, 1), (30, 40, 1)]
    assert book.state.cells["g", "t", 0].next_offset == 40


@spec("F-78")
def test_a_range_that_tells_something_of_its_messages_is_granted_whole() -> None:
    book = Book()
    book.claim("a", 10)
    book.add(m.Heartbeat(2, *_who("a"), 500, 0, [], [m.MetadataEntry(0, b"done")]))
    book.release("a", 0, 3)
    assert book.claim("b", 2) == 0
    assert book.ranges == [(0, 10, 1)]


@spec("F-71", "F-72")
def test_what_was_not_begun_is_given_back_and_granted_again() -> None:
    book = Book()
    book.claim("a", 100)
    assert isinstance(book.split("a", 0, 10), ev.RangeSplit)
    assert [book.claim(client, 50) for client in "bc"] == [10, 60]
    assert book.ranges == [(0, 10, 1), (10, 60, 1), (60, 100, 1)]


@spec("F-73")
def test_a_range_that_is_done_leaves_nothing() -> None:
    book = Book()
    book.claim("a", 10)
    released = book.release("a", 0, 10)
    assert isinstance(released, ev.Released)
    assert released.ended
    assert book.ranges == []
    assert list(book.state.cells) == [("g", "t", 0)]


@spec("F-74")
def test_grants_without_progress_are_counted() -> None:
    book = Book()
    book.claim("a", 8)
    for granted in (1, 2, 3):
        assert book.ranges == [(0, 8, granted)]
        version = book.state.version("g", "t/0@0", 0)
        book.add(m.ClaimingPartition(2, *_who("b"), "t/0@0", 0, 500, version))
    book.split("b", 0, 4)  # halves: what kills may be in either
    assert book.ranges == [(0, 4, 4), (4, 8, 3)]
    book.claim("c", 8)
    assert book.ranges == [(0, 4, 4), (4, 8, 4)]
    book.release("c", 4, -1)  # nothing of it was begun
    assert book.ranges == [(0, 4, 4), (4, 8, 3)]
    book.claim("c", 8)
    book.release("c", 4, 5)
    book.claim("c", 8)
    assert book.ranges == [(0, 4, 4), (4, 8, 1)]


@spec("F-75")
def test_a_book_has_a_limit() -> None:
    book = Book()
    book.claim("a", 3)
    for _ in range(MAX_OPEN_RANGES - 1):
        book.claim("a", 3)
    start = (MAX_OPEN_RANGES - 1) * 3
    (refused,) = book.add(m.ClaimingRange(2, *_who("a"), "t", 0, 500, 0, 3))
    assert isinstance(refused, ev.Rejected)
    assert refused.reason == "too_many_ranges"
    refused = book.split("a", start, start + 1)
    assert isinstance(refused, ev.Rejected)
    assert refused.reason == "too_many_ranges"
    PartitionState.decode(book.state.encode())
    book.release("a", 3, 3)  # what is free is granted, whole: there is no room for the rest
    assert len(book.add(m.ClaimingRange(2, *_who("b"), "t", 0, 500, 0, 1))) == 2
    assert len(book.ranges) == MAX_OPEN_RANGES
    book.release("b", 3, 6)
    assert book.claim("b", 1) == MAX_OPEN_RANGES * 3


@spec("F-76")
@given(some.logs)
def test_each_message_lies_in_one_open_range_at_most(log: Log) -> None:
    state = PartitionState(0)
    for offset, value in log:
        apply(state, offset, value)
        for name, group in state.groups.items():
            for source in {found.source for found in group.open_ranges.of_cell.values()}:
                ranges = group.open_ranges.of(source)
                ends = [0, *(one.end for one in ranges)]
                assert all(end <= one.start for end, one in zip(ends, ranges, strict=False))
                assert ends[-1] <= group.cells[source].position
                assert not group.cells[source].held
                cells = [group.cells[one.cell] for one in ranges]
                assert group.open_ranges.held(source) == sum(cell.held for cell in cells)
                free = next((one for one in ranges if not group.cells[one.cell].held), None)
                assert group.open_ranges.lowest_free(source) == free
                for one, cell in zip(ranges, cells, strict=True):
                    assert cell.position >= one.start
                    assert cell.held or cell.position <= one.end
                    assert state.version(name, *one.cell) >= 0


@spec("F-76")
@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_settled_once_and_none_is_left_out(seed: int) -> None:
    """Members that claim, split, release, die: what no open range has below the frontier was done
    by somebody, to whom it was granted at that time."""
    rng, book = Random(seed), Book()
    done: dict[int, int] = {}
    for _ in range(300):
        of_cell = book.state.groups["g"].open_ranges.of_cell if book.state.groups else {}
        held = {unit: one for unit, one in of_cell.items() if book.state.cells["g", *unit].held}
        client = rng.choice("abc")
        if not held or rng.random() < 0.3:
            book.claim(client, rng.choice([1, 3, 8]))
            continue
        unit, found = rng.choice(sorted(held.items()))
        cell = book.state.cells["g", *unit]
        who = str(cell.holder)
        at = rng.randint(cell.position, found.end)
        if rng.random() < 0.2:
            version = book.state.version("g", *unit)
            book.add(m.ClaimingPartition(2, *_who(client), *unit, 500, version))
        elif rng.random() < 0.3:
            book.split(who, found.start, at)
        else:
            for message in range(cell.position, at):
                done[message] = done.get(message, 0) + 1
            book.release(who, found.start, at)
    frontier = book.state.cells["g", "t", 0].position
    waiting: set[int] = set()
    for one in book.state.groups["g"].open_ranges.of_cell.values():
        waiting |= set(range(book.state.cells["g", *one.cell].position, one.end))
    assert done == {message: 1 for message in range(frontier) if message not in waiting}
    assert done


@pytest.mark.parametrize("seed", range(3))
def test_two_folds_agree_on_a_long_life_of_a_book(seed: int) -> None:
    state, expected = PartitionState(0), reference.new_state()
    for offset, value in some.lively_log(Random(seed), 400):
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        assert [vector_format.event(e) for e in events] == reference.apply(expected, offset, value)
    assert vector_format.state(state) == expected
    assert state.encode() == reference.canonical(expected)


# ------------------------------------------------------------------ snapshots


@spec("F-77")
def test_a_log_without_ranges_has_the_bytes_that_it_had() -> None:
    book = Book()
    book.add(m.ClaimingPartition(2, *_who("a"), "t", 0, 500, -1))
    (group,) = msgspec.msgpack.decode(book.state.encode())[5]
    assert len(group) == 5
    assert book.state.digest().hex() == "b468aa45e0073819d1be500ae93d572d"


def _open_book() -> PartitionState:
    book = Book()
    book.claim("a", 10)
    book.claim("b", 10)
    book.release("b", 10, 12)
    return book.state


def test_a_snapshot_has_the_ranges() -> None:
    state = _open_book()
    again = PartitionState.decode(state.encode())
    assert again.encode() == state.encode()
    for copy in (state, again):
        granted, *_ = _apply(copy, m.ClaimingRange(2, *_who("c"), "t", 0, 500, 0, 1))
        assert isinstance(granted, ev.RangeGranted)
        assert (granted.start, granted.end, granted.granted) == (10, 20, 1)
    assert again.encode() == state.encode()


def _apply(state: PartitionState, record: m.Message) -> list[ev.Event]:
    events: list[ev.Event] = []
    apply(state, state.next_offset, m.encode(record), events)
    return events


_FIRST = (5, 0, 5, 0)


@spec("S-6")
@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ((*_FIRST, 0), "u", "without its cell"),
        ((*_FIRST, 2), 1, "without its cell"),
        ((*_FIRST, 3), 0, "its messages"),
        ((*_FIRST, 3), 21, "it is beyond the frontier"),
        ((*_FIRST, 3), 2**63, "its messages"),
        ((5, 0, 5, 1, 3), 21, "it is beyond the frontier"),
        ((5, 0, 5, 0, 3), 11, "its messages"),
        ((*_FIRST, 4), -1, "how often"),
        ((*_FIRST, 5), -2, "how often"),
        ((5, 0, 5, 1), ["t", 0, 0, 10, 1, 0], "a range comes twice"),
        ((5, 0, 4, 1, 6), -1, "its position"),
        ((5, 0, 4, 1, 7), 11, "its position"),
        ((5, 0, 4, 2, 6), 21, "its position"),
    ],
)
def test_ranges_that_no_log_leads_to(path: tuple[int, ...], value: Any, why: str) -> None:
    array = msgspec.msgpack.decode(_open_book().encode())
    place = array
    for step in path[:-1]:
        place = place[step]
    assert place[path[-1]] != value
    place[path[-1]] = value
    with pytest.raises(msgspec.ValidationError, match=why):
        PartitionState.decode(msgspec.msgpack.encode(array))


def test_a_book_that_is_held_has_no_ranges() -> None:
    state = _open_book()
    book = state.groups["g"].cells["t", 0]
    a = state.groups["g"].sessions["a", "a1"]
    book.holder, book.instance_id, book.epoch = "a", "a1", 2
    a.add(2, book)
    state.groups["g"].held += 1
    with pytest.raises(msgspec.ValidationError, match="beyond the frontier"):
        PartitionState.decode(state.encode())


def test_a_book_beyond_its_limit_is_refused() -> None:
    state = _open_book()
    group = state.groups["g"]
    group.cells["t", 0].next_offset = 10_000
    for start in range(20, 20 + MAX_OPEN_RANGES):
        one = Range("t", 0, start, start + 1)
        group.open_ranges.add(one, free=True)
        group.cells[one.cell] = Cell(one.cell, version=0, next_offset=start)
    with pytest.raises(msgspec.ValidationError, match="too many"):
        PartitionState.decode(state.encode())
