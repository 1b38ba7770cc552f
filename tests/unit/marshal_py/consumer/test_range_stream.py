"""What is read of one partition for the ranges of it that a consumer holds (`RangeStream`)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message

from marshal_py.consumer import range_stream
from marshal_py.consumer.held_partition import HeldPartition, Stage
from marshal_py.consumer.range_stream import KEPT, RangeStream
from marshal_py.consumer.stream import LEAP
from marshal_py.protocol.holding import RangeHolding
from marshal_py.protocol.ranges import range_cell
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim


def a_range(start: int, end: int, *, position: int | None = None) -> HeldPartition:
    """A range that is held and active, from its position on; its messages are t/0's."""
    holding = RangeHolding(*range_cell("t", 0, start), 0, ("t", 0))
    holding.end = end
    claim = FakeClaim()
    claim.topic, claim.partition = range_cell("t", 0, start)
    claim._core.holding = holding
    part = HeldPartition(claim, manual=False)  # type: ignore[arg-type]
    part.first_offset = start if position is None else position
    part.start(part.first_offset)
    part.stage = Stage.ACTIVE
    part.assigned = True
    return part


class FakeKafka:
    """What a stream asks of confluent-kafka's consumer, and a partition that it brings."""

    def __init__(self, end: int = 0, missing: tuple[int, ...] = ()) -> None:
        self.end = end
        self.missing = missing
        self.at: int | None = None
        self.paused = False
        self.asked: list[int] = []
        """Where it was told to begin."""

    def incremental_assign(self, where: list[Any]) -> None:
        assert self.at is None
        self.at = max(0, where[0].offset)
        self.asked.append(where[0].offset)

    def incremental_unassign(self, where: list[Any]) -> None:
        assert self.at is not None
        self.at = None

    def pause(self, where: list[Any]) -> None:
        self.paused = True

    def resume(self, where: list[Any]) -> None:
        self.paused = False

    def get_watermark_offsets(self, where: Any, *, cached: bool) -> tuple[int, int]:
        assert cached
        if self.end < 0:
            raise KafkaException
        return 0, self.end

    def fetch(self, most: int) -> list[Message]:
        """The next messages that there are, none if it is not asked."""
        found: list[Message] = []
        while self.at is not None and not self.paused and self.at < self.end and len(found) < most:
            if self.at not in self.missing:
                found.append(Message(topic="t", partition=0, offset=self.at, value=b"12345"))
            self.at += 1
        return found


class Reader:
    """A stream, driven as the fetcher does, and what each range was given."""

    def __init__(self, end: int = 0, missing: tuple[int, ...] = ()) -> None:
        self.kafka = FakeKafka(end, missing)
        self.stream = RangeStream(("t", 0))
        self.given: dict[int, list[int]] = {}

    def hold(self, start: int, end: int, *, position: int | None = None) -> HeldPartition:
        part = a_range(start, end, position=position)
        self.stream.parts[part.first_offset] = part
        self.given.setdefault(part.first_offset, [])
        self.follow()
        return part

    def let_go(self, part: HeldPartition) -> None:
        del self.stream.parts[part.first_offset]
        part.assigned = False
        self.follow()

    def follow(self) -> None:
        self.stream.follow(self.kafka)
        for part, messages in self.stream.kept_for_parts():
            self._give(part, messages)

    def fetch(self, most: int = 1_000) -> None:
        messages = self.kafka.fetch(most)
        if messages:
            for part, mine in self.stream.sort(messages):
                self._give(part, mine)
            self._passed((messages[-1].offset() or 0) + 1)
        if self.kafka.at == self.kafka.end:
            self._passed(self.kafka.end)

    def _passed(self, end: int) -> None:
        assert self.stream._kept_bytes == sum(map(len, self.stream._kept))
        if self.stream.passed(end, self.kafka):
            self.follow()

    def _give(self, part: HeldPartition, messages: list[Any]) -> None:
        self.given[part.first_offset] += [message.offset() for message in messages]
        part.last_end = messages[-1].offset() + 1


def test_each_range_gets_its_messages_and_kafka_is_asked_once() -> None:
    reader = Reader(30)
    reader.hold(0, 10), reader.hold(20, 25)
    reader.fetch()
    assert reader.given == {0: [*range(10)], 20: [*range(20, 25)]}
    assert reader.kafka.asked == [0]


def test_a_range_that_follows_finds_what_was_read_before_it_was_granted() -> None:
    reader = Reader(30)
    reader.hold(0, 10)
    reader.fetch()
    reader.hold(10, 20)
    assert reader.given[10] == [*range(10, 20)]
    reader.hold(25, 30), reader.hold(20, 25)  # in any order
    assert (reader.given[20], reader.given[25]) == ([*range(20, 25)], [*range(25, 30)])
    assert reader.kafka.asked == [0]


def test_a_range_whose_messages_are_only_partly_there_gets_each_once() -> None:
    reader = Reader(12)
    reader.hold(0, 10)
    reader.fetch()
    part = reader.hold(10, 20)
    assert (reader.given[10], part.read_to) == ([10, 11], 12)
    reader.kafka.end = 30
    reader.fetch()
    reader.fetch()
    assert reader.given[10] == [*range(10, 20)]
    assert reader.kafka.asked == [0]


def test_what_was_given_to_a_range_is_asked_for_again_for_the_next_holder_of_it() -> None:
    reader = Reader(30)
    reader.let_go(reader.hold(0, 10))
    first = reader.hold(0, 10)
    reader.fetch()
    reader.let_go(first)
    reader.hold(3, 10)  # taken back, from where it had got to
    reader.fetch()
    assert reader.given[3] == [*range(3, 10)]
    assert reader.kafka.asked == [0, 3]


def test_a_range_far_ahead_or_behind_has_kafka_go_there() -> None:
    reader = Reader(3 * LEAP)
    reader.let_go(reader.hold(0, 10))
    far = reader.hold(2 * LEAP, 2 * LEAP + 5)
    reader.fetch()
    assert reader.given[2 * LEAP] == [*range(2 * LEAP, 2 * LEAP + 5)]
    reader.let_go(far)
    reader.hold(50, 55)
    reader.fetch()
    assert reader.given[50] == [*range(50, 55)]
    assert reader.kafka.asked == [0, 2 * LEAP, 50]


def test_kafka_is_never_asked_for_what_is_beyond_its_end() -> None:
    reader = Reader(10)
    reader.stream.end = 10
    reader.hold(2 * LEAP, 2 * LEAP + 5)
    assert reader.kafka.asked == [10]


def test_offsets_without_a_message_are_passed() -> None:
    reader = Reader(12, missing=(4, 8, 9, 10, 11))
    part = reader.hold(0, 10)
    reader.fetch()
    assert reader.given[0] == [0, 1, 2, 3, 5, 6, 7]
    assert (part.read_to, part.fetched, part.tail) == (10, 10, (8, 10))


def test_when_nothing_is_wanted_it_reads_on_a_little_and_then_pauses() -> None:
    reader = Reader(3 * KEPT)
    reader.hold(0, 10)
    for _ in range(3 * KEPT // 1_000):
        reader.fetch()
    assert reader.kafka.paused
    assert KEPT // 2 <= (reader.kafka.at or 0) < KEPT
    reader.hold(10, KEPT)
    assert not reader.kafka.paused
    while not reader.kafka.paused:
        reader.fetch()
    assert reader.given[10] == [*range(10, KEPT)]
    assert reader.kafka.asked == [0]


def test_of_large_messages_it_reads_on_as_far_as_they_can_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It read all there is, threw it away, and asked for it again for each range."""
    monkeypatch.setattr(range_stream, "KEPT_BYTES", 400 * 5)
    reader = Reader(3 * KEPT)
    reader.hold(0, 10)
    while not reader.kafka.paused and (reader.kafka.at or 0) < reader.kafka.end:
        reader.fetch(50)
    assert reader.kafka.paused
    assert 200 <= (reader.kafka.at or 0) <= 300
    reader.hold(10, 20)
    assert reader.given[10] == [*range(10, 20)]
    assert reader.kafka.asked == [0]


@pytest.mark.parametrize("limit", [("KEPT", 20), ("KEPT_BYTES", 20 * 5)])
def test_what_is_kept_has_a_limit_and_what_is_gone_is_asked_for_again(
    limit: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_stream, *limit)
    reader = Reader(200)
    reader.hold(0, 10), reader.hold(150, 160)
    reader.fetch()
    assert reader.given[150] == [*range(150, 160)]
    reader.hold(185, 195)
    assert reader.given[185] == [*range(185, 195)]
    reader.hold(20, 30)
    reader.fetch()
    assert reader.given[20] == [*range(20, 30)]
    assert reader.kafka.asked == [0, 20]


def test_what_kafka_lost_is_asked_for_again() -> None:
    reader = Reader(30)
    reader.hold(0, 20)
    reader.fetch(5)
    reader.stream.is_lost = True
    reader.follow()
    reader.fetch()
    assert reader.given[0] == [*range(20)]
    assert reader.kafka.asked == [0, 5]


def test_where_it_goes_on_is_not_known_yet() -> None:
    reader = Reader(30)
    part = a_range(0, 10)
    part.out_of_range = True
    reader.stream.parts[0] = part
    reader.follow()
    assert reader.kafka.asked == []


def test_it_knows_how_much_there_is_as_far_as_kafka_says() -> None:
    reader = Reader(30)
    reader.hold(0, 10)
    reader.fetch(3)
    assert reader.stream.end == 30
    reader.kafka.end = -1
    reader.stream.passed(4, reader.kafka)
    assert reader.stream.end == 30


def test_stopped_it_keeps_nothing() -> None:
    reader = Reader(30)
    reader.let_go(reader.hold(0, 5))
    reader.fetch()
    reader.stream.stop(reader.kafka)
    assert reader.kafka.at is None
    reader.hold(10, 15)
    reader.fetch()
    assert reader.given[10] == [*range(10, 15)]
    assert reader.kafka.asked == [0, 10]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_and_goes_each_range_gets_all_of_its_messages_in_order(seed: int) -> None:
    dice = Random(seed)
    missing = tuple(sorted(dice.sample(range(400), 40)))
    reader = Reader(dice.randrange(400), missing)
    there = [offset for offset in range(400) if offset not in missing]
    held: list[HeldPartition] = []
    at = 0
    while at < 400 or held or reader.kafka.end < 400:
        chance = dice.random()
        if chance < 0.35 and at < 400:
            end = min(400, at + dice.randint(1, 25))
            held.append(reader.hold(at, end))
            at = end
        elif chance < 0.4 and held:  # it is cut short: what is beyond goes to somebody else
            part = dice.choice(held)
            assert part.range is not None
            part.range.end = max(part.read_to, part.first_offset + 1)
            reader.follow()
        elif chance < 0.5:
            reader.kafka.end = min(400, reader.kafka.end + dice.randint(0, 60))
        elif chance < 0.55 and held:
            part = dice.choice(held)
            part.throttled = not part.throttled
            reader.follow()
        else:
            reader.fetch(dice.randint(1, 50))
        if at >= 400 and reader.kafka.end >= 400:
            for part in held:
                part.throttled = False
            reader.follow()
        for part in list(held):
            end = part.end_offset or 0
            if part.read_to >= end:
                want = [o for o in there if part.first_offset <= o < end]
                assert reader.given[part.first_offset] == want
                held.remove(part)
                reader.let_go(part)


def test_what_was_kept_before_it_was_stopped_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka would be paused as soon as something came, for each range anew."""
    monkeypatch.setattr(range_stream, "KEPT_BYTES", 400 * 5)
    reader = Reader(3 * KEPT)
    for start in (0, 1_000):
        reader.hold(start, start + 10)
        while not reader.kafka.paused:
            reader.fetch(50)
        assert start + 200 <= (reader.kafka.at or 0) <= start + 300
        reader.stream.stop(reader.kafka)
    assert reader.kafka.asked == [0, 1_000]
