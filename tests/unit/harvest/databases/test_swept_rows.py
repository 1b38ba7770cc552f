"""Published rows are deleted a few at a time; `tests/contract` has the same of real tables."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harvest.databases import swept_rows
from harvest.databases.swept_rows import SweptRows
from harvest.maintenance.partitions import Partition


class Table(SweptRows):
    """Ids, and which of their rows are old; keeps what it is asked."""

    def __init__(self, ids: Sequence[int], young: Sequence[int] = ()) -> None:
        self.ids, self.young = set(ids), set(young)
        self.asked: list[tuple[int, int, float, int]] = []
        self.deletes: list[str] = []

    def _any(self) -> bool:
        return bool(self.ids)

    def _ages(self, after: int, below: int, retain_s: float, limit: int) -> list[tuple[int, bool]]:
        self.asked.append((after, below, retain_s, limit))
        found = sorted(id for id in self.ids if after < id < below)[:limit]
        return [(id, id not in self.young) for id in found]

    def _delete(self, ids: str) -> int:
        self.deletes.append(ids)
        gone = {int(id) for id in ids.split(", ")} & self.ids
        self.ids -= gone
        return len(gone)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swept_rows, "_BATCH", 3)
    monkeypatch.setattr(swept_rows, "_MOST", 6)


def test_ids_below_0_are_swept_too_and_none_is_looked_at_twice() -> None:
    table = Table([-7, 0, 1, 2], young=[0])
    assert table.sweep(2, 5.0) == 2
    assert table.deletes == ["-7, 1"]
    assert table.ids == {0, 2}
    assert table.asked == [(-(1 << 63), 2, 5.0, 3), (1, 2, 5.0, 3)]


def test_a_batch_in_which_nothing_is_old_enough_ends_the_search() -> None:
    table = Table(range(9), young=[3, 4, 5])
    assert table.sweep(100, 5.0) == 3
    assert table.ids == {3, 4, 5, 6, 7, 8}
    assert len(table.asked) == 2


def test_so_many_rows_at_most_go_at_a_time() -> None:
    table = Table(range(10))
    assert table.sweep(100, 5.0) == 6
    assert table.sweep(100, 5.0) == 4


def test_what_others_have_deleted_is_not_counted() -> None:
    class Shared(Table):
        def _delete(self, ids: str) -> int:
            super()._delete(ids)
            return 1

    assert Shared(range(3)).sweep(100, 5.0) == 1


def test_there_are_rows_or_none_and_no_partitions() -> None:
    found = Table([1, 2, 3]).inventory()
    assert (found.partitions, found.stray, found.partitioned) == ((), 1, False)
    assert Table([]).inventory().stray == 0
    table, some = Table([1]), Partition("p", 1, 2)
    assert table.create(1, 2) is None
    assert not table.drop(some)
    with pytest.raises(NotImplementedError, match="p"):
        table.extent(some)
    with pytest.raises(NotImplementedError, match="p"):
        table.rows(some, 1)
