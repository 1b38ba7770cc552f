"""One table in an SQLite file: what every store on it shares.

The file is in WAL mode, so that readers and the one writer do not wait for each other. Whoever
writes, writes alone: transactions follow one another, and so do their ids.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from harvest.core.extra_columns import NO_EXTRA, Extra
from harvest.core.interfaces.mark_store import Finding
from harvest.core.table_name import TableName
from harvest.databases.column_values import as_bytes, topic_text
from harvest.databases.schema import COLUMNS, extra_findings
from harvest.errors import ConfigurationError, SchemaError, StoreUnavailable, TableMissing

__all__ = ["QUOTE", "SqliteTable", "sqlite_path"]

_BUSY_TIMEOUT_S: Final = 10.0
_OLDEST: Final = (3, 35)  # RETURNING
QUOTE: Final = "`"
"""For names of columns: one that is not there, in double quotes, is a text to SQLite."""
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
  id                  INTEGER PRIMARY KEY AUTOINCREMENT,
  create_time         TEXT NOT NULL,
  kafka_topic         TEXT NOT NULL,
  kafka_key           {payload} NOT NULL,
  kafka_value         {payload},
  kafka_header_keys   TEXT NOT NULL,
  kafka_header_values TEXT NOT NULL{more}
)
"""
_AUTOINCREMENT: Final = re.compile(r"\bAUTOINCREMENT\b", re.IGNORECASE)


def sqlite_path(url: str) -> Path:
    """The file of ``sqlite:///relative/path`` or ``sqlite:////absolute/path``.

    Raises `ConfigurationError`.
    """
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or parts.query or parts.fragment or path in ("", ":memory:"):
        raise ConfigurationError(
            "the database must be a file: write sqlite:///relative/path or sqlite:////absolute/path"
            ", without host or parameters"
        )
    return Path(path)


class SqliteTable:
    """One connection to the outbox `table` in the file of `url`.

    Connects when first used; used by one thread. When another file has its name, the next use
    raises `StoreUnavailable`, and the one after connects to that. `durable` False lets commits
    return before they are on the disk: a crash of the machine, not of a process, then undoes the
    last ones.

    Raises `ConfigurationError` for a `url` or `table` that cannot be read.
    """

    _marked = True
    """Whether the table needs what mark mode needs."""
    _extra: Extra = NO_EXTRA
    """Columns that become headers."""

    def __init__(self, url: str, table: str | TableName, *, durable: bool = True) -> None:
        self.path = sqlite_path(url)
        self._absolute = self.path.absolute()
        self._table = TableName.parse(table) if isinstance(table, str) else table
        self._durable = durable
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        """Which file the connection has."""

    def ping(self) -> None:
        """Ask for an answer. Raises `StoreUnavailable`."""
        self._execute("SELECT 1")

    def topics(self) -> list[str]:
        """The topics of the first 10,000 rows that wait."""
        found = self._execute(
            f"SELECT DISTINCT kafka_topic FROM (SELECT kafka_topic FROM {self._name} "  # noqa: S608
            "ORDER BY id LIMIT 10000) ORDER BY 1"
        )
        return [topic_text(topic) for (topic,) in found if topic is not None]

    def first_rows(self, after: int, limit: int) -> list[tuple[int, str, bytes | None]]:
        """Id, topic and key of the lowest rows above an id."""
        found = self._execute(
            f"SELECT id, kafka_topic, kafka_key FROM {self._name} "  # noqa: S608
            "WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [(id, topic_text(topic), as_bytes(key)) for id, topic, key in found]

    def check_around(self) -> list[Finding]:
        """What `check` says beside the table."""
        return [Finding("wake-up", "ok", "by polling: SQLite tells nobody of new rows")]

    def cancel(self) -> None:
        """From any thread: break off the statement under way, which then raises."""
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.interrupt()

    def close(self) -> None:
        """Close the connection. The next use connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- The table ---

    @property
    def _name(self) -> str:
        return self._table.quoted()

    def _types(self) -> dict[str, tuple[str, bool]]:
        """For each column of the table: its declared type, and whether it is NOT NULL."""
        *schema, table = self._table.parts
        found = self._execute(
            "SELECT name, type, [notnull] FROM pragma_table_info(?, ?)",
            (table, schema[0] if schema else "main"),
        )
        return {
            _text(name): (_text(type_).upper(), bool(required)) for name, type_, required in found
        }

    def _usable(self) -> None:
        """Raises `TableMissing`, or `SchemaError` when the table cannot be harvested."""
        types = self._types()
        if not types:
            raise TableMissing(
                f"the table {self._table} does not exist in {self.path}: run `harvest init`"
            )
        wrong = [f.text for f in self._column_findings(types) if f.level == "error"]
        if wrong:
            problems = "; ".join(wrong)
            raise SchemaError(f"the table {self._table} cannot be harvested: {problems}")

    def _column_findings(self, types: dict[str, tuple[str, bool]]) -> list[Finding]:
        findings = []
        for column in COLUMNS:
            if column == "leader_id" and not self._marked:
                continue
            if column not in types:
                text = f"the column {column} is missing: see the table in specs/DATABASES.md §2"
                findings.append(Finding("column", "error", text))
                continue
            type_name, required = types[column]
            if column == "leader_id" and required:
                text = "the column leader_id is NOT NULL: it must be empty until a row is marked"
                findings.append(Finding("column", "error", text))
            elif column == "create_time" and "INT" in type_name:
                text = f"the column create_time is {type_name}, no time in text: make it TEXT"
                findings.append(Finding("column", "error", text))
            elif column == "id" and not self._counts_up():
                text = (
                    "id is not INTEGER PRIMARY KEY AUTOINCREMENT: the id of a deleted row would "
                    "come again; make the table anew, for example with `harvest init`"
                )
                findings.append(Finding("column", "error", text))
            else:
                findings.append(Finding("column", "ok", f"{column} {type_name}"))
        return findings + extra_findings(types, self._extra)

    def _extra_columns(self) -> str:
        """The columns that become headers, behind others."""
        return "".join([f", {TableName((c,)).quoted(QUOTE)}" for c in self._extra.values()])

    def _counts_up(self) -> bool:
        *schema, table = self._table.parts
        master = TableName((*schema, "sqlite_master")).quoted()
        found = self._execute(
            f"SELECT sql FROM {master} WHERE type = 'table' AND name = ? COLLATE NOCASE",  # noqa: S608
            (table,),
        )
        return bool(found) and _AUTOINCREMENT.search(_text(found[0][0])) is not None

    def _create_table(self, value_type: Literal["text", "bytes"]) -> bool:
        """Create the file and the table; whether the table was created."""
        self.close()
        self._connected(create=True)
        if _text(self._execute("PRAGMA journal_mode = WAL")[0][0]) != "wal":
            raise StoreUnavailable(
                f"{self.path} cannot be put into WAL mode: it needs a local file system"
            )
        created = not self._types()
        payload = "BLOB" if value_type == "bytes" else "TEXT"
        more = ",\n  leader_id           BLOB" if self._marked else ""
        self._execute(_CREATE.format(table=self._name, payload=payload, more=more))
        return created

    def _check_table(self) -> list[Finding]:
        """What `check` says of library, file, table and columns."""
        version = sqlite3.sqlite_version_info
        if version < _OLDEST:
            text = f"SQLite {sqlite3.sqlite_version}: {'.'.join(map(str, _OLDEST))} is the oldest"
            return [Finding("server", "error", text)]
        ((mode,),) = self._execute("PRAGMA journal_mode")
        findings = [Finding("server", "ok", f"SQLite {sqlite3.sqlite_version}, file {self.path}")]
        if _text(mode) == "wal":
            findings.append(Finding("journal", "ok", "write-ahead log"))
        else:
            text = f"journal mode {_text(mode)}: readers and writers wait; PRAGMA journal_mode=WAL"
            findings.append(Finding("journal", "error", text))
        types = self._types()
        if not types:
            text = f"{self._table} does not exist: run `harvest init`"
            return [*findings, Finding("table", "error", text)]
        findings.append(Finding("table", "ok", f"{self._table} exists"))
        return findings + self._column_findings(types) + [self._check_writable()]

    def _check_writable(self) -> Finding:
        ((read_only,),) = self._execute("PRAGMA query_only")
        try:
            with self._writing():
                pass
        except StoreUnavailable as error:
            return Finding("privilege", "error", f"{self.path} cannot be written: {error}")
        return Finding("privilege", "error" if read_only else "ok", f"{self.path} can be written")

    # --- The connection ---

    def _connected(self, *, create: bool = False) -> sqlite3.Connection:
        if self._connection is not None:
            if self._file() != self._opened:
                self.close()
                raise StoreUnavailable(f"{self.path} was replaced or deleted while it was open")
            return self._connection
        before = self._file()
        if not create and before is None:
            raise TableMissing(f"the file {self.path} does not exist: run `harvest init`")
        try:
            connection = sqlite3.connect(
                f"{self._absolute.as_uri()}?mode={'rwc' if create else 'rw'}",
                uri=True,
                timeout=_BUSY_TIMEOUT_S,
                isolation_level=None,  # transactions are begun and ended here, by name
                check_same_thread=False,  # made by one thread, used by another, closed by a third
            )
            connection.text_factory = bytes
            try:
                connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self.path} cannot be opened: {error}") from error
        # Of a file that is replaced meanwhile, the one before: then the next use opens it again.
        self._connection, self._opened = connection, before or self._file()
        self._forget()
        return connection

    def _file(self) -> tuple[int, int] | None:
        """Which file has the name now. SQLite goes on with one that was replaced, or deleted."""
        try:
            found = self._absolute.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _forget(self) -> None:
        """Whatever was learned of the table may have changed."""

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._errors():
            return self._connected().execute(statement, parameters).fetchall()

    def _change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Execute one statement in a transaction of its own; how many rows it concerned."""
        with self._writing() as connection, self._errors():
            return connection.execute(statement, parameters).rowcount

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """The one writing transaction; waits until nobody else writes."""
        connection = self._connected()
        with self._errors():
            connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            with self._errors():
                connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            said = str(error)
            if "no such" in said or "has no column" in said:
                self._forget()
            if "no such table" in said:
                text = f"the table {self._table} does not exist ({said}): run `harvest init`"
                raise TableMissing(text) from error
            if "no such column" in said or "has no column" in said:
                text = f"the table {self._table} cannot be used: {said}; run `harvest check`"
                raise SchemaError(text) from error
            raise StoreUnavailable(f"SQLite broke off a statement: {said}") from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
