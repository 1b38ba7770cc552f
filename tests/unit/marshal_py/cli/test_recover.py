"""`marshal topic recover`: nothing is done before somebody has said so, and it says what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marshal_py.admin.log_recovery import Recovery, Restored
from marshal_py.cli import recover as module
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked of the recovery."""
    found: list[dict[str, Any]] = []

    def recover_log(_connection: object, **given: Any) -> Recovery:
        found.append(given)
        row = Restored(STRANGER, STRANGER, 3, 70, -1, "snapshot")
        return Recovery("__marshal", 4, 2, {0: None}, 17, 1_000, [row], given["apply"], ["g"])

    monkeypatch.setattr(module, "recover_log", recover_log)
    return found


def test_without_yes_it_is_a_dry_run_that_says_so(asked: list[dict[str, Any]]) -> None:
    done = without_brokers("topic", "recover")
    assert asked == [{"apply": False, "restore_positions": True, "above": None}]
    assert "__marshal would get a new genesis in 4 partitions" in done.stdout
    assert "epochs are above 1000, and were 17 at most" in done.stdout
    assert "__marshal.snapshots would be grown from 2 to 4 partitions" in done.stdout
    assert "dry run" in done.stderr
    assert "group g is paused, and stays so: `marshal group resume` ends that" in done.stderr


def test_with_yes_it_is_done_as_it_was_asked_for(asked: list[dict[str, Any]]) -> None:
    done = without_brokers("topic", "recover", "--yes", "--no-positions", "--above", "9")
    assert asked == [{"apply": True, "restore_positions": False, "above": 9}]
    assert "__marshal has a new genesis" in done.stdout
    assert "dry run" not in done.stderr
    assert json.loads(without_brokers("topic", "recover", "--json").stdout)["done"] is False


def test_names_of_groups_and_topics_are_shown_as_they_are(asked: list[dict[str, Any]]) -> None:
    done = without_brokers("topic", "recover")
    assert done.exit_code == 0
    assert f"{STRANGER}/3" in done.stdout
    assert done.stdout.count(STRANGER) == 2
