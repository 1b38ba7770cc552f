"""What Kafka knows of the database: where it is kept, and when it is there."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from harvest.core.source import Source
from harvest.errors import SinkUnavailable
from harvest.sinks.kafka import source_record as module
from harvest.sinks.kafka.source_record import SourceRecord

SOURCE = Source(server="s", timeline=2, log=50, visit=7, token="t")


class Group:
    """A consumer group of one consumer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: list[dict[str, Any]] = []
        self.commits: list[tuple[TopicPartition, bool]] = []
        self.found: str | None = None
        self.fails = False
        self.closed = 0
        monkeypatch.setattr(module, "make_client_again", self._make)
        monkeypatch.setattr(module, "newest_checkpoint", self._committed)

    def _make(self, _: object, settings: dict[str, Any]) -> Group:
        self.settings.append(settings)
        return self

    def _committed(self, consumer: Group, topic: str, timeout_s: float) -> str | None:
        assert (consumer, topic, timeout_s) == (self, "own", 4.0)
        self._fail()
        return self.found

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self._fail()
        self.commits.append((offsets[0], asynchronous))

    def close(self) -> None:
        self.closed += 1

    def _fail(self) -> None:
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "connection refused"))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


@pytest.fixture
def record(group: Group) -> SourceRecord:
    del group
    settings = {"bootstrap.servers": "localhost:1", "linger.ms": 5}
    return SourceRecord(settings, "g.outbox", "own")


def test_it_is_in_a_group_of_its_own(group: Group, record: SourceRecord) -> None:
    """The checkpoint's group has the checkpoint, and this would overwrite it."""
    assert record.load() is None
    assert group.settings[0]["group.id"] == "harvest.g.outbox.source"
    assert group.settings[0]["enable.auto.commit"] is False
    assert "linger.ms" not in group.settings[0]


def test_what_was_saved_is_what_is_loaded(group: Group, record: SourceRecord) -> None:
    record.save(SOURCE)
    record.save(SOURCE, wait=True)
    (first, asynchronous), (_, waits_not) = group.commits
    assert (first.topic, first.partition, first.offset) == ("own", 0, 0)
    assert (asynchronous, waits_not) == (True, False)
    group.found = first.metadata
    assert record.load() == SOURCE
    assert len(group.settings) == 1, "one connection does"


def test_a_broker_that_does_not_answer_is_told(group: Group, record: SourceRecord) -> None:
    group.fails = True
    with pytest.raises(SinkUnavailable, match="cannot be read: connection refused"):
        record.load()
    for wait in (True, False):
        with pytest.raises(SinkUnavailable, match="was not saved: connection refused"):
            record.save(SOURCE, wait=wait)


def test_who_could_not_read_it_asks_any_broker_for_the_coordinator(
    group: Group, record: SourceRecord
) -> None:
    group.fails = True
    with pytest.raises(SinkUnavailable):
        record.load()
    group.fails = False
    record.load()
    assert len(group.settings) == 2, "a new connection"


def test_who_closes_it_may_use_it_again(group: Group, record: SourceRecord) -> None:
    record.close()
    record.load()
    record.close()
    record.close()
    assert (len(group.settings), group.closed) == (1, 1)
    record.load()
    assert len(group.settings) == 2
