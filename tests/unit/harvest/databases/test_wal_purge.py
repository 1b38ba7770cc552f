"""Wal mode deletes rows only of the log whose places are published (specs/HARVEST.md §18)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from harvest.databases.postgres import wal_partitions
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.postgres.wal_partitions import PostgresWalPartitions
from harvest.errors import StoreUnavailable
from harvest.maintenance.partitions import Partition


class Cursor:
    rowcount = 1

    def __init__(self, *row: Any) -> None:
        self._row = row

    def fetchone(self) -> tuple[Any, ...]:
        return self._row

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [self._row]


class Server:
    """A connection to a server with rows, whose log ends at a place. It keeps what was deleted."""

    broken = closed = False

    def __init__(self, end: int) -> None:
        self._end = end
        self.deleted = 0

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    def execute(self, statement: Any, parameters: Any = None) -> Cursor:
        del parameters
        text = statement if isinstance(statement, str) else statement.as_string(None)
        if "EXISTS" in text:
            return Cursor(True, str(self._end))
        if "pg_inherits" in text:
            return Cursor("public", "outbox_p0", "FOR VALUES FROM ('0') TO ('100')")
        if "advisory" in text or "insert_lsn" in text:
            return Cursor(str(self._end))
        self.deleted += text.lstrip().startswith(("DELETE", "DROP"))
        return Cursor()


@pytest.fixture
def source() -> PostgresWalSource:
    return PostgresWalSource("", "outbox")


def test_rows_are_deleted_once_all_that_was_in_the_log_is_published(
    source: PostgresWalSource,
) -> None:
    server: Any = Server(500)
    source._connection = server
    places = iter((300, 400, 500))
    assert source.purge(lambda: next(places)) == 1
    assert server.deleted == 1


def test_of_a_database_that_lacks_what_is_published_nothing_is_deleted(
    source: PostgresWalSource,
) -> None:
    """A replica was promoted that lacks the last commits: its places are others, and what was
    committed there since is published by nobody."""
    server: Any = Server(400)
    source._connection = server
    with pytest.raises(StoreUnavailable, match="has gone back in time"):
        source.purge(lambda: 500)
    assert not server.deleted


@pytest.mark.parametrize(("end", "dropped"), [(400, 0), (500, 1), (600, 0)])
def test_a_partition_is_dropped_from_the_log_whose_places_are_published_and_no_other(
    end: int, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_partitions, "_WAIT_S", -1.0)
    partitions = PostgresWalPartitions("", "outbox", lambda: 500)
    server: Any = Server(end)
    partitions._connection = server
    there = Partition("public.outbox_p0", 0, 100)
    if end < 500:
        with pytest.raises(StoreUnavailable, match="has gone back in time"):
            partitions.drop(there)
    else:
        assert partitions.drop(there) is bool(dropped)
    assert server.deleted == dropped
