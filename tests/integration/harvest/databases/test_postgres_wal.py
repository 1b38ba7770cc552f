"""The table and the publication of wal mode: what is deleted, and what is refused."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from harvest import OutboxRecord, Stasher
from harvest.core.wal_options import WalOptions
from harvest.core.wal_position import WalPosition
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.pgoutput import NotBinary
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.replication import PostgresWalStream, ReplicationConnection
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import CheckpointError, ConfigurationError, StoreUnavailable, TableMissing


@pytest.fixture
def source(postgres_database: str) -> Iterator[PostgresWalSource]:
    with closing(PostgresWalSource(postgres_database, "outbox")) as made:
        made.init()
        yield made
        made.slot.drop()


def insert(url: str, value: str) -> None:
    with psycopg.connect(url) as connection:
        Stasher().stash(connection, OutboxRecord("t", "k", value))


def there(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [v for (v,) in connection.execute("SELECT kafka_value FROM outbox").fetchall()]


def test_what_is_committed_while_published_rows_are_deleted_stays(
    postgres_database: str, source: PostgresWalSource
) -> None:
    insert(postgres_database, "published")

    places = iter((0, 1 << 62))

    def published() -> int:
        if place := next(places):
            insert(postgres_database, "later")
        return place

    assert source.purge(published) == 1
    assert there(postgres_database) == ["later"]


def test_a_database_whose_log_ends_before_what_is_published_loses_no_rows(
    postgres_database: str, source: PostgresWalSource
) -> None:
    """A replica was promoted that lacks the last commits: its places are others, and what was
    committed there is published by nobody."""
    insert(postgres_database, "committed since it was promoted")
    with pytest.raises(StoreUnavailable, match="has gone back in time"):
        source.purge(lambda: source.slot.log_end() + (1 << 20))
    assert there(postgres_database) == ["committed since it was promoted"]


def test_what_is_not_published_in_time_is_not_deleted(
    postgres_database: str, source: PostgresWalSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.databases.postgres.wal._PURGE_WAIT_S", -1.0)
    insert(postgres_database, "waits")
    assert source.purge(lambda: 0) is None
    assert there(postgres_database) == ["waits"]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("outbox WHERE (id > 5)", "row filter: rows would be passed over"),
        ("outbox (id, kafka_topic)", "kafka_value are missing"),
        ("outbox, other", "must have public.outbox and no other"),
        ("other", "must have public.outbox and no other"),
        ("outbox WITH (publish = 'update')", "does not publish INSERT"),
    ],
)
def test_a_publication_without_all_rows_and_columns_is_refused(
    postgres_database: str, source: PostgresWalSource, of: str, said: str
) -> None:
    source.drop_publication()
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
        connection.execute(f"CREATE PUBLICATION {source.publication_name} FOR TABLE {of}")
    for refused in (source.connect, lambda: source.open(1, None)):
        with pytest.raises(ConfigurationError, match=said):
            refused()


def slots(url: str) -> list[tuple[str, bool]]:
    with psycopg.connect(url) as connection:
        query = (
            "SELECT slot_name, temporary FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
        return connection.execute(query).fetchall()


def readers(url: str) -> int:
    """How many sessions read the log of this database, or may."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE backend_type = 'walsender' AND datname = current_database()"
        )
        for _ in range(100):  # the server hears of the end of a session a moment later
            ((count,),) = connection.execute(query).fetchall()
            if not count:
                break
        return int(count)


def test_rows_from_before_the_slot_are_a_reason_to_make_none(postgres_database: str) -> None:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
    insert(postgres_database, "before")
    with closing(PostgresWalSource(postgres_database, "outbox")) as source:
        with pytest.raises(ConfigurationError, match="1 rows that were committed before the slot"):
            source.init()
        assert slots(postgres_database) == []
        assert source.init(begin_now=True)
        assert len(slots(postgres_database)) == 1
        assert not source.init(), "it is there"
        source.slot.drop()


def test_the_table_of_the_registration_is_made_where_there_is_no_outbox(
    postgres_database: str,
) -> None:
    """Whoever harvests may be allowed to make none."""
    options = WalOptions("message")
    with closing(PostgresWalSource(postgres_database, "outbox", options)) as source:
        source.init()
        assert source._statement("SELECT visit FROM {registration}") == []
        source.slot.drop()


def test_a_first_slot_appears_when_the_table_was_looked_at(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill -9` before leaves none: the purge would take rows from before it for published."""
    seen = []

    def look(self: PostgresWalSource, connection: object) -> None:
        seen.append([name == self.slot.name for name, _ in slots(postgres_database)])
        raise KeyboardInterrupt

    with closing(PostgresWalSource(postgres_database, "outbox")) as source:
        with monkeypatch.context() as patched:
            patched.setattr(PostgresWalSource, "_refuse_rows", look)
            with pytest.raises(KeyboardInterrupt):
                source.init()
        assert seen == [[False]]
        assert readers(postgres_database) == 0
        assert slots(postgres_database) == []
        insert(postgres_database, "before")
        with pytest.raises(ConfigurationError, match="1 rows that were committed before the slot"):
            source.init()


def test_the_first_slot_begins_where_the_table_was_looked_at(postgres_database: str) -> None:
    """Rows that others commit while it is made, and behind it, come."""
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
    with (
        closing(PostgresWalSource(postgres_database, "outbox")) as source,
        psycopg.connect(postgres_database) as writer,
    ):
        refuse_rows = source._refuse_rows

        def look(connection: psycopg.Connection[Any]) -> None:
            Stasher().stash(writer, OutboxRecord("t", "k", "meanwhile"))
            writer.commit()
            refuse_rows(connection)

        source._refuse_rows = look  # type: ignore[method-assign]
        assert source.init()
        insert(postgres_database, "later")
        stream, _ = source.open(1, None)
        with closing(stream):
            found: list[bytes | None] = []
            while len(found) < 2:
                select.select([stream.fileno()], [], [], 1.0)
                stream.keep_alive()
                done = stream.read(100, 1 << 20)
                found += [row[3] for chunk in done.chunks for row in chunk.rows] if done else []
        assert found == [b"meanwhile", b"later"]
        source.slot.drop()


def test_the_first_slot_is_kept_on_replicas(
    postgres_database: str, source: PostgresWalSource
) -> None:
    with psycopg.connect(postgres_database) as connection:
        newer = connection.info.server_version >= 170000
    state = source.slot.state()
    assert state is not None
    assert state.failover is newer


def test_no_slot_goes_on_from_before_all(source: PostgresWalSource) -> None:
    with pytest.raises(CheckpointError, match="made anew"):
        source.begin(source.before_all())


def test_a_slot_whose_making_is_broken_off_is_not_there(
    postgres_database: str, source: PostgresWalSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, which libpq hears of when the server has made the slot."""
    source.slot.drop()
    create_slot = ReplicationConnection.create_slot

    def create(self: ReplicationConnection, name: str, **options: bool) -> object:
        create_slot(self, name, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(ReplicationConnection, "create_slot", create)
    with pytest.raises(KeyboardInterrupt), source.new_slot():
        pass
    assert slots(postgres_database) == []


def test_who_leaves_wal_mode_leaves_no_slot_behind(
    postgres_database: str, source: PostgresWalSource
) -> None:
    """One that nobody reads would keep the server's log for ever."""
    before = slots(postgres_database)
    with source.leaving():
        assert sorted(temporary for _, temporary in slots(postgres_database)) == [False, True]
    assert readers(postgres_database) == 0
    assert slots(postgres_database) == before


def test_what_was_not_left_is_still_there(
    postgres_database: str, source: PostgresWalSource
) -> None:
    insert(postgres_database, "v")

    def leave() -> None:
        with source.leaving() as (_, delete):
            assert delete() == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert there(postgres_database) == ["v"]


@pytest.mark.parametrize(("call", "timeline"), [("open", 1), ("begin", 1), ("open", 2)])
def test_a_position_that_is_refused_leaves_no_session_behind(
    postgres_database: str, source: PostgresWalSource, call: str, timeline: int
) -> None:
    """A server has few walsenders, and a harvester tries again and again."""
    position = WalPosition(1, "another", timeline, 5)
    with pytest.raises(CheckpointError) as refused:
        source.open(1, position) if call == "open" else source.begin(position)
    assert readers(postgres_database) == 0, refused  # which has the frames, and what is in them


def test_rows_are_counted_above_an_id(postgres_database: str, source: PostgresWalSource) -> None:
    for value in "abc":
        insert(postgres_database, value)
    assert [source.count_rows(after) for after in (None, 0, 1, 3)] == [3, 3, 2, 0]


def test_a_table_that_is_gone_is_told_as_such(
    postgres_database: str, source: PostgresWalSource
) -> None:
    with psycopg.connect(postgres_database) as connection:
        connection.execute("DROP TABLE outbox")
    with pytest.raises(TableMissing, match="harvest init"):
        source.purge(lambda: 0)


def test_where_records_are_messages_a_publication_of_other_tables_is_refused(
    postgres_database: str,
) -> None:
    """The first row of one of these would end the stream, and again wherever it is begun anew."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int)")
        connection.execute("CREATE TABLE outbox (id int)")
        connection.execute("CREATE PUBLICATION its_own FOR TABLE outbox")
        connection.execute("CREATE PUBLICATION every FOR ALL TABLES")
    options = WalOptions("message", publication="its_own")
    with closing(PostgresWalSource(postgres_database, "outbox", options)) as source:
        source.connect()
    options = WalOptions("message", publication="every")
    with (
        closing(PostgresWalSource(postgres_database, "outbox", options)) as source,
        pytest.raises(ConfigurationError, match=r"has the table public\.orders, must have none"),
    ):
        source.connect()


def read_values(stream: PostgresWalStream, rows: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    while len(values) < rows:
        select.select([stream.fileno()], [], [], 1.0)
        done = stream.read(100, 1_000_000)
        values += [row[3] for chunk in (done.chunks if done else ()) for row in chunk.rows]
    return values


def test_types_may_change_while_the_log_is_read(postgres_database: str) -> None:
    """Also to one that the table does not have any more when its rows are read. PostgreSQL allows
    it where the publication does not name its columns."""
    types = ("text", "jsonb", "short", "integer", "text")
    with closing(PostgresWalSource(postgres_database, "outbox")) as source:
        with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
            store.init()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute("CREATE PUBLICATION harvest_outbox FOR TABLE outbox")
        source.init()
        stream, _ = source.open(1, None)
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute("CREATE DOMAIN short AS text")
            for value_type in types:
                connection.execute(
                    f"ALTER TABLE outbox ALTER kafka_value TYPE {value_type} "
                    f"USING (kafka_value::text)::{value_type}"
                )
                connection.execute(
                    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
                    "kafka_header_keys, kafka_header_values) VALUES (now(), 't', 'k', '7', '{}', "
                    "'{}')"
                )
        with closing(stream), pytest.raises(NotBinary, match="column kafka_value"):
            read_values(stream, len(types))
        again, _ = source.open(1, None)
        with closing(again):
            values = read_values(again, len(types))
        source.slot.drop()
    assert values == [b"7"] * len(types)


@pytest.mark.parametrize("value_type", ["jsonb", "text"], ids=["text form", "binary form"])
@pytest.mark.parametrize("header_type", ["text[]", "bytea[]"])
@pytest.mark.parametrize(
    "form",
    ["{{{0},{1}}}", "[0:1]={{{0},{1}}}", "{{{{{0}}},{{{1}}}}}", "[5:6][0:0]={{{{{0}}},{{{1}}}}}"],
)
def test_headers_are_the_same_in_each_mode(
    postgres_database: str, value_type: str, header_type: str, form: str
) -> None:
    """Whatever shape the arrays have, and whether the log comes in text or in binary form."""
    values = form.format(r'"\\x00ff"' if header_type == "bytea[]" else '"{a,\'b=\\"\\\\"', "NULL")
    wanted = ((b"n", b"m"), (b"\x00\xff" if header_type == "bytea[]" else b"{a,'b=\"\\", None))
    with closing(PostgresRangeStore(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(
                f"ALTER TABLE outbox ALTER kafka_value TYPE {value_type} USING NULL, "
                "ALTER kafka_key TYPE bytea USING NULL, "
                f"ALTER kafka_header_values TYPE {header_type} USING NULL"
            )
            # What a database is set to changes nothing.
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET bytea_output = 'escape'").format(
                    sql.Identifier(connection.info.dbname)
                )
            )
        with closing(PostgresWalSource(postgres_database, "outbox")) as source:
            source.init()
            with psycopg.connect(postgres_database) as connection:
                connection.execute(
                    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
                    "kafka_header_keys, kafka_header_values) "
                    "VALUES (now(), 't', '\\x006b', '7', %s, %s)",
                    (form.format("n", "m"), values),
                )
            store.connect()
            (row,) = store.read(0, 10).rows
            stream, _ = source.open(1, None)
            with closing(stream):
                while (done := stream.read(10, 1_000_000)) is None or not done.chunks:
                    select.select([stream.fileno()], [], [], 1.0)
            source.slot.drop()
    ((of_the_log,),) = [chunk.rows for chunk in done.chunks]
    assert tuple(row[2:]) == tuple(of_the_log[2:])
    assert row[4:6] == wanted
