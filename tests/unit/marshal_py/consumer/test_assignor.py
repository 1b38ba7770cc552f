"""When an assignor looks again, and when it keeps still, in a group of records of the test."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.consumer import assignor as module
from marshal_py.consumer import group_view
from marshal_py.consumer.assignor import MAX_SETTLES, Assignor
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.messages import ClaimingPartition, Message
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat

INTERVAL_MS, SETTLE_MS = 1_000, 100
UNITS: list[Unit] = [("t", p) for p in range(2)]


class Client:
    """Stands for the client `me`, its driver, and its clock."""

    group_id, client_id, instance_id = "g", "me", "me1"
    settings = SimpleNamespace(cold_start_skew_ms=None)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = LogByHand()
        self.observers = self.log.observers
        self.now_ms = 1_000_000
        for part in (module, group_view):
            monkeypatch.setattr(part, "driver_of", lambda _: self)
        fake: Any = self
        self.assignor = Assignor(fake, Subscription(frozenset({"t"})), settle_ms=SETTLE_MS)

    def clock(self) -> int:
        return self.now_ms * MS

    @contextlib.contextmanager
    def world(self) -> Iterator[Any]:
        yield self.log.world

    def read(self, record: Message) -> bool:
        """Have the log bring a record."""
        self.write(record)
        return self.hear()

    def write(self, record: Message) -> None:
        """Append a record that is not read yet."""
        self.observers[0].seen.note(self.log.write(record), self.clock())

    def hear(self) -> bool:
        """Read what was written, at once."""
        events = [event for batch in self.log.fold(self.log.poll(0)) for event in batch.events]
        return self.assignor.is_affected_by(events)

    def joins(self, who: str) -> None:
        self.read(joining(who))

    def settles(self, after_ms: int) -> bool:
        self.now_ms += after_ms
        return self.assignor.decide(UNITS).settling


def joining(who: str) -> Message:
    wants = Subscription(frozenset({"t"})).encode()
    return heartbeat(who, 0, instance_id=f"{who}1", membership=1, member_metadata=wants)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def test_who_has_joined_waits_for_others_to_join_too(client: Client) -> None:
    assert client.settles(10_000), "it is no member yet"
    client.joins("me")
    assert client.settles(0)
    assert client.settles(99)
    client.joins("other")
    assert client.settles(99)
    assert not client.settles(1)


def test_who_joins_one_after_the_other_is_not_waited_for_for_ever(client: Client) -> None:
    client.joins("me")
    client.settles(0)
    settling = []
    for number in range(2 * MAX_SETTLES):
        client.joins(f"c{number}")
        settling.append(client.settles(SETTLE_MS // 2))
    assert settling == [n < 2 * MAX_SETTLES - 1 for n in range(2 * MAX_SETTLES)]


def test_it_is_due_when_somebody_has_died_and_until_it_was_looked_at(client: Client) -> None:
    client.joins("me")
    client.joins("other")
    client.read(ClaimingPartition(2, "other", "other1", "g", 1, "t", 0, INTERVAL_MS, -1))
    client.assignor.decide(UNITS)
    assert not client.assignor.is_due()
    assert client.assignor.due_in_s() == pytest.approx(2.001)
    client.now_ms += 2 * INTERVAL_MS + 7
    assert client.assignor.due_in_s() == 0.0
    assert client.assignor.is_due()
    assert client.assignor.is_due(), "nobody has looked yet"
    decision = client.assignor.decide(UNITS)
    assert decision.holders["t", 0] is None
    assert ("t", 0) in decision.plan.claim
    assert not client.assignor.is_due()


def test_all_that_comes_at_once_counts(client: Client) -> None:
    client.joins("me")
    assert len(client.assignor.decide(UNITS).plan.claim) == 2
    for who, partition in (("other", 0), ("third", 1)):
        client.write(joining(who))
        client.write(ClaimingPartition(2, who, f"{who}1", "g", 1, "t", partition, INTERVAL_MS, -1))
    assert client.hear()
    decision = client.assignor.decide(UNITS)
    assert decision.holders == {("t", 0): "other", ("t", 1): "third"}
    assert not decision.plan.claim


def test_where_nobody_can_die_nothing_is_due(client: Client) -> None:
    client.joins("me")
    client.assignor.decide(UNITS)
    assert client.assignor.due_in_s() == math.inf
