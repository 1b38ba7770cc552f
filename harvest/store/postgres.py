"""The outbox table in PostgreSQL, in mark mode (specs/HARVEST.md §7).

The mark is ``UPDATE … WHERE id = ANY (ARRAY (SELECT id … ORDER BY id LIMIT n)) RETURNING …``. It
scans the primary key from its head, so no other index is needed; one on the untagged rows would be
one more to maintain for every row and was no faster. The ids are an array and not a join, because
the planner then has one way to do it: 160,000 rows/s against 88,000 with ``IN (SELECT …)``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final, Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.string import ByteaBinaryLoader

from harvest.errors import ConfigurationError, SchemaError, StoreUnavailable, TableMissing
from harvest.naming import TableName
from harvest.rows import Row
from harvest.store.base import Backlog, Finding
from harvest.store.schema import column_findings
from harvest.terms import Checkpoint, Term

__all__ = ["PostgresMarkStore"]

_CONNECT_DEFAULTS: Final = {
    "application_name": "harvest",
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",  # milliseconds; a dead network must not hang a harvester
}
# The statements below have one good plan. Statistics taken at a bad moment, when every row was
# tagged, would make the planner read and sort the whole table for every mark.
_SESSION: Final = (
    "SET enable_seqscan = off; SET enable_sort = off; SET jit = off; "
    "SET default_transaction_isolation = 'read committed'"
)
_AS_BYTES: Final = ("text", "varchar", "bpchar", "json")
_READ_AS_IS: Final = {"text", "character varying", "character", "bytea", "json"}

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
_COLUMN_TYPES: Final = """
SELECT a.attname, format_type(a.atttypid, NULL), a.attnotnull
FROM pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
_MARK: Final = """
UPDATE {table} SET leader_id = %s
WHERE id = ANY (ARRAY (
  SELECT id FROM {table}
  WHERE leader_id IS NULL OR leader_id < %s OR leader_id > %s
  ORDER BY id LIMIT CASE WHEN clock_timestamp() < to_timestamp(%s) THEN %s ELSE 0 END
))
RETURNING id, {topic}, {key}, {value}, kafka_header_keys, kafka_header_values
"""
_CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_ASK_CLOCK_EVERY_S: Final = 10.0  # it may be set while we run
_PURGE: Final = "DELETE FROM {table} WHERE id = ANY (%s::bigint[])"
_RESET: Final = "UPDATE {table} SET leader_id = NULL WHERE id = ANY (%s::bigint[])"
_CLEAR: Final = """
DELETE FROM {table} WHERE id BETWEEN %s AND %s AND leader_id BETWEEN %s AND %s
"""
_BACKLOG: Final = """
SELECT count(*), count(leader_id), extract(epoch FROM now() - min(create_time))::float8 FROM {table}
"""


class PostgresMarkStore:
    """One connection to the outbox `table` in the database of `conninfo` (a libpq string or URL).

    Implements `harvest.store.base.MarkStore`. Connects when first used.

    Raises `ConfigurationError` for a `conninfo` or `table` that cannot be read.
    """

    def __init__(self, conninfo: str, table: str | TableName) -> None:
        self._table = TableName.parse(table) if isinstance(table, str) else table
        try:
            given = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as error:
            # libpq quotes the offending part, which may be a password: say where, not what.
            raise ConfigurationError(
                "the data source cannot be read: write key=value pairs or postgresql://… "
                f"({type(error).__name__}; percent-encode special characters in a URL)"
            ) from None
        self._conninfo = make_conninfo("", **{**_CONNECT_DEFAULTS, **given})
        self._connection: psycopg.Connection[TupleRow] | None = None
        self._mark_sql: sql.Composed | None = None
        self._clock_asked_s = float("-inf")
        self._clock_ahead = 0.0
        self._topics: dict[bytes, str] = {}

    @property
    def conninfo(self) -> str:
        """The connection string, with our defaults. May hold a password."""
        return self._conninfo

    def connect(self) -> None:
        """See `MarkStore.connect`."""
        self._connected()
        self._mark_statement()

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        """See `MarkStore.mark`."""
        until_s = time.monotonic() + valid_ms / 1000  # before anything that may take long
        statement = self._mark_statement()
        until_s += self._clock_ahead_s()
        parameters = (term.tag(batch), term.first, term.last, until_s, limit)
        rows = self._execute(statement, parameters, binary=True).fetchall()
        rows.sort(key=_id)  # RETURNING promises no order
        topics = self._topics
        try:
            return [Row(r[0], topics[r[1]], r[2], r[3], r[4], r[5]) for r in rows]
        except KeyError:
            if len(topics) > 10_000:
                topics.clear()
            topics.update({r[1]: r[1].decode() for r in rows})
            return [Row(r[0], topics[r[1]], r[2], r[3], r[4], r[5]) for r in rows]

    def purge(self, ids: Sequence[int]) -> int:
        """See `MarkStore.purge`."""
        return self._execute(self._sql(_PURGE), (list(ids),)).rowcount

    def clear(self, checkpoint: Checkpoint) -> int:
        """See `MarkStore.clear`."""
        first, last = checkpoint.term.first, checkpoint.term.tag(checkpoint.batch)
        parameters = (checkpoint.low_id, checkpoint.high_id, first, last)
        return self._execute(self._sql(_CLEAR), parameters).rowcount

    def reset(self, ids: Sequence[int]) -> int:
        """See `MarkStore.reset`."""
        return self._execute(self._sql(_RESET), (list(ids),)).rowcount

    def backlog(self) -> Backlog:
        """See `MarkStore.backlog`."""
        (row,) = self._execute(self._sql(_BACKLOG)).fetchall()
        return Backlog(row[0], row[1], row[2])

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `MarkStore.init`."""
        if self._types():
            return False
        payload = sql.SQL("BYTEA" if value_type == "bytes" else "TEXT")
        self._execute(sql.SQL(_CREATE).format(table=self._identifier, payload=payload))
        return True

    def check(self) -> list[Finding]:
        """See `MarkStore.check`."""
        connection = self._connected()
        version = connection.info.server_version
        level: Literal["ok", "error"] = "ok" if version >= 130000 else "error"
        where = f"PostgreSQL {version // 10000}, database {connection.info.dbname!r}"
        if level == "error":
            where += ": 13 is the oldest that is supported"
        findings = [Finding("server", level, where)]
        types = self._types()
        if not types:
            text = f"{self._table} does not exist: run `harvest init`, or create it as documented"
            return [*findings, Finding("table", "error", text)]
        findings.append(Finding("table", "ok", f"{self._table} exists"))
        findings += column_findings(types)
        findings += self._check_index() + self._check_privileges()
        return findings

    def cancel(self) -> None:
        """See `MarkStore.cancel`."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=5.0)

    def close(self) -> None:
        """See `MarkStore.close`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- Statements ---

    @property
    def _identifier(self) -> sql.Identifier:
        return sql.Identifier(*self._table.parts)

    def _sql(self, template: Any) -> sql.Composed:
        return sql.SQL(template).format(table=self._identifier)

    def _clock_ahead_s(self) -> float:
        """By how much the database's clock is ahead of ours, at least. Asked every 10 s."""
        if time.monotonic() > self._clock_asked_s + _ASK_CLOCK_EVERY_S:
            ((database_s,),) = self._execute(sql.SQL(_CLOCK)).fetchall()
            self._clock_asked_s = time.monotonic()
            self._clock_ahead = database_s - self._clock_asked_s
        return self._clock_ahead

    def _mark_statement(self) -> sql.Composed:
        """The mark, which depends on the types of the columns; they are looked up once."""
        if self._mark_sql is None:
            types = self._types()
            if not types:
                raise TableMissing(
                    f"the table {self._table} does not exist in the database "
                    f"{self._connected().info.dbname!r}: run `harvest init`"
                )
            wrong = [f.text for f in column_findings(types) if f.level == "error"]
            if wrong:
                problems = "; ".join(wrong)
                raise SchemaError(f"the table {self._table} cannot be harvested: {problems}")

            def readable(column: str) -> sql.Composable:
                name = sql.Identifier(column)
                return name if types[column][0] in _READ_AS_IS else name + sql.SQL("::text")

            self._mark_sql = sql.SQL(_MARK).format(
                table=self._identifier,
                topic=readable("kafka_topic"),
                key=readable("kafka_key"),
                value=readable("kafka_value"),
            )
        return self._mark_sql

    def _types(self) -> dict[str, tuple[str, bool]]:
        """For each column of the table: its type, and whether it is NOT NULL."""
        found = self._execute(sql.SQL(_COLUMN_TYPES), (self._table.quoted(),)).fetchall()
        return {name: (type_name, required) for name, type_name, required in found}

    def _check_index(self) -> list[Finding]:
        query = """
            SELECT count(*) FROM pg_index i JOIN pg_attribute a
              ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
            WHERE i.indrelid = to_regclass(%s) AND a.attname = 'id'
              AND i.indisvalid AND i.indpred IS NULL
        """
        ((indexes,),) = self._execute(sql.SQL(query), (self._table.quoted(),)).fetchall()
        if indexes:
            return [Finding("index", "ok", "an index begins with id")]
        remedy = f"ALTER TABLE {self._table} ADD PRIMARY KEY (id)"
        text = f"no index begins with id: every mark reads the whole table; {remedy}"
        return [Finding("index", "error", text)]

    def _check_privileges(self) -> list[Finding]:
        findings = []
        for privilege in ("SELECT", "UPDATE", "DELETE"):
            query = sql.SQL("SELECT has_table_privilege(to_regclass(%s), %s), current_user::text")
            found = self._execute(query, (self._table.quoted(), privilege)).fetchall()
            ((granted, user),) = found
            if granted:
                findings.append(Finding("privilege", "ok", f"{user} may {privilege}"))
            else:
                text = f"{user} may not {privilege}: GRANT {privilege} ON {self._table} TO {user}"
                findings.append(Finding("privilege", "error", text))
        return findings

    # --- The connection ---

    def _connected(self) -> psycopg.Connection[TupleRow]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True, row_factory=tuple_row)
            try:
                for type_name in _AS_BYTES:
                    connection.adapters.register_loader(type_name, ByteaBinaryLoader)
                connection.execute(_SESSION)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise StoreUnavailable(f"the database cannot be reached: {_said(error)}") from error
        self._connection = connection
        self._mark_sql = None  # the table may have been changed meanwhile,
        self._clock_asked_s = float("-inf")  # and this may be another server
        return connection

    def _execute(
        self,
        statement: sql.SQL | sql.Composed,
        parameters: Sequence[Any] = (),
        *,
        binary: bool = False,
    ) -> psycopg.Cursor[TupleRow]:
        connection = self._connected()
        try:
            cursor = connection.cursor(binary=binary)
            cursor.execute(statement, parameters or None)
        except psycopg.errors.UndefinedTable as error:
            self._mark_sql = None
            raise TableMissing(
                f"the table {self._table} does not exist: run `harvest init`"
            ) from error
        except (psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege) as error:
            self._mark_sql = None
            raise SchemaError(
                f"the table {self._table} cannot be used: {_said(error)}; run `harvest check`"
            ) from error
        except psycopg.Error as error:
            if connection.broken:
                self.close()
            raise StoreUnavailable(f"the database broke off a statement: {_said(error)}") from error
        return cursor


def _id(row: TupleRow) -> int:
    key: int = row[0]
    return key


def _said(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
