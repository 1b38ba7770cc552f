"""Dead letters of wal mode: what is retried is in the log again, whole and in order, or not."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from harvest.core.dead_letters import BadRow
from harvest.core.interfaces.dead_letter_store import Dropped, Selection
from harvest.core.row import Row
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.postgres.wal_dead_letters import PostgresWalDeadLetters
from harvest.errors import StoreUnavailable

WAIT_S = 60.0
ALL = Selection()


@pytest.fixture
def source(postgres_database: str) -> Iterator[PostgresWalSource]:
    with closing(PostgresWalSource(postgres_database, "outbox")) as made:
        made.init()
        yield made
        made.slot.drop()


@pytest.fixture
def letters(postgres_database: str) -> Iterator[PostgresWalDeadLetters]:
    with closing(PostgresWalDeadLetters(postgres_database, "outbox")) as made:
        yield made


def row(id: int, key: str = "k", **changes: Any) -> Row:
    """As the stream had it."""
    base = Row(id, "t", key.encode(), f"v{id}".encode(), (b"n",), (b"x",))
    return base._replace(**changes)


def bad(id: int, *, waits: bool = False) -> BadRow:
    return BadRow(id, "" if waits else "bad", waits=waits)


def streamed(source: PostgresWalSource, rows: int) -> list[tuple[object, ...]]:
    """What comes of the slot, until there are so many rows; without their ids."""
    stream, _ = source.open(1, None)
    found: list[tuple[object, ...]] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(found) < rows and time.monotonic() < deadline:
            select.select([stream.fileno()], [], [], 1.0)
            stream.keep_alive()
            done = stream.read(1_000, 1 << 20)
            found += [tuple(r[1:]) for chunk in (done.chunks if done else ()) for r in chunk.rows]
        return found
    finally:
        stream.close()


def test_what_is_retried_comes_in_the_order_of_its_ids_with_what_waits(
    source: PostgresWalSource, letters: PostgresWalDeadLetters
) -> None:
    rows = [
        (row(9), bad(9, waits=True)),  # is told of first, and is behind the other
        (row(3), bad(3)),
        (row(5, "other", value=None, header_keys=(), header_values=()), bad(5)),
        (row(2), bad(2, waits=True)),  # is before it
    ]
    assert letters.add_rows(rows) == {3, 5, 9}
    assert letters.add_rows(rows) == {3, 5, 9}, "once more, since nobody knew"
    assert letters.count() == 3
    assert letters.retry(ALL, mode="mark", dry_run=True) == 3
    assert letters.retry(ALL, mode="mark") == 3
    assert letters.count() == 0
    assert streamed(source, 3) == [
        ("t", b"k", b"v3", (b"n",), (b"x",)),
        ("t", b"other", None, (), ()),
        ("t", b"k", b"v9", (b"n",), (b"x",)),
    ]


def test_who_loses_the_lease_while_rows_are_copied_sets_none_aside(
    postgres_database: str, letters: PostgresWalDeadLetters
) -> None:
    letters.create()

    def lost() -> bool:
        with psycopg.connect(postgres_database) as other:
            query = "SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock' AND granted"
            assert other.execute(query).fetchone() != (0,), "asked too soon"
        return False

    with pytest.raises(StoreUnavailable, match="lease"):
        letters.add_rows([(row(3), bad(3))], lost)
    assert letters.count() == 0
    assert letters.add_rows([(row(3), bad(3))]) == {3}


def test_what_was_dropped_does_not_come_and_releases_what_waited(
    source: PostgresWalSource, letters: PostgresWalDeadLetters
) -> None:
    letters.add_rows([(row(3), bad(3)), (row(9), bad(9, waits=True))])
    assert letters.drop(Selection(ids=(3,)), mode="mark") == Dropped(1, 1)
    assert [found[2] for found in streamed(source, 1)] == [b"v9"]


def test_what_could_not_be_retried_is_still_aside_and_does_not_come(
    source: PostgresWalSource, letters: PostgresWalDeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.add_rows([(row(3), bad(3))])

    def fail() -> None:
        raise StoreUnavailable("the server went")

    with monkeypatch.context() as patch:
        patch.setattr(letters, "_forget_attempts", fail)
        with pytest.raises(StoreUnavailable, match="went"):
            letters.retry(ALL, mode="mark")
    assert letters.count() == 1
    letters.add_rows([(row(4, "other"), bad(4))])
    assert letters.retry(Selection(ids=(4,)), mode="mark") == 1
    assert [found[2] for found in streamed(source, 1)] == [b"v4"]


def test_a_header_without_a_value_has_none_whatever_the_database_is_set_to(
    postgres_database: str,
) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        for setting in ("array_nulls = off", "quote_all_identifiers = on"):
            name = sql.Identifier(connection.info.dbname)
            connection.execute(sql.SQL("ALTER DATABASE {} SET ").format(name) + sql.SQL(setting))
    with (
        closing(PostgresWalSource(postgres_database, "outbox")) as source,
        closing(PostgresWalDeadLetters(postgres_database, "outbox")) as letters,
    ):
        source.init()
        assert letters.add_rows([(row(3, header_values=(None,)), bad(3))]) == {3}
        assert letters.retry(ALL, mode="mark") == 1
        assert [found[4] for found in streamed(source, 1)] == [(None,)]
        source.slot.drop()


def test_what_fits_into_no_message_stays(
    source: PostgresWalSource, letters: PostgresWalDeadLetters, postgres_database: str
) -> None:
    del source
    rows = [
        (row(3, "a", header_values=()), bad(3)),
        (row(4, "b", header_keys=(None,)), bad(4)),
        (row(5, "c", header_keys=(b"n" * 65_535,)), bad(5)),
        (row(6, "d", header_keys=(b"n" * 65_536,)), bad(6)),
        (row(7, "e", topic="t" * 65_536), bad(7)),
        (row(8, "f", header_keys=(b"n",) * 65_536, header_values=(None,) * 65_536), bad(8)),
    ]
    assert letters.add_rows(rows) == {3, 4, 5, 6, 7, 8}
    assert letters.retry(ALL, mode="mark") == 1
    with psycopg.connect(postgres_database) as connection:
        found = connection.execute("SELECT id FROM outbox_dead_letters ORDER BY id").fetchall()
    assert found == [(3,), (4,), (6,), (7,), (8,)]
