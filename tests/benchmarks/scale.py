"""What a group of 1,000 members costs each of them and the brokers, and how fast it settles.

`look after one event` is what a member computes after each claim or release of another (processor
time, 10,000 partitions), beside a look at everything, as a member does it once when it starts.

A mass start is simulated: every record is seen by all `ROUND_TRIP_MS` after it was written, and
everybody acts on what it sees as a `Consumer` does, by its plan and with its patience. Settled is
the group when each partition has a holder and no plan asks for anything; the time counts from the
first start.

What the log of such a group costs is measured in `_scale_log`.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from marshal_py.consumer.assignor import MAX_SETTLES, Assignor
from marshal_py.protocol.balance import target_of
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import (
    ClaimingPartition,
    Heartbeat,
    Message,
    ReleasingPartition,
    encode,
)
from marshal_py.protocol.rationalizer import apply
from marshal_py.protocol.shares import Shares, Unit
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS, Observer, World
from tests.benchmarks import _scale_log
from tests.benchmarks.harness import Figure, Options, median, run, say

INTERVAL_MS = 5_000
SETTLE_MS = 100
"""The default of `Consumer`."""
ROUND_TRIP_MS = 20


class Group:
    """A group in a folded log, as one of its members sees it."""

    def __init__(self, members: int, partitions: int, coordinators: int = 8) -> None:
        self.world = World(coordinators)
        self.observers = [Observer() for _ in range(coordinators)]
        self.now_ns = 10**15
        self.names = [f"billing-worker-{n:04d}" for n in range(members)]
        self.units: list[Unit] = [("orders.v1.events", p) for p in range(partitions)]
        self.seq = 0
        subscription = Subscription(frozenset({"orders.v1.events"}))
        for number, unit in enumerate(self.units):
            self.claim(self.names[number % members], unit)
        for name in self.names:
            member: tuple[Any, ...] = (INTERVAL_MS, 1, [], [], subscription.encode())
            self.append(self.world.home("billing"), Heartbeat, name, *member)
        for observer in self.observers:
            observer.caught_up_at_offset = 0

        @contextlib.contextmanager
        def world() -> Iterator[World]:
            yield self.world

        self.marshal: Any = SimpleNamespace(
            client_id=self.names[0],
            group_id="billing",
            instance_id=self.names[0],
            world=world,
            _driver=SimpleNamespace(clock=lambda: self.now_ns, observers=self.observers),
            settings=SimpleNamespace(cold_start_skew_ms=1_000),
        )
        self.subscription = subscription

    def new_assignor(self) -> Assignor:
        return Assignor(self.marshal, self.subscription, settle_ms=SETTLE_MS)

    def append(self, p: int, make: type[Message], name: str, *fields: Any) -> list[Event]:
        self.seq += 1
        state, events = self.world.states[p], list[Event]()
        record = encode(make(2, name, name, "billing", self.seq, *fields))
        self.now_ns += MS // 10
        self.observers[p].seen.note(state.next_offset, self.now_ns)
        apply(state, state.next_offset, record, events)
        return events

    def claim(self, name: str, unit: Unit) -> list[Event]:
        version = self.world.version("billing", *unit)
        p = self.world.home("billing")
        return self.append(p, ClaimingPartition, name, *unit, INTERVAL_MS, version)

    def release(self, unit: Unit) -> list[Event]:
        cell = self.world.cell("billing", *unit)
        assert cell is not None
        assert cell.holder is not None
        p = self.world.home("billing")
        return self.append(p, ReleasingPartition, cell.holder, *unit, cell.epoch, -1)


def looks(members: int, partitions: int, repeats: int) -> tuple[float, float]:
    """Return what a look costs after one event, and what a look at everything does, in ms."""
    group = Group(members, partitions)
    assignor = group.new_assignor()
    assignor.decide(group.units)
    one, every = [], []
    for number in range(20 * repeats):
        unit = group.units[number * 7 % partitions]
        name = group.names[number % members]
        for write in (group.release, partial(group.claim, name)):
            events = write(unit)
            began = time.process_time()
            if not assignor.is_affected_by(events):
                raise RuntimeError("a claim or a release does not affect the plan")
            assignor.decide(group.units)
            one.append(1e3 * (time.process_time() - began))
    for _ in range(repeats):
        assignor = group.new_assignor()
        began = time.process_time()
        assignor.decide(group.units)
        every.append(1e3 * (time.process_time() - began))
    return median(one), median(every)


class MassStart:
    """Members that start within `spread_ms` and share what nobody holds. Time is simulated."""

    def __init__(self, members: int, partitions: int, spread_ms: int, seed: int = 1) -> None:
        order = random.Random(seed)
        starts = sorted(order.uniform(0, spread_ms) for _ in range(members))
        self.joins_ms = {f"billing-worker-{n:04d}": at for n, at in enumerate(starts)}
        self.joins_ms[next(iter(self.joins_ms))] = 0.0
        self.shares = Shares()
        """As everybody sees them: what was written a round trip ago."""
        for p in range(partitions):
            self.shares.set_unit(("orders", p), None)
        self.moves = 0

    def settled_ms(self, limit_ms: int = 100_000) -> int:
        """Return when nothing is left to be done."""
        to_join = sorted((at, name) for name, at in self.joins_ms.items())
        subscription = Subscription(frozenset({"orders"}))
        giving: dict[str, Unit] = {}
        joined_ms: dict[str, int] = {}
        quiet_ms, newcomers_ms = 0, 0
        for now_ms in range(0, limit_ms, ROUND_TRIP_MS):
            while to_join and to_join[0][0] <= now_ms - ROUND_TRIP_MS:
                _, name = to_join.pop(0)
                self.shares.set_member(name, subscription)
                if now_ms - quiet_ms >= SETTLE_MS:
                    newcomers_ms = now_ms
                joined_ms[name] = quiet_ms = now_ms
            goal = target_of(self.shares)
            is_quiet = now_ms - quiet_ms >= SETTLE_MS
            written: list[tuple[Unit, str | None]] = []
            for unit, name in goal.gains.items():
                if is_quiet or now_ms - joined_ms[name] >= MAX_SETTLES * SETTLE_MS:
                    written.append((unit, name))
            most = max((goal.load[name] for name in goal.surplus), default=0.0)
            if is_quiet or now_ms - newcomers_ms >= MAX_SETTLES * SETTLE_MS:
                for name, units in goal.surplus.items():
                    is_free = name in giving and self.shares.holders[giving[name]] is None
                    if goal.load[name] >= most and not is_free:
                        giving[name] = units[0]
                        written.append((units[0], None))
                        self.moves += 1
            if not (to_join or written) and is_quiet:
                if None in self.shares.holders.values():
                    raise RuntimeError("a partition has no holder")
                return now_ms
            for unit, holder in written:
                self.shares.set_unit(unit, holder)
        raise RuntimeError(f"not settled after {limit_ms} ms")


def measure(options: Options) -> list[Figure]:
    members, partitions = (100, 1_000) if options.quick else (1_000, 10_000)
    after_one, whole = looks(members, partitions, options.repeats)
    of = f"{members:,} members, {partitions:,} partitions"
    figures = [
        Figure(f"look after one event, ms ({of})", after_one, "ms", whole, "≤ 10", after_one <= 10)
    ]
    for spread_ms in (1_000, INTERVAL_MS):
        start = MassStart(members, partitions, spread_ms)
        intervals = start.settled_ms() / INTERVAL_MS
        say(f"all start within {spread_ms} ms: {intervals:.2f} intervals, {start.moves} moves")
        name = f"mass start within {spread_ms / 1_000:g} s settles (simulated, {of})"
        figures.append(Figure(name, intervals, "intervals", None, "≤ 3", intervals <= 3))
    return figures + _scale_log.figures(options)


if __name__ == "__main__":
    run(measure, __doc__)
