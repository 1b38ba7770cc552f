"""Slots that were lost, on real servers: refused, and the way out is followed to its end."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harvest import Harvest, OutboxRecord, Stasher
from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.errors import CheckpointError
from harvest.runtime.parts import make_wal_source
from harvest.runtime.slot_changes import renew_slot
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import forget, wait_until
from tests.support.kafka_reader import read_topic
from tests.support.postgres_replica import Replica

pytestmark = [pytest.mark.kafka]

_LATE_S = 60.0


class Outbox:
    """An outbox in wal mode, and what is published of it."""

    def __init__(self, servers: str, database: str, topic: str) -> None:
        self.servers, self.database, self.topic = servers, database, topic
        self.standby: str | None = None
        self.inserted: list[str] = []

    def config(self) -> ReaperConfig:
        return validated(ReaperConfig, self.given(), "the test")

    def given(self) -> dict[str, Any]:
        return {
            "kafka": {"bootstrap.servers": self.servers},
            "database": self.database,
            "group": self.topic,
            "mode": "wal",
            "wal": {} if self.standby is None else {"standby": self.standby},
            "coordination": {
                "topic": f"{self.topic}.marshal",
                "interval_ms": 300,
                "create_topics": True,
            },
        }

    def init(self) -> None:
        with closing(make_wal_source(self.config())) as source:
            source.init()

    def insert(self) -> None:
        self.inserted.append(str(len(self.inserted)))
        with psycopg.connect(self.database) as connection:
            Stasher().stash(connection, OutboxRecord(self.topic, "k", self.inserted[-1]))

    def published(self) -> list[str]:
        return [(value or b"").decode() for _, value, _ in read_topic(self.servers, self.topic)]

    def rows(self) -> int:
        with psycopg.connect(self.database) as connection:
            return len(connection.execute("SELECT FROM outbox").fetchall())

    def harvest(self) -> None:
        """A harvester, until all is published, once and in order, and the table is empty."""
        with Harvest(self.config()):
            self.wait_drained()

    def wait_drained(self) -> None:
        wait_until(lambda: self.published() == self.inserted, "all rows", timeout_s=_LATE_S)
        wait_until(lambda: self.rows() == 0, "an empty table", timeout_s=_LATE_S)

    def refusal(self) -> str:
        """What a harvester says that does not begin."""
        harvest = Harvest(self.config()).start()
        try:
            with pytest.raises(CheckpointError) as refused:
                assert harvest.await_(_LATE_S), "it goes on"
        finally:
            harvest.stop()
        return str(refused.value)

    def publish_one_of_two(self) -> None:
        """The slot is lost with the second in it."""
        self.insert()
        self.harvest()
        self.insert()

    def follow_the_way_out(self) -> None:
        assert renew_slot(self.config(), publish_table=True, dry_run=True).rows == 1
        assert self.published() == self.inserted[:-1]
        assert renew_slot(self.config(), publish_table=True).rows == 1
        self.insert()
        self.harvest()


@pytest.fixture
def outbox(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str
) -> Iterator[Outbox]:
    made = Outbox(kafka.bootstrap_servers, postgres_database, kafka_topic(partitions=1))
    yield made
    with contextlib.suppress(psycopg.OperationalError):
        made.database = postgres_database
        with closing(make_wal_source(made.config())) as source:
            source.slot.drop()
    forget(kafka, made.topic)


def test_rows_of_the_table_are_published_with_all_that_a_harvester_publishes(
    outbox: Outbox, kafka_topic: Callable[..., str]
) -> None:
    """Headers, those that are columns, partition, and rows that have none of them."""
    topic = kafka_topic(partitions=2)
    outbox.init()
    outbox.harvest()
    with psycopg.connect(outbox.database) as connection:
        connection.execute(
            "ALTER TABLE outbox ALTER kafka_header_keys DROP NOT NULL, "
            "ALTER kafka_header_values DROP NOT NULL, ADD tenant text, ADD part int"
        )
        connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, "
            "kafka_header_values, tenant, part) VALUES (now(), %(t)s, 'a', NULL, NULL, NULL, 1), "
            "(now(), %(t)s, 'b', '[0:1]={h,i}', '{1,NULL}', 'acme', 0), "
            "(now(), %(t)s, 'c', '{}', '{}', NULL, 1), (now(), %(t)s, 'd', '{}', '{}', NULL, 0)",
            {"t": topic},
        )
    columns = {"headers": {"tenant": "tenant"}, "partition": "part"}
    config = validated(ReaperConfig, {**outbox.given(), "columns": columns}, "the test")
    assert renew_slot(config, publish_table=True).rows == 4
    assert read_topic(outbox.servers, topic) == [
        (b"b", None, [("h", b"1"), ("i", None), ("tenant", b"acme")]),
        (b"d", None, None),
        (b"a", None, None),
        (b"c", None, None),
    ]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the database's user may write."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_slot_that_pinned_more_log_than_allowed_is_refused_until_it_is_renewed(
    outbox: Outbox, postgres: EmbeddedPostgres
) -> None:
    outbox.init()
    outbox.publish_one_of_two()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            for _ in range(4):
                connection.execute("SELECT pg_logical_emit_message(false, 'x', 'x')")
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            with closing(make_wal_source(outbox.config())) as source:
                assert source.health().lost
                assert "slot" in {f.subject for f in source.check() if f.level == "error"}
            assert "max_slot_wal_keep_size" in outbox.refusal()
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")
    outbox.follow_the_way_out()


def test_an_old_copy_whose_log_has_grown_is_refused_until_the_slot_is_renewed(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], folder: Path
) -> None:
    """A volume goes back to a snapshot: same system, same timeline, and the slot as it was."""
    topic = kafka_topic(partitions=1)
    with EmbeddedPostgres() as server:
        outbox = Outbox(kafka.bootstrap_servers, server.create_database(), topic)
        outbox.init()
        outbox.insert()
        outbox.harvest()
        with psycopg.connect(server.dsn) as connection:
            ((data,),) = connection.execute("SHOW data_directory").fetchall()
        server.stop()
        subprocess.run(["cp", "-a", data, str(folder / "snapshot")], check=True)
        server.start()
        grow_log(server)
        outbox.insert()
        outbox.harvest()
        server.stop()
        shutil.rmtree(data)
        subprocess.run(["cp", "-a", str(folder / "snapshot"), data], check=True)
        server.start()
        outbox.insert()  # below the position, of which nothing is to be seen any more
        grow_log(server)
        grow_log(server)
        with Harvest(outbox.config()) as harvest:
            refused = lambda: "gone back" in " ".join(harvest.health().problems)  # noqa: E731
            wait_until(refused, "a refusal", timeout_s=_LATE_S)
        assert outbox.published() == outbox.inserted[:-1]
        outbox.follow_the_way_out()
    forget(kafka, topic)


def grow_log(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")


def fail_over(outbox: Outbox, postgres: EmbeddedPostgres, replica: Replica) -> None:
    replica.wait_for(outbox.database, outbox.database)
    postgres.kill()
    replica.promote(outbox.database)
    outbox.database = replica.url(outbox.database)


def test_a_replica_without_the_slot_is_refused_until_it_is_renewed(
    outbox: Outbox, postgres: EmbeddedPostgres, folder: Path
) -> None:
    """As with PostgreSQL 16 and older, or where slots are not synchronized."""
    outbox.init()
    with closing(Replica(postgres, folder, wal_level="logical")) as replica:
        outbox.publish_one_of_two()
        fail_over(outbox, postgres, replica)
        try:
            assert "a replica was promoted" in outbox.refusal()
            outbox.follow_the_way_out()
        finally:
            postgres.start()


@pytest.mark.campaign
def test_a_replica_with_a_copy_of_the_slot_goes_on(
    outbox: Outbox, postgres: EmbeddedPostgres, folder: Path
) -> None:
    if postgres.major_version < 17:
        pytest.skip("slots are synchronized from PostgreSQL 17 on")
    outbox.init()
    settings = {
        "wal_level": "logical",
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
    }
    with closing(Replica(postgres, folder, slot="for_the_replica", **settings)) as replica:
        replica.wait_for(outbox.database, outbox.database)
        with (
            Harvest(outbox.config()),
            psycopg.connect(postgres.dsn, autocommit=True) as here,
            psycopg.connect(replica.url(outbox.database), autocommit=True) as there,
        ):

            def synchronized() -> bool:
                """The slot has to pass the place where the replica began to keep log for it."""
                here.execute("SELECT pg_log_standby_snapshot()")
                outbox.insert()
                outbox.wait_drained()
                query = "SELECT synced AND NOT temporary FROM pg_replication_slots"
                return there.execute(query).fetchall() == [(True,)]

            wait_until(synchronized, "a copy of the slot")
        outbox.insert()
        fail_over(outbox, postgres, replica)
        try:
            outbox.insert()
            outbox.harvest()
        finally:
            postgres.start()
            with psycopg.connect(postgres.dsn, autocommit=True) as connection:
                connection.execute("SELECT pg_drop_replication_slot('for_the_replica')")


@pytest.mark.campaign
def test_a_standby_is_read_and_rows_are_deleted_in_the_primary(
    outbox: Outbox, postgres: EmbeddedPostgres, folder: Path
) -> None:
    if postgres.major_version < 16:
        pytest.skip("a standby can be read from PostgreSQL 16 on")
    with closing(Replica(postgres, folder, wal_level="logical")) as replica:
        replica.wait_for(outbox.database, outbox.database)
        outbox.standby = replica.url(outbox.database)
        outbox.init()
        for _ in range(2):
            outbox.insert()
            outbox.harvest()
        with closing(make_wal_source(outbox.config())) as source:
            assert not [f.text for f in source.check() if f.level == "error"]
            source.slot.drop()
        outbox.insert()
        assert "does not exist" in outbox.refusal()
        renew_slot(outbox.config(), publish_table=True)
        outbox.insert()
        outbox.harvest()
        outbox.standby = None
