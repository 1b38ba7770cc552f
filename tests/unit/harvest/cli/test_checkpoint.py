"""`harvest checkpoint`: what it shows of checkpoints, and what it asks to be changed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli import checkpoint
from harvest.cli.app import app
from harvest.core.range_checkpoint import Position
from harvest.core.source import Source
from harvest.core.wal_position import WalPosition
from harvest.runtime.checkpoint_changes import Acceptance

BASE = "kafka: {bootstrap.servers: 'b:1'}\ndatabase: host=d\ngroup: g\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """In range mode, of two shards."""
    path = tmp_path / "reaper.yaml"
    path.write_text(f"{BASE}mode: range\nshards: 2\n", encoding="utf-8")
    return path


def run(config: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["checkpoint", *arguments, "-c", str(config)])
    assert done.exit_code == code, done.output
    return done.output


def test_positions_are_shown_with_their_gaps(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Position(4, 0, 2, 90, ((7, 8), (20, 20))), None]
    monkeypatch.setattr(
        checkpoint, "Checkpoints", lambda _: SimpleNamespace(read=found.__getitem__)
    )
    assert run(config, "show").splitlines() == [
        "shard 0 of 2: up to id 90, 2 gaps from id 7, epoch 4",
        "shard 1: none yet",
    ]
    assert json.loads(run(config, "show", "--json")) == [
        {
            "shard": 0,
            "shards": 2,
            "last_id": 90,
            "low_id": 7,
            "gaps": [[7, 8], [20, 20]],
            "epoch": 4,
        },
        {"shard": 1, "last_id": None},
    ]


class Slot:
    """Of a server whose log ends at 0x120."""

    def __init__(self) -> None:
        self.closed = False
        self.slot = SimpleNamespace(log_end=lambda: 0x120)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("lsn", "behind"), [(0x100, 0x20), (0x130, 0)])
def test_a_place_in_the_log_is_shown_with_what_is_behind_it(
    config: Path, monkeypatch: pytest.MonkeyPatch, lsn: int, behind: int
) -> None:
    config.write_text(f"{BASE}mode: wal\n", encoding="utf-8")
    source = Slot()
    place = WalPosition(4, "server", 3, lsn, part_lsn=lsn, part_rows=6)
    monkeypatch.setattr(checkpoint, "make_wal_source", lambda _: source)
    monkeypatch.setattr(checkpoint, "Checkpoints", lambda _: SimpleNamespace(wal=lambda: place))
    assert json.loads(run(config, "show", "--json")) == {
        "lsn": f"0/{lsn:X}",
        "part_rows": 6,
        "timeline": 3,
        "epoch": 4,
        "behind_bytes": behind,
    }
    assert source.closed
    assert run(config, "show") == (
        f"up to 0/{lsn:X}, and 6 rows of the next transaction, {behind} bytes before the end of "
        "the log, timeline 3, epoch 4\n"
    )


def test_no_place_in_the_log_is_none_yet(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(f"{BASE}mode: wal\n", encoding="utf-8")
    monkeypatch.setattr(checkpoint, "Checkpoints", lambda _: SimpleNamespace(wal=lambda: None))
    assert run(config, "show") == "none yet\n"
    assert json.loads(run(config, "show", "--json")) == {
        "lsn": None,
        "part_rows": 0,
        "timeline": None,
        "epoch": None,
        "behind_bytes": None,
    }


def test_each_copy_that_was_restored_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [Position(0, 0, 2, 90), Position(0, 1, 2, 70)]
    monkeypatch.setattr(checkpoint, "restore_checkpoints", lambda _: copies)
    assert run(config, "restore") == (
        "shard 0: goes on after id 90\nshard 1: goes on after id 70\n"
    )


@pytest.mark.parametrize(("options", "after"), [([], None), (["--after", "0"], 0)])
def test_a_reset_goes_where_it_was_told_to(
    config: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], after: int | None
) -> None:
    asked: list[int | None] = []

    def reset(_: object, after: int | None) -> int:
        asked.append(after)
        return 41

    monkeypatch.setattr(checkpoint, "reset_checkpoints", reset)
    assert run(config, "reset", *options) == "outbox: goes on after id 41\n"
    assert asked == [after]


@pytest.mark.parametrize("command", ["restore", "reset"])
def test_positions_are_those_of_range_mode(config: Path, command: str) -> None:
    config.write_text(BASE, encoding="utf-8")
    assert "has mode: mark; this is for mode: range" in run(config, command, code=2)


class Accept:
    """Finds the difference that it was made with."""

    def __init__(self, difference: str | None) -> None:
        self.found = Acceptance(None, Source(server="now"), difference)
        self.dry_runs: list[bool] = []

    def __call__(self, _: object, *, dry_run: bool) -> Acceptance:
        self.dry_runs.append(dry_run)
        return self.found


@pytest.mark.parametrize(
    ("difference", "options", "code", "said"),
    [
        (None, [], 0, "the database is the one that it was\naccepted as it is now\n"),
        (None, ["--dry-run"], 0, "the database is the one that it was\n"),
        ("another server", [], 0, "another server\naccepted as it is now\n"),
        ("another server", ["--dry-run"], 1, "another server\n"),
    ],
)
def test_what_differs_fails_a_dry_run_and_is_accepted_otherwise(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    difference: str | None,
    options: list[str],
    code: int,
    said: str,
) -> None:
    accept: Any = Accept(difference)
    monkeypatch.setattr(checkpoint, "accept_database", accept)
    assert run(config, "accept", *options, code=code) == said
    report = json.loads(run(config, "accept", "--json", *options, code=code))
    assert (report["difference"], report["before"]) == (difference, None)
    assert report["now"]["server"] == "now"
    assert report["dry_run"] is bool(options)
    assert accept.dry_runs == [bool(options)] * 2
