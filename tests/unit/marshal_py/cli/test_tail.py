"""`marshal tail`: which time is meant, what is told of it, and how following goes on and ends."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin.event_stream import TimedEvent
from marshal_py.cli import tail as module
from marshal_py.cli.tail import _window
from marshal_py.client.log_reader import Truncated
from marshal_py.errors import LogHole
from marshal_py.protocol import events as ev
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
        (["--around", "5m"], "--around 5m is about --at: give it"),
        (["--at", "5m", "--around", ""], "--around '' is no duration"),
        (["-p", "-1"], "'--partition' / '-p'"),
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
    assert _window(None, None, at, None) == (None, 30_000, 90_000)
    assert _window(None, None, at, "10s") == (None, 50_000, 70_000)
    assert _window(None, None, at, "2m") == (None, 0, 180_000), "nothing was before 1970"


def test_a_window_begins_at_an_offset_or_a_time_and_ends_at_a_time() -> None:
    assert _window("1500", None, None, None) == (1_500, None, None)
    since, until = "1970-01-01T00:01:00Z", "1970-01-01T00:02:00Z"
    assert _window(since, until, None, None) == (None, 60_000, 120_000)
    assert _window(since, since, None, None) == (None, 60_000, 60_000)
    assert _window(None, None, None, None) == (None, None, None)


class Log:
    """What `marshal tail` opens, as often as it does, and what it is told then.

    `past`: what each reader finds; `news`: what comes then, errors to be raised included.
    """

    def __init__(self) -> None:
        self.past: list[list[TimedEvent] | Exception] = [[]]
        self.news: list[list[TimedEvent] | BaseException] = []
        self.first = 0
        self.opened: list[dict[str, Any]] = []
        self.closed = 0
        self.partition_count_error: Exception | None = None
        self.with_routine: list[bool] = []
        self.world = SimpleNamespace(partitions=2)

    def open(self, _timeout_s: float, **window: Any) -> None:
        self.opened.append(window)

    def extent(self) -> dict[int, tuple[int, int]]:
        return {0: (self.first, 100)}

    def close(self) -> None:
        self.closed += 1

    def past_events(
        self, _connection: object, _reader: object, *, routine: bool
    ) -> Iterator[TimedEvent]:
        self.with_routine.append(routine)
        found = self.past.pop(0)
        if isinstance(found, Exception):
            raise found
        yield from found

    def new_events(self, _reader: object) -> list[TimedEvent]:
        found = self.news.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(module, "open_reader", lambda *_: made)
    monkeypatch.setattr(module, "past_events", made.past_events)
    monkeypatch.setattr(module, "in_order", lambda _, events: events)
    monkeypatch.setattr(module, "new_events", made.new_events)
    return made


def member(offset: int, *, at_ms: int | None = None) -> TimedEvent:
    """The member of the same number joins."""
    event = ev.MemberJoined(
        offset, seq=0, interval_ms=5, client_id=f"c{offset}", instance_id="i", group_id="g"
    )
    return TimedEvent(offset * 1_000 if at_ms is None else at_ms, 0, event)


def beat(offset: int) -> TimedEvent:
    event = ev.Beat(
        offset, seq=0, cells=1, entries=0, membership=1,
        client_id="beats", instance_id="i", group_id="g",
    )  # fmt: skip
    return TimedEvent(offset * 1_000, 0, event)


def told(*arguments: str) -> tuple[int, list[int], str]:
    """Return the exit code, which offsets were told of, and what was said of them."""
    done = without_brokers("tail", *arguments, TZ="UTC")
    return done.exit_code, [int(n) for n in re.findall(r"@(\d+)", done.stdout)], done.stderr


def test_without_a_time_the_last_lines_are_told(log: Log) -> None:
    log.past = [[member(n) for n in range(30)]]
    assert told() == (0, list(range(10, 30)), "")
    log.past = [[member(n) for n in range(30)]]
    assert told("-n", "3") == (0, [27, 28, 29], "")
    log.past = [[]]
    code, offsets, said = told()
    assert (code, offsets) == (0, [])
    assert "no such events since the newest snapshots" in said
    log.past = [[member(1)]]
    assert told("-n", "0") == (0, [], "")
    assert log.closed == 4


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--since", "28"], [28, 29, 30]),
        (["--since", "1970-01-01T00:00:28Z"], [28, 29, 30]),
        (["--since", "1970-01-01T00:00:05Z", "--until", "1970-01-01T00:00:07Z"], [5, 6, 7]),
        (["--at", "1970-01-01T00:00:05Z", "--around", "1s"], [4, 5, 6]),
        (["--at", "1970-01-01T00:00:15Z", "--around", "14s"], list(range(1, 30))),
        (["--since", "0"], list(range(31))),
    ],
)
def test_of_a_time_all_is_told_and_nothing_else(
    log: Log, arguments: list[str], offsets: list[int]
) -> None:
    log.past = [[member(n) for n in range(31)]]
    assert told(*arguments) == (0, offsets, "")


def test_what_has_no_time_is_before_all_times(log: Log) -> None:
    nameless = member(1)._replace(stamp_ms=None)
    log.past = [[nameless], [nameless]]
    assert told("--since", "1970-01-01T00:00:00Z")[1] == [1]
    code, offsets, said = told("--since", "1970-01-01T00:00:01Z")
    assert (code, offsets) == (0, [])
    assert "no such events in that time" in said


def test_the_window_is_asked_of_the_log(log: Log) -> None:
    moments = ("--since", "1970-01-01T00:00:05Z", "--until", "1970-01-01T00:00:07Z")
    log.past = [[], [], []]
    told(*moments)
    told(*moments, "--wire", "text")
    told("--since", "5")
    asked = {"since_offset": None, "since_ms": 5_000, "until_ms": 7_000}
    text = {**asked, "until_ms": None}  # its records have no time of the broker's
    assert log.opened == [asked, text, {"since_offset": 5, "since_ms": None, "until_ms": None}]


def test_routine_is_told_if_it_is_asked_for(log: Log) -> None:
    for arguments, offsets in (
        ([], [2]),
        (["--all"], [1, 2]),
        (["-e", "beat"], [1]),
        (["-e", "joined"], [2]),
        (["-e", "left"], []),
    ):
        log.past = [[beat(1), member(2)]]
        assert told(*arguments)[1] == offsets
    assert log.with_routine == [False, True, True, False, False]


def test_older_records_that_are_gone_are_told_of_where_an_offset_was_given(log: Log) -> None:
    log.first = 7
    for arguments, says in (([], False), (["--since", "7"], False), (["--since", "6"], True)):
        log.past = [[member(9)]]
        assert ("older records are gone" in told(*arguments)[2]) is says


def test_following_goes_on_with_what_comes_until_the_end(log: Log) -> None:
    log.past = [[member(1)]]
    log.news = [[beat(2), member(3)], [], [member(4)], KeyboardInterrupt()]
    assert told("-f") == (130, [1, 3, 4], "")
    assert log.closed == 1


def test_following_nothing_is_said_of_a_past_without_events(log: Log) -> None:
    log.news = [KeyboardInterrupt()]
    assert told("-f") == (130, [], "")


def test_a_log_that_is_lost_while_it_is_followed_is_told_from_its_start(log: Log) -> None:
    log.past = [[member(n) for n in range(30)], [member(n) for n in range(25)]]
    log.news = [Truncated("offset 3 came again"), [member(25)], KeyboardInterrupt()]
    code, offsets, said = told("-f", "-n", "1")
    assert (code, offsets) == (130, [29, *range(25), 25])
    assert "offset 3 came again; what follows is the log from its start" in said
    assert (len(log.opened), log.closed) == (2, 1)


def test_a_log_that_is_lost_while_its_past_is_read_is_the_environments_fault(log: Log) -> None:
    log.past = [Truncated("offset 3 came again")] * 3
    code, _, said = told("-f")
    assert (code, len(log.opened), log.closed) == (3, 3, 1)
    assert "the log lost records while it was read: offset 3 came again" in said


def test_snapshots_of_another_log_are_passed_over(log: Log) -> None:
    """A log made anew may have outgrown them: the reader that found one knows, and begins again."""
    log.past = [Truncated("none of this log")] * 2
    log.past.append([member(n) for n in range(30)])
    assert told("-n", "2") == (0, [28, 29], "")
    assert (len(log.opened), log.closed) == (3, 1)


def test_what_was_shown_is_not_shown_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(*_: object, **__: object) -> Iterator[TimedEvent]:
        yield member(1)
        raise Truncated("offset 3 came again")

    monkeypatch.setattr(module, "past_events", some)
    code, offsets, said = told("--since", "0")
    assert (code, offsets, len(log.opened)) == (3, [1], 1)
    assert "the log lost records" in said


def test_a_changed_number_of_partitions_ends_it(log: Log) -> None:
    log.past = [[member(1)]]
    log.partition_count_error = ValueError("there are 8 now")
    code, offsets, said = told("-f")
    assert (code, offsets) == (2, [1])
    assert "there are 8 now" in said


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--until", "5m"], 2, "the log does not reach back so far"),
        ([], 1, "records are gone"),
    ],
)
def test_a_log_with_a_hole_is_told_and_a_moment_before_it_is_the_users(
    log: Log, arguments: list[str], code: int, why: str
) -> None:
    log.past = [LogHole("records are gone")]
    found, _, said = told(*arguments)
    assert (found, why in said, log.closed) == (code, True, 1)


def test_each_line_of_json_is_an_event(log: Log) -> None:
    log.past = [[member(1), member(2)]]
    done = without_brokers("tail", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["event"], row["client_id"]) for row in rows] == [
        ("MemberJoined", "c1"),
        ("MemberJoined", "c2"),
    ]


def test_each_day_is_named_once(log: Log) -> None:
    day_ms = 86_400_000
    log.past = [[member(1), member(2), member(3, at_ms=day_ms), member(4)._replace(stamp_ms=None)]]
    done = without_brokers("tail", TZ="UTC")
    days = [line for line in done.stdout.splitlines() if "@" not in line]
    assert [day.split(" (")[0] for day in days] == ["Thursday, 1970-01-01", "Friday, 1970-01-02"]
