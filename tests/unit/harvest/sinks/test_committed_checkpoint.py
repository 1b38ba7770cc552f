"""The checkpoint is read in spite of a coordinator that is on its way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from harvest.sinks.kafka.committed_checkpoint import committed_checkpoint, newest_checkpoint

MOVED = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
DENIED = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))


class Reader:
    """Answers as it is told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def committed(self, where: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout == 60
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, SimpleNamespace):
            return [answer]  # type: ignore[list-item]
        return [TopicPartition(where[0].topic, where[0].partition, *answer)]


def read(reader: Reader, **options: Any) -> str | None:
    return committed_checkpoint(reader, "t", 60, **options)  # type: ignore[arg-type]


def test_a_moving_coordinator_is_asked_again() -> None:
    reader = Reader(MOVED, MOVED, (0, "here"))
    assert read(reader) == "here"
    assert not reader.answers


def test_nothing_was_committed() -> None:
    assert read(Reader((-1001,))) is None


def test_what_will_not_change_is_raised_at_once() -> None:
    with pytest.raises(KafkaException):
        read(Reader(DENIED))


@pytest.mark.parametrize("lasting", [False, True])
def test_a_position_that_comes_with_an_error_is_not_none(lasting: bool) -> None:
    """Whoever took it for none would publish everything again."""
    error = (DENIED if lasting else MOVED).args[0]
    answered = SimpleNamespace(error=error, offset=-1001, metadata="")
    reader = Reader(answered, (0, "here"))
    if lasting:
        with pytest.raises(KafkaException):
            read(reader)
    else:
        assert read(reader) == "here"


def test_nobody_waits_without_a_point_in_it() -> None:
    with pytest.raises(KafkaException):
        read(Reader(MOVED), still=lambda: False)


class Brokers:
    """A group's coordinator, and one that was it; `answers` says which of them answers next."""

    def __init__(self, *answers: str, topics: dict[str, int] | None = None) -> None:
        self.answers = list(answers)
        self.topics = {"t": 2} if topics is None else topics
        self.now: dict[tuple[str, int], str] = {("t", 0): "new"}
        self.once = {("t", 0): "old"}

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        assert timeout == 60
        error = None if topic in self.topics else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        partitions = dict.fromkeys(range(self.topics.get(topic, 0)))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=partitions)})

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous, "it may take as long as the broker likes"
        if self.answers[0] != "none commits":
            self.now |= {(at.topic, at.partition): at.metadata or "" for at in offsets}

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        has = self.once if self.answers.pop(0) == "once" else self.now
        answers = []
        for at in places:
            text = has.get((at.topic, at.partition))
            offset = -1001 if text is None else 0
            answers.append(TopicPartition(at.topic, at.partition, offset, metadata=text or ""))
        return answers


def newest(brokers: Brokers, **options: Any) -> str | None:
    return newest_checkpoint(brokers, "t", 60, **options)  # type: ignore[arg-type]


def test_who_was_the_coordinator_is_not_believed() -> None:
    brokers = Brokers("once", "once", "now")
    assert newest(brokers) == "new"
    assert not brokers.answers


def test_what_was_not_committed_is_committed_again() -> None:
    assert newest(Brokers("none commits", "none commits", "now")) == "new"


def test_the_mark_of_an_earlier_call_shows_nothing() -> None:
    brokers = Brokers("now")
    assert newest(brokers) == "new"
    brokers.once, brokers.now = brokers.now | {("t", 0): "old"}, dict(brokers.now)
    brokers.answers = ["once", "now"]
    assert newest(brokers) == "new"


def test_one_that_shows_nothing_new_for_long_is_an_error() -> None:
    brokers = Brokers("once")
    with pytest.raises(KafkaException, match="another broker is the coordinator by now"):
        newest(brokers, still=lambda: False)


class OnePartition(Reader):
    """Of a topic with one partition, and without a topic of snapshots."""

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return Brokers(topics={"t": 1}).list_topics(topic, timeout)


def test_without_a_place_for_a_mark_nobody_waits_without_a_point_in_it_either() -> None:
    reader: Any = OnePartition(MOVED, (0, "here"))
    with pytest.raises(KafkaException):
        newest_checkpoint(reader, "t", 60, lambda: False)
    assert newest_checkpoint(reader, "t", 60) == "here"


@pytest.mark.parametrize(
    ("topics", "place"),
    [
        ({"t": 2, "t.snapshots": 2}, ("t", 1)),
        ({"t": 1, "t.snapshots": 1}, ("t.snapshots", 0)),
        ({"t": 1}, None),
    ],
)
def test_a_mark_is_where_no_checkpoint_is(
    topics: dict[str, int], place: tuple[str, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers("now", topics=topics)
    assert newest(brokers) == "new"
    assert set(brokers.now) == {("t", 0), place} - {None}
    assert ("let the topic have two partitions" in caplog.text) == (place is None)
