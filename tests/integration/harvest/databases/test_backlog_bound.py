"""A look at the backlog is short however long it is: the first rows are counted."""

from __future__ import annotations

import importlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harvest import OutboxRecord, Stasher
from harvest.core.dead_letters import BadRow
from harvest.core.interfaces.mark_store import Backlog
from harvest.core.mark_checkpoint import Term
from harvest.core.range_checkpoint import Position
from harvest.core.table_name import TableName
from harvest.databases.registry import Database, database
from tests.support.databases import MYSQL

OUTBOX = TableName(("outbox",))
MODULES = ("mark", "range", "dead_letters")


@pytest.fixture(params=["postgres", "mariadb", MYSQL, "sqlite"])
def tables(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    kind = {"mariadb": "mysql"}.get(request.param, request.param)
    for name in (*(f"{kind}.{module}" for module in MODULES), "portable_dead_letters"):
        module = importlib.import_module(f"harvest.databases.{name}")
        monkeypatch.setattr(module, "COUNTED", 3, raising=False)
    if request.param == "sqlite":
        return database(f"sqlite:///{tmp_path}/outbox.db")
    return database(request.getfixturevalue(f"{request.param}_database"))


def insert(tables: Database, count: int) -> None:
    with tables.transaction() as connection:
        Stasher().stash_many(connection, [OutboxRecord("t", f"k{n}", "v") for n in range(count)])


def told(backlog: Backlog) -> tuple[int, bool]:
    assert backlog.rows == 0 or backlog.oldest_age_s is not None
    return backlog.rows, backlog.estimated


def test_in_mark_mode(tables: Database) -> None:
    with closing(tables.mark_store(OUTBOX)) as store:
        store.init()
        assert told(store.backlog()) == (0, False)
        insert(tables, 3)
        assert told(store.backlog()) == (3, False)
        store.mark(Term.of(1), 0, 2, 60_000)
        insert(tables, 4)
        assert told(store.backlog()) == (7, True)
        assert store.backlog().tagged_rows == 2
        with closing(tables.dead_letters(OUTBOX)) as dead_letters:
            store.mark(Term.of(1), 1, 9, 60_000)
            dead_letters.add([BadRow(n, "x") for n in range(1, 8)], Term.of(1))
            assert dead_letters.count() == 3


@pytest.mark.parametrize("shards", [1, 2])
def test_in_range_mode(tables: Database, shards: int) -> None:
    with closing(tables.range_store(OUTBOX, shards=shards)) as store:
        store.init()
        insert(tables, 3)
        assert told(store.backlog()) == (3, False)
        insert(tables, 5)
        assert told(store.backlog()) == (8, True)
        position: Any = Position(0, 0, shards, 6)
        assert told(store.backlog(position)) == (2, False)


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_a_row_from_the_future_has_no_negative_age(tables: Database, shards: int) -> None:
    """The application's clock may be ahead. Without shards: mark mode."""
    made: Any = tables.range_store(OUTBOX, shards=shards) if shards else tables.mark_store(OUTBOX)
    with closing(made) as store:
        store.init()
        insert(tables, 1)
        with tables.transaction() as connection:
            connection.cursor().execute("UPDATE outbox SET create_time = '2037-12-31 00:00:00'")
        assert (store.backlog().rows, store.backlog().oldest_age_s) == (1, 0)
