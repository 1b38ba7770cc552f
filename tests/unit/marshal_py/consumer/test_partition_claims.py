"""What one member claims and gives back, by decisions that the test makes."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.assignor import Decision
from marshal_py.consumer.consumer import Consumer, core_of
from marshal_py.consumer.held_partition import Stage
from marshal_py.consumer.partition_claims import SETTLING_S, STORE_S, PartitionClaims
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.balance import Plan, Unit, weigh
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.subscription import Subscription

INTERVAL_MS = 1_000


class Part:
    def __init__(self, unit: Unit, stage: Stage) -> None:
        self.key = unit
        self.topic, self.partition = unit
        self.stage = stage
        self.holding = SimpleNamespace(state=ClaimState.WAITING)
        self.log_fields: dict[str, object] = {}


class Member:
    """Member `me` of a group, with topic t of two partitions; `does` has what it did."""

    client_id = "me"
    failure = None

    def __init__(self, *, wire: str = "msgpack", **wants: Any) -> None:
        self.settings = SimpleNamespace(wire=wire, interval_ms=INTERVAL_MS)
        self.does: list[str] = []
        self.busy: set[int] = set()
        self.by_key: dict[Unit, Part] = {}
        self.counts = {"t": 2}
        self.published: dict[Unit, ClaimMetadata] = {}
        self.lags_answer: Any = {}
        self.now_s = 1_000.0
        self.wakeup = Wakeup()
        fake: Any = self
        nothing: Any = SimpleNamespace(ready=lambda counts: counts)
        self.active: dict[Unit, Part] = {}
        self.claims = PartitionClaims(
            *(fake, fake, fake, fake, nothing, fake),
            Fields(logging.getLogger("marshal_py.consumer"), {}),
            self.wakeup,
            Subscription(frozenset({"t"}), **wants),
            greedy=False,
            settle_ms=0,
        )
        self.decision = decision()
        self.claims._assignor = SimpleNamespace(  # type: ignore[assignment]
            decide=lambda units, lags: self.decision, is_due=lambda: False, due_in_s=lambda: 7.0
        )
        self.claims._has_started = True

    # What `PartitionClaims` asks of partitions and positions

    def is_busy(self, part: Part) -> bool:
        return part.partition in self.busy

    def all(self) -> list[Part]:
        return list(self.by_key.values())

    def want(self, unit: Unit) -> None:
        self.does.append(f"want {unit[1]}")
        self.by_key[unit] = Part(unit, Stage.WANTED)

    def drain(self, part: Part) -> None:
        self.does.append(f"drain {part.partition}")
        part.stage = Stage.DRAINING

    def cancel(self, part: Part) -> None:
        self.does.append(f"cancel {part.partition}")
        del self.by_key[part.key]

    def store(self) -> None:
        self.does.append("store")

    def publish(self, part: Part, change: Any) -> None:
        self.published[part.key] = change(ClaimMetadata())

    def lags(self, _parts: list[Part], _timeout_s: float) -> dict[Unit, int]:
        if isinstance(self.lags_answer, Exception):
            raise self.lags_answer
        return dict(self.lags_answer)

    # The test

    def hold(self, *partitions: int, stage: Stage = Stage.ACTIVE) -> None:
        for p in partitions:
            self.by_key["t", p] = Part(("t", p), stage)

    def round(self, after_s: float = 1.0, **decides: Any) -> list[str]:
        """Look again, after so many seconds; return what is done."""
        self.decision = decision(**decides)
        self.now_s += after_s
        self.does = []
        self.wakeup.plan_due = True
        self.again_s = self.claims.round(self.now_s)
        return self.does


def decision(
    claim: tuple[int, ...] = (),
    give_up: int | None = None,
    *,
    instead: tuple[int, ...] = (),
    surplus: int = 1,
    resume: tuple[int, ...] = (),
    holders: dict[int, str | None] | None = None,
    paused: bool = False,
    settling: bool = False,
    newcomers: bool = False,
) -> Decision:
    return Decision(
        Plan(
            tuple(("t", p) for p in claim),
            None if give_up is None else ("t", give_up),
            tuple(("t", p) for p in instead),
            surplus,
        ),
        tuple(("t", p) for p in resume),
        {("t", p): who for p, who in (holders or {}).items()},
        paused,
        settling,
        newcomers,
    )


def test_a_paused_group_takes_and_gives_nothing() -> None:
    member = Member()
    member.hold(0)
    assert member.round(claim=(1,), give_up=0, paused=True) == []
    assert member.round(claim=(1,), give_up=0) == ["want 1", "drain 0"]


def test_while_others_join_only_what_is_ours_already_is_taken() -> None:
    member = Member()
    assert member.round(claim=(0,), resume=(1,), settling=True) == ["want 1"]
    assert member.wakeup.plan_due, "the next round looks again"
    assert member.again_s == SETTLING_S
    assert member.round(0.1, claim=(0,)) == ["want 0"]
    assert member.again_s is None


def test_partitions_that_are_gone_are_given_back() -> None:
    member = Member()
    member.hold(0, 1, 2)
    assert member.round() == ["drain 2"]
    member.counts = {}
    assert member.round() == ["drain 0", "drain 1"]


def test_what_was_still_to_be_claimed_of_a_topic_that_is_gone_is_wanted_no_more() -> None:
    """It would be won some day, and held for ever: there is nothing to begin with."""
    member = Member()
    member.hold(0, 1, 2, stage=Stage.WANTED)
    assert member.round() == ["cancel 2"]
    member.counts = {}
    assert member.round() == ["cancel 0", "cancel 1"]


def test_one_is_given_at_a_time_and_waited_for_until_somebody_has_it() -> None:
    member = Member()
    member.hold(0, 1)
    assert member.round(give_up=0, holders={0: "me", 1: "me"}) == ["drain 0"]
    assert member.claims.rest_s() is None
    assert member.round(0.5, give_up=1, holders={0: "me", 1: "me"}) == [], "it is being drained"
    del member.by_key["t", 0]
    assert member.round(0.5, give_up=1, holders={0: None, 1: "me"}) == [], "it will be taken"
    assert member.round(give_up=1, holders={0: "other", 1: "me"}) == ["drain 1"]


def test_what_a_handler_has_is_kept_while_something_else_can_go() -> None:
    member = Member()
    member.hold(0, 1)
    member.busy = {0}
    assert member.round(give_up=0, instead=(1,), holders={0: "me", 1: "me"}) == ["drain 1"]


@pytest.mark.parametrize(("surplus", "does"), [(2, ["drain 1"]), (1, [])])
def test_nobody_waits_for_one_handler_after_an_interval(surplus: int, does: list[str]) -> None:
    """But no more than is to go is on its way at a time."""
    member = Member()
    member.hold(0, 1)
    member.busy = {0, 1}
    both: dict[str, Any] = {
        "give_up": 0,
        "instead": (1,),
        "surplus": surplus,
        "holders": {0: "me", 1: "me"},
    }
    assert member.round(**both) == ["drain 0"]
    assert member.round(0.9, **both) == []
    assert member.round(0.2, **both) == does


def test_what_nobody_takes_is_not_waited_for_for_ever() -> None:
    """Who lacked one may have died."""
    member = Member()
    member.hold(0, 1)
    member.round(give_up=0, holders={0: "me"})
    del member.by_key["t", 0]
    assert member.round(1.9, give_up=1, holders={0: None}) == []
    assert member.round(0.2, give_up=1, holders={0: None}) == ["drain 1"]


def test_what_came_back_to_us_keeps_nothing_from_being_given() -> None:
    member = Member()
    member.hold(0, 1)
    member.round(give_up=0, holders={0: "me"})
    member.hold(0)
    assert member.round(give_up=1, holders={0: "me"}) == ["drain 1"]
    member = Member()
    member.hold(0, 1)
    member.round(give_up=0, holders={0: "me"})
    member.round(holders={0: "other"})
    assert member.claims.rest_s() == 7.0, "nothing is under way"


def test_what_is_lagging_is_told_with_the_claim_as_what_it_weighs() -> None:
    member = Member(by_lag=True)
    member.hold(0)
    member.hold(1, stage=Stage.DRAINING)
    member.lags_answer = {("t", 0): 1_000_000, ("t", 1): 5, ("t", 7): 5}
    member.wakeup.plan_due = False
    member.claims.look_at_lags()
    assert {unit: told.cost for unit, told in member.published.items()} == {
        ("t", 0): weigh(1_000_000)
    }
    assert member.wakeup.plan_due
    member.lags_answer = BrokerUnavailable("nobody answers")
    member.published.clear()
    member.claims.look_at_lags()
    assert member.published == {}
    plain = Member()
    plain.lags_answer = {("t", 0): 5}
    plain.hold(0)
    plain.claims.look_at_lags()
    assert plain.published == {}


def test_after_a_restart_positions_are_stored_soon_and_then_ever_later() -> None:
    member = Member()
    member.round(resume=(0,))
    began_s, stored_s = member.now_s, []
    for _ in range(400):
        if "store" in member.round(0.01):
            stored_s.append(round(member.now_s - began_s, 1))
    assert stored_s == [STORE_S, 2 * STORE_S, 4 * STORE_S], "and then with every heartbeat"
    beside_go = Member(wire="text")
    beside_go.round(resume=(0,))
    assert "store" not in beside_go.round(1.0)


def test_whole_topics_follow_their_first_partition() -> None:
    member = Member(entire_topics=True)
    member.hold(0)
    assert member.round() == ["want 1"]
    member.hold(1)
    member.by_key["t", 0].stage = Stage.DRAINING
    assert member.round() == ["drain 1"]
    member.by_key["t", 1].stage = Stage.WANTED
    assert member.round() == ["cancel 1"]
    member = Member(entire_topics=True)
    member.hold(0, 1)
    assert member.round(give_up=0, holders={0: "me"}) == ["drain 0", "drain 1"]


def test_it_looks_again_after_half_an_interval_at_the_latest() -> None:
    member, looks = Member(), list[float]()

    def decide(*_: object) -> Decision:
        looks.append(member.now_s)
        return decision()

    member.claims._assignor.decide = decide  # type: ignore[assignment]
    member.round()
    for _ in range(10):
        member.now_s += 0.125
        member.claims.round(member.now_s)
    assert [at_s - looks[0] for at_s in looks] == [0.0, 0.625, 1.25]


def test_another_limit_is_told_and_planned_for_at_once() -> None:
    member, told = Member(), list[bytes]()
    member.set_member_metadata = told.append  # type: ignore[attr-defined]
    member.wakeup.plan_due = False
    member.wakeup.clear()
    member.claims.change(max_claims=3)
    assert member.claims.subscription.max_claims == 3
    assert [Subscription.decode(text) for text in told] == [member.claims.subscription]
    assert member.wakeup.plan_due
    woken: threading.Event = member.wakeup._event
    assert woken.is_set()


def test_who_is_slow_gives_so_many_to_others_and_takes_no_more_than_are_left() -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics="t")
    core: Any = core_of(consumer)
    limits: list[int | None] = []
    core.fetcher.active = {("t", n): None for n in range(5)}
    core.shared.set_max_claims = limits.append
    consumer.shed()
    consumer.shed(3)
    consumer.shed(9)
    consumer.set_max_claims(None)
    assert limits == [4, 2, 0, None]


def test_a_limit_that_is_set_before_the_start_is_what_the_others_are_told_with_it() -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics="t")
    consumer.set_max_claims(2)
    assert core_of(consumer).shared.subscription.max_claims == 2


@pytest.mark.parametrize("greedy", [False, True])
def test_in_version_1_a_member_is_as_greedy_as_it_was_told_to_be(greedy: bool) -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics="t", wire="text", greedy=greedy)
    claims: Any = core_of(consumer).shared
    claims._claims.start()
    assert claims._claims._assignor._greedy is greedy
