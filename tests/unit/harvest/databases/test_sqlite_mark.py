"""Marks in an SQLite file: what other databases are asked on a real server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harvest.core.source import Registration
from harvest.core.table_name import TableName
from harvest.databases.registry import database
from harvest.databases.sqlite.dead_letters import SqliteDeadLetters
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.errors import StoreUnavailable, TableMissing
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher

OUTBOX = TableName(("outbox",))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMarkStore]:
    url = f"sqlite:///{tmp_path}/shop.db"
    with closing(SqliteMarkStore(url, OUTBOX)) as made:
        made.init()
        with database(url).transaction() as connection:
            for key in "abc":
                Stasher().stash(connection, OutboxRecord("t", key, "v"))
            connection.execute(
                "UPDATE outbox SET create_time = strftime('%Y-%m-%d %H:%M:%f', 'now', '-2 hours') "
                "WHERE id = 2"
            )
        yield made


def test_the_age_of_the_oldest_row_is_in_seconds(store: SqliteMarkStore) -> None:
    age_s = store.backlog().oldest_age_s
    assert age_s is not None
    assert 7_199 < age_s < 7_800


def test_a_row_from_the_future_has_no_negative_age(store: SqliteMarkStore, tmp_path: Path) -> None:
    """The application's clock may be ahead."""
    with database(f"sqlite:///{tmp_path}/shop.db").transaction() as connection:
        connection.execute("UPDATE outbox SET create_time = '2999-01-01T00:00:00Z'")
    assert store.backlog().oldest_age_s == 0


def test_a_file_that_was_replaced_is_opened_anew(store: SqliteMarkStore, tmp_path: Path) -> None:
    """The application writes to the new one; the old one looks well, and gets no more rows."""
    with closing(SqliteMarkStore(f"sqlite:///{tmp_path}/backup.db", OUTBOX)) as backup:
        backup.init()
        backup.register(Registration("cluster", "topic", "group", "mark"))
        backup.visit("another")
    assert store.backlog().rows == 3
    for beside in ("shop.db-wal", "shop.db-shm"):
        (tmp_path / beside).unlink()
    (tmp_path / "backup.db").replace(tmp_path / "shop.db")
    with pytest.raises(StoreUnavailable, match=r"shop\.db was replaced"):
        store.source()
    assert store.source().token == "another"
    assert store.backlog().rows == 0


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_anew(
    store: SqliteMarkStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    with closing(SqliteMarkStore(f"sqlite:///{tmp_path}/backup.db", OUTBOX)) as backup:
        backup.init()
    connect = sqlite3.connect

    def connect_late(*given: Any, **named: Any) -> sqlite3.Connection:
        made: sqlite3.Connection = connect(*given, **named)
        (tmp_path / "backup.db").replace(tmp_path / "shop.db")
        return made

    with monkeypatch.context() as patch:
        patch.setattr("harvest.databases.sqlite.table.sqlite3.connect", connect_late)
        store.ping()
    with pytest.raises(StoreUnavailable, match=r"shop\.db was replaced"):
        store.backlog()
    assert store.backlog().rows == 0


def test_a_file_that_was_deleted_is_missed(store: SqliteMarkStore, tmp_path: Path) -> None:
    store.ping()
    (tmp_path / "shop.db").unlink()
    with pytest.raises(StoreUnavailable, match="deleted while it was open"):
        store.ping()
    with pytest.raises(TableMissing, match="does not exist"):
        store.ping()


def test_a_relative_file_is_the_same_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SqliteMarkStore("sqlite:///shop.db", OUTBOX)) as store:
        store.init()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.ping()
        store.close()
        store.ping()


def test_dead_letters_are_those_of_either_mode(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ranges.db"
    with closing(database(url).range_store(OUTBOX)) as ranges:
        ranges.init()
    with closing(SqliteDeadLetters(url, OUTBOX)) as letters:
        letters.create()
        assert letters.count() == 0
