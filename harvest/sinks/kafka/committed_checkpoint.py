"""Reading the checkpoint that a consumer group has (specs/HARVEST.md §5).

The first who asks a new broker for any group has it make the topic of all groups' positions, and
hears that nobody is the coordinator yet; so it is after the coordinator's broker went away, too.

A broker that was the coordinator and has not heard yet that another one is (it was paused, or the
controllers do not reach it) answers as well: at once, and with what it knew then. It cannot commit
anything, though, for its replicas follow another leader by now. So who must not take an old
checkpoint for the newest commits something first, and believes an answer that has it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

__all__ = ["committed_checkpoint", "newest_checkpoint"]

_LOG: Final = logging.getLogger("harvest.kafka")
_RETRY_S: Final = 0.05
_UNSEEN_RETRY_S: Final = 0.01  # what was just committed is mostly seen the next time
_UNSEEN: Final = (
    "the coordinator of the group does not have what was just committed to it: another broker is "
    "the coordinator by now, or the group or the topic may not be read"
)
_COORDINATOR_MOVES: Final = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}


def committed_checkpoint(
    reader: Consumer, topic: str, timeout_s: float, still: Callable[[], bool] = lambda: True
) -> str | None:
    """What the group of `reader` has committed for partition 0 of `topic`; None if nothing.

    It may be what was committed some time ago: this is for looking at it. While the coordinator
    moves, it is asked again: for `timeout_s`, and as long as `still` says that there is a point in
    it. Raises `KafkaException`.
    """
    return _read(reader, topic, None, timeout_s, still)


def newest_checkpoint(
    reader: Consumer, topic: str, timeout_s: float, still: Callable[[], bool] = lambda: True
) -> str | None:
    """The same, and nothing older than what was committed before the call.

    Whoever publishes behind it needs this one. It commits to the group, too: a random text, for
    partition 1 of `topic`, or for partition 0 of the topic of its snapshots if it has only one.
    With neither, it warns, and is no better than `committed_checkpoint`.
    """
    mark = _place_of_a_mark(reader, topic, timeout_s)
    if mark is None:
        _LOG.warning(
            "%r has one partition, and no topic of snapshots that can be seen: should Kafka answer "
            "with an old checkpoint, rows are published again; let the topic have two partitions",
            topic,
        )
    return _read(reader, topic, mark, timeout_s, still)


def _place_of_a_mark(reader: Consumer, topic: str, timeout_s: float) -> TopicPartition | None:
    """What is committed, and looked for, beside the checkpoint: in the same group."""
    mark = f"{secrets.randbits(64):016x}"
    for name, partition in ((topic, 1), (f"{topic}.snapshots", 0)):
        found = reader.list_topics(name, timeout=timeout_s).topics.get(name)
        if found is not None and found.error is None and partition in found.partitions:
            return TopicPartition(name, partition, 0, metadata=mark)
    return None


def _read(
    reader: Consumer,
    topic: str,
    mark: TopicPartition | None,
    timeout_s: float,
    still: Callable[[], bool],
) -> str | None:
    deadline = time.monotonic() + timeout_s
    places = [TopicPartition(topic, 0)]
    if mark is not None:
        places.append(TopicPartition(mark.topic, mark.partition))
    while True:
        last = time.monotonic() > deadline
        try:
            if mark is not None:
                reader.commit(offsets=[mark], asynchronous=True)
            answers = reader.committed(places, timeout=timeout_s)
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
            if mark is None or answers[1].metadata == mark.metadata:
                found = answers[0]
                return found.metadata if found.offset >= 0 and found.metadata else None
            if last or not still():
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, _UNSEEN))
            wait_s = _UNSEEN_RETRY_S
        except KafkaException as error:
            if error.args[0].code() not in _COORDINATOR_MOVES or last or not still():
                raise
            wait_s = _RETRY_S
        time.sleep(wait_s)
