"""Where topics begin and end, by an admin client whose answers the test gives."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import OffsetSpec

from marshal_py.admin.connection import Connection
from marshal_py.admin.topic_offsets import extent, extent_of_led, offset_ranges
from marshal_py.errors import AccessDenied, BrokerUnavailable, TopicMissing

CONNECTION = Connection.of_servers("nowhere:1", "t")


class Kafka:
    """Of each partition of t the messages 3 to 8; from `later_ms` on, those from 6 on."""

    def __init__(
        self, *, later_ms: int = 1_001, error: int | None = None, offline: int | None = None
    ) -> None:
        self._later_ms = later_ms
        self._error = error
        self._offline = offline

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        error = None if self._error is None else KafkaError(self._error)
        leaders = {p: SimpleNamespace(leader=-1 if p == self._offline else 1) for p in (1, 0)}
        about = SimpleNamespace(error=error, partitions=leaders)
        return SimpleNamespace(topics={topic: about})

    def list_offsets(self, asked: dict[Any, Any], request_timeout: float) -> dict[Any, Any]:
        assert request_timeout > 0
        found = {}
        for where, spec in asked.items():
            assert where.partition != self._offline, "there is no answer about any then"
            ms = spec._value
            answer: Future[Any] = Future()
            at = {OffsetSpec.earliest()._value: 3, OffsetSpec.latest()._value: 9}.get(ms)  # type: ignore[no-untyped-call]
            if at is None:
                at = 6 if ms <= self._later_ms else -1
            answer.set_result(SimpleNamespace(offset=at))
            found[where] = answer
        return found


def ranges(kafka: Kafka, at_ms: int | None = None) -> dict[tuple[str, int], tuple[int, int]]:
    admin: Any = kafka
    return offset_ranges(admin, {("t", 0)}, 10.0, at_ms)


def test_first_and_next_offsets() -> None:
    admin: Any = Kafka()
    assert extent(admin, "t", CONNECTION) == {0: (3, 9), 1: (3, 9)}
    assert ranges(Kafka()) == {("t", 0): (3, 9)}
    assert offset_ranges(admin, set(), 10.0) == {}


def test_of_a_partition_without_a_leader_the_brokers_are_not_asked() -> None:
    admin: Any = Kafka(offline=1)
    assert extent_of_led(admin, "t", CONNECTION) == ({0: (3, 9)}, [1])
    admin = Kafka(error=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AccessDenied):
        extent_of_led(admin, "t", CONNECTION)


def test_at_a_moment_all_that_is_not_later_was_there() -> None:
    """A message of that very millisecond was."""
    assert ranges(Kafka(later_ms=1_001), at_ms=1_000) == {("t", 0): (3, 6)}
    assert ranges(Kafka(later_ms=1_000), at_ms=1_000) == {("t", 0): (3, 9)}, "no message is later"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.TOPIC_EXCEPTION, TopicMissing),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.LEADER_NOT_AVAILABLE, BrokerUnavailable),
    ],
)
def test_why_a_topic_cannot_be_looked_at(code: int, kind: type[Exception]) -> None:
    admin: Any = Kafka(error=code)
    with pytest.raises(kind, match="Read" if kind is AccessDenied else "'t'"):
        extent(admin, "t", CONNECTION)
