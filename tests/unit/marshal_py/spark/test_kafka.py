"""Kafka as the pipelines read it: settings for Java, ranges of records, and where topics end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ConfigurationError,
    LogHole,
    TopicMissing,
)
from marshal_py.spark import kafka as module
from marshal_py.spark.kafka import Offsets, java_settings, librdkafka_settings, read_range

# Settings for Java


def test_a_password_is_quoted_as_java_reads_it() -> None:
    found = java_settings(
        {
            "bootstrap.servers": "b:9092",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": 'a"b\\c; evil="x',
            "fetch.wait.max.ms": 7,
        }
    )
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert found == {
        "kafka.bootstrap.servers": "b:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{login} required username="ann" '
        'password="a\\"b\\\\c; evil=\\"x";',
    }


def test_certificates_are_handed_over_as_text_and_the_authority_as_a_file(tmp_path: Path) -> None:
    for name in ("own.pem", "key.pem"):
        (tmp_path / name).write_bytes(f"\ufefftext of {name} f".encode() + "ü".encode("latin-1"))
    found = java_settings(
        {
            "bootstrap.servers": "b:9092",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": str(tmp_path / "own.pem"),
            "ssl.key.location": str(tmp_path / "key.pem"),
            "ssl.key.password": "secret",
        }
    )
    assert {name.removeprefix("kafka.ssl."): value for name, value in found.items()} == {
        "kafka.bootstrap.servers": "b:9092",
        "truststore.type": "PEM", "truststore.location": "/ca.pem",
        "keystore.type": "PEM", "keystore.certificate.chain": "text of own.pem f\ufffd",
        "keystore.key": "text of key.pem f\ufffd", "key.password": "secret",
    }  # fmt: skip


def test_a_certificate_that_is_not_there_is_named() -> None:
    config = {"ssl.certificate.location": "/nowhere.pem", "ssl.key.location": "/nowhere.pem"}
    with pytest.raises(ConfigurationError, match=r"ssl\.certificate\.location .*No such file"):
        java_settings(config)


def test_what_has_no_translation_is_named_without_its_value() -> None:
    config = {"bootstrap.servers": "b:9092", "sasl.oauthbearer.client.secret": "hidden"}
    with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer\.client\.secret has") as found:
        java_settings(config)
    assert "hidden" not in str(found.value)
    told = java_settings({**config, "kafka.sasl.jaas.config": "own"})
    assert told["kafka.sasl.jaas.config"] == "own"


def test_javas_own_settings_win_and_are_none_of_librdkafkas() -> None:
    config = {"bootstrap.servers": "b:9092", "kafka.bootstrap.servers": "java:9092"}
    assert java_settings(config) == {"kafka.bootstrap.servers": "java:9092"}
    assert librdkafka_settings(config) == {"bootstrap.servers": "b:9092"}


def test_brokers_have_two_names() -> None:
    assert java_settings({"metadata.broker.list": "b:9092"}) == {
        "kafka.bootstrap.servers": "b:9092"
    }


# Ranges


def record(offset: int) -> Any:
    return SimpleNamespace(offset=lambda: offset, error=lambda: None, partition=lambda: 0)


def problem(code: int, offset: int | None = None) -> Any:
    error = KafkaError(code)
    return SimpleNamespace(offset=lambda: offset, error=lambda: error, partition=lambda: 0)


def end_of_partition(offset: int) -> Any:
    return problem(KafkaError._PARTITION_EOF, offset)


class Reader:
    """Hands out lists that the test has written down, and then nothing."""

    def __init__(self) -> None:
        self.lists: list[list[Any]] = []
        self.asked: list[int] = []
        self.settings: dict[str, Any] = {}
        self.start: int | None = None
        self.closed = 0

    def assign(self, parts: list[TopicPartition]) -> None:
        self.start = parts[0].offset

    def consume(self, most: int, _: float) -> list[Any]:
        self.asked.append(most)
        return self.lists.pop(0) if self.lists else []

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    found = Reader()

    def connect(_kind: object, settings: dict[str, Any]) -> Reader:
        found.settings = settings
        return found

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "denied", lambda *_: AccessDenied("no right to Read"))
    return found


def read(start: int, end: int, timeout_s: float = 0.0, **more: Any) -> list[list[int]]:
    config = {"bootstrap.servers": "b:1", "enable.auto.commit": True, "kafka.x": "y"}
    lists = read_range(config, "orders", 0, start, end, timeout_s, **more)
    return [[m.offset() or 0 for m in found] for found in lists]


def test_a_range_is_read_to_its_end_and_no_further(reader: Reader) -> None:
    """A gap may lead beyond it."""
    reader.lists = [[record(3), record(4)], [record(5), record(9)]]
    assert read(3, 7, at_once=2) == [[3, 4], [5]]
    assert reader.start == 3
    assert reader.asked == [2, 2]
    assert reader.closed == 1


def test_no_more_is_asked_for_than_there_is(reader: Reader) -> None:
    reader.lists = [[record(0)], [record(1)]]
    read(0, 2)
    assert reader.asked == [2, 1]


def test_the_end_of_a_partition_is_the_end(reader: Reader) -> None:
    """Its last offsets may be marks of transactions."""
    reader.lists = [[record(0), end_of_partition(5)]]
    assert read(0, 5) == [[0]]


def test_an_end_before_that_of_the_range_is_one_of_a_replica_that_lags(reader: Reader) -> None:
    """With `client.rack`, or behind a change of leaders. What is behind it is not left out."""
    reader.lists = [[record(0), end_of_partition(1)], [record(1)], [end_of_partition(4)]]
    reader.lists += [[record(4), end_of_partition(6)]]
    assert read(0, 6) == [[0], [1], [4]]
    reader.lists = [[record(0), end_of_partition(1)]]
    with pytest.raises(BrokerUnavailable, match="no answer while reading orders/0"):
        read(0, 6)


def test_nothing_is_committed_and_nothing_made_up_for_what_is_gone(reader: Reader) -> None:
    reader.lists = [[end_of_partition(5)]]
    assert read(0, 5) == []
    assert reader.settings["enable.auto.commit"] is False
    assert reader.settings["auto.offset.reset"] == "error"
    assert "kafka.x" not in reader.settings


@pytest.mark.parametrize(
    ("code", "error", "why"),
    [
        (KafkaError._AUTO_OFFSET_RESET, LogHole, "record orders/0/3 is gone"),
        (KafkaError.OFFSET_OUT_OF_RANGE, LogHole, "record orders/0/3 is gone"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "no right to Read"),
    ],
)
def test_what_cannot_be_read_is_an_error_and_the_reader_is_closed(
    reader: Reader, code: int, error: type[Exception], why: str
) -> None:
    reader.lists = [[problem(code)]]
    with pytest.raises(error, match=why):
        read(3, 7)
    assert reader.closed == 1


def test_a_passing_trouble_is_passed_over(reader: Reader) -> None:
    reader.lists = [[problem(KafkaError._TRANSPORT), record(3)], [record(4)]]
    assert read(3, 5) == [[3], [4]]


def test_the_time_is_that_since_the_last_answer(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a range takes."""
    now = iter((0.0, 20.0, 45.0, 46.0, 70.0, 71.0))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    reader.lists = [[record(3)], [], [record(4)], []]
    reader.lists += [[record(5)]]
    assert read(3, 6, 30.0) == [[3], [4], [5]]


def test_who_hears_nothing_gives_up(reader: Reader) -> None:
    reader.lists = [[record(3)]]
    with pytest.raises(BrokerUnavailable, match="no answer while reading orders/0"):
        read(3, 5)
    assert reader.closed == 1


# Where topics end


class Asked:
    """Stands for librdkafka's consumer."""

    def __init__(self, *_: object, **__: object) -> None:
        self.error: KafkaError | None = None
        self.fails = self.is_closed = False
        self.offsets = {-2: 3, -1: 90, 1_000: 50, 2_000: -1}
        self.queries: list[tuple[int, list[int]]] = []

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        found = SimpleNamespace(error=self.error, partitions={1: None, 0: None})
        return SimpleNamespace(topics={topic: found})

    def offsets_for_times(self, query: list[TopicPartition], timeout: float) -> Any:
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self.queries.append((query[0].offset, [p.partition for p in query]))
        return [
            SimpleNamespace(partition=p.partition, offset=self.offsets[p.offset], error=self.error)
            for p in query
        ]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(module, "Consumer", lambda *_, **__: found)
    return found


@pytest.fixture
def offsets(asked: Asked) -> Offsets:
    return Offsets({"bootstrap.servers": "b:1"})


def test_a_topic_begins_and_ends_in_each_partition(offsets: Offsets) -> None:
    assert offsets.partitions("orders") == [0, 1]
    assert offsets.extent("orders") == {0: (3, 90), 1: (3, 90)}


def test_where_nothing_came_since_a_time_the_end_was_where_it_is(
    offsets: Offsets, asked: Asked
) -> None:
    assert offsets.at("orders", [0, 1], 1_000) == {0: 50, 1: 50}
    assert offsets.at("orders", [0, 1], 2_000) == {0: 90, 1: 90}
    assert offsets.at("orders", [], 2_000) == {}
    assert len(asked.queries) == 3


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError._UNKNOWN_TOPIC, TopicMissing),
        (KafkaError.TOPIC_EXCEPTION, TopicMissing),
        (KafkaError.LEADER_NOT_AVAILABLE, BrokerUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
    ],
)
def test_only_a_topic_that_is_not_there_is_missing(
    offsets: Offsets, asked: Asked, code: int, error: type[Exception]
) -> None:
    asked.error = KafkaError(code)
    with pytest.raises(
        error, match="lacks Read on .*orders" if error is AccessDenied else "orders"
    ):
        offsets.partitions("orders")


def test_a_partition_that_does_not_answer_has_no_end_that_is_made_up(
    offsets: Offsets, asked: Asked
) -> None:
    asked.error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    with pytest.raises(BrokerUnavailable, match="orders/0"):
        offsets.at("orders", [0], 1_000)
    asked.fails = True
    for ask in (lambda: offsets.partitions("orders"), lambda: offsets.at("orders", [0], 1)):
        with pytest.raises(BrokerUnavailable, match="no answer from the brokers"):
            ask()


def test_who_has_asked_where_topics_end_is_closed(asked: Asked) -> None:
    with pytest.raises(ZeroDivisionError), Offsets({"bootstrap.servers": "b:1"}):
        raise ZeroDivisionError
    assert asked.is_closed


def test_settings_that_librdkafka_refuses_are_told() -> None:
    with pytest.raises(ConfigurationError, match="librdkafka refuses the configuration"):
        Offsets({"bootstrap.servers": "b:1", "no.such.setting": "1"})
