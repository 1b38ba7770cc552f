"""`harvest check`, and `harvest reap --dry-run`: what is said, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli import check
from harvest.cli.app import app
from harvest.cli.outbox import Outbox
from harvest.core.interfaces.mark_store import Finding
from harvest.core.range_checkpoint import Position
from harvest.core.table_name import TableName
from harvest.databases.registry import database
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.errors import SinkUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher

OUTBOX = TableName(("outbox",))


class Ids:
    """The table of ids of a primary, which is not there."""

    def __init__(self) -> None:
        self.is_closed = False

    def check(self) -> list[Finding]:
        return [Finding("ids", "error", "outbox_ids does not exist in the primary")]

    def close(self) -> None:
        self.is_closed = True


class World:
    """An outbox in a file, and a Kafka of which everything is known beforehand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = f"sqlite:///{folder}/shop.db"
        self.config = folder / "reaper.yaml"
        self.kafka = [Finding("kafka", "ok", "3 brokers answer")]
        self.registered = [Finding("registration", "ok", "it is ours")]
        self.positions: list[Position | None] = [None, None]
        self.topics: Sequence[str] | None = None
        """Which Kafka was asked about; None: it was not asked."""
        self.write()
        monkeypatch.setattr(check, "check_kafka", self._check_kafka)
        monkeypatch.setattr(check, "check_database", lambda _: self.registered)
        monkeypatch.setattr(check, "Checkpoints", lambda _: SimpleNamespace(read=self._read))

    def write(self, more: str = "") -> None:
        self.config.write_text(
            f"kafka: {{bootstrap.servers: 'b:1'}}\ndatabase: {self.url}\ngroup: g\n{more}",
            encoding="utf-8",
        )

    def init(self, mode: str = "mark", rows: int = 0) -> None:
        tables = database(self.url)
        with closing(
            tables.range_store(OUTBOX) if mode == "range" else tables.mark_store(OUTBOX)
        ) as store:
            store.init()
        with tables.transaction() as connection:
            for number in range(rows):
                Stasher().stash(connection, OutboxRecord("orders", f"key {number}", "v"))

    def run(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(arguments) or ["check", "-c", str(self.config)])
        return done.exit_code, done.stdout

    def report(self, code: int = 0) -> dict[str, Any]:
        found, said = self.run("check", "-c", str(self.config), "--json")
        assert found == code
        report: dict[str, Any] = json.loads(said)
        return report

    def _check_kafka(self, _: object, topics: Sequence[str]) -> list[Finding]:
        self.topics = topics
        return list(self.kafka)

    def _read(self, shard: int) -> Position | None:
        return self.positions[shard]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def subjects(report: dict[str, Any]) -> list[str]:
    return [finding["subject"] for finding in report["findings"]]


def test_all_is_well_and_what_waits_is_counted(world: World) -> None:
    world.init(rows=3)
    report = world.report()
    assert report["ok"] is True
    assert report["table"] == "outbox"
    assert (report["backlog_rows"], report["backlog_estimated"]) == (3, False)
    assert report["oldest_age_s"] >= 0
    assert {"level": "ok", "subject": "kafka", "text": "3 brokers answer"} in report["findings"]
    assert world.topics == ["orders"]
    code, said = world.run()
    assert code == 0
    assert said.splitlines()[-1].startswith("ok      backlog    3 rows, oldest ")


def test_an_empty_table_has_no_oldest_row(world: World) -> None:
    world.init()
    assert world.report()["oldest_age_s"] is None
    assert world.run()[1].splitlines()[-1] == "ok      backlog    0 rows"


def test_without_a_table_kafka_is_looked_at_all_the_same(world: World, tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    report = world.report(code=1)
    assert report["ok"] is False
    assert "backlog_rows" not in report
    assert subjects(report)[-1] == "kafka"
    assert world.topics == [], "the table has none to ask about"
    code, said = world.run()
    assert code == 1
    assert "error   table      outbox does not exist: run `harvest init`" in said


def test_what_is_wrong_in_kafka_alone_is_a_failure(world: World) -> None:
    world.init()
    world.kafka.append(Finding("topic", "error", "orders is missing"))
    assert world.report(code=1)["ok"] is False


def test_what_is_registered_is_asked_where_kafka_answers(world: World) -> None:
    world.init()
    assert subjects(world.report())[-1] == "registration"
    world.registered = [Finding("registration", "error", "another configuration harvests it")]
    assert world.report(code=1)["ok"] is False
    world.kafka = [Finding("kafka", "error", "cannot be reached")]
    assert subjects(world.report(code=1))[-1] == "kafka"


def test_a_warning_is_no_failure(world: World) -> None:
    world.init()
    world.kafka.append(Finding("topic", "warning", "set min.insync.replicas to 2"))
    assert world.report()["ok"] is True


def test_a_warning_of_the_database_keeps_nothing_from_being_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(store: SqliteMarkStore) -> list[Finding]:
        del store
        return [Finding("durability", "warning", "a crash undoes commits")]

    world.init(rows=2)
    monkeypatch.setattr(SqliteMarkStore, "check", checked)
    report = world.report()
    assert (report["ok"], report["backlog_rows"]) == (True, 2)
    assert subjects(report)[-1] == "registration"
    assert world.topics == ["orders"]


def test_with_destinations_the_column_names_no_topics_of_kafka(world: World) -> None:
    world.write("destinations: {shop: {kafka: {}}}\n")
    world.init(rows=1)
    world.report()
    assert world.topics == []


def test_without_a_configuration_kafka_is_not_asked(world: World) -> None:
    world.init()
    assert world.run("check", "-d", world.url)[0] == 0
    assert world.topics is None


def test_a_dry_run_begins_at_the_lowest_position_of_the_shards(world: World) -> None:
    world.write("mode: range\nshards: 2\n")
    world.init(mode="range", rows=9)
    gaps = ((2, 2), (4, 4))
    world.positions = [Position(1, 0, 2, 7), Position(1, 1, 2, 5, gaps)]
    code, said = world.run("reap", "--dry-run", "-c", str(world.config))
    assert code == 0
    lines = [line for line in said.splitlines() if line[8:].startswith(("position ", "row "))]
    assert lines == [
        "ok      position   shard 0: after id 7, 0 gaps open",
        "ok      position   shard 1: after id 5, 2 gaps open",
        *(f"ok      row        id {n}: topic 'orders', key 'key {n - 1}'" for n in range(6, 10)),
    ]
    world.positions[0] = None
    said = world.run("reap", "--dry-run", "-c", str(world.config))[1]
    assert "shard 0: the first row" in said
    assert "id 1: topic" in said, "a shard without a position begins before the first row"
    assert "id 6: topic" not in said, "five rows are shown"


def test_a_dry_run_in_mark_mode_begins_with_the_first_row(world: World) -> None:
    world.init(rows=1)
    code, said = world.run("reap", "--dry-run", "-c", str(world.config))
    assert code == 0
    assert "the first row: what is published is deleted" in said
    assert "id 1: topic 'orders', key 'key 0'" in said


def test_positions_that_cannot_be_read_make_a_dry_run_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: int) -> Position:
        raise SinkUnavailable("no broker")

    world.write("mode: range\nshards: 2\n")
    world.init(mode="range")
    monkeypatch.setattr(check, "Checkpoints", lambda _: SimpleNamespace(read=read))
    code, said = world.run("reap", "--dry-run", "-c", str(world.config))
    assert code == 1
    assert "error   position   no broker" in said


def test_of_two_databases_both_are_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.init()
    ids = Ids()
    monkeypatch.setattr(Outbox, "ids_in_primary", lambda _: ids)
    report = world.report(1)
    assert [f["subject"] for f in report["findings"] if f["level"] == "error"] == ["ids"]
    assert "backlog_rows" not in report
    assert ids.is_closed
