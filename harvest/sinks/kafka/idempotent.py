"""Kafka as a sink without transactions: at least once, in order (specs/HARVEST.md §5).

Theory of operation
-------------------
A delivery does not wait for the one before. What was submitted stands in a line; librdkafka's
reports tell which rows are acknowledged, and a delivery is settled when all its rows are, and all
deliveries before it are settled.

From the first row that fails on, nothing more is handed over, and nothing is settled before the
fate of everything under way is known. Then all of it is settled together, as one failure that names
the rows that were not acknowledged: what was wrong with one row may show in the rows around it, and
who lays blame must see them all. The scheduler keeps the order of the keys (`harvest.core.mark`).

The producer is gapless: when the broker refuses a row for good, every later row of its partition
fails, too. (Not when a row times out.) Unless `delivery.timeout.ms` is given, a row waits for the
broker for as long as the lease is held.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from harvest.core.envelope import Envelope
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import Settle, StillHeld
from harvest.core.row import Row
from harvest.sinks.kafka.producers import Producers, Report, produce
from harvest.sinks.kafka.refusals import BadTopics, RowError, RowErrors, TopicLook
from marshal_py.client.kafka_clients import PRODUCER_FAILED, give_up, problem_of

__all__ = ["IdempotentSink"]

_STEP_S: Final = 0.5  # how long the lease may go unasked while the broker is silent
_ROOM_S: Final = 0.01
# Acknowledgements of so long are settled together: nobody waits for them, and at a thousand rows a
# second a thread that woke for each would keep rows from being sent.
_GATHER_S: Final = 0.005
_CLOSE_S: Final = 2.0
_REFUSED: Final = "the broker refused rows"
_NOT_OPEN: Final = "an earlier delivery failed, and the sink was not opened again"


class IdempotentSink:
    """Deliveries without transactions. Implements `PipelinedSink`.

    It fences nobody, and may repeat rows after a failure: for brokers, or users, that cannot have
    transactions, and for those who want rows sooner.
    """

    atomic = False

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        wait_for_topics: bool = False,
        envelope: Envelope | None = None,
    ) -> None:
        self._producers = Producers(config, None)
        self._envelope = envelope
        self._wait_for_topics = wait_for_topics
        self._line: _Line | None = None

    def prepare(self) -> None:
        """See `Sink.prepare`."""
        self._producers.prepare()

    def open(self, still_held: StillHeld) -> str | None:
        """See `Sink.open`."""
        self._end_line()
        errors = RowErrors(wait_for_topics=self._wait_for_topics)
        self._line = _Line(self._producers, still_held, errors, self._envelope)
        return None

    def submit(self, rows: Sequence[Row], settle: Settle) -> None:
        """See `PipelinedSink.submit`."""
        if self._line is None:
            settle(Failure(_NOT_OPEN, frozenset([row[0] for row in rows])))
        else:
            self._line.submit(rows, settle)

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        """See `Sink.deliver`. Checkpoints are not kept."""
        del checkpoint
        settled = threading.Event()
        found: list[Failure | None] = []

        def settle(failure: Failure | None) -> None:
            found.append(failure)
            settled.set()

        self.submit(rows, settle)
        settled.wait()
        return found[0]

    def close(self) -> None:
        """See `Sink.close`. It may be opened again."""
        self._end_line()
        self._producers.close()

    def _end_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


class _Delivery:
    """Rows that were submitted together. Each count has one thread that writes it."""

    def __init__(self, rows: Sequence[Row], settle: Settle) -> None:
        self.rows = rows
        self.settle = settle
        self.handed_over = 0
        self.all_handed_over = False
        self.reported = 0
        self.acknowledged: set[int] = set()

    @property
    def decided(self) -> bool:
        return self.all_handed_over and self.reported == self.handed_over

    @property
    def succeeded(self) -> bool:
        return len(self.acknowledged) == len(self.rows)


class _Line:
    """The deliveries of one producer, and the thread that hears of its acknowledgements."""

    def __init__(
        self,
        producers: Producers,
        still_held: StillHeld,
        errors: RowErrors,
        envelope: Envelope | None,
    ) -> None:
        self._envelope = envelope
        self._producer: Producer = producers.take()
        self._settings = producers.settings
        self._still_held = still_held
        self._errors = errors
        self._topics = TopicLook(still_held)
        self._reason: str | None = None
        """Why nothing more is handed over."""
        self._deliveries: deque[_Delivery] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="harvest-acks", daemon=True)
        self._thread.start()

    # --- The thread that submits ---

    def submit(self, rows: Sequence[Row], settle: Settle) -> None:
        """Hand the rows over, unless a delivery has failed."""
        delivery = _Delivery(rows, settle)
        with self._changed:
            self._deliveries.append(delivery)  # and tell the other thread when the rows are sent
        if self._reason is None:
            self._hand_over(delivery)
        delivery.all_handed_over = True
        self._settle()

    def _hand_over(self, delivery: _Delivery) -> None:
        def report(row_id: int) -> Report:
            delivery.handed_over += 1
            return partial(self._reported, delivery, row_id)

        try:
            self._topics.look(self._producer, delivery.rows, self._errors)
            if not self._still_held():  # now: that look may have taken its time
                self._fail("the lease is lost")
                return
            produce(self._producer, delivery.rows, report, self._make_room, self._envelope)
        except BadTopics:
            self._fail("topics that cannot be written to")
        except RowError as error:
            delivery.handed_over -= 1
            self._errors.add(error.row_id, str(error), error.code, certain=True)
            self._fail(f"row {error.row_id}: {error}")
        except _GivenUp:
            delivery.handed_over -= 1
        except SystemError as error:  # confluent-kafka raises one over a producer that is given up
            delivery.handed_over -= 1
            self._fail(f"the producer has given up: {error.__cause__ or error}")

    def _make_room(self) -> None:
        """Wait for a report, after which the producer's queue may have room."""
        if not self._still_held():
            self._fail("the lease is lost")
        if self._reason is not None:
            raise _GivenUp
        with self._changed:
            self._changed.notify_all()
            self._changed.wait(_ROOM_S)

    def close(self) -> None:
        """Give up what is under way; it is settled as a failure."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._fail("the sink was closed")
        _purge(self._producer)
        self._thread.join(_CLOSE_S)
        give_up(self._producer)

    # --- The thread that hears of acknowledgements ---

    def _run(self) -> None:
        while self._is_waited_for():
            if problem_of(PRODUCER_FAILED, self._gather) is not None:
                self._fail(_REFUSED)  # the producer is given up: the reports follow
                _purge(self._producer)
            if not self._still_held():
                self._fail("the lease is lost")
                _purge(self._producer)
            if self._reason is not None and not len(self._producer):
                self._write_off()
            self._settle()

    def _gather(self) -> None:
        self._producer.poll(_STEP_S)
        time.sleep(_GATHER_S)
        self._producer.poll(0)

    def _is_waited_for(self) -> bool:
        """Wait until something is under way; False when there never will be any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._deliveries or self._closing)
            return bool(self._deliveries)  # when closing, until all are reported

    def _reported(
        self, delivery: _Delivery, row_id: int, error: KafkaError | None, _: object
    ) -> None:
        delivery.reported += 1
        if error is None:
            delivery.acknowledged.add(row_id)
        else:
            self._errors.add(row_id, error.str(), error.code())
            self._fail(_REFUSED)

    def _write_off(self) -> None:
        """No report is to come. What confluent-kafka raises may have come instead of one."""
        with self._changed:
            for delivery in self._deliveries:
                if delivery.all_handed_over:
                    delivery.reported = delivery.handed_over

    # --- Both ---

    def _fail(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason

    def _settle(self) -> None:
        """Settle what is decided, in order; after a failure everything at once, or nothing yet."""
        with self._changed:
            deliveries = self._deliveries
            while deliveries and deliveries[0].decided and deliveries[0].succeeded:
                deliveries.popleft().settle(None)
            if deliveries and all(d.decided for d in deliveries) and self._reason is not None:
                failure = self._failure(deliveries)
                while deliveries:
                    deliveries.popleft().settle(failure)
            self._changed.notify_all()

    def _failure(self, deliveries: Sequence[_Delivery]) -> Failure:
        rows = [row for delivery in deliveries for row in delivery.rows]
        acknowledged = set().union(*[delivery.acknowledged for delivery in deliveries])
        undelivered = frozenset([row[0] for row in rows]) - acknowledged
        return self._errors.failure(self._reason or _REFUSED, rows, self._settings, undelivered)


class _GivenUp(Exception):
    """A delivery has failed while this one was handed over."""


def _purge(producer: Producer) -> None:
    """Have everything that is under way reported as failed."""
    with contextlib.suppress(*PRODUCER_FAILED):
        producer.purge()
