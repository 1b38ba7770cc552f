"""A dead letter counts when all replicas have it, and not before."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from marshal_py.consumer.handlers import dead_letters
from marshal_py.consumer.handlers.dead_letters import DeadLetters
from marshal_py.errors import BrokerUnavailable


class SlowProducer:
    """Reports come after so many polls; a flush is never long enough."""

    def __init__(self, polls: int, error: KafkaError | None = None) -> None:
        self.polls, self.error = polls, error
        self.report: Callable[[], None] | None = None
        self.reported = False

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        def report() -> None:
            self.reported = True
            on_delivery(self.error, None)

        self.report = report

    def poll(self, _: float) -> int:
        self.polls -= 1
        if self.polls == 0 and self.report is not None:
            self.report()
        return 0

    def flush(self, _: float) -> int:
        return 0 if self.reported else 1


def letters(monkeypatch: pytest.MonkeyPatch, producer: SlowProducer) -> DeadLetters:
    monkeypatch.setattr(dead_letters, "connect", lambda *_: producer)
    return DeadLetters({}, timeout_s=1.0)


def test_a_dead_letter_is_awaited_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SlowProducer(polls=1_000)
    letters(monkeypatch, producer).send("t.dlq", b"k", b"v", [])
    assert producer.reported


def test_a_dead_letter_that_timed_out_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SlowProducer(polls=3, error=KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(BrokerUnavailable, match=r"t\.dlq"):
        letters(monkeypatch, producer).send("t.dlq", b"k", b"v", [])


def test_what_is_not_written_at_the_end_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = SlowProducer(polls=10)
    with caplog.at_level(logging.ERROR, logger="marshal_py.consumer"):
        letters(monkeypatch, producer).close()
    assert "1 dead letters were not written" in caplog.text
