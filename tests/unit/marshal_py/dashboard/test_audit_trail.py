"""The audit trail: of each action how it ended, the latest first; what is not ours is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError

from marshal_py.admin.connection import Connection
from marshal_py.dashboard import audit_trail as module
from marshal_py.dashboard.appending import Appended, NewRecord
from marshal_py.dashboard.audit_trail import READ, AuditTrail, Entry
from marshal_py.errors import AccessDenied, BrokerUnavailable


class Topic:
    """The topic of the trail."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.first = 0
        self.error: KafkaError | None = None
        self.read_from: list[int] = []
        self.made: list[dict[str, Any]] = []

    def append(self, _: object, records: list[NewRecord]) -> list[Appended]:
        if self.error is not None:
            return [Appended(-1, self.error)]
        self.values += [record.value for record in records]
        return [Appended(len(self.values) - 1, None)]

    def extent(self, *_: object) -> dict[int, tuple[int, int]]:
        return {0: (self.first, len(self.values))}

    def read(self, _kafka: object, _topic: str, starts: dict[int, int], *_: object) -> list[Any]:
        self.read_from.append(starts[0])
        return [SimpleNamespace(value=lambda v=value: v) for value in self.values[starts[0] :]]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    found = Topic()
    monkeypatch.setattr(module, "append", found.append)
    monkeypatch.setattr(module, "extent", found.extent)
    monkeypatch.setattr(module, "read_to_end", found.read)
    monkeypatch.setattr(module, "admin_client", lambda _: None)
    monkeypatch.setattr(module, "create_topics", lambda *_, **given: found.made.append(given))
    monkeypatch.setattr(module, "denied", lambda *_: AccessDenied("no right to Write"))
    return found


@pytest.fixture
def trail() -> AuditTrail:
    return AuditTrail(Connection.of_servers("nowhere:1"))


def test_of_an_action_its_end_is_told_where_that_came(topic: Topic, trail: AuditTrail) -> None:
    first = trail.begin("ann", "replay", topic="orders.dlq", letters=[(0, 3), (0, 4)])
    second = trail.begin("bob", "pause")
    trail.end(first, "1 of 2 replayed.", failed=True, letters=[(0, 3)])
    found = trail.entries()
    assert [(e.who, e.phase, e.text, e.letters) for e in found] == [
        ("ann", "failed", "1 of 2 replayed.", [(0, 3)]),
        ("bob", "asked", "", []),
    ]
    assert (found[0].topic, found[1].id) == ("orders.dlq", second.id)
    trail.end(second, "paused")
    assert [(e.who, e.phase) for e in trail.entries()] == [("bob", "done"), ("ann", "failed")]


def test_a_beginning_that_is_read_again_takes_no_end_back(topic: Topic, trail: AuditTrail) -> None:
    """As a producer that sends anew may write it."""
    begun = trail.begin("ann", "pause")
    trail.end(begun, "paused")
    topic.values.append(topic.values[0])
    assert [e.phase for e in trail.entries()] == ["done"]


def test_what_is_none_of_ours_is_left_out(topic: Topic, trail: AuditTrail) -> None:
    trail.begin("ann", "pause")
    topic.values += [
        None,
        b"",
        b"\xff",
        b'{"id": "\xff"}',
        b"[]",
        b'{"id": 7}',
        b'{"id":"x","phase":"forged"}',
    ]
    assert [e.who for e in trail.entries()] == ["ann"]


def test_only_the_latest_are_read(topic: Topic, trail: AuditTrail) -> None:
    entry = Entry("id", 0, "ann", "pause", "done")
    topic.values = [msgspec.json.encode(entry)] * (READ + 5)
    trail.entries()
    topic.first = 9
    trail.entries()
    assert topic.read_from == [5, 9]


def test_an_empty_trail_is_not_read(topic: Topic, trail: AuditTrail) -> None:
    assert trail.entries() == []
    assert topic.read_from == []


def test_the_topic_is_made_once_with_one_partition(topic: Topic, trail: AuditTrail) -> None:
    trail.begin("ann", "pause")
    trail.begin("ann", "resume")
    (made,) = topic.made
    assert (made["topic"], made["partitions"]) == ("__marshal.audit", 1)
    assert made["with_snapshots"] is False


def test_a_topic_that_could_not_be_made_is_made_the_next_time(
    topic: Topic, trail: AuditTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers would make it otherwise, with their defaults: what is in it expires."""

    def fail(*_: Any, **__: Any) -> None:
        raise BrokerUnavailable("nobody answers")

    with monkeypatch.context() as down:
        down.setattr(module, "create_topics", fail)
        with pytest.raises(BrokerUnavailable):
            trail.begin("ann", "pause")
    assert topic.values == []
    trail.begin("ann", "pause")
    assert (len(topic.made), len(topic.values)) == (1, 1)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError._MSG_TIMED_OUT, BrokerUnavailable),
    ],
)
def test_what_cannot_be_written_down_is_an_error(
    topic: Topic, trail: AuditTrail, code: int, error: type[Exception]
) -> None:
    topic.error = KafkaError(code)
    with pytest.raises(error):
        trail.begin("ann", "pause")
