"""`marshal verify`: which findings are exit code 1, and which come first."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from marshal_py.admin.log_verification import Verdict
from marshal_py.cli import verify as module
from marshal_py.protocol.history.verifier import Finding
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""

LATE = Finding(
    "warning", "late", 0, 7, 1_000, "came late", "its process was paused", "g", "client-a"
)
WRONG = Finding(
    "error", "foreign", 1, 9, 5_000, f"{STRANGER} did it", "two of one name", STRANGER,
    "client-b", STRANGER, 3,
)  # fmt: skip


def give(monkeypatch: pytest.MonkeyPatch, *findings: Finding, ok: bool = True) -> None:
    found = Verdict("__marshal", 2, 1_500, 3, 0.25, ok, list(findings))
    monkeypatch.setattr(module, "verify_log", lambda *_: found)


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize(
    ("finding", "strict", "code"),
    [(None, True, 0), (LATE, False, 0), (LATE, True, 1), (WRONG, False, 1)],
)
def test_errors_are_exit_code_1_and_warnings_only_if_it_is_strict(
    monkeypatch: pytest.MonkeyPatch,
    finding: Finding | None,
    strict: bool,
    code: int,
    more: list[str],
) -> None:
    give(monkeypatch, *([finding] if finding else []), ok=finding is not WRONG)
    done = without_brokers("verify", *(["--strict"] if strict else []), *more)
    assert done.exit_code == code


def test_errors_come_before_warnings_each_with_its_meaning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(monkeypatch, *[LATE] * 60, WRONG, ok=False)
    done = without_brokers("verify", TZ="UTC")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1][:2] == ["error", "1@9"]
    assert f"{STRANGER}/3 of {STRANGER}: client-b: {STRANGER} did it" in done.stdout
    assert "client-a: came late" in done.stdout
    assert "1,500 records in 2 partitions replayed, 3 snapshots compared, in 0.2 s" in done.stdout
    assert "1 error, 60 warnings" in done.stdout
    assert "and 11 more; --json shows all" in done.stderr
    assert "late: its process was paused" in done.stderr


def test_json_has_them_all_with_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, *[LATE] * 60)
    findings = json.loads(without_brokers("verify", "--json").stdout)["findings"]
    assert len(findings) == 60
    assert findings[0]["time"] == "1970-01-01T00:00:01.000Z"


def test_a_log_in_which_nothing_is_wrong_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch)
    assert "nothing is wrong" in without_brokers("verify").stdout


@pytest.mark.parametrize(
    ("client_id", "shown"),
    [
        ("client-a", "client-a came late"),
        ("client", "client: client-a came late"),
        ("a", "a: client-a came late"),
        ("client-a.", "client-a.: client-a came late"),
    ],
)
def test_a_client_is_named_once(
    monkeypatch: pytest.MonkeyPatch, client_id: str, shown: str
) -> None:
    give(monkeypatch, replace(LATE, what="client-a came late", client_id=client_id))
    done = without_brokers("verify", TZ="UTC")
    assert f" {shown}" in done.stdout
