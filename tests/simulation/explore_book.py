"""``python -m tests.simulation.explore_book``: every interleaving of a small book, with the fold.

Two or three clients share the six messages of a partition by ranges (PROTOCOL.md §5.18). They claim
two or four messages, begin them in order, tell their position, cut off what they have not begun,
give ranges back, take each other's over at any moment, and die; each record arrives late, or never.
The log's state is the fold's own; the clients are as simple as the specification allows, without
clocks: when somebody may be taken over is explored by `tests.simulation.explore`.

In every state: what lies below the frontier and in no open range was done; no message is begun by
two that hold it, unless its range was taken over in between. With a rule left out (`BROKEN`), a
state that breaks this has to be found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

import typer

from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.ranges import range_cell
from marshal_py.protocol.rationalizer import PartitionState, apply
from tests.support.messages import heartbeat

MESSAGES: Final = 6
SOURCE: Final = ("t", 0)
GROUP: Final = "g"
BROKEN: Final = (
    "begins what it gave back",
    "begins beyond its end",
    "tells of what it has not done",
)


@dataclass(frozen=True)
class Limits:
    """How many clients there are, and how much may happen on one path."""

    clients: int
    records: int
    deaths: int = 0
    losses: int = 0


WORLDS: Final[dict[str, Limits]] = {
    "two clients": Limits(clients=2, records=4, deaths=1),
    "two clients, a record is lost": Limits(clients=2, records=4, losses=1),
    "three clients": Limits(clients=3, records=3),
}


class Client(NamedTuple):
    """What one client knows: the range that it holds (epoch −1: none), and what it has sent."""

    epoch: int = -1
    start: int = 0
    next: int = 0
    limit: int = 0
    out: bytes = b""
    asks: bool = False
    """It waits for the answer to a claim."""


class State(NamedTuple):
    log: bytes
    clients: tuple[Client, ...]
    begun: frozenset[int]
    """Begun by who held it then, in a range that nobody has taken over since."""
    done: frozenset[int]
    records: int
    deaths: int
    losses: int


@dataclass
class Report:
    """What the exploration of one world saw."""

    world: str
    states: int = 0
    complete: bool = True
    seconds: float = 0.0
    finished: int = 0
    """States in which all messages are done, and no range is open."""
    violation: str = ""


class Broken(Exception):
    """An invariant does not hold."""


class BookExplorer:
    """Goes through one world, breadth first; `broken`: which of `BROKEN` the clients are."""

    def __init__(self, world: str, *, broken: str = "", max_states: int = 200_000) -> None:
        self.world, self.limits, self.broken = world, WORLDS[world], broken
        self.max_states = max_states

    def run(self) -> Report:
        """Explore it; stop at the first violation, or at `max_states`."""
        report, began_s = Report(self.world), time.monotonic()
        limits = self.limits
        clients = (Client(),) * limits.clients
        first = State(
            PartitionState(0).encode(), clients, frozenset(), frozenset(), limits.records,
            limits.deaths, limits.losses,
        )  # fmt: skip
        seen, level = {hash(first)}, [first]
        while level and not report.violation and report.complete:
            following: list[State] = []
            for state in level:
                try:
                    for after in self._steps(state):
                        if hash(after) in seen:
                            continue
                        report.finished += self._check(after)
                        seen.add(hash(after))
                        following.append(after)
                except Broken as problem:
                    report.violation = str(problem)
                    break
                if len(seen) >= self.max_states:
                    report.complete = False
                    break
            level = following
        report.states, report.seconds = len(seen), round(time.monotonic() - began_s, 1)
        return report

    def _check(self, state: State) -> bool:
        settled, is_open = _settled(state.log)
        left_out = settled - state.done
        if left_out:
            raise Broken(f"nobody has done {min(left_out)}, and nobody will")
        return len(settled) == MESSAGES and not is_open

    # Steps

    def _steps(self, state: State) -> Iterator[State]:
        log = _decoded(state.log)
        for x, client in enumerate(state.clients):
            if client.out:
                yield self._arrives(state, x)
                if state.losses:
                    yield _with(state, x, client._replace(out=b"", asks=False), losses=-1)
            if client.epoch < 0 and not client.asks:
                yield from self._claims(state, log, x)
            if client.epoch >= 0:
                yield from self._works(state, log, x)
            if state.deaths and (client.epoch >= 0 or client.asks):
                yield _with(state, x, Client(out=client.out), deaths=-1)

    def _claims(self, state: State, log: PartitionState, x: int) -> Iterator[State]:
        client = state.clients[x]
        if client.out or not state.records:
            return
        book = log.cells.get((GROUP, *SOURCE))
        head = (2, *_who(x), GROUP, 0)
        for count in (2, 4):
            if max(0, -1 if book is None else book.position) + count <= MESSAGES:
                record: m.Message = m.ClaimingRange(*head, *SOURCE, 100, 0, count)  # type: ignore[arg-type]
                yield _with(state, x, client._replace(out=m.encode(record), asks=True), records=-1)
        group = log.groups.get(GROUP)
        for found in () if group is None else group.open_ranges.of(SOURCE):
            if log.cells[GROUP, *found.cell].held:
                version = log.version(GROUP, *found.cell)
                record = m.ClaimingPartition(*head, *found.cell, 100, version)  # type: ignore[arg-type]
                yield _with(state, x, client._replace(out=m.encode(record), asks=True), records=-1)

    def _works(self, state: State, log: PartitionState, x: int) -> Iterator[State]:
        client = state.clients[x]
        unit = range_cell(*SOURCE, client.start)
        cell = log.cells.get((GROUP, *unit))
        holds = cell is not None and cell.held and cell.epoch == client.epoch
        if not holds:  # it may read that now, or go on
            yield _with(state, x, client._replace(epoch=-1, start=0, next=0, limit=0))
        end = MESSAGES if self.broken == "begins beyond its end" else client.limit
        if client.next < end:
            if holds and client.next in state.begun:
                raise Broken(f"{client.next} is begun twice")
            begun = state.begun | {client.next} if holds else state.begun
            yield _with(state, x, client._replace(next=client.next + 1))._replace(
                begun=begun, done=state.done | {client.next}
            )
        if client.out or not state.records:
            return
        told = client.next + (self.broken == "tells of what it has not done")
        name, instance = _who(x)
        head = (2, name, instance, GROUP, 0)
        if told > client.start:
            beat = heartbeat(name, 0, {client.epoch: told}, instance_id=instance, group_id=GROUP)
            yield _with(state, x, client._replace(out=m.encode(beat)), records=-1)
        at = client.next + 1
        if at < client.limit:
            split = m.SplittingRange(*head, *unit, client.epoch, at)  # type: ignore[arg-type]
            limit = client.limit if self.broken == "begins what it gave back" else at
            yield _with(state, x, client._replace(out=m.encode(split), limit=limit), records=-1)
        release = m.ReleasingPartition(*head, *unit, client.epoch, told)  # type: ignore[arg-type]
        yield _with(state, x, Client(out=m.encode(release)), records=-1)

    def _arrives(self, state: State, x: int) -> State:
        client = state.clients[x]
        value, events = _after(state.log, client.out)
        log = _decoded(value)
        after, begun = client._replace(out=b"", asks=False), state.begun
        for event in events:
            if isinstance(event, ev.Claimed):
                found = log.groups[GROUP].open_ranges.of_cell[event.topic, event.partition]
                position = log.cells[GROUP, *found.cell].position
                if event.previous_holder is not None:
                    begun -= set(range(position, found.end))
                if client.asks:
                    after = Client(event.epoch, found.start, position, found.end)
        return _with(state._replace(log=value, begun=begun), x, after)


@lru_cache(1 << 16)
def _decoded(log: bytes) -> PartitionState:
    """Return the state of a log, which nobody may change."""
    return PartitionState.decode(log)


@lru_cache(1 << 16)
def _settled(log: bytes) -> tuple[frozenset[int], bool]:
    """Return what lies below the frontier and in no open range, and whether a range is open."""
    group = _decoded(log).groups.get(GROUP)
    if group is None or SOURCE not in group.cells:
        return frozenset(), False
    settled = set(range(group.cells[SOURCE].position))
    ranges = group.open_ranges.of(SOURCE)
    for found in ranges:
        settled -= set(range(group.cells[found.cell].position, found.end))
    return frozenset(settled), bool(ranges)


@lru_cache(1 << 16)
def _after(log: bytes, record: bytes) -> tuple[bytes, tuple[ev.Event, ...]]:
    """Return the log's state after a record, and what the fold made of it."""
    state, events = PartitionState.decode(log), list[ev.Event]()
    apply(state, state.next_offset, record, events)
    return state.encode(), tuple(events)


def _who(x: int) -> tuple[str, str]:
    return "abc"[x], "abc"[x] + "1"


def _with(
    state: State, x: int, client: Client, *, records: int = 0, deaths: int = 0, losses: int = 0
) -> State:
    """Return the state with another client x, and less left of something."""
    return state._replace(
        clients=tuple(client if n == x else other for n, other in enumerate(state.clients)),
        records=state.records + records,
        deaths=state.deaths + deaths,
        losses=state.losses + losses,
    )


def main(
    max_states: Annotated[int, typer.Option(min=1, help="States of a world at most.")] = 2_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Explore every interleaving of small books; print how many states there were.

    Exit status: 0 no invariant broke; 1 one did.

    Example: python -m tests.simulation.explore_book --max-states 500000
    """
    reports = [BookExplorer(world, max_states=max_states).run() for world in WORLDS]
    if as_json:
        typer.echo(json.dumps([asdict(report) for report in reports], indent=1))
    else:
        for report in reports:
            typer.echo(
                f"{report.world:<32}{report.states:>9} states "
                f"({'all' if report.complete else 'not all'}), all is done in {report.finished}, "
                f"{report.seconds} s {report.violation}"
            )
    raise typer.Exit(any(report.violation for report in reports))


if __name__ == "__main__":
    typer.run(main)
