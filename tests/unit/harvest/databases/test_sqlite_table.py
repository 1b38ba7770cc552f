"""A table in an SQLite file: which ones are refused, and what a connection to it does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harvest.core.table_name import TableName
from harvest.databases.registry import database
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.databases.sqlite.range import SqliteRangeStore
from harvest.errors import SchemaError, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher

OUTBOX = TableName(("outbox",))
TABLE = """
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT, create_time {time} NOT NULL, kafka_topic TEXT NOT NULL,
  kafka_key TEXT NOT NULL, kafka_value TEXT, kafka_header_keys TEXT NOT NULL,
  kafka_header_values TEXT NOT NULL, leader_id {mark}
)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def store(url: str) -> Iterator[SqliteMarkStore]:
    """Of an outbox with three rows."""
    with closing(SqliteMarkStore(url, OUTBOX)) as made:
        made.init()
        with database(url).transaction() as connection:
            Stasher().stash_many(connection, [OutboxRecord("t", "k", "v")] * 3)
        yield made


@pytest.mark.parametrize(
    ("time", "mark", "said"),
    [
        ("bigint", "BLOB", "create_time is BIGINT, no time in text: make it TEXT"),
        ("text", "BLOB NOT NULL", "leader_id is NOT NULL: it must be empty until a row is marked"),
    ],
)
def test_a_column_that_cannot_be_used_is_named(url: str, time: str, mark: str, said: str) -> None:
    with database(url).transaction() as connection:
        connection.execute(TABLE.format(time=time, mark=mark))
    with closing(SqliteMarkStore(url, OUTBOX)) as store, pytest.raises(SchemaError, match=said):
        store.connect()


def test_a_file_whose_readers_and_writers_wait_for_each_other_is_not_well(
    store: SqliteMarkStore, url: str
) -> None:
    assert {finding.level for finding in store.check()} == {"ok"}
    store.close()
    with database(url).transaction() as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    (wrong,) = [finding for finding in store.check() if finding.level != "ok"]
    assert (wrong.subject, wrong.level) == ("journal", "error")
    assert "PRAGMA journal_mode=WAL" in wrong.text


def test_who_writes_is_waited_for(store: SqliteMarkStore) -> None:
    """For longer than sqlite3 does by itself."""
    assert store._execute("PRAGMA busy_timeout") == [(10_000,)]


def test_a_commit_that_fails_is_told_and_leaves_no_transaction_open(
    store: SqliteMarkStore, url: str
) -> None:
    with database(url).transaction() as connection:
        connection.execute(
            "CREATE TABLE invoices (row INTEGER REFERENCES outbox DEFERRABLE INITIALLY DEFERRED)"
        )
        connection.execute("INSERT INTO invoices VALUES (2)")
    store._execute("PRAGMA foreign_keys = ON")
    with pytest.raises(StoreUnavailable, match="FOREIGN KEY constraint failed"):
        store.delete([1, 2])
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0.0)) as other, other:
        other.execute("DELETE FROM invoices")
    assert store.delete([1, 2]) == 2


@pytest.mark.parametrize("kind", [SqliteMarkStore, SqliteRangeStore])
def test_all_that_is_beside_the_outbox_is_made_with_it(
    url: str, kind: type[SqliteMarkStore | SqliteRangeStore]
) -> None:
    with closing(kind(url, OUTBOX)) as store:
        store.init()
        assert store._execute("SELECT visit FROM outbox_registration") == []


def test_a_position_at_an_id_that_is_gone_is_not_ahead_of_the_table(url: str) -> None:
    with closing(SqliteRangeStore(url, OUTBOX)) as store:
        store.init()
        with database(url).transaction() as connection:
            Stasher().stash_many(connection, [OutboxRecord("t", "k", "v")] * 3)
            connection.execute("DELETE FROM outbox WHERE id > 1")
        assert (store.bounds().first, store.bounds().last) == (1, 3)
