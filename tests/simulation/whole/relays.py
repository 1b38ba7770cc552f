"""Histories of whole relayers: the real leader, dispatcher and HTTP, to destinations that fail.

One of them may be Kafka, through the real destination over a simulated producer (`kafka`). Rows go
to one destination, or each of them to two. Whatever fails, what is deleted from the table was
confirmed by each; and at each of them, a row comes when those before it in its key have come, and
in the end the last occurrences are in order, too, unless a request arrived that its sender had
given up.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from harvest.core.dead_letters import BadRowPolicy
from harvest.core.dispatcher import Policy
from harvest.core.interfaces.message_sink import MessageSink
from harvest.core.routes import Router
from harvest.core.row import Row
from harvest.databases.postgres.attempts import Attempt
from harvest.errors import StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.runtime.leadership import Tools
from harvest.runtime.relay_leader import RelayTools
from harvest.sinks.http.endpoint import HttpEndpoint, HttpSink
from harvest.sinks.kafka.destination import KafkaDestination, KafkaEndpoint
from harvest.testing.memory_table import MemoryTransaction
from tests.simulation.whole import dead_letters, harvesters
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.dead_letters import DeadLetterHarvester, SimDeadLetters
from tests.simulation.whole.green import Hub, Violation
from tests.simulation.whole.kafka import Kafka
from tests.simulation.whole.outbox import Server
from tests.simulation.whole.receiver import OUTBOX, Receiver, httpcore_over

NAMES: Final = ("left", "right")
_OF_BROKERS: Final = ("broker_down", "broker_slow", "broker_loses", "broker_refuses")


@dataclass
class Scenario(dead_letters.Scenario):
    """As of harvesters with bad rows, with destinations."""

    destinations: int = 1
    fences: bool = False
    batch_records: int = 1
    concurrency: int = 32
    timeout_ms: int = 1_000
    into_kafka: bool = False
    """Whether the first of them is a topic."""
    notes: bool = True
    """Whether what has failed is noted in the database."""


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"relays {seed}")
    base = dead_letters.generate(seed)
    made = Scenario(
        **vars(base),
        destinations=rng.choice((1, 1, 2)),
        fences=rng.random() < 0.4,
        batch_records=rng.choice((1, 1, 3, 20)),
        concurrency=rng.choice((1, 2, 32)),
        timeout_ms=rng.choice((100, 400, 2_000)),
        into_kafka=rng.random() < 0.3,
        notes=rng.random() < 0.7,
    )
    made.marks, made.atomic = True, False
    made.incidents = [
        (at, kind, rng.randrange(made.destinations) if kind in _OF_BROKERS else who, args)
        for at, kind, who, args in made.incidents
    ]
    return made


class SimAttempts:
    """An `AttemptStore` over the simulated network."""

    def __init__(self, world: World) -> None:
        self._world = world

    def record(self, attempts: Sequence[Attempt]) -> None:
        notes = self._world.notes
        self._world.database.call(
            lambda: notes.update({note.id: note for note in attempts}), StoreUnavailable
        )

    def forget(self, ids: Sequence[int]) -> None:
        def work() -> None:
            for row_id in ids:
                self._world.notes.pop(row_id, None)

        self._world.database.call(work, StoreUnavailable)

    def load(self) -> Mapping[int, int]:
        return self._world.database.call(
            lambda: {n.id: n.retries for n in self._world.notes.values() if not n.gave_up},
            StoreUnavailable,
        )

    def settled(self) -> Mapping[int, tuple[int, frozenset[str]]]:
        return self._world.database.call(
            lambda: {
                n.id: (n.fingerprint or 0, frozenset(n.delivered))
                for n in self._world.notes.values()
                if n.delivered
            },
            StoreUnavailable,
        )

    def forget_overtaken(self) -> None:
        def work() -> None:
            notes = self._world.notes
            rows = [stored.row for _, stored in sorted(self._world.table.committed.items())]
            due: dict[tuple[str, bytes | None], set[str]] = {}
            for row in rows:
                again = due.setdefault((row.topic, row.key), set())
                has = set(notes[row.id].delivered) - again if row.id in notes else set()
                if row.id in notes:
                    notes[row.id] = replace(notes[row.id], delivered=tuple(sorted(has)))
                again.update(set(self._world.names) - has)

        self._world.database.call(work, StoreUnavailable)

    def close(self) -> None:
        """Nothing is kept open."""


class Relayer(DeadLetterHarvester):
    """One process of ``harvest reap`` with destinations."""

    world: World

    def destination(self, name: str) -> MessageSink:
        scenario = self.world.scenario
        if self.world.is_kafka(name):
            settings = {"bootstrap.servers": "simulated:9092"}
            return KafkaDestination(KafkaEndpoint(settings, timeout_ms=scenario.timeout_ms), OUTBOX)
        batch: Literal["records"] | None = "records" if scenario.batch_records > 1 else None
        uri = f"http://{name}/in"
        endpoint = HttpEndpoint(uri, timeout_ms=scenario.timeout_ms, batch=batch)
        return HttpSink(endpoint, OUTBOX)

    def tools(self, shard: int) -> Tools:
        del shard
        world, scenario = self.world, self.world.scenario
        names = world.names
        policy = Policy(
            concurrency=scenario.concurrency,
            attempts=1_000_000,
            pauses_ms=(20, 100, 500),
            breaker_failures=3,
            breaker_open_ms=50,
            max_breaker_open_ms=500,
            max_retry_after_ms=1_000,
        )
        http = replace(policy, batch_records=scenario.batch_records)
        return RelayTools(
            self.store(),
            self.store(),
            {name: self.destination(name) for name in names},
            {name: policy if world.is_kafka(name) else http for name in names},
            Router(names, names if len(names) > 1 else None, outbox=OUTBOX),
            scenario.limits,
            SimDeadLetters(world),
            SimAttempts(world) if scenario.notes else None,
            BadRowPolicy(key_waits=scenario.key_waits),
        )


class World(dead_letters.World):
    """One history."""

    process = Relayer
    brokers = Kafka
    scenario: Scenario
    broker: Kafka

    def __init__(self, hub: Hub, cluster: Cluster, scenario: Scenario) -> None:
        super().__init__(hub, cluster, scenario)
        self.names = NAMES[: scenario.destinations]
        self.receivers = {
            name: Receiver(hub, name, self.received)
            for name in self.names
            if not self.is_kafka(name)
        }
        for receiver in self.receivers.values():
            receiver.fences = scenario.fences
            if receiver.address == NAMES[0]:
                receiver.is_bad = self.refused.__contains__
        self.broker.watch = self.produced
        self.broker.identify = lambda value: int(value or b"")
        self.broker.serve(cluster)
        cluster.httpcore = httpcore_over(self.receivers)
        self.rows: dict[int, Row] = {}
        self.notes: dict[int, Attempt] = {}
        self.came: dict[str, Counter[int]] = {name: Counter() for name in self.names}
        self.came_last: dict[str, dict[int, int]] = {name: {} for name in self.names}
        self.next_of: Counter[tuple[str, bytes]] = Counter()
        self.late_at: set[tuple[str, bytes | None]] = set()

    def is_kafka(self, name: str) -> bool:
        return self.scenario.into_kafka and name == NAMES[0]

    def insert(self, transaction: harvesters.Transaction, record: OutboxRecord) -> int:
        row_id = super().insert(transaction, record)
        assert isinstance(transaction, MemoryTransaction)
        row = transaction._rows[-1] = transaction._rows[-1]._replace(value=b"%d" % row_id)
        self.rows[row_id] = row
        return row_id

    # What receivers see

    def produced(self, row: Row) -> None:
        self.received(NAMES[0], row.id, row.value or b"", self.broker.late)

    def received(self, name: str, row_id: int, value: bytes, late: bool) -> None:
        """A destination has a row, now."""
        row, hub = self.rows[row_id], self.hub
        hub.tell(name, f"row {row_id} of {row.key!r}")
        if value != row.value:
            hub.fail("a message goes with its own key", f"row {row_id} comes with {value!r}")
        self.came[name][row_id] += 1
        hub.counts["received again"] += self.came[name][row_id] > 1
        self.came_last[name][row_id] = hub.counts["received"]
        hub.counts["received"] += 1
        if late:
            self.late_at.add((name, row.key))
        if self.came[name][row_id] == 1:
            self.first_at(name, row.key or b"", row_id)
            if all(came[row_id] for came in self.came.values()):
                self.published(row)

    def first_at(self, name: str, key: bytes, row_id: int) -> None:
        """Each destination gets each key's rows in the order in which they were committed."""
        if row_id not in self.committed[key]:
            self.hub.fail("only committed rows", f"row {row_id}")
            return
        if not self.scenario.key_waits:
            if row_id in self.were_bad:
                return
            while self.committed[key][self.next_of[name, key]] in self.were_bad:
                self.next_of[name, key] += 1
        due = self.committed[key][self.next_of[name, key]]
        self.next_of[name, key] += 1
        if row_id != due:
            self.hub.fail("order of a key", f"{name}, {key!r}: row {row_id}, but {due} was due")

    def overtaken(self, key: bytes) -> bool:
        """What counts is the order at each destination; see `finish`."""
        return True

    # Incidents

    def _of(self, number: int) -> Server:
        name = self.names[number]
        return self.broker if self.is_kafka(name) else self.receivers[name]

    def do_broker_down(self, number: int, span: int) -> None:
        self._of(number).down_until = self.hub.now + span

    def do_broker_slow(self, number: int, span: int) -> None:
        self.hub.fired["receiver_slow"] += 1
        self._of(number).slow_until = self.hub.now + span

    def do_broker_loses(self, number: int, span: int) -> None:
        self._of(number).losing_until = self.hub.now + span

    def do_broker_refuses(self, number: int, span: int) -> None:
        until = self.hub.now + span
        if self.is_kafka(self.names[number]):
            self.broker.refusing_until = until
        else:
            self.receivers[self.names[number]].failing_until = until

    # The end

    def heal(self) -> None:
        super().heal()
        for receiver in self.receivers.values():
            receiver.heal()

    def finish(self) -> None:
        super().finish()
        for name in self.names:
            for key, ids in self.committed.items():
                last = [self.came_last[name][i] for i in ids]
                gone_on = not self.scenario.key_waits and self.were_bad & set(ids)
                if last != sorted(last) and not gone_on and (name, key) not in self.late_at:
                    raise Violation(
                        "order of a key", f"{name}, {key!r}: what came last is not what was last"
                    )


_NOT_HERE: Final = (
    "broker_slow", "fenced", "mark_too_late", "row_refused", "transaction_timed_out",
)  # fmt: skip
REQUIRED: Final = (
    *(name for name in dead_letters.REQUIRED if name not in _NOT_HERE),
    "delivery_timeout",
    "receiver_answer_lost",
    "receiver_down",
    "receiver_fails",
    "receiver_fails_after_all",
    "receiver_refuses_connections",
    "receiver_slow",
    "request_fenced",
    "request_late",
    "request_timed_out",
)
REQUIRED_COUNTS: Final = (*dead_letters.REQUIRED_COUNTS, "batches", "received again")
