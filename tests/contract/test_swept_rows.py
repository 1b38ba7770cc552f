"""Published rows are deleted where there are no partitions to drop: SQLite, MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from harvest.core.range_checkpoint import Position
from harvest.core.table_name import TableName
from harvest.databases import swept_rows
from harvest.databases.registry import Database, database
from harvest.maintenance.partitions import PartitionPolicy, PartitionStore, carry_out, plan
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher
from tests.support.databases import MYSQL

OUTBOX = TableName(("outbox",))
HOUR_S = 3600.0
TWO_HOURS_AGO = {"sqlite": "datetime('now', '-2 hours')", "mysql": "NOW(6) - INTERVAL 2 HOUR"}


class Rows:
    """An outbox of range mode with ten rows, and what sweeps it."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.tables: Database = database(url)
        with closing(self.tables.range_store(OUTBOX)) as store:
            store.init()
        with self.tables.transaction() as connection:
            Stasher().stash_many(connection, [OutboxRecord("t", "k", str(n)) for n in range(10)])
        self.sweeper: PartitionStore = self.tables.partitions(OUTBOX)

    def make_old(self, condition: str) -> None:
        with self.tables.transaction() as connection, closing(connection.cursor()) as cursor:
            cursor.execute(
                f"UPDATE outbox SET create_time = {TWO_HOURS_AGO[self.kind]} WHERE {condition}"
            )

    def left(self) -> list[int]:
        with closing(self.tables.range_store(OUTBOX)) as store:
            return [row[0] for row in store.read(0, 100).rows]


@pytest.fixture(params=["sqlite", "mariadb", MYSQL])
def rows(request: pytest.FixtureRequest) -> Iterator[Rows]:
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/shop.db"
    else:
        url = request.getfixturevalue(f"{request.param}_database")
    made = Rows("sqlite" if request.param == "sqlite" else "mysql", url)
    yield made
    made.sweeper.close()


def test_rows_go_that_are_both_published_and_old(rows: Rows) -> None:
    rows.make_old("id <= 6")
    assert rows.sweeper.sweep(5, HOUR_S) == 4
    assert rows.left() == [5, 6, 7, 8, 9, 10]
    assert rows.sweeper.sweep(100, HOUR_S) == 2
    assert rows.sweeper.sweep(100, HOUR_S) == 0
    assert rows.sweeper.sweep(9, 0.0) == 2
    assert rows.left() == [9, 10]


def test_ids_are_not_given_again_when_all_rows_are_gone(rows: Rows) -> None:
    assert rows.sweeper.sweep(100, 0.0) == 10
    assert not rows.sweeper.inventory().stray
    with rows.tables.transaction() as connection:
        Stasher().stash(connection, OutboxRecord("t", "k", "v"))
    (new,) = rows.left()
    assert new > 10


def test_a_young_row_among_old_ones_does_not_keep_them(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swept_rows, "_BATCH", 3)
    rows.make_old("id <> 2 AND id <= 8")
    assert rows.sweeper.sweep(100, HOUR_S) == 7
    assert rows.left() == [2, 9, 10]


def test_a_time_deletes_only_so_many(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swept_rows, "_BATCH", 3)
    monkeypatch.setattr(swept_rows, "_MOST", 6)
    assert rows.sweeper.sweep(100, 0.0) == 6
    assert rows.left() == [7, 8, 9, 10]


def test_what_the_plan_says_is_carried_out(rows: Rows) -> None:
    policy = PartitionPolicy(retain_s=0.0)
    todo = plan(rows.sweeper.inventory(), [Position(1, 0, 1, 8, ((4, 5),))], policy)
    assert carry_out(todo, rows.sweeper, policy).swept == 3
    assert rows.left() == [4, 5, 6, 7, 8, 9, 10]
