"""Go clients and ours on one log, in virtual time: who acts when, under skewed clocks and faults.

Time is in nanoseconds. Each client has a wall clock with an offset of its own, reads the log with
delays of its own, and its records take their time to be appended, in order. Ours are real
`TextClaimant`s over the real fold; Go's are `gomodel.GoClient`s.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from marshal_py.protocol.claimant import ClaimState, Holding
from marshal_py.protocol.events import Event
from marshal_py.protocol.text.claimant import TextClaimant
from marshal_py.protocol.text.rationalizer import TextState, TextWorld, apply
from marshal_py.protocol.world import Observer
from tests.interop.gomodel import Bugs, GoClient, GoWorld

S = 1_000_000_000
GROUP, TOPIC = "g", "t"
EPOCH_S = 1_800_000_000


@dataclass
class Plan:
    """What may go wrong. Skews and delays are in seconds."""

    seed: int = 0
    ours: int = 2
    go: int = 2
    hb: int = 60
    duration_s: int = 1_800
    quiet_s: int = 600
    """At the end, without faults: somebody has to hold the cell when it is over."""
    our_skew_s: float = 1.0
    go_skew_s: float = 1.0
    append_delay_s: float = 0.05
    slow_append_s: float = 0.0
    """Now and then an append takes up to so long."""
    lost_append: float = 0.0
    crashes: float = 0.0
    """Crashes per client and hour; the restart comes within 3 HB, under the same client id."""
    pauses: float = 0.0
    """SIGSTOPs per client and hour, of up to 4 HB."""
    caught_looking: float = 0.5
    """How many of a Go client's stops come between a look at the log and the heartbeat after it."""
    releases: float = 6.0
    """Voluntary releases per holder and hour."""


@dataclass
class Act:
    """`who` acted on the cell from `start` to `end`."""

    who: str
    start: int
    end: int


@dataclass(order=True)
class _Event:
    at: int
    order: int
    run: Callable[[], None] = field(compare=False)


class Sim:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.now = 0
        self.log: list[tuple[int, str, bytes]] = []
        """(time, sender, value)"""
        self.acts: list[Act] = []
        self.takeovers: list[str] = []
        """Acquisitions of ours while a Go client acted that had been heard of."""
        self._events: list[_Event] = []
        self._order = itertools.count()
        self.clients: list[Ours | Go] = [Ours(self, f"py{i}") for i in range(plan.ours)]
        self.clients += [Go(self, f"go{i}") for i in range(plan.go)]

    def at(self, when: int, run: Callable[[], None]) -> None:
        heapq.heappush(self._events, _Event(max(when, self.now), next(self._order), run))

    def append(self, sender: str, value: bytes) -> None:
        self.log.append((self.now, sender, value))
        for client in self.clients:
            client.wake_reader()

    def run(self) -> None:
        for client in self.clients:
            client.start()
            self._plague(client)
        end = (self.plan.duration_s + self.plan.quiet_s) * S
        while self._events and self._events[0].at <= end:
            event = heapq.heappop(self._events)
            self.now = event.at
            event.run()
        self.now = end
        for client in self.clients:
            client.note_end()

    def _plague(self, client: Ours | Go) -> None:
        def run_again(per_hour: float, run: Callable[[], None]) -> None:
            run()
            schedule(per_hour, run)

        def schedule(per_hour: float, run: Callable[[], None]) -> None:
            if per_hour <= 0:
                return
            at = self.now + int(self.rng.expovariate(per_hour / 3600) * S)
            if at < self.plan.duration_s * S:
                self.at(at, lambda: run_again(per_hour, run))

        schedule(self.plan.crashes, client.crash)
        schedule(self.plan.pauses, client.pause)
        schedule(self.plan.releases, client.give_up)

    def longest_idle_s(self) -> float:
        """Return the longest time in which nobody acted, nor believed to."""
        longest = until = 0
        for act in sorted(self.acts, key=lambda act: act.start):
            longest = max(longest, act.start - until)
            until = max(until, act.end)
        return max(longest, self.now - until) / S

    def longest_awake_s(self, mine: str, theirs: str) -> float:
        """Return the longest time in which two of them acted at once, and neither was stopped."""
        stops = {client.name: client.stops for client in self.clients}
        longest = 0
        for _, one, other in self.overlaps(mine, theirs):
            start, end = max(one.start, other.start), min(one.end, other.end)
            for stop in sorted(stops[one.who] + stops[other.who]):
                longest = max(longest, min(stop[0], end) - start)
                start = max(start, stop[1])
            longest = max(longest, end - start)
        return longest / S

    def overlaps(self, mine: str, theirs: str) -> list[tuple[int, Act, Act]]:
        """Return (nanoseconds, one, other) of the times in which two of them acted at once."""
        found = []
        acts = [a for a in self.acts if a.end > a.start]
        for one, other in itertools.combinations(acts, 2):
            pair = {one.who[:2], other.who[:2]}
            if one.who == other.who or pair != {mine, theirs}:
                continue
            overlap = min(one.end, other.end) - max(one.start, other.start)
            if overlap > 0:
                found.append((overlap, one, other))
        return found


class _Client:
    def __init__(self, sim: Sim, name: str, skew_s: float) -> None:
        self.sim = sim
        self.name = name
        self.wall_offset_s = EPOCH_S + sim.rng.uniform(-skew_s, skew_s)
        self.instance = 0
        self.alive = False
        self.frozen_until = 0
        self.stops: list[tuple[int, int]] = []
        self.position = 0
        self.acting_since: int | None = None
        self._reading = False
        self._append_free = 0

    def wall_s(self) -> float:
        return self.sim.now / S + self.wall_offset_s

    # The network

    def send(self, value: bytes, failed: Callable[[], None] | None = None) -> None:
        plan, rng = self.sim.plan, self.sim.rng
        delay = rng.uniform(0.001, plan.append_delay_s)
        if plan.slow_append_s and rng.random() < 0.05:
            delay = rng.uniform(0.0, plan.slow_append_s)
        lost = rng.random() < plan.lost_append
        at = self._append_free = max(self._append_free, self.sim.now + int(delay * S))
        if lost:
            if failed is not None:
                self.sim.at(at, failed)
            return
        self.sim.at(at, lambda: self.sim.append(self.name, value))

    def wake_reader(self) -> None:
        if self.alive and not self._reading:
            self._reading = True
            self.sim.at(self.sim.now + self.read_delay(), self.read)

    def read_delay(self) -> int:
        return int(self.sim.rng.uniform(0.001, 0.02) * S)

    def thaw(self, run: Callable[[], None]) -> bool:
        """Put `run` off while the process is frozen; say whether it was put off."""
        if self.sim.now < self.frozen_until:
            self.sim.at(self.frozen_until, run)
            return True
        return False

    def read(self) -> None:
        if not self.alive:
            self._reading = False
            return
        if self.thaw(self.read):
            return
        self._reading = False
        records = self.sim.log[self.position :]
        start, self.position = self.position, len(self.sim.log)
        self.take(start, [value for _, _, value in records])

    def pause(self) -> None:
        self.frozen_until = self.sim.now + int(self.sim.rng.uniform(0, 4 * self.sim.plan.hb) * S)
        self.stops.append((self.sim.now, self.frozen_until))

    def crash(self) -> None:
        if self.alive:
            self.note_end()
            self.alive = False
            back = self.sim.now + int(self.sim.rng.uniform(1, 3 * self.sim.plan.hb) * S)
            self.sim.at(back, self.start)

    # Who acts

    def note(self, acts: bool, until: int | None = None) -> None:
        now = self.sim.now if until is None else min(until, self.sim.now)
        if acts and self.acting_since is None:
            self.acting_since = self.sim.now
        elif not acts and self.acting_since is not None:
            self.sim.acts.append(Act(self.name, self.acting_since, max(now, self.acting_since)))
            self.acting_since = None

    def take(self, start: int, values: list[bytes]) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def note_end(self) -> None:
        self.note(False)


class Ours(_Client):
    claimant: TextClaimant
    holding: Holding | None

    def __init__(self, sim: Sim, name: str) -> None:
        super().__init__(sim, name, sim.plan.our_skew_s)
        self.lease_end = 0

    def start(self) -> None:
        plan = self.sim.plan
        self.alive, self.instance, self.frozen_until = True, self.instance + 1, 0
        self.world = TextWorld(1, plan.hb, self.wall_s)
        self.state: TextState = self.world.states[0]  # type: ignore[assignment]
        self.observer = Observer()
        for offset, (_, _, value) in enumerate(self.sim.log):
            apply(self.state, offset, value)
        self.position = len(self.sim.log)
        self.observer.caught_up_at_offset = self.position
        self.observer.seen.note(self.position - 1, self.sim.now)
        self.claimant = TextClaimant(
            self.world,
            [self.observer],
            client_id=self.name,
            instance_id=f"{self.name}-{self.instance}",
            group_id=GROUP,
            interval_ms=plan.hb * 1000,
            margin_ms=plan.hb * 100,
            wall_s=self.wall_s,
        )
        self.holding = self.claimant.want(TOPIC, 0, self.sim.now)
        self.claimant.caught_up(0, self.sim.now)
        self.pump()

    def take(self, start: int, values: list[bytes]) -> None:
        events: list[Event] = []
        for offset, value in enumerate(values, start):
            apply(self.state, offset, value, events)
        if values:
            self.observer.seen.note(self.position - 1, self.sim.now)
            self.claimant.applied(0, events, self.sim.now)
        self.tick()

    def tick(self) -> None:
        if self.alive and not self.thaw(self.tick):
            self.claimant.tick(self.sim.now)
            self.pump()

    def pump(self) -> None:
        """Send what is to be sent, look whether we act, and sleep until something is due."""
        now = self.sim.now
        instance = self.instance
        for append in self.claimant.take_appends():

            def failed(seq: int = append.seq) -> None:
                if self.alive and self.instance == instance:
                    self.claimant.append_failed(seq, self.sim.now)
                    self.tick()

            self.send(append.value, failed)
        self.claimant.take_notices()
        holding = self.holding
        if (
            holding is not None
            and holding.state is ClaimState.ENDED
            and self.claimant.duplicate_instance_id is None
        ):
            self.holding = None
            self.sim.at(now + S, self.want_again)
        self.look()
        due = self.claimant.next_deadline_ns()
        if due is not None:
            self.sim.at(max(due, now + 1), self.tick_of(instance))

    def tick_of(self, instance: int) -> Callable[[], None]:
        return lambda: self.tick() if instance == self.instance else None

    def want_again(self) -> None:
        if self.alive and self.holding is None and not self.thaw(self.want_again):
            self.holding = self.claimant.want(TOPIC, 0, self.sim.now)
            self.pump()

    def look(self) -> None:
        holding = self.holding
        if self.acting_since is not None and (holding is None or not holding.held(self.sim.now)):
            self.note(False, self.lease_end or None)
        if holding is not None and holding.held(self.sim.now):
            if self.acting_since is None:
                self.note(True)
                self.check_takeover()
            self.lease_end = holding.lease_until_ns
        elif holding is not None and holding.lease_until_ns == 0:
            self.lease_end = 0

    def check_takeover(self) -> None:
        """Whoever acts and was heard of within 2 HB, before we claimed, must not be taken from."""
        sim = self.sim
        ours = max(
            i
            for i, (_, who, value) in enumerate(sim.log)
            if who == self.name and value.startswith((b"ClaimingPartition", b"Heartbeat"))
        )
        claim = max(
            (
                i
                for i, (_, who, value) in enumerate(sim.log[: ours + 1])
                if who == self.name and value.startswith(b"ClaimingPartition")
            ),
            default=ours,
        )
        for other in sim.clients:
            if isinstance(other, Go) and other.acting_since is not None:
                heard = [
                    (at, i)
                    for i, (at, who, value) in enumerate(sim.log[:claim])
                    if who == other.name
                    and value.startswith(b"Heartbeat")
                    and at >= other.acting_since
                ]
                if heard and sim.log[claim][0] - heard[-1][0] < 2 * sim.plan.hb * S:
                    sim.takeovers.append(f"{self.name} from {other.name} at {sim.now / S:.3f}")

    def give_up(self) -> None:
        if self.alive and self.holding is not None and not self.thaw(self.give_up):
            self.look()
            self.claimant.release(self.holding, self.sim.now)
            self.pump()

    def note_end(self) -> None:
        self.look()
        self.note(False)


class Go(_Client):
    client: GoClient

    def __init__(self, sim: Sim, name: str) -> None:
        super().__init__(sim, name, sim.plan.go_skew_s)

    def read_delay(self) -> int:
        return int(self.sim.rng.uniform(0.001, 0.5) * S)

    def start(self) -> None:
        plan = self.sim.plan
        self.alive, self.instance, self.frozen_until = True, self.instance + 1, 0
        self.client = GoClient(
            GoWorld(hb=plan.hb, bugs=Bugs()),
            self.name,
            GROUP,
            f"{self.name}-{self.instance}",
            self.sim.rng,
        )
        for _, _, value in self.sim.log:
            self.client.world.read(value, int(self.wall_s()))
        self.position = len(self.sim.log)
        self.write(self.client.fast_reclaim(TOPIC, 0, self.wall_s()))
        self.loop(self.instance)

    def write(self, values: list[bytes]) -> None:
        for value in values:
            self.send(value)
        self.note(bool(self.client.claims))

    def take(self, start: int, values: list[bytes]) -> None:
        for value in values:
            cell = self.client.world.read(value, int(self.wall_s()))
            self.write(self.client.woken(cell, self.wall_s()))

    def loop(self, instance: int) -> None:
        if not self.alive or instance != self.instance:
            return
        if self.thaw(lambda: self.loop(instance)):
            return
        for key, claim in list(self.client.claims.items()):
            if self.wall_s() >= claim.beat_at:
                self.write(self.client.health(key, self.wall_s()))
        self.write(self.client.try_claim(TOPIC, 0, self.wall_s()))
        self.sim.at(
            self.sim.now + int(self.sim.rng.uniform(0.01, 3) * S), lambda: self.loop(instance)
        )

    def pause(self) -> None:
        looked = [
            key
            for key in (self.client.claims if self.alive else ())
            if self.client.looks_ours(key, self.wall_s())
            and self.sim.rng.random() < self.sim.plan.caught_looking
        ]
        super().pause()
        instance = self.instance

        def awake() -> None:
            if self.alive and instance == self.instance and not self.thaw(awake):
                for key in set(looked) & set(self.client.claims):
                    self.write(self.client.beat(key, self.wall_s()))

        if looked:
            self.sim.at(self.frozen_until, awake)

    def give_up(self) -> None:
        if self.alive and not self.thaw(self.give_up):
            for key in list(self.client.claims):
                self.write(self.client.release(key, self.wall_s()))
