"""`marshal status`: what it prints of what it is told, and how it ends."""

from __future__ import annotations

import json

import pytest

from marshal_py.admin.status import FailingPartition, Pause, SnapshotAge, Status
from marshal_py.admin.world_summary import Group, Leader, Member
from marshal_py.cli import status as module
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""


def shown(monkeypatch: pytest.MonkeyPatch, status: Status, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(module, "read_status", lambda *_: status)
    done = without_brokers("status", *arguments)
    return done.exit_code, done.stdout


def status(**more: object) -> Status:
    found = Status("__marshal", 2, 1_234, [0, 0], [617, 617], ["a", "a"], [5, 5], 2_000, 0)
    for name, value in more.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("attention", "arguments", "code"),
    [([], ["--check"], 0), (["look"], [], 0), (["look"], ["--check"], 1),
     (["look"], ["--check", "--json"], 1)],
)  # fmt: skip
def test_only_a_check_that_finds_something_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, attention: list[str], arguments: list[str], code: int
) -> None:
    found, text = shown(monkeypatch, status(attention=attention), *arguments)
    assert found == code
    assert ("look" in text) == bool(attention)


def test_the_log_is_told_in_a_line_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = shown(monkeypatch, status())
    assert "__marshal  2 partitions, 1,234 records, newest 2.0 s ago" in text
    assert "identity a, epochs from 5" in text
    assert "no snapshots; a start replays 1,234 records" in text
    _, text = shown(monkeypatch, status(newest_record_ms_ago=None, identities=["a", "b"]))
    assert "empty" in text
    assert "2 identities, one for each coordination partition" in text


def test_what_snapshots_there_are_is_told_of_each_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots = [
        SnapshotAge(0, 500, 117, 60_000, 4_096, STRANGER),
        SnapshotAge(1, None, 617, None, None, None),
    ]
    _, text = shown(monkeypatch, status(snapshots=snapshots))
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "none", "617"] in lines
    assert ["0", "500", "117", "1.0", "min", "4,096", *STRANGER.split()] in lines


def test_names_of_strangers_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = status(
        groups=[Group(STRANGER, 1, 1, 0, 0, paused=True)],
        members=[Member(STRANGER, STRANGER, STRANGER, 1_000, 1, "fresh", 3, True, [STRANGER])],
        leaders=[Leader(STRANGER, STRANGER, STRANGER, 7, "fresh", 5)],
        pauses=[Pause(STRANGER, 3, "2026-11-25T20:00:00Z", 0, expired=True)],
        failing=[FailingPartition(STRANGER, STRANGER, 0, STRANGER, 1, 0, 0, 0, 8, STRANGER)],
        attention=[STRANGER],
    )
    code, text = shown(monkeypatch, found)
    assert code == 0
    assert text.count(STRANGER) == 1 + 4 + 3 + 1 + 4 + 1
    assert f"paused {STRANGER}, expired 2026-11-25T20:00:00Z" in text
    assert json.loads(shown(monkeypatch, found, "--json")[1])["pauses"][0]["group"] == STRANGER
