"""The scheduler of handlers: order of a key, turns among keys, bounds, and nothing forgotten."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from marshal_py.consumer.handlers.options import HandlerOptions
from marshal_py.consumer.handlers.schedule import Item, Ordering, PartitionId, Schedule
from marshal_py.consumer.handlers.tasks import Tasks

A: PartitionId = ("a", 0)
B: PartitionId = ("b", 0)


def schedule(ordering: Ordering = "key", **bounds: int) -> Schedule:
    return Schedule(ordering, **{"max_count": 1_000, "max_bytes": 1_000_000, **bounds})


def add(
    made: Schedule, offset: int, key: Any = b"k", partition: PartitionId = A, size: int = 1
) -> Item:
    item = Item(partition, offset, f"{partition[0]}{offset}", size)
    made.add(item, key)
    return item


def offsets(items: list[Item]) -> list[int]:
    return [item.offset for item in items]


def test_one_key_one_after_the_other() -> None:
    made = schedule()
    first, second = add(made, 0), add(made, 1)
    assert made.next() == [first]
    assert made.next() == []
    assert made.done([first]) == 1
    assert made.next() == [second]


def test_other_keys_other_lanes_and_no_key_no_order() -> None:
    made = schedule()
    add(made, 0, b"x")
    add(made, 1, b"y")
    add(made, 2, None)
    add(made, 3, None)
    add(made, 4, b"")
    add(made, 5, b"")
    assert [offsets(made.next()) for _ in range(6)] == [[0], [1], [2], [3], [4], []]


def test_the_same_key_in_another_partition_is_another_lane() -> None:
    made = schedule()
    add(made, 0, b"x", A)
    add(made, 0, b"x", B)
    assert len(made.next()) == len(made.next()) == 1


@pytest.mark.parametrize(("ordering", "runnable"), [("partition", 1), ("none", 3)])
def test_partition_and_none(ordering: Ordering, runnable: int) -> None:
    made = schedule(ordering)
    for offset in range(3):
        add(made, offset)
    assert sum(len(made.next()) for _ in range(3)) == runnable


def test_a_failed_message_comes_again_first_and_only_its_lane_waits() -> None:
    made = schedule()
    failed = add(made, 0, b"x")
    add(made, 1, b"x")
    other = add(made, 2, b"y")
    assert made.next() == [failed]
    made.retry(failed, due=10.0)
    assert made.next() == [other]
    assert made.next() == []
    assert made.due(9.9) == 0
    assert made.due(10.0) == 1
    assert made.next() == [failed]
    made.done([failed])
    assert offsets(made.next()) == [1]


def test_a_partition_that_is_full_of_work_lets_others_have_their_turn() -> None:
    made = schedule()
    for offset in range(100):
        add(made, offset, str(offset).encode(), A)
    add(made, 0, b"b", B)
    assert [made.next()[0].partition for _ in range(3)] == [A, B, A]


def test_a_batch_is_of_one_partition_in_order_and_blocks_its_lanes() -> None:
    made = schedule()
    for offset, key in enumerate([b"x", b"x", b"y", b"x", b"y"]):
        add(made, offset, key)
    add(made, 0, b"x", B)
    batch = made.next(4)
    assert offsets(batch) == [0, 1, 2, 3]
    assert made.next(4)[0].partition == B
    assert made.next(4) == [], "y is busy"
    made.done(batch)
    assert offsets(made.next(4)) == [4]


def test_a_batch_that_failed_comes_again_one_by_one_in_order() -> None:
    made = schedule("partition")
    for offset in range(5):
        add(made, offset)
    batch = made.next(3)
    made.split(batch)
    seen = []
    while items := made.next(3):
        seen.append(offsets(items))
        made.done(items)
    assert seen == [[0], [1], [2], [3, 4]]


def test_held_partitions_start_nothing() -> None:
    made = schedule()
    add(made, 0)
    made.hold(A)
    assert not made.is_ready
    assert made.next() == []
    add(made, 1, b"other")
    assert made.next() == []
    assert made.resume(A) == 2
    assert offsets(made.next()) == [0]


def test_what_is_put_back_comes_first_again() -> None:
    made = schedule()
    for offset in range(3):
        add(made, offset)
    batch = made.next(2)
    made.hold(A)
    made.put_back(batch)
    made.resume(A)
    assert offsets(made.next(3)) == [0, 1, 2]
    assert made.running == 3


def test_trim_leaves_what_would_be_a_gap() -> None:
    made = schedule()
    for offset, key in enumerate([b"x", b"x", b"y", b"z", b"x", b"y"]):
        add(made, offset, key)
    x, y, z = made.next(), made.next(), made.next()
    assert offsets(x + y + z) == [0, 2, 3]
    assert offsets(made.trim(A, 0)) == [4, 5]
    made.done(x)
    assert offsets(made.next()) == [1], "below offset 3, which has run already"


def test_trim_knows_what_ran_before_something_earlier_came_again() -> None:
    made = schedule()
    first = add(made, 0, b"a")
    later = add(made, 5, b"b")
    between = add(made, 3, b"c")
    add(made, 4, b"a")
    assert made.next() == [first]
    assert made.next() == [later]
    made.done([later])
    made.put_back([first])
    assert made.next() == [between]
    assert offsets(made.trim(A, 0)) == []  # 5 ran: without 0 there would be a gap
    assert made.next() == [first]


def test_trim_waits_for_another_attempt_that_comes_soon() -> None:
    made = schedule()
    failed, *_ = add(made, 0, b"x"), add(made, 1, b"y"), add(made, 2, b"x")
    x, y = made.next(), made.next()
    assert offsets(x + y) == [0, 1]
    made.retry(failed, 100.0)
    assert offsets(made.trim(A, 100.0)) == [2]
    made.done(y)
    assert made.due(100.0) == 1
    made.done(made.next())
    assert made.count == 0


def test_trim_does_not_wait_long_for_another_attempt() -> None:
    made = schedule()
    failed, _ = add(made, 0, b"x"), add(made, 1, b"x")
    add(made, 2, b"y")
    made.next()
    made.next()
    made.retry(failed, 100.0)
    assert sorted(offsets(made.trim(A, 99.0))) == [0, 1]
    assert made.waiting == 0
    assert made.due(200.0) == 0
    assert made.count == made.running == 1


def test_trim_leaves_no_empty_queue_that_waits() -> None:
    """A message that fails after its partition was dropped is above all that ran since."""
    made = schedule()
    failed = add(made, 0, b"x")
    made.next()
    add(made, 1, b"x")
    made.drop(A)
    made.retry(failed, 5.0)
    assert made.trim(A, 10.0) == [failed]
    assert (made.count, made.waiting, made.due(6.0), made.next()) == (0, 0, 0, [])


def test_abandoned_takes_what_is_behind_it_along() -> None:
    made = schedule()
    first = add(made, 0, b"x")
    add(made, 1, b"x")
    add(made, 2, b"y")
    made.next()
    dropped, ready = made.abandon([first])
    assert (offsets(dropped), ready) == ([0, 1], 0)
    assert offsets(made.next()) == [2]
    assert made.next() == []


def test_what_runs_of_a_lost_claim_keeps_its_lane() -> None:
    """The partition comes back while a handler is at work: the same key waits for it."""
    made = schedule()
    running = add(made, 7, b"x")
    add(made, 8, b"x")
    assert made.next() == [running]
    assert offsets(made.drop(A)) == [8]
    again = add(made, 7, b"x")
    assert made.next() == []
    made.done([running])
    assert made.next() == [again]
    made.done([again])
    assert made.count == made.bytes == made.open(A) == 0


def test_a_message_that_comes_alone_ends_the_batch_before_it() -> None:
    made = schedule()
    add(made, 0, b"x")
    made.split(made.next())
    made.hold(A)
    add(made, 1, b"y")
    made.resume(A)
    first, second = made.next(5), made.next(5)
    assert (offsets(first), offsets(second)) == ([0], [1])
    made.put_back(second)
    made.put_back(first)
    assert [offsets(made.next(5)) for _ in range(3)] == [[1], [0], []]


def test_a_batch_with_two_of_a_lane_is_abandoned_as_a_whole() -> None:
    made = schedule()
    for offset in range(4):
        add(made, offset, b"x")
    batch = made.next(2)
    assert offsets(batch) == [0, 1]
    dropped, ready = made.abandon(batch)
    assert (sorted(offsets(dropped)), ready) == ([0, 1, 2, 3], 0)
    assert made.count == made.running == made.bytes == 0


def test_a_partition_is_as_full_as_the_nearer_of_its_bounds() -> None:
    made = schedule(max_count=10, max_bytes=100)
    assert made.filled(A) == 0.0
    add(made, 0, size=5)
    assert made.filled(A) == 0.1
    add(made, 1, size=70)
    assert made.filled(A) == 0.75
    assert made.has_room()
    assert not made.has_room(0.5)


def test_a_partition_of_which_nothing_is_queued_can_be_told_anything() -> None:
    made = schedule()
    made.hold(A)
    assert not made.is_held(A)
    assert made.resume(A) == made.open(A) == 0
    assert made.trim(A, 0.0) == made.drop(A) == []


def test_a_key_queue_that_was_trimmed_away_is_made_anew() -> None:
    made = schedule()
    add(made, 0, b"x")
    assert offsets(made.trim(A, 0.0)) == [0]
    assert not made.is_ready
    assert made.add(Item(A, 1, None, 1), b"x")
    assert offsets(made.next()) == [1]


def test_a_partition_that_is_dropped_leaves_nothing_behind() -> None:
    made = schedule()
    failed = add(made, 0, b"x")
    add(made, 1, b"y")
    assert "a/0@0 attempts=0" in repr(failed)
    made.next()
    made.retry(failed, 5.0)
    made.hold(A)
    assert made.is_held(A)
    assert sorted(offsets(made.drop(A))) == [0, 1]
    assert not made.is_held(A)
    assert made.count == made.bytes == made.waiting == made.open(A) == 0
    assert made.due(9.0) == 0
    assert made.next() == []


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 30), st.integers(1, 400))
def test_room_is_bounded_by_count_and_bytes(sizes: list[int], count: int, size: int) -> None:
    made = schedule(max_count=count, max_bytes=size)
    for offset, one in enumerate(sizes):
        if not made.has_room():
            break
        add(made, offset, None, size=one)
    assert made.count <= count
    assert made.bytes < size + 50


class Histories(RuleBasedStateMachine):
    """Whatever happens: order in each lane, nothing twice at a time, counters that are true."""

    @initialize(ordering=st.sampled_from(["key", "partition", "none"]))
    def begin(self, ordering: Ordering) -> None:
        self.ordering = ordering
        self.made = schedule(ordering)
        self.now = 0.0
        self.offset = Counter[PartitionId]()
        self.keys: dict[Item, Any] = {}
        self.queued: dict[tuple[PartitionId, Any], list[Item]] = defaultdict(list)
        self.running: list[list[Item]] = []
        self.waiting: dict[Item, float] = {}
        self.held: set[PartitionId] = set()
        self.claims: dict[PartitionId, object] = {A: object(), B: object()}

    def lane(self, item: Item) -> tuple[PartitionId, Any]:
        key = self.keys[item]
        if self.ordering == "partition":
            return item.partition, ""
        if self.ordering == "none" or key is None:
            return item.partition, item.offset
        return item.partition, key

    @rule(partition=st.sampled_from([A, B]), key=st.sampled_from([b"x", b"y", b"z", None]))
    def add(self, partition: PartitionId, key: Any) -> None:
        item = Item(partition, self.offset[partition], None, 10, self.claims[partition])
        self.offset[partition] += 1
        self.keys[item] = key
        self.made.add(item, key)
        self.queued[self.lane(item)].append(item)

    @rule(most=st.integers(1, 4))
    def take(self, most: int) -> None:
        items = self.made.next(most)
        if not items:
            assert not self.runnable(), "something could run"
            return
        assert len(items) <= most
        assert len({item.partition for item in items}) == 1
        assert offsets(items) == sorted(offsets(items))
        for item in items:
            assert item.partition not in self.held
            assert self.queued[self.lane(item)].pop(0) is item, "not the first of its lane"
            assert item not in self.waiting
        lanes = {self.lane(item) for item in items}
        for batch in self.running:
            assert not lanes & {self.lane(item) for item in batch}, "two of a lane at a time"
        if len(items) > 1:
            assert not any(item.alone for item in items)
        self.running.append(items)

    def runnable(self) -> list[Item]:
        busy = {self.lane(item) for batch in self.running for item in batch}
        return [
            items[0]
            for lane, items in self.queued.items()
            if items
            and lane not in busy
            and lane[0] not in self.held
            and items[0] not in self.waiting
        ]

    def back_in_line(self, items: list[Item]) -> None:
        for item in reversed(items):
            self.queued[self.lane(item)].insert(0, item)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        batch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        how = data.draw(st.sampled_from(["done", "split", "put_back", "retry", "abandon"]))
        if how == "done":
            self.made.done(batch)
        elif how == "abandon":
            dropped, ready = self.made.abandon(batch)
            expected = list(batch)
            left = 0
            for lane in {self.lane(item) for item in batch}:
                waits = self.queued.pop(lane, [])
                later = [item for item in waits if item.part is not batch[0].part]
                expected += [item for item in waits if item.part is batch[0].part]
                self.queued[lane] += later
                left += bool(later)
            assert set(dropped) == set(expected)
            assert (len(dropped), ready) == (len(expected), left)
        elif how == "retry" and len(batch) == 1:
            self.made.retry(batch[0], self.now + 5)
            self.waiting[batch[0]] = self.now + 5
            self.back_in_line(batch)
        else:
            (self.made.split if how == "split" else self.made.put_back)(batch)
            self.back_in_line(batch)

    @rule(passed=st.integers(0, 6))
    def wait(self, passed: int) -> None:
        self.now += passed
        self.made.due(self.now)
        self.waiting = {i: due for i, due in self.waiting.items() if due > self.now}

    @rule(partition=st.sampled_from([A, B]))
    def hold_or_resume(self, partition: PartitionId) -> None:
        if partition in self.held:
            self.held.discard(partition)
            self.made.resume(partition)
        elif self.made.open(partition):
            self.held.add(partition)
            self.made.hold(partition)

    @rule(partition=st.sampled_from([A, B]))
    def drop(self, partition: PartitionId) -> None:
        dropped = self.made.drop(partition)
        expected = [i for lane, items in self.queued.items() if lane[0] == partition for i in items]
        assert sorted(offsets(dropped)) == sorted(offsets(expected))
        self.forget(dropped)
        self.held.discard(partition)
        self.claims[partition] = object()  # what comes now comes under another

    @rule(partition=st.sampled_from([A, B]), patience=st.integers(0, 6))
    def trim(self, partition: PartitionId, patience: int) -> None:
        until = self.now + patience
        dropped = self.made.trim(partition, until)
        self.forget(dropped)
        for lane, items in self.queued.items():
            if lane[0] == partition and items:
                assert not any(self.waiting.get(item, until) > until for item in items)

    def forget(self, dropped: list[Item]) -> None:
        gone = set(dropped)
        for items in self.queued.values():
            items[:] = [item for item in items if item not in gone]
        for item in gone:
            self.waiting.pop(item, None)

    @invariant()
    def counters_are_true(self) -> None:
        waiting = sum(map(len, self.queued.values()))
        running = sum(map(len, self.running))
        assert self.made.running == running
        assert self.made.count == waiting + running
        assert self.made.bytes == 10 * self.made.count
        assert self.made.waiting == len(self.waiting)
        assert self.made.is_ready == bool(self.runnable())

    def teardown(self) -> None:
        """Nobody starves: with the time, all that is queued comes."""
        if not hasattr(self, "made"):
            return
        for partition in list(self.held):
            self.hold_or_resume(partition)
        self.wait(1_000)
        for batch in self.running:
            self.made.done(batch)
        self.running.clear()
        for _ in range(self.made.count):
            self.made.done(self.made.next())
        assert self.made.count == 0


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize(("queued", "running", "more"), [(0, 2, True), (1, 2, True), (2, 2, False)])
def test_at_most_once_as_much_is_claimed_as_workers_can_begin(
    queued: int, running: int, more: bool
) -> None:
    """What waits beyond that is lost in a crash."""
    core: Any = SimpleNamespace(delivery=SimpleNamespace(claims_messages=True))
    workers: Any = None
    tasks = Tasks(core, HandlerOptions(print, workers=2), workers)
    for n in range(queued + running):
        tasks.schedule.add(Item(("t", 0), n, None, 1), str(n))
    assert len([tasks.schedule.next() for _ in range(running)]) == running
    assert tasks.wants_more is more
