"""Published rows of a table in MariaDB or MySQL without partitions: deleted, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harvest.databases.mysql.table import MysqlTable
from harvest.databases.swept_rows import SweptRows

__all__ = ["MysqlSweptRows"]


class MysqlSweptRows(SweptRows, MysqlTable):
    """The published rows of a table in MariaDB or MySQL, on a connection of their own."""

    _marked = False

    def _any(self) -> bool:
        return bool(self._execute(f"SELECT 1 FROM {self._name} LIMIT 1"))  # noqa: S608

    def _ages(self, after: int, below: int, retain_s: float, limit: int) -> Sequence[Any]:
        found: Sequence[Any] = self._execute(
            "SELECT id, create_time <= NOW(6) - INTERVAL %s MICROSECOND "  # noqa: S608
            f"FROM {self._name} FORCE INDEX (PRIMARY) "
            "WHERE id > %s AND id < %s ORDER BY id LIMIT %s",
            (int(retain_s * 1_000_000), after, below, limit),
        )
        return found

    def _delete(self, ids: str) -> int:
        return self._change(f"DELETE FROM {self._name} WHERE id IN ({ids})")  # noqa: S608
