"""The invariants. Each names itself in the `Violation` that it raises.

The checker sees everything at its true time: each record the moment it enters the log, and each
process after each of its steps, with its clock. Nothing is sampled:

- when a record takes a cell from its holder, every process is asked whether it still believes, by
  its own clock at that instant, that it may act;
- after each step of a process, every claim that it may act on is compared with the log.

Between steps the right to act can only end. So the intervals in which two processes may act on one
cell are disjoint if and only if no check fails.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from marshal_py.protocol import events as ev
from marshal_py.protocol.claimant import ClaimState, Holding, Notice
from marshal_py.protocol.rationalizer import Cell, CellKey
from tests.simulation.common import MS, cell_of, is_paused
from tests.support import reference_fold, vector_format

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.simulator import Simulation

_NEXT: dict[str, tuple[str, ...]] = {
    # what a holding's user may hear after what
    "new": ("acquired", "lost", "released"),
    "held": ("lapsed", "paused", "lost", "released"),
    "lapsed": ("regained", "paused", "lost", "released"),
    "paused": ("lost", "released"),
    "ended": (),
}
_BECOMES = {
    "acquired": "held",
    "regained": "held",
    "lapsed": "lapsed",
    "paused": "paused",
    "lost": "ended",
    "released": "ended",
}


class Violation(Exception):
    """An invariant does not hold. `args` is its name and what happened."""

    @property
    def invariant(self) -> str:
        """Which one."""
        return str(self.args[0])


class Checker:
    """Watches one history."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.overlaps = 0
        """Where exclusion is not promised: how often two processes could act at a time."""
        self.stable = False
        self.claims: defaultdict[CellKey, list[tuple[int, str]]] = defaultdict(list)
        """Every accepted claim: its epoch and the instance."""
        self.committed: dict[CellKey, int] = {}
        self.stored: dict[tuple[CellKey, int], int] = {}
        self.generation: Counter[CellKey] = Counter()
        self.accepted_to: dict[CellKey, int] = {}
        self.accepted: dict[tuple[str, int], tuple[CellKey, int, int]] = {}
        self.delivered: dict[tuple[CellKey, int], list[tuple[int, int]]] = {}
        self.claimed_at: list[dict[int, int]] = [{} for _ in range(sim.scenario.partitions)]
        """By partition: the epoch of a claim → its offset. What a truncation leaves stays true."""
        self.last_epoch: list[int] = [-1] * sim.scenario.partitions
        self.lives: dict[Holding, str] = {}
        self.states: dict[tuple[int, int, int], bytes] = {}

    def fail(self, invariant: str, text: str) -> None:
        raise Violation(invariant, text)

    # A record enters the log

    def written(self, p: int, events: list[ev.Event]) -> None:
        for event in events:
            if isinstance(event, ev.Renewed | ev.Released):
                self._stored(p, event)
            if isinstance(event, ev.Claimed):
                self._claimed(p, event)
            elif isinstance(event, ev.Released | ev.PositionSet):
                key = (event.group_id, event.topic, event.partition)
                self._nobody_acts(key, -1, event.instance_id, type(event).__name__)
                if isinstance(event, ev.PositionSet):
                    self._reset(key, event.next_offset)
            elif isinstance(event, ev.LevelSet):
                self._level_set(event)
            elif isinstance(event, ev.MessagesClaimed):
                self._messages_claimed(event)
            elif isinstance(event, ev.Beat) and event.membership:
                if p != self.sim.world.home(event.group_id):
                    self.fail("a group has one partition", f"{event.instance_id} in {p}")
            elif isinstance(event, ev.GroupForgotten):
                for key in list(self.committed):
                    if key[0] == event.group_id and self.sim.coordinator(key) == p:
                        self._reset(key, -1)

    def _level_set(self, event: ev.LevelSet) -> None:
        """Whoever acts follows the level of its group: from the record that sets it on."""
        self.sim.fired["level_set"] += 1
        for process in self.sim.alive:
            lowest, highest = process.levels
            if process.group_id != event.group_id or lowest <= event.level <= highest:
                continue
            now = process.clock.at(self.sim.now)
            if self.sim.exclusive and any(h.held(now) for h in process.user.holdings):
                self.fail("who acts follows the level", f"{process.name} at level {event.level}")

    def _claimed(self, p: int, event: ev.Claimed) -> None:
        key = (event.group_id, event.topic, event.partition)
        if event.epoch <= self.last_epoch[p]:
            self.fail("epochs increase", f"{key}: {event.epoch} after {self.last_epoch[p]}")
        self.last_epoch[p] = event.epoch
        self.claimed_at[p][event.epoch] = event.offset
        if event.previous_instance_id == event.instance_id and self.sim.scenario.fenced:
            self.fail("nobody takes from himself", f"{event.instance_id} claims {key} again")
        self.claims[key].append((event.epoch, event.instance_id))
        self.committed.setdefault(key, -1)
        self._nobody_acts(key, event.epoch, event.instance_id, "Claimed")

    def _nobody_acts(self, key: CellKey, epoch: int, by: str, record: str) -> None:
        sim = self.sim
        for process in sim.alive:
            if process.group_id != key[0]:
                continue
            now = process.clock.at(sim.now)
            for holding in process.user.holdings:
                if (
                    holding.held(now)
                    and holding.epoch != epoch
                    and holding.topic == key[1]
                    and holding.partition == key[2]
                ):
                    if sim.exclusive and not self._fenced_by_a_twin(process, holding):
                        left = (holding.lease_until_ns - now) / MS
                        self.fail(
                            "exclusion",
                            f"{record} by {by} enters the log while {process.name} may act on "
                            f"{key} under epoch {holding.epoch} for {left:.3f} ms more",
                        )
                    self.overlaps += 1

    def _fenced_by_a_twin(self, process: Process, holding: Holding) -> bool:
        """Whether a process of the same client_id has taken the cell: then no lease excludes."""
        if self.sim.scenario.kind != "twins":
            return False
        key = (process.group_id, holding.topic, holding.partition)
        return any(
            epoch > holding.epoch
            and instance_id != process.instance_id
            and instance_id.split(".")[0] == process.client_id
            for epoch, instance_id in self.claims[key]
        )

    def _stored(self, p: int, event: ev.Renewed | ev.Released) -> None:
        key = (event.group_id, event.topic, event.partition)
        before = self.committed.get(key, -1)
        if event.next_offset < before:
            self.fail("positions go up", f"{key}: {before} → {event.next_offset}")
        self.committed[key] = event.next_offset
        self.stored[key, event.epoch] = event.next_offset

    def _reset(self, key: CellKey, next_offset: int) -> None:
        self.committed[key] = next_offset
        self.generation[key] += 1
        self.accepted_to[key] = next_offset

    def _messages_claimed(self, event: ev.MessagesClaimed) -> None:
        key = (event.group_id, event.topic, event.partition)
        before = self.accepted_to.get(key, -1)
        if event.from_offset != before or event.to_offset <= before:
            self.fail(
                "at most once: ranges",
                f"{key}: [{event.from_offset}, {event.to_offset}) was accepted, but everything "
                f"below {before} had been",
            )
        self.accepted_to[key] = event.to_offset
        self.accepted[event.instance_id, event.seq] = (
            key,
            self.generation[key],
            event.to_offset,
        )

    def truncated(self) -> None:
        """The log lost records: what they had said is no longer so."""
        self.committed.clear()
        self.accepted_to.clear()
        self.last_epoch = [-1] * len(self.last_epoch)
        for key in list(self.generation):
            self.generation[key] += 1
        for state in self.sim.truth:
            for key, cell in state.cells.items():
                self.generation[key] += 1
                self.committed[key] = cell.next_offset
                self.accepted_to[key] = cell.claimed_offset
                self.last_epoch[state.partition] = max(self.last_epoch[state.partition], cell.epoch)

    # A process has made a step

    def stepped(self, process: Process, now: int) -> None:
        for holding in process.user.holdings:
            state = holding.state
            if state is ClaimState.HELD:
                self._holds(process, holding, now)
            if state is ClaimState.WAITING:
                self._waits_for_something(process, holding, now)
            elif state is ClaimState.HELD or state is ClaimState.LAPSED:
                self._is_ours(process, holding)
        if process.claimant.duplicate_instance_id is not None and not process.user.heard_of_twin:
            self.fail("a twin is noticed", f"{process.name} says nothing")

    def _holds(self, process: Process, holding: Holding, now: int) -> None:
        if now >= holding.lease_until_ns:
            self.fail("a lease that is over lapses", f"{process.name} {holding!r} after a tick")
        if not holding.acquired:
            self.fail("held is announced", f"{process.name} {holding!r} without notice")
        if is_paused(process.world.states[holding.coordinator], process.group_id):
            self.fail("a pause ends the acting", f"{process.name} {holding!r}")
        self.may_act(process, holding, "holds")

    def _is_ours(self, process: Process, holding: Holding) -> None:
        """What a process takes for its own agrees with what it has read, and is looked after."""
        claimant, p = process.claimant, holding.coordinator
        cell = cell_of(process.world.states[p], process.group_id, holding.key)
        if cell is None or cell.epoch != holding.epoch or cell.holder is None:
            self.fail("who has read of a loss knows", f"{process.name} {holding!r}: {_of(cell)}")
        if holding.acquired and process.user.stored[holding] != holding.stored_offset:
            self.fail("what is stored is told", f"{process.name} {holding!r}")
        if holding.paused:
            if holding.release_at_ns is None:
                self.fail("a paused claim is released", f"{process.name} {holding!r}")
            if self.lives.get(holding) != "paused":
                self.fail("a pause is told", f"{process.name} {holding!r}")
        elif holding.repositioned:
            sent = claimant._sent.by_seq.values()
            is_sent = any(each.kind == "position" and each.holding is holding for each in sent)
            if not is_sent and holding.release_at_ns is None:
                self.fail("a claim whose position is being set ends", f"{process.name} {holding!r}")
        elif (
            claimant._heartbeats.due_ns[p] is None
            and not claimant._heartbeats.unread[p]
            and not claimant.silent
        ):
            self.fail("claims are renewed", f"{process.name} {holding!r}: no beat is due")

    def may_act(self, process: Process, holding: Holding, verb: str) -> None:
        """`process` may act on `holding` by its own clock: the log must agree."""
        sim = self.sim
        cell = process.user.true_cell(holding)
        if cell is not None and cell.epoch == holding.epoch and cell.holder is not None:
            if cell.instance_id != process.instance_id and sim.scenario.fenced:
                self.fail(
                    "one holder an epoch",
                    f"{process.name} {verb} {holding!r}, the log gives it to {cell.instance_id}",
                )
            return
        if sim.exclusive and not self._fenced_by_a_twin(process, holding):
            self.fail(
                "exclusion",
                f"{process.name} {verb} {holding!r}, but the log says {_of(cell)}",
            )
        self.overlaps += 1
        self.zombie(process, holding, cell)

    def zombie(self, process: Process, holding: Holding, cell: Cell | None) -> None:
        """`process` acts although the cell is another's: its epoch must be the smaller one.

        A cell that nobody has held since its group was forgotten has no epoch to compare with.
        """
        if cell is None or cell.epoch < 0:
            return
        if self.sim.scenario.fenced and holding.epoch > cell.epoch:
            self.fail(
                "a zombie's epoch is smaller", f"{process.name} {holding!r}, the log: {_of(cell)}"
            )

    def resumes(self, process: Process, p: int, cell: Cell) -> None:
        """`process` claims a cell of its own name that is not silent: only one of its past."""
        if cell.instance_id == process.instance_id:
            return
        caught_up_at = process.observers[p].caught_up_at_offset or 0
        of_the_past = process.spec.resume and self._is_of_the_past(process, p, cell, caught_up_at)
        if not of_the_past and process.spec.cold_start_skew_ms is None:
            self.fail(
                "only the past is resumed",
                f"{process.name}, caught up at {caught_up_at}, claims what {_of(cell)}",
            )

    def _is_of_the_past(self, process: Process, p: int, cell: Cell, caught_up_at: int) -> bool:
        """By the whole log: where the claim is that the cell's epoch stands for."""
        return self.claimed_at[p].get(cell.epoch, cell.epoch) < caught_up_at

    def _waits_for_something(self, process: Process, holding: Holding, now: int) -> None:
        """A claim that waits must be woken: by a record that is due to come, or by a timer."""
        claimant = process.claimant
        p = holding.coordinator
        observer = process.observers[p]
        state = process.world.states[p]
        if observer.caught_up_at_offset is None or claimant.leaving or claimant.silent:
            return
        if holding.key in claimant._releasing or is_paused(state, process.group_id):
            return
        cell = cell_of(state, process.group_id, holding.key)
        past = observer.caught_up_at_offset
        due = holding.check_at_ns
        its_past = (
            process.spec.resume
            and cell is not None
            and cell.holder == process.client_id
            and cell.instance_id != process.instance_id
            and self._is_of_the_past(process, p, cell, past)
        )
        if its_past and (due is None or due > now + 100 * MS):
            self.fail("its past is resumed at once", f"{process.name} {holding!r}")
        if due is None:
            self.fail("a waiting claim is woken", f"{process.name} {holding!r}: no timer")
            return
        longest = 100 * MS
        if cell is not None and cell.holder is not None:
            longest = max(longest, 2 * cell.interval_ms * MS + 1)
        elif due > now + 100 * MS:
            self.fail("a free cell is claimed", f"{process.name} {holding!r} sees {_of(cell)}")
        if due > now + longest:
            self.fail(
                "a waiting claim is woken",
                f"{process.name} {holding!r}: next look in {(due - now) / MS:.0f} ms",
            )

    def read(self, process: Process, p: int, position: int) -> None:
        """Any two readers of the same prefix have the same state."""
        encoded = process.world.states[p].encode()
        known = self.states.setdefault(
            (p, self.sim.log.partitions[p].truncations, position), encoded
        )
        if known != encoded:
            self.fail(
                "equal prefixes, equal states", f"{process.name} differs at {p}, {position} records"
            )

    # What users hear and do

    def notice(self, process: Process, notice: Notice) -> None:
        holding, kind = notice.holding, notice.kind
        if kind in _BECOMES:
            if holding not in process.user.wanted_ever:
                return  # a claim that turned up after it was given up: nobody knows of it
            before = self.lives.get(holding, "new")
            if kind not in _NEXT[before]:
                self.fail("notices make sense", f"{process.name} {holding!r}: {kind} when {before}")
            self.lives[holding] = _BECOMES[kind]
            to_a_twin = kind == "lost" and notice.detail == f"taken over by {process.client_id}"
            if to_a_twin and process.claimant.duplicate_instance_id is None:
                self.fail("a twin is noticed", f"{process.name} {holding!r}")
            if (
                self.stable
                and not process.slow_for_good
                and process.claimant.duplicate_instance_id
                is None  # two of a name may meet at any time
                and kind in ("lapsed", "lost", "regained", "paused")
            ):
                self.fail("calm after the storm", f"{process.name} {holding!r}: {kind}")
        elif kind == "stored":
            key = (process.group_id, holding.topic, holding.partition)
            if self.sim.scenario.fenced and notice.number > self.stored.get(
                (key, holding.epoch), -1
            ):
                self.fail("stored is in the log", f"{process.name} {holding!r}: {notice.number}")

    def ended(self, process: Process, holding: Holding) -> None:
        if self.lives.get(holding, "new") != "ended":
            self.fail("every end is announced", f"{process.name} {holding!r}: no notice")
        released = holding.reason in ("released", "the group was paused")
        if released and holding.stored_offset < holding.next_offset:
            self.fail("a release stores the position", f"{process.name} {holding!r}")

    def left(self, process: Process) -> None:
        """A process says that nothing of its own is left in the log."""
        if process.appends_failed or not self.sim.scenario.fenced:
            return  # what was reported as failed may still turn up
        for state in self.sim.truth:
            for key, cell in state.cells.items():
                if cell.instance_id != process.instance_id:
                    continue
                # What it could not read for that long, by its clock, counts as failed, and may turn
                # up.
                written = self.sim.written_ns[state.partition][cell.epoch]
                age_ns = self.sim.now - written
                age_ns += sum(by_ns for at, by_ns in process.jumps if at >= written)
                if age_ns < process.claimant._answer_timeout_ns * 0.9:
                    self.fail("who leaves holds nothing", f"{process.name}: {key} {_of(cell)}")

    def deliver(self, process: Process, seq: int, start: int, stop: int) -> None:
        """`process` delivers messages [start, stop) at most once, its claim `seq` was accepted."""
        accepted = self.accepted.get((process.instance_id, seq))
        if accepted is None or accepted[2] != stop:
            if self.sim.scenario.fenced:
                self.fail("at most once: accepted", f"{process.name} delivers [{start}, {stop})")
            return
        key, generation, _ = accepted
        ranges = self.delivered.setdefault((key, generation), [])
        for low, high in ranges:
            if start < high and low < stop and self.sim.scenario.fenced:
                self.fail(
                    "at most once",
                    f"{process.name} delivers [{start}, {stop}) of {key}, [{low}, {high}) was",
                )
        ranges.append((start, stop))

    # The end

    def settled(self) -> None:
        """Once faults have stopped: everything that is wanted is held, and nobody hangs."""
        sim = self.sim
        wanted: set[CellKey] = set()
        held: set[CellKey] = set()
        for process in sim.alive:
            now = process.clock.at(sim.now)
            if process.slow_for_good:
                continue
            leaves = process.user.failed_before_leaving is not None
            if leaves and not process.claimant.settled:
                self.fail("leaving ends", f"{process.name} has not settled")
            for holding in process.user.holdings:
                key = (process.group_id, *holding.key)
                if holding.held(now):
                    held.add(key)
                if holding.state is ClaimState.RELEASING:
                    self.fail("liveness", f"{process.name} still releases {holding!r}")
                if holding.state is ClaimState.LAPSED and not process.claimant.silent:
                    self.fail("liveness", f"{process.name} is still lapsed: {holding!r}")
                if not process.claimant.silent:
                    wanted.add(key)
            self._settled_process(process)
        for process in sim.left:
            state = sim.truth[process.claimant.home]
            member = state.members.get((process.group_id, process.client_id))
            # A heartbeat that was reported as failed, or is written twice, may come behind it.
            sure = not process.appends_failed and sim.scenario.kind not in (
                "duplicates",
                "truncation",
            )
            if sure and member is not None and member.instance_id == process.instance_id:
                self.fail("who leaves says goodbye", process.name)
        for key in sorted(wanted - held):
            self.fail("liveness", f"nobody holds {key}: {_of(sim.true_cell(key))}")

    def _settled_process(self, process: Process) -> None:
        sim, claimant = self.sim, process.claimant
        for batch in process.user.batches.values():
            if sim.now - batch.since_ns > 3_000 * MS and sim.scenario.fenced:
                self.fail("every claim of messages is answered", f"{process.name} {batch}")
        state = sim.truth[claimant.home]
        session = state.session(process.group_id, process.client_id, process.instance_id)
        given = set() if session is None else {cell.unit for cell in session.claims.values()}
        if not claimant.silent and not given <= {h.key for h in claimant.holdings()}:
            self.fail("what nobody wants is given back", f"{process.name} still has {given}")
        members = state.members
        known = members.get((process.group_id, process.client_id))
        quiet = claimant.silent or claimant.leaving
        if process.spec.member and not quiet and known is None:
            self.fail("members are seen", process.name)

    def finished(self) -> None:
        """The log is read by an independent fold, and by a fresh reader without events."""
        sim = self.sim
        for process in sim.alive:
            claimant = process.claimant
            failures = process.appends_failed
            count = len(claimant._wanted) + len(claimant._releasing)
            if len(claimant._sent) > 4 * sim.scenario.partitions + 2 * count + failures + 4:
                self.fail("memory", f"{process.name}: {len(claimant._sent)} appends remembered")
            if len(claimant._timers) > 8 * sim.scenario.partitions + 16 * count + 8:
                self.fail("memory", f"{process.name}: {len(claimant._timers)} timers")
            if any(beats > 2 for beats in claimant._heartbeats.unread):
                self.fail("memory", f"{process.name}: beats in flight that nobody will settle")
            for p, state in enumerate(process.world.states):
                at_end = process.position[p] == len(sim.log.partitions[p])
                if at_end and state.encode() != sim.truth[p].encode():
                    self.fail("equal prefixes, equal states", f"{process.name}, {p}, at end")
        for p, partition in enumerate(sim.log.partitions):
            model = reference_fold.new_state(p)
            for offset, value, events in zip(
                partition.offsets, partition.values, sim.true_events[p], strict=True
            ):
                expected = reference_fold.apply(model, offset, value)
                found = [vector_format.event(event) for event in events]
                if expected != found:
                    self.fail("the model agrees", f"{p}/{offset}: {found}, model {expected}")
            if reference_fold.canonical(model) != sim.truth[p].encode():
                self.fail("the model agrees", f"state of {p} at {partition.end}")


def _of(cell: Cell | None) -> str:
    if cell is None:
        return "there is no such cell"
    return f"holder {cell.instance_id} epoch {cell.epoch} own version {cell.version}"
