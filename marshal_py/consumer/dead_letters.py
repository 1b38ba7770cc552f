"""Dead letters: messages that no handler could do anything with, kept in a topic of their own.

A dead letter is the message as it came (key, value, headers), and headers that say why it is there:

| header | what |
|---|---|
| ``dlq-error-class``, ``dlq-error-message`` | the exception, its message cut at 1,000 characters |
| ``dlq-topic``, ``dlq-partition``, ``dlq-offset`` | where the message was |
| ``dlq-timestamp`` | its timestamp, milliseconds since 1970; missing if it had none |
| ``dlq-attempts`` | how often a handler was tried |
| ``dlq-group-id``, ``dlq-client-id`` | who tried |
| ``dlq-epoch`` | under which claim (not with wire="text") |
| ``dlq-failed-at`` | when it was given up, milliseconds since 1970 |

All are UTF-8 text. They replace headers of these names that the message had: a dead letter that was
put back and failed again tells of the last time. Its ``dlq-replayed-from``, ``-at`` and ``-by``
stay: from which dead letter, when and by whom it was put back (`marshal dashboard --write`).

A dead letter is larger than its message, by up to some 2 KB: its topic should take so much more
(``max.message.bytes``). One that it does not take stops `run`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import (
    ANY_SIZE,
    CONNECT_AGAIN_S,
    PRODUCER_FAILED,
    RECONNECT,
    connect,
    failure_of,
    is_fatal,
)
from marshal_py.client.settings import KafkaConfig, is_topic
from marshal_py.consumer.topics import Topics
from marshal_py.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DeadLetterFailed,
    DeserializationFailed,
    TopicMissing,
)
from marshal_py.printable import text_of

__all__ = [
    "PREFIX",
    "REPLAYED",
    "DeadLetters",
    "check_dead_letter_topics",
    "dead_letter_topic_of",
    "headers_of",
    "is_dead_letter_topic",
]

PREFIX: Final = "dlq-"
REPLAYED: Final = "dlq-replayed-"
"""Of what `marshal dashboard` says in a message that it put back."""
MAX_TEXT: Final = 1_000
DELIVERY_MS: Final = 10_000
CLOSE_S: Final = 1.0

logger = logging.getLogger("marshal_py.consumer")

_FINAL: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.RECORD_LIST_TOO_LARGE,
}
"""Errors that trying again does not mend."""


def headers_of(
    message: Any,
    error: BaseException,
    *,
    attempts: int,
    group_id: str,
    client_id: str,
    epoch: int | None,
) -> list[tuple[str, bytes]]:
    """Return the headers of a dead letter: the message's own, and why it is one."""
    kept = [
        (n, v)
        for n, v in message.headers() or ()
        if n.startswith(REPLAYED) or not n.startswith(PREFIX)
    ]
    if isinstance(error, DeserializationFailed) and error.__cause__ is not None:
        error = error.__cause__  # what went wrong; where, the other headers say
    kind = type(error)
    timestamp_type, timestamp_ms = message.timestamp()
    told: dict[str, Any] = {
        "error-class": f"{kind.__module__}.{kind.__qualname__}",
        "error-message": text_of(error)[:MAX_TEXT],
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if timestamp_type and timestamp_ms >= 0 else None,  # −1: none
        "attempts": attempts,
        "group-id": group_id,
        "client-id": client_id,
        "epoch": epoch,
        "failed-at": time.time_ns() // 1_000_000,
    }
    return [
        *kept,
        *(
            (PREFIX + name, str(value).encode(errors="replace"))
            for name, value in told.items()
            if value is not None
        ),
    ]


def dead_letter_topic_of(template: str, topic: str) -> str:
    """Return where the dead letters of a topic go: `template`, with the topic for ``{topic}``."""
    return template.replace("{topic}", topic)


def is_dead_letter_topic(template: object) -> bool:
    """Whether this is the name of a topic, perhaps with ``{topic}`` for that of a message."""
    return isinstance(template, str) and is_topic(template.replace("{topic}", "t"))


def check_dead_letter_topics(dead_letters: DeadLetters, topics: Topics, template: str) -> None:
    """Look for the dead-letter topics of all topics that a consumer reads.

    Raises `ConfigurationError`, and as `DeadLetters.check`.
    """
    names = {dead_letter_topic_of(template, topic) for topic in topics.counts}
    for name in sorted(names):
        if topics.wants(name):
            raise ConfigurationError(
                f"dead_letter_topic: {name!r} is among the topics that this consumer reads, so "
                "dead letters would come again for ever; name another, or leave it out of "
                "`pattern`"
            )
    dead_letters.check(names)


class DeadLetters:
    """Writes dead letters, each awaited: acks=all, before its message counts as done.

    For any thread.
    """

    def __init__(self, kafka: KafkaConfig, *, timeout_s: float) -> None:
        self._kafka = kafka
        self._config = {
            **RECONNECT,
            **ANY_SIZE,
            "delivery.timeout.ms": DELIVERY_MS,
            **kafka,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
        }
        self._producer: Any = connect(Producer, self._config)
        self._lock = threading.Lock()
        self._timeout_s = timeout_s

    def check(self, topics: set[str]) -> None:
        """Look for the topics. Raises `TopicMissing`, also for hidden ones; `BrokerUnavailable`."""
        try:
            # All of them: to ask for one by name would create it, on brokers that allow that.
            known = self._producer.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            raise BrokerUnavailable(
                f"no answer from the brokers within {self._timeout_s:g} s: {error.args[0].str()}"
            ) from None
        for topic in sorted(topics):
            if topic not in known:
                raise TopicMissing(
                    f"the topic for dead letters, {topic!r}, does not exist, or is "
                    "hidden from this client: create it, or grant Write on it, or name another "
                    "with dead_letter_topic"
                )

    def send(self, topic: str, key: Any, value: Any, headers: list[tuple[str, bytes]]) -> None:
        """Write one and wait until all replicas have it.

        Raises `DeadLetterFailed` or `AccessDenied` when trying again does not help, else
        `BrokerUnavailable`.
        """
        delivered = threading.Event()
        problem: KafkaError | None = None

        def on_delivery(error: KafkaError | None, _: Any) -> None:
            nonlocal problem
            problem = error
            delivered.set()

        producer, is_full = self._producer, False
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=on_delivery)
            while not delivered.is_set():  # the producer gives up by itself, after its own timeout
                producer.poll(0.1)
        except BufferError:
            is_full = True
        except PRODUCER_FAILED as error:
            problem = failure_of(error)
        if is_full:
            with contextlib.suppress(*PRODUCER_FAILED):
                producer.poll(0.1)
            raise BrokerUnavailable(f"too many dead letters wait for {topic!r}")
        if problem is None:
            return
        if problem.code() in REFUSED:
            raise denied(self._kafka, topic, "Write")
        if problem.code() in _FINAL:
            raise DeadLetterFailed(f"topic {topic!r} takes no dead letter: {problem.str()}")
        if is_fatal(problem):
            self._replace(producer)
        raise BrokerUnavailable(f"topic {topic!r} took no dead letter: {problem.str()}")

    def _replace(self, failed: Any) -> None:
        """Make another producer, if nobody has: this one will never send again."""
        try:
            with self._lock:
                if self._producer is failed:
                    self._producer = connect(Producer, self._config)
        except ConfigurationError as error:
            # Its files are being replaced, as a certificate and its key are: it worked before.
            logger.warning("no producer can be made for dead letters: %s", error)
            time.sleep(CONNECT_AGAIN_S)

    def close(self) -> None:
        """Wait for what was begun."""
        producer = self._producer
        try:
            left = producer.flush(CLOSE_S)
        except PRODUCER_FAILED:
            left = len(producer)
        if left:
            logger.error(
                "%d dead letters were not written within %s s; their messages come again",
                left,
                CLOSE_S,
            )
