"""One process: the driver loop of the live client around a real claimant, and its network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from marshal_py.protocol import events as ev
from marshal_py.protocol.claimant import Append, Claimant, ClaimState
from marshal_py.protocol.messages import ClaimingPartition, Heartbeat, decode
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.world import Observer, World
from marshal_py.testing import VirtualClock
from tests.simulation.common import MS, US
from tests.simulation.scenario import ProcessSpec
from tests.simulation.user import User

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


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
        self.jumps: list[tuple[int, int]] = []
        """When the clock went ahead, and by how many nanoseconds."""
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
            levels=spec.levels,
        )
        self.levels = spec.levels
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
        self.told_to_stop = False
        self.paused_epochs: set[tuple[str, int, int]] = set()
        """What it had read the pause of, after its last step: nothing renews that any more."""
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
        self.user = User(self)

    # The driver loop

    def boot(self) -> None:
        sim = self.sim
        sim.tell(self.name, "starts")
        first = sim.latency(self.spec.read_us)
        for p in range(len(self.booted)):
            delay = sim.latency(self.spec.read_us) * 5 if self.spec.staggered else first
            sim.at(max(sim.by_heal(sim.now + delay), sim.now + 1), self._booted, p)
        if self.spec.staggered:
            self.user.want_all()
        sim.at(sim.now + self.spec.work_every_us * US, self.user.work)

    def _booted(self, p: int) -> None:
        """Replay one partition and catch up with it."""
        if self.dead:
            return
        if self.frozen_until > self.sim.now:
            self.sim.at(self.sim.by_heal(self.frozen_until), self._booted, p)
            return
        self._replay(p)
        if all(self.booted):
            now = self.clock.at(self.sim.now)
            if self.spec.staggered:
                self.claimant.caught_up(p, now)
            else:
                for each in range(len(self.booted)):
                    self.claimant.caught_up(each, now)
                self.user.want_all()
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
                if self.dead:  # it crashed amid a send
                    return
        claimant.tick(now)
        self._pump(now)
        if self.dead:
            return
        self.fenced = claimant.duplicate_instance_id is not None
        self.paused_epochs = {
            (h.topic, h.partition, h.epoch) for h in self.user.holdings if h.paused
        }
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
        if any(holding.held(now) for holding in self.user.holdings):
            self.sim.checker.fail("a truncation ends every lease", self.name)
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
                self.user.hear(notice, now)
        user = self.user
        ended = [h for h in user.holdings if h.state is ClaimState.ENDED]
        if ended:
            for holding in ended:
                self.sim.checker.ended(self, holding)
            user.holdings = [h for h in user.holdings if h.state is not ClaimState.ENDED]
        if user.failed_before_leaving is not None and claimant.settled and not self.dead:
            self.sim.leave(self)

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
        kind = append.value[1]
        if kind == 1:
            self._sends_claim(append.value)
        if self.told_to_stop and kind in (1, 2) and self.user.failed_before_leaving is None:
            sim.checker.fail("silence", f"{self.name} sends a record of type {kind}")
        if self.paused_epochs and kind == 2:
            self._sends_beat(append.value)
        if departs > sim.now:
            # Just before the process runs again: its producer keeps the order.
            sim.at(max(sim.by_heal(departs) - 1, sim.now), self._depart, append)
        else:
            self._depart(append)

    def _depart(self, append: Append) -> None:
        sim = self.sim
        if self.dead:
            self.appends_failed += 1
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
                arrives = sim.by_heal(until) + latency
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

    def _sends_beat(self, value: bytes) -> None:
        record = decode(value)
        assert isinstance(record, Heartbeat)
        base = self.world.states[self.claimant.home].base
        paused = {epoch for _, _, epoch in self.paused_epochs}
        if paused & {base + at for at in record.positions[::2]}:
            self.sim.checker.fail("a pause ends the storing", f"{self.name} {record}")
        # What is told of a claim that is paused is what its release goes with (§5.7).
        told = paused & {base + entry.claimed_at for entry in record.metadata}
        released = {
            holding.epoch
            for holding in self.claimant.holdings()
            if holding.state is ClaimState.RELEASING
        }
        if not told <= released:
            self.sim.checker.fail("a pause ends the storing", f"{self.name} {record}")

    def _sends_claim(self, value: bytes) -> None:
        record = decode(value)
        assert isinstance(record, ClaimingPartition)
        sim = self.sim
        if self.fenced:
            sim.checker.fail("fenced by a twin", f"{self.name} claims {record}")
        p = self.claimant.home
        key = (self.group_id, record.topic, record.partition)
        cell = self.world.states[p].cells.get(key)
        if cell is None or not cell.held:
            sim.counts["claims of free cells"] += 1
            return
        version = self.world.states[p].version(*key)
        silence = self.observers[p].silence_ns(version, self.clock.at(sim.now)) or 0
        if cell.holder == self.client_id:
            sim.counts["resumes"] += 1
            if silence <= 2 * cell.interval_ms * MS:
                sim.checker.resumes(self, p, cell)
        else:
            if silence > 2 * cell.interval_ms * MS:
                sim.counts["takeovers"] += 1
            else:
                sim.counts["cold takeovers"] += 1

    def stop_claiming(self) -> None:
        """The topic has another number of partitions now: the client goes silent for good."""
        self.claimant.stop_claiming("the number of partitions changed")
        self._pump(self.clock.at(self.sim.now))
        self.told_to_stop = True
        for holding in self.user.holdings:
            if holding.state in (ClaimState.WAITING, ClaimState.CLAIMING):
                self.sim.checker.fail("silence", f"{self.name} still wants {holding!r}")
