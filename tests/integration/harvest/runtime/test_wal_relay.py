"""From destinations to wal mode and back, on real servers (specs/HARVEST.md §18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from harvest import Harvest, OutboxRecord, Stasher
from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.databases.postgres.attempts import Attempt, PostgresAttempts
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import ConfigurationError
from harvest.runtime.parts import make_wal_source
from harvest.runtime.registration import switch
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import forget, wait_until
from tests.support.http_server import HttpServer, http_server
from tests.support.kafka_reader import read_topic

pytestmark = pytest.mark.kafka


@dataclass
class Outbox:
    """One outbox, a topic, and a receiver beside it."""

    servers: str
    database: str
    topic: str
    receiver: HttpServer

    def config(self, more: dict[str, Any]) -> ReaperConfig:
        given = {
            "kafka": {"bootstrap.servers": self.servers},
            "database": self.database,
            "group": self.topic,
            "coordination": {
                "topic": f"{self.topic}.marshal",
                "interval_ms": 300,
                "create_topics": True,
            },
            **more,
        }
        return validated(ReaperConfig, given, "the test")

    @property
    def relay(self) -> ReaperConfig:
        shop = {"http": {"uri": f"{self.receiver.url}/{{key}}"}}
        return self.config({"destinations": {"shop": shop}, "route": "shop"})

    @property
    def wal(self) -> ReaperConfig:
        return self.config({"mode": "wal"})

    def insert(self, value: str) -> None:
        with psycopg.connect(self.database) as connection:
            Stasher().stash(connection, OutboxRecord(self.topic, "k", value))

    def published(self) -> list[bytes | None]:
        return [value for _, value, _ in read_topic(self.servers, self.topic)]

    def rows(self) -> int:
        with psycopg.connect(self.database) as connection:
            return len(connection.execute("SELECT FROM outbox").fetchall())

    def harvest(self, config: ReaperConfig) -> None:
        """Until the table is empty."""
        with Harvest(config):
            wait_until(lambda: self.rows() == 0, "an empty table")


@pytest.fixture
def outbox(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str
) -> Iterator[Outbox]:
    with http_server() as receiver:
        made = Outbox(
            kafka.bootstrap_servers, postgres_database, kafka_topic(partitions=1), receiver
        )
        with closing(PostgresMarkStore(postgres_database, "outbox")) as store:
            store.init()
        yield made
    with closing(PostgresWalSource(postgres_database, "outbox")) as source:
        source.slot.drop()
    forget(kafka, made.topic)


def test_from_destinations_to_wal_mode_and_back_each_row_goes_to_one_place_once(
    outbox: Outbox,
) -> None:
    outbox.insert("1")
    outbox.harvest(outbox.relay)
    outbox.insert("2")
    planned = switch(outbox.wal, dry_run=True)
    assert (planned.before.mode, planned.waiting, outbox.published()) == ("relay", 1, [])
    assert switch(outbox.wal).waiting == 1
    assert outbox.published() == [b"2"]
    outbox.insert("3")
    outbox.harvest(outbox.wal)
    outbox.insert("4")
    planned = switch(outbox.relay, old=outbox.wal, dry_run=True)
    assert (planned.published, outbox.published()) == (1, [b"2", b"3"])
    assert switch(outbox.relay, old=outbox.wal).published == 1
    with closing(make_wal_source(outbox.wal)) as source:
        assert source.slot.state() is None
    outbox.insert("5")
    outbox.harvest(outbox.relay)
    assert outbox.published() == [b"2", b"3", b"4"]
    assert outbox.receiver.bodies() == [b"1", b"5"]


def test_what_only_a_relay_knows_and_what_has_to_wait_is_no_way_into_wal_mode(
    outbox: Outbox,
) -> None:
    outbox.harvest(outbox.relay)
    outbox.insert("1")
    with closing(PostgresAttempts(outbox.database, "outbox")) as attempts:
        attempts.record([Attempt(1, "bank", 1, "HTTP 500", 500, False, ("shop",), 7)])
        with pytest.raises(ConfigurationError, match="1 rows are at some of their destinations"):
            switch(outbox.wal)
        attempts.forget([1])
    with closing(PostgresDeadLetters(outbox.database, "outbox")) as letters:
        letters.create()
        with psycopg.connect(outbox.database) as connection:
            connection.execute(
                "INSERT INTO outbox_dead_letters SELECT id, create_time, kafka_topic, kafka_key, "
                "kafka_value, kafka_header_keys, kafka_header_values, 'no topic', false, now() "
                "FROM outbox"
            )
        with pytest.raises(ConfigurationError, match="has 1 dead letters, behind which"):
            switch(outbox.wal, dry_run=True)
    with closing(make_wal_source(outbox.wal)) as source:
        assert source.slot.state() is None
    assert (outbox.published(), outbox.rows()) == ([], 1)
