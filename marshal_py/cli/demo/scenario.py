"""The course of the demo: start, write, kill, pause, wake, drain."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from marshal_py.cli.demo.config import CONSUMERS, HARVESTERS, PARTITIONS, DemoConfig
from marshal_py.cli.demo.deliveries import Deliveries
from marshal_py.cli.demo.observers import CellName, Hold, LogObserver, TopicObserver
from marshal_py.cli.demo.processes import DemoFailed, Processes, ProcessState
from marshal_py.cli.demo.writer import WriterStats

__all__ = ["Fault", "Progress", "Scenario", "Takeover"]

START_LIMIT_S: Final = 120.0
TAKEOVER_LIMIT_S: Final = 30.0
STEP_S: Final = 0.1


@dataclass
class Takeover:
    """One claim that changed hands because of a fault. Times are seconds after the fault."""

    cell: CellName
    before: str
    epoch_before: int
    after: str | None = None
    epoch_after: int = -1
    claimed_s: float | None = None
    """Until the log had the successor's claim."""
    acted_s: float | None = None
    """Until the successor had published a row, or handled a message."""


@dataclass
class Fault:
    """What was done to a process, and what came of it."""

    kind: Literal["killed", "paused"]
    name: str
    at_ns: int
    takeovers: list[Takeover]

    @property
    def acted_s(self) -> float | None:
        """Until all that the process held was being worked on again; None: it was not."""
        times = [takeover.acted_s for takeover in self.takeovers]
        return None if None in times or not times else max(t for t in times if t is not None)


class Progress(Protocol):
    """Shows how far the demo is."""

    def report(self, at_s: float, text: str) -> None:
        """Say what was done."""

    def update(self, scenario: Scenario) -> None:
        """Show the state of things."""


@dataclass
class Scenario:
    """Carries the demo out. `run` may be called once."""

    config: DemoConfig
    processes: Processes
    seconds: float
    drain_limit_s: float
    progress: Progress
    log: LogObserver = field(init=False)
    topic: TopicObserver = field(init=False)
    deliveries: Deliveries = field(init=False)
    stats: WriterStats = field(default_factory=WriterStats)
    faults: list[Fault] = field(default_factory=list)
    phase: str = ""
    began_ns: int = field(default_factory=time.monotonic_ns)
    """When the writer began; before that, when the demo did."""
    drained: bool = False

    def __post_init__(self) -> None:
        self.log = LogObserver(self.config)
        self.topic = TopicObserver(self.config)
        self.deliveries = Deliveries(Path(self.config.folder))
        self._random = random.Random(self.config.seed)

    @property
    def at_s(self) -> float:
        """Seconds since the writer began."""
        return (time.monotonic_ns() - self.began_ns) / 1e9

    def run(self) -> None:
        """Start everything, cause the faults, and stop it again once all is drained.

        Raises `DemoFailed` when a process ends that should not.
        """
        self._begin("starting three harvesters and three consumers")
        self.log.start()
        self.topic.start()
        for name in (*HARVESTERS, *CONSUMERS):
            self.processes.start(name)
        if not self._wait(self._all_at_work, START_LIMIT_S):
            raise DemoFailed(f"not everybody was at work within {START_LIMIT_S:g} s")
        self.began_ns = time.monotonic_ns()
        self._begin("writing")
        self.processes.start("writer")
        self._until(0.2)
        self._fault("killed")
        self._until(0.5)
        self._fault("paused")
        self._until(1.0)
        self._drain()
        self._stop()

    def close(self) -> None:
        """Stop watching."""
        self.log.close()
        self.topic.close()

    # Faults

    def _fault(self, kind: Literal["killed", "paused"]) -> None:
        """Kill or pause the leading harvester and a consumer; bring them back afterwards."""
        self._wait(self._ready_for_a_fault, TAKEOVER_LIMIT_S)
        leader = self.log.holder(self.log.leader_cell)
        at_work = [name for name in CONSUMERS if self.log.held_by(name)]
        victims = [leader.holder] if leader is not None else []
        victims += [self._random.choice(at_work)] if at_work else []
        act = self.processes.kill if kind == "killed" else self.processes.pause
        faults = []
        for name in victims:
            lost = [
                Takeover(cell, name, hold.epoch)
                for cell in self.log.held_by(name)
                if (hold := self.log.holder(cell)) is not None
            ]
            faults.append(Fault(kind, name, time.monotonic_ns(), lost))
            act(name)
            self.progress.report(
                self.at_s, f"{kind} {name}, which held {_names(self.config, lost)}"
            )
        self.faults += faults
        self.phase = f"{' and '.join(victims)} {kind}"
        self._wait(lambda: all(self._taken_over(fault) for fault in faults), TAKEOVER_LIMIT_S)
        for fault in faults:
            took = "nobody took over" if fault.acted_s is None else f"{fault.acted_s:.2f} s"
            self.progress.report(self.at_s, f"takeover from {fault.name}: {took}")
        self._wait(lambda: False, 1.0)  # the others work for a while before the victims are back
        for name in victims:
            if kind == "killed":
                self.processes.start(name)
                self.progress.report(self.at_s, f"started {name} again")
            else:
                self.processes.wake(name)
                self.progress.report(self.at_s, f"woke {name}, whose lease is over")
        self.phase = "writing"

    def _ready_for_a_fault(self) -> bool:
        """Whether somebody leads and somebody consumes: leases lapse on busy machines."""
        return self.log.holder(self.log.leader_cell) is not None and any(
            map(self.log.held_by, CONSUMERS)
        )

    def _taken_over(self, fault: Fault) -> bool:
        found = [self._look_for_successor(fault, takeover) for takeover in fault.takeovers]
        return all(found)  # each of them is looked at, done or not

    def _look_for_successor(self, fault: Fault, takeover: Takeover) -> bool:
        if takeover.acted_s is not None:
            return True
        hold = self.log.successor(takeover.cell, takeover.epoch_before)
        if hold is None:
            return False
        takeover.after, takeover.epoch_after = hold.holder, hold.epoch
        takeover.claimed_s = (hold.from_ns - fault.at_ns) / 1e9
        acted_ns = self._first_action(takeover.cell, hold)
        if acted_ns is not None:
            takeover.acted_s = (acted_ns - fault.at_ns) / 1e9
        return acted_ns is not None

    def _first_action(self, cell: CellName, hold: Hold) -> int | None:
        if cell == self.log.leader_cell:
            return self.topic.first_after(hold.from_ns)
        return min(
            (
                delivery.at_ns
                for delivery in self.deliveries.all
                if delivery.partition == cell[1] and delivery.epoch == hold.epoch
            ),
            default=None,
        )

    # The course

    def _all_at_work(self) -> bool:
        cells = [self.log.leader_cell, *((self.config.topic, p) for p in range(PARTITIONS))]
        return {*HARVESTERS, *CONSUMERS} <= self.log.members and all(map(self.log.holder, cells))

    def _until(self, share: float) -> None:
        self._wait(lambda: False, share * self.seconds - self.at_s)

    def _drain(self) -> None:
        """Stop writing, and wait until every committed row has been handled by a consumer."""
        self._begin("draining")
        self.processes.ask_to_end("writer")
        self.processes.join("writer", 60)
        self.stats = WriterStats.load(self.config.writer_stats)
        rows = self.stats.committed_rows
        self.drained = self._wait(
            lambda: len(self.topic.rows) >= rows and len(self.deliveries.rows) >= rows,
            self.drain_limit_s,
        )
        if not self.drained:
            self.progress.report(
                self.at_s,
                f"not drained after {self.drain_limit_s:g} s: {rows} rows committed, "
                f"{len(self.topic.rows)} in Kafka, {len(self.deliveries.rows)} handled",
            )

    def _stop(self) -> None:
        """End everything in good order: what is held is released."""
        self._begin("stopping")
        running = [
            name for name, state in self.processes.states.items() if state is ProcessState.RUNNING
        ]
        # Those that stand by first: they need not take over from one another now.
        standing_by = [name for name in running if not self.log.held_by(name)]
        for names in (standing_by, [name for name in running if name not in standing_by]):
            for name in names:
                self.processes.ask_to_end(name)
            for name in names:
                self.processes.join(name, 60)
        self._refresh()

    def _begin(self, phase: str) -> None:
        self.phase = phase
        self.progress.report(self.at_s, phase)
        self.progress.update(self)

    def _wait(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Wait until `done`, at most `limit_s`; watch over everything meanwhile."""
        deadline_s = time.monotonic() + limit_s
        while True:
            self._refresh()
            if done():
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            with self.log.changed:
                self.log.changed.wait(min(STEP_S, left_s))

    def _refresh(self) -> None:
        self.processes.check()
        if self.log.failure is not None:
            raise DemoFailed(self.log.failure)
        self.deliveries.refresh()
        self.stats = WriterStats.load(self.config.writer_stats)
        self.progress.update(self)


def _names(config: DemoConfig, lost: list[Takeover]) -> str:
    """Say what was lost: the leadership, or partitions."""
    partitions = [str(t.cell[1]) for t in lost if t.cell[0] == config.topic]
    names = ["the leadership"] if len(partitions) < len(lost) else []
    if partitions:
        names.append(f"partition{'s' if len(partitions) > 1 else ''} {', '.join(partitions)}")
    return " and ".join(names) or "nothing"
