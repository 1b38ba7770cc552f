"""The outbox table in MariaDB or MySQL, in mark mode (specs/DATABASES.md §3).

A mark is three statements, for there is no UPDATE … RETURNING: one chooses the rows, one tags them,
one reads what carries the tag. If the last does not come, nobody has sent the rows, and the next
term marks them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal
from uuid import UUID

from harvest.core.extra_columns import NO_EXTRA, Extra, with_extra
from harvest.core.gaps import union
from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.core.table_name import TableName
from harvest.databases.column_values import as_bytes, headers_from_json, topic_text
from harvest.databases.lease_clock import boottime_s
from harvest.databases.mysql.sources import MysqlSources
from harvest.databases.mysql.table import within

__all__ = ["MysqlMarkStore"]

# Which rows: as they are at one moment. An UPDATE alone would see a transaction commit while it
# runs, and take a later row of it and not an earlier one.
_CHOOSE: Final = """
SELECT id FROM {table} FORCE INDEX (PRIMARY)
WHERE leader_id IS NULL OR leader_id < %s OR leader_id > %s ORDER BY id LIMIT %s
"""
# NOW() is when the statement began, SYSDATE() when a row is looked at, having been waited for.
_MARK: Final = """
UPDATE {table} FORCE INDEX (PRIMARY) SET leader_id = %s
WHERE {within} AND (leader_id IS NULL OR leader_id < %s OR leader_id > %s)
  AND UNIX_TIMESTAMP(SYSDATE(6)) < %s
"""
_MARKED: Final = """
SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values{extra}
FROM {table} FORCE INDEX (PRIMARY) WHERE {within} AND leader_id = %s ORDER BY id
"""
_PURGE: Final = "DELETE FROM {table} WHERE {within} AND leader_id IN "
_DELETE: Final = "DELETE FROM {table} WHERE {within}"
_RESET: Final = "UPDATE {table} SET leader_id = NULL WHERE {within} AND leader_id = %s"
_CLEAR: Final = "DELETE FROM {table} WHERE id BETWEEN %s AND %s AND leader_id BETWEEN %s AND %s"
_BACKLOG: Final = """
SELECT COUNT(*), COUNT(leader_id),
       TIMESTAMPDIFF(MICROSECOND, MIN(create_time), NOW(6)) / 1000000,
       IF(COUNT(*) = {most}, (SELECT MAX(id) FROM {table}) - MAX(id), 0)
FROM (SELECT id, leader_id, create_time FROM {table} ORDER BY id LIMIT {most}) AS first
"""
_CLOCK: Final = "SELECT UNIX_TIMESTAMP(SYSDATE(6))"
_ASK_CLOCK_EVERY_S: Final = 10.0  # it may be set while we run


class MysqlMarkStore(MysqlSources):
    """The outbox table, for the mark algorithm. Implements `MarkStore`."""

    def __init__(self, url: str, table: str | TableName, *, extra: Extra = NO_EXTRA) -> None:
        super().__init__(url, table)
        self._extra = extra
        self._clock_asked_s = float("-inf")
        self._clock_ahead = 0.0

    def connect(self) -> None:
        """See `MarkStore.connect`."""
        self._connected()
        self._usable_types()

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        """See `MarkStore.mark`."""
        until_s = boottime_s() + valid_ms / 1000  # before anything that may take long
        self._connected()  # to another server, perhaps: then it is asked for its clock
        until_s += self._clock_ahead_s()
        tag = term.tag(batch).bytes
        first, last = term.first.bytes, term.last.bytes
        chosen = self._execute(self._sql(_CHOOSE), (first, last, limit))
        parts = list(within(union((id, id) for (id,) in chosen)))
        for part in parts:
            self._change(self._sql(_MARK, part), (tag, first, last, until_s))
        found = [row for p in parts for row in self._execute(self._sql(_MARKED, p), (tag,))]
        if self._extra:
            return [Row(*row) for row in with_extra([_row(row) for row in found], self._extra)]
        return [Row(*_row(row)) for row in found]

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        """See `MarkStore.purge`."""
        # Not as one parameter: in a list, older drivers quote bytes for a server with other rules.
        marks = f"({', '.join(['%s'] * len(tags))})"
        return self._each(_PURGE + marks, ids, [tag.bytes for tag in tags])

    def delete(self, ids: Sequence[int]) -> int:
        """See `MarkStore.delete`."""
        return self._each(_DELETE, ids)

    def clear(self, checkpoint: Checkpoint) -> int:
        """See `MarkStore.clear`."""
        first, last = checkpoint.term.first, checkpoint.term.tag(checkpoint.batch)
        parameters = (checkpoint.low_id, checkpoint.high_id, first.bytes, last.bytes)
        return self._change(self._sql(_CLEAR), parameters)

    def reset(self, ids: Sequence[int], tag: UUID) -> int:
        """See `MarkStore.reset`."""
        return self._each(_RESET, ids, (tag.bytes,))

    def backlog(self) -> Backlog:
        """See `MarkStore.backlog`."""
        query = _BACKLOG.format(table=self._name, most=COUNTED)
        ((rows, tagged, age_s, beyond),) = self._execute(query)
        return Backlog.of(rows, tagged, None if age_s is None else float(age_s), int(beyond))

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `MarkStore.init`."""
        created = self._create_table(value_type)
        self.create_registration()
        return created

    def check(self) -> list[Finding]:
        """See `MarkStore.check`."""
        return self._check_table(
            [
                ("SELECT", f"SELECT id FROM {self._name} LIMIT 1"),  # noqa: S608
                ("UPDATE", f"EXPLAIN UPDATE {self._name} SET id = 0 WHERE id = 0"),  # noqa: S608
                ("DELETE", f"EXPLAIN DELETE FROM {self._name} WHERE id = 0"),  # noqa: S608
            ]
        )

    # --- Statements ---

    def _sql(self, template: str, within: str = "") -> str:
        return template.format(table=self._name, within=within, extra=self._extra_columns())

    def _each(self, template: str, ids: Sequence[int], parameters: Sequence[Any] = ()) -> int:
        """Change the rows; ids that follow one another are one condition."""
        ranges = union((id, id) for id in set(ids))
        statements = [template.format(table=self._name, within=part) for part in within(ranges)]
        return sum([self._change(statement, parameters) for statement in statements])

    def _forget(self) -> None:
        self._clock_asked_s = float("-inf")  # this may be another server

    def _clock_ahead_s(self) -> float:
        """By how much the database's clock is ahead of ours, at least. Asked every 10 s."""
        if boottime_s() > self._clock_asked_s + _ASK_CLOCK_EVERY_S:
            ((database_s,),) = self._execute(_CLOCK)
            self._clock_asked_s = boottime_s()
            self._clock_ahead = float(database_s) - self._clock_asked_s
        return self._clock_ahead


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
