"""Dead letters, in MariaDB or MySQL (specs/DATABASES.md §3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar, Final

from harvest.core.table_name import TableName
from harvest.databases.mysql.table import MysqlTable
from harvest.databases.portable_dead_letters import PortableDeadLetters
from harvest.errors import StoreUnavailable, TableMissing

__all__ = ["MysqlDeadLetters"]

# The columns that are not named have the outbox's types.
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {dead_letters} (
  id               BIGINT NOT NULL PRIMARY KEY,
  error            MEDIUMTEXT,
  waits            TINYINT NOT NULL DEFAULT 0,
  dead_lettered_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
AS SELECT id, {columns} FROM {table} WHERE 1 = 0
"""
_EXISTS: Final = """
SELECT 1 FROM information_schema.tables
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
"""
_COLUMNS: Final = """
SELECT column_name, column_type FROM information_schema.columns
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
  AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position
"""
_LOCK_TIMEOUT_S: Final = 10


class MysqlDeadLetters(MysqlTable, PortableDeadLetters):
    """The dead letters of the outbox `table`.

    Implements `harvest.core.interfaces.dead_letter_store.DeadLetterTable`. The table is made when
    it is first needed.
    """

    _value_bytes: ClassVar[str] = "LENGTH(kafka_value)"
    _topic: ClassVar[str] = "CAST(kafka_topic AS BINARY)"
    _quote: ClassVar[str] = "`"
    _for_update: ClassVar[str] = " FOR UPDATE"

    def __init__(self, url: str, table: str | TableName) -> None:
        super().__init__(url, table)
        self.name = self._table.beside("dead_letters")
        where = f"{self._arguments['database']}.{self._table.quoted()}"
        self._lock = f"harvest.{hashlib.md5(where.encode(), usedforsecurity=False).hexdigest()}"

    def _create(self) -> None:
        if not self._types():
            raise TableMissing(f"the table {self._table} does not exist: run `harvest init`")
        self._execute(self._text(_CREATE))

    def _columns_of(self, table: TableName) -> dict[str, str]:
        *schema, name = table.parts
        found = self._execute(_COLUMNS, (schema[0] if schema else None, name))
        return {column.decode(): type_.decode() for column, type_ in found}

    def _find_table(self) -> bool:
        *schema, table = self.name.parts
        return bool(self._execute(_EXISTS, (schema[0] if schema else None, table)))

    def _names(self) -> tuple[str, str]:
        return self._name, self.name.quoted("`")

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """One transaction, under a lock of the server that has the outbox's name.

        No statement of it is tried again by itself: a deadlock has undone those before it.
        """
        import pymysql

        connection = self._connected()
        ((locked,),) = self._execute("SELECT GET_LOCK(%s, %s)", (self._lock, _LOCK_TIMEOUT_S))
        if not locked:
            raise StoreUnavailable(f"somebody else is moving rows of {self._table}: try again")
        try:
            self._execute("START TRANSACTION")
            yield
            self._execute("COMMIT")
        except BaseException:
            with suppress(pymysql.MySQLError, OSError):
                connection.rollback()
            raise
        finally:  # with a broken connection, the server has let go of both
            with suppress(pymysql.MySQLError, OSError), connection.cursor() as cursor:
                cursor.execute("SELECT RELEASE_LOCK(%s)", (self._lock,))

    def _forget(self) -> None:
        self._there = False
        self._columns = None
