"""Deleting what a snapshot covers, as a client may do it by itself (specs/PROTOCOL.md §7.3)."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import NO_CREATION, connect
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import ConfigurationError

__all__ = ["LogTrimmer"]

logger = logging.getLogger("marshal_py.log")

TIMEOUT_S: Final = 30.0


class LogTrimmer:
    """Deletes records below snapshots of this process that were read back; never waits.

    For one thread. What fails is told in the log; the next snapshot brings the next attempt.
    """

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config = config
        self._topic = topic
        self._admin: Any = None
        self._written: dict[int, int] = {}
        """Coordination partition → `next_offset` of a snapshot that was handed to the producer."""

    def written(self, coordinator: int, next_offset: int) -> None:
        """A snapshot is on its way; it is safe to build on once it was read."""
        self._written[coordinator] = next_offset

    def read(self, newest: dict[int, int]) -> None:
        """`newest` has the newest valid snapshots that were read: trim below those of ours."""
        for p, next_offset in list(self._written.items()):
            if newest.get(p, 0) >= next_offset:
                del self._written[p]
                # The record just below it stays: a reader compares it with the anchor.
                self._delete(p, next_offset - 1)

    def start_over(self) -> None:
        """The log is another one: what was written before is no snapshot of it."""
        self._written.clear()

    def _delete(self, p: int, below: int) -> None:
        part = TopicPartition(self._topic, p, below)
        try:
            if self._admin is None:
                self._admin = connect(AdminClient, {**self._config, **NO_CREATION})
            answers = self._admin.delete_records([part], request_timeout=TIMEOUT_S)
        except (KafkaException, ConfigurationError) as error:
            logger.warning("%s/%d could not be trimmed: %s", self._topic, p, error)
            return
        for answer in answers.values():
            answer.add_done_callback(partial(self._done, p, below))

    def _done(self, p: int, below: int, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            logger.info("%s/%d: records below offset %d were deleted", self._topic, p, below)
            return
        why: object = error
        if isinstance(error, KafkaException) and error.args[0].code() in REFUSED:
            why = denied(self._config, self._topic, "Delete")
        logger.warning("%s/%d could not be trimmed: %s", self._topic, p, why)

    def close(self) -> None:
        """Disconnect."""
        self._admin = None
