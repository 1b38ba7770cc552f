"""The producers of a sink: which is taken, what is handed over, and what is said in an outage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.core.row import Row
from harvest.errors import ConfigurationError, SinkUnavailable
from harvest.sinks.kafka import producers as module
from harvest.sinks.kafka.clients import make_client, said
from harvest.sinks.kafka.producers import Producers, produce
from harvest.sinks.kafka.refusals import RowError
from harvest.sinks.kafka.sink import TransactionalSink
from harvest.sinks.kafka.source_record import SourceRecord
from marshal_py.client.kafka_clients import give_up

CONFIG = {"bootstrap.servers": "localhost:1"}


def kafka_error(code: int, text: str = "no") -> KafkaException:
    return KafkaException(KafkaError(code, text))


class Producer:
    """Connects, or does not; takes records, or fails with what it was given."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.failures: list[Exception] = []

    def list_topics(self, topic: str, timeout: float) -> None:
        self.seen.append((topic, timeout))
        if self.failures:
            raise self.failures.pop(0)

    def produce(self, topic: str, value: bytes, key: bytes, **more: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.seen.append((topic, key, value, more))

    def purge(self) -> None:
        self.seen.append("purge")

    def poll(self, timeout: float) -> None:
        self.seen.append(("poll", timeout))
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Producer, dict[str, Any]]]:
    """The producers that are made, with their settings."""
    found: list[tuple[Producer, dict[str, Any]]] = []

    def make(_: object, settings: dict[str, Any]) -> Producer:
        found.append((Producer(), settings))
        return found[-1][0]

    monkeypatch.setattr(module, "make_client_again", make)
    return found


Made = list[tuple[Producer, dict[str, Any]]]


def test_the_one_that_was_prepared_is_taken_once(made: Made) -> None:
    producers = Producers(CONFIG, "harvest.x")
    producers.prepare()
    producers.prepare()
    assert len(made) == 1, "it is connected already"
    first: Any = producers.take()
    assert first is made[0][0]
    second: Any = producers.take()
    assert second is not first, "a producer that was fenced, or purged, is not used again"
    assert len(made) == 2
    assert made[1][1]["transactional.id"] == "harvest.x"
    assert first.seen == [("__consumer_offsets", 4.0)] * 3


def test_who_cannot_connect_says_why_and_tries_again_later(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers = Producers(CONFIG, None)
    fails = [kafka_error(KafkaError._TRANSPORT, "connection refused")]

    def fail(self: Producer, topic: str, timeout: float) -> None:
        del self, topic, timeout
        if fails:
            raise fails.pop()

    monkeypatch.setattr(Producer, "list_topics", fail)
    with pytest.raises(SinkUnavailable, match="Kafka cannot be reached: connection refused"):
        producers.prepare()
    assert producers.take() is not None


TORN = {**CONFIG, "security.protocol": "ssl", "ssl.ca.location": "/nowhere.pem"}


@pytest.mark.parametrize(
    "use",
    [
        lambda: Producers(TORN, None).take(),
        lambda: SourceRecord(TORN, "g.outbox", "own").load(),
        lambda: TransactionalSink(
            CONFIG, base_config=TORN, name="g.outbox", checkpoint_topic="own"
        ).prepare(),
    ],
    ids=["producer", "source", "reader"],
)
def test_a_certificate_that_is_being_replaced_is_an_outage(use: Callable[[], object]) -> None:
    """The process would end, though the files were whole when it began."""
    with pytest.raises(SinkUnavailable, match=r"ssl\.ca\.location"):
        use()


def test_an_outage_is_told_and_again_half_a_minute_later(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr("harvest.sinks.kafka.producers.time.monotonic", lambda: now_s[0])
    Producers(CONFIG, None).take()
    outage: Callable[[KafkaError], None] = made[0][1]["error_cb"]
    outage(KafkaError(KafkaError._TRANSPORT))
    assert not caplog.records
    for now_s[0], told in ((1_000.0, 1), (1_030.0, 1), (1_030.1, 2), (1_060.0, 2), (1_061.0, 3)):
        outage(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        assert len(caplog.records) == told
    assert "no broker answers" in caplog.text


def rows(count: int) -> list[Row]:
    return [Row(n, "t", b"k%d" % n, b"v") for n in range(1, count + 1)]


def hand_over(producer: Producer, make_room: Callable[[], None] = lambda: None) -> list[int]:
    """Two rows; whose fate was asked for."""
    asked: list[int] = []

    def report(row_id: int) -> Any:
        asked.append(row_id)
        return f"report {row_id}"

    given: Any = producer
    produce(given, rows(2), report, make_room)
    return asked


def test_each_row_has_a_report_of_its_own() -> None:
    producer = Producer()
    assert hand_over(producer) == [1, 2]
    assert producer.seen == [
        ("t", b"k1", b"v", {"on_delivery": "report 1"}),
        ("t", b"k2", b"v", {"on_delivery": "report 2"}),
    ]


def test_headers_go_along_as_they_are() -> None:
    producer: Any = Producer()
    row = Row(1, "t", b"k", None, (b"a", b"a"), (b"1", None))
    produce(producer, [row, Row(2, "t", b"k", b"v")], None, lambda: None)
    assert producer.seen == [
        ("t", b"k", None, {"headers": [("a", b"1"), ("a", None)]}),
        ("t", b"k", b"v", {}),
    ]


def test_a_full_queue_is_waited_for_as_long_as_it_is_full() -> None:
    producer, waited = Producer(), []
    producer.failures = [BufferError(), BufferError()]
    hand_over(producer, lambda: waited.append("room"))
    assert waited == ["room", "room"]
    assert [seen[1] for seen in producer.seen] == [b"k1", b"k2"]  # type: ignore[index]


def test_who_does_not_wait_for_room_any_more_hands_over_nothing() -> None:
    def give_up() -> None:
        raise SinkUnavailable("the lease is lost")

    producer = Producer()
    producer.failures = [BufferError()]
    with pytest.raises(SinkUnavailable):
        hand_over(producer, give_up)
    assert producer.seen == []


def test_a_row_that_is_refused_is_named_with_the_code_by_which_it_is_judged() -> None:
    producer = Producer()
    producer.failures = [kafka_error(KafkaError.MSG_SIZE_TOO_LARGE, "too large")]
    with pytest.raises(RowError) as caught:
        hand_over(producer)
    assert (caught.value.row_id, caught.value.code) == (1, KafkaError.MSG_SIZE_TOO_LARGE)
    assert "too large (MSG_SIZE_TOO_LARGE)" in str(caught.value)


def test_headers_that_do_not_match_are_that_rows_fault() -> None:
    producer: Any = Producer()
    bad = Row(7, "t", b"k", b"v", (b"a", b"b"), (b"1",))
    with pytest.raises(RowError) as caught:
        produce(producer, [*rows(1), bad, *rows(1)], None, lambda: None)
    assert caught.value.row_id == 7
    assert len(producer.seen) == 1, "what comes behind it is not handed over"


def test_a_row_without_a_key_is_not_handed_over() -> None:
    """Where bad rows stop the harvest, nobody has looked for it; it would go to any partition."""
    producer: Any = Producer()
    with pytest.raises(RowError, match="the key is NULL") as caught:
        produce(producer, [*rows(1), Row(7, "t", None, b"v")], None, lambda: None)
    assert caught.value.row_id == 7
    assert len(producer.seen) == 1


def test_what_is_given_up_is_thrown_away_and_nothing_is_raised() -> None:
    producer: Any = Producer()
    give_up(producer)
    assert producer.seen == ["purge", ("poll", 0)]
    producer.failures = [kafka_error(KafkaError._FATAL)]
    give_up(producer)


# --- Clients ---


def test_a_setting_that_is_refused_is_an_error_of_the_configuration() -> None:
    from confluent_kafka import Producer as RealProducer

    with pytest.raises(ConfigurationError, match=r"Kafka settings: .*no.such.setting"):
        make_client(RealProducer, {**CONFIG, "no.such.setting": 1})
    with pytest.raises(ConfigurationError, match="Kafka settings: "):
        make_client(RealProducer, {**CONFIG, "error_cb": "no function"})


def test_clients_log_where_we_say() -> None:
    given: list[Any] = []

    def kind(settings: object, *, logger: logging.Logger) -> None:
        given.append((settings, logger.name))

    make_client(kind, CONFIG)
    assert given == [(CONFIG, "harvest.rdkafka")]


def test_an_error_is_said_with_its_name() -> None:
    assert said(kafka_error(KafkaError._TIMED_OUT, "late")) == "late (_TIMED_OUT)"
    assert said(KafkaException("what")) == "what"
