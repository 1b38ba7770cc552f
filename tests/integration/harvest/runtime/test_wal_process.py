"""`harvest reap` in wal mode on real servers: killed, paused, cut off; slots lost and made anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from harvest import OutboxRecord, Stasher
from harvest.cli.app import app
from harvest.config.load import load
from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import ConfigurationError
from harvest.runtime.registration import Switch, switch
from harvest.runtime.slot_changes import renew_slot
from marshal_py.cli.exit_codes import USAGE
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import INTERVAL_MS, World, wait_until
from tests.support.kafka_reader import read_topic

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
    delivery, more, *interval_ms = request.param
    topic = kafka_topic(partitions=3)
    servers = kafka.bootstrap_servers
    made = World(
        tmp_path,
        servers,
        postgres_database,
        topic,
        delivery,
        mode="wal",
        interval_ms=interval_ms[0] if interval_ms else INTERVAL_MS,
        more=more,
    )
    options = load(made.config).wal.options()
    source = PostgresWalSource(postgres_database, "outbox", options)
    with made.opened(kafka, source):
        yield made
    source.slot.drop()
    source.close()


KILLED_MS = 500
"""The heartbeat interval where leases are waited for, and one that is lost does no harm."""
killed = pytest.mark.parametrize(
    "world",
    [("transactional", TABLE, KILLED_MS), ("transactional", MESSAGE, KILLED_MS)],
    indirect=True,
)
killed_at_least_once = pytest.mark.parametrize(
    "world",
    [("idempotent", TABLE, KILLED_MS), ("idempotent", MESSAGE, KILLED_MS)],
    indirect=True,
)
at_least_once = pytest.mark.parametrize(
    "world", [("idempotent", TABLE), ("idempotent", MESSAGE)], indirect=True
)


@killed
def test_killed_again_and_again_every_row_is_published_once_and_in_order(world: World) -> None:
    world.harvester()
    world.harvester()  # one stands by already while the next one starts
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


@killed_at_least_once
def test_at_least_once_a_killed_leader_loses_nothing_and_the_last_of_each_is_in_order(
    world: World,
) -> None:
    world.harvester()
    world.harvester()  # one stands by already while the next one starts
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

    world.wait_drained()
    wait_until(all_there, "all rows, the last of each in order", world.leader().log)
    assert world.leader().stop() == 0


@at_least_once
def test_at_least_once_a_stopped_leader_leaves_nothing_to_repeat(world: World) -> None:
    leader = world.harvester()
    for _ in range(3):
        leader.wait_said("harvesting as leader")
        following = world.harvester()
        with world.writing():
            world.wait_published(world.published_count() + 50)
        world.wait_drained()
        assert leader.stop() == 0
        leader = following
    world.assert_exactly_once()


def harvest(world: World, *arguments: str, code: int = 0) -> str:
    """Run a command on the world's configuration; return what it printed."""
    done = CliRunner().invoke(app, [*arguments, "--config", str(world.config)])
    assert done.exit_code == code, f"{done.output}\n{done.exception!r}"
    return done.stdout


def stash(world: World, *records: OutboxRecord) -> None:
    with psycopg.connect(world.database) as connection:
        world.stasher.stash_many(connection, records)


def values(world: World) -> list[str]:
    return [value.decode() for _, value, _ in read_topic(world.servers, world.topic) if value]


def record(world: World, key: str, value: str) -> OutboxRecord:
    return OutboxRecord(world.topic, key, value, {"n": value})


def test_a_slot_that_was_made_anew_is_refused_until_the_table_is_published(world: World) -> None:
    leader = world.harvester()
    elsewhere = OutboxRecord(f"{world.topic}.not-there", "k", "nowhere")
    stash(world, record(world, "k", "before"), elsewhere)
    world.wait_drained()
    assert leader.stop() == 0
    source = PostgresWalSource(world.database, "outbox")
    source.slot.drop()
    stash(world, record(world, "k", "in the gap"))
    gone = world.harvester()
    assert gone.process.wait(60) == 2
    assert gone.said("does not exist, and rows were published from it") == 1
    assert json.loads(harvest(world, "slot", "show", "--json", code=1))["exists"] is False
    with source.new_slot():
        pass
    refused = world.harvester()
    assert refused.process.wait(60) == 2
    assert refused.said("harvest slot renew") == 1
    assert values(world) == ["before"]
    renewal = ["slot", "renew", "--publish-table", "--json"]
    with pytest.raises(ConfigurationError, match="has 1 dead letters"):
        renew_slot(load(world.config), publish_table=True)
    harvest(world, "dead-letters", "drop", "--all")
    assert json.loads(harvest(world, *renewal, "--dry-run"))["published"] == 1
    assert json.loads(harvest(world, *renewal))["published"] == 1
    successor = world.harvester()
    stash(world, record(world, "k", "after"))
    world.wait_drained()
    assert values(world) == ["before", "in the gap", "after"]
    assert successor.stop() == 0
    source.close()


either_delivery = pytest.mark.parametrize(
    "world",
    [("transactional", TABLE), ("idempotent", TABLE), ("idempotent", MESSAGE)],
    indirect=True,
)


@either_delivery
def test_rows_that_cannot_be_published_are_set_aside_with_what_waits_and_come_when_retried(
    world: World,
) -> None:
    leader = world.harvester()
    other = f"{world.topic}.not-there"
    stash(
        world,
        record(world, "k", "1"),
        OutboxRecord(other, "k", "2", {"n": "2"}),
        OutboxRecord(other, "k", "3", {"n": "3"}),
        record(world, "k", "4"),
    )
    wait_until(lambda: values(world) == ["1", "4"], "the good rows", leader.log)
    listed = json.loads(harvest(world, "dead-letters", "list", "--json", code=1))
    assert [row["topic"] for row in listed["rows"]] == [other, other]
    with KafkaTopic(world, other):
        harvest(world, "dead-letters", "retry", "--all")

        def there() -> bool:
            return [(v, h) for _, v, h in read_topic(world.servers, other)] == [
                (b"2", [("n", b"2")]),
                (b"3", [("n", b"3")]),
            ]

        wait_until(there, "the rows that were retried", leader.log)
    assert json.loads(harvest(world, "dead-letters", "list", "--json"))["count"] == 0
    assert leader.stop() == 0


class KafkaTopic:
    """A topic that exists for a while."""

    def __init__(self, world: World, name: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": world.servers})
        self._name = name

    def __enter__(self) -> None:
        for future in self._admin.create_topics([NewTopic(self._name, 1, 1)]).values():
            future.result(30)

    def __exit__(self, *_: object) -> None:
        for future in self._admin.delete_topics([self._name]).values():
            future.result(30)


def test_a_large_transaction_is_published_in_parts_also_by_a_leader_that_takes_over(
    world: World,
) -> None:
    count = 30_000
    first = world.harvester()
    with psycopg.connect(world.database) as connection:
        connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values) "
            "SELECT now(), %s, 'k', n::text, '{n}', ARRAY[n::text] FROM generate_series(1, %s) n",
            (world.topic, count),
        )
    world.wait_published(0)
    first.kill()
    world.harvester()
    second = world.leader()  # which may find that all was published
    world.wait_drained()
    assert values(world) == [str(n) for n in range(1, count + 1)]
    assert second.stop() == 0


def test_servers_that_crash_are_outages_that_end(
    world: World, postgres: EmbeddedPostgres, kafka: EmbeddedKafka
) -> None:
    harvester = world.harvester()
    with world.writing():
        world.wait_published(100)
        postgres.kill()
        harvester.wait_said("the stream broke off")
        postgres.start()
        world.wait_published(world.published_count() + 100)
        kafka.kill()
        harvester.wait_said("the lease is lost")  # before or after the delivery under way fails
        kafka.start()
        world.wait_published(world.published_count() + 100)
    world.assert_exactly_once()
    assert harvester.stop() == 0


def test_a_database_that_shuts_down_does_not_wait_for_the_harvester(
    world: World, postgres: EmbeddedPostgres
) -> None:
    """A server ends only when its walsenders have heard that all of the log was read."""
    harvester = world.harvester()
    stash(world, record(world, "k", "1"))
    world.wait_drained()
    postgres.stop()
    postgres.start()
    stash(world, record(world, "k", "2"))
    wait_until(lambda: values(world) == ["1", "2"], "a row after the restart", harvester.log)
    assert harvester.stop() == 0


PARTITIONS = "wal: {purge: partitions}\npartitions: {retain_hours: 0}\n"


@pytest.mark.parametrize("world", [("transactional", PARTITIONS)], indirect=True)
def test_a_partition_that_is_published_is_dropped(world: World) -> None:
    leader = world.harvester()
    stash(world, record(world, "k", "1"))
    wait_until(lambda: values(world) == ["1"], "a row", leader.log)
    assert leader.stop() == 0
    with psycopg.connect(world.database) as connection:
        connection.execute("SELECT setval('outbox_id_seq', 1000000)")  # it is full
    stash(world, record(world, "k", "2"))
    planned = json.loads(harvest(world, "partitions", "--dry-run", "--json"))
    assert planned["dropped"] == []
    assert [one["why"] for one in planned["kept"]] == ["not all that is in it is published"]
    shown = json.loads(harvest(world, "checkpoint", "show", "--json"))
    assert (shown["timeline"], shown["part_rows"]) == (1, 0)
    assert 0 < shown["behind_bytes"] < 1 << 24
    assert f"up to {shown['lsn']}, " in harvest(world, "checkpoint", "show")
    assert f"{shown['lsn']}, " in harvest(world, "reap", "--dry-run")
    second = world.harvester()
    second.wait_said("partition public.outbox_p0 is dropped: all published")
    assert values(world) == ["1", "2"]
    assert world.rows_left() == 1
    assert second.stop() == 0
    with psycopg.connect(world.database) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
    harvest(world, "partitions", code=USAGE)  # nobody publishes what is written from now on


DEBEZIUM = """
wal: {layout: debezium, topic: "{}", headers: {id: id, eventType: type}}
"""


@pytest.mark.parametrize("debezium", [DEBEZIUM])
def test_a_table_of_debezium_s_outbox_event_router_is_read(
    debezium: str,
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> None:
    topic = kafka_topic(partitions=1)
    made = World(
        tmp_path, kafka.bootstrap_servers, postgres_database, topic, mode="wal", more=debezium
    )
    with psycopg.connect(postgres_database) as connection:
        connection.execute(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, "
            "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)"
        )
    harvest(made, "init")
    leader = made.harvester()
    event = "b7e3f1c4-0000-4000-8000-000000000001"
    with psycopg.connect(postgres_database) as connection:
        connection.execute(
            "INSERT INTO outbox VALUES (%s, %s, 'order-1', 'OrderPlaced', '{\"total\": 3}')",
            (event, topic),
        )
    try:
        wait_until(lambda: made.published_count() == 1, "the event", leader.log)
        assert read_topic(made.servers, topic) == [
            (b"order-1", b'{"total": 3}', [("id", event.encode()), ("eventType", b"OrderPlaced")])
        ]
        assert leader.stop() == 0
        assert made.rows_left() == 1  # Debezium's users delete rows themselves
    finally:
        made.close()
        source = PostgresWalSource(postgres_database, "outbox")
        source.slot.drop()
        source.close()


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_from_another_mode_nothing_is_lost_and_nothing_comes_twice(
    mode: str,
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> None:
    servers = kafka.bootstrap_servers
    made = World(tmp_path, servers, postgres_database, kafka_topic(partitions=1), mode=mode)
    store = (PostgresRangeStore if mode == "range" else PostgresMarkStore)(
        postgres_database, "outbox"
    )
    source = PostgresWalSource(postgres_database, "outbox")
    with made.opened(kafka, store):
        before = made.harvester()
        stash(made, record(made, "k", "published"))
        wait_until(lambda: values(made) == ["published"], "a row", before.log)
        assert before.stop() == 0
        stash(made, record(made, "k", "waits"))
        made.config.write_text(made.config.read_text().replace(f"mode: {mode}", "mode: wal"))
        refused = made.harvester()
        assert refused.process.wait(60) == 2
        planned = json.loads(harvest(made, "switch", "--dry-run", "--json"))
        assert planned["waiting"] == 1
        assert switched(made).waiting == 0  # the first try has published it
        after = made.harvester()
        stash(made, record(made, "k", "new"))
        wait_until(lambda: len(values(made)) >= 3, "all rows", after.log)
        assert values(made) == ["published", "waits", "new"]
        assert after.stop() == 0
    source.slot.drop()
    source.close()


class Killed(Exception):
    """A switch ends before the new configuration is registered."""


def switched(world: World, old: Path | None = None) -> Switch:
    """The result of a switch that was killed just before its end, and repeated."""

    def die(*_: object) -> None:
        raise Killed

    new, before = load(world.config), None if old is None else load(old)
    with pytest.MonkeyPatch.context() as patch:
        for kind in (PostgresMarkStore, PostgresRangeStore):
            patch.setattr(kind, "register_anew", die)
        with pytest.raises(Killed):
            switch(new, old=before)
    return switch(new, old=before)


@pytest.mark.parametrize(
    ("delivery", "mode", "more"),
    [("transactional", "mark", TABLE), ("idempotent", "range", MESSAGE)],
)
def test_to_another_mode_nothing_is_lost_and_nothing_comes_twice(
    delivery: str,
    mode: str,
    more: str,
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> None:
    servers = kafka.bootstrap_servers
    topic = kafka_topic(partitions=1)
    made = World(tmp_path, servers, postgres_database, topic, delivery, mode="wal", more=more)
    options = WalOptions("message" if more is MESSAGE else "table")
    source = PostgresWalSource(postgres_database, "outbox", options)
    new = (PostgresRangeStore if mode == "range" else PostgresMarkStore)(
        postgres_database, "outbox"
    )
    with made.opened(kafka, source), closing(new):
        new.init()
        before = made.harvester()
        stash(made, record(made, "k", "1"))
        wait_until(lambda: values(made) == ["1"], "a row", before.log)
        assert before.stop() == 0
        stash(made, record(made, "k", "2"), record(made, "k", "3"))
        old = made.config.with_name("old.yaml")
        old.write_text(made.config.read_text().replace(f"group: {topic}", f"group: {topic}.2"))
        assert switch(load(old)).published == 0  # the mode is the same
        text = old.read_text().replace("mode: wal", f"mode: {mode}").replace(more, "")
        made.config.write_text(text.replace("delivery: idempotent", "delivery: transactional"))
        with pytest.raises(ConfigurationError, match="must be of outbox in mode wal"):
            switch(load(made.config), old=load(made.config))
        planned = switch(load(made.config), old=load(old), dry_run=True)
        assert (planned.published, planned.waiting) == (2, 0)
        assert values(made) == ["1"]
        assert switched(made, old).waiting == 0
        assert values(made) == ["1", "2", "3"]
        made.stasher = Stasher()
        after = made.harvester()
        stash(made, record(made, "k", "4"))
        wait_until(lambda: "4" in values(made), "all rows", after.log)
        assert values(made) == ["1", "2", "3", "4"]
        assert after.stop() == 0
        assert source.slot.state() is None
    source.close()
