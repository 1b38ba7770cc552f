"""At most once: messages that wait in Kafka are claimed before they are fetched."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from marshal_py.consumer import at_most_once
from marshal_py.consumer.fetcher import IDLE_WAIT_S
from marshal_py.consumer.held_partition import HeldPartition, Run, Stage
from marshal_py.errors import NotHeld
from tests.support.spec import spec
from tests.unit.marshal_py.consumer.test_decisions import (
    FakeClaim,
    consumer,
    lapse,
    offsets,
    part_of,
    regain,
    run_of,
)

AHEAD = 50


class World:
    """A consumer at most once with one partition, of which 1,000 messages are known to wait."""

    def __init__(self) -> None:
        self.claim = FakeClaim()
        self.part: HeldPartition = part_of(self.claim)
        self.made: Any = consumer("at_most_once")
        self.made.fetcher.active[self.part.key] = self.part
        self.made.delivery._unfetched_size = AHEAD
        self.part.end = 1_000

    def fetch(self, *offsets: int) -> None:
        """Kafka brings these messages."""
        self.made.fetcher._add(self.part, run_of(self.part, *offsets).messages)

    def handed_out(self) -> list[int]:
        """What goes out now."""
        found = []
        while (run := self.made.delivery.next_run()) is not None:
            found += offsets(run)
            self.made.delivery._passing = None
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_what_was_claimed_ahead_goes_out_without_a_claim_of_its_own(world: World) -> None:
    world.fetch(0, 1, 2)
    world.made.delivery._top_up()
    assert world.claim.proposed == [3 + 2 * AHEAD]
    assert world.handed_out() == []
    world.claim.claimed_offset = 3 + 2 * AHEAD
    world.fetch(3, 4)
    assert world.handed_out() == [0, 1, 2, 3, 4]
    assert world.claim.proposed == [3 + 2 * AHEAD]


def test_more_is_claimed_before_what_was_claimed_runs_out(world: World) -> None:
    world.fetch(0, 1, 2)
    world.made.delivery._top_up()
    world.claim.claimed_offset = 3 + 2 * AHEAD
    world.fetch(*range(3, AHEAD + 3))
    world.handed_out()
    assert len(world.claim.proposed) == 1
    world.fetch(AHEAD + 3)
    world.handed_out()
    assert world.claim.proposed[1:] == [AHEAD + 4 + 2 * AHEAD]


def test_room_is_claimed_in_pieces_and_not_as_each_message_makes_some(world: World) -> None:
    """A proposal costs the log a record, and the client more than a thousand messages cost it."""
    delivery = world.made.delivery
    delivery._adapt = lambda *_: None  # the pace stays: 80 messages may be claimed at a time
    delivery._pace, delivery._unfetched_size = 80 / at_most_once.LOSS_S, 200
    for offset in range(0, 900, 5):
        world.fetch(*range(offset, offset + 5))
        while not (got := world.handed_out()):
            world.claim.claimed_offset = world.claim.proposed[-1]
        assert got == list(range(offset, offset + 5))
        world.claim.claimed_offset = world.claim.proposed[-1]
    gained = [after - before for before, after in pairwise(world.claim.proposed)]
    assert min(gained) >= 80 // at_most_once.PIECES
    assert max(gained) <= 81


@spec("C-35")
def test_nothing_is_claimed_that_is_not_known_to_be_there(world: World) -> None:
    """It would be lost when it comes."""
    world.part.end = 60
    world.fetch(0, 1, 2)
    world.made.delivery._top_up()
    world.claim.claimed_offset = 60
    world.fetch(*range(3, 60))
    assert world.handed_out() == list(range(60))
    assert world.claim.proposed == [60]
    world.fetch(60, 61)
    world.made.delivery._top_up()
    assert world.claim.proposed == [60, 62]


def test_what_an_earlier_holder_claimed_does_not_go_out(world: World) -> None:
    world.part.floor = 5
    world.part.proposed = world.claim.claimed_offset = 100
    world.fetch(3, 4)
    assert world.handed_out() == []
    assert not world.made.delivery._gathered


@spec("C-36")
def test_a_partition_is_not_given_back_before_what_was_claimed_is_fetched(world: World) -> None:
    part, made = world.part, world.made
    world.fetch(0)
    world.part.end = 4
    made.delivery._top_up()
    world.claim.claimed_offset = 4
    assert world.handed_out() == [0]
    part.stage = Stage.DRAINING
    assert made.delivery.has_claimed(part)
    world.fetch(1, 2)
    assert made.delivery.has_claimed(part)
    assert world.handed_out() == [1, 2]
    assert made.delivery.has_claimed(part)
    world.fetch(3, 4, 5)  # more than what was claimed, and nothing more will be
    assert made.delivery.has_claimed(part)  # in what was gathered, and no longer to be fetched
    assert world.handed_out() == [3]
    assert not made.delivery.has_claimed(part)
    assert world.claim.proposed == [4]


def test_offsets_without_a_message_are_not_waited_for(world: World) -> None:
    """Kafka's own records at the end of a transaction have offsets, too."""
    world.fetch(0)
    world.part.end = 2
    world.made.delivery._top_up()
    world.claim.claimed_offset = 2
    world.handed_out()
    assert world.made.delivery.has_claimed(world.part)
    error = KafkaError(KafkaError._PARTITION_EOF)
    world.made.fetcher._on_error(Message(topic="t", partition=0, offset=2, error=error), error)
    assert not world.made.delivery.has_claimed(world.part)


def test_the_end_of_a_partition_comes_behind_its_messages(world: World) -> None:
    """In one fetch. Or the partition could go before they are on their way."""
    made, part = world.made, world.part
    part.proposed = 4
    error = KafkaError(KafkaError._PARTITION_EOF)
    last = Message(topic="t", partition=0, offset=4, error=error)
    seen = []
    add = made.fetcher._add

    def spy(*arguments: Any) -> None:
        seen.append(part.is_owed)
        add(*arguments)

    made.fetcher._add = spy
    made.fetcher._sort_out([*run_of(part, 1, 2).messages, last])
    assert seen == [True]
    assert (part.fetched, part.is_owed) == (4, False)
    assert offsets(made.delivery._gathered[0]) == [1, 2]


@spec("C-36")
def test_what_is_claimed_and_does_not_come_is_not_waited_for_without_end(world: World) -> None:
    world.part.proposed, world.part.fetched = 100, 50
    assert world.made.delivery.has_claimed(world.part)
    world.part.owed_until_s = -math.inf
    assert not world.made.delivery.has_claimed(world.part)


@spec("C-36")
@pytest.mark.parametrize("ending", [False, True])
def test_who_ends_fetches_what_was_claimed_and_claims_no_more(world: World, ending: bool) -> None:
    made = world.made
    world.fetch(0)
    made.delivery._top_up()
    assert made.delivery._owes_fetches()
    world.claim.claimed_offset = 1 + 2 * AHEAD
    if ending:
        made.delivery._is_ending = True
    else:
        made.closing.set()
    coming = iter([range(1, AHEAD), range(AHEAD, 2 * AHEAD), range(2 * AHEAD, 3 * AHEAD)])
    waits = []

    def fetch(_: int, wait_s: float = 0.0) -> int:
        waits.append(wait_s)
        world.fetch(*next(coming))
        return AHEAD

    made.fetcher.fetch = fetch
    # The last one was fetched beside others that nobody has claimed.
    assert world.handed_out() == list(range(2 * AHEAD + 1))
    assert not made.delivery._owes_fetches()
    assert len(world.claim.proposed) == 1
    assert len(waits) == 3


def test_who_ends_waits_for_the_lease_of_what_was_claimed_and_fetched(world: World) -> None:
    """And does not ask again and again, which takes a whole processor."""
    made = world.made
    world.fetch(0)
    world.part.proposed = world.claim.claimed_offset = 1
    lapse(world.claim)
    waits: list[float] = []
    made.delivery._decided = SimpleNamespace(clear=lambda: None, wait=waits.append)
    made.delivery.end()
    for _ in range(2):
        assert made.delivery.next_run() is None
    assert made.delivery.owes
    assert waits == [IDLE_WAIT_S] * 2
    regain(world.claim)
    assert world.handed_out() == [0]
    assert not made.delivery.owes
    assert made.delivery.next_run() is None
    assert len(waits) == 2


@pytest.mark.parametrize("fetched", [False, True])
def test_a_loop_beside_a_consumer_that_was_closed_in_an_outage_ends(
    world: World, *, fetched: bool
) -> None:
    """What was claimed cannot come any more: of a closed client, each fetch ends at once."""
    made = world.made
    world.part.proposed = world.claim.claimed_offset = 2
    if fetched:
        world.fetch(0, 1)
    lapse(world.claim)
    made.fetcher._is_closed = True
    made.closing.set()
    assert made.delivery.owes
    made.delivery.close(None)
    assert made.iteration.next_run(None) is None


def test_what_is_lost_with_the_claim_is_counted(world: World) -> None:
    world.fetch(0)
    world.made.delivery._top_up()
    world.claim.claimed_offset = 1 + 2 * AHEAD
    world.made.delivery.give_up(world.part)
    world.made.delivery.give_up(world.part)
    assert world.made.delivery.dropped == 2 * AHEAD


def test_what_was_claimed_ahead_where_no_message_is_takes_no_room(world: World) -> None:
    delivery = world.made.delivery
    before = delivery._room
    world.fetch(0)
    delivery._top_up()
    world.claim.claimed_offset = 1 + 2 * AHEAD
    assert world.handed_out() == [0]
    assert delivery._room == before - 2 * AHEAD
    world.part.reached(1_000)  # the rest was aborted
    assert delivery._room == before


def test_after_a_rejection_what_is_fetched_is_claimed_anew(world: World) -> None:
    world.fetch(0)
    world.made.delivery._top_up()
    world.made.marshal.cell = lambda *_: None
    world.made.delivery._verdicts[101] = "epoch"
    assert world.handed_out() == []
    world.part.end = -1
    world.fetch(1, 2)
    world.made.delivery._top_up()
    assert world.claim.proposed == [1 + 2 * AHEAD, 3]
    assert not world.made.delivery._verdicts


def test_what_comes_after_an_unknown_outcome_waits_for_the_second_proposal(world: World) -> None:
    made, claim = world.made, world.claim
    world.fetch(0)
    made.delivery._top_up()
    made.delivery._verdicts[101] = "unknown outcome"
    cell: Any = SimpleNamespace(held=True, epoch=claim.epoch, claimed_offset=0)
    made.marshal.cell = lambda *_: cell
    assert world.handed_out() == []
    assert claim.proposed == [1 + 2 * AHEAD] * 2
    world.fetch(1)
    assert world.handed_out() == []
    assert [run.seq for run in made.delivery._proposed] == [102, 102]
    claim.claimed_offset = 1 + 2 * AHEAD
    assert world.handed_out() == [0, 1]


def test_a_verdict_is_kept_for_what_was_decided_with_it(world: World) -> None:
    """Runs of a proposal need not be neighbours any more."""
    made, claim = world.made, world.claim
    other = FakeClaim()
    other.partition = 1
    between = part_of(other)
    other.claimed_offset = 10
    first, last = run_of(world.part, 0), run_of(world.part, 1)
    first.seq = last.seq = 7
    made.delivery._proposed.extend([first, run_of(between, 5), last])
    made.delivery._verdicts[7] = "epoch"
    made.marshal.cell = lambda *_: None
    assert offsets(made.delivery.next_run()) == [5]
    assert made.delivery.next_run() is None
    assert not made.delivery._proposed
    assert not made.delivery._verdicts
    assert claim.proposed == []


def test_a_proposal_that_cannot_be_made_owes_nothing(world: World) -> None:
    def refuse(_: int) -> int:
        raise NotHeld("released meanwhile")

    world.claim._core.propose = refuse
    world.fetch(0)
    world.made.delivery._top_up()
    assert not world.made.delivery.has_claimed(world.part)


def test_while_what_is_there_was_claimed_it_is_not_heaped_up(world: World) -> None:
    made = world.made
    world.part.proposed = world.claim.claimed_offset = 100_000
    made.delivery._proposal_size = 2_000
    asked = []

    def fetch(most: int, wait_s: float = 0.0) -> int:
        asked.append(most)
        first = max(0, world.part.fetched)
        world.fetch(*range(first, first + most))
        return most

    made.fetcher.fetch = fetch
    for _ in range(3):
        run = made.delivery.next_run()
        assert asked.pop() == len(run.messages)
        assert not asked


def test_the_assignment_looks_how_many_messages_wait_when_there_are_many(world: World) -> None:
    made, asked = world.made, []

    def list_offsets(queries: Any, **_: Any) -> Any:
        asked.append(list(queries))
        answer: Any = SimpleNamespace(result=lambda: SimpleNamespace(offset=777))
        answer.add_done_callback = lambda call: call(answer)
        return dict.fromkeys(queries, answer)

    made.admin.client = SimpleNamespace(list_offsets=list_offsets)
    made.positions.request_ends(list(made.fetcher.active.values()))
    assert world.part.end == 777
    assert [(at.topic, at.partition) for at in asked[0]] == [("t", 0)]
    world.part.end = 3
    world.fetch(0, 1, 2)
    made.delivery._top_up()
    assert not made.delivery.is_behind
    made.delivery._was_full = True
    made.delivery._propose(world.part, 4)
    assert made.delivery.is_behind


@pytest.mark.parametrize("throttled", [False, True])
@pytest.mark.parametrize("is_owed", [False, True])
def test_fetching_rests_while_a_partition_is_given_back_unless_it_is_owed_messages(
    world: World, is_owed: bool, throttled: bool
) -> None:
    """`run` throttles what fills its buffer, and would not look at it again."""
    world.part.throttled = throttled
    made, part = world.made, world.part
    done: list[str] = []
    made.fetcher._kafka = SimpleNamespace(
        pause=lambda _: done.append("pause"), resume=lambda _: done.append("resume")
    )
    part.assigned = True
    if is_owed:
        part.proposed, part.fetched = 2, 1
    made.partitions.drain(part)
    assert done == ["resume" if is_owed else "pause"]
    assert part.owed_until_s < math.inf


def test_what_is_owed_of_a_partition_that_goes_is_fetched_when_its_lease_is_regained(
    world: World,
) -> None:
    """It was not, if the lease had lapsed before the partition was given back; and was lost."""
    made, part = world.made, world.part
    done: list[str] = []
    made.fetcher._kafka = SimpleNamespace(
        pause=lambda _: done.append("pause"), resume=lambda _: done.append("resume")
    )
    part.assigned = True
    part.proposed, part.fetched = 2, 1
    lapse(world.claim)
    made.fetcher.suspend(part, True)
    made.partitions.drain(part)
    made.partitions.advance(part)
    assert set(done) == {"pause"}
    regain(world.claim)
    made.partitions.advance(part)
    assert done[-1] == "resume"


def test_a_paused_partition_is_fetched_until_nothing_is_owed_and_no_further(world: World) -> None:
    """It was fetched to its end, into memory: it was paused while something was owed."""
    made, part = world.made, world.part
    kafka: Any = SimpleNamespace(paused=False, at=0)
    made.fetcher._kafka = SimpleNamespace(
        pause=lambda _: setattr(kafka, "paused", True),
        resume=lambda _: setattr(kafka, "paused", False),
    )
    made.delivery._adapt = lambda *_: None
    part.assigned, part.end = True, 10_000
    part.fetched, part.proposed, part.proposed_seq = 0, 100, 7
    world.claim.claimed_offset = part.end  # the log accepts whatever is proposed

    def fetch(most: int, wait_s: float = 0.0) -> int:
        first = kafka.at
        if kafka.paused or first == part.end:
            return 0
        kafka.at = min(first + most, part.end)
        world.fetch(*range(first, kafka.at))
        return int(kafka.at - first)

    def turns(count: int) -> list[int]:
        found = []
        for _ in range(count):
            found += world.handed_out()
            fetch(made.delivery.fetch_size)
        return found

    made.fetcher.fetch = fetch
    made.partitions.pause(part, True)
    assert not kafka.paused
    first = turns(100)
    assert (kafka.paused, part.is_owed) == (True, False)
    assert kafka.at < 1_000
    assert len(first) <= 100
    made.partitions.pause(part, False)
    assert first + turns(1_000) == list(range(10_000))


def test_what_was_claimed_of_a_partition_that_goes_waits_for_the_lease_too(world: World) -> None:
    made, part, claim = world.made, world.part, world.claim
    part.proposed = claim.claimed_offset = 2
    part.stage = Stage.DRAINING
    claim.leases = [False]
    world.fetch(0, 1, 2)
    assert world.handed_out() == []
    assert made.delivery.has_claimed(part)
    claim.leases = [True]
    assert world.handed_out() == [0, 1]


def test_a_partition_that_goes_between_two_looks_takes_what_was_claimed_with_it(
    world: World,
) -> None:
    world.part.proposed = world.claim.claimed_offset = 2
    world.fetch(0, 1, 2)
    world.part.stage = Stage.DRAINING
    world.made.delivery._propose_ready()
    assert world.handed_out() == [0, 1]
    assert world.claim.proposed == []


def test_a_loop_that_was_slow_and_is_fast_again_claims_ahead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_most_once, "time", SimpleNamespace(monotonic=lambda: 100.0))
    for _ in range(20):
        world.made.delivery._adapt(10, 0.0)  # 10 s for each
    assert world.made.delivery._unfetched_size == 1
    for _ in range(20):
        world.made.delivery._adapt(2_000, 100.0 - 0.000_1)
    assert world.made.delivery._unfetched_size == at_most_once.MAX_UNFETCHED


def test_a_run_that_began_before_the_partition_was_given_back_is_cut(world: World) -> None:
    world.fetch(0, 1)
    world.part.proposed = world.claim.claimed_offset = 1
    world.part.stage = Stage.DRAINING
    run: Run | None = world.made.delivery.next_run()
    assert offsets(run) == [0]


def test_what_the_loop_has_in_hand_when_it_is_closed_is_counted(world: World) -> None:
    in_hand, proposed = run_of(world.part, 0, 1, 2), run_of(world.part, 3, 4)
    next(in_hand.rest)
    world.made.delivery._proposed.append(proposed)
    world.made.delivery.close(in_hand)
    assert world.made.delivery.dropped == 4


def test_what_waits_for_its_lease_when_it_is_closed_is_counted(world: World) -> None:
    world.claim.claimed_offset = 2
    world.made.delivery.park(run_of(world.part, 0, 1, 2))
    world.made.delivery.close(None)
    assert world.made.delivery.dropped == 2
