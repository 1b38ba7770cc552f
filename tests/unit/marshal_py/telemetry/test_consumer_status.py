"""What a consumer tells of itself: its partitions, its metrics, its health over HTTP."""

from __future__ import annotations

import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry

from marshal_py import AssignedPartition, Consumer, Retry
from marshal_py.consumer.handlers.histograms import BOUNDS_S, Counts
from marshal_py.errors import ConfigurationError, HandlerFailed
from marshal_py.telemetry import ConsumerMetrics, serve_status
from marshal_py.telemetry.status_server import StatusServer
from marshal_py.testing import TestBroker
from tests.unit.marshal_py.consumer.test_callbacks import until


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_histogram_counts_each_duration_once() -> None:
    counts = Counts()
    for duration_s in (-1.0, 0.001, 0.0011, 86_400.0, 90_000.0):
        counts.add(duration_s)
    found = counts.histogram()
    assert found.count == 5
    assert found.counts[:2] == (2, 1)
    assert found.counts[-2:] == (1, 1)
    assert len(found.counts) == len(BOUNDS_S) + 1
    assert found.sum_s == pytest.approx(176_400.0021)


def test_metrics_of_handlers_and_partitions(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", *map(str, range(6)), partition=0)
    consumer, registry = mock_kafka.consumer("orders", client_id="a"), CollectorRegistry()
    may_end = threading.Event()
    failed: list[int] = []

    def handle(message: Any) -> None:
        if message.offset() == 1:
            assert may_end.wait(10)
        if message.offset() == 4 and not failed:
            failed.append(4)
            raise OSError

    def value(name: str, **labels: str) -> float | None:
        labels = {"group_id": "test", "client_id": "a", "topic": "orders", **labels}
        return registry.get_sample_value(f"marshal_consumer_{name}", labels)

    thread = threading.Thread(
        target=consumer.run,
        args=(handle,),
        kwargs={
            "ordering": "none",
            "retry": Retry(attempts=2, backoff_ms=1),
            "filter": lambda message: message.offset() != 5,
        },
        daemon=True,
    )
    with ConsumerMetrics(consumer, registry):
        thread.start()
        until(lambda: consumer.stats().handled == 4 and consumer.stats().filtered == 1)
        [mine] = [each for each in consumer.assignment() if each.partition == 0]
        assert mine == AssignedPartition("orders", 0, mine.epoch, 1, 4, 1, False)
        consumer.pause("orders", 0)
        assert value("lag_messages", partition="0") == 5
        assert value("lag_messages", partition="3") == 0
        assert value("gaps", partition="0") == 1
        assert value("done_above_messages", partition="0") == 4
        assert value("partition_paused", partition="0") == 1
        assert value("handler_duration_seconds_count") == 5  # one of them failed
        assert value("message_age_seconds_count") == 4
        assert value("message_age_seconds_bucket", le="60.0") == 4
        may_end.set()
        until(lambda: consumer.stats().handled == 5)
        assert value("handler_duration_seconds_bucket", le="+Inf") == 6
        consumer.stop()
        thread.join(10)


def test_health_and_metrics_over_http(mock_kafka: TestBroker) -> None:
    mock_kafka.create_topic("orders")
    consumer = mock_kafka.consumer("orders")
    assert consumer.health().problems == ("it has not started yet",)
    with serve_status(consumer, "127.0.0.1:0") as server:
        until(lambda: len(consumer.assignment()) == 4)
        code, text = get(server.port, "/healthz")
        assert (code, json.loads(text)) == (200, {"ok": True, "problems": []})
        code, text = get(server.port, "/metrics")
        assert code == 200
        assert "marshal_consumer_healthy{" in text
        assert "marshal_claims_held{" in text
        assert get(server.port, "/")[0] == 404
        consumer.close()
        code, text = get(server.port, "/healthz")
        assert (code, json.loads(text)["problems"]) == (503, ["it is closed, or closing"])
    with pytest.raises(ConfigurationError, match="write HOST:PORT"), serve_status(consumer, "80"):
        pass


def test_a_consumer_is_started_when_its_address_is_listened_on(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_kafka.create_topic("orders")
    consumer = mock_kafka.consumer("orders")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match="in use"), serve_status(consumer, listen):
            pass
    assert consumer.health().problems == ("it has not started yet",)
    start = consumer.start

    def asked_first() -> Consumer:
        code, text = get(int(listen.rpartition(":")[2]), "/healthz")
        assert (code, json.loads(text)["problems"]) == (503, ["it has not started yet"])
        assert get(int(listen.rpartition(":")[2]), "/metrics")[0] == 200
        return start()

    monkeypatch.setattr(consumer, "start", asked_first)
    with serve_status(consumer, listen):
        assert consumer.health().ok
    consumer.close()


def test_what_has_stopped_it_is_told(mock_kafka: TestBroker) -> None:
    mock_kafka.create_topic("orders")

    def broken(_: object) -> None:
        raise OSError("no disk")

    with mock_kafka.consumer("orders", on_assigned=broken) as consumer:
        with pytest.raises(HandlerFailed):
            next(iter(consumer))
        assert "HandlerFailed: on_assigned failed" in consumer.health().problems[0]


def test_a_handler_that_does_not_return_is_told(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", "1")
    consumer, may_end = mock_kafka.consumer("orders"), threading.Event()
    thread = threading.Thread(
        target=consumer.run,
        args=(lambda _: may_end.wait(10),),
        kwargs={"stuck_after_s": 0.01},
        daemon=True,
    )
    thread.start()
    until(lambda: consumer.health().problems == ("1 handlers do not return",))
    may_end.set()
    until(lambda: consumer.health().ok)
    consumer.stop()
    thread.join(10)


def test_leases_that_lapsed_are_told(mock_kafka: TestBroker) -> None:
    mock_kafka.create_topic("orders")
    consumer: Consumer = mock_kafka.consumer("orders")
    with consumer:
        until(lambda: len(consumer.claims()) == 4)
        until(lambda: consumer.health().ok)
        mock_kafka.close()  # and with it all brokers
        told = "the leases of 4 partitions have lapsed"  # one after the other
        until(lambda: any(told in problem for problem in consumer.health().problems))


def test_nobody_waits_at_a_server_that_has_been_closed() -> None:
    log = logging.getLogger("marshal_py.consumer")
    with StatusServer(("127.0.0.1", 0), lambda: {"ok": True}, None, log) as server:
        assert get(server.port, "/healthz") == (200, '{"ok": true}\n')
    assert server._server.socket.fileno() == -1
