"""An outbox table in memory: a fake for tests, held to the same contract as the real stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal
from uuid import UUID

from harvest.core.dead_letters import BadRow, Key
from harvest.core.interfaces.mark_store import Backlog, Finding
from harvest.core.interfaces.sink import StillHeld
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.core.source import Registration, Source
from harvest.errors import StoreUnavailable
from harvest.outbox.record import OutboxRecord

__all__ = ["MemoryDeadLetters", "MemoryMarkStore", "MemorySources", "MemoryTable"]


@dataclass(slots=True)
class _Stored:
    row: Row
    tag: UUID | None = None


@dataclass
class MemoryTable:
    """The table. Ids are given when a row is inserted, and seen when its transaction commits, so
    rows become visible out of the order of their ids, as in a database."""

    committed: dict[int, _Stored] = field(default_factory=dict)
    dead_letters: dict[int, tuple[Row, BadRow]] = field(default_factory=dict)
    next_id: int = 1
    lock: threading.RLock = field(default_factory=threading.RLock)
    running: list[MemoryTransaction] = field(default_factory=list)
    """Those that have drawn an id and have not ended."""
    transactions: int = 0
    saved: dict[int, Position] = field(default_factory=dict)
    """Copies of the checkpoints of range mode, by shard."""
    shards: int | None = None
    """How many shards it is harvested in, in range mode."""

    source: Source = field(default_factory=lambda: Source("memory"))
    registration: Registration | None = None

    def begin(self) -> MemoryTransaction:
        """A transaction; it is rolled back unless it commits."""
        return MemoryTransaction(self)

    @contextmanager
    def transaction(self) -> Iterator[MemoryTransaction]:
        """Commits at the end of the block, rolls back if it raises."""
        transaction = self.begin()
        try:
            yield transaction
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()

    def insert(self, *records: OutboxRecord) -> list[int]:
        """Insert and commit; return the ids."""
        with self.transaction() as transaction:
            return [transaction.insert(record) for record in records]

    def tag_of(self, id: int) -> UUID | None:
        """Who has marked a row."""
        return self.committed[id].tag


class MemoryTransaction:
    """Rows that nobody else sees yet."""

    def __init__(self, table: MemoryTable) -> None:
        self._table = table
        self._rows: list[Row] = []
        self.prepared = False
        with table.lock:
            table.transactions += 1
            self.name = f"t{table.transactions}"

    def prepare(self) -> None:
        """Go on under another name, as a prepared transaction of PostgreSQL does."""
        with self._table.lock:
            self.prepared = True
            self.name = f"prepared {self.name}"

    def draw(self) -> int:
        """Take an id, for a row or for nothing."""
        with self._table.lock:
            if self not in self._table.running:
                self._table.running.append(self)
            self._table.next_id += 1
            return self._table.next_id - 1

    def insert(self, record: OutboxRecord) -> int:
        """Take an id and keep the row until the commit."""
        row_id = self.draw()
        names = tuple(name.encode() for name, _ in record.headers)
        values = tuple(_bytes(value) for _, value in record.headers)
        value = None if record.value is None else _bytes(record.value)
        self._rows.append(Row(row_id, record.topic, _bytes(record.key), value, names, values))
        return row_id

    def commit(self) -> None:
        """Make the rows visible."""
        with self._table.lock:
            self._table.committed.update({row.id: _Stored(row) for row in self._rows})
            self._end()

    def rollback(self) -> None:
        """Forget the rows; their ids are gone."""
        with self._table.lock:
            self._end()

    def _end(self) -> None:
        self._rows = []
        if self in self._table.running:
            self._table.running.remove(self)


class MemorySources:
    """A `MemoryTable` as a source of rows. Implements `SourceStore`."""

    table: MemoryTable

    def source(self) -> Source:
        """See `SourceStore.source`."""
        with self.table.lock:
            return self.table.source

    def promoted_at(self) -> int | None:
        """See `SourceStore.promoted_at`: not known."""
        return None

    def log_end(self) -> int:
        """See `SourceStore.log_end`: there is none."""
        return 0

    def visit(self, token: str) -> Source:
        """See `SourceStore.visit`."""
        with self.table.lock:
            source = self.table.source
            self.table.source = replace(source, visit=source.visit + 1, token=token)
            return self.table.source

    def register(self, ours: Registration) -> Registration:
        """See `SourceStore.register`."""
        with self.table.lock:
            self.table.registration = self.table.registration or ours
            return self.table.registration

    def registration(self) -> Registration | None:
        """See `SourceStore.registration`."""
        return self.table.registration

    def register_anew(self, ours: Registration) -> None:
        """See `SourceStore.register_anew`."""
        self.table.registration = ours


class MemoryMarkStore(MemorySources):
    """A connection to a `MemoryTable`. Implements `harvest.core.interfaces.mark_store.MarkStore`.

    `fail_next`: the next statement raises `StoreUnavailable`; ``"after"`` commits it first.
    """

    def __init__(self, table: MemoryTable) -> None:
        self.table = table
        self.fail_next: Literal["before", "after"] | None = None

    def connect(self) -> None:
        """See `MarkStore.connect`."""

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        """See `MarkStore.mark`; only a `valid_ms` of 0 ever runs out here."""
        with self._statement() as committed:
            if valid_ms <= 0:
                return []
            mine = (term.first, term.last)
            foreign = [
                stored
                for _, stored in sorted(committed.items())
                if stored.tag is None or not mine[0] <= stored.tag <= mine[1]
            ][:limit]
            for stored in foreign:
                stored.tag = term.tag(batch)
            return [stored.row for stored in foreign]

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        """See `MarkStore.purge`."""
        with self._statement() as committed:
            gone = [id for id in ids if id in committed and committed[id].tag in tags]
            for id in gone:
                del committed[id]
            return len(gone)

    def delete(self, ids: Sequence[int]) -> int:
        """See `MarkStore.delete`."""
        with self._statement() as committed:
            return sum(committed.pop(id, None) is not None for id in ids)

    def clear(self, checkpoint: Checkpoint) -> int:
        """See `MarkStore.clear`."""
        first, last = checkpoint.term.first, checkpoint.term.tag(checkpoint.batch)
        with self._statement() as committed:
            gone = [
                id
                for id, stored in committed.items()
                if checkpoint.low_id <= id <= checkpoint.high_id
                and stored.tag is not None
                and first <= stored.tag <= last
            ]
            for id in gone:
                del committed[id]
            return len(gone)

    def reset(self, ids: Sequence[int], tag: UUID) -> int:
        """See `MarkStore.reset`."""
        with self._statement() as committed:
            found = [committed[id] for id in ids if id in committed and committed[id].tag == tag]
            for stored in found:
                stored.tag = None
            return len(found)

    def ping(self) -> None:
        """See `MarkStore.ping`."""
        with self._statement():
            pass

    def backlog(self) -> Backlog:
        """See `MarkStore.backlog`; ages are not kept, the oldest is 0 s old."""
        with self._statement() as committed:
            tagged = sum(stored.tag is not None for stored in committed.values())
            return Backlog(len(committed), tagged, 0.0 if committed else None)

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `MarkStore.init`: the table always exists."""
        del value_type
        return False

    def check(self) -> list[Finding]:
        """See `MarkStore.check`."""
        return [Finding("table", "ok", "in memory")]

    def cancel(self) -> None:
        """See `MarkStore.cancel`: nothing here takes long."""

    def close(self) -> None:
        """See `MarkStore.close`."""

    @contextmanager
    def _statement(self) -> Iterator[dict[int, _Stored]]:
        failure, self.fail_next = self.fail_next, None
        if failure == "before":
            raise StoreUnavailable
        with self.table.lock:
            yield self.table.committed
        if failure == "after":
            raise StoreUnavailable


class MemoryDeadLetters:
    """The rows set aside from a `MemoryTable`. Implements `DeadLetterStore`."""

    def __init__(self, table: MemoryTable) -> None:
        self._table = table
        self.fail_next: Literal["before", "after"] | None = None

    def add(
        self, rows: Sequence[BadRow], term: Term | None, still_held: StillHeld = lambda: True
    ) -> frozenset[int]:
        """See `DeadLetterStore.add`."""
        failure, self.fail_next = self.fail_next, None
        if failure == "before" or not still_held():
            raise StoreUnavailable
        table = self._table
        done = set()
        with table.lock:
            for row in sorted(rows, key=lambda row: row.waits):
                stored = table.committed.get(row.id)
                if stored is None:
                    continue
                if term is None and row.id in table.dead_letters:
                    done.add(row.id)
                    continue
                low = self.waiting_keys().get(_key(stored.row), row.id)
                if row.waits and low >= row.id:
                    continue
                if term is not None:
                    if stored.tag is None or not term.first <= stored.tag <= term.last:
                        continue
                    del table.committed[row.id]
                table.dead_letters[row.id] = (stored.row, row)
                done.add(row.id)
        if failure == "after":
            raise StoreUnavailable
        return frozenset(done)

    def waiting_keys(self) -> dict[Key, int]:
        """See `DeadLetterStore.waiting_keys`."""
        with self._table.lock:
            ids = sorted(self._table.dead_letters, reverse=True)
            return {_key(self._table.dead_letters[i][0]): i for i in ids}

    def retry(self) -> None:
        """Put every row back, under its id."""
        with self._table.lock:
            self._table.committed.update(
                {i: _Stored(r) for i, (r, _) in self._table.dead_letters.items()}
            )
            self._table.dead_letters.clear()

    def close(self) -> None:
        """See `DeadLetterStore.close`."""


def _key(row: Row) -> Key:
    return row.topic, row.key


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
