"""Messages that the program rejects (`AcknowledgeType.REJECT`), written as dead letters."""

from __future__ import annotations

import threading
from typing import Any

from marshal_py.client.marshal import Marshal
from marshal_py.consumer.dead_letters import (
    DeadLetters,
    check_dead_letter_topics,
    dead_letter_topic_of,
    headers_of,
)
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.topics import Topics
from marshal_py.errors import MessageRejected

__all__ = ["Rejections"]


class Rejections:
    """Where one consumer writes what is rejected. For any thread.

    `dead_letter_topic`: the name of the topic, in which ``{topic}`` stands for the message's own.
    """

    def __init__(self, marshal: Marshal, topics: Topics, dead_letter_topic: str) -> None:
        self._marshal = marshal
        self._topics = topics
        self._dead_letter_topic = dead_letter_topic
        self._dead_letters: DeadLetters | None = None
        self._lock = threading.Lock()

    def check(self) -> None:
        """Look for the topics. Raises `ConfigurationError`, `TopicMissing`, `BrokerUnavailable`."""
        check_dead_letter_topics(self._open(), self._topics, self._dead_letter_topic)

    def write(self, message: Any, raw: tuple[Any, Any], part: HeldPartition, reason: str) -> None:
        """Write a message, and wait until all replicas have it. `raw`: key and value as they came.

        Raises `BrokerUnavailable`, `DeadLetterFailed`, `AccessDenied`.
        """
        marshal = self._marshal
        headers = headers_of(
            message,
            MessageRejected(reason or "rejected by the program"),
            attempts=max(1, part.delivery_count(message.offset())),
            group_id=marshal.group_id,
            client_id=marshal.client_id,
            epoch=None if marshal.settings.wire == "text" else part.claim.epoch,
        )
        topic = dead_letter_topic_of(self._dead_letter_topic, message.topic())
        self._open().send(topic, *raw, headers)

    def close(self) -> None:
        """Wait for what was begun."""
        with self._lock:
            if self._dead_letters is not None:
                self._dead_letters.close()

    def _open(self) -> DeadLetters:
        settings = self._marshal.settings
        with self._lock:
            if self._dead_letters is None:
                timeout_s = settings.connect_timeout_ms / 1000
                self._dead_letters = DeadLetters(settings.kafka, timeout_s=timeout_s)
            return self._dead_letters
