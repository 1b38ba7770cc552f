"""What Kafka's own groups have committed, while brokers are silent or gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from marshal_py.client.committed import committed_offset
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.asked_process import asked

pytestmark = pytest.mark.kafka

_ASK = """
import sys
from confluent_kafka import KafkaException
from marshal_py.client.committed import committed_offset
config = {"bootstrap.servers": sys.argv[1], "log_level": 0}
for timeout_s in sys.stdin:
    try:
        print(committed_offset(config, "g", sys.argv[2], 0, float(timeout_s)), flush=True)
    except KafkaException as error:
        print(error.args[0].name(), flush=True)
"""


def commit(servers: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_what_was_committed_is_told(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> None:
    topic, servers = kafka_topic(partitions=1), kafka.bootstrap_servers
    config = {"bootstrap.servers": servers}
    assert committed_offset(config, f"of.{topic}", topic, 0, 60.0) < 0
    commit(servers, f"of.{topic}", topic, 7)
    assert committed_offset(config, f"of.{topic}", topic, 0, 60.0) == 7


def test_who_asks_lives_on_while_nobody_answers(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    """In a process of its own, which an assertion of librdkafka's would end."""
    topic = kafka_topic(partitions=1)
    commit(kafka.bootstrap_servers, "g", topic, 7)
    with asked(_ASK, kafka.bootstrap_servers, topic) as ask:
        assert ask(60.0) == "7"
        for outage, end in ((kafka.pause, kafka.resume), (kafka.kill, kafka.start)):
            outage(0)
            try:
                assert [ask(0.2) for _ in range(3)] == ["_TIMED_OUT"] * 3
            finally:
                end(0)
            assert ask(60.0) == "7"
