"""`marshal doctor`: which checks are exit code 1, and what is shown of each."""

from __future__ import annotations

import json

import pytest

from marshal_py.admin.cluster_checks import Check, Level
from marshal_py.cli import doctor as module
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""


def give(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    monkeypatch.setattr(module, "gather_cluster_facts", lambda *_, **__: None)
    monkeypatch.setattr(module, "check_cluster", lambda _: list(checks))


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize(
    ("level", "code"), [("ok", 0), ("note", 0), ("skipped", 0), ("warning", 1), ("error", 1)]
)
def test_warnings_and_errors_are_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, level: Level, code: int, more: list[str]
) -> None:
    give(monkeypatch, Check("acks", level, "topic", "said"))
    done = without_brokers("doctor", *more)
    assert done.exit_code == code
    if more:
        assert json.loads(done.stdout)["ok"] == (code == 0)


def test_what_is_wrong_is_told_with_why_and_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(
        monkeypatch,
        Check("acks", "ok", "all", "is well"),
        Check("rights", "skipped", "topic", "not seen"),
        Check("replicas", "error", STRANGER, STRANGER, STRANGER, STRANGER),
    )
    text = without_brokers("doctor").stdout
    assert "is well" not in text
    assert f"error    replicas of {STRANGER}: {STRANGER}" in text
    assert f"fix: {STRANGER}" in text
    assert text.count(STRANGER) == 4
    assert "3 checks, 1 well; 1 not checked: 1 error" in text
    assert "is well" in without_brokers("doctor", "--all").stdout


def test_it_watches_for_as_long_as_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    give(monkeypatch)
    monkeypatch.setattr(module, "gather_cluster_facts", lambda _, **given: asked.append(given))
    without_brokers("doctor", "--watch", "0.5")
    without_brokers("doctor", "--watch", "0", "--probe")
    without_brokers("doctor")
    assert asked == [
        {"watch_s": 0.5, "probe": False},
        {"watch_s": 0.0, "probe": True},
        {"watch_s": 3.0, "probe": False},
    ]


def test_where_nothing_is_wrong_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, Check("acks", "ok", "all", "is well"))
    text = without_brokers("doctor").stdout
    assert "1 check, 1 well: nothing endangers the guarantees" in text
