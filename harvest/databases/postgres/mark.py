"""The outbox table in PostgreSQL, in mark mode (specs/HARVEST.md §7).

The mark is ``UPDATE … WHERE id = ANY (ARRAY (SELECT id … ORDER BY id LIMIT n)) RETURNING …``. It
scans the primary key from its head, so no other index is needed; one on the untagged rows would be
one more to maintain for every row and was no faster. The ids are an array and not a join, because
the planner then has one way to do it: 160,000 rows/s against 88,000 with ``IN (SELECT …)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal
from uuid import UUID

from psycopg import sql
from psycopg.rows import TupleRow

from harvest.core.extra_columns import NO_EXTRA, Extra, with_extra
from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.core.table_name import TableName
from harvest.databases.lease_clock import boottime_s
from harvest.databases.postgres.header_arrays import array_of, with_headers
from harvest.databases.postgres.sources import PostgresSources
from harvest.databases.postgres.table import UnreadableRows, readable, topic_of

__all__ = ["PostgresMarkStore"]

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
  id                  BIGSERIAL PRIMARY KEY,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           {payload} NOT NULL,
  kafka_value         {payload},
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values TEXT[] NOT NULL,
  leader_id           UUID
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)
"""
# The clock is asked for each row, and again for one that was changed while it was waited for.
_MARK: Final = """
UPDATE {table} SET leader_id = %s
WHERE id = ANY (ARRAY (
  SELECT id FROM {table}
  WHERE leader_id IS NULL OR leader_id < %s OR leader_id > %s
  ORDER BY id LIMIT %s
)) AND clock_timestamp() < to_timestamp(%s)
RETURNING {columns}
"""
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_ASK_CLOCK_EVERY_S: Final = 10.0  # it may be set while we run
_PURGE: Final = """
DELETE FROM {table} WHERE id = ANY (%s::bigint[]) AND leader_id = ANY (%s::uuid[])
"""
_DELETE: Final = "DELETE FROM {table} WHERE id = ANY (%s::bigint[])"
_RESET: Final = """
UPDATE {table} SET leader_id = NULL WHERE id = ANY (%s::bigint[]) AND leader_id = %s
"""
_CLEAR: Final = """
DELETE FROM {table} WHERE id BETWEEN %s AND %s AND leader_id BETWEEN %s AND %s
"""
_BACKLOG: Final = """
SELECT count(*), count(leader_id), extract(
  epoch FROM now() - min(create_time) FILTER (WHERE isfinite(create_time))
)::float8, CASE WHEN count(*) = %(most)s THEN (SELECT max(id) FROM {table}) - max(id) ELSE 0 END
FROM (SELECT id, leader_id, create_time FROM {table} ORDER BY id LIMIT %(most)s) AS first
"""


class PostgresMarkStore(PostgresSources):
    """The outbox table, for the mark algorithm. Implements `MarkStore`.

    `durable` False lets commits return before they are on the database's disk. If its machine
    crashes then, the last marks and purges are lost, the latest first, and their rows are published
    again: good enough, and quicker, for delivery at least once. `extra`: columns that become
    headers.
    """

    # The statements below have one good plan. Statistics taken at a bad moment, when every row was
    # tagged, would make the planner read and sort the whole table for every mark. And a mark takes
    # rows in the order of their ids: what it leaves out since its time is over, are the last ones.
    _settings: Mapping[str, str] = {
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_sort": "off",
        "jit": "off",
    }

    def __init__(
        self,
        conninfo: str,
        table: str | TableName,
        *,
        durable: bool = True,
        extra: Extra = NO_EXTRA,
    ) -> None:
        super().__init__(conninfo, table)
        self._extra = extra
        if not durable:
            self._settings = {**self._settings, "synchronous_commit": "off"}
        self._mark_sql: sql.Composed | None = None
        self._mark_only_sql: sql.Composed | None = None
        self._topic_and_key: Sequence[sql.Composable] = ()
        self._clock_asked_s = float("-inf")
        self._clock_ahead = 0.0
        self._topics: dict[bytes, str] = {}

    def connect(self) -> None:
        """See `MarkStore.connect`."""
        self._connected()
        self._mark_statement()

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        """See `MarkStore.mark`."""
        until_s = boottime_s() + valid_ms / 1000  # before anything that may take long
        self._connected()  # to another server, perhaps: then it is asked for its clock
        statement = self._mark_statement()
        until_s += self._clock_ahead_s()
        which = (term.tag(batch), term.first, term.last)
        while True:
            try:
                cursor = self._execute(statement, (*which, limit, until_s), binary=True)
                found = self._same_types(cursor, range(1, 6 + len(self._extra)))
                break
            except UnreadableRows as error:
                if limit == 1:
                    return self._mark_unreadable((*which, 1, until_s), error)
                limit //= 2  # and there is no more time for that
        rows = with_headers(found)
        if self._extra:
            rows = with_extra(rows, self._extra)
        rows.sort(key=_id)  # RETURNING promises no order
        topics = self._topics
        try:
            return [Row(r[0], topics[r[1]], r[2], r[3], r[4] or (), r[5] or ()) for r in rows]
        except KeyError:
            if len(topics) > 10_000:
                topics.clear()
            topics.update({r[1]: r[1].decode(errors="replace") for r in rows})
            return [Row(r[0], topics[r[1]], r[2], r[3], r[4] or (), r[5] or ()) for r in rows]

    def _mark_unreadable(self, parameters: Sequence[object], error: UnreadableRows) -> list[Row]:
        """Mark the lowest row, which cannot be read, without reading it."""
        self._mark_statement()
        assert self._mark_only_sql is not None  # noqa: S101
        found = self._execute(self._mark_only_sql, parameters).fetchall()
        return [self._unreadable(id, self._topic_and_key, error) for (id,) in found]

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        """See `MarkStore.purge`."""
        return self._execute(self._sql(_PURGE), (list(ids), list(tags))).rowcount

    def delete(self, ids: Sequence[int]) -> int:
        """See `MarkStore.delete`."""
        return self._execute(self._sql(_DELETE), (list(ids),)).rowcount

    def clear(self, checkpoint: Checkpoint) -> int:
        """See `MarkStore.clear`."""
        first, last = checkpoint.term.first, checkpoint.term.tag(checkpoint.batch)
        parameters = (checkpoint.low_id, checkpoint.high_id, first, last)
        return self._execute(self._sql(_CLEAR), parameters).rowcount

    def reset(self, ids: Sequence[int], tag: UUID) -> int:
        """See `MarkStore.reset`."""
        return self._execute(self._sql(_RESET), (list(ids), tag)).rowcount

    def backlog(self) -> Backlog:
        """See `MarkStore.backlog`."""
        (row,) = self._execute(self._sql(_BACKLOG), {"most": COUNTED}).fetchall()
        return Backlog.of(*row)

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `MarkStore.init`."""
        created = not self._types()
        if created:
            payload = sql.SQL("BYTEA" if value_type == "bytes" else "TEXT")
            self._execute(sql.SQL(_CREATE).format(table=self._identifier, payload=payload))
        self.create_registration()
        return created

    def check(self) -> list[Finding]:
        """See `MarkStore.check`."""
        return self._check_table(("SELECT", "UPDATE", "DELETE"))

    # --- Statements ---

    def _forget(self) -> None:
        self._mark_sql = None  # the table may have been changed meanwhile,
        self._clock_asked_s = float("-inf")  # and this may be another server

    def _clock_ahead_s(self) -> float:
        """By how much the database's clock is ahead of ours, at least. Asked every 10 s."""
        if boottime_s() > self._clock_asked_s + _ASK_CLOCK_EVERY_S:
            ((database_s,),) = self._execute(sql.SQL(_CLOCK)).fetchall()
            self._clock_asked_s = boottime_s()
            self._clock_ahead = database_s - self._clock_asked_s
        return self._clock_ahead

    def _mark_statement(self) -> sql.Composed:
        """The mark, which depends on the types of the columns; they are looked up once."""
        if self._mark_sql is None:
            types = self._usable_types()
            id = sql.Identifier("id")
            self._topic_and_key = (topic_of(types), readable(types, "kafka_key"))
            rest = (
                readable(types, "kafka_value"),
                array_of("kafka_header_keys"),
                array_of("kafka_header_values"),
                *self._extra_columns(types),
            )
            columns = sql.SQL(", ").join([id, *self._topic_and_key, *rest])
            template = sql.SQL(_MARK)
            self._mark_sql = template.format(table=self._identifier, columns=columns)
            self._mark_only_sql = template.format(table=self._identifier, columns=id)
        return self._mark_sql


def _id(row: TupleRow) -> int:
    key: int = row[0]
    return key
