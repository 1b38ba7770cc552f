"""What a reader makes of what the brokers tell it, without brokers."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from marshal_py import Marshal
from marshal_py.admin.operator import Operator
from marshal_py.client import log_reader, pulse, snapshots
from marshal_py.client.kafka_clients import connect
from marshal_py.client.log_metadata import LogMetadata
from marshal_py.client.log_reader import (
    GATHERED_BYTES,
    WAIT_MS,
    Hangs,
    LogReader,
    Truncated,
    boottime_ns,
)
from marshal_py.client.topic_watch import ANSWER_S, TopicFacts, TopicWatch
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ConfigurationError,
    LogHole,
    PartitionCountChanged,
)
from marshal_py.protocol.messages import ClaimingPartition, Genesis, Heartbeat, encode
from marshal_py.protocol.rationalizer import (
    BOUNDARY,
    MEMBER_HORIZON,
    PartitionState,
    apply,
)
from marshal_py.protocol.snapshots import Snapshot, anchor_of, decode_snapshot, encode_snapshot
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
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.snapshot: Snapshot | None = None
        for which, told in (("first_offsets", "begins"), ("next_offsets", "ends")):
            monkeypatch.setattr(
                LogMetadata,
                which,
                lambda _, __, ps, ___, told=told: {p: getattr(self, told).get(p, 0) for p in ps},
            )


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


def test_a_client_that_cannot_be_made_now_is_made_when_it_is_opened_again(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a certificate is being replaced. The one before would be closed, and of no use."""

    def fail(*_: object) -> None:
        raise ConfigurationError("ssl.key.location failed")

    brokers.answers = iter([(2, OLD)])
    reader.open(1)
    before = reader._consumer
    with monkeypatch.context() as patch:
        patch.setattr(log_reader, "connect", fail)
        for again in (reader.await_topic, reader.open):
            with pytest.raises(ConfigurationError, match="ssl"):
                again(1)
    reader.await_topic(1)
    assert reader._consumer is not before
    reader.open(1)
    assert reader._consumer.poll(0) is None, "it is open"


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


def test_without_a_topic_for_snapshots_nothing_is_said_of_their_number(
    brokers: Brokers, reader: LogReader, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.answers = iter([(2, OLD)])
    with caplog.at_level(logging.WARNING, logger="marshal_py.log"):
        reader.open(10)
    assert caplog.text == ""


class Message:
    """A record as the Kafka client hands it over."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> Any:
        return None

    def topic(self) -> str:
        return "__m"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
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
    assert waits == [1_000, 10, 10, 5, 5, 5]  # opened again, it has another consumer


class OnlyRead:
    """A consumer that is asked for no offsets while it is read from."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        assert name in {"poll", "consume", "close"}, (
            "who asks waits for the fetch that is under way"
        )
        return getattr(self._consumer, name)


def test_offsets_are_not_asked_for_behind_a_fetch(mock_kafka: TestBroker) -> None:
    """A broker answers one request of a connection after the other, and an idle fetch takes 1 s."""
    mock_kafka.create_topic("__marshal")
    log = Producer(mock_kafka.config)

    def claim(cells: range) -> None:
        for cell in cells:
            record = ClaimingPartition(2, "c", "c.1", "g", cell, "t", cell, 1_000, -1)
            log.produce("__marshal", encode(record), partition=0)
        assert log.flush(30) == 0

    claim(range(3))
    reader = LogReader(mock_kafka.config, topic="__marshal", snapshot_topic="__marshal.snapshots")
    try:
        reader.open(30)
        reader.replay()
        claim(range(3, 6))
        reader._consumer = reader._metadata._consumer = OnlyRead(reader._consumer)
        assert reader.check_founding(30)[0] == 6
        state, deadline = reader.world.states[0], time.monotonic() + 30
        while state.next_offset < 6 and time.monotonic() < deadline:
            list(reader.fold(reader.poll(0.1)))
        assert [partition for _, _, partition in sorted(state.cells)] == list(range(6))
    finally:
        reader.close()


def test_a_client_that_gives_no_sign_of_life_hangs_and_is_replaced_when_it_is_opened_again(
    mock_kafka: TestBroker,
) -> None:
    mock_kafka.create_topic("__marshal")
    reader = LogReader(mock_kafka.config, topic="__marshal", snapshot_topic="__marshal.snapshots")
    try:
        reader.open(30)
        reader.replay()
        reader.poll(0.01)
        reader._pulse.limit_s = 0.0  # its next sign of life is still to come
        hung = reader._consumer
        with pytest.raises(Hangs, match="the Kafka client that reads '__marshal' hangs"):
            [reader.poll(0.01) for _ in range(100)]
        reader.open(30)
        assert reader._consumer is not hung
        reader.replay()
        reader.poll(0.01)
    finally:
        reader.close()


def test_a_client_that_reads_nothing_gives_signs_of_life(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "EVERY_MS", 200)
    mock_kafka.create_topic("__marshal")
    reader = LogReader(mock_kafka.config, topic="__marshal", snapshot_topic="__marshal.snapshots")
    try:
        reader.open(30)
        reader.replay()
        waited_s, deadline = 0.0, time.monotonic() + 30
        while reader._pulse._waited_s >= waited_s:
            assert time.monotonic() < deadline, "it was not heard"
            waited_s = reader._pulse._waited_s
            reader.poll(0.05)
    finally:
        reader.close()


def test_a_reader_that_is_not_polled_all_the_time_has_its_client_tell_nothing() -> None:
    """It would pile up."""
    operator = Operator(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0},
        "g",
        topic="__m",
        snapshot_topic="__m.snapshots",
        client_id="me",
        cold_start_skew_ms=None,
        connect_timeout_s=1,
    )
    try:
        assert operator._reader._pulse.settings["statistics.interval.ms"] == 0
    finally:
        operator._reader.close()


# What is read


class Record(Message):
    """A record, or an error, of any topic."""

    def __init__(
        self,
        offset: int,
        *,
        topic: str = "__m",
        error: int | None = None,
        value: bytes | None = None,
    ) -> None:
        super().__init__(offset)
        self._topic, self._error, self._value = topic, error, value

    def topic(self) -> str:
        return self._topic

    def error(self) -> Any:
        return None if self._error is None else KafkaError(self._error, "as told")

    def value(self) -> bytes | None:
        return super().value() if self._value is None else self._value


def opened(brokers: Brokers, reader: LogReader, end: int = 0) -> LogReader:
    brokers.answers = iter([(2, OLD)])
    brokers.ends = {0: end}
    reader.open(10)
    return reader


def feed(reader: LogReader, monkeypatch: pytest.MonkeyPatch, *batches: Sequence[Message]) -> None:
    waits = iter(batches)
    monkeypatch.setattr(reader, "_poll", lambda _: next(waits))


@pytest.mark.parametrize("events", [True, False])
def test_a_replay_ends_where_the_log_did_when_it_was_opened(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch, events: bool
) -> None:
    opened(brokers, reader, end=3)
    feed(reader, monkeypatch, [Record(0), Record(1)], [], [Record(2)])
    shown = list(reader.history(events=events))
    assert [len(messages) for messages, _ in shown] == [2, 0, 1]
    told = [len(batch.events) for _, batches in shown for batch in batches]
    assert (sum(told) > 0) is events
    assert (reader.replayed, reader.caught_up) == (3, True)
    assert reader.world.states[0].next_offset == 3
    brokers.ends = {}
    reader.open(10)
    assert (reader.replayed, reader.caught_up) == (0, False)


def test_a_replay_tells_how_far_it_is(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(brokers, reader, end=3)
    feed(reader, monkeypatch, [Record(0)], [Record(1), Record(2)])
    heard: list[tuple[int, int]] = []
    reader.replay(progress=lambda *told: heard.append(told))
    assert heard == [(1, 3), (3, 3)]


@pytest.mark.parametrize("events", [True, False])
def test_markers_of_transactions_may_end_the_log(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch, events: bool
) -> None:
    """No record is at the end that the brokers named: that it is reached, they say themselves."""
    opened(brokers, reader, end=5)
    end = Record(5, error=KafkaError._PARTITION_EOF)
    feed(reader, monkeypatch, [Record(0)], [Record(0, topic="__m.s", error=end._error)], [end])
    assert len(list(reader.history(events=events))) == 3
    assert reader.caught_up


@pytest.mark.parametrize("replaying", [True, False])
@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize(
    "code",
    [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION],
)
def test_what_the_brokers_do_not_have_any_more_was_truncated(
    brokers: Brokers,
    reader: LogReader,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    served: bool,
    replaying: bool,
) -> None:
    opened(brokers, reader, end=1)
    if served:
        list(reader.fold([Record(0, error=KafkaError._PARTITION_EOF)]))
    gone = [Record(0, error=code)]
    feed(reader, monkeypatch, gone)
    with pytest.raises(Truncated, match="lost records that had been read"):
        list(reader.history(events=False)) if replaying else list(reader.fold(gone))


def test_errors_that_pass_are_told_and_read_on_from(
    brokers: Brokers, reader: LogReader, caplog: pytest.LogCaptureFixture
) -> None:
    opened(brokers, reader)
    asked: list[None] = []
    reader._watch.soon = lambda: asked.append(None)  # type: ignore[method-assign]
    (batch,) = reader.fold(
        [
            Record(0, error=KafkaError._TRANSPORT),
            Record(0, error=KafkaError._PARTITION_EOF),
            Record(0),
        ]
    )
    assert (batch.coordinator, bool(batch.events)) == (0, True)
    assert "as told; trying on" in caplog.text
    assert not asked
    caplog.clear()
    list(reader.fold([Record(0, error=KafkaError.GROUP_AUTHORIZATION_FAILED)]))
    assert not caplog.records, "nobody uses that group"
    list(reader.fold([Record(0, error=KafkaError.UNKNOWN_TOPIC_OR_PART)]))
    assert asked, "it may be another topic now"


def test_a_right_that_was_never_there_is_refused_and_one_that_went_is_waited_for(
    brokers: Brokers, reader: LogReader
) -> None:
    refused = Record(0, error=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    opened(brokers, reader)
    list(reader.fold([Record(0, topic="__m.s", error=refused._error)]))
    with pytest.raises(AccessDenied, match="Read"):
        list(reader.fold([refused]))
    list(reader.fold([Record(0, error=KafkaError._PARTITION_EOF)]))  # it is served
    list(reader.fold([refused]))


def looked(reader: LogReader, monkeypatch: pytest.MonkeyPatch, facts: TopicFacts | None) -> None:
    monkeypatch.setattr(TopicWatch, "look", lambda _: facts)
    monkeypatch.setattr(reader, "_poll", lambda _: [])
    reader.poll(0)


def test_a_topic_that_goes_grows_or_is_made_anew_is_noticed_while_it_is_read(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(brokers, reader)
    for facts in (None, OLD, TopicFacts(None, 2)):
        looked(reader, monkeypatch, facts)
    assert reader.partition_count_error is None
    with pytest.raises(Truncated, match="was deleted"):
        looked(reader, monkeypatch, TopicFacts(None, 0))
    with pytest.raises(Truncated, match="made anew; its id is new"):
        looked(reader, monkeypatch, NEW)
    looked(reader, monkeypatch, TopicFacts("old", 3))
    assert "had 2 partitions and now has 3" in str(reader.partition_count_error)


@pytest.mark.parametrize("told", ["the same", "another", "nothing"])
def test_what_comes_after_a_silence_is_of_the_same_topic_or_is_not_read(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """A heartbeat that arrives in a topic that was made anew would renew a lease of the old one."""
    opened(brokers, reader)
    now_s, coming, asked = 100.0, list[Any](), list[int]()
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr(reader, "_clock", lambda: int(now_s * 1e9))
    monkeypatch.setattr(reader, "_poll", lambda _: [coming.pop(0)] if coming else [])
    monkeypatch.setattr(TopicWatch, "look", lambda _: None)
    monkeypatch.setattr(TopicWatch, "soon", lambda _: asked.append(1))
    reader._doubt_after_ns, reader._heard_ns = 2e9, int(99e9)
    records = [Record(0), Record(1), Record(2), Record(3, error=KafkaError._PARTITION_EOF)]
    coming += records[:1]
    assert reader.poll(1) == records[:1], "it was heard of a second ago"
    now_s = 102.5
    coming += records[3:]
    assert reader.poll(1) == records[3:], "that nothing is there is no record"
    coming += records[1:3]
    assert [reader.poll(1), reader.poll(1)] == [[], []]
    assert asked == [1]
    reader._watch.as_of_s = 102.4
    assert reader.poll(1) == [], "that was asked before it came"
    if told == "another":
        monkeypatch.setattr(TopicWatch, "look", lambda _: NEW)
        with pytest.raises(Truncated, match="made anew"):
            reader.poll(1)
        monkeypatch.setattr(TopicWatch, "look", lambda _: None)
        brokers.answers = iter([(5, NEW)])
        reader.open(10)
        reader._watch.as_of_s = 103.0
        assert reader.poll(1) == [], "it is forgotten"
        return
    if told == "the same":
        reader._watch.as_of_s = 102.6
    else:
        now_s = 102.5 + ANSWER_S + 0.1
    assert reader.poll(1) == records[1:3]


def test_a_broker_that_lags_and_tells_of_the_topic_before_is_not_believed(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(brokers, reader)
    brokers.answers = iter([(5, NEW)])
    reader.open(10)
    looked(reader, monkeypatch, OLD)
    assert reader.partition_count_error is None
    brokers.answers = iter([(2, OLD), (5, NEW)])
    reader.open(10)
    assert reader.partitions == (0, 1, 2, 3, 4)
    brokers.answers = iter([(2, OLD)])
    with pytest.raises(BrokerUnavailable, match="that another has replaced"):
        reader.open(0)
    with pytest.raises(Truncated, match="made anew; its id is newer"):
        looked(reader, monkeypatch, TopicFacts("newer", 5))


def test_the_first_id_that_the_brokers_tell_is_the_topics(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.answers = iter([(2, None)])
    reader.open(10)
    looked(reader, monkeypatch, OLD)
    with pytest.raises(Truncated, match="made anew"):
        looked(reader, monkeypatch, NEW._replace(partitions=2))


# Snapshots


def snapshot_at(offset: int, *, anchor: bytes | None = None, partitions: int = 2) -> Snapshot:
    """What a client would have written after `offset` records."""
    state = PartitionState(0)
    for n in range(offset):
        apply(state, n, Message(n).value())
    value = encode_snapshot(
        state.encode(),
        coordinator=0,
        partitions=partitions,
        next_offset=offset,
        anchor=anchor or anchor_of(Message(offset - 1).value()),
        writer="w",
    )
    return decode_snapshot(value)


@pytest.fixture
def restoring(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogReader]:
    """A reader that finds `brokers.snapshot`; the log has the records 0 to 9."""
    brokers.answers = iter([(2, OLD)])
    brokers.ends = {0: 10}

    def newest(_: Any, __: str, ends: dict[int, int], ___: float, accept: Any) -> Any:
        state = accept(brokers.snapshot) if ends and brokers.snapshot is not None else None
        return {} if state is None else {0: (brokers.snapshot, state)}

    monkeypatch.setattr(log_reader, "newest_snapshots", newest)
    monkeypatch.setattr(LogMetadata, "describe", lambda *_, **__: (2, 2))
    config = {"bootstrap.servers": "127.0.0.1:1"}
    made = LogReader(config, topic="__m", snapshot_topic="__m.s", compare_snapshots=False)
    yield made
    made.close()


@pytest.mark.parametrize("events", [True, False])
def test_a_replay_goes_on_from_a_snapshot_and_checks_that_it_is_of_this_log(
    brokers: Brokers, restoring: LogReader, monkeypatch: pytest.MonkeyPatch, events: bool
) -> None:
    brokers.snapshot = snapshot_at(6)
    restoring.open(10)
    assert restoring.newest_snapshot[0] == 6
    feed(restoring, monkeypatch, [Record(n) for n in range(5, 10)])
    list(restoring.history(events=events))
    assert restoring.world.states[0].next_offset == 10
    assert restoring.replayed == (5 if events else 4)


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("first", [Record(5, value=b"another"), Record(6)], ids=["other", "later"])
def test_a_snapshot_of_another_log_is_not_used_and_never_again(
    brokers: Brokers,
    restoring: LogReader,
    monkeypatch: pytest.MonkeyPatch,
    events: bool,
    first: Record,
) -> None:
    brokers.snapshot = snapshot_at(6)
    restoring.open(10)
    feed(restoring, monkeypatch, [first])
    with pytest.raises(Truncated, match="another log than its snapshot's"):
        list(restoring.history(events=events))
    assert restoring.world.states[0].next_offset == 0
    restoring.open(10)
    assert restoring.newest_snapshot.get(0, 0) == 0


def test_of_a_topic_made_anew_snapshots_are_used_whatever_was_in_those_before(
    brokers: Brokers, restoring: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start would replay the whole log otherwise, for as long as the process lives."""
    brokers._last = 2, OLD
    brokers.snapshot = snapshot_at(6)
    restoring.open(10)
    feed(restoring, monkeypatch, [Record(5, value=b"another")])
    with pytest.raises(Truncated):
        restoring.replay()
    for facts, restored in ((OLD, 0), (TopicFacts("new", 2), 6)):
        brokers._last = 2, facts
        restoring.open(10)
        assert restoring.world.states[0].next_offset == restored


def test_a_partition_without_one_for_snapshots_is_read_from_its_start(
    restoring: LogReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers would never tell where a partition ends that is not there."""
    asked: list[dict[int, int]] = []

    def newest(_: Any, __: str, ends: dict[int, int], *_more: Any) -> dict[int, Any]:
        asked.append(ends)
        return {}

    monkeypatch.setattr(log_reader, "newest_snapshots", newest)
    monkeypatch.setattr(LogMetadata, "describe", lambda *_, **__: (2, 1))
    restoring.open(10)
    assert [list(ends) for ends in asked] == [[0]]
    assert "__m has 2 partitions and __m.s has 1: not all snapshots can be kept" in caplog.text


def test_a_lost_log_is_waited_for_with_another_kafka_client(restoring: LogReader) -> None:
    """The one that has read it may hang, or know leaders of another topic."""
    before = restoring._consumer
    restoring.await_topic(10)
    assert restoring._consumer is before, "it has read nothing yet"
    restoring.open(10)
    restoring.await_topic(10)
    assert restoring._consumer is not before


def test_a_reader_that_was_closed_leaves_no_thread_and_no_connection() -> None:
    closed: list[str] = []
    admin: Any = SimpleNamespace(close=lambda: closed.append("admin"))
    config = {"bootstrap.servers": "127.0.0.1:1"}
    reader = LogReader(config, topic="__m", snapshot_topic="__m.s", admin=admin)
    reader._desk._do(b"no snapshot")
    thread = reader._desk._thread
    assert thread is not None
    reader.close()
    thread.join(60)
    assert not thread.is_alive()
    assert closed == ["admin"]


def test_a_snapshot_beyond_the_logs_last_record_is_of_another_log(
    brokers: Brokers, restoring: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record below it never comes: the end does."""
    brokers.snapshot = snapshot_at(10)
    restoring.open(10)
    feed(restoring, monkeypatch, [Record(10, error=KafkaError._PARTITION_EOF)])
    with pytest.raises(Truncated, match="another log"):
        restoring.replay()


@pytest.mark.parametrize(
    "unfit",
    [
        snapshot_at(6, partitions=3),
        snapshot_at(11),
    ],
    ids=["of another number of partitions", "beyond the end"],
)
def test_a_snapshot_that_does_not_fit_is_passed_over(
    brokers: Brokers, restoring: LogReader, unfit: Snapshot
) -> None:
    brokers.snapshot = unfit
    restoring.open(10)
    assert restoring.world.states[0].next_offset == 0


def test_a_log_whose_beginning_is_gone_needs_a_snapshot(
    brokers: Brokers, restoring: LogReader
) -> None:
    brokers.begins = {0: 4}
    brokers.snapshot = snapshot_at(3)
    with pytest.raises(LogHole, match=r"below offset 4 of __m/0"):
        restoring.open(10)
    brokers.snapshot = snapshot_at(4)  # the record below it is gone, as it should be
    restoring.open(10)
    assert restoring.world.states[0].next_offset == 4


def test_the_past_begins_at_a_snapshot_that_is_old_enough(
    brokers: Brokers, restoring: LogReader
) -> None:
    brokers.snapshot = snapshot_at(6)
    restoring.open(10, since_offset=5)
    assert restoring.world.states[0].next_offset == 0
    restoring.open(10)
    assert restoring.world.states[0].next_offset == 6, "nobody asks for the past any more"
    restoring.open(10, since_offset=6)
    assert restoring.world.states[0].next_offset == 6
    brokers.begins = {0: 2}
    restoring.open(10, since_offset=3)  # the history that was asked for is gone
    assert restoring.world.states[0].next_offset == 6


def test_what_an_opening_before_gave_out_is_remembered(
    brokers: Brokers, restoring: LogReader
) -> None:
    brokers.snapshot = snapshot_at(6)
    restoring.open(10)
    brokers.snapshot = None
    restoring.open(10)
    assert restoring.highest_epoch == 6
    restoring.open(10)
    assert restoring.highest_epoch == 6
    restoring.world.states[0].base, restoring.world.states[0].next_offset = 1_000, 7
    restoring.open(10)
    assert restoring.highest_epoch == 1_007


def test_a_state_is_looked_at_between_the_records_on_both_sides_of_a_boundary(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One boundary, one image, whether or not there is a record just at it (§6.3)."""
    opened(brokers, reader)
    looked: list[int] = []
    monkeypatch.setattr(reader._desk, "at_boundary", lambda b: looked.append(b.next_offset))
    list(reader.fold([Record(n) for n in (0, BOUNDARY - 1, BOUNDARY, BOUNDARY + 1)]))
    assert looked == [BOUNDARY]
    list(reader.fold([Record(n) for n in (2 * BOUNDARY - 2, 2 * BOUNDARY + 5)]))
    assert looked == [BOUNDARY, 2 * BOUNDARY - 1]


def test_whose_record_crossed_a_boundary_is_told_though_others_left_by_it(
    brokers: Brokers, reader: LogReader
) -> None:
    """Members that have been silent for too long go before the record counts (§6.3)."""
    opened(brokers, reader)
    crossed: list[tuple[int, str]] = []

    def writer_of(_: int, next_offset: int, crossed_by: str) -> str:
        crossed.append((next_offset, crossed_by))
        return ""

    reader.writer_of = writer_of
    gone = encode(Heartbeat(2, "gone", "g.1", "g", 0, 1_000, 1))
    mine = encode(Heartbeat(2, "me", "m.1", "g", 0, 1_000, 1))
    late = MEMBER_HORIZON + 1
    list(reader.fold([Record(0, value=gone)]))
    (batch,) = reader.fold([Record(late, value=mine)])
    senders = [getattr(event, "instance_id", "") for event in batch.events]
    assert (senders[0], senders[-1]) == ("g.1", "m.1")
    assert crossed == [(1, "m.1")]


@pytest.mark.parametrize("told", [1, 3])
def test_a_log_that_was_made_with_another_number_of_partitions_is_told_of(
    brokers: Brokers, reader: LogReader, told: int
) -> None:
    opened(brokers, reader)
    genesis = encode(Genesis(2, "c", "i", "-", 0, "identity", "", 1_000, told, 0))
    list(reader.fold([Record(0, value=genesis)]))
    assert reader.partition_count_error is not None
    assert str(told) in str(reader.partition_count_error)
    brokers.answers = iter([(5, NEW)])
    reader.open(10)
    assert reader.partition_count_error is None, "another topic has as many as it has"


def test_a_record_at_the_end_of_the_past_that_is_asked_for_is_not_of_it(reader: LogReader) -> None:
    reader._until = {0: 5}
    assert [reader._too_late(Record(n)) for n in (4, 5, 6)] == [False, True, True]


def test_a_past_begins_and_ends_with_the_records_of_those_very_moments(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers are asked for the first record of a time, or of later."""

    def offsets_at(_: Any, ms: int, ends: dict[int, int], __: float) -> dict[int, int]:
        return {p: min(ms, end) for p, end in ends.items()}  # a record each millisecond

    monkeypatch.setattr(LogMetadata, "offsets_at", offsets_at)
    brokers.answers, brokers.ends = iter([(1, None)]), {0: 100}
    reader.open(10, since_ms=20, until_ms=50)
    assert reader.extent() == {0: (0, 51)}
    assert reader._not_after == {0: 20}
    assert [reader._too_late(Record(n)) for n in (50, 51)] == [False, True]
    reader.open(10)
    assert reader.extent() == {0: (0, 100)}
    assert not reader._until


@pytest.mark.parametrize(
    ("snapshot", "begins", "read_from"),
    [(None, 0, 0), (6, 0, 5), (6, 5, 5), (6, 6, 6)],
    ids=["none", "one record early", "the record below is left", "it is gone"],
)
def test_the_record_below_a_snapshot_is_read_to_compare_it(
    brokers: Brokers,
    restoring: LogReader,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: int | None,
    begins: int,
    read_from: int,
) -> None:
    assigned: list[tuple[str, int, int]] = []

    class Assigned:
        def assign(self, partitions: list[Any]) -> None:
            assigned.extend((at.topic, at.partition, at.offset) for at in partitions)

        incremental_assign = assign

        def close(self) -> None:
            pass

    restoring._consumer.close()
    monkeypatch.setattr(restoring, "_consumer", Assigned())
    brokers.snapshot = None if snapshot is None else snapshot_at(snapshot)
    brokers.begins = {0: begins}
    restoring.open(10)
    assert assigned == [("__m", 0, read_from), ("__m", 1, 0)]


def test_what_has_records_is_fetched_first(
    brokers: Brokers, restoring: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first fetch of what is empty keeps the others waiting for a second."""
    calls: list[list[tuple[str, int]]] = []

    def note(partitions: list[Any]) -> None:
        calls.append([(at.topic, at.partition) for at in partitions])

    restoring._consumer.close()
    fake = SimpleNamespace(assign=note, incremental_assign=note, close=lambda: None)
    monkeypatch.setattr(restoring, "_consumer", fake)
    brokers.ends = {1: 5}
    restoring.open(10)
    assert calls[:2] == [[("__m", 1)], [("__m", 0)]]


@pytest.mark.parametrize("events", [True, False])
def test_a_snapshot_is_anchored_at_the_last_record_that_was_read(
    brokers: Brokers, reader: LogReader, monkeypatch: pytest.MonkeyPatch, events: bool
) -> None:
    opened(brokers, reader, end=3)
    assert reader.snapshot_now(0) is None
    feed(reader, monkeypatch, [Record(0), Record(1), Record(2)])
    list(reader.history(events=events))
    due = reader.snapshot_now(0)
    assert due is not None
    assert (due.coordinator, due.next_offset) == (0, 3)
    assert due.anchor == anchor_of(Message(2).value())


@pytest.mark.parametrize("events", [True, False])
def test_who_starts_from_a_snapshot_and_reads_nothing_new_anchors_the_next_one_as_it_was(
    brokers: Brokers, restoring: LogReader, monkeypatch: pytest.MonkeyPatch, events: bool
) -> None:
    """Readers would take it for one of another log otherwise."""
    brokers.snapshot = snapshot_at(10)
    restoring.open(10)
    feed(restoring, monkeypatch, [Record(9)])
    list(restoring.history(events=events))
    due = restoring.snapshot_now(0)
    assert due is not None
    assert (due.next_offset, due.anchor) == (10, brokers.snapshot.anchor)


def test_a_snapshot_in_the_partition_of_another_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its state would be that of another coordination partition."""
    value = encode_snapshot(
        PartitionState(0).encode(),
        coordinator=0,
        partitions=2,
        next_offset=1,
        anchor=bytes(16),
        writer="w",
    )

    class Written(Record):
        def __init__(self, partition: int) -> None:
            super().__init__(0, value=value)
            self._partition = partition

        def partition(self) -> int:
            return self._partition

    def found(partition: int) -> list[int]:
        monkeypatch.setattr(snapshots, "read_to_end", lambda *_: [Written(partition)])
        newest = snapshots.newest_snapshots(
            {}, "__m.s", {0: 1, 1: 1}, time.monotonic() + 60, lambda _: PartitionState(0)
        )
        return list(newest)

    assert found(0) == [0]
    assert found(1) == []


@pytest.mark.parametrize(
    ("gather_ms", "waits_ms", "least_bytes"), [(0, WAIT_MS, 1), (50, 50, GATHERED_BYTES)]
)
def test_brokers_gather_records_for_as_long_as_is_asked_for_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, gather_ms: int, waits_ms: int, least_bytes: int
) -> None:
    made: list[dict[str, Any]] = []

    def connect(_: object, config: dict[str, Any], *__: object) -> Any:
        made.append(config)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(log_reader, "connect", connect)
    marshal = Marshal("127.0.0.1:1", group_id="g", interval_ms=5_000, gather_ms=gather_ms)

    def stop(*_: object) -> None:
        raise BrokerUnavailable("it was made by then")

    monkeypatch.setattr(LogReader, "open", stop)
    with pytest.raises(BrokerUnavailable):
        marshal.start()
    assert made[0]["fetch.wait.max.ms"] == waits_ms
    assert made[0]["fetch.min.bytes"] == least_bytes


@pytest.mark.parametrize("events", [True, False])
def test_what_is_no_snapshot_is_told_and_read_on_from(
    brokers: Brokers,
    reader: LogReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    events: bool,
) -> None:
    """Anybody may write to that topic: it must not end every client."""
    opened(brokers, reader, end=1)
    feed(reader, monkeypatch, [Record(0, topic="__m.s", value=b"\xc1"), Record(0)])
    list(reader.history(events=events))
    assert "__m.s/0: no snapshot" in caplog.text
    assert reader.world.states[0].next_offset == 1


@pytest.mark.parametrize("events", [True, False])
def test_records_of_the_other_version_are_told_once(
    brokers: Brokers,
    reader: LogReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    events: bool,
) -> None:
    reader.wire = dataclasses.replace(reader.wire, is_other=lambda value: value == b"other")
    opened(brokers, reader, end=4)
    values = (b"junk", b"other", b"other")
    feed(reader, monkeypatch, *([Record(n, value=v)] for n, v in enumerate(values)), [Record(3)])
    met = [reader.met_other_wire for _ in reader.history(events=events)]
    assert met == [False, True, True, True]
    assert caplog.text.count(reader.wire.met_other) == 1
