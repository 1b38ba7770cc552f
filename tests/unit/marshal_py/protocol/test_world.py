"""The world, and how one reader measures silence (specs/PROTOCOL.md §2.2, §5.1)."""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.protocol.messages import ClaimingPartition, Heartbeat, ReleaseGroup, encode
from marshal_py.protocol.rationalizer import GroupState, apply
from marshal_py.protocol.world import (
    MS,
    Observer,
    Timeline,
    World,
    coordinating_partition,
)
from tests.support.reference_fold import murmur3_32

steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400)), min_size=1, max_size=60)


def history(deltas: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(offset, time) pairs, neither of which ever falls."""
    offset = time = 0
    pairs = []
    for more_offsets, more_time in deltas:
        offset, time = offset + more_offsets, time + more_time
        pairs.append((offset, time))
    return pairs


@given(steps, st.integers(1, 50), st.integers(1, 1_000))
def test_timeline_never_answers_a_time_that_is_too_early(
    deltas: list[tuple[int, int]], resolution: int, horizon: int
) -> None:
    timeline = Timeline(resolution, horizon)
    pairs: list[tuple[int, int]] = []
    for offset, time in history(deltas):
        timeline.note(offset, time)
        pairs.append((offset, time))
        for wanted in range(offset + 1):
            true = next(seen_at for seen, seen_at in pairs if seen >= wanted)
            answer = timeline.at(wanted)
            assert answer is not None
            assert true <= answer <= time
            if time - true <= horizon:
                assert answer < true + resolution
        assert timeline.at(offset + 1) is None


@given(steps, st.integers(1, 50), st.integers(1, 1_000))
def test_timeline_does_not_grow_with_time(
    deltas: list[tuple[int, int]], resolution: int, horizon: int
) -> None:
    timeline = Timeline(resolution, horizon)
    for offset, time in history(deltas):
        timeline.note(offset, time)
    assert len(timeline._times) <= 2 * horizon // resolution + 3
    assert timeline._times == sorted(timeline._times)
    assert timeline._offsets == sorted(timeline._offsets)


def test_timeline_of_a_clock_that_steps_back_goes_on_where_it_was() -> None:
    timeline = Timeline(10, 1_000)
    timeline.note(1, 500)
    timeline.note(2, 300)
    assert [timeline.at(1), timeline.at(2)] == [500, 500]
    timeline.note(3, 505)
    assert timeline.at(3) == 505


def test_records_of_one_tick_share_a_point_with_the_last_time() -> None:
    timeline = Timeline(10, 1_000)
    timeline.note(1, 100)
    timeline.note(2, 109)
    timeline.note(3, 110)
    assert [timeline.at(n) for n in (1, 2, 3)] == [109, 109, 110]


def test_a_timeline_grows_by_ticks_and_not_by_records() -> None:
    timeline = Timeline(10, 1_000)
    for offset in range(100):
        timeline.note(offset, 100 + offset // 10)
    assert timeline._times == [109]
    assert timeline._offsets == [99]


def test_what_is_older_than_the_horizon_is_answered_with_the_oldest_that_is_left() -> None:
    timeline = Timeline(1, 100)
    for n in range(40):
        timeline.note(n, n * 10)
    oldest = timeline._times[0]
    assert timeline.at(0) == oldest
    assert oldest >= 390 - 200


def test_silence_is_unknown_before_catching_up_and_zero_when_just_seen() -> None:
    observer = Observer()
    assert observer.silence_ns(5, 0) is None
    assert observer.liveness(5, 1_000, 10**12) == "unknown"
    observer.seen.note(5, 7 * MS)
    assert observer.silence_ns(5, 7 * MS) == 0
    assert observer.silence_ns(5, 6 * MS) == 0  # a clock read before the record was noted
    assert observer.silence_ns(5, 9 * MS) == 2 * MS
    assert observer.silence_ns(6, 9 * MS) is None


@pytest.mark.parametrize(
    ("silence_ns", "liveness"),
    [
        (0, "fresh"),
        (1_000 * MS - 1, "fresh"),
        (1_000 * MS, "unknown"),
        (2_000 * MS, "unknown"),
        (2_000 * MS + 1, "stale"),
    ],
)
def test_liveness_by_silence(silence_ns: int, liveness: str) -> None:
    observer = Observer()
    observer.seen.note(5, 0)
    assert observer.liveness(5, 1_000, silence_ns) == liveness


@pytest.mark.parametrize("interval_ms", [20, 1_000, 600_000, 86_400_000])
def test_two_intervals_of_silence_can_be_measured_whatever_the_interval(interval_ms: int) -> None:
    observer = Observer()
    observer.seen.note(1, 0)
    step = max(1, interval_ms // 7)
    now = 0
    while now <= 2 * interval_ms + max(step, 10):
        now += step
        observer.seen.note(1 + now, now * MS)
    assert observer.liveness(1, interval_ms, now * MS) == "stale"


def test_a_long_interval_does_not_make_short_ones_coarse() -> None:
    """Times are kept finely while they are young and coarsely when they are old (§5.1)."""
    observer = Observer()
    day_ms = 86_400_000
    for second in range(2 * 86_400):
        observer.seen.note(second, second * 1_000 * MS)
    now_ns = (2 * 86_400 - 1) * 1_000 * MS
    for age_s, error_ms in ((5, 10), (500, 10), (30_000, 1_000), (100_000, 30_000)):
        silence = observer.silence_ns(2 * 86_400 - 1 - age_s, now_ns)
        assert silence is not None
        assert age_s * 1_000 - error_ms <= silence // MS <= age_s * 1_000
    assert observer.liveness(0, day_ms - 60_000, now_ns) == "stale"
    timeline: Timeline | None = observer.seen
    kept = 0
    while timeline is not None:
        kept += len(timeline._times)
        timeline = timeline.coarser
    assert kept < 150_000


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), max_size=200))
def test_coarser_times_are_never_too_early(steps: list[tuple[int, int]]) -> None:
    timeline = Timeline(2, 50, Timeline(10, 200, Timeline(50, 100_000)))
    true: dict[int, int] = {}
    offset, time = -1, 0
    for more, later in steps:
        time += later
        true.update(dict.fromkeys(range(offset + 1, offset + 1 + more), time))
        offset += more
        timeline.note(offset, time)
    for known, seen in true.items():
        noted = timeline.at(known)
        assert noted is not None
        assert seen <= noted <= seen + 50 + 40


@given(st.text(max_size=40), st.integers(1, 200))
def test_coordinating_partition_is_murmur3_of_the_group(group: str, partitions: int) -> None:
    assert coordinating_partition(group, partitions) == murmur3_32(group.encode()) % partitions


def test_world_answers_by_group() -> None:
    world = World(3)
    assert world.partitions == 3
    for group in ("g", "h"):
        for n in range(4):
            claim = ClaimingPartition(2, "c", "c.1", group, n, "t", n, 1_000, -1)
            _fold(world, world.coordinator(group, "t", n), claim)
        _fold(world, world.home(group), Heartbeat(2, "c", "c.1", group, 9, 1_000, 1))
    _fold(world, world.home("i"), ReleaseGroup(2, "op", "op.1", "i", 1, 0))
    assert world.groups() == ["g", "h", "i"]
    found = world.cell("g", "t", 2)
    assert found is not None
    assert found.holder == "c"
    assert world.cell("g", "t", 9) is None
    assert world.cell("i", "t", 2) is None
    assert {key for _, key, _ in world.cells("g")} == {("g", "t", n) for n in range(4)}
    assert all(p == world.coordinator(*key) for p, key, _ in world.cells())
    assert len(list(world.cells())) == 8
    assert [(m.group_id, m.client_id) for m in world.members("h")] == [("h", "c")]
    assert len(list(world.members())) == 2
    assert world.paused("i")
    assert not world.paused("g")


def test_a_group_is_known_by_its_cells_its_members_or_its_pause_alone() -> None:
    world = World(3)
    _fold(world, 0, ClaimingPartition(2, "c", "c.1", "cells", 1, "t", 0, 1_000, -1))
    _fold(world, 1, Heartbeat(2, "c", "c.1", "members", 2, 1_000, 1))
    _fold(world, 2, ReleaseGroup(2, "op", "op.1", "pause", 3, 0))
    assert world.groups() == ["cells", "members", "pause"]


def _fold(world: World, p: int, record: ClaimingPartition | Heartbeat | ReleaseGroup) -> None:
    state = world.states[p]
    apply(state, state.next_offset, encode(record))


def test_every_point_of_a_timeline_can_be_found() -> None:
    timeline = Timeline(1, 10_000)
    offsets = list(range(0, 300, 3))
    for offset in offsets:
        timeline.note(offset, offset * 2)
    for wanted in range(298):
        expected = offsets[bisect_right(offsets, wanted - 1)] * 2
        assert timeline.at(wanted) == expected


def test_what_a_group_has_is_looked_up_and_not_searched_for() -> None:
    """Other groups, however many, are not walked through."""

    class Watched(dict[str, GroupState]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("all groups were walked through")

        items = values = keys = __iter__

    world = World(2)
    assert (world.group("g"), world.paused("g")) == (None, False)
    home = world.home("g")
    head: tuple[Literal[2], str, str, str, int] = (2, "a", "i", "g", 0)
    apply(world.states[home], 0, encode(ClaimingPartition(*head, "t", 3, 1_000, -1)))
    apply(world.states[home], 1, encode(Heartbeat(*head, 1_000, 1)))
    world.states[home].groups = Watched(world.states[home].groups)
    cell = world.cell("g", "t", 3)
    assert list(world.cells("g")) == [(home, ("g", "t", 3), cell)]
    assert [(view.group_id, view.client_id) for view in world.members("g")] == [("g", "a")]
    assert not [*world.cells("h"), *world.members("h")]


def test_a_world_of_no_partitions_has_no_groups() -> None:
    world = World(0)
    assert world.group("g") is None
    assert not [*world.cells("g"), *world.members("g")]
