"""`harvest partitions`, `shards` and `orphans`: what they ask for, say, and end with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli import range_mode as module
from harvest.cli.app import app
from harvest.config.model import PartitionsConfig, ReaperConfig
from harvest.maintenance.partitions import Partition, PartitionPlan

BASE = "kafka: {bootstrap.servers: 'b:1'}\ndatabase: host=d\ngroup: g\n"
OLD = Partition("outbox_p0", 0, 1000, 9.0)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "reaper.yaml"
    path.write_text(
        f"{BASE}mode: range\npartitions: {{ahead: 2, retain_hours: 5}}\n", encoding="utf-8"
    )
    return path


def run(command: str, config: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [command, "-c", str(config), *arguments])
    assert done.exit_code == code, done.output
    return done.output


class Upkeep:
    """Does what it was made with, and notes what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, done: PartitionPlan) -> None:
        self.done = done
        self.asked: list[tuple[PartitionsConfig, bool]] = []
        self.looked_at: list[ReaperConfig] = []
        """Of which it was made sure that the database is the one whose rows were published."""
        monkeypatch.setattr(module, "maintain_partitions", self)
        monkeypatch.setattr(module, "check_source", self.looked_at.append)
        monkeypatch.setattr(module, "make_archive", self._archive)

    def __call__(self, config: ReaperConfig, *, dry_run: bool) -> PartitionPlan:
        self.asked.append((config.partitions, dry_run))
        assert self.looked_at[-1:] == [config]
        assert len(self.looked_at) == len(self.asked)
        return self.done

    def _archive(self, config: ReaperConfig) -> Any:
        folder = config.partitions.archive
        if folder is None:
            return None
        return SimpleNamespace(path=lambda partition: f"{folder}/{partition.name}.parquet")


def test_options_go_before_what_is_configured(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep = Upkeep(monkeypatch, PartitionPlan([], [], []))
    assert run("partitions", config) == "nothing to do\n"
    options = ["--create-ahead", "7", "--retain-hours", "0", "--archive", "files", "--dry-run"]
    run("partitions", config, *options)
    (as_configured, first), (as_said, second) = upkeep.asked
    assert (as_configured.ahead, as_configured.retain_hours, as_configured.archive) == (2, 5, None)
    assert (as_said.ahead, as_said.retain_hours, as_said.archive) == (7, 0, "files")
    assert (first, second) == (False, True)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--retain-hours", "nan", "retain_hours"),  # which is above no bound, and below none
        ("--create-ahead", "1001", "ahead"),
        ("--archive", "", "archive"),
    ],
)
def test_options_have_the_bounds_of_what_is_configured(
    config: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str, why: str
) -> None:
    upkeep = Upkeep(monkeypatch, PartitionPlan([], [], []))
    assert why in run("partitions", config, option, value, code=2).replace("-", "_")
    assert not upkeep.asked


def test_what_was_done_is_said_with_the_ids(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = OLD._replace(name="outbox_p1000", low=1000, high=2000)
    Upkeep(monkeypatch, PartitionPlan([(2000, 3000)], [OLD], [(newer, "a gap is open")], swept=4))
    assert run("partitions", config).splitlines() == [
        "created  ids 2000 to 2999",
        "dropped  outbox_p0, ids 0 to 999",
        "kept     outbox_p1000, ids 1000 to 1999: a gap is open",
        "deleted  4 published rows of no partition",
    ]
    assert run("partitions", config, "--dry-run", "--archive", "files").splitlines()[:2] == [
        "create   ids 2000 to 2999",
        "drop     outbox_p0, ids 0 to 999, archived in files/outbox_p0.parquet",
    ]
    assert json.loads(run("partitions", config, "--json", "--archive", "files")) == {
        "dry_run": False,
        "created": [{"low": 2000, "high": 3000}],
        "dropped": [
            {"name": "outbox_p0", "low": 0, "high": 1000, "archive": "files/outbox_p0.parquet"}
        ],
        "unarchived": [],
        "swept_rows": 4,
        "kept": [{"name": "outbox_p1000", "low": 1000, "high": 2000, "why": "a gap is open"}],
    }


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_cannot_be_archived_stays_and_is_a_failure(
    config: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    Upkeep(monkeypatch, PartitionPlan([], [], [], unarchived=[(OLD, "the disk is full")]))
    said = run("partitions", config, *options, code=1)
    assert "the disk is full" in said
    assert "nothing to do" not in said


def test_a_mode_without_partitions_is_refused(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep = Upkeep(monkeypatch, PartitionPlan([], [], []))
    config.write_text(f"{BASE}mode: wal\nwal: {{purge: partitions}}\n", encoding="utf-8")
    run("partitions", config)
    config.write_text(BASE, encoding="utf-8")
    assert "this is for mode: range" in run("partitions", config, code=2)
    assert len(upkeep.asked) == 1


def test_shards_say_how_many_there_were_and_are(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def change(_: object, number: int) -> int:
        asked.append(number)
        return 2

    monkeypatch.setattr(module, "change_shards", change)
    assert run("shards", config, "4") == "outbox: 2 shards before, 4 now\n"
    assert json.loads(run("shards", config, "4", "--json")) == {"before": 2, "shards": 4}
    run("shards", config, "0", code=2)
    assert asked == [4, 4]


class Orphans:
    """Has three of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, float, bool]] = []
        self.closed = 0

    def primary(self, database: str, ids: str) -> Any:
        self.where = (database, ids)
        return SimpleNamespace(close=self._close)

    def archive(
        self, database: str, table: object, _: object, older_than_s: float, *, dry_run: bool
    ) -> int:
        self.asked.append((database, str(table), older_than_s, dry_run))
        return 3

    def _close(self) -> None:
        self.closed += 1


def test_orphans_are_older_than_so_many_hours(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no primary" in run("orphans", config, code=2)
    config.write_text(
        f"{BASE}mode: range\nprimary: {{database: host=primary, ids: ids}}\n", encoding="utf-8"
    )
    orphans = Orphans()
    monkeypatch.setattr(module, "PostgresIds", orphans.primary)
    monkeypatch.setattr(module, "archive_orphans", orphans.archive)
    assert run("orphans", config) == "3 orphans went to outbox_orphans\n"
    options = ["--older-than-hours", "0.5", "--dry-run"]
    assert run("orphans", config, *options) == "3 orphans would go to outbox_orphans\n"
    assert json.loads(run("orphans", config, *options, "--json")) == {"orphans": 3, "dry_run": True}
    assert orphans.where == ("host=primary", "ids")
    assert orphans.asked == [
        ("host=d", "outbox", 86_400.0, False),
        ("host=d", "outbox", 1_800.0, True),
        ("host=d", "outbox", 1_800.0, True),
    ]
    assert orphans.closed == 3
