"""The trigger that tells of new rows, and the connection that hears of them, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from harvest import OutboxRecord, Stasher
from harvest.cli.app import app
from harvest.core.table_name import TableName
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.notify import PostgresListener
from harvest.runtime.wake import WakeEvent
from marshal_py.embedded import EmbeddedPostgres
from tests.support.harvest_world import WAIT_S, wait_until

OUTBOX = TableName.parse("outbox")


@pytest.fixture
def store(postgres_database: str) -> Iterator[PostgresMarkStore]:
    store = PostgresMarkStore(postgres_database, OUTBOX)
    store.init()
    yield store
    store.close()


@contextmanager
def listening(url: str) -> Iterator[WakeEvent]:
    wake_event = WakeEvent()
    listener = PostgresListener(url, OUTBOX, look_every_s=0.1)
    listener.start(wake_event)
    try:
        yield wake_event
    finally:
        listener.close()


@contextmanager
def long_listening(url: str) -> Iterator[WakeEvent]:
    """Armed, and silent from then on but for notifications."""
    wake_event = WakeEvent()
    listener = PostgresListener(url, OUTBOX, look_every_s=600)
    listener.start(wake_event)
    wait_until(lambda: wake_event.listening, "listening")
    assert wake_event.wait(WAIT_S)
    wake_event.clear()
    try:
        yield wake_event
    finally:
        listener.close()


def insert(url: str, *, commit: bool = True) -> None:
    with psycopg.connect(url) as connection:
        Stasher().stash(connection, OutboxRecord("t", "k", "v"))
        if not commit:
            connection.rollback()


def test_a_commit_rings_and_a_rollback_does_not(
    store: PostgresMarkStore, postgres_database: str
) -> None:
    assert store.install_notify() is True
    with long_listening(postgres_database) as wake_event:
        insert(postgres_database, commit=False)
        with psycopg.connect(postgres_database) as connection:
            Stasher().stash(connection, OutboxRecord("t", "k", "v"))
            assert not wake_event.wait(0.1)
            connection.commit()
            assert wake_event.wait(WAIT_S)


def test_it_listens_when_the_trigger_appears_and_no_longer_when_it_goes(
    store: PostgresMarkStore, postgres_database: str
) -> None:
    with listening(postgres_database) as wake_event:
        assert wake_event.wait(WAIT_S)
        assert not wake_event.listening
        store.install_notify()
        wait_until(lambda: wake_event.listening, "listening")
        store.install_notify(remove=True)
        wait_until(lambda: not wake_event.listening, "no listening")


def test_a_trigger_that_is_disabled_tells_nobody(
    store: PostgresMarkStore, postgres_database: str
) -> None:
    """Who counted on it would poll as seldom as one that is told of new rows."""
    store.install_notify()
    with (
        listening(postgres_database) as wake_event,
        psycopg.connect(postgres_database, autocommit=True) as other,
    ):
        wait_until(lambda: wake_event.listening, "listening")
        other.execute("ALTER TABLE outbox DISABLE TRIGGER harvest_notify")
        wait_until(lambda: not wake_event.listening, "no listening")
        other.execute("ALTER TABLE outbox ENABLE TRIGGER harvest_notify")
        wait_until(lambda: wake_event.listening, "listening")


def test_a_lost_connection_is_made_again(store: PostgresMarkStore, postgres_database: str) -> None:
    store.install_notify()
    with (
        long_listening(postgres_database) as wake_event,
        psycopg.connect(postgres_database) as other,
    ):
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        assert wake_event.wait(WAIT_S)  # so that the harvester looks by itself
        wait_until(lambda: wake_event.listening, "listening")
        wake_event.clear()
        insert(postgres_database)
        assert wake_event.wait(WAIT_S)


def test_who_cannot_connect_again_does_not_say_that_it_listens(
    store: PostgresMarkStore, postgres_database: str, postgres: EmbeddedPostgres
) -> None:
    """Else the harvester would poll as seldom as one that is told of new rows."""
    store.install_notify()
    store.close()
    with (
        long_listening(postgres_database) as wake_event,
        psycopg.connect(postgres.dsn, autocommit=True) as other,
    ):
        name = psycopg.conninfo.conninfo_to_dict(postgres_database)["dbname"]
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        other.execute(allow.format(sql.Identifier(str(name)), sql.SQL("false")))
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        wait_until(lambda: not wake_event.listening, "no listening")
        other.execute(allow.format(sql.Identifier(str(name)), sql.SQL("true")))
        wait_until(lambda: wake_event.listening, "listening")


def test_a_schema_and_an_odd_name_have_their_own_channel(postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Odd One"')
    odd = TableName.parse('"Odd One"."Out.box"')
    for table in (OUTBOX, odd):
        store = PostgresMarkStore(postgres_database, table)
        store.init()
        assert store.install_notify() is True
        assert store.install_notify() is False
        store.close()
    with long_listening(postgres_database) as wake_event:
        with psycopg.connect(postgres_database) as connection:
            Stasher(odd.quoted()).stash(connection, OutboxRecord("t", "k", "v"))
        assert not wake_event.wait(0.1)
        insert(postgres_database)
        assert wake_event.wait(WAIT_S)


def test_init_makes_and_removes_the_trigger(postgres_database: str) -> None:
    def init(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["init", "-d", postgres_database, *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert json.loads(init("--notify", "--json")) == {
        "table": "outbox",
        "created": True,
        "notify": True,
    }
    with psycopg.connect(postgres_database) as connection:
        query = "SELECT count(*) FROM pg_trigger WHERE tgname = 'harvest_notify'"
        assert connection.execute(query).fetchall() == [(1,)]
        connection.rollback()
        init("--notify")
        init("--no-notify")
        assert connection.execute(query).fetchall() == [(0,)]
