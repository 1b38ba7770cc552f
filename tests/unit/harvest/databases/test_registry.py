"""Which database a connection string means, and what is refused for it."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pymysql
import pytest
from psycopg.conninfo import conninfo_to_dict

from harvest.core.table_name import TableName
from harvest.core.wal_options import WalOptions
from harvest.databases.mysql.mark import MysqlMarkStore
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.notify import PostgresListener
from harvest.databases.registry import database, database_of_data_source
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.errors import ConfigurationError, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher

TABLE = TableName.parse("outbox")


@pytest.fixture(params=["SQLite", "MySQL"])
def polled(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Its name, and a connection string. Nothing is connected to."""
    urls = {"SQLite": f"sqlite:///{tmp_path}/app.db", "MySQL": "mysql://user@127.0.0.1:1/app"}
    return request.param, urls[request.param]


def test_notifications_are_refused_where_there_are_none(polled: tuple[str, str]) -> None:
    name, url = polled
    with pytest.raises(ConfigurationError, match=f"--notify: {name} has no notifications"):
        database(url).install_notify(TABLE, remove=False)
    assert database(url).listener(TABLE) is None
    assert database(url).attempts(TABLE) is None


def test_the_log_is_refused_where_it_is_not_read(polled: tuple[str, str]) -> None:
    _, url = polled
    found = database(url)
    for ask in (
        lambda: found.wal_source(TABLE, WalOptions()),
        lambda: found.wal_dead_letters(TABLE, WalOptions()),
        lambda: found.wal_partitions(TABLE, lambda: 0),
    ):
        with pytest.raises(ConfigurationError, match="mode: wal is for PostgreSQL"):
            ask()


@pytest.mark.parametrize("prefix", [None, "mine"])
def test_what_is_put_back_in_wal_mode_is_what_its_source_reads(prefix: str | None) -> None:
    found, options = database("host=h"), WalOptions("message", prefix=prefix)
    source = found.wal_source(TABLE, options)
    assert found.wal_dead_letters(TABLE, options)._prefix == source.prefix


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("postgresql://h/d", PostgresMarkStore),
        ("postgres://h/d", PostgresMarkStore),
        ("host=h dbname=d", PostgresMarkStore),
        ("sqlite:///app.db", SqliteMarkStore),
        ("mysql://h/d", MysqlMarkStore),
        ("mariadb://h/d", MysqlMarkStore),
    ],
)
def test_the_scheme_says_which_database_it_is(source: str, kind: type) -> None:
    for found in (database(source), database_of_data_source(source)):
        assert type(found.mark_store(TABLE)) is kind


def test_a_listener_notices_a_dead_network_as_the_others_do() -> None:
    """It sends nothing: without keep-alives it would wait for ever for what does not come."""
    listener = database("postgresql://h/d").listener(TableName.parse("outbox"))
    assert isinstance(listener, PostgresListener)
    given = conninfo_to_dict(listener._conninfo)
    assert (given["host"], given["dbname"], given["keepalives_idle"]) == ("h", "d", "10")


def test_a_person_may_give_settings_of_the_server_as_goharvest_reads_them() -> None:
    for source in ("host=h search_path=billing", "postgres://h/d?search_path=billing"):
        store = database_of_data_source(source).mark_store(TABLE)
        assert isinstance(store, PostgresMarkStore)
        options = conninfo_to_dict(store.conninfo)["options"]
        assert "-c search_path=billing" in str(options)
    with pytest.raises(ConfigurationError, match="dataSource cannot be read"):
        database_of_data_source("nonsense")


class Failed(Exception):
    """Of the application."""


def test_a_transaction_is_committed_at_its_end_and_undone_by_an_error(tmp_path: Path) -> None:
    found = database(f"sqlite:///{tmp_path}/app.db")
    with closing(found.mark_store(TABLE)) as store:
        store.init()
        with found.transaction() as connection:
            Stasher().stash(connection, OutboxRecord("t", "kept", "v"))
        with suppress(Failed), found.transaction() as connection:
            Stasher().stash(connection, OutboxRecord("t", "undone", "v"))
            raise Failed
        assert [key for _, _, key in store.first_rows(0, 9)] == [b"kept"]


@pytest.mark.parametrize("fails", [True, False])
def test_the_same_with_mysql(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    seen: list[str] = []

    class Connection:
        def __enter__(self) -> Connection:
            return self

        def __exit__(self, *_: object) -> None:
            seen.append("closed")

        def commit(self) -> None:
            seen.append("committed")

    monkeypatch.setattr(pymysql, "connect", lambda **_: Connection())
    with suppress(Failed), database("mysql://h/d").transaction():
        if fails:
            raise Failed
    assert seen == (["closed"] if fails else ["committed", "closed"])


@pytest.mark.parametrize(
    ("url", "driver", "error"),
    [
        ("host=h", "psycopg", psycopg.OperationalError("no\nanswer")),
        ("mysql://h/d", "pymysql", pymysql.OperationalError(2003, "no answer")),
    ],
)
def test_what_a_driver_raises_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, url: str, driver: str, error: Exception
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(f"{driver}.connect", connect)
    said = r"broke off a transaction: (2003 )?no answer$"
    with pytest.raises(StoreUnavailable, match=said), database(url).transaction():
        pass


def test_a_shard_reads_its_own_rows(tmp_path: Path) -> None:
    found = database(f"sqlite:///{tmp_path}/app.db")
    with closing(found.range_store(TABLE, shards=3)) as store:
        store.init()
    with found.transaction() as connection:
        for number in range(30):
            Stasher().stash(connection, OutboxRecord("t", f"key {number}", "v"))
    seen: list[int] = []
    for shard in range(3):
        with closing(found.range_store(TABLE, shard=shard, shards=3)) as store:
            seen += [row[0] for row in store.read(0, 100).rows]
    assert sorted(seen) == list(range(1, 31))
