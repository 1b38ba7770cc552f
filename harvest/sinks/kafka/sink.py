"""Kafka as a sink, in transactions: the default (specs/HARVEST.md §5).

`TransactionalSink` publishes each delivery as one Kafka transaction, under a `transactional.id`
that belongs to the outbox and not to the process: opening it fences every earlier producer, and
aborts or completes what that one had begun. The checkpoint is an offset commit with metadata, in a
consumer group that no consumer joins, and part of the same transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harvest.core.envelope import Envelope
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import StillHeld
from harvest.core.row import Row
from harvest.errors import SinkUnavailable
from harvest.sinks.kafka.clients import make_client_again, said
from harvest.sinks.kafka.committed_checkpoint import newest_checkpoint
from harvest.sinks.kafka.producers import (
    ASK_TIMEOUT_S,
    Producers,
    Report,
    produce,
)
from harvest.sinks.kafka.refusals import (
    BadTopics,
    RowError,
    RowErrors,
    TopicLook,
    advice,
    unwritable_topics,
)
from harvest.sinks.kafka.settings import connection_settings, consumer_settings
from marshal_py.client.kafka_clients import PRODUCER_FAILED, give_up, problem_of

__all__ = ["TransactionalSink"]

_OPEN_TIMEOUTS_S: Final = (0.1, 0.15, 0.2, 0.25, 0.3, 1.0, 3.0)
_STEP_S: Final = 0.5  # how long the lease may go unasked while the broker is silent
_ABORT_TIMEOUT_S: Final = 2.0
_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}
_PROBLEMS: Final = (BadTopics, RowError, KafkaException, SystemError)
_FEW: Final = 1_000
_NO_OFFSET: Final = 0  # negative offsets say that nothing was committed


class TransactionalSink:
    """Deliveries as Kafka transactions, with checkpoints. Implements `Sink`.

    - `config`: librdkafka settings of the producer, all passed through.
    - `base_config`: those of the reader of the checkpoint.
    - `name`: of the outbox, the same in every process that may harvest it. The `transactional.id`
      and the consumer group that keeps the checkpoint are both ``harvest.NAME``.
    - `checkpoint_topic`: a topic that exists; its partition 0 is what the offset is committed for.
    - `wait_for_topics`: rows of topics that do not exist (yet) are not reported as refused.
    - `envelope`: what is added to every record.
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
        envelope: Envelope | None = None,
    ) -> None:
        self._producers = Producers(config, f"harvest.{name}")
        self._envelope = envelope
        self._producer: Producer | None = None
        """From `open` to the first failure."""
        self._still_held: StillHeld = lambda: False
        self._wait_for_topics = wait_for_topics
        self._errors = RowErrors(wait_for_topics=wait_for_topics)
        self._topics = TopicLook()
        self._failed_before = False
        """Whether the last delivery failed: this one finds out which row it was for."""
        self._reader_settings = consumer_settings(base_config, f"harvest.{name}")
        self._reader: Consumer | None = None
        self._checkpoint_topic = checkpoint_topic
        self._completed_s = float("-inf")
        """When the last transaction may be expected to be completed."""

    def prepare(self) -> None:
        """See `Sink.prepare`."""
        self._connected_reader()
        self._producers.prepare()

    def open(self, still_held: StillHeld) -> str | None:
        """See `Sink.open`."""
        self._give_up()
        self._still_held = still_held
        self._topics = TopicLook(still_held)
        producer = self._fence()
        checkpoint = self._read_checkpoint()
        self._producer = producer
        return checkpoint

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        """See `Sink.deliver`."""
        producer = self._producer
        if producer is None:
            return Failure("an earlier delivery failed, and the sink was not opened again")
        if not self._still_held():
            return self._failed("the lease is lost")
        failure = self._attempt(producer, rows, checkpoint)
        self._failed_before = failure is not None
        return failure

    def close(self) -> None:
        """See `Sink.close`. It may be opened again."""
        self._give_up()
        self._producers.close()
        self._reader = None

    def _give_up(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            give_up(producer)

    # --- Opening ---

    def _fence(self) -> Producer:
        """A producer that has fenced all others of this outbox.

        If the one before has a transaction open, the broker aborts it and says "try again", for
        which librdkafka waits half a second; a new producer need not. A busy broker takes several
        tenths of a second to abort one, so several are tried before one may wait that long.
        """
        problem: KafkaException | None = None
        for timeout_s in _OPEN_TIMEOUTS_S:
            if not self._still_held():
                raise SinkUnavailable("the lease was lost while Kafka was being opened")
            producer = self._producers.take()
            problem = problem_of((KafkaException,), producer.init_transactions, timeout_s)
            if problem is None:
                return producer
            give_up(producer)
            if not problem.args[0].retriable():
                break
        assert problem is not None  # noqa: S101
        raise SinkUnavailable(f"Kafka began no transactions: {said(problem)}")

    def _read_checkpoint(self) -> str | None:
        try:
            return newest_checkpoint(
                self._connected_reader(), self._checkpoint_topic, ASK_TIMEOUT_S, self._still_held
            )
        except KafkaException as error:
            self._reader = None  # the next one asks any broker who the coordinator is
            text = f"the checkpoint cannot be read: {said(error)}"
            raise SinkUnavailable(text) from error

    def _connected_reader(self) -> Consumer:
        if self._reader is None:
            self._reader = make_client_again(Consumer, self._reader_settings)
        return self._reader

    # --- Delivering ---

    def _attempt(self, producer: Producer, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        self._errors = RowErrors(wait_for_topics=self._wait_for_topics)
        problem = problem_of(_PROBLEMS, self._topics.look, producer, rows, self._errors)
        if problem is None:
            problem = self._transact(producer, rows, checkpoint)
        return None if problem is None else self._failure_of(problem, rows)

    def _failure_of(self, problem: Exception, rows: Sequence[Row]) -> Failure:
        if isinstance(problem, BadTopics):
            return self._failed("topics that cannot be written to", rows)
        if isinstance(problem, RowError):
            self._errors.add(problem.row_id, str(problem), problem.code, certain=True)
            return self._failed(f"row {problem.row_id}: {problem}", rows)
        if isinstance(problem, KafkaException):
            self._blame_topics(problem.args[0], rows)
            return replace(self._failed(said(problem), rows), fenced=_is_fenced(problem))
        # confluent-kafka raises a SystemError over a producer that is given up
        failure = self._failed(f"the producer has given up: {problem.__cause__ or problem}", rows)
        return replace(failure, fenced=_is_fenced(problem.__cause__))

    def _transact(
        self, producer: Producer, rows: Sequence[Row], checkpoint: str
    ) -> Exception | None:
        """Deliver in a transaction; if that fails, abort it, and return why."""
        problem = problem_of(_PROBLEMS, self._deliver, producer, rows, checkpoint)
        if problem is None:
            return None
        if _code(problem) == KafkaError._STATE and self._still_held():
            # It only says that the transaction has failed: so does a position that is under way
            # while the broker refuses the rows. Whatever is asked for afterwards fails with the
            # reason. So the position is sent again, which commits nothing.
            problem = problem_of(_PROBLEMS, self._send_position, producer, checkpoint) or problem
        with contextlib.suppress(*PRODUCER_FAILED):  # readers wait for an open transaction
            producer.purge()
            producer.abort_transaction(_ABORT_TIMEOUT_S)
        return problem

    def _deliver(self, producer: Producer, rows: Sequence[Row], checkpoint: str) -> None:
        # While Kafka completes the transaction before, which takes it about as long as the commit,
        # it says "try again" to this one. librdkafka does so after 20 ms for partitions, and after
        # a millisecond for the position: which then goes first, unless the rows take their time.
        position_first = len(rows) <= _FEW and time.monotonic() < self._completed_s
        producer.begin_transaction()
        if position_first:
            self._send_position(producer, checkpoint)
        # Without reports of single rows: whether all were written, the commit says.
        report = self._report if self._failed_before else None
        produce(producer, rows, report, self._make_room, self._envelope)
        if not position_first:
            self._send_position(producer, checkpoint)
        began_s = time.monotonic()
        self._insist(producer.commit_transaction)
        self._completed_s = 2 * time.monotonic() - began_s

    def _make_room(self) -> None:
        assert self._producer is not None  # noqa: S101
        self._producer.poll(0.01)
        if not self._still_held():
            raise _lease_lost()

    def _report(self, row_id: int) -> Report:
        return partial(self._reported, row_id)

    def _reported(self, row_id: int, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._errors.add(row_id, error.str(), error.code())

    def _blame_topics(self, error: KafkaError, rows: Sequence[Row]) -> None:
        """A transaction fails as a whole for topics that may not be written to: which are they?"""
        if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return
        connection = connection_settings(self._producers.settings)
        bad = unwritable_topics(connection, {row[1] for row in rows})
        for row in rows:
            if row[1] in bad:
                self._errors.add(row[0], advice(row[1], error), error.code())

    def _failed(self, reason: str, rows: Sequence[Row] = ()) -> Failure:
        self._give_up()
        return self._errors.failure(reason, rows, self._producers.settings)

    def _send_position(self, producer: Producer, checkpoint: str) -> None:
        position = TopicPartition(self._checkpoint_topic, 0, _NO_OFFSET, metadata=checkpoint)
        group = self._connected_reader().consumer_group_metadata()
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


def _code(error: BaseException | None) -> int | None:
    return error.args[0].code() if isinstance(error, KafkaException) else None


def _is_fenced(error: BaseException | None) -> bool:
    return _code(error) in _FENCED


def _lease_lost() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._STATE, "the lease is lost"))
