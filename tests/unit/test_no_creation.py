"""To look for a topic, or to write to a log that is gone, makes none: by a mock cluster that makes
what it is asked for, as brokers with `auto.create.topics.enable` do."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from harvest.config.load import parse
from harvest.errors import ConfigurationError
from harvest.runtime.probes import ServerProbes
from harvest.runtime.replay import _producer
from harvest.sinks.kafka.clients import make_client
from marshal_py.admin import positions, topic_offsets
from marshal_py.client.admin_on_demand import AdminOnDemand
from marshal_py.client.log_metadata import asking
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.topics import admin_client
from marshal_py.errors import TopicMissing


class Cluster:
    """One broker, which makes topics of four partitions."""

    def __init__(self) -> None:
        self._own = Producer(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
        )
        brokers = self._own.list_topics(timeout=10).brokers.values()
        self.config: dict[str, Any] = {
            "bootstrap.servers": ",".join(f"{b.host}:{b.port}" for b in brokers),
            "log_level": 0,
        }

    @property
    def topics(self) -> set[str]:
        return set(self._own.list_topics(timeout=10).topics)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_topic_that_is_missing_is_told_and_not_made(cluster: Cluster) -> None:
    admin = admin_client(cluster.config)
    for partitions_of in (topic_offsets.partitions_of, positions.partitions_of):
        with pytest.raises(TopicMissing, match="'order-typo' does not exist"):
            partitions_of(admin, cluster.config, "order-typo", 10.0)
    assert cluster.topics == set()


def test_a_log_that_is_gone_is_not_made_by_what_is_appended(cluster: Cluster) -> None:
    """Whatever the user wants of other topics: the defaults of brokers are wrong for this one."""
    writer = LogWriter(
        {**cluster.config, "allow.auto.create.topics": True},
        topic="log",
        snapshot_topic="log.snapshots",
        timeout_ms=500,
    )
    writer.append(0, 7, b"record")
    writer.append_snapshot(0, b"snapshot")
    assert writer.flush(20.0) == 0
    assert cluster.topics == set()
    assert [seq for seq, _ in writer.take_failures()] == [7]


def test_a_log_that_is_missing_is_not_made_by_who_reads_it(cluster: Cluster) -> None:
    with (
        asking(
            {**cluster.config, "allow.auto.create.topics": True},
            topic="log",
            snapshot_topic="log.snapshots",
            needs=("Read",),
        ) as metadata,
        pytest.raises(TopicMissing),
    ):
        metadata.describe(time.monotonic() + 20, with_snapshots=True)
    assert cluster.topics == set()


def test_a_topic_that_was_known_is_not_made_anew(cluster: Cluster) -> None:
    admin = AdminOnDemand(cluster.config)
    admin.known_topic = "orders"
    admin.get()
    assert cluster.topics == set()


def test_the_probe_of_a_harvester_makes_no_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.runtime.probes.make_dead_letters", lambda _: None)
    servers = cluster.config["bootstrap.servers"]
    config = parse(
        f"database: host=d\nkafka: {{bootstrap.servers: '{servers}'}}\ngroup: g\n"
        "coordination: {topic: gone}\n"
    )
    marshal: Any = SimpleNamespace(failure=None)
    store: Any = None
    ServerProbes(config, marshal, store).kafka()
    assert cluster.topics == set()


def test_rows_are_not_published_again_into_a_topic_that_nobody_made(cluster: Cluster) -> None:
    servers = cluster.config["bootstrap.servers"]
    config = parse(f"database: host=d\nkafka: {{bootstrap.servers: '{servers}'}}\ngroup: g\n")
    with pytest.raises(ConfigurationError, match="there is no topic 'typo': create it first"):
        _producer(config, "typo")
    assert cluster.topics == set()


def test_who_wants_brokers_to_make_topics_says_so() -> None:
    cluster = Cluster()
    wanted = {**cluster.config, "allow.auto.create.topics": True}
    admin_client(wanted).list_topics("a", timeout=10)
    make_client(AdminClient, wanted).list_topics("b", timeout=10)
    servers = cluster.config["bootstrap.servers"]
    kafka = f"{{bootstrap.servers: '{servers}', allow.auto.create.topics: true}}"
    _producer(parse(f"database: host=d\nkafka: {kafka}\ngroup: g\n"), "c")
    assert cluster.topics == {"a", "b", "c"}
