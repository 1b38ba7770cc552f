"""What is made of rows of range mode that PostgreSQL hands over, or cannot, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harvest.core.row import Row
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.table import UnreadableRows


class Table(PostgresRangeStore):
    """Cannot hand over the rows of some ids; it does not say which."""

    unreadable: frozenset[int] = frozenset()

    def _fetch_rows(self, template: Any, parameters: Sequence[Any]) -> list[Any]:
        ids = [n for low, high in zip(*parameters, strict=True) for n in range(low, high + 1)]
        if self.unreadable.intersection(ids):
            raise UnreadableRows("a row cannot be handed over")
        return [Row(n, "t", b"k", b"v") for n in reversed(ids)]

    def _unreadable(self, row_id: int, columns: Any, error: UnreadableRows) -> Row:
        return Row(row_id, "t", b"k", None)


@pytest.mark.parametrize("unreadable", [(), (1,), (5,), (9,), (12,), (4, 5), (1, 9, 13)])
def test_each_row_comes_once_however_many_cannot_be_read(unreadable: tuple[int, ...]) -> None:
    store = Table("", "outbox")
    store.unreadable = frozenset(unreadable)
    rows = store.fetch([(1, 9), (12, 12), (13, 14)])
    assert [row[0] for row in rows] == [*range(1, 10), 12, 13, 14]
    assert [row[0] for row in rows if row[3] is None] == list(unreadable)


def test_rows_of_a_shard_are_in_the_order_of_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """In which order a union has them, PostgreSQL does not promise."""
    store = PostgresRangeStore("", "outbox", shard=1, shards=2)
    page = [(5, *[None] * 5), (None, *[None] * 5, 6, 3, [6, 5, 2]), (2, *[None] * 5)]
    monkeypatch.setattr(store, "_fetch_typed", lambda *_: list(page))
    window = store.read(1, 3)
    assert [row[0] for row in window.rows] == [2, 5]
    assert (window.last_id, window.missing, window.full) == (6, [(3, 4)], True)
