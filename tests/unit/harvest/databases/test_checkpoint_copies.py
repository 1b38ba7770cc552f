"""The table of positions beside an outbox, in SQLite in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from harvest.core.range_checkpoint import Position
from harvest.core.table_name import TableName
from harvest.databases.checkpoint_copies import CheckpointCopies
from harvest.errors import CheckpointError


class Copies(CheckpointCopies):
    """Writes whatever it is told: whether what is there is newer is for the dialect."""

    _set_layout = "INSERT OR IGNORE INTO {positions} (shard, shards) VALUES (?, ?)"
    _get_layout = "SELECT shards FROM {positions} WHERE shard = ?"
    _save = (
        "INSERT INTO {positions} (shard, shards, last_id, checkpoint) VALUES (?, ?, ?, CAST(? AS "
        "BLOB))"
    )

    def __init__(self, shards: int = 2, name: tuple[str, ...] = ("outbox",)) -> None:
        self._table, self._shards = TableName(name), shards
        self.session = sqlite3.connect(":memory:")
        self.session.execute(
            "CREATE TABLE outbox_positions (shard PRIMARY KEY, shards, last_id, checkpoint)"
        )

    def _sql(self, template: str) -> str:
        return template.format(positions=self.positions_table.quoted())

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.session.execute(statement, parameters).fetchall()

    def _change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self.session.execute(statement, parameters).rowcount


def test_the_first_layout_stays() -> None:
    copies = Copies(shards=2)
    assert copies.layout() == 2
    copies._shards = 3
    assert copies.layout() == 2


def test_positions_come_back_by_shard_and_the_layout_is_none_of_them() -> None:
    copies = Copies()
    copies.layout()
    found = [Position(4, shard, 2, 90 + shard, ((5, 6),)) for shard in (1, 0)]
    for position in found:
        copies.save(position)
    assert copies.saved() == found[::-1]
    assert copies._execute("SELECT shard, shards, last_id FROM outbox_positions ORDER BY 1") == [
        (-1, 2, None), (0, 2, 90), (1, 2, 91),
    ]  # fmt: skip


def test_a_copy_that_cannot_be_read_is_no_position() -> None:
    copies = Copies()
    copies._change("INSERT INTO outbox_positions VALUES (0, 2, 5, CAST('[9]' AS BLOB))")
    with pytest.raises(CheckpointError):
        copies.saved()


def test_the_table_is_beside_the_outbox_in_its_schema() -> None:
    copies = Copies(name=("billing", "outbox"))
    assert copies.positions_table == TableName(("billing", "outbox_positions"))
    missing = copies._positions_finding(exists=False)
    assert (missing.subject, missing.level) == ("positions", "error")
    assert "billing.outbox_positions does not exist" in missing.text
    assert "harvest init --mode range" in missing.text
    assert copies._positions_finding(exists=True).level == "ok"
