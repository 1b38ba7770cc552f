"""The tests' own reader of topics: it ends while records come, and leaves out what is aborted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.kafka_reader import read_topic

pytestmark = pytest.mark.kafka


@pytest.fixture
def transactions(kafka: EmbeddedKafka) -> Iterator[Producer]:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "reader", "linger.ms": 0}
    )
    producer.init_transactions(30)
    yield producer
    producer.abort_transaction(30)


def committed(producer: Producer, topic: str, value: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(30)


def test_it_ends_while_records_never_cease_to_come(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], transactions: Producer
) -> None:
    topic, stop = kafka_topic(partitions=1), threading.Event()

    def write() -> None:
        while not stop.is_set():
            committed(transactions, topic, "v")
        transactions.begin_transaction()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            before = len(read_topic(kafka.bootstrap_servers, topic))
        assert before > 0
    finally:
        stop.set()
        writer.join(60)


def test_it_stops_before_what_is_open_and_leaves_out_what_was_aborted(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], transactions: Producer
) -> None:
    topic = kafka_topic(partitions=1)
    read: Callable[[], list[bytes | None]] = lambda: [  # noqa: E731
        value for _, value, _ in read_topic(kafka.bootstrap_servers, topic)
    ]
    assert read() == []
    committed(transactions, topic, "committed")
    assert read() == [b"committed"]
    transactions.begin_transaction()
    transactions.produce(topic, "aborted")
    transactions.flush(30)
    assert read() == [b"committed"]
    transactions.abort_transaction(30)
    assert read() == [b"committed"]
    transactions.begin_transaction()
