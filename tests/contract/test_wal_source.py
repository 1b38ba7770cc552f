"""What every source of wal mode must do (harvest/core/interfaces/wal_stream.py)."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import psycopg
import pytest

from harvest.core.interfaces.wal_stream import WalSource, WalStream
from harvest.core.row import Row
from harvest.core.wal import Chunk
from harvest.core.wal_options import WalOptions
from harvest.core.wal_position import WalPosition
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import CheckpointError, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher
from harvest.testing.memory_log import LogTransaction, MemoryLog, MemoryWalSource

WAIT_S = 60.0
MUCH = 1 << 20


class Transaction(Protocol):
    """An application's transaction."""

    def insert(self, record: OutboxRecord) -> object: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class WalBench(Protocol):
    """A log with a slot."""

    def source(self) -> WalSource: ...
    def begin(self) -> Transaction: ...
    def remake_slot(self) -> None: ...
    def wait(self, stream: WalStream) -> None: ...
    def close(self) -> None: ...


class MemoryBench:
    def __init__(self) -> None:
        self.log = MemoryLog()

    def source(self) -> WalSource:
        return MemoryWalSource(self.log)

    def begin(self) -> LogTransaction:
        return self.log.begin()

    def remake_slot(self) -> None:
        self.log.remake_slot()

    def wait(self, stream: WalStream) -> None:
        pass

    def close(self) -> None:
        pass


class PostgresTransaction:
    def __init__(self, database: str, stasher: Stasher) -> None:
        self._connection = psycopg.connect(database)
        self._stasher = stasher

    def insert(self, record: OutboxRecord) -> None:
        self._stasher.stash(self._connection, record)

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()


class PostgresBench:
    def __init__(self, database: str, source: Any) -> None:
        self._database = database
        self._stasher = Stasher(mode=source)
        self._options = WalOptions(source)
        self._sources: list[PostgresWalSource] = []
        self._first = self.source()
        self._first.init()

    def source(self) -> PostgresWalSource:
        self._sources.append(PostgresWalSource(self._database, "outbox", self._options))
        return self._sources[-1]

    def begin(self) -> PostgresTransaction:
        return PostgresTransaction(self._database, self._stasher)

    def remake_slot(self) -> None:
        self._first.slot.drop()
        with self._first.new_slot():
            pass

    def wait(self, stream: WalStream) -> None:
        select.select([stream.fileno()], [], [], 1.0)

    def close(self) -> None:
        self._first.slot.drop()
        for source in self._sources:
            source.close()


@pytest.fixture(params=["memory", "table", "message"])
def bench(request: pytest.FixtureRequest) -> Iterator[WalBench]:
    made: WalBench
    if request.param == "memory":
        made = MemoryBench()
    else:
        made = PostgresBench(request.getfixturevalue("postgres_database"), request.param)
    yield made
    made.close()


def insert(bench: WalBench, *values: str, headers: bool = False) -> None:
    transaction = bench.begin()
    for value in values:
        transaction.insert(OutboxRecord("t", "k", value, {"n": value} if headers else {}))
    transaction.commit()


def read(bench: WalBench, stream: WalStream, rows: int, limit: int = 1_000) -> list[Chunk]:
    """Chunks, until they have so many rows and the transaction of the last is complete."""
    chunks: list[Chunk] = []
    deadline = time.monotonic() + WAIT_S
    while sum(len(c.rows) for c in chunks) < rows or not chunks[-1].end_lsn:
        assert time.monotonic() < deadline, chunks
        found = stream.read(limit, MUCH)
        if found is None:
            bench.wait(stream)
            stream.keep_alive()
        else:
            chunks += found.chunks
    return chunks


def read_until_it_ends(stream: WalStream) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        stream.keep_alive()
        stream.read(1, MUCH)


def values(chunks: list[Chunk]) -> list[str]:
    return [(row[3] or b"").decode() for chunk in chunks for row in chunk.rows]


def numbered(chunks: list[Chunk], lsn: int = 0) -> list[tuple[int, int, Row]]:
    """The rows of transactions from `lsn` on, with the numbers that they have."""
    return [
        (chunk.commit_lsn, chunk.first + n, row)
        for chunk in chunks
        for n, row in enumerate(chunk.rows)
        if chunk.commit_lsn >= lsn
    ]


def test_what_is_committed_comes_in_the_order_of_the_commits(bench: WalBench) -> None:
    stream, _ = bench.source().open(1, None)
    late, never = bench.begin(), bench.begin()
    late.insert(OutboxRecord("t", "k", "late"))
    never.insert(OutboxRecord("t", "k", "never"))
    insert(bench, "a", "b")
    never.rollback()
    late.commit()
    insert(bench, "c", headers=True)
    chunks = read(bench, stream, 4)
    assert values(chunks) == ["a", "b", "late", "c"]
    lsns = [chunk.commit_lsn for chunk in chunks]
    assert lsns == sorted(lsns)
    last = [row for chunk in chunks for row in chunk.rows][-1]
    assert tuple(last)[1:] == ("t", b"k", b"c", (b"n",), (b"c",))
    ids = [row[0] for chunk in chunks for row in chunk.rows]
    assert len(set(ids)) == 4
    stream.close()


def test_an_empty_value_is_no_tombstone(bench: WalBench) -> None:
    stream, _ = bench.source().open(1, None)
    transaction = bench.begin()
    transaction.insert(OutboxRecord("t", "", ""))
    transaction.insert(OutboxRecord("t", "k", None))
    transaction.commit()
    rows = [row for chunk in read(bench, stream, 2) for row in chunk.rows]
    assert [(row[2], row[3]) for row in rows] == [(b"", b""), (b"k", None)]
    stream.close()


def test_what_is_not_confirmed_is_read_again_from_any_place_with_the_same_numbers(
    bench: WalBench,
) -> None:
    stream, begin = bench.source().open(1, None)
    insert(bench, "a")
    insert(bench, "b", "c")
    insert(bench, "d")
    chunks = read(bench, stream, 4)
    assert values(chunks) == ["a", "b", "c", "d"]
    first, second, _ = [chunk.end_lsn for chunk in chunks if chunk.end_lsn]
    middle = replace(begin, lsn=first)
    again, at = bench.source().open(2, middle)
    assert at.lsn == middle.lsn
    assert numbered(read(bench, again, 3), first) == numbered(chunks, first)
    again.confirm(second)
    again.close()
    third, _ = bench.source().open(3, replace(begin, lsn=second))
    assert numbered(read(bench, third, 1), second) == numbered(chunks, second)
    third.close()


def test_a_transaction_comes_in_parts_that_fit_together(bench: WalBench) -> None:
    stream, _ = bench.source().open(1, None)
    insert(bench, *[str(n) for n in range(10)])
    chunks = read(bench, stream, 10, limit=3)
    assert values(chunks) == [str(n) for n in range(10)]
    assert len({chunk.commit_lsn for chunk in chunks}) == 1
    parts = [chunk for chunk in chunks if chunk.rows]
    assert max(len(part.rows) for part in parts) <= 3
    assert [part.first for part in parts] == [
        sum(len(before.rows) for before in parts[:number]) for number in range(len(parts))
    ]
    assert chunks[-1].end_lsn
    stream.close()


def test_whoever_opens_the_slot_ends_its_reader(bench: WalBench) -> None:
    first, _ = bench.source().open(1, None)
    second, _ = bench.source().open(2, None)
    insert(bench, "a")
    assert values(read(bench, second, 1)) == ["a"]
    with pytest.raises(StoreUnavailable):
        read_until_it_ends(first)
    second.close()


def test_a_slot_that_was_made_anew_is_refused(bench: WalBench) -> None:
    stream, begin = bench.source().open(1, None)
    stream.close()
    bench.remake_slot()
    with pytest.raises(CheckpointError, match="made anew"):
        bench.source().open(2, begin)


def test_another_server_is_refused(bench: WalBench) -> None:
    stream, begin = bench.source().open(1, None)
    stream.close()
    with pytest.raises(CheckpointError, match="another"):
        bench.source().open(2, replace(begin, system="0"))


def test_a_position_that_the_server_has_not_reached_is_refused(bench: WalBench) -> None:
    stream, begin = bench.source().open(1, None)
    stream.close()
    ahead = WalPosition(1, begin.system, begin.timeline, 1 << 60, row_lsn=1 << 60)
    with pytest.raises(CheckpointError, match="without the last"):
        bench.source().open(2, ahead)


def test_who_leaves_wal_mode_deletes_what_was_committed_before_a_place_and_no_more(
    postgres_database: str,
) -> None:
    bench = PostgresBench(postgres_database, "table")
    source = bench.source()
    stream, _ = source.open(1, None)
    insert(bench, "before")
    with source.leaving() as (lsn, delete):
        insert(bench, "after")
        assert delete() == 1
    before, after = [chunk.commit_lsn for chunk in read(bench, stream, 2) if chunk.rows]
    assert before < lsn <= after
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT kafka_value FROM outbox").fetchall() == [("after",)]
    stream.close()
    bench.close()
