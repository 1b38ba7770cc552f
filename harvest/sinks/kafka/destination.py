"""A Kafka topic as a destination beside others: one produced record a row (specs/RELAYER.md §6).

An outbox that goes into Kafka alone is better off without destinations: in transactions, exactly
once. Here a record is confirmed when all in-sync replicas have it, and may come twice, with the
same header ``idempotency-key``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest.core.dispatcher import Outcome
from harvest.core.kafka_headers import kafka_headers
from harvest.core.row import Row
from harvest.core.templates import Template
from harvest.core.topic_names import is_topic
from harvest.errors import ConfigurationError, InvalidRecord, SinkHangs
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.settings import producer_settings
from marshal_py.client.kafka_clients import PRODUCER_FAILED, is_fatal

__all__ = ["KafkaDestination", "KafkaEndpoint"]

_POLL_S: Final = 0.1
_CLOSE_S: Final = 2.0
_HANGS_AFTER_S: Final = 120.0
"""So much longer than its time-out a record is waited for; librdkafka ends it within seconds."""
_OF_THE_BATCH: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
}
_LASTING: Final = {*_OF_THE_BATCH, KafkaError._INVALID_ARG}
_OF_THE_TOPIC: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
_KEY: Final = "idempotency-key"
_EPOCH: Final = "harvest-epoch"


@dataclass(frozen=True, slots=True)
class KafkaEndpoint:
    """How records are produced.

    - `settings`: librdkafka's, with ``bootstrap.servers``. `topic`: a template.
    - `timeout_ms`: until the record is acknowledged, or counts as failed.
    """

    settings: Mapping[str, Any] = field(repr=False)
    topic: str = "{topic}"
    forward_headers: bool = True
    timeout_ms: int = 10_000


class KafkaDestination:
    """Produces to Kafka. Implements `harvest.core.interfaces.message_sink.MessageSink`.

    One idempotent producer, made for the first message, and again after a fatal error; and another
    one, whose batches hold one record, once a broker has refused a batch for a record in it, or as
    too large: then its records are sent again, each alone, and only what fails alone is refused.
    Raises `ConfigurationError`.
    """

    def __init__(self, endpoint: KafkaEndpoint, outbox: str = "") -> None:
        self._endpoint = endpoint
        self._topic = Template.parse(endpoint.topic, outbox, "topic")
        given = dict(endpoint.settings)
        given.pop("message.timeout.ms", None)
        given["delivery.timeout.ms"] = endpoint.timeout_ms
        settings = producer_settings(given, None)
        settings |= {"delivery.report.only.error": False, "enable.gapless.guarantee": False}
        self._settings = settings
        if not settings.get("bootstrap.servers", settings.get("metadata.broker.list")):
            raise ConfigurationError("settings: 'bootstrap.servers' is missing: give host:port")
        self._lock = threading.Lock()
        self._lives: dict[bool, _Live] = {}
        """The producers: whether each record goes alone."""

    def check(self) -> None:
        """Make a producer, without waiting for a broker. Raises `ConfigurationError`."""
        make_client(Producer, dict(self._settings))

    def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
        """See `MessageSink.send`."""
        try:
            topic = self._topic.render(row)
            if not is_topic(topic):
                raise InvalidRecord(f"Kafka allows no topic to be named {topic!r}")
            headers = self._headers(row, idempotency_key, epoch)
            failure = self._produce(topic, row, headers, alone=False)
            if failure is not None and failure.code() in _OF_THE_BATCH:
                failure = self._produce(topic, row, headers, alone=True)
        except BufferError:
            return Outcome(error="the producer's queue is full", unavailable=True)
        except InvalidRecord as error:
            return Outcome(error=str(error), lasting=True)
        except ConfigurationError as error:  # `check` tried the settings: files are being replaced
            return Outcome(error=str(error), unavailable=True)
        if failure is None:
            return Outcome(200)
        code = failure.code()
        text = f"Kafka, topic {topic!r}: {failure.str()}"
        lasting = code in _LASTING
        return Outcome(
            error=text, unavailable=not lasting and code not in _OF_THE_TOPIC, lasting=lasting
        )

    def close(self) -> None:
        """See `MessageSink.close`."""
        with self._lock:
            lives, self._lives = self._lives, {}
        for live in lives.values():
            live.close()

    def _produce(
        self, topic: str, row: Row, headers: list[Any], *, alone: bool
    ) -> KafkaError | None:
        live = self._running(alone)
        try:
            failure = live.produce(topic, row, headers, self._endpoint.timeout_ms / 1000)
        except KafkaException as error:
            failure = error.args[0]
        except SystemError as error:  # confluent-kafka raises one over a producer that is given up
            why = f"the producer has given up: {error.__cause__ or error}"
            failure = KafkaError(KafkaError._FATAL, why, fatal=True)
        if failure is not None and is_fatal(failure):
            self._discard(live)
        return failure

    def _running(self, alone: bool) -> _Live:
        with self._lock:
            if alone not in self._lives:
                more = {"batch.num.messages": 1} if alone else {}
                self._lives[alone] = _Live(self._settings | more)
            return self._lives[alone]

    def _discard(self, live: _Live) -> None:
        with self._lock:
            self._lives = {alone: its for alone, its in self._lives.items() if its is not live}
        live.close()

    def _headers(self, row: Row, idempotency_key: str, epoch: int) -> list[Any]:
        headers: list[Any] = []
        if self._endpoint.forward_headers:
            headers += kafka_headers(row)
        headers += [(_KEY, idempotency_key.encode()), (_EPOCH, b"%d" % epoch)]
        return headers


class _Live:
    """A producer, and the thread that hears of its acknowledgements."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._producer = make_client(Producer, dict(settings))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="harvest-kafka", daemon=True)
        self._thread.start()

    def produce(
        self, topic: str, row: Row, headers: list[Any], timeout_s: float
    ) -> KafkaError | None:
        """Produce a record, and wait until its fate is known. Raises `SinkHangs`."""
        reported = threading.Event()
        failures: list[KafkaError] = []

        def report(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failures.append(error)
            reported.set()

        self._producer.produce(topic, row.value, row.key, headers=headers, on_delivery=report)
        # librdkafka ends it itself after this time. The rest begins then: whoever was stopped until
        # now has yet to hear of it.
        if not reported.wait(timeout_s) and not reported.wait(_HANGS_AFTER_S):
            raise SinkHangs(
                f"the Kafka client of a destination hangs: a record that was given {timeout_s:g} s "
                f"is not reported on {_HANGS_AFTER_S:.0f} s later"
            )
        return failures[0] if failures else None

    def close(self) -> None:
        """End. What is under way is reported as purged."""
        self._producer.purge()
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    def _poll(self) -> None:
        while True:
            is_over = self._over.is_set()
            with contextlib.suppress(*PRODUCER_FAILED):  # it was given up
                self._producer.poll(0 if is_over else _POLL_S)
            if is_over:
                return
