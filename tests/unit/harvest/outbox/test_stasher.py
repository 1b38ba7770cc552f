"""The Stasher without a server: SQLite, and a recording DB-API driver of each parameter style."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import types
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session

from harvest import InvalidRecord, NoTransaction, OutboxRecord, Stasher, UnsupportedConnection
from harvest.core.message import unpack_message

DDL = """
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT, create_time TEXT NOT NULL, kafka_topic TEXT NOT NULL,
  kafka_key NOT NULL, kafka_value, kafka_header_keys TEXT NOT NULL,
  kafka_header_values TEXT NOT NULL, leader_id TEXT)
"""
RECORD = OutboxRecord("orders", "k", "v", {"a": "1"})


@pytest.fixture
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute(DDL)
    connection.commit()
    yield connection
    connection.close()


def rows(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values "
        "FROM outbox ORDER BY id"
    ).fetchall()


def test_a_row_lives_and_dies_with_the_callers_transaction(sqlite: sqlite3.Connection) -> None:
    stasher = Stasher()
    stasher.stash(sqlite, RECORD)
    assert sqlite.in_transaction
    sqlite.rollback()
    assert rows(sqlite) == []
    stasher.stash(sqlite, RECORD)
    sqlite.commit()
    assert rows(sqlite) == [("orders", "k", "v", '["a"]', '["1"]')]


def test_a_cursor_will_do(sqlite: sqlite3.Connection) -> None:
    cursor = sqlite.cursor()
    Stasher().stash(cursor, RECORD)
    assert len(rows(sqlite)) == 1
    cursor.execute("SELECT 1")
    assert cursor.fetchone() == (1,)


def test_many_keep_their_order(sqlite: sqlite3.Connection) -> None:
    count = Stasher().stash_many(sqlite, (OutboxRecord("t", str(n)) for n in range(1234)))
    assert count == 1234
    assert [row[1] for row in rows(sqlite)] == [str(n) for n in range(1234)]


def test_a_connection_that_commits_by_itself_is_refused() -> None:
    with sqlite3.connect(":memory:", isolation_level=None) as connection:
        connection.execute(DDL)
        with pytest.raises(NoTransaction, match="sqlite3 connection is in autocommit"):
            Stasher().stash(connection, RECORD)
        connection.execute("BEGIN")
        Stasher().stash(connection, RECORD)
        assert connection.in_transaction
    connection.close()


class SinceTwelve(sqlite3.Connection):
    """As a connection of Python 3.12 and later is with ``autocommit=True``."""

    autocommit = True


def test_a_connection_that_commits_by_itself_since_python_3_12_is_refused() -> None:
    with closing(sqlite3.connect(":memory:", factory=SinceTwelve)) as connection:
        connection.execute(DDL)
        with pytest.raises(NoTransaction, match="autocommit mode"):
            Stasher().stash(connection, RECORD)
        connection.execute("BEGIN")
        Stasher().stash(connection, RECORD)
        assert connection.in_transaction


@pytest.mark.parametrize("thing", [object(), "postgresql://", None, 3])
def test_what_is_no_connection_is_refused(thing: object) -> None:
    with pytest.raises(UnsupportedConnection, match="psycopg 3 or DB-API"):
        Stasher().stash(thing, RECORD)


def test_ids_are_told_by_psycopg_alone_and_no_row_is_written(sqlite: sqlite3.Connection) -> None:
    with pytest.raises(UnsupportedConnection, match="give a psycopg 3 connection or cursor"):
        Stasher().stash_returning(sqlite, [RECORD])
    assert rows(sqlite) == []


def test_messages_are_for_postgresql_alone(sqlite: sqlite3.Connection) -> None:
    with pytest.raises(UnsupportedConnection, match="it has logical messages"):
        Stasher(mode="message").stash(sqlite, RECORD)
    with pytest.raises(UnsupportedConnection, match="messages have no ids"):
        Stasher(mode="message").stash_returning(sqlite, [RECORD])


def test_a_message_is_what_its_record_was_prepared_to(driver: types.ModuleType) -> None:
    def prepare(record: OutboxRecord) -> OutboxRecord:
        return OutboxRecord(record.topic, record.key, record.value, {"all": "share"})

    driver.paramstyle = "format"  # type: ignore[attr-defined]
    connection = FakeConnection()
    records = [RECORD, OutboxRecord("bills", "k", None)]
    assert Stasher("shop", mode="message", prepare=prepare).stash_many(connection, records) == 2
    ((statement, given),) = connection.executed
    assert statement.count("pg_logical_emit_message(true, CAST(%s AS text)") == 2
    assert given[::2] == ("harvest.shop", "harvest.shop")
    shared = ((b"all",), (b"share",))
    assert [unpack_message(content) for content in given[1::2]] == [
        ("orders", b"k", b"v", *shared),
        ("bills", b"k", None, *shared),
    ]


def test_what_fits_into_no_message_is_refused(driver: types.ModuleType) -> None:
    driver.paramstyle = "format"  # type: ignore[attr-defined]
    long_name = OutboxRecord("t", "k", "v", {"n" * 70_000: "v"})
    with pytest.raises(InvalidRecord, match="fits into no message: it is too long"):
        Stasher(mode="message").stash(FakeConnection(), long_name)


def test_sqlalchemy_connection_and_session() -> None:
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(DDL)
    stasher = Stasher()
    with engine.connect() as connection:
        stasher.stash(connection, RECORD)
        connection.rollback()
    with Session(engine) as session, session.begin():
        stasher.stash_many(session, [RECORD, RECORD])
    with engine.connect() as connection:
        count = connection.exec_driver_sql("SELECT count(*) FROM outbox").scalar_one()
    assert count == 2
    engine.dispose()


def test_sqlalchemy_whose_engine_or_driver_commits_by_itself_is_refused() -> None:
    def engine(**more: Any) -> sqlalchemy.Engine:
        made = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool, **more)
        with made.begin() as connection:
            connection.exec_driver_sql(DDL)
        return made

    by_level = engine(isolation_level="AUTOCOMMIT")
    with by_level.begin() as connection, pytest.raises(NoTransaction, match="level AUTOCOMMIT"):
        Stasher().stash(connection, RECORD)
    with by_level.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        Stasher().stash(connection, RECORD)
    by_driver = engine(connect_args={"isolation_level": None})
    with by_driver.begin() as connection, pytest.raises(NoTransaction, match="driver of the"):
        Stasher().stash(connection, RECORD)
    with by_driver.begin() as connection:
        connection.exec_driver_sql("BEGIN")  # as SQLAlchemy recommends for SQLite
        Stasher().stash(connection, RECORD)
    by_level.dispose()
    by_driver.dispose()


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "autocommit"])
def test_sqlalchemy_in_autocommit_is_refused_however_that_is_written(level: str) -> None:
    """SQLite's driver, which is asked once SQLAlchemy has begun, is not asked here."""
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    by_level = engine.execution_options(isolation_level=level)
    with by_level.connect() as connection, pytest.raises(NoTransaction, match="level AUTOCOMMIT"):
        Stasher().stash(connection, RECORD)
    engine.dispose()


def test_an_asynchronous_session_of_a_scope_is_one() -> None:
    class Found(Exception):
        pass

    async def connection(_: AsyncSession, **_more: Any) -> AsyncConnection:
        raise Found

    async def stash() -> None:
        made: async_sessionmaker[AsyncSession] = async_sessionmaker(
            class_=type("Session", (AsyncSession,), {"connection": connection})
        )
        await Stasher().astash(async_scoped_session(made, scopefunc=lambda: 1), RECORD)

    with pytest.raises(Found):
        asyncio.run(stash())
    session: Any = async_scoped_session(async_sessionmaker(), scopefunc=lambda: 1)
    with pytest.raises(UnsupportedConnection, match="use astash"):
        Stasher().stash(session, RECORD)


class FakeCursor:
    def __init__(self, connection: FakeConnection) -> None:
        self.connection = connection
        self.description = [("kafka_key", connection.type_code), ("kafka_value", 25)]

    def execute(self, statement: str, parameters: Any = None) -> None:
        self.connection.executed.append((statement, parameters))

    def fetchone(self) -> None: ...
    def fetchall(self) -> list[Any]:
        return []

    def close(self) -> None: ...


class FakeConnection:
    type_code = 25

    def __init__(self) -> None:
        self.executed: list[tuple[str, Any]] = []

    def cursor(self) -> FakeCursor:
        return FakeCursor(self)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A DB-API module; its classes claim to come from it."""
    module = types.ModuleType("somedriver")
    monkeypatch.setitem(sys.modules, "somedriver", module)
    for cls in (FakeConnection, FakeCursor):
        monkeypatch.setattr(cls, "__module__", "somedriver.inner")
    return module


VALUES = ("orders", "k", "v", ["a"], ["1"])


@pytest.mark.parametrize(
    ("style", "placeholders", "parameters"),
    [
        ("format", "%s, %s, %s, %s, %s", VALUES),
        ("pyformat", "%s, %s, %s, %s, %s", VALUES),
        ("qmark", "?, ?, ?, ?, ?", VALUES),
        ("numeric", ":1, :2, :3, :4, :5", VALUES),
        ("numeric_dollar", "$1, $2, $3, $4, $5", VALUES),
        ("named", ":p0, :p1, :p2, :p3, :p4", {f"p{n}": v for n, v in enumerate(VALUES)}),
    ],
)
def test_every_parameter_style(
    driver: types.ModuleType, style: str, placeholders: str, parameters: Any
) -> None:
    driver.paramstyle = style  # type: ignore[attr-defined]
    connection = FakeConnection()
    Stasher("shop.outbox").stash(connection, RECORD)
    statement, given = connection.executed[-1]
    assert f"(CURRENT_TIMESTAMP, {placeholders})" in statement
    assert statement.startswith('INSERT INTO "shop"."outbox" ')
    assert given == parameters


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        ({"autocommit": True}, True),
        ({"autocommit": True, "in_transaction": False}, True),
        ({"autocommit": True, "in_transaction": True}, False),  # mysql.connector
        ({"autocommit": True, "_in_transaction": True}, False),  # pg8000
        ({"autocommit": True, "server_status": 3}, False),  # mariadb
        ({"autocommit": True, "server_status": 2}, True),
        ({"autocommit": False}, False),
        ({"autocommit": print}, False),  # a method, as of mysqlclient
        ({}, False),
    ],
)
def test_a_driver_that_commits_by_itself_is_refused(
    driver: types.ModuleType, said: dict[str, Any], is_refused: bool
) -> None:
    driver.paramstyle = "format"  # type: ignore[attr-defined]
    connection = FakeConnection()
    vars(connection).update(said)
    with pytest.raises(NoTransaction) if is_refused else nullcontext():
        Stasher().stash(connection, RECORD)
    assert bool(connection.executed) is not is_refused


@pytest.mark.parametrize(
    ("autocommit", "status", "is_refused"),
    [(True, 0, True), (True, 2, False), (False, 0, False)],
)
def test_a_transaction_that_was_begun_by_hand_is_one_to_psycopg2(
    monkeypatch: pytest.MonkeyPatch, autocommit: bool, status: int, is_refused: bool
) -> None:
    module = types.ModuleType("psycopg2")
    module.paramstyle = "pyformat"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "psycopg2", module)
    for cls in (FakeConnection, FakeCursor):
        monkeypatch.setattr(cls, "__module__", "psycopg2.extensions")
    connection = FakeConnection()
    vars(connection).update(autocommit=autocommit, get_transaction_status=lambda: status)
    with pytest.raises(NoTransaction, match="psycopg2") if is_refused else nullcontext():
        Stasher().stash(connection, RECORD)
    assert bool(connection.executed) is not is_refused


def test_a_driver_that_hides_its_style_is_told(driver: types.ModuleType) -> None:
    with pytest.raises(UnsupportedConnection, match="Stasher\\(table, paramstyle="):
        Stasher().stash(FakeConnection(), RECORD)
    connection = FakeConnection()
    Stasher(paramstyle="qmark").stash(connection, RECORD)
    assert "?, ?" in connection.executed[-1][0]


def test_the_types_of_the_columns_are_asked_for_once(driver: types.ModuleType) -> None:
    driver.paramstyle = "qmark"  # type: ignore[attr-defined]
    connection = FakeConnection()
    stasher = Stasher()
    for _ in range(3):
        stasher.stash(connection, RECORD)
    assert [s.split()[0] for s, _ in connection.executed] == [
        "SELECT",
        "INSERT",
        "INSERT",
        "INSERT",
    ]


def test_text_and_bytes_are_converted_to_what_the_column_is(
    driver: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.paramstyle = "qmark"  # type: ignore[attr-defined]
    monkeypatch.setattr(FakeConnection, "type_code", 17)  # kafka_key is BYTEA, kafka_value text
    connection = FakeConnection()
    Stasher().stash(connection, OutboxRecord("t", "ä", "ö".encode(), {"h": b"x"}))
    assert connection.executed[-1][1] == ("t", "ä".encode(), "ö", ["h"], ["x"])


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (OutboxRecord("t", b"\xff", "v"), "key is not UTF-8.*BYTEA"),
        (OutboxRecord("t", "k", "a\x00b"), "value holds a NUL.*BYTEA"),
        (OutboxRecord("t", b"a\x00b", "v"), "key holds a NUL.*BYTEA"),
        (OutboxRecord("t", "\ud800", "v"), "key has no UTF-8 form.*give bytes"),
        (OutboxRecord("t", "k", "\ud800"), "value has no UTF-8 form"),
        (OutboxRecord("t", "k", "v", {"h": "\ud800"}), "headers, 'h' has no UTF-8 form"),
        (OutboxRecord("t", "k", "v", {"\ud800": "h"}), "a header's name has no UTF-8 form"),
        (OutboxRecord("t", "k", "v", {"a\x00": "h"}), "a header's name holds a NUL"),
        (OutboxRecord("t", "k", "v", {"h": b"\xff"}), "headers, 'h' is not UTF-8"),
    ],
)
def test_what_a_text_column_cannot_hold_is_refused(record: OutboxRecord, text: str) -> None:
    with pytest.raises(InvalidRecord, match=text):
        Stasher(column_type="text", paramstyle="qmark").stash(FakeConnection(), record)


def test_an_empty_value_is_no_tombstone(sqlite: sqlite3.Connection) -> None:
    Stasher().stash_many(sqlite, [OutboxRecord("t", "", ""), OutboxRecord("t", "k", None)])
    assert [row[1:3] for row in rows(sqlite)] == [("", ""), ("k", None)]


def test_text_without_a_utf8_form_is_refused_before_a_driver_sees_it(
    sqlite: sqlite3.Connection,
) -> None:
    with pytest.raises(InvalidRecord, match="key has no UTF-8 form"):
        Stasher().stash(sqlite, OutboxRecord("t", "\ud800", "v"))
    assert rows(sqlite) == []


def test_sqlite_keeps_bytes_as_they_are(sqlite: sqlite3.Connection) -> None:
    Stasher().stash(sqlite, OutboxRecord("t", b"\xff", b"\x00\xfe"))
    (row,) = rows(sqlite)
    assert row[1:3] == (b"\xff", b"\x00\xfe")
    assert json.loads(row[3]) == []
