"""goharvest beside this harvester on one table: taking over, giving back, and zombies.

goharvest itself is not run here. `Goharvest` does to the table and to Kafka what its documentation
says that it does: mark the lowest ids that are not its own, publish one record per key at a time,
delete what is acknowledged.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from harvest import OutboxRecord, Stasher
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.sinks.kafka.sink import TransactionalSink
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import World, wait_until
from tests.support.kafka_reader import read_topic

pytestmark = [pytest.mark.kafka]

LONG_MS = 60_000.0
MARK = """
UPDATE outbox SET leader_id = %(me)s WHERE id IN (
  SELECT id FROM outbox WHERE leader_id IS NULL OR leader_id <> %(me)s ORDER BY id LIMIT %(limit)s
) RETURNING id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values
"""


class Goharvest:
    """Marks, publishes and purges as goharvest does; leads while the test lets it."""

    def __init__(self, database: str, servers: str) -> None:
        self._db = psycopg.connect(database, autocommit=True)
        self._producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
        self._leader_id = uuid.uuid4()

    def mark(self, limit: int = 100) -> list[tuple[int, str, str, str, list[str], list[str]]]:
        given = {"me": self._leader_id, "limit": limit}
        return sorted(self._db.execute(MARK, given).fetchall())

    def publish(self, row: tuple[int, str, str, str, list[str], list[str]]) -> None:
        _, topic, key, value, names, values = row
        self._producer.produce(topic, value, key, headers=list(zip(names, values, strict=True)))
        assert self._producer.flush(60) == 0

    def purge(self, row_id: int) -> None:
        self._db.execute("DELETE FROM outbox WHERE id = %s", (row_id,))

    def harvest(self, rows: int) -> None:
        """Relay at least so many rows, then stop in good order."""
        done = 0
        while done < rows:
            for row in self.mark():
                self.publish(row)
                self.purge(row[0])
                done += 1

    def close(self) -> None:
        self._db.close()


@pytest.fixture
def world(
    tmp_path: Path, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str
) -> Iterator[World]:
    topic = kafka_topic(partitions=3)
    made = World(tmp_path, kafka.bootstrap_servers, postgres_database, topic, "transactional")
    with made.opened(kafka, PostgresMarkStore(postgres_database, "outbox")):
        yield made


@pytest.fixture
def goharvest(world: World) -> Iterator[Goharvest]:
    made = Goharvest(world.database, world.servers)
    yield made
    made.close()


def test_both_in_turn_publish_each_row_once_in_order(world: World, goharvest: Goharvest) -> None:
    with world.writing():
        for _ in range(2):
            goharvest.harvest(30)
            ours = world.harvester()
            world.wait_published(world.published_count() + 30)
            assert ours.stop() == 0
    goharvest.harvest(world.rows_left())
    world.assert_exactly_once()


def test_what_goharvest_left_marked_is_taken_over_in_order(
    world: World, goharvest: Goharvest
) -> None:
    """Killed with rows marked, the first of them published and not purged: that one is repeated."""
    with psycopg.connect(world.database) as connection:
        stasher = Stasher()
        for n in range(20):
            record = OutboxRecord(world.topic, f"w0-{n % 2}", str(n), {"n": str(n)})
            stasher.stash(connection, record)
    marked = goharvest.mark(10)
    goharvest.publish(marked[0])
    ours = world.harvester()
    world.wait_drained()
    assert ours.stop() == 0
    published = world.published()
    assert published["w0-0"] == [*map(str, [0, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18])]
    assert published["w0-1"] == [*map(str, range(1, 20, 2))]


# --- Zombies: paused between the mark and the publication, while another leader goes on ---


def two_rows(database: str, topic: str) -> None:
    with psycopg.connect(database) as connection:
        records = [OutboxRecord(topic, "k", value) for value in ("old", "new")]
        Stasher().stash_many(connection, records)


def values(world: World) -> list[bytes | None]:
    return [value for _, value, _ in read_topic(world.servers, world.topic)]


def test_a_goharvest_that_wakes_publishes_an_old_record_after_a_newer_one(
    world: World, goharvest: Goharvest
) -> None:
    two_rows(world.database, world.topic)
    held = goharvest.mark(1)  # and here it is paused
    ours = world.harvester()
    wait_until(lambda: values(world) == [b"old", b"new"], "both rows", ours.log)
    goharvest.publish((*held[0][:4], [], []))  # it wakes up
    assert values(world) == [b"old", b"new", b"old"]
    assert ours.stop() == 0


def test_a_harvester_that_wakes_publishes_nothing(
    world: World, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    two_rows(world.database, world.topic)
    config = {"bootstrap.servers": world.servers}
    checkpoints = kafka_topic()

    def leader(number: int) -> tuple[PostgresMarkStore, TransactionalSink, Term]:
        sink = TransactionalSink(
            config, base_config=config, name=world.topic, checkpoint_topic=checkpoints
        )
        sink.open(lambda: True)
        return PostgresMarkStore(world.database, "outbox"), sink, Term.of(number)

    def deliver(sink: TransactionalSink, term: Term, rows: list[Row]) -> bool:
        checkpoint = Checkpoint(1, term, 0, rows[0].id, rows[-1].id).encode()
        return sink.deliver(rows, checkpoint) is None

    store, sink, term = leader(1)
    held = store.mark(term, 0, 1, LONG_MS)  # and here it is paused; it even believes in its lease
    next_store, next_sink, next_term = leader(2)
    rows = next_store.mark(next_term, 0, 10, LONG_MS)
    assert [row.value for row in rows] == [b"old", b"new"]
    assert deliver(next_sink, next_term, rows)
    assert not deliver(sink, term, held)  # it wakes up
    assert values(world) == [b"old", b"new"]
    assert (
        next_sink.open(lambda: True) == Checkpoint(1, next_term, 0, rows[0].id, rows[1].id).encode()
    )
    for made in (store, next_store):
        made.close()
    for used in (sink, next_sink):
        used.close()
