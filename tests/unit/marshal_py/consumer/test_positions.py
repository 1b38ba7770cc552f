"""What became of a position, and where a group begins."""

from __future__ import annotations

import concurrent.futures
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message

from marshal_py import Consumer
from marshal_py.consumer.held_partition import HeldPartition, Run, Stage
from marshal_py.consumer.positions import judge
from marshal_py.errors import ClaimTimeout, ConfigurationError, MessagesMissing, NotHeld
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.rationalizer import Cell
from tests.support.spec import spec
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim, part_of, run_of

OLD, NEW = b"o" * 16, b"n" * 16
TOLD = ClaimMetadata(cost=7).encode()
"""By whoever held the partition before, whatever it is."""


@pytest.mark.parametrize(
    ("position", "known", "now", "fate"),
    [
        (10, OLD, OLD, "sound"),
        (20, OLD, OLD, "sound"),
        (9, OLD, OLD, "trimmed"),
        (21, OLD, OLD, "truncated"),
        (15, OLD, NEW, "anew"),
        (5, OLD, NEW, "anew"),
        (25, OLD, NEW, "anew"),
        (15, b"", NEW, "sound"),
        (15, OLD, b"", "sound"),
        (21, b"", NEW, "unknown"),
        (21, OLD, b"", "unknown"),
        (9, b"", b"", "trimmed"),
    ],
)
def test_what_became_of_a_position(position: int, known: bytes, now: bytes, fate: str) -> None:
    assert judge(position, 10, 20, now, known) == fate


class World:
    """A consumer of topic t, with messages from 10 to below 20, and one partition of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", **options)._core
        made.partitions._agreement.allows = lambda _: True  # no log was read that says otherwise
        self.made: Any = made
        self.made.topics.counts = {"t": 2}
        self.made.topics.ids = {"t": NEW}
        self.made.topics.ids_known.set()
        self.claim = FakeClaim()
        self.claim.claimed_offset = -1
        self.flushed: list[bytes] = []
        self.at_once: list[bool] = []
        """Of what was told: or with the next heartbeat."""
        self.committed: list[int] = []
        self.set_to: list[int] = []
        claim: Any = self.claim
        claim.commit = self.committed.append
        claim.set_metadata = self.tell
        claim.metadata = TOLD
        claim.set_position = self.set_to.append
        self.part = part_of(claim)
        self.part.stage = Stage.WANTED
        self.part.holding.metadata, self.part.holding.stored_metadata = b"told", b"stored"
        self.cells: dict[int, Cell] = {}
        self.assigned: list[int] = []
        made.fetcher.assign = lambda _, at: self.assigned.append(at)
        made.fetcher.unassign = lambda _: None
        self.asked: list[int] = []
        monkeypatch.setattr(self.made.positions, "_offsets", self.offsets)
        monkeypatch.setattr(type(self.made.marshal), "world", lambda _: self)
        monkeypatch.setattr(
            "marshal_py.consumer.positions.describe",
            lambda *_: {"t": SimpleNamespace(topic_id=self.made.topics.ids["t"])},
        )

    def tell(self, data: bytes, *, flush: bool = False) -> None:
        self.flushed.append(data)
        self.at_once.append(flush)
        self.claim.metadata = data

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cell(self, group: str, topic: str, partition: int) -> Cell | None:
        assert (group, topic) == ("g", "t")
        return self.cells.get(partition)

    def offsets(self, keys: list[Any], which: int, _: float = 2.0) -> dict[Any, int]:
        self.asked.append(which)
        return dict.fromkeys(keys, {-2: 10, -1: 20}.get(which, 15))

    def advance(self) -> None:
        self.made.partitions.advance(self.part)

    def cut_off(self, position: int, *, at: int) -> HeldPartition:
        """It was read at a position, below which Kafka has lost what there was from `at` on."""
        part, self.claim.position = self.part, position
        part.stage = Stage.ACTIVE
        part.start(position, leader_epoch=0)
        part.metadata = ClaimMetadata(topic_id=NEW, leader_epoch=0)
        part.out_of_range, part.truncated_at = True, at
        return part


def test_a_group_begins_at_the_latest_and_says_so_before_anything_goes_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, start="latest")
    world.advance()
    assert (world.committed, world.assigned) == ([20], [])
    told = ClaimMetadata.decode(world.flushed[-1])
    assert (told.began_with, told.topic_id) == (2, NEW)
    assert told.began_ms > 0
    assert world.at_once == [True], "nothing goes out before it is in the log"
    world.claim.position = 20
    world.advance()
    assert world.assigned == [], "it is not stored yet"
    world.claim.stored_offset = 20
    world.advance()
    assert world.assigned == [20]


def test_a_partition_that_the_topic_got_later_begins_at_its_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, start="latest")
    world.part.partition, world.part.key = 1, ("t", 1)
    begun = ClaimMetadata(began_with=1, began_ms=77).encode()
    world.cells[0] = Cell(("t", 0), "a", "a1", 0, 0, 1, 7, -1, begun)
    world.advance()
    assert world.assigned == [OFFSET_BEGINNING]


def test_a_partition_that_was_there_begins_when_the_group_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, start="latest")
    world.part.partition, world.part.key = 1, ("t", 1)
    world.cells[0] = Cell(
        ("t", 0), metadata=ClaimMetadata(began_with=2, began_ms=77).encode(), version=0
    )
    world.advance()
    assert world.asked == [77]
    assert world.committed == [15]
    assert ClaimMetadata.decode(world.flushed[-1]).began_ms == 77


def test_a_group_of_which_nobody_knows_how_it_began_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, start="latest")
    world.cells[1] = Cell(("t", 1), "a", "a1", 0, 0, 1, 7)
    world.advance()
    assert world.assigned == [OFFSET_BEGINNING]


def test_a_duration_goes_back_from_when_the_group_began(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, start=timedelta(hours=1))
    world.cells[1] = Cell(
        ("t", 1), metadata=ClaimMetadata(began_with=2, began_ms=5_000_000).encode()
    )
    world.advance()
    assert world.asked == [5_000_000 - 3_600_000]


def test_why_there_is_no_start_yet_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition may be without a leader for hours, and is asked for again and again."""
    world = World(monkeypatch, start="latest")
    codes = [*[KafkaError._TIMED_OUT] * 3, KafkaError.LEADER_NOT_AVAILABLE]

    def fail(*_: object) -> dict[Any, int]:
        raise KafkaException(KafkaError(codes.pop(0)))

    world.made.positions._offsets = fail
    while codes:
        world.advance()
    told = [record.getMessage() for record in caplog.records if "no start" in record.msg]
    assert [text.rpartition("yet: ")[2] for text in told] == [
        f"{KafkaError(each).str()}; trying on"
        for each in (KafkaError._TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE)
    ]
    world.made.positions._offsets = world.offsets
    world.advance()
    assert world.committed == [20]


def test_a_position_of_another_topic_is_set_anew_before_anything_goes_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.claim.position = 15
    world.claim.metadata = ClaimMetadata(topic_id=OLD).encode()
    world.advance()
    world.advance()  # until the log has it
    assert world.assigned == []
    assert world.set_to == [10, 10]


@pytest.mark.parametrize("what_is_there", ["a message", "the end"])
def test_an_inherited_position_gets_the_id_of_a_topic_that_has_something_there(
    monkeypatch: pytest.MonkeyPatch, what_is_there: str
) -> None:
    world = World(monkeypatch)
    world.claim.position = 15
    world.made.fetcher.active[world.part.key] = world.part
    world.advance()
    world.advance()
    assert (world.assigned, world.flushed) == ([15], []), "it may be of an earlier topic"
    if what_is_there == "a message":
        world.made.fetcher._sort_out(run_of(world.part, 15).messages)
    else:
        world.part.reached(15)
    world.advance()
    assert [ClaimMetadata.decode(data).topic_id for data in world.flushed] == [NEW]


def test_an_inherited_position_beyond_the_end_is_not_taken_for_a_truncation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.claim.position = 25
    world.advance()
    world.advance()
    world.part.out_of_range = True
    world.advance()
    assert world.set_to == [10]


def test_a_position_that_begins_with_the_topic_has_its_id_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.advance()
    world.advance()
    assert [ClaimMetadata.decode(data).topic_id for data in world.flushed] == [NEW]


def test_nothing_goes_out_before_the_id_of_the_topic_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.made.topics.ids_known = threading.Event()
    world.claim.position = 15
    world.claim.metadata = ClaimMetadata(topic_id=OLD).encode()
    world.advance()
    assert (world.assigned, world.set_to) == ([], [])


@pytest.mark.parametrize(
    ("mode", "known", "position", "to"),
    [
        ("at_least_once", NEW, 25, 20),
        ("at_least_once", b"", 25, 10),
        ("at_most_once", NEW, 25, 20),
        ("at_most_once", b"", 25, 20),
        ("at_least_once", OLD, 25, 10),
        ("at_most_once", OLD, 25, 10),
    ],
)
def test_a_position_beyond_the_end_is_set_where_nothing_is_lost_or_comes_twice(
    monkeypatch: pytest.MonkeyPatch, mode: str, known: bytes, position: int, to: int
) -> None:
    world = World(monkeypatch, mode=mode)
    world.part.stage = Stage.ACTIVE
    world.made.topics.ids = {"t": NEW}
    world.claim.position = position
    world.part.start(position)
    world.part.metadata = ClaimMetadata(topic_id=known)
    world.part.out_of_range = True
    world.advance()
    assert world.set_to == [to]
    assert world.part.stage is Stage.RELEASING


@pytest.mark.parametrize(("on_missing", "to"), [("earliest", 10), ("latest", 20)])
def test_where_to_go_on_when_messages_were_deleted(
    monkeypatch: pytest.MonkeyPatch, on_missing: str, to: int
) -> None:
    world = World(monkeypatch, on_missing=on_missing)
    world.part.stage = Stage.ACTIVE
    world.claim.position = 4
    world.part.start(4)
    world.part.out_of_range = True
    world.advance()
    assert (world.assigned, world.set_to) == ([to], [])


def test_a_position_that_is_sound_after_all_is_read_from_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.part.stage = Stage.ACTIVE
    world.claim.position = 20  # Kafka's answer was older than that end
    world.part.start(20)
    world.part.metadata = ClaimMetadata(topic_id=NEW)
    world.part.out_of_range = True
    world.advance()
    assert (world.assigned, world.set_to) == ([20], [])


def there_is(offset: int, code: int | None = None) -> Message:
    error = None if code is None else KafkaError(code)
    return Message(topic="t", partition=0, offset=offset, error=error)


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize(
    "found", [there_is(15), there_is(17), there_is(16, KafkaError._PARTITION_EOF)]
)
def test_a_partition_that_was_cut_off_goes_on_there_though_it_has_grown_again(
    monkeypatch: pytest.MonkeyPatch, mode: str, found: Message
) -> None:
    world = World(monkeypatch, mode=mode)
    part = world.cut_off(18, at=15)
    world.made.fetcher.look = lambda where: found if where.offset == 15 else None
    world.advance()
    assert world.set_to == [15]
    assert part.stage is Stage.RELEASING


@pytest.mark.parametrize("found", [there_is(18), there_is(18, KafkaError._PARTITION_EOF)])
def test_markers_of_a_later_leader_below_the_position_are_no_loss(
    monkeypatch: pytest.MonkeyPatch, found: Message
) -> None:
    """The epoch that goes with a position is that of the last message, which came before them."""
    world = World(monkeypatch, on_missing="stop")
    part = world.cut_off(18, at=15)
    world.made.fetcher.look = lambda _: found
    world.advance()
    assert (world.assigned, world.set_to) == ([18], [])
    assert part.epochs.before(18) == -1, "Kafka would say the same again"
    assert not part.out_of_range


@pytest.mark.parametrize("found", [None, there_is(15, KafkaError._TRANSPORT)])
def test_a_partition_that_may_have_been_cut_off_waits_for_an_answer(
    monkeypatch: pytest.MonkeyPatch, found: Message | None
) -> None:
    world = World(monkeypatch)
    part = world.cut_off(18, at=15)
    world.made.fetcher.look = lambda _: found
    world.advance()
    assert (world.assigned, world.set_to) == ([], [])
    assert part.out_of_range


def test_a_topic_that_is_found_to_be_another_one_is_begun_anew_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that is known of it changes with that, before the next look at all topics."""
    world, renewed, later = World(monkeypatch), list[set[str]](), b"l" * 16
    world.cut_off(15, at=-1)
    world.made.fetcher.reconnect = renewed.append
    monkeypatch.setattr(
        "marshal_py.consumer.positions.describe",
        lambda *_: {"t": SimpleNamespace(topic_id=later)},
    )
    world.advance()
    assert (world.assigned, world.set_to) == ([], [10])
    assert world.made.topics.ids == {"t": later}
    assert renewed == [{"t"}]


def handed_out(world: World, first: int, end: int, *, manual: bool) -> HeldPartition:
    """These messages were fetched and are in hand; at the next one, Kafka has nothing."""
    part, part.manual = world.part, manual
    world.claim.position = first
    part.stage = Stage.ACTIVE
    part.start(first)
    part.metadata = ClaimMetadata(topic_id=NEW)
    part.begin(run := run_of(part, *range(first, end)))
    next(run.rest)
    if manual:
        run.be(run.messages, iter(()))
        part.finish(run)
    part.last_end = end
    part.out_of_range = True
    return part


def do_all(part: HeldPartition, *offsets: int) -> None:
    if part.manual:
        for offset in offsets:
            part.acknowledge(offset)
    elif part.run is not None:
        part.finish(part.run)


@pytest.mark.parametrize("manual", [False, True])
def test_what_is_in_hand_of_a_partition_that_was_cut_off_comes_again(
    monkeypatch: pytest.MonkeyPatch, manual: bool
) -> None:
    """Under the next claim: what came twice under one would be acknowledged once."""
    world = World(monkeypatch)
    part = handed_out(world, 12, 30, manual=manual)
    part.acknowledge(12)
    world.advance()
    assert (world.set_to, world.assigned) == ([13], [])
    assert part.stage is Stage.RELEASING


@pytest.mark.parametrize("manual", [False, True])
def test_reading_goes_on_behind_what_is_in_hand_and_nothing_comes_twice(
    monkeypatch: pytest.MonkeyPatch, manual: bool
) -> None:
    world = World(monkeypatch)
    part = handed_out(world, 12, 16, manual=manual)
    world.advance()
    assert (world.assigned, part.out_of_range) == ([16], False)
    assert part.position() == 12
    do_all(part, *range(12, 16))
    assert part.position() == 16


@pytest.mark.parametrize("manual", [False, True])
def test_what_was_deleted_moves_no_position_past_what_is_in_hand(
    monkeypatch: pytest.MonkeyPatch, manual: bool
) -> None:
    world = World(monkeypatch)
    part = handed_out(world, 2, 5, manual=manual)

    def assign(part: HeldPartition, at: int) -> None:
        part.acknowledge(2)  # a handler comes in between
        world.assigned.append(at)

    world.made.fetcher.assign = assign
    world.advance()
    assert world.assigned == [10]
    assert part.position() == 3
    do_all(part, 3, 4)
    assert part.position() == 10


def test_under_which_claim_a_position_that_was_set_is_taken_up_is_in_the_log_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By that it is known which offsets transactions had committed before it was set."""
    world = World(monkeypatch)
    world.claim.position, world.claim.metadata = 15, b""  # as SetPosition leaves it
    world.advance()
    world.advance()
    assert world.assigned == [], "it is on its way"
    (told,) = world.flushed
    assert ClaimMetadata.decode(told).first_epoch_since_set == world.claim.epoch
    assert world.at_once == [True], "until then nothing goes out"
    world.part.holding.stored_metadata = world.part.holding.metadata
    world.advance()
    assert (world.assigned, world.flushed) == ([15], [told])


def test_without_ids_of_topics_a_position_without_metadata_may_be_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.made.topics.ids = {}
    world.claim.position, world.claim.metadata = 15, b""
    world.advance()
    assert (world.assigned, world.flushed) == ([15], [])


def test_whoever_comes_later_does_not_count_as_the_first_since_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.claim.position = 15
    world.claim.metadata = ClaimMetadata(first_epoch_since_set=2).encode()
    world.advance()
    assert (world.assigned, world.flushed) == ([15], [])
    assert world.part.metadata.first_epoch_since_set == 2


@spec("C-61")
@pytest.mark.parametrize(
    ("mode", "stored", "epoch"),
    [("at_least_once", 15, 3), ("at_least_once", 14, -1), ("at_most_once", 15, -1)],
)
def test_the_epoch_that_was_told_is_that_of_the_position_that_was_stored(
    monkeypatch: pytest.MonkeyPatch, mode: str, stored: int, epoch: int
) -> None:
    world = World(monkeypatch, mode=mode)
    world.claim.position, world.claim.stored_offset = 15, stored
    world.claim.metadata = ClaimMetadata(topic_id=NEW, leader_epoch=3).encode()
    world.advance()
    assert world.assigned == [15]
    assert world.part.epochs.before(15) == epoch


def read(part: HeldPartition, epoch: int, *offsets: int) -> None:
    """The loop gets messages of a leader, and is done with them."""
    found = [Message(topic="t", partition=0, offset=at, leader_epoch=epoch) for at in offsets]
    part.epochs.note_all(found)
    part.begin(run := Run(part, found))
    part.finish(run)


@spec("C-61")
@pytest.mark.parametrize("by", ["heartbeat", "commit", "giving back"])
def test_the_epoch_is_told_with_the_position_or_before_it(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    world = World(monkeypatch)
    part, told = world.part, list[tuple[str, int]]()
    claim: Any = world.claim
    claim.metadata = ClaimMetadata(topic_id=NEW, leader_epoch=3).encode()
    claim.position = claim.stored_offset = 15
    part.holding.epoch, part.holding.metadata = 3, b""
    part.holding.stored_metadata = part.holding.sent_metadata = b""
    claim.commit = lambda at, **_: told.append(("position", at))
    claim.set_metadata = lambda data, **_: told.append(
        ("epoch", ClaimMetadata.decode(data).leader_epoch)
    )
    claimant = SimpleNamespace(advance=lambda _, at: told.append(("position", at)))
    monkeypatch.setattr(world.made.marshal._driver, "claimant", claimant, raising=False)
    partitions = world.made.partitions
    partitions.by_key[part.key] = part

    def store() -> list[tuple[str, int]]:
        told.clear()
        if by == "giving back":
            part.stage = Stage.DRAINING
            world.advance()
        elif by == "commit":
            partitions.commit(1.0)
        else:
            partitions.refresh_offsets()
        return list(dict.fromkeys(told))

    world.advance()
    read(part, 3, 15, 16)
    if by == "heartbeat":
        assert store() == [("position", 17)]
    read(part, 4, 17)
    assert store() == [("epoch", 4), ("position", 18)]


def test_at_most_once_no_epoch_stays_beside_a_position_that_it_is_not_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, mode="at_most_once")
    part = world.part
    world.claim.metadata = ClaimMetadata(topic_id=NEW, leader_epoch=3).encode()
    world.claim.position = world.claim.stored_offset = 15
    world.advance()
    part.holding.epoch = 3
    claimant = SimpleNamespace(advance=lambda *_: None)
    monkeypatch.setattr(world.made.marshal._driver, "claimant", claimant, raising=False)
    world.made.partitions.by_key[part.key] = part
    part.epochs.note(4, 15)
    part.tail = (15, 18)  # there are markers only
    world.made.partitions.refresh_offsets()
    assert ClaimMetadata.decode(world.flushed[-1]).leader_epoch == -1


@pytest.mark.parametrize(("position", "lag"), [(-1, 20), (0, 20), (15, 5), (20, 0), (21, 0)])
def test_how_far_a_partition_is_behind(
    monkeypatch: pytest.MonkeyPatch, position: int, lag: int
) -> None:
    world = World(monkeypatch)
    world.part.start(position)
    assert world.made.positions.lags([world.part], 1.0) == {("t", 0): lag}


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_where_a_partition_ends_is_asked_of_the_messages_that_are_fetched(level: str) -> None:
    """Those of open transactions are not: they would be waited for, and claimed beforehand."""
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", kafka={"isolation.level": level})
    part, asked = part_of(FakeClaim()), list[str]()

    def list_offsets(parts: Any, *, isolation_level: Any, **_: float) -> dict[Any, Any]:
        asked.append(isolation_level.name.lower())
        future: Any = concurrent.futures.Future()
        future.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(parts, future)

    made._core.admin.client = SimpleNamespace(list_offsets=list_offsets)
    made._core.positions.request_ends([part])
    assert part.end == made._core.positions.end_of(("t", 0)) == 7
    assert asked == [level, level]


def no_answer(*_: object, **__: object) -> Any:
    raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_question_that_is_not_answered_is_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again in the next round; until then nothing is known."""
    world = World(monkeypatch)
    positions, part = world.made.positions, world.part
    part.stage, part.metadata = Stage.ACTIVE, ClaimMetadata(topic_id=b"o" * 16)
    with monkeypatch.context() as patch:
        patch.setattr(positions, "_offsets", no_answer)
        assert (positions.first_of(part.source), positions.end_of(part.source)) == (None, None)
        positions.look_after(part)
        assert part.reset_to is None
    assert (positions.first_of(part.source), positions.end_of(part.source)) == (10, 20)
    positions.look_after(part)
    assert part.reset_to == 10
    failed: Any = concurrent.futures.Future()
    failed.set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
    for answer in (lambda parts, **_: dict.fromkeys(parts, failed), no_answer):
        caplog.clear()
        world.made.admin.client = SimpleNamespace(list_offsets=answer)
        positions.request_ends([part])
        assert (part.end, caplog.text) == (-1, "")


def test_a_group_that_begins_before_there_was_time_begins_at_the_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers take a negative time for something else."""
    world = World(monkeypatch, start=timedelta(hours=1))
    told = ClaimMetadata(began_with=2, began_ms=1_000).encode()
    world.cells[1] = Cell(("t", 1), metadata=told)
    world.advance()
    assert world.asked == [0]


def test_who_wants_to_stop_when_messages_are_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, on_missing="stop")
    world.part.stage = Stage.ACTIVE
    world.claim.position = 4
    world.part.start(4)
    world.part.out_of_range = True
    with pytest.raises(MessagesMissing, match="t/0: messages from offset 4 on were deleted"):
        world.advance()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_missing": "end"}, "on_missing = 'end'"),
        ({"start": timedelta(seconds=-1)}, "start = datetime.timedelta"),
        ({"start": "now"}, "start = 'now'"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Consumer("127.0.0.1:1", group_id="g", topics="t", **options)


def test_at_most_once_a_position_passes_what_no_message_is_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, mode="at_most_once")
    part, holding = world.part, world.part.holding
    part.stage = Stage.ACTIVE
    world.made.partitions.by_key[part.key] = part
    holding.epoch, holding.next_offset = 3, -1
    part.start(10)
    part.last_end = run_of(part, 10, 11).end
    part.reached(14)
    told: list[int] = []
    claimant = SimpleNamespace(advance=lambda _, position: told.append(position))
    monkeypatch.setattr(world.made.marshal._driver, "claimant", claimant, raising=False)
    world.claim.position = 11
    world.made.partitions.refresh_offsets()
    assert told == [-1], "a message is not claimed yet"
    world.claim.position = 12
    world.made.partitions.refresh_offsets()
    assert told == [-1, 14]


def test_at_most_once_a_position_passes_what_was_deleted_when_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, mode="at_most_once")
    monkeypatch.setattr(world, "offsets", lambda keys, *_: dict.fromkeys(keys, 20))
    monkeypatch.setattr(world.made.positions, "_offsets", world.offsets)
    part, holding = world.part, world.part.holding
    part.stage = Stage.ACTIVE
    world.made.partitions.by_key[part.key] = part
    holding.epoch = 3
    part.start(4)
    part.last_end = run_of(part, 4, 5).end
    part.out_of_range = True
    world.claim.position = 5
    world.advance()
    assert world.assigned == [20]
    told: list[int] = []
    claimant = SimpleNamespace(advance=lambda _, position: told.append(position))
    monkeypatch.setattr(world.made.marshal._driver, "claimant", claimant, raising=False)
    world.made.partitions.refresh_offsets()
    part.reached(20)
    world.made.partitions.refresh_offsets()
    assert told == [-1, -1], "a message that was fetched before is not claimed yet"
    world.claim.position = 6
    world.made.partitions.refresh_offsets()
    assert told == [-1, -1, 20]


class ClosedKafka:
    """As confluent-kafka's consumer is, once it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def consume(self, *_: object) -> list[Any]:
        if self.is_closed:
            raise RuntimeError("Consumer closed")
        return []

    poll = consume


def test_a_loop_that_goes_on_while_another_thread_closes_finds_nothing() -> None:
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t")._core
    made.fetcher._kafka = ClosedKafka()
    made.fetcher.active[("t", 0)] = part_of(FakeClaim())
    made.fetcher.close()
    assert made.fetcher.fetch(10) == 0
    assert made.fetcher.fetch(10, 0.1) == 0
    made.fetcher.pause_or_resume(part_of(FakeClaim()))  # and asks nothing of it


def test_no_position_is_told_without_the_id_of_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the two would leave a position that is taken for one of any later topic."""
    world = World(monkeypatch)
    world.made.topics.ids_known = threading.Event()
    world.advance()
    assert world.part.stage is Stage.ACTIVE
    run = run_of(world.part, 10, 11)
    world.part.begin(run)
    world.part.finish(run)
    told: list[int] = []
    world.claim._core.holding.epoch = 3
    world.made.marshal._driver.claimant = SimpleNamespace(
        advance=lambda _, position: told.append(position)
    )
    world.made.partitions.by_key[world.part.key] = world.part
    world.made.topics.ids = {}
    world.flushed.clear()
    world.made.partitions.refresh_offsets()
    assert (told, world.flushed) == ([], [])
    world.made.topics.ids = {"t": NEW}
    world.made.topics.ids_known.set()
    world.made.partitions.refresh_offsets()
    assert told == [12]
    assert [ClaimMetadata.decode(data).topic_id for data in world.flushed] == [NEW]


@pytest.mark.parametrize("wire", ["msgpack", "text"])
def test_in_version_1_no_position_waits_for_the_id_of_its_topic(
    monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Its records have no room for one."""
    world = World(monkeypatch, wire=wire)
    world.made.topics.ids_known.clear()
    assert world.made.positions.may_be_told(world.part) is (wire == "text")


def test_commit_and_giving_back_wait_for_the_id_of_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A position that `commit` stored in the first moments was taken for one of any topic."""
    world = World(monkeypatch)
    world.made.topics.ids_known = threading.Event()
    world.part.holding.epoch = 3
    claimant = SimpleNamespace(advance=lambda *_: None)
    monkeypatch.setattr(world.made.marshal._driver, "claimant", claimant, raising=False)
    world.advance()
    run = run_of(world.part, 10, 11)
    world.part.begin(run)
    world.part.finish(run)
    partitions = world.made.partitions
    partitions.by_key[world.part.key] = world.part
    stored: list[int] = []
    claim: Any = world.claim
    claim.commit = lambda position, **_: stored.append(position)
    with pytest.raises(ClaimTimeout, match="t/0: Kafka did not tell the topic's id"):
        partitions.commit(0.01)
    partitions.drain(world.part)
    world.advance()
    assert (stored, world.part.stage) == ([], Stage.DRAINING)
    world.made.topics.ids_known.set()
    partitions.commit(0.01)
    assert stored == [12]


def test_the_id_of_an_earlier_topic_without_a_position_has_nothing_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash before the first position was stored: what is handed out would come twice."""
    world = World(monkeypatch)
    world.claim.metadata = ClaimMetadata(topic_id=OLD).encode()
    world.advance()
    world.advance()
    assert (world.assigned, world.set_to) == ([OFFSET_BEGINNING], [])
    assert [ClaimMetadata.decode(data).topic_id for data in world.flushed] == [NEW]


@pytest.mark.parametrize("position", [-1, 15])
def test_what_was_fetched_before_a_topic_was_made_anew_is_not_told_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """The position of the old topic stood under the id of the new one: what is there was lost."""
    world = World(monkeypatch)
    world.claim.position = position
    world.made.topics.ids = {"t": OLD}
    world.made.fetcher.active[world.part.key] = world.part
    world.advance()
    world.made.fetcher._sort_out(run_of(world.part, 15, 16).messages)
    world.made.topics.ids = {"t": NEW}  # before anything was told
    world.made.partitions.by_key[world.part.key] = world.part
    world.part.holding.epoch = 3
    claimant = SimpleNamespace(advance=lambda *_: None)
    monkeypatch.setattr(world.made.marshal._driver, "claimant", claimant, raising=False)
    run = run_of(world.part, 15, 16)
    world.part.begin(run)
    world.part.finish(run)
    world.made.partitions.refresh_offsets()
    assert [ClaimMetadata.decode(data).topic_id for data in world.flushed] == [OLD]
    world.advance()
    assert world.set_to == [10]


def test_of_a_topic_made_anew_before_anything_was_fetched_the_first_message_is_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.claim.position = 15
    world.made.topics.ids = {"t": OLD}
    world.advance()
    world.made.topics.ids = {"t": NEW}
    world.advance()
    assert world.set_to == [10]


def test_what_is_done_above_a_gap_is_told_when_a_partition_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    monkeypatch.setattr(world.claim, "release", lambda **_: None, raising=False)
    world.part.manual = True
    world.part.start(15)
    run = run_of(world.part, 15, 16, 17)
    world.part.begin(run)
    world.part.finish(run)
    world.part.acknowledge(16)
    world.part.stage = Stage.DRAINING
    holding = world.part.holding
    holding.metadata = holding.stored_metadata = holding.sent_metadata = b""
    world.made.partitions._give_back(world.part)
    (told,) = world.flushed
    assert ClaimMetadata.decode(told).done_ranges == ((16, 17),)


def test_a_group_that_begins_at_a_time_after_the_last_message_begins_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, start=2**41)
    world.made.positions._offsets = lambda keys, which, *_: dict.fromkeys(
        keys, 20 if which == -1 else -1
    )
    world.advance()
    assert world.committed == [20]


@pytest.mark.parametrize("error", [ClaimTimeout("later"), NotHeld("lost meanwhile")])
def test_who_commits_is_told_of_what_was_not_stored_and_not_of_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world = World(monkeypatch)
    claimant = SimpleNamespace(advance=lambda *_: None)
    monkeypatch.setattr(world.made.marshal._driver, "claimant", claimant, raising=False)
    world.part.holding.epoch = 3
    world.advance()
    world.part.finish(run_of(world.part, 10))
    partitions, claim = world.made.partitions, cast("Any", world.claim)
    partitions.by_key[world.part.key] = world.part
    claim.commit = mock.Mock(side_effect=error)
    if isinstance(error, NotHeld):
        partitions.commit(1.0)
    else:
        with pytest.raises(ClaimTimeout, match="later"):
            partitions.commit(1.0)
    claim.commit.assert_called_once_with(11, wait=True, timeout_s=mock.ANY)


def test_of_no_partition_kafka_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.made.positions.ends_of([], 1.0) == {}
    assert world.made.positions.lags([], 1.0) == {}
    assert world.asked == []
