"""A Kafka of one topic that fails as real ones do, and producers as confluent-kafka has them.

What a producer is told may come too late, or never: a commit of unknown outcome was made or was not
(`KafkaError.retriable`), a transaction has to be aborted, a producer was fenced by another, reports
get lost when a producer is given up, a queue is full. All of it is drawn from one `random.Random`.

At any call another process may come in (`Kafka.at_any_call`), or this one may die (`Died`).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

__all__ = ["Died", "Kafka", "Producer", "Reader"]

Report = Callable[[Any, Any], None]


class Died(BaseException):
    """The process ends here."""


never_freed: list[BaseException | None] = []
"""What was being handled when confluent-kafka raised something: it keeps that for ever, as here."""


def _error(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> Any:
    never_freed.append(sys.exc_info()[1])
    return KafkaException(KafkaError(code, "simulated", fatal, retriable, abort))


class Kafka:
    """The brokers: what was committed, and who may write.

    - `trouble`: the part of calls that do not go well.
    """

    def __init__(self, seed: int, trouble: float) -> None:
        self.dice = random.Random(seed)
        self.trouble = trouble
        self.records: list[tuple[bytes, bytes]] = []
        """(key, value) as a reader of committed records has them."""
        self.checkpoint: str | None = None
        self.mark = ""
        """What a reader committed beside it."""
        self.past: list[tuple[str | None, str]] = [(None, "")]
        """What the coordinators had that are none any more: (checkpoint, mark)."""
        self.owner: Producer | None = None
        """Who opened the transactional id last."""
        self.at_any_call: Callable[[], None] = lambda: None
        self.seen: dict[str, int] = {}
        """How often which trouble came."""

    def happens(self, what: str, part: float = 1.0) -> bool:
        """Whether this trouble comes now."""
        comes = self.dice.random() < self.trouble * part
        self.seen[what] = self.seen.get(what, 0) + comes
        return comes

    def call(self) -> None:
        """Something may come in between."""
        self.at_any_call()
        if self.happens("the process dies", 0.1):
            raise Died

    def reader(self, *_: Any, **__: Any) -> Reader:
        """What stands in for confluent-kafka's `Consumer`."""
        return Reader(self)

    def producer(self, settings: Any, **_: Any) -> Producer:
        """What stands in for confluent-kafka's `Producer`."""
        return Producer(self, settings)


class Reader:
    """Reads the position of a group."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def consumer_group_metadata(self) -> str:
        """As confluent-kafka's."""
        return "group"

    def list_topics(self, topic: str, timeout: float) -> Any:
        """As confluent-kafka's."""
        del timeout
        self._kafka.call()
        if self._kafka.happens("no broker answers", 0.5):
            raise _error(KafkaError._TRANSPORT)
        found = SimpleNamespace(error=None, partitions={0: None, 1: None})
        return SimpleNamespace(topics={topic: found})

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> None:
        """As confluent-kafka's; a broker that is no coordinator any more commits nothing."""
        assert asynchronous, "it may take as long as the broker likes"
        (mark,) = offsets
        assert (mark.topic, mark.partition) == ("t", 1)
        self._kafka.call()
        if not self._kafka.happens("the mark is committed nowhere"):
            self._kafka.mark = mark.metadata

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        """As confluent-kafka's."""
        del timeout
        assert [(p.topic, p.partition) for p in places] == [("t", 0), ("t", 1)]
        self._kafka.call()
        if self._kafka.happens("the position is not read"):
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        if self._kafka.happens("the position comes with an error"):
            error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return [SimpleNamespace(error=error, offset=-1001, metadata="") for _ in places]
        has = (self._kafka.checkpoint, self._kafka.mark)
        if self._kafka.happens("who was the coordinator once answers"):
            has = self._kafka.dice.choice(self._kafka.past)
        return [
            SimpleNamespace(error=None, offset=0 if text else -1001, metadata=text or "")
            for text in has
        ]


class Producer:
    """One producer. `transactional` if it has a transactional id."""

    def __init__(self, kafka: Kafka, settings: Any) -> None:
        self._kafka = kafka
        self._transactional = "transactional.id" in settings
        self._queue: list[tuple[bytes, bytes, Report | None]] = []
        """Handed over, and not sent."""
        self._written: list[tuple[bytes, bytes]] = []
        """Of a transaction that is open at the broker."""
        self._position: str | None = None
        self._reports: list[tuple[Report, Any]] = []
        self._state = "new"
        """ "new", "idle", "open" (a transaction), "failed" (it is to be aborted), "fatal"."""
        self._committed = False
        """The broker has taken the commit that nobody was told of yet."""

    def list_topics(self, topic: str, **_: Any) -> Any:
        """As confluent-kafka's."""
        self._kafka.call()
        if self._kafka.happens("no broker answers", 0.5):
            raise _error(KafkaError._TRANSPORT)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    # Transactions

    def init_transactions(self, timeout_s: float) -> None:
        """Fence whoever was before."""
        del timeout_s
        self._kafka.call()
        if self._kafka.happens("opening takes too long, and nothing was done"):
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        self._kafka.owner = self  # what another one had open is aborted
        if self._kafka.happens("opening takes too long, though it was done"):
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        self._state = "idle"

    def begin_transaction(self) -> None:
        """Locally, as in librdkafka."""
        if self._state != "idle":
            raise _error(KafkaError._STATE)
        self._state, self._written, self._position, self._committed = "open", [], None, False

    def send_offsets_to_transaction(self, positions: Any, group: str, timeout_s: float) -> None:
        """Part of the transaction."""
        del group, timeout_s
        self._kafka.call()
        self._must_be("open")
        if self._kafka.happens("the position takes too long"):
            if self._kafka.dice.random() < 0.5:
                self._position = positions[0].metadata
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        if self._kafka.happens("the position is refused"):
            self._state = "failed"
            raise _error(KafkaError.UNKNOWN_TOPIC_OR_PART, abort=True)
        self._position = positions[0].metadata

    def commit_transaction(self, timeout_s: float) -> None:
        """Write what waits, and commit. Asked again after a time-out, it goes on where it was."""
        del timeout_s
        self._kafka.call()
        if self._committed:
            if not self._kafka.happens("the commit takes too long again", 3.0):
                self._state, self._committed = "idle", False
                return
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        self._must_be("open")
        if not self._send():
            self._state = "failed"
            raise _error(KafkaError._FAIL, abort=True)
        if self._kafka.happens("the commit takes too long, and was not made"):
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        if self._kafka.happens("the commit is refused"):
            self._state = "failed"
            raise _error(KafkaError.CONCURRENT_TRANSACTIONS, abort=True)
        self._kafka.records += self._written
        self._kafka.past.append((self._kafka.checkpoint, self._kafka.mark))
        self._kafka.checkpoint = self._position
        self._committed = True
        if self._kafka.happens("the process dies when it has committed", 0.3):
            raise Died
        if self._kafka.happens("the commit takes too long, though it was made"):
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        self._state, self._committed = "idle", False

    def abort_transaction(self, timeout_s: float) -> None:
        """Drop it."""
        del timeout_s
        self._kafka.call()
        if self._state == "fatal":
            raise _error(KafkaError._FATAL, fatal=True)
        if self._kafka.happens("the abort takes too long"):
            raise _error(KafkaError._TIMED_OUT, retriable=True)
        self._drop(KafkaError._PURGE_QUEUE)
        self._written, self._state = [], "idle"

    def _must_be(self, state: str) -> None:
        if self._kafka.owner is not self:
            self._state = "fatal"
            raise _error(KafkaError._FENCED, fatal=True)
        if self._state != state:
            raise _error(KafkaError._STATE)

    # Records

    def produce(
        self, topic: str, value: bytes, key: bytes, *, on_delivery: Report | None = None, **_: Any
    ) -> None:
        """Hand one over."""
        del topic
        if self._kafka.happens("the queue is full", 0.5):
            raise BufferError
        if self._state == "fatal":
            raise _error(KafkaError._FATAL)  # not marked as fatal, in truth too
        self._queue.append((key, value, on_delivery))

    def _send(self) -> bool:
        """Write what waits; after the first that fails none of this producer (it is gapless)."""
        while self._queue:
            key, value, report = self._queue.pop(0)
            if self._kafka.happens("a record is refused", 0.2):
                self._report(report, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
                self._drop(KafkaError._GAPLESS_GUARANTEE)
                return False
            if self._kafka.happens("a record is written and not acknowledged", 0.2):
                self._write(key, value)
                self._report(report, KafkaError(KafkaError._MSG_TIMED_OUT))
                self._drop(KafkaError._MSG_TIMED_OUT)
                return False
            self._write(key, value)
            self._report(report, None)
        return True

    def _write(self, key: bytes, value: bytes) -> None:
        (self._written if self._transactional else self._kafka.records).append((key, value))

    def _drop(self, code: int) -> None:
        for _, _, report in self._queue:
            self._report(report, KafkaError(code))
        self._queue.clear()

    def _report(self, report: Report | None, error: Any) -> None:
        if report is not None:
            self._reports.append((report, error))

    def poll(self, timeout_s: float) -> int:
        """Send, and tell what became of it. A producer that is given up loses reports."""
        del timeout_s
        if not self._transactional:
            if self._state == "fatal" or self._kafka.happens("the producer is given up", 0.3):
                self._state = "fatal"
                self._queue.clear()
                del self._reports[: self._kafka.dice.randint(0, len(self._reports))]
                raise _error(KafkaError._GAPLESS_GUARANTEE, fatal=True)
            if not self._send():
                self._state = "fatal"
        told, self._reports = self._reports, []
        for report, error in told:
            report(error, None)
        return len(told)

    def purge(self) -> None:
        """Have what is under way reported as failed."""
        self._drop(KafkaError._PURGE_QUEUE)

    def __len__(self) -> int:
        return len(self._queue) + len(self._reports)
