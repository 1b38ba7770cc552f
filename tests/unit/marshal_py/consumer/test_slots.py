"""Partitions that are shared by keys: what is read for which slot, and what a group agrees on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message

from marshal_py.client.marshal import driver_of
from marshal_py.consumer.agreement import Agreement
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.held_partition import Batch, HeldPartition, Stage
from marshal_py.consumer.shared import ByPartitions
from marshal_py.consumer.stream import LEAP
from marshal_py.consumer.transactions import Transactions
from marshal_py.errors import ConfigurationError, NotHeld, NotInVersion1, SharingDiffers
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.slots import (
    BY_PARTITIONS,
    BY_RANGES,
    agreement_cell,
    slot_of_key,
    slots_cell,
)
from tests.support.spec import spec
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim, offsets

SLOTS = 4
NAME = slots_cell("t", 0, SLOTS)
_SOME = [b"%d" % n for n in range(99)]
KEYS = [next(k for k in _SOME if slot_of_key(k, 0, SLOTS) == s) for s in range(SLOTS)]
"""One key for each slot."""


class FakeKafka:
    """What a stream asks of confluent-kafka's consumer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.sought: list[tuple[int, int | None]] = []
        self.high = -1001
        """The offset behind the last message, of transactions that are open, too."""

    def incremental_assign(self, where: list[Any]) -> None:
        self.asked.append(("assign", where[0].offset))

    def get_watermark_offsets(self, where: Any, *, cached: bool) -> tuple[int, int]:
        assert ((where.topic, where.partition), cached) == (("t", 0), True)
        return 0, self.high

    def seek(self, where: Any) -> None:
        self.sought.append((where.offset, where.leader_epoch))

    def incremental_unassign(self, where: list[Any]) -> None:
        self.asked.append(("unassign", where[0].partition))

    def pause(self, where: list[Any]) -> None:
        self.asked.append(("pause", where[0].partition))

    def resume(self, where: list[Any]) -> None:
        self.asked.append(("resume", where[0].partition))

    def take(self) -> list[tuple[str, int]]:
        """What was asked since the last time, resuming before an end apart."""
        asked, self.asked = self.asked, []
        return [(what, at) for what, at in asked if what != "resume" or len(asked) == 1]


class World:
    """A consumer that holds some slots of t/0."""

    def __init__(self, mode: Any = "at_least_once") -> None:
        self.core: Any = Consumer(
            "127.0.0.1:1", group_id="g", topics="t", mode=mode, sharing="keys", slots=SLOTS
        )._core
        self.fetcher = self.core.fetcher
        self.kafka = self.fetcher._kafka = FakeKafka()

    def hold(self, slot: int, offset: int, epoch: int = -1) -> HeldPartition:
        claim = FakeClaim()
        claim.topic, claim.partition = NAME, slot
        part = HeldPartition(claim, manual=False)  # type: ignore[arg-type]
        part.start(max(offset, -1), leader_epoch=epoch)
        part.stage = Stage.ACTIVE
        self.core.partitions.by_key[part.key] = part
        self.fetcher.assign(part, offset)
        return part

    def fetch(self, *messages: tuple[int, int | None]) -> dict[int, list[int]]:
        """Kafka brings messages, (offset, slot of its key; None: no key). Slot → what it gets."""
        self.fetcher._sort_out(
            [
                Message(topic="t", partition=0, offset=at, key=None if s is None else KEYS[s])
                for at, s in messages
            ]
        )
        found: dict[int, list[int]] = {}
        while (run := self.core.delivery.next_run()) is not None:
            assert run.part.slot is not None
            found.setdefault(run.part.slot.number, []).extend(offsets(run))
            run.part.begin(run)
            run.part.finish(run)
        return found

    def end(self, offset: int, code: int = KafkaError._PARTITION_EOF) -> None:
        self.fetcher._sort_out(
            [Message(topic="t", partition=0, offset=offset, error=KafkaError(code, ""))]
        )


@spec("C-49")
def test_each_slot_gets_its_messages_and_nobody_those_of_others() -> None:
    world = World()
    world.hold(0, 0), world.hold(2, 0)
    assert world.fetch((0, 0), (1, 1), (2, 2), (3, 0), (6, None), (7, None)) == {
        0: [0, 3],
        2: [2, 6],
    }


@spec("C-50")
def test_the_position_follows_where_a_slot_has_no_messages() -> None:
    world = World()
    busy, idle = world.hold(0, 0), world.hold(1, 0)
    world.fetch((0, 0), (5, 0), (9, 2))
    assert (busy.position(), idle.position()) == (10, 10)
    world.end(12)  # what was compacted away, or a marker, belongs to nobody
    assert (busy.position(), idle.position()) == (12, 12)
    assert idle.has_begun


def test_the_position_waits_for_what_is_in_hand() -> None:
    world = World()
    part = world.hold(0, 0)
    world.fetcher._sort_out([Message(topic="t", partition=0, offset=3, key=KEYS[0])])
    assert part.position() <= 3
    run = world.core.delivery.next_run()
    part.begin(run)
    next(run.rest)
    world.end(20)
    assert part.position() == 3
    part.finish(run)
    assert part.position() == 20


@spec("C-51")
def test_a_slot_starts_at_its_own_position_and_nothing_comes_twice() -> None:
    world = World()
    world.hold(0, 10)
    assert world.kafka.take() == [("assign", 10)]
    assert world.fetch((10, 0), (11, 1), (12, 0)) == {0: [10, 12]}
    late = world.hold(1, 5)
    assert world.kafka.take() == [("unassign", 0), ("assign", 5)]
    assert world.fetch((5, 1), (10, 0), (11, 1), (12, 0), (13, 0)) == {0: [13], 1: [5, 11]}
    assert late.position() == 14
    world.hold(2, 20)  # ahead of what is read
    assert world.kafka.take() == []
    assert world.fetch((19, 2), (20, 2)) == {2: [20]}


def test_a_slot_without_a_position_starts_at_the_first_message() -> None:
    world = World()
    world.hold(0, OFFSET_BEGINNING), world.hold(1, OFFSET_BEGINNING)
    assert world.kafka.take() == [("assign", OFFSET_BEGINNING)]
    assert world.fetch((7, 1), (8, 0)) == {0: [8], 1: [7]}
    world.hold(2, OFFSET_BEGINNING)
    assert world.kafka.take() == [("unassign", 0), ("assign", OFFSET_BEGINNING)]


@pytest.mark.parametrize("why", ["suspended", "throttled", "is_paused"])
def test_a_slot_that_wants_nothing_now_gets_it_later_and_the_others_go_on(why: str) -> None:
    world = World()
    part, _ = world.hold(0, 0), world.hold(1, 0)
    setattr(part, why, True)
    world.fetcher.pause_or_resume(part)
    assert world.kafka.take() == [("assign", 0)]
    assert world.fetch((0, 0), (1, 1), (2, 0)) == {1: [1]}
    assert part.position() == 0
    setattr(part, why, False)
    world.fetcher.pause_or_resume(part)
    assert world.kafka.take() == [("unassign", 0), ("assign", 0)]
    assert world.fetch((0, 0), (1, 1), (2, 0), (3, 1)) == {0: [0, 2], 1: [3]}


def test_where_no_slot_wants_anything_kafka_rests() -> None:
    world = World()
    part = world.hold(0, 0)
    world.kafka.take()
    part.throttled = True
    world.fetcher.pause_or_resume(part)
    world.fetcher.pause_or_resume(part)
    assert world.kafka.take() == [("pause", 0)]
    part.throttled = False
    world.fetcher.pause_or_resume(part)
    assert world.kafka.take() == [("resume", 0)]


def test_the_last_slot_that_goes_ends_the_reading() -> None:
    world = World()
    parts = [world.hold(0, 0), world.hold(1, 0)]
    world.kafka.take()
    world.fetcher.unassign(parts[0])
    assert world.kafka.take() == []
    world.fetcher.unassign(parts[1])
    assert world.kafka.take() == [("unassign", 0)]
    assert not world.fetcher.active
    assert not world.fetcher._streams
    world.hold(0, 3)
    assert world.kafka.take() == [("assign", 3)]


def test_what_nobody_wants_is_leapt_over_when_the_slot_behind_goes() -> None:
    world = World()
    behind = world.hold(0, 0)
    world.hold(1, 2 * LEAP)
    world.fetch((0, 0))
    world.kafka.take()
    world.fetcher.unassign(behind)
    assert world.kafka.take() == [("unassign", 0), ("assign", 2 * LEAP)]


def test_messages_that_are_gone_concern_the_slots_that_lacked_them() -> None:
    world = World()
    gone, sound = world.hold(0, 3), world.hold(1, 50)
    world.kafka.take()
    world.end(3, KafkaError.OFFSET_OUT_OF_RANGE)
    assert gone.out_of_range
    assert sound.out_of_range
    positions = world.core.positions
    positions._look_up = lambda _, which: 40 if which == -2 else 90
    for part in (sound, gone):
        world.core.partitions._restart(part)
    assert world.kafka.take()[-1] == ("assign", 40)
    assert world.fetch((40, 0), (49, 1), (50, 1)) == {0: [40], 1: [50]}
    assert (gone.position(), sound.position()) == (51, 51)


@spec("C-61")
def test_kafka_is_asked_with_the_epoch_of_the_slot_that_is_behind() -> None:
    world = World()
    parts = [world.hold(0, 30, epoch=2), world.hold(1, 10, epoch=1)]
    messages = [
        Message(topic="t", partition=0, offset=at, key=KEYS[1], leader_epoch=e)
        for at, e in ((11, 2), (12, 2))
    ]
    world.fetcher._sort_out(messages)
    assert world.kafka.sought == [(10, 1)]
    assert (world.core.delivery.next_run(), parts[1].position()) == (None, 10)
    world.fetcher._sort_out(messages)
    assert offsets(world.core.delivery.next_run()) == [11, 12]
    assert [part.epochs.before(part.read_to) for part in parts] == [2, 2]
    assert not world.hold(2, 12, epoch=2).out_of_range


def kafka_has(
    world: World, monkeypatch: pytest.MonkeyPatch, *parts: HeldPartition, end: int = 90
) -> None:
    """Kafka has messages from 0 to below `end`, of the topic that the positions are of."""
    world.core.positions._look_up = lambda _, which: 0 if which == -2 else end
    world.core.topics.ids = {"t": b"id"}
    for part in parts:
        part.metadata = ClaimMetadata(topic_id=b"id")
    found = {"t": SimpleNamespace(topic_id=b"id")}
    monkeypatch.setattr("marshal_py.consumer.positions.describe", lambda *_: found)


def test_messages_of_a_later_leader_than_a_slot_had_before_were_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slot behind is sound, and Kafka was asked with its epoch alone."""
    world = World()
    gone, sound = world.hold(0, 30, epoch=0), world.hold(1, 10, epoch=0)
    messages = [
        Message(topic="t", partition=0, offset=at, key=KEYS[1], leader_epoch=at // 20)
        for at in range(10, 40)
    ]
    world.core.wakeup.clear()
    world.fetcher._sort_out(messages)
    world.fetcher._sort_out([Message(topic="t", partition=0, offset=40, key=KEYS[0])])
    world.end(41)
    assert world.core.delivery.next_run() is None
    assert (gone.position(), sound.position()) == (30, 10)
    assert world.core.wakeup._event.is_set()
    assert [(part.out_of_range, part.truncated_at) for part in (gone, sound)] == [(True, 20)] * 2
    kafka_has(world, monkeypatch, gone, sound)
    fetcher: Any = world.fetcher
    fetcher.look = lambda where: messages[where.offset - 10]
    assert world.core.positions.restart_of(gone, -1, world.fetcher.look) is None
    assert (gone.reset_to, sound.reset_to) == (20, None)
    world.fetcher.unassign(gone)
    world.kafka.take()
    world.core.partitions._restart(sound)
    assert world.kafka.take() == [("unassign", 0), ("assign", 10)]
    world.fetcher._sort_out(messages)
    assert offsets(world.core.delivery.next_run()) == list(range(10, 40))


@pytest.mark.parametrize(("high", "is_gone"), [(20, True), (29, True), (30, False), (-1001, False)])
def test_a_slot_beyond_the_end_was_there_before_something_was_lost(
    high: int, is_gone: bool
) -> None:
    """It came when another had been set back already: what that one reads is there."""
    world = World()
    sound, gone = world.hold(0, 20), world.hold(1, 30)
    world.core.wakeup.clear()
    world.kafka.high = high
    world.end(20)
    assert (sound.out_of_range, gone.out_of_range) == (False, is_gone)
    assert world.core.wakeup._event.is_set() is is_gone
    assert (sound.position(), gone.position()) == (20, 30)


def test_a_slot_from_before_something_was_lost_has_kafka_say_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.hold(0, 25, epoch=2)  # begun anew after the loss of all from 20 on
    gone = world.hold(1, 30, epoch=0)
    assert gone.out_of_range
    asked: list[tuple[int, int | None]] = []
    error = KafkaError(
        KafkaError._AUTO_OFFSET_RESET,
        "Partition log truncation detected at offset 30 (leader epoch 0): broker end offset is 20",
    )
    answers = [
        None,
        Message(topic="t", partition=0, offset=30, error=error),
        Message(topic="t", partition=0, offset=20, leader_epoch=2),
    ]

    def look(where: Any) -> Any:
        asked.append((where.offset, where.leader_epoch))
        return answers[len(asked) - 1]

    kafka_has(world, monkeypatch, gone)
    positions = world.core.positions
    assert positions.restart_of(gone, -1, look) is None
    assert (asked, gone.reset_to) == ([(30, 0)], None), "no answer: it is asked again"
    assert positions.restart_of(gone, -1, look) is None
    assert (asked[1:], gone.reset_to) == ([(30, 0), (20, None)], 20)
    assert gone.leader_epoch == -1, "it is of where the slot began"


def test_what_a_slot_has_read_and_not_done_comes_again_after_a_truncation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    part = world.hold(0, 10)
    world.fetcher._sort_out(
        [Message(topic="t", partition=0, offset=at, key=KEYS[0]) for at in range(10, 30)]
    )
    run = world.core.delivery.next_run()
    part.begin(run)
    next(run.rest)
    kafka_has(world, monkeypatch, part, end=20)
    world.end(30, KafkaError.OFFSET_OUT_OF_RANGE)
    assert world.core.positions.restart_of(part, -1, world.fetcher.look) is None
    assert part.reset_to == 10
    assert "read up to offset 30, and ends at 20 now" in caplog.text
    assert caplog.text.rstrip().endswith("going on at 10")


def test_at_most_once_what_was_claimed_says_where_a_slot_goes_on() -> None:
    world = World("at_most_once")
    part = world.hold(0, 0)
    world.fetcher._sort_out(
        [
            Message(topic="t", partition=0, offset=2, key=KEYS[0]),
            Message(topic="t", partition=0, offset=5, key=KEYS[1]),
        ]
    )
    assert (part.tail, part.fetched) == ((3, 6), 6)
    assert part.position() < 3  # not beyond what no one has claimed yet


def test_an_acknowledged_message_is_found_by_its_key() -> None:
    world = World()
    part = world.hold(0, 0)
    part.manual = True
    world.fetcher._sort_out([Message(topic="t", partition=0, offset=4, key=KEYS[0])])
    run = world.core.delivery.next_run()
    part.begin(run)
    (message,) = run.messages
    assert world.core.shared.part_of(message) is part
    message.set_key(KEYS[1].decode())  # as a deserializer does
    world.core.deserializers._key = str
    assert world.core.shared.part_of(message) is part
    part.acknowledge(4)
    assert part.position() == 5


def test_a_partition_stands_where_the_lowest_of_its_slots_does() -> None:
    world, positions = World(), {0: 7, 1: 3, 2: 9, 3: 5}
    driver: Any = driver_of(world.core.marshal)
    cells = {n: SimpleNamespace(position=at) for n, at in positions.items()}
    driver.reader = SimpleNamespace(
        world=SimpleNamespace(cell=lambda group, topic, n: cells.get(n))
    )
    first, second = (world.hold(slot, 0).claim for slot in (0, 1))
    assert world.core.shared.standing_of(first) == (("t", 0), 3)
    assert world.core.shared.standing_of(second) is None  # once is enough
    del cells[2]
    assert world.core.shared.standing_of(first) == (("t", 0), -1)


def test_a_batch_names_the_partition_of_its_messages() -> None:
    part = World().hold(3, 0)
    batch = Batch([], part.claim)
    assert (batch.topic, batch.partition) == ("t", 0)
    assert (part.claim.topic, part.claim.partition) == (NAME, 3)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sharing": "key"}, "sharing = 'key' must be"),
        ({"sharing": "keys", "slots": 0}, "slots = 0 must be"),
        ({"sharing": "keys", "claim_entire_topic": True}, "claim_entire_topic"),
        ({"sharing": "keys", "topics": "t" * 234}, "too long"),
    ],
)
def test_what_cannot_be_is_refused_at_once(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        Consumer("127.0.0.1:1", **({"group_id": "g", "topics": "t"} | arguments))


def test_version_1_knows_no_slots() -> None:
    with pytest.raises(NotInVersion1, match="sharing='keys'"):
        Consumer("127.0.0.1:1", group_id="g", topics="t", sharing="keys", wire="text")


def test_transactions_have_one_offset_for_a_partition() -> None:
    made = Consumer("127.0.0.1:1", group_id="g", topics="t", sharing="keys", auto_ack=False)
    with pytest.raises(ConfigurationError, match="sharing='keys'"):
        Transactions(made)


# What the group agrees on


class Agreeing:
    """An `Agreement` in a world of a few cells."""

    def __init__(self, slots: int) -> None:
        self.cells: dict[tuple[str, int], Any] = {}
        self.wanted: list[Any] = []
        marshal: Any = SimpleNamespace(
            cell=lambda *key: self.cells.get(key),
            want=self._want,
            group_id="g",
            settings=SimpleNamespace(wire="msgpack"),
        )
        self.sharing = Agreement(marshal, slots)

    def put(self, topic: str, partition: int, position: int, *, held: bool = False) -> None:
        self.cells[topic, partition] = SimpleNamespace(position=position, held=held)

    def _want(self, topic: str, partition: int) -> Any:
        claim: Any = SimpleNamespace(held=False, said=[], key=(topic, partition))
        claim._core = SimpleNamespace(ended=SimpleNamespace(is_set=lambda: False))
        claim.commit = lambda slots: claim.said.append(slots)
        claim.release = lambda wait: claim.said.append("released")
        self.wanted.append(claim)
        return claim

    def allows(self) -> bool:
        part: Any = SimpleNamespace(topic="t")
        return self.sharing.allows(part)


@spec("C-52")
def test_who_comes_first_says_how_many_slots_there_are() -> None:
    world = Agreeing(8)
    assert world.sharing.ready({"t": 2}) == {}
    (claim,) = world.wanted
    assert claim.key == agreement_cell("t")
    assert world.sharing.ready({"t": 2}) == {}
    assert claim.said == []
    claim.held = True
    assert world.sharing.ready({"t": 2}) == {}
    assert claim.said == [8, "released"]
    world.put("t#slots", 0, 8)
    assert world.sharing.ready({"t": 2}) == {"t": 2}
    assert world.allows()
    assert len(world.wanted) == 1


@spec("C-52")
def test_who_comes_later_agrees_or_is_told() -> None:
    world = Agreeing(8)
    world.put("t#slots", 0, 8)
    assert world.sharing.ready({"t": 1}) == {"t": 1}
    assert world.wanted == []
    world.put("t#slots", 0, 16)
    with pytest.raises(SharingDiffers, match=r"16 slots.*this member would by keys, 8 slots"):
        world.sharing.ready({"t": 1})
    with pytest.raises(SharingDiffers, match="marshal group slots g t 8"):
        world.allows()


@spec("C-52")
@pytest.mark.parametrize(("slots", "word"), [(BY_PARTITIONS, "partitions"), (BY_RANGES, "ranges")])
def test_the_way_out_says_what_the_command_takes(slots: int, word: str) -> None:
    world = Agreeing(slots)
    world.put("t#slots", 0, 16)
    with pytest.raises(SharingDiffers, match=f"`marshal group slots g t {word}`"):
        world.allows()


@spec("C-52")
@pytest.mark.parametrize(("position", "held"), [(-1, True), (5, False)])
def test_partitions_that_are_in_use_are_not_shared_by_keys(position: int, held: bool) -> None:
    world = Agreeing(8)
    world.put("t", 1, position, held=held)
    with pytest.raises(SharingDiffers, match="shares 't' by partitions"):
        world.sharing.ready({"t": 2})
    assert world.wanted == []


def test_who_had_begun_to_agree_gives_it_up_when_a_partition_is_claimed_before() -> None:
    world = Agreeing(8)
    world.sharing.ready({"t": 2})
    world.wanted[0].held = True
    world.put("t", 0, -1, held=True)
    with pytest.raises(SharingDiffers):
        world.sharing.ready({"t": 2})
    assert world.wanted[0].said == ["released"]


@spec("C-52")
def test_a_member_that_shares_by_partitions_looks_before_it_works() -> None:
    world = Agreeing(0)
    assert world.sharing.ready({"t": 2}) == {"t": 2}
    assert world.allows()
    world.put("t#slots", 0, -1, held=True)  # somebody is about to say
    assert not world.allows()
    (claim,) = world.wanted  # or died over it
    claim.held = True
    assert not world.allows()
    assert claim.said == [0, "released"]
    world.put("t#slots", 0, 0)
    assert world.allows()
    world.put("t#slots", 0, 16)
    with pytest.raises(SharingDiffers, match=r"sharing='keys', slots=16"):
        world.allows()


@spec("C-52")
def test_a_claim_is_worked_on_when_the_group_agrees() -> None:
    world = World()
    part = world.hold(0, 0)
    part.stage = Stage.WANTED
    asked: list[Any] = []
    partitions = world.core.partitions
    partitions._agreement.allows = lambda p: asked.append(p)
    partitions._positions.start_of = lambda _: pytest.fail("it was not to begin")
    partitions.advance(part)
    assert asked == [part]


def test_who_had_begun_to_agree_lets_go_when_somebody_else_has_said() -> None:
    """Else it would hold the agreement for ever, and an operator could not change it."""
    world = Agreeing(8)
    world.sharing.ready({"t": 2})
    world.put("t#slots", 0, 8)
    assert world.sharing.ready({"t": 2}) == {"t": 2}
    assert world.wanted[0].said == ["released"]


def test_a_claim_to_agree_that_was_lost_is_made_anew() -> None:
    world = Agreeing(8)
    world.sharing.ready({"t": 2})
    world.wanted[0]._core.ended.is_set = lambda: True
    assert world.sharing.ready({"t": 2}) == {}
    assert len(world.wanted) == 2


def test_ranges_begin_where_partitions_were_left_and_not_while_they_are_held() -> None:
    world = Agreeing(BY_RANGES)
    world.put("t", 1, 5)
    assert world.sharing.ready({"t": 2}) == {}
    assert [claim.key for claim in world.wanted] == [agreement_cell("t")]
    world.put("t", 0, 5, held=True)
    with pytest.raises(SharingDiffers, match="t/0 is held"):
        world.sharing.ready({"t": 2})


def test_a_partition_that_was_paused_is_not_paused_when_it_comes_again() -> None:
    """In librdkafka a pause outlives the assignment."""
    world = World()
    part = world.hold(0, 0)
    part.throttled = True
    world.fetcher.pause_or_resume(part)
    world.kafka.asked.clear()
    world.fetcher.unassign(part)
    assert world.kafka.asked == [("resume", 0), ("unassign", 0)]


def test_a_partition_is_as_far_behind_as_the_slowest_of_its_slots() -> None:
    world = World()
    slow, fast = world.hold(0, 3), world.hold(1, 90)
    world.core.positions.lags = lambda parts, _: {slow.key: 97, fast.key: 10}
    assert world.core.shared.lag(1.0) == {("t", 0): 97}
    world.core.positions.lags = lambda parts, _: {fast.key: 10}
    assert world.core.shared.lag(1.0) == {("t", 0): 10}


def test_what_is_not_held_can_be_neither_paused_nor_moved() -> None:
    world = World()
    part = world.hold(0, 3)
    part.claim.leases = [False]  # type: ignore[attr-defined]
    for call in (world.core.shared.pause, world.core.shared.resume):
        with pytest.raises(NotHeld, match="t/0 is not held"):
            call("t", 0)
    with pytest.raises(NotHeld):
        world.core.shared.seek("t", 0, 7, 1.0)
    assert not part.is_paused


def test_slots_whose_leases_have_lapsed_are_paused_and_go_on_with_the_others() -> None:
    """They may be regained: one that was left out would go on by itself, or never."""
    world = World()
    held, lapsed = world.hold(0, 3), world.hold(1, 3)
    lapsed.claim.leases = [False]  # type: ignore[attr-defined]
    world.core.shared.pause("t", 0)
    assert (held.is_paused, lapsed.is_paused) == (True, True)
    world.core.shared.resume("t", 0)
    assert (held.is_paused, lapsed.is_paused) == (False, False)


def seeking(world: World, *stages: Stage) -> list[HeldPartition]:
    """Its slots in these stages; what is asked for is done when the thread of them is woken."""
    parts = [world.hold(n, 3) for n in range(len(stages))]
    for part, stage in zip(parts, stages, strict=True):
        part.stage = stage
        claim: Any = part.claim

        def set_position(offset: int, claim: Any = claim) -> None:
            claim.position, claim.reason = offset, "repositioned by this client"
            claim._core.ended.set()

        claim.position, claim.set_position = 3, set_position
    world.core.wakeup.wake = lambda: [world.core.partitions.advance(part) for part in parts]
    return parts


@pytest.mark.parametrize("calling", [False, True])
def test_all_slots_that_are_held_go_on_where_a_seek_says(calling: bool) -> None:
    """Also those that were just given, or are being given back."""
    world = World()
    stages = Stage.ACTIVE, Stage.WANTED, Stage.DRAINING, Stage.WANTED
    *held, waiting = seeking(world, *stages)
    waiting.claim.leases = [False]  # type: ignore[attr-defined]
    if calling:  # `on_assigned`, which runs in another thread
        world.core.callbacks.calling = held[1]
    world.core.shared.seek("t", 0, 7, 1.0)
    assert [part.claim.position for part in held] == [7, 7, 7]
    assert (waiting.stage, waiting.reset_to) == (Stage.WANTED, None)


@pytest.mark.parametrize("stage", [Stage.RELEASING, Stage.ACTIVE, Stage.DRAINING])
def test_no_slot_is_moved_where_another_one_cannot_be(stage: Stage) -> None:
    """It goes with the old position just now, or its lease has lapsed and may be regained."""
    world = World()
    parts = seeking(world, Stage.ACTIVE, stage)
    parts[1].claim.leases = [stage is Stage.RELEASING]  # type: ignore[attr-defined]
    with pytest.raises(NotHeld, match="t/0#4/1 is not held any more"):
        world.core.shared.seek("t", 0, 7, 1.0)
    assert [(part.stage, part.reset_to) for part in parts] == [(Stage.ACTIVE, None), (stage, None)]


def test_at_most_once_a_partition_stands_behind_what_was_claimed() -> None:
    """Whoever reads Kafka's committed offsets would else be told messages that nobody gets."""
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", mode="at_most_once")._core
    claim: Any = FakeClaim()
    claim.stored_offset, claim.claimed_offset = 5, 9
    assert made.shared.standing_of(claim) == (("t", 0), 9)
    claim.stored_offset = 12
    assert made.shared.standing_of(claim) == (("t", 0), 12)


def test_a_partition_of_which_several_slots_are_paused_is_named_once() -> None:
    parts = [
        SimpleNamespace(source=("t", p), is_paused=is_paused)
        for p, is_paused in ((1, True), (0, True), (1, True), (2, False))
    ]
    fakes: Any = SimpleNamespace(all=lambda: parts)
    assert ByPartitions(fakes, fakes, fakes, fakes).paused() == [("t", 1), ("t", 0)]
