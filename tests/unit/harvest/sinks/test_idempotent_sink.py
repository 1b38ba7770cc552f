"""`delivery: idempotent`: deliveries that do not wait for one another, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.core.failure import Failure
from harvest.core.row import Row
from harvest.sinks.kafka import idempotent, producers
from harvest.sinks.kafka.idempotent import IdempotentSink

REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
WAIT_S = 10.0


def row(number: int, topic: str = "t") -> Row:
    return Row(number, topic, b"k", b"v%d" % number)


class _Topics:
    def __getitem__(self, name: str) -> Any:
        code = KafkaError.UNKNOWN_TOPIC_OR_PART if name == "missing" else None
        return type("Topic", (), {"error": code and KafkaError(code)})


class Broker:
    """The only producer's other side: a test says which rows are reported, and when."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.under_way: list[tuple[bytes, Any]] = []
        self.reports: list[tuple[Any, Any]] = []
        self.raises: list[Exception] = []
        self.room = 1_000
        self.unsendable: set[bytes] = set()
        self.broken: set[bytes] = set()
        self.held_back: bytes | None = None
        self.topics_told = threading.Event()
        """While it is not set, nobody hears which topics there are."""
        self.topics_told.set()
        self.is_asked = threading.Event()
        self.polls = 0

    def answer(self, count: int, error: Any = None) -> None:
        """Decide about the next rows."""
        with self.changed:
            assert len(self.under_way) >= count
            for _ in range(count):
                self.reports.append((self.under_way.pop(0)[1], error))
            self.changed.notify_all()

    def give_up(self, lost_reports: int) -> None:
        """librdkafka gives the producer up, and confluent-kafka loses reports over that."""
        with self.changed:
            del self.under_way[:lost_reports]
            self.raises.append(KafkaException(KafkaError(KafkaError._GAPLESS_GUARANTEE)))
            self.changed.notify_all()

    def values(self) -> list[bytes]:
        with self.changed:
            return [value for value, _ in self.under_way]


class Producer:
    """What the sink uses of confluent-kafka's."""

    broker: Broker

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def list_topics(self, *_: Any, **__: Any) -> Any:
        self.broker.is_asked.set()
        assert self.broker.topics_told.wait(WAIT_S)
        return type("Found", (), {"topics": _Topics()})

    def produce(self, topic: str, value: bytes, key: bytes, *, on_delivery: Any) -> None:
        del topic, key
        with self.broker.changed:
            if len(self) >= self.broker.room:  # until its report is heard, a row is in the queue
                raise BufferError
            if value in self.broker.broken:
                raise SystemError("a callback is running") from KafkaException(REFUSED)
            assert self.broker.changed.wait_for(lambda: value != self.broker.held_back, WAIT_S)
            if value in self.broker.unsendable:
                raise KafkaException(TOO_LARGE)
            self.broker.under_way.append((value, on_delivery))
            self.broker.changed.notify_all()

    def poll(self, timeout_s: float) -> int:
        broker = self.broker
        with broker.changed:
            broker.polls += 1
            broker.changed.notify_all()
            broker.changed.wait_for(lambda: broker.reports or broker.raises, timeout_s)
            if broker.raises:
                raise broker.raises.pop()
            reports, broker.reports = broker.reports, []
        for report, error in reports:
            report(error, None)
        return len(reports)

    def purge(self) -> None:
        self.broker.answer(len(self.broker.under_way), KafkaError(KafkaError._PURGE_QUEUE))

    def __len__(self) -> int:
        return len(self.broker.under_way) + len(self.broker.reports)


class Fates:
    """What was heard of deliveries, in order."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.heard: list[tuple[str, Failure | None]] = []

    def of(self, name: str) -> Callable[[Failure | None], None]:
        def settle(failure: Failure | None) -> None:
            with self.changed:
                self.heard.append((name, failure))
                self.changed.notify_all()

        return settle

    def names(self, count: int) -> list[str]:
        """The first so many, when they are there."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.heard) >= count, WAIT_S)
            return [name for name, _ in self.heard]

    def failures(self, count: int) -> list[Failure]:
        self.names(count)
        return [failure for _, failure in self.heard if failure is not None]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(Producer, "broker", made, raising=False)
    monkeypatch.setattr(producers, "Producer", Producer)
    return made


@pytest.fixture
def sink(broker: Broker) -> IdempotentSink:
    made = IdempotentSink({"bootstrap.servers": "nowhere:1"})
    made.open(lambda: True)
    return made


def test_a_delivery_does_not_wait_for_the_one_before(broker: Broker, sink: IdempotentSink) -> None:
    fates = Fates()
    sink.submit([row(1), row(2)], fates.of("a"))
    sink.submit([row(3)], fates.of("b"))
    assert broker.values() == [b"v1", b"v2", b"v3"]
    broker.answer(2)
    assert fates.names(1) == ["a"]
    broker.answer(1)
    assert fates.names(2) == ["a", "b"]
    assert not fates.failures(2)


def test_a_later_delivery_that_is_acknowledged_first_is_settled_later(
    broker: Broker, sink: IdempotentSink
) -> None:
    fates = Fates()
    sink.submit([row(1)], fates.of("a"))
    sink.submit([row(2)], fates.of("b"))
    with broker.changed:
        broker.under_way.reverse()  # of another partition
    broker.answer(1)
    sink.submit([], fates.of("c"))  # settles what it can
    assert fates.heard == []
    broker.answer(1)
    assert fates.names(3) == ["a", "b", "c"]


def test_what_was_under_way_when_a_row_was_refused_is_settled_as_one_failure(
    broker: Broker, sink: IdempotentSink
) -> None:
    fates = Fates()
    for name, number in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        sink.submit([row(number)], fates.of(name))
    broker.answer(1)
    broker.answer(1, REFUSED)
    assert fates.names(1) == ["a"], "b is not settled while the fate of others is unknown"
    broker.answer(1)
    broker.answer(1, REFUSED)
    first, second, third = fates.failures(4)
    assert first is second is third
    assert first.undelivered == first.refused == {2, 4}
    assert fates.names(4) == ["a", "b", "c", "d"]


def test_after_a_failure_nothing_more_is_handed_over_until_opened(
    broker: Broker, sink: IdempotentSink
) -> None:
    fates = Fates()
    sink.submit([row(1)], fates.of("a"))
    sink.submit([row(2, "missing")], fates.of("b"))
    sink.submit([row(3)], fates.of("c"))
    assert broker.values() == [b"v1"], "what is under way stays there"
    broker.answer(1)
    assert fates.names(3) == ["a", "b", "c"]
    assert [f.undelivered for f in fates.failures(3)] == [frozenset({2, 3})] * 2
    sink.open(lambda: True)
    sink.submit([row(4)], fates.of("d"))
    broker.answer(1)
    assert fates.names(4)[-1] == "d"
    assert len(fates.failures(4)) == 2


def test_rows_of_one_broker_batch_that_is_too_large_are_not_blamed_one_by_one(
    broker: Broker, sink: IdempotentSink
) -> None:
    """One delivery has one row each: none of them alone is known to be too large."""
    fates = Fates()
    for number in (1, 2):
        sink.submit([row(number)], fates.of(str(number)))
    broker.answer(2, TOO_LARGE)
    assert not fates.failures(2)[0].refused
    sink.open(lambda: True)
    sink.submit([row(1)], fates.of("alone"))
    broker.answer(1, TOO_LARGE)
    assert fates.failures(3)[-1].refused == {1}


def test_a_row_that_cannot_be_handed_over_is_blamed_and_those_before_it_go(
    broker: Broker, sink: IdempotentSink
) -> None:
    fates = Fates()
    broker.unsendable = {b"v2"}
    sink.submit([row(1), row(2), row(3)], fates.of("a"))
    broker.answer(1)
    (failure,) = fates.failures(1)
    assert failure.undelivered == frozenset({2, 3})
    assert failure.refused == {2}


def test_a_full_queue_is_waited_for(broker: Broker, sink: IdempotentSink) -> None:
    fates = Fates()
    broker.room = 1
    thread = threading.Thread(
        target=sink.submit, args=([row(1), row(2)], fates.of("a")), daemon=True
    )
    thread.start()
    with broker.changed:
        assert broker.changed.wait_for(lambda: broker.under_way, WAIT_S)
    broker.answer(1)
    with broker.changed:
        assert broker.changed.wait_for(lambda: broker.under_way, WAIT_S)
    broker.answer(1)
    thread.join(WAIT_S)
    assert fates.names(1) == ["a"]
    assert not fates.failures(1)


def test_a_report_that_got_lost_counts_as_a_failure_and_nobody_waits_for_it(
    broker: Broker, sink: IdempotentSink
) -> None:
    fates = Fates()
    sink.submit([row(1), row(2)], fates.of("a"))
    broker.answer(1)
    broker.give_up(lost_reports=1)
    (failure,) = fates.failures(1)
    assert failure.undelivered is not None
    assert 2 in failure.undelivered
    assert not failure.refused, "nobody knows why"


def test_what_is_under_way_when_the_lease_is_lost_is_given_up(broker: Broker) -> None:
    held, fates = True, Fates()
    sink = IdempotentSink({"bootstrap.servers": "nowhere:1"})
    sink.open(lambda: held)
    sink.submit([row(1)], fates.of("a"))
    held = False
    sink.submit([row(2)], fates.of("b"))
    assert broker.values() in ([b"v1"], [])
    assert [f.undelivered for f in fates.failures(2)] == [frozenset({1, 2})] * 2


def test_nothing_is_sent_when_the_lease_was_lost_while_topics_were_looked_for(
    broker: Broker,
) -> None:
    held, fates = True, Fates()
    sink = IdempotentSink({"bootstrap.servers": "nowhere:1"})
    sink.open(lambda: held)
    broker.topics_told.clear()
    thread = in_thread(lambda: sink.submit([row(1), row(2, "u")], fates.of("a")))
    assert broker.is_asked.wait(WAIT_S)
    held = False
    broker.is_asked.clear()
    broker.topics_told.set()
    thread.join(WAIT_S)
    assert broker.values() == []
    assert not broker.is_asked.is_set(), "nobody asks for further topics"
    assert [f.undelivered for f in fates.failures(1)] == [frozenset({1, 2})]


def test_closing_settles_what_is_under_way(
    broker: Broker, sink: IdempotentSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    fates = Fates()
    monkeypatch.setattr(idempotent, "_CLOSE_S", WAIT_S)
    sink.submit([row(1)], fates.of("a"))
    sink.close()
    ((_, failure),) = fates.heard  # by then, and not some time after
    assert failure is not None
    assert failure.undelivered == frozenset({1})
    sink.submit([row(2)], fates.of("b"))
    assert fates.failures(2)[-1].undelivered == frozenset({2})
    assert broker.values() == []


def in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def polled(broker: Broker, times: int) -> None:
    """Wait until the sink has asked for reports so many more times."""
    with broker.changed:
        due = broker.polls + times
        assert broker.changed.wait_for(lambda: broker.polls >= due, WAIT_S)


@pytest.mark.parametrize("error", [None, REFUSED])
def test_delivering_waits_for_the_fate_and_returns_it(
    broker: Broker, sink: IdempotentSink, error: Any
) -> None:
    found: list[Failure | None] = []
    thread = in_thread(lambda: found.append(sink.deliver([row(1)], "")))
    with broker.changed:
        assert broker.changed.wait_for(lambda: broker.under_way, WAIT_S)
    broker.answer(1, error)
    thread.join(WAIT_S)
    assert [failure and failure.undelivered for failure in found] == [
        None if error is None else frozenset({1})
    ]


def test_a_delivery_is_not_settled_while_it_is_still_handed_over(
    broker: Broker, sink: IdempotentSink
) -> None:
    """Its first row was refused by then, and its second would be sent after it had been settled."""
    fates = Fates()
    sink.submit([row(9)], fates.of("z"))  # so that somebody asks for reports
    broker.held_back = b"v2"
    thread = in_thread(lambda: sink.submit([row(1), row(2)], fates.of("a")))
    with broker.changed:
        assert broker.changed.wait_for(lambda: len(broker.under_way) == 2, WAIT_S)
    broker.answer(1)
    broker.answer(1, REFUSED)
    polled(broker, 4)
    assert fates.heard == [("z", None)]
    with broker.changed:
        broker.held_back = None
        broker.changed.notify_all()
        assert broker.changed.wait_for(lambda: broker.under_way, WAIT_S)
    broker.answer(1)
    thread.join(WAIT_S)
    (failure,) = fates.failures(2)
    assert failure.undelivered == frozenset({1})


def test_a_delivery_of_which_nothing_was_sent_yet_is_not_settled_with_those_before_it(
    broker: Broker, sink: IdempotentSink
) -> None:
    fates = Fates()
    sink.submit([row(1)], fates.of("a"))
    broker.topics_told.clear()
    broker.is_asked.clear()
    thread = in_thread(lambda: sink.submit([row(2, "u")], fates.of("b")))
    assert broker.is_asked.wait(WAIT_S)
    broker.answer(1, REFUSED)
    polled(broker, 4)
    assert fates.heard == [], "its row is sent yet"
    broker.topics_told.set()
    thread.join(WAIT_S)
    assert broker.values() == [b"v2"]
    broker.answer(1)
    assert [f.undelivered for f in fates.failures(2)] == [frozenset({1})] * 2


def test_what_is_being_handed_over_is_not_written_off(broker: Broker) -> None:
    """The lease was lost for a moment, and what was under way is given up; one row comes later."""
    held, fates = True, Fates()
    sink = IdempotentSink({"bootstrap.servers": "nowhere:1"})
    sink.open(lambda: held)
    sink.submit([row(9)], fates.of("z"))  # so that somebody asks for reports
    broker.held_back = b"v2"
    thread = in_thread(lambda: sink.submit([row(1), row(2)], fates.of("a")))
    with broker.changed:
        assert broker.changed.wait_for(lambda: len(broker.under_way) == 2, WAIT_S)
    held = False
    with broker.changed:
        assert broker.changed.wait_for(lambda: not broker.under_way, WAIT_S)
    polled(broker, 4)
    held = True
    polled(broker, 2)
    with broker.changed:
        broker.held_back = None
        broker.changed.notify_all()
    thread.join(WAIT_S)
    assert broker.values() == [b"v2"]
    assert fates.heard == [], "the fate of its second row is not known"
    broker.answer(1)
    assert [f.undelivered for f in fates.failures(2)] == [frozenset({9, 1})] * 2


def test_a_producer_that_is_given_up_while_rows_are_handed_over_fails_them(
    broker: Broker, sink: IdempotentSink
) -> None:
    fates = Fates()
    broker.broken = {b"v2"}
    sink.submit([row(1), row(2), row(3)], fates.of("a"))
    broker.answer(1)
    (failure,) = fates.failures(1)
    assert failure.undelivered == frozenset({2, 3})
    assert "given up" in failure.reason


def test_the_lease_is_asked_while_the_queue_is_full(broker: Broker) -> None:
    held, fates = True, Fates()
    sink = IdempotentSink({"bootstrap.servers": "nowhere:1"})
    sink.open(lambda: held)
    broker.room = 1
    thread = in_thread(lambda: sink.submit([row(1), row(2)], fates.of("a")))
    with broker.changed:
        assert broker.changed.wait_for(lambda: broker.under_way, WAIT_S)
    held = False
    thread.join(WAIT_S)
    (failure,) = fates.failures(1)
    assert failure.undelivered == frozenset({1, 2})
    assert "lease" in failure.reason


def test_rows_are_refused_while_the_sink_is_not_open(broker: Broker) -> None:
    fates = Fates()
    IdempotentSink({"bootstrap.servers": "nowhere:1"}).submit([row(1)], fates.of("a"))
    (failure,) = fates.failures(1)
    assert failure.undelivered == frozenset({1})
    assert broker.values() == []
