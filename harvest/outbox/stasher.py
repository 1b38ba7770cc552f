"""The Stasher: writes outbox records in the caller's own transaction.

It executes one INSERT (or, for an outbox without a table, one SELECT that writes to the write-ahead
log) on the connection, cursor or session that it is given, and nothing else: it
never begins, commits or rolls back. The record is published if and only if the caller's
transaction commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from harvest.core.message import pack_message
from harvest.core.table_name import TableName
from harvest.core.wal_options import message_prefix
from harvest.errors import ConfigurationError, InvalidRecord, UnsupportedConnection
from harvest.outbox.connection_adapters import Adapter, adapt, adapt_async
from harvest.outbox.record import OutboxRecord

__all__ = ["Stasher"]

ColumnType = Literal["auto", "text", "bytes"]
StashMode = Literal["table", "message"]

_BYTEA_OID: Final = 17
_ROWS_PER_STATEMENT: Final = 500
_PAYLOAD_COLUMNS: Final = ("kafka_key", "kafka_value")


class Stasher:
    """Inserts outbox records into `table` on the caller's connection.

    `column_type` says what `kafka_key` and `kafka_value` are. ``"auto"`` asks the database once,
    with a query that returns no row, on the first connection that is used. `paramstyle` is
    needed only for a DB-API driver that hides its module's own. `prepare` is called with each
    record before it is written, in the caller's thread and transaction, and returns the one to
    write: for trace context (`harvest.with_trace_context`), or headers that all share.

    With `mode` ``"message"`` there is no table (PostgreSQL, harvested with ``mode: wal`` and
    ``source: message``): a record is a transactional logical message, ``pg_logical_emit_message``,
    and `table` is the name of the outbox. `prefix`: of the messages, if not ``harvest.TABLE``.
    Keys, values and headers may be any bytes (specs/HARVEST.md §18).

    Raises `ConfigurationError` for a name that cannot be.

    Thread-safe; make one for each table and keep it.
    """

    def __init__(
        self,
        table: str = "outbox",
        *,
        column_type: ColumnType = "auto",
        paramstyle: str | None = None,
        prepare: Callable[[OutboxRecord], OutboxRecord] | None = None,
        mode: StashMode = "table",
        prefix: str | None = None,
    ) -> None:
        self._table = TableName.parse(table)
        if mode not in ("table", "message"):
            raise ConfigurationError(f"mode is {mode!r}: give 'table' or 'message'")
        if prefix is not None and mode == "table":
            raise ConfigurationError("prefix is for mode='message': leave it out")
        self._prefix = None if mode == "table" else prefix or message_prefix(self._table)
        self._prepare = prepare or _unchanged
        self._paramstyle = paramstyle
        self._text: tuple[bool, bool] | None = {
            "auto": None,
            "text": (True, True),
            "bytes": (False, False),
        }[column_type]

    def stash(self, connection: Any, record: OutboxRecord) -> None:
        """Insert one record.

        `connection` is a connection or cursor of psycopg 3 or any DB-API driver, a SQLAlchemy 2
        Connection or Session, or Django's `connection`.

        Raises `NoTransaction` when the connection would commit the row by itself, `InvalidRecord`
        when a field does not fit its column, `UnsupportedConnection`, and what the driver raises.
        """
        self.stash_many(connection, (record,))

    def stash_many(self, connection: Any, records: Iterable[OutboxRecord]) -> int:
        """Insert records in their order; return how many. Raises as `stash` does.

        One round trip for up to 500 records.
        """
        target = adapt(connection, self._paramstyle)
        target.require_transaction()
        count = 0
        for chunk in _chunks(records):
            if self._prefix is not None:
                target.execute(self._emit(target, len(chunk)), self._contents(chunk))
            else:
                text = self._text or self._learn(target.columns(self._probe(target)))
                values = [v for r in chunk for v in self._values(target, self._prepare(r), text)]
                target.execute(self._insert(target, len(chunk)), values)
            count += len(chunk)
        return count

    def stash_returning(self, connection: Any, records: Iterable[OutboxRecord]) -> list[int]:
        """As `stash_many`, for a connection of psycopg 3; return the ids of the rows, in order.

        Not with ``mode="message"``: messages have no ids. Raises `UnsupportedConnection` then.
        """
        if self._prefix is not None:
            raise UnsupportedConnection("messages have no ids: use stash or stash_many")
        target = adapt(connection, self._paramstyle)
        target.require_transaction()
        ids: list[int] = []
        for chunk in _chunks(records):
            text = self._text or self._learn(target.columns(self._probe(target)))
            values = [v for r in chunk for v in self._values(target, self._prepare(r), text)]
            statement = f"{self._insert(target, len(chunk))} RETURNING id"
            found = target.rows(statement, values)
            ids += sorted([row[0] for row in found])  # drawn in the order of the values
        return ids

    async def astash(self, connection: Any, record: OutboxRecord) -> None:
        """As `stash`, for psycopg's AsyncConnection or AsyncCursor and SQLAlchemy's async face."""
        await self.astash_many(connection, (record,))

    async def astash_many(self, connection: Any, records: Iterable[OutboxRecord]) -> int:
        """As `stash_many`, for the connections that `astash` takes."""
        target = await adapt_async(connection, self._paramstyle)
        target.require_transaction()
        count = 0
        for chunk in _chunks(records):
            if self._prefix is not None:
                await target.aexecute(self._emit(target, len(chunk)), self._contents(chunk))
            else:
                text = self._text or self._learn(await target.acolumns(self._probe(target)))
                values = [v for r in chunk for v in self._values(target, self._prepare(r), text)]
                await target.aexecute(self._insert(target, len(chunk)), values)
            count += len(chunk)
        return count

    def _emit(self, target: Adapter, records: int) -> str:
        if not target.arrays:
            raise UnsupportedConnection("mode='message' is for PostgreSQL: it has logical messages")
        mark = target.placeholders
        # From the left to the right: so they come in the order in which they were given.
        return "SELECT " + ", ".join(
            f"pg_logical_emit_message(true, CAST({mark(2 * n)} AS text), "
            f"CAST({mark(2 * n + 1)} AS bytea))"
            for n in range(records)
        )

    def _contents(self, records: Sequence[OutboxRecord]) -> list[Any]:
        values: list[Any] = []
        for record in records:
            its = self._prepare(record)
            key = _as_bytes(its.key, "key", "")
            value = None if its.value is None else _as_bytes(its.value, "value", "")
            headers = [
                (_as_bytes(name, "headers", ""), _as_bytes(text, f"headers, {name!r}", ""))
                for name, text in its.headers
            ]
            try:
                values += (self._prefix, pack_message(its.topic, key, value, headers))
            except ValueError as error:
                raise InvalidRecord(f"the record fits into no message: {error}") from None
        return values

    def _probe(self, target: Adapter) -> str:
        columns = ", ".join(_PAYLOAD_COLUMNS)
        return f"SELECT {columns} FROM {self._table.quoted(target.quote)} WHERE 1 = 0"  # noqa: S608

    def _learn(self, column_types: Sequence[Any]) -> tuple[bool, bool]:
        # SQLite types values, not columns, and reports none: both kinds are stored as they come.
        key, value = (code != _BYTEA_OID for code in column_types)
        self._text = (key, value)
        return self._text

    def _insert(self, target: Adapter, rows: int) -> str:
        mark = target.placeholders
        groups = (
            f"(CURRENT_TIMESTAMP, {', '.join(mark(5 * row + i) for i in range(5))})"
            for row in range(rows)
        )
        return (
            f"INSERT INTO {self._table.quoted(target.quote)} "  # noqa: S608
            "(create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
            f"kafka_header_values) VALUES {', '.join(groups)}"
        )

    @staticmethod
    def _values(target: Adapter, record: OutboxRecord, text: tuple[bool, bool]) -> list[Any]:
        convert = _as_text if target.arrays else _as_is
        names: Any = [
            _as_text(name, "a header's name", "leave it out") for name, _ in record.headers
        ]
        values: Any = [
            _as_text(value, f"headers, {name!r}", "headers are text in this table")
            for name, value in record.headers
        ]
        if not target.arrays:
            names, values = json.dumps(names), json.dumps(values)
        fields: list[Any] = [record.topic]
        for field, is_text in zip(("key", "value"), text, strict=True):
            value = getattr(record, field)
            to: Callable[..., Any] = convert if is_text else _as_bytes
            hint = f"make kafka_{field} BYTEA to relay any bytes"
            fields.append(None if value is None else to(value, field, hint))
        return [*fields, names, values]


def _as_text(value: str | bytes, field: str, hint: str) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            text = f"{field} is not UTF-8 ({error}), and the column is text: {hint}"
            raise InvalidRecord(text) from None
    else:
        _encoded(value, field)
    if "\x00" in value:
        raise InvalidRecord(f"{field} holds a NUL, which a text column cannot store: {hint}")
    return value


def _as_bytes(value: str | bytes, field: str, hint: str) -> bytes:
    del hint
    return value if isinstance(value, bytes) else _encoded(value, field)


def _as_is(value: str | bytes, field: str, hint: str) -> str | bytes:
    del hint
    if isinstance(value, str):
        _encoded(value, field)
    return value


def _encoded(value: str, field: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"{field} has no UTF-8 form ({error}): give bytes") from None


def _unchanged(record: OutboxRecord) -> OutboxRecord:
    return record


def _chunks(records: Iterable[OutboxRecord]) -> Iterable[list[OutboxRecord]]:
    chunk: list[OutboxRecord] = []
    for record in records:
        chunk.append(record)
        if len(chunk) == _ROWS_PER_STATEMENT:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
