"""Where Go Marshal begins without a position in the log: at what was committed to Kafka.

Go clients commit their positions to Kafka's own consumer group of the same name, besides writing
them to the coordination topic. They are of use when the topic's records were deleted by time, or
when a group of Kafka's became one of Marshal's.
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaError, KafkaException

from marshal_py.client.acl import REFUSED
from marshal_py.client.committed import committed_offset
from marshal_py.client.settings import KafkaConfig

__all__ = ["committed_position"]

logger = logging.getLogger("marshal_py.text")


def committed_position(
    kafka: KafkaConfig, group_id: str, topic: str, partition: int, timeout_s: float
) -> int:
    """Return the offset committed under the group's name, −1 if there is none, or 0, as for Go.

    Raises `KafkaException` when nobody answers. Without the right to see the group there is none.
    """
    try:
        found = committed_offset(kafka, group_id, topic, partition, timeout_s)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:  # as new brokers say it
            return -1
        if error.args[0].code() not in {*REFUSED, KafkaError.GROUP_AUTHORIZATION_FAILED}:
            raise
        logger.warning(
            "offsets of %s/%d that Go clients of %r committed to Kafka may not be read: %s",
            topic,
            partition,
            group_id,
            error.args[0].str(),
        )
        return -1
    return found if found > 0 else -1
