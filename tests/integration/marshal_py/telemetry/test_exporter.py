"""The exporter of the groups: it answers while Kafka hangs, and does not know then who is alive."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from marshal_py import Marshal
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import read_world
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.telemetry.group_metrics import GroupMetrics

pytestmark = pytest.mark.kafka


def test_while_kafka_hangs_it_answers_and_buries_nobody(kafka: EmbeddedKafka) -> None:
    kafka.start()
    topic = f"__exporter.{os.getpid()}"
    create_topics(kafka.bootstrap_servers, topic=topic, partitions=1)
    orders = f"orders.{os.getpid()}"
    kafka.create_topic(orders, 1)
    connection = replace(Connection.of_servers(kafka.bootstrap_servers, topic), timeout_s=3.0)
    with Marshal(kafka.bootstrap_servers, group_id="g", client_id="a", topic=topic) as marshal:
        marshal.claim(orders, 0, timeout_s=60).commit(0, wait=True)
        with marshal.leader("harvest:outbox") as leadership:
            assert leadership.held
            found = read_world(connection)
    registry = CollectorRegistry()
    collector = GroupMetrics(connection, found, threading.Lock())
    collector.ask()
    registry.register(collector)

    def shown() -> str:
        return generate_latest(registry).decode()

    leads = 'marshal_group_leader_held{group_id="g",leadership="harvest:outbox",shard="0"} 1.0'
    assert leads in shown()
    assert (
        f'marshal_group_lag_seconds{{group_id="g",partition="0",topic="{orders}"}} 0.0' in shown()
    )
    assert "marshal_exporter_kafka_reachable 1.0" in shown()
    kafka.pause()
    try:
        asking = threading.Thread(target=collector.ask, daemon=True)
        asking.start()
        assert "marshal_coordination_records_total" in shown()
        assert asking.is_alive(), "it answered while the brokers did not"
        asking.join()
        assert "marshal_exporter_kafka_reachable 0.0" in shown()
        assert 'group_id="g"' not in shown().partition("marshal_group_events")[0]
    finally:
        kafka.resume()
    while not collector.reachable():
        collector.ask()
    assert leads in shown()
