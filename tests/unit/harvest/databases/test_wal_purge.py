"""Wal mode deletes rows only of the log whose places are published (specs/HARVEST.md §18)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import StoreUnavailable


class Cursor:
    rowcount = 1

    def __init__(self, *row: Any) -> None:
        self._row = row

    def fetchone(self) -> tuple[Any, ...]:
        return self._row


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
        self.deleted += text.lstrip().startswith("DELETE")
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
