"""Appending to the coordination log (specs/PROTOCOL.md §2.3, §7)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import (
    NO_CREATION,
    OUTAGE_WARNING_S,
    PRODUCER_FAILED,
    RECONNECT,
    ConnectionErrors,
    connect,
    give_up,
    is_fatal,
    problem_of,
)
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import AccessDenied, ConfigurationError
from marshal_py.protocol.snapshots import SnapshotDue, encode_snapshot

__all__ = ["LogWriter"]

logger = logging.getLogger("marshal_py.log")


class LogWriter:
    """Appends records to the coordination topic: all in-sync replicas, idempotent, in order.

    For any thread. Failures are queued; the driver takes them with `take_failures`.
    """

    def __init__(
        self, config: KafkaConfig, *, topic: str, snapshot_topic: str, timeout_ms: int
    ) -> None:
        self.topic = topic
        self.snapshot_topic = snapshot_topic
        self.refusal: AccessDenied | None = None
        """Set when the brokers refuse to let this client write, and never let it before."""
        self.refused_now: AccessDenied | None = None
        """Set while the brokers refuse what this client writes; it tries on."""
        self.ends: dict[int, int] = {}
        """Coordination partition → the offset behind the record of this client that the brokers
        took last."""
        self._was_served = False
        self._told_s = -OUTAGE_WARNING_S
        self._failures: deque[tuple[int, str]] = deque()
        self._config: KafkaConfig = {
            "linger.ms": 0,
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": 32 * 1024 * 1024,  # for snapshots; the broker has its own limit
            **RECONNECT,
            **config,
            "acks": "all",
            "enable.idempotence": True,
            **NO_CREATION,  # with the brokers' defaults, a topic is no log: records expire
        }
        self._errors = ConnectionErrors()
        self._producer = self._connect()

    def _connect(self) -> Any:
        return connect(Producer, self._config, self._errors)

    def append(self, coordinator: int, seq: int, value: bytes) -> None:
        """Hand a record to the producer; it is sent at once, and retried until it times out."""
        self._produce(
            self.topic,
            value,
            partition=coordinator,
            failed=lambda why: self._failures.append((seq, why)),
        )

    def _produce(
        self,
        topic: str,
        value: bytes,
        *,
        partition: int,
        failed: Callable[[str], None],
        key: bytes | None = None,
    ) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._was_served = True
                if topic == self.topic:
                    self.refused_now = None
                    self.ends[partition] = (message.offset() or 0) + 1
                return
            if error.code() in REFUSED:
                self._refused(topic)
            elif error.code() > 0 and topic == self.topic:  # what a broker has said
                self._tell(f"{topic} takes no record: {error.str()}")
            failed(error.str())

        def produce() -> None:
            self._producer.produce(
                topic, value, key=key, partition=partition, on_delivery=delivered
            )

        problem = problem_of((BufferError, KafkaException), produce)
        if problem is not None:
            failed(str(problem))
            if isinstance(problem, KafkaException) and is_fatal(problem.args[0]):
                self._replace(problem)

    def _replace(self, why: Exception) -> None:
        """Make a new producer: this one will never send again. What it held counts as failed."""
        if isinstance(why, KafkaException) and why.args[0].code() in REFUSED:
            # No right to write to any topic, and therefore none to be idempotent.
            self._refused(self.topic)
        else:
            logger.error("the producer failed for good (%s); making a new one", why)
        old = self._producer
        try:
            self._producer = self._connect()
        except ConfigurationError as error:
            # Its files are being replaced, as a certificate and its key are: it worked before.
            logger.warning("%s; the next record tries again", error)
        give_up(old)

    def start_over(self) -> None:
        """Forget what is on its way: it was meant for a log that is no more.

        A new producer, since this one knows the partitions of the old topic. For the driver.
        """
        old, self._producer = self._producer, self._connect()
        give_up(old)
        self._failures.clear()
        self.ends.clear()

    @property
    def was_refused(self) -> bool:
        """Whether the brokers ever refused anything, a snapshot included."""
        return self._errors.was_refused

    def _refused(self, topic: str) -> None:
        self._errors.was_refused = True
        problem = denied(self._config, topic, "Write")
        if topic == self.topic:
            self.refused_now = problem
            if not self._was_served and self.refusal is None:
                self.refusal = problem
        self._tell(problem)

    def _tell(self, problem: object) -> None:
        """Log why the brokers take nothing, once in a while."""
        if time.monotonic() - self._told_s >= OUTAGE_WARNING_S:
            self._told_s = time.monotonic()
            logger.error("%s", problem)

    def write_snapshot(self, due: SnapshotDue, partitions: int, writer: str) -> None:
        """Write a snapshot; one that fails is reported and forgotten: the next will do."""
        value = encode_snapshot(
            due.state,
            coordinator=due.coordinator,
            partitions=partitions,
            next_offset=due.next_offset,
            anchor=due.anchor,
            writer=writer,
        )

        self.append_snapshot(due.coordinator, value)

    def append_snapshot(self, coordinator: int, value: bytes) -> None:
        """Write the value of a snapshot, as `write_snapshot` does."""
        self._produce(
            self.snapshot_topic,
            value,
            key=str(coordinator).encode(),
            partition=coordinator,
            failed=lambda why: logger.warning(
                "a snapshot of partition %d failed: %s", coordinator, why
            ),
        )

    def serve(self) -> None:
        """Run the delivery callbacks that are due."""
        problem = problem_of(PRODUCER_FAILED, self._producer.poll, 0)
        if problem is not None:
            self._replace(problem)

    def take_failures(self) -> list[tuple[int, str]]:
        """Return (seq, why) of the appends that failed, or whose outcome is unknown."""
        failures = []
        while self._failures:
            failures.append(self._failures.popleft())
        return failures

    def purge(self) -> None:
        """Forget what has not been sent yet."""
        with contextlib.suppress(*PRODUCER_FAILED):
            self._producer.purge()

    def flush(self, timeout_s: float) -> int:
        """Wait until everything has been delivered; return how many records have not."""
        try:
            return int(self._producer.flush(timeout_s))
        except PRODUCER_FAILED:
            return len(self._producer)
