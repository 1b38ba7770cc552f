"""What a group of Kafka's own has committed, asked by a consumer.

`AdminClient.list_consumer_group_offsets` ends the whole process where a group's coordinator does
not answer in time (an assertion of librdkafka's: confluentinc/librdkafka#4605). A consumer asks the
same, and joins no group by that.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from marshal_py.client.kafka_clients import RECONNECT, connect
from marshal_py.client.settings import KafkaConfig

__all__ = ["committed_offset"]

_STEP_S = 0.5
"""So long is an answer waited for, before it is looked whether the question was refused."""


def committed_offset(
    kafka: KafkaConfig, group_id: str, topic: str, partition: int, timeout_s: float
) -> int:
    """Return the offset that a group of Kafka's has committed, negative if there is none.

    Raises `KafkaException`: refused, or no answer within `timeout_s`.
    """
    own: KafkaConfig = {k: v for k, v in kafka.items() if not k.startswith("statistics.")}
    # Of a transaction that is open, what was committed before counts, and nobody waits for its end.
    fixed = {"group.id": group_id, "isolation.level": "read_uncommitted"}
    consumer = connect(Consumer, {**RECONNECT, **own, **fixed, "enable.auto.commit": False})
    with contextlib.closing(consumer):
        return _ask(consumer, TopicPartition(topic, partition), time.monotonic() + timeout_s)


def _ask(consumer: Any, where: TopicPartition, deadline_s: float) -> int:
    while True:
        left_s = max(0.1, deadline_s - time.monotonic())
        try:
            (found,) = consumer.committed([where], min(_STEP_S, left_s))
        except KafkaException as error:
            told = consumer.poll(0)  # why there is no coordinator
            if told is not None and told.error() is not None:
                code = told.error().code()
                if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise KafkaException(told.error()) from None
            if time.monotonic() >= deadline_s or not _is_silence(error.args[0]):
                raise
        else:
            if found.error is not None:
                raise KafkaException(found.error)
            return int(found.offset)


def _is_silence(error: KafkaError) -> bool:
    """Whether nobody has answered yet."""
    return error.code() in (
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    )
