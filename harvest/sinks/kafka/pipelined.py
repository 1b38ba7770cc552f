"""Rows to Kafka without waiting for those before: at least once, in order (specs/HARVEST.md §18).

What was handed over together is settled together, when all of it is acknowledged. After the first
failure nothing more is taken until it is opened again: then everything behind the last settled row
is handed over again, in order. Which rows the broker refuses is found out by `IdempotentSink`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest.core.failure import Failure
from harvest.core.interfaces.sink import StillHeld
from harvest.core.kafka_headers import kafka_headers
from harvest.core.row import Row
from harvest.errors import ConfigurationError, InvalidRecord, SinkUnavailable
from harvest.sinks.kafka.refusals import missing_topics
from harvest.sinks.kafka.settings import producer_settings

__all__ = ["PipelinedProducer"]

_RDKAFKA_LOG: Final = logging.getLogger("harvest.rdkafka")
_CONNECT_TIMEOUT_S: Final = 4.0
_DRAIN_S: Final = 1.0
_DEFAULTS: Final[dict[str, Any]] = {
    "linger.ms": 0,
    "queue.buffering.max.messages": 200_000,
}


class _Sent:
    """Rows that were handed over together."""

    __slots__ = ("error", "left")

    def __init__(self, rows: int) -> None:
        self.left = rows
        self.error: KafkaError | None = None

    def reported(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.left -= 1
        elif self.error is None:
            self.error = error


class PipelinedProducer:
    """An idempotent producer, from `open` to the first failure. Used by one thread.

    Raises `ConfigurationError` for settings that cannot be.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._settings = {**_DEFAULTS, **producer_settings(config, None)}
        self._producer: Producer | None = None
        self._sent: dict[int, _Sent] = {}
        """In the order in which they were handed over."""
        self._topics: set[str] = set()
        self._still_held: StillHeld = lambda: False

    @property
    def busy(self) -> bool:
        """Whether anything is not settled."""
        return bool(self._sent)

    def prepare(self) -> None:
        """Connect, so that the first rows are quick. Raises `SinkUnavailable`."""
        if self._producer is not None:
            return
        try:
            producer = Producer(self._settings, logger=_RDKAFKA_LOG)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigurationError(f"Kafka settings: {error}") from None
        try:
            producer.list_topics("__consumer_offsets", timeout=_CONNECT_TIMEOUT_S)
        except KafkaException as error:
            text = f"Kafka cannot be reached: {error.args[0].str()}"
            raise SinkUnavailable(text) from error
        self._producer = producer

    def open(self, still_held: StillHeld) -> None:
        """Begin; `still_held` as in `Sink.open`. Raises `SinkUnavailable`."""
        self.prepare()
        self._still_held = still_held

    def send(self, number: int, rows: Sequence[Row]) -> Failure | None:
        """Hand rows over; what becomes of them is told by `settled`, unless this is a failure."""
        producer = self._producer
        if producer is None or not self._still_held():
            return Failure("an earlier delivery failed, or the lease is lost")
        if {row[1] for row in rows} - self._topics and not self._learn_topics(producer, rows):
            return self._broken("topics that cannot be written to")
        self._sent[number] = sent = _Sent(len(rows))
        produce, reported = producer.produce, sent.reported
        try:
            for row in rows:
                headers = kafka_headers(row) if row[4] or row[5] else None
                while True:
                    try:
                        if headers is None:
                            produce(row[1], row[3], row[2], on_delivery=reported)
                        else:
                            produce(row[1], row[3], row[2], headers=headers, on_delivery=reported)
                        break
                    except BufferError:  # the producer's queue is full
                        producer.poll(0.01)
                        if not self._still_held():
                            return self._broken("the lease is lost", number)
            producer.poll(0)
        except InvalidRecord as error:
            return self._broken(str(error), number)
        except (KafkaException, SystemError) as error:
            return self._broken(f"a row was not taken: {error}", number)
        return None

    def settled(self) -> list[tuple[int, Failure | None]]:
        """What is settled since the last time, in the order of the sends."""
        producer, sent = self._producer, self._sent
        if not sent:
            return []
        failure: Failure | None = None
        if producer is not None:
            try:
                producer.poll(0)
            except (KafkaException, SystemError) as error:
                failure = self._broken(f"the producer has given up: {error}")
        found: list[tuple[int, Failure | None]] = []
        for number, its in list(sent.items()):
            if its.error is not None and failure is None:
                failure = self._broken(f"the broker refused rows: {its.error.str()}")
            if its.left == 0:
                found.append((number, None))
            elif self._producer is None:
                found.append((number, failure or Failure("an earlier delivery failed")))
            else:
                break
            del sent[number]
        return found

    def close(self) -> None:
        """Let go of the broker. What is under way is given up."""
        self._sent = {}
        self._drop()

    def _learn_topics(self, producer: Producer, rows: Sequence[Row]) -> bool:
        """Whether all topics are there: librdkafka takes 30 s to miss one."""
        new = {row[1] for row in rows} - self._topics
        bad = missing_topics(producer, new)
        self._topics |= new - bad.keys()
        return not bad

    def _broken(self, reason: str, number: int | None = None) -> Failure:
        if number is not None:
            self._sent.pop(number, None)
        self._drop()
        return Failure(reason)

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        deadline = time.monotonic() + _DRAIN_S
        with contextlib.suppress(KafkaException, SystemError):
            producer.purge()
            while len(producer) and time.monotonic() < deadline:
                producer.poll(0.05)
