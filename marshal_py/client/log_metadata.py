"""What the brokers say of the coordination log: its partitions, and which offsets they have."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import (
    FINAL,
    NO_CREATION,
    RECONNECT,
    ConnectionErrors,
    connect,
    is_mock,
    patience,
)
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import AccessDenied, BrokerUnavailable, ConfigurationError, TopicMissing

__all__ = ["LogMetadata", "asking"]

logger = logging.getLogger("marshal_py.log")

_PAUSE_S: Final = 0.05
_LATEST: Final = -1
_EARLIEST: Final = -2
"""The ListOffsets protocol's special timestamps."""


class LogMetadata:
    """Asks the brokers until they answer, or until a deadline (of `time.monotonic`).

    What the consumer would hand out meanwhile gets lost: nothing is assigned to it yet. Every call
    raises `BrokerUnavailable` at the deadline; sooner, `AuthenticationFailed` when brokers and
    client do not accept each other, `AccessDenied` when a right is missing, and what `check`
    raises, which is called before a question is asked again.
    """

    def __init__(
        self,
        consumer: Any,
        config: KafkaConfig,
        errors: ConnectionErrors,
        topic: str,
        snapshot_topic: str,
        needs: tuple[str, ...],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.snapshot_topic = snapshot_topic
        self.is_mock = False
        """Whether this is librdkafka's mock cluster; `describe` finds out."""
        self._consumer = consumer
        self._config = config
        self._errors = errors
        self._needs = needs
        """Rights on both topics, as `AccessDenied` names them."""
        self._check = check
        self.snapshots_denied: AccessDenied | None = None
        """Why the last `describe` saw no topic of snapshots, if a right is missing."""

    def describe(self, deadline: float, *, with_snapshots: bool) -> tuple[int, int]:
        """Return how many partitions the log has, and its topic of snapshots: 0 without one.

        Raises `TopicMissing`, `ConfigurationError`.
        """
        for wait_s in patience(deadline):
            try:
                cluster = self._consumer.list_topics(self.topic, timeout=wait_s)
                self.is_mock, topics = is_mock(cluster), cluster.topics
                error = topics[self.topic].error
                if error is None and topics[self.topic].partitions:
                    snapshots = self._snapshot_partitions(deadline) if with_snapshots else 0
                    return len(topics[self.topic].partitions), snapshots
                if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise TopicMissing(
                        f"coordination topic {self.topic!r} does not exist: run "
                        f"`marshal topic create --topic {self.topic} --bootstrap-servers ...`, or "
                        "pass create_topics=True"
                    )
                if error is not None and error.code() in REFUSED:
                    raise denied(self._config, self.topic, *self._needs)
                if error is not None and error.code() in FINAL:
                    raise ConfigurationError(f"coordination topic {self.topic!r}: {error.str()}")
            except KafkaException as problem:
                self._give_up(problem.args[0], deadline)
            else:
                self._pause(deadline, "no metadata of the coordination topic")
        raise AssertionError  # `patience` has no end

    def _snapshot_partitions(self, deadline: float) -> int:
        found = self.snapshots_denied = None
        while found is None:
            try:
                found = self._consumer.list_topics(
                    self.snapshot_topic, timeout=max(0.1, min(2.0, deadline - time.monotonic()))
                ).topics[self.snapshot_topic]
            except KafkaException as late:  # as while a topic is being made anew
                self._give_up(late.args[0], deadline)
        if found.error is None and len(found.partitions) >= 1:
            return len(found.partitions)
        if found.error is not None and found.error.code() in REFUSED:
            problem = denied(self._config, self.snapshot_topic, *self._needs)
            self.snapshots_denied = problem
            logger.warning("without snapshots, every start replays the whole log: %s", problem)
            return 0
        logger.warning(
            "there is no topic %r: every start replays the whole log; `marshal topic create` "
            "makes it",
            self.snapshot_topic,
        )
        return 0

    def first_offsets(
        self, topic: str, partitions: Iterable[int], deadline: float
    ) -> dict[int, int]:
        """Return the first offset of each partition that was not deleted."""
        return self._offsets(topic, dict.fromkeys(partitions, 0), _EARLIEST, deadline)

    def next_offsets(
        self, topic: str, partitions: Iterable[int], deadline: float
    ) -> dict[int, int]:
        """Return the offset that the next record of each partition gets."""
        return self._offsets(topic, dict.fromkeys(partitions, 0), _LATEST, deadline)

    def offsets_at(self, ms: int, ends: dict[int, int], deadline: float) -> dict[int, int]:
        """Return the first offset of the log's partitions at a time of the broker, or its end."""
        return self._offsets(self.topic, ends, ms, deadline)

    def _offsets(
        self, topic: str, ends: dict[int, int], which: int, deadline: float
    ) -> dict[int, int]:
        query = [TopicPartition(topic, p, which) for p in ends]
        if not query:
            return {}
        while True:
            try:
                answer = self._consumer.offsets_for_times(
                    query, timeout=max(0.1, min(5.0, deadline - time.monotonic()))
                )
                if all(p.error is None and (p.offset >= 0 or which >= 0) for p in answer):
                    # For a time after the last record the answer is "the end", −1.
                    return {
                        p.partition: p.offset if p.offset >= 0 else ends[p.partition]
                        for p in answer
                    }
            except KafkaException as problem:
                self._give_up(problem.args[0], deadline)
            else:
                self._pause(deadline, f"no leader for some partition of {topic!r}")

    def _give_up(self, error: KafkaError, deadline: float) -> None:
        """Raise what `error` comes to, or let librdkafka reconnect until it is tried again."""
        if error.code() in REFUSED:
            raise denied(self._config, self.topic, *self._needs) from None
        self._consumer.poll(0.0)  # to hear what TLS and SASL have said
        if time.monotonic() >= deadline or self._errors.repeated:
            raise self._errors.failure(error) from None
        if error.code() in FINAL:
            raise BrokerUnavailable(f"the brokers refused: {error.str()}") from None
        self._check()
        self._consumer.poll(_PAUSE_S)

    def _pause(self, deadline: float, what: str) -> None:
        """Let librdkafka reconnect; its own back-off sets the pace."""
        if time.monotonic() >= deadline:
            raise BrokerUnavailable(f"gave up: {what}")
        self._check()
        self._consumer.poll(_PAUSE_S)


@contextlib.contextmanager
def asking(
    config: KafkaConfig, *, topic: str, snapshot_topic: str, needs: tuple[str, ...]
) -> Iterator[LogMetadata]:
    """Ask with connections of its own: on one that fetches, each answer waits for the last fetch's.

    Parameters are those of `LogMetadata`.
    """
    errors = ConnectionErrors()
    consumer = connect(
        Consumer, {**RECONNECT, **config, **NO_CREATION, "group.id": "marshal"}, errors
    )
    try:
        yield LogMetadata(consumer, config, errors, topic, snapshot_topic, needs)
    finally:
        consumer.close()
