"""One history: real protocol code, a simulated log and network, virtual time.

The pure parts of the product run unchanged: `rationalizer.apply`, `world.World`, `world.Observer`
and `claims.Claimant`. `Process` is the loop of the live client around them, with its effects in the
hands of `Simulation`: when a record reaches the log, when a reader sees it, what the producer
reports, when the process runs at all. Everything that happens is an entry in one heap, ordered by
true time; ties by the order in which they were made. Nothing here is random: see `scenario`.
"""

from __future__ import annotations

import hashlib
import heapq
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from marshal_py.protocol import events as ev
from marshal_py.protocol.rationalizer import Cell, CellKey, PartitionState, apply
from marshal_py.protocol.world import World
from marshal_py.testing import MemoryLog
from tests.simulation.checks import Checker, Violation
from tests.simulation.common import MS, US, describe
from tests.simulation.incidents import Incidents
from tests.simulation.operators import Operator
from tests.simulation.process import Process
from tests.simulation.scenario import MILLION, Scenario

SNAPSHOT_EVERY: Final = 32
"""Records between two snapshots of a coordination partition."""


class Outcome(NamedTuple):
    """What a history was: `violation` is None for a good one."""

    violation: tuple[str, str] | None
    at_us: int
    fired: Counter[str]
    counts: Counter[str]
    fingerprint: str
    trace: list[tuple[int, str, str]] | None


class Simulation:
    """Runs one scenario."""

    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.exclusive = scenario.exclusive
        self.now = 0
        self.end = scenario.end_us * US
        self.log = MemoryLog(scenario.partitions, first_offset=scenario.first_offset)
        self.truth = [PartitionState(p) for p in range(scenario.partitions)]
        self.true_events: list[list[list[ev.Event]]] = [[] for _ in range(scenario.partitions)]
        self.world = World(scenario.partitions)
        self.snapshots = [(0, b"")] * scenario.partitions
        """The newest snapshot of each partition: records that it covers, and the state."""
        self.skew_ms = [0] * scenario.partitions
        self.written_ns: list[dict[int, int]] = [{} for _ in range(scenario.partitions)]
        """By partition and offset, the true time at which a record entered the log."""
        self.down_until = [0] * scenario.partitions
        self.alive: list[Process] = []
        self.left: list[Process] = []
        self.slots: dict[int, Process] = {}
        self.started: Counter[int] = Counter()
        self.fired: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.trace: list[tuple[int, str, str]] | None = [] if trace else None
        self.healed = False
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._noise_at = 0
        self.hash = hashlib.blake2b(digest_size=8)
        self.checker = Checker(self)
        self.operator = Operator(self)

    # Time and chance

    def at(self, true_ns: int, what: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (true_ns, self._order, what, args))

    def noise(self) -> float:
        self._noise_at = at = (self._noise_at + 1) % len(self.scenario.noise)
        return self.scenario.noise[at]

    def latency(self, bounds: tuple[int, int]) -> int:
        """Nanoseconds; one in twenty takes three times as long."""
        low, high = bounds
        x = self.noise()
        us = low + (high - low) * x
        if x > 0.95 and not self.healed:
            us *= 3
            self.fired["long_tail"] += 1
        return int(us * US)

    def by_heal(self, true_ns: int) -> int:
        """When something late happens: not after faults have ended, unless it is that now."""
        return min(true_ns, max(self.scenario.heal_us * US, self.now))

    def tell(self, who: str, text: str) -> None:
        if self.trace is not None:
            self.trace.append((self.now // US, who, text))

    # Running

    def run(self) -> Outcome:
        scenario, incidents = self.scenario, Incidents(self)
        for slot, spec in enumerate(scenario.processes):
            if spec.start_us is not None:
                self.at(spec.start_us * US, self.start, slot)
        for incident in scenario.incidents:
            self.at(incident.at_us * US, incidents.carry_out, incident)
        self.at(scenario.heal_us * US, self.heal)
        self.at(scenario.settle_us * US, self.settled)
        violation = None
        heap = self._heap
        try:
            while heap and heap[0][0] <= self.end:
                self.now, _, what, args = heapq.heappop(heap)
                what(*args)
            self.checker.finished()
        except Violation as problem:
            violation = (problem.invariant, str(problem.args[1]))
        except Exception as error:
            if self.trace is not None:
                self.tell("!", traceback.format_exc())
            violation = ("nothing raises", f"{type(error).__name__}: {error}")
        if violation is not None:
            self.tell("!", f"{violation[0]}: {violation[1]}")
        self.counts["overlaps"] = self.checker.overlaps
        self.counts["records"] = sum(len(p) for p in self.log.partitions)
        return Outcome(
            violation,
            self.now // US,
            self.fired,
            self.counts,
            self.hash.hexdigest(),
            self.trace,
        )

    def heal(self) -> None:
        """Faults stop: what is cut or slow heals, what is frozen wakes, paused groups resume."""
        self.healed = True
        self.tell("-", "all faults end")
        self.skew_ms = [0] * len(self.skew_ms)
        self.down_until = [0] * len(self.down_until)
        for process in list(self.alive):
            process.write_cut = None
            process.read_cut_until = process.slow_until = 0
            process.frozen_until = min(process.frozen_until, self.now)
            process.freeze_before_send = 0
            process.crash_amid_send = None
            process.duplicate_until = 0
            if self.scenario.kind == "drift":
                process.clock.change_rate(self.now, MILLION)
                process.wake_at = -1
            if process.slot == self.scenario.slow_slot:
                process.be_slow_for_good()
            process.catch_up_reading()
        self.operator.heal()

    def settled(self) -> None:
        self.checker.settled()
        self.checker.stable = True

    # Processes

    def start(self, slot: int) -> None:
        spec = self.scenario.processes[slot]
        before = self.slots.get(slot)
        if before is not None and before in self.alive:
            return
        if before is not None:
            self.fired["restart"] += 1
        self.started[slot] += 1
        process = Process(self, slot, spec, self.started[slot])
        if any(p.client_id == spec.client_id for p in self.alive):
            self.fired["twin"] += 1
        self.slots[slot] = process
        self.alive.append(process)
        if slot == self.scenario.slow_slot:
            process.be_slow_for_good()
        process.boot()

    def crash(self, process: Process, *, lose_in_flight: bool = False) -> None:
        if process in self.alive:
            self.alive.remove(process)
            process.dead = True
            process.loses_in_flight = lose_in_flight
            self.tell(process.name, "crashes")

    def leave(self, process: Process) -> None:
        """A process that has given everything back ends."""
        self.alive.remove(process)
        process.dead = True
        self.left.append(process)
        self.tell(process.name, "has left")
        self.checker.left(process)

    # The log

    def write(self, sender: Process | None, p: int, value: bytes | None) -> None:
        """A record enters the log, now."""
        if sender is not None and sender.dead:
            if sender.loses_in_flight:
                self.fired["in_flight_lost"] += 1
                return
            self.fired["written_after_death"] += 1
        partition = self.log.partitions[p]
        stamp_ms = self.now // MS + 10**9 + self.skew_ms[p]
        offset = partition.append(value, stamp_ms)
        self.written_ns[p][offset] = self.now
        self.hash.update(b"%d %d %d " % (self.now, p, offset))
        self.hash.update(value or b"")
        events: list[ev.Event] = []
        apply(self.truth[p], offset, value, events)
        self.true_events[p].append(events)
        if self.trace is not None:
            self.tell(f"log {p}", f"{offset}: {describe(events)}")
        self.checker.written(p, events)
        index = len(partition)
        if index % SNAPSHOT_EVERY == 0:
            self.snapshots[p] = (index, self.truth[p].encode())
        for process in self.alive:
            if process.booted[p]:
                delay = self.latency(process.spec.read_us)
                if self.now < process.slow_until:
                    delay += process.slow_read_ns
                self.at(self.now + delay, process.arrive, p, index, partition.truncations)
        self.at(self.now + 5 * MS, self.operator.arrive)

    def truncate(self, p: int, records: int) -> None:
        partition = self.log.partitions[p]
        records = min(records, len(partition))
        if not records:
            return
        self.fired["truncation"] += 1
        self.tell(f"log {p}", f"loses its last {records} records")
        partition.truncate(records)
        del self.true_events[p][-records:]
        self.snapshots[p] = (0, b"")
        self.truth[p] = state = PartitionState(p)
        for offset, value in zip(partition.offsets, partition.values, strict=True):
            apply(state, offset, value)
        self.checker.truncated()
        for process in list(self.alive):
            if process.booted[p] and process.position[p] > len(partition):
                process.must_replay = True
                delay = self.latency(process.spec.read_us)
                self.at(self.now + delay, process.step)
            process.visible[p] = min(process.visible[p], len(partition))
        self.operator.replay()

    def coordinator(self, key: CellKey) -> int:
        return self.world.coordinator(*key)

    def true_cell(self, key: CellKey) -> Cell | None:
        return self.truth[self.coordinator(key)].cells.get(key)


def run(scenario: Scenario, *, trace: bool = False) -> Outcome:
    """Run one history."""
    return Simulation(scenario, trace=trace).run()
