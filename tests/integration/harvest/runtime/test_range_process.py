"""`harvest reap` in range mode on real servers: what `test_process.py` has not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import Harvester, World, wait_until

pytestmark = [pytest.mark.kafka]


@pytest.fixture(params=[1])
def world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> Iterator[World]:
    topic = kafka_topic(partitions=3)
    made = World(
        tmp_path,
        kafka.bootstrap_servers,
        postgres_database,
        topic,
        mode="range",
        shards=request.param,
    )
    with made.opened(kafka, PostgresRangeStore(postgres_database, "outbox")):
        yield made


def test_servers_that_crash_are_outages_that_end(
    world: World, postgres: EmbeddedPostgres, kafka: EmbeddedKafka
) -> None:
    harvester = world.harvester()
    with world.writing():
        world.wait_published(200)
        postgres.kill()
        harvester.wait_said("could not be read")
        postgres.start()
        world.wait_published(world.published_count() + 200)
        kafka.kill()
        harvester.wait_said("no broker answers")
        kafka.start()
        world.wait_published(world.published_count() + 200)
    world.assert_exactly_once()
    assert harvester.stop() == 0


def leads(world: World, harvester: Harvester) -> int:
    """How many shards a process leads, as its log says."""
    ended = harvester.said("leader revoked") + harvester.said("leader fenced")
    return harvester.said("leader acquired") - ended


@pytest.mark.parametrize("world", [4], indirect=True)
def test_shards_are_shared_moved_and_taken_over_without_loss_repetition_or_disorder(
    world: World,
) -> None:
    first = world.harvester()
    with world.writing():
        wait_until(lambda: leads(world, first) == 4, "all shards led", first.log)
        world.wait_published(200)
        second = world.harvester()
        wait_until(lambda: leads(world, second) == 2, "a fair share", second.log)
        world.wait_published(world.published_count() + 200)
        first.kill()
        wait_until(lambda: leads(world, second) == 4, "a takeover", second.log)
        third = world.harvester()
        wait_until(lambda: leads(world, third) == 2, "a fair share", third.log)
        assert second.stop() == 0
        wait_until(lambda: leads(world, third) == 4, "a handover", third.log)
        world.wait_published(world.published_count() + 200)
    world.assert_exactly_once()
    assert third.stop() == 0


def harvest(world: World, *arguments: str) -> str:
    """Run a command on the world's configuration; return what it printed."""
    command = [sys.executable, "-m", "harvest.cli", *arguments, "--config", str(world.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_number_of_shards_is_refused_until_it_is_changed(world: World) -> None:
    leader = world.harvester()
    with world.writing():
        world.wait_published(100)
        assert leader.stop() == 0
    world.config.write_text(world.config.read_text().replace("shards: 1", "shards: 3"))
    refused = world.harvester()
    assert refused.process.wait(60) == 2
    assert refused.said("harvest shards 3") == 1
    harvest(world, "shards", "3")
    positions = json.loads(harvest(world, "checkpoint", "show", "--json"))
    assert [(p["shard"], p["shards"]) for p in positions] == [(0, 3), (1, 3), (2, 3)]
    last = world.harvester()
    with world.writing():
        wait_until(lambda: leads(world, last) == 3, "all shards led", last.log)
    world.assert_exactly_once()
    assert last.stop() == 0


def test_lost_checkpoints_are_restored_from_the_copies(world: World) -> None:
    leader = world.harvester()
    with world.writing():
        world.wait_published(100)
    world.wait_drained()
    store = PostgresRangeStore(world.database, "outbox")
    with psycopg.connect(world.database) as connection:
        connection.execute("SELECT nextval(pg_get_serial_sequence('outbox', 'id'))")  # and no row
        ((highest,),) = connection.execute("SELECT max(id) FROM outbox")
    wait_until(lambda: [p.last_id for p in store.saved()] == [highest], "a copy", leader.log)
    store.close()
    assert leader.stop() == 0
    admin = AdminClient({"bootstrap.servers": world.servers})
    group = f"harvest.{world.topic}.outbox.0"
    admin.delete_consumer_groups([group])[group].result()
    refused = world.harvester()
    assert refused.process.wait(60) == 2
    assert refused.said("harvest checkpoint restore") == 1
    harvest(world, "checkpoint", "restore")
    successor = world.harvester()
    with world.writing():
        successor.wait_said("harvesting as")
    world.assert_exactly_once()
    assert successor.stop() == 0
