"""What a sink has of librdkafka, threads and connections, goes when it fails and when it closes.

An exception has a reference to all that its frames had. Where one is kept by one of these frames,
both stay until the garbage collector looks at the oldest generation, which may take it hours.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from harvest.core.row import Row
from harvest.errors import SinkUnavailable
from harvest.sinks.kafka import producers
from harvest.sinks.kafka import sink as kafka_sink
from harvest.sinks.kafka.idempotent import IdempotentSink
from harvest.sinks.kafka.sink import TransactionalSink
from marshal_py.client.kafka_clients import give_up
from tests.support.failing_kafka import Died, Kafka

SERVERS = {"bootstrap.servers": "nowhere:1"}
ROWS = [Row(n, "t", b"k%d" % (n % 3), b"%d" % n) for n in range(4)]


class Counted:
    """Makes clients, and knows which of them are alive."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self._made: list[weakref.ref[Any]] = []

    def producer(self, settings: Any, **_: Any) -> Any:
        return self._counted(self.kafka.producer(settings))

    def reader(self, *_: Any, **__: Any) -> Any:
        return self._counted(self.kafka.reader())

    def _counted(self, client: Any) -> Any:
        self._made.append(weakref.ref(client))
        return client

    @property
    def alive(self) -> list[str]:
        self.kafka.owner = None  # the brokers keep nothing of a client
        return [type(client()).__name__ for client in self._made if client() is not None]


def counted(monkeypatch: pytest.MonkeyPatch, seed: int, trouble: float) -> Counted:
    """The clients of all sinks from now on, over a Kafka that fails so often."""
    clients = Counted(Kafka(seed, trouble))
    monkeypatch.setattr(producers, "Producer", clients.producer)
    monkeypatch.setattr(kafka_sink, "Consumer", clients.reader)
    return clients


@pytest.fixture(autouse=True)
def no_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("harvest.sinks.kafka.refusals._APPEARS_WITHIN_S", 0.0)
    monkeypatch.setattr(kafka_sink, "ASK_TIMEOUT_S", 0.05)
    gc.disable()
    yield
    gc.enable()


def attempt(sink: TransactionalSink | IdempotentSink, kafka: Kafka) -> bool:
    """Whether the process lives on."""
    try:
        sink.prepare()
        at = int(sink.open(lambda: kafka.dice.random() > 0.02) or 0)
        sink.deliver(ROWS, str(at + len(ROWS)))
    except SinkUnavailable:
        pass
    except Died:
        return False
    return True


@pytest.mark.parametrize("seed", range(150))
def test_a_sink_that_is_closed_has_no_client_left(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    clients = counted(monkeypatch, seed, 0.3)
    sink = TransactionalSink(SERVERS, base_config=SERVERS, name="x", checkpoint_topic="t")
    for _ in range(4):
        if attempt(sink, clients.kafka):
            sink.close()
            assert clients.alive == []


@pytest.mark.parametrize("seed", range(20))
def test_one_without_transactions_has_none_either(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    clients = counted(monkeypatch, seed, 0.1)
    sink = IdempotentSink(SERVERS)
    while attempt(sink, clients.kafka):
        sink.close()
        assert clients.alive == []
        if len(clients.kafka.records) > 8 * len(ROWS):
            break


def test_one_that_stands_by_and_is_closed_has_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = counted(monkeypatch, 1, 0.0)
    sink = IdempotentSink(SERVERS)
    sink.prepare()
    assert clients.alive == ["Producer"]
    sink.close()
    assert clients.alive == []


@pytest.mark.parametrize("atomic", [True, False])
def test_one_that_is_opened_again_has_one_producer(
    monkeypatch: pytest.MonkeyPatch, *, atomic: bool
) -> None:
    clients = counted(monkeypatch, 1, 0.0)
    sink: TransactionalSink | IdempotentSink = IdempotentSink(SERVERS)
    if atomic:
        sink = TransactionalSink(SERVERS, base_config=SERVERS, name="x", checkpoint_topic="t")
    for _ in range(3):
        sink.open(lambda: True)
        assert clients.alive.count("Producer") == 1
    sink.close()


def test_a_producer_that_failed_for_good_is_given_up_in_silence() -> None:
    class Failed:
        def purge(self) -> None:
            raise SystemError

    give_up(Failed())
