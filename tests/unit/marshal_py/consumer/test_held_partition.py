"""What a consumer knows of a partition: positions, acknowledgements, what was put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from marshal_py.consumer.held_partition import Batch, HeldPartition, Run, Runs, Stage
from marshal_py.protocol.claimant import Holding


def messages(*offsets: int) -> list[Any]:
    return [Message(topic="t", partition=3, offset=offset) for offset in offsets]


def held(*, manual: bool = False) -> HeldPartition:
    claim = SimpleNamespace(
        topic="t", partition=3, core=SimpleNamespace(holding=Holding("t", 3, 0))
    )
    part = HeldPartition(claim, manual=manual)  # type: ignore[arg-type]
    part.start(10)
    return part


def begin(part: HeldPartition, *offsets: int) -> Run:
    run = Run(part, messages(*offsets))
    part.begin(run)
    return run


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
    run.whole, run.rest = True, iter(())
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


def test_between_two_runs_an_acknowledgement_moves_the_position_up_only() -> None:
    part = held()
    part.acknowledge(9)
    assert part.position() == 10
    part.acknowledge(12)
    assert part.position() == 13


def test_a_partition_tells_about_itself() -> None:
    part = held()
    assert not part.deliverable
    part.stage = Stage.ACTIVE
    assert part.deliverable
    assert repr(part) == "<t/3 active position=10>"
    part.claim.core.log_fields = {"topic": "t"}
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
