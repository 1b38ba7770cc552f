"""`harvest pause` and `harvest resume`: for how long, of which group, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli import pause
from harvest.cli.app import app


class Admin:
    """A group whose leaders end, or do not."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.asked: list[Any] = []
        self.held: dict[str, str] = {}
        self.was_paused = True

    def __call__(self, settings: dict[str, Any], group: str, **options: Any) -> Admin:
        self.made.append((settings, group, options))
        self.group_id = group
        return self

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.append("closed")

    def pause(self, for_s: float) -> int:
        self.asked.append(("pause", for_s))
        return 1_700_000_000_999

    def await_released(self, timeout_s: float) -> dict[str, str]:
        self.asked.append(("wait", timeout_s))
        return self.held

    def resume(self) -> bool:
        return self.was_paused


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(pause, "GroupAdmin", made)
    return made


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "reaper.yaml"
    path.write_text(
        "kafka: {bootstrap.servers: 'b:1', linger.ms: 5}\ndatabase: host=d\ngroup: shop\n"
        "coordination: {topic: elsewhere}\n",
        encoding="utf-8",
    )
    return str(path)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_a_pause_lasts_as_long_as_was_said(admin: Admin, config: str) -> None:
    assert run("pause", "-c", config, "--for", "2h", "--wait", "4") == (
        0,
        "shop is paused until 2023-11-14T22:13:20+00:00\n",
        "",
    )
    assert admin.asked == [("pause", 7200.0), ("wait", 4.0), "closed"]
    options = {"topic": "elsewhere", "client_id": "harvest-operator"}
    assert admin.made == [({"bootstrap.servers": "b:1"}, "shop", options)]
    run("pause", "-c", config)
    assert admin.asked[3:] == [("pause", 900.0), ("wait", 30.0), "closed"]


def test_who_still_leads_is_named_and_makes_it_a_failure(admin: Admin, config: str) -> None:
    admin.held = {"one": "b", "two": "a", "three": "b"}
    code, _, said = run("pause", "-c", config)
    assert (code, said) == (1, "still leading: a, b\n")
    code, text, said = run("pause", "-c", config, "--json")
    assert (code, said) == (1, "")
    assert json.loads(text) == {
        "group": "shop",
        "paused_until": "2023-11-14T22:13:20+00:00",
        "released": False,
    }


def test_who_does_not_wait_is_told_and_it_is_no_failure(admin: Admin, config: str) -> None:
    admin.held = {"one": "a"}
    code, _, said = run("pause", "-c", config, "--wait", "0")
    assert (code, said) == (0, "still leading: a\n")


def test_a_duration_that_is_none_pauses_nothing(admin: Admin, config: str) -> None:
    code, _, said = run("pause", "-c", config, "--for", "soon")
    assert code == 2
    assert "--for is 'soon'" in said
    assert admin.made == []


def test_a_resume_says_whether_there_was_a_pause(admin: Admin, config: str) -> None:
    assert run("resume", "-c", config)[:2] == (0, "shop goes on\n")
    assert json.loads(run("resume", "-c", config, "--json")[1]) == {
        "group": "shop",
        "was_paused": True,
    }
    admin.was_paused = False
    assert run("resume", "-c", config)[:2] == (0, "shop was not paused\n")
    assert json.loads(run("resume", "-c", config, "--json")[1])["was_paused"] is False
