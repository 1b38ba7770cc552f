"""One table in MariaDB or MySQL: what every store on it shares (specs/DATABASES.md §3).

The driver is PyMySQL. Its statements are text: values are escaped by the driver, ids are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from harvest.core.extra_columns import NO_EXTRA, Extra
from harvest.core.gaps import Range
from harvest.core.interfaces.mark_store import Finding
from harvest.core.table_name import TableName
from harvest.databases.column_values import as_bytes, topic_text
from harvest.databases.schema import COLUMNS, extra_findings
from harvest.errors import ConfigurationError, SchemaError, StoreUnavailable, TableMissing

if TYPE_CHECKING:
    import pymysql

__all__ = ["MysqlTable", "connect_arguments", "within"]

_PARAMETERS: Final = {"unix_socket": str, "ssl_ca": str, "connect_timeout": int}
_SESSION: Final = (  # whatever the server is set to
    "time_zone = '+00:00', innodb_lock_wait_timeout = 10, sql_safe_updates = 0, "
    "completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615"
)
_DEADLOCK: Final = 1213
_NO_TABLE: Final = 1146
_UNUSABLE: Final = {1044, 1054, 1109, 1142, 1143, 1193, 1227}  # what is not there; no privilege
_BROKEN: Final = {1053, 1927, 2006, 2013, 2014}
_READ_ONLY: Final = {1290, 1792, 1836}
_ATTEMPTS: Final = 5
_TERMS: Final = 1_000
"""How many conditions a statement has: the optimizer gives up on very many."""
_MIN_PACKET: Final = 4 << 20
_OLDEST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0)}
_INTEGERS: Final = {"bigint", "int", "mediumint", "smallint", "tinyint"}
_TIMES: Final = {"timestamp", "datetime", "date"}
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
  id                  BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  create_time         TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           {payload} NOT NULL,
  kafka_value         {payload},
  kafka_header_keys   MEDIUMTEXT NOT NULL,
  kafka_header_values MEDIUMTEXT NOT NULL{more}
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
"""
_COLUMN_TYPES: Final = """
SELECT column_name, column_type, is_nullable, extra, character_set_name
FROM information_schema.columns
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
"""
_ENGINE: Final = """
SELECT engine FROM information_schema.tables
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
"""


def connect_arguments(url: str) -> dict[str, Any]:
    """``mysql://user:password@host:port/database`` as arguments of PyMySQL's `connect`.

    Raises `ConfigurationError`, which shows no part of the URL but names of parameters.
    """
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        arguments: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": parts.port or 3306,
            "user": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path[1:]) or None,
        }
        for name, value in given:
            if name not in _PARAMETERS:
                known = ", ".join(_PARAMETERS)
                raise ConfigurationError(f"database: unknown parameter {name!r}; known: {known}")
            arguments[name] = _PARAMETERS[name](value)
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            "database: the URL cannot be read: write mysql://user:password@host:port/database, "
            "with special characters percent-encoded"
        ) from None
    if not arguments["database"] or "/" in arguments["database"]:
        raise ConfigurationError("database: the URL names no database: write mysql://host/database")
    return arguments


class MysqlTable:
    """One connection to the outbox `table` in the database of `url`.

    Connects when first used; used by one thread.

    Raises `ConfigurationError` for a `url` or `table` that cannot be read, or without the driver.
    """

    _marked = True
    """Whether the table needs what mark mode needs."""
    _isolation = "READ COMMITTED"
    _extra: Extra = NO_EXTRA
    """Columns that become headers."""

    def __init__(self, url: str, table: str | TableName) -> None:
        self._arguments = connect_arguments(url)
        self._table = TableName.parse(table) if isinstance(table, str) else table
        self._connection: pymysql.Connection[Any] | None = None
        self._thread_id = 0

    def ping(self) -> None:
        """Ask for an answer. Raises `StoreUnavailable`."""
        self._execute("SELECT 1")

    def topics(self) -> list[str]:
        """The topics of the first 10,000 rows that wait."""
        found = self._execute(
            f"SELECT DISTINCT kafka_topic FROM (SELECT kafka_topic FROM {self._name} "  # noqa: S608
            "ORDER BY id LIMIT 10000) AS t ORDER BY 1"
        )
        return [topic_text(topic) for (topic,) in found if topic is not None]

    def first_rows(self, after: int, limit: int) -> list[tuple[int, str, bytes | None]]:
        """Id, topic and key of the lowest rows above an id."""
        found = self._execute(
            f"SELECT id, kafka_topic, kafka_key FROM {self._name} "  # noqa: S608
            "WHERE id > %s ORDER BY id LIMIT %s",
            (after, limit),
        )
        return [(id, topic_text(topic), as_bytes(key)) for id, topic, key in found]

    def check_around(self) -> list[Finding]:
        """What `check` says beside the table."""
        return [Finding("wake-up", "ok", "by polling: the database tells nobody of new rows")]

    def cancel(self) -> None:
        """From any thread: break off the statement under way, which then raises."""
        import pymysql

        connection = self._connection
        if connection is not None:
            with suppress(pymysql.MySQLError), self._driver_connection() as other:
                other.cursor().execute(f"KILL QUERY {self._thread_id}")

    def close(self) -> None:
        """Close the connection. The next use connects again."""
        import pymysql

        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(pymysql.MySQLError):
                connection.close()

    # --- The table ---

    @property
    def _name(self) -> str:
        return self._table.quoted("`")

    @property
    def _where(self) -> tuple[str | None, str]:
        """Schema and table, as information_schema knows them."""
        *schema, table = self._table.parts
        return (schema[0] if schema else None), table

    def _types(self) -> dict[str, tuple[str, bool, bool, str | None]]:
        """For each column: its type, whether NOT NULL, whether AUTO_INCREMENT, character set."""
        return {
            name.decode().lower(): (
                type_.decode().lower(),
                nullable == b"NO",
                b"auto_increment" in extra.lower(),
                None if charset is None else charset.decode(),
            )
            for name, type_, nullable, extra, charset in self._execute(_COLUMN_TYPES, self._where)
        }

    def _usable_types(self) -> dict[str, tuple[str, bool, bool, str | None]]:
        """The same. Raises `TableMissing`, or `SchemaError` when it cannot be harvested."""
        types = self._types()
        if not types:
            raise TableMissing(
                f"the table {self._table} does not exist in the database "
                f"{self._arguments['database']!r}: run `harvest init`"
            )
        findings = [self._engine_finding(), *self._column_findings(types)]
        wrong = [finding.text for finding in findings if finding.level == "error"]
        if wrong:
            problems = "; ".join(wrong)
            raise SchemaError(f"the table {self._table} cannot be harvested: {problems}")
        return types

    def _column_findings(
        self, types: dict[str, tuple[str, bool, bool, str | None]]
    ) -> list[Finding]:
        findings = []
        for column in COLUMNS:
            if column == "leader_id" and not self._marked:
                continue
            if column not in types:
                text = f"the column {column} is missing: see the table in specs/DATABASES.md §1"
                findings.append(Finding("column", "error", text))
                continue
            type_name, required, counts, _ = types[column]
            wrong = None
            if column == "id" and type_name.partition("(")[0].split()[0] not in _INTEGERS:
                wrong = f"the column id is {type_name}: make it BIGINT AUTO_INCREMENT"
            elif column == "id" and not counts:
                wrong = "the column id is not AUTO_INCREMENT: make it BIGINT AUTO_INCREMENT"
            elif column == "create_time" and type_name.partition("(")[0] not in _TIMES:
                wrong = f"the column create_time is {type_name}: make it TIMESTAMP(6)"
            elif column == "leader_id" and (type_name not in ("binary(16)", "uuid") or required):
                wrong = f"the column leader_id is {type_name}: make it BINARY(16) NULL"
            if wrong is None:
                findings.append(Finding("column", "ok", f"{column} {type_name}"))
            else:
                findings.append(Finding("column", "error", wrong))
        return findings + extra_findings(types, {n: c.lower() for n, c in self._extra.items()})

    def _extra_columns(self) -> str:
        """The columns that become headers, behind others."""
        return "".join([f", {TableName((c,)).quoted('`')}" for c in self._extra.values()])

    def _engine_finding(self) -> Finding:
        ((engine,),) = self._execute(_ENGINE, self._where)
        if engine == b"InnoDB":
            return Finding("engine", "ok", "InnoDB")
        text = f"the engine is {_text(engine)}, without transactions: ALTER TABLE … ENGINE = InnoDB"
        return Finding("engine", "error", text)

    def _create_table(self, value_type: Literal["text", "bytes"]) -> bool:
        """Create the table; whether it was created."""
        created = not self._types()
        payload = "MEDIUMBLOB" if value_type == "bytes" else "MEDIUMTEXT"
        more = ",\n  leader_id           BINARY(16)" if self._marked else ""
        if created:
            self._execute(_CREATE.format(table=self._name, payload=payload, more=more))
        return created

    def _check_table(self, probes: Sequence[tuple[str, str]]) -> list[Finding]:
        """What `check` says. `probes`: privileges, and statements that only explain and need
        them."""
        findings = [self._server_finding()]
        if not (types := self._types()):
            text = f"{self._table} does not exist: run `harvest init`"
            return [*findings, Finding("table", "error", text)]
        findings += [Finding("table", "ok", f"{self._table} exists"), self._engine_finding()]
        findings += self._column_findings(types)
        findings += [self._index_finding(), *self._settings_findings()]
        for privilege, statement in probes:
            try:
                self._execute(statement)
            except SchemaError as error:
                findings.append(Finding("privilege", "error", f"GRANT {privilege}: {error}"))
            else:
                findings.append(Finding("privilege", "ok", f"may {privilege}"))
        return findings

    def _server_finding(self) -> Finding:
        ((said,),) = self._execute("SELECT VERSION()")
        text = _text(said)
        kind = "MariaDB" if "mariadb" in text.lower() else "MySQL"
        numbers = re.findall(r"\d+", text)
        version = tuple(int(number) for number in numbers[:2])
        where = f"{kind} {text}, database {self._arguments['database']!r}"
        if version < _OLDEST[kind]:
            oldest = ".".join(map(str, _OLDEST[kind]))
            return Finding("server", "error", f"{where}: {oldest} is the oldest that is supported")
        return Finding("server", "ok", where)

    def _index_finding(self) -> Finding:
        found = self._execute(f"SHOW INDEX FROM {self._name} WHERE Seq_in_index = 1")
        for row in found:
            if row[2] == b"PRIMARY" and row[4].lower() == b"id":
                return Finding("index", "ok", "the primary key begins with id")
        text = f"the primary key does not begin with id: ALTER TABLE {self._table} ADD PRIMARY KEY"
        return Finding("index", "error", f"{text} (id)")

    def _settings_findings(self) -> list[Finding]:
        query = "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.max_allowed_packet"
        ((flush, packet),) = self._execute(query)
        findings = []
        if flush == 1:
            findings.append(Finding("durability", "ok", "commits are on the disk"))
        else:
            text = (
                f"innodb_flush_log_at_trx_commit is {flush}: a crash of its machine undoes "
                "rows that were published, and their ids come again; set it to 1"
            )
            findings.append(Finding("durability", "warning", text))
        low = packet < _MIN_PACKET
        text = f"max_allowed_packet is {packet} bytes"
        text += ": larger rows cannot be read" if low else ""
        return [*findings, Finding("packet", "warning" if low else "ok", text)]

    # --- The connection ---

    def _driver_connection(self) -> pymysql.Connection[Any]:
        import pymysql
        from pymysql.constants import FIELD_TYPE
        from pymysql.converters import encoders

        conversions: dict[Any, Any] = {
            **encoders,
            FIELD_TYPE.TINY: int,
            FIELD_TYPE.SHORT: int,
            FIELD_TYPE.INT24: int,
            FIELD_TYPE.LONG: int,
            FIELD_TYPE.LONGLONG: int,
        }  # others as the server writes them: a key that is a DECIMAL keeps all its digits
        defaults = {"connect_timeout": 10, "read_timeout": 30, "write_timeout": 30}
        return pymysql.connect(
            **{**defaults, **self._arguments},
            charset="utf8mb4",
            use_unicode=False,  # bytes go to Kafka as they come
            conv=conversions,
            autocommit=True,
            program_name="harvest",
        )

    def _connected(self) -> pymysql.Connection[Any]:
        if self._connection is not None:
            return self._connection
        import pymysql

        try:
            connection = self._driver_connection()
            try:
                self._set_up(connection)
            except BaseException:
                with suppress(pymysql.MySQLError):
                    connection.close()
                raise
        except (pymysql.MySQLError, OSError) as error:
            raise StoreUnavailable(f"the database cannot be reached: {error}") from error
        self._connection = connection
        self._forget()
        return connection

    def _set_up(self, connection: pymysql.Connection[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {self._isolation}")
            cursor.execute(f"SET SESSION {_SESSION}")
            cursor.execute("SELECT CONNECTION_ID(), VERSION()")
            ((self._thread_id, version),) = cursor.fetchall()
            if b"mariadb" not in version.lower():
                cursor.execute("SET SESSION information_schema_stats_expiry = 0")

    def _forget(self) -> None:
        """Whatever was learned of the table or the server may have changed."""

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """The rows."""
        with self._errors(), self._connected().cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return cursor.fetchall()

    def _change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement concerned; it is tried again after a deadlock."""
        import pymysql

        for attempt in range(1, _ATTEMPTS + 1):
            with self._errors(), self._connected().cursor() as cursor:
                try:
                    return int(cursor.execute(statement, parameters or None))
                except pymysql.MySQLError as error:
                    if error.args[:1] != (_DEADLOCK,) or attempt == _ATTEMPTS:
                        raise
        raise AssertionError("unreachable")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pymysql

        try:
            yield
        except pymysql.MySQLError as error:
            code = error.args[0] if error.args else 0
            said = " ".join(str(part) for part in error.args)
            if code == _NO_TABLE or code in _UNUSABLE:
                self._forget()
            if code == _NO_TABLE:
                text = f"the table {self._table} cannot be used: {said}; run `harvest init`"
                raise TableMissing(text) from error
            if code in _UNUSABLE:
                text = f"the table {self._table} cannot be used: {said}; run `harvest check`"
                raise SchemaError(text) from error
            if code in _READ_ONLY:
                self.close()  # the next connection finds the primary, if there is one
                raise StoreUnavailable(f"the database is read-only: {said}") from error
            gone = self._connection is not None and not self._connection.open
            if gone or isinstance(error, pymysql.InterfaceError) or code in _BROKEN:
                self.close()
            raise StoreUnavailable(f"the database broke off a statement: {said}") from error
        except OSError as error:  # a time-out of the socket
            self.close()
            raise StoreUnavailable(f"the database does not answer: {error}") from error


def within(ranges: Sequence[Range]) -> Iterator[str]:
    """Conditions that are together true for the ids in `ranges`, each of a bearable length."""
    for start in range(0, len(ranges), _TERMS):
        chunk = ranges[start : start + _TERMS]
        terms = [f"id BETWEEN {int(low)} AND {int(high)}" for low, high in chunk if low != high]
        alone = [str(int(low)) for low, high in chunk if low == high]
        if alone:
            terms.append(f"id IN ({', '.join(alone)})")
        yield f"({' OR '.join(terms)})"


def _text(value: bytes | str | None) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
