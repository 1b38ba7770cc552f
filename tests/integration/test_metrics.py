"""The Prometheus metrics say what the world says, before and after a takeover."""

from __future__ import annotations

import os
import threading

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from marshal_py import Marshal
from marshal_py.admin import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.metrics import MarshalMetrics

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
            a.claim_many([("t", 0), ("t", 1)], timeout_s=10)
            released = threading.Event()
            a.listen(lambda _, events: [released.set() for e in events if "Released" in repr(e)])
            assert value("up") == 1
            assert value("claims_held") == 2
            assert value("cells_held") == 2
            remaining = value("lease_remaining_seconds")
            assert remaining is not None
            assert 0 < remaining < 10
            a.claim("t", 0).release()
            assert released.wait(10)  # the hook thread has counted it, too: it is one thread
            assert value("claims_held") == 1
            assert value("cells") == 2
            assert value("events_total", event="Claimed") == 2
            assert value("events_total", event="Released") == 1
            assert value("takeovers_total") == 0
            assert value("group_paused") == 0
            a.close()
            assert value("up") == 0
        assert b"marshal" not in generate_latest(registry)
