"""The outbox table in an SQLite file, in mark mode (specs/DATABASES.md §2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal
from uuid import UUID

from harvest.core.extra_columns import NO_EXTRA, Extra, with_extra
from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.core.table_name import TableName
from harvest.databases.column_values import as_bytes, headers_from_json, topic_text
from harvest.databases.lease_clock import boottime_s
from harvest.databases.sqlite.sources import SqliteSources

__all__ = ["SqliteMarkStore"]

_MARK: Final = """
UPDATE {table} SET leader_id = ?
WHERE id IN (
  SELECT id FROM {table}
  WHERE leader_id IS NULL OR leader_id < ? OR leader_id > ?
  ORDER BY id LIMIT ?
)
RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values{extra}
"""
# Each id by itself: SQLite allows only so many parameters, but any JSON.
_PURGE: Final = """
DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))
  AND hex(leader_id) IN (SELECT value FROM json_each(?))
"""
_DELETE: Final = "DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))"
_RESET: Final = """
UPDATE {table} SET leader_id = NULL WHERE id IN (SELECT value FROM json_each(?)) AND leader_id = ?
"""
_CLEAR: Final = "DELETE FROM {table} WHERE id BETWEEN ? AND ? AND leader_id BETWEEN ? AND ?"
_BACKLOG: Final = """
SELECT count(*), count(leader_id),
       (julianday('now') - julianday(min(create_time))) * 86400.0,
       CASE WHEN count(*) = {most} THEN (SELECT max(id) FROM {table}) - max(id) ELSE 0 END
FROM (SELECT id, leader_id, create_time FROM {table} ORDER BY id LIMIT {most})
"""


class SqliteMarkStore(SqliteSources):
    """The outbox table, for the mark algorithm. Implements `MarkStore`.

    A transaction that stays open after it has written keeps every mark and purge waiting, for 10 s
    at most; then they raise `StoreUnavailable`.
    """

    def __init__(
        self, url: str, table: str | TableName, *, durable: bool = True, extra: Extra = NO_EXTRA
    ) -> None:
        super().__init__(url, table, durable=durable)
        self._extra = extra

    def connect(self) -> None:
        """See `MarkStore.connect`."""
        self._connected()
        self._usable()

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        """See `MarkStore.mark`."""
        until_s = boottime_s() + valid_ms / 1000
        parameters = (term.tag(batch).bytes, term.first.bytes, term.last.bytes, limit)
        with self._writing() as connection, self._errors():
            if boottime_s() >= until_s:  # the database's clock is this machine's
                return []
            found = connection.execute(self._sql(_MARK), parameters).fetchall()
        found.sort(key=_id)  # RETURNING promises no order
        return [Row(*row) for row in with_extra([_row(row) for row in found], self._extra)]

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        """See `MarkStore.purge`."""
        names = [tag.hex.upper() for tag in tags]
        return self._change(self._sql(_PURGE), (json.dumps(list(ids)), json.dumps(names)))

    def delete(self, ids: Sequence[int]) -> int:
        """See `MarkStore.delete`."""
        return self._change(self._sql(_DELETE), (json.dumps(list(ids)),))

    def clear(self, checkpoint: Checkpoint) -> int:
        """See `MarkStore.clear`."""
        first, last = checkpoint.term.first, checkpoint.term.tag(checkpoint.batch)
        parameters = (checkpoint.low_id, checkpoint.high_id, first.bytes, last.bytes)
        return self._change(self._sql(_CLEAR), parameters)

    def reset(self, ids: Sequence[int], tag: UUID) -> int:
        """See `MarkStore.reset`."""
        return self._change(self._sql(_RESET), (json.dumps(list(ids)), tag.bytes))

    def backlog(self) -> Backlog:
        """See `MarkStore.backlog`."""
        (found,) = self._execute(_BACKLOG.format(table=self._name, most=COUNTED))
        return Backlog.of(*found)

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `MarkStore.init`; creates the file too."""
        created = self._create_table(value_type)
        self.create_registration()
        return created

    def check(self) -> list[Finding]:
        """See `MarkStore.check`."""
        return self._check_table()

    def _sql(self, template: str) -> str:
        return template.format(table=self._name, extra=self._extra_columns())


def _row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    id, topic, key, value, names, values, *extra = row
    return (
        id,
        topic_text(topic),
        as_bytes(key),
        as_bytes(value),
        headers_from_json(names) or (),
        headers_from_json(values) or (),
        *[as_bytes(value) for value in extra],
    )


def _id(row: tuple[Any, ...]) -> int:
    key: int = row[0]
    return key
