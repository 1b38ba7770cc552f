"""What a consumer takes beside Go consumers, in a log of version 1 that the test writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.consumer import assignor_version1 as module
from marshal_py.consumer.assignor_version1 import Version1Assignor
from marshal_py.protocol import events as ev
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.text.codec import CLAIMING_PARTITION, RELEASE_GROUP, TextRecord
from marshal_py.protocol.wire import text_wire
from marshal_py.protocol.world import MS
from tests.support.log_by_hand import LogByHand

INTERVAL_MS = 60_000
NOW_S = 1_700_000_000
UNITS: list[Unit] = [("t", p) for p in range(4)]


class Client:
    """Stands for the client `me`, its driver, and its clock."""

    group_id, client_id, instance_id = "g", "me", "mine"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = LogByHand(wire=text_wire(INTERVAL_MS // 1000))
        self.settings = SimpleNamespace(interval_ms=INTERVAL_MS)
        self.now_ms = 1_000_000
        self.observers = self.log.observers
        self.states: dict[Unit, ClaimState] = {}
        self.claimant = self
        monkeypatch.setattr(module, "driver_of", lambda _: self)

    def clock(self) -> int:
        return self.now_ms * MS

    def holdings(self) -> list[Any]:
        return [SimpleNamespace(key=unit, state=state) for unit, state in self.states.items()]

    @contextlib.contextmanager
    def world(self) -> Iterator[Any]:
        yield self.log.world

    def claimed(self, who: str, partition: int, instance: str = "i") -> None:
        record = TextRecord(CLAIMING_PARTITION, 1, NOW_S, instance, who, "g", "t", partition)
        offset = self.log.write(record)
        self.log.view()
        self.observers[0].seen.note(offset, self.clock())

    def assignor(self, *, greedy: bool = True, most: int | None = None) -> Version1Assignor:
        fake: Any = self
        wanted = Subscription(frozenset({"t"}), max_claims=most)
        return Version1Assignor(fake, wanted, greedy=greedy)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def test_what_is_free_is_taken_and_what_others_hold_is_not(client: Client) -> None:
    client.claimed("go", 1)
    decision = client.assignor().decide(UNITS)
    assert sorted(decision.plan.claim) == [("t", 0), ("t", 2), ("t", 3)]
    assert decision.holders["t", 1] == "go"
    assert (decision.plan.give_up, decision.resume, decision.paused) == (None, (), False)


@pytest.mark.parametrize(("silent_ms", "free"), [(120_000, False), (120_001, True)])
def test_what_a_dead_client_holds_is_free_after_two_intervals(
    client: Client, silent_ms: int, free: bool
) -> None:
    client.claimed("go", 1)
    client.now_ms += silent_ms
    assert (("t", 1) in client.assignor().decide(UNITS).plan.claim) == free


def test_one_at_a_time_and_the_next_within_three_seconds(client: Client) -> None:
    """So that others that start at the same time get some, too."""
    assignor = client.assignor(greedy=False)
    (first,) = assignor.decide(UNITS).plan.claim
    client.states[first] = ClaimState.HELD
    client.now_ms += 3_000
    (second,) = assignor.decide(UNITS).plan.claim
    assert second != first
    client.states[second] = ClaimState.CLAIMING
    assert second in assignor.decide(UNITS).plan.claim, "what is on its way is wanted still"
    assert assignor.due_in_s() == 0.5
    assert not assignor.is_due()
    client.now_ms += 500
    assert assignor.is_due()


def test_a_limit_counts_what_is_held_and_on_its_way_and_not_what_is_given_back(
    client: Client,
) -> None:
    client.states = {UNITS[0]: ClaimState.HELD, UNITS[1]: ClaimState.RELEASING}
    for unit, instance in ((0, "mine"), (1, "mine")):
        client.claimed("me", unit, instance)
    found = client.assignor(most=2).decide(UNITS).plan
    assert len(found.claim) == 1
    assert found.give_up is None
    assert client.assignor(most=1).decide(UNITS).plan.claim == ()


def test_a_limit_that_was_lowered_gives_up_the_last(client: Client) -> None:
    for p, state in ((0, ClaimState.HELD), (1, ClaimState.LAPSED), (2, ClaimState.CLAIMING)):
        client.states[UNITS[p]] = state
        client.claimed("me", p, "mine")
    assert client.assignor(most=1).decide(UNITS).plan.give_up == UNITS[1]
    assert client.assignor(most=2).decide(UNITS).plan.give_up is None
    assert client.assignor().decide(UNITS).plan.give_up is None


def test_what_was_given_back_goes_to_others_first_for_one_interval(client: Client) -> None:
    assignor = client.assignor()
    ours = ev.Released(9, "me", "mine", "g", 0, "t", 2, 1, 5)
    assert assignor.is_affected_by([ours])
    assert ("t", 2) not in assignor.decide(UNITS).plan.claim
    client.now_ms += INTERVAL_MS + 1
    assert ("t", 2) in assignor.decide(UNITS).plan.claim
    theirs = ev.Released(9, "go", "i", "g", 0, "t", 3, 1, 5)
    assert assignor.is_affected_by([theirs])
    client.now_ms += 3_000
    assert ("t", 3) in assignor.decide(UNITS).plan.claim
    elsewhere = ev.Released(9, "go", "i", "other", 0, "t", 3, 1, 5)
    assert not assignor.is_affected_by([elsewhere, ev.Beat(9, "go", "i", "g", 0, 1, 1, 1)])


def test_what_an_earlier_process_of_this_name_held_is_taken_up(client: Client) -> None:
    client.claimed("me", 1, "before")
    client.observers[0].caught_up_at_offset = 1
    decision = client.assignor().decide(UNITS)
    assert decision.resume == (("t", 1),)
    assert ("t", 1) not in decision.plan.claim
    client.claimed("me", 2, "twin")  # came after we started: somebody else has our name
    client.observers[0].caught_up_at_offset = 1
    assert client.assignor().decide(UNITS).resume == (("t", 1),)


def test_a_pause_is_told(client: Client) -> None:
    client.claimed("go", 1)
    client.log.write(TextRecord(RELEASE_GROUP, 1, NOW_S, "i", "op", "g", "", 0, NOW_S + 9))
    client.log.view()
    assert client.assignor().decide(UNITS).paused


def test_who_wants_nothing_any_more_gives_up_one_after_the_other(client: Client) -> None:
    client.claimed("me", 1, instance="mine")
    client.states = {UNITS[1]: ClaimState.HELD}
    assert client.assignor(most=0).decide(UNITS).plan.give_up == UNITS[1]
