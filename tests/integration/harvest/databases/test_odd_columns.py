"""Tables of one's own: columns of odd types, and rows that have what `harvest init` forbids."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pymysql
import pytest

from harvest.core.dead_letters import BadRowFilter
from harvest.core.interfaces.dead_letter_store import Selection
from harvest.core.mark_checkpoint import Term
from harvest.core.row import named
from harvest.databases.mysql.dead_letters import MysqlDeadLetters
from harvest.databases.mysql.mark import MysqlMarkStore
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.mysql.table import connect_arguments
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.sqlite.dead_letters import SqliteDeadLetters
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.databases.sqlite.range import SqliteRangeStore
from harvest.errors import SchemaError

TERM = Term.of(1)
ALL = Selection()
INSERT: Final = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, "
    "kafka_header_values) VALUES (CURRENT_TIMESTAMP, {topic}, 'k', '{headers}', '{headers}')"
)
SQLITE: Final = (
    "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, create_time {time} NOT NULL, "
    "kafka_topic STRING, kafka_key TEXT NOT NULL, kafka_value TEXT, "
    "kafka_header_keys JSON NOT NULL, kafka_header_values JSON NOT NULL, leader_id BLOB)"
)


def read(store: Any) -> list[Any]:
    store.connect()
    mark = getattr(store, "mark", None)
    rows = store.read(0, 10).rows if mark is None else mark(TERM, 0, 10, 60_000.0)
    return named(rows)


def assert_set_aside(store: Any, dead_letters: Any) -> None:
    """A row without a topic, the first of two, is a dead letter, and can be retried."""
    assert store.topics() == ["t"]
    assert [topic for _, topic, _ in store.first_rows(0, 10)] == ["", "t"]
    rows = read(store)
    assert [row.topic for row in rows] == ["", "t"]
    (bad,) = BadRowFilter().find_bad(rows)
    assert bad.error.startswith("the topic '' is no name that Kafka allows")
    with closing(dead_letters):
        is_marked = hasattr(store, "mark")
        assert dead_letters.add([bad], TERM if is_marked else None) == {bad.id}
        assert dead_letters.waiting_keys() == {("", b"k"): bad.id}
        assert [row.topic for row in dead_letters.rows(ALL, 10)] == [""]
        assert dead_letters.retry(ALL, mode="mark" if is_marked else "range") == 1


@pytest.mark.parametrize("kind", [PostgresMarkStore, PostgresRangeStore])
def test_a_row_without_a_topic_is_set_aside(
    postgres_database: str, kind: type[PostgresMarkStore | PostgresRangeStore]
) -> None:
    with closing(kind(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database) as connection:
            connection.execute("ALTER TABLE outbox ALTER COLUMN kafka_topic DROP NOT NULL")
            for topic in ("NULL", "'t'"):
                connection.execute(INSERT.format(topic=topic, headers="{}"))
        assert_set_aside(store, PostgresDeadLetters(postgres_database, "outbox"))


@pytest.mark.parametrize("kind", [MysqlMarkStore, MysqlRangeStore])
def test_a_row_without_a_topic_is_set_aside_on_mariadb(
    mariadb_database: str, kind: type[MysqlMarkStore | MysqlRangeStore]
) -> None:
    with closing(kind(mariadb_database, "outbox")) as store:
        store.init()
        with pymysql.connect(**connect_arguments(mariadb_database), autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("ALTER TABLE outbox MODIFY kafka_topic VARCHAR(249) NULL")
            for topic in ("NULL", "'t'"):
                cursor.execute(INSERT.format(topic=topic, headers="[]"))
        assert_set_aside(store, MysqlDeadLetters(mariadb_database, "outbox"))


@pytest.mark.parametrize("kind", [SqliteMarkStore, SqliteRangeStore])
def test_a_row_without_a_topic_is_set_aside_on_sqlite(
    tmp_path: Path, kind: type[SqliteMarkStore | SqliteRangeStore]
) -> None:
    """Whose columns have no type: a topic or headers may be a number."""
    url = f"sqlite:///{tmp_path}/outbox.db"
    with closing(kind(url, "outbox")) as store:
        with closing(sqlite3.connect(tmp_path / "outbox.db")) as connection, connection:
            connection.execute(SQLITE.format(time="TEXT"))
            for topic in ("NULL", "'t'"):
                connection.execute(INSERT.format(topic=topic, headers="[]"))
        store.init()
        assert_set_aside(store, SqliteDeadLetters(url, "outbox"))
        with closing(sqlite3.connect(tmp_path / "outbox.db")) as connection, connection:
            connection.execute("DELETE FROM outbox")
            connection.execute(INSERT.format(topic="'5'", headers="7"))
        (row,) = read(store)
        assert (row.topic, row.header_keys) == ("5", (None,))  # which no sink accepts


@pytest.mark.parametrize("type_name", ["bigint", "text", "time"])
def test_a_time_that_is_none_is_refused_with_the_way_out(
    postgres_database: str, type_name: str
) -> None:
    """Else nobody would know how old rows are, and which to keep."""
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database) as connection:
            connection.execute("ALTER TABLE outbox DROP COLUMN create_time")
            connection.execute(f"ALTER TABLE outbox ADD COLUMN create_time {type_name}")
        (said,) = [f.text for f in store.check() if f.level == "error"]
        assert "make it TIMESTAMP WITH TIME ZONE" in said
        with pytest.raises(SchemaError, match="the column create_time is"):
            store.connect()


def test_a_domain_is_what_it_is_made_of(postgres_database: str) -> None:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database) as connection:
            connection.execute("CREATE DOMAIN moment AS timestamptz; CREATE DOMAIN word AS text")
            connection.execute("ALTER TABLE outbox ALTER COLUMN create_time TYPE moment")
            connection.execute("ALTER TABLE outbox ALTER COLUMN kafka_key TYPE word")
            connection.execute(INSERT.format(topic="'t'", headers="{}"))
        assert all(finding.level == "ok" for finding in store.check())
        assert store.backlog().oldest_age_s is not None
        (row,) = read(store)
        assert row.key == b"k"


@pytest.mark.parametrize("type_name", ["BIGINT", "TEXT", "TIME"])
def test_a_time_that_is_none_is_refused_on_mariadb(mariadb_database: str, type_name: str) -> None:
    with closing(MysqlRangeStore(mariadb_database, "outbox")) as store:
        store.init()
        with pymysql.connect(**connect_arguments(mariadb_database), autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("ALTER TABLE outbox DROP COLUMN create_time")
            cursor.execute(f"ALTER TABLE outbox ADD COLUMN create_time {type_name}")
        (said,) = [f.text for f in store.check() if f.level == "error"]
        assert "make it TIMESTAMP(6)" in said
        with pytest.raises(SchemaError, match="the column create_time is"):
            store.connect()


def test_a_time_that_is_none_is_refused_on_sqlite(tmp_path: Path) -> None:
    with closing(SqliteRangeStore(f"sqlite:///{tmp_path}/outbox.db", "outbox")) as store:
        with closing(sqlite3.connect(tmp_path / "outbox.db")) as connection, connection:
            connection.execute(SQLITE.format(time="INTEGER"))
        store.init()
        with pytest.raises(SchemaError, match=r"create_time is INTEGER.*make it TEXT"):
            store.connect()


@pytest.mark.parametrize("missing", ["leader_id", "leader_id, DROP COLUMN create_time"])
def test_wal_mode_counts_the_rows_of_a_table_that_has_what_is_published_and_no_more(
    postgres_database: str, missing: str
) -> None:
    """As that of range mode, before a switch."""
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
    with psycopg.connect(postgres_database) as connection:
        connection.execute(INSERT.format(topic="'t'", headers="{}"))
        connection.execute(f"ALTER TABLE outbox DROP COLUMN {missing}")
    with closing(PostgresWalSource(postgres_database, "outbox")) as source:
        backlog = source.backlog()
    assert backlog is not None
    assert (backlog.rows, backlog.tagged_rows) == (1, 0)
    assert (backlog.oldest_age_s is None) == ("create_time" in missing)
