"""Range partitions of a table in MariaDB: made ahead, archived, dropped behind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from harvest.core.range_checkpoint import Position
from harvest.core.table_name import TableName
from harvest.databases.mysql.partitions import MysqlPartitions
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.registry import database
from harvest.errors import StoreUnavailable
from harvest.maintenance.archive import ParquetArchive
from harvest.maintenance.partitions import (
    Extent,
    Partition,
    PartitionPlan,
    PartitionPolicy,
    carry_out,
    plan,
)
from tests.integration.harvest.databases.test_mariadb import connect, execute

LOCK_WAIT_TIMEOUT = 1205
POLICY = PartitionPolicy(rows=100, ahead=2, retain_s=0)
WHEN = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=dt.UTC)
PARTITIONED = (
    "ALTER TABLE outbox PARTITION BY RANGE (id) (PARTITION rest VALUES LESS THAN MAXVALUE)"
)


@pytest.fixture
def parts(mariadb_database: str) -> Iterator[MysqlPartitions]:
    """The partitions of an empty table."""
    with closing(MysqlRangeStore(mariadb_database, "outbox")) as table:
        table.init()
    store = MysqlPartitions(mariadb_database, "outbox")
    assert not store.inventory().partitioned
    with closing(connect(mariadb_database, autocommit=True)) as connection:
        execute(connection, PARTITIONED)
    yield store
    store.close()


def fill(url: str, rows: int) -> None:
    with closing(connect(url, autocommit=True)) as connection:
        execute(connection, "SET time_zone = '+00:00'")
        values = ", ".join(
            f"('{WHEN:%Y-%m-%d %H:%M:%S.%f}', 't', 'k{n}', 'ä{n}', '[\"h\"]', '[\"{n}\"]')"
            for n in range(rows)
        )
        execute(
            connection,
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
            f"kafka_header_keys, kafka_header_values) VALUES {values}",
        )


def look_after(
    store: MysqlPartitions, last_id: int, folder: Path | None = None, *gaps: tuple[int, int]
) -> PartitionPlan:
    todo = plan(store.inventory(), [Position(1, 0, 1, last_id, gaps)], POLICY)
    archive = None if folder is None else ParquetArchive(folder, "outbox")
    return carry_out(todo, store, POLICY, archive)


def ids(url: str) -> list[int]:
    with closing(MysqlRangeStore(url, "outbox")) as table:
        return [row[0] for row in table.read(0, 1_000).rows]


def test_partitions_are_made_ahead_archived_and_dropped_behind(
    parts: MysqlPartitions, mariadb_database: str, tmp_path: Path
) -> None:
    assert look_after(parts, 0).create == ((0, 100), (100, 200))
    fill(mariadb_database, 150)
    found = parts.inventory()
    assert [(p.name, p.low, p.high) for p in found.partitions] == [
        ("p0", 0, 100),
        ("p100", 100, 200),
    ]
    assert (found.drawn >= 150, found.stray, found.partitioned) == (True, 0, True)
    assert all((p.age_s or 0) > 3600 for p in found.partitions)
    assert look_after(parts, 150, None, (50, 50)).drop == ()
    done = look_after(parts, 150, tmp_path)
    assert [p.name for p in done.drop] == ["p0"]
    assert ids(mariadb_database) == list(range(100, 151))
    rows = list(ParquetArchive(tmp_path, "outbox").read(0, 1_000))
    assert [row["id"] for row in rows] == list(range(1, 100))
    assert rows[6] == {
        "id": 7,
        "create_time": WHEN,
        "kafka_topic": "t",
        "kafka_key": b"k6",
        "kafka_value": "ä6".encode(),
        "kafka_header_keys": [b"h"],
        "kafka_header_values": [b"6"],
    }
    first = parts.inventory().partitions[0]
    assert (first.name, first.low, first.high) == ("p100", 100, 200)


def test_a_partition_is_as_old_as_its_newest_row(
    parts: MysqlPartitions, mariadb_database: str
) -> None:
    """What is younger than it has to be kept would go with the rest."""
    look_after(parts, 0)
    fill(mariadb_database, 150)
    with closing(connect(mariadb_database, autocommit=True)) as connection:
        execute(connection, "UPDATE outbox SET create_time = NOW(6) WHERE id = 99")
    first, second, *_ = parts.inventory().partitions
    assert first.age_s is not None
    assert second.age_s is not None
    assert first.age_s < 3_600 < second.age_s


def test_rows_that_outran_the_partitions_are_moved_into_the_next(
    parts: MysqlPartitions, mariadb_database: str
) -> None:
    look_after(parts, 0)
    fill(mariadb_database, 250)
    assert parts.inventory().stray == 51
    look_after(parts, 0)
    found = parts.inventory()
    assert found.stray == 0
    assert found.partitions[-1].high >= 400
    assert [p.low for p in found.partitions] == [0, *[p.high for p in found.partitions[:-1]]]
    assert len(look_after(parts, 250).drop) >= 2
    assert ids(mariadb_database)[-1] == 250


def test_other_rows_than_expected_or_somebody_in_the_way_keep_it(
    parts: MysqlPartitions, mariadb_database: str
) -> None:
    look_after(parts, 0)
    fill(mariadb_database, 150)
    first = parts.inventory().partitions[0]
    assert not parts.drop(first, Extent(98, 1, 98))
    with closing(connect(mariadb_database)) as busy:
        execute(busy, "SELECT COUNT(*) FROM outbox")  # an open transaction
        assert not parts.drop(first)
        busy.rollback()
        name = "RIGHT(CONCAT('harvest ', DATABASE(), '.outbox'), 64)"
        execute(busy, f"SELECT GET_LOCK({name}, 0)")  # another manager
        assert not parts.drop(first)
        assert parts.create(900, 1_000) is None
        execute(busy, f"SELECT RELEASE_LOCK({name})")
    assert parts.drop(first, Extent(99, 1, 99))
    assert not parts.drop(first)
    assert ids(mariadb_database)[0] == 100


def test_nobody_writes_between_the_last_look_at_a_partition_and_its_end(
    parts: MysqlPartitions, mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that came in between would be dropped, and be in no archive."""
    look_after(parts, 0)
    fill(mariadb_database, 150)
    first = parts.inventory().partitions[0]
    expected = parts.extent(first)
    refused = []

    def look(partition: Partition) -> Extent:
        with closing(connect(mariadb_database, autocommit=True)) as connection:
            execute(connection, "SET SESSION lock_wait_timeout = 1")
            try:
                execute(connection, "UPDATE outbox SET kafka_value = 'late' WHERE id = 7")
            except pymysql.MySQLError as error:
                refused.append(error.args[0])
        return MysqlPartitions.extent(parts, partition)

    monkeypatch.setattr(parts, "extent", look)
    assert parts.drop(first, expected)
    assert refused == [LOCK_WAIT_TIMEOUT]


def test_rows_of_no_partition_are_deleted_when_they_are_old_enough(
    parts: MysqlPartitions, mariadb_database: str
) -> None:
    look_after(parts, 0)
    fill(mariadb_database, 250)
    year_s = 365 * 86_400.0
    assert parts.sweep(1_000, 100 * year_s) == 0
    assert parts.sweep(240, 3_600.0) == 40
    assert ids(mariadb_database)[-12:] == [199, *range(240, 251)]


def test_who_is_done_is_in_nobodys_way(parts: MysqlPartitions, mariadb_database: str) -> None:
    look_after(parts, 0)
    with closing(MysqlPartitions(mariadb_database, "outbox")) as other:
        assert other.create(200, 300) == "p200"
        assert other.drop(other.inventory().partitions[0])
        fill(mariadb_database, 1)
        assert parts.create(300, 400) == "p300"


def test_what_is_no_lock_is_an_error(mariadb_database: str) -> None:
    """Else nobody would hear that no partition is made any more."""
    with closing(MysqlRangeStore(mariadb_database, "outbox")) as table:
        table.init()
    with (
        closing(MysqlPartitions(mariadb_database, "outbox")) as store,
        pytest.raises(StoreUnavailable),
    ):
        store.create(0, 100)


def test_it_is_what_a_configuration_names(mariadb_database: str) -> None:
    store = database(mariadb_database).partitions(TableName.parse("outbox"))
    assert isinstance(store, MysqlPartitions)


def test_a_row_of_no_time_goes_into_the_archive(
    parts: MysqlPartitions, mariadb_database: str, tmp_path: Path
) -> None:
    look_after(parts, 0)
    fill(mariadb_database, 150)
    with closing(connect(mariadb_database, autocommit=True)) as connection:
        execute(connection, "ALTER TABLE outbox MODIFY create_time DATETIME(6) NULL")
        execute(connection, "UPDATE outbox SET create_time = NULL WHERE id = 7")
    assert [p.name for p in look_after(parts, 150, tmp_path).drop] == ["p0"]
    rows = list(ParquetArchive(tmp_path, "outbox").read(7, 8))
    assert [row["create_time"] for row in rows] == [None, WHEN]


def test_partitions_of_another_column_are_left_alone(mariadb_database: str) -> None:
    """Their numbers say nothing about ids; published rows go one by one."""
    with closing(MysqlRangeStore(mariadb_database, "outbox")) as table:
        table.init()
    with closing(connect(mariadb_database, autocommit=True)) as connection:
        for statement in (
            "ALTER TABLE outbox ADD day INT NOT NULL DEFAULT 7, DROP PRIMARY KEY, "
            "ADD PRIMARY KEY (id, day)",
            "ALTER TABLE outbox PARTITION BY RANGE (day) "
            "(PARTITION p0 VALUES LESS THAN (10), PARTITION rest VALUES LESS THAN MAXVALUE)",
        ):
            execute(connection, statement)
    fill(mariadb_database, 150)
    with closing(MysqlPartitions(mariadb_database, "outbox")) as store:
        assert not store.inventory().partitioned
        done = look_after(store, 50)
    assert (done.create, done.drop, done.swept) == ((), (), 50)
    assert ids(mariadb_database) == list(range(51, 151))
