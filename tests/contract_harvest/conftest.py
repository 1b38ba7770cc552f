"""The same benches for fakes and real servers: what a contract test sees of either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import psycopg
import pytest

from harvest.outbox import OutboxRecord
from harvest.rows import Row
from harvest.sink.base import Sink
from harvest.sink.kafka import IdempotentSink, TransactionalSink
from harvest.sink.memory import MemoryBroker, MemorySink
from harvest.stasher import Stasher
from harvest.store.base import MarkStore
from harvest.store.memory import MemoryMarkStore, MemoryTable
from harvest.store.postgres import PostgresMarkStore
from harvest.store.range_base import RangeStore
from harvest.store.range_memory import MemoryRangeStore
from harvest.store.range_postgres import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka
from tests.kafka_reader import read_topic


class Transaction(Protocol):
    """An application's transaction on the outbox."""

    def insert(self, record: OutboxRecord) -> int: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class StoreBench(Protocol):
    """A table, and stores on it."""

    def store(self) -> MarkStore: ...
    def begin(self) -> Transaction: ...
    def ids(self) -> list[int]: ...


class MemoryBench:
    def __init__(self) -> None:
        self._table = MemoryTable()

    def store(self) -> MarkStore:
        return MemoryMarkStore(self._table)

    def begin(self) -> Transaction:
        return self._table.begin()

    def ids(self) -> list[int]:
        return sorted(self._table.committed)


class PostgresTransaction:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)
        self._stasher = Stasher()

    def insert(self, record: OutboxRecord) -> int:
        self._stasher.stash(self._connection, record)
        row = self._connection.execute("SELECT currval('outbox_id_seq')").fetchone()
        assert row is not None
        return int(row[0])

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()


class PostgresBench:
    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: list[PostgresMarkStore] = []
        self.store().init()

    def store(self) -> MarkStore:
        store = PostgresMarkStore(self._url, "outbox")
        self._stores.append(store)
        return store

    def begin(self) -> Transaction:
        return PostgresTransaction(self._url)

    def ids(self) -> list[int]:
        with psycopg.connect(self._url) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM outbox ORDER BY id")]

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture(params=["memory", "postgres"])
def bench(request: pytest.FixtureRequest) -> Iterator[StoreBench]:
    if request.param == "memory":
        yield MemoryBench()
        return
    real = PostgresBench(request.getfixturevalue("postgres_database"))
    yield real
    real.close()


class RangeBench(Protocol):
    """A table in range mode, and stores on it. `one_writer`: transactions follow one another."""

    one_writer: bool

    def store(self, shard: int = 0, shards: int = 1) -> RangeStore: ...
    def begin(self) -> Transaction: ...


class MemoryRangeBench:
    one_writer = False

    def __init__(self) -> None:
        self._table = MemoryTable()

    def store(self, shard: int = 0, shards: int = 1) -> RangeStore:
        return MemoryRangeStore(self._table, shard, shards)

    def begin(self) -> Transaction:
        return self._table.begin()


class PostgresRangeBench:
    one_writer = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: list[PostgresRangeStore] = []
        self.store().init()

    def store(self, shard: int = 0, shards: int = 1) -> RangeStore:
        store = PostgresRangeStore(self._url, "outbox", shard=shard, shards=shards)
        self._stores.append(store)
        return store

    def begin(self) -> Transaction:
        return PostgresTransaction(self._url)

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture(params=["memory", "postgres"])
def range_bench(request: pytest.FixtureRequest) -> Iterator[RangeBench]:
    if request.param == "memory":
        yield MemoryRangeBench()
        return
    real = PostgresRangeBench(request.getfixturevalue("postgres_database"))
    yield real
    real.close()


class SinkBench(Protocol):
    """A broker with one topic, and sinks for one outbox."""

    topic: str

    def sink(self) -> Sink: ...
    def published(self) -> list[tuple[bytes | None, bytes | None]]: ...


class MemorySinkBench:
    topic = "orders"

    def __init__(self, *, atomic: bool) -> None:
        self._atomic = atomic
        self._broker = MemoryBroker()

    def sink(self) -> Sink:
        return MemorySink(self._broker, atomic=self._atomic)

    def published(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(row.key, row.value) for row in self._broker.published]


class KafkaSinkBench:
    def __init__(self, kafka: EmbeddedKafka, topic: str, checkpoints: str, *, atomic: bool) -> None:
        self.topic = topic
        self._config = {"bootstrap.servers": kafka.bootstrap_servers}
        self._checkpoints = checkpoints
        self._atomic = atomic

    def sink(self) -> Sink:
        if not self._atomic:
            return IdempotentSink(self._config)
        return TransactionalSink(
            self._config,
            base_config=self._config,
            name=self.topic,
            checkpoint_topic=self._checkpoints,
        )

    def published(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(m[0], m[1]) for m in read_topic(self._config["bootstrap.servers"], self.topic)]


@pytest.fixture(
    params=[
        "memory",
        "memory, plain",
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("kafka, plain", marks=pytest.mark.kafka),
    ]
)
def sinks(request: pytest.FixtureRequest) -> SinkBench:
    atomic = "plain" not in request.param
    if request.param.startswith("memory"):
        return MemorySinkBench(atomic=atomic)
    create: Callable[..., str] = request.getfixturevalue("kafka_topic")
    return KafkaSinkBench(request.getfixturevalue("kafka"), create(), create(), atomic=atomic)


def row(number: int, topic: str, key: str = "k", **changes: object) -> Row:
    """A row to publish."""
    base = Row(number, topic, key.encode(), f"v{number}".encode())
    return base._replace(**changes)  # type: ignore[arg-type]
