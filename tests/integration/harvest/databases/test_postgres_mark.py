"""The PostgreSQL store and the Stasher on a real server: tables, types, faults, drivers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from harvest import (
    ConfigurationError,
    NoTransaction,
    OutboxRecord,
    SchemaError,
    Stasher,
    StoreUnavailable,
    TableMissing,
    UnsupportedConnection,
)
from harvest.core.dead_letters import BadRow
from harvest.core.mark_checkpoint import Term
from harvest.core.row import Row
from harvest.core.source import Registration
from harvest.databases.postgres.attempts import Attempt, PostgresAttempts
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from marshal_py.embedded import EmbeddedPostgres

TERM = Term.of(1)
LONG_MS = 60_000.0
RECORD = OutboxRecord("orders", "k", "v", {"a": "1"})

# The table as goharvest's README creates it.
GOHARVEST_TABLE = """
CREATE TABLE IF NOT EXISTS outbox (
  id                  BIGSERIAL PRIMARY KEY,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           VARCHAR(100) NOT NULL,
  kafka_value         VARCHAR(10000),
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values TEXT[] NOT NULL,
  leader_id           UUID
)
"""


@pytest.fixture
def db(postgres_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def url(postgres_database: str, db: psycopg.Connection) -> str:
    db.execute(GOHARVEST_TABLE)
    return postgres_database


def marked(url: str, table: str = "outbox") -> list[Row]:
    store = PostgresMarkStore(url, table)
    try:
        return store.mark(TERM, 0, 1_000, LONG_MS)
    finally:
        store.close()


# --- Tables ---


def test_goharvests_own_table_and_insert_work_unchanged(url: str, db: psycopg.Connection) -> None:
    db.execute(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
        "kafka_header_values) VALUES (NOW(), 'hello', 'ä', 'wörld', '{app,x}', '{y,NULL}')"
    )
    assert marked(url) == [
        Row(1, "hello", "ä".encode(), "wörld".encode(), (b"app", b"x"), (b"y", None))
    ]


def test_a_row_that_goharvest_has_marked_is_taken_over(url: str, db: psycopg.Connection) -> None:
    with db.transaction():
        Stasher().stash(db, RECORD)
    db.execute("UPDATE outbox SET leader_id = gen_random_uuid()")
    assert [row.id for row in marked(url)] == [1]


def test_goharvests_mark_takes_over_our_rows_and_ours_are_valid_uuids(
    url: str, db: psycopg.Connection
) -> None:
    with db.transaction():
        Stasher().stash(db, RECORD)
    marked(url)
    found = db.execute(
        "UPDATE outbox SET leader_id = %(me)s WHERE id IN (SELECT id FROM outbox "
        "WHERE leader_id IS NULL OR leader_id != %(me)s ORDER BY id LIMIT 10) RETURNING id",
        {"me": "6ba7b810-9dad-41d1-80b4-00c04fd430c8"},
    ).fetchall()
    assert found == [(1,)]


@pytest.mark.parametrize("kind", ["BYTEA", "TEXT", "JSON", "JSONB", "CHAR(9)"])
def test_payload_columns_of_other_types(url: str, db: psycopg.Connection, kind: str) -> None:
    db.execute(f"ALTER TABLE outbox DROP COLUMN kafka_value, ADD COLUMN kafka_value {kind}")
    with db.transaction():
        Stasher().stash_many(db, [OutboxRecord("t", "k", '{"a": 1}'), OutboxRecord("t", "k")])
    expected = b'{"a": 1}' if kind != "CHAR(9)" else b'{"a": 1} '
    assert [row.value for row in marked(url)] == [expected, None]


def test_a_column_that_was_missing_for_a_while_may_be_of_another_type(
    url: str, db: psycopg.Connection
) -> None:
    with closing(PostgresMarkStore(url, "outbox")) as store:
        assert store.mark(TERM, 0, 10, LONG_MS) == []
        db.execute("ALTER TABLE outbox DROP COLUMN kafka_value")
        with pytest.raises(SchemaError, match="kafka_value"):
            store.mark(TERM, 1, 10, LONG_MS)
        db.execute("ALTER TABLE outbox ADD COLUMN kafka_value JSONB")
        with db.transaction():
            Stasher().stash(db, OutboxRecord("t", "k", '{"a": 1}'))
        assert [row.value for row in store.mark(TERM, 2, 10, LONG_MS)] == [b'{"a": 1}']


def test_any_bytes_survive_a_bytea_table(postgres_database: str) -> None:
    PostgresMarkStore(postgres_database, "outbox").init(value_type="bytes")
    every = bytes(range(256))
    with psycopg.connect(postgres_database) as connection:
        Stasher().stash(connection, OutboxRecord("t", every, every))
        Stasher().stash(connection, OutboxRecord("t", r"\x41", r"a\\b\'c"))
    rows = marked(postgres_database)
    assert [(row.key, row.value) for row in rows] == [
        (every, every),
        (rb"\x41", rb"a\\b\'c"),
    ]


@pytest.mark.parametrize("table", ["billing.outbox", '"Odd Schema"."Out""box; DROP TABLE x"'])
def test_schemas_and_odd_names(postgres_database: str, db: psycopg.Connection, table: str) -> None:
    db.execute('CREATE SCHEMA billing; CREATE SCHEMA "Odd Schema"')
    store = PostgresMarkStore(postgres_database, table)
    assert store.init() is True
    with db.transaction():
        Stasher(table).stash(db, RECORD)
    assert [row.topic for row in marked(postgres_database, table)] == ["orders"]
    assert store.purge([1], [TERM.tag(0)]) == 1
    assert store.backlog().rows == 0
    assert all(finding.level == "ok" for finding in store.check())
    store.close()


def test_a_table_of_ours_marks_in_place(postgres_database: str, db: psycopg.Connection) -> None:
    store = PostgresMarkStore(postgres_database, "outbox")
    store.init()
    with db.transaction():
        Stasher().stash_many(db, [RECORD] * 20)
    where = "SELECT (ctid::text::point)[0] FROM outbox ORDER BY id"
    pages = db.execute(where).fetchall()
    assert len(store.mark(TERM, 0, 20, LONG_MS)) == 20
    store.close()
    assert db.execute(where).fetchall() == pages


# --- Findings and errors ---


def test_a_missing_table(postgres_database: str) -> None:
    store = PostgresMarkStore(postgres_database, "outbox")
    with pytest.raises(TableMissing, match="run `harvest init`"):
        store.connect()
    assert [f.subject for f in store.check() if f.level == "error"] == ["table"]
    store.close()


def test_wrong_columns_are_named(url: str, db: psycopg.Connection) -> None:
    db.execute(
        "ALTER TABLE outbox DROP COLUMN kafka_header_keys, DROP COLUMN leader_id, "
        "ADD COLUMN leader_id VARCHAR(36), DROP CONSTRAINT outbox_pkey"
    )
    store = PostgresMarkStore(url, "outbox")
    with pytest.raises(SchemaError, match=r"kafka_header_keys is missing.*leader_id is character"):
        store.connect()
    errors = [finding.text for finding in store.check() if finding.level == "error"]
    assert len(errors) == 3
    assert "ADD PRIMARY KEY (id)" in errors[2]
    store.close()


def test_missing_privileges_are_named(url: str, db: psycopg.Connection) -> None:
    user = f"reader_{db.info.dbname}"
    db.execute(f"CREATE ROLE {user} LOGIN; GRANT SELECT, UPDATE ON outbox TO {user}")
    store = PostgresMarkStore(psycopg.conninfo.make_conninfo(url, user=user), "outbox")
    errors = [finding.text for finding in store.check() if finding.level == "error"]
    assert errors == [f"{user} may not DELETE: GRANT DELETE ON outbox TO {user}"]
    with pytest.raises(SchemaError, match=r"permission denied.*harvest check"):
        store.purge([1], [TERM.tag(0)])
    store.close()
    db.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


def test_policies_that_may_hide_rows_are_told(url: str, db: psycopg.Connection) -> None:
    user = f"reader_{db.info.dbname}"
    db.execute(f"CREATE ROLE {user} LOGIN; GRANT ALL ON outbox TO {user}")
    with closing(
        PostgresMarkStore(psycopg.conninfo.make_conninfo(url, user=user), "outbox")
    ) as store:
        assert [finding for finding in store.check() if finding.level != "ok"] == []
        db.execute("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
        (told,) = [finding for finding in store.check() if finding.level != "ok"]
        assert told.level == "warning"
        assert f"ALTER ROLE {user} BYPASSRLS" in told.text
    db.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


BESIDE = {
    "registration": {"SELECT", "INSERT", "UPDATE"},
    "dead_letters": {"SELECT", "INSERT", "DELETE"},
}


def test_missing_privileges_on_the_tables_beside_are_named(
    url: str, db: psycopg.Connection
) -> None:
    user = f"reaper_{db.info.dbname}"
    db.execute(f"CREATE ROLE {user} LOGIN; GRANT SELECT, UPDATE, DELETE ON outbox TO {user}")
    for name, privileges in BESIDE.items():
        db.execute(
            f"CREATE TABLE outbox_{name} (id int); "
            f"GRANT {', '.join(privileges)} ON outbox_{name} TO {user}"
        )
    store = PostgresMarkStore(psycopg.conninfo.make_conninfo(url, user=user), "outbox")
    try:
        assert not [finding for finding in store.check() if finding.level == "error"]
        for name, privileges in BESIDE.items():
            for privilege in privileges:
                db.execute(f"REVOKE {privilege} ON outbox_{name} FROM {user}")
                errors = [finding.text for finding in store.check() if finding.level == "error"]
                remedy = f"GRANT {privilege} ON outbox_{name} TO {user}"
                assert errors == [f"{user} may not {privilege}: {remedy}"]
                db.execute(remedy)
    finally:
        store.close()
        db.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


RIGHTS = {
    "outbox": "SELECT, UPDATE, DELETE",
    "outbox_registration": "SELECT, INSERT, UPDATE",
    "outbox_dead_letters": "SELECT, INSERT, DELETE",
    "outbox_attempts": "SELECT, INSERT, UPDATE, DELETE",
}


def test_the_rights_that_are_documented_are_enough(
    postgres_database: str, db: psycopg.Connection
) -> None:
    """Without one to make tables, `CREATE TABLE IF NOT EXISTS` is refused for one that is there."""
    with (
        closing(PostgresMarkStore(postgres_database, "outbox")) as store,
        closing(PostgresDeadLetters(postgres_database, "outbox")) as letters,
        closing(PostgresAttempts(postgres_database, "outbox")) as attempts,
    ):
        store.init()
        letters.create()
        attempts.create()
    with db.transaction():
        Stasher().stash(db, RECORD)
    user = f"reaper_{db.info.dbname}"
    db.execute(f"REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {user} LOGIN")
    for table, rights in RIGHTS.items():
        db.execute(f"GRANT {rights} ON {table} TO {user}")
    url = psycopg.conninfo.make_conninfo(postgres_database, user=user)
    ours = Registration("cluster", "topic", "group", "mark")
    with (
        closing(PostgresMarkStore(url, "outbox")) as store,
        closing(PostgresDeadLetters(url, "outbox")) as letters,
        closing(PostgresAttempts(url, "outbox")) as attempts,
    ):
        store.connect()
        assert store.register(ours) == ours
        assert store.visit("one").visit == 1
        (row,) = store.mark(TERM, 0, 9, LONG_MS)
        attempts.record([Attempt(row.id, "crm", 1, "no answer", None, True)])
        assert letters.add([BadRow(row.id, "bad")], TERM) == {row.id}
        attempts.forget([row.id])
    db.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


def test_no_password_in_any_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresMarkStore("host=h password=hush nonsense", "outbox")
    assert "hush" not in str(caught.value)
    store = PostgresMarkStore("host=127.0.0.1 port=1 password=hush", "outbox")
    with pytest.raises(StoreUnavailable) as unreachable:
        store.connect()
    assert "hush" not in str(unreachable.value)


def test_a_killed_server_is_an_outage_that_ends(postgres: EmbeddedPostgres, url: str) -> None:
    store = PostgresMarkStore(url, "outbox")
    store.connect()
    postgres.kill()
    with pytest.raises(StoreUnavailable):
        store.mark(TERM, 0, 1, LONG_MS)
    with pytest.raises(StoreUnavailable):
        store.mark(TERM, 1, 1, LONG_MS)
    postgres.start()
    assert store.mark(TERM, 2, 1, LONG_MS) == []
    store.close()


def test_a_mark_waits_for_a_locked_row_and_can_be_cancelled(
    url: str, db: psycopg.Connection
) -> None:
    with db.transaction():
        Stasher().stash_many(db, [RECORD] * 2)
    store = PostgresMarkStore(url, "outbox")
    store.connect()
    failures: list[BaseException] = []

    def mark() -> None:
        try:
            store.mark(TERM, 0, 10, LONG_MS)
        except StoreUnavailable as error:
            failures.append(error)

    thread = threading.Thread(target=mark, daemon=True)
    with db.transaction():
        db.execute("SELECT 1 FROM outbox WHERE id = 1 FOR UPDATE")
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while db.execute(waiting).fetchone() == (0,):
            pass
        assert thread.is_alive()
        store.cancel()
        thread.join(60)
    assert len(failures) == 1
    assert [row.id for row in store.mark(TERM, 1, 10, LONG_MS)] == [1, 2]
    store.close()


def marked_too_late(url: str, db: psycopg.Connection, change: str, *values: object) -> list[Row]:
    """A mark that waits for what `change` has locked until its time is over."""
    found: list[list[Row]] = []
    with closing(PostgresMarkStore(url, "outbox")) as store, psycopg.connect(url) as other:
        store.connect()
        thread = threading.Thread(target=lambda: found.append(store.mark(TERM, 0, 999, 2_000.0)))
        other.execute(change.encode(), values)
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while db.execute(waiting).fetchone() == (0,):
            assert thread.is_alive()
        db.execute("SELECT pg_sleep(2)")  # by the clock that the mark is judged by
        other.commit()
        thread.join(60)
    (rows,) = found
    return rows


def test_a_mark_that_waited_beyond_its_time_takes_nothing_from_a_successor(
    url: str, db: psycopg.Connection
) -> None:
    with db.transaction():
        Stasher().stash_many(db, [RECORD] * 2)
    tag = Term.of(2).tag(0)
    assert marked_too_late(url, db, "UPDATE outbox SET leader_id = %s", tag) == []
    assert db.execute("SELECT DISTINCT leader_id FROM outbox").fetchall() == [(tag,)]


def test_of_a_mark_that_waited_beyond_its_time_the_last_rows_are_missing(
    url: str, db: psycopg.Connection
) -> None:
    """Wherever rows lie in the table: one that is left out was not sent before a later one."""
    value = OutboxRecord("orders", "k", "v" * 1_000)
    with db.transaction():
        Stasher().stash_many(db, [value] * 200)
    db.execute("DELETE FROM outbox WHERE id <= 20")
    db.execute("VACUUM outbox")
    with db.transaction():
        Stasher().stash(db, value)  # where the first ones were
    found = marked_too_late(url, db, "UPDATE outbox SET kafka_value = 'changed' WHERE id = 100")
    assert [row.id for row in found] == list(range(21, 100))
    assert db.execute("SELECT count(leader_id) FROM outbox").fetchone() == (79,)


# --- The Stasher on this database ---


def test_psycopg_in_pipeline_mode(url: str) -> None:
    with psycopg.connect(url) as connection, connection.pipeline():
        Stasher().stash(connection, RECORD)
        Stasher().stash(connection, RECORD)
    assert len(marked(url)) == 2


def test_psycopg_rows_die_with_a_rollback(url: str) -> None:
    with psycopg.connect(url) as connection:
        Stasher().stash(connection, RECORD)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        connection.rollback()
        with connection.cursor() as cursor:
            Stasher().stash(cursor, RECORD)
    assert len(marked(url)) == 1


def test_psycopg_without_a_transaction_is_refused(db: psycopg.Connection, url: str) -> None:
    with pytest.raises(NoTransaction, match=r"connection\.transaction"):
        Stasher().stash(db, RECORD)
    with pytest.raises(NoTransaction, match=r"connection\.transaction"):
        Stasher().stash_returning(db, [RECORD])
    with db.transaction():
        Stasher().stash(db, RECORD)
        Stasher().stash_returning(db, [RECORD])
    assert len(marked(url)) == 2


def test_psycopg_async(url: str) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            with pytest.raises(UnsupportedConnection, match="astash"):
                Stasher().stash(connection, RECORD)
            await Stasher().astash(connection, RECORD)
            async with connection.cursor() as cursor:
                assert await Stasher().astash_many(cursor, [RECORD] * 3) == 3

    asyncio.run(work())
    assert len(marked(url)) == 4


def test_what_all_records_share_is_added_for_async_connections_too(url: str) -> None:
    def prepare(record: OutboxRecord) -> OutboxRecord:
        return OutboxRecord(record.topic, record.key, record.value, {"shared": "yes"})

    stasher = Stasher(prepare=prepare)

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await stasher.astash(connection, RECORD)

    asyncio.run(work())
    with psycopg.connect(url) as connection:
        stasher.stash(connection, RECORD)
        stasher.stash_returning(connection, [RECORD])
    assert [row.header_keys for row in marked(url)] == [(b"shared",)] * 3


def test_sqlalchemy(url: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        Stasher().stash(connection, RECORD)
    with Session(engine) as session:
        Stasher().stash_many(session, [RECORD] * 2)
        session.commit()
        Stasher().stash(session, RECORD)  # never committed
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, pytest.raises(NoTransaction, match="AUTOCOMMIT"):
        Stasher().stash(connection, RECORD)
    engine.dispose()
    for given in ({"isolation_level": "AUTOCOMMIT"}, {"connect_args": {"autocommit": True}}):
        engine = sqlalchemy.create_engine(engine.url, **given)
        for made in (engine.connect(), Session(engine)):
            with made as connection, pytest.raises(NoTransaction):
                Stasher().stash(connection, RECORD)
        engine.dispose()
    assert len(marked(url)) == 3


def test_sqlalchemy_async(url: str) -> None:
    async def work() -> None:
        engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        async with engine.begin() as connection:
            await Stasher().astash(connection, RECORD)
        await engine.dispose()
        engine = create_async_engine(engine.url, connect_args={"autocommit": True})
        async with engine.connect() as connection:
            with pytest.raises(NoTransaction):
                await Stasher().astash(connection, RECORD)
        await engine.dispose()

    asyncio.run(work())
    assert len(marked(url)) == 1


def test_many_rows_get_ids_in_their_order(url: str, db: psycopg.Connection) -> None:
    with db.transaction():
        assert Stasher().stash_many(db, [OutboxRecord("t", "k", str(n)) for n in range(1_700)])
    store = PostgresMarkStore(url, "outbox")
    rows = store.mark(TERM, 0, 2_000, LONG_MS)
    store.close()
    assert [row.value for row in rows] == [str(n).encode() for n in range(1_700)]
