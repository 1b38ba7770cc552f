"""A partition for which Kafka has no leader: what is said of it, and of the others."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from confluent_kafka.admin import NewTopic

from marshal_py import Consumer
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import read_world
from marshal_py.client.topics import create_topics
from marshal_py.dashboard.dead_letters import DeadLetterTopics
from marshal_py.dashboard.topic_ends import TopicEnds
from marshal_py.embedded import EmbeddedKafka
from marshal_py.telemetry.group_metrics import GroupMetrics
from tests.support.consumers import fill, until
from tests.support.marshal_command import cli_environment

pytestmark = pytest.mark.kafka

LOG, TOPIC = "__offline", "orders"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Partition 1 of a topic is on broker 3 alone."""
    with EmbeddedKafka(brokers=3) as server:
        create_topics({"bootstrap.servers": server.bootstrap_servers}, topic=LOG, partitions=2)
        admin = server.admin()
        assigned = NewTopic(TOPIC, 2, replica_assignment=[[1], [3]])
        admin.create_topics([assigned])[TOPIC].result(60)
        yield server


def lag(kafka: EmbeddedKafka) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "marshal_py.cli", "lag", "--json"],
        env=cli_environment(kafka.bootstrap_servers, LOG),
        capture_output=True,
        text=True,
    )


def test_it_hides_no_other_and_is_told(kafka: EmbeddedKafka) -> None:
    servers = kafka.bootstrap_servers
    fill(servers, TOPIC, 8, partitions=2)
    with Consumer(servers, group_id="g", topics=TOPIC, topic=LOG, auto_ack=False) as consumer:
        for message in itertools.islice(consumer.messages(idle_timeout_s=60), 8):
            consumer.ack(message)
    connection = Connection.of_servers(servers, LOG)
    exporter = GroupMetrics(connection, read_world(connection), threading.Lock())
    exporter.ask()

    def gauges(name: str) -> list[float]:
        (family,) = [m for m in exporter._lag() if m.name == f"marshal_group_{name}"]
        return [sample.value for sample in family.samples]

    assert (gauges("partition_offline"), gauges("lag_messages")) == ([0, 0], [0, 0])
    fill(servers, TOPIC, 8, partitions=2)
    exporter.ask()
    assert gauges("lag_messages") == [4, 4]

    kafka.kill(2)
    until(lambda: lag(kafka).returncode == 3, 60)
    found = lag(kafka)
    rows = {row["partition"]: row for row in json.loads(found.stdout)}
    assert [rows[p]["lag"] for p in (0, 1)] == [4, None]
    assert [rows[p]["position"] for p in (0, 1)] == [4, 4]
    assert [rows[p]["offline"] for p in (0, 1)] == [False, True]
    assert f"Kafka has no leader for {TOPIC}/1" in found.stderr
    letters = DeadLetterTopics(connection, TOPIC)
    assert letters.topics() == [{"topic": TOPIC, "records": 8, "offline": [1]}]
    shown, unheard = letters.latest(TOPIC, 100)
    assert ([letter.partition for letter in shown], unheard) == ([0] * 8, [1])
    page = TopicEnds(connection)
    assert (page.ask({TOPIC}), page.offline) == ({TOPIC: {0: 8}}, {(TOPIC, 1)})
    exporter.ask()
    assert exporter.reachable()
    assert gauges("partition_offline") == [0, 1]
    assert gauges("lag_messages") == [4, 4], "nothing is added to what has no leader"

    kafka.start(2)
    until(lambda: lag(kafka).returncode == 0, 60)
    exporter.ask()
    assert gauges("partition_offline") == [0, 0]
