"""Times and events in words."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from marshal_py.admin.event_text import as_json, as_line, as_text, kinds_of, touches, without_epoch
from marshal_py.admin.formatting import (
    age,
    clock_time,
    count,
    iso_utc,
    liveness_style,
    parse_duration,
    parse_moment,
    parse_since,
    safe,
    week_day,
    zone,
)
from marshal_py.errors import InvalidArgument
from marshal_py.protocol import events as ev
from marshal_py.protocol.slots import slots_cell

NOW_MS = 1_795_236_920_123


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_999, "60 s"),
        (90_000, "1.5 min"),
        (3 * 3_600_000, "3.0 h"),
        (5 * 86_400_000, "5 d"),
    ],
)
def test_age(ms: int, text: str) -> None:
    assert age(ms) == text


def test_count() -> None:
    assert (count(1, "record"), count(2_345, "record")) == ("1 record", "2,345 records")


def test_iso_utc() -> None:
    assert iso_utc(NOW_MS) == "2026-11-21T04:55:20.123Z"


@pytest.mark.parametrize("tz", ["UTC", "CET-1", "NST3:30", "LINT-14"])
@pytest.mark.parametrize("ms", [253_402_300_800_000, 2**63 - 1])
def test_a_time_beyond_all_calendars_can_be_told(
    ms: int, tz: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record may pause a group until the end of all numbers; `status` is to say so."""
    monkeypatch.setenv("TZ", tz)
    time.tzset()
    try:
        assert iso_utc(ms) == "9999-12-30T00:00:00.000Z"
        assert clock_time(ms, date=True).startswith(("9999-12-29", "9999-12-30"))
        assert clock_time(ms).endswith(".000")
        assert week_day(ms).endswith(clock_time(ms, date=True)[:10])
        assert zone(ms)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_day_of_the_week_is_named() -> None:
    noon_ms = int(dt.datetime(2026, 11, 21, 12).timestamp() * 1000)
    assert week_day(noon_ms) == "Saturday, 2026-11-21"


@pytest.mark.parametrize(
    ("tz", "name"),
    [("UTC", "UTC"), ("CET-1", "CET, UTC+01:00"), ("NST3:30", "NST, UTC-03:30")],
)
def test_the_zone_of_times_is_named(tz: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", tz)
    time.tzset()
    try:
        assert zone(NOW_MS) == name
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("1500", (1500, None)),
        ("90s", (None, NOW_MS - 90_000)),
        ("1.5m", (None, NOW_MS - 90_000)),
        ("250ms", (None, NOW_MS - 250)),
        ("2026-11-21T04:55:20Z", (None, NOW_MS - 123)),
        ("2026-11-21T05:55:20+01:00", (None, NOW_MS - 123)),
    ],
)
def test_since(text: str, meaning: tuple[int | None, int | None]) -> None:
    assert parse_since(text, NOW_MS) == meaning


@pytest.mark.parametrize("text", ["14:05", "02:13", "23:59:59"])
def test_a_time_of_day_is_the_last_one_here(text: str) -> None:
    _, found_ms = parse_since(text, NOW_MS)
    assert found_ms is not None
    assert found_ms == parse_moment(text, NOW_MS)
    assert 0 <= NOW_MS - found_ms < 86_400_000
    assert f"{dt.datetime.fromtimestamp(found_ms / 1000):%H:%M:%S}".startswith(text)


@pytest.mark.parametrize("text", ["", "soon", "-5m", "25:99"])
def test_a_moment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--until"):
        parse_moment(text, NOW_MS, "--until")


@pytest.mark.parametrize("text", ["", "soon", "-5m", "25:99"])
def test_since_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="10m"):
        parse_since(text, NOW_MS)


WHO: dict[str, Any] = {"client_id": "c/[1]", "instance_id": "i", "group_id": "g"}
CELL: dict[str, Any] = {"topic": "t", "partition": 3}
EVENTS: list[ev.Event] = [
    ev.Ignored(1, "undecodable"),
    ev.Beat(1, seq=0, cells=9, entries=2, membership=1, **WHO),
    ev.Founded(1, seq=0, identity="a1", previous="b2", base=7, partitions=8, **WHO),
    ev.LevelSet(1, seq=0, level=2, previous=1, **WHO),
    ev.MemberLeft(1, why="expired", **WHO),
    ev.MemberJoined(1, seq=0, interval_ms=500, **WHO),
    ev.GroupPaused(1, seq=0, expires_at_ms=NOW_MS, **WHO),
    ev.GroupResumed(1, seq=0, **WHO),
    ev.GroupForgotten(1, seq=0, cells=4, **WHO),
    ev.Claimed(
        1, seq=0, epoch=1, interval_ms=5, previous_holder="old", previous_instance_id="j",
        previous_epoch=0, **WHO, **CELL,
    ),
    ev.Renewed(1, seq=0, epoch=1, next_offset=7, **WHO, **CELL),
    ev.Released(1, seq=0, epoch=1, next_offset=-1, **WHO, **CELL),
    ev.MessagesClaimed(1, seq=0, epoch=1, from_offset=-1, to_offset=9, **WHO, **CELL),
    ev.PositionSet(1, seq=0, next_offset=0, **WHO, **CELL),
    ev.RangeGranted(1, seq=0, start=5, end=9, granted=2, **WHO, **CELL),
    ev.RangeSplit(1, seq=0, start=5, at=7, end=9, **WHO, **CELL),
    ev.Rejected(
        1, seq=0, record="ClaimingPartition", reason="stale_version", epoch=0, version=0,
        holder="old", **WHO, **CELL,
    ),
]  # fmt: skip


def test_every_event_has_its_words() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(ev.Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_lines_and_json(event: ev.Event) -> None:
    from rich.text import Text

    line = Text.from_markup(as_line(event, 5, NOW_MS, date=True)).plain
    assert "5@1" in line
    assert as_text(event).split(" ", 1)[1] in line
    if not isinstance(event, ev.Ignored):
        assert "c/[1]" in line  # not taken for markup
    document = as_json(event, 5, NOW_MS)
    assert document["time"] == "2026-11-21T04:55:20.123Z"
    assert (document["coordinator"], document["offset"]) == (5, 1)
    assert document["event"] == type(event).__name__


def test_a_takeover_is_told_from_a_claim() -> None:
    claimed = next(event for event in EVENTS if isinstance(event, ev.Claimed))
    assert "taken over from old" in as_text(claimed)


def test_filters() -> None:
    claimed = next(event for event in EVENTS if isinstance(event, ev.Claimed))
    ignored = EVENTS[0]
    assert touches(claimed, None, None)
    assert touches(claimed, "g", "t")
    assert not touches(claimed, "g", "u")
    assert not touches(claimed, "h", "t")
    assert touches(ignored, None, None)
    assert not touches(ignored, "g", None)
    assert not touches(ignored, None, "t")


def test_whoever_takes_back_its_own_claim_takes_nothing_over() -> None:
    claimed = next(event for event in EVENTS if isinstance(event, ev.Claimed))
    assert kinds_of(claimed) == {"claimed", "takeover"}
    back = replace(claimed, previous_holder=claimed.client_id)
    assert kinds_of(back) == {"claimed"}
    assert "resumed from its earlier instance" in as_text(back)
    assert kinds_of(replace(claimed, previous_holder=None)) == {"claimed"}


def test_what_is_about_a_part_of_a_partition_is_of_that_partition() -> None:
    claimed = next(event for event in EVENTS if isinstance(event, ev.Claimed))
    slot = replace(claimed, topic=slots_cell("orders", 4, 8), partition=6)
    assert touches(slot, None, "orders", partition=4)
    assert touches(slot, None, slot.topic)
    assert not touches(slot, None, "orders", partition=6)


def test_who_lost_a_claim_has_to_do_with_it() -> None:
    claimed = next(event for event in EVENTS if isinstance(event, ev.Claimed))
    rejected = next(event for event in EVENTS if isinstance(event, ev.Rejected))
    for event in (claimed, rejected):
        assert touches(event, None, None, client="old")
        assert touches(event, None, None, client="c/[1]")
        assert not touches(event, None, None, client="other")


def test_a_line_can_be_told_whatever_is_in_it() -> None:
    from rich.text import Text

    joined = next(event for event in EVENTS if isinstance(event, ev.MemberJoined))
    nasty = replace(joined, client_id="[red]\x1b[2J")
    shown = Text.from_markup(as_line(nasty, 5, None, date=False)).plain
    assert "[red]\\x1b[2J" in shown
    assert shown.startswith("?")
    assert as_json(joined, 5, 0)["time"] == "1970-01-01T00:00:00.000Z"
    assert as_json(joined, 5, None)["time"] is None


def test_in_version_1_no_event_tells_an_epoch() -> None:
    for event in EVENTS:
        assert getattr(without_epoch(event), "epoch", -1) == -1 or not isinstance(
            event, ev.Claimed | ev.Released | ev.Renewed | ev.Rejected
        )
    claimed = next(event for event in EVENTS if isinstance(event, ev.Claimed))
    assert "epoch" not in as_text(without_epoch(claimed))


def test_messages_that_were_claimed_end_before_the_offset() -> None:
    messages = next(event for event in EVENTS if isinstance(event, ev.MessagesClaimed))
    assert "t/3 0–8 by" in as_text(messages)


def test_ranges_are_told_by_their_first_and_last_message() -> None:
    what = ("a", "i", "g", 1, "t", 0)
    granted = ev.RangeGranted(1, *what, 10, 20, 1)
    assert as_text(granted) == "range t/0 10–19 to a"
    assert as_text(replace(granted, granted=2)) == "range t/0 10–19 to a, time 2 in a row"
    split = ev.RangeSplit(1, *what, 10, 15, 20)
    assert as_text(split) == "split t/0 10–14, by a, who gives back 15–19"


@pytest.mark.parametrize(
    ("topic", "partition", "says"), [("t", 0, " of t/0"), ("t", 7, " of t/7"), (None, None, "")]
)
def test_a_rejection_names_its_cell(topic: str | None, partition: int | None, says: str) -> None:
    event = ev.Rejected(
        1, "a", "i", "g", 1, "Claiming", "stale_version", topic, partition, 4, 9, "b"
    )
    assert as_text(event) == (
        f"rejected Claiming{says} by a: the cell had changed meanwhile; b holds it, epoch 4"
    )


def test_text_from_the_log_cannot_play_tricks_on_the_terminal() -> None:
    from rich.text import Text

    shown = Text.from_markup(safe("[red]a[/] \x1b[2J\r\u202e é")).plain
    assert shown == "[red]a[/] \\x1b[2J\\r\\u202e é"


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("90s", 90_000), ("1.5m", 90_000), ("1d", 86_400_000)]
)
def test_a_duration(text: str, ms: int) -> None:
    assert parse_duration(f" {text} ", "--every") == ms


def test_a_duration_that_is_none_is_refused_with_its_option() -> None:
    with pytest.raises(InvalidArgument, match="--every '10' is no duration"):
        parse_duration("10", "--every")


def test_a_duration_that_reaches_back_too_far_is_the_beginning() -> None:
    assert parse_moment("99999d", NOW_MS) == 0


def test_two_days_are_told_in_days_and_less_in_hours() -> None:
    assert (age(2 * 86_400_000 - 1), age(2 * 86_400_000)) == ("48 h", "2 d")
    assert count(0, "claim") == "0 claims"


def test_the_dead_are_red_and_who_is_not_known_has_no_colour() -> None:
    told = [liveness_style(each) for each in ("fresh", "unknown", "stale", None)]
    assert told == ["[green]fresh[/]", "[yellow]unknown[/]", "[red]stale[/]", ""]


def test_milliseconds_have_three_digits() -> None:
    assert clock_time(NOW_MS - 120).endswith(":20.003")
    day, at = clock_time(NOW_MS, date=True).split()
    assert (len(day), at) == (10, clock_time(NOW_MS))
