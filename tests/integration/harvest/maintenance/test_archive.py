"""Partitions are archived before they are dropped: on a real PostgreSQL, with real files."""

from __future__ import annotations

import datetime as dt
import resource
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from harvest.core.range_checkpoint import Position
from harvest.databases.postgres.partitions import PostgresPartitions
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.errors import ArchiveError
from harvest.maintenance.archive import ParquetArchive
from harvest.maintenance.partitions import (
    Extent,
    Partition,
    PartitionPlan,
    PartitionPolicy,
    carry_out,
    plan,
)
from marshal_py.embedded import EmbeddedPostgres

POLICY = PartitionPolicy(rows=100, ahead=2, retain_s=0)
WHEN = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=dt.UTC)
FILL = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) SELECT %s, 'orders', 'k' || n, CASE WHEN n %% 7 > 0 THEN 'ä' || n END, "
    "ARRAY['h'], ARRAY['v' || n] FROM generate_series(1, %s) n"
)


@pytest.fixture
def parts(postgres_database: str) -> Iterator[PostgresPartitions]:
    """The partitions of a table with the ids 1 to 250: two are full, and published."""
    table = PostgresRangeStore(postgres_database, "outbox")
    table.init()
    table.close()
    store = PostgresPartitions(postgres_database, "outbox")
    for partition in store.inventory().partitions:
        assert store.drop(partition)
    carry_out(plan(store.inventory(), (), PartitionPolicy(100, 4, 0)), store, POLICY)
    with psycopg.connect(postgres_database) as connection:
        connection.execute(FILL, (WHEN, 250))
    yield store
    store.close()


def keep(store: PostgresPartitions, folder: Path, last_id: int = 250) -> PartitionPlan:
    todo = plan(store.inventory(), [Position(1, 0, 1, last_id)], POLICY)
    return carry_out(todo, store, POLICY, ParquetArchive(folder, "outbox"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def lows(done: PartitionPlan) -> list[int]:
    return [partition.low for partition in done.drop]


BOTH = ["outbox-0-99.parquet", "outbox-100-199.parquet"]


def test_what_is_dropped_is_in_the_archive(parts: PostgresPartitions, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert lows(keep(parts, folder)) == [0, 100]
    assert parts.inventory().partitions[0].low == 200
    assert names(folder) == BOTH
    rows = list(ParquetArchive(folder, "outbox").read(0, 1_000))
    assert [row["id"] for row in rows] == list(range(1, 200))
    assert rows[6] == {
        "id": 7,
        "create_time": WHEN,
        "kafka_topic": "orders",
        "kafka_key": b"k7",
        "kafka_value": None,
        "kafka_header_keys": [b"h"],
        "kafka_header_values": [b"v7"],
    }
    assert rows[7]["kafka_value"] == "ä8".encode()
    for low, high in ((98, 101), (98, 100), (99, 99), (100, 100), (199, 300), (0, 1)):
        some = ParquetArchive(folder, "outbox").read(low, high)
        assert [row["id"] for row in some] == [n for n in range(low, high + 1) if 1 <= n < 200]


def test_a_stuck_position_archives_nothing(parts: PostgresPartitions, tmp_path: Path) -> None:
    assert lows(keep(parts, tmp_path, last_id=50)) == []
    assert names(tmp_path) == []


def test_a_full_disk_drops_nothing(parts: PostgresPartitions, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        done = keep(parts, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert lows(done) == []
    assert [(p.low, "too large" in why) for p, why in done.unarchived] == [(0, True), (100, True)]
    assert names(tmp_path) == []  # not even a draft
    assert lows(keep(parts, tmp_path)) == [0, 100]


class Killed(Exception):
    pass


class KilledBeforeTheDrop(PostgresPartitions):
    def drop(self, partition: Partition, expected: Extent | None = None) -> bool:
        raise Killed


def test_a_kill_between_file_and_drop_makes_no_second_copy(
    parts: PostgresPartitions, postgres_database: str, tmp_path: Path
) -> None:
    (tmp_path / ".outbox-0-99.parquet.dead.tmp").write_bytes(b"PAR1")  # killed while it wrote
    first = KilledBeforeTheDrop(postgres_database, "outbox")
    with pytest.raises(Killed):
        keep(first, tmp_path)
    first.close()
    before = (tmp_path / BOTH[0]).stat()
    assert lows(keep(parts, tmp_path)) == [0, 100]
    after = (tmp_path / BOTH[0]).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    rows = ParquetArchive(tmp_path, "outbox").read(0, 1_000)
    assert [row["id"] for row in rows] == list(range(1, 200))


def test_a_file_of_other_rows_or_none_at_all_keeps_the_partition(
    parts: PostgresPartitions, postgres_database: str, tmp_path: Path
) -> None:
    keep(parts, tmp_path / "first")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "outbox-200-299.parquet").write_bytes(
        (tmp_path / "first" / BOTH[0]).read_bytes()
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "outbox-200-299.parquet").write_bytes(b"no Parquet")
    with psycopg.connect(postgres_database) as connection:
        connection.execute(FILL, (WHEN, 100))
    for folder, said in (("a", "99 rows, ids 1 to 99"), ("b", "outbox-200-299.parquet")):
        done = keep(parts, tmp_path / folder, last_id=350)
        assert lows(done) == []
        assert said in done.unarchived[0][1]


def test_rows_that_come_after_the_file_keep_the_partition(
    parts: PostgresPartitions, postgres_database: str, tmp_path: Path
) -> None:
    partition = parts.inventory().partitions[0]
    extent = ParquetArchive(tmp_path, "outbox").keep(partition, parts)
    with psycopg.connect(postgres_database) as connection:
        connection.execute("UPDATE outbox SET id = 0 WHERE id = 1")
    assert not parts.drop(partition, extent)
    with pytest.raises(ArchiveError, match="99 rows, ids 0 to 99"):
        ParquetArchive(tmp_path, "outbox").keep(partition, parts)
    assert parts.extent(partition) == Extent(99, 0, 99)


class Late(PostgresPartitions):
    """Another row comes after they were counted."""

    def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        self._execute(sql.SQL("UPDATE outbox SET id = 0 WHERE id = 1"))
        yield from super().rows(partition, limit)


def test_a_file_that_does_not_have_what_was_counted_gets_no_name(
    parts: PostgresPartitions, postgres_database: str, tmp_path: Path
) -> None:
    late = Late(postgres_database, "outbox")
    assert lows(keep(late, tmp_path, last_id=150)) == []
    late.close()
    assert names(tmp_path) == []
    assert lows(keep(parts, tmp_path, last_id=150)) == [0]


class Slow(PostgresPartitions):
    """Waits for the other manager between reading and writing."""

    meeting: threading.Barrier

    def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        self.meeting.wait(60)
        yield from super().rows(partition, limit)


def test_two_managers_at_once(
    parts: PostgresPartitions, postgres_database: str, tmp_path: Path
) -> None:
    todo = plan(parts.inventory(), [Position(1, 0, 1, 150)], POLICY)
    meeting, done = threading.Barrier(2), []

    def manage() -> None:
        store = Slow(postgres_database, "outbox")
        store.meeting = meeting
        done.append(lows(carry_out(todo, store, POLICY, ParquetArchive(tmp_path, "outbox"))))
        store.close()

    threads = [threading.Thread(target=manage, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(done) in ([[], [0]], [[]] * 2)  # who is in the other's way leaves it for later
    assert names(tmp_path) == BOTH[:1]
    rows = ParquetArchive(tmp_path, "outbox").read(0, 1_000)
    assert [row["id"] for row in rows] == list(range(1, 100))


def test_rows_of_the_default_partition_stay(parts: PostgresPartitions, tmp_path: Path) -> None:
    todo = PartitionPlan(sweep_below=1_000)
    assert carry_out(todo, parts, POLICY, ParquetArchive(tmp_path, "outbox")).swept == 0


def test_a_row_of_no_time_that_there_is_in_python_goes_into_the_archive(
    parts: PostgresPartitions, tmp_path: Path
) -> None:
    with psycopg.connect(parts.conninfo, autocommit=True) as connection:
        connection.execute("UPDATE outbox SET create_time = 'infinity' WHERE id = 7")
    assert lows(keep(parts, tmp_path)) == [0, 100]
    times = {row["id"]: row["create_time"] for row in ParquetArchive(tmp_path, "outbox").read(6, 7)}
    assert times == {6: WHEN, 7: None}


def test_rows_without_a_topic_and_of_a_day_go_into_the_archive(
    parts: PostgresPartitions, tmp_path: Path
) -> None:
    """The columns are the owner's: the first are set aside, and stay in the table until then."""
    with psycopg.connect(parts.conninfo, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox ALTER create_time TYPE date")
        connection.execute("ALTER TABLE outbox ALTER kafka_topic DROP NOT NULL")
        connection.execute("UPDATE outbox SET kafka_topic = NULL WHERE id = 7")
    assert lows(keep(parts, tmp_path)) == [0, 100]
    day = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    rows = {row["id"]: row for row in ParquetArchive(tmp_path, "outbox").read(6, 7)}
    assert [row["create_time"] for row in rows.values()] == [day, day]
    assert (rows[6]["kafka_topic"], rows[7]["kafka_topic"]) == ("orders", None)


def test_a_row_that_cannot_be_read_keeps_its_partition_and_no_other(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    url = postgres.dsn_of(name)
    with (
        closing(PostgresRangeStore(url, "outbox")) as table,
        closing(PostgresPartitions(url, "outbox")) as parts,
    ):
        table.init()
        for partition in parts.inventory().partitions:
            assert parts.drop(partition)
        carry_out(plan(parts.inventory(), (), PartitionPolicy(100, 4, 0)), parts, POLICY)
        with psycopg.connect(url) as connection:
            connection.execute(FILL.replace("ä", "a"), (WHEN, 250))
            connection.execute(
                r"UPDATE outbox SET kafka_key = convert_from('\xe9', 'SQL_ASCII') WHERE id = 7"
            )
        done = keep(parts, tmp_path)
    postgres.drop_database(name)
    assert lows(done) == [100]
    ((partition, why),) = done.unarchived
    assert partition.low == 0
    assert "public.outbox_p0 has a row that the database cannot hand over" in why
    assert names(tmp_path) == BOTH[1:]


def test_names_with_dots_are_names(postgres_database: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "a.b"')
    table = '"a.b"."Out.box"'
    with (
        closing(PostgresRangeStore(postgres_database, table)) as store,
        closing(PostgresPartitions(postgres_database, table)) as parts,
    ):
        store.init()
        for partition in parts.inventory().partitions:
            assert parts.drop(partition)
        carry_out(plan(parts.inventory(), (), PartitionPolicy(100, 4, 0)), parts, POLICY)
        with psycopg.connect(postgres_database) as connection:
            connection.execute(FILL.replace("outbox", table), (WHEN, 250))
        assert lows(keep(parts, tmp_path)) == [0, 100]
