"""`harvest reap` on real servers: killed, paused, and its servers restarted under it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import INTERVAL_MS, World

pytestmark = [pytest.mark.kafka]


@pytest.fixture(params=["mark"])
def world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> Iterator[World]:
    topic = kafka_topic(partitions=3)
    mode = "range" if request.param == "range" else "mark"
    delivery = "idempotent" if request.param == "idempotent" else "transactional"
    made = World(tmp_path, kafka.bootstrap_servers, postgres_database, topic, delivery, mode=mode)
    store = PostgresRangeStore if mode == "range" else PostgresMarkStore
    with made.opened(kafka, store(postgres_database, "outbox")):
        yield made


def assert_at_least_once_in_order(world: World) -> None:
    world.wait_drained()
    published = world.published()
    assert published.keys() == world.committed.keys()
    for key, values in published.items():
        assert list(dict.fromkeys(reversed(values)))[::-1] == world.committed[key]


idempotent = pytest.param("idempotent", marks=pytest.mark.campaign)
exactly_once = pytest.mark.parametrize("world", ["mark", "range"], indirect=True)


@pytest.mark.parametrize("world", ["mark", "range", idempotent], indirect=True)
def test_what_is_committed_is_published_and_nothing_else(world: World) -> None:
    harvester = world.harvester()
    with world.writing():
        world.wait_published(1_000)
    world.assert_exactly_once()
    assert harvester.stop() == 0
    assert world.rolled_back
    assert harvester.said("leader acquired")  # again, where a busy machine let the lease lapse


def test_sigterm_hands_over_at_once(world: World) -> None:
    first = world.harvester()
    first.wait_said("leader acquired")
    second = world.harvester()
    second.wait_said("standing by")
    with world.writing():
        world.wait_published(200)
        assert first.stop() == 0
        second.wait_said("leader acquired")
    world.assert_exactly_once()
    assert second.stop() == 0


@exactly_once
def test_killed_leaders_lose_repeat_and_reorder_nothing(world: World) -> None:
    for _ in range(2):
        world.harvester()
    with world.writing():
        for _ in range(4):
            world.wait_published(world.published_count())
            leader = world.leader()
            leader.kill()
            world.harvester()
    world.assert_exactly_once()


@exactly_once
def test_a_leader_killed_while_draining_a_backlog(world: World) -> None:
    with world.writing(pause_s=0):
        world.harvester().wait_said("harvesting as")
        for _ in range(3):
            world.leader().kill()
            world.harvester().wait_said("harvesting as")
    world.assert_exactly_once()


@pytest.mark.parametrize("world", ["idempotent"], indirect=True)
def test_killed_leaders_without_transactions_lose_nothing(world: World) -> None:
    world.harvester()
    with world.writing():
        for _ in range(3):
            world.wait_published(world.published_count())
            world.leader().kill()
            world.harvester()
    assert_at_least_once_in_order(world)


@exactly_once
def test_a_paused_leader_that_wakes_publishes_nothing(world: World) -> None:
    zombie = world.harvester()
    zombie.wait_said("harvesting as")
    successor = world.harvester()
    successor.wait_said("standing by")
    with world.writing():
        for turn in (1, 2):
            world.wait_published(world.published_count() + 100)
            zombie.signal(signal.SIGSTOP)
            successor.wait_said("harvesting as", times=turn)
            world.wait_published(world.published_count())
            zombie.signal(signal.SIGCONT)
            zombie.wait_said("leader fenced")
            world.wait_published(world.published_count())
            zombie, successor = successor, zombie
    world.assert_exactly_once()
    assert (zombie.stop(), successor.stop()) == (0, 0)


def test_a_takeover_takes_little_more_than_two_intervals(world: World) -> None:
    leader = world.harvester()
    leader.wait_said("harvesting as")
    standby = world.harvester()
    standby.wait_said("standing by")
    with world.writing():
        world.wait_published(100)
        leader.kill()
        started = time.monotonic()
        standby.wait_said("harvesting as")
        took_s = time.monotonic() - started
    world.assert_exactly_once()
    # No assertion on time: it is reported for whoever reads the log of the tests.
    print(f"takeover after {took_s:.2f} s at an interval of {INTERVAL_MS / 1000} s")


def test_a_database_crash_is_an_outage_that_ends(world: World, postgres: EmbeddedPostgres) -> None:
    harvester = world.harvester()
    with world.writing():
        world.wait_published(200)
        postgres.kill()
        harvester.wait_said("could not be")  # marked, or deleted: whichever was going on
        postgres.start()
        world.wait_published(world.published_count() + 200)
    world.assert_exactly_once()
    assert harvester.stop() == 0


@pytest.mark.parametrize("world", ["mark", idempotent], indirect=True)
def test_a_broker_crash_is_an_outage_that_ends(world: World, kafka: EmbeddedKafka) -> None:
    harvester = world.harvester()
    with world.writing(pause_s=0.02):
        world.wait_published(100)
        kafka.kill()
        time.sleep(2 * INTERVAL_MS / 1000)  # the outage itself
        kafka.start()
        world.wait_published(world.published_count() + 100)
    assert_at_least_once_in_order(world)
    assert harvester.process.poll() is None
    assert harvester.stop() == 0


def test_a_row_that_cannot_be_published_is_named_and_harms_no_other_order(world: World) -> None:
    import psycopg

    with world.config.open("a") as config:
        config.write("bad_rows: {on_bad_row: stop}\n")
    with psycopg.connect(world.database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values) VALUES (now(), %s, 'k', 'v', '{a,b}', '{x}')",
            (world.topic,),
        )
        harvester = world.harvester()
        harvester.wait_said("row 1: 2 header keys and 1 header values", times=2)
        with world.writing():
            time.sleep(0.1)
        connection.execute("DELETE FROM outbox WHERE id = 1")
    world.assert_exactly_once()
    assert harvester.stop() == 0
