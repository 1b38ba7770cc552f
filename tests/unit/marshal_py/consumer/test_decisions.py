"""What a consumer hands out next, and what it wants: decisions that the histories of
tests/simulation/whole seldom need, each by itself."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.consumer import at_most_once
from marshal_py.consumer import iteration as iterating
from marshal_py.consumer.assignor import Assignor, Decision
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.fetcher import FETCH
from marshal_py.consumer.held_partition import HeldPartition, Run, Stage
from marshal_py.errors import (
    ConfigurationError,
    DeserializationFailed,
    DuplicateClientId,
    NotHeld,
)
from marshal_py.protocol.balance import Plan, Unit
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.events import MemberJoined
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS

FAR = 2**62


class FakeClaim:
    """A claim whose lease is what the test says, at each look; the last answer stays."""

    def __init__(self, *held: bool) -> None:
        self.topic, self.partition = "t", 0
        self.claimed_offset = 0
        self.epoch = 3
        self.metadata = b""
        self.stored_offset = -1
        self.leases = list(held) or [True]
        self.position = self.next_offset = -1
        self._core: Any = SimpleNamespace(
            ended=threading.Event(),
            holding=SimpleNamespace(lease_until_ns=FAR, state=ClaimState.HELD, paused=False),
            propose=self._propose,
            log_fields={},
        )
        self.released = 0
        self.proposed: list[int] = []

    def _propose(self, end: int) -> int:
        self.proposed.append(end)
        return 100 + len(self.proposed)

    @property
    def held(self) -> bool:
        return self.leases.pop(0) if len(self.leases) > 1 else self.leases[0]

    def release(self, *, wait: bool) -> None:
        assert not wait
        self.released += 1


@pytest.fixture(params=["at_least_once", "at_most_once"])
def any_consumer(request: pytest.FixtureRequest) -> Any:
    return consumer(request.param)


def consumer(mode: Any = "at_least_once") -> Any:
    """The parts of one that was never connected, in the middle of its loop: nothing comes."""
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", mode=mode)._core
    made.iteration.is_looping = True
    made.fetcher.fetch = lambda *_: 0
    made.partitions._agreement.allows = lambda _: True  # no log was read that could say otherwise
    if mode == "at_most_once":  # its loop has been found to be fast
        made.delivery._pace, made.delivery._proposal_size = 1_000_000.0, 100
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
    claim.leases, claim._core.holding.lease_until_ns = [False], 0


def regain(claim: FakeClaim) -> None:
    claim.leases, claim._core.holding.lease_until_ns = [True], FAR


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("fetched", [[], [3, 4]])
def test_what_the_lease_interrupted_goes_on_in_order_when_it_is_regained(
    fetched: list[int], looks: bool
) -> None:
    made, claim = consumer(), FakeClaim()
    part = part_of(claim)
    run = run_of(part, 0, 1, 2)
    part.begin(run)
    handing_out = made.iteration.hand_out(run)
    assert next(handing_out).offset() == 0
    lapse(claim)
    assert next(handing_out, None) is None
    if fetched:
        made.delivery._ready.append(run_of(part, *fetched))
    assert not looks or made.delivery.next_run() is None
    regain(claim)
    again = [offsets(made.delivery.next_run()) for _ in range(3)]
    assert list(filter(None, again)) == [[1, 2], *filter(None, [fetched])]


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.ACTIVE])
def test_of_a_partition_that_is_given_back_nothing_more_goes_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterating, "LOOK_S", 3600.0)  # no look at the clock comes in between
    made = consumer()
    part = part_of(FakeClaim())
    run = run_of(part, 0, 1, 2)
    part.begin(run)
    handing_out = made.iteration.hand_out(run)
    assert next(handing_out).offset() == 0
    part.stage = stage
    assert next(handing_out, None) is None
    assert part.position() == 1


def test_what_was_claimed_is_waited_for_though_the_loop_was_left() -> None:
    """At most once: a partition that moves would take it along, and nobody would get it."""
    made, claim = consumer("at_most_once"), FakeClaim()
    part = part_of(claim)
    run = made.iteration.hand = run_of(part, 0, 1, 2)
    part.begin(run)
    handing_out = made.iteration.hand_out(run)
    assert next(handing_out).offset() == 0
    made.iteration.leave()
    part.stage = Stage.DRAINING
    assert made.busy_with(part)
    made.iteration.enter(starts=False)
    assert [message.offset() for message in made.iteration.hand_out(run)] == [1, 2]
    made.iteration.leave()
    assert not made.busy_with(part)


def test_what_was_claimed_and_is_taken_from_the_loop_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(iterating, "LOOK_S", 3600.0)  # no look at the clock comes in between
    made = consumer("at_most_once")
    part = part_of(FakeClaim())
    run = made.iteration.hand = run_of(part, 0, 1, 2)
    part.begin(run)
    handing_out = made.iteration.hand_out(run)
    assert next(handing_out).offset() == 0
    part.stage = Stage.RELEASING  # its claim was lost
    assert next(handing_out, None) is None
    assert made.delivery.dropped == 2
    made.delivery.close(made.iteration.hand)
    assert made.delivery.dropped == 2


def test_a_batch_that_was_handed_out_is_not_done_before_the_loop_comes_back() -> None:
    made = consumer()
    part = part_of(FakeClaim())
    run = run_of(part, 5, 6, 7)
    part.begin(run)
    made.iteration.hand = run
    batch = made.iteration.take_batch(run)
    assert batch is not None
    assert [message.offset() for message in batch] == [5, 6, 7]
    assert part.position() == 5
    made.iteration.settle()
    assert part.position() == 8


def test_what_has_lapsed_is_not_fetched_though_the_assignment_is_kept_from_looking(
    any_consumer: Any,
) -> None:
    """It may be in `on_assigned` for minutes; meanwhile the loop would read the whole topic."""
    made, claim = any_consumer, FakeClaim()
    part = part_of(claim)
    done: list[str] = []
    made.fetcher._kafka = SimpleNamespace(
        pause=lambda _: done.append("pause"), resume=lambda _: done.append("resume")
    )
    part.assigned = True
    made.fetcher.active[part.key] = part
    lapse(claim)
    made.fetcher._add(part, run_of(part, 0, 1).messages)
    made.fetcher._add(part, run_of(part, 2, 3).messages)
    assert made.delivery.next_run() is None
    assert done == ["pause"]
    regain(claim)
    made.delivery.next_run()
    assert done == ["pause", "resume"]


def test_what_is_fetched_does_not_overtake_what_waits_for_the_lease() -> None:
    """The lease is regained between two looks at it."""
    made, claim = consumer(), FakeClaim(False, True)
    part = part_of(claim)
    made.delivery._parked.add(run_of(part, 0, 1))
    made.delivery._ready.append(run_of(part, 2, 3))
    assert made.delivery.next_run() is None
    assert [offsets(made.delivery.next_run()) for _ in range(3)] == [[0, 1], [2, 3], []]


def test_what_was_claimed_does_not_overtake_what_waits_for_the_lease() -> None:
    """At most once. The lease is regained between two looks at it."""
    made, claim = consumer("at_most_once"), FakeClaim(False, True)
    part = part_of(claim)
    claim.claimed_offset = 4
    waiting, later = run_of(part, 0, 1), run_of(part, 2, 3)
    waiting.seq = later.seq = 9
    made.delivery._parked.add(waiting)
    made.delivery._proposed.append(later)
    assert made.delivery.next_run() is None
    assert [offsets(made.delivery.next_run()) for _ in range(3)] == [[0, 1], [2, 3], []]


def test_what_waited_for_the_lease_comes_before_what_was_claimed_later() -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    part = part_of(claim)
    claim.claimed_offset = 4
    waiting, later = run_of(part, 0, 1), run_of(part, 2, 3)
    waiting.seq = later.seq = 9
    made.delivery._parked.add(waiting)
    made.delivery._proposed.append(later)
    assert [offsets(made.delivery.next_run()) for _ in range(3)] == [[0, 1], [2, 3], []]


def test_a_partition_starts_where_the_cell_says_and_not_below_what_was_claimed() -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    claim.position, claim.next_offset, claim.claimed_offset = 7, 3, 7
    part = part_of(claim)
    part.stage = Stage.WANTED
    assigned: list[int] = []
    made.fetcher.assign = lambda _, at: assigned.append(at)
    made.partitions.advance(part)
    assert assigned == [7]
    assert part.floor == 7


def test_a_pause_of_the_group_ends_the_handing_out(any_consumer: Any) -> None:
    part = part_of(FakeClaim())
    part.run = run_of(part, 0, 1)  # in the user's hands, and waited for
    part.holding.paused = True
    any_consumer.partitions.advance(part)
    assert part.stage is Stage.DRAINING


@pytest.mark.parametrize("ended", [False, True])
def test_messages_that_the_log_has_not_given_to_us_are_not_handed_out(ended: bool) -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    run = run_of(part_of(claim), 0, 1)
    run.seq = 9
    assert made.delivery._verdict(run) is None
    if ended:
        claim._core.ended.set()
    else:
        made.delivery._verdicts[9] = "not_higher"
    assert made.delivery._verdict(run) is False
    claim.claimed_offset = 2
    assert made.delivery._verdict(run) is True


def test_what_was_gathered_is_proposed_once_for_each_partition_and_keeps_its_order() -> None:
    made, claims = consumer("at_most_once"), (FakeClaim(), FakeClaim())
    one, two = map(part_of, claims)
    made.delivery._gathered.extend(
        [run_of(one, 0, 1), run_of(two, 0), run_of(one, 2), run_of(two, 1, 2)]
    )
    made.delivery._top_up()
    assert [claim.proposed for claim in claims] == [[3], [3]]
    assert made.delivery.has_claimed(one)
    claims[0].claimed_offset = claims[1].claimed_offset = 3
    handed_out = [made.delivery.next_run() for _ in range(5)]
    assert [offsets(run) for run in handed_out if run and run.part is one] == [[0, 1], [2]]
    assert [offsets(run) for run in handed_out if run and run.part is two] == [[0], [1, 2]]


def test_while_a_proposal_is_under_way_small_ones_are_not_added() -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    part = part_of(claim)
    made.delivery._gathered.append(run_of(part, 0))
    made.delivery._top_up()
    made.delivery._gathered.append(run_of(part, 1))
    made.delivery._top_up()
    assert claim.proposed == [1]
    made.delivery._gathered.append(run_of(part, *range(2, 2 + made.delivery._proposal_size)))
    made.delivery._top_up()
    assert claim.proposed == [1, 2 + made.delivery._proposal_size]


@pytest.mark.parametrize("ended", [False, True])
def test_nothing_of_a_rejected_proposal_is_handed_out_nor_waited_for(ended: bool) -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    part = part_of(claim)
    made.delivery._gathered.extend([run_of(part, 0, 1), run_of(part, 2), run_of(part, 3)])
    made.delivery._top_up()
    if ended:
        claim._core.ended.set()
    made.marshal.cell = lambda *_: None
    made.delivery._verdicts[101] = "epoch"
    assert made.delivery.next_run() is None
    assert not made.delivery._proposed
    assert not made.delivery._verdicts


def test_a_proposal_of_unknown_outcome_is_made_again_for_all_that_was_in_it() -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    part = part_of(claim)
    made.delivery._gathered.extend([run_of(part, 0, 1), run_of(part, 2), run_of(part, 3)])
    made.delivery._top_up()
    made.delivery._verdicts[101] = "unknown outcome"
    cell: Any = SimpleNamespace(held=True, epoch=claim.epoch, claimed_offset=0)
    made.marshal.cell = lambda *_: cell
    assert made.delivery._verdict(made.delivery._proposed[0]) is None
    assert claim.proposed == [4, 4]
    assert [run.seq for run in made.delivery._proposed] == [102, 102, 102]
    claim.claimed_offset = 4
    assert [offsets(made.delivery.next_run()) for _ in range(3)] == [[0, 1], [2], [3]]


def test_of_large_messages_no_more_is_gathered_than_memory_is_meant_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(at_most_once, "AHEAD_BYTES", 10_000)
    made, claim = consumer("at_most_once"), FakeClaim()
    part, asked = part_of(claim), []

    def fetch(most: int, wait_s: float = 0.0) -> int:
        asked.append(most)
        first = sum(asked[:-1])
        made.delivery._gathered.append(
            Run(part, [Message(value=bytes(1_000), offset=first + n) for n in range(most)])
        )
        part.fetched = first + most
        return most

    made.fetcher.fetch = fetch
    made.delivery._top_up()
    assert asked == [1, 9]  # one to see how large they are, and as many as there is room for
    assert claim.proposed == [10]
    made.delivery._top_up()
    assert sum(asked) == 10
    claim.claimed_offset = 10
    for n in range(2):
        assert made.delivery.next_run() is not None
        assert (
            made.delivery._proposed.total_bytes + made.delivery._gathered.total_bytes == 10_000
        ), n


def test_what_is_fetched_is_sorted_by_topic_and_partition_in_order() -> None:
    made = consumer()
    keys = [("t", 0), ("t", 1), ("u", 1)]
    parts = {}
    for key in keys:
        claim = FakeClaim()
        claim.topic, claim.partition = key
        parts[key] = made.fetcher.active[key] = part_of(claim)
    order = [("t", 0), ("t", 1), ("t", 1), ("u", 1), ("t", 0), ("v", 0), ("t", 1)]
    for wanted in (order, [k for k in order if k[0] == "t"], [("t", 1)] * 3, [("v", 7)] * 2):
        made.fetcher.topics_seen = {topic for topic, _ in wanted}
        made.fetcher._sort_out(
            [Message(topic=t, partition=p, offset=n) for n, (t, p) in enumerate(wanted)]
        )
        found = {run.part.key: offsets(run) for run in made.delivery._ready}
        assert found == {
            key: [n for n, k in enumerate(wanted) if k == key] for key in keys if key in wanted
        }
        assert all(run.part is parts[run.part.key] for run in made.delivery._ready)
        made.delivery._ready.clear()


def test_what_cannot_be_proposed_any_more_is_not_kept() -> None:
    made, claim = consumer("at_most_once"), FakeClaim()
    part = part_of(claim)
    made.delivery._gathered.append(run_of(part, 0))

    def refuse(_: int) -> int:
        raise NotHeld("released meanwhile")

    claim._core.propose = refuse
    made.delivery._top_up()
    assert not made.delivery.has_claimed(part)


def test_a_loop_that_is_held_up_for_a_moment_is_not_taken_for_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(at_most_once, "time", SimpleNamespace(monotonic=lambda: 100.0))
    made = consumer("at_most_once")
    made.delivery._proposal_size = at_most_once.MAX_PROPOSAL
    made.delivery._adapt(10, 100.0 - 0.010)
    for _ in range(40):
        made.delivery._adapt(100, 100.0 - 0.000_03)
    assert made.delivery._proposal_size == at_most_once.MAX_PROPOSAL
    for _ in range(10):
        made.delivery._adapt(10, 100.0 - 0.1)  # 10 ms for each message
    assert made.delivery._proposal_size == 1


@contextmanager
def collections() -> Iterator[list[int]]:
    """Count how often the garbage collector goes round."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


@pytest.mark.parametrize("in_batches", [False, True])
def test_handing_out_does_not_set_the_garbage_collector_going(in_batches: bool) -> None:
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t")._core
    made.started = True
    part = part_of(FakeClaim())
    made.fetcher.active[part.key] = part
    count = itertools.count()

    def consume(most: int, _: float) -> list[Message]:
        return [Message(topic="t", partition=0, offset=next(count)) for _ in range(most)]

    made.fetcher._kafka = SimpleNamespace(consume=consume)
    fetches = 100
    with collections() as found:
        if in_batches:
            for batch in itertools.islice(made.iteration.batches(), fetches):
                assert len(batch) == FETCH
        else:
            for message in itertools.islice(made.iteration.messages(), fetches * FETCH):
                assert message.partition() == 0
    assert len(found) < fetches / 10


def test_what_others_got_is_not_wanted_any_more(any_consumer: Any) -> None:
    made, claim = any_consumer, FakeClaim()
    claim._core.holding.state = ClaimState.WAITING
    part = part_of(claim)
    part.stage = Stage.WANTED
    made.partitions.by_key[part.key] = part
    claims = made.shared._claims
    made.topics.counts = {"t": 1}
    holders: dict[Unit, str | None] = {("t", 0): "somebody else"}

    def look(plan: Plan) -> Any:
        seen = Decision(plan, (), holders, paused=False, settling=False)
        return SimpleNamespace(decide=lambda *_: seen)

    claims._assignor = look(Plan(claim=(("t", 0),)))
    claims._plan(1e9)
    assert (claim.released, list(made.partitions.by_key)) == (0, [("t", 0)])
    claims._assignor = look(Plan())
    claims._plan(2e9)
    assert (claim.released, list(made.partitions.by_key)) == (1, [])


def test_nothing_is_given_up_while_who_joined_takes_nothing_yet() -> None:
    made, claim = consumer(), FakeClaim()
    part = part_of(claim)
    made.partitions.by_key[part.key] = part
    claims = made.shared._claims
    made.topics.counts = {"t": 1}

    def stage() -> Stage:
        return part.stage

    look = Decision(Plan(give_up=part.key), (), {part.key: "me"}, paused=False, settling=False)
    claims._assignor = SimpleNamespace(decide=lambda *_: look._replace(newcomers_settling=True))
    claims._plan(1e9)
    assert stage() is Stage.ACTIVE
    assert made.wakeup.plan_due  # and is looked at again soon
    claims._assignor = SimpleNamespace(decide=lambda *_: look)
    claims._plan(2e9)
    assert stage() is Stage.DRAINING


def test_those_who_join_one_after_the_other_are_waited_for_but_not_for_ever() -> None:
    now_ms = [1_000_000]
    marshal: Any = SimpleNamespace(
        client_id="me", group_id="g", _driver=SimpleNamespace(clock=lambda: now_ms[0] * MS)
    )
    assignor = Assignor(marshal, Subscription(frozenset({"t"})), settle_ms=100)
    quiet = []
    for _ in range(20):
        assignor.is_affected_by([MemberJoined(5, "c", "i", "g", 1, 1_000)])
        now_ms[0] += 90
        quiet.append(not assignor._are_newcomers_settling(now_ms[0] * MS))
    assert quiet == [False] * 11 + [True] * 9
    now_ms[0] += 100
    assert not assignor._are_newcomers_settling(now_ms[0] * MS)
    assignor.is_affected_by([MemberJoined(5, "c", "i", "g", 1, 1_000)])
    assert assignor._are_newcomers_settling(now_ms[0] * MS)


def test_the_claimant_is_told_of_a_position_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat carries only what its claimant knows to have changed."""
    made, claim = consumer(), FakeClaim()
    part = part_of(claim)
    made.partitions.by_key[part.key] = part
    claim._core.holding.epoch = 3
    told: list[int] = []
    claimant = SimpleNamespace(advance=lambda _, position: told.append(position))
    marshal = SimpleNamespace(_driver=SimpleNamespace(claimant=claimant))
    monkeypatch.setattr(made.partitions, "_marshal", marshal)
    monkeypatch.setattr(HeldPartition, "position", lambda _: 7)
    made.topics.ids_known.set()
    made.partitions.refresh_offsets()
    assert told == [7]


@pytest.mark.parametrize(
    ("kind", "wakes"),
    [("held", True), ("lost", True), ("released", True), ("lapsed", True), ("stored", False)],
)
def test_whatever_happens_to_a_claim_has_the_assignment_look(kind: Any, wakes: bool) -> None:
    made, woken = consumer(), list[str]()
    made.delivery._wakeup = SimpleNamespace(wake=lambda: woken.append(kind))
    made.delivery.on_notice(SimpleNamespace(kind=kind))
    assert woken == [kind] * wakes


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_batch_that_is_put_back_as_it_was_decoded_is_decoded_once_when_it_comes_again(
    mode: Any,
) -> None:
    """Its deserializer was given what it had made of the message, and failed."""
    core: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", mode=mode, decode=len)._core
    claim = FakeClaim()
    claim.claimed_offset = 3
    part = part_of(claim)
    core.fetcher.fetch = lambda *_: 0
    decode = core.deserializers.apply

    def taken(run: Run) -> list[Any] | None:
        part.begin(run)
        core.delivery.began()
        core.iteration.hand = run
        batch = core.iteration.take_batch(run)
        return batch if batch is None else [message.value() for message in batch]

    def cut_meanwhile(message: Any) -> Any:
        part.is_cut = True  # by the thread that gives ranges back
        return decode(message)

    run = Run(part, [Message(topic="t", partition=0, offset=o, value=b"abc") for o in (0, 1, 2)])
    run.seq = 7  # at most once: it was claimed
    core.deserializers.apply = cut_meanwhile
    assert taken(run) is None
    core.deserializers.apply, part.is_cut = decode, False
    run = core.delivery.next_run()
    assert offsets(run) == [0, 1, 2]
    assert taken(run) == [3, 3, 3]


def test_a_client_that_has_failed_for_good_ends_the_loop(any_consumer: Any) -> None:
    driver_of(any_consumer.marshal).failure = DuplicateClientId("another process has its name")
    with pytest.raises(DuplicateClientId):
        any_consumer.iteration.next_run(0.0)


def test_a_loop_that_was_left_works_on_nothing_now() -> None:
    made = consumer()
    part = part_of(FakeClaim())
    run = made.iteration.hand = run_of(part, 0, 1)
    part.begin(run)
    assert next(made.iteration.hand_out(run)).offset() == 0
    assert made.in_use(part)
    made.iteration.leave()
    assert not made.in_use(part)


@pytest.mark.parametrize("in_batches", [False, True])
def test_what_a_loop_comes_back_to_is_decoded_from_what_came(in_batches: bool) -> None:
    core: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", decode=len)._core
    part = part_of(FakeClaim())
    run = Run(part, [Message(topic="t", partition=0, offset=o, value=b"abc") for o in (0, 1)])
    part.begin(run)
    core.iteration.hand = run
    for _ in range(2):
        core.iteration.enter(starts=False)
        if in_batches:
            made = core.iteration.take_batch(run)
        else:
            made = [core.iteration.deserialize(next(core.iteration.hand_out(run)))]
        assert {message.value() for message in made} == {3}
        core.iteration.leave()


def test_of_a_batch_that_cannot_be_read_nothing_is_decoded() -> None:
    core: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", decode=lambda v: int(v))._core
    part = part_of(FakeClaim())
    values = [b"1", b"2", b"no number"]
    made = [Message(topic="t", partition=0, offset=n, value=v) for n, v in enumerate(values)]
    run = core.iteration.hand = Run(part, made)
    part.begin(run)
    with pytest.raises(DeserializationFailed):
        core.iteration.take_batch(run)
    assert [message.value() for message in made] == values


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_range_that_is_over_is_looked_at_when_its_last_message_is_done(mode: Any) -> None:
    made, woken = consumer(mode), list[bool]()
    made.iteration._wakeup = SimpleNamespace(wake=lambda: woken.append(True))
    for is_over in (False, True):
        part: Any = SimpleNamespace(acknowledge=lambda _: None, stage=Stage.ACTIVE, is_over=is_over)
        made.iteration.acknowledge(part, 3)
        assert bool(woken) is is_over


def test_who_was_refused_a_client_frees_it_for_nobody() -> None:
    marshal = Marshal("127.0.0.1:1", group_id="g")
    first, second = (Consumer(marshal, topics="t")._core for _ in range(2))
    first._attach()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="another consumer runs with this Marshal"):
            second._attach()
        second._detach()
    first._detach()
    second._attach()


@pytest.mark.parametrize("in_handlers", [False, True])
@pytest.mark.parametrize("claimed", [False, True])
def test_what_handlers_have_or_are_to_get_keeps_a_partition(
    claimed: bool, in_handlers: bool
) -> None:
    """At most once, what was claimed and is still to come would be lost."""
    made, part = consumer("at_most_once"), part_of(FakeClaim())
    made.handlers = SimpleNamespace(busy_with=lambda _: in_handlers, runs=lambda _: in_handlers)
    made.delivery.has_claimed = lambda _: claimed
    assert made.busy_with(part) is (claimed or in_handlers)
    assert made.in_use(part) is in_handlers
