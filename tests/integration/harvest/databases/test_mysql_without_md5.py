"""Shards on a server that has no MD5(), as MySQL 9.7: on MariaDB, as if it had none."""

from __future__ import annotations

from contextlib import closing

from harvest import OutboxRecord, Stasher
from harvest.core.range_checkpoint import Position
from harvest.core.row import named
from harvest.core.table_name import TableName
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.registry import database


class WithoutMd5(MysqlRangeStore):
    def _has_md5(self) -> bool:
        return False


def test_shards_without_md5(mariadb_database: str) -> None:
    tables = database(mariadb_database)
    with closing(MysqlRangeStore(mariadb_database, "outbox")) as store:
        store.init()
    with tables.transaction() as connection:
        Stasher().stash_many(connection, [OutboxRecord("t", f"k{n}", "v") for n in range(30)])
    for shard in range(3):
        usual = tables.range_store(TableName.parse("outbox"), shard=shard, shards=3)
        without = WithoutMd5(mariadb_database, "outbox", shard=shard, shards=3)
        with closing(usual), closing(without):
            ids = [row.id for row in named(usual.read(0, 100).rows)]
            assert 0 < len(ids) < 30
            assert [row.id for row in named(without.read(0, 100).rows)] == ids
            assert [row.id for row in named(without.fetch([(1, 30)]))] == ids
            before = usual.backlog().rows
            usual.save(Position(1, shard, 3, 30))
            assert without.backlog().rows == usual.backlog().rows == before - len(ids)
