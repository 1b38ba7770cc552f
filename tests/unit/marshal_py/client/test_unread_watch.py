"""A reader that brings nothing though there is something to read is noticed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from marshal_py.client.driver import Driver
from marshal_py.client.unread_watch import UnreadWatch


def _looks(
    watch: UnreadWatch, ends: dict[int, int], places: dict[int, int], *at_s: float
) -> list[int | None]:
    """More is taken all the time, unless everything is read."""
    found = []
    for now_s in at_s:
        grown = {p: end + int(now_s) if end > places[p] else end for p, end in ends.items()}
        found.append(watch.look(grown, places, now_s))
    return found


def test_what_is_not_read_for_so_long_is_told() -> None:
    watch = UnreadWatch(3.0)
    assert _looks(watch, {4: 8}, {4: 7}, 100.0, 101.0, 102.0, 103.0, 104.0) == [
        *[None] * 4,
        4,
    ]


def test_what_is_read_ends_the_wait() -> None:
    watch = UnreadWatch(3.0)
    assert _looks(watch, {4: 8}, {4: 6}, 100.0, 101.0, 102.0, 103.0) == [None] * 4
    assert _looks(watch, {4: 8}, {4: 7}, 104.0, 105.0, 106.0, 107.0, 108.0) == [*[None] * 4, 4]
    assert _looks(watch, {4: 8}, {4: 8}, 109.0) == [None]
    assert _looks(watch, {4: 9}, {4: 8}, 110.0, 111.0, 112.0, 113.0, 114.0) == [*[None] * 4, 4]


def test_a_partition_that_is_read_to_its_end_may_bring_nothing_for_ever() -> None:
    watch = UnreadWatch(3.0)
    assert _looks(watch, {4: 8}, {4: 8}, *map(float, range(100, 200))) == [None] * 100
    assert _looks(watch, {}, {}, 300.0, 400.0) == [None] * 2


def test_each_partition_is_looked_at() -> None:
    watch = UnreadWatch(1.0)
    for n in range(3):
        assert watch.look({0: 9, 1: 5 + n}, {0: n, 1: 4}, 100.0 + n) == (None if n < 2 else 1)


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    watch = UnreadWatch(3.0)
    assert _looks(watch, {4: 8}, {4: 7}, 100.0, 200.0, 300.0) == [None] * 3
    assert _looks(watch, {4: 8}, {4: 7}, 301.0, 302.0) == [None, 4]


def test_it_begins_anew() -> None:
    watch = UnreadWatch(1.0)
    assert _looks(watch, {4: 8}, {4: 7}, 100.0, 101.0) == [None] * 2
    watch.start_over()
    assert _looks(watch, {4: 8}, {4: 7}, 102.0, 103.0, 104.0) == [None, None, 4]


def test_what_is_delivered_while_the_driver_looks_is_looked_at_next_time() -> None:
    """A producer that is replaced tells of deliveries in the thread of whoever appends."""
    ends = {0: 5}

    class States:
        def __getitem__(self, p: int) -> Any:
            ends[p + 1] = 7
            return SimpleNamespace(next_offset=5)

    driver: Any = SimpleNamespace(
        _writer=SimpleNamespace(ends=ends),
        world=SimpleNamespace(states=States()),
        _unread=UnreadWatch(3.0),
    )
    Driver._check_reading(driver)
    assert ends == {0: 5, 1: 7}


def test_while_the_brokers_take_nothing_they_owe_nothing() -> None:
    watch = UnreadWatch(4.0)
    assert [watch.look({4: 8}, {4: 7}, now_s) for now_s in range(100, 160)] == [None] * 60
    # They are back: some time is left to read what is there.
    assert [watch.look({4: now_s}, {4: 7}, now_s) for now_s in range(160, 164)] == [
        *[None] * 2,
        4,
        4,
    ]
