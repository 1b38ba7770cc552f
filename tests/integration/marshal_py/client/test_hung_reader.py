"""A Kafka client that hangs (librdkafka's issue 5476) costs its leases, and nothing else."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marshal_py import Marshal
from marshal_py.client import driver
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.spec import spec

pytestmark = pytest.mark.kafka


class Hung:
    """A consumer of confluent-kafka whose threads wait for each other: nothing ever comes of it."""

    def __init__(self, kafka: Any) -> None:
        self._kafka = kafka
        self._ended = threading.Event()

    def poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def consume(self, most: int, timeout_s: float) -> list[Any]:
        return []

    def close(self) -> None:
        self._ended.wait()

    def end(self) -> None:
        """End it all the same, for the sake of the tests that follow."""
        self._kafka.close()
        self._ended.set()


@pytest.fixture
def hang() -> Iterator[Callable[[Marshal], None]]:
    """Have the reader of a client hang."""
    hung: list[Hung] = []

    def begin(marshal: Marshal) -> None:
        reader = marshal._driver.reader
        with marshal._driver.lock:
            hung.append(Hung(reader._consumer))
            reader._consumer = hung[-1]

    yield begin
    for each in hung:
        each.end()


def _client(kafka: EmbeddedKafka, client_id: str) -> Marshal:
    kafka.start()
    create_topics(kafka.bootstrap_servers, topic=f"__marshal.hung.{client_id}", partitions=1)
    return Marshal(
        kafka.bootstrap_servers,
        group_id="hung",
        client_id=client_id,
        interval_ms=300,
        topic=f"__marshal.hung.{client_id}",
    )


@spec("L-7")
def test_a_log_of_which_nothing_comes_any_more_is_read_anew(
    kafka: EmbeddedKafka, hang: Callable[[Marshal], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "UNREAD_S", 0.5)
    with _client(kafka, "a") as a:
        claim = a.claim("t", 0)
        told: queue.SimpleQueue[str] = queue.SimpleQueue()
        a._driver.restarted.append(told.put)
        hang(a)
        assert "nothing has come of __marshal.hung.a/0" in told.get(timeout=60)
        assert claim.reason is not None
        again = a.claim("t", 0, timeout_s=30)
        assert again.held
        assert again.epoch > claim.epoch


def test_a_client_that_hangs_is_closed_in_time(
    kafka: EmbeddedKafka, hang: Callable[[Marshal], None]
) -> None:
    marshal = _client(kafka, "b").start()
    hang(marshal)
    closing = threading.Thread(target=marshal.close, kwargs={"timeout_s": 0.5}, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
