"""`delivery: idempotent` with a producer whose reports get lost, as confluent-kafka's may."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.core.row import Row
from harvest.sinks.kafka import sink as kafka
from harvest.sinks.kafka.sink import IdempotentSink

REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class _Metadata:
    def __getitem__(self, name: str) -> Any:
        return type("Topic", (), {"error": None})


class GivenUp:
    """Delivers row 1; is given up over row 2. `flush` loses that report, `poll` does not."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._reports: list[Any] = []
        self._given_up = False

    def list_topics(self, *_: Any, **__: Any) -> Any:
        return type("Found", (), {"topics": _Metadata()})

    def produce(self, topic: str, value: Any, key: Any, *, on_delivery: Any) -> None:
        self._reports.append(on_delivery)

    def flush(self, timeout_s: float) -> int:
        self._reports[0](None, None)
        self._reports.clear()
        raise SystemError("a function returned a result with an exception set")

    def poll(self, timeout_s: float) -> int:
        if not self._reports:
            return 0
        if not self._given_up:
            self._given_up = True
            raise KafkaException(KafkaError(KafkaError._GAPLESS_GUARANTEE, fatal=True))
        good, bad = self._reports
        self._reports = []
        good(None, None)
        bad(REFUSED, None)
        return 2

    def purge(self) -> None: ...

    def __len__(self) -> int:
        return len(self._reports)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> IdempotentSink:
    monkeypatch.setattr(kafka, "Producer", GivenUp)
    return IdempotentSink({"bootstrap.servers": "nowhere:1"})


def test_a_row_without_a_report_is_not_delivered_and_then_its_report_is_waited_for(
    sink: IdempotentSink,
) -> None:
    rows = [Row(1, "t", b"k", b"v"), Row(2, "t", b"k", b"v")]
    sink.open(lambda: True)
    first = sink.deliver(rows, "")
    assert first is not None
    assert first.undelivered == frozenset({2})
    assert not first.refused, "nobody knows yet"
    sink.open(lambda: True)
    second = sink.deliver(rows, "")
    assert second is not None
    assert second.undelivered == second.refused == frozenset({2})
