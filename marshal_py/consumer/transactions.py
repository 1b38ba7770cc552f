"""Exactly once from Kafka to Kafka: consume, transform, produce, in transactions.

A lease cannot stop a process that was suspended between looking and acting; Kafka's transaction
coordinator can. Each claimed partition has a producer whose `transactional.id` is made of the group
and the partition: the next holder's producer fences the last one's, wherever that process is. Each
transaction writes the results of a batch and, with them, how far the input was processed. Whoever
takes over first fences, then reads that offset, and leaves out what lies below.

The offset lives in Kafka's committed offsets of the group, with the epoch of the claim; the
position in the coordination log follows it, and only says from where to fetch. But where it was set
(`Consumer.seek`, an operator, a partition that was cut off), offsets that were committed under
earlier claims mean nothing any more. docs/how-to/recipes.md shows the use.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import (
    Consumer as KafkaConsumer,
)
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from marshal_py.client.acl import denied_on
from marshal_py.client.committed import newest_committed
from marshal_py.client.kafka_clients import (
    CONNECT_AGAIN_S,
    RECONNECT,
    TRANSACTIONAL_PRODUCER,
    connect,
)
from marshal_py.client.marshal import Claim
from marshal_py.client.settings import kafka_config
from marshal_py.consumer.consumer import Batch, Consumer
from marshal_py.errors import ConfigurationError, NotInVersion1
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.messages import NO_OFFSET

__all__ = ["Transactions"]

logger = logging.getLogger("marshal_py.transactions")

Transform = Callable[[Batch, Producer], None]

STEP_S: Final = 5.0
"""One attempt at a step of a transaction; between two, the claim is looked at."""

ABORT_S: Final = 10.0

_USELESS: Final = (KafkaError._FATAL, KafkaError._FENCED, KafkaError._STATE)
"""What a producer says that has been fenced while it was filled."""


class _ClaimProducer:
    """The producer of one claim, and the input offset below which everything is done."""

    def __init__(self, claim: Claim, producer: Any, done_below: int) -> None:
        self.claim = claim
        self.producer = producer
        self.done_below = done_below


class _Aborted(Exception):
    """The transaction was aborted, or its producer fenced. `producer_is_lost`: it needs another."""

    def __init__(self, why: str, *, producer_is_lost: bool) -> None:
        super().__init__(why)
        self.producer_is_lost = producer_is_lost


class Transactions:
    """Runs a transformation over a consumer's batches, each in a Kafka transaction.

    ::

        with (
            Consumer("localhost:9092", group_id="tax", topics="orders", auto_ack=False) as consumer,
            Transactions(consumer) as transactions,
        ):
            def tax(batch, producer):
                for message in batch:
                    producer.produce("taxed", transform(message.value()), key=message.key())

            transactions.run(tax)

    Guarantee: for readers with ``isolation.level=read_committed`` (librdkafka's default), the
    results of each input message are there once, whatever processes are killed, suspended or share
    a partition by mistake. Effects of the transformation other than what it produces are outside of
    that: it may be called again for messages whose transaction was aborted.

    - `consumer`: at least once, with ``auto_ack=False`` and without `mirror_offsets`.
    - `producer`: librdkafka settings for the producers, beyond those of the consumer's client.
    - `transaction_timeout_ms`: an open transaction of a process that died ends after this time at
      the latest; usually its successor ends it.

    Raises `ConfigurationError`, and `NotInVersion1` for a consumer with ``wire="text"``.
    """

    def __init__(
        self,
        consumer: Consumer,
        producer: Mapping[str, Any] | None = None,
        *,
        transaction_timeout_ms: int = 60_000,
    ) -> None:
        if consumer.mode != "at_least_once" or consumer.auto_ack:
            raise ConfigurationError(
                "transactions acknowledge by themselves what has been committed: give the consumer "
                "mode='at_least_once' and auto_ack=False"
            )
        if consumer.sharing != "partitions":
            raise ConfigurationError(
                "transactions commit one offset for each partition, where slots have one each: "
                f"leave out sharing={consumer.sharing!r}"
            )
        if consumer.mirror_offsets:
            raise ConfigurationError(
                "mirror_offsets would overwrite the offsets that the transactions commit: leave it "
                "out, they are in Kafka's committed offsets anyway"
            )
        if consumer.marshal.settings.wire == "text":
            raise NotInVersion1(
                "transactions: claims of version 1 (wire='text') have no epoch, which tells what "
                "was committed before a position was set"
            )
        self._consumer = consumer
        self._group = consumer.marshal.group_id
        base = consumer.marshal.settings.kafka
        self._config = {
            **RECONNECT,
            **TRANSACTIONAL_PRODUCER,
            **kafka_config({**base, **(producer or {})}),
            "transaction.timeout.ms": transaction_timeout_ms,
        }
        self._producers: dict[tuple[str, int], _ClaimProducer] = {}
        # A member of nothing: what it says of the group is that there is no generation to check.
        # What it is told to be committed is that of transactions that have ended.
        self._reader_config = {
            "socket.timeout.ms": int(STEP_S * 1000),  # letting go of it may take so long
            **base,
            "group.id": self._group,
            "isolation.level": "read_committed",
        }
        # No topic's name has a colon: else a group "a" and a topic "b.c" would be fenced by a group
        # "a.b" and a topic "c".
        self._ids = f"marshal.{self._group}:"
        # To hear of a wrong setting.
        connect(Producer, {**self._config, "transactional.id": self._ids})
        self._nobody = connect(KafkaConsumer, self._reader_config)

    def close(self) -> None:
        """Let go of the producers. An open transaction is aborted before."""
        self._producers.clear()
        self._nobody.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, transform: Transform, *, idle_timeout_s: float | None = None) -> None:
        """Call `transform(batch, producer)` for each batch, until the consumer is closed.

        It produces its results with `producer`, and leaves the transaction alone. A batch may be
        shorter than what was fetched: what was done already is left out. If `transform` raises, the
        transaction is aborted, and the error goes on to the caller; the batch is not done, and
        comes first when `run` is called again, by other `Transactions` of the same consumer, too.
        Ends when nothing came for `idle_timeout_s`, too. Raises what iterating the consumer raises;
        `AccessDenied` for a right that is missing, and `ConfigurationError` for a
        `transaction_timeout_ms` that the brokers do not allow.
        """
        failed = self._consumer.unfinished
        if failed is not None:  # what is committed behind it would say that it was done
            self._work_on(failed, transform)
        for batch in self._consumer.batches(idle_timeout_s=idle_timeout_s):
            self._work_on(batch, transform)

    def _work_on(self, batch: Batch, transform: Transform) -> None:
        self._consumer.unfinished = batch
        if self._work_off(batch, transform):
            for message in batch:
                self._consumer.ack(message)
        self._consumer.unfinished = None

    def _work_off(self, batch: Batch, transform: Transform) -> bool:
        """Return whether the batch is committed; False when the claim was lost instead."""
        claim = batch.claim
        key = (claim.topic, claim.partition)
        while self._may_go_on(claim):
            try:
                opened = self._producers.get(key)
                if opened is None or opened.claim is not claim:
                    opened = self._producers[key] = self._open(claim)
                todo = [message for message in batch if message.offset() >= opened.done_below]
                if todo:
                    self._transact(opened, Batch(todo, claim), transform)
                return True
            except _Aborted as problem:
                logger.warning("%s/%d at offset %d: %s", *key, batch[0].offset(), problem)
                if problem.producer_is_lost:
                    self._producers.pop(key, None)
            except BaseException:
                # It may have been committed all the same: the next producer asks how far it is.
                self._producers.pop(key, None)
                raise
        self._producers.pop(key, None)
        return False

    def _may_go_on(self, claim: Claim) -> bool:
        """Wait while the lease has lapsed; False once the claim has ended."""
        while not claim.held:
            if claim.reason is not None or self._consumer.closing:
                return False
            claim.wait_held(0.5)
        return True

    def _open(self, claim: Claim) -> _ClaimProducer:
        """Fence whoever held the partition before, and read how far it had come."""
        for key, opened in list(self._producers.items()):
            if opened.claim.reason is not None:
                del self._producers[key]
        name = f"{self._ids}{claim.topic}.{claim.partition}"
        producer = self._connect(Producer, {**self._config, "transactional.id": name})
        self._step(claim, lambda: producer.init_transactions(STEP_S))
        # From here on nothing of an earlier producer can be committed any more.
        where = TopicPartition(claim.topic, claim.partition)
        mark = TopicPartition(self._consumer.marshal.settings.topic, 0)
        try:  # not by an admin client: see `client.committed`
            found = newest_committed(
                self._nobody, where, mark, STEP_S, lambda: claim.reason is None
            )
        except KafkaException as error:
            self._check_refused(error.args[0])
            # The next one asks any broker who the coordinator is, and not the one that was.
            self._nobody = self._connect(KafkaConsumer, self._reader_config)
            raise _Aborted(f"no answer: {error.args[0].str()}", producer_is_lost=True) from None
        first_epoch_since_set = ClaimMetadata.decode(claim.metadata).first_epoch_since_set
        counts = _epoch_of(found) >= first_epoch_since_set
        return _ClaimProducer(claim, producer, found.offset if counts else NO_OFFSET)

    def _connect(self, kind: Any, config: Mapping[str, Any]) -> Any:
        """Make a client; one that cannot be made is an attempt that failed, and waited for.

        Its settings have worked: its files are being replaced, as a certificate and its key are.
        """
        try:
            return connect(kind, dict(config))
        except ConfigurationError as error:
            time.sleep(CONNECT_AGAIN_S)
            raise _Aborted(str(error), producer_is_lost=True) from None

    def _transact(self, opened: _ClaimProducer, batch: Batch, transform: Transform) -> None:
        producer, claim = opened.producer, opened.claim
        end = batch[-1].offset() + 1
        where = [TopicPartition(claim.topic, claim.partition, end, metadata=str(claim.epoch))]
        metadata = self._nobody.consumer_group_metadata()
        failure: BaseException | None = None
        try:
            self._step(claim, producer.begin_transaction)
            try:
                transform(batch, producer)
            except KafkaException as problem:
                if problem.args[0].code() in _USELESS or problem.args[0].fatal():
                    raise _Aborted(
                        f"fenced: {problem.args[0].str()}", producer_is_lost=True
                    ) from None
                raise
            self._step(claim, lambda: producer.send_offsets_to_transaction(where, metadata, STEP_S))
            self._step(claim, lambda: producer.commit_transaction(STEP_S))
        except BaseException as error:
            failure = error
        if failure is None:
            opened.done_below = end
            return
        try:  # not where it is handled: see `problem_of`
            if not (isinstance(failure, _Aborted) and failure.producer_is_lost):
                self._abort(producer)
            raise failure
        finally:
            del failure  # which has this frame

    def _step(self, claim: Claim, step: Callable[[], object]) -> None:
        """Do one step, and again while that may help and the claim has not ended."""
        while True:
            try:
                step()
                return
            except KafkaException as problem:
                error = problem.args[0]
                self._check_refused(error)
                if error.txn_requires_abort():
                    raise _Aborted(f"aborted: {error.str()}", producer_is_lost=False) from None
                # In an outage nobody hears that a claim was given back.
                is_over = claim.reason is not None or (self._consumer.closing and not claim.held)
                if error.fatal() or not error.retriable() or is_over:
                    raise _Aborted(
                        f"the producer is of no use any more: {error.str()}", producer_is_lost=True
                    ) from None
                time.sleep(0.05)  # librdkafka has waited already, in most cases

    def _check_refused(self, error: KafkaError) -> None:
        """Raise what no other attempt mends: `AccessDenied`, `ConfigurationError`."""
        code, ids = error.code(), self._ids
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            raise ConfigurationError(
                f"transaction_timeout_ms = {self._config['transaction.timeout.ms']} is more than "
                "the brokers allow (their transaction.max.timeout.ms)"
            ) from None
        lacking = {
            KafkaError.GROUP_AUTHORIZATION_FAILED: (
                *("Read", f"group {self._group!r}"),
                ("--group", self._group),
            ),
            KafkaError.TOPIC_AUTHORIZATION_FAILED: (
                *("Write", "a topic of the results"),
                ("--topic", "TOPIC"),
            ),
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
                *("Write", f"the transactional ids {ids}…"),
                ("--transactional-id", ids, "--resource-pattern-type", "prefixed"),
            ),
        }.get(code)
        if lacking is not None:
            operation, what, resource = lacking
            raise denied_on(self._config, what, resource, operation) from None

    def _abort(self, producer: Any) -> None:
        # If that fails, the next producer of this transactional.id aborts it.
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(ABORT_S)


def _epoch_of(committed: TopicPartition) -> int:
    """Return under which claim it was committed; −1 for somebody else's."""
    text = committed.metadata or ""
    return int(text) if text.isdecimal() else -1
