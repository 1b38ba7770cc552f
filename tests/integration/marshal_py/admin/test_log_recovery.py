"""`marshal topic recover`: the way back for a topic that was made anew, grown, cut off (§7.5)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from marshal_py import ConfigurationError, Marshal, PartitionCountChanged
from marshal_py.admin.cell_history import read_cell_history
from marshal_py.admin.cluster_facts import gather_cluster_facts
from marshal_py.admin.connection import Connection
from marshal_py.admin.log_recovery import found_log, recover_log
from marshal_py.admin.snapshot_writer import write_snapshots
from marshal_py.admin.world_reader import read_world
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.messages import (
    MAX_BASE,
    VERSION,
    ClaimingRange,
    ReleasingPartition,
    encode,
)
from marshal_py.protocol.world import coordinating_partition
from tests.support.marshal_command import Cli
from tests.support.remade_topics import create, delete
from tests.support.spec import spec

pytestmark = pytest.mark.kafka

_topics = iter(range(10_000))

Client = Callable[..., Marshal]


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> str:
    kafka.start()
    name = f"__recovered.{os.getpid()}.{next(_topics)}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=2)
    return name


@pytest.fixture
def connection(kafka: EmbeddedKafka, topic: str) -> Connection:
    return Connection.of_servers(kafka.bootstrap_servers, topic)


@pytest.fixture
def client(kafka: EmbeddedKafka, topic: str) -> Iterator[Client]:
    started: list[Marshal] = []

    def start(client_id: str, group_id: str = "g") -> Marshal:
        settings: dict[str, Any] = {"group_id": group_id, "interval_ms": 1_000, "topic": topic}
        started.append(Marshal(kafka.bootstrap_servers, client_id=client_id, **settings).start())
        return started[-1]

    yield start
    for marshal in started:
        marshal.close(timeout_s=5)


def work(client: Client) -> int:
    """Leave positions of six groups behind; return the largest epoch of all."""
    highest = -1
    for n in range(6):
        marshal = client("a", f"group {n}")
        for p in range(3):
            claim = marshal.claim("t", p, timeout_s=60)
            claim.commit(100 * n + p, wait=True)
            highest = max(highest, claim.epoch)
        marshal.close()
    return highest


def positions(connection: Connection) -> dict[tuple[str, str, int], int]:
    return {key: c.position for _, key, c in read_world(connection).world.cells()}


EXPECTED = {(f"group {n}", "t", p): 100 * n + p for n in range(6) for p in range(3)}


@spec("L-6")
def test_a_topic_made_anew_gets_its_positions_back_and_larger_epochs(
    kafka: EmbeddedKafka, topic: str, connection: Connection, client: Client
) -> None:
    highest = work(client)
    write_snapshots(connection)
    delete(kafka, topic)
    create(kafka, topic, 2)
    plan = recover_log(connection, apply=False)
    assert not plan.done
    assert len(plan.positions) == len(EXPECTED)
    assert all(s.identity is None for s in read_world(connection).world.states), "a dry run"
    done = recover_log(connection, apply=True)
    assert done.done
    assert done.highest_epoch >= highest
    assert done.base > done.highest_epoch
    assert positions(connection) == EXPECTED
    assert not any(state.paused for state in read_world(connection).world.states)
    again = client("b", "group 3").claim("t", 1, timeout_s=60)
    assert again.epoch > highest
    assert again.position == 301
    assert recover_log(connection, apply=False).positions == [], "nothing is missing any more"


@spec("L-6")
def test_a_grown_topic_is_recovered_with_the_partitions_that_it_has(
    kafka: EmbeddedKafka, topic: str, connection: Connection, client: Client
) -> None:
    highest = work(client)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(60)
    with pytest.raises(PartitionCountChanged, match="marshal topic recover"):
        client("b", "group 1")
    with pytest.raises(PartitionCountChanged, match="marshal topic recover"):
        read_world(connection)
    for n in range(6):  # in partitions from before, and in new ones
        with pytest.raises(PartitionCountChanged, match="had 2 partitions and now has 5"):
            read_cell_history(connection, f"group {n}", "t", 0)
    assert "recover" in gather_cluster_facts(connection).partitions_changed
    done = recover_log(connection, apply=True)
    assert (done.partitions, done.snapshot_partitions) == (5, 2)
    assert positions(connection) == EXPECTED
    assert gather_cluster_facts(connection).partitions_changed == ""
    for n in range(6):
        assert read_cell_history(connection, f"group {n}", "t", 1)[1].text
        marshal = client("b", f"group {n}")
        for p in range(3):
            claim = marshal.claim("t", p, timeout_s=60)
            assert claim.position == 100 * n + p
            assert claim.epoch > highest
    write_snapshots(connection)


def test_what_was_granted_by_ranges_and_is_not_done_comes_again(
    kafka: EmbeddedKafka, topic: str, connection: Connection
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for record in (
        ClaimingRange(VERSION, "a", "a1", "g", 0, "t", 0, 1_000, 0, 100),
        ClaimingRange(VERSION, "b", "b1", "g", 0, "t", 0, 1_000, 0, 100),
        ReleasingPartition(VERSION, "a", "a1", "g", 1, "t/0@0", 0, 0, 40),
        ReleasingPartition(VERSION, "b", "b1", "g", 1, "t/0@100", 0, 1, 200),
    ):
        producer.produce(topic, encode(record), partition=coordinating_partition("g", 2))
    assert producer.flush(60) == 0
    write_snapshots(connection)
    assert positions(connection) == {("g", "t", 0): 200, ("g", "t/0@0", 0): 40}
    delete(kafka, topic)
    create(kafka, topic, 2)
    assert recover_log(connection, apply=True).done
    assert positions(connection) == {("g", "t", 0): 40}


def test_a_log_that_lost_records_after_a_snapshot(
    connection: Connection, client: Client, cli: Cli, topic: str
) -> None:
    marshal = client("a")
    epoch = marshal.claim("t", 0, timeout_s=60).epoch
    found = cli("--topic", topic, "topic", "recover", "--json", "--above", str(epoch + 10**9))
    assert found.returncode == 0, found.stderr
    plan = json.loads(found.stdout)
    assert (plan["done"], plan["positions"]) == (False, [])
    assert plan["base"] > epoch + 10**9
    shown = cli("--topic", topic, "topic", "recover")
    assert "would get a new genesis in 2 partitions" in shown.stdout
    assert "dry run" in shown.stderr
    done = json.loads(
        cli("--topic", topic, "topic", "recover", "--json", "--yes", "--no-positions").stdout
    )
    assert done["done"]
    claim = marshal.claim("t", 0, timeout_s=60)  # a client that ran gave up what it held
    assert claim.epoch > done["base"]


def test_an_epoch_beyond_all_bases_is_refused(connection: Connection) -> None:
    with pytest.raises(ConfigurationError, match="no base above it"):
        recover_log(connection, apply=True, above=MAX_BASE)


def test_a_created_topic_has_a_genesis_in_every_partition(
    cli: Cli, kafka: EmbeddedKafka, topic: str
) -> None:
    name = f"{topic}.created"
    assert cli("--topic", name, "topic", "create", "-p", "3").returncode == 0
    connection = Connection.of_servers(kafka.bootstrap_servers, name)
    states = read_world(connection).world.states
    assert [(s.next_offset, s.partitions) for s in states] == [(1, 3)] * 3
    assert len({s.identity for s in states}) == 1
    assert found_log(connection) == [], "nothing to do"
