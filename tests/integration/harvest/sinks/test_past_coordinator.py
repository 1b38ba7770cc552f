"""A broker that was the group's coordinator, and does not know that it is not, answers as well."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from harvest.sinks.kafka.committed_checkpoint import committed_checkpoint, newest_checkpoint
from harvest.sinks.kafka.settings import consumer_settings, producer_settings
from marshal_py.client.kafka_clients import TRANSACTIONAL_PRODUCER
from marshal_py.embedded import EmbeddedKafka

pytestmark = pytest.mark.kafka

GROUP = "harvest.x"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3) as server:
        yield server


def reader_of(cluster: EmbeddedKafka) -> Consumer:
    return Consumer(consumer_settings({"bootstrap.servers": cluster.bootstrap_servers}, GROUP))


def commit(cluster: EmbeddedKafka, topic: str, checkpoint: str) -> None:
    """As a delivery does."""
    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    consumer = Consumer({**servers, "group.id": GROUP})
    deadline = time.monotonic() + 60
    while True:  # the brokers' own topics may just be made, or their leaders move
        producer = Producer({**servers, "transactional.id": GROUP})
        try:
            producer.init_transactions(10)
            producer.begin_transaction()
            where = TopicPartition(topic, 0, 0, metadata=checkpoint)
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([where], group, 20)
            producer.commit_transaction(20)
            break
        except KafkaException:
            if time.monotonic() > deadline:
                raise
    consumer.close()


def read(cluster: EmbeddedKafka, topic: str) -> str | None:
    """The newest checkpoint, as soon as somebody tells it."""
    reader, deadline = reader_of(cluster), time.monotonic() + 60
    while True:
        try:
            return newest_checkpoint(reader, topic, 4.0)
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def coordinator_of(cluster: EmbeddedKafka, name: str, topic: str = "__consumer_offsets") -> int:
    """The broker, from 0, that leads the partition in which a group, or a transaction, is."""
    partitions = cluster.admin().list_topics(topic, timeout=10).topics[topic].partitions
    code = 0
    for character in name:  # as Java's String.hashCode
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    code -= (code >> 31) << 32
    return partitions[abs(code) % len(partitions)].leader - 1


@pytest.mark.parametrize("partitions", [2, 1])
def test_it_is_not_believed(cluster: EmbeddedKafka, partitions: int) -> None:
    topic = cluster.create_topic(partitions=partitions)
    if partitions == 1:
        cluster.create_topic(f"{topic}.snapshots")
    commit(cluster, topic, "old")
    assert read(cluster, topic) == "old"
    readers = [reader_of(cluster) for _ in range(2)]
    for reader in readers:
        assert committed_checkpoint(reader, topic, 30.0) == "old"  # each knows its coordinator now

    past = coordinator_of(cluster, GROUP)
    others = {0, 1, 2} - {past}
    cluster.pause(past)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(KafkaException):
                if coordinator_of(cluster, GROUP) in others:
                    break
            assert time.monotonic() < deadline, "no other broker became the coordinator"
        commit(cluster, topic, "new")
        for broker in others:  # so that the one that was hears nothing new when it wakes
            cluster.pause(broker)
        cluster.resume(past)
        assert committed_checkpoint(readers[0], topic, 4.0) == "old", "it answers, all the same"
        with pytest.raises(KafkaException):
            newest_checkpoint(readers[1], topic, 4.0)
    finally:
        for broker in range(3):
            cluster.resume(broker)
    assert read(cluster, topic) == "new"


@pytest.mark.parametrize("of", ["harvest", "marshal_py"])
def test_a_transaction_goes_on_when_it_was_stopped(cluster: EmbeddedKafka, of: str) -> None:
    """As in a rolling restart. librdkafka alone waits until any connection begins or ends."""
    topic, servers = cluster.create_topic(), {"bootstrap.servers": cluster.bootstrap_servers}
    where = TopicPartition(topic, 0, 0)
    commit(cluster, topic, "the brokers' own topics are made")
    past = coordinator_of(cluster, GROUP)
    others = (f"{topic}.{n}" for n in itertools.count())
    name = next(n for n in others if coordinator_of(cluster, n, "__transaction_state") != past)
    config = {**servers, **TRANSACTIONAL_PRODUCER, "transactional.id": name}
    producer = Producer(producer_settings(servers, name) if of == "harvest" else config)
    group = Consumer({**servers, "group.id": GROUP}).consumer_group_metadata()
    producer.init_transactions(60)

    def transact() -> None:
        producer.begin_transaction()
        producer.send_offsets_to_transaction([where], group, 30)
        producer.commit_transaction(30)

    transact()  # it knows the coordinator now
    cluster.stop(past)
    try:
        while past + 1 in producer.list_topics(timeout=10).brokers:
            pass
        going_on = threading.Thread(target=transact, daemon=True)
        going_on.start()
        going_on.join(60)
        assert not going_on.is_alive()
    finally:
        cluster.start(past)


def test_without_a_place_for_a_mark_it_is_said(
    cluster: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = cluster.create_topic()
    commit(cluster, topic, "here")
    assert read(cluster, topic) == "here"
    assert "let the topic have two partitions" in caplog.text


def test_a_group_without_a_checkpoint_has_none(cluster: EmbeddedKafka) -> None:
    assert read(cluster, cluster.create_topic(partitions=2)) is None
