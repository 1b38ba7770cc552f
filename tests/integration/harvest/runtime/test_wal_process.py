"""`harvest reap` in wal mode on real servers: killed, paused, cut off; slots lost and made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import World, wait_until

pytestmark = [pytest.mark.kafka]

TABLE = "wal: {source: table}\n"
MESSAGE = "wal: {source: message}\n"


@pytest.fixture(params=[("transactional", TABLE)])
def world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> Iterator[World]:
    delivery, more = request.param
    topic = kafka_topic(partitions=3)
    servers = kafka.bootstrap_servers
    made = World(tmp_path, servers, postgres_database, topic, delivery, mode="wal", more=more)
    options = WalOptions("message" if "message" in more else "table")
    source = PostgresWalSource(postgres_database, "outbox", options)
    with made.opened(kafka, source):
        yield made
    source.slot.drop()
    source.close()


either_source = pytest.mark.parametrize(
    "world", [("transactional", TABLE), ("transactional", MESSAGE)], indirect=True
)
at_least_once = pytest.mark.parametrize(
    "world", [("idempotent", TABLE), ("idempotent", MESSAGE)], indirect=True
)


@either_source
def test_killed_again_and_again_every_row_is_published_once_and_in_order(world: World) -> None:
    world.harvester()
    with world.writing():
        for _ in range(4):
            leader = world.leader()
            world.harvester()
            world.wait_published(world.published_count() + 100)
            leader.kill()
        world.wait_published(world.published_count() + 100)
    world.assert_exactly_once()
    assert world.leader().stop() == 0


def without_repetitions(values: list[str]) -> list[str]:
    """Only the last occurrence of each, which §2.5 promises to be in order."""
    last = {value: at for at, value in enumerate(values)}
    return [value for at, value in enumerate(values) if last[value] == at]


@at_least_once
def test_at_least_once_a_killed_leader_loses_nothing_and_the_last_of_each_is_in_order(
    world: World,
) -> None:
    world.harvester()
    with world.writing():
        for _ in range(3):
            leader = world.leader()
            world.harvester()
            world.wait_published(world.published_count() + 100)
            leader.kill()
        world.wait_published(world.published_count() + 100)
    expected = dict(world.committed)

    def all_there() -> bool:
        found = world.published()
        return {k: without_repetitions(v) for k, v in found.items()} == expected

    wait_until(all_there, "all rows, the last of each in order", world.leader().log)
    assert world.leader().stop() == 0


@at_least_once
def test_at_least_once_a_stopped_leader_leaves_nothing_to_repeat(world: World) -> None:
    for _ in range(3):
        leader = world.harvester()
        with world.writing():
            world.wait_published(world.published_count() + 50)
        world.wait_drained()
        assert leader.stop() == 0
    world.assert_exactly_once()
