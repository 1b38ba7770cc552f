"""Rows that the database cannot hand over: they are set aside, and all others are published."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from harvest import Harvest
from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.core.dead_letters import BadRow, BadRowFilter
from harvest.core.interfaces.dead_letter_store import Dropped, Selection
from harvest.core.interfaces.range_store import Window
from harvest.core.mark_checkpoint import Term
from harvest.core.row import Row, named
from harvest.databases.mysql.dead_letters import MysqlDeadLetters
from harvest.databases.mysql.mark import MysqlMarkStore
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.mysql.table import connect_arguments
from harvest.databases.postgres import range as range_module
from harvest.databases.postgres.attempts import Attempt, PostgresAttempts
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.encoding import Converter
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import forget, wait_until
from tests.support.http_server import http_server
from tests.support.kafka_reader import read_topic

TERM = Term.of(1)
LONG_MS = 60_000.0
ALL = Selection()
BAD = b"caf\xe9"  # Latin-1, in a database that does not mind
ROWS: list[tuple[str | bytes, bytes]] = [
    ("a", b"1"),
    ("b", BAD),
    ("c", b"3"),
    (BAD, b"4"),
    ("e", b"5"),
    ("b", b"6"),
    ("g", b"7"),
]
"""Keys and values."""
GOOD = {b"1", b"3", b"5", b"7"}


@pytest.fixture
def url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database that takes any bytes for text."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    yield postgres.dsn_of(name)
    postgres.drop_database(name)


def insert(url: str, topic: str = "t") -> None:
    with psycopg.connect(url, client_encoding="SQL_ASCII") as connection:
        for key, value in ROWS:
            connection.execute(
                "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
                "kafka_header_keys, kafka_header_values) VALUES "
                "(now(), %s, convert_from(%s, 'SQL_ASCII'), convert_from(%s, 'SQL_ASCII'), "
                "'{}', '{}')",
                (topic, key if isinstance(key, bytes) else key.encode(), value),
            )


def test_mark_mode_marks_every_row_and_says_which_cannot_be_read(url: str) -> None:
    with closing(PostgresMarkStore(url, "outbox")) as store:
        store.init()
        insert(url)
        assert store.topics() == ["t"]
        rows: list[Row] = []
        for batch in range(20):
            rows += store.mark(TERM, batch, 100, LONG_MS)
        assert [row.id for row in rows] == [1, 2, 3, 4, 5, 6, 7]
        bad = BadRowFilter().find_bad(rows)
        assert [(row.id, row.waits) for row in bad] == [(2, False), (4, False), (6, True)]
        assert 'invalid byte sequence for encoding "UTF8": 0xe9' in bad[0].error
        with closing(PostgresDeadLetters(url, "outbox")) as dead_letters:
            assert dead_letters.add(bad, TERM) == {2, 4, 6}
            assert dead_letters.waiting_keys() == {("t", b"b"): 2, ("t", BAD): 4}
            found = dead_letters.rows(ALL, 10)
            assert [(row.id, row.topic, row.key) for row in found] == [
                (2, "t", b"b"),
                (4, "t", BAD),
                (6, "t", b"b"),
            ]
            assert dead_letters.retry(Selection(topic="t"), mode="mark") == 3
        assert store.backlog().rows == 7


def test_a_row_that_cannot_be_read_gives_no_more_time_to_mark(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a leader that was paused could take rows from its successor."""
    with closing(PostgresMarkStore(url, "outbox")) as store:
        store.init()
        insert(url)
        execute, until = store._execute, []

        def noted(statement: Any, parameters: Any = (), **options: Any) -> Any:
            if len(parameters) == 5:
                until.append(parameters[4])
            return execute(statement, parameters, **options)

        monkeypatch.setattr(store, "_execute", noted)
        assert [row.id for row in store.mark(TERM, 0, 4, LONG_MS)] == [1]
        assert len(until) == 3
        assert len(set(until)) == 1


@pytest.mark.parametrize("shards", [1, 3])
def test_range_mode_gives_each_row_to_one_shard(url: str, shards: int) -> None:
    stores = [PostgresRangeStore(url, "outbox", shard=n, shards=shards) for n in range(shards)]
    stores[0].init()
    insert(url)
    windows: list[Row] = []
    fetched: list[Row] = []
    for store in stores:
        after, full = 0, True
        while full:
            window = store.read(after, 100)
            assert window.missing == ()
            windows += named(window.rows)
            after, full = window.last_id, window.full
        assert after == len(ROWS)
        fetched += named(store.fetch([(1, 2), (3, len(ROWS))]))
    for rows in (windows, fetched):
        rows.sort()
        assert [row.id for row in rows] == [1, 2, 3, 4, 5, 6, 7]
        assert [r.id for r in BadRowFilter().find_bad(rows) if not r.waits] == [2, 4]
    for store in stores:
        store.close()


def test_range_mode_reads_what_is_there_when_one_was_deleted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it looked for what of the row can be read."""
    with closing(PostgresRangeStore(url, "outbox")) as store, psycopg.connect(url) as other:
        store.init()
        insert(url)
        fetch, gone = store._fetch, ["id = 2", "id > 1"]

        def deleted(template: Any, parameters: Any) -> Any:
            if template == range_module._NEXT:
                with other.transaction():
                    other.execute(f"DELETE FROM outbox WHERE {gone.pop(0)}")
            return fetch(template, parameters)

        monkeypatch.setattr(store, "_fetch", deleted)
        window = store.read(1, 100)
        assert [(row.id, row.value) for row in named(window.rows)] == [(3, b"3")]
        assert (window.last_id, window.missing) == (3, [(2, 2)])
        assert store.read(3, 100) == Window([], 3)


def lose_second_value(connection: psycopg.Connection[Any]) -> None:
    """As a disk that forgets what is beside the table does."""
    its = "SELECT tableoid FROM outbox LIMIT 1"  # of range mode's, a partition
    query = f"SELECT reltoastrelid::regclass FROM pg_class WHERE oid = ({its})"
    ((toast,),) = connection.execute(query).fetchall()
    second = f"SELECT DISTINCT chunk_id FROM {toast} ORDER BY 1 OFFSET 1 LIMIT 1"
    kind = f"UPDATE pg_class SET relkind = '{{}}' WHERE oid = '{toast}'::regclass"
    connection.execute("SET allow_system_table_mods = on")
    connection.execute(kind.format("r"))  # for nobody may write to any other
    connection.execute(f"DELETE FROM {toast} WHERE chunk_id = ({second})")
    connection.execute(kind.format("t"))
    connection.execute("VACUUM outbox")  # until then it is found all the same


@pytest.mark.parametrize("store_class", [PostgresMarkStore, PostgresRangeStore])
def test_a_damaged_row_is_set_aside_with_what_is_left_of_it(
    postgres_database: str, store_class: type[PostgresMarkStore | PostgresRangeStore]
) -> None:
    """And it is not put back: what is lost would be published as NULL, a tombstone."""
    with closing(store_class(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute("ALTER TABLE outbox ALTER kafka_value SET STORAGE EXTERNAL")
            for key in "abc":
                connection.execute(
                    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
                    "kafka_header_keys, kafka_header_values) "
                    "VALUES (now(), 't', %s, repeat(%s, 9000), '{h}', '{1}')",
                    (key, key),
                )
            lose_second_value(connection)
        rows: list[Row] = []
        if isinstance(store, PostgresMarkStore):
            for batch in range(5):
                rows += store.mark(TERM, batch, 100, LONG_MS)
        else:
            while len(rows) < 3:
                rows += named(store.read(len(rows), 100).rows)
        bad = [*BadRowFilter().find_bad(rows), BadRow(1, "bad"), BadRow(3, "bad")]
        assert [row.id for row in bad] == [2, 1, 3]
        term = TERM if isinstance(store, PostgresMarkStore) else None
        with closing(PostgresDeadLetters(postgres_database, "outbox")) as dead_letters:
            assert dead_letters.add(bad, term) == {1, 2, 3}
            found = dead_letters.rows(ALL, 10)
            assert [(row.key, row.value_bytes) for row in found] == [
                (b"a", 9000),
                (b"b", None),
                (b"c", 9000),
            ]
            assert "missing chunk" in found[1].error
            assert found[1].error.endswith("; the database has lost its kafka_value")
            assert dead_letters.retry(ALL, mode="mark" if term else "range") == 2
            assert [row.key for row in dead_letters.rows(ALL, 10)] == [b"b"]
            assert dead_letters.drop(ALL, mode="mark" if term else "range") == Dropped(1, 0)


def test_times_that_python_does_not_have(postgres_database: str) -> None:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            for time in ("-infinity", "infinity", "4000-01-01 BC", "20000-01-01"):
                connection.execute(
                    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, "
                    "kafka_header_values) VALUES (%s, 't', 'k', '{}', '{}')",
                    (time,),
                )
        assert (store.backlog().oldest_age_s or 0) > 5_900 * 365 * 86_400
        store.mark(TERM, 0, 10, LONG_MS)
        with closing(PostgresDeadLetters(postgres_database, "outbox")) as dead_letters:
            dead_letters.add([BadRow(n, "bad") for n in (1, 2, 3, 4)], TERM)
            assert [row.create_time for row in dead_letters.rows(ALL, 10)] == [None] * 4


def test_what_our_words_have_and_a_database_has_not(postgres: EmbeddedPostgres) -> None:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )
    url = postgres.dsn_of(name)
    with closing(PostgresMarkStore(url, "outbox")) as store:
        store.init()
        insert(url)  # all of it is text in Latin-1
        rows = store.mark(TERM, 0, 100, LONG_MS)
        assert rows[3].key == "café".encode()
        with closing(PostgresDeadLetters(url, "outbox")) as dead_letters:
            dead_letters.add([BadRow(1, "5 → 6")], TERM)
            assert dead_letters.rows(ALL, 10)[0].error == "5 \\u2192 6"
        with closing(PostgresAttempts(url, "outbox")) as attempts:
            attempts.record([Attempt(2, "hook", 3, "HTTP 500: zürich → 東京", 500, False)])
            assert attempts.load() == {2: 3}
        with closing(Converter(url)) as converter:
            assert converter.to_utf8(b"caf\xe9") == "café".encode()
    postgres.drop_database(name)


def test_a_nul_in_an_error_keeps_no_row_from_being_set_aside(postgres_database: str) -> None:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, "
                "kafka_header_values) VALUES (now(), 't', 'k', '{}', '{}')"
            )
        store.mark(TERM, 0, 10, LONG_MS)
    with closing(PostgresDeadLetters(postgres_database, "outbox")) as dead_letters:
        assert dead_letters.add([BadRow(1, "a\x00b")], TERM) == {1}
        assert dead_letters.rows(ALL, 10)[0].error == "ab"


@pytest.mark.kafka
@pytest.mark.parametrize("mode", ["mark", "idempotent", "range", "relay", "wal"])
def test_all_others_are_published(
    url: str, mode: str, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic()
    store_class = {"range": PostgresRangeStore, "wal": PostgresWalSource}.get(
        mode, PostgresMarkStore
    )
    with closing(store_class(url, "outbox")) as store:
        store.init()
    insert(url, topic)
    with http_server() as receiver:
        given: dict[str, Any] = {
            "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
            "database": url,
            "group": topic,
            "mode": mode if mode in ("range", "wal") else "mark",
            "delivery": "idempotent" if mode == "idempotent" else "transactional",
            "coordination": {"topic": f"{topic}.marshal", "create_topics": True},
        }
        if mode == "relay":
            given["destinations"] = {"hook": {"http": {"uri": f"{receiver.url}/"}}}
        harvest = Harvest(validated(ReaperConfig, given, "the test")).start()

        def published() -> list[bytes]:
            found = read_topic(kafka.bootstrap_servers, topic)
            return [value or b"" for _, value, _ in found] + list(receiver.bodies())

        with closing(PostgresDeadLetters(url, "outbox")) as dead_letters:
            wait_until(lambda: set(published()) == GOOD, "the good rows")
            wait_until(lambda: dead_letters.count() == 3, "the others are set aside")
            assert "cannot hand it over" in dead_letters.rows(ALL, 1)[0].error
        assert sorted(published()) == sorted(GOOD)
        harvest.stop()
        harvest.await_(30)
    if mode == "wal":
        with closing(PostgresWalSource(url, "outbox")) as source:
            source.slot.drop()
        with psycopg.connect(url) as connection:
            query = "SELECT kafka_key, kafka_value FROM outbox_dead_letters ORDER BY id"
            kept = connection.execute(query).fetchall()
        assert kept == [(b"b", BAD), (BAD, b"4"), (b"b", b"6")]
    forget(kafka, topic)


@pytest.mark.parametrize("store_class", [MysqlMarkStore, MysqlRangeStore])
def test_columns_of_other_types_in_mariadb(
    mariadb_database: str, store_class: type[MysqlMarkStore | MysqlRangeStore]
) -> None:
    with closing(store_class(mariadb_database, "outbox")) as store:
        store.init()
        with pymysql.connect(**connect_arguments(mariadb_database), autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute(
                "ALTER TABLE outbox MODIFY kafka_topic VARBINARY(249) NOT NULL, "
                "MODIFY kafka_key DECIMAL(40, 2) NOT NULL"
            )
            cursor.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
                "kafka_header_values) VALUES ('t', 12345678901234567890.12, '1', '[]', '[]'), "
                "(X'CAFE', 1, '2', '[]', '[]'), ('t', 2, '3', '[\"\\\\ud800\"]', '[\"x\"]')"
            )
        if isinstance(store, MysqlMarkStore):
            rows = store.mark(TERM, 0, 10, LONG_MS)
        else:
            rows = named(store.read(0, 10).rows)
        assert (rows[0].topic, rows[0].key) == ("t", b"12345678901234567890.12")
        bad = BadRowFilter().find_bad(rows)
        assert [row.id for row in bad] == [2, 3]
        assert store.backlog().rows == 3
        assert isinstance(store.backlog().oldest_age_s, float)
        with closing(MysqlDeadLetters(mariadb_database, "outbox")) as dead_letters:
            term = TERM if isinstance(store, MysqlMarkStore) else None
            assert dead_letters.add(bad, term) == {2, 3}
            assert [row.id for row in dead_letters.rows(ALL, 10)] == [2, 3]
