"""The fetcher: what it makes of what Kafka brings, and how another Kafka consumer goes on."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from marshal_py.client.headers import UNREADABLE
from marshal_py.client.kafka_clients import CONNECT_AGAIN_S
from marshal_py.client.pulse import PULSE_S
from marshal_py.consumer import fetcher as fetcher_module
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.fetcher import HEAR_S
from marshal_py.consumer.held_partition import HeldPartition, Run, Stage
from marshal_py.errors import AccessDenied, ConfigurationError, MarshalError, NotHeld
from marshal_py.protocol.slots import slots_cell
from tests.support.unreadable import unreadable_message
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim
from tests.unit.marshal_py.consumer.test_range_stream import a_range


class FakeKafka:
    """Of confluent-kafka's consumer: what is assigned to it, and where it is."""

    def __init__(self, *_: object) -> None:
        self.assigned: dict[tuple[str, int], int] = {}
        self.sought: dict[tuple[str, int], tuple[int, int | None]] = {}
        self.come: list[Message] = []
        self.positions: dict[tuple[str, int], int] = {}
        self.paused: set[tuple[str, int]] = set()
        self.is_closed = False

    def incremental_assign(self, where: list[TopicPartition]) -> None:
        self.assigned |= {(at.topic, at.partition): at.offset for at in where}

    def incremental_unassign(self, where: list[TopicPartition]) -> None:
        for at in where:
            del self.assigned[at.topic, at.partition]

    def position(self, where: list[TopicPartition]) -> list[TopicPartition]:
        keys = [(at.topic, at.partition) for at in where]
        return [TopicPartition(*key, self.positions.get(key, -1001)) for key in keys]

    def seek(self, at: TopicPartition) -> None:
        self.sought[at.topic, at.partition] = at.offset, at.leader_epoch

    def poll(self, _: float) -> Message | None:
        return self.come.pop(0) if self.come else None

    def consume(self, most: int, _: float) -> list[Message]:
        found, self.come = self.come[:most], self.come[most:]
        return found

    def pause(self, where: list[TopicPartition]) -> None:
        self.paused |= {(at.topic, at.partition) for at in where}

    def resume(self, where: list[TopicPartition]) -> None:
        self.paused -= {(at.topic, at.partition) for at in where}

    def close(self) -> None:
        self.is_closed = True


class World:
    """A consumer whose fetcher is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.made: list[FakeKafka] = []
        self.settings: list[dict[str, Any]] = []
        monkeypatch.setattr(fetcher_module, "connect", self._connect)
        self.consumer = Consumer("127.0.0.1:1", group_id="g", topics=["t", "u"], **settings)
        core: Any = self.consumer._core
        self.core, self.fetcher = core, core.fetcher
        self.fetcher.open()

    def _connect(self, _: object, config: dict[str, Any], *__: object) -> FakeKafka:
        self.settings.append(config)
        self.made.append(FakeKafka())
        return self.made[-1]

    def hold(self, topic: str, number: int, offset: int, epoch: int = -1) -> HeldPartition:
        claim = FakeClaim()
        claim.topic, claim.partition = topic, number
        part = HeldPartition(claim, manual=False)  # type: ignore[arg-type]
        part.start(max(offset, -1), leader_epoch=epoch)
        part.stage = Stage.ACTIVE
        self.fetcher.assign(part, offset)
        return part


def test_another_kafka_consumer_goes_on_where_the_one_before_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.hold("t", 0, 7), world.hold("t", 1, OFFSET_BEGINNING)
    paused = world.hold("u", 0, 100)
    world.fetcher.unassign(world.hold("u", 1, 5))
    paused.throttled = True
    world.fetcher.pause_or_resume(paused)
    world.made[0].positions = {("u", 0): 130, ("u", 1): 9}
    world.fetcher.reconnect(["u"])
    before, after = world.made
    assert before.is_closed
    assert after.assigned == {("t", 0): 7, ("t", 1): OFFSET_BEGINNING, ("u", 0): 130}
    assert after.paused == {("u", 0)}
    assert not after.is_closed


def test_of_headers_that_are_no_text_everybody_gets_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of confluent-kafka the first to ask gets a `SystemError`, and the second a crash."""
    world = World(monkeypatch)
    part = world.hold("t", 0, 0)
    come = unreadable_message()
    world.made[0].come = [come]
    world.fetcher.fetch(100, 0.1)
    assert part.fetched == 1
    assert str(come.headers()).startswith(f"[('{UNREADABLE}'")


def test_what_was_paused_before_it_is_fetched_is_not_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `on_assigned`, say: all there is of it would come, and wait here for `resume`."""
    world = World(monkeypatch)
    part = world.hold("t", 0, 7)
    world.fetcher.unassign(part)
    world.core.partitions.pause(part, True)
    world.fetcher.assign(part, 7)
    assert world.made[0].paused == {("t", 0)}
    world.core.partitions.pause(part, False)
    assert world.made[0].paused == set()


@pytest.mark.parametrize("call", ["poll", "consume"])
def test_what_a_fetch_that_raised_has_taken_comes_again(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Of Ctrl-C, or as a callback of the program raises: confluent-kafka drops those messages."""
    world = World(monkeypatch)
    world.hold("t", 0, 7), world.hold("t", 1, OFFSET_BEGINNING)
    paused, slot = world.hold("u", 0, 100), world.hold(slots_cell("u", 1, 4), 2, 50)
    paused.throttled = True
    world.fetcher.pause_or_resume(paused)
    world.fetcher._sort_out([message(7), message(8), message(60, "u", 1)])
    assert slot.read_to == 61

    def drop(*_: object) -> None:
        world.made[0].come.clear()
        raise KeyboardInterrupt

    world.made[0].come = [message(9), message(61, "u", 1)]
    monkeypatch.setattr(world.made[0], call, drop)
    with pytest.raises(KeyboardInterrupt):
        world.fetcher.fetch(100, 0.1)
    world.fetcher.fetch(100)
    before, after = world.made
    assert before.is_closed
    assert after.assigned == {
        ("t", 0): 9,
        ("t", 1): OFFSET_BEGINNING,
        ("u", 0): 100,
        ("u", 1): 61,
    }
    assert after.paused == {("u", 0)}


@pytest.mark.parametrize(
    ("unit", "offsets", "after"),
    [
        (("t", 0), [7, 8], {("t", 0): 9, ("t", 1): 7}),
        ((slots_cell("t", 0, 4), 2), [6, 10], {("t", 0): 11, ("t", 1): 7}),
    ],
    ids=["partitions", "slots"],
)
def test_what_was_collected_when_a_fetch_raised_does_not_come_again(
    monkeypatch: pytest.MonkeyPatch,
    unit: tuple[str, int],
    offsets: list[int],
    after: dict[tuple[str, int], int],
) -> None:
    world = World(monkeypatch)
    part, _ = world.hold(*unit, offsets[0]), world.hold("t", 1, 7)

    class Interrupted(deque[Run]):
        def append(self, run: Run, /) -> None:
            super().append(run)
            raise KeyboardInterrupt

    world.fetcher.collect_in(Interrupted())
    world.made[0].come = [*map(message, offsets), message(7, partition=1)]
    with pytest.raises(KeyboardInterrupt):
        world.fetcher.fetch(100)
    world.fetcher.fetch(100)
    assert world.made[1].assigned == after
    assert part.fetched == offsets[-1] + 1


def led(offset: int, epoch: int, topic: str = "t") -> Message:
    return Message(topic=topic, partition=0, offset=offset, leader_epoch=epoch)


@pytest.mark.parametrize("others", [0, 1])
def test_what_a_later_leader_has_is_passed_on_when_kafka_has_compared(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """The end that came with it, too, or all before the end would count as passed."""
    world = World(monkeypatch)
    part = world.hold("t", 0, 10, epoch=2)
    if others:
        world.hold("t", 1, 0)
    came = [led(10, 3), led(11, 3), message(12, error=KafkaError._PARTITION_EOF)]
    world.made[0].come = list(came)
    world.fetcher.fetch(100, 0.1)
    assert world.made[0].sought == {("t", 0): (10, 2)}
    assert (fetched(world), part.position(), part.epochs.before(11)) == ([], 10, 2)
    world.made[0].come = list(came)
    world.fetcher.fetch(100, 0.1)
    assert fetched(world) == [("t", 0, [10, 11])]
    assert part.tail == (12, 12)
    assert part.epochs.before(12) == 3


def test_of_what_is_fetched_no_more_kafka_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would refuse: the partition is not assigned."""
    world = World(monkeypatch)
    world.fetcher.unassign(world.hold("t", 0, 10, epoch=2))
    world.fetcher._sort_out([led(10, 3)])
    assert (world.made[0].sought, fetched(world)) == ({}, [])


def test_a_client_that_takes_over_compares_the_epochs_of_topics_that_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    kept, renewed = world.hold("t", 0, 10), world.hold("u", 0, 10)
    world.fetcher._sort_out([led(10, 2), led(11, 3), led(10, 2, "u"), led(11, 3, "u")])
    assert [part.epochs.before(11) for part in (kept, renewed)] == [2, 2]
    world.made[0].positions = {("t", 0): 12, ("u", 0): 12}
    world.fetcher.reconnect(["u"])
    world.fetcher._sort_out([led(12, 4), led(12, 0, "u")])
    assert world.made[1].sought == {("t", 0): (12, 3)}
    assert renewed.epochs.before(13) == 0


def test_a_look_is_taken_with_a_client_of_its_own_which_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    where, answer = TopicPartition("t", 0, 7, leader_epoch=3), message(7)
    asked: list[Any] = []

    class Looking(FakeKafka):
        def assign(self, places: list[TopicPartition]) -> None:
            asked.extend(places)

        def poll(self, _: float) -> Message | None:
            if isinstance(answer, Message):
                return answer
            raise RuntimeError

    clients = [Looking(), Looking()]
    monkeypatch.setattr(fetcher_module, "connect", lambda *_: clients[len(asked)])
    assert world.fetcher.look(where) is answer
    assert asked == [where]
    assert clients[0].is_closed
    answer = None  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        world.fetcher.look(where)
    assert clients[1].is_closed
    assert not world.made[0].is_closed


def test_leaders_that_cannot_be_reached_yet_are_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, asked = World(monkeypatch), list[tuple[str, int]]()

    def offsets_for_times(where: list[TopicPartition], timeout: float) -> None:
        assert timeout > 0
        asked.extend((at.topic, at.partition) for at in where)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    world.made[0].offsets_for_times = offsets_for_times  # type: ignore[attr-defined]
    world.fetcher.connect_to_leaders({"t": 2, "u": 1})
    world.fetcher.connect_to_leaders({})
    assert asked == [("t", 0), ("t", 1), ("u", 0)]


def test_of_a_shared_partition_it_is_asked_for_what_its_parts_want_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, sharing="keys", slots=4)
    for slot in range(4):
        world.hold(slots_cell("t", 0, 4), slot, 10)
    world.fetcher._sort_out([Message(topic="t", partition=0, offset=at) for at in range(10, 30)])
    world.fetcher.reconnect(["u"])
    assert world.made[1].assigned == {("t", 0): 30}


@pytest.mark.parametrize(("renewed", "end"), [("t", -1), ("u", 30)])
def test_how_far_a_topic_went_means_nothing_when_it_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, renewed: str, end: int
) -> None:
    world = World(monkeypatch, sharing="ranges")
    world.fetcher.set_end(("t", 0), 30)
    world.fetcher._sort_out([CUT_OFF])
    world.fetcher.set_end(("t", 0), 30)
    world.fetcher.reconnect([renewed])
    assert world.fetcher.end_of(("t", 0)) == end
    world.fetcher.assign(part := a_range(25, 30), 25)
    assert part.out_of_range is (renewed != "t")


def test_a_partition_that_was_truncated_ends_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, sharing="ranges")
    world.fetcher.set_end(("t", 0), 30)
    world.fetcher.truncated(("t", 0), 20)
    world.fetcher.truncated(("t", 0), 25)
    assert world.fetcher.end_of(("t", 0)) == 20
    world.fetcher.set_end(("t", 0), 22)
    world.fetcher.set_end(("t", 0), 21)
    assert world.fetcher.end_of(("t", 0)) == 22, "an answer may be of a moment ago"


def test_after_the_end_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.fetcher.close()
    world.fetcher.reconnect(["u"])
    assert len(world.made) == 1


class Rotating(World):
    """Its certificate and its key do not fit each other while `is_torn`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_torn, self.tried, self.clock = False, 0, [1_000.0]
        super().__init__(monkeypatch)
        monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    @property
    def now_s(self) -> float:
        return self.clock[0]

    def _connect(self, kind: object, config: dict[str, Any], *more: object) -> FakeKafka:
        self.tried += 1
        if self.is_torn:
            raise ConfigurationError("ssl.key.location failed")
        return super()._connect(kind, config, *more)


def test_a_client_that_cannot_be_made_now_is_made_a_moment_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a certificate is being replaced. Until then nothing is fetched past what was lost."""
    world = Rotating(monkeypatch)
    part, fetcher = world.hold("t", 0, 7), world.fetcher
    world.made[0].come = [message(9)]
    world.is_torn = True
    fetcher.reconnect(["u"])
    fetcher.unassign(world.hold("t", 1, 0))
    assert (fetcher.fetch(1), fetcher.fetch(1, 0.001), fetched(world)) == (0, 0, [])
    assert (world.tried, len(world.made), world.made[0].is_closed) == (2, 1, False)
    assert fetcher.problem == "ssl.key.location failed"
    world.clock[0] += CONNECT_AGAIN_S
    world.clock[0] += HEAR_S
    fetcher.hear()
    assert (world.tried, fetched(world)) == (3, [])
    assert caplog.text.count("ssl.key.location failed; trying on") == 2
    world.is_torn = False
    world.clock[0] += CONNECT_AGAIN_S
    fetcher.fetch(1)
    assert fetcher.problem is None
    before, after = world.made
    assert (before.is_closed, after.assigned) == (True, {("t", 0): 7})
    after.come = [message(7)]
    assert fetcher.fetch(1) == 1
    assert part.fetched == 8


def test_a_client_that_is_not_asked_for_anything_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may take an hour until somebody sees that a key does not fit."""
    world = Rotating(monkeypatch)
    world.hold("t", 0, 7)
    world.is_torn = True
    world.fetcher.reconnect(["u"])

    def fetch_for(seconds: int) -> None:
        for _ in range(seconds):
            world.clock[0] += CONNECT_AGAIN_S
            assert world.fetcher.fetch(1) == 0

    fetch_for(3_600)
    assert world.core.wakeup.failure is None
    world.is_torn = False
    fetch_for(int(PULSE_S) - 2)
    assert world.made[1].assigned == {("t", 0): 7}
    with pytest.raises(MarshalError, match="gave no sign of life"):
        fetch_for(5)


def test_what_ctrl_c_lost_comes_before_what_is_only_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its place would be behind that, and it would never come."""
    world = Rotating(monkeypatch)
    world.hold("t", 0, 7)
    before = world.made[0]

    def drop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(before, "consume", drop)
        with pytest.raises(KeyboardInterrupt):
            world.fetcher.fetch(1)
    before.come = [message(8)]
    world.clock[0] += HEAR_S + 1
    world.fetcher.hear()
    assert fetched(world) == []
    assert world.made[1].assigned == {("t", 0): 7}


def test_a_look_for_which_no_client_can_be_made_brings_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = Rotating(monkeypatch)
    world.is_torn = True
    assert world.fetcher.look(TopicPartition("t", 0, 7)) is None
    assert "ssl.key.location failed; trying on" in caplog.text


@pytest.mark.parametrize(
    ("known", "told", "is_anew"),
    [(b"", b"1", False), (b"1", b"1", False), (b"1", b"2", True)],
)
def test_there_is_another_when_a_topic_has_another_id(
    monkeypatch: pytest.MonkeyPatch, known: bytes, told: bytes, is_anew: bool
) -> None:
    world = World(monkeypatch)
    topics = world.core.topics
    if known:
        assert not topics.note_ids({"t": known})
    assert topics.note_ids({"t": told, "u": b"9"}) is is_anew
    assert len(world.made) == 1 + is_anew
    assert topics.ids == {"t": told, "u": b"9"}
    assert not topics.note_ids({"t": b"", "v": b""})  # it was not told
    assert topics.ids == {"t": told, "u": b"9"}


def test_an_id_that_a_broker_tells_who_lags_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    topics = world.core.topics
    for told, is_anew in [(b"1", False), (b"2", True), (b"1", False), (b"2", False), (b"3", True)]:
        assert topics.note_ids({"t": told}) is is_anew
    assert not topics.note_ids({"t": b"1"})
    assert topics.ids == {"t": b"3"}
    assert len(world.made) == 3


def message(offset: int, topic: str = "t", partition: int = 0, error: int | None = None) -> Message:
    told = None if error is None else KafkaError(error, "")
    return Message(topic=topic, partition=partition, offset=offset, error=told)


def fetched(world: World) -> list[tuple[str, int, list[int | None]]]:
    """What is to be handed out: topic, partition, offsets."""
    found = []
    while (run := world.core.delivery.next_run()) is not None:
        offsets = [each.offset() for each in run.messages]
        found.append((run.part.topic, run.part.partition, offsets))
    return found


def test_errors_among_messages_take_none_of_them_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    part, other = world.hold("t", 0, 5), world.hold("t", 1, 0)
    end, lost = KafkaError._PARTITION_EOF, KafkaError._TRANSPORT
    messages = [message(5), message(9, error=end), message(0, partition=1), message(6)]
    world.fetcher._sort_out([*messages, message(0, "elsewhere", error=lost)])
    assert sorted(fetched(world)) == [("t", 0, [5, 6]), ("t", 1, [0])]
    assert (part.fetched, other.fetched) == (9, 1), "behind the last there are markers alone"


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_messages_that_are_gone_are_told_to_whoever_places_the_partition(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    world = World(monkeypatch)
    part, other = world.hold("t", 0, 5), world.hold("t", 1, 5)
    world.core.wakeup.clear()
    world.fetcher._sort_out([message(5, error=code)])
    assert (part.out_of_range, other.out_of_range) == (True, False)
    assert world.core.wakeup._event.is_set()
    assert part.truncated_at == -1


def test_the_claim_of_what_is_in_hand_is_told_while_its_partition_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    part = world.hold("t", 0, 5)
    world.core.partitions.by_key[part.key] = part
    world.core.partitions.drain(part)
    assert world.consumer.claim_of(message(5)) is part.claim
    for stage in (Stage.RELEASING, Stage.WANTED):
        part.stage = stage
        with pytest.raises(NotHeld, match="t/0"):
            world.consumer.claim_of(message(5))


CUT_OFF = Message(
    topic="t",
    partition=0,
    offset=30,
    error=KafkaError(
        KafkaError._AUTO_OFFSET_RESET,
        "Partition log truncation detected at offset 30 (leader epoch 0): broker end offset is 20 "
        "(offset leader epoch 0). Reset to INVALID.: Local: Partition log truncation detected",
    ),
)


def test_where_a_partition_was_cut_off_is_told_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    part = world.hold("t", 0, 30)
    world.fetcher._sort_out([CUT_OFF])
    assert (part.out_of_range, part.truncated_at) == (True, 20)


def test_what_was_cut_off_between_two_ranges_is_told_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks at the old place, where by then there may be messages again."""
    world = World(monkeypatch, sharing="ranges")
    fetcher = world.fetcher

    def hold(start: int) -> HeldPartition:
        part = a_range(start, start + 10)
        fetcher.assign(part, start)
        return part

    fetcher.set_end(("t", 0), 30)
    fetcher.unassign(hold(20))
    fetcher._sort_out([CUT_OFF])
    assert fetcher.end_of(("t", 0)) == 20
    sound, gone = hold(10), hold(30)
    assert (sound.out_of_range, sound.truncated_at) == (False, -1)
    assert (gone.out_of_range, gone.truncated_at) == (True, 20)
    assert world.core.wakeup._event.is_set()
    fetcher.truncated(("t", 0), 20)
    assert not hold(40).out_of_range


def test_what_was_kept_for_a_range_comes_in_batches_of_the_usual_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, sharing="ranges", batch_size=2)
    kafka: Any = world.made[0]
    kafka.get_watermark_offsets = lambda *_, **__: (0, 9)
    runs: deque[Run] = deque()
    world.fetcher.collect_in(runs)
    world.fetcher.assign(a_range(0, 3), 0)
    come = [Message(topic="t", partition=0, offset=at, value=b"v") for at in range(9)]
    world.fetcher._sort_out(come)
    runs.clear()
    world.fetcher.assign(a_range(3, 8), 3)
    assert [[m.offset() for m in run.messages] for run in runs] == [[3, 4], [5, 6], [7]]


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION])
def test_a_topic_that_kafka_does_not_know_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    world, gone = World(monkeypatch), list[str]()
    world.fetcher.on_gone = gone.append
    world.fetcher._sort_out([message(0, "u", error=code)])
    assert gone == [], "nothing is fetched of it"
    world.hold("u", 0, 5)
    world.fetcher._sort_out([message(0, "u", error=code)])
    assert gone == ["u"]
    assert caplog.records == []


def test_a_right_that_is_missing_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would wait for ever, for messages that it may not read."""
    world = World(monkeypatch)
    world.hold("t", 0, 5)
    world.fetcher._sort_out([message(5, error=KafkaError.TOPIC_AUTHORIZATION_FAILED)])
    assert isinstance(world.core.wakeup.failure, AccessDenied)
    assert "lacks Read on topic 't'" in str(world.core.wakeup.failure)


def test_another_error_is_told_and_passes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch)
    world.hold("t", 0, 5)
    world.fetcher._sort_out([message(5, error=KafkaError._TRANSPORT), message(5)])
    assert fetched(world) == [("t", 0, [5])]
    assert "t/0: " in caplog.text
    assert world.core.wakeup.failure is None


def test_a_pause_does_not_outlive_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    part = world.hold("t", 0, 5)
    part.throttled = True
    world.fetcher.pause_or_resume(part)
    (kafka,) = world.made
    assert kafka.paused == {("t", 0)}
    world.fetcher.unassign(part)
    assert (kafka.paused, kafka.assigned) == (set(), {})
    world.fetcher.pause_or_resume(part)  # as its lease lapses
    assert kafka.paused == set()


def test_a_fetch_that_waits_ends_when_the_consumer_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.hold("t", 0, 5)
    waits = threading.Event()

    def poll(_timeout_s: float) -> None:
        waits.set()
        threading.Event().wait(0.001)

    world.made[0].poll = poll  # type: ignore[method-assign, assignment]
    found: list[int] = []
    loop = threading.Thread(target=lambda: found.append(world.fetcher.fetch(1, 600.0)), daemon=True)
    loop.start()
    assert waits.wait(60)
    closer = threading.Thread(target=world.fetcher.close, daemon=True)
    closer.start()
    closer.join(10)
    loop.join(10)
    assert found == [0]
    assert world.made[0].is_closed
    assert world.fetcher.fetch(1, 60.0) == 0


def test_what_the_consumer_depends_on_cannot_be_set_otherwise() -> None:
    """An offset that is committed, or a reset by itself, would pass over messages."""
    wanted = {
        "group.id": "mine",
        "enable.auto.commit": True,
        "auto.offset.reset": "latest",
        "enable.partition.eof": False,
    }
    for given in wanted:
        try:
            core: Any = Consumer(
                "127.0.0.1:1", group_id="g", topics="t", kafka={given: wanted[given]}
            )._core
        except ConfigurationError:
            continue
        assert core.fetcher._config[given] != wanted[given], given
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t")._core
    config = made.fetcher._config
    assert config["group.id"] == "marshal.g"
    assert config["enable.auto.commit"] is config["enable.auto.offset.store"] is False
    assert (config["auto.offset.reset"], config["enable.partition.eof"]) == ("error", True)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_which_messages_are_fetched_is_for_the_user_to_say(level: str) -> None:
    settings = {"isolation.level": level}
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", kafka=settings)._core
    assert made.fetcher.isolation_level == level
    assert made.fetcher._config["isolation.level"] == level
    plain: Any = Consumer("127.0.0.1:1", group_id="g", topics="t")._core
    assert plain.fetcher.isolation_level == "read_committed"


def test_who_gives_no_sign_of_life_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    told: list[str] = []
    config = {"statistics.interval.ms": 25_000, "stats_cb": told.append}
    world = World(monkeypatch, kafka=config)
    settings = world.settings[-1]
    assert settings["statistics.interval.ms"] == 25_000

    def fetch_for(seconds: int) -> None:
        for _ in range(2 * seconds):
            clock[0] += 0.5
            assert world.fetcher.fetch(10) == 0

    fetch_for(74)
    settings["stats_cb"]("{}")
    assert told == ["{}"]
    clock[0] += 1_000  # the program worked meanwhile, and heard nothing
    fetch_for(74)
    assert world.core.wakeup.failure is None
    with pytest.raises(MarshalError, match="gave no sign of life for 75 s") as hangs:
        fetch_for(2)
    assert world.core.wakeup.failure is hangs.value  # for its health, and who else would go on


def test_the_sign_of_life_of_a_consumer_is_not_told_to_a_program_that_wants_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    world = World(monkeypatch, kafka={"stats_cb": told.append})
    assert world.settings[-1]["statistics.interval.ms"] == 10_000
    world.settings[-1]["stats_cb"]("{}")
    assert told == []


def test_without_statistics_nobody_knows_whether_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    world = World(monkeypatch, kafka={"statistics.interval.ms": 0})
    for _ in range(1_000):
        clock[0] += 1
        assert world.fetcher.fetch(10) == 0


def test_librdkafka_tells_statistics_of_a_consumer_that_reaches_nobody() -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics="t", kafka=_QUICK)
    core: Any = consumer._core
    heard = threading.Event()
    pulse = core.fetcher._pulse

    def hear(text: str) -> None:
        pulse._hear(text)
        heard.set()

    core.fetcher._config["stats_cb"] = hear
    core.fetcher.open()
    try:
        for _ in range(300):
            core.fetcher.fetch(10, 0.1)
            if heard.wait(0.05):
                break
        assert heard.is_set()
        assert pulse._waited_s < 1.5
    finally:
        core.fetcher.close()


_QUICK = {"statistics.interval.ms": 100, "log_level": 0}


@pytest.mark.parametrize("value", ["soon", 1.5, "", None])
def test_how_often_statistics_are_told_must_be_a_number(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"statistics\.interval\.ms"):
        Consumer("127.0.0.1:1", group_id="g", topics="t", kafka={"statistics.interval.ms": value})
    text = {"statistics.interval.ms": "30000"}
    made: Any = Consumer("127.0.0.1:1", group_id="g", topics="t", kafka=text)._core
    assert made.fetcher._pulse.limit_s == 90


def test_a_consumer_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not closed meanwhile: confluent-kafka would free what whoever fetches still uses."""
    monkeypatch.setattr(fetcher_module, "CLOSE_S", 0.1)
    world = World(monkeypatch)
    world.hold("t", 0, 7)
    kafka, polls, goes_on = world.made[0], threading.Event(), threading.Event()

    def poll(_: float) -> None:
        polls.set()
        goes_on.wait()

    monkeypatch.setattr(kafka, "poll", poll)
    thread = threading.Thread(target=world.fetcher.fetch, args=(10, 0.1))
    thread.start()
    polls.wait()
    world.fetcher.close()
    was_closed = kafka.is_closed
    goes_on.set()
    thread.join()
    assert not was_closed
    assert kafka.is_closed
    assert world.fetcher.fetch(10) == 0


def test_who_closes_in_the_midst_of_a_fetch_does_not_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A signal handler of the program, in the thread that fetches: that closes the client then."""
    monkeypatch.setattr(fetcher_module, "CLOSE_S", 0.1)
    world = World(monkeypatch)
    world.hold("t", 0, 7)
    kafka, was_closed = world.made[0], []

    def poll(_: float) -> None:
        world.fetcher.close()
        was_closed.append(kafka.is_closed)

    monkeypatch.setattr(kafka, "poll", poll)
    assert world.fetcher.fetch(10, 0.1) == 0
    assert was_closed == [False]
    assert kafka.is_closed
    assert caplog.messages == []
    assert world.fetcher.fetch(10) == 0


def test_what_a_kafka_client_tells_does_not_pile_up_while_nobody_fetches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Statistics are taken in with a message: its place is behind what was fetched before."""
    clock = [1_000.0]
    monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    world = World(monkeypatch)
    part, kafka = world.hold("t", 0, 7), world.made[0]
    kafka.come = [message(7)]
    assert world.fetcher.fetch(1) == 1
    kafka.come = [message(8), message(9), message(10)]
    clock[0] += HEAR_S - 1
    world.fetcher.hear()
    assert part.last_end == 8
    clock[0] += 2
    with world.fetcher._lock:  # somebody fetches now
        world.fetcher.hear()
    assert part.last_end == 8
    world.fetcher.hear(), world.fetcher.hear()
    assert part.last_end == 9
    clock[0] += HEAR_S + 1
    world.fetcher.hear()
    assert fetched(world) == [("t", 0, [7]), ("t", 0, [8]), ("t", 0, [9])]
    world.fetcher.close()
    clock[0] += HEAR_S + 1
    world.fetcher.hear()
    assert part.last_end == 10


def test_what_is_asked_for_while_somebody_else_fetches_is_done_right_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By whoever fetched or heard: the loop may be in a handler for hours."""
    clock = [1_000.0]
    monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    world = World(monkeypatch)
    part, kafka = world.hold("t", 0, 7), world.made[0]

    def consume(*_: object) -> list[Message]:
        part.is_paused = not part.is_paused
        world.fetcher.pause_or_resume(part)
        assert kafka.paused == before, "nobody else uses the client meanwhile"
        return []

    monkeypatch.setattr(kafka, "consume", consume)
    before = set(kafka.paused)
    clock[0] += HEAR_S + 1
    world.fetcher.hear()
    assert kafka.paused == {("t", 0)}
    before = set(kafka.paused)
    world.fetcher.fetch(1)
    assert kafka.paused == set()


def test_who_was_woken_for_what_was_asked_for_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle loop would go round without end."""
    world = World(monkeypatch)
    world.fetcher.unassign(world.hold("t", 0, 5))
    assert world.fetcher.fetch(100, 1.0) == 0
    waits: list[float] = []

    def wait(wait_s: float) -> bool:
        waits.append(wait_s)
        return True

    world.fetcher._commanded.wait = wait
    assert not world.fetcher._commanded.is_set()
    assert world.fetcher.fetch(100, 1.0) == 0
    assert len(waits) == 1


def test_one_topic_is_asked_for_where_that_is_enough_and_why_nobody_answers_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of thousands of topics, an answer takes long; and librdkafka tells why to who polls."""
    world = World(monkeypatch)
    kafka: Any = world.made[0]
    asked: list[tuple[Any, ...]] = []
    kafka.list_topics = lambda *topic, timeout: asked.append((*topic, timeout))
    kafka.poll = lambda wait_s: asked.append(("poll", wait_s))
    world.fetcher.list_topics(2.0, "t")
    world.fetcher.list_topics(3.0)
    assert world.fetcher.hear_errors() is world.fetcher._errors
    assert asked == [("t", 2.0), (3.0,), ("poll", 0)]


def test_who_interrupts_a_fetch_does_not_end_all_that_come_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle loop would go round without end."""
    world = World(monkeypatch)
    world.hold("t", 0, 7)
    world.fetcher.interrupt()
    assert world.fetcher.fetch(1, 3.0) == 0
    assert not world.fetcher._is_interrupted


def test_what_is_asked_for_ends_the_wait_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that is given back need not wait until the loop has waited long enough."""
    world = World(monkeypatch)
    part, polls = world.hold("t", 0, 7), list[float]()

    def poll(wait_s: float) -> None:
        polls.append(wait_s)
        world.fetcher.unassign(part)

    monkeypatch.setattr(world.made[0], "poll", poll)
    assert world.fetcher.fetch(1, 3.0) == 0
    assert polls == [fetcher_module.TURN_S]
    assert world.made[0].assigned == {}


def test_the_end_of_a_partition_is_passed_where_no_message_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a partition that ends with the marker of a transaction, one would seem to be left."""
    world = World(monkeypatch)
    part = world.hold("t", 0, 7)
    end = KafkaError(KafkaError._PARTITION_EOF)
    world.made[0].come = [message(7), Message(topic="t", partition=0, offset=9, error=end)]
    world.fetcher.fetch(10)
    assert part.position() == 7
    part.begin(run := Run(part, [message(7)]))
    part.finish(run)
    assert part.position() == 9
