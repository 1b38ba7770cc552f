"""Lag in seconds, from samples of where a partition ends and where its group is."""

from __future__ import annotations

from marshal_py.telemetry.lag_clock import LagClock


def clock(*samples: tuple[float, int | None, int]) -> LagClock:
    made = LagClock()
    for at_s, position, end in samples:
        made.note(at_s, position, end)
    return made


def test_who_has_read_everything_is_not_behind() -> None:
    made = clock((0, 10, 10), (60, 10, 10))
    assert (made.lag_s(), made.stalled_s()) == (0, 0)


def test_the_lag_is_how_long_the_next_message_has_been_there() -> None:
    """At 10 s there were 10 messages, at 20 s there were 20: message 10 came in between."""
    made = clock((10, 5, 10), (20, 10, 20), (30, 10, 30))
    assert made.lag_s() == 20
    made.note(40, 25, 30)
    assert made.lag_s() == 20, "message 25 came after 20 s"


def test_what_was_there_at_first_is_as_old_as_the_watching_at_least() -> None:
    assert clock((0, 3, 10), (100, 4, 10)).lag_s() == 100


def test_a_long_calm_is_no_lag_of_what_comes_after_it() -> None:
    made = clock((0, 10, 10), (10, 10, 10), (500, 10, 10), (510, 10, 11))
    assert made.lag_s() == 10


def test_a_position_stands_still_from_when_it_moved_last_while_messages_wait() -> None:
    made = clock((0, 5, 10), (10, 6, 10), (20, 6, 10), (70, 6, 12))
    assert made.stalled_s() == 60
    made.note(80, 7, 12)
    assert made.stalled_s() == 0


def test_a_topic_made_anew_begins_afresh() -> None:
    made = clock((0, 5, 10), (90, 5, 10), (100, 0, 2))
    assert (made.lag_s(), made.stalled_s()) == (0, 0)
    made = clock((0, 5, 10), (90, 5, 10), (100, 5, 8))
    assert (made.lag_s(), made.stalled_s()) == (0, 0), "at a position of the same number"


def test_who_never_stored_a_position_has_no_lag_in_seconds() -> None:
    assert clock((0, None, 10), (9, None, 10)).lag_s() == 0


def test_of_a_long_watch_the_latest_samples_are_kept() -> None:
    """An exporter runs for months: what waits for longer than they reach is as old at least."""
    made = clock(*[(float(n), 0, n + 1) for n in range(5_000)])
    assert made.lag_s() == 719
