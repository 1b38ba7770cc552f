"""`marshal top`: what a small terminal shows first, and what a picture is as JSON."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from marshal_py.admin.live_world import Frame
from marshal_py.admin.world_summary import Group, Leader, Member, WorldSummary
from marshal_py.cli.top import render
from marshal_py.protocol.world import Liveness

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
