"""The table of attempts of an earlier version is taken along, or it is said what to do."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from harvest.core.dead_letters import BadRow
from harvest.core.interfaces.dead_letter_store import Selection
from harvest.core.mark_checkpoint import Term
from harvest.databases.postgres.attempts import Attempt, PostgresAttempts
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.errors import SchemaError

EARLIER = """
CREATE TABLE outbox_attempts (
  id BIGINT PRIMARY KEY, destination TEXT NOT NULL, retries INTEGER NOT NULL,
  relay_error TEXT NOT NULL, destination_response_status INTEGER,
  tried_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(), gave_up BOOLEAN NOT NULL
)
"""
INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) VALUES (now(), 't', 'k', 'v', '{}', '{}')"
)
ATTEMPT = Attempt(1, "hook", 3, "HTTP 500", 500, True, ("other",), 5)


def test_its_columns_are_added_when_there_is_something_to_write(postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(EARLIER)
        connection.execute(
            "INSERT INTO outbox_attempts VALUES (9, 'hook', 2, 'HTTP 500', 500, now(), false)"
        )
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(INSERT)
        store.mark(Term.of(1), 0, 10, 60_000)
    with (
        closing(PostgresDeadLetters(postgres_database, "outbox")) as dead_letters,
        closing(PostgresAttempts(postgres_database, "outbox")) as attempts,
    ):
        dead_letters.add([BadRow(1, "x")], Term.of(1))
        assert dead_letters.retry(Selection(), mode="mark") == 1
        assert attempts.load() == {9: 2}
        assert attempts.settled() == {}
        attempts.record([ATTEMPT])
        assert attempts.settled() == {1: (5, frozenset({"other"}))}
        assert attempts.load() == {9: 2}


def test_nothing_is_known_any_more_of_a_row_that_is_dropped(postgres_database: str) -> None:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(INSERT)
            connection.execute(INSERT)
        store.mark(Term.of(1), 0, 10, 60_000)
    with (
        closing(PostgresDeadLetters(postgres_database, "outbox")) as dead_letters,
        closing(PostgresAttempts(postgres_database, "outbox")) as attempts,
    ):
        attempts.record([replace(ATTEMPT, id=row_id) for row_id in (1, 2)])
        dead_letters.add([BadRow(1, "x"), BadRow(2, "x")], Term.of(1))
        assert dead_letters.drop(Selection(ids=(1,)), mode="mark").rows == 1
        assert attempts.settled() == {2: (5, frozenset({"other"}))}


@pytest.mark.parametrize("name", ['a "quoted" one', "back\\slash", "{a,b}", "é", "NULL", ""])
def test_names_of_destinations_come_back_as_they_are(postgres_database: str, name: str) -> None:
    with closing(PostgresAttempts(postgres_database, "outbox")) as attempts:
        attempts.record([replace(ATTEMPT, delivered=(name, "other"))])
        assert attempts.settled() == {1: (5, frozenset({name, "other"}))}


def test_what_is_noted_last_of_a_row_is_what_is_known(postgres_database: str) -> None:
    """Of two notes at once, and of one over another; whatever NULL is in a text of the database."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET array_nulls = off").format(name))
    first = replace(ATTEMPT, gave_up=False)
    last = Attempt(1, "hook2", 4, "down", None, False, ("other", "third"), 6)
    with closing(PostgresAttempts(postgres_database, "outbox")) as attempts:
        tried_at = []
        for notes in ([first], [replace(last, retries=1, delivered=()), last]):
            attempts.record(notes)
            with psycopg.connect(postgres_database) as connection:
                tried_at += connection.execute("SELECT tried_at FROM outbox_attempts").fetchall()
        assert tried_at[0] < tried_at[1]
        assert attempts.load() == {1: 4}
        assert attempts.settled() == {1: (6, frozenset({"other", "third"}))}
        with psycopg.connect(postgres_database) as connection:
            query = "SELECT destination, relay_error, destination_response_status, gave_up"
            found = connection.execute(f"{query} FROM outbox_attempts").fetchall()
        assert found == [("hook2", "down", None, False)]
        attempts.record([replace(last, delivered=(), fingerprint=None, gave_up=True)])
        assert (attempts.load(), attempts.settled()) == ({}, {})


def test_what_one_session_noted_another_knows_and_forgets(postgres_database: str) -> None:
    with closing(PostgresAttempts(postgres_database, "outbox")) as attempts:
        attempts.record([replace(ATTEMPT, gave_up=False)])
        for closes in (True, False, False):
            assert attempts.load() == {1: 3}
            if closes:
                attempts.close()
        attempts.forget([1])
        assert (attempts.load(), attempts.settled()) == ({}, {})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["text", "bytea", "json"])
def test_where_an_earlier_one_of_its_key_is_due_a_row_is_due_as_well(
    postgres_database: str, kind: str, seed: int
) -> None:
    """Of rows of several topics and keys, noted at some of three destinations or not at all."""
    rng = random.Random(seed)
    names = ("a", "b", 'c "c"')
    rows = {n: (rng.choice("tu"), rng.choice("xyz")) for n in range(1, 60)}
    notes = {n: {d for d in names if rng.random() < 0.7} for n in rows if rng.random() < 0.8}
    expected: dict[int, frozenset[str]] = {}
    due: dict[tuple[str, str], set[str]] = {}
    for n, group in rows.items():
        again = due.setdefault(group, set())
        again |= set(names) - notes.get(n, set())
        if left := notes.get(n, set()) - again:
            expected[n] = frozenset(left)
    notes[1_000] = {"a"}  # set aside: no longer in the table, and behind nothing
    expected[1_000] = frozenset("a")
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox DROP kafka_key")
        connection.execute(f"ALTER TABLE outbox ADD kafka_key {kind} NOT NULL")
        for topic, key in rows.values():
            connection.execute(
                "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
                "kafka_header_keys, kafka_header_values) VALUES (now(), %s, %s, 'v', '{}', '{}')",
                (topic, f'"{key}"' if kind == "json" else key),
            )
    with closing(PostgresAttempts(postgres_database, "outbox")) as attempts:
        attempts.forget_overtaken()
        attempts.record(
            [replace(ATTEMPT, id=n, delivered=tuple(sorted(to))) for n, to in notes.items()]
        )
        for _ in range(2):
            attempts.forget_overtaken()
            assert {n: to for n, (_, to) in attempts.settled().items()} == expected
        with psycopg.connect(postgres_database) as connection:
            query = "SELECT count(*) FROM outbox_attempts WHERE retries = 3"
            assert connection.execute(query).fetchone() == (len(notes),)


def test_who_may_not_add_them_says_who_has_to_do_what(postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(EARLIER)
        connection.execute("DROP ROLE IF EXISTS relay")
        connection.execute("CREATE ROLE relay LOGIN")
        connection.execute("GRANT ALL ON outbox_attempts TO relay")
    url = psycopg.conninfo.make_conninfo(postgres_database, user="relay")
    with closing(PostgresAttempts(url, "outbox")) as attempts:
        assert attempts.settled() == {}
        with pytest.raises(SchemaError, match=r"run `ALTER TABLE .*fingerprint.* as its owner"):
            attempts.record([ATTEMPT])
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("DROP OWNED BY relay")
        connection.execute("DROP ROLE relay")
