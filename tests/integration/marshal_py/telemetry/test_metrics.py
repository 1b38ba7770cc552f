"""The Prometheus metrics say what the world says, before and after a takeover."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from marshal_py.protocol.events import Event

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from marshal_py import Marshal
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import read_world
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.telemetry.client_metrics import MarshalMetrics

pytestmark = pytest.mark.kafka


def test_the_metrics_follow_the_world(kafka: EmbeddedKafka) -> None:
    kafka.start()
    topic = f"__metrics.{os.getpid()}"
    create_topics(kafka.bootstrap_servers, topic=topic, partitions=4)
    registry = CollectorRegistry()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(
            f"marshal_{name}", {"group_id": "g", "client_id": "a", **labels}
        )

    with Marshal(kafka.bootstrap_servers, group_id="g", client_id="a", topic=topic) as a:
        with MarshalMetrics(a, registry):
            a.claim_many([("t", 0), ("t", 1)], timeout_s=60)
            released = threading.Event()

            def listen(_: int, events: list[Event]) -> None:
                if any("Released" in repr(event) for event in events):
                    released.set()

            a.listen(listen)
            assert value("up") == 1
            assert value("claims_held") == 2
            remaining = value("lease_remaining_seconds")
            assert remaining is not None
            assert 0 < remaining < 10
            a.claim("t", 0).release()
            assert released.wait(60)  # the hook thread has counted it, too: it is one thread
            assert value("claims_held") == 1
            assert value("events_total", event="Claimed") == 2
            assert value("events_total", event="Released") == 1
            assert value("takeovers_total") == 0
            a.close()
            assert value("up") == 0
        assert b"marshal" not in generate_latest(registry)


def test_a_snapshot_that_differs_is_seen_by_a_client_that_runs(kafka: EmbeddedKafka) -> None:
    kafka.start()
    topic = f"__metrics.liar.{os.getpid()}"
    servers = kafka.bootstrap_servers
    create_topics(servers, topic=topic, partitions=1)
    registry = CollectorRegistry()
    told = threading.Event()
    handler = logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        if "liar" in record.getMessage():
            told.set()

    handler.emit = emit  # type: ignore[method-assign]
    logging.getLogger("marshal_py.log").addHandler(handler)
    try:
        with (
            Marshal(servers, group_id="g", client_id="a", topic=topic, interval_ms=60_000) as a,
            MarshalMetrics(a, registry),
        ):
            a.claim("t", 0, timeout_s=60).commit(1, wait=True)
            assert not a.snapshot_mismatches
            found = read_world(Connection.of_servers(servers, topic))
            due = found.reader.snapshot_now(0)
            assert due is not None
            found.world.states[0].cells["g", "t", 0].holder = "thief"
            writer = LogWriter(
                {"bootstrap.servers": servers},
                topic=topic,
                snapshot_topic=f"{topic}.snapshots",
                timeout_ms=10_000,
            )
            wrong = due._replace(state=found.world.states[0].encode())
            writer.write_snapshot(wrong, 1, "liar")
            assert writer.flush(60) == 0
            assert told.wait(60)
            mismatches: tuple[object, ...] = a.snapshot_mismatches
            assert len(mismatches) == 1
            assert "liar" in str(mismatches[0])
            who = {"group_id": "g", "client_id": "a"}
            assert registry.get_sample_value("marshal_snapshot_mismatches_total", who) == 1
    finally:
        logging.getLogger("marshal_py.log").removeHandler(handler)
