"""An admin client that has to answer: how long it is tried, and what is said when it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.sinks.kafka import clients as module
from harvest.sinks.kafka.clients import connected_admin
from marshal_py.client.kafka_clients import ConnectionErrors
from marshal_py.errors import AuthenticationFailed, BrokerUnavailable


class Admin:
    """Does not answer until `answers_at_s`; what it hears meanwhile, it tells when it is polled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self.answers_at_s = float("inf")
        self.waits_s: list[float] = []
        self.tell: Callable[[ConnectionErrors], None] = lambda _: None
        monkeypatch.setattr(module, "connect", self._connect)
        monkeypatch.setattr("harvest.sinks.kafka.clients.time.monotonic", lambda: self.now_s)

    def _connect(self, kind: object, settings: dict[str, Any], errors: ConnectionErrors) -> Admin:
        del kind
        assert settings == {"bootstrap.servers": "b:1"}
        self._errors = errors
        return self

    def list_topics(self, timeout: float) -> str:
        self.waits_s.append(timeout)
        self.now_s += timeout
        if self.now_s >= self.answers_at_s:
            return "metadata"
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no metadata"))

    def poll(self, timeout: float) -> None:
        assert timeout == 0
        self.tell(self._errors)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    return Admin(monkeypatch)


def connected() -> tuple[Any, Any]:
    return connected_admin({"bootstrap.servers": "b:1"}, 8.0)


def test_a_broker_that_takes_its_time_is_waited_for(admin: Admin) -> None:
    admin.answers_at_s = 1_001.0
    assert connected() == (admin, "metadata")
    assert admin.waits_s == [0.25, 0.5, 1.0]


def test_when_every_broker_was_tried_no_more_is_waited(admin: Admin) -> None:
    code = KafkaError._ALL_BROKERS_DOWN
    admin.tell = lambda errors: errors.note_outage(code, "b:1: Connection refused")
    with pytest.raises(BrokerUnavailable, match="b:1: Connection refused"):
        connected()
    assert admin.waits_s == [0.25]


def test_what_is_refused_again_and_again_is_not_tried_until_the_end(admin: Admin) -> None:
    """One refusal may be that of a broker that is about to end."""
    code = KafkaError._AUTHENTICATION
    admin.tell = lambda errors: errors.note(code, "b:1: SASL authentication failed")
    with pytest.raises(AuthenticationFailed, match="b:1: SASL authentication failed"):
        connected()
    assert len(admin.waits_s) == 4
    assert admin.now_s < 1_004


def test_nobody_is_waited_for_without_end(admin: Admin) -> None:
    with pytest.raises(BrokerUnavailable, match="no metadata"):
        connected()
    assert 8 <= admin.now_s - 1_000 < 8.5
