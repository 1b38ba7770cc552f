"""Dead letters in PostgreSQL: beside the outbox `t`, a table `t_dead_letters`.

It has the outbox's columns, further ones too, of the same types but all nullable, and beside them
`error`, `waits` (for nothing but an earlier row of its key) and `dead_lettered_at`. Whoever moves
rows between the two tables locks this one first, so that no row starts to wait behind one that is
being moved back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, LiteralString

from psycopg import sql

from harvest.core.dead_letters import BadRow, Key, missing_topic_pattern
from harvest.core.interfaces.dead_letter_store import (
    DeadLetter,
    Dropped,
    RetryMode,
    Selection,
)
from harvest.core.interfaces.mark_store import COUNTED
from harvest.core.interfaces.sink import StillHeld
from harvest.core.mark_checkpoint import Term
from harvest.core.table_name import TableName
from harvest.databases.lease_clock import always, require
from harvest.databases.postgres.attempts import attempts_name
from harvest.databases.postgres.table import PostgresTable, UnreadableRows, readable, topic_of
from harvest.databases.schema import id_is_taken
from harvest.errors import SchemaError, StoreUnavailable, TableMissing

__all__ = ["PostgresDeadLetters"]

_LOG: Final = logging.getLogger("harvest")
_COLUMNS: Final = (
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
)
_LOST: Final = "; the database has lost its "
"""What the error of a damaged row says: NULL stands for what it had."""
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {dead_letters} AS
  SELECT id, {columns}, NULL::text AS error, false AS waits, now() AS dead_lettered_at
  FROM {table} WITH NO DATA;
CREATE UNIQUE INDEX IF NOT EXISTS {id_index} ON {dead_letters} (id);
"""
_NOT_OURS: Final = frozenset({"id", "leader_id", "error", "waits", "dead_lettered_at"})
_ALL_COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
  AND a.attgenerated = '' ORDER BY a.attnum
"""
_LOCK: Final = "LOCK TABLE {dead_letters} IN SHARE ROW EXCLUSIVE MODE"
_MOVE: Final = """
WITH given AS (SELECT * FROM unnest(%(ids)s::bigint[], %(errors)s::text[]) AS g (id, error)),
moved AS (
  DELETE FROM {table} t USING given
  WHERE t.id = given.id AND t.leader_id BETWEEN %(first)s AND %(last)s AND {condition}
  RETURNING t.id, {t_columns}, given.error, %(waits)s::bool, clock_timestamp()
)
INSERT INTO {dead_letters} (id, {columns}, error, waits, dead_lettered_at)
SELECT * FROM moved RETURNING id
"""
_TAKEN: Final = """
SELECT t.id FROM {table} t JOIN {dead_letters} s ON s.id = t.id
WHERE t.id = ANY (%(ids)s) AND t.leader_id BETWEEN %(first)s AND %(last)s ORDER BY 1 LIMIT 1
"""
# Of a row that is copied, its copy may be there already.
_TAKEN_BY_ANOTHER: Final = """
SELECT t.id FROM {table} t JOIN {dead_letters} s ON s.id = t.id
WHERE t.id = ANY (%(ids)s) AND t.create_time <> s.create_time ORDER BY 1 LIMIT 1
"""
_COPY: Final = """
WITH given AS (SELECT * FROM unnest(%(ids)s::bigint[], %(errors)s::text[]) AS g (id, error)),
copied AS (
  INSERT INTO {dead_letters} (id, {columns}, error, waits, dead_lettered_at)
  SELECT t.id, {t_columns}, given.error, %(waits)s::bool, clock_timestamp()
  FROM {table} t JOIN given ON t.id = given.id WHERE {condition}
  ON CONFLICT (id) DO NOTHING RETURNING id
)
SELECT id FROM copied UNION SELECT id FROM {dead_letters} WHERE id = ANY (%(ids)s)
"""
_KEYS: Final = "SELECT {topic}, {key}, min(id) FROM {dead_letters} GROUP BY 1, 2"
_EVERY: Final = "SELECT id FROM {dead_letters}"
_CHOSEN: Final = """
SELECT s.id FROM {dead_letters} s WHERE {condition} ORDER BY s.id LIMIT %(limit)s
"""
_MISSING: Final = "SELECT DISTINCT {topic} FROM {dead_letters} WHERE error LIKE %(start)s"
_IDS: Final = "SELECT id FROM {dead_letters} WHERE id BETWEEN %(low)s AND %(high)s"
_COUNT: Final = "SELECT count(*) FROM {dead_letters} s WHERE {condition}"
_COUNT_FIRST: Final = "SELECT count(*) FROM (SELECT FROM {dead_letters} LIMIT %(most)s) AS first"
_ROWS: Final = """
SELECT s.id, {topic}, {key}, octet_length({value}), s.error, s.waits, s.dead_lettered_at,
       CASE WHEN s.create_time BETWEEN '0001-01-02' AND '9999-12-30' THEN s.create_time END{noted}
FROM {dead_letters} s {notes} WHERE {condition} ORDER BY s.id LIMIT %(limit)s
"""
_NOTED: Final = ", a.destination, a.retries, a.destination_response_status"
_NOTES: Final = "LEFT JOIN {attempts} a ON a.id = s.id"
_FORGET: Final = """
DELETE FROM {attempts} a
WHERE a.gave_up AND NOT EXISTS (SELECT FROM {dead_letters} s WHERE s.id = a.id)
"""
_BUT_DELIVERED: Final = """
  AND NOT (a.delivered IS NOT NULL AND EXISTS (SELECT FROM {table} t WHERE t.id = a.id))
"""
_UNPUBLISHED: Final = """
DELETE FROM {table} t USING {dead_letters} s
WHERE t.id = s.id AND t.create_time = s.create_time AND {condition}
"""
_TAKE: Final = "DELETE FROM {dead_letters} s WHERE {condition}"
_PUT_BACK: Final = """
WITH taken AS (DELETE FROM {dead_letters} s WHERE {condition} RETURNING id, {columns})
INSERT INTO {table} ({kept}) OVERRIDING SYSTEM VALUE SELECT {kept} FROM taken ORDER BY id
"""
_SAME_KEY: Final = "{a}.kafka_topic = {b}.kafka_topic AND {a}.kafka_key{cast} = {b}.kafka_key{cast}"


class PostgresDeadLetters(PostgresTable):
    """The dead letters of the outbox `table`.

    Implements `harvest.core.interfaces.dead_letter_store.DeadLetterTable`. The table is made when
    it is first needed.
    """

    def __init__(self, conninfo: str, table: str | TableName) -> None:
        super().__init__(conninfo, table)
        self.name = self._table.beside("dead_letters")
        self._there = False
        self._parts: dict[str, sql.Composable] = {}
        self._cast = ""
        self._both: Mapping[str, str] = {}
        """The columns that both tables have, without ours, and their types."""

    def create(self) -> None:
        """See `DeadLetterTable.create`."""
        if not self._exists():
            index = sql.Identifier(f"{self.name.table[:59]}_id")
            columns = _listed(self._columns_of(self._table))
            template = sql.SQL(_CREATE)
            names = {"dead_letters": self._dead_letters, "table": self._identifier}
            self._column_types()
            self._execute(template.format(columns=columns, id_index=index, **names))
            self._parts = {}
            return
        self._change_types()
        there = self._columns_of(self.name)
        for name, type_name in self._wanted_columns().items():
            if name not in there:
                self._add_column(name, type_name)

    def _change_types(self) -> None:
        """The columns of the outbox may have come to have other types since the table was made."""
        wanted = self._wanted_columns()
        for name, before in self._columns_of(self.name).items():
            if wanted.get(name, before) != before:
                self._change_type(name, before, wanted[name])

    def _wanted_columns(self) -> dict[str, str]:
        """The columns that it is to have, besides ours, and their types."""
        return self._columns_of(self._table)

    def _add_column(self, name: str, type_name: str) -> None:
        """What the outbox got since the table was made."""
        statement = sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {} {}").format(
            self._dead_letters, sql.Identifier(name), _type(type_name)
        )
        try:
            self._execute(statement)
        except TableMissing:  # it was dropped since it was seen
            raise
        except SchemaError as error:
            _LOG.warning("the column %s of rows that are set aside is lost: %s", name, error)
        self._parts = {}

    def _change_type(self, name: str, before: str, type_name: str) -> None:
        column = sql.Identifier(name)
        statement = sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {} USING {}").format(
            self._dead_letters, column, _type(type_name), _converted(column, before, type_name)
        )
        try:
            self._execute(statement)
        except TableMissing:
            raise
        except (SchemaError, StoreUnavailable) as error:
            _LOG.warning(
                "the column %s of %s is %s, must be %s for every row to fit, and could not be "
                "changed: %s; run `harvest init` as the owner of the tables",
                name,
                self.name,
                before,
                type_name,
                error,
            )
        self._parts = {}

    def add(
        self, rows: Sequence[BadRow], term: Term | None, still_held: StillHeld = always
    ) -> frozenset[int]:
        """See `DeadLetterStore.add`. Of a damaged row, what is lost is NULL."""
        self.create()
        try:
            return self._add(rows, term, still_held)
        except UnreadableRows:
            if len(rows) > 1:
                ordered = sorted(rows, key=lambda row: row.waits)
                halves = ordered[: len(rows) // 2], ordered[len(rows) // 2 :]
                return frozenset().union(*[self.add(half, term, still_held) for half in halves])
            lost = self._lost_columns(rows[0].id)
            error = f"{rows[0].error}{_LOST}{', '.join(lost)}"
            return self._add([rows[0]._replace(error=error)], term, still_held, lost)

    def _add(
        self,
        rows: Sequence[BadRow],
        term: Term | None,
        still_held: StillHeld,
        lost: Collection[str] = (),
    ) -> frozenset[int]:
        statement = _COPY if term is None else _MOVE
        self._format("")  # which looks at the types
        t_columns = sql.SQL(", ").join(
            [
                sql.SQL("NULL::") + _type(its) if name in lost else sql.Identifier("t", name)
                for name, its in self._both.items()
            ]
        )
        done: set[int] = set()
        with self._transaction():
            for waits in (False, True):  # first what the others may wait for
                chosen = [row for row in rows if row.waits is waits]
                if not chosen:
                    continue
                given = {
                    "ids": [row.id for row in chosen],
                    "errors": [self._storable(row.error) for row in chosen],
                    "waits": waits,
                    "first": term and term.first,
                    "last": term and term.last,
                }
                taken = _TAKEN_BY_ANOTHER if term is None else _TAKEN
                for (id,) in self._execute(self._format(taken), given).fetchall():
                    raise id_is_taken(id, self.name)
                behind = sql.SQL(
                    "EXISTS (SELECT FROM {dead_letters} s WHERE {same} AND s.id < t.id)"
                ).format(dead_letters=self._dead_letters, same=self._same_key("s", "t"))
                condition = behind if waits else sql.SQL("true")
                move = self._format(statement, condition=condition, t_columns=t_columns)
                done.update(row[0] for row in self._execute(move, given).fetchall())
            require(still_held)
        return frozenset(done)

    def _lost_columns(self, row_id: int) -> list[str]:
        """Those whose values the database cannot copy, for it does not have them any more."""
        lost = []
        for name in self._both:
            read = sql.SQL("octet_length({}::text || '')").format(sql.Identifier(name))
            query = sql.SQL("SELECT {} FROM {} WHERE id = %s").format(read, self._identifier)
            try:
                self._execute(query, (row_id,))
            except UnreadableRows:
                lost.append(name)
        return lost

    def waiting_keys(self) -> Mapping[Key, int]:
        """See `DeadLetterStore.waiting_keys`."""
        if not self._exists():
            return {}
        try:
            found = self._execute(self._format(_KEYS), binary=True).fetchall()
        except UnreadableRows:
            lowest: dict[Key, int] = {}
            for (id,) in self._execute(self._format(_EVERY)).fetchall():
                topic, key = self._topic_and_key(id)
                lowest[topic, key] = min(id, lowest.get((topic, key), id))
            return lowest
        return {(topic.decode(errors="replace"), key): low for topic, key, low in found}

    def missing_topics(self) -> set[str]:
        """See `DeadLetterTable.missing_topics`."""
        if not self._exists():
            return set()
        found = self._execute(
            self._format(_MISSING), {"start": missing_topic_pattern()}, binary=True
        )
        return {topic.decode(errors="replace") for (topic,) in found.fetchall()}

    def count(self, selection: Selection = Selection()) -> int:  # noqa: B008 - immutable
        """See `DeadLetterTable.count`."""
        if not self._exists():
            return 0
        if selection == Selection():
            found = self._execute(self._format(_COUNT_FIRST), {"most": COUNTED})
            return int(found.fetchall()[0][0])
        condition, given = self._condition(selection)
        found = self._execute(self._format(_COUNT, condition=condition), given)
        return int(found.fetchall()[0][0])

    def rows(self, selection: Selection, limit: int) -> Sequence[DeadLetter]:
        """See `DeadLetterTable.rows`."""
        if not self._exists():
            return ()
        condition, given = self._condition(selection)
        noted = self._has_attempts()
        statement = self._format(
            _ROWS,
            condition=condition,
            noted=sql.SQL(_NOTED if noted else ""),
            notes=self._format(_NOTES) if noted else sql.SQL(""),
        )
        given["limit"] = limit
        try:
            found = self._execute(statement, given, binary=True).fetchall()
        except UnreadableRows:
            return self._rows_alone(condition, given)
        return [
            DeadLetter(
                r[0],
                r[1].decode(errors="replace"),
                r[2],
                r[3],
                r[4].decode(),
                r[5],
                r[6],
                r[7],
                *_noted(r[8:]),
            )
            for r in found
        ]

    def _rows_alone(self, condition: sql.Composable, given: dict[str, Any]) -> Sequence[DeadLetter]:
        """The same where some cannot be read: what can be had of topic and key, one by one."""
        found = self._execute(self._format(_CHOSEN, condition=condition), given).fetchall()
        rows = []
        for (id,) in found:
            query = "SELECT error, waits, dead_lettered_at FROM {dead_letters} WHERE id = %s"
            ((error, waits, at),) = self._execute(
                self._format(query), (id,), binary=True
            ).fetchall()
            rows.append(
                DeadLetter(id, *self._topic_and_key(id), None, error.decode(), waits, at, None)
            )
        return rows

    def _topic_and_key(self, id: int) -> Key:
        self._format("")  # which looks at the types
        topic, key = [
            self._one_value(self._dead_letters, id, self._parts[name]) for name in ("topic", "key")
        ]
        return (topic or b"").decode(errors="replace"), key

    def ids(self, low: int, high: int) -> frozenset[int]:
        """See `DeadLetterTable.ids`."""
        if not self._exists():
            return frozenset()
        found = self._execute(self._format(_IDS), {"low": low, "high": high}).fetchall()
        return frozenset([row[0] for row in found])

    def retry(self, selection: Selection, *, mode: RetryMode, dry_run: bool = False) -> int:
        """See `DeadLetterTable.retry`."""
        if not self._exists():
            return 0
        if not dry_run:
            self._change_types()
        wanted, given = self._condition(selection)
        given["lost"] = f"%{_LOST}%"
        first, _ = self._condition(selection, "f")
        condition = sql.SQL(
            "({wanted} OR EXISTS "
            "(SELECT FROM {dead_letters} f WHERE {same} AND f.id < s.id AND {first})) "
            "AND coalesce(s.error, '') NOT LIKE %(lost)s"  # NULL would be published
        ).format(
            wanted=wanted,
            dead_letters=self._dead_letters,
            same=self._same_key("f", "s"),
            first=first,
        )
        with self._transaction():
            count = self._put_back(condition, given, mode, dry_run=dry_run)
            self._forget_attempts()
            return count

    def drop(self, selection: Selection, *, mode: RetryMode, dry_run: bool = False) -> Dropped:
        """See `DeadLetterTable.drop`."""
        if not self._exists():
            return Dropped(0, 0)
        if not dry_run:
            self._change_types()
        condition, given = self._condition(selection)
        released = sql.SQL(
            "(s.waits AND NOT EXISTS "
            "(SELECT FROM {dead_letters} f WHERE NOT f.waits AND {same} AND f.id < s.id))"
        ).format(dead_letters=self._dead_letters, same=self._same_key("f", "s"))
        with self._transaction():
            if dry_run:
                found = self._execute(self._format(_COUNT, condition=condition), given)
                return Dropped(int(found.fetchall()[0][0]), 0)
            self._delete_unpublished(condition, given, mode)
            dropped = self._execute(self._format(_TAKE, condition=condition), given).rowcount
            back = self._put_back(released, {}, mode, dry_run=False)
            self._forget_attempts()
            return Dropped(dropped, back)

    def _put_back(
        self,
        condition: sql.Composable,
        given: dict[str, Any],
        mode: RetryMode,
        *,
        dry_run: bool,
    ) -> int:
        if dry_run:
            found = self._execute(self._format(_COUNT, condition=condition), given)
            return int(found.fetchall()[0][0])
        self._delete_unpublished(condition, given, mode)
        self._format("")
        kept = self._parts["columns"]
        if mode == "mark":
            kept = sql.SQL("id, ") + kept
        statement = self._format(_PUT_BACK, condition=condition, kept=kept)
        return self._execute(statement, given).rowcount

    def _delete_unpublished(
        self, condition: sql.Composable, given: dict[str, Any], mode: RetryMode
    ) -> None:
        """Range mode left the originals in the outbox, below its checkpoint."""
        if mode == "range":
            self._execute(self._format(_UNPUBLISHED, condition=condition), given)

    # --- Notes of what failed on its way to a destination ---

    def _has_attempts(self) -> bool:
        query = sql.SQL("SELECT to_regclass(%s) IS NOT NULL")
        ((there,),) = self._execute(query, (attempts_name(self._table).quoted(),)).fetchall()
        return bool(there)

    def _forget_attempts(self) -> None:
        """The notes of rows that are not set aside any more."""
        columns = self._types_of(attempts_name(self._table))
        if columns:  # that of an earlier version knows nothing of other destinations
            its = _BUT_DELIVERED if "delivered" in columns else ""
            self._execute(self._format(_FORGET + its))

    # --- Statements ---

    def _column_types(self) -> dict[str, tuple[str, bool]]:
        types = self._types()  # a table of range mode has fewer columns
        if not types:
            raise TableMissing(f"the table {self._table} does not exist: run `harvest init`")
        return types

    def _columns_of(self, table: TableName) -> dict[str, str]:
        """Its columns, without ours and those that the database fills; and their types."""
        found = self._execute(sql.SQL(_ALL_COLUMNS), (table.quoted(),)).fetchall()
        # Drivers take a % for the beginning of a parameter: what is called so stays behind.
        return {name: its for name, its in found if name not in _NOT_OURS and "%" not in name}

    @property
    def _dead_letters(self) -> sql.Identifier:
        return sql.Identifier(*self.name.parts)

    def _format(self, template: Any, **more: sql.Composable) -> sql.Composed:
        if not self._parts:
            types = self._column_types()
            there, ours = self._columns_of(self.name), self._columns_of(self._table)
            self._both = {name: its for name, its in ours.items() if name in there}
            self._cast = "::text" if types["kafka_key"][0] == "json" else ""  # JSON has no "="
            self._parts = {
                "dead_letters": self._dead_letters,
                "attempts": sql.Identifier(*attempts_name(self._table).parts),
                "table": self._identifier,
                "columns": _listed(self._both or _COLUMNS),
                "topic": topic_of(types),
                "key": readable(types, "kafka_key") + sql.SQL(self._cast),
                "value": sql.SQL(
                    "kafka_value" if types["kafka_value"][0] == "bytea" else "kafka_value::text"
                ),
            }
        return sql.SQL(template).format(**self._parts, **more)

    def _condition(
        self, selection: Selection, alias: str = "s"
    ) -> tuple[sql.Composable, dict[str, Any]]:
        """The rows of the table called `alias` that are selected."""
        self._format("")  # which looks at the types
        given = {**asdict(selection), "ids": list(selection.ids)}
        tests = {
            "ids": bool(selection.ids) and "{alias}.id = ANY (%(ids)s)",
            "topic": selection.topic is not None and "{alias}.kafka_topic = %(topic)s",
            "key": selection.key is not None and "{alias}.kafka_key{cast} = %(key)s",
            "destination": selection.destination is not None and self._noted_condition(),
            "since": selection.since is not None and "{alias}.dead_lettered_at >= %(since)s",
            "until": selection.until is not None and "{alias}.dead_lettered_at < %(until)s",
        }
        parts = {
            "alias": sql.SQL(alias),
            "cast": sql.SQL(self._cast),
            "attempts": self._parts["attempts"],
        }
        chosen = [sql.SQL(test).format(**parts) for test in tests.values() if test]
        return sql.SQL(" AND ").join(chosen) if chosen else sql.SQL("true"), given

    def _noted_condition(self) -> LiteralString:
        if not self._has_attempts():
            return "false"
        return (
            "EXISTS (SELECT FROM {attempts} n "
            "WHERE n.id = {alias}.id AND n.destination = %(destination)s)"
        )

    def _same_key(self, one: str, other: str) -> sql.Composed:
        self._format("")  # which looks at the types
        parts = {"a": sql.SQL(one), "b": sql.SQL(other), "cast": sql.SQL(self._cast)}
        return sql.SQL(_SAME_KEY).format(**parts)

    def _exists(self) -> bool:
        self._connected()  # first: another session may be one of another server
        if not self._there:
            query = sql.SQL("SELECT to_regclass(%s) IS NOT NULL")
            ((self._there,),) = self._execute(query, (self.name.quoted(),)).fetchall()
        return self._there

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with super()._transaction():
            self._execute(self._format(_LOCK))
            yield

    def _forget(self) -> None:
        self._there = False
        self._parts = {}


def _listed(names: Iterable[str], *of: str) -> sql.Composable:
    return sql.SQL(", ").join([sql.Identifier(*of, name) for name in names])


def _type(name: Any) -> sql.SQL:
    """A type as the server itself has written it."""
    return sql.SQL(name)


def _converted(column: sql.Identifier, before: str, type_name: str) -> sql.Composed:
    """What is in a column, as another type: bytes are those of the text in UTF-8."""
    if type_name == "bytea":
        return sql.SQL("convert_to({}::text, 'UTF8')").format(column)
    template = "convert_from({}, 'UTF8')::{}" if before == "bytea" else "{}::text::{}"
    return sql.SQL(template).format(column, _type(type_name))


def _noted(values: Sequence[Any]) -> tuple[str | None, int | None, int | None]:
    destination, retries, status = values or (None, None, None)
    return None if destination is None else destination.decode(), retries, status
