"""`marshal top`: what a small terminal shows first, what a picture is as JSON, how it goes on."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from marshal_py.admin.event_stream import TimedEvent
from marshal_py.admin.live_world import Frame
from marshal_py.admin.world_summary import Group, Leader, Member, WorldSummary
from marshal_py.cli import top as module
from marshal_py.cli.top import render
from marshal_py.client.log_reader import Truncated
from marshal_py.errors import InvalidArgument, PartitionCountChanged
from marshal_py.protocol import events as ev
from marshal_py.protocol.world import Liveness
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""


def group(name: str, stale: int = 0) -> Group:
    return Group(name, 1, stale, stale, 0, paused=False)


def member(name: str, liveness: Liveness = "fresh") -> Member:
    return Member("g", name, f"{name}-1", 1_000, 1, liveness, 3, False, ["orders"])


def frame(**summary: Any) -> Frame:
    return Frame(1_000, "__marshal", 4, 2_500, None, {}, WorldSummary(**summary), [])


def drawn(picture: Frame, rows: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=300).print(render(picture, rows))
    return out.getvalue()


def test_what_is_stale_comes_first_and_is_counted_in_the_heading() -> None:
    text = drawn(
        frame(
            groups=[group("calm"), group("troubled", 2)],
            members=[member("fresh"), member("unknown", "unknown"), member("gone", "stale")],
        )
    )
    assert "2 stale claims" in text.splitlines()[0]
    assert text.index("troubled") < text.index("calm")
    names = [line.split()[0] for line in text.splitlines() if line.rstrip().endswith("orders")]
    assert names == ["gone", "unknown", "fresh"]
    assert "no stale claim" in drawn(frame(groups=[group("calm")]))


def test_what_does_not_fit_is_counted() -> None:
    groups = [group(f"group-{n}") for n in range(30)]
    text = drawn(frame(groups=groups), rows=13)
    shown = text.count("group-")
    assert 1 <= shown <= 10
    assert f"… and {30 - shown} groups more" in text
    assert "more" not in drawn(frame(groups=groups))


def test_members_have_the_rows_that_groups_leave() -> None:
    members = [member(f"member-{n}") for n in range(30)]
    text = drawn(frame(groups=[group("g")], members=members), rows=20)
    assert len(text.splitlines()) <= 20
    assert "more" in text


def test_only_those_that_are_led_are_told_with_their_leaders() -> None:
    leaders = [
        Leader("g", "nightly", "a", 7, "fresh", 1_500),
        Leader("g", "vacant", None, 7, None, None),
    ]
    text = drawn(frame(leaders=leaders))
    assert "nightly: a (1.5 s)" in text
    assert "vacant" not in text


def test_names_of_strangers_are_shown_as_they_are() -> None:
    text = drawn(
        frame(
            groups=[group(STRANGER)],
            members=[member(STRANGER)],
            leaders=[Leader("g", STRANGER, STRANGER, 7, "fresh", 0)],
        )
    )
    assert text.count(STRANGER) == 5, "with the instance, which is named after the client"
    picture = frame()
    picture.mismatches = [STRANGER]
    assert STRANGER in drawn(picture)


class Log:
    """The readers that `marshal top` opens, and what watching them comes to, in turn."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.watched: list[float] = []
        self.faults: dict[int, BaseException] = {}
        """What a look ends with, by its number."""
        self.picture = frame(groups=[group("calm")])
        self.known = ["calm"]
        self.asked: dict[str, Any] = {}
        """Of what pictures were asked for."""

    def open(self, *_: object) -> Log:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def require_group(self, group: str | None) -> None:
        if group not in (None, *self.known):
            raise InvalidArgument(f"no group {group!r}")

    def watch(self, seconds: float) -> None:
        self.watched.append(seconds)
        fault = self.faults.get(len(self.watched))
        if fault is not None:
            raise fault

    def frame(self) -> Frame:
        return self.picture


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(module, "open_reader", made.open)
    monkeypatch.setattr(module, "catch_up", lambda *_: made)
    monkeypatch.setattr(
        module, "LiveWorld", lambda found, **asked: made.asked.update(asked) or found
    )
    return made


def test_so_many_pictures_are_shown_with_so_much_time_between_them(log: Log) -> None:
    done = without_brokers("top", "--count", "3", "--every", "0.5", "--group", "calm")
    assert (done.exit_code, done.stdout.count("calm")) == (0, 3)
    assert log.watched == [0.0, 0.5, 0.5], "the first one at once"
    assert (log.opened, log.closed) == (1, 1)
    assert log.asked == {"topic": "__marshal", "group": "calm"}


def test_ctrl_c_is_the_end_that_was_wanted(log: Log) -> None:
    log.faults[3] = KeyboardInterrupt()
    done = without_brokers("top")
    assert (done.exit_code, done.stdout.count("calm"), done.stderr) == (0, 2, "")
    assert log.closed == 1


def test_after_a_log_was_lost_it_is_watched_anew_and_pictures_are_counted_on(log: Log) -> None:
    log.faults[2] = Truncated("offset 3 came again")
    done = without_brokers("top", "--count", "2")
    assert (done.exit_code, done.stdout.count("calm")) == (0, 2)
    assert "offset 3 came again; beginning again" in done.stderr
    assert (log.opened, log.closed, log.watched) == (2, 2, [0.0, 1.0, 0.0])


def test_a_group_that_nobody_knows_is_no_group_without_stale_claims(log: Log) -> None:
    done = without_brokers("top", "--group", "clam", "--count", "1")
    assert (done.exit_code, done.stdout, log.closed) == (2, "", 1)
    assert "no group 'clam'" in done.stderr


def test_in_a_log_made_anew_the_group_may_be_still_to_come(log: Log) -> None:
    lost = Truncated("offset 3 came again")

    def watch(seconds: float) -> None:
        log.watched.append(seconds)
        if len(log.watched) == 2:
            log.known.clear()
            raise lost

    log.watch = watch  # type: ignore[method-assign]
    done = without_brokers("top", "--group", "calm", "--count", "2")
    assert (done.exit_code, done.stdout.count("calm"), log.closed) == (0, 2, 2)


def test_what_cannot_be_watched_on_is_told_and_the_reader_closed(log: Log) -> None:
    log.faults[2] = PartitionCountChanged("there are 8 now")
    done = without_brokers("top")
    assert (done.exit_code, log.closed) == (2, 1)
    assert "there are 8 now" in done.stderr


def test_each_line_of_json_is_a_picture(log: Log) -> None:
    joined = ev.MemberJoined(
        5, seq=0, interval_ms=5, client_id="a", instance_id="i", group_id="calm"
    )
    log.picture.events.append(TimedEvent(1_000, 2, joined))
    log.picture.mismatches.append("the snapshot differs")
    log.picture.records_per_s, log.picture.moved_per_s = 2.5, {"calm": 7.0}
    done = without_brokers("top", "--json", "--count", "2")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first == second
    assert (first["time"], first["topic"]) == ("1970-01-01T00:00:01.000Z", "__marshal")
    assert (first["partitions"], first["records"], first["records_per_s"]) == (4, 2_500, 2.5)
    assert first["moved_per_s"] == {"calm": 7.0}
    assert [each["group"] for each in first["groups"]] == ["calm"]
    assert [each["client_id"] for each in first["events"]] == ["a"]
    assert first["snapshot_mismatches"] == ["the snapshot differs"]


def test_the_latest_events_are_shown_as_far_as_they_fit() -> None:
    picture = frame(groups=[group("calm")])
    for n in range(30):
        event = ev.MemberJoined(
            n, seq=0, interval_ms=5, client_id=f"c{n}", instance_id="i", group_id="calm"
        )
        picture.events.append(TimedEvent(1_000, 0, event))
    shown = re.findall(r"\bc(\d+)\b", drawn(picture, rows=30))
    assert shown == [str(n) for n in range(20, 30)]
    assert re.findall(r"\bc(\d+)\b", drawn(picture, rows=3)) == ["27", "28", "29"]


def test_a_rate_is_shown_once_it_is_known() -> None:
    picture = frame()
    assert "records/s" not in drawn(picture)
    picture.records_per_s = 1_234.56
    assert "2,500 records, 1,234.6 records/s" in drawn(picture)
