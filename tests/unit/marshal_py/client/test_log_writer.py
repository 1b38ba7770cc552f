"""The writer without a broker: what becomes of appends that cannot be made."""

from __future__ import annotations

import logging
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.client import log_writer as writing
from marshal_py.client.kafka_clients import OUTAGE_WARNING_S
from marshal_py.client.log_writer import LogWriter
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.snapshots import SnapshotDue, decode_snapshot


class StubProducer:
    """Stands in for librdkafka's producer; `broken` makes every `produce` raise it."""

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.fatal: Exception | None = None
        """What polling raises from now on."""
        self.handled: list[BaseException | None] = []
        """What was being handled when polling raised: confluent-kafka would never free it."""
        self.where: list[tuple[str, int, bytes | None]] = []
        self.sent: list[bytes] = []
        self.held: list[Any] = []
        self.config: dict[str, Any] = {}
        self.purged = False

    def produce(
        self, topic: str, value: bytes, *, key: bytes | None, partition: int, on_delivery: Any
    ) -> None:
        if self.broken is not None:
            raise self.broken
        self.where.append((topic, partition, key))
        self.sent.append(value)
        self.held.append(on_delivery)

    def purge(self) -> None:
        self.purged = True

    def report(self, code: int | None = None, *, offset: int | None = 0) -> None:
        """Tell of all that is under way."""
        message = SimpleNamespace(offset=lambda: offset)
        for each in self.held:
            each(None if code is None else KafkaError(code), message)
        self.held.clear()

    def flush(self, _: float) -> int:
        if self.fatal is not None:
            raise self.fatal
        return len(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def poll(self, _: float) -> None:
        if self.fatal is not None:
            self.handled.append(sys.exc_info()[1])
            raise self.fatal
        if self.purged:
            for report in self.held:
                report(KafkaError(KafkaError._PURGE_QUEUE), None)
            self.held.clear()


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[StubProducer]:
    made: list[StubProducer] = []

    def client(_: object, config: dict[str, Any], *__: object) -> StubProducer:
        made.append(StubProducer())
        made[-1].config = config
        return made[-1]

    monkeypatch.setattr(writing, "connect", client)
    return made


@pytest.fixture
def writer(producers: list[StubProducer]) -> LogWriter:
    return LogWriter({}, topic="t", snapshot_topic="s", timeout_ms=1_000)


def test_a_full_queue_is_a_failed_append(writer: LogWriter, producers: list[StubProducer]) -> None:
    producers[0].broken = BufferError("Local: Queue full")
    writer.append(0, 7, b"x")
    assert writer.take_failures() == [(7, "Local: Queue full")]
    assert writer.take_failures() == []


def test_a_producer_that_failed_for_good_is_replaced(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 1, b"before")
    producers[0].broken = KafkaException(KafkaError(KafkaError._FATAL))
    writer.append(0, 2, b"refused")
    writer.append(0, 3, b"after")
    assert producers[0].purged
    assert producers[1].sent == [b"after"]
    assert sorted(seq for seq, _ in writer.take_failures()) == [1, 2]


def test_a_producer_that_cannot_be_replaced_now_is_replaced_with_the_next_record(
    writer: LogWriter, producers: list[StubProducer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a certificate is being replaced."""

    def fail(*_: object) -> None:
        raise ConfigurationError("ssl.key.location failed")

    writer.append(0, 1, b"before")
    producers[0].broken = KafkaException(KafkaError(KafkaError._FATAL))
    with monkeypatch.context() as patch:
        patch.setattr(writing, "connect", fail)
        writer.append(0, 2, b"refused")
    assert sorted(seq for seq, _ in writer.take_failures()) == [1, 2]
    writer.append(0, 3, b"refused, and by the last time")
    writer.append(0, 4, b"after")
    assert producers[1].sent == [b"after"]


def test_what_the_protocol_needs_cannot_be_set_otherwise(producers: list[StubProducer]) -> None:
    """All replicas, no repetition, and a time-out after which the outcome counts as unknown."""
    given = {"acks": "1", "enable.idempotence": False, "bootstrap.servers": "b:1"}
    LogWriter(given, topic="t", snapshot_topic="s", timeout_ms=7_000)
    config = producers[0].config
    assert (config["acks"], config["enable.idempotence"]) == ("all", True)
    assert (config["message.timeout.ms"], config["linger.ms"]) == (7_000, 0)
    assert config["message.max.bytes"] == 32 << 20
    assert config["bootstrap.servers"] == "b:1"


def test_a_record_goes_to_its_coordination_partition(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(3, 7, b"x")
    assert producers[0].where == [("t", 3, None)]
    assert producers[0].sent == [b"x"]


def test_a_record_that_was_delivered_is_no_failure(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 7, b"x")
    producers[0].report()
    assert writer.take_failures() == []


def test_where_the_brokers_have_taken_records_is_known_until_it_starts_over(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(3, 7, b"x")
    writer.append(2, 8, b"y")
    assert writer.ends == {}
    producers[0].report(offset=41)
    assert writer.ends == {3: 42, 2: 42}
    writer.append(3, 9, b"z")
    producers[0].report(KafkaError._MSG_TIMED_OUT)
    writer.append_snapshot(1, b"s")
    producers[0].report(offset=5)
    writer.append(2, 10, b"a")
    producers[0].report(offset=None)  # it was there already: nobody says where
    assert writer.ends == {3: 42, 2: 1}
    writer.start_over()
    assert writer.ends == {}


def test_a_record_whose_outcome_is_unknown_counts_as_failed(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 7, b"x")
    writer.append(0, 8, b"y")
    producers[0].report(KafkaError._MSG_TIMED_OUT)
    assert [seq for seq, _ in writer.take_failures()] == [7, 8]
    assert len(producers) == 1, "it goes on with the producer that it has"
    assert writer.take_failures() == []


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._FATAL)), SystemError()])
def test_a_producer_that_fails_for_good_while_it_is_served_is_replaced(
    writer: LogWriter, producers: list[StubProducer], error: Exception
) -> None:
    writer.append(0, 1, b"before")
    producers[0].fatal = error
    writer.serve()
    writer.append(0, 2, b"after")
    assert producers[0].purged
    assert producers[1].sent == [b"after"]


def test_a_producer_that_failed_is_given_up_after_its_error_was_handled(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    """Or that error would never be freed, nor what its frames have."""
    producers[0].fatal = KafkaException(KafkaError(KafkaError._FATAL))
    writer.serve()
    assert producers[0].handled == [None, None]


def test_serving_runs_the_callbacks_that_are_due(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 4, b"x")
    producers[0].purged = True
    writer.serve()
    assert [seq for seq, _ in writer.take_failures()] == [4]


def test_an_error_that_is_not_for_good_replaces_nothing(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    producers[0].broken = KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
    writer.append(0, 1, b"x")
    assert [seq for seq, _ in writer.take_failures()] == [1]
    assert len(producers) == 1


def test_starting_over_forgets_what_was_meant_for_another_log(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 1, b"old")
    writer.start_over()
    assert producers[0].purged
    assert writer.take_failures() == []
    writer.append(0, 2, b"new")
    assert producers[1].sent == [b"new"]


def refused(writer: LogWriter, producer: StubProducer) -> None:
    writer.append(0, 1, b"x")
    producer.report(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def test_a_right_that_is_missing_from_the_start_is_a_refusal(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    refused(writer, producers[0])
    assert writer.refusal is not None
    assert "'t'" in str(writer.refusal) or "t" in str(writer.refusal)
    assert writer.was_refused
    assert [seq for seq, _ in writer.take_failures()] == [1]


def test_a_right_that_was_taken_away_later_is_told_and_no_refusal(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 0, b"x")
    producers[0].report()
    refused(writer, producers[0])
    assert writer.refusal is None
    assert writer.was_refused


def test_who_may_not_write_at_all_is_refused_at_once(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    """Idempotence needs a right of its own, and the producer is given up for the want of it."""
    code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
    producers[0].fatal = KafkaException(KafkaError(code))
    writer.serve()
    assert writer.refusal is not None
    assert len(producers) == 2


def test_a_missing_right_is_told_once_in_a_while(
    writer: LogWriter,
    producers: list[StubProducer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.ERROR, logger="marshal_py.log"):
        refused(writer, producers[0])
        refused(writer, producers[0])
        assert len(caplog.records) == 1
        now[0] += OUTAGE_WARNING_S
        refused(writer, producers[0])
    assert len(caplog.records) == 2


def test_why_the_brokers_take_no_record_is_told_once_in_a_while(
    writer: LogWriter, producers: list[StubProducer], caplog: pytest.LogCaptureFixture
) -> None:
    """As of a topic that is compacted, whose records need keys. Else leases lapse without a why."""
    for code in (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_INFLIGHT):
        writer.append(0, 1, b"x")
        producers[0].report(code)
    assert caplog.messages == [], "an outage is told by who has no connection"
    for _ in range(2):
        writer.append(0, 1, b"x")
        producers[0].report(KafkaError.INVALID_RECORD)
    assert caplog.messages == ["t takes no record: Broker: Broker failed to validate record"]
    assert writer.refusal is None
    assert not writer.was_refused


def test_a_snapshot_goes_to_its_topic_under_its_partitions_number(
    writer: LogWriter, producers: list[StubProducer], caplog: pytest.LogCaptureFixture
) -> None:
    state = PartitionState(2)
    writer.write_snapshot(SnapshotDue(2, 5, b"a" * 16, state.encode(), ""), 4, "me")
    assert producers[0].where == [("s", 2, b"2")]
    snapshot = decode_snapshot(producers[0].sent[0])
    assert (snapshot.coordinator, snapshot.next_offset, snapshot.partitions) == (2, 5, 4)
    assert snapshot.writer == "me"
    with caplog.at_level(logging.WARNING, logger="marshal_py.log"):
        producers[0].report(KafkaError._MSG_TIMED_OUT)
    assert "a snapshot of partition 2 failed" in caplog.text
    assert writer.take_failures() == [], "the next one will do"


def test_flushing_says_how_many_records_are_not_delivered(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    writer.append(0, 1, b"x")
    writer.append(0, 2, b"y")
    assert writer.flush(1.0) == 2
    producers[0].fatal = KafkaException(KafkaError(KafkaError._FATAL))
    assert writer.flush(1.0) == 2
    writer.purge()
    assert producers[0].purged


def test_a_refusal_stands_until_a_record_is_taken(
    writer: LogWriter, producers: list[StubProducer]
) -> None:
    producer = producers[0]
    for seq in range(3):
        writer.append(0, seq, b"x")
    taken, refused, taken_again = producer.held
    message = SimpleNamespace(offset=lambda: 0)
    taken(None, message)
    assert writer.refused_now is None
    refused(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)
    assert writer.refused_now is not None
    assert "lacks Write on topic 't'" in str(writer.refused_now)
    assert writer.refusal is None, "it was served once: the right may come back"
    taken_again(None, message)
    assert writer.refused_now is None
