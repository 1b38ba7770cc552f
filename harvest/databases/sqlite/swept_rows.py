"""Published rows of a table in an SQLite file: deleted, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harvest.databases.sqlite.table import SqliteTable
from harvest.databases.swept_rows import SweptRows

__all__ = ["SqliteSweptRows"]


class SqliteSweptRows(SweptRows, SqliteTable):
    """The published rows of a table in an SQLite file, on a connection of their own."""

    _marked = False

    def _any(self) -> bool:
        return bool(self._execute(f"SELECT 1 FROM {self._name} LIMIT 1"))  # noqa: S608

    def _ages(self, after: int, below: int, retain_s: float, limit: int) -> Sequence[Any]:
        return self._execute(
            "SELECT id, (julianday('now') - julianday(create_time)) * 86400.0 >= ? "  # noqa: S608
            f"FROM {self._name} WHERE id > ? AND id < ? ORDER BY id LIMIT ?",
            (retain_s, after, below, limit),
        )

    def _delete(self, ids: str) -> int:
        return self._change(f"DELETE FROM {self._name} WHERE id IN ({ids})")  # noqa: S608
