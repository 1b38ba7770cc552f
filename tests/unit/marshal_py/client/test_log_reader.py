"""What a reader makes of what the brokers tell it, without brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from marshal_py.client.log_metadata import LogMetadata
from marshal_py.client.log_reader import LogReader
from marshal_py.client.topic_watch import TopicFacts, TopicWatch
from marshal_py.errors import BrokerUnavailable, PartitionCountChanged


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
