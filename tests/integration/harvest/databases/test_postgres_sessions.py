"""What a session with PostgreSQL is set to, and what is learned anew in the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from harvest import OutboxRecord, Stasher, StoreUnavailable
from harvest.core.dead_letters import BadRow
from harvest.core.mark_checkpoint import Term
from harvest.core.shards import shard_of
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource

TERM = Term.of(1)
LONG_MS = 60_000.0


@pytest.fixture
def store(postgres_database: str) -> Iterator[PostgresMarkStore]:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as made:
        made.init()
        yield made


def change(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def insert(url: str, *values: str) -> None:
    with psycopg.connect(url) as connection:
        Stasher().stash_many(connection, [OutboxRecord("t", "k", value) for value in values])


def setting(store: Any, name: str) -> str:
    ((found,),) = store._execute(sql.SQL("SELECT current_setting({})").format(name)).fetchall()
    return found.decode() if isinstance(found, bytes) else str(found)


def test_a_dead_network_is_given_up_unless_it_is_asked_to_be_waited_for() -> None:
    given = conninfo_to_dict(PostgresMarkStore("host=h", "outbox").conninfo)
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == ("10", "10000")
    asked = "host=h connect_timeout=3 tcp_user_timeout=5000 client_encoding=LATIN1"
    given = conninfo_to_dict(PostgresMarkStore(asked, "outbox").conninfo)
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == ("3", "5000")
    assert given["client_encoding"] == "UTF8", "records are in UTF-8"


@pytest.mark.parametrize("make", [PostgresMarkStore, PostgresRangeStore])
def test_statements_see_what_is_committed_whatever_the_database_is_set_to(
    postgres_database: str, make: type[PostgresMarkStore | PostgresRangeStore]
) -> None:
    name = conninfo_to_dict(postgres_database)["dbname"]
    change(
        postgres_database,
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'",
        f"ALTER DATABASE {name} SET enable_seqscan = on",
    )
    with closing(make(postgres_database, "outbox")) as store:
        assert setting(store, "transaction_isolation") == "read committed"
        assert setting(store, "enable_seqscan") == "off"


@pytest.mark.parametrize(("durable", "found"), [(True, "on"), (False, "off")])
def test_commits_wait_for_the_disk_unless_they_need_not(
    postgres_database: str, durable: bool, found: str
) -> None:
    with closing(PostgresMarkStore(postgres_database, "outbox", durable=durable)) as store:
        assert setting(store, "synchronous_commit") == found
        assert setting(store, "enable_sort") == "off"


def test_a_server_that_has_become_a_standby_is_left(
    postgres_database: str, store: PostgresMarkStore
) -> None:
    """The next connection finds the primary, if there is one."""
    insert(postgres_database, "v")
    store._execute(sql.SQL("SET default_transaction_read_only = on"))
    with pytest.raises(StoreUnavailable, match="the database is read-only"):
        store.mark(TERM, 0, 10, LONG_MS)
    assert len(store.mark(TERM, 1, 10, LONG_MS)) == 1


def test_a_session_that_cannot_be_set_up_is_closed(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[psycopg.Connection[Any]] = []

    def fail(connection: psycopg.Connection[Any]) -> bool:
        made.append(connection)
        raise psycopg.OperationalError("no answer")

    monkeypatch.setattr("harvest.databases.postgres.notify.behind_pooler", fail)
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        with pytest.raises(StoreUnavailable, match="cannot be reached: no answer"):
            store.ping()
        assert [connection.closed for connection in made] == [True]


def test_columns_that_were_changed_meanwhile_are_read_as_they_are(
    postgres_database: str, store: PostgresMarkStore
) -> None:
    insert(postgres_database, '{"a": 1}')
    store.connect()
    store.close()
    change(
        postgres_database,
        "ALTER TABLE outbox ALTER COLUMN kafka_value TYPE JSONB USING kafka_value::jsonb",
    )
    (row,) = store.mark(TERM, 0, 10, LONG_MS)
    assert row.value == b'{"a": 1}'


@pytest.mark.parametrize("make", [PostgresMarkStore, PostgresRangeStore])
def test_a_type_that_changes_under_a_prepared_statement_is_an_outage_that_ends(
    postgres_database: str, make: type[PostgresMarkStore | PostgresRangeStore]
) -> None:
    with closing(make(postgres_database, "outbox")) as store:
        store.init()
        asked = iter(range(100))

        def rows() -> Sequence[tuple[Any, ...]]:
            if isinstance(store, PostgresMarkStore):
                return store.mark(TERM, next(asked), 10, LONG_MS)
            return store.read(0, 10).rows

        for _ in range(7):  # psycopg prepares what comes often
            assert not rows()
        change(postgres_database, "ALTER TABLE outbox ALTER kafka_value TYPE VARCHAR(50000)")
        insert(postgres_database, "v")
        with suppress(StoreUnavailable):
            assert not rows()
        assert [row[3] for row in rows()] == [b"v"]


@pytest.mark.parametrize("shards", [0, 1, 2], ids=["mark", "range", "shard"])
@pytest.mark.parametrize("column", ["kafka_key", "kafka_value"])
def test_a_type_that_changes_under_a_statement_that_is_not_prepared_is_one_too(
    postgres_database: str, shards: int, column: str
) -> None:
    """As behind a pooler: what came was what Python makes of JSON, and no bytes."""
    store: PostgresMarkStore | PostgresRangeStore = PostgresMarkStore(postgres_database, "outbox")
    if shards:
        mine = shard_of(b'"1"', shards)
        store = PostgresRangeStore(postgres_database, "outbox", shard=mine, shards=shards)
    with closing(store):
        store.init()
        asked = iter(range(100))

        def rows() -> Sequence[tuple[Any, ...]]:
            if isinstance(store, PostgresMarkStore):
                return store.mark(Term.of(next(asked)), 0, 10, LONG_MS)
            return store.read(0, 10).rows

        assert not rows()
        change(
            postgres_database,
            f"ALTER TABLE outbox ALTER {column} TYPE JSONB USING {column}::jsonb",
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values) "
            """VALUES (now(), 't', '"1"', '"1"', '{}', '{}')""",
        )
        with pytest.raises(StoreUnavailable, match="a column of outbox has another type now"):
            rows()
        assert [tuple(row[2:4]) for row in rows()] == [(b'"1"', b'"1"')]


def test_a_topic_is_the_same_when_its_column_comes_to_hold_bytes(postgres_database: str) -> None:
    """As behind a pooler, where nothing is prepared: it came in hex, which is no topic's name."""
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
        assert not store.mark(Term.of(1), 0, 10, LONG_MS)
        change(
            postgres_database,
            "ALTER TABLE outbox ALTER kafka_topic TYPE BYTEA USING convert_to(kafka_topic, 'UTF8')",
        )
        insert(postgres_database, "v")
        (row,) = store.mark(Term.of(2), 0, 10, LONG_MS)
        assert row.topic == "t"
        assert store.topics() == ["t"], "`harvest check` said that there was no such topic"
        assert store.first_rows(0, 9) == [(1, "t", b"k")]


def test_shards_find_the_keys_of_a_column_that_came_to_hold_bytes(postgres_database: str) -> None:
    mine = shard_of(b"k", 2)
    with closing(PostgresRangeStore(postgres_database, "outbox", shard=mine, shards=2)) as store:
        store.init()
        assert not store.read(0, 10).rows
        change(
            postgres_database,
            "ALTER TABLE outbox ALTER kafka_key TYPE BYTEA USING convert_to(kafka_key, 'UTF8')",
        )
        insert(postgres_database, "v")
        with pytest.raises(StoreUnavailable, match="function convert_to"):
            store.read(0, 10)
        assert [tuple(row[2:4]) for row in store.read(0, 10).rows] == [(b"k", b"v")]


def test_rows_that_come_in_another_order_are_sorted(
    postgres_database: str, store: PostgresMarkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RETURNING promises none."""
    insert(postgres_database, *"abcd")
    execute = store._execute

    def backwards(*given: Any, **options: Any) -> Any:
        cursor = execute(*given, **options)
        if not options.get("binary"):
            return cursor
        found = cursor.fetchall()[::-1]
        monkeypatch.setattr(store, "_execute", execute)

        class Cursor:
            pgresult = None

            def fetchall(self) -> list[Any]:
                return found

        return Cursor()

    store.connect()
    monkeypatch.setattr(store, "_execute", backwards)
    rows = store.mark(TERM, 0, 10, LONG_MS)
    assert [row.value for row in rows] == [b"a", b"b", b"c", b"d"]


def test_a_sequence_that_was_made_anew_meanwhile_is_the_one_that_is_asked(
    postgres_database: str,
) -> None:
    with closing(PostgresRangeStore(postgres_database, "outbox")) as store:
        store.init()
        insert(postgres_database, *"abc")
        before = store.bounds().last
        store.close()
        change(
            postgres_database,
            "ALTER TABLE outbox ALTER COLUMN id DROP DEFAULT",
            "DROP SEQUENCE outbox_id_seq",
            "CREATE SEQUENCE outbox_id_seq START 100 OWNED BY outbox.id",
            "ALTER TABLE outbox ALTER COLUMN id SET DEFAULT nextval('outbox_id_seq')",
        )
        insert(postgres_database, "d")
        assert (before, store.bounds().last, store.holders().drawn) == (3, 100, 100)


def test_dead_letters_are_looked_for_again_in_another_session(
    postgres_database: str, store: PostgresMarkStore
) -> None:
    """It may be another server, or a backup from before the table was made."""
    insert(postgres_database, "v")
    (row,) = store.mark(TERM, 0, 10, LONG_MS)
    with closing(PostgresDeadLetters(postgres_database, "outbox")) as letters:
        letters.create()
        assert letters.count() == 0
        letters.close()
        change(postgres_database, "DROP TABLE outbox_dead_letters")
        assert letters.add([BadRow(row.id, "bad")], TERM) == {row.id}


@pytest.mark.parametrize(
    ("index", "level"),
    [
        ("CREATE INDEX one ON outbox (id)", "ok"),
        ("CREATE INDEX one ON outbox (id) WHERE leader_id IS NULL", "error"),
        ("CREATE INDEX one ON outbox (leader_id, id)", "error"),
    ],
)
def test_an_index_that_does_not_have_each_row_by_its_id_is_none(
    postgres_database: str, store: PostgresMarkStore, index: str, level: str
) -> None:
    change(postgres_database, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", index)
    (found,) = [finding for finding in store.check() if finding.subject == "index"]
    assert found.level == level


def used_wal(url: str) -> list[object]:
    with closing(PostgresWalSource(url, "outbox")) as source:
        source.init()
        source.connect()
        source.health()
        source.backlog()
        stream, _ = source.open(1, None)
        stream.close()
        return [source, stream]


def used_range(url: str) -> list[object]:
    with closing(PostgresRangeStore(url, "outbox")) as store:
        store.init()
        store.connect()
        return [store]


def used_letters(url: str) -> list[object]:
    used_range(url)
    with closing(PostgresDeadLetters(url, "outbox")) as letters:
        letters.create()
        letters.count()
        return [letters]


@pytest.mark.parametrize("use", [used_wal, used_range, used_letters])
def test_what_is_closed_has_no_session_left(
    postgres_database: str, use: Callable[[str], list[object]]
) -> None:
    kept = use(postgres_database)  # else what is lost is closed, too
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        for _ in range(1_000):  # the server hears of the end of a session a moment later
            ((left,),) = connection.execute(query).fetchall()
            if not left:
                break
        assert left == 0, kept
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
