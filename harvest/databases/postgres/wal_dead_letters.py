"""Dead letters in wal mode: with the contents that the stream had, since no table may have them.

A row that is retried becomes a logical message of the outbox, in the transaction that takes it out
of the table; so it comes in the log behind everything that was committed before, with what waits
behind it. A row whose header arrays do not match, or whose topic or a header's name is 64 KiB long,
fits into no message, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from psycopg import sql

from harvest.core.dead_letters import BadRow
from harvest.core.interfaces.dead_letter_store import RetryMode
from harvest.core.interfaces.sink import StillHeld
from harvest.core.message import pack_message
from harvest.core.row import Row, Unreadable
from harvest.core.table_name import TableName
from harvest.core.wal_options import message_prefix
from harvest.databases.lease_clock import always, require
from harvest.databases.postgres.dead_letters import PostgresDeadLetters

__all__ = ["PostgresWalDeadLetters"]

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {dead_letters} (
  id                  BIGINT,
  create_time         TIMESTAMP WITH TIME ZONE,
  kafka_topic         TEXT,
  kafka_key           BYTEA,
  kafka_value         BYTEA,
  kafka_header_keys   TEXT[],
  kafka_header_values BYTEA[],
  error               TEXT,
  waits               BOOLEAN,
  dead_lettered_at    TIMESTAMP WITH TIME ZONE
);
CREATE UNIQUE INDEX IF NOT EXISTS {id_index} ON {dead_letters} (id);
"""
_WANTED: Final = {"kafka_topic": "text", "kafka_key": "bytea", "kafka_value": "bytea"}
"""What a table that another mode has made must be able to hold, too: a message has any bytes."""
_INSERT: Final = """
INSERT INTO {dead_letters} AS t (
  id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
  error, waits, dead_lettered_at
)
SELECT %(id)s, now(), %(topic)s, {key_cast}, {value_cast}, %(names)b, %(values)b,
       %(error)s, %(waits)s, clock_timestamp()
WHERE NOT %(waits)s OR EXISTS (
  SELECT FROM {dead_letters} s
  WHERE s.kafka_topic = %(topic)s AND s.kafka_key{cast} = {key_cast}{cast} AND s.id < %(id)s
)
ON CONFLICT (id) DO NOTHING
"""
_THERE: Final = "SELECT id FROM {dead_letters} WHERE id = ANY (%(ids)s)"
_TAKEN: Final = """
WITH taken AS (
  DELETE FROM {dead_letters} s WHERE {condition}
    AND coalesce(cardinality(kafka_header_keys), 0) = coalesce(cardinality(kafka_header_values), 0)
    AND array_position(kafka_header_keys, NULL) IS NULL
    AND greatest(octet_length(kafka_topic), cardinality(kafka_header_keys),
      (SELECT max(octet_length(name)) FROM unnest(kafka_header_keys) AS name)) < 65536
  RETURNING id, kafka_topic::text AS topic, {key} AS key, {value} AS value,
    kafka_header_keys AS names, kafka_header_values AS its
)
SELECT topic, key, value, names, its FROM taken ORDER BY id
"""
_EMIT: Final = "SELECT pg_logical_emit_message(true, %(prefix)s, %(content)s)"


class PostgresWalDeadLetters(PostgresDeadLetters):
    """The dead letters of an outbox in wal mode; `prefix`: of its messages.

    Implements `harvest.core.interfaces.wal_stream.RowDeadLetterStore` and `DeadLetterTable`.
    """

    def __init__(self, conninfo: str, table: str | TableName, prefix: str | None = None) -> None:
        super().__init__(conninfo, table)
        self._prefix = prefix or message_prefix(self._table)

    def create(self) -> None:
        """See `DeadLetterTable.create`."""
        if not self._exists():
            index = sql.Identifier(f"{self.name.table[:59]}_id")
            statement = sql.SQL(_CREATE).format(dead_letters=self._dead_letters, id_index=index)
            self._execute(statement)
            return
        self._change_types()

    def _wanted_columns(self) -> dict[str, str]:
        return _WANTED

    def add_rows(
        self, rows: Sequence[tuple[Row, BadRow]], still_held: StillHeld = always
    ) -> frozenset[int]:
        """See `RowDeadLetterStore.add_rows`."""
        self.create()
        types = self._column_types()
        casts = {
            "key_cast": _cast("key", types["kafka_key"][0]),
            "value_cast": _cast("value", types["kafka_value"][0]),
            "cast": sql.SQL(self._cast),
        }
        insert = self._format(_INSERT, **casts)
        as_text = types["kafka_header_values"][0] != "bytea[]"
        with self._transaction():
            for waits in (False, True):  # first what the others may wait for
                for row, bad in rows:
                    if bad.waits is waits:
                        self._execute(insert, self._given(row, bad, as_text=as_text))
            ids = [bad.id for _, bad in rows]
            found = self._execute(self._format(_THERE), {"ids": ids}).fetchall()
            require(still_held)
        return frozenset([row[0] for row in found])

    def _put_back(
        self,
        condition: sql.Composable,
        given: dict[str, Any],
        mode: RetryMode,
        *,
        dry_run: bool,
    ) -> int:
        if dry_run:
            return super()._put_back(condition, given, mode, dry_run=True)
        statement = self._format(_TAKEN, condition=condition)
        rows = self._execute(statement, given, binary=True).fetchall()
        for topic, key, value, names, its in rows:
            headers = list(zip(names or (), its or (), strict=True))
            content = pack_message(topic.decode(), key, value, headers)
            self._execute(sql.SQL(_EMIT), {"prefix": self._prefix, "content": content})
        return len(rows)

    def _given(self, row: Row, bad: BadRow, *, as_text: bool) -> dict[str, Any]:
        def text(value: bytes | None) -> str | None:
            if value is None:
                return None
            return self._storable(value.decode("utf-8", "replace"))

        stored = isinstance(row.header_keys, Unreadable)  # what it has is as it is stored
        return {
            "id": bad.id,
            "topic": self._storable(row.topic),
            "key": row.key,
            "value": row.value,
            "names": [text(name) for name in row.header_keys],
            "values": [text(v) for v in row.header_values] if as_text else list(row.header_values),
            "error": self._storable(bad.error),
            "waits": bad.waits,
            "encoding": self._encoding() if stored else "UTF8",
        }

    def _column_types(self) -> dict[str, tuple[str, bool]]:
        return self._types_of(self.name)


def _cast(name: str, type_name: str) -> sql.Composable:
    """The column's value, of the bytes that the stream had."""
    given = sql.Placeholder(name)
    if type_name == "bytea":
        return given
    text = sql.SQL("convert_from({v}, %(encoding)s)").format(v=given)
    return text if type_name == "text" else text + sql.SQL("::" + type_name)
