"""The ground of harvesters: a database with an outbox, and a broker that takes its rows.

A statement, or a request to the broker, takes effect when it arrives, whatever has become of its
sender: killed, frozen, or tired of waiting. An answer may be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar
from uuid import UUID

from harvest.core.failure import Failure
from harvest.core.interfaces.mark_store import Backlog, Finding
from harvest.core.interfaces.sink import Settle, StillHeld
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.core.source import Registration, Source
from harvest.errors import SinkUnavailable, StoreUnavailable
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable
from tests.simulation.whole.green import MS, Hub, Machine, current_thread, sleep

T = TypeVar("T")

TIMEOUT_S: Final = 3.0


class Server:
    """What a database and a broker have in common: outages, slowness, answers that get lost."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name = hub, name
        self.down_until = 0
        self.slow_until = 0
        self.losing_until = 0

    def latency(self) -> int:
        span = int((0.2 + self.hub.random.random()) * MS)
        if self.hub.now < self.slow_until:
            span *= self.hub.random.choice((60, 300, 1_500))
        return span

    def call(self, work: Callable[[], T], error: type[Exception]) -> T:
        """Have `work` done there, and wait for the answer. Raises `error` when none comes."""
        hub, me = self.hub, current_thread()
        box: list[T] = []
        wake = me.waker()

        def arrive() -> None:
            if hub.now < self.down_until:
                hub.fired[f"{self.name}_down"] += 1
                hub.at(hub.now + self.latency(), wake)
                return
            answer = work()
            if hub.now < self.losing_until and hub.random.random() < 0.5:
                hub.fired[f"{self.name}_answer_lost"] += 1
                return
            hub.at(hub.now + self.latency(), reply, answer)

        def reply(answer: T) -> None:
            box.append(answer)
            wake()

        hub.at(hub.now + self.latency(), arrive)
        me.park(TIMEOUT_S)
        if not box:
            raise error(f"{self.name}: no answer")
        return box[0]

    def heal(self) -> None:
        self.down_until = self.slow_until = self.losing_until = 0


class SimStore:
    """A `MarkStore` over the simulated network: every statement is one of `MemoryMarkStore`."""

    def __init__(self, server: Server, table: MemoryTable) -> None:
        self._server = server
        self._store = MemoryMarkStore(table)

    def _do(self, work: Callable[[], T]) -> T:
        return self._server.call(work, StoreUnavailable)

    def connect(self) -> None:
        self._do(lambda: None)

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        hub, asked_at = self._server.hub, self._server.hub.now

        def statement() -> list[Row]:
            if (hub.now - asked_at) / MS > valid_ms:
                hub.fired["mark_too_late"] += 1
                return self._store.mark(term, batch, limit, 0)
            return self._store.mark(term, batch, limit, valid_ms)

        return self._do(statement)

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        return self._do(lambda: self._store.purge(ids, tags))

    def delete(self, ids: Sequence[int]) -> int:
        return self._do(lambda: self._store.delete(ids))

    def clear(self, checkpoint: Checkpoint) -> int:
        return self._do(lambda: self._store.clear(checkpoint))

    def reset(self, ids: Sequence[int], tag: UUID) -> int:
        return self._do(lambda: self._store.reset(ids, tag))

    def ping(self) -> None:
        self._do(self._store.ping)

    def source(self) -> Source:
        return self._do(self._store.source)

    def promoted_at(self) -> int | None:
        return self._do(self._store.promoted_at)

    def log_end(self) -> int:
        return self._store.log_end()

    def visit(self, token: str) -> Source:
        return self._do(lambda: self._store.visit(token))

    def register(self, ours: Registration) -> Registration:
        return self._do(lambda: self._store.register(ours))

    def registration(self) -> Registration | None:
        return self._do(self._store.registration)

    def register_anew(self, ours: Registration) -> None:
        self._do(lambda: self._store.register_anew(ours))

    def backlog(self) -> Backlog:
        return self._store.backlog()

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        return self._store.init(value_type=value_type)

    def check(self) -> list[Finding]:
        return self._store.check()

    def cancel(self) -> None:
        """The statement under way goes on at the server; nobody waits for it long."""

    def close(self) -> None:
        """Nothing is kept open."""


@dataclass
class Channel:
    """What the broker keeps under one transactional.id: who may write, and the checkpoint."""

    writer: int = 0
    machine: str = ""
    checkpoint: str | None = None
    committed: set[object] = field(default_factory=set)


class Broker(Server):
    """What readers of committed records see, and who may write."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, "broker")
        self.channels: dict[int, Channel] = {}
        self.refusing_until = 0
        self.largest = hub.random.choice((None, None, 8, 40))
        """How many rows fit a transaction, at the rate at which it takes them."""
        self.bad: Collection[int] = ()
        """The ids of rows that are refused however often they are sent."""
        self.unfenced: set[bytes | None] = set()
        """Keys of which a row came without a transaction, late, after somebody else had begun."""
        self.watch: Callable[[Row], None] = lambda _: None

    def heal(self) -> None:
        super().heal()
        self.refusing_until = 0


class SimSink:
    """A `Sink` with transactions."""

    atomic = True

    def __init__(self, broker: Broker, *, shard: int = 0) -> None:
        self._broker = broker
        self._channel = broker.channels.setdefault(shard, Channel())
        self._writer = -1
        self._still_held: StillHeld = lambda: False

    def prepare(self) -> None:
        self._broker.call(lambda: None, SinkUnavailable)

    def open(self, still_held: StillHeld) -> str | None:
        broker, channel = self._broker, self._channel
        me = current_thread().machine.name.split(".")[0]
        self._writer = -1

        def fence() -> tuple[int, str | None]:
            if channel.machine not in ("", me):
                broker.hub.counts["moved"] += 1
            channel.machine = me
            channel.writer += 1
            return channel.writer, channel.checkpoint

        self._writer, checkpoint = broker.call(fence, SinkUnavailable)
        self._still_held = still_held
        return checkpoint if self.atomic else None

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        if self._writer < 0:
            return Failure("an earlier delivery failed")
        if not self._still_held():
            return self._failed("the lease is lost")
        return self._in_transaction(rows, checkpoint)

    def _failed(
        self,
        reason: str,
        undelivered: frozenset[int] | None = None,
        refused: frozenset[int] = frozenset(),
    ) -> Failure:
        self._writer = -1
        return Failure(reason, undelivered, refused=refused)

    def _bad(self, rows: Sequence[Row]) -> frozenset[int]:
        bad = frozenset(row[0] for row in rows if row[0] in self._broker.bad)
        self._broker.hub.fired["bad_row_refused"] += len(bad)
        return bad

    def _in_transaction(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        broker, hub, writer, transaction = self._broker, self._broker.hub, self._writer, object()
        channel = self._channel
        sleep(hub.random.random() * 0.003)  # the rows are on their way, for nobody to see
        if bad := self._bad(rows):
            return self._failed("too large", refused=bad)
        if broker.largest is not None and len(rows) > broker.largest:
            hub.fired["transaction_timed_out"] += 1
            return self._failed("the transaction timed out")

        def commit() -> str:
            if hub.now < broker.refusing_until:
                hub.fired["delivery_refused"] += 1
                return "refused"
            if writer != channel.writer:
                hub.fired["fenced"] += 1
                return "fenced"
            if transaction not in channel.committed:
                channel.committed.add(transaction)
                channel.checkpoint = checkpoint
                for row in rows:
                    broker.watch(row)
            return ""

        while True:
            if not self._still_held():
                return self._failed("the lease is lost")
            try:
                problem = broker.call(commit, SinkUnavailable)
            except SinkUnavailable:
                continue  # the outcome is not known: ask again, while we lead
            return self._failed(problem) if problem else None

    def close(self) -> None:
        self._writer = -1


@dataclass
class _UnderWay:
    """Rows on their way to the broker, and what it has answered."""

    rows: Sequence[Row]
    settle: Settle
    acknowledged: set[int] = field(default_factory=set)
    answered: int = 0

    @property
    def decided(self) -> bool:
        return self.answered == len(self.rows)


class SimPipelinedSink(SimSink):
    """A `PipelinedSink`: no delivery waits for the one before; answers come when they come."""

    atomic = False

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._line: deque[_UnderWay] = deque()
        self._arrived_at = 0
        self._bad_ids: frozenset[int] = frozenset()

    def open(self, still_held: StillHeld) -> str | None:
        self.close()
        self._bad_ids = frozenset()
        return super().open(still_held)

    def submit(self, rows: Sequence[Row], settle: Settle) -> None:
        hub, machine = self._broker.hub, current_thread().machine
        sent = _UnderWay(rows, settle)
        self._line.append(sent)
        hub.counts["submitted"] += 1
        hub.counts["submitted while others were under way"] += len(self._line) > 1
        if self._writer < 0 or not self._still_held():
            self._writer = -1
            sent.answered = len(rows)
            self._settle()
            return
        self._bad_ids |= self._bad(rows)
        writer = self._writer
        at = max(hub.now, self._arrived_at)
        for row in rows:  # one connection: they arrive in order
            at += self._broker.latency() // 20
            hub.at(at, self._arrive, sent, row, writer, machine)
        self._arrived_at = at

    def _arrive(self, sent: _UnderWay, row: Row, writer: int, machine: Machine) -> None:
        broker, hub = self._broker, self._broker.hub
        acknowledged = False
        if row.id in self._bad_ids:
            pass
        elif hub.now < broker.down_until or hub.now < broker.refusing_until:
            hub.fired["row_refused"] += 1
        else:
            if writer != self._channel.writer:
                hub.fired["row_not_fenced"] += 1
                broker.unfenced.add(row.key)
            broker.watch(row)
            acknowledged = not (hub.now < broker.losing_until and hub.random.random() < 0.3)
            hub.fired["broker_answer_lost"] += not acknowledged
        hub.at(hub.now + broker.latency(), self._answer, sent, row, acknowledged, machine)

    def _answer(self, sent: _UnderWay, row: Row, acknowledged: bool, machine: Machine) -> None:
        sent.answered += 1
        if acknowledged:
            sent.acknowledged.add(row.id)
        if sent.decided and not machine.dead:
            machine.run(self._settle, "acks")

    def _settle(self) -> None:
        line = self._line
        while line and line[0].decided and len(line[0].acknowledged) == len(line[0].rows):
            line.popleft().settle(None)
        if line and line[0].decided:
            self._writer = -1
            if all(sent.decided for sent in line):
                everything = list(line)
                line.clear()
                ids = {row.id for sent in everything for row in sent.rows}
                for sent in everything:
                    ids -= sent.acknowledged
                refused = self._bad_ids & ids
                for sent in everything:
                    sent.settle(self._failed("not acknowledged", frozenset(ids), refused))

    def close(self) -> None:
        super().close()
        line, self._line = self._line, deque()
        for sent in line:
            sent.settle(Failure("closed", frozenset(row.id for row in sent.rows)))
