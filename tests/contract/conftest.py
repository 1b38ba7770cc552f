"""The same benches for fakes and real servers: what a contract test sees of either."""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pymysql
import pytest
from psycopg.conninfo import make_conninfo

from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.interfaces.range_store import RangeStore
from harvest.core.interfaces.sink import Sink
from harvest.core.row import Row
from harvest.databases.mysql.mark import MysqlMarkStore
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.mysql.table import connect_arguments
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.two_databases import PostgresIds, TwoDatabasesStore
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.databases.sqlite.range import SqliteRangeStore
from harvest.outbox.outbound_stasher import OutboundStasher
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher
from harvest.sinks.kafka.idempotent import IdempotentSink
from harvest.sinks.kafka.sink import TransactionalSink
from harvest.testing.memory_broker import MemoryBroker, MemorySink
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable
from marshal_py.embedded import EmbeddedKafka
from marshal_py.testing import TestBroker
from tests.support.databases import MYSQL
from tests.support.kafka_reader import read_topic

_numbers = itertools.count()


# Brokers: librdkafka's mock cluster, and Kafka


@pytest.fixture(params=["mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    config = None
    if request.param == "kafka":
        kafka = request.getfixturevalue("kafka")
        kafka.start()  # some other test may have stopped it
        config = kafka.bootstrap_servers
    with TestBroker(config) as broker:
        yield broker


@pytest.fixture
def topic(broker: TestBroker) -> str:
    return broker.create_topic(f"contract-{next(_numbers)}")


@pytest.fixture
def group() -> str:
    return f"contract-{next(_numbers)}"


# Outboxes and sinks


class Transaction(Protocol):
    """An application's transaction on the outbox."""

    def insert(self, record: OutboxRecord) -> int: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class StoreBench(Protocol):
    """A table, and stores on it. `one_writer`: transactions follow one another."""

    one_writer: bool

    def store(self) -> MarkStore: ...
    def begin(self) -> Transaction: ...
    def ids(self) -> list[int]: ...


class MemoryBench:
    one_writer = False

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
    one_writer = False

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


class SqliteTransaction:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._stasher = Stasher()
        self._ids: list[int] = []

    def insert(self, record: OutboxRecord) -> int:
        self._stasher.stash(self._connection, record)
        ((row_id,),) = self._connection.execute("SELECT last_insert_rowid()").fetchall()
        self._ids.append(row_id)
        return int(row_id)

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        """A rollback gives the ids back; what leaves a gap in SQLite is a deletion."""
        self._connection.executemany("DELETE FROM outbox WHERE id = ?", [(i,) for i in self._ids])
        self.commit()


class SqliteBench:
    one_writer = True

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shop.db"
        self.url = f"sqlite:///{self._path}"
        self._stores: list[SqliteMarkStore] = []
        self.store().init()

    def store(self) -> MarkStore:
        store = SqliteMarkStore(self.url, "outbox")
        self._stores.append(store)
        return store

    def begin(self) -> Transaction:
        return SqliteTransaction(self._path)

    def ids(self) -> list[int]:
        connection = sqlite3.connect(self._path)
        found = [row[0] for row in connection.execute("SELECT id FROM outbox ORDER BY id")]
        connection.close()
        return found

    def close(self) -> None:
        for store in self._stores:
            store.close()


class MysqlTransaction:
    def __init__(self, url: str) -> None:
        self._connection = pymysql.connect(**connect_arguments(url))
        self._stasher = Stasher()

    def insert(self, record: OutboxRecord) -> int:
        self._stasher.stash(self._connection, record)
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT LAST_INSERT_ID()")
            ((row_id,),) = cursor.fetchall()
        return int(row_id)

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()

    def rollback(self) -> None:
        self._connection.rollback()
        self._connection.close()


class MysqlBench:
    one_writer = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: list[MysqlMarkStore] = []
        self.store().init()

    def store(self) -> MarkStore:
        store = MysqlMarkStore(self._url, "outbox")
        self._stores.append(store)
        return store

    def begin(self) -> Transaction:
        return MysqlTransaction(self._url)

    def ids(self) -> list[int]:
        with (
            pymysql.connect(**connect_arguments(self._url)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT id FROM outbox ORDER BY id")
            return [row[0] for row in cursor.fetchall()]

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture(params=["memory", "postgres", "sqlite", "mariadb", MYSQL])
def bench(request: pytest.FixtureRequest) -> Iterator[StoreBench]:
    real: PostgresBench | SqliteBench | MysqlBench
    if request.param == "memory":
        yield MemoryBench()
        return
    if request.param == "sqlite":
        real = SqliteBench(request.getfixturevalue("tmp_path"))
    elif request.param in ("mariadb", "mysql"):
        real = MysqlBench(request.getfixturevalue(f"{request.param}_database"))
    else:
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


class SqliteRangeBench:
    one_writer = True

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shop.db"
        self.url = f"sqlite:///{self._path}"
        self._stores: list[SqliteRangeStore] = []
        self.store().init()

    def store(self, shard: int = 0, shards: int = 1) -> RangeStore:
        store = SqliteRangeStore(self.url, "outbox", shard=shard, shards=shards)
        self._stores.append(store)
        return store

    def begin(self) -> Transaction:
        return SqliteTransaction(self._path)

    def close(self) -> None:
        for store in self._stores:
            store.close()


class MysqlRangeBench:
    one_writer = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: list[MysqlRangeStore] = []
        self.store().init()

    def store(self, shard: int = 0, shards: int = 1) -> RangeStore:
        store = MysqlRangeStore(self._url, "outbox", shard=shard, shards=shards)
        self._stores.append(store)
        return store

    def begin(self) -> Transaction:
        return MysqlTransaction(self._url)

    def close(self) -> None:
        for store in self._stores:
            store.close()


class TwoDatabasesTransaction:
    """A transaction of the primary; payloads are committed at once."""

    def __init__(self, primary: str, outbound: str) -> None:
        self._primary = psycopg.connect(primary)
        self._outbound = psycopg.connect(outbound)
        self._stasher = OutboundStasher()

    def insert(self, record: OutboxRecord) -> int:
        self._stasher.stash(self._primary, self._outbound, record)
        row = self._primary.execute("SELECT currval('outbox_ids_id_seq')").fetchone()
        assert row is not None
        return int(row[0])

    def commit(self) -> None:
        self._primary.commit()
        self._close()

    def rollback(self) -> None:
        self._primary.rollback()
        self._close()

    def _close(self) -> None:
        self._primary.close()
        self._outbound.close()


class TwoDatabasesBench:
    one_writer = False

    def __init__(self, primary: str, outbound: str) -> None:
        self.primary = primary
        self.outbound = outbound
        self._stores: list[TwoDatabasesStore] = []
        self.store().init()
        with psycopg.connect(outbound) as connection:  # so that the two kinds of ids differ
            connection.execute("SELECT setval('outbox_id_seq', 1000)")

    def store(self, shard: int = 0, shards: int = 1) -> RangeStore:
        if shards > 1:
            pytest.skip("two databases are harvested in one shard")
        ids = PostgresIds(self.primary, "outbox_ids")
        store = TwoDatabasesStore(ids, PostgresRangeStore(self.outbound, "outbox"))
        self._stores.append(store)
        return store

    def begin(self) -> Transaction:
        return TwoDatabasesTransaction(self.primary, self.outbound)

    def close(self) -> None:
        for store in self._stores:
            store.close()


def second_database(url: str) -> str:
    """Another database on the same server."""
    name = f"second_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return make_conninfo(url, dbname=name)


@pytest.fixture(params=["memory", "postgres", "sqlite", "mariadb", MYSQL, "two databases"])
def range_bench(request: pytest.FixtureRequest) -> Iterator[RangeBench]:
    real: PostgresRangeBench | SqliteRangeBench | MysqlRangeBench | TwoDatabasesBench
    if request.param == "memory":
        yield MemoryRangeBench()
        return
    if request.param == "sqlite":
        real = SqliteRangeBench(request.getfixturevalue("tmp_path"))
    elif request.param == "two databases":
        primary = request.getfixturevalue("postgres_database")
        real = TwoDatabasesBench(primary, second_database(primary))
    elif request.param in ("mariadb", "mysql"):
        real = MysqlRangeBench(request.getfixturevalue(f"{request.param}_database"))
    else:
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


def row(number: int, topic: str, key: str = "k", **changes: Any) -> Row:
    """A row to publish."""
    base = Row(number, topic, key.encode(), f"v{number}".encode())
    return base._replace(**changes)
