"""`harvest switch`: what it says that it did, or would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli import switch as module
from harvest.cli.app import app
from harvest.config.model import ReaperConfig
from harvest.core.source import Registration
from harvest.runtime.registration import Switch

BEFORE = Registration("cluster", "__marshal", "old", "wal")
AFTER = Registration("cluster", "__marshal", "new", "range")


class Switching:
    """Does what it was made with."""

    def __init__(self, done: Switch) -> None:
        self.done = done
        self.asked: list[tuple[str, str | None, bool]] = []

    def __call__(self, config: ReaperConfig, *, old: ReaperConfig | None, dry_run: bool) -> Switch:
        self.asked.append((config.group, None if old is None else old.group, dry_run))
        return self.done


def configuration(folder: Path, group: str) -> str:
    path = folder / f"{group}.yaml"
    path.write_text(
        f"kafka: {{bootstrap.servers: 'b:1'}}\ndatabase: host=d\ngroup: {group}\n",
        encoding="utf-8",
    )
    return str(path)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["switch", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_switch_says_what_became_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Switch(BEFORE, AFTER, deleted=3, waiting=5, last_id=0, published=7)
    switching: Any = Switching(done)
    monkeypatch.setattr(module, "switch_to", switching)
    new, old = configuration(tmp_path, "new"), configuration(tmp_path, "old")
    assert run("-c", new, "--old", old).splitlines() == [
        "from mode wal, group old, topic __marshal",
        "to   mode range, group new, topic __marshal",
        "7 rows were published from the log",
        "3 published rows were deleted",
        "it goes on after id 0",
        "5 rows wait to be published",
    ]
    said = run("-c", new, "--dry-run")
    assert "7 rows would be published" in said
    assert "3 published rows would be deleted" in said
    report = json.loads(run("-c", new, "--dry-run", "--json"))
    assert report["dry_run"] is True
    assert (report["before"]["group"], report["after"]["group"]) == ("old", "new")
    assert (report["deleted"], report["published"], report["waiting"]) == (3, 7, 5)
    assert switching.asked == [("new", "old", False), ("new", None, True), ("new", None, True)]


def test_what_is_registered_already_is_no_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switching: Any = Switching(Switch(AFTER, AFTER))
    monkeypatch.setattr(module, "switch_to", switching)
    said = run("-c", configuration(tmp_path, "new"))
    assert said == "it is registered already: nothing to do\n"
