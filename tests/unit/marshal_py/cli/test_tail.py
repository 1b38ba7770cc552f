"""`marshal tail`: which time is meant, and what cannot be meant."""

from __future__ import annotations

import pytest

from marshal_py.cli.tail import _window
from tests.support.marshal_command import without_brokers


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-f", "--until", "5m"], "--follow goes on for ever"),
        (["-f", "--at", "5m"], "--follow goes on for ever"),
        (["--at", "5m", "--since", "10m"], "--at has its own window"),
        (["--at", "5m", "--until", "1m"], "--at has its own window"),
        (["--since", "5m", "--until", "10m"], "--until '10m' is before --since '5m'"),
        (["-e", "takeover", "-e", "takeovre"], "--event 'takeovre' is none of"),
        (["--at", "5m", "--around", "wide"], "--around 'wide' is no duration"),
        (["--until", "later"], "--until 'later' is neither"),
    ],
)
def test_what_cannot_be_meant_is_told_before_a_broker_is_asked(
    arguments: list[str], why: str
) -> None:
    done = without_brokers("tail", *arguments)
    assert done.exit_code == 2
    assert why in done.stderr


def test_a_window_lies_around_a_moment() -> None:
    at = "1970-01-01T00:01:00Z"
    assert _window(None, None, at, "10s") == (None, 50_000, 70_000)
    assert _window(None, None, at, "2m") == (None, 0, 180_000), "nothing was before 1970"


def test_a_window_begins_at_an_offset_or_a_time_and_ends_at_a_time() -> None:
    assert _window("1500", None, None, "") == (1_500, None, None)
    since, until = "1970-01-01T00:01:00Z", "1970-01-01T00:02:00Z"
    assert _window(since, until, None, "") == (None, 60_000, 120_000)
    assert _window(since, since, None, "") == (None, 60_000, 60_000)
    assert _window(None, None, None, "") == (None, None, None)
