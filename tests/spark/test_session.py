"""The session reads Kafka with nothing set up beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from marshal_py.embedded import EmbeddedKafka
from marshal_py.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.kafka
def test_the_session_reads_kafka(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(10):
        producer.produce(topic, str(n), partition=n % 2)
    producer.flush()
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("subscribe", topic)
        .load()
    )
    assert sorted(int(row.value) for row in frame.collect()) == list(range(10))


def test_a_second_call_takes_the_session_that_is_there(spark: SparkSession) -> None:
    assert spark_session("another").sparkContext is spark.sparkContext
