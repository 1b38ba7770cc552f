"""`marshal groups` and `marshal members`: what is red, what is noted, what is left out."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from rich.console import Console

from marshal_py.admin.world_summary import Group, Member, WorldSummary
from marshal_py.cli import groups as module
from marshal_py.cli.groups import group_table, member_table
from marshal_py.protocol.messages import LEVEL
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""


def lines(rows: list[Group] | list[Member], moved: Mapping[str, float] | None = None) -> list[str]:
    out = io.StringIO()
    made = (
        member_table([row for row in rows if isinstance(row, Member)])
        if isinstance(rows[0], Member)
        else group_table([row for row in rows if isinstance(row, Group)], moved)
    )
    Console(file=out, width=300).print(made)
    return out.getvalue().splitlines()[1:]


def test_a_group_is_told_with_what_is_not_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    usual = Group("g", 3, 5, 2, 1, paused=False, topics=4, leaders=6)
    assert lines([usual])[0].split() == ["g", "3", "4", "6", "5", "2", "1"]
    odd = Group(STRANGER, 0, 0, 0, 0, paused=True, level=LEVEL + 1, open_ranges=2)
    assert lines([odd])[0].startswith(STRANGER)
    assert lines([odd])[0].rstrip().endswith(f"level {LEVEL + 1}, 2 open ranges, paused")
    assert (
        "paused until 2026-11-18 11:06 (UTC)"
        in lines([Group("g", 0, 0, 0, 0, paused=True, paused_until_ms=1_795_000_000_000)])[0]
    )


def test_how_fast_positions_move_is_told_of_each_group_that_has_some() -> None:
    found = lines([Group("a", 0, 0, 0, 0, False), Group("b", 0, 0, 0, 0, False)], {"b": 1_500.4})
    assert [line.split()[-1] for line in found] == ["0", "1,500"]


def test_a_member_is_told_with_how_long_it_is_silent_at_least() -> None:
    member = Member("g", "a", "a-1", 5_000, 2, "stale", 12_000, True, ["orders", "bills"])
    assert lines([member])[0].split() == [
        "a", "g", "a-1", "2", "5.0", "s", ">12", "s", "stale", "orders,", "bills",
    ]  # fmt: skip
    exact = Member(STRANGER, STRANGER, STRANGER, 5_000, 2, "fresh", 12_000, False, [STRANGER])
    assert lines([exact])[0].count(STRANGER) == 4
    assert ">" not in lines([exact])[0]


class Log:
    """What `marshal groups` and `marshal members` read, and what is counted there."""

    def __init__(self) -> None:
        self.view = SimpleNamespace(
            is_text=False, require_group=lambda _: None, explain=lambda: "By timestamps."
        )
        self.summary = WorldSummary(
            [Group("g", 3, 5, 2, 1, paused=False)],
            [Member("g", "a", "a-1", 5_000, 2, "stale", 12_000, True, ["orders"])],
        )


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(module, "read_world", lambda *_, **__: made.view)
    monkeypatch.setattr(module, "summarize", lambda *_, **__: made.summary)
    return made


@pytest.mark.parametrize(
    ("command", "first", "counted"), [("groups", "g", "1 group."), ("members", "a", "1 member.")]
)
def test_what_there_is_is_told_with_how_silence_was_measured(
    log: Log, command: str, first: str, counted: str
) -> None:
    done = without_brokers(command)
    assert done.stdout.splitlines()[1].split()[0] == first
    assert f"{counted} By timestamps." in done.stderr
    (row,) = json.loads(without_brokers(command, "--json").stdout)
    wanted = {"groups": ("stale", 2), "members": ("liveness", "stale")}[command]
    assert (wanted[0], wanted[1]) in row.items()


def test_that_there_is_nobody_is_said_and_is_an_empty_list(log: Log) -> None:
    log.summary = WorldSummary()
    for command, said in (
        (["groups"], "no groups yet"),
        (["members"], "no members yet"),
        (["members", "--group", "g"], "no members in group g"),
    ):
        done = without_brokers(*command)
        assert (done.exit_code, done.stdout) == (0, "")
        assert said in done.stderr
        assert json.loads(without_brokers(*command, "--json").stdout) == []


def test_of_version_1_it_is_said_that_it_knows_no_members(log: Log) -> None:
    log.view.is_text = True
    log.summary = WorldSummary()
    done = without_brokers("members", "--wire", "text")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "version 1 knows no members" in done.stderr
