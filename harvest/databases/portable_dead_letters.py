"""Dead letters, in the SQL that SQLite, MariaDB and MySQL have in common.

The table is that of `harvest.databases.postgres.dead_letters`: the outbox's columns, further ones
too, `error`, `waits` (for nothing but an earlier row of its key) and `dead_lettered_at`, a time in
UTC. Which rows belong together is decided here and not in SQL, by the bytes of their keys: what
these databases take for equal depends on types and collations. Whoever moves rows between the two
tables does so alone (`_moving`), so no row starts to wait behind one that is being moved back.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, NamedTuple

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
from harvest.databases.column_values import as_bytes, topic_text
from harvest.databases.lease_clock import always, require
from harvest.databases.schema import id_is_taken
from harvest.errors import SchemaError, StoreUnavailable, TableMissing

__all__ = ["PortableDeadLetters"]

_LOG: Final = logging.getLogger("harvest")
_NOT_OURS: Final = frozenset({"id", "leader_id", "error", "waits", "dead_lettered_at"})
_KEYS: Final = "SELECT id, kafka_topic, kafka_key, waits FROM {dead_letters} ORDER BY id"
_OURS: Final = "SELECT id, kafka_topic, kafka_key FROM {table} WHERE id IN ({ids})"
_OF_TERM: Final = " AND leader_id BETWEEN %s AND %s{for_update}"
_COPY: Final = """
INSERT INTO {dead_letters} (id, {columns}, error, waits, dead_lettered_at)
SELECT id, {columns}, %s, %s, %s FROM {table} WHERE id = %s
"""
_DELETE: Final = "DELETE FROM {table} WHERE id IN ({ids})"
_OTHERS: Final = """
SELECT t.id FROM {table} t JOIN {dead_letters} s ON s.id = t.id
WHERE t.id IN ({ids}) AND t.create_time <> s.create_time
"""
_TAKE: Final = "DELETE FROM {dead_letters} WHERE id IN ({ids})"
_PUT_BACK: Final = """
INSERT INTO {table} ({kept}) SELECT {kept} FROM {dead_letters} WHERE id IN ({ids}) ORDER BY id
"""
_MISSING: Final = "SELECT DISTINCT {topic} FROM {dead_letters} WHERE error LIKE %s"
_ROWS: Final = """
SELECT id, kafka_topic, kafka_key, {value_bytes}, error, waits, dead_lettered_at, create_time
FROM {dead_letters} WHERE {condition} ORDER BY id LIMIT %s
"""
_IDS: Final = "SELECT id FROM {dead_letters} WHERE id BETWEEN %s AND %s"
_CHUNK: Final = 1_000
_TIME: Final = "%Y-%m-%d %H:%M:%S.%f"


class _There(NamedTuple):
    """A row that is aside."""

    id: int
    key: Key
    waits: bool


class PortableDeadLetters(ABC):
    """What a `DeadLetterTable` is but for the dialect. For tables with `_execute`."""

    _value_bytes: ClassVar[str]
    """The number of bytes of `kafka_value`."""
    _topic: ClassVar[str] = "kafka_topic"
    """The topic, which is another one in capitals, whatever the column takes for equal."""
    _for_update: ClassVar[str] = ""
    """What keeps selected rows as they are until the transaction ends."""
    _quote: ClassVar[str]
    """What names of columns are quoted in."""
    name: TableName
    _table: TableName
    _there = False
    _columns: str | None = None

    @abstractmethod
    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Sequence[Any]: ...

    @abstractmethod
    def _names(self) -> tuple[str, str]:
        """The outbox, and the table of rows set aside, quoted."""

    @abstractmethod
    def _moving(self) -> AbstractContextManager[object]:
        """One transaction; nobody else moves rows between the two tables meanwhile."""

    @abstractmethod
    def _find_table(self) -> bool:
        """Whether the table is there."""

    @abstractmethod
    def _columns_of(self, table: TableName) -> Mapping[str, str]:
        """Its columns, without those that the database fills; and their types."""

    @abstractmethod
    def _create(self) -> None:
        """Make the table."""

    def create(self) -> None:
        """See `DeadLetterTable.create`."""
        if not self._exists():
            self._create()
            return
        self._change_types()
        there = self._columns_of(self.name)
        for name, type_name in self._ours_of(self._table).items():
            if name not in there:  # the outbox got it since the table was made
                self._columns = None
                column = f"{self._quoted(name)} {type_name}"
                self._execute(self._text("ALTER TABLE {dead_letters} ADD COLUMN ") + column)

    def _change_types(self) -> None:
        """The columns of the outbox may have come to have other types since the table was made."""
        wanted = self._ours_of(self._table)
        for name, before in self._columns_of(self.name).items():
            if wanted.get(name, before) != before:
                self._change_type(name, before, wanted[name])

    def _change_type(self, name: str, before: str, type_name: str) -> None:
        statement = self._text("ALTER TABLE {dead_letters} MODIFY COLUMN ")
        try:
            self._execute(f"{statement}{self._quoted(name)} {type_name}")
        except TableMissing:
            raise
        except (SchemaError, StoreUnavailable) as error:
            _LOG.warning(
                "the column %s of %s is %s, must be %s for every row to fit, and could not be "
                "changed: %s; run `harvest init` as a user that may ALTER it",
                name,
                self.name,
                before,
                type_name,
                error,
            )

    # --- Setting aside ---

    def add(
        self, rows: Sequence[BadRow], term: Term | None, still_held: StillHeld = always
    ) -> frozenset[int]:
        """See `DeadLetterStore.add`."""
        self.create()
        done: set[int] = set()
        with self._moving():
            there = self._all()
            already = {row.id for row in there}
            waiting = _lowest(there)
            ids = [row.id for row in rows]
            ours, others = self._ours(ids, term), self._others(ids)
            moved = []
            for row in sorted(rows, key=lambda row: row.waits):  # first what others may wait for
                key = ours.get(row.id)
                if row.id in already:
                    is_another = row.id in others if term is None else key is not None
                    if is_another:
                        raise id_is_taken(row.id, self.name)
                    done.update([] if term else [row.id])
                    continue
                if key is None or (row.waits and waiting.get(key, row.id) >= row.id):
                    continue
                now = datetime.now(UTC).strftime(_TIME)
                self._run(_COPY, (row.error, int(row.waits), now, row.id))
                waiting[key] = min(row.id, waiting.get(key, row.id))
                moved.append(row.id)
            if term is not None:
                self._run_each(_DELETE, moved)
            require(still_held)
        return frozenset(done.union(moved))

    def waiting_keys(self) -> Mapping[Key, int]:
        """See `DeadLetterStore.waiting_keys`."""
        return _lowest(self._all()) if self._exists() else {}

    # --- As an operator sees it ---

    def missing_topics(self) -> set[str]:
        """See `DeadLetterTable.missing_topics`."""
        if not self._exists():
            return set()
        found = self._execute(self._text(_MISSING), (missing_topic_pattern(),))
        return {topic_text(topic) for (topic,) in found}

    def count(self, selection: Selection = Selection()) -> int:  # noqa: B008 - immutable
        """See `DeadLetterTable.count`."""
        if not self._exists():
            return 0
        if selection == Selection():
            statement = "SELECT COUNT(*) FROM (SELECT id FROM {dead_letters} LIMIT %s) AS first"
            return int(self._execute(self._text(statement), (COUNTED,))[0][0])
        condition, given = self._condition(selection)
        if selection.key is None:
            statement = self._text(
                "SELECT COUNT(*) FROM {dead_letters} WHERE {condition}", condition
            )
            return int(self._execute(statement, given)[0][0])
        return len(self._selected(selection))

    def rows(self, selection: Selection, limit: int) -> Sequence[DeadLetter]:
        """See `DeadLetterTable.rows`."""
        if not self._exists():
            return ()
        condition, given = self._condition(selection)
        if selection.key is not None:
            chosen = sorted(self._selected(selection))[:limit]
            condition, given = (f"id IN ({_listed(chosen)})" if chosen else "1 = 0"), ()
        found = self._execute(self._text(_ROWS, condition), (*given, limit))
        return [
            DeadLetter(
                row_id,
                topic_text(topic),
                as_bytes(key),
                size,
                error.decode(),
                bool(waits),
                _time(dead_lettered_at) or datetime.min.replace(tzinfo=UTC),
                _time(created),
            )
            for row_id, topic, key, size, error, waits, dead_lettered_at, created in found
        ]

    def ids(self, low: int, high: int) -> frozenset[int]:
        """See `DeadLetterTable.ids`."""
        if not self._exists():
            return frozenset()
        found = self._execute(self._text(_IDS), (low, high))
        return frozenset([row_id for (row_id,) in found])

    def retry(self, selection: Selection, *, mode: RetryMode, dry_run: bool = False) -> int:
        """See `DeadLetterTable.retry`."""
        if not self._exists():
            return 0
        if not dry_run:
            self._change_types()
        with self._moving():
            wanted, taken, chosen = self._selected(selection), set(), []
            for row in self._all():
                if row.id in wanted:
                    taken.add(row.key)
                    chosen.append(row.id)
                elif row.key in taken:
                    chosen.append(row.id)
            if not dry_run:
                self._put_back(chosen, mode)
        return len(chosen)

    def drop(self, selection: Selection, *, mode: RetryMode, dry_run: bool = False) -> Dropped:
        """See `DeadLetterTable.drop`."""
        if not self._exists():
            return Dropped(0, 0)
        if not dry_run:
            self._change_types()
        with self._moving():
            dropped = self._selected(selection)
            if dry_run:
                return Dropped(len(dropped), 0)
            if mode == "range":
                self._delete_originals(sorted(dropped))
            self._run_each(_TAKE, sorted(dropped))
            blocked, released = set(), []
            for row in self._all():
                if not row.waits:
                    blocked.add(row.key)
                elif row.key not in blocked:
                    released.append(row.id)
            self._put_back(released, mode)
        return Dropped(len(dropped), len(released))

    # --- Statements ---

    def _exists(self) -> bool:
        self._there = self._there or self._find_table()
        return self._there

    def _all(self) -> list[_There]:
        """Every row that is aside, in the order of the ids."""
        found = self._execute(self._text(_KEYS))
        return [
            _There(row_id, (topic_text(topic), as_bytes(key)), bool(waits))
            for row_id, topic, key, waits in found
        ]

    def _ours(self, ids: Sequence[int], term: Term | None) -> dict[int, Key]:
        """The keys of the rows of the outbox; of those that carry a tag of `term`, if given."""
        condition = "" if term is None else _OF_TERM
        tags = () if term is None else (term.first.bytes, term.last.bytes)
        return {
            row_id: (topic_text(topic), as_bytes(key))
            for chunk in _chunks(ids)
            for row_id, topic, key in self._execute(
                self._text(_OURS + condition, ids=_listed(chunk)), tags
            )
        }

    def _others(self, ids: Sequence[int]) -> set[int]:
        """Those under which another row is in the outbox: ids were begun anew."""
        return {
            row_id
            for chunk in _chunks(ids)
            for (row_id,) in self._execute(self._text(_OTHERS, ids=_listed(chunk)))
        }

    def _delete_originals(self, ids: Sequence[int]) -> None:
        others = self._others(ids)
        self._run_each(_DELETE, [row_id for row_id in ids if row_id not in others])

    def _selected(self, selection: Selection) -> set[int]:
        condition, given = self._condition(selection)
        statement = self._text(
            "SELECT id, kafka_key FROM {dead_letters} WHERE {condition}", condition
        )
        wanted = None if selection.key is None else selection.key.encode()
        found = self._execute(statement, given)
        return {row_id for row_id, key in found if wanted is None or as_bytes(key) == wanted}

    def _condition(self, selection: Selection) -> tuple[str, tuple[str, ...]]:
        """All of a selection but the key."""
        tests, given = ["1 = 1"], []
        if selection.ids:
            tests.append(f"id IN ({_listed(selection.ids)})")
        if selection.topic is not None:
            tests.append(f"{self._topic} = %s")
            given.append(selection.topic)
        if selection.destination is not None:
            tests.append("1 = 0")  # messages for destinations are not set aside here
        for time, test in ((selection.since, ">="), (selection.until, "<")):
            if time is not None:
                tests.append(f"dead_lettered_at {test} %s")
                given.append(time.astimezone(UTC).strftime(_TIME))
        return " AND ".join(tests), tuple(given)

    def _put_back(self, ids: Sequence[int], mode: RetryMode) -> None:
        if mode == "range":  # which left the originals in the outbox, below its checkpoint
            self._delete_originals(ids)
        kept = f"id, {self._both()}" if mode == "mark" else self._both()
        self._run_each(_PUT_BACK, ids, kept)
        self._run_each(_TAKE, ids)

    def _run_each(self, template: str, ids: Sequence[int], kept: str = "") -> None:
        for chunk in _chunks(ids):
            self._execute(self._text(template, ids=_listed(chunk), kept=kept))

    def _run(self, template: str, parameters: Sequence[Any]) -> None:
        self._execute(self._text(template), parameters)

    def _ours_of(self, table: TableName) -> dict[str, str]:
        found = self._columns_of(table)
        # Drivers take a % for the beginning of a parameter: what is called so stays behind.
        return {
            name: its
            for name, its in found.items()
            if name.lower() not in _NOT_OURS and "%" not in name
        }

    def _both(self) -> str:
        """The columns of the outbox that this table has, too, or will have."""
        if self._columns is None:
            ours = self._ours_of(self._table)
            there = self._columns_of(self.name) if self._there else ours
            self._columns = ", ".join([self._quoted(name) for name in ours if name in there])
        return self._columns

    def _quoted(self, name: str) -> str:
        return TableName((name,)).quoted(self._quote)

    def _text(self, template: str, condition: str = "", ids: str = "", kept: str = "") -> str:
        table, dead_letters = self._names()
        return template.format(
            table=table,
            dead_letters=dead_letters,
            columns=self._both() if "{columns}" in template else "",
            value_bytes=self._value_bytes,
            topic=self._topic,
            for_update=self._for_update,
            condition=condition,
            ids=ids,
            kept=kept,
        )


def _lowest(there: Sequence[_There]) -> dict[Key, int]:
    lowest: dict[Key, int] = {}
    for row in there:
        lowest.setdefault(row.key, row.id)  # they come in the order of their ids
    return lowest


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), _CHUNK):
        yield ids[start : start + _CHUNK]


def _listed(ids: Sequence[int]) -> str:
    return ", ".join([str(int(row_id)) for row_id in ids])


def _time(text: bytes | None) -> datetime | None:
    """What the table has as a time in UTC; None for what cannot be read as one."""
    try:
        time = datetime.fromisoformat((text or b"").decode())
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
