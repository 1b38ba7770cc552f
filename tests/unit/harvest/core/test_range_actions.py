"""The range scheduler's decisions one by one, against specs/HARVEST.md §14. What they add up to is
simulated in test_range.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from harvest.core import range as r
from harvest.core.failure import Failure
from harvest.core.gaps import Holders, Range
from harvest.core.interfaces.range_store import Bounds, Window
from harvest.core.mark import Limits
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row, payload_bytes

A = TypeVar("A", bound=r.Action)


def holders(names: str) -> r.HoldersSeen:
    return r.HoldersSeen(Holders(frozenset(names.split())))


def rows(*ids: int, size: int = 10) -> list[Row]:
    return [Row(i, "t", b"k", b"x" * size) for i in ids]


def read(*ids: int, missing: Sequence[Range] = (), last: int = 0, full: bool = False) -> r.ReadDone:
    """The answer to a read that saw the rows `ids`, and other shards' up to `last`."""
    return r.ReadDone(Window(rows(*ids), last or ids[-1], missing, full))


def only(actions: Sequence[r.Action], kind: type[A]) -> A:
    (action,) = actions
    assert isinstance(action, kind)
    return action


def ids(send: r.Action) -> list[int]:
    assert isinstance(send, r.Send)
    return [row[0] for row in send.rows]


def running(
    position: Position | None = None,
    *,
    first: int = 1,
    limits: Limits | None = None,
    room: int = 4000,
) -> r.RangeScheduler:
    """A scheduler that has opened, and waits for its first window."""
    scheduler = r.RangeScheduler(7, limits=limits or Limits(), checkpoint_bytes=room)
    assert scheduler.step(r.Start()) == [r.Open(0)]
    assert scheduler.step(r.Opened(position)) == [r.CheckTable(position)]
    after = max(first - 1, position.last_id) if position else first - 1
    asked = only(scheduler.step(r.TableChecked(Bounds(first, 99))), r.Read)
    assert (asked.after, asked.delay_ms) == (after, 0)
    assert scheduler.running
    return scheduler


def holding_back(*suspects: str, **options: int) -> r.RangeScheduler:
    """A scheduler that has sent 2 to 4 and waits for 1, which these transactions may commit."""
    scheduler = running(room=options.get("room", 4000))
    assert scheduler.step(read(2, 3, 4, missing=[(1, 1)])) == [r.AskHolders()]
    assert scheduler.step(holders(" ".join(suspects))) == [r.Lookup([(1, 1)])]
    send, _ = scheduler.step(r.Found([]))
    assert ids(send) == [2, 3, 4]
    assert scheduler.step(r.Settled((0,))) == []
    return scheduler


# --- The cycle ---


def test_what_has_no_gaps_is_sent_at_once_and_the_next_window_is_read_meanwhile() -> None:
    scheduler = running()
    send, asked = scheduler.step(read(1, 2, 3))
    assert send == r.Send(0, rows(1, 2, 3), Position(7, 0, 1, 3))
    assert isinstance(asked, r.Read)
    assert asked.after == 3
    assert scheduler.in_flight_records == 3
    assert scheduler.step(r.Settled((0,))) == []
    assert scheduler.in_flight_records == scheduler.in_flight_bytes == 0


def test_harvesting_goes_on_from_the_committed_position_and_below_no_id_that_can_be() -> None:
    running(Position(6, 0, 1, 40))
    running(first=17)
    running(Position(6, 0, 1, 3), first=17)


def test_a_gap_is_asked_about_before_what_is_behind_it_is_sent() -> None:
    scheduler = running()
    assert scheduler.step(read(1, 4, missing=[(2, 3)])) == [r.AskHolders()]
    assert scheduler.step(holders("a b")) == [r.Lookup([(2, 3)])]
    send, asked = scheduler.step(r.Found([]))
    assert send == r.Send(0, rows(1, 4), Position(7, 0, 1, 4, ((2, 3),)))
    assert isinstance(asked, r.Read)
    assert scheduler.open_gaps == 1


def test_a_row_that_appeared_is_sent_before_later_ones_of_the_window() -> None:
    scheduler = running()
    scheduler.step(read(1, 4, 5, missing=[(2, 3)]))
    scheduler.step(holders(""))
    assert scheduler.step(r.Found([(3, 3)])) == [r.Fetch([(3, 3)])]
    assert scheduler.open_gaps == 1, "found, and not sent yet"
    send, _ = scheduler.step(r.Fetched(rows(3)))
    assert ids(send) == [1, 3, 4, 5]
    assert scheduler.open_gaps == 0
    assert scheduler.gaps.dead_ids == 1


def test_as_long_as_no_suspect_has_ended_there_is_no_lookup() -> None:
    scheduler = holding_back("a", "b")
    assert scheduler.step(read(last=4)) == [r.AskHolders()]
    assert isinstance(only(scheduler.step(holders("a b c")), r.Read), r.Read)


def test_a_late_row_is_sent_although_nothing_new_is_there() -> None:
    scheduler = holding_back("a", "b")
    scheduler.step(read(last=4))
    assert scheduler.step(holders("b")) == [r.Lookup([(1, 1)])]
    assert scheduler.step(r.Found([(1, 1)])) == [r.Fetch([(1, 1)])]
    send, _ = scheduler.step(r.Fetched(rows(1)))
    assert send == r.Send(1, rows(1), Position(7, 0, 1, 4))


def test_a_gap_whose_suspects_have_all_ended_is_dead_when_it_is_not_seen_afterwards() -> None:
    scheduler = holding_back("a", "b")
    scheduler.step(read(last=4))
    scheduler.step(holders("c"))
    only(scheduler.step(r.Found([])), r.Read)
    assert (scheduler.open_gaps, scheduler.gaps.dead_ids) == (0, 1)


def test_many_late_rows_come_in_steps_each_in_order_and_none_passes_an_earlier_one() -> None:
    scheduler = running(limits=Limits(mark_query_records=2, max_in_flight_records=2))
    scheduler.step(read(1, 6, missing=[(2, 5)], full=True))
    scheduler.step(holders(""))
    assert scheduler.step(r.Found([(2, 5)])) == [r.Fetch([(2, 3)])]
    (send,) = scheduler.step(r.Fetched(rows(2, 3)))
    assert send == r.Send(0, rows(1, 2, 3), Position(7, 0, 1, 3))
    assert scheduler.open_gaps == 1, "4 and 5 are found, and not sent yet"
    assert scheduler.step(r.Settled((0,))) == [r.Fetch([(4, 5)])]
    (send,) = scheduler.step(r.Fetched(rows(4, 5)))
    assert send == r.Send(1, rows(4, 5, 6), Position(7, 0, 1, 6))


def test_late_rows_of_other_shards_are_none_of_ours() -> None:
    scheduler = holding_back("a")
    scheduler.step(read(last=4))
    scheduler.step(holders(""))
    scheduler.step(r.Found([(1, 1)]))
    only(scheduler.step(r.Fetched([])), r.Read)
    assert scheduler.open_gaps == 0


def test_rows_of_other_shards_move_the_position_and_a_refresh_commits_it_once() -> None:
    scheduler = running()
    only(scheduler.step(read(last=20)), r.Read)
    assert scheduler.step(r.Refresh()) == [r.Send(0, (), Position(7, 0, 1, 20))]
    assert scheduler.step(r.Refresh(anyway=True)) == [], "the one before is under way"
    scheduler.step(r.Settled((0,)))
    assert scheduler.step(r.Refresh()) == [], "nothing has changed"
    assert scheduler.step(r.Refresh(anyway=True)) == [r.Send(1, (), Position(7, 0, 1, 20))]


def test_a_window_full_of_other_shards_rows_is_followed_by_a_larger_one_at_once() -> None:
    scheduler = running()
    first = only(scheduler.step(read(last=20)), r.Read)
    assert first.delay_ms > 0
    again = only(scheduler.step(read(last=276, full=True)), r.Read)
    assert (again.delay_ms, again.limit) == (0, 4 * first.limit)


# --- Bounds ---


def test_no_window_is_asked_for_beyond_what_may_be_in_flight() -> None:
    scheduler = running(limits=Limits(max_in_flight_batches=1))
    assert isinstance(only(scheduler.step(read(1, 2)), r.Send), r.Send)
    assert only(scheduler.step(r.Settled((0,))), r.Read).after == 2


def test_the_position_stands_still_while_its_gaps_do_not_fit() -> None:
    """Rows as far as the gaps fit are sent, the rest is read again, later and later."""
    bare = len(Position(7, 0, 1, 9).encode())
    scheduler = running(room=bare + 3)  # one gap takes 2 bytes, in base 85: 3 characters
    scheduler.step(read(2, 4, 6, 8, missing=[(1, 1), (3, 3), (5, 5), (7, 7)]))
    scheduler.step(holders("a"))
    send, again = scheduler.step(r.Found([]))
    assert ids(send) == [2]
    assert isinstance(send, r.Send)
    assert send.position == Position(7, 0, 1, 2, ((1, 1),))
    assert len(send.position.encode()) <= scheduler.checkpoint_bytes
    assert scheduler.in_flight_bytes == payload_bytes(send.rows), "and not those of the window"
    assert scheduler.crowded
    assert isinstance(again, r.Read)
    scheduler.step(r.Settled((0,)))

    window = read(4, 6, 8, missing=[(3, 3), (5, 5), (7, 7)])
    for _ in range(3):
        before = again
        assert scheduler.step(window) == [r.AskHolders()]
        assert scheduler.step(holders("a")) == [r.Lookup([(1, 1), (3, 3), (5, 5), (7, 7)])]
        again = only(scheduler.step(r.Found([])), r.Read)
        assert (before.after, again.after, scheduler.crowded) == (2, 2, True)
        assert again.delay_ms > before.delay_ms

    scheduler.step(window)
    assert scheduler.step(holders("")) == [r.Lookup([(1, 1), (3, 3), (5, 5), (7, 7)])]
    send, again = scheduler.step(r.Found([]))
    assert send == r.Send(1, rows(4, 6, 8), Position(7, 0, 1, 8))
    assert not scheduler.crowded


def test_late_rows_are_sent_while_the_position_stands_still() -> None:
    bare = len(Position(7, 0, 1, 9).encode())
    scheduler = running(room=bare + 3)
    scheduler.step(read(2, 4, 6, missing=[(1, 1), (3, 3), (5, 5)]))
    scheduler.step(holders("a b"))
    send, _ = scheduler.step(r.Found([]))
    assert ids(send) == [2]
    scheduler.step(r.Settled((0,)))
    scheduler.step(read(4, 6, missing=[(3, 3), (5, 5)]))
    scheduler.step(holders("b"))
    assert scheduler.step(r.Found([(1, 1)])) == [r.Fetch([(1, 1)])]
    send, again = scheduler.step(r.Fetched(rows(1)))
    assert ids(send) == [1, 4], "gap 1 is closed: 3 fits into its place"
    assert isinstance(again, r.Read)
    assert again.after == 4
    assert scheduler.crowded
    assert [ids for c in scheduler.gaps.cohorts for ids in c.ranges] == [(3, 3)]


def test_a_late_row_above_where_the_gaps_fit_is_read_again_and_sent_once() -> None:
    bare = len(Position(7, 0, 1, 9).encode())
    scheduler = running(room=bare + 3)
    scheduler.step(read(2, 4, 6, missing=[(1, 1), (3, 3), (5, 5)]))
    scheduler.step(holders("a"))
    assert scheduler.step(r.Found([(5, 5)])) == [r.Fetch([(5, 5)])]
    send, again = scheduler.step(r.Fetched(rows(5)))
    assert ids(send) == [2]
    assert isinstance(again, r.Read)
    assert again.after == 2
    scheduler.step(r.Settled((0,)))
    scheduler.step(read(4, 5, 6, missing=[(3, 3)]))
    assert scheduler.step(holders("")) == [r.Lookup([(1, 1), (3, 3)])]
    send, _ = scheduler.step(r.Found([]))
    assert ids(send) == [4, 5, 6]


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("dead_first", [False, True])
def test_what_was_one_gap_and_is_found_in_pieces_is_sent_however_many(
    limit: int, dead_first: bool
) -> None:
    """Two transactions drew ids by turns, one rolled back: no room for each id by itself.

    What will never come may be named in the checkpoint, too, so there is always room for the rest.
    """
    room = len(Position(7, 0, 1, 10, ((1, 9),)).encode())
    scheduler = running(room=room, limits=Limits(mark_query_records=limit))
    scheduler.step(read(10, missing=[(1, 9)]))
    scheduler.step(holders("a b"))
    send, _ = scheduler.step(r.Found([]))
    assert ids(send) == [10]
    scheduler.step(r.Settled((0,)))
    scheduler.step(read(last=10))
    if dead_first:
        assert scheduler.step(holders("")) == [r.Lookup([(1, 9)])]
        found = r.Found([(n, n) for n in (1, 3, 5, 7, 9)])
    else:
        scheduler.step(holders("b"))
        scheduler.step(r.Found([(1, 1)]))
        assert ids(scheduler.step(r.Fetched(rows(1)))[0]) == [1]
        scheduler.step(r.Settled((1,)))
        scheduler.step(read(last=10))
        scheduler.step(holders(""))
        found = r.Found([(n, n) for n in (3, 5, 7, 9)])
    published = [] if dead_first else [1]
    actions = scheduler.step(found)
    while isinstance(actions[-1], r.Fetch):
        wanted = [n for low, high in actions[-1].ids for n in range(low, high + 1)]
        send, *actions = scheduler.step(r.Fetched(rows(*wanted)))
        assert isinstance(send, r.Send)
        assert len(send.position.encode()) <= room
        published += ids(send)
        named = {n for low, high in send.position.gaps for n in range(low, high + 1)}
        assert named.isdisjoint(published), "what is published is never named"
        assert named.issuperset({1, 3, 5, 7, 9} - {*published})
        scheduler.step(r.Settled((send.number,)))
    assert published == [1, 3, 5, 7, 9]
    assert scheduler.open_gaps == 0


def test_once_the_position_moves_again_the_next_window_is_asked_for_soon() -> None:
    bare = len(Position(7, 0, 1, 9).encode())
    scheduler = running(room=bare + 3)
    scheduler.step(read(2, 4, 6, 8, missing=[(1, 1), (3, 3), (5, 5), (7, 7)]))
    scheduler.step(holders("a"))
    scheduler.step(r.Found([]))
    scheduler.step(r.Settled((0,)))
    window = read(4, 6, 8, missing=[(3, 3), (5, 5), (7, 7)])
    for _ in range(3):
        scheduler.step(window)
        scheduler.step(holders("a"))
        again = only(scheduler.step(r.Found([])), r.Read)
    assert again.delay_ms > Limits().min_poll_interval_ms
    scheduler.step(window)
    scheduler.step(holders("b"))  # who may have had 1 has ended, and it never came
    send, asked = scheduler.step(r.Found([]))
    assert ids(send) == [4]
    assert isinstance(asked, r.Read)
    assert asked.delay_ms == Limits().min_poll_interval_ms


# --- Failure and the end ---


def test_after_a_failure_everything_comes_back_before_the_sink_is_opened_again() -> None:
    scheduler = running()
    scheduler.step(read(1, 2))
    scheduler.step(read(3))
    assert scheduler.step(r.Settled((0,), Failure("refused"))) == []
    assert not scheduler.running
    assert scheduler.step(r.Refresh(anyway=True)) == []
    assert scheduler.step(r.Settled((1,), Failure("refused"))) == []
    assert scheduler.step(read(4)) == [r.Open(100)], "what came too late is not sent"
    kept = Position(7, 0, 1, 2)
    assert scheduler.step(r.Opened(kept)) == [r.CheckTable(kept)]
    assert only(scheduler.step(r.TableChecked(Bounds(1, 9))), r.Read).after == 2


def test_the_gaps_of_the_committed_position_get_suspects_anew() -> None:
    scheduler = running(Position(6, 0, 1, 9, ((3, 4), (7, 7))))
    assert scheduler.step(read(last=9)) == [r.AskHolders()]
    assert scheduler.step(holders("a")) == [r.Lookup([(3, 4), (7, 7)])]


def test_failures_in_a_row_wait_longer_up_to_a_bound_and_a_success_ends_the_row() -> None:
    limits = Limits(io_error_backoff_ms=100, max_io_error_backoff_ms=300)
    scheduler = running(limits=limits)
    assert scheduler.step(r.AskFailed()) == [r.Open(100)]
    assert scheduler.step(r.OpenFailed()) == [r.Open(200)]
    scheduler.step(r.Opened(None))
    assert scheduler.step(r.AskFailed()) == [r.Open(300)], "the look failed"
    assert scheduler.step(r.OpenFailed()) == [r.Open(300)]
    scheduler.step(r.Opened(None))
    scheduler.step(r.TableChecked(Bounds(1, 0)))
    scheduler.step(read(1))
    scheduler.step(r.Settled((0,)))
    assert scheduler.step(r.AskFailed()) == [r.Open(100)]


def test_after_a_failure_it_works_when_rows_are_published_or_there_are_none() -> None:
    scheduler = running()
    for _ in range(2):
        scheduler.step(r.AskFailed())
        scheduler.step(r.Opened(None))
        scheduler.step(r.TableChecked(Bounds(1, 0)))
        assert not scheduler.running, "to be opened is not enough"
    scheduler.step(read(1))
    scheduler.step(r.ReadDone(Window((), 1)))
    assert not scheduler.running, "the row is on its way"
    scheduler.step(r.Settled((0,)))
    assert scheduler.running
    scheduler.step(r.AskFailed())
    scheduler.step(r.Opened(None))
    scheduler.step(r.TableChecked(Bounds(1, 0)))
    assert not scheduler.running
    scheduler.step(r.ReadDone(Window((), 0)))
    assert scheduler.running


def test_a_stop_finishes_what_is_in_flight() -> None:
    scheduler = running()
    scheduler.step(read(1, 2))
    assert scheduler.step(r.Stop()) == []
    assert scheduler.step(read(3)) == [], "what came too late is not sent"
    assert scheduler.step(r.Settled((0,))) == [r.Finish("stopped")]
    assert scheduler.step(read(4)) == []


def test_a_failure_while_stopping_opens_nothing() -> None:
    scheduler = running()
    scheduler.step(read(1, 2))
    scheduler.step(r.Stop())
    assert scheduler.step(r.AskFailed()) == []
    assert scheduler.step(r.Settled((0,), Failure("unknown"))) == [r.Finish("stopped")]


def test_a_stop_before_anything_began_is_the_end() -> None:
    assert r.RangeScheduler(7).step(r.Stop()) == [r.Finish("stopped")]


@pytest.mark.parametrize("answer", [r.OpenFailed(), r.Opened(None)])
def test_a_stop_while_the_sink_is_being_opened_waits_for_that(answer: r.Event) -> None:
    scheduler = r.RangeScheduler(7)
    scheduler.step(r.Start())
    assert scheduler.step(r.Stop()) == []
    assert scheduler.step(answer) == [r.Finish("stopped")]


@pytest.mark.parametrize("answer", [r.AskFailed(), r.TableChecked(Bounds(1, 9))])
def test_a_stop_while_the_table_is_looked_at_waits_for_that(answer: r.Event) -> None:
    scheduler = r.RangeScheduler(7)
    scheduler.step(r.Start())
    scheduler.step(r.Opened(None))
    assert scheduler.step(r.Stop()) == []
    assert scheduler.step(answer) == [r.Finish("stopped")]


def test_losing_the_lease_ends_everything_at_once() -> None:
    scheduler = running()
    scheduler.step(read(1, 2))
    assert scheduler.step(r.LeaseLost()) == [r.Finish("the lease is lost")]
    assert scheduler.step(r.Settled((0,))) == []
