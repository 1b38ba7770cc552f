"""`harvest init`: which table it makes, and what it says; which outbox options mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli.app import app
from harvest.cli.outbox import Outbox, open_outbox
from harvest.core.table_name import TableName
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.postgres.wal_dead_letters import PostgresWalDeadLetters
from harvest.databases.registry import database
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.databases.sqlite.range import SqliteRangeStore
from harvest.errors import ConfigurationError
from harvest.maintenance.partitions import PartitionPolicy

BASE = "kafka: {bootstrap.servers: 'b:1'}\ngroup: g\n"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a configuration."""

    def write(text: str) -> Path:
        path = tmp_path / "reaper.yaml"
        path.write_text(BASE + text, encoding="utf-8")
        return path

    return write


def init(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["init", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def columns(url: str, table: str) -> dict[str, str]:
    with database(url).transaction() as connection:
        found = connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,))
        return dict(found.fetchall())


def test_a_table_is_made_once_with_all_that_is_beside_it(url: str) -> None:
    assert init("-d", url) == "outbox: created\n"
    assert init("-d", url) == "outbox: exists already, left as it is\n"
    assert json.loads(init("-d", url, "--json")) == {"table": "outbox", "created": False}
    for table in ("outbox", "outbox_dead_letters", "outbox_registration"):
        assert columns(url, table), table
    assert not columns(url, "outbox_positions")


def test_range_mode_has_a_table_of_positions(url: str) -> None:
    assert json.loads(init("-d", url, "-t", "other", "--mode", "range", "--json")) == {
        "table": "other",
        "created": True,
    }
    assert columns(url, "other_positions")
    assert "leader_id" not in columns(url, "other")


def test_with_two_databases_the_table_of_ids_is_made_in_the_primary(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    ids = SimpleNamespace(init=lambda: done.append("init"), close=lambda: done.append("close"))
    monkeypatch.setattr(Outbox, "ids_in_primary", lambda _: ids)
    init("-d", url)
    assert done == ["init", "close"]


@pytest.mark.parametrize("with_destinations", [True, False])
def test_with_destinations_there_is_a_table_of_what_failed(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, with_destinations: bool
) -> None:
    """Who leads may be allowed to make none."""
    done: list[str] = []

    def attempts(table: TableName) -> Any:
        return SimpleNamespace(
            create=lambda: done.append(f"create {table}"), close=lambda: done.append("close")
        )

    tables = Postgres(there=False)
    monkeypatch.setattr(tables, "attempts", attempts, raising=False)
    monkeypatch.setattr("harvest.databases.registry.database", lambda _: tables)
    to = "destinations: {crm: {http: {uri: 'http://crm/'}}}\n" if with_destinations else ""
    init("-c", str(written(f"database: host=d\noutbox: shop\n{to}")))
    assert done == (["create shop", "close"] if with_destinations else [])


def test_bytes_are_asked_for(url: str) -> None:
    init("-d", url)
    init("-d", url, "-t", "raw", "--bytes")
    assert (columns(url, "outbox")["kafka_value"], columns(url, "raw")["kafka_value"]) == (
        "TEXT",
        "BLOB",
    )


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_rows_are_left_out_in_wal_mode_alone(url: str, mode: str) -> None:
    """Elsewhere they would be published all the same."""
    said = init("-d", url, "--mode", mode, "--begin-now", code=2)
    assert f"--begin-now is for mode: wal, and this is {mode}" in said


def test_wal_mode_is_told_whether_to_leave_out_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []

    class Source(PostgresWalSource):
        def init(self, **options: Any) -> bool:
            told.append(options)
            return True

    tables = SimpleNamespace(
        wal_source=lambda *_: Source("host=d", TableName(("outbox",))),
        wal_dead_letters=lambda *_: SimpleNamespace(create=lambda: None, close=lambda: None),
    )
    monkeypatch.setattr("harvest.databases.registry.database_of_data_source", lambda _: tables)
    init("-d", "host=d", "--mode", "wal", "--begin-now")
    init("-d", "host=d", "--mode", "wal", "--bytes")
    assert told == [
        {"value_type": "text", "begin_now": True, "policy": None},
        {"value_type": "bytes", "begin_now": False, "policy": None},
    ]


@pytest.mark.parametrize(
    ("mode", "store"),
    [("range", PostgresRangeStore), ("wal\nwal: {purge: partitions}", PostgresWalSource)],
)
def test_the_first_partitions_are_as_they_are_configured(
    written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, mode: str, store: type
) -> None:
    """Else those of as many ids as by default come first, and are kept until they are full."""
    told: list[PartitionPolicy] = []

    def of_store(_self: object, **options: Any) -> bool:
        told.append(options["policy"])
        return True

    monkeypatch.setattr(store, "init", of_store)
    for table in (PostgresDeadLetters, PostgresWalDeadLetters):
        monkeypatch.setattr(table, "create", lambda _: None)
    partitions = "partitions: {rows: 20, ahead: 2}\n"
    init("-c", str(written(f"database: host=d\nmode: {mode}\n{partitions}")))
    assert [(policy.rows, policy.ahead) for policy in told] == [(20, 2)]


def test_a_database_without_notifications_says_so(url: str) -> None:
    assert "SQLite has no notifications" in init("-d", url, "--notify", code=2)


class Postgres:
    """A database whose trigger is there, or not."""

    def __init__(self, there: bool) -> None:
        self.there = there

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def init(self, *, value_type: str) -> bool:
        del value_type
        return True

    def install_notify(self, table: TableName, *, remove: bool) -> bool:
        del table
        changed = self.there is remove
        self.there = not remove
        return changed


@pytest.mark.parametrize(
    ("there", "option", "said"),
    [
        (False, "--notify", "the trigger is there"),
        (True, "--notify", "the trigger is there already"),
        (True, "--no-notify", "the trigger is not there"),
        (False, "--no-notify", "the trigger is not there already"),
    ],
)
def test_the_trigger_is_as_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, there: bool, option: str, said: str
) -> None:
    tables = Postgres(there)
    monkeypatch.setattr("harvest.databases.registry.database_of_data_source", lambda _: tables)
    assert init("-d", "host=d", option).splitlines() == ["outbox: created", f"outbox: {said}"]
    assert tables.there is (option == "--notify")
    report = json.loads(init("-d", "host=d", option, "--json"))
    assert report["notify"] is (option == "--notify")
    assert "notify" not in json.loads(init("-d", "host=d", "--json"))


# --- Which outbox is meant ---


@pytest.mark.parametrize(
    ("with_config", "given", "meant"),
    [
        (True, (None, None), ("shop", "range")),
        (True, ("other", "mark"), ("other", "mark")),
        (False, (None, None), ("outbox", "mark")),
        (False, ("other", "range"), ("other", "range")),
    ],
)
def test_what_is_said_goes_before_what_is_configured(
    written: Callable[[str], Path], with_config: bool, given: Any, meant: tuple[str, str]
) -> None:
    config = written("database: sqlite:///x.db\noutbox: shop\nmode: range\nshards: 3\n")
    named = (config, None) if with_config else (None, "sqlite:///x.db")
    outbox = open_outbox(*named, *given)
    assert (outbox.name, outbox.mode) == meant
    kind = SqliteMarkStore if meant[1] == "mark" else SqliteRangeStore
    with closing(outbox.store()) as store:
        assert isinstance(store, kind)


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_a_command_looks_at_all_shards_and_for_every_column(
    url: str, written: Callable[[str], Path], mode: Any
) -> None:
    columns = "columns: {headers: {trace: trace_id}}\n"
    config = written(
        f"database: {url}\nmode: {mode}\n{columns}" + "shards: 3\n" * (mode == "range")
    )
    with closing(open_outbox(config, None, None).store()) as store:
        store.init()
        (wrong,) = [found.text for found in store.check() if found.level == "error"]
        assert wrong.startswith("the column trace_id is missing")
        if isinstance(store, SqliteRangeStore):
            assert store.layout() == 3


def test_either_a_file_or_a_database_is_named(written: Callable[[str], Path]) -> None:
    config = written("database: sqlite:///x.db\n")
    for file, source in ((None, None), (config, "sqlite:///x.db")):
        with pytest.raises(ConfigurationError, match="either --config FILE or --database"):
            open_outbox(file, source, None)


def test_wal_mode_has_its_own_parts(written: Callable[[str], Path]) -> None:
    config = written("database: host=d\nmode: wal\nwal: {source: message, prefix: mine}\n")
    outbox = open_outbox(config, None, None)
    assert isinstance(outbox.store(), PostgresWalSource)
    assert isinstance(outbox.dead_letters(), PostgresWalDeadLetters)
    assert (outbox.wal_options.source, outbox.wal_options.prefix) == ("message", "mine")
    assert outbox.stasher()._prefix == "mine"
    by_default = Outbox(database("host=d"), "outbox", "wal").wal_options
    assert (by_default.source, by_default.prefix) == ("table", None)


def test_a_person_may_give_what_goharvest_reads() -> None:
    with pytest.raises(ConfigurationError, match="dataSource cannot be read"):
        open_outbox(None, "nonsense", None)
    open_outbox(None, "host=d search_path=billing", None)
