"""What is made of answers that are not complete, without brokers."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.client import log_metadata
from marshal_py.client.kafka_clients import ConnectionErrors
from marshal_py.client.log_metadata import LogMetadata
from marshal_py.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    ConfigurationError,
    TopicMissing,
)

NO_LEADER = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Consumer:
    """Answers with what it was given, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def offsets_for_times(self, _query: Any, timeout: float) -> list[Any]:
        assert timeout > 0
        found: list[Any] = self.answers.pop(0)
        return found

    def list_topics(self, name: str, timeout: float) -> Any:
        assert timeout > 0
        error = self.answers.pop(0)
        topic = SimpleNamespace(error=error, partitions={} if error else {0: object()})
        return SimpleNamespace(cluster_id="c", topics={name: topic})

    def poll(self, _timeout_s: float) -> None: ...


def metadata(consumer: Consumer) -> LogMetadata:
    return LogMetadata(consumer, {}, ConnectionErrors(), "t", "t.snapshots", ("Read",))


def at(partition: int, offset: int, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(partition=partition, offset=offset, error=error)


def deadline() -> float:
    return time.monotonic() + 60


@pytest.mark.parametrize(
    ("ask", "second"),
    [
        (lambda log: log.first_offsets("t", [0, 1], deadline()), 9),
        (lambda log: log.next_offsets("t", [0, 1], deadline()), 9),
        (lambda log: log.offsets_at(1_000, {0: 50, 1: 60}, deadline()), 9),
        (lambda log: log.offsets_at(1_000, {0: 50, 1: 60}, deadline()), -1),
    ],
    ids=["first", "next", "at a time", "at a time after the last record"],
)
def test_a_partition_without_a_leader_is_asked_for_again(
    ask: Callable[[LogMetadata], dict[int, int]], second: int
) -> None:
    consumer = Consumer([at(0, 4), at(1, -1, NO_LEADER)], [at(0, 5), at(1, second)])
    assert ask(metadata(consumer)) == {0: 5, 1: 9 if second == 9 else 60}
    assert consumer.answers == []


def test_snapshots_that_are_to_be_seen_again_are_not_denied_any_more() -> None:
    log = metadata(Consumer(None, REFUSED, None, None))
    assert log.describe(deadline(), with_snapshots=True) == (1, 0)
    assert "lacks Read on topic 't.snapshots'" in str(log.snapshots_denied)
    assert log.describe(deadline(), with_snapshots=True) == (1, 1)
    assert log.snapshots_denied is None


class Clock:
    """Stands for the module `time`: a second goes by between any two looks."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1
        return self.now_s


class Unreachable(Consumer):
    def list_topics(self, name: str, timeout: float) -> Any:
        if self.answers:
            return super().list_topics(name, timeout)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def offsets_for_times(self, _query: Any, timeout: float) -> list[Any]:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_what_tls_has_said_is_heard_before_the_time_is_up() -> None:
    """librdkafka tells it to who polls, and nobody else polls while brokers are asked."""
    errors = ConnectionErrors()
    consumer: Any = Unreachable()
    consumer.poll = lambda _: errors.note(KafkaError._SSL, "certificate expired")
    log = LogMetadata(consumer, {}, errors, "t", "t.snapshots", ("Read",))
    with pytest.raises(AuthenticationFailed, match="certificate expired"):
        log.describe(time.monotonic(), with_snapshots=False)


@pytest.mark.parametrize("seconds", range(1, 6))
@pytest.mark.parametrize(
    ("ask", "answers"),
    [
        (lambda log, end: log.describe(end, with_snapshots=False), []),
        (lambda log, end: log.describe(end, with_snapshots=True), [None]),
        (lambda log, end: log.next_offsets("t", [0], end), []),
    ],
    ids=["topic", "snapshots", "offsets"],
)
def test_the_cause_is_told_whenever_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[LogMetadata, float], object],
    answers: list[None],
    seconds: int,
) -> None:
    monkeypatch.setattr(log_metadata, "time", Clock())
    errors = ConnectionErrors()
    errors.note_outage(KafkaError._TRANSPORT, "Connection refused")
    log = LogMetadata(Unreachable(*answers), {}, errors, "t", "t.snapshots", ("Read",))
    with pytest.raises(BrokerUnavailable, match="Connection refused"):
        ask(log, float(seconds))


@pytest.mark.parametrize("is_mock", [False, True])
def test_a_mock_cluster_is_found_out(is_mock: bool) -> None:
    """To ask it for a topic's id would wait for the time-out."""

    class Cluster(Consumer):
        def list_topics(self, name: str, timeout: float) -> Any:
            found = super().list_topics(name, timeout)
            found.cluster_id = "mockCluster7" if is_mock else "lkc-7"
            return found

    log = metadata(Cluster(None))
    log.describe(deadline(), with_snapshots=False)
    assert log.is_mock == is_mock


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (KafkaError._UNSUPPORTED_FEATURE, BrokerUnavailable, "the brokers refused"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "lacks Read on topic 't'"),
    ],
)
def test_what_trying_again_cannot_mend_is_told_at_once(
    code: int, kind: type[Exception], says: str
) -> None:
    class Refusing(Consumer):
        asked = 0

        def offsets_for_times(self, _query: Any, timeout: float) -> list[Any]:
            self.asked += 1
            assert self.asked == 1, "it was asked again"
            raise KafkaException(KafkaError(code))

    with pytest.raises(kind, match=says):
        metadata(Refusing()).next_offsets("t", [0], deadline())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.UNSUPPORTED_VERSION, ConfigurationError),
    ],
)
def test_why_there_is_no_log(code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="'t'"):
        metadata(Consumer(KafkaError(code))).describe(deadline(), with_snapshots=False)


def test_what_is_refused_again_and_again_is_told_before_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, errors = Clock(), ConnectionErrors()
    monkeypatch.setattr(log_metadata, "time", clock)
    for _ in range(4):
        errors.note(KafkaError._AUTHENTICATION, "wrong password")
    log = LogMetadata(Unreachable(), {}, errors, "t", "t.snapshots", ("Read",))
    with pytest.raises(AuthenticationFailed, match="wrong password"):
        log.describe(1_000.0, with_snapshots=False)
    assert clock.now_s < 10


@pytest.mark.parametrize("answer", [NO_LEADER, None])
def test_whoever_asks_may_give_up_between_two_questions(answer: KafkaError | None) -> None:
    """Else who closes a client would wait for as long as one that starts waits for the brokers."""

    class GivenUp(Exception): ...

    class Unanswered(Consumer):
        def list_topics(self, name: str, timeout: float) -> Any:
            if answer is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return super().list_topics(name, timeout)

    def give_up() -> None:
        raise GivenUp

    log = LogMetadata(
        Unanswered(answer), {}, ConnectionErrors(), "t", "t.snapshots", ("Read",), give_up
    )
    with pytest.raises(GivenUp):
        log.describe(deadline(), with_snapshots=False)
