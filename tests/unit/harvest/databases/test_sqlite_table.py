"""A table in an SQLite file: which ones are refused, and what a connection to it does."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from harvest.core.mark_checkpoint import Term
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


def test_a_library_that_is_too_old_is_told(
    store: SqliteMarkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 35, 0))
    assert {finding.level for finding in store.check()} == {"ok"}
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    (only,) = store.check()
    assert (only.level, only.text.endswith("3.35 is the oldest")) == ("error", True)


def test_a_file_that_cannot_have_a_write_ahead_log_is_no_outbox(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system of the network."""
    with closing(SqliteMarkStore(url, OUTBOX)) as store:
        monkeypatch.setattr(store, "_execute", lambda *_: [(b"delete",)])
        with pytest.raises(StoreUnavailable, match="needs a local file system"):
            store.init()


def test_a_file_that_cannot_be_written_is_not_well(
    store: SqliteMarkStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.databases.sqlite.table._BUSY_TIMEOUT_S", 0.0)
    with database(url).transaction() as writer:
        writer.execute("BEGIN IMMEDIATE")
        store.close()
        (wrong,) = [finding for finding in store.check() if finding.level != "ok"]
    assert (wrong.subject, wrong.level) == ("privilege", "error")
    assert "cannot be written: " in wrong.text
    assert {finding.level for finding in store.check()} == {"ok"}


def test_a_statement_under_way_is_broken_off_by_another_thread(store: SqliteMarkStore) -> None:
    failures: list[StoreUnavailable] = []
    endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"

    def work() -> None:
        try:
            store._execute(endless)
        except StoreUnavailable as error:
            failures.append(error)

    store.connect()
    connection = store._connected()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(1_000):
            store.cancel()
            thread.join(0.01)
            if failures:
                break
        assert len(failures) == 1
    finally:
        while thread.is_alive():
            connection.interrupt()
            thread.join(0.01)
    assert store.backlog().rows == 3


@pytest.mark.parametrize("kind", [SqliteMarkStore, SqliteRangeStore])
def test_a_further_column_that_goes_is_missed(
    url: str, kind: type[SqliteMarkStore | SqliteRangeStore]
) -> None:
    """It was published with its own name for a value."""
    with closing(kind(url, OUTBOX, extra={"trace": "trace_id"})) as store:
        store.init()
        with database(url).transaction() as connection:
            connection.execute("ALTER TABLE outbox ADD trace_id TEXT")
            Stasher().stash(connection, OutboxRecord("t", "k", "v"))
        store.connect()
        with database(url).transaction() as connection:
            connection.execute("ALTER TABLE outbox DROP COLUMN trace_id")
        read = (
            partial(store.mark, Term.of(1), 0, 9, 60_000.0)
            if isinstance(store, SqliteMarkStore)
            else partial(store.read, 0, 9)
        )
        with pytest.raises(SchemaError, match="no such column: trace_id"):
            read()


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
