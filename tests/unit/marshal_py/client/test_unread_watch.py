"""A reader that brings nothing though there is something to read is noticed."""

from __future__ import annotations

from marshal_py.client.unread_watch import UnreadWatch


def _looks(
    watch: UnreadWatch, ends: dict[int, int], places: dict[int, int], *at_s: float
) -> list[int | None]:
    return [watch.look(ends, places, now_s) for now_s in at_s]


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
        assert watch.look({0: 9, 1: 5}, {0: n, 1: 4}, 100.0 + n) == (None if n < 2 else 1)


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    watch = UnreadWatch(3.0)
    assert _looks(watch, {4: 8}, {4: 7}, 100.0, 200.0, 300.0) == [None] * 3
    assert _looks(watch, {4: 8}, {4: 7}, 301.0, 302.0) == [None, 4]


def test_it_begins_anew() -> None:
    watch = UnreadWatch(1.0)
    assert _looks(watch, {4: 8}, {4: 7}, 100.0, 101.0) == [None] * 2
    watch.start_over()
    assert _looks(watch, {4: 8}, {4: 7}, 102.0, 103.0, 104.0) == [None, None, 4]
