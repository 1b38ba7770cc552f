"""A group that moves between the versions, in virtual time, while everything may die.

The bridge is the real one (`marshal_py.admin.migration.Bridge`), on clients whose claimants and
folds are the real ones, too; only their threads and the network are simulated. Go clients are the
stand-ins of `gomodel`. What is looked at is who works on a partition when, on which side, and which
messages each side has handled.

Time is in nanoseconds. Every process has a wall clock of its own, reads with delays of its own, may
be killed, stopped, or cut off from one log or both; topics grow, and new ones come.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import msgspec

from marshal_py import ConfigurationError, DuplicateClientId, MarshalError
from marshal_py.admin.migration import Bridge
from marshal_py.admin.migration_plan import Key, partitions_of
from marshal_py.protocol import rationalizer
from marshal_py.protocol.claimant import Claimant, Holding
from marshal_py.protocol.events import Event
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.text import rationalizer as text_rationalizer
from marshal_py.protocol.text.claimant import TextClaimant
from marshal_py.protocol.text.rationalizer import TextWorld
from marshal_py.protocol.world import MS, Observer, World
from tests.interop.gomodel import Bugs, GoClient, GoWorld

S = 1_000_000_000
GROUP, TOPIC = "g", "t"
EPOCH_S = 1_800_000_000
Side = Literal[1, 2]


@dataclass
class Plan:
    """What happens, and what may go wrong. Rates are per process and hour."""

    seed: int = 0
    back: bool = False
    bridges: int = 2
    """One works, the others stand by."""
    go: int = 2
    new: int = 2
    partitions: int = 3
    hb: int = 60
    duration_s: int = 900
    quiet_s: int = 400
    """At the end, without faults: everything has to be worked on when it is over."""
    skew_s: float = 1.0
    bridge_kills: float = 20.0
    bridge_back_s: float = 240.0
    """A killed process is started again within so long."""
    kills: float = 3.0
    """Of Go clients and of version 2's."""
    stops: float = 3.0
    """SIGSTOPs, of up to 3 HB."""
    go_stops: float = 0.0
    """SIGSTOPs of Go clients: then one takes by force what has been moved, when it wakes."""
    bridge_stops: float | None = None
    """SIGSTOPs of bridges, where not as many as others'."""
    cuts: float = 3.0
    """From the brokers, for up to 3 HB."""
    one_log: bool = False
    """An outage may also be of one log alone: its partition has no leader."""
    growths: float = 10.0
    new_topics: float = 0.0
    releases: float = 18.0
    """A process of the source is stopped in order, and started again some time later."""
    turn: bool = False
    """Halfway, Go is stopped, the migration ends, and the group moves back."""
    kill_at: int = 0
    """With its record of this number a bridge dies, counted over all bridges."""
    kill_loses: bool = False
    """That record has not left the process."""


@dataclass
class Act:
    """`who` worked on a partition from `start` to `end`."""

    who: str
    side: Side
    partition: Key
    start: int
    end: int


@dataclass(order=True)
class _Event:
    at: int
    order: int
    run: Callable[[], None] = field(compare=False)


class Log:
    """The records of one coordination topic, of one partition, and who reads it."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.values: list[bytes] = []
        self.readers: list[Member] = []


class Migration:
    """One history. `run` it, then look at `overlaps`, `handled` and `worked_on`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.now = 0
        self.logs: dict[Side, Log] = {1: Log(1), 2: Log(2)}
        self.counts = {TOPIC: plan.partitions}
        """Topic → partitions that there are by now."""
        self.acts: list[Act] = []
        self.handled: dict[tuple[Key, int], set[Side]] = {}
        """(partition, offset) → the sides that handled it."""
        self.moves = self.conflicts = self.takeovers = self.refusals = self.bridge_records = 0
        self.back = plan.back
        self.turning = self.turned = False
        self.may_start_target = False
        self._events: list[_Event] = []
        self._order = itertools.count()
        self.go = [GoProcess(self, f"go{i}") for i in range(plan.go)]
        self.new = [NewProcess(self, f"py{i}") for i in range(plan.new)]
        self.bridges = [BridgeProcess(self, f"bridge{i}") for i in range(plan.bridges)]
        self.processes: list[Process] = [*self.go, *self.new, *self.bridges]
        self.source: list[Any] = list(self.new if plan.back else self.go)
        self.target: list[Any] = list(self.go if plan.back else self.new)

    def at(self, when: int, run: Callable[[], None]) -> None:
        heapq.heappush(self._events, _Event(max(int(when), self.now), next(self._order), run))

    def after(self, seconds: float, run: Callable[[], None]) -> None:
        self.at(self.now + int(seconds * S), run)

    @property
    def is_quiet(self) -> bool:
        return self.now >= self.plan.duration_s * S

    def run(self) -> Migration:
        plan = self.plan
        for process in self.source:
            process.start()
        for bridge in self.bridges:
            self.after(20, bridge.start)
        for process in self.processes:
            self._plague(process)
        self._again(plan.growths, self._grow)
        self._again(plan.new_topics, self._new_topic)
        if plan.turn:
            self.after(plan.duration_s / 2, self._turn)
        end = (plan.duration_s + plan.quiet_s) * S
        while self._events and self._events[0].at <= end:
            event = heapq.heappop(self._events)
            self.now = event.at
            event.run()
        self.now = end
        for process in self.processes:
            process.look()
            process.stop_acting()
        return self

    def _plague(self, process: Process) -> None:
        plan = self.plan
        is_bridge, is_go = isinstance(process, BridgeProcess), isinstance(process, GoProcess)
        self._again(plan.bridge_kills if is_bridge else plan.kills, process.kill)
        stops = plan.go_stops if is_go else plan.stops
        if is_bridge and plan.bridge_stops is not None:
            stops = plan.bridge_stops
        self._again(stops, process.freeze)
        self._again(plan.cuts, process.cut)
        if process in self.source or (plan.turn and not is_bridge):
            self._again(plan.releases, lambda: self._leave_if_source(process))

    def _leave_if_source(self, process: Process) -> None:
        if process in self.source:
            process.leave()

    def _again(self, per_hour: float, run: Callable[[], None]) -> None:
        if per_hour <= 0:
            return
        at = self.now + int(self.rng.expovariate(per_hour / 3600) * S)

        def happen() -> None:
            run()
            self._again(per_hour, run)

        if at < self.plan.duration_s * S:
            self.at(at, happen)

    @property
    def partitions(self) -> int:
        return sum(self.counts.values())

    def units(self) -> list[Key]:
        """Return every partition that there is."""
        return [(topic, p) for topic, count in self.counts.items() for p in range(count)]

    def _grow(self) -> None:
        topic = self.rng.choice(list(self.counts)) if len(self.counts) > 1 else TOPIC
        self.counts[topic] = min(self.counts[topic] + self.rng.randrange(1, 3), 7)

    def _new_topic(self) -> None:
        if len(self.counts) < 3:
            self.counts[f"{TOPIC}{len(self.counts)}"] = self.rng.randrange(1, 4)

    def start_target(self) -> None:
        if not self.may_start_target:
            self.may_start_target = True
            for process in self.target:
                process.is_retired = False
                process.start()

    def _turn(self) -> None:
        """The last processes of the source are stopped, for good."""
        self.turning = True
        for process in self.source:
            process.is_retired = True
            if self.now < process.frozen_until:
                process.kill()
            process.leave()

    def turn_round(self) -> None:
        """The migration has ended: the way back begins."""
        self.turning, self.turned, self.back = False, True, not self.back
        self.source, self.target = self.target, self.source
        self.may_start_target = False

    # What is asked when it is over

    def overlaps(self) -> list[tuple[float, Act, Act]]:
        """Return (seconds, one, other) of the times in which both sides worked on a partition."""
        found = []
        by_partition: dict[Key, list[Act]] = {}
        for act in sorted(self.acts, key=lambda act: act.start):
            by_partition.setdefault(act.partition, []).append(act)
        for acts in by_partition.values():
            for one, other in itertools.combinations(acts, 2):
                overlap = min(one.end, other.end) - max(one.start, other.start)
                if one.side != other.side and overlap > 0:
                    found.append((overlap / S, one, other))
        return found

    def handled_on_both_sides(self) -> int:
        return sum(len(sides) == 2 for sides in self.handled.values())

    def skipped(self) -> set[tuple[Key, int]]:
        """Return the messages that nobody handled, although later ones were."""
        last: dict[Key, int] = {}
        for key, offset in self.handled:
            last[key] = max(last.get(key, -1), offset)
        return {(key, n) for key, end in last.items() for n in range(end)} - self.handled.keys()

    def idle(self) -> set[Key]:
        """Return the partitions on which nobody worked at the end."""
        busy = {act.partition for act in self.acts if act.end >= self.now - S}
        return set(self.units()) - busy


class Process:
    """What may be killed, stopped and cut off."""

    side: Side

    def __init__(self, sim: Migration, name: str) -> None:
        self.sim = sim
        self.name = name
        self.wall_offset_s = EPOCH_S + sim.rng.uniform(-sim.plan.skew_s, sim.plan.skew_s)
        self.alive = False
        self.run_number = 0
        self.is_retired = False
        """It was stopped for good; nothing starts it again."""
        self.frozen_until = 0
        self.cut_until: dict[Side, int] = {1: 0, 2: 0}
        self.members: list[Member] = []
        self._acting: dict[Key, int] = {}

    def wall_s(self) -> float:
        return self.sim.now / S + self.wall_offset_s

    def start(self) -> None:
        if not self.alive and not self.is_retired:
            self.alive, self.frozen_until = True, 0
            self.run_number += 1
            self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def every(self, low_s: float, high_s: float, run: Callable[[], None]) -> None:
        """Run it now and again and again, for as long as this run of the process lasts."""
        number = self.run_number

        def again() -> None:
            if not self.alive or number != self.run_number:
                return
            if self.sim.now < self.frozen_until:
                self.sim.at(self.frozen_until, again)
                return
            run()
            if self.alive and number == self.run_number:
                self.sim.after(self.sim.rng.uniform(low_s, high_s), again)

        again()

    def kill(self) -> None:
        if self.alive:
            self.look()
            self.die()
            plan = self.sim.plan
            longest = plan.bridge_back_s if isinstance(self, BridgeProcess) else 3 * plan.hb
            self.sim.after(self.sim.rng.uniform(1, longest), self.start)

    def die(self) -> None:
        self.alive = False
        self.stop_acting()
        for member in self.members:
            member.gone = True
        self.members = []

    def freeze(self) -> None:
        if self.alive:
            self.look()
            self.stop_acting()
            hb = self.sim.plan.hb
            until = self.sim.now + int(self.sim.rng.uniform(0, 3 * hb) * S)
            self.frozen_until = max(self.frozen_until, until)
            self.sim.at(self.frozen_until, self.look)

    def cut(self) -> None:
        until = self.sim.now + int(self.sim.rng.uniform(0, 3 * self.sim.plan.hb) * S)
        sides: tuple[Side, ...] = (1, 2)
        if self.sim.plan.one_log:
            sides = self.sim.rng.choice(((1,), (2,), (1, 2)))
        for side in sides:
            self.cut_until[side] = until

    def leave(self) -> None:
        """Leave in order, and come back."""
        if self.alive and self.sim.now >= self.frozen_until:
            self.look()
            self.stop_acting()
            self.say_goodbye()
            number = self.run_number
            self.sim.after(2, lambda: self.die() if number == self.run_number else None)
            hb = self.sim.plan.hb
            self.sim.after(self.sim.rng.uniform(hb, 5 * hb), self.start)

    def say_goodbye(self) -> None:
        raise NotImplementedError

    # Who works

    def look(self) -> None:
        """Bring what is known of who works up to date."""

    def note(self, partition: Key, acts: bool, until: int | None = None) -> None:
        if acts and self.sim.now < self.frozen_until:
            return
        since = self._acting.get(partition)
        if acts and since is None:
            self._acting[partition] = self.sim.now
        elif not acts and since is not None:
            del self._acting[partition]
            end = self.sim.now if until is None else min(until, self.sim.now)
            self.sim.acts.append(Act(self.name, self.side, partition, since, max(since, end)))

    def stop_acting(self) -> None:
        for partition in list(self._acting):
            self.note(partition, False)

    def may_send(self) -> bool:
        """Say whether a record leaves the process."""
        return True

    def handle(self, partition: Key, offset: int) -> bool:
        """Handle a message, if it is there already; one comes every two seconds."""
        if offset * 2 * S > self.sim.now:
            return False
        self.sim.handled.setdefault((partition, offset), set()).add(self.side)
        return True


class Member:
    """One client of one log, in one process: its network."""

    def __init__(self, process: Process, log: Log) -> None:
        self.process = process
        self.sim = process.sim
        self.log = log
        self.gone = False
        self.position = len(log.values)
        self.give_up_s: float = self.sim.plan.hb / 2
        """What has not been delivered by then is given up."""
        self._reading = False
        self._append_free = 0
        process.members.append(self)
        log.readers.append(self)

    def send(self, value: bytes, failed: Callable[[], None] | None = None) -> None:
        sim, process = self.sim, self.process
        if not process.may_send():
            return
        at = max(self._append_free, sim.now + int(sim.rng.uniform(0.001, 0.05) * S))
        cut_until = process.cut_until[self.log.side]
        if at < cut_until:
            if cut_until - sim.now > self.give_up_s * S:
                if failed is not None:
                    sim.after(self.give_up_s, failed)
                return
            at = cut_until
        self._append_free = at
        at_once = at < sim.now + S

        def arrive() -> None:
            if at_once or not self.gone:  # what waits in a process dies with it
                self._append(value)

        sim.at(at, arrive)

    def _append(self, value: bytes) -> None:
        self.log.values.append(value)
        self.log.readers = [reader for reader in self.log.readers if not reader.gone]
        for reader in self.log.readers:
            reader.wake()

    def wake(self) -> None:
        if not self._reading:
            self._reading = True
            self.sim.after(self.sim.rng.uniform(0.001, 0.05), self._read)

    def _read(self) -> None:
        process = self.process
        blocked_until = max(process.frozen_until, process.cut_until[self.log.side])
        if self.gone:
            return
        if self.sim.now < blocked_until:
            self.sim.at(blocked_until, self._read)
            return
        self._reading = False
        start, self.position = self.position, len(self.log.values)
        self.take(start, self.log.values[start:])

    def take(self, start: int, values: list[bytes]) -> None:
        raise NotImplementedError


class GoProcess(Process):
    """A Go client that works on everything that it gets."""

    side: Side = 1
    client: GoClient

    def begin(self) -> None:
        sim, plan = self.sim, self.sim.plan
        self.client = GoClient(
            GoWorld(hb=plan.hb, bugs=Bugs()),
            self.name,
            GROUP,
            f"{self.name}-{self.run_number}",
            sim.rng,
        )
        self.known = sim.units()
        for value in sim.logs[1].values:
            self.client.world.read(value, int(self.wall_s()))
        self.member = _GoMember(self, sim.logs[1])
        for key in self.known:
            self.write(self.client.fast_reclaim(*key, self.wall_s()))
        self.every(0.01, 3, self._claim_loop)
        self.every(15, 45, self._refresh)
        self.every(1, 2, self._work)

    def _refresh(self) -> None:
        self.known = self.sim.units()

    def write(self, values: list[bytes]) -> None:
        for value in values:
            topic, number = value.split(b"/")[6:8]
            self.member.send(value, self._failed(value, (topic.decode(), int(number))))
        self.look()

    def _failed(self, value: bytes, key: tuple[str, int]) -> Callable[[], None]:
        """Go lets go of a partition whose heartbeat was not delivered."""
        client = self.client

        def failed() -> None:
            if client is self.client and value.startswith(b"Heartbeat"):
                client.claims.pop(key, None)
            elif client is self.client and client.waiting == key:
                client.waiting = None
            self.look()

        return failed

    def look(self) -> None:
        if self.alive:
            for key in self.sim.units():
                self.note(key, key in self.client.claims)

    def _claim_loop(self) -> None:
        for key, claim in list(self.client.claims.items()):
            if self.wall_s() >= claim.beat_at:
                self.write(self.client.health(key, self.wall_s()))
        key = self.sim.rng.choice(self.known)
        self.write(self.client.try_claim(*key, self.wall_s()))

    def _work(self) -> None:
        for key, claim in self.client.claims.items():
            while self.handle(key, claim.offset):
                claim.offset += 1

    def freeze(self) -> None:
        super().freeze()
        caught = [
            key
            for key in (self.client.claims if self.alive else ())
            if self.client.looks_ours(key, self.wall_s()) and self.sim.rng.random() < 0.5
        ]
        number = self.run_number

        def awake() -> None:
            if self.alive and number == self.run_number:
                for key in set(caught) & set(self.client.claims):
                    self.write(self.client.beat(key, self.wall_s()))

        self.sim.at(self.frozen_until, awake)

    def say_goodbye(self) -> None:
        for key in list(self.client.claims):
            for value in self.client.release(key, self.wall_s()):
                self.member.send(value)
        self.client.max_claims = -1  # it claims nothing any more


class _GoMember(Member):
    process: GoProcess

    def __init__(self, process: Process, log: Log) -> None:
        super().__init__(process, log)
        self.give_up_s = 5.0

    def take(self, start: int, values: list[bytes]) -> None:
        for value in values:
            go = self.process
            cell = go.client.world.read(value, int(go.wall_s()))
            go.write(go.client.woken(cell, go.wall_s()))


class Client(Member):
    """One of our clients: the part of `Marshal` that the bridge uses."""

    def __init__(
        self, process: Process, side: Side, client_id: str, interval_ms: int, instance: str
    ) -> None:
        super().__init__(process, process.sim.logs[side])
        sim, plan = self.sim, self.sim.plan
        is_text = side == 1
        self.group_id, self.client_id = GROUP, client_id
        wire = "text" if is_text else "msgpack"
        self.settings = SimpleNamespace(wire=wire, topic=f"log{side}", kafka={})
        self.failure: MarshalError | None = None
        self.before_heartbeat: list[Callable[[], None]] = []
        self._world = TextWorld(1, plan.hb, process.wall_s) if is_text else World(1)
        self._apply = text_rationalizer.apply if is_text else rationalizer.apply
        self.observer = Observer()
        for offset, value in enumerate(self.log.values):
            self._apply(self._world.states[0], offset, value)
        self.observer.caught_up_at_offset = self.position
        self.observer.seen.note(self.position - 1, sim.now)
        settings: dict[str, Any] = {
            "client_id": client_id,
            "instance_id": instance,
            "group_id": GROUP,
            "interval_ms": interval_ms,
            "margin_ms": interval_ms // 10,
            "wall_s": process.wall_s,
        }
        self.claimant: Claimant = (
            TextClaimant(self._world, [self.observer], **settings)
            if is_text
            else Claimant(
                self._world,
                [self.observer],
                member=False,
                cold_start_skew_ms=None,
                **settings,
            )
        )
        self._driver = SimpleNamespace(
            lock=contextlib.nullcontext(),
            claimant=self.claimant,
            before_heartbeat=self.before_heartbeat,
        )
        self._claims: dict[int, SimClaim] = {}
        self._tick_at = -1
        self.claimant.caught_up(0, sim.now)
        self.pump()

    # What the bridge asks for

    def want(self, topic: str, partition: int) -> SimClaim:
        holding = self.claimant.want(topic, partition, self.sim.now)
        claim = self._claims.get(id(holding))
        if claim is None or claim.holding is not holding:
            claim = self._claims[id(holding)] = SimClaim(self, holding)
        self.pump()
        return claim

    def cell(self, topic: str, partition: int) -> Cell | None:
        cell = self._world.cell(GROUP, topic, partition)
        return None if cell is None else msgspec.structs.replace(cell)

    @contextlib.contextmanager
    def world(self) -> Iterator[World]:
        yield self._world

    # The driver loop

    def take(self, start: int, values: list[bytes]) -> None:
        events: list[Event] = []
        for offset, value in enumerate(values, start):
            self._apply(self._world.states[0], offset, value, events)
        if values:
            self.observer.seen.note(self.position - 1, self.sim.now)
            self.claimant.applied(0, events, self.sim.now)
        self.tick()

    def tick(self) -> None:
        process = self.process
        if self.gone:
            return
        if self.sim.now < process.frozen_until:
            self.sim.at(process.frozen_until, self.tick)
            return
        due = self.claimant.next_deadline_ns()
        if due is not None and due <= self.sim.now:
            for refresh in self.before_heartbeat:
                refresh()
        self.claimant.tick(self.sim.now)
        self.pump()

    def pump(self) -> None:
        now = self.sim.now
        for append in self.claimant.take_appends():

            def failed(seq: int = append.seq) -> None:
                if not self.gone:
                    self.claimant.append_failed(seq, self.sim.now)
                    self.tick()

            self.send(append.value, failed)
        for notice in self.claimant.take_notices():
            if notice.kind == "duplicate_client_id":
                self.failure = DuplicateClientId(notice.detail)
            if notice.kind in ("lost", "released"):
                self._claims.pop(id(notice.holding), None)
        self.process.look()
        due = self.claimant.next_deadline_ns()
        if due is not None and not now < self._tick_at <= due:
            self._tick_at = max(due, now + MS)
            self.sim.at(self._tick_at, self.tick)


class SimClaim:
    """As much of `Claim` as the bridge and the workers use."""

    def __init__(self, client: Client, holding: Holding) -> None:
        self.client = client
        self.holding = holding
        self.topic, self.partition = holding.key

    @property
    def held(self) -> bool:
        return self.holding.held(self.client.sim.now)

    @property
    def reason(self) -> str | None:
        return self.holding.reason

    @property
    def remaining_ms(self) -> float:
        left_ns = self.holding.lease_until_ns - self.client.sim.now
        return max(0, left_ns) / MS if self.held else 0.0

    @property
    def next_offset(self) -> int:
        return self.holding.next_offset

    @property
    def position(self) -> int:
        return max(self.holding.next_offset, self.holding.claimed_offset)

    def commit(self, next_offset: int) -> None:
        self.client.claimant.commit(self.holding, next_offset, self.client.sim.now, flush=False)

    def set_metadata(self, metadata: bytes) -> None:
        self.client.claimant.set_metadata(self.holding, metadata)

    def release(self, *, wait: bool = True, timeout_s: float = 0.0) -> None:
        self.client.claimant.release(self.holding, self.client.sim.now)
        self.client.pump()


class NewProcess(Process):
    """A client of version 2 that wants every partition."""

    side: Side = 2

    def begin(self) -> None:
        self.claims: dict[Key, SimClaim] = {}
        self._until: dict[Key, int] = {}
        self.offsets: dict[Key, int] = {}
        self.leaving = False
        self.client = Client(self, 2, self.name, 5_000, f"{self.name}-{self.run_number}")
        self.every(0.5, 2, self._work)

    def _work(self) -> None:
        if self.leaving:
            return
        for key in self.sim.units():
            claim = self.claims.get(key)
            if claim is None or claim.reason is not None:
                claim = self.claims[key] = self.client.want(*key)
                self.offsets.pop(key, None)
        self.look()
        for partition, claim in self.claims.items():
            if not claim.held:
                continue
            offset = self.offsets.setdefault(partition, max(0, claim.position))
            while claim.held and self.handle(partition, offset):
                offset += 1
            self.offsets[partition] = offset
            claim.commit(offset)

    def look(self) -> None:
        if not self.alive:
            return
        for partition, claim in list(getattr(self, "claims", {}).items()):
            if claim.held:
                self.note(partition, True)
                self._until[partition] = claim.holding.lease_until_ns
            else:
                self.note(partition, False, self._until.get(partition))

    def stop_acting(self) -> None:
        for partition in list(self._acting):
            self.note(partition, False, self._until.get(partition))

    def say_goodbye(self) -> None:
        self.leaving = True
        self.claims = {}
        self.client.claimant.leave(self.sim.now)
        self.client.pump()


class _Bridge(Bridge):
    def _text_position(self, claim: Any) -> int:
        return int(claim.position)  # nobody commits to Kafka here


class BridgeProcess(Process):
    """`marshal group migrate`: waits for its turn, then moves the group."""

    side: Side = 1  # it works on nothing

    def begin(self) -> None:
        self.bridge: Bridge | None = None
        self._beginning: Iterator[None] | None = None
        self._ending: Iterator[None] | None = None
        self._leads = 0
        self._is_doomed = False
        instance = f"{self.name}-{self.run_number}"
        self.lock = Client(self, 2, instance, self.sim.plan.hb * 1000 // 12, instance)
        self.lead = self.lock.want("leader:migration", 0)
        self._stepped_at = 0
        self.every(0.2, 0.3, self._look_round)
        self.every(15, 16, self._adopt)

    def topics(self, source: Client) -> Mapping[str, int]:
        """What the group has on the source side."""
        with source.world() as world:
            cells = [(topic, p) for _, (_, topic, p), _ in world.cells(GROUP)]
        found = partitions_of(cells, lambda t: self.sim.counts.get(t, 0))
        return {topic: count for topic, count in found.items() if topic in self.sim.counts}

    def may_send(self) -> bool:
        plan, sim = self.sim.plan, self.sim
        sim.bridge_records += 1
        was_doomed = self._is_doomed
        if sim.bridge_records == plan.kill_at:
            self._is_doomed = True
            sim.at(sim.now, self.kill)
        return not (was_doomed or (self._is_doomed and plan.kill_loses))

    def _look_round(self) -> None:
        """A few times a second while something is under way; less often otherwise."""
        calm = self.bridge is not None and self._beginning is None and not self.bridge.busy
        if not calm or self.sim.now - self._stepped_at >= S:
            self._stepped_at = self.sim.now
            self._step()

    def _step(self) -> None:
        sim = self.sim
        try:
            if self.bridge is not None and not self.lead.held:
                self._abandon()
            if self.bridge is None:
                if not self.lead.held:
                    if self.lead.reason is not None:
                        self.lead = self.lock.want("leader:migration", 0)
                    return
                self._lead()
                if self.bridge is None:
                    return
            if self._beginning is not None:
                for _ in self._beginning:
                    return
                self._beginning = None
                sim.start_target()
            known = len(self.bridge.conflicts)
            if self._ending is None:
                sim.moves += len(self.bridge.step())
            sim.conflicts += max(0, len(self.bridge.conflicts) - known)
            is_over = self.bridge.ended or (sim.turning and self.bridge.complete)
            if self._ending is None and is_over and self.bridge.back == sim.back:
                self._ending = self.bridge.end()
            if self._ending is not None:
                for _ in self._ending:
                    return
                self._abandon()
                if sim.turning:
                    sim.turn_round()
        except DuplicateClientId:
            self._abandon()  # the one before it was not quite dead, but has no lead any more
        except ConfigurationError:
            self._abandon()
            if sim.turning:  # the one before it died when all was done, and the error says so
                sim.turn_round()
            else:
                sim.refusals += 1

    def _lead(self) -> None:
        sim = self.sim
        self._leads += 1
        instance = f"{self.name}-{self.run_number}-{self._leads}"
        text = Client(self, 1, "bridge", sim.plan.hb * 1000, instance)
        new = Client(self, 2, "bridge", sim.plan.hb * 1000 // 12, instance)
        sides = (new, text) if sim.back else (text, new)
        topics = self.topics(sides[0])
        if not topics:  # nobody has claimed anything yet
            self._abandon()
            return
        source: Any = sides[0]
        target: Any = sides[1]
        self.bridge = _Bridge(source, target, topics, wall_s=self.wall_s)
        self._beginning = self.bridge.begin()
        sim.takeovers += 1

    def _abandon(self) -> None:
        for member in self.members[1:]:
            member.gone = True
        del self.members[1:]
        self.bridge = self._beginning = self._ending = None

    def _adopt(self) -> None:
        if self.bridge is not None and self._beginning is None and self._ending is None:
            source: Any = self.bridge.source
            self.bridge.adopt(self.topics(source))

    def say_goodbye(self) -> None:
        raise AssertionError
