"""A session that the server has ended is told as such by whatever is called next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
import pytest

from harvest import StoreUnavailable
from harvest.core.mark_checkpoint import Term
from harvest.core.range_checkpoint import Position
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal_dead_letters import PostgresWalDeadLetters

Make = Callable[[str], Any]
Call = Callable[[Any], object]

MARK: Final[Make] = lambda dsn: PostgresMarkStore(dsn, "outbox")  # noqa: E731
RANGE: Final[Make] = lambda dsn: PostgresRangeStore(dsn, "ranged")  # noqa: E731
LETTERS: Final[Make] = lambda dsn: PostgresWalDeadLetters(dsn, "outbox")  # noqa: E731

CALLS: Final[dict[str, tuple[Make, Call]]] = {
    "visit": (MARK, lambda store: store.visit("aa")),
    "source": (MARK, lambda store: store.source()),
    "registration": (MARK, lambda store: store.registration()),
    "mark": (MARK, lambda store: store.mark(Term.of(1), 0, 10, 60_000.0)),
    "log end": (MARK, lambda store: store.log_end()),
    "visit in range mode": (RANGE, lambda store: store.visit("aa")),
    "layout": (RANGE, lambda store: store.layout()),
    "positions": (RANGE, lambda store: store.saved()),
    "rewritten positions": (RANGE, lambda store: store.rewrite(1, [Position(1, 0, 1, 0)])),
    "dead letters of wal mode": (LETTERS, lambda letters: letters.add_rows([])),
}


@pytest.fixture
def dsn(postgres_database: str) -> str:
    for make in (MARK, RANGE):
        store = make(postgres_database)
        store.init()
        store.close()
    letters = LETTERS(postgres_database)
    letters.create()
    letters.close()
    return postgres_database


@pytest.mark.parametrize("name", CALLS)
def test_an_ended_session_is_told_and_the_next_call_has_a_new_one(name: str, dsn: str) -> None:
    make, call = CALLS[name]
    store = make(dsn)
    try:
        call(store)
        with psycopg.connect(dsn, autocommit=True) as other:
            (ended,) = other.execute(
                "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE "
                "datname = current_database() AND application_name = 'harvest'"
            ).fetchone() or (0,)
        assert ended >= 1
        with pytest.raises(StoreUnavailable, match="the database broke off a"):
            call(store)
        call(store)
    finally:
        store.close()
