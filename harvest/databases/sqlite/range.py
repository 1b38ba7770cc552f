"""The outbox table in an SQLite file, in range mode (specs/DATABASES.md §2).

Who may still commit an id: nobody. SQLite lets one transaction write at a time, and an id is drawn
by writing; when a row is visible, whoever drew a smaller id has ended. So every gap is dead when it
is seen, and the list of holders is always empty. (A rolled back id is drawn again, by the next
transaction: only deleted rows leave gaps.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal

from harvest.core.extra_columns import NO_EXTRA, Extra, with_extra
from harvest.core.gaps import Holders, Range, missing, union
from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.interfaces.range_store import Bounds, Window, waiting_after
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.core.shards import shard_of
from harvest.core.table_name import TableName
from harvest.databases.checkpoint_copies import LAYOUT, CheckpointCopies
from harvest.databases.column_values import as_bytes, headers_from_json, topic_text
from harvest.databases.sqlite.sources import SqliteSources
from harvest.errors import SchemaError

__all__ = ["SqliteRangeStore"]

_COLUMNS: Final = "id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values"
_READ: Final = "SELECT {columns} FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
# CROSS JOIN: SQLite then looks the ranges up in the table, and not the other way round.
_WITHIN: Final = """
SELECT {columns}
FROM (SELECT json_extract(value, '$[0]') AS low, json_extract(value, '$[1]') AS high
      FROM json_each(?)) AS wanted
CROSS JOIN {table}
WHERE id BETWEEN low AND high
ORDER BY id
"""
_BOUNDS: Final = "SELECT min(id), max(id) FROM {table}"
# It has the name as the table was created, and SQLite tells tables apart without the case.
_DRAWN: Final = "SELECT seq FROM {sequence} WHERE name = ? COLLATE NOCASE"
_BACKLOG: Final = """
SELECT id, kafka_key, (julianday('now') - julianday(create_time)) * 86400.0
FROM {table} WHERE id > ? ORDER BY id LIMIT ?
"""
_CREATE_POSITIONS: Final = """
CREATE TABLE IF NOT EXISTS {positions} (
  shard      INTEGER PRIMARY KEY,
  shards     INTEGER NOT NULL,
  last_id    INTEGER,
  checkpoint TEXT,
  saved_at   TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""


class SqliteRangeStore(SqliteSources, CheckpointCopies):
    """One shard of the outbox table, for the range algorithm. Implements `RangeStore`."""

    _marked = False
    _set_layout = "INSERT INTO {positions} (shard, shards) VALUES (?, ?) ON CONFLICT DO NOTHING"
    _get_layout = "SELECT shards FROM {positions} WHERE shard = ?"
    _save = """
    INSERT INTO {positions} (shard, shards, last_id, checkpoint) VALUES (?, ?, ?, ?)
    ON CONFLICT (shard) DO UPDATE
      SET shards = excluded.shards, last_id = excluded.last_id, checkpoint = excluded.checkpoint,
          saved_at = CURRENT_TIMESTAMP
      WHERE last_id <= excluded.last_id
    """

    def __init__(
        self,
        url: str,
        table: str | TableName,
        *,
        shard: int = 0,
        shards: int = 1,
        extra: Extra = NO_EXTRA,
    ) -> None:
        super().__init__(url, table, durable=False)  # it writes only copies
        self._extra = extra
        self._shard = shard
        self._shards = shards

    def connect(self) -> None:
        """See `RangeStore.connect`."""
        self._connected()
        self._usable()
        finding = self._look_for_positions()
        if finding.level == "error":
            raise SchemaError(f"{self._table} cannot be harvested in ranges: {finding.text}")

    def bounds(self) -> Bounds:
        """See `RangeStore.bounds`."""
        ((lowest, highest),) = self._execute(self._sql(_BOUNDS))
        if lowest is None:
            return Bounds(1, self._drawn())
        return Bounds(min(1, lowest), max(self._drawn(), highest))

    def read(self, after: int, limit: int) -> Window:
        """See `RangeStore.read`."""
        found = self._execute(self._sql(_READ), (after, limit))
        if not found:
            return Window((), after)
        last = found[-1][0]
        gaps = () if last - after == len(found) else missing(after, [row[0] for row in found])
        return Window(self._mine(found), last, gaps, len(found) == limit)

    def lookup(self, ranges: Sequence[Range]) -> list[Range]:
        """See `RangeStore.lookup`."""
        found = self._execute(self._sql(_WITHIN, columns="id"), (json.dumps(ranges),))
        return union((id, id) for (id,) in found)

    def fetch(self, ids: Sequence[Range]) -> list[Row]:
        """See `RangeStore.fetch`."""
        return self._mine(self._execute(self._sql(_WITHIN), (json.dumps(ids),)))

    def holders(self) -> Holders:
        """See `RangeStore.holders`."""
        return Holders(drawn=self._drawn())

    def rewrite(self, shards: int, positions: Sequence[Position]) -> None:
        """See `RangeStore.rewrite`."""
        with self._writing():
            self._execute(self._sql("DELETE FROM {positions}"))
            self._execute(self._sql(self._set_layout), (LAYOUT, shards))
            for position in positions:
                self._execute(self._sql(self._save), self._values(position))

    def backlog(self, position: Position | None = None) -> Backlog:
        """See `RangeStore.backlog`."""
        after, _ = waiting_after(self, self._shards, position)  # nothing waits in gaps here
        found = self._execute(self._sql(_BACKLOG), (min(after), COUNTED))
        ((highest,),) = self._execute(self._sql("SELECT max(id) FROM {table}"))
        beyond = highest - found[-1][0] if len(found) == COUNTED else 0
        ages = [age for id, key, age in found if id > after[shard_of(as_bytes(key), self._shards)]]
        known = [age for age in ages if age is not None]
        return Backlog.of(len(ages), 0, max(known) if known else None, beyond)

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `RangeStore.init`; creates the file too."""
        created = self._create_table(value_type)
        self._execute(self._sql(_CREATE_POSITIONS))
        self.create_registration()
        return created

    def check(self) -> list[Finding]:
        """See `RangeStore.check`."""
        findings = self._check_table()
        return [*findings, self._look_for_positions()] if self._types() else findings

    # --- Statements ---

    def _sql(self, template: str, columns: str | None = None) -> str:
        columns = columns or _COLUMNS + self._extra_columns()
        *schema, _ = self._table.parts
        return template.format(
            table=self._name,
            columns=columns,
            positions=self.positions_table.quoted(),
            sequence=TableName((*schema, "sqlite_sequence")).quoted(),
        )

    def _drawn(self) -> int:
        found = self._execute(self._sql(_DRAWN), (self._table.table,))
        return found[0][0] if found else 0

    def _is_mine(self, key: bytes | None) -> bool:
        return shard_of(key, self._shards) == self._shard

    def _mine(self, found: Sequence[tuple[Any, ...]]) -> list[Row]:
        """Those of this shard, as tuples of the shape of `Row`."""
        rows = [
            (
                id,
                topic_text(topic),
                as_bytes(key),
                as_bytes(value),
                headers_from_json(k),
                headers_from_json(v),
                *[as_bytes(value) for value in extra],
            )
            for id, topic, key, value, k, v, *extra in found
            if self._shards == 1 or self._is_mine(as_bytes(key))
        ]
        return with_extra(rows, self._extra)

    def _look_for_positions(self) -> Finding:
        *schema, table = self.positions_table.parts
        found = self._execute(
            "SELECT 1 FROM pragma_table_info(?, ?)", (table, schema[0] if schema else "main")
        )
        return self._positions_finding(exists=bool(found))
