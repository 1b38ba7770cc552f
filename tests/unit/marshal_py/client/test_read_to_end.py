"""Reading some partitions to their ends, by a consumer whose answers the test gives."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from marshal_py.client import kafka_clients
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.errors import AccessDenied, BrokerUnavailable

EOF, REFUSED, OUTAGE, FINAL = (
    KafkaError(code)
    for code in (
        KafkaError._PARTITION_EOF,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._TRANSPORT,
        KafkaError.UNSUPPORTED_VERSION,
    )
)


def answer(partition: int, offset: int, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(
        partition=lambda: partition, offset=lambda: offset, error=lambda: error, value=lambda: b""
    )


class Reading:
    """Reads partitions 0 and 1 from 3 and 5 to below 5 and 6. Afterwards nothing comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = list(answers)
        self.is_closed = False
        self.read: list[tuple[int, int]] = []
        monkeypatch.setattr(kafka_clients, "connect", lambda *_: self)

    def run(self, deadline: float, **how: bool) -> list[tuple[int, int]]:
        for record in read_to_end({}, "t", {0: 3, 1: 5}, {0: 5, 1: 6}, deadline, **how):
            self.read.append((record.partition(), record.offset()))
        assert self.is_closed
        return self.read

    def assign(self, given: list[Any]) -> None:
        assert [(at.partition, at.offset) for at in given] == [(0, 3), (1, 5)]

    def poll(self, _timeout_s: float) -> Any:
        return self.answers.pop(0) if self.answers else None

    def close(self) -> None:
        self.is_closed = True


def test_it_ends_when_all_partitions_have_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, answer(0, 3), None, answer(1, 5), answer(0, 4), answer(0, 9))
    assert reading.run(time.monotonic() + 60) == [(0, 3), (1, 5), (0, 4)]
    assert len(reading.answers) == 1


def test_what_was_deleted_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch, answer(0, 4), answer(1, 6, OUTAGE), answer(1, 6, EOF))
    assert reading.run(time.monotonic() + 60) == [(0, 4)]


@pytest.mark.parametrize("whole", [False, True])
def test_a_replica_that_lags_is_waited_for_where_the_ends_are_sure(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """What is behind an open transaction would be waited for in vain."""
    lagging = [answer(0, 4, EOF), answer(1, 5, EOF)]
    reading = Reading(monkeypatch, answer(0, 3), *lagging, answer(0, 4), answer(1, 6, EOF))
    found = reading.run(time.monotonic() + 60, whole=whole)
    assert found == ([(0, 3), (0, 4)] if whole else [(0, 3)])


@pytest.mark.parametrize(
    ("answers", "kind", "said"),
    [
        ([answer(0, 3), answer(1, 5)], BrokerUnavailable, "no answer while reading 't'"),
        ([answer(0, 4), answer(1, 5, REFUSED)], AccessDenied, "lacks Read on topic 't'"),
        ([answer(0, 4), answer(1, 5, FINAL)], BrokerUnavailable, "reading 't': "),
    ],
)
def test_who_has_not_read_all_does_not_end_as_if_he_had(
    monkeypatch: pytest.MonkeyPatch, answers: list[Any], kind: type[Exception], said: str
) -> None:
    reading = Reading(monkeypatch, *answers)
    with pytest.raises(kind, match=said):
        reading.run(time.monotonic())
    assert reading.is_closed
