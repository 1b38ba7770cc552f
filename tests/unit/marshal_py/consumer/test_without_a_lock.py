"""What is read and written without a lock, with a switch of threads between any two lines.

The loop hands out and finishes; another thread reads the position, as a heartbeat does, or
acknowledges. A position may never pass what is not done: it would be stored, and a message lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from marshal_py.consumer import at_most_once, held_partition, iteration, ranges
from marshal_py.consumer import consumer as consumer_module
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.handlers import ending
from marshal_py.consumer.handlers.ending import Ending
from marshal_py.consumer.held_partition import HeldPartition, Run, Runs
from marshal_py.consumer.ranges import RangeClaims
from tests.support.interleave import Case, explore, locks
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim, consumer, part_of, run_of
from tests.unit.marshal_py.consumer.test_held_partition import begin, held, messages

PARTITION = [held_partition]
test_module = sys.modules[__name__]


def read_twice(part: HeldPartition) -> Callable[[], tuple[int, int]]:
    return lambda: (part.position(), part.position())


def take(run: Run, count: int) -> Run:
    for _ in range(count):
        next(run.rest)
    return run


def test_the_position_is_never_beyond_what_the_loop_has_in_hand() -> None:
    def case() -> Case:
        part = held()
        low = [10]
        """The first message that is not done, once the loop has said so."""

        def loop() -> None:
            run = begin(part, 10, 12, 15)
            for offset in (10, 12, 15):
                low.append(offset)  # whoever asks for the next one has done those before
                next(run.rest)
            low.append(16)
            part.finish(run)

        def read() -> list[tuple[int, int]]:
            return [(part.position(), low[-1]) for _ in range(2)]

        def check(_: Any, read: list[tuple[int, int]]) -> None:
            positions = [position for position, _ in read]
            assert positions == sorted(positions)
            assert all(position <= done for position, done in read)
            assert part.position() == 16

        return Case(loop, read, check)

    assert explore(case, [*PARTITION, test_module]) > 500


@pytest.mark.parametrize("whole", [False, True])
def test_what_comes_again_is_not_done_while_it_is_put_back(whole: bool) -> None:
    """The loop was left with 12 in its hand, and 13 and 14 had been acknowledged already."""

    def case() -> Case:
        part = held()
        run = take(begin(part, 10, 11, 12, 13, 14, 15, 16), 3)
        if whole:
            run.be(run.messages, iter(()), whole=True)
        else:
            part.acknowledge(13)
            part.acknowledge(14)
        first = 10 if whole else 12

        def check(_: Any, positions: tuple[int, int]) -> None:
            assert max(positions) <= first
            assert first - 1 <= part.position() <= first
            assert next(run.rest).offset() == first
            assert part.position() == first

        return Case(lambda: part.rewind(run), read_twice(part), check)

    explore(case, PARTITION)
    explore(case, PARTITION, preemptions=1, grain="opcode")


def test_an_acknowledgement_beside_the_end_of_a_run_is_kept() -> None:
    """The message behind it was put back: what is acknowledged of it does not come again."""

    def case() -> Case:
        part = held()
        run = take(begin(part, 10, 11, 12, 13), 2)
        for offset in (10, 12):
            part.acknowledge(offset)

        def check(*_: Any) -> None:
            assert part.position() == 11
            again = begin(part, 11, 12, 13, 14)
            assert [message.offset() for message in again.rest] == [11, 14]

        return Case(
            lambda: part.finish(run, returned=run.messages[1]), lambda: part.acknowledge(13), check
        )

    explore(case, PARTITION)
    explore(case, PARTITION, preemptions=1, grain="opcode")


@pytest.mark.parametrize("offset", [10, 11])
def test_with_acknowledgements_of_each_the_position_is_below_what_is_not(offset: int) -> None:
    def case() -> Case:
        with locks():
            part = held(manual=True)
        run = begin(part, 10, 11)
        list(run.rest)

        def check(_: Any, positions: tuple[int, int]) -> None:
            low = 11 if offset == 10 else 10
            assert list(positions) == sorted(positions)
            assert positions[1] <= low
            assert part.position() == low
            part.acknowledge(21 - offset)
            assert part.position() == 12

        return Case(lambda: part.acknowledge(offset), read_twice(part), check)

    explore(case, PARTITION)
    explore(case, PARTITION, preemptions=1, grain="opcode")


def test_a_run_is_handed_out_beside_acknowledgements_of_the_one_before() -> None:
    def case() -> Case:
        with locks():
            part = held(manual=True)
        list(begin(part, 10, 11).rest)

        def loop() -> None:
            list(begin(part, 12, 13).rest)
            part.acknowledge(12)

        def work() -> int:
            part.acknowledge(10)
            part.acknowledge(11)
            return part.position()

        def check(_: Any, position: int) -> None:
            assert position in (12, 13)
            assert part.position() == 13
            assert part.outstanding == 1

        return Case(loop, work, check)

    explore(case, PARTITION)
    explore(case, PARTITION, preemptions=1, grain="opcode")


def test_a_run_that_is_cut_in_two_is_found_somewhere_always() -> None:
    def case() -> Case:
        part, runs = held(), Runs()
        runs.append(Run(part, messages(10, 11, 12, 13)))

        def look() -> list[bool]:
            return [run.part is part for run in list(runs)]

        def check(_: Any, seen: list[bool]) -> None:
            assert any(seen), "the partition would be given back, as if nothing of it waited"
            assert [[m.offset() for m in run.rest] for run in runs] == [[10, 11], [12, 13]]
            assert runs.total == 4

        return Case(lambda: runs.cut(0, 2), look, check)

    explore(case, PARTITION)
    explore(case, PARTITION, preemptions=1, grain="opcode")


def test_a_range_is_cut_beside_the_loop_and_no_message_is_handed_out_and_given_back() -> None:
    """As the iteration does it: after each message it looks whether its partition still flows."""

    def case() -> Case:
        part = held()
        run = begin(part, 10, 11, 12)
        part.stage = held_partition.Stage.ACTIVE
        handed: list[int] = []

        def loop() -> None:
            for message in run.rest:
                if not part.flows:
                    break
                handed.append(message.offset())

        def check(_: Any, first: int) -> None:
            assert not [offset for offset in handed if offset >= first]

        return Case(loop, part.cut, check)

    explore(case, [*PARTITION, test_module])
    explore(case, [*PARTITION, test_module], preemptions=1, grain="opcode")


def test_a_message_of_a_range_is_found_while_another_range_begins() -> None:
    """Whoever acknowledges asks which range it is in; what is in none is nobody's any more."""

    def case() -> Case:
        parts: list[Any] = [
            SimpleNamespace(source=("t", 0), first_offset=first, end_offset=first + 10)
            for first in (0, 20, 10)
        ]
        settings: Any = SimpleNamespace(settings=SimpleNamespace(interval_ms=1_000))
        claims = RangeClaims(settings, *[mock.MagicMock() for _ in range(9)], max_deliveries=5)
        claims._fetcher.end_of.return_value = 30  # type: ignore[attr-defined]
        claims._partitions.begin_range.return_value = parts[2]  # type: ignore[attr-defined]
        about = claims._sources["t", 0] = ranges._Source(("t", 0))
        about.parts = parts[:2]

        def check(_: Any, found: list[Any]) -> None:
            assert found == [parts[0], parts[1]]
            assert [part.first_offset for part in about.parts] == [0, 10, 20]

        return Case(
            lambda: claims._begin(about, mock.MagicMock(position=10)),
            lambda: [claims.part_of("t", 0, 5), claims.part_of("t", 0, 25)],
            check,
        )

    assert explore(case, [ranges], preemptions=1) > 20


def test_a_consumer_may_be_closed_and_shown_while_its_loop_goes_on() -> None:
    """The loop turns over what it has gathered, and partitions come and go."""

    def case() -> Case:
        made, claim = consumer("at_most_once"), FakeClaim()
        part = part_of(claim)
        made.delivery._gathered.extend([run_of(part, 10), run_of(part, 11)])
        made.fetcher.active[part.key] = part
        shown = object.__new__(Consumer)
        shown._core, shown.marshal = made, made.marshal  # type: ignore[misc]

        def loop() -> None:
            made.delivery._gathered.append(made.delivery._gathered.popleft())
            made.fetcher.active["t", 1] = part

        def close() -> str:
            made.delivery.close(None)
            return repr(shown)

        def check(text: str, _: Any) -> None:
            assert text.startswith("<Consumer ")
            assert " t/0" in text

        return Case(close, loop, check)

    assert explore(case, [at_most_once, consumer_module], preemptions=1, grain="opcode") > 50


def test_whoever_asks_for_the_end_of_a_run_is_heard_whenever_that_is() -> None:
    """A signal handler calls `stop`: between any two lines of what asks when to end."""

    def case() -> Case:
        end = Ending(30.0)

        def ask() -> tuple[bool, float, bool]:
            return end.is_stopping, end.retry_by_s(("t", 0)), end.is_late

        def check(_: Any, answers: tuple[bool, float, bool]) -> None:
            assert end.is_stopping
            assert 0 < end.left_s <= 5.0
            assert not answers[2]
            assert end.retry_by_s(("t", 0)) < float("inf")

        return Case(lambda: end.stop(5.0), ask, check)

    explore(case, [ending])
    explore(case, [ending], preemptions=1, grain="opcode")


LOOP = [held_partition, iteration]


def test_nothing_of_a_batch_is_done_while_it_is_made() -> None:
    def case() -> Case:
        made, part = consumer(), part_of(FakeClaim())
        run = run_of(part, 5, 6, 7)
        part.begin(run)
        made.iteration.hand = run

        def check(batch: Any, positions: tuple[int, int]) -> None:
            assert [message.offset() for message in batch] == [5, 6, 7]
            assert max(positions) <= 5
            assert part.position() == 5

        return Case(lambda: made.iteration.take_batch(run), read_twice(part), check)

    explore(case, LOOP)
    explore(case, LOOP, preemptions=1, grain="opcode")


def test_nothing_of_a_batch_that_is_cut_while_it_is_made_is_done() -> None:
    def case() -> Case:
        made, part = consumer(), part_of(FakeClaim())
        run = run_of(part, 5, 6, 7)
        part.begin(run)
        made.iteration.hand = run

        def cut() -> tuple[int, int]:
            part.is_cut = True
            return part.position(), part.position()

        def check(batch: Any, positions: tuple[int, int]) -> None:
            assert max(positions) <= 5
            assert part.position() == 5
            assert batch is None or [message.offset() for message in batch] == [5, 6, 7]

        return Case(lambda: made.iteration.take_batch(run), cut, check)

    explore(case, LOOP)
    explore(case, LOOP, preemptions=1, grain="opcode")


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_nothing_is_done_of_what_is_put_back(taken: int) -> None:
    """The lease has lapsed, and the last message that was taken does not go out."""

    def case() -> Case:
        made, part = consumer(), part_of(FakeClaim(False))
        run = run_of(part, 5, 6, 7)
        part.begin(run)
        take(run, taken - 1)
        next(run.rest)

        def check(_: Any, positions: tuple[int, int]) -> None:
            assert max(positions) <= 4 + taken
            assert part.position() == 4 + taken
            assert parked(part) == [[5, 6, 7][taken - 1 :]]

        return Case(lambda: made.iteration._put_back(run, taken - 1), read_twice(part), check)

    explore(case, LOOP)
    explore(case, LOOP, preemptions=1, grain="opcode")


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_nothing_is_done_of_what_a_loop_that_is_left_has_not_taken(taken: int) -> None:
    def case() -> Case:
        made, part = consumer(), part_of(FakeClaim())
        run = run_of(part, 5, 6, 7)
        part.begin(run)
        take(run, taken)
        made.iteration.hand = run

        def check(_: Any, positions: tuple[int, int]) -> None:
            assert max(positions) <= 5 + taken
            assert part.position() == 5 + taken

        return Case(made.iteration.settle, read_twice(part), check)

    explore(case, LOOP)
    explore(case, LOOP, preemptions=1, grain="opcode")


def test_a_batch_whose_lease_has_lapsed_waits_with_each_message_once() -> None:
    made, part = consumer(), part_of(FakeClaim(False))
    run = run_of(part, 5, 6, 7)
    part.begin(run)
    made.iteration.hand = run
    assert made.iteration.take_batch(run) is None
    assert parked(part) == [[5, 6, 7]]
    assert part.position() == 5


def parked(part: HeldPartition) -> list[list[int]]:
    """What waits for its lease, by runs."""
    return [[m.offset() for m in run.messages] for run in part.parked]
