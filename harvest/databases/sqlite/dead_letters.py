"""Dead letters, in an SQLite file (specs/DATABASES.md §2)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

from harvest.core.table_name import TableName
from harvest.databases.portable_dead_letters import PortableDeadLetters
from harvest.databases.sqlite.table import QUOTE, SqliteTable

__all__ = ["SqliteDeadLetters"]

# Columns without types take what the outbox has, and give it back as it was.
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {dead_letters} (
  id                  INTEGER PRIMARY KEY,
  {columns},
  error               TEXT NOT NULL,
  waits               INTEGER NOT NULL,
  dead_lettered_at    TEXT NOT NULL
)
"""


class SqliteDeadLetters(SqliteTable, PortableDeadLetters):
    """The dead letters of the outbox `table`.

    Implements `harvest.core.interfaces.dead_letter_store.DeadLetterTable`. The table is made when
    it is first needed.
    """

    _marked = False  # of either mode
    _value_bytes: ClassVar[str] = "length(CAST(kafka_value AS BLOB))"
    _quote: ClassVar[str] = QUOTE

    def __init__(self, url: str, table: str | TableName) -> None:
        super().__init__(url, table)
        self.name = self._table.beside("dead_letters")

    def _create(self) -> None:
        self._usable()
        self._execute(self._text(_CREATE))

    def _columns_of(self, table: TableName) -> dict[str, str]:
        *schema, name = table.parts
        found = self._execute(
            "SELECT name FROM pragma_table_info(?, ?)", (name, schema[0] if schema else "main")
        )
        return {column.decode(): "" for (column,) in found}

    def _find_table(self) -> bool:
        *schema, table = self.name.parts
        found = self._execute(
            "SELECT 1 FROM pragma_table_info(?, ?)", (table, schema[0] if schema else "main")
        )
        return bool(found)

    def _names(self) -> tuple[str, str]:
        return self._name, self.name.quoted()

    def _moving(self) -> AbstractContextManager[object]:
        return self._writing()

    def _forget(self) -> None:
        self._there = False
        self._columns = None

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return super()._execute(statement.replace("%s", "?"), parameters)
