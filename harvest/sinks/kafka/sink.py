"""Kafka as a sink: in transactions (the default), or idempotent only (specs/HARVEST.md §5).

`TransactionalSink` publishes each delivery as one Kafka transaction, under a `transactional.id`
that belongs to the outbox and not to the process: opening it fences every earlier producer, and
aborts or completes what that one had begun. The checkpoint is an offset commit with metadata, in a
consumer group that no consumer joins, and part of the same transaction.

`IdempotentSink` keeps order and loses nothing, but fences nobody and may repeat rows after a
failure. It is for brokers, or users, that cannot have transactions.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harvest.core.failure import Failure
from harvest.core.interfaces.sink import StillHeld
from harvest.core.kafka_headers import Headers, kafka_headers
from harvest.core.row import Row, named
from harvest.errors import ConfigurationError, InvalidRecord, SinkUnavailable
from harvest.sinks.kafka.bulk import produce_in_bulk
from harvest.sinks.kafka.committed_checkpoint import committed_checkpoint
from harvest.sinks.kafka.refusals import (
    RowError,
    RowErrors,
    advice,
    missing_topics,
    unwritable_topics,
)
from harvest.sinks.kafka.settings import connection_settings, consumer_settings, producer_settings

__all__ = ["IdempotentSink", "TransactionalSink"]

_LOG: Final = logging.getLogger("harvest.kafka")
_RDKAFKA_LOG: Final = logging.getLogger("harvest.rdkafka")
_RDKAFKA_LOG.setLevel(logging.CRITICAL + 1)  # what matters of it, we say once; lower it to see all
_OUTAGE_WARNING_S: Final = 30.0
_OPEN_TIMEOUTS_S: Final = (0.1, 0.25, 1.0, 3.0)
_STEP_S: Final = 0.5  # how long the lease may go unasked while the broker is silent
_ABORT_TIMEOUT_S: Final = 2.0
_READ_TIMEOUT_S: Final = 4.0
_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}
_FEW: Final = 1_000
_NO_OFFSET: Final = 0  # negative offsets say that nothing was committed


class _BadTopics(Exception):
    """Rows whose topics cannot be written to; nothing was produced."""


class _KafkaSink(ABC):
    """What both sinks share: one producer from `open` to the first failure."""

    atomic: bool

    def __init__(
        self,
        config: Mapping[str, Any],
        transactional_id: str | None,
        *,
        wait_for_topics: bool = False,
    ) -> None:
        self._settings = producer_settings(config, transactional_id)
        self._producer: Producer | None = None
        self._spare: Producer | None = None
        self._still_held: StillHeld = lambda: False
        self._wait_for_topics = wait_for_topics
        self._errors = RowErrors(wait_for_topics=wait_for_topics)
        self._delivered: set[int] = set()
        """Ids of rows whose delivery was reported."""
        self._topics: set[str] = set()
        self._in_bulk = True
        """Not after a failure: the next delivery finds out which row it was for."""
        self._warned_s = float("-inf")

    def prepare(self) -> None:
        """See `Sink.prepare`."""
        self._spare = self._connected(self._spare or self._new_producer())

    def open(self, still_held: StillHeld) -> str | None:
        """See `Sink.open`."""
        self.close()
        self._still_held = still_held
        self._topics = set()
        return self._open()

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        """See `Sink.deliver`."""
        producer = self._producer
        if producer is None:
            return Failure("an earlier delivery failed, and the sink was not opened again")
        if not self._still_held():
            return self._failed("the lease is lost")
        failure = self._attempt(producer, rows, checkpoint)
        self._in_bulk = failure is None
        return failure

    def _attempt(self, producer: Producer, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        self._errors = RowErrors(wait_for_topics=self._wait_for_topics)
        self._delivered = set()
        try:
            self._look_at_topics(producer, rows)
            return self._deliver(producer, rows, checkpoint)
        except _BadTopics:
            undelivered = None if self.atomic else frozenset([row[0] for row in rows])
            return self._failed("topics that cannot be written to", rows, undelivered)
        except RowError as error:
            self._note(error)
            return self._failed(f"row {error.row_id}: {error}", rows)
        except KafkaException as error:
            self._blame_topics(error.args[0], rows)
            return replace(self._failed(_text(error), rows), fenced=_is_fenced(error))
        except SystemError as error:  # see _wait
            failure = self._failed(f"the producer has given up: {error.__cause__ or error}", rows)
            return replace(failure, fenced=_is_fenced(error.__cause__))

    def close(self) -> None:
        """See `Sink.close`."""
        producer, self._producer = self._producer, None
        if producer is not None:
            _drop(producer)

    @abstractmethod
    def _open(self) -> str | None: ...

    @abstractmethod
    def _deliver(
        self, producer: Producer, rows: Sequence[Row], checkpoint: str
    ) -> Failure | None: ...

    def _new_producer(self) -> Producer:
        producer: Producer = _client(Producer, {"error_cb": self._outage, **self._settings})
        return producer

    def _outage(self, error: KafkaError) -> None:
        if (
            error.code() == KafkaError._ALL_BROKERS_DOWN
            and time.monotonic() > self._warned_s + _OUTAGE_WARNING_S
        ):
            self._warned_s = time.monotonic()
            _LOG.warning("no broker answers; trying for as long as it takes")

    def _connected(self, producer: Producer) -> Producer:
        """A connected producer begins in milliseconds; one that is not waits for a retry timer."""
        try:
            producer.list_topics("__consumer_offsets", timeout=_READ_TIMEOUT_S)
        except KafkaException as error:
            raise SinkUnavailable(f"Kafka cannot be reached: {_text(error)}") from error
        return producer

    def _look_at_topics(self, producer: Producer, rows: Sequence[Row]) -> None:
        """Ask for topics that were not seen yet: librdkafka takes 30 s to miss one."""
        new = {row[1] for row in rows} - self._topics
        if not new:
            return
        bad = missing_topics(producer, new)
        self._topics |= new - bad.keys()
        for row in named(rows) if bad else ():
            if row.topic in bad:
                error = bad[row.topic]
                self._errors.add(row.id, advice(row.topic, error), error.code())
        if bad:
            raise _BadTopics

    def _blame_topics(self, error: KafkaError, rows: Sequence[Row]) -> None:
        """A transaction fails as a whole for topics that may not be written to: which are they?"""
        if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return
        connection = connection_settings(self._settings)
        rows = named(rows)
        bad = unwritable_topics(connection, {row.topic for row in rows})
        for row in rows:
            if row.topic in bad:
                self._errors.add(row.id, advice(row.topic, error), error.code())

    def _produce(self, producer: Producer, rows: Sequence[Row]) -> None:
        produce, reported = producer.produce, self._reported
        for row in rows:
            headers = _headers(row) if row.header_keys or row.header_values else None
            report = partial(reported, row.id)
            while True:
                try:
                    if headers is None:
                        produce(row.topic, row.value, row.key, on_delivery=report)
                    else:
                        produce(row.topic, row.value, row.key, headers=headers, on_delivery=report)
                    break
                except BufferError:  # the producer's queue is full
                    producer.poll(0.01)
                    if not self._still_held():
                        raise _lease_lost() from None
                except KafkaException as error:
                    raise RowError(row.id, _text(error), error.args[0].code()) from error

    def _note(self, error: RowError) -> None:
        self._errors.add(error.row_id, str(error), error.code, certain=True)

    def _reported(self, row_id: int, error: KafkaError | None, _: object) -> None:
        if error is None:
            self._delivered.add(row_id)
        else:
            self._errors.add(row_id, error.str(), error.code())

    def _failed(
        self,
        reason: str,
        rows: Sequence[Row] = (),
        undelivered: frozenset[int] | None = None,
    ) -> Failure:
        self.close()
        errors = self._errors.texts
        refused = self._errors.refused(named(rows), self._settings)
        if errors:
            row_id, text = next(iter(errors.items()))
            reason = f"{reason}; {len(errors)} rows failed, the first is row {row_id}: {text}"
        return Failure(reason, undelivered, dict(errors), refused)


class TransactionalSink(_KafkaSink):
    """Deliveries as Kafka transactions, with checkpoints. Implements `Sink`.

    - `config`: librdkafka settings of the producer, all passed through.
    - `base_config`: those of the reader of the checkpoint.
    - `name`: of the outbox, the same in every process that may harvest it. The `transactional.id`
      and the consumer group that keeps the checkpoint are both ``harvest.NAME``.
    - `checkpoint_topic`: a topic that exists; its partition 0 is what the offset is committed for.
    - `wait_for_topics`: rows of topics that do not exist (yet) are not reported as refused.
    """

    atomic = True

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        base_config: Mapping[str, Any],
        name: str,
        checkpoint_topic: str,
        wait_for_topics: bool = False,
    ) -> None:
        super().__init__(config, f"harvest.{name}", wait_for_topics=wait_for_topics)
        self._reader = _client(Consumer, consumer_settings(base_config, f"harvest.{name}"))
        self._checkpoint_topic = checkpoint_topic
        self._completed_s = float("-inf")
        """When the last transaction may be expected to be completed."""

    def _open(self) -> str | None:
        producer = self._fence()
        checkpoint = self._read_checkpoint()
        self._producer = producer
        return checkpoint

    def _fence(self) -> Producer:
        """A producer that has fenced all others of this outbox.

        If the one before has a transaction open, the broker aborts it and says "try again", for
        which librdkafka waits half a second; a new producer need not.
        """
        problem = ""
        for timeout_s in _OPEN_TIMEOUTS_S:
            if not self._still_held():
                raise SinkUnavailable("the lease was lost while Kafka was being opened")
            producer, self._spare = self._spare or self._new_producer(), None
            self._connected(producer)
            try:
                producer.init_transactions(timeout_s)
                return producer
            except KafkaException as error:
                problem = _text(error)
                _drop(producer)
                if not error.args[0].retriable():
                    break
        raise SinkUnavailable(f"Kafka began no transactions: {problem}")

    def _read_checkpoint(self) -> str | None:
        try:
            return committed_checkpoint(
                self._reader, self._checkpoint_topic, _READ_TIMEOUT_S, self._still_held
            )
        except KafkaException as error:
            text = f"the checkpoint cannot be read: {_text(error)}"
            raise SinkUnavailable(text) from error

    def _deliver(self, producer: Producer, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        # While Kafka completes the transaction before, which takes it about as long as the commit,
        # it says "try again" to this one. librdkafka does so after 20 ms for partitions, and after
        # a millisecond for the position: which then goes first, unless the rows take their time.
        position_first = len(rows) <= _FEW and time.monotonic() < self._completed_s
        try:
            producer.begin_transaction()
            if position_first:
                self._send_position(producer, checkpoint)
            if not (self._in_bulk and produce_in_bulk(producer, rows)):
                self._produce(producer, named(rows))
            if not position_first:
                self._send_position(producer, checkpoint)
            began_s = time.monotonic()
            self._insist(producer.commit_transaction)
            self._completed_s = 2 * time.monotonic() - began_s
        except (KafkaException, SystemError, RowError) as error:
            reason = self._reason(producer, checkpoint, error)
            with contextlib.suppress(KafkaException):  # readers wait for an open transaction
                producer.purge()
                producer.abort_transaction(_ABORT_TIMEOUT_S)
            if reason is not None:
                raise reason from error
            raise
        return None

    def _reason(
        self, producer: Producer, checkpoint: str, error: Exception
    ) -> KafkaException | None:
        """Why the transaction has failed, if `error` only says that it has.

        A position that is under way while the broker refuses the rows fails with "erroneous
        state"; whatever is asked for afterwards fails with the reason. So the position is sent
        again, which commits nothing.
        """
        if _code(error) == KafkaError._STATE and self._still_held():
            try:
                self._send_position(producer, checkpoint)
            except KafkaException as reason:
                return reason
        return None

    def _send_position(self, producer: Producer, checkpoint: str) -> None:
        position = TopicPartition(self._checkpoint_topic, 0, _NO_OFFSET, metadata=checkpoint)
        group = self._reader.consumer_group_metadata()
        self._insist(producer.send_offsets_to_transaction, [position], group)

    def _insist(self, operation: Any, *arguments: Any) -> None:
        """Call a resumable operation until it succeeds, fails for good, or the lease is lost."""
        while True:
            if not self._still_held():
                raise _lease_lost()
            try:
                operation(*arguments, _STEP_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


class IdempotentSink(_KafkaSink):
    """Deliveries without transactions: at least once, in order. Implements `Sink`.

    The producer is gapless: when the broker refuses a row for good, every later row of its
    partition fails too. (Not when a row times out. The mark scheduler keeps the order then.) Unless
    `delivery.timeout.ms` is given, a row waits for the broker for as long as the lease is held.
    """

    atomic = False

    def __init__(self, config: Mapping[str, Any], *, wait_for_topics: bool = False) -> None:
        super().__init__(config, None, wait_for_topics=wait_for_topics)
        self._unexplained = False
        """Whether the last delivery failed without a report that says why."""

    def _open(self) -> str | None:
        producer, self._spare = self._spare or self._new_producer(), None
        self._producer = self._connected(producer)
        return None

    def _deliver(self, producer: Producer, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        del checkpoint
        reason = "the broker refused rows"
        try:
            self._produce(producer, rows)
        except RowError as error:
            self._note(error)
        while self._wait(producer):
            if not self._still_held():
                reason = "the lease is lost"
                producer.purge()  # every purged row reports an error
        undelivered = frozenset([row.id for row in rows]) - self._delivered
        if not undelivered:
            return None
        self._unexplained = not self._errors.texts
        return self._failed(reason, rows, undelivered)

    def _wait(self, producer: Producer) -> int:
        """Wait for reports for a while; return how many are still to come.

        When librdkafka gives up a producer, confluent-kafka raises that from within whatever Python
        code runs next. In `flush` this may be the report on a row, which is lost then: only rows
        whose delivery was reported count as delivered. `poll` raises before it reports, but waits
        for linger.ms.
        """
        try:
            if not self._unexplained:
                return producer.flush(_STEP_S)
            producer.poll(_STEP_S)
        except (KafkaException, SystemError):
            with contextlib.suppress(KafkaException):
                producer.purge()
        return len(producer)


def _client(kind: Any, settings: Mapping[str, Any]) -> Any:
    """A client that logs where we say; without a logger, librdkafka writes to standard error."""
    try:
        return kind(settings, logger=_RDKAFKA_LOG)
    except (KafkaException, TypeError, ValueError) as error:
        text = _text(error) if isinstance(error, KafkaException) else str(error)
        raise ConfigurationError(f"Kafka settings: {text}") from None


def _headers(row: Row) -> Headers:
    try:
        return kafka_headers(row)
    except InvalidRecord as error:
        raise RowError(row.id, str(error)) from None


def _code(error: BaseException | None) -> int | None:
    return error.args[0].code() if isinstance(error, KafkaException) else None


def _is_fenced(error: BaseException | None) -> bool:
    return _code(error) in _FENCED


def _lease_lost() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._STATE, "the lease is lost"))


def _drop(producer: Producer) -> None:
    """Give up what the producer still has; the object itself goes with its last reference."""
    with contextlib.suppress(KafkaException):
        producer.purge()
        producer.poll(0)


def _text(error: KafkaException) -> str:
    detail = error.args[0]
    return f"{detail.str()} ({detail.name()})" if isinstance(detail, KafkaError) else str(detail)
