"""One table in PostgreSQL: what every store on it shares.

Connecting, executing, naming errors, and looking at the table's columns, indexes and privileges.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.string import ByteaBinaryLoader

from harvest.core.extra_columns import NO_EXTRA, Extra
from harvest.core.interfaces.mark_store import COUNTED, Finding
from harvest.core.row import Row, unreadable
from harvest.core.table_name import TableName
from harvest.databases.postgres import notify
from harvest.databases.postgres.conninfo import parsed_conninfo
from harvest.databases.schema import column_findings
from harvest.errors import (
    HarvestError,
    SchemaError,
    StoreUnavailable,
    TableMissing,
)

__all__ = ["PostgresTable", "UnreadableRows", "readable", "refused", "topic_of"]

_CONNECT_DEFAULTS: Final = {
    "application_name": "harvest",
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",  # milliseconds; a dead network must not hang a harvester
    # That is about what was sent. Whoever waits for an answer of a server that is gone sends
    # nothing, and the kernel would ask after two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}
_ALWAYS: Final = {"client_encoding": "UTF8"}  # as Kafka's records have it, whatever the database's
_SESSION: Final = {  # whatever the database is set to
    "default_transaction_isolation": "read committed",
    "array_nulls": "on",  # an array of nothing but NULL goes as text
    "quote_all_identifiers": "off",
}
_AS_BYTES: Final = ("text", "varchar", "bpchar", "json")
_BYTES_OIDS: Final = frozenset({17, 25, 114, 1042, 1043})  # bytea, and those of `_AS_BYTES`
_READ_AS_IS: Final = {"text", "character varying", "character", "bytea", "json"}
_MILLISECONDS: Final = (
    "CASE WHEN isfinite({c}) THEN (extract(epoch FROM {c}) * 1000)::bigint::text ELSE {c}::text END"
)
_CLOCK_WARNING_S: Final = 2.0
_OF_ROWS: Final = (
    psycopg.DataError,  # no text in the encoding that it should be of, for one
    psycopg.errors.ProgramLimitExceeded,  # more than a message holds
    psycopg.errors.DataCorrupted,
)
"""What fails for what is in a row, and again whenever it is read."""
_OF_PREPARED: Final = (
    psycopg.errors.FeatureNotSupported,  # "cached plan must not change result type"
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
)
"""What a connection says again and again, since psycopg keeps what it has prepared: after ALTER
TABLE, or where it was let go of (DISCARD ALL)."""
_BESIDE: Final = {
    "registration": ("SELECT", "INSERT", "UPDATE"),
    "dead_letters": ("SELECT", "INSERT", "DELETE"),
}
"""What a harvester needs on the tables beside the outbox, where they were made for it."""
_COLUMN_TYPES: Final = """
SELECT a.attname, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL), a.attnotnull
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""


class UnreadableRows(StoreUnavailable):
    """The database cannot hand over what is in a row; it does not say which."""

    def row_problem(self) -> str:
        """What is wrong with the row, when it was the only one."""
        return f"the database cannot hand it over: {self.__cause__ and _said(self.__cause__)}"


class PostgresTable:
    """One connection to the outbox `table` in the database of `conninfo` (a libpq string or URL).

    Connects when first used; used by one thread. `session`: which servers will do, of one host or
    several, as libpq's `target_session_attrs` says it: not a standby, by default.

    Raises `ConfigurationError` for a `conninfo` or `table` that cannot be read.
    """

    _marked = True
    """Whether the table needs what mark mode needs."""
    _extra: Extra = NO_EXTRA
    """Columns that become headers."""
    _settings: Mapping[str, str] = {}
    """Settings of the server that the statements want: of the session, or behind a pooler, whose
    sessions are the application's, too, of each transaction."""

    def __init__(
        self, conninfo: str, table: str | TableName, *, session: str = "read-write"
    ) -> None:
        self._table = TableName.parse(table) if isinstance(table, str) else table
        given = parsed_conninfo(conninfo)
        defaults = {**_CONNECT_DEFAULTS, "target_session_attrs": session}
        self._conninfo = make_conninfo("", **{**defaults, **given, **_ALWAYS})
        self._connection: psycopg.Connection[TupleRow] | None = None
        self._pooled = False

    @property
    def conninfo(self) -> str:
        """The connection string, with our defaults. May hold a password."""
        return self._conninfo

    @property
    def pooled(self) -> bool:
        """Whether connections go through a pooler. Connects. Raises `StoreUnavailable`."""
        self._connected()
        return self._pooled

    def ping(self) -> None:
        """Ask for an answer. Raises `StoreUnavailable`."""
        self._execute(sql.SQL("SELECT 1"))

    def topics(self) -> list[str]:
        """The topics of the first 10,000 rows that wait."""
        query = self._sql(
            f"SELECT DISTINCT {_stored(self._types(), 'kafka_topic')} FROM "  # noqa: S608
            "(SELECT kafka_topic FROM {table} ORDER BY id LIMIT 10000) t ORDER BY 1"
        )
        found = self._execute(query, binary=True).fetchall()
        return [topic.decode(errors="replace") for (topic,) in found if topic is not None]

    def first_rows(self, after: int, limit: int) -> list[tuple[int, str, bytes | None]]:
        """Id, topic and key of the lowest rows above an id; a text as it is stored."""
        types = self._types()
        topic, key = _stored(types, "kafka_topic"), _stored(types, "kafka_key")
        query = self._sql(
            f"SELECT id, {topic}, {key} FROM {{table}} "  # noqa: S608
            "WHERE id > %s ORDER BY id LIMIT %s"
        )
        found = self._execute(query, (after, limit), binary=True).fetchall()
        return [(id, (topic or b"").decode(errors="replace"), its) for id, topic, its in found]

    def check_around(self) -> list[Finding]:
        """What `check` says beside the table: the trigger, rows set aside, the clock."""
        connection = self._connected()
        channel = notify.installed(connection, self._table)
        findings = [
            Finding("wake-up", "ok", "the trigger tells of new rows")
            if channel
            else Finding("wake-up", "ok", "by polling; `harvest init --notify` is quicker")
        ]
        if self._pooled:
            text = (
                "the connection goes through a pooler: settings are those of each transaction, "
                "nothing is prepared"
            )
            if channel:
                text += "; notifications need `direct_database`, which reaches PostgreSQL itself"
            findings.append(Finding("pooler", "ok", text))
        dead_letters = self._table.beside("dead_letters")
        query = sql.SQL(
            "SELECT to_regclass(%(dead_letters)s) IS NOT NULL, "
            "has_schema_privilege((SELECT relnamespace FROM pg_class "
            "WHERE oid = to_regclass(%(table)s)), 'CREATE'), "
            "extract(epoch FROM clock_timestamp())::float8"
        )
        given = {"dead_letters": dead_letters.quoted(), "table": self._table.quoted()}
        ((there, may_create, database_s),) = self._execute(query, given).fetchall()
        if there:
            template = sql.SQL("SELECT count(*) FROM (SELECT FROM {t} LIMIT {most}) AS first")
            counted = template.format(t=sql.Identifier(*dead_letters.parts), most=COUNTED)
            ((rows,),) = self._execute(counted).fetchall()
            more = " or more" if rows == COUNTED else ""
            text = f"{rows}{more} rows are set aside: see `harvest dead-letters list`"
            findings.append(Finding("dead-letters", "warning" if rows else "ok", text))
        elif not may_create:
            text = (
                f"{dead_letters} does not exist and cannot be made: a bad row will stop the harvest"
            )
            findings.append(
                Finding("dead-letters", "warning", f"{text}; run `harvest init` as owner")
            )
        ahead_s = database_s - time.time()
        far = abs(ahead_s) > _CLOCK_WARNING_S
        text = f"the database's is {ahead_s:+.3f} s from ours"
        text += "; nothing rests on that, but logs and ages will confuse" if far else ""
        return [*findings, Finding("clock", "warning" if far else "ok", text)]

    def install_notify(self, *, remove: bool = False) -> bool:
        """Create the trigger that tells of new rows, or remove it; whether there was a need to."""
        connection = self._connected()
        try:
            return notify.install(connection, self._table, remove=remove)
        except psycopg.Error as error:
            raise refused(f"the trigger on {self._table}", error) from error

    def cancel(self) -> None:
        """From any thread: break off the statement under way, which then raises."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=5.0)

    def close(self) -> None:
        """Close the connection. The next use connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _forget(self) -> None:
        """Whatever was learned of the table or the server may have changed."""

    # --- Looking at the table ---

    @property
    def _identifier(self) -> sql.Identifier:
        return sql.Identifier(*self._table.parts)

    def _sql(self, template: Any) -> sql.Composed:
        return sql.SQL(template).format(table=self._identifier)

    def _types(self) -> dict[str, tuple[str, bool]]:
        """For each column of the table: its type, and whether it is NOT NULL."""
        return self._types_of(self._table)

    def _types_of(self, table: TableName) -> dict[str, tuple[str, bool]]:
        found = self._execute(sql.SQL(_COLUMN_TYPES), (table.quoted(),)).fetchall()
        return {name: (type_name, required) for name, type_name, required in found}

    def _usable_types(self) -> dict[str, tuple[str, bool]]:
        """The same. Raises `TableMissing`, or `SchemaError` when it cannot be harvested."""
        types = self._types()
        if not types:
            raise TableMissing(
                f"the table {self._table} does not exist in the database "
                f"{self._connected().info.dbname!r}: run `harvest init`"
            )
        found = column_findings(types, marked=self._marked, extra=self._extra)
        wrong = [finding.text for finding in found if finding.level == "error"]
        if wrong:
            problems = "; ".join(wrong)
            raise SchemaError(f"the table {self._table} cannot be harvested: {problems}")
        return types

    def _check_table(self, privileges: Sequence[str]) -> list[Finding]:
        """What `check` says of server, table, columns, index and privileges."""
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
        findings += column_findings(types, marked=self._marked, extra=self._extra)
        findings += self._check_index() + self._check_privileges(self._table, privileges)
        findings += self._check_row_security()
        return findings + self._check_beside()

    def _check_beside(self) -> list[Finding]:
        """What is missing of the privileges on the tables beside the outbox."""
        findings: list[Finding] = []
        for suffix, needed in _BESIDE.items():
            beside = self._table.beside(suffix)
            if self._types_of(beside):
                findings += self._check_privileges(beside, needed)
        return [finding for finding in findings if finding.level == "error"]

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
        text = f"no index begins with id: every statement reads the whole table; {remedy}"
        return [Finding("index", "error", text)]

    def _check_row_security(self) -> list[Finding]:
        query = sql.SQL("SELECT row_security_active(to_regclass(%s)), current_user::text")
        ((active, user),) = self._execute(query, (self._table.quoted(),)).fetchall()
        if not active:
            return []
        text = (
            f"row-level security: {user} sees what the policies of {self._table} show, and rows "
            f"that they hide are not published; ALTER ROLE {user} BYPASSRLS, unless they hide none"
        )
        return [Finding("privilege", "warning", text)]

    def _check_privileges(self, table: TableName, privileges: Sequence[str]) -> list[Finding]:
        findings = []
        for privilege in privileges:
            query = sql.SQL("SELECT has_table_privilege(to_regclass(%s), %s), current_user::text")
            found = self._execute(query, (table.quoted(), privilege)).fetchall()
            ((granted, user),) = found
            if granted:
                findings.append(Finding("privilege", "ok", f"{user} may {privilege}"))
            else:
                text = f"{user} may not {privilege}: GRANT {privilege} ON {table} TO {user}"
                findings.append(Finding("privilege", "error", text))
        return findings

    def _extra_columns(self, types: Mapping[str, tuple[str, bool]]) -> list[sql.Composable]:
        """How the columns that become headers are selected: as bytes, times as milliseconds."""
        found: list[sql.Composable] = []
        for column in self._extra.values():
            name, type_name = sql.Identifier(column), types[column][0]
            if type_name.startswith("timestamp"):
                found.append(sql.SQL(_MILLISECONDS).format(c=name))
            elif type_name == "bytea":
                found.append(name)
            else:
                found.append(name + sql.SQL("::text"))
        return found

    # --- The connection ---

    def _connected(self) -> psycopg.Connection[TupleRow]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True, row_factory=tuple_row)
            try:
                for type_name in _AS_BYTES:
                    connection.adapters.register_loader(type_name, ByteaBinaryLoader)
                self._pooled = notify.behind_pooler(connection)
                if self._pooled:
                    connection.prepare_threshold = None  # statements are prepared in one session
                    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                else:
                    connection.execute(_set_config({**self._settings, **_SESSION}))
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise StoreUnavailable(f"the database cannot be reached: {_said(error)}") from error
        self._connection = connection
        self._forget()
        return connection

    def _execute(
        self,
        statement: sql.SQL | sql.Composed,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        *,
        binary: bool = False,
    ) -> psycopg.Cursor[TupleRow]:
        connection = self._connected()
        try:
            cursor = connection.cursor(binary=binary)
            if self._pooled and self._settings and not _in_transaction(connection):
                # Two round trips more. In a pipeline there are as many, and psycopg sends a Flush
                # behind the last Sync: if the transaction has ended by then, pgbouncer takes a
                # session for it, which nobody else gets until our next statement.
                connection.execute(_begin(self._settings))
                try:
                    cursor.execute(statement, parameters or None)
                    connection.commit()
                except BaseException:
                    with contextlib.suppress(psycopg.Error):
                        connection.rollback()
                    raise
            else:
                cursor.execute(statement, parameters or None)
        except psycopg.errors.UndefinedTable as error:
            self._forget()
            raise TableMissing(
                f"the table {self._table} does not exist: run `harvest init`"
            ) from error
        except (psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege) as error:
            self._forget()
            raise SchemaError(
                f"the table {self._table} cannot be used: {_said(error)}; run `harvest check`"
            ) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            self.close()  # the next connection finds the primary, if there is one
            raise StoreUnavailable(f"the database is read-only: {_said(error)}") from error
        except _OF_ROWS as error:
            text = f"the database cannot hand over a row: {_said(error)}"
            raise UnreadableRows(text) from error
        except psycopg.Error as error:
            if connection.broken or isinstance(error, _OF_PREPARED):
                self.close()
            elif isinstance(error, psycopg.ProgrammingError):
                self._forget()  # a statement was made for another type of a column
            raise StoreUnavailable(f"the database broke off a statement: {_said(error)}") from error
        return cursor

    def _same_types(self, cursor: psycopg.Cursor[TupleRow], columns: range) -> list[TupleRow]:
        """The rows of a statement that selects these columns as bytes, by the types they had.

        Raises `StoreUnavailable`, once, if one has another type now: what is prepared says so
        itself, and behind a pooler nothing is.
        """
        result = cursor.pgresult
        if result is not None and not all(result.ftype(at) in _BYTES_OIDS for at in columns):
            self._forget()
            raise StoreUnavailable(f"a column of {self._table} has another type now")
        return cursor.fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction. Raises `StoreUnavailable` when its beginning or its commit fails, too."""
        connection = self._connected()
        try:
            with connection.transaction():
                yield
        except psycopg.Error as error:  # statements have errors of their own
            if connection.broken:
                self.close()
            text = f"the database broke off a transaction: {_said(error)}"
            raise StoreUnavailable(text) from error

    # --- Rows that cannot be read ---

    def _storable(self, text: str) -> str:
        """Without NUL, and what our own words or an answer have and the database's encoding not."""
        text = text.replace("\x00", "")
        if self._encoding() == "UTF8":
            return text
        return text.encode("ascii", "backslashreplace").decode()

    def _encoding(self) -> str:
        return self._connected().info.parameter_status("server_encoding") or "UTF8"

    def _unreadable(
        self, row_id: int, columns: Sequence[sql.Composable], error: UnreadableRows
    ) -> Row:
        """The row, with what can be had of it; `columns`: how topic and key are selected."""
        topic, key = [self._one_value(self._identifier, row_id, column) for column in columns]
        return unreadable(row_id, (topic or b"").decode(errors="replace"), key, error.row_problem())

    def _one_value(
        self, table: sql.Identifier, row_id: int, column: sql.Composable
    ) -> bytes | None:
        """In UTF-8; if that is not possible, as it is stored; None if it cannot be had at all."""
        stored = sql.SQL("convert_to({}::text, getdatabaseencoding())").format(column)
        for wanted in (column, stored):
            query = sql.SQL("SELECT {} FROM {} WHERE id = %s").format(wanted, table)
            with contextlib.suppress(UnreadableRows):
                found = self._execute(query, (row_id,), binary=True).fetchall()
                value = found[0][0] if found else None
                return value.encode() if isinstance(value, str) else value
        return None


def _in_transaction(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE


def _set_config(settings: Mapping[str, str]) -> sql.Composed:
    """One statement that sets them all, for the session."""
    each = [
        sql.SQL("set_config({}, {}, false)").format(name, value) for name, value in settings.items()
    ]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(each))


def _begin(settings: Mapping[str, str]) -> sql.Composed:
    """Begin a transaction that has them, in one round trip."""
    template = sql.SQL("SET LOCAL {} = {}")
    each = [template.format(sql.Identifier(name), value) for name, value in settings.items()]
    begin = sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED")
    return sql.SQL("; ").join([begin, *each])


def readable(types: Mapping[str, tuple[str, bool]], column: str) -> sql.Composable:
    """A column as it is selected, so that it arrives as bytes: other types in their text form."""
    name = sql.Identifier(column)
    return name if types[column][0] in _READ_AS_IS else name + sql.SQL("::text")


def _stored(types: Mapping[str, tuple[str, bool]], column: str) -> str:
    """A column as it is stored, as bytes."""
    is_bytes = types[column][0] == "bytea"
    return column if is_bytes else f"convert_to({column}::text, getdatabaseencoding())"


def topic_of(types: Mapping[str, tuple[str, bool]]) -> sql.Composable:
    """The topic as it is selected. One that is NULL is empty: no name that Kafka allows.

    Without need it is not cast: bytes, which the column may hold one day, would come as hex.
    """
    cast = "" if types["kafka_topic"][0] in ("bytea", "text", "character varying") else "::text"
    return sql.SQL("coalesce(kafka_topic{}, '')").format(sql.SQL(cast))


def refused(what: str, error: psycopg.Error) -> HarvestError:
    """Why the database did not make or drop something: it may not, or cannot for now."""
    kind = StoreUnavailable if isinstance(error, psycopg.OperationalError) else SchemaError
    return kind(f"{what}: {_said(error)}")


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
