"""What a consumer knows of a partition: positions, acknowledgements, what was put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from marshal_py.consumer.held_partition import (
    KEPT_IN_HANDS,
    Batch,
    HeldPartition,
    Run,
    Runs,
    Stage,
)
from marshal_py.protocol.claimant import Holding
from tests.unit.marshal_py.consumer.test_range_stream import a_range


def messages(*offsets: int) -> list[Any]:
    return [Message(topic="t", partition=3, offset=offset) for offset in offsets]


def held(*, manual: bool = False) -> HeldPartition:
    claim = SimpleNamespace(
        topic="t", partition=3, _core=SimpleNamespace(holding=Holding("t", 3, 0))
    )
    part = HeldPartition(claim, manual=manual)  # type: ignore[arg-type]
    part.start(10)
    return part


def begin(part: HeldPartition, *offsets: int) -> Run:
    run = Run(part, messages(*offsets))
    part.begin(run)
    return run


def test_it_is_settled_while_nothing_is_to_be_tried_again() -> None:
    part = held()
    claim: Any = part.claim
    claim.held = False
    assert part.is_settled  # somebody else has it
    claim.held = True
    assert not part.is_settled  # it is to be fetched
    part.stage = Stage.ACTIVE
    assert part.is_settled
    for name, value in (("out_of_range", True), ("reset_to", 3), ("suspended", True)):
        before = getattr(part, name)
        setattr(part, name, value)
        assert not part.is_settled
        setattr(part, name, before)
    claim.held = False
    assert not part.is_settled  # fetching is to pause
    claim.held, part.stage = True, Stage.DRAINING
    assert not part.is_settled


def test_a_message_in_hand_is_not_done() -> None:
    part = held()
    assert part.position() == 10
    run = begin(part, 10, 11, 14)
    assert part.position() == 10
    next(run.rest)
    assert part.position() == 10
    next(run.rest)
    assert part.position() == 11
    next(run.rest)
    assert part.position() == 14
    part.finish(run)
    assert part.position() == 15


def test_a_batch_in_hand_is_not_done_as_a_whole() -> None:
    part = held()
    run = begin(part, 10, 11, 12)
    run.be(run.messages, iter(()), whole=True)
    assert part.position() == 10
    part.finish(run)
    assert part.position() == 13


def test_what_is_put_back_is_not_done() -> None:
    part = held()
    run = begin(part, 10, 11, 12)
    next(run.rest)
    returned = next(run.rest)
    part.finish(run, returned=returned)
    assert part.position() == 11


def test_acknowledging_says_earlier_what_the_loop_would_say() -> None:
    part = held()
    run = begin(part, 10, 11)
    next(run.rest)
    part.acknowledge(10)
    assert part.position() == 11
    part.acknowledge(99)  # of another run
    assert part.position() == 11
    next(run.rest)
    part.finish(run)
    part.acknowledge(11)
    part.acknowledge(5)
    assert part.position() == 12


@pytest.mark.parametrize("order", [(10, 11, 14, 15), (15, 14, 11, 10), (11, 15, 10, 14)])
def test_positions_wait_for_the_lowest_that_is_not_acknowledged(order: tuple[int, ...]) -> None:
    part = held(manual=True)
    for offsets in ((10, 11), (14, 15)):
        run = begin(part, *offsets)
        list(run.rest)
        part.finish(run)
    waiting = {10, 11, 14, 15}
    for offset in order:
        assert part.outstanding == len(waiting)
        part.acknowledge(offset)
        waiting.discard(offset)
        assert part.position() == min(waiting, default=16)
    assert part.outstanding == 0


def test_what_was_put_back_is_not_waited_for() -> None:
    part = held(manual=True)
    first, second = begin(part, 10, 11), begin(part, 14, 15)
    list(first.rest)
    part.finish(first)
    part.acknowledge(10)
    part.acknowledge(11)
    part.finish(second, returned=second.messages[1])
    assert part.position() == 14
    part.acknowledge(14)
    assert part.position() == 15
    assert part.outstanding == 0


def test_all_of_it_may_be_put_back() -> None:
    part = held(manual=True)
    run = begin(part, 10, 11)
    part.finish(run, returned=run.messages[0])
    assert part.position() == 10
    assert part.outstanding == 0
    part.acknowledge(11)  # of an earlier claim: nobody waits for it
    assert part.position() == 10


def test_what_is_not_handed_out_yet_is_not_outstanding() -> None:
    part = held(manual=True)
    run = begin(part, 10, 11, 12)
    next(run.rest)
    assert part.outstanding == 1


def test_what_is_withdrawn_is_not_waited_for_and_still_ahead() -> None:
    part = held(manual=True)
    run = begin(part, 10, 11, 12)
    list(run.rest)
    part.finish(run)
    assert (part.ahead, part.outstanding) == (3, 3)
    part.acknowledge(11)
    assert (part.ahead, part.outstanding) == (3, 2)
    part.withdraw(1)
    assert (part.ahead, part.outstanding) == (3, 1)
    part.acknowledge(10)
    assert (part.ahead, part.position()) == (1, 12)


def test_between_two_runs_an_acknowledgement_moves_no_position_past_what_is_unhandled() -> None:
    part = held()
    part.acknowledge(9)
    assert part.position() == 10
    part.acknowledge(12)
    assert part.position() == 10
    run = begin(part, 10, 11, 12, 13)
    assert [message.offset() for message in run.rest] == [10, 11, 13]


class Loops(RuleBasedStateMachine):
    """A loop over one partition, left and entered again, and acknowledgements of any message."""

    def __init__(self) -> None:
        super().__init__()
        self.part = held()
        self.run: Run | None = None
        self.next_offset = 10
        self.handled: set[int] = set()
        self.taken: list[int] = []
        self.fetched: list[int] = []
        self.waiting: list[Any] = []

    @precondition(lambda self: self.run is None)
    @rule(count=st.integers(1, 5), gap=st.integers(1, 3))
    def fetch(self, count: int, gap: int) -> None:
        if not self.waiting:
            offsets = [self.next_offset + n * gap for n in range(count)]
            self.next_offset = offsets[-1] + 1
            self.fetched += offsets
            self.waiting = messages(*offsets)
        self.run = Run(self.part, self.waiting)
        self.waiting = []
        self.part.last_end = self.run.end
        self.part.begin(self.run)

    @precondition(lambda self: self.run is not None)
    @rule()
    def go_on(self) -> None:
        assert self.run is not None
        if self.taken:
            self.handled.add(self.taken[-1])
        message = next(self.run.rest, None)
        if message is None:
            self.part.finish(self.run)
            self.run, self.taken = None, []
        else:
            self.taken.append(message.offset())

    @precondition(lambda self: self.run is not None and not self.taken and self.has_rest)
    @rule()
    def take_all(self) -> None:
        assert self.run is not None
        self.run.be(self.run.messages, iter(()), whole=True)
        self.part.rewind(self.run)  # left by an exception

    @property
    def has_rest(self) -> bool:
        return self.run is not None and self.run.handed_out < len(self.run.messages)

    @precondition(lambda self: self.run is not None)
    @rule()
    def leave_and_enter(self) -> None:
        assert self.run is not None
        self.part.rewind(self.run)
        self.taken = []

    @precondition(lambda self: self.has_rest)
    @rule()
    def lapse(self) -> None:
        assert self.run is not None
        if self.taken:
            self.handled.add(self.taken[-1])
        rest = list(self.run.rest)
        self.part.finish(self.run, returned=rest[0])
        self.waiting, self.run, self.taken = rest, None, []

    @rule(back=st.integers(0, 8))
    def acknowledge(self, back: int) -> None:
        if self.fetched:
            offset = self.fetched[max(0, len(self.fetched) - 1 - back)]
            self.part.acknowledge(offset)
            self.handled.add(offset)

    @rule()
    def reach_the_end(self) -> None:
        self.part.reached(self.next_offset)

    @invariant()
    def nothing_unhandled_lies_below_the_position(self) -> None:
        open_ones = [offset for offset in self.fetched if offset not in self.handled]
        assert self.part.position() <= min(open_ones, default=self.next_offset)


TestLoops = Loops.TestCase


def test_what_an_earlier_holder_has_done_is_not_handed_out_again() -> None:
    part = held(manual=True)
    part.start(10, ((12, 14), (15, 30)))
    run = part.without_done(Run(part, messages(10, 11, 12, 13, 14)))
    assert run is not None
    assert [message.offset() for message in run.messages] == [10, 11, 14]
    part.begin(run)
    assert part.without_done(Run(part, messages(15, 20, 22))) is None
    for offset in (10, 11):
        part.acknowledge(offset)
    assert part.position() == 14
    assert part.done_above() == (14, ((15, 30),))
    part.acknowledge(14)
    assert part.position() == 30


@pytest.mark.parametrize("manual", [False, True])
def test_a_position_passes_offsets_where_no_message_is(manual: bool) -> None:
    """What was done before lies behind a gap: the offsets between count as done as well."""
    part = held(manual=manual)
    part.start(10, ((17, 20),))
    for offsets in ((10, 11), (17, 19)):
        whole = Run(part, messages(*offsets))
        part.last_end = whole.end
        run = part.without_done(whole)
        if run is None:
            continue
        part.begin(run)
        list(run.rest)
        part.finish(run)
    for offset in (10, 11):
        part.acknowledge(offset)
    assert part.position() == 20
    part.reached(25)
    assert part.position() == 25


@pytest.mark.parametrize("manual", [False, True])
def test_the_end_of_a_partition_is_reached_when_all_before_it_is_done(manual: bool) -> None:
    part = held(manual=manual)
    part.reached(12)  # a transaction that was aborted
    assert part.position() == 12
    run = Run(part, messages(12, 13))
    part.last_end = run.end
    part.reached(15)
    assert part.position() == 10 if manual else 12
    part.begin(run)
    assert part.position() < 14
    list(run.rest)
    assert part.position() < 14
    part.finish(run)
    for offset in (12, 13):
        part.acknowledge(offset)
    assert part.position() == 15


def test_of_what_is_still_to_be_fetched_nobody_has_done_anything_when_reading_goes_on() -> None:
    """It may be other messages than an earlier holder has done."""
    part = held()
    part.start(10, done_before=((12, 14), (18, 25), (28, 30)))
    part.last_end = 20
    part.read_on(20)
    assert part.done_before == ((12, 14), (18, 20))
    assert (part.position(), part.tail) == (10, (-1, -1))


def test_what_is_done_above_the_position_is_known() -> None:
    part = held(manual=True)
    for offsets in ((10, 11, 12, 15), (16, 17, 20)):
        begin(part, *offsets)
    for offset in (11, 12, 15, 16, 20):
        part.acknowledge(offset)
    assert part.position() == 10
    assert part.done_above() == (10, ((11, 17), (20, 21)))


def test_a_partition_tells_about_itself() -> None:
    part = held()
    part.stage = Stage.ACTIVE
    assert repr(part) == "<t/3 active position=10>"
    part.claim._core.log_fields = {"topic": "t"}  # type: ignore[misc]
    assert part.log_fields == {"topic": "t"}
    batch = Batch(messages(1, 2), part.claim)
    assert (batch.topic, batch.partition, len(batch)) == ("t", 3, 2)


def test_runs_in_a_row_know_how_much_they_hold() -> None:
    part, runs = held(), Runs()
    one, two, three = (
        Run(part, [Message(value=bytes(size), offset=n) for n in range(count)])
        for count, size in ((1, 5), (2, 10), (3, 100))
    )
    runs.extend([one, two])
    runs.extendleft([three])
    assert [*runs] == [three, one, two]
    assert (runs.total, runs.total_bytes) == (6, 325)
    assert runs.pop() is two
    assert runs.popleft() is three
    assert (runs.total, runs.total_bytes) == (1, 5)
    runs.append(two)
    assert (runs.total, runs.total_bytes) == (3, 25)


def test_runs_that_two_threads_add_to_know_how_much_they_hold() -> None:
    part, runs = held(), Runs()
    other = Run(part, [Message(value=b"12", offset=9)])

    class LookedAt(Run):
        """While it is looked at, another thread comes in between."""

        @property
        def messages(self) -> list[Any]:
            if other not in runs:
                runs.append(other)
            return super().messages  # type: ignore[no-any-return]

    run = LookedAt(part, [Message(value=b"123", offset=n) for n in range(2)])
    run.bytes = 6
    runs.append(run)
    assert (runs.total, runs.total_bytes) == (3, 8)
    assert runs.popleft() is other
    assert runs.popleft() is run
    assert (runs.total, runs.total_bytes) == (1, 2)


def test_a_run_that_is_cut_leaves_no_bytes_behind_as_it_goes_elsewhere() -> None:
    """How large its messages are is estimated: those that nobody looked at may be larger."""
    sizes = [1, 1_000_000, 1] * 14  # each third one is looked at
    run = Run(held(), [Message(value=bytes(size), offset=n) for n, size in enumerate(sizes)])
    here, there = Runs(), Runs()
    here.append(run)
    here.cut(0, 20)
    assert all(part.bytes >= 0 for part in here)
    while here:
        there.append(here[0])  # first: it must be found somewhere, always
        here.popleft()
    assert (here.total, here.total_bytes) == (0, 0)
    while there:
        there.popleft()
    assert (there.total, there.total_bytes) == (0, 0)


def test_of_what_was_in_hand_when_claims_ended_the_latest_is_remembered() -> None:
    part = held()
    part.in_hands_before = tuple((n, n + 1) for n in range(0, 2 * KEPT_IN_HANDS, 2))
    begin(part, 1_000, 1_001)
    in_hands = part.in_hands()
    assert len(in_hands) == KEPT_IN_HANDS
    assert (in_hands[0], in_hands[-1]) == ((2, 3), (1_000, 1_002))


@pytest.mark.parametrize("manual", [False, True])
def test_it_knows_which_messages_were_handed_out(manual: bool) -> None:
    """Of a slot whose keys a deserializer has changed, nothing else tells whose a message is."""
    part = held(manual=manual)
    assert not part.has_handed_out(10)
    begin(part, 10, 12)
    assert [n for n in range(9, 14) if part.has_handed_out(n)] == [10, 12]


def test_whoever_goes_back_passes_nothing_again() -> None:
    """What was no message there may be one now, as of a topic that was made anew."""
    part = held()
    part.reached(14)
    assert (part.position(), part.has_begun) == (14, True)
    part.start(10)
    assert (part.position(), part.has_begun) == (10, False)


@pytest.mark.parametrize("manual", [False, True])
def test_of_what_is_acknowledged_nothing_is_kept_as_it_came(manual: bool) -> None:
    part = held(manual=manual)
    part.raw = {10: (b"k", b"v"), 11: (b"k", b"w")}
    begin(part, 10, 11)
    part.acknowledge(10)
    assert part.raw == {11: (b"k", b"w")}


def test_what_is_cut_off_a_run_waits_for_the_same_verdict() -> None:
    """At most once: nothing goes out before the log has said that its messages are claimed."""
    part, runs = held(), Runs()
    run = Run(part, messages(10, 11, 12))
    run.seq = 7
    runs.append(run)
    runs.cut(0, 1)
    assert [([m.offset() for m in each.messages], each.seq) for each in runs] == [
        ([10], 7),
        ([11, 12], 7),
    ]


def test_how_many_messages_were_handed_out_is_known_without_those_that_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By that, and by how long it took, it is known how fast they are handled."""
    now_s = [100.0]
    monkeypatch.setattr("marshal_py.consumer.held_partition.time.monotonic", lambda: now_s[0])
    part = held()
    run = begin(part, 10, 11, 12)
    assert (part.handed, part.first_s, part.worked_s) == (3, 100.0, 0.0)
    now_s[0] += 2
    part.finish(run, returned=run.messages[1])
    assert (part.handed, part.worked_s) == (1, 2.0)
    now_s[0] += 5
    run = begin(part, 11, 12)
    now_s[0] += 1
    part.finish(run)
    assert (part.handed, part.first_s, part.worked_s) == (3, 100.0, 3.0)


def test_of_what_a_loop_is_done_with_no_acknowledgement_is_kept() -> None:
    part = held()
    run = begin(part, 10, 11)
    part.acknowledge(10)
    part.acknowledge(20)  # put back by an earlier loop
    part.finish(run)
    assert part._done <= {20}


def test_an_acknowledgement_of_what_was_not_handed_out_counts_for_nothing_later() -> None:
    """It was handed out under an earlier claim; it comes again under this one."""
    part = held(manual=True)
    part.acknowledge(20)
    begin(part, 10)
    part.acknowledge(10)
    assert part.position() == 11
    begin(part, 20)
    assert part.position() == 20


def test_what_is_left_of_a_run_whose_range_was_cut_short_waits_for_the_same_verdict() -> None:
    part = a_range(10, 12)
    run = Run(part, messages(10, 11, 12))
    run.seq = 7
    rest = part.below_end(run)
    assert rest is not None
    assert ([m.offset() for m in rest.messages], rest.seq) == ([10, 11], 7)
    assert part.below_end(rest) is rest
    assert part.below_end(Run(part, messages(12, 13))) is None
