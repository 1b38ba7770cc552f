"""`marshal topic trim`: nothing goes before somebody has said so."""

from __future__ import annotations

import json

import pytest

from marshal_py.admin.log_trimming import Cut
from marshal_py.cli import trim as module
from tests.support.marshal_command import without_brokers

CUTS = [Cut(0, 10, 100, 61, 61, "verified by replay"), Cut(1, 5, 9, 5, None, "none")]


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[list[Cut]]:
    """What was deleted; nothing is."""
    found: list[list[Cut]] = []
    monkeypatch.setattr(module, "admin_client", lambda _: None)
    monkeypatch.setattr(module, "plan_cuts", lambda *_: CUTS)
    monkeypatch.setattr(
        module, "delete_records", lambda _admin, _connection, cuts: found.append(cuts)
    )
    return found


def test_without_yes_it_only_says_what_would_go(deleted: list[list[Cut]]) -> None:
    done = without_brokers("topic", "trim")
    assert done.exit_code == 0
    assert deleted == []
    assert "WOULD DELETE" in done.stdout
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["0", "10", "100", "61", "51", "verified", "by", "replay"],
        ["1", "5", "9", "–", "0", "none"],
    ]
    assert "dry run: 51 records would go; add --yes to delete them" in done.stderr
    document = json.loads(without_brokers("topic", "trim", "--json").stdout)
    assert (document["deleted"], document["records"]) == (False, 51)
    assert [p["records"] for p in document["partitions"]] == [51, 0]
    assert deleted == []


def test_with_yes_it_deletes_what_was_planned(deleted: list[list[Cut]]) -> None:
    done = without_brokers("topic", "trim", "--yes")
    assert deleted == [CUTS]
    assert "WOULD" not in done.stdout
    assert "dry run" not in done.stderr
