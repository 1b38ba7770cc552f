"""Somebody with the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from marshal_py.protocol.messages import (
    ClaimingMessages,
    ClaimingPartition,
    ForgetGroup,
    Genesis,
    Heartbeat,
    Message,
    MetadataEntry,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetLevel,
    SetPosition,
    encode,
)
from marshal_py.protocol.rationalizer import CellKey, PartitionState, apply
from marshal_py.protocol.world import Observer
from marshal_py.testing import VirtualClock
from tests.simulation.common import MS, cell_of, is_paused

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulation


class Operator:
    """Somebody with the command line: pauses groups, sets positions, forgets, resumes.

    Reads every record 5 ms late, and waits before it moves a held cell as a claimant does.
    """

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.positions: dict[CellKey, int] = {}
        self.forgets: set[tuple[str, int]] = set()
        self.paused: dict[str, None] = {}
        self.resuming: set[str] = set()
        """Groups whose pause is to end as soon as it has been read."""
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
        for group in sorted(self.resuming):
            self._try_resume(group)

    def _try_position(self, key: CellKey, now: int) -> None:
        sim = self.sim
        p = sim.coordinator(key)
        state = self.states[p]
        if not is_paused(state, key[0]):
            return
        cell = cell_of(state, key[0], key[1:])
        if cell is not None and cell.held:
            silence = self.observers[p].silence_ns(state.version(*key), now) or 0
            wait = 2 * cell.interval_ms * MS + 1 - silence
            if wait > 0:
                sim.at(sim.now + wait, self.step)
                return
            sim.fired["set_position_of_held"] += 1
        sim.fired["set_position"] += 1
        next_offset = self.positions.pop(key)
        version = state.version(*key)
        self._send(
            p,
            SetPosition(2, "op", "op.1", key[0], self._seq(), key[1], key[2], next_offset, version),
        )

    def _try_forget(self, group: str, p: int) -> None:
        state = self.states[p]
        if not is_paused(state, group):
            return
        if any(key[0] == group and cell.held for key, cell in state.cells.items()):
            if self.sim.noise() < 0.9:
                return  # now and then it tries all the same
        else:
            self.sim.fired["forget_group"] += 1
            self.forgets.discard((group, p))
        pause = state.groups[group].pause
        version = -1 if pause is None else pause.version
        for meant in (version - 1, version):  # nothing may come of one that means another pause
            self._send(p, ForgetGroup(2, "op", "op.1", group, self._seq(), max(-1, meant)))

    def meddle(self, p: int, which: int) -> None:
        """A client with bugs writes what no client should: the fold must refuse nearly all of it.

        Nothing of it counts: a heartbeat renews and changes what its own session holds.
        """
        state = self.sim.truth[p]
        held = [(key, cell) for key, cell in sorted(state.cells.items()) if cell.held]
        if not held:
            return
        key, cell = held[which % len(held)]
        group, topic, partition = key
        who: tuple[Literal[2], str, str, str] = (2, "stranger", "stranger.1", group)
        wrong = cell.epoch - 1 if cell.epoch else 7
        at = (topic, partition)
        version = state.version(*key)
        old = min(version - 1, cell.epoch + which % 3)
        records: tuple[Message, ...] = (
            ClaimingPartition(*who, self._seq(), *at, 1_000, max(-1, old)),
            ClaimingPartition(*who, self._seq(), *at, 1_000, version + 5),
            Heartbeat(*who, self._seq(), 1_000, 0, [cell.epoch, 9**9]),
            Heartbeat(*who, self._seq(), 1_000, 0, [], [MetadataEntry(cell.epoch, b"stranger")]),
            ReleasingPartition(*who, self._seq(), *at, wrong, 9**9),
            ReleasingPartition(*who, self._seq(), *at, cell.epoch + 1, 9**9),
            ClaimingMessages(*who, self._seq(), *at, wrong, 9**9),
            ClaimingMessages(*who, self._seq(), *at, cell.epoch, max(0, cell.claimed_offset)),
            SetPosition(*who, self._seq(), *at, 0, old),
            ForgetGroup(*who, self._seq(), old),
            ResumeGroup(*who, self._seq(), old),
            Genesis(*who, self._seq(), "another", "", 2**50, 1, 0),
            SetLevel(*who, self._seq(), 2, 1),
        )
        record = records[which % len(records)]
        if is_paused(state, group) and not isinstance(record, Heartbeat):
            return  # then some of these would be right
        self.sim.write(None, p, encode(record))

    def pause(self, group: str) -> None:
        self.sim.fired["pause_group"] += 1
        self.paused[group] = None
        self._send(self._home(group), ReleaseGroup(2, "op", "op.1", group, self._seq(), 0))

    def resume(self, group: str) -> None:
        self.paused.pop(group, None)
        self.forgets = {item for item in self.forgets if item[0] != group}
        self.positions = {key: at for key, at in self.positions.items() if key[0] != group}
        self.resuming.add(group)
        self._try_resume(group)

    def set_level(self, group: str, level: int) -> None:
        p = self._home(group)
        present = self.states[p].level(group)
        self.sim.tell("operator", f"sets the level of {group} from {present} to {level}")
        self._send(p, SetLevel(2, "op", "op.1", group, self._seq(), level, present))

    def recover(self, p: int) -> None:
        self.sim.fired["recover"] += 1
        state, seq = self.states[p], self._seq()
        identity = (f"log {seq}", state.identity or "", state.base + 10**6)
        self._send(p, Genesis(2, "op", "op.1", "-", seq, *identity, len(self.states), 0))

    def _home(self, group: str) -> int:
        return self.sim.world.home(group)

    def _try_resume(self, group: str) -> None:
        """End the pause that is there when it has been read; another's, too."""
        p = self._home(group)
        found = self.states[p].groups.get(group)
        if found is not None and found.pause is not None:
            self.resuming.discard(group)
            self._send(p, ResumeGroup(2, "op", "op.1", group, self._seq(), found.pause.version))

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
