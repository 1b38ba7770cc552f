"""How much a member asks for, and what it gives back (`range_choice`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.protocol.range_choice import (
    AHEAD_S,
    FIRST,
    MOST,
    MOST_IDLE,
    OTHERS_S,
    SLOW_S,
    Action,
    Ask,
    GiveBack,
    Own,
    View,
    ahead_s,
    choose,
    is_suspect,
    piece,
)
from tests.support.spec import spec

NOTHING: dict[str, Any] = {
    "own": (),
    "asked": False,
    "free": (),
    "free_s": 0.0,
    "frontier": 0,
    "log_end": 0,
    "members": 1,
    "idle": 0,
    "idle_before": 0,
    "pace": 0.0,
    "ahead_s": AHEAD_S,
    "standing_s": 0.0,
}


def actions(**changes: Any) -> list[Action]:
    return choose(View(**{**NOTHING, **changes}))


@pytest.mark.parametrize(
    ("pace", "waiting", "members", "count"),
    [
        (0.0, 10_000, 1, FIRST),
        (200.0, 10_000, 1, int(200 * AHEAD_S)),
        (1.0, 10_000, 1, 1),
        (200.0, 100, 8, 7),  # its part of what waits
        (200.0, 1, 8, 1),
        (1e9, 10**9, 1, MOST),
    ],
)
def test_it_asks_for_what_it_gets_done_soon_and_its_part_of_what_waits(
    pace: float, waiting: int, members: int, count: int
) -> None:
    assert actions(pace=pace, log_end=waiting, members=members) == [Ask(count)]


def test_a_short_interval_has_it_ask_for_less() -> None:
    assert ahead_s(5_000) == AHEAD_S
    assert ahead_s(500) == 0.05
    assert actions(pace=200.0, log_end=10_000, ahead_s=0.05) == [Ask(10)]


def test_it_holds_one_range_ahead_of_the_one_that_it_works_on() -> None:
    working = Own(0, 10, 3, begun=True)
    ahead = Own(10, 20, 10, begun=False)
    assert actions(own=(working,), log_end=100, frontier=10) == [Ask(FIRST)]
    assert actions(own=(working, ahead), log_end=100, frontier=20) == []
    assert actions(own=(working,), log_end=100, frontier=10, asked=True) == []


@pytest.mark.parametrize(("pace", "count"), [(0.0, 1), (400.0, 4), (1e9, MOST_IDLE)])
def test_where_nothing_waits_it_holds_a_small_range_beyond_the_end(pace: float, count: int) -> None:
    assert actions(pace=pace, frontier=50, log_end=50) == [Ask(count)]
    idle = Own(50, 54, 50, begun=False)
    assert actions(pace=pace, own=(idle,), frontier=54, log_end=50) == []
    begun = Own(50, 54, 52, begun=True)
    assert actions(pace=pace, own=(begun,), frontier=54, log_end=52) == []
    used_up = Own(50, 54, 54, begun=True)
    assert actions(pace=pace, own=(used_up,), frontier=54, log_end=54) == [Ask(count)]


def test_who_gets_nowhere_gives_back_what_it_has_not_begun_if_others_are_idle() -> None:
    own = (Own(0, 1, 1, begun=True), Own(1, 10, 5, begun=True), Own(10, 20, 10, begun=False))
    assert actions(own=own, standing_s=SLOW_S, idle=1) == [GiveBack(10), GiveBack(1)]
    assert actions(own=own, standing_s=SLOW_S, idle=0) == []
    assert actions(own=own, standing_s=SLOW_S / 2, idle=1, frontier=20, log_end=20) == []


def test_who_gets_nowhere_asks_for_nothing() -> None:
    assert actions(standing_s=SLOW_S, log_end=100) == []


def test_what_was_given_back_goes_to_the_idle_whose_turn_it_is() -> None:
    idle = Own(20, 22, 20, begun=False)
    view = {"own": (idle,), "free": ((5, 10),), "frontier": 24, "log_end": 20}
    assert actions(**view, idle_before=0) == [Ask(3)]
    assert actions(**view, idle_before=1) == []
    assert actions(**view, idle_before=1, free_s=OTHERS_S) == [Ask(3)]


def test_what_is_free_behind_its_own_waits() -> None:
    idle = Own(20, 22, 20, begun=False)
    assert actions(own=(idle,), free=((22, 24),), frontier=24, log_end=20) == []


def test_who_has_nothing_takes_what_is_free_beyond_the_end() -> None:
    assert actions(free=((22, 24),), frontier=24, log_end=20) == [Ask(1)]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.booleans()), max_size=5),
    st.booleans(),
    st.integers(0, 200),
    st.integers(1, 9),
    st.integers(0, 8),
    st.floats(0, 1e6),
    st.floats(0, 1),
)
def test_whatever_it_sees_it_asks_for_something_sensible_or_gives_back_what_is_not_begun(
    pieces: list[tuple[int, int, bool]],
    asked: bool,
    log_end: int,
    members: int,
    idle: int,
    pace: float,
    standing_s: float,
) -> None:
    own, at = [], 0
    for length, begun, has_begun in pieces:
        reached = at + min(begun, length) if has_begun else at
        own.append(Own(at, at + length, reached, has_begun))
        at += length
    found = actions(
        own=tuple(own),
        asked=asked,
        frontier=at,
        log_end=log_end,
        members=members,
        idle=idle,
        pace=pace,
        standing_s=standing_s,
    )
    asks = [action for action in found if isinstance(action, Ask)]
    assert len(asks) <= (0 if asked else 1)
    assert all(1 <= action.messages <= MOST for action in asks)
    open_ones = {each.start for each in own if each.next < each.end}
    assert {a.start for a in found if isinstance(a, GiveBack)} <= open_ones
    if not own and not asked and standing_s < SLOW_S:
        assert asks  # whoever has nothing gets something


@spec("C-59")
@pytest.mark.parametrize(
    ("most", "counts"),
    [
        (2, [64, 1, 1]),
        (3, [64, 32, 1, 1]),
        (4, [64, 64, 32, 1, 1]),
        (5, [64, 64, 32, 16, 1, 1]),
        (None, [64, 64, 32, 16, 8, 4, 2, 1, 1]),
    ],
)
def test_what_is_granted_again_is_taken_in_smaller_and_smaller_pieces(
    most: int | None, counts: list[int]
) -> None:
    granted = range(1, len(counts) + 1)
    assert [piece(each, 100, 164, most) - 100 for each in granted] == counts
    assert [is_suspect(each, most) for each in granted] == [count < 64 for count in counts]


@given(st.integers(1, 100), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(2, 9))
def test_a_piece_is_never_empty(granted: int, position: int, count: int, most: int) -> None:
    end = piece(granted, position, position + count, most)
    assert position < end <= position + count
