"""The fetcher: another Kafka consumer goes on where the one before it was."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition

from marshal_py.consumer import fetcher as fetcher_module
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.held_partition import HeldPartition, Stage
from marshal_py.protocol.slots import slots_cell
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim


class FakeKafka:
    """Of confluent-kafka's consumer: what is assigned to it, and where it is."""

    def __init__(self, *_: object) -> None:
        self.assigned: dict[tuple[str, int], int] = {}
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
        monkeypatch.setattr(fetcher_module, "connect", self._connect)
        core: Any = Consumer("127.0.0.1:1", group_id="g", topics=["t", "u"], **settings)._core
        self.core, self.fetcher = core, core.fetcher
        self.fetcher.open()

    def _connect(self, *_: object) -> FakeKafka:
        self.made.append(FakeKafka())
        return self.made[-1]

    def hold(self, topic: str, number: int, offset: int) -> HeldPartition:
        claim = FakeClaim()
        claim.topic, claim.partition = topic, number
        part = HeldPartition(claim, manual=False)  # type: ignore[arg-type]
        part.start(max(offset, -1))
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
    world.fetcher.reconnect([renewed])
    assert world.fetcher.end_of(("t", 0)) == end


def test_a_partition_that_was_truncated_ends_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, sharing="ranges")
    world.fetcher.set_end(("t", 0), 30)
    world.fetcher.truncated(("t", 0), 20)
    world.fetcher.truncated(("t", 0), 25)
    assert world.fetcher.end_of(("t", 0)) == 20


def test_after_the_end_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.fetcher.close()
    world.fetcher.reconnect(["u"])
    assert len(world.made) == 1


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
