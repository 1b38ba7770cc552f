"""What a Kafka consumer group has committed, asked by a consumer: also surely the newest of it.

`AdminClient.list_consumer_group_offsets` ends the whole process where a group's coordinator does
not answer in time (an assertion of librdkafka's: confluentinc/librdkafka#4605). A consumer asks the
same, and joins no group by that.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from marshal_py.client.kafka_clients import RECONNECT, connect
from marshal_py.client.settings import KafkaConfig

__all__ = ["ask_again", "committed", "committed_offset", "newest_committed"]

_COORDINATOR_MOVES: Final = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
_UNSEEN: Final = (
    "the coordinator of the group does not have what was just committed to it: another broker is "
    "the coordinator by now, or the group or the topic may not be read, or the group has members "
    "of Kafka's own"
)

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


def newest_committed(
    consumer: Any,
    where: TopicPartition,
    mark: TopicPartition,
    timeout_s: float,
    still: Callable[[], bool] = lambda: True,
) -> TopicPartition:
    """What the group of `consumer` has for `where`: nothing older than what it had when called.

    A broker that was the coordinator and has not heard yet that another one is (it was paused, or
    the controllers do not reach it) answers as well: at once, and with what it knew then. But it
    commits nothing any more, for its replicas follow another leader by now. So a random text is
    committed for `mark`, another partition in the same group, and an answer counts that has it.

    `still` as of `ask_again`. Raises `KafkaException`.
    """
    text = f"{secrets.randbits(64):016x}"
    marked = TopicPartition(mark.topic, mark.partition, 0, metadata=text)

    def ask() -> TopicPartition | None:
        # Again each time: who committed it last may have lost it, or another one wrote over it.
        consumer.commit(offsets=[marked], asynchronous=True)
        found, seen = committed(consumer, [where, mark], timeout_s)
        return found if seen.metadata == text else None

    return ask_again(ask, timeout_s, still)


def committed(
    consumer: Any, places: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """What the group has there. Raises `KafkaException`, also for an error of one of them."""
    answers: list[TopicPartition] = consumer.committed(places, timeout=timeout_s)
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
    return answers


def ask_again(
    ask: Callable[[], TopicPartition | None],
    timeout_s: float,
    still: Callable[[], bool] = lambda: True,
) -> TopicPartition:
    """Ask until there is an answer (that is not None), in spite of a coordinator that moves.

    For `timeout_s`, and as long as `still` says that there is a point in it. The first who asks a
    new broker for any group has it make the topic of all groups' offsets, and hears that nobody is
    the coordinator yet; so it is after the coordinator's broker went away. Raises `KafkaException`.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() > deadline_s
        try:
            found = ask()
            if found is not None:
                return found
            if is_last or not still():
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, _UNSEEN))
        except KafkaException as error:
            if error.args[0].code() not in _COORDINATOR_MOVES or is_last or not still():
                raise
        time.sleep((5 + secrets.randbits(5)) / 1000)  # others, who ask as well, at other times


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
