"""The reader of the tests finishes whatever is being written meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from marshal_py.embedded import EmbeddedKafka
from tests.support.kafka_reader import TopicCounter, read_topic

pytestmark = pytest.mark.kafka

PARTITIONS = 3


@pytest.fixture
def producer(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": kafka_topic(),
            "retry.backoff.ms": 1,
        }
    )
    made.init_transactions(30)
    return made


def begin(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    for p in range(PARTITIONS):
        producer.produce(topic, value, partition=p)


def test_reading_ends_while_transactions_go_on(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], producer: Producer
) -> None:
    """Each writes to all partitions: there may never be a moment with nothing more to read."""
    topic = kafka_topic(partitions=PARTITIONS)
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            begin(producer, topic, b"committed")
            producer.commit_transaction(30)
            written.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        assert written.wait(60)
        for _ in range(3):
            assert len(read_topic(kafka.bootstrap_servers, topic)) >= PARTITIONS
    finally:
        stop.set()
        writer.join()


def test_what_is_aborted_at_the_end_is_no_hindrance(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], producer: Producer
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    begin(producer, topic, b"committed")
    producer.commit_transaction(30)
    begin(producer, topic, b"aborted")
    producer.flush(60)
    producer.abort_transaction(30)
    assert [v for _, v, _ in read_topic(kafka.bootstrap_servers, topic)] == 3 * [b"committed"]


def test_an_undecided_transaction_is_named(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], producer: Producer
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    begin(producer, topic, b"undecided")
    producer.flush(60)
    with pytest.raises(AssertionError, match="0 stable to 0 of 1, 1 stable to 0 of 1"):
        read_topic(kafka.bootstrap_servers, topic, timeout_s=1)
    producer.abort_transaction(30)


def test_a_counter_goes_on_where_it_was_and_counts_what_is_committed(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], producer: Producer
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    counter = TopicCounter(kafka.bootstrap_servers, topic)
    assert counter.count() == 0
    for total in (PARTITIONS, 2 * PARTITIONS):
        begin(producer, topic, b"committed")
        producer.commit_transaction(30)
        begin(producer, topic, b"aborted")
        producer.flush(30)
        producer.abort_transaction(30)
        assert counter.count() == total
    begin(producer, topic, b"open")
    producer.flush(30)
    assert counter.count() == 2 * PARTITIONS
    producer.commit_transaction(30)
    # The coordinator answers when it has decided; the partitions learn of it a moment later.
    deadline = time.monotonic() + 30
    while counter.count() < 3 * PARTITIONS:
        assert time.monotonic() < deadline
    assert counter.count() == 3 * PARTITIONS
    counter.close()
