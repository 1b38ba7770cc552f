"""`marshal claims`: what it prints of the claims that it is told of."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from marshal_py.admin.claim_list import ClaimRow
from marshal_py.cli import claims as module
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""

ROW = ClaimRow(
    "g", "orders", 3, "a", "a-1", 7, 100, 60, -1, 1_000, "stale", 3_000, False, "observed",
    0, "", "orders", 3, None, None,
)  # fmt: skip
RANGE = replace(ROW, topic="orders@200", source_topic="orders", next_offset=210, end=300, granted=3)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> list[ClaimRow]:
    """The claims there are: a test changes them."""
    found = [ROW]
    view = SimpleNamespace(require_group=lambda _: None, explain=lambda: "By timestamps.")
    monkeypatch.setattr(module, "read_world", lambda *_, **__: view)
    monkeypatch.setattr(module, "claim_rows", lambda *_, **__: found)
    return found


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_offsets_that_are_not_known_are_a_dash() -> None:
    done = without_brokers("claims")
    assert cells(done.stdout) == [["g", "orders", "3", "a", "7", "60", "–", "stale", "3.0", "s"]]
    assert "1 claim. By timestamps." in done.stderr


def test_silence_is_at_least_so_long_where_that_is_all_that_is_known(
    rows: list[ClaimRow],
) -> None:
    rows[:] = [replace(ROW, silence_at_least=True)]
    assert ">3.0 s" in without_brokers("claims").stdout


def test_an_open_range_is_told_with_its_messages_and_its_grants(rows: list[ClaimRow]) -> None:
    rows[:] = [RANGE, replace(RANGE, granted=1)]
    text = without_brokers("claims").stdout
    assert "3: 200–299, 3 times" in text
    assert "1 times" not in text


def test_nothing_to_show_is_said_and_is_an_empty_list(rows: list[ClaimRow]) -> None:
    rows.clear()
    assert "no claims yet" in without_brokers("claims").stderr
    assert "no claims match" in without_brokers("claims", "--held").stderr
    assert json.loads(without_brokers("claims", "--json").stdout) == []


def test_names_of_strangers_are_shown_as_they_are(rows: list[ClaimRow]) -> None:
    rows[:] = [replace(ROW, group=STRANGER, topic=STRANGER, holder=STRANGER)]
    assert without_brokers("claims").stdout.count(STRANGER) == 3
