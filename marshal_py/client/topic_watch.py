"""Watching that the coordination topic is still the one that was read (specs/PROTOCOL.md §7).

Kafka gives a topic an id when it is made. A topic that is deleted and made anew under the same name
has another one; a consumer that was away meanwhile goes on reading in it as if nothing had happened
once it has grown past the consumer's place. Offsets cannot tell; the id can.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from marshal_py.client.admin_on_demand import AdminOnDemand
from marshal_py.errors import ConfigurationError

__all__ = ["LOOK_EVERY_S", "TopicFacts", "TopicWatch"]

logger = logging.getLogger("marshal_py.log")

LOOK_EVERY_S: Final = 30.0
"""How often a reader that holds nothing looks. A client looks once in its heartbeat interval."""

KEEP_S: Final = 10.0
"""Who looks less often than this connects anew each time: threads cost more than a connection."""

ANSWER_S: Final = 5.0
AGAIN_S: Final = 0.5
"""After a look that found no topic: a broker that has just started may not know it yet."""

_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers that know no ids (before 2.8) are read as."""


class TopicFacts(NamedTuple):
    """A topic as the brokers describe it. `partitions` is 0 where there is none."""

    topic_id: str | None
    partitions: int


class TopicWatch:
    """Asks what the topic is, now and then. It has no thread and never waits, except in `wait`.

    librdkafka tells a topic's id to its admin client alone, so that it takes one. For one thread.
    """

    def __init__(self, admin: AdminOnDemand, topic: str, every_s: float) -> None:
        self._admin = admin
        self._topic = topic
        self._every_s = every_s
        self._asked: Any = None
        """The client that was asked last."""
        self._answer: Future[Any] | None = None
        self._asked_s = self._due_s = time.monotonic()
        self.as_of_s = float("-inf")
        """When it was asked (monotonic) what the last answer tells of the topic."""
        self._missing = False
        self._given_up = False

    def give_up(self) -> None:
        """Ask no more: these brokers do not answer."""
        self._given_up, self._answer = True, None
        self._rest()

    def ask(self) -> None:
        """Ask now, if no answer is awaited already."""
        if self._answer is not None or self._given_up:
            return
        self._asked_s = time.monotonic()
        self._due_s = self._asked_s + self._every_s
        try:
            # A new client reads its files anew, and they may be about to be replaced.
            self._asked = self._admin.open()
            topics = TopicCollection([self._topic])
            self._answer = self._asked.describe_topics(topics, request_timeout=ANSWER_S)[
                self._topic
            ]
        except (KafkaException, ConfigurationError) as error:
            logger.debug("topic %r cannot be looked at: %s", self._topic, error)

    def soon(self) -> None:
        """Look with the next `look`, whenever the last one was."""
        self._due_s = min(self._due_s, time.monotonic())

    def look(self) -> TopicFacts | None:
        """Return what an answer that has come says, None if there is none. Asks when it is due."""
        if self._answer is None:
            if time.monotonic() >= self._due_s:
                self.ask()
            return None
        self._asked.poll(0)  # what OAUTHBEARER wants to call
        return self._take() if self._answer.done() else None

    def wait(self, deadline: float) -> TopicFacts | None:
        """Ask, and wait for the answer until `deadline` (of `time.monotonic`)."""
        self.ask()
        while self._answer is not None and time.monotonic() < deadline:
            self._asked.poll(0.001)
            if self._answer.done():
                return self._take()
        return None

    def _take(self) -> TopicFacts | None:
        answer, self._answer = self._answer, None
        if self._every_s > KEEP_S:
            self._rest()
        try:
            found = answer.result() if answer is not None else None
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                logger.debug("topic %r cannot be looked at: %s", self._topic, error)
                return None
            if not self._missing:
                self._missing, self._due_s = True, time.monotonic() + AGAIN_S
                return None
            return TopicFacts(None, 0)
        self._missing = False
        if found is None:
            return None
        self.as_of_s = self._asked_s
        topic_id = str(found.topic_id)
        return TopicFacts(None if topic_id == _NO_ID else topic_id, len(found.partitions))

    def _rest(self) -> None:
        self._asked = None
        self._admin.rest()

    def close(self) -> None:
        """Disconnect."""
        self._answer = self._asked = None
        self._admin.close()
