"""confluent-kafka's own (de)serializers, Schema Registry's included, fit in unchanged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.serialization import (
    IntegerDeserializer,
    IntegerSerializer,
    MessageField,
    SerializationContext,
)

from marshal_py import Consumer
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import INTERVAL_MS, pid_suffix

registry = pytest.importorskip("confluent_kafka.schema_registry")
json_schema = pytest.importorskip("confluent_kafka.schema_registry.json_schema")

pytestmark = pytest.mark.kafka

SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "total": {"type": "number"}},
        "required": ["id"],
    }
)


@pytest.mark.parametrize("how", ["iterate", "run"])
def test_json_schema_values_and_integer_keys(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], how: str
) -> None:
    topic = kafka_topic(partitions=1)
    client = registry.SchemaRegistryClient.new_client({"url": f"mock://{topic}"})
    serializer = json_schema.JSONSerializer(SCHEMA, client)
    key_serializer = IntegerSerializer()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(5):
        value = serializer(
            {"id": n, "total": n / 2}, SerializationContext(topic, MessageField.VALUE)
        )
        producer.produce(topic, value, key_serializer(n))
    producer.flush(60)
    coordination = f"__marshal.schemas.{pid_suffix()}"
    create_topics(kafka.bootstrap_servers, topic=coordination, partitions=4)
    consumer = Consumer(
        kafka.bootstrap_servers,
        group_id=how,
        topics=topic,
        topic=coordination,
        interval_ms=INTERVAL_MS,
        key_deserializer=IntegerDeserializer(),
        value_deserializer=json_schema.JSONDeserializer(SCHEMA, schema_registry_client=client),
    )
    got: list[Any] = []

    def handle(message: Message) -> None:
        got.append((message.key(), message.value()))
        if len(got) == 5:
            consumer.stop()

    if how == "run":
        consumer.run(handle, workers=2, ordering="partition")
    else:
        with consumer:
            for message in itertools.islice(consumer.messages(idle_timeout_s=60), 5):
                handle(message)
    assert got == [(n, {"id": n, "total": n / 2}) for n in range(5)]
