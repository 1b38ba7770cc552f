"""Kafka as the sinks of an outbox use it: a producer with librdkafka's manners, and transactions.

A request is sent again until somebody answers. The brokers do what arrives, whatever has become of
its sender, so whoever has heard nothing does not know: a record may be written whose delivery
failed, and a transaction committed whose commit timed out. What librdkafka promises holds here,
too: a record is written once however often it is sent, and those of a partition in order; and a
producer that has begun transactions fences those that began before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from zlib import crc32

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from harvest.core.row import Row
from tests.simulation.whole.cluster import Cluster, Link
from tests.simulation.whole.green import MS, Hub, current_thread, machine
from tests.simulation.whole.outbox import Broker

PARTITIONS: Final = 3
_AGAIN_MS: Final = 20
_BEGIN_AGAIN_MS: Final = 500
"""How long librdkafka waits before it asks again for a producer id, or for anything else."""
_UNANSWERED_MS: Final = 300
_FINISHING_MS: Final = 700
"""A busy broker takes so long to complete a transaction, at most."""
_PAST: Final = 0.1
"""How often a reader reaches who was the coordinator of its group, and is not."""
_RETRY: Final = object()
"""What a broker answers that wants to be asked again."""
_REFUSALS: Final = (KafkaError.POLICY_VIOLATION, KafkaError.INVALID_TIMESTAMP)
"""Of nothing that is in the record: no row here has a time of its own."""
_FENCED: Final = KafkaError._FENCED


@dataclass(eq=False, slots=True)
class Record:
    """What was produced. `reported`: the producer has said what became of it, or had to guess."""

    topic: str
    key: bytes | None
    value: bytes | None
    report: Any
    reported: bool = False
    written: bool = False

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value or b"")


@dataclass
class Coordinator:
    """What the brokers know of one transactional.id."""

    epoch: int = -1
    number: int = -1
    """Of the transaction that is open, or was last."""
    is_open: bool = False
    records: list[Record] = field(default_factory=list)
    position: str | None = None
    """What is part of the transaction that is open."""
    checkpoint: str | None = None
    finishing_until: int = 0
    """While a transaction is being completed, nothing else is begun."""
    mark: str | None = None
    """What a reader committed beside the checkpoint."""
    past: list[tuple[str | None, str | None]] = field(default_factory=list)
    """(checkpoint, mark) as those have it who were the group's coordinator."""

    def end(self, *, number: int) -> list[Record]:
        """The transaction is over; its records."""
        records, self.records = self.records, []
        self.position, self.is_open, self.number = None, False, number
        return records


class Kafka(Broker):
    """The brokers: what readers of committed records see is told to `watch`.

    `identify` tells the id of the row that a record is of.
    """

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.coordinators: dict[str, Coordinator] = {}
        self.identify: Callable[[bytes | None], int] = lambda _: 0
        self.link: Callable[[], Link]
        self.late = False
        """Whether the record that is shown came when its producer had given it up, or a later
        producer had begun."""
        self._producers = 0
        self._newest = 0

    def serve(self, cluster: Cluster) -> None:
        """Have the sinks of all machines reach these brokers, each over its own link."""
        self.link = lambda: cluster.link(machine())
        cluster.sink_client = self.client

    def client(self, kind: Any, settings: Mapping[str, Any]) -> Any:
        """Stands for `harvest.sinks.kafka.clients.make_client`."""
        clients = {"Producer": SimSinkProducer, "Consumer": SimReader}
        return clients[kind.__name__](self, self.link(), dict(settings))

    def is_bad(self, record: Record) -> bool:
        return self.identify(record.value) in self.bad

    def show(self, records: list[Record]) -> None:
        """Readers of committed records see these, now."""
        for record in records:
            row_id = self.identify(record.value)
            self.watch(Row(row_id, record.topic, record.key, record.value))

    def number_of_producer(self) -> int:
        """Of one that produces for the first time."""
        self._producers += 1
        return self._producers

    # Requests

    def write(self, records: list[Record], number: int) -> Any:
        """Without a transaction. None, or the code of an error."""
        if error := self._refusal(records):
            return error
        for record in records:
            if record.written:
                self.hub.counts["sent again, written once"] += 1
                continue
            record.written = True
            if number < self._newest:
                self.hub.fired["row_not_fenced"] += 1
                self.unfenced.add(record.key)
            self._newest = max(number, self._newest)
            self.late = record.reported or number < self._newest
            self.show([record])
        return None

    def begin(self, name: str) -> Any:
        """The epoch of a new producer of transactions, once those before it are fenced."""
        it = self.coordinators.setdefault(name, Coordinator())
        if self.hub.now < it.finishing_until:
            return _RETRY
        if it.is_open:
            self.hub.fired["transaction_aborted_by_successor"] += 1
            self._abort(it)
            return _RETRY
        it.epoch += 1
        return it.epoch

    def write_in(self, name: str, epoch: int, number: int, timeout: int, records: Any) -> Any:
        """In a transaction: records, or a position. None, or the code of an error."""
        it = self.coordinators[name]
        if epoch != it.epoch:
            self.hub.fired["fenced"] += 1
            return KafkaError.INVALID_PRODUCER_EPOCH
        if self.hub.now < it.finishing_until:
            return _RETRY
        if not isinstance(records, str) and (error := self._refusal(records)):
            return error
        if not it.is_open:
            it.is_open, it.number = True, number
            self.hub.at(self.hub.now + timeout, self._expire, it, epoch, number)
        if isinstance(records, str):
            it.position = records
            return None
        for record in records:
            if not record.written:
                record.written = True
                it.records.append(record)
        return None

    def end(self, name: str, epoch: int, number: int, commit: bool) -> Any:
        """A transaction is over. None, or the code of an error."""
        it, hub = self.coordinators[name], self.hub
        if epoch != it.epoch:
            hub.fired["fenced"] += 1
            return _FENCED
        if it.is_open and it.number == number:
            if not commit:
                self._abort(it, fence=False)
                return None
            if hub.random.random() < _PAST:
                it.past.append((it.checkpoint, it.mark))
            it.checkpoint = it.position if it.position is not None else it.checkpoint
            records = it.end(number=number)
            it.finishing_until = hub.now + self._finishing()
            self.show(records)
        return None

    def mark(self, name: str, mark: str | None) -> None:
        """A reader commits something beside the checkpoint; a past coordinator commits nothing."""
        it = self.coordinators.setdefault(name, Coordinator())
        if self.hub.random.random() < _PAST:
            it.past.append((it.checkpoint, it.mark))
        else:
            it.mark = mark

    def committed(self, name: str) -> Any:
        """The checkpoint and the mark, as a consumer that reads committed offsets asks for them.

        Whoever was the coordinator once, and does not know better, answers as well.
        """
        it = self.coordinators.get(name, Coordinator())
        if it.past and self.hub.random.random() < _PAST:
            self.hub.fired["past_coordinator"] += 1
            return [_committed(text) for text in self.hub.random.choice(it.past)]
        unstable = it.position is not None or self.hub.now < it.finishing_until
        if unstable:
            self.hub.fired["position_unstable"] += 1
            return KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, "simulated")
        return [_committed(text) for text in (it.checkpoint, it.mark)]

    def _finishing(self) -> int:
        return min(_FINISHING_MS * MS, self.hub.random.choice((1, 1, 5, 40)) * self.latency())

    def _abort(self, it: Coordinator, *, fence: bool = True) -> None:
        it.end(number=it.number)
        it.epoch += fence
        it.finishing_until = self.hub.now + self._finishing()

    def _expire(self, it: Coordinator, epoch: int, number: int) -> None:
        if it.is_open and (it.epoch, it.number) == (epoch, number):
            self.hub.fired["transaction_timed_out"] += 1
            self._abort(it)

    def _refusal(self, records: list[Record]) -> int | None:
        if any(self.is_bad(record) for record in records):
            self.hub.fired["bad_row_refused"] += 1
            return int(KafkaError.MSG_SIZE_TOO_LARGE)
        if self.hub.now < self.refusing_until and self.hub.random.random() < 0.3:
            self.hub.fired["delivery_refused"] += 1
            return int(self.hub.random.choice(_REFUSALS))
        return None


class _Client:
    """What the clients have in common: requests that are sent until somebody answers."""

    def __init__(self, brokers: Kafka, link: Link) -> None:
        self.brokers, self.hub, self.link = brokers, brokers.hub, link
        self.machine = machine()
        self.gone = False
        """Nothing is sent any more."""
        self._wakers: list[Callable[[], None]] = []

    def _later(self, after_ns: float, what: Callable[..., None], *args: Any) -> None:
        """Have the client do something, unless its process is dead by then, or frozen so long."""

        def do() -> None:
            if self.machine.dead:
                return
            if self.machine.frozen_until > self.hub.now:
                self.hub.at(self.machine.frozen_until, do)
                return
            what(*args)

        self.hub.at(self.hub.now + int(after_ns), do)

    def _ask(
        self,
        work: Callable[[], Any],
        then: Callable[[Any], None],
        wanted: Callable[[], bool] = lambda: True,
        again_ms: int = _AGAIN_MS,
    ) -> None:
        """Have a broker do something, as often as it takes to hear an answer while it is wanted."""
        brokers, hub, link = self.brokers, self.hub, self.link

        def send() -> None:
            if not self.gone and wanted():
                hub.at(hub.now + brokers.latency() + link.latency() // 4, arrive)

        def arrive() -> None:
            cut = link.write_cut if link.write_cut and hub.now < link.write_cut[0] else None
            if self.machine.dead and link.lose_in_flight:
                return
            if hub.now < brokers.down_until or (cut is not None and cut[1] != "lost_ack"):
                hub.fired["broker_down" if cut is None else "broker_cut_off"] += 1
                self._later(2 * _AGAIN_MS * MS, send)
                return
            answer = work()
            if cut is not None or (hub.now < brokers.losing_until and hub.random.random() < 0.5):
                hub.fired["broker_answer_lost"] += 1
                self._later(_UNANSWERED_MS * MS, send)
            elif answer is _RETRY:
                self._later(again_ms * MS, send)
            else:
                self._later(brokers.latency(), then, answer)

        send()

    def _wake(self) -> None:
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def _wait(self, is_so: Callable[[], bool], timeout: float) -> bool:
        me = current_thread()
        deadline = me.machine.now_ns + int(timeout * 1e9)
        while not is_so() and me.machine.now_ns < deadline:
            self._wakers.append(me.waker())
            me.park((deadline - me.machine.now_ns) / 1e9)
        return is_so()

    def _question(self, work: Callable[[], Any], timeout: float) -> Any:
        """Ask, and wait. Raises `KafkaException` when nobody answers in time."""
        answers: list[Any] = []
        late = False

        def then(answer: Any) -> None:
            answers.append(answer)
            self._wake()

        self._ask(work, then, lambda: not late)
        if not self._wait(lambda: bool(answers), timeout):
            late = True
            self.hub.fired["request_timeout"] += 1
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "simulated"))
        return answers[0]


def _committed(text: str | None) -> TopicPartition:
    if text is None:
        return TopicPartition("", 0, OFFSET_INVALID)
    return TopicPartition("", 0, 0, metadata=text)


class SimReader(_Client):
    """As `confluent_kafka.Consumer`, of what reads the checkpoint."""

    def __init__(self, brokers: Kafka, link: Link, settings: dict[str, Any]) -> None:
        super().__init__(brokers, link)
        assert settings["isolation.level"] == "read_committed"
        self.group: str = settings["group.id"]

    def list_topics(self, topic: str, timeout: float) -> Any:
        self._question(lambda: None, timeout)
        found = SimpleNamespace(error=None, partitions={0: None, 1: None})
        return SimpleNamespace(topics={topic: found})

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        (mark,) = offsets
        assert mark.partition == 1
        self._ask(lambda: self.brokers.mark(self.group, mark.metadata), lambda _: None)

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert [p.partition for p in partitions] == [0, 1]
        found = self._question(lambda: self.brokers.committed(self.group), timeout)
        if isinstance(found, KafkaError):
            raise KafkaException(found)
        answers: list[TopicPartition] = found
        return answers

    def consumer_group_metadata(self) -> str:
        return self.group


@dataclass
class _Operation:
    """What was asked for, and may be asked for again when it timed out."""

    name: str
    is_done: bool = False
    error: KafkaError | None = None


class SimSinkProducer(_Client):
    """As `confluent_kafka.Producer`, idempotent, with transactions or without."""

    def __init__(self, brokers: Kafka, link: Link, settings: dict[str, Any]) -> None:
        super().__init__(brokers, link)
        assert settings["enable.idempotence"] is True
        self.name: str | None = settings.get("transactional.id")
        self.gapless = bool(settings.get("enable.gapless.guarantee", False))
        self.errors_only = bool(settings.get("delivery.report.only.error", False))
        self.most_waiting = int(settings.get("queue.buffering.max.messages", 100_000))
        self.batch_bytes = int(settings.get("batch.size", 1_000_000))
        self.batch_records = int(settings.get("batch.num.messages", 10_000))
        self.transaction_ns = int(settings.get("transaction.timeout.ms", 60_000)) * MS
        timeout_ms = int(settings.get("delivery.timeout.ms", 300_000))
        if self.name is not None:
            timeout_ms = min(timeout_ms, self.transaction_ns // MS)
        self.timeout_ns = timeout_ms * MS
        self.epoch = -1
        self._number = -1
        self._transaction = 0
        self._in_transaction = False
        self._purged = False
        self._ending = False
        self._operation: _Operation | None = None
        self._error: KafkaError | None = None
        """Of the transaction, which must be aborted, or fatal."""
        self._fatal_told = False
        self._queues: list[deque[Record]] = [deque() for _ in range(PARTITIONS)]
        self._sending: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self._reports: deque[tuple[Any, KafkaError | None]] = deque()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting + len(self._reports)

    def list_topics(self, topic: str, timeout: float) -> Any:
        self._question(lambda: None, timeout)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    # Producing

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        *,
        headers: Any = None,
        on_delivery: Any = None,
    ) -> None:
        del headers
        if self._error is not None:
            code = KafkaError._FATAL if self._error.fatal() else KafkaError._STATE
            raise KafkaException(KafkaError(code, "simulated"))  # not marked as fatal, in truth too
        assert self.name is None or self._in_transaction
        if len(self) >= self.most_waiting:
            self.hub.fired["queue_full"] += 1
            raise BufferError("simulated")
        record = Record(topic, key, value, on_delivery)
        if self.brokers.is_bad(record) and len(value or b"") % 2:
            self.hub.fired["bad_row_refused"] += 1
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "simulated"))
        if self._number < 0:
            self._number = self.brokers.number_of_producer()
        self._waiting += 1
        partition = crc32(key or b"") % PARTITIONS
        self._queues[partition].append(record)
        if self.timeout_ns:
            self._later(self.timeout_ns, self._timed_out, record)
        if len(self._queues[partition]) == 1:
            self._later(MS // 10, self._send, partition)

    def _send(self, partition: int) -> None:
        queue, batch = self._queues[partition], self._sending[partition]
        if batch or not queue or self.gone or self._error is not None:
            return
        size = 0
        while queue and len(batch) < self.batch_records:
            if batch and size + queue[0].size > self.batch_bytes:
                break
            batch.append(queue.popleft())
            size += batch[-1].size
        brokers, name = self.brokers, self.name
        epoch, transaction, all_of_it = self.epoch, self._transaction, list(batch)

        def write() -> Any:
            here = [record for record in all_of_it if record.written or not record.reported]
            if name is None:
                return brokers.write(here, self._number)
            return brokers.write_in(name, epoch, transaction, self.transaction_ns, here)

        def then(code: int | None) -> None:
            self._sending[partition] = []
            for record in all_of_it:
                self._report(record, code)
            if code is None:
                self._send(partition)

        # An attempt that has left arrives, though all its records may be given up meanwhile.
        self._ask(write, then, lambda: not all(record.reported for record in all_of_it))

    def _report(self, record: Record, code: int | None) -> None:
        if record.reported:
            return
        record.reported = True
        self._waiting -= 1
        error = None if code is None else KafkaError(code, "simulated")
        if record.report is not None and not (self.errors_only and error is None):
            self._reports.append((record.report, error))
        if code is not None and code not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            if self.name is not None:
                self._must_abort(code)
            elif self.gapless and code != KafkaError._MSG_TIMED_OUT:
                self._fail_for_good(KafkaError._GAPLESS_GUARANTEE)
        self._end_when_sent()
        self._wake()

    def _timed_out(self, record: Record) -> None:
        if not record.reported:
            self.hub.fired["delivery_timeout"] += 1
            for queue in self._queues:
                if record in queue:
                    queue.remove(record)
            for partition, batch in enumerate(self._sending):
                if record in batch:
                    self.hub.fired["delivery_timeout_in_flight"] += 1
                    if all(other.reported or other is record for other in batch):
                        self._sending[partition] = []
                        self._later(0, self._send, partition)
            self._report(record, KafkaError._MSG_TIMED_OUT)

    def _must_abort(self, code: int) -> None:
        if self._error is None:
            self.hub.fired["abortable_error"] += 1
            self._error = KafkaError(code, "simulated", False, False, True)

    def _fail_for_good(self, code: int) -> None:
        if self._error is None or not self._error.fatal():
            self.hub.fired["fatal_error"] += 1
            self._error = KafkaError(code, "simulated", True)
            self._later(0, self._give_back, KafkaError._PURGE_QUEUE)

    def _give_back(self, code: int) -> None:
        """What was not sent is reported as failed."""
        for queue in self._queues:
            while queue:
                self._report(queue.popleft(), code)

    def purge(self) -> None:
        self._give_back(KafkaError._PURGE_QUEUE)
        for partition, batch in enumerate(self._sending):
            self._sending[partition] = []
            for record in batch:
                self.hub.fired["purged_in_flight"] += not record.reported
                self._report(record, KafkaError._PURGE_INFLIGHT)
        if self._purged or not self._in_transaction:
            self.gone = True
        self._purged = True

    def poll(self, timeout: float = 0) -> int:
        if not self._reports and timeout > 0:
            self._wait(lambda: bool(self._reports) or self._fatal_untold, timeout)
        if self._fatal_untold:
            self._fatal_told = True
            if self._reports and self.hub.random.random() < 0.5:
                self.hub.fired["report_lost"] += 1
                self._reports.popleft()  # the exception comes in its place
            self._raise(self._error)
        return self._serve()

    def _serve(self) -> int:
        count = 0
        while self._reports:
            report, error = self._reports.popleft()
            count += 1
            report(error, None)
        return count

    @property
    def _fatal_untold(self) -> bool:
        return self._error is not None and self._error.fatal() and not self._fatal_told

    def _raise(self, error: KafkaError | None) -> None:
        """As confluent-kafka does, which now and then raises another error over the first."""
        problem = KafkaException(error)
        if error is not None and error.fatal() and self.hub.random.random() < 0.3:
            raise SystemError("returned a result with an exception set") from problem
        raise problem

    # Transactions

    def init_transactions(self, timeout: float) -> None:
        name = self.name
        assert name is not None

        def begin(operation: _Operation) -> None:
            def begun(epoch: int) -> None:
                self.epoch = epoch
                self._done(operation, None)

            self._ask(lambda: self.brokers.begin(name), begun, again_ms=_BEGIN_AGAIN_MS)

        self._operate("init", timeout, begin)

    def begin_transaction(self) -> None:
        if self._error is not None:
            self._raise(self._error)
        assert self.epoch >= 0
        assert not self._in_transaction
        self._in_transaction = True
        self._transaction += 1

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group: str, timeout: float
    ) -> None:
        (position,) = positions
        name, epoch, number = self.name, self.epoch, self._transaction
        assert name is not None
        assert group == "harvest.outbox"
        if self._operation is None and self._error is not None:
            self._raise(self._error)

        def begin(operation: _Operation) -> None:
            def then(code: int | None) -> None:
                if code is not None:
                    self._must_abort(code)
                # What fails otherwise meanwhile shows as a state in which this cannot be done.
                error = None if self._error is None else KafkaError(KafkaError._STATE, "simulated")
                self._done(operation, error)

            self._ask(
                lambda: self.brokers.write_in(
                    name, epoch, number, self.transaction_ns, position.metadata
                ),
                then,
            )

        self._operate("send offsets", timeout, begin)

    def commit_transaction(self, timeout: float) -> None:
        """What was not sent before the transaction failed is waited for once, in vain."""
        if self._error is not None:
            self._operation, self._ending = None, False
            self._serve()
            self._raise(self._error)
        self._operate("commit", timeout, self._begin_to_commit)

    def _begin_to_commit(self, operation: _Operation) -> None:
        del operation
        self._ending = True
        self._end_when_sent()

    def _end_when_sent(self) -> None:
        operation = self._operation
        if not (self._ending and operation is not None and not self._waiting):
            return
        self._ending = False
        if self._error is not None:
            self._done(operation, self._error)
            return
        self._end(operation, commit=True)

    def _end(self, operation: _Operation, *, commit: bool) -> None:
        name, epoch, number = self.name, self.epoch, self._transaction
        assert name is not None

        def then(code: int | None) -> None:
            if code is not None:
                self._fail_for_good(code)
            else:
                self._in_transaction = False
                self._error = None
            self._done(operation, self._error)

        self._ask(lambda: self.brokers.end(name, epoch, number, commit), then)

    def abort_transaction(self, timeout: float) -> None:
        if self._error is not None and self._error.fatal():
            self._raise(self._error)
        if not self._in_transaction:
            raise KafkaException(KafkaError(KafkaError._STATE, "simulated"))
        self._operate("abort", timeout, lambda operation: self._end(operation, commit=False))

    def _done(self, operation: _Operation, error: KafkaError | None) -> None:
        operation.is_done, operation.error = True, error
        self._wake()

    def _operate(self, name: str, timeout: float, begin: Callable[[_Operation], None]) -> None:
        if self._operation is not None and self._operation.name != name:
            raise KafkaException(KafkaError(KafkaError._CONFLICT, "simulated"))
        if self._operation is None:
            self._operation = _Operation(name)
            begin(self._operation)
        operation = self._operation
        is_done = self._wait(lambda: operation.is_done, timeout)
        if name == "commit":
            self._serve()
        if not is_done:
            self.hub.fired[f"{name} timed out"] += 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "simulated", False, True))
        self._operation = None
        if operation.error is not None:
            self._raise(operation.error)
