"""What a consumer hands out next, and what it wants: decisions that the histories of
tests/simulation/whole seldom need, each by itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from marshal_py.balance import Plan, Unit
from marshal_py.claims import ClaimState
from marshal_py.consumer import Consumer
from marshal_py.delivery import HeldPartition, Run, Stage
from marshal_py.rationalizer import Member
from marshal_py.sharing import Look, Sharing
from marshal_py.subscription import Subscription
from marshal_py.world import MS, Observer

FAR = 2**62


class FakeClaim:
    """A claim whose lease is what the test says, at each look; the last answer stays."""

    def __init__(self, *held: bool) -> None:
        self.topic, self.partition = "t", 0
        self.claimed_offset = 0
        self.epoch = 3
        self.leases = list(held) or [True]
        self._ended = threading.Event()
        self._holding = SimpleNamespace(lease_until_ns=FAR, state=ClaimState.HELD)
        self.released = 0

    @property
    def held(self) -> bool:
        return self.leases.pop(0) if len(self.leases) > 1 else self.leases[0]

    def release(self, *, wait: bool) -> None:
        assert not wait
        self.released += 1


@pytest.fixture(params=["at_least_once", "at_most_once"])
def any_consumer(request: pytest.FixtureRequest) -> Consumer:
    return consumer(request.param)


def consumer(mode: Any = "at_least_once") -> Consumer:
    """A consumer that was never connected, in the middle of its loop, to which nothing comes."""
    made = Consumer("127.0.0.1:1", group_id="g", topics="t", mode=mode)
    made._looping = True
    made._fetch = lambda *_: 0  # type: ignore[method-assign,assignment]
    return made


def part_of(claim: FakeClaim) -> HeldPartition:
    part = HeldPartition(claim, manual=False)  # type: ignore[arg-type]
    part.stage = Stage.ACTIVE
    return part


def run_of(part: HeldPartition, *offsets: int) -> Run:
    return Run(part, [Message(topic="t", partition=0, offset=offset) for offset in offsets])


def offsets(run: Run | None) -> list[int]:
    return [] if run is None else [message.offset() for message in run.messages]


def lapse(claim: FakeClaim) -> None:
    claim.leases, claim._holding.lease_until_ns = [False], 0


def regain(claim: FakeClaim) -> None:
    claim.leases, claim._holding.lease_until_ns = [True], FAR


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("fetched", [[], [3, 4]])
def test_what_the_lease_interrupted_goes_on_in_order_when_it_is_regained(
    fetched: list[int], looks: bool
) -> None:
    made, claim = consumer(), FakeClaim()
    part = part_of(claim)
    run = run_of(part, 0, 1, 2)
    part.begin(run)
    handing_out = made._hand_out(run)
    assert next(handing_out).offset() == 0
    lapse(claim)
    assert next(handing_out, None) is None
    if fetched:
        made._ready.append(run_of(part, *fetched))
    assert not looks or made._next_ready() is None
    regain(claim)
    again = [offsets(made._next_ready()) for _ in range(3)]
    assert list(filter(None, again)) == [[1, 2], *filter(None, [fetched])]


def test_a_batch_that_was_handed_out_is_not_done_before_the_loop_comes_back() -> None:
    made = consumer()
    part = part_of(FakeClaim())
    run = run_of(part, 5, 6, 7)
    part.begin(run)
    made._hand = run
    batch = made._take_batch(run)
    assert batch is not None
    assert [message.offset() for message in batch] == [5, 6, 7]
    assert part.position() == 5
    made._settle_hand()
    assert part.position() == 8


def test_what_is_fetched_does_not_overtake_what_waits_for_the_lease() -> None:
    """The lease is regained between two looks at it."""
    made, claim = consumer(), FakeClaim(False, True)
    part = part_of(claim)
    part.parked.append(run_of(part, 0, 1))
    made._parked.append(part)
    made._ready.append(run_of(part, 2, 3))
    assert made._next_ready() is None
    assert [offsets(made._next_ready()) for _ in range(3)] == [[0, 1], [2, 3], []]


@pytest.mark.parametrize("ended", [False, True])
def test_messages_that_the_log_has_not_given_to_us_are_not_handed_out(ended: bool) -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    run = run_of(part_of(claim), 0, 1)
    run.seq = 9
    assert made._verdict(run) is None
    if ended:
        claim._ended.set()
    else:
        made._verdicts[9] = "not_higher"
    assert made._verdict(run) is False
    claim.claimed_offset = 2
    assert made._verdict(run) is True


def test_what_others_got_is_not_wanted_any_more(any_consumer: Consumer) -> None:
    made, claim = any_consumer, FakeClaim()
    claim._holding.state = ClaimState.WAITING
    part = part_of(claim)
    part.stage = Stage.WANTED
    made.parts[part.key] = part
    keeper = made._keeper
    keeper._topics = {"t": 1}
    holders: dict[Unit, str | None] = {("t", 0): "somebody else"}

    def look(plan: Plan) -> Any:
        seen = Look(plan, (), holders, paused=False, restless=False)
        return SimpleNamespace(look=lambda *_: seen)

    keeper._sharing = look(Plan(claim=(("t", 0),)))
    keeper._share(1e9)
    assert (claim.released, list(made.parts)) == (0, [("t", 0)])
    keeper._sharing = look(Plan())
    keeper._share(2e9)
    assert (claim.released, list(made.parts)) == (1, [])


def test_the_dead_have_no_share_where_no_clock_of_the_broker_tells_of_them() -> None:
    marshal: Any = SimpleNamespace(settings=SimpleNamespace(cold_start_skew_ms=None))
    sharing = Sharing(marshal, Subscription(frozenset({"t"})), settle_ms=0)
    observer = Observer()
    observer.allow(1_000)
    observer.caught_up_at_offset = 0
    observer.seen.note(5, 0)
    member = Member("i", 5, 1_000, b"")
    assert sharing._is_alive(member, None, observer, 1_900 * MS)
    assert not sharing._is_alive(member, None, observer, 2_100 * MS)
