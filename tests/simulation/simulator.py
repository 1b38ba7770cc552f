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
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from marshal_py import events as ev
from marshal_py.claims import Append, Claimant, ClaimState, Holding, Notice
from marshal_py.errors import DuplicateClientId, NotHeld
from marshal_py.messages import (
    ClaimingPartition,
    ForgetGroup,
    Message,
    ReleaseGroup,
    ResumeGroup,
    SetPosition,
    decode,
    encode,
)
from marshal_py.rationalizer import Cell, CellKey, PartitionState, apply
from marshal_py.testing import MemoryLog, VirtualClock
from marshal_py.world import Observer, World
from tests.simulation.checks import MS, Checker, Violation
from tests.simulation.scenario import MILLION, Incident, ProcessSpec, Scenario

US: Final = 1_000
"""Nanoseconds in a microsecond."""

SNAPSHOT_EVERY: Final = 32
"""Records between two snapshots of a coordination partition."""

GARBAGE: Final[tuple[bytes | None, ...]] = (
    None,
    b"",
    b"\xc1",
    b"Heartbeat/1/a/b/c",
    b"\x93\x01\x02\xa1",
    encode(ResumeGroup(2, "x", "x", "elsewhere", 1))[:-1],
    b"\x96\x0b\x02\xa1a\xa1b\xa1g\x00",
    b"\x96\x02\x03\xa1a\xa1b\xa1g\x00",
)


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
        self.down_until = [0] * scenario.partitions
        self.alive: list[Process] = []
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
        scenario = self.scenario
        for slot, spec in enumerate(scenario.processes):
            if spec.start_us is not None:
                self.at(spec.start_us * US, self.start, slot)
        for incident in scenario.incidents:
            self.at(incident.at_us * US, self.incident, incident)
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
        except Exception as problem:
            if self.trace is not None:
                import traceback

                self.tell("!", traceback.format_exc())
            violation = ("nothing raises", f"{type(problem).__name__}: {problem}")
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
        self.hash.update(b"%d %d %d " % (self.now, p, offset))
        self.hash.update(value or b"")
        events: list[ev.Event] = []
        apply(self.truth[p], offset, value, events)
        self.true_events[p].append(events)
        if self.trace is not None:
            self.tell(f"log {p}", f"{offset}: {_describe(events)}")
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
        return self.world.coordinator(key[1], key[2])

    def true_cell(self, key: CellKey) -> Cell | None:
        return self.truth[self.coordinator(key)].cells.get(key)

    # Incidents

    def incident(self, incident: Incident) -> None:
        getattr(self, f"_do_{incident.kind}")(incident.who, *incident.args)

    def _process(self, slot: int) -> Process | None:
        process = self.slots.get(slot)
        return process if process is not None and not process.dead else None

    def _do_start(self, slot: int) -> None:
        self.start(slot)

    _do_restart = _do_start

    def _do_crash(self, slot: int, lose_in_flight: bool) -> None:
        process = self._process(slot)
        if process is not None:
            self.fired["crash"] += 1
            self.crash(process, lose_in_flight=lose_in_flight)

    def _do_crash_amid_send(self, slot: int, sent: int, lose_in_flight: bool) -> None:
        process = self._process(slot)
        if process is not None:
            process.crash_amid_send = (sent, lose_in_flight)

    def _do_freeze(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.fired["freeze"] += 1
            process.freeze(span * US)

    def _do_freeze_before_send(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.freeze_before_send = span * US

    def _do_cut_write(self, slot: int, span: int, mode: str, fail_after: int, late: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.tell(process.name, f"cannot write for {span / 1e3:.0f} ms ({mode})")
            process.write_cut = (self.now + span * US, mode, fail_after * US, late * US)

    def _do_cut_read(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.tell(process.name, f"cannot read for {span / 1e3:.0f} ms")
            process.read_cut_until = self.now + span * US
            self.at(process.read_cut_until, process.catch_up_reading)

    def _do_slow_read(self, slot: int, span: int, extra: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.fired["slow_read"] += 1
            self.tell(process.name, f"reads {extra / 1e3:.0f} ms late for {span / 1e3:.0f} ms")
            if not process.slow_for_good:
                process.slow_until = self.now + span * US
                process.slow_read_ns = extra * US
                process.slow_write_ns = 0

    def _do_slow_write(self, slot: int, span: int, extra: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.fired["slow_write"] += 1
            self.tell(process.name, f"writes {extra / 1e3:.0f} ms late for {span / 1e3:.0f} ms")
            if not process.slow_for_good:
                process.slow_until = self.now + span * US
                process.slow_write_ns = extra * US
                process.slow_read_ns = 0

    def _do_duplicate(self, slot: int, span: int, delay: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.duplicate_until = self.now + span * US
            process.duplicate_delay_ns = delay * US

    def _do_rate(self, slot: int, rate_ppm: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.fired["clock_rate_change"] += 1
            process.clock.change_rate(self.now, rate_ppm)
            process.wake_at = -1
            process.step()

    def _do_skew(self, p: int, skew_ms: int) -> None:
        self.fired["broker_clock_skew"] += 1
        self.tell(f"log {p}", f"broker clock is {skew_ms} ms off")
        self.skew_ms[p] = skew_ms

    def _do_leader_change(self, p: int, span: int, skew_ms: int) -> None:
        self.fired["leader_change"] += 1
        self.tell(f"log {p}", f"has no leader for {span / 1e3:.0f} ms")
        self.down_until[p] = self.now + span * US
        self.skew_ms[p] = skew_ms

    def _do_jump(self, slot: int, by_ms: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.fired["clock_jump"] += 1
            self.tell(process.name, f"clock jumps {by_ms} ms ahead")
            process.clock.jump(self.now, by_ms * MS)
            process.wake_at = -1
            process.step()

    def _do_gap(self, p: int, offsets: int) -> None:
        self.fired["offset_gap"] += 1
        self.log.partitions[p].skip(offsets)

    def _do_garbage(self, p: int, which: int) -> None:
        self.fired["garbage_record"] += 1
        self.write(None, p, GARBAGE[which])

    def _do_truncate(self, p: int, records: int) -> None:
        self.truncate(p, records)

    def _do_release(self, slot: int, key: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.call(process.user_release, key)

    def _do_want(self, slot: int, key: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.call(process.user_want, key)

    def _do_leave(self, slot: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.fired["leave"] += 1
            process.call(process.user_leave)

    def _do_slow_act(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.slow_act(span * US)

    def _do_pause_group(self, group: int) -> None:
        self.operator.pause(self.scenario.groups[group])

    def _do_resume_group(self, group: int) -> None:
        self.operator.resume(self.scenario.groups[group])

    def _do_set_position(self, group: int, key: int, next_offset: int) -> None:
        cell = (self.scenario.groups[group], *self.scenario.keys[key])
        self.operator.positions[cell] = next_offset
        self.operator.step()

    def _do_forget_group(self, group: int) -> None:
        name = self.scenario.groups[group]
        self.operator.forgets.update((name, p) for p in range(self.scenario.partitions))
        self.operator.step()


class Process:
    """One process of a client: the driver loop, its clock and its network."""

    def __init__(self, sim: Simulation, slot: int, spec: ProcessSpec, number: int) -> None:
        count = sim.scenario.partitions
        self.sim = sim
        self.slot = slot
        self.spec = spec
        self.client_id = spec.client_id
        self.group_id = sim.scenario.groups[spec.group]
        self.instance_id = f"{spec.client_id}.{slot}.{number}"
        self.name = self.instance_id
        self.clock = VirtualClock(
            spec.local_ns + number * 7 * MS, rate_ppm=spec.rate_ppm, true_ns=sim.now
        )
        self.world = World(count)
        self.observers = [Observer() for _ in range(count)]
        self.claimant = Claimant(
            self.world,
            self.observers,
            client_id=spec.client_id,
            instance_id=self.instance_id,
            group_id=self.group_id,
            interval_ms=spec.interval_ms,
            margin_ms=spec.margin_ms,
            member=spec.member,
            resume=spec.resume,
            cold_start_skew_ms=spec.cold_start_skew_ms,
        )
        self.dead = False
        self.loses_in_flight = False
        self.booted = [False] * count
        self.position = [0] * count
        """Records applied, per coordination partition."""
        self.visible = [0] * count
        """Records that have reached this process."""
        self.must_replay = False
        self.frozen_until = 0
        self.wake_at = -1
        self.fenced = False
        """Whether it knew, after its last step, that a twin has fenced it."""
        # faults that are armed
        self.freeze_before_send = 0
        self.crash_amid_send: tuple[int, bool] | None = None
        self.write_cut: tuple[int, str, int, int] | None = None
        self.read_cut_until = 0
        self.slow_until = 0
        self.slow_read_ns = self.slow_write_ns = 0
        self.slow_for_good = False
        self.duplicate_until = self.duplicate_delay_ns = 0
        # what goes through the producer
        self.last_write = [0] * count
        self.failures: list[int] = []
        self.appends_failed = 0
        self.held_calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        # what the user has and wants
        self.holdings: list[Holding] = []
        self.wanted_ever: set[Holding] = set()
        self.given_up: set[int] = set()
        self.amo: dict[int, tuple[Holding, int, int]] = {}
        self.amo_at: dict[Holding, int] = {}

    # The driver loop

    def boot(self) -> None:
        sim = self.sim
        sim.tell(self.name, "starts")
        first = sim.latency(self.spec.read_us)
        for p in range(len(self.booted)):
            delay = sim.latency(self.spec.read_us) * 5 if self.spec.staggered else first
            sim.at(max(sim.by_heal(sim.now + delay), sim.now + 1), self._booted, p)
        if self.spec.staggered:
            self._want_all()
        sim.at(sim.now + self.spec.work_every_us * US, self.work)

    def _booted(self, p: int) -> None:
        """Replay one partition and catch up with it."""
        if self.dead:
            return
        if self.frozen_until > self.sim.now:
            self.sim.at(self.frozen_until, self._booted, p)
            return
        self._replay(p)
        if all(self.booted):
            now = self.clock.at(self.sim.now)
            if self.spec.staggered:
                self.claimant.caught_up(p, now)
            else:
                for each in range(len(self.booted)):
                    self.claimant.caught_up(each, now)
                self._want_all()
        elif self.spec.staggered:
            self.claimant.caught_up(p, self.clock.at(self.sim.now))
        self.step()

    def _replay(self, p: int) -> None:
        sim = self.sim
        partition = sim.log.partitions[p]
        state, observer = self.world.states[p], self.observers[p]
        start = 0
        if self.spec.snapshots:
            start, data = sim.snapshots[p]
            if start:
                sim.fired["start_from_snapshot"] += 1
                state = self.world.states[p] = PartitionState.decode(data)
        for index in range(start, len(partition)):
            apply(state, partition.offsets[index], partition.values[index])
            if not self.spec.snapshots or index == len(partition) - 1:
                observer.stamped.note(partition.offsets[index], partition.stamps_ms[index])
        self.booted[p] = True
        self.position[p] = self.visible[p] = len(partition)
        observer.caught_up_at_offset = partition.end
        observer.seen.note(partition.end - 1, self.clock.at(sim.now))
        sim.checker.read(self, p, len(partition))

    def _want_all(self) -> None:
        for key in self.spec.keys:
            self.user_want(key)

    def arrive(self, p: int, index: int, truncations: int) -> None:
        sim = self.sim
        if self.dead or truncations != sim.log.partitions[p].truncations:
            return
        if sim.now < self.read_cut_until:
            sim.fired["cut_read"] += 1
            return
        if index > self.visible[p]:
            self.visible[p] = index
        self.step()

    def catch_up_reading(self) -> None:
        if not self.dead and self.sim.now >= self.read_cut_until:
            for p, partition in enumerate(self.sim.log.partitions):
                if self.booted[p]:
                    self.visible[p] = len(partition)
            self.step()

    def step(self) -> None:
        """One turn of the driver loop: read, settle failures, tick, send."""
        sim = self.sim
        if self.dead or sim.now < self.frozen_until:
            return
        now = self.clock.at(sim.now)
        claimant = self.claimant
        if self.must_replay:
            self._after_truncation(now)
        # As in the live client, one poll brings records of several partitions: all are applied
        # before the claimant hears of any.
        batches = [
            (p, self._read(p, visible, now))
            for p, visible in enumerate(self.visible)
            if self.position[p] < visible
        ]
        for p, events in batches:
            claimant.applied(p, events, now)
        if self.failures:
            failures, self.failures = self.failures, []
            for seq in failures:
                claimant.append_failed(seq, now)
        if self.held_calls and (self.spec.staggered or all(self.booted)):
            calls, self.held_calls = self.held_calls, []
            for what, args in calls:
                what(*args)
        claimant.tick(now)
        self._pump(now)
        if self.dead:
            return
        self.fenced = claimant.twin is not None
        sim.checker.stepped(self, now)
        deadline = claimant.next_deadline_ns()
        if deadline is not None:
            wake_at = self.clock.when(deadline)
            if wake_at < self.wake_at or self.wake_at <= sim.now:
                late = sim.noise()
                jitter = int(late * MS) if late < 0.97 or sim.healed else 30 * MS
                self.wake_at = max(wake_at, sim.now + 1)
                sim.at(self.wake_at + jitter, self._wake, self.wake_at)

    def _wake(self, wake_at: int) -> None:
        if self.wake_at == wake_at:
            self.wake_at = -1
            self.step()

    def _read(self, p: int, visible: int, now: int) -> list[ev.Event]:
        partition = self.sim.log.partitions[p]
        state, observer = self.world.states[p], self.observers[p]
        events: list[ev.Event] = []
        offset = -1
        for index in range(self.position[p], visible):
            offset = partition.offsets[index]
            apply(state, offset, partition.values[index], events)
            observer.stamped.note(offset, partition.stamps_ms[index])
        self.position[p] = visible
        observer.seen.note(offset, now)
        self.sim.checker.read(self, p, visible)
        return events

    def _after_truncation(self, now: int) -> None:
        self.sim.tell(self.name, "finds the log truncated, replays")
        self.must_replay = False
        self.claimant.truncated()
        count = len(self.booted)
        self.world.states[:] = [PartitionState(p) for p in range(count)]
        self.observers[:] = [Observer() for _ in range(count)]
        for p in range(count):
            self._replay(p)
        for p in range(count):
            self.claimant.caught_up(p, now)

    def _pump(self, now: int) -> None:
        """Send what the claimant asks for, and tell the user what happened, until both are done."""
        claimant = self.claimant
        while True:
            appends, notices = claimant.take_appends(), claimant.take_notices()
            if not appends and not notices:
                break
            if appends:
                self._send_all(appends)
                if self.dead:
                    return
            for notice in notices:
                self._hear(notice, now)
        ended = [h for h in self.holdings if h.state is ClaimState.ENDED]
        if ended:
            for holding in ended:
                self.sim.checker.ended_unheard(self, holding)
            self.holdings = [h for h in self.holdings if h.state is not ClaimState.ENDED]
        if claimant.leaving and claimant.settled:
            self.sim.crash(self)

    # Faults of the process

    def freeze(self, span_ns: int) -> None:
        sim = self.sim
        sim.tell(self.name, f"freezes for {span_ns / MS:.0f} ms")
        self.frozen_until = max(self.frozen_until, sim.now + span_ns)
        sim.at(self.frozen_until, self.step)

    def be_slow_for_good(self) -> None:
        self.sim.fired["slow_for_good"] += 1
        self.slow_for_good = True
        self.slow_until = 1 << 62
        self.slow_read_ns = self.sim.scenario.slow_read_us * US
        self.slow_write_ns = 0

    def call(self, what: Callable[..., None], *args: Any) -> None:
        """A call of the user: now, or when the process runs again."""
        self.held_calls.append((what, args))
        self.step()

    # The producer

    def _send_all(self, appends: list[Append]) -> None:
        sim = self.sim
        if self.crash_amid_send is not None:
            sent, lose_in_flight = self.crash_amid_send
            sim.fired["crash_amid_send"] += 1
            for append in appends[:sent]:
                self._send(append, sim.now)
            sim.crash(self, lose_in_flight=lose_in_flight)
            return
        departs = sim.now
        if self.freeze_before_send:
            sim.fired["freeze_before_send"] += 1
            self.freeze(self.freeze_before_send)
            self.freeze_before_send = 0
            departs = self.frozen_until
        for append in appends:
            self._send(append, departs)

    def _send(self, append: Append, departs: int) -> None:
        sim = self.sim
        if append.value[1] == 1:
            self._sends_claim(append.value)
        if departs > sim.now:
            sim.at(sim.by_heal(departs), self._depart, append)
        else:
            self._depart(append)

    def _depart(self, append: Append) -> None:
        sim = self.sim
        if self.dead:
            return
        p, seq, value = append
        now = sim.now
        latency = sim.latency(self.spec.append_us)
        if now < self.slow_until:
            latency += self.slow_write_ns
        arrives = now + latency
        cut = self.write_cut
        if cut is not None and now < cut[0]:
            until, mode, fail_after, late = cut
            if mode == "hold":
                timeout = sim.scenario.delivery_timeout_us * US
                if until - now > timeout:
                    sim.fired["delivery_timeout"] += 1
                    sim.at(now + timeout, self._failed, seq)
                    return
                sim.fired["cut_write"] += 1
                arrives = until + latency
            elif mode == "fail":
                sim.fired["append_fails"] += 1
                sim.at(now + fail_after, self._failed, seq)
                return
            elif mode == "late":
                sim.fired["written_after_failure"] += 1
                sim.at(now + fail_after, self._failed, seq)
                sim.at(sim.by_heal(now + fail_after + late) + latency, sim.write, self, p, value)
                return
            else:
                sim.fired["lost_ack"] += 1
                sim.at(arrives + fail_after, self._failed, seq)
        down_until = sim.down_until[p]
        if arrives < down_until:
            if down_until - now > sim.scenario.delivery_timeout_us * US:
                sim.fired["delivery_timeout"] += 1
                sim.at(now + sim.scenario.delivery_timeout_us * US, self._failed, seq)
                return
            arrives = down_until + latency
        # One connection, and a producer that keeps the order within a partition.
        arrives = self.last_write[p] = max(arrives, self.last_write[p] + 1)
        sim.at(arrives, sim.write, self, p, value)
        if now < self.duplicate_until:
            sim.fired["duplicate_record"] += 1
            again = sim.by_heal(arrives + self.duplicate_delay_ns)
            sim.at(max(again, arrives) + 1, sim.write, self, p, value)

    def _failed(self, seq: int) -> None:
        self.appends_failed += 1
        self.failures.append(seq)
        self.step()

    def _sends_claim(self, value: bytes) -> None:
        record = decode(value)
        assert isinstance(record, ClaimingPartition)
        sim = self.sim
        if self.fenced:
            sim.checker.fail("fenced by a twin", f"{self.name} claims {record}")
        p = self.world.coordinator(record.topic, record.partition)
        cell = self.world.states[p].cells.get((self.group_id, record.topic, record.partition))
        if cell is None or not cell.held:
            sim.counts["claims of free cells"] += 1
            return
        silence = self.observers[p].silence_ns(cell, self.clock.at(sim.now)) or 0
        if cell.holder == self.client_id:
            sim.counts["resumes"] += 1
            if silence <= 2 * cell.interval_ms * MS:
                sim.checker.resumes(self, p, cell)
        else:
            if silence > 2 * cell.interval_ms * MS:
                sim.counts["takeovers"] += 1
            else:
                sim.counts["cold takeovers"] += 1

    # The user

    def true_cell(self, holding: Holding) -> Cell | None:
        return self.sim.truth[holding.coordinator].cells.get((self.group_id, *holding.key))

    def user_want(self, key: int) -> None:
        self.given_up.discard(key)
        topic, partition = self.sim.scenario.keys[key]
        try:
            holding = self.claimant.want(topic, partition, self.clock.at(self.sim.now))
        except DuplicateClientId:
            return
        if holding not in self.wanted_ever:
            self.wanted_ever.add(holding)
            self.holdings.append(holding)

    def user_release(self, key: int) -> None:
        self.given_up.add(key)
        for holding in self.holdings:
            if holding.key == self.sim.scenario.keys[key]:
                self.sim.fired[f"release_{holding.state.value}"] += 1
                self.claimant.release(holding, self.clock.at(self.sim.now))

    def user_leave(self) -> None:
        self.given_up.update(self.spec.keys)
        self.claimant.leave(self.clock.at(self.sim.now))

    def _hear(self, notice: Notice, now: int) -> None:
        sim = self.sim
        kind, holding = notice.kind, notice.holding
        sim.counts[kind] += 1
        sim.hash.update(f"{sim.now} {self.name} {kind} {holding!r}".encode())
        if sim.trace is not None:
            sim.tell(self.name, f"hears {kind} {holding!r} {notice.detail}")
        sim.checker.notice(self, notice)
        if kind == "acquired" and self.spec.work == "amo":
            start = max(holding.next_offset, holding.claimed_offset, 0)
            self.amo_at[holding] = start
            self._claim_batch(holding, now)
        elif kind == "messages_claimed":
            claimed = self.amo.pop(notice.number, None)
            if claimed is not None and holding.held(now):
                _, start, stop = claimed
                sim.checker.deliver(self, notice.number, start, stop)
                sim.counts["batches delivered at most once"] += 1
                self.amo_at[holding] = stop
        elif kind == "messages_rejected":
            claimed = self.amo.pop(notice.number, None)
            if claimed is not None and notice.detail in ("unknown outcome", "offset_not_ahead"):
                self.amo_at[holding] = claimed[2]  # perhaps it was ours: never deliver it
        elif kind in ("lost", "released"):
            key = sim.scenario.keys.index(holding.key)
            if key not in self.given_up and not self.claimant.leaving:
                again = int((0.01 + 0.3 * sim.noise()) * self.spec.interval_ms * MS)
                sim.at(sim.now + again, self._want_again, key)

    def _want_again(self, key: int) -> None:
        if not self.dead and key not in self.given_up:
            self.call(self.user_want, key)

    def _claim_batch(self, holding: Holding, now: int) -> None:
        if any(held is holding for held, _, _ in self.amo.values()):
            return
        start = self.amo_at.get(holding)
        if start is None:
            return
        stop = start + 1 + int(self.sim.noise() * 9)
        try:
            seq = self.claimant.claim_messages(holding, stop, now)
        except NotHeld:
            return
        self.amo[seq] = (holding, start, stop)

    def work(self) -> None:
        """What a consumer does from time to time: act, commit, claim messages."""
        sim = self.sim
        if self.dead:
            return
        sim.at(sim.now + self.spec.work_every_us * US, self.work)
        if sim.now < self.frozen_until:
            return
        now = self.clock.at(sim.now)
        for holding in list(self.holdings):
            if not holding.held(now):
                continue
            sim.checker.may_act(self, holding, "acts on")
            if not sim.checker.acts(self, holding, holding.epoch) and sim.exclusive:
                cell = self.true_cell(holding)
                if cell is None or cell.holder != self.client_id:
                    sim.checker.fail("the fence lets the holder pass", f"{self.name} {holding!r}")
            sim.counts["actions"] += 1
            if self.spec.work == "alo":
                step = int(self.sim.noise() * 5)
                flush = self.sim.noise() < 0.3
                at = max(holding.next_offset, holding.claimed_offset, 0) + step
                self.claimant.commit(holding, at, now, flush=flush)
            elif self.spec.work == "amo":
                self._claim_batch(holding, now)
        self.step()

    def slow_act(self, span_ns: int) -> None:
        """Look, be suspended, act: what no lease can prevent, and the epoch must fence."""
        sim = self.sim
        if sim.now < self.frozen_until:
            return
        now = self.clock.at(sim.now)
        about_to = [(h, h.epoch) for h in self.holdings if h.held(now)]
        if about_to:
            sim.fired["suspended_before_acting"] += 1
            self.freeze(span_ns)
            sim.at(self.frozen_until, self._act_late, about_to)

    def _act_late(self, about_to: list[tuple[Holding, int]]) -> None:
        sim = self.sim
        if self.dead:
            return
        for holding, epoch in about_to:
            cell = self.true_cell(holding)
            if cell is not None and cell.epoch != epoch:
                sim.counts["zombies"] += 1
                if epoch > cell.epoch and sim.scenario.fenced:
                    sim.checker.zombie(self, holding, cell)
            sim.checker.acts(self, holding, epoch)


class Operator:
    """Somebody with the command line: pauses groups, sets positions, forgets, resumes.

    Reads every record 5 ms late, and waits before it moves a held cell as a claimant does.
    """

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.positions: dict[CellKey, int] = {}
        self.forgets: set[tuple[str, int]] = set()
        self.paused: dict[str, None] = {}
        self.seq = 0
        self.sent: dict[tuple[int, str], int] = {}
        self.clock = VirtualClock(5 * MS)
        self.replay()

    def replay(self) -> None:
        log = self.sim.log
        count = len(log.partitions)
        self.states = [PartitionState(p) for p in range(count)]
        self.observers = [Observer() for _ in range(count)]
        self.position = [0] * count
        for observer, partition in zip(self.observers, log.partitions, strict=True):
            observer.caught_up_at_offset = partition.end
            observer.seen.note(partition.end - 1, self.clock.at(self.sim.now))
        self.step()

    def arrive(self) -> None:
        self.step()

    def step(self) -> None:
        sim = self.sim
        now = self.clock.at(sim.now)
        for p, partition in enumerate(sim.log.partitions):
            start, stop = self.position[p], len(partition)
            if start < stop:
                for index in range(start, stop):
                    apply(self.states[p], partition.offsets[index], partition.values[index])
                self.position[p] = stop
                self.observers[p].seen.note(partition.offsets[stop - 1], now)
        for cell_key in list(self.positions):
            self._try_position(cell_key, now)
        for group, p in sorted(self.forgets):
            self._try_forget(group, p)

    def _try_position(self, key: CellKey, now: int) -> None:
        sim = self.sim
        p = sim.coordinator(key)
        state = self.states[p]
        if key[0] not in state.paused:
            return
        cell = state.cells.get(key)
        if cell is not None and cell.held:
            silence = self.observers[p].silence_ns(cell, now) or 0
            wait = 2 * cell.interval_ms * MS + 1 - silence
            if wait > 0:
                sim.at(sim.now + wait, self.step)
                return
            sim.fired["set_position_of_held"] += 1
        sim.fired["set_position"] += 1
        next_offset = self.positions.pop(key)
        version = -1 if cell is None else cell.version
        self._send(
            p,
            SetPosition(2, "op", "op.1", key[0], self._seq(), key[1], key[2], next_offset, version),
        )

    def _try_forget(self, group: str, p: int) -> None:
        state = self.states[p]
        if group not in state.paused:
            return
        if any(key[0] == group and cell.held for key, cell in state.cells.items()):
            if self.sim.noise() < 0.9:
                return  # now and then it tries all the same
        else:
            self.sim.fired["forget_group"] += 1
            self.forgets.discard((group, p))
        self._send(p, ForgetGroup(2, "op", "op.1", group, self._seq()))

    def pause(self, group: str) -> None:
        self.sim.fired["pause_group"] += 1
        self.paused[group] = None
        for p in range(len(self.states)):
            self._send(p, ReleaseGroup(2, "op", "op.1", group, self._seq(), 0))

    def resume(self, group: str) -> None:
        self.paused.pop(group, None)
        self.forgets = {item for item in self.forgets if item[0] != group}
        self.positions = {key: at for key, at in self.positions.items() if key[0] != group}
        for p in range(len(self.states)):
            self._send(p, ResumeGroup(2, "op", "op.1", group, self._seq()))

    def heal(self) -> None:
        for group in self.sim.scenario.groups:
            if group in self.paused or any(group in state.paused for state in self.states):
                self.resume(group)

    def _seq(self) -> int:
        self.seq += 1
        return self.seq

    def _send(self, p: int, record: Message) -> None:
        sim = self.sim
        sim.at(sim.now + MS + int(sim.noise() * 20 * MS), sim.write, None, p, encode(record))


def _describe(events: list[ev.Event]) -> str:
    return "; ".join(_one(event) for event in events) or "nothing"


def _one(event: Any) -> str:
    kind = type(event).__name__
    who = getattr(event, "instance_id", "")
    where = f" {event.topic}/{event.partition}" if getattr(event, "topic", None) else ""
    more = ""
    for name in ("epoch", "previous_epoch", "next_offset", "to_offset", "seq", "reason", "record"):
        if hasattr(event, name):
            more += f" {name}={getattr(event, name)}"
    return f"{kind} by {who}{where}{more}"


def run(scenario: Scenario, *, trace: bool = False) -> Outcome:
    """Run one history."""
    return Simulation(scenario, trace=trace).run()
