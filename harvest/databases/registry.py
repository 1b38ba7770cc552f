"""Which database a connection string means, and the stores that are made for it.

`sqlite:///path` is an SQLite file, `mysql://…` or `mariadb://…` a database of MariaDB or MySQL;
anything else is PostgreSQL's, in the forms of libpq.
"""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeAlias

from harvest.core.extra_columns import NO_EXTRA, Extra
from harvest.core.interfaces.dead_letter_store import DeadLetterTable
from harvest.core.interfaces.listener import Listener
from harvest.core.table_name import TableName
from harvest.core.wal_options import WalOptions
from harvest.databases.mysql.dead_letters import MysqlDeadLetters
from harvest.databases.mysql.mark import MysqlMarkStore
from harvest.databases.mysql.partitions import MysqlPartitions
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.mysql.table import connect_arguments
from harvest.databases.postgres.attempts import PostgresAttempts
from harvest.databases.postgres.conninfo import libpq_conninfo, parsed_conninfo
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.notify import PostgresListener
from harvest.databases.postgres.partitions import PostgresPartitions
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.postgres.wal_dead_letters import PostgresWalDeadLetters
from harvest.databases.postgres.wal_partitions import PostgresWalPartitions
from harvest.databases.sqlite.dead_letters import SqliteDeadLetters
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.databases.sqlite.range import SqliteRangeStore
from harvest.databases.sqlite.swept_rows import SqliteSweptRows
from harvest.databases.sqlite.table import sqlite_path
from harvest.errors import ConfigurationError, StoreUnavailable
from harvest.maintenance.partitions import PartitionStore

__all__ = ["AnyMarkStore", "AnyRangeStore", "Database", "database", "database_of_data_source"]

AnyMarkStore: TypeAlias = PostgresMarkStore | SqliteMarkStore | MysqlMarkStore
AnyRangeStore: TypeAlias = PostgresRangeStore | SqliteRangeStore | MysqlRangeStore


class Database(Protocol):
    """A kind of database. Every method only makes; what it made connects when it is first used.

    Raises `ConfigurationError` for what cannot be read.
    """

    def mark_store(
        self, table: TableName, *, durable: bool = True, extra: Extra = NO_EXTRA
    ) -> AnyMarkStore:
        """The table in mark mode. `durable`: commits are on the disk when they return; `extra`:
        columns that become headers."""

    def range_store(
        self, table: TableName, *, shard: int = 0, shards: int = 1, extra: Extra = NO_EXTRA
    ) -> AnyRangeStore:
        """The table in range mode. `extra`: as for mark mode."""

    def partitions(self, table: TableName) -> PartitionStore:
        """The partitions of the table, or what deletes its published rows where there are none."""

    def dead_letters(self, table: TableName) -> DeadLetterTable:
        """The rows that cannot be published."""

    def attempts(self, table: TableName) -> PostgresAttempts | None:
        """Where failures are noted; None where that is not to be had."""

    def wal_source(self, table: TableName, options: WalOptions) -> PostgresWalSource:
        """The slot, and the table if there is one, in wal mode."""

    def wal_dead_letters(self, table: TableName, options: WalOptions) -> PostgresWalDeadLetters:
        """The rows that cannot be published, in wal mode."""

    def wal_partitions(
        self, table: TableName, published: Callable[[], int]
    ) -> PostgresWalPartitions:
        """The partitions of the table, in wal mode; `published`: a place in the log."""

    def listener(self, table: TableName) -> Listener | None:
        """What hears of new rows; None where there is only polling."""

    def install_notify(self, table: TableName, *, remove: bool) -> bool:
        """Create the trigger that tells of new rows, or remove it; whether there was a need to."""

    def transaction(self) -> Any:
        """A context manager: a connection for the `Stasher`, and a commit at the end.

        What the driver raises meanwhile is `StoreUnavailable`.
        """


@contextmanager
def _told(kind: type[Exception]) -> Iterator[None]:
    """What a driver raises, in a line."""
    try:
        yield
    except kind as error:
        said = " ".join(" ".join(map(str, error.args)).split())
        raise StoreUnavailable(f"the database broke off a transaction: {said}") from error


class _Postgres:
    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def mark_store(
        self, table: TableName, *, durable: bool = True, extra: Extra = NO_EXTRA
    ) -> PostgresMarkStore:
        return PostgresMarkStore(self._conninfo, table, durable=durable, extra=extra)

    def range_store(
        self, table: TableName, *, shard: int = 0, shards: int = 1, extra: Extra = NO_EXTRA
    ) -> PostgresRangeStore:
        return PostgresRangeStore(self._conninfo, table, shard=shard, shards=shards, extra=extra)

    def partitions(self, table: TableName) -> PartitionStore:
        return PostgresPartitions(self._conninfo, table)

    def dead_letters(self, table: TableName) -> DeadLetterTable:
        return PostgresDeadLetters(self._conninfo, table)

    def attempts(self, table: TableName) -> PostgresAttempts:
        return PostgresAttempts(self._conninfo, table)

    def wal_source(self, table: TableName, options: WalOptions) -> PostgresWalSource:
        return PostgresWalSource(self._conninfo, table, options)

    def wal_dead_letters(self, table: TableName, options: WalOptions) -> PostgresWalDeadLetters:
        return PostgresWalDeadLetters(self._conninfo, table, options.prefix)

    def wal_partitions(
        self, table: TableName, published: Callable[[], int]
    ) -> PostgresWalPartitions:
        return PostgresWalPartitions(self._conninfo, table, published)

    def listener(self, table: TableName) -> Listener:
        return PostgresListener(self.mark_store(table).conninfo, table)

    def install_notify(self, table: TableName, *, remove: bool) -> bool:
        with closing(self.mark_store(table)) as store:
            return store.install_notify(remove=remove)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        import psycopg

        parsed_conninfo(self._conninfo)
        with _told(psycopg.Error), psycopg.connect(self._conninfo) as connection:
            yield connection


class _Polled:
    """A database that tells of nothing: its log is not read, and it has no notifications."""

    name: ClassVar[str]

    def attempts(self, table: TableName) -> None:
        del table

    def listener(self, table: TableName) -> None:
        del table

    def install_notify(self, table: TableName, *, remove: bool) -> NoReturn:
        del table, remove
        raise ConfigurationError(
            f"--notify: {self.name} has no notifications; an idle harvester polls"
        )

    def wal_source(self, table: TableName, options: WalOptions) -> NoReturn:
        del table, options
        raise ConfigurationError("mode: wal is for PostgreSQL: write mode: mark or range")

    wal_dead_letters = wal_source

    def wal_partitions(self, table: TableName, published: Callable[[], int]) -> NoReturn:
        del published
        self.wal_source(table, WalOptions())


class _Sqlite(_Polled):
    name = "SQLite"

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = sqlite_path(url)

    def mark_store(
        self, table: TableName, *, durable: bool = True, extra: Extra = NO_EXTRA
    ) -> SqliteMarkStore:
        return SqliteMarkStore(self._url, table, durable=durable, extra=extra)

    def range_store(
        self, table: TableName, *, shard: int = 0, shards: int = 1, extra: Extra = NO_EXTRA
    ) -> SqliteRangeStore:
        return SqliteRangeStore(self._url, table, shard=shard, shards=shards, extra=extra)

    def partitions(self, table: TableName) -> PartitionStore:
        return SqliteSweptRows(self._url, table)

    def dead_letters(self, table: TableName) -> DeadLetterTable:
        return SqliteDeadLetters(self._url, table)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with (
            _told(sqlite3.Error),
            closing(sqlite3.connect(self._path)) as connection,
            connection,
        ):
            yield connection


class _Mysql(_Polled):
    name = "MySQL"

    def __init__(self, url: str) -> None:
        if importlib.util.find_spec("pymysql") is None:
            raise ConfigurationError("PyMySQL is missing: run `pip install 'marshal-py[mysql]'`")
        self._url = url
        self._arguments = connect_arguments(url)

    def mark_store(
        self, table: TableName, *, durable: bool = True, extra: Extra = NO_EXTRA
    ) -> MysqlMarkStore:
        del durable  # the server decides: innodb_flush_log_at_trx_commit
        return MysqlMarkStore(self._url, table, extra=extra)

    def range_store(
        self, table: TableName, *, shard: int = 0, shards: int = 1, extra: Extra = NO_EXTRA
    ) -> MysqlRangeStore:
        return MysqlRangeStore(self._url, table, shard=shard, shards=shards, extra=extra)

    def partitions(self, table: TableName) -> PartitionStore:
        return MysqlPartitions(self._url, table)

    def dead_letters(self, table: TableName) -> DeadLetterTable:
        return MysqlDeadLetters(self._url, table)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        import pymysql

        with (
            _told(pymysql.MySQLError),
            pymysql.connect(**self._arguments, charset="utf8mb4") as connection,
        ):
            yield connection
            connection.commit()


_KINDS: Final[dict[str, Callable[[str], Database]]] = {
    "sqlite": _Sqlite,
    "mysql": _Mysql,
    "mariadb": _Mysql,
}


def database(source: str) -> Database:
    """The database of a connection string. Raises `ConfigurationError`."""
    scheme, separator, _ = source.partition("://")
    return _KINDS.get(scheme, _Postgres)(source) if separator else _Postgres(source)


def database_of_data_source(source: str) -> Database:
    """The same for what a person typed, who may have goharvest's data source (lib/pq's) at hand."""
    scheme, separator, _ = source.partition("://")
    return database(source if separator and scheme in _KINDS else libpq_conninfo(source))
