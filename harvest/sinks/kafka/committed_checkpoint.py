"""Reading the checkpoint that a consumer group has, in spite of a coordinator that is on its way.

The first who asks a new broker for any group has it make the topic of all groups' positions, and
hears that nobody is the coordinator yet; so it is after the coordinator's broker went away, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

__all__ = ["committed_checkpoint"]

_RETRY_S: Final = 0.05
_COORDINATOR_MOVES: Final = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}


def committed_checkpoint(
    reader: Consumer, topic: str, timeout_s: float, still: Callable[[], bool] = lambda: True
) -> str | None:
    """What the group of `reader` last committed for partition 0 of `topic`; None if nothing.

    While the coordinator moves, it is asked again: for `timeout_s`, and as long as `still` says
    that there is a point in it. Raises `KafkaException`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            (found,) = reader.committed([TopicPartition(topic, 0)], timeout=timeout_s)
            if found.error is not None:
                raise KafkaException(found.error)
            return found.metadata if found.offset >= 0 and found.metadata else None
        except KafkaException as error:
            lasting = error.args[0].code() not in _COORDINATOR_MOVES
            if lasting or time.monotonic() > deadline or not still():
                raise
            time.sleep(_RETRY_S)
