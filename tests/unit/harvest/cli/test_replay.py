"""`harvest replay`: what it asks for, what it says, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harvest.cli import replay as module
from harvest.cli.app import app
from harvest.config.model import ReaperConfig
from harvest.runtime.replay import Replay, Replayed


class Publisher:
    """Publishes so many rows again."""

    def __init__(self, rows: int = 2) -> None:
        self.rows = rows
        self.asked: list[tuple[Replay, bool, str | None]] = []

    def __call__(
        self,
        config: ReaperConfig,
        wanted: Replay,
        *,
        dry_run: bool,
        progress: Callable[[Replayed], None],
    ) -> Replayed:
        self.asked.append((wanted, dry_run, config.partitions.archive))
        if not self.rows:
            return Replayed()
        progress(Replayed(1, 10, 4, 4))
        return Replayed(self.rows, 30, 4, 6)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "reaper.yaml"
    path.write_text(
        "kafka: {bootstrap.servers: 'b:1'}\ndatabase: host=d\ngroup: g\nmode: range\n"
        "partitions: {archive: as-configured}\n",
        encoding="utf-8",
    )
    return str(path)


def run(config: str, *options: str) -> tuple[int, str, str]:
    given = ["--from", "1", "--to", "9", "--topic", "orders", *options]
    done = CliRunner().invoke(app, ["replay", "-c", config, *given])
    return done.exit_code, done.stdout, done.stderr


def test_what_is_committed_is_told_apart_from_the_result(
    config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publisher, other = Publisher(), str(tmp_path)
    monkeypatch.setattr(module, "publish_again", publisher)
    code, said, progress = run(config, "--into", "again", "--json")
    assert (code, progress) == (0, "1 rows are published again, up to id 4\n")
    assert json.loads(said) == {
        "dry_run": False,
        "topic": "orders",
        "into": "again",
        "rows": 2,
        "payload_bytes": 30,
        "first_id": 4,
        "last_id": 6,
    }
    assert run(config)[1] == "2 rows published again, ids 4 to 6, 30 bytes, into orders\n"
    assert "2 rows to be published again" in run(config, "--dry-run", "--archive", other)[1]
    assert publisher.asked == [
        (Replay(1, 9, "orders", "again"), False, "as-configured"),
        (Replay(1, 9, "orders", "orders"), False, "as-configured"),
        (Replay(1, 9, "orders", "orders"), True, other),
    ]


def test_an_archive_that_is_named_and_is_not_there_is_no_empty_one(
    config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publisher = Publisher()
    monkeypatch.setattr(module, "publish_again", publisher)
    missing = str(tmp_path / "missing")
    code, _, said = run(config, "--archive", missing)
    assert (code, publisher.asked) == (2, [])
    assert "--archive" in said
    assert "missing" in said


def test_no_such_rows_are_a_failure(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "publish_again", Publisher(0))
    assert run(config)[:2] == (1, "no rows of orders have ids from 1 to 9\n")
    code, said, _ = run(config, "--json")
    assert (code, json.loads(said)["rows"]) == (1, 0)
