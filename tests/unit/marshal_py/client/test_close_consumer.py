"""A consumer is closed, or left behind if it hangs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from marshal_py.client import kafka_clients
from marshal_py.client.kafka_clients import close_consumer, read_to_end
from marshal_py.errors import BrokerUnavailable


class FakeConsumer:
    def __init__(self) -> None:
        self.may_close = threading.Event()
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.may_close.wait()
        self.is_closed.set()


def test_a_consumer_is_closed_when_that_returns(caplog: pytest.LogCaptureFixture) -> None:
    consumer = FakeConsumer()
    consumer.may_close.set()
    close_consumer(consumer)
    assert consumer.is_closed.is_set()
    assert caplog.messages == []


def test_a_consumer_that_does_not_close_in_time_is_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer = FakeConsumer()
    close_consumer(consumer, 0.05)
    assert not consumer.is_closed.is_set()
    assert caplog.messages == ["a Kafka client does not close within 0.05 s; it is left behind"]
    consumer.may_close.set()
    assert consumer.is_closed.wait(10)


def test_a_consumer_is_closed_though_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    consumer = FakeConsumer()
    consumer.may_close.set()
    close_consumer(consumer)
    assert consumer.is_closed.is_set()


def test_whoever_reads_to_an_end_leaves_a_client_that_hangs_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(FakeConsumer):
        def assign(self, _: object) -> None: ...

        def poll(self, _: float) -> None: ...

    consumer, left = Silent(), list[Any]()
    consumer.may_close.set()  # else nobody would be told that this test fails
    monkeypatch.setattr(kafka_clients, "connect", lambda *_: consumer)
    monkeypatch.setattr(kafka_clients, "close_consumer", left.append)
    with pytest.raises(BrokerUnavailable):
        list(read_to_end({}, "t", {0: 0}, {0: 9}, time.monotonic()))
    assert left == [consumer]
