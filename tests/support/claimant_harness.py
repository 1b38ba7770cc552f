"""A bench for claimants: one log, clients that do only what the test says, one clock in ms."""

from __future__ import annotations

from typing import Any

from marshal_py.protocol.claimant import Append, Claimant, Holding, Notice
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import Message, decode
from marshal_py.protocol.rationalizer import Cell, PartitionState, apply
from marshal_py.protocol.world import MS, Observer, World
from marshal_py.testing import MemoryLog

INTERVAL_MS = 1_000
MARGIN_MS = 100
LEASE_MS = 2 * INTERVAL_MS - MARGIN_MS


class Bench:
    """A log, and the time. Clients see a record when they `read`, send when they `send`."""

    def __init__(self, partitions: int = 1) -> None:
        self.log = MemoryLog(partitions)
        self.now_ms = 1_000_000
        self.paused_at = -1
        """Offset of the last record that paused the group; for the tests to keep."""

    @property
    def now_ns(self) -> int:
        return self.now_ms * MS

    def wait(self, ms: int) -> None:
        """Let time pass; nobody does anything."""
        self.now_ms += ms

    def client(self, name: str, instance: str = "1", **settings: Any) -> Client:
        """Start a client: it replays what is there and has caught up."""
        return Client(self, name, instance, **settings)

    def write(self, message: Message | bytes | None, partition: int = 0) -> int:
        """Put a record into the log."""
        return self.log.append(partition, message, self.now_ms)


class Client:
    """One claimant and its reader."""

    def __init__(
        self,
        bench: Bench,
        name: str,
        instance: str = "1",
        *,
        group: str = "g",
        caught_up: bool = True,
        **settings: Any,
    ) -> None:
        self.bench = bench
        count = len(bench.log.partitions)
        self.world = World(count)
        self.observers = [Observer() for _ in range(count)]
        settings = {
            "interval_ms": INTERVAL_MS,
            "margin_ms": MARGIN_MS,
            "member": False,
            "cold_start_skew_ms": None,
            **settings,
        }
        self.group = group
        self.claimant = Claimant(
            self.world,
            self.observers,
            client_id=name,
            instance_id=f"{name}.{instance}",
            group_id=group,
            **settings,
        )
        self.heard: list[Notice] = []
        if caught_up:
            self.replay()

    def replay(self) -> None:
        """Read the log from the start, without events, and catch up."""
        log, now_ns = self.bench.log, self.bench.now_ns
        for p in range(len(log.partitions)):
            self.world.states[p] = PartitionState(p)
            self.observers[p] = Observer()
            for record in log.read(p):
                apply(self.world.states[p], record.offset, record.value)
                self.observers[p].stamped.note(record.offset, record.stamp_ms)
            self.observers[p].caught_up_at_offset = log.end(p)
            self.observers[p].seen.note(log.end(p) - 1, now_ns)
        for p in range(len(log.partitions)):
            self.claimant.caught_up(p, now_ns)

    def read(self, limit: int | None = None) -> None:
        """Read what is new (at most `limit` records of each partition), in one batch.

        As in the live client, everything is applied before the claimant hears of anything.
        """
        log, now_ns = self.bench.log, self.bench.now_ns
        batches: list[tuple[int, list[Event]]] = []
        for p, state in enumerate(self.world.states):
            records = log.read(p, state.next_offset, limit)
            if records:
                events: list[Event] = []
                for record in records:
                    apply(state, record.offset, record.value, events)
                    self.observers[p].stamped.note(record.offset, record.stamp_ms)
                self.observers[p].seen.note(records[-1].offset, now_ns)
                batches.append((p, events))
        for p, events in batches:
            self.claimant.applied(p, events, now_ns)
        self.tick()

    def tick(self) -> None:
        """Tell the claimant the time."""
        self.claimant.tick(self.bench.now_ns)

    def appends(self) -> list[Append]:
        """Take what the claimant wants to append; nothing is written."""
        self.tick()
        return self.claimant.take_appends()

    def sends(self) -> list[Message]:
        """The same, decoded."""
        return [decode(append.value) for append in self.appends()]

    def put(self, appends: list[Append]) -> list[int]:
        """Write taken appends into the log; return their offsets."""
        return [self.bench.write(a.value, a.coordinator) for a in appends]

    def send(self) -> list[int]:
        """Write what the claimant wants to append."""
        return self.put(self.appends())

    def turn(self) -> None:
        """Read, send, and read until there is nothing new, in no time."""
        self.read()
        while self.send():
            self.read()

    def fail(self, appends: list[Append]) -> None:
        """Report appends as failed."""
        for append in appends:
            self.claimant.append_failed(append.seq, self.bench.now_ns)

    def want(self, topic: str = "t", partition: int = 0) -> Holding:
        return self.claimant.want(topic, partition, self.bench.now_ns)

    def get(self, topic: str = "t", partition: int = 0) -> Holding:
        """Claim, and go on until it is held."""
        holding = self.want(topic, partition)
        self.turn()
        assert self.held(holding), holding
        return holding

    def held(self, holding: Holding) -> bool:
        return holding.held(self.bench.now_ns)

    def release(self, holding: Holding) -> None:
        self.claimant.release(holding, self.bench.now_ns)

    def notices(self, holding: Holding | None = None) -> list[str]:
        """What the user has heard since the last call, about one holding or all."""
        self.heard = self.claimant.take_notices()
        return [n.kind for n in self.heard if holding is None or n.holding is holding]

    def cell(self, topic: str = "t", partition: int = 0) -> Cell | None:
        return self.world.cell(self.group, topic, partition)

    def pass_time(self, ms: int, *others: Client, step_ms: int = 10) -> None:
        """Let this client and others run for a while, each turn in no time."""
        for _ in range(ms // step_ms):
            self.bench.wait(step_ms)
            for client in (self, *others):
                client.turn()
        self.bench.wait(ms % step_ms)
