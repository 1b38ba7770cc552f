"""What a transaction asks Kafka for: in which order (specs/HARVEST.md §9), and what then failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.core.row import Row
from harvest.errors import SinkUnavailable
from harvest.sinks.kafka import sink as kafka
from harvest.sinks.kafka.sink import TransactionalSink

COMMIT_S = 0.5


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Producer:
    """Notes what it is asked for; a commit takes half a second."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[str] = []

    def begin_transaction(self) -> None:
        self.asked.append("begin")

    def list_topics(self, name: str, **_: Any) -> Any:
        known = type("Topic", (), {"error": None})
        return type("Found", (), {"topics": {name: known}})

    def produce(self, *_: Any, **__: Any) -> None:
        if self.asked[-1] != "rows":
            self.asked.append("rows")

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self.asked.append("position")

    def commit_transaction(self, timeout_s: float) -> None:
        del timeout_s
        self.clock.now_s += COMMIT_S
        self.asked.append("commit")


class FailedProducer(Producer):
    """The broker refuses the rows while the position is under way, as librdkafka tells it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.reasons = [KafkaError._STATE, KafkaError.TOPIC_AUTHORIZATION_FAILED]
        self.reports: list[Callable[[KafkaError, None], None]] = []

    def produce(self, *_: Any, on_delivery: Any = None, **__: Any) -> None:
        super().produce()
        if on_delivery is not None:
            self.reports.append(on_delivery)

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        super().send_offsets_to_transaction(*arguments)
        raise KafkaException(KafkaError(self.reasons.pop(0)))

    def purge(self) -> None: ...

    def poll(self, timeout_s: float) -> None: ...

    def abort_transaction(self, timeout_s: float) -> None:
        self.asked.append("abort")
        for report in self.reports:
            report(KafkaError(KafkaError._PURGE_QUEUE), None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(kafka, "time", made)
    return made


@pytest.fixture
def sink() -> TransactionalSink:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    made = TransactionalSink(settings, base_config=settings, name="x", checkpoint_topic="t")
    made._still_held = lambda: True
    return made


def test_right_after_a_commit_the_position_goes_first_unless_there_are_many_rows(
    clock: Clock, sink: TransactionalSink
) -> None:
    producer = Producer(clock)

    def asked(rows: int, pause_s: float) -> list[str]:
        clock.now_s += pause_s
        producer.asked.clear()
        given: Any = producer
        sink._deliver(given, [Row(n, "t", b"k", b"v") for n in range(rows)], "c")
        return list(producer.asked)

    rows_first, position_first = (
        ["begin", "rows", "position", "commit"],
        ["begin", "position", "rows", "commit"],
    )
    assert asked(1, 0) == rows_first
    assert asked(1, 0) == position_first
    assert asked(1, COMMIT_S / 2) == position_first
    assert asked(1, 2 * COMMIT_S) == rows_first
    assert asked(2_000, 0) == rows_first


@pytest.mark.parametrize("failed_before", [True, False])
def test_rows_that_are_refused_while_the_position_is_under_way_are_told_by_name(
    clock: Clock, sink: TransactionalSink, monkeypatch: pytest.MonkeyPatch, failed_before: bool
) -> None:
    sink._failed_before = failed_before
    monkeypatch.setattr(kafka, "unwritable_topics", lambda *_: {"closed"})
    producer: Any = FailedProducer(clock)
    sink._producer = producer
    failure = sink.deliver([Row(1, "open", b"k", b"v"), Row(2, "closed", b"k", b"v")], "c")
    assert failure is not None
    assert failure.refused == {2}
    assert "TOPIC_AUTHORIZATION_FAILED" in failure.reason
    assert producer.asked[-1] == "abort"


def test_what_lost_its_lease_asks_kafka_for_no_reason(
    clock: Clock, sink: TransactionalSink
) -> None:
    producer: Any = FailedProducer(clock)
    sink._producer = producer
    held = iter([True, True, False])
    sink._still_held = lambda: next(held)
    failure = sink.deliver([Row(1, "open", b"k", b"v")], "c")
    assert failure is not None
    assert producer.asked == ["begin", "rows", "position", "abort"]


class RefusedProducer(FailedProducer):
    """The broker refuses the second row; the commit says only that one was refused."""

    def init_transactions(self, timeout_s: float) -> None: ...

    def send_offsets_to_transaction(self, *_: Any) -> None: ...

    def commit_transaction(self, timeout_s: float) -> None:
        for number, report in enumerate(self.reports):
            if number == 1:
                report(KafkaError(KafkaError.TOPIC_EXCEPTION), None)
        raise KafkaException(KafkaError(KafkaError.TOPIC_EXCEPTION))


def test_after_a_failure_a_refused_row_is_told_by_its_own_report(
    clock: Clock, sink: TransactionalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the sink as it was opened anew."""
    rows = [Row(n, "t", b"k", b"v") for n in (1, 2, 3)]
    refused = []
    monkeypatch.setattr(kafka, "newest_checkpoint", lambda *_: None)
    producers: Any = sink._producers
    producers.take = lambda: RefusedProducer(clock)
    for _ in range(2):
        sink.open(lambda: True)
        failure = sink.deliver(rows, "c")
        assert failure is not None
        refused.append(failure.refused)
    assert refused == [frozenset(), {2}]


def test_topics_are_looked_for_anew_whenever_the_sink_is_opened(
    clock: Clock, sink: TransactionalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may have been deleted since: librdkafka would wait for it for half a minute."""
    asked: list[str] = []

    class Asked(FailedProducer):
        def init_transactions(self, timeout_s: float) -> None: ...

        def send_offsets_to_transaction(self, *_: Any) -> None: ...

        def list_topics(self, name: str, **_: Any) -> Any:
            asked.append(name)
            return super().list_topics(name)

    monkeypatch.setattr(kafka, "newest_checkpoint", lambda *_: None)
    producers: Any = sink._producers
    producers.take = lambda: Asked(clock)
    for _ in range(2):
        sink.open(lambda: True)
        for _ in range(2):
            assert sink.deliver([Row(1, "t", b"k", b"v")], "c") is None
    assert asked == ["t", "t"]


class SlowProducer(Producer):
    """The broker takes longer to commit than a call waits, twice."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.slow = 2

    def commit_transaction(self, timeout_s: float) -> None:
        super().commit_transaction(timeout_s)
        if self.slow:
            self.slow -= 1
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, "still committing", retriable=True)
            )

    def purge(self) -> None: ...

    def poll(self, timeout_s: float) -> None: ...

    def abort_transaction(self, timeout_s: float) -> None:
        self.asked.append("abort")


def test_a_commit_that_takes_long_is_no_success_before_it_has_ended(
    clock: Clock, sink: TransactionalSink
) -> None:
    producer: Any = SlowProducer(clock)
    sink._producer = producer
    assert sink.deliver([Row(1, "t", b"k", b"v")], "c") is None
    assert producer.asked == ["begin", "rows", "position", "commit", "commit", "commit"]


def test_a_commit_that_outlasts_the_lease_is_no_success(
    clock: Clock, sink: TransactionalSink
) -> None:
    producer: Any = SlowProducer(clock)
    sink._producer = producer
    sink._still_held = lambda: "commit" not in producer.asked
    assert sink.deliver([Row(1, "t", b"k", b"v")], "c") is not None
    assert producer.asked.count("commit") == 1


class Aborting:
    """A producer of a broker that aborts another one's transaction until `done_s`.

    Told to try again, librdkafka does so every half second.
    """

    def __init__(self, clock: Clock, done_s: float) -> None:
        self._clock, self._done_s = clock, done_s

    def init_transactions(self, timeout_s: float) -> None:
        began_s = self._clock.now_s
        while self._clock.now_s < self._done_s:
            if self._clock.now_s + 0.5 > began_s + timeout_s:
                self._clock.now_s = began_s + timeout_s
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))
            self._clock.now_s += 0.5

    def purge(self) -> None: ...

    def poll(self, timeout_s: float) -> None: ...


@pytest.mark.parametrize("abort_s", [0.0, 0.05, 0.2, 0.36, 0.5, 0.8, 0.95])
def test_a_transaction_that_is_aborted_for_a_while_is_not_waited_for_much_longer(
    sink: TransactionalSink, abort_s: float
) -> None:
    clock = Clock()
    began_s = clock.now_s
    producers: Any = sink._producers
    producers.take = lambda: Aborting(clock, began_s + abort_s)
    sink._fence()
    assert clock.now_s - began_s <= abort_s + 0.3


def test_who_could_not_read_the_checkpoint_asks_anew_for_the_coordinator(
    clock: Clock, sink: TransactionalSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that was asked may be gone, or cut off."""
    readers: list[object] = []
    monkeypatch.setattr(kafka, "make_client_again", lambda *_: object())
    producers: Any = sink._producers
    producers.take = lambda: RefusedProducer(clock)

    def fail(reader: object, *_: object) -> None:
        readers.append(reader)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(kafka, "newest_checkpoint", fail)
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="the checkpoint cannot be read"):
            sink.open(lambda: True)
    first, second = readers
    assert first is not second


class FullProducer(FailedProducer):
    """Its queue stays full."""

    polls = 0

    def produce(self, *_: Any, **__: Any) -> None:
        raise BufferError

    def poll(self, timeout_s: float) -> None:
        self.polls += 1
        assert self.polls < 9, "nobody else ends it"


def test_who_waits_for_room_asks_whether_the_lease_is_held(
    clock: Clock, sink: TransactionalSink
) -> None:
    producer: Any = FullProducer(clock)
    sink._producer = producer
    sink._still_held = lambda: producer.polls < 3
    failure = sink.deliver([Row(1, "t", b"k", b"v")], "c")
    assert failure is not None
    assert "the lease is lost" in failure.reason
    assert producer.asked[-1] == "abort"


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError._MSG_TIMED_OUT])
@pytest.mark.parametrize("given_up", [True, False])
def test_who_is_fenced_is_told_so_in_whichever_way(
    clock: Clock, sink: TransactionalSink, code: int, given_up: bool
) -> None:
    """confluent-kafka raises a SystemError over a producer that it had to give up."""

    class Fenced(FailedProducer):
        def produce(self, *_: Any, **__: Any) -> None:
            error = KafkaException(KafkaError(code))
            if given_up:
                raise SystemError("returned a result with an exception set") from error
            self.reasons = [code, code]

    producer: Any = Fenced(clock)
    sink._producer = producer
    failure = sink.deliver([Row(1, "t", b"k", b"v")], "c")
    assert failure is not None
    assert failure.fenced is (code == KafkaError._FENCED)


@pytest.mark.parametrize("tries", [0, 1, 2])
def test_who_has_lost_the_lease_fences_nobody(sink: TransactionalSink, tries: int) -> None:
    """Whoever leads by now would have to begin anew."""
    clock, begun = Clock(), list[Aborting]()

    class Tried(Aborting):
        def init_transactions(self, timeout_s: float) -> None:
            begun.append(self)
            super().init_transactions(timeout_s)

    producers: Any = sink._producers
    producers.take = lambda: Tried(clock, clock.now_s + 99)
    with pytest.raises(SinkUnavailable, match="the lease was lost"):
        sink.open(lambda: len(begun) < tries)
    assert len(begun) == tries
