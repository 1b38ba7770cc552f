"""What Kafka's answers mean to a destination, without a broker; and which rows are to blame."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from harvest.core.dispatcher import Outcome
from harvest.core.extra_columns import TIMESTAMP
from harvest.core.row import Row
from harvest.errors import ConfigurationError, SinkHangs
from harvest.sinks.kafka import destination as module
from harvest.sinks.kafka import refusals
from harvest.sinks.kafka.destination import KafkaDestination, KafkaEndpoint
from harvest.sinks.kafka.refusals import BadTopics, RowErrors, TopicLook
from tests.support.mock_brokers import mock_brokers

ROW = Row(1, "t", b"k", b"v")
TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE


class Producer:
    """Answers each record with the next of the errors, which all of them share; None: it went."""

    errors: list[KafkaError | None]
    made: list[Producer]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.purged = False
        self._over = threading.Event()
        self.made.append(self)

    def produce(self, *_: object, on_delivery: Callable[..., None], **__: object) -> None:
        on_delivery(self.errors.pop(0), None)

    def poll(self, timeout_s: float) -> None:
        self._over.wait(timeout_s)

    def purge(self) -> None:
        self.purged = True
        self._over.set()


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaDestination]:
    monkeypatch.setattr(module, "make_client", lambda _, settings: Producer(settings))
    monkeypatch.setattr(Producer, "made", [], raising=False)
    settings = {"bootstrap.servers": "localhost:1", "message.timeout.ms": 1, "linger.ms": 3}
    with closing(KafkaDestination(KafkaEndpoint(settings, timeout_ms=700))) as made:
        yield made


def of_servers(servers: str) -> KafkaDestination:
    return KafkaDestination(KafkaEndpoint({"bootstrap.servers": servers, "log_level": 0}))


def send(sink: KafkaDestination, *errors: KafkaError | None) -> Outcome:
    Producer.errors = list(errors)
    outcome = sink.send(ROW, "key", 1)
    assert Producer.errors == []
    return outcome


def test_a_record_is_given_up_when_the_destination_is(sink: KafkaDestination) -> None:
    assert send(sink, None) == Outcome(200)
    (producer,) = Producer.made
    assert producer.settings["delivery.timeout.ms"] == 700
    assert "message.timeout.ms" not in producer.settings
    assert producer.settings["linger.ms"] == 3
    assert not producer.settings["delivery.report.only.error"], "each is waited for"
    assert not producer.settings["enable.gapless.guarantee"], "one that is refused takes no other"


@pytest.mark.parametrize(
    ("code", "unavailable", "lasting"),
    [
        (KafkaError._INVALID_ARG, False, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False, False),
        (KafkaError._UNKNOWN_TOPIC, False, False),
        (KafkaError._UNKNOWN_PARTITION, False, False),
        (KafkaError.TOPIC_EXCEPTION, False, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, False),
        (KafkaError._MSG_TIMED_OUT, True, False),
        (KafkaError.NOT_ENOUGH_REPLICAS, True, False),
    ],
)
def test_who_is_to_blame(
    sink: KafkaDestination, code: int, unavailable: bool, lasting: bool
) -> None:
    outcome = send(sink, KafkaError(code))
    assert outcome.error
    assert outcome == Outcome(error=outcome.error, unavailable=unavailable, lasting=lasting)


@pytest.mark.parametrize("topic", ["no spaces", "", "..", "ü", "a" * 250])
def test_what_no_topic_can_be_named_is_not_tried_again(sink: KafkaDestination, topic: str) -> None:
    outcome = sink.send(ROW._replace(topic=topic), "key", 1)
    assert outcome == Outcome(error=outcome.error, lasting=True)
    assert repr(topic) in (outcome.error or "")
    assert not Producer.made


@pytest.mark.parametrize(
    ("with_others", "alone"),
    [
        (TOO_LARGE, TOO_LARGE),
        (KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE),
        (KafkaError.INVALID_RECORD, KafkaError.INVALID_RECORD),
        (KafkaError._INVALID_DIFFERENT_RECORD, KafkaError.INVALID_RECORD),
    ],
)
def test_what_is_refused_with_others_is_sent_alone(
    sink: KafkaDestination, with_others: int, alone: int
) -> None:
    assert send(sink, KafkaError(with_others), None) == Outcome(200)
    outcome = send(sink, KafkaError(with_others), KafkaError(alone))
    assert outcome.lasting
    assert [p.settings.get("batch.num.messages") for p in Producer.made] == [None, 1]


@pytest.mark.usefixtures("sink")
def test_a_record_goes_alone_whatever_was_configured_of_batches() -> None:
    """With others in its batch, it would be refused for them."""
    settings = {"bootstrap.servers": "localhost:1", "batch.num.messages": 500}
    with closing(KafkaDestination(KafkaEndpoint(settings))) as configured:
        assert send(configured, KafkaError(TOO_LARGE), None) == Outcome(200)
    assert [p.settings["batch.num.messages"] for p in Producer.made] == [500, 1]


def test_a_producer_that_has_given_up_is_replaced(sink: KafkaDestination) -> None:
    assert send(sink, KafkaError(KafkaError._FATAL, "gone", fatal=True)).unavailable
    assert send(sink, None) == Outcome(200)
    first, second = Producer.made
    assert (first.purged, second.purged) == (True, False)


def test_a_producer_that_takes_nothing_since_it_has_given_up_is_replaced(
    sink: KafkaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """confluent-kafka says so without marking its error as fatal."""

    def produce(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "Unable to produce message"))

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "produce", produce)
        assert send(sink).unavailable
    assert Producer.made[0].purged
    assert send(sink, None) == Outcome(200)


def test_a_real_producer_that_a_broker_made_give_up_is_replaced() -> None:
    """As where a broker has lost what it had acknowledged, and the numbers of records with it."""
    with mock_brokers() as brokers, closing(of_servers(brokers.servers)) as real:
        assert real.send(ROW, "key", 1) == Outcome(200)
        brokers.refuse_produce(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert real.send(ROW, "key", 1).unavailable
        found = [real.send(ROW, "key", 1) for _ in range(2)]
        assert found[-1] == Outcome(200)


def test_what_confluent_kafka_raises_over_a_producer_that_has_given_up_ends_no_process(
    sink: KafkaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def produce(*_: object, **__: object) -> None:
        raise SystemError("a result with an exception set") from KafkaException(
            KafkaError(KafkaError._FATAL, "fenced")
        )

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "produce", produce)
        outcome = send(sink)
    assert outcome.unavailable
    assert "fenced" in (outcome.error or "")
    assert Producer.made[0].purged
    assert send(sink, None) == Outcome(200)
    assert len(Producer.made) == 2


def test_a_kafka_client_that_reports_nothing_is_told_of_as_one_that_hangs(
    sink: KafkaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the destination is left alone for as long as this process leads."""
    monkeypatch.setattr(module, "_HANGS_AFTER_S", 0.0)
    monkeypatch.setattr(Producer, "produce", lambda *_, **__: None)
    with pytest.raises(SinkHangs, match=r"given 0.7 s is not reported on"):
        sink.send(ROW, "key", 1)


@pytest.mark.parametrize("code", [TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE])
def test_batches_that_are_too_large_become_as_small_as_their_largest_record(code: int) -> None:
    """Then what is too large alone is to blame, and nothing else is."""
    rows = [Row(n, "t", b"k" * n, b"v" * 9 * n) for n in (1, 2, 3)]
    settings: dict[str, Any] = {}

    def refused(*ids: int) -> frozenset[int]:
        errors = RowErrors(wait_for_topics=False)
        for row_id in ids:
            errors.add(row_id, "too large", code)
        return errors.refused(rows, settings)

    assert refused(1, 2) == frozenset()
    assert settings["batch.size"] == 20
    assert refused(1, 2, 3) == {2, 3}
    assert refused(1) == frozenset()
    assert settings["batch.size"] == 10


@pytest.mark.parametrize(
    ("code", "own_time", "refused"),
    [
        (KafkaError.INVALID_RECORD, False, True),
        (KafkaError.INVALID_TIMESTAMP, True, True),
        (KafkaError.INVALID_TIMESTAMP, False, False),  # it is our clock that is wrong
    ],
)
def test_for_what_its_whole_batch_fails_a_row_is_to_blame_when_it_fails_alone(
    code: int, own_time: bool, refused: bool
) -> None:
    names = (b"h", TIMESTAMP.encode()) if own_time else ()
    rows = [Row(n, "t", b"k", b"v", names) for n in (1, 2)]
    for its in (rows, rows[:1]):
        errors = RowErrors(wait_for_topics=False)
        for row in its:
            errors.add(row.id, "no", code)
        assert errors.refused(its, {}) == ({1} if refused and len(its) == 1 else frozenset())


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC])
def test_a_row_of_a_topic_that_is_waited_for_is_not_to_blame(code: int) -> None:
    for waits in (True, False):
        errors = RowErrors(wait_for_topics=waits)
        errors.add(1, "no such topic", code)
        errors.add(2, "may not", KafkaError.TOPIC_AUTHORIZATION_FAILED)
        assert errors.refused([ROW], {}) == ({2} if waits else {1, 2})


def test_a_topic_that_is_missing_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that was seen is not."""
    monkeypatch.setattr(refusals, "_APPEARS_WITHIN_S", 0.0)
    there = {"a": None, "b": KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)}
    asked: list[str] = []

    def list_topics(topic: str, timeout: float) -> Any:
        del timeout
        asked.append(topic)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=there[topic])})

    producer: Any = SimpleNamespace(list_topics=list_topics)
    look = TopicLook()
    rows = [Row(1, "a", b"k", b"v"), Row(2, "b", b"k", b"v")]
    for _ in range(2):
        errors = RowErrors(wait_for_topics=False)
        with pytest.raises(BadTopics):
            look.look(producer, rows, errors)
        assert errors.texts.keys() == {2}
    there["b"] = None
    for _ in range(2):
        look.look(producer, rows, RowErrors(wait_for_topics=False))
    assert set(asked) == {"a", "b"}
    assert (asked.count("a"), asked[-1]) == (1, "b")
    before = len(asked)
    look.look(producer, rows, RowErrors(wait_for_topics=False))
    assert len(asked) == before


@pytest.mark.parametrize("topic", ["", "t" * 600, "a\0b", "a b", ".."])
def test_of_a_name_that_no_topic_can_have_nobody_is_asked(topic: str) -> None:
    """librdkafka takes offence at some, which would end the harvester where bad rows stop it."""
    asked: list[str] = []
    producer: Any = SimpleNamespace(list_topics=lambda topic, **_: asked.append(topic))
    errors = RowErrors(wait_for_topics=True)
    with pytest.raises(BadTopics):
        TopicLook().look(producer, [Row(7, topic, b"k", b"v")], errors)
    assert asked == []
    assert errors.refused([ROW], {}) == {7}
    assert "Invalid topic" in errors.texts[7]


def test_who_asks_for_many_topics_asks_before_each_whether_the_lease_is_held() -> None:
    """Whoever does not for two minutes counts as one that hangs."""
    asked: list[str] = []

    def list_topics(topic: str, timeout: float) -> Any:
        del timeout
        asked.append(topic)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    producer: Any = SimpleNamespace(list_topics=list_topics)
    rows = [Row(number, f"t{number}", b"k", b"v") for number in range(5)]
    TopicLook(lambda: len(asked) < 3).look(producer, rows, RowErrors(wait_for_topics=False))
    assert asked == ["t0", "t1", "t2"]


def test_a_record_that_cannot_be_made_of_a_row_is_given_up_at_once() -> None:
    """It would end the relay, and that of each process in turn."""
    endpoint = KafkaEndpoint({"bootstrap.servers": "localhost:1"}, "{header.to}")
    with closing(KafkaDestination(endpoint)) as sink:
        outcome = sink.send(Row(1, "t", b"k", b"v", (b"to",), (b"a\0b",)), "key", 7)
    assert outcome.lasting
    assert outcome.error == r"Kafka allows no topic to be named 'a\x00b'"


def test_many_topics_that_are_missing_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a hundred of them keep the rows of all others waiting for a hundred seconds."""
    now_s, appeared = [0.0], "t50"
    monkeypatch.setattr(
        refusals,
        "time",
        SimpleNamespace(
            monotonic=lambda: now_s[0],
            sleep=lambda wait_s: now_s.__setitem__(0, now_s[0] + wait_s),
        ),
    )

    def list_topics(topic: str, timeout: float) -> Any:
        del timeout
        now_s[0] += 0.01
        gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        error = None if topic == appeared and now_s[0] > 1.5 else gone
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})

    producer: Any = SimpleNamespace(list_topics=list_topics)
    topics = {f"t{number}" for number in range(100)}
    assert refusals.missing_topics(producer, topics).keys() == topics - {appeared}
    assert now_s[0] < 5


def test_the_topics_that_may_not_be_written_to_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rights = {"a": [AclOperation.WRITE], "b": [AclOperation.READ], "c": None, "d": KafkaException()}

    def describe(topics: TopicCollection, **asked: object) -> dict[str, Future[Any]]:
        del topics
        assert asked["include_authorized_operations"]
        futures: dict[str, Future[Any]] = {name: Future() for name in rights}
        for name, found in rights.items():
            if isinstance(found, Exception):
                futures[name].set_exception(found)
            else:
                futures[name].set_result(SimpleNamespace(authorized_operations=found))
        return futures

    admin = SimpleNamespace(describe_topics=describe)
    monkeypatch.setattr(refusals, "make_client", lambda *_: admin)
    assert refusals.unwritable_topics({}, set(rights)) == {"b", "c"}
    monkeypatch.setattr(refusals, "make_client", lambda *_: 1 / 0)
    assert refusals.unwritable_topics({}, {"a"}) == {"a"}, "who else"


def test_a_certificate_that_is_being_replaced_is_an_outage(
    sink: KafkaDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConfigurationError("ssl.key.location failed")

    with monkeypatch.context() as patch:
        patch.setattr(module, "make_client", fail)
        assert send(sink) == Outcome(error="ssl.key.location failed", unavailable=True)
        with pytest.raises(ConfigurationError):
            sink.check()
    assert send(sink, None) == Outcome(200)
    monkeypatch.setattr(refusals, "make_client", fail)
    assert refusals.unwritable_topics({}, {"a", "b"}) == set(), "with the next attempt"


def test_a_destination_that_was_closed_is_connected_anew(sink: KafkaDestination) -> None:
    """Nobody listens to the producer of before."""
    for _ in range(2):
        assert send(sink, None) == Outcome(200)
        sink.close()
    assert [producer.purged for producer in Producer.made] == [True, True]
