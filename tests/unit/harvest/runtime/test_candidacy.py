"""Standing for election: what is wanted, and what is let go, and what is heard of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.runtime import candidacy as module
from harvest.runtime.candidacy import Election, FairShare
from marshal_py import ClaimTimeout
from marshal_py.consumer.assignor import Decision
from marshal_py.protocol.balance import Plan, Unit
from marshal_py.protocol.subscription import Subscription

NAME = "harvest:outbox"
UNITS: list[Unit] = [(NAME, 0), (NAME, 1)]


class Claim:
    """Held as soon as it is made."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.held = True
        self.reason: str | None = None
        self.released: list[tuple[bool, float]] = []

    def release(self, *, wait: bool, timeout_s: float) -> None:
        self.released.append((wait, timeout_s))
        if wait:
            raise ClaimTimeout("the log is silent")


class Client:
    """A member of the group, `me`."""

    client_id = "me"
    settings = SimpleNamespace(interval_ms=500)

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.hears: Callable[[int, list[Any]], None] | None = None

    def want(self, topic: str, partition: int) -> Claim:
        self.claims.append(Claim((topic, partition)))
        return self.claims[-1]

    def set_member_metadata(self, metadata: bytes) -> None:
        self.metadata = metadata

    def listen(self, listener: Callable[[int, list[Any]], None]) -> Callable[[], None]:
        self.hears = listener

        def stop() -> None:
            self.hears = None

        return stop


class Assignor:
    """Decides what the test says."""

    decision = Decision(Plan(), (), {}, paused=False, settling=False)
    subscription: Subscription

    def decide(self, units: Sequence[Unit]) -> Decision:
        assert units == UNITS
        return self.decision

    def is_affected_by(self, events: list[Any]) -> bool:
        return "ours" in events


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def assignor(monkeypatch: pytest.MonkeyPatch) -> Assignor:
    made = Assignor()
    monkeypatch.setattr(module, "Assignor", lambda *_, **__: made)
    return made


@pytest.fixture
def shares(client: Client, assignor: Assignor) -> FairShare:
    del assignor
    given: Any = client
    return FairShare(given, NAME, 2)


def election(client: Client) -> Election:
    given: Any = client
    return Election(given, "orders")


def test_news_of_the_one_leadership_wake_and_no_others(client: Client) -> None:
    woken: list[str] = []
    stands = election(client)
    stands.start(lambda: woken.append("woken"))
    assert client.hears is not None
    client.hears(0, [SimpleNamespace(topic="leader:another"), SimpleNamespace()])
    assert woken == []
    client.hears(0, [SimpleNamespace(), SimpleNamespace(topic="leader:orders")])
    assert woken == ["woken"]
    stands.close()
    assert client.hears is None


def test_news_that_concern_the_shards_wake_and_no_others(client: Client, shares: FairShare) -> None:
    woken: list[str] = []
    shares.start(lambda: woken.append("woken"))
    assert client.hears is not None
    client.hears(0, ["others'"])
    assert woken == []
    client.hears(0, ["ours"])
    assert woken == ["woken"]
    shares.close()
    assert client.hears is None


def test_who_withdraws_is_no_candidate_until_it_stands_again(client: Client) -> None:
    stands = election(client)
    stands.stand([])
    client.claims[0].held = False
    stands.withdraw()
    assert client.claims[0].released == [(False, 5.0)]
    assert stands.elected() == []
    stands.withdraw()
    assert len(client.claims[0].released) == 1
    stands.stand([])
    assert [shard for shard, _ in stands.elected()] == [0]
    stands.withdraw()
    assert client.claims[1].released == [], "whoever leads ends in order, and then resigns"


def test_the_share_of_who_withdraws_is_for_others(
    client: Client, assignor: Assignor, shares: FairShare
) -> None:
    shares.start(lambda: None)
    metadata = client.metadata
    wanted = Subscription.decode(metadata)
    assert wanted is not None
    assignor.decision = Decision(Plan(claim=tuple(UNITS)), (), {}, paused=False, settling=False)
    shares.stand([])
    client.claims[1].held = False
    assert [shard for shard, _ in shares.elected()] == [0]
    shares.withdraw()
    shares.withdraw()
    assert assignor.subscription == replace(wanted, max_claims=0)
    assert client.metadata == assignor.subscription.encode()
    assert [claim.released for claim in client.claims] == [[], [(False, 5.0)]]
    shares.resign(0)
    shares.stand([])
    assert client.metadata == metadata
    assert assignor.subscription == wanted
    assert len(client.claims) == 4


def test_the_leadership_is_stood_for_under_one_claim_and_given_up_at_the_end(
    client: Client,
) -> None:
    stands = election(client)
    assert stands.elected() == []
    stands.stand([])
    (claim,) = client.claims
    assert claim.unit == ("leader:orders", 0)
    claim.held = False
    assert stands.elected() == []
    claim.held = True
    assert [shard for shard, _ in stands.elected()] == [0]
    assert stands.elected() == []
    stands.stand([0])
    assert len(client.claims) == 1, "who leads stands for nothing"
    stands.close()
    assert claim.released == [(True, 5.0)], "it does not wait for a log that is silent"


def test_a_paused_group_stands_for_nothing(
    client: Client, assignor: Assignor, shares: FairShare
) -> None:
    plan = Plan(claim=tuple(UNITS), give_up=UNITS[0])
    assignor.decision = Decision(plan, tuple(UNITS), {}, paused=True, settling=False)
    assert shares.stand([0]) is None
    assert client.claims == []


def test_while_others_join_only_what_is_ours_already_is_taken(
    client: Client, assignor: Assignor, shares: FairShare
) -> None:
    plan = Plan(claim=(UNITS[1],), give_up=UNITS[0])
    assignor.decision = Decision(plan, (UNITS[0],), {}, paused=False, settling=True)
    assert shares.stand([0]) is None
    assert [claim.unit for claim in client.claims] == [UNITS[0]]
    assignor.decision = assignor.decision._replace(settling=False, plan=Plan(claim=(UNITS[1],)))
    shares.stand([0])
    assert [claim.unit for claim in client.claims] == UNITS


def test_what_somebody_else_has_got_is_stood_for_no_more_but_leaders_end_first(
    client: Client, assignor: Assignor, shares: FairShare
) -> None:
    assignor.decision = assignor.decision._replace(plan=Plan(claim=tuple(UNITS)))
    shares.stand([])
    one, other = client.claims
    other.held = False
    assert [shard for shard, _ in shares.elected()] == [0]
    taken: dict[Unit, str | None] = {UNITS[0]: "another", UNITS[1]: "another"}
    assignor.decision = assignor.decision._replace(plan=Plan(), holders=taken)
    shares.stand([0])
    assert other.released == [(False, 5.0)]
    assert one.released == [], "its leader is still at work"
    assert shares.elected() == []
    shares.resign(0)
    assert one.released == [(False, 5.0)]


@pytest.mark.parametrize("holder", ["me", None])
def test_what_nobody_else_has_got_is_still_stood_for(
    client: Client, assignor: Assignor, shares: FairShare, holder: str | None
) -> None:
    assignor.decision = assignor.decision._replace(plan=Plan(claim=tuple(UNITS)))
    shares.stand([])
    assignor.decision = assignor.decision._replace(
        plan=Plan(), holders=dict.fromkeys(UNITS, holder)
    )
    shares.stand([])
    assert [claim.released for claim in client.claims] == [[], []]


def test_one_shard_after_the_other_goes_to_who_has_too_few(
    client: Client, assignor: Assignor, shares: FairShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr("harvest.runtime.candidacy.time.monotonic", lambda: now_s[0])
    assignor.decision = assignor.decision._replace(plan=Plan(claim=tuple(UNITS)))
    shares.stand([])
    assert len(shares.elected()) == 2

    def decide(give_up: Unit, **holders: str | None) -> None:
        held: dict[Unit, str | None] = {
            UNITS[0]: holders.get("first", "me"),
            UNITS[1]: holders.get("second", "me"),
        }
        plan = Plan(give_up=give_up)
        assignor.decision = assignor.decision._replace(plan=plan, holders=held)

    decide(UNITS[0])
    assert shares.stand([1]) is None, "nobody leads it here"
    assert shares.stand([0, 1]) == 0
    decide(UNITS[1])
    now_s[0] += 60
    assert shares.stand([0, 1]) is None, "the first has not ended"
    shares.resign(0)
    now_s[0] = 1_000.9
    decide(UNITS[1], first=None)
    assert shares.stand([1]) is None, "whoever lacks one has yet to take it"
    decide(UNITS[1], first="another")
    assert shares.stand([1]) == 1
    shares.resign(1)


def lead_both_and_give_up_the_first(
    assignor: Assignor, shares: FairShare
) -> dict[Unit, str | None]:
    """Return who holds what then."""
    assignor.decision = assignor.decision._replace(plan=Plan(claim=tuple(UNITS)))
    shares.stand([])
    shares.elected()
    assignor.decision = assignor.decision._replace(plan=Plan(give_up=UNITS[0]))
    assert shares.stand([0, 1]) == 0
    shares.resign(0)
    return {UNITS[0]: None, UNITS[1]: "me"}


def test_a_shard_that_came_back_keeps_no_other_one_from_going(
    client: Client, assignor: Assignor, shares: FairShare
) -> None:
    """Whoever lacked it has ended: it is ours again, under another claim."""
    free = lead_both_and_give_up_the_first(assignor, shares)
    plan = Plan(claim=(UNITS[0],))
    assignor.decision = assignor.decision._replace(plan=plan, holders=free)
    assert shares.stand([1]) is None
    assert [shard for shard, _ in shares.elected()] == [0]
    plan = Plan(give_up=UNITS[1])
    ours: dict[Unit, str | None] = dict.fromkeys(UNITS, "me")
    assignor.decision = assignor.decision._replace(plan=plan, holders=ours)
    assert shares.stand([0, 1]) == 1


def test_a_shard_that_nobody_takes_holds_up_the_next_for_two_intervals(
    client: Client, assignor: Assignor, shares: FairShare, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr("harvest.runtime.candidacy.time.monotonic", lambda: now_s[0])
    free = lead_both_and_give_up_the_first(assignor, shares)
    assignor.decision = assignor.decision._replace(plan=Plan(give_up=UNITS[1]), holders=free)
    now_s[0] = 1_000.99
    assert shares.stand([1]) is None
    now_s[0] = 1_001.0
    assert shares.stand([1]) == 1


def test_the_end_gives_up_all_shards(client: Client, assignor: Assignor, shares: FairShare) -> None:
    assignor.decision = assignor.decision._replace(plan=Plan(claim=tuple(UNITS)))
    shares.stand([])
    shares.close()
    assert [claim.released for claim in client.claims] == [[(True, 5.0)], [(True, 5.0)]]
