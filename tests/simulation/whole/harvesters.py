"""Histories of whole harvesters of one outbox, elected by claims, while everything fails.

Business transactions insert rows: several at a time, of a key that the transaction has locked, some
open for long, some rolled back. Ids are drawn when a row is inserted and seen when it is committed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from harvest.core.mark import Limits
from harvest.core.row import Row
from harvest.errors import HarvestError
from harvest.outbox.record import OutboxRecord
from harvest.runtime import harvester as runtime
from harvest.runtime.candidacy import Candidacy, Election
from harvest.runtime.leadership import Tools
from harvest.runtime.mark_leader import MarkTools
from harvest.testing.memory_table import MemoryTable
from marshal_py import Marshal
from tests.simulation.whole.checks import LOG
from tests.simulation.whole.cluster import Cluster, Link
from tests.simulation.whole.green import MS, Hub, Machine, Violation, sleep
from tests.simulation.whole.outbox import Broker, Server, SimPipelinedSink, SimSink, SimStore

TOPIC: Final = "rows"
KEYS: Final = ("a", "b", "c", "d")


class Transaction(Protocol):
    """Of the application."""

    def insert(self, record: OutboxRecord) -> int: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


@dataclass
class Scenario:
    """What happens in one history; `incidents` are (at, what, harvester, arguments)."""

    seed: int
    atomic: bool
    interval_ms: int
    harvesters: int
    limits: Limits
    incidents: list[tuple[int, str, int, tuple[Any, ...]]] = field(default_factory=list)
    heal_ns: int = 0
    end_ns: int = 0


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    interval_ms = rng.choice((300, 500, 1_000))
    limits = Limits(
        mark_query_records=rng.choice((1, 4, 50, 5_000)),
        max_in_flight_records=rng.choice((8, 100, 20_000)),
        max_in_flight_batches=rng.choice((1, 3, 32)),
        max_poll_interval_ms=rng.choice((5, 100)),
        io_error_backoff_ms=rng.choice((5, 50)),
        max_io_error_backoff_ms=500,
    )
    heal = interval_ms * MS * rng.randint(8, 14)
    made = Scenario(
        seed=seed,
        atomic=rng.random() < 0.7,
        interval_ms=interval_ms,
        harvesters=rng.choice((1, 2, 2, 3)),
        limits=limits,
        heal_ns=heal,
        end_ns=heal + (10 * interval_ms + 15_000) * MS,
    )
    for _ in range(rng.randint(3, 10)):
        _add(made, rng)
    made.incidents.sort()
    return made


def _add(made: Scenario, rng: random.Random) -> None:
    interval = made.interval_ms * MS
    at = int(rng.uniform(0.5 * interval, made.heal_ns - interval))
    who = rng.randrange(made.harvesters)
    span = int(interval * rng.choice((0.02, 0.3, 1, 2.3, 3.5)))
    kind = rng.choices(
        ["kill", "freeze", "cut", "stop", "database_down", "database_slow", "database_loses",
         "broker_down", "broker_slow", "broker_loses", "broker_refuses"],
        [5, 5, 3, 3, 3, 2, 3, 3, 2, 3, 3],
    )[0]  # fmt: skip
    if kind in ("kill", "stop"):
        back = at + int(interval * rng.choice((0.01, 0.5, 2, 3)))
        made.incidents.append((at, kind, who, (rng.random() < 0.5,)))
        made.incidents.append((back, "start", who, ()))
    else:
        made.incidents.append((at, kind, who, (span,)))


class Harvester:
    """One process of ``harvest reap``."""

    warm_standby = True

    def __init__(self, world: World, slot: int, number: int) -> None:
        self.world, self.hub = world, world.hub
        rate = 1_000_000 + int(25_000 * world.hub.random.choice((-1, 0, 0, 1)))
        self.machine = Machine(world.hub, f"h{slot}.{number}", rate_ppm=rate)
        self.name, self.slot = self.machine.name, slot
        self.link: Link = world.cluster.link(self.machine)
        self.running: runtime.Harvester | None = None
        self.stopping = False
        self.told_to_stop = False
        """Whether somebody has sent the signal, which a frozen process has not seen yet."""
        self.machine.run(self.main)

    @property
    def alive(self) -> bool:
        return not (self.machine.dead or self.machine.exited)

    def main(self) -> None:
        world = self.world
        marshal = Marshal(
            "simulated:9092",
            group_id="harvest",
            client_id=f"h{self.slot}",
            interval_ms=world.scenario.interval_ms,
            close_on_sigterm=False,
        )
        while not self.stopping:
            try:
                self.reap(marshal)
            except HarvestError:
                self.hub.counts["started again"] += 1
                sleep(0.1)
                marshal = Marshal(
                    "simulated:9092",
                    group_id="harvest",
                    client_id=f"h{self.slot}",
                    interval_ms=world.scenario.interval_ms,
                    close_on_sigterm=False,
                )
        self.machine.exited = True
        self.hub.counts["stopped"] += 1

    def candidacy(self, marshal: Marshal) -> Candidacy:
        """How it is elected."""
        return Election(marshal, "outbox")

    def tools(self, shard: int) -> Tools:
        """What one leadership works with."""
        del shard
        world = self.world
        return MarkTools(
            SimStore(world.database, world.table),
            SimStore(world.database, world.table),
            SimSink(world.broker) if world.scenario.atomic else SimPipelinedSink(world.broker),
            world.scenario.limits,
        )

    def reap(self, marshal: Marshal) -> None:
        with marshal:
            self.running = runtime.Harvester(
                self.candidacy(marshal),
                self.tools,
                warm_standby=self.warm_standby,
                on_event=lambda event: self.hub.tell(self.name, repr(event)),
                drain_timeout_s=2.0,
            )
            if self.stopping:
                self.running.stop()
            self.running.run()

    def stop(self) -> None:
        self.stopping = True
        if self.running is not None:
            self.running.stop()


class World:
    """One history."""

    process: type[Harvester] = Harvester
    keys: Sequence[str] = KEYS
    brokers: type[Broker] = Broker

    @property
    def left(self) -> bool:
        """Whether something is left to do."""
        return bool(self.table.committed)

    def __init__(self, hub: Hub, cluster: Cluster, scenario: Scenario) -> None:
        self.hub, self.cluster, self.scenario = hub, cluster, scenario
        cluster.create(LOG, 1)
        cluster.create(f"{LOG}.snapshots", 1)
        self.table = MemoryTable()
        self.database = Server(hub, "database")
        self.broker = self.brokers(hub)
        self.broker.watch = self.published
        self.harvesters: dict[int, Harvester] = {}
        self.started = 0
        self.open_keys: set[str] = set()
        self.rolled_back: set[int] = set()
        self.committed: dict[bytes, list[int]] = {key.encode(): [] for key in self.keys}
        self.seen: Counter[int] = Counter()
        self.first_times: Counter[bytes] = Counter()
        self.last_times: dict[int, int] = {}

    def run(self) -> None:
        scenario, hub = self.scenario, self.hub
        for slot in range(scenario.harvesters):
            hub.at(hub.random.randrange(scenario.interval_ms * MS), self.do_start, slot)
        for at, kind, who, args in scenario.incidents:
            hub.at(at, getattr(self, f"do_{kind}"), who, *args)
        hub.at(0, self.write)
        hub.at(scenario.heal_ns, self.heal)
        hub.run(scenario.heal_ns + 4 * scenario.interval_ms * MS)
        self.run_until(self.is_done, scenario.end_ns)
        if hub.violation is None:
            try:
                self.finish()
            except Violation as problem:
                hub.fail(*problem.args)

    def run_until(self, is_done: Callable[[], bool], end_ns: int) -> None:
        """Let time pass until something is so, or a true time has come, or an invariant broke."""
        hub = self.hub
        while hub.now < end_ns and hub.violation is None and not is_done():
            hub.run(min(end_ns, hub.now + 300 * MS))

    # Business

    def write(self) -> None:
        """A transaction begins: it locks a key, inserts, and ends soon, late, or in vain."""
        hub = self.hub
        if hub.now > self.scenario.heal_ns + 2 * self.scenario.interval_ms * MS:
            return
        free = [key for key in self.keys if key not in self.open_keys]
        if free:
            key = hub.random.choice(free)
            self.open_keys.add(key)
            transaction = self.begin()
            ids = [
                self.insert(transaction, OutboxRecord(TOPIC, key, f"{key}{n}"))
                for n in range(hub.random.choice((1, 1, 2, 9)))
            ]
            span = hub.random.choice((0, 0, 2, 30, 300)) * MS
            hub.at(hub.now + span, self.end_transaction, key, transaction, ids)
        hub.at(hub.now + int(hub.random.uniform(1, 60) * MS), self.write)

    def begin(self) -> Transaction:
        return self.table.begin()

    def insert(self, transaction: Transaction, record: OutboxRecord) -> int:
        return transaction.insert(record)

    def end_transaction(self, key: str, transaction: Transaction, ids: list[int]) -> None:
        self.open_keys.discard(key)
        if self.hub.random.random() < 0.15:
            transaction.rollback()
            self.rolled_back.update(ids)
            self.hub.counts["rolled back"] += 1
        else:
            transaction.commit()
            self.committed[key.encode()] += ids

    # What readers see

    def published(self, row: Row) -> None:
        self.hub.counts["published"] += 1
        self.hub.tell("reader", f"row {row.id} of {row.key!r}")
        self.seen[row.id] += 1
        self.last_times[row.id] = self.hub.counts["published"]
        if row.id in self.rolled_back or row.id not in self.committed[row.key or b""]:
            self.hub.fail("only committed rows", f"row {row.id}")
            return
        if self.seen[row.id] > 1:
            self.hub.counts["published again"] += 1
            if self.scenario.atomic:
                self.hub.fail("exactly once", f"row {row.id} of {row.key!r} comes again")
            return
        if self.scenario.atomic:
            self.first_time(row.key or b"", row.id)

    def first_time(self, key: bytes, row_id: int) -> None:
        """Each key's rows come in the order in which they were committed."""
        due = self.committed[key][self.first_times[key]]
        self.first_times[key] += 1
        if row_id != due:
            self.hub.fail("order of a key", f"{key!r}: row {row_id}, but {due} was due")

    # Incidents

    def do_start(self, slot: int) -> None:
        running = self.harvesters.get(slot)
        if running is None or not running.alive:
            if running is not None:
                self.hub.fired["restart"] += 1
            self.started += 1
            self.harvesters[slot] = self.process(self, slot, self.started)

    def _do(self, what: str, slot: int, act: Callable[[Harvester], None]) -> None:
        harvester = self.harvesters.get(slot)
        if harvester is not None and harvester.alive:
            self.hub.fired[what] += 1
            self.hub.tell(harvester.name, what)
            act(harvester)

    def do_kill(self, slot: int, lose_in_flight: bool) -> None:
        def kill(harvester: Harvester) -> None:
            harvester.link.lose_in_flight = lose_in_flight
            harvester.machine.kill()

        self._do("kill", slot, kill)

    def do_stop(self, slot: int, _: bool) -> None:
        def stop(harvester: Harvester) -> None:
            harvester.told_to_stop = True
            harvester.machine.run(harvester.stop, "signal")

        self._do("stop", slot, stop)

    def do_freeze(self, slot: int, span: int) -> None:
        self._do("freeze", slot, lambda h: h.machine.freeze(span))

    def do_cut(self, slot: int, span: int) -> None:
        def cut(harvester: Harvester) -> None:
            mode = self.hub.random.choice(("hold", "fail", "lost_ack"))
            harvester.link.write_cut = (self.hub.now + span, mode, 50 * MS)
            harvester.link.read_cut_until = self.hub.now + span

        self._do("cut", slot, cut)

    def do_database_down(self, _: int, span: int) -> None:
        self.database.down_until = self.hub.now + span

    def do_database_slow(self, _: int, span: int) -> None:
        self.hub.fired["database_slow"] += 1
        self.database.slow_until = self.hub.now + span

    def do_database_loses(self, _: int, span: int) -> None:
        self.database.losing_until = self.hub.now + span

    def do_broker_down(self, _: int, span: int) -> None:
        self.broker.down_until = self.hub.now + span

    def do_broker_slow(self, _: int, span: int) -> None:
        self.hub.fired["broker_slow"] += 1
        self.broker.slow_until = self.hub.now + span

    def do_broker_loses(self, _: int, span: int) -> None:
        self.broker.losing_until = self.hub.now + span

    def do_broker_refuses(self, _: int, span: int) -> None:
        self.broker.refusing_until = self.hub.now + span

    # The end

    def heal(self) -> None:
        self.hub.tell("-", "all faults end")
        self.database.heal()
        self.broker.heal()
        for harvester in self.harvesters.values():
            harvester.link.heal()
            machine = harvester.machine
            machine.frozen_until = min(machine.frozen_until, self.hub.now)
        if not any(h.alive and not h.told_to_stop for h in self.harvesters.values()):
            self.do_start(self.scenario.harvesters)

    def is_done(self) -> bool:
        stopping = any(h.alive and h.stopping for h in self.harvesters.values())
        return not (self.left or self.open_keys or stopping)

    def overtaken(self, key: bytes) -> bool:
        """Whether an earlier row of a key may have come last: no fence, no order (H3)."""
        return key in self.broker.unfenced

    def finish(self) -> None:
        for key, ids in self.committed.items():
            missing = [i for i in ids if not self.seen[i]]
            if missing:
                raise Violation("every committed row", f"{key!r}: {missing[:5]} never came")
            last = [self.last_times[i] for i in ids]
            if last != sorted(last) and not self.overtaken(key):
                raise Violation("order of a key", f"{key!r}: what came last is not what was last")
        if self.left:
            raise Violation("the outbox is emptied", f"{sorted(self.table.committed)[:5]} are left")
        for harvester in self.harvesters.values():
            if harvester.alive and harvester.stopping:
                raise Violation("stopping ends", harvester.name)


REQUIRED: Final = (
    "broker_answer_lost",
    "broker_down",
    "broker_slow",
    "cut",
    "cut_read",
    "database_answer_lost",
    "database_down",
    "database_slow",
    "delivery_refused",
    "fenced",
    "freeze",
    "kill",
    "mark_too_late",
    "restart",
    "row_refused",
    "stop",
    "transaction_timed_out",
)
REQUIRED_COUNTS: Final = (
    "published",
    "published again",
    "rolled back",
    "started again",
    "stopped",
    "submitted while others were under way",
)
