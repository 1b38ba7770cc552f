"""Partitions of an outbox in wal mode: dropped once all that is in them is published."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.postgres.wal_partitions import PostgresWalPartitions
from harvest.errors import ConfigurationError
from harvest.maintenance.partitions import (
    Partition,
    PartitionPlan,
    PartitionPolicy,
    carry_out,
    plan_below,
)

POLICY = PartitionPolicy(rows=100, ahead=2, retain_s=0)
OPTIONS = WalOptions(purge="partitions")
INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) SELECT now() - interval '1 h', 't', 'k', n::text, '{}', '{}' "
    "FROM generate_series(1, %s) n"
)


@dataclass
class Rig:
    """A partitioned outbox with a slot, and what is told to be published."""

    url: str
    source: PostgresWalSource
    partitions: PostgresWalPartitions
    is_published: bool = False
    """All that is in the log, at any moment."""

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url)

    def fill(self, rows: int) -> None:
        with self.connect() as connection:
            connection.execute(INSERT, (rows,))

    def publish(self) -> None:
        """As when a leader publishes all that is in the log."""
        self.is_published = True

    def published(self) -> int:
        if not self.is_published:
            return 0
        with self.connect() as connection:
            ((end,),) = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()
        return int(end)

    def maintain(self) -> PartitionPlan:
        found = self.partitions.inventory()
        return carry_out(plan_below(found, found.drawn + 1, POLICY), self.partitions, POLICY)


@pytest.fixture
def rig(postgres_database: str) -> Iterator[Rig]:
    source = PostgresWalSource(postgres_database, "outbox", OPTIONS)
    source.init()
    partitions = PostgresWalPartitions(postgres_database, "outbox", lambda: made.published())
    made = Rig(postgres_database, source, partitions)
    for partition in partitions.inventory().partitions:  # those for a million rows
        with made.connect() as connection:
            connection.execute(f"DROP TABLE {partition.name}")
    made.maintain()
    yield made
    partitions.close()
    source.slot.drop()
    source.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for rows to be published."""
    monkeypatch.setattr("harvest.databases.postgres.wal_partitions._WAIT_S", 0.0)


def lows(partitions: Any) -> list[int]:
    return [partition.low for partition in partitions]


@pytest.mark.usefixtures("at_once")
def test_a_partition_is_dropped_when_all_that_is_in_it_is_published_and_its_rows_still_come(
    rig: Rig,
) -> None:
    stream, _ = rig.source.open(1, None)
    rig.fill(150)
    assert lows(rig.maintain().drop) == []
    rig.publish()
    assert lows(rig.maintain().drop) == [0]
    assert rig.source.count_rows(None) == 51
    values: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(values) < 150 and time.monotonic() < deadline:
        select.select([stream.fileno()], [], [], 1.0)
        done = stream.read(1_000, 1 << 20)
        values += [row[3] for chunk in (done.chunks if done else ()) for row in chunk.rows]
    stream.close()
    assert values == [b"%d" % n for n in range(1, 151)]


@pytest.mark.usefixtures("at_once")
def test_an_open_transaction_with_a_row_in_it_keeps_a_partition(rig: Rig) -> None:
    with rig.connect() as late:
        late.execute(INSERT, (1,))
        rig.fill(150)
        rig.publish()
        assert rig.maintain().drop == ()
        late.commit()
        rig.is_published = False
        assert rig.maintain().drop == ()
    rig.publish()
    assert lows(rig.maintain().drop) == [0]


@pytest.mark.usefixtures("at_once")
def test_it_is_asked_what_a_partition_waits_for_and_nothing_is_dropped(rig: Rig) -> None:
    first = Partition("public.outbox_p0", 0, 100)
    with rig.connect() as late:
        late.execute(INSERT, (1,))
        rig.publish()
        assert rig.partitions.obstacle(first) == "somebody writes to it, or changes partitions"
    rig.is_published = False
    assert rig.partitions.obstacle(first) == "not all that is in it is published"
    rig.publish()
    assert rig.partitions.obstacle(first) is None
    assert 0 in lows(rig.partitions.inventory().partitions)
    with rig.connect() as other:
        other.execute("LOCK TABLE outbox_p0 IN ROW EXCLUSIVE MODE NOWAIT")


def test_it_is_waited_for_with_nobody_writing_into_it(rig: Rig) -> None:
    """What is published a moment later is no reason to keep a partition for another minute."""
    rig.fill(150)
    asked = 0

    def published() -> int:
        nonlocal asked
        asked += 1
        if asked == 3:
            with rig.connect() as other:
                other.execute("SET lock_timeout = '10ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute("LOCK TABLE outbox_p0 IN ROW EXCLUSIVE MODE")
            rig.publish()
        return rig.published()

    with closing(PostgresWalPartitions(rig.url, "outbox", published)) as partitions:
        assert partitions.drop(Partition("public.outbox_p0", 0, 100))


@pytest.mark.usefixtures("at_once")
def test_rows_that_are_in_no_partition_are_deleted_once_published(rig: Rig) -> None:
    rig.fill(230)
    assert rig.maintain().swept == 0
    rig.publish()
    done = rig.maintain()
    assert (lows(done.drop), done.swept) == ([0, 100], 31)
    assert rig.source.count_rows(None) == 0


def test_of_these_one_that_comes_meanwhile_is_not_deleted(rig: Rig) -> None:
    rig.fill(201)

    def published() -> int:
        if not rig.is_published:
            rig.publish()
            rig.fill(1)
        return rig.published()

    with closing(PostgresWalPartitions(rig.url, "outbox", published)) as partitions:
        assert partitions.sweep(1_000, 0) == 2
    assert rig.source.count_rows(None) == 200


def test_a_table_that_is_not_partitioned_is_refused(postgres_database: str) -> None:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
        store.init()
    with closing(PostgresWalSource(postgres_database, "outbox", OPTIONS)) as source:
        with pytest.raises(ConfigurationError, match="outbox is not partitioned: write purge"):
            source.init()
        assert source.slot.state() is None
        source.create_publication()
        with pytest.raises(ConfigurationError, match="not partitioned"):
            source.connect()
        assert "partitions" in [f.subject for f in source.check() if f.level == "error"]


@pytest.mark.usefixtures("at_once")
def test_of_rows_in_no_partition_those_that_are_too_young_stay(rig: Rig) -> None:
    rig.fill(201)  # an hour ago
    rig.publish()
    assert rig.partitions.sweep(1_000, 7_200) == 0
    assert rig.partitions.sweep(1_000, 1_800) == 2


class Watched(PostgresWalPartitions):
    """Somebody tries to write while it is asked where the log ends."""

    written = 0

    def _log_end(self) -> int:
        with suppress(psycopg.errors.LockNotAvailable), psycopg.connect(self.conninfo) as other:
            other.execute("LOCK TABLE outbox_p0 IN ROW EXCLUSIVE MODE NOWAIT")
            self.written += 1
        return super()._log_end()


def test_the_log_ends_where_nobody_writes_into_the_partition_any_more(rig: Rig) -> None:
    """Else what is committed in between would be taken for published."""
    rig.fill(150)
    rig.publish()
    first = Partition("public.outbox_p0", 0, 100)
    with closing(Watched(rig.url, "outbox", rig.published)) as watched:
        assert watched.obstacle(first) is None
        assert watched.drop(first)
        assert watched.written == 0
