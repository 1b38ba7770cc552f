"""What a reader makes of what the brokers tell it, without brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from marshal_py.client.kafka_clients import connect
from marshal_py.client.log_metadata import LogMetadata
from marshal_py.client.log_reader import LogReader, Truncated, boottime_ns
from marshal_py.client.topic_watch import TopicFacts, TopicWatch
from marshal_py.errors import BrokerUnavailable, PartitionCountChanged
from marshal_py.protocol.messages import Heartbeat, encode
from marshal_py.testing import TestBroker


class Brokers:
    """What is answered to the two questions of `LogReader.open`, one pair after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: Iterator[tuple[int, TopicFacts | None]] = iter(())
        self.asked = 0
        self._last: tuple[int, TopicFacts | None] = (0, None)

        def describe(*_: Any, **__: Any) -> tuple[int, int]:
            self._last = next(self.answers, self._last)
            self.asked += 1
            return self._last[0], 0

        monkeypatch.setattr(LogMetadata, "describe", describe)
        monkeypatch.setattr(TopicWatch, "ask", lambda _: None)
        monkeypatch.setattr(TopicWatch, "wait", lambda *_: self._last[1])
        for which in ("first_offsets", "next_offsets"):
            monkeypatch.setattr(LogMetadata, which, lambda _, __, ps, ___: dict.fromkeys(ps, 0))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


@pytest.fixture
def reader() -> Iterator[LogReader]:
    config = {"bootstrap.servers": "127.0.0.1:1"}
    reader = LogReader(config, topic="__m", snapshot_topic="__m.s", compare_snapshots=False)
    yield reader
    reader.close()


OLD, NEW = TopicFacts("old", 2), TopicFacts("new", 5)


@pytest.mark.parametrize("torn", [(5, OLD), (2, NEW)], ids=["then", "before"])
def test_a_topic_made_anew_between_two_questions_is_no_topic_that_grew(
    brokers: Brokers, reader: LogReader, torn: tuple[int, TopicFacts]
) -> None:
    brokers.answers = iter([(2, OLD)])
    reader.open(10)
    brokers.answers = iter([torn, (5, NEW)])
    reader.open(10)
    assert reader.partitions == (0, 1, 2, 3, 4)
    assert brokers.asked == 3


def test_a_first_opening_between_two_topics_takes_the_newer_one(
    brokers: Brokers, reader: LogReader
) -> None:
    brokers.answers = iter([(5, OLD), (5, NEW)])
    reader.open(10)
    brokers.answers = iter([(5, NEW)])
    reader.open(10)
    assert reader.partition_count_error is None
    assert brokers.asked == 3


def test_a_topic_that_grew_is_refused(brokers: Brokers, reader: LogReader) -> None:
    brokers.answers = iter([(2, OLD)])
    reader.open(10)
    brokers.answers = iter([(3, TopicFacts("old", 3))])
    with pytest.raises(PartitionCountChanged, match="had 2 partitions and now has 3"):
        reader.open(10)


def test_a_topic_that_grew_is_refused_where_the_brokers_know_no_ids(
    brokers: Brokers, reader: LogReader
) -> None:
    brokers.answers = iter([(2, None)])
    reader.open(10)
    brokers.answers = iter([(3, None)])
    with pytest.raises(PartitionCountChanged, match="had 2 partitions and now has 3"):
        reader.open(10)


def test_brokers_that_never_agree_are_given_up(brokers: Brokers, reader: LogReader) -> None:
    brokers.answers = iter([(5, OLD)])
    with pytest.raises(BrokerUnavailable, match=r"do not agree.* has: 5 or 2"):
        reader.open(0)


def test_the_clock_of_leases_counts_the_time_that_the_machine_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine cannot be put to sleep here: it is asked which of its clocks is read."""
    asked: list[int] = []

    def look(clock: int) -> int:
        asked.append(clock)
        return 1

    monkeypatch.setattr(time, "clock_gettime_ns", look)
    assert boottime_ns() == 1
    assert asked == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]


class Message:
    """A record as the Kafka client hands it over."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "__m"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return encode(Heartbeat(2, "c", "i", "g", self._offset, 1_000))

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize("repeated", [0, 1])
def test_an_offset_that_comes_again_is_another_log(
    brokers: Brokers, reader: LogReader, repeated: int
) -> None:
    brokers.answers = iter([(2, OLD)])
    reader.open(10)
    list(reader.fold([Message(0), Message(1)]))
    with pytest.raises(Truncated):
        list(reader.fold([Message(repeated)]))


@pytest.mark.parametrize("events", [True, False])
def test_what_a_replay_read_counts_as_seen_when_it_ends(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, events: bool
) -> None:
    """Silence is measured from there: a replay of minutes would make everybody look dead (§5.5)."""
    now = iter(range(1_000))
    config = {"bootstrap.servers": "127.0.0.1:1"}
    reader = LogReader(
        config,
        topic="__m",
        snapshot_topic="__m.s",
        compare_snapshots=False,
        clock=lambda: next(now),
    )
    brokers.answers = iter([(2, OLD)])
    monkeypatch.setattr(
        LogMetadata, "next_offsets", lambda _, __, ps, ___: {p: 2 if p == 0 else 0 for p in ps}
    )
    reader.open(10)
    waits: Iterator[list[Message]] = iter([[], [Message(0)], [], [Message(1)]])
    polled: list[int] = []

    def poll(_: float) -> list[Message]:
        polled.append(next(now))
        return next(waits)

    monkeypatch.setattr(reader, "_poll", poll)
    list(reader.history(events=events))
    observer = reader.observers[0]
    seen_at = observer.seen.at(1)
    assert seen_at is not None
    assert seen_at > polled[-1]
    reader.close()


def test_fetches_of_the_mock_cluster_wait_briefly_whoever_gave_its_address(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that arrives ends them: each record of the log would be read a second late."""
    waits: list[int] = []

    def connect_and_note(kind: Any, config: Any, *rest: Any) -> Any:
        waits.append(config["fetch.wait.max.ms"])
        return connect(kind, config, *rest)

    monkeypatch.setattr("marshal_py.client.log_reader.connect", connect_and_note)
    for own in ({}, {"fetch.wait.max.ms": 5}):
        config = {"bootstrap.servers": mock_kafka.bootstrap_servers, **own}
        reader = LogReader(config, topic="__marshal", snapshot_topic="__marshal.snapshots")
        reader.open(30)
        reader.open(30)
        reader.close()
    assert waits == [1_000, 10, 5, 5]
