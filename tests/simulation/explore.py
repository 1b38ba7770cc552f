"""``python -m tests.simulation.explore``: every interleaving of a small world, with the real code.

Two processes and one cell. The world is the log, and for each process its position in it, its
appends on the way, and the claimant itself, copied field by field. From each state every step that
can happen is taken: a process makes a turn of its driver loop having received no new record, one or
all; the next append on the way reaches the log, or fails, or reaches it and is reported as failed;
time passes; a process dies, comes back, is asked to release; an operator pauses and resumes the
group. A process that makes no turn is paused, for as long as the others go on without it. States
that were seen before are recognised by their hash.

Time is counted in ticks of one interval. The margin is half a tick, the clock of the first process
is slow and that of the second fast, so that the lease of the first, 1.49 intervals on its clock,
ends 1.1 ms before the second has waited for two. So the argument of PROTOCOL.md §5.4 is tried at
its limit.

In every state: no two processes may act on the cell, what one may act on the log gives to it, and
no message is delivered twice.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import typer

from marshal_py.protocol import events as ev
from marshal_py.protocol.claimant import Append, Claimant, ClaimState, Holding
from marshal_py.protocol.cold_start import ColdStart
from marshal_py.protocol.heartbeat_schedule import HeartbeatSchedule
from marshal_py.protocol.messages import ReleaseGroup, ResumeGroup, encode
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.timers import Timers
from marshal_py.protocol.unread_appends import UnreadAppends
from marshal_py.protocol.world import MS, Observer, Timeline, World

TICK_NS: Final = 100 * MS
INTERVAL_MS: Final = 100
MARGIN_MS: Final = 51
SLOW: Final = (3, 4)
FAST: Final = (1001, 1000)
START_TICKS: Final = 1_000
KEY: Final = ("t", 0)
GROUP: Final = "g"


@dataclass(frozen=True)
class Limits:
    """How much of each thing may happen on one path."""

    ticks: int
    records: int
    failures: int = 0
    crashes: int = 0
    restarts: int = 0
    releases: int = 0
    pauses: int = 0
    messages: int = 0
    batches: bool = False
    twins: bool = False
    settled: bool = True
    """Start when the first process holds the cell and the second has seen it; else with nothing."""


WORLDS: Final[dict[str, Limits]] = {
    "race": Limits(ticks=3, records=4, settled=False),
    "takeover": Limits(ticks=6, records=5),
    "batches": Limits(ticks=4, records=5, batches=True),
    "failed appends": Limits(ticks=3, records=4, failures=1),
    "release": Limits(ticks=3, records=5, releases=1),
    "crash and restart": Limits(ticks=3, records=4, crashes=1, restarts=1),
    "twins": Limits(ticks=3, records=5, twins=True),
    "pause": Limits(ticks=2, records=5, pauses=1),
    "at most once": Limits(ticks=3, records=5, messages=2),
}


class Broken(Exception):
    """An invariant does not hold in some state; `args[0]` says which."""


class Counting:
    """An iterator like `itertools.count`, whose place can be read and copied."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __next__(self) -> int:
        self.at += 1
        return self.at - 1


class Log:
    """Remembers the state and the events of every prefix of every log, so that they are shared."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[PartitionState, list[ev.Event]]] = {
            (): (PartitionState(0), [])
        }

    def at(self, log: tuple[bytes, ...]) -> tuple[PartitionState, list[ev.Event]]:
        """Return the state after `log`, and the events of its last record."""
        known = self._known.get(log)
        if known is None:
            before, _ = self.at(log[:-1])
            state = PartitionState.decode(before.encode())
            events: list[ev.Event] = []
            apply(state, len(log) - 1, log[-1], events)
            known = self._known[log] = (state, events)
        return known


class Member(NamedTuple):
    """One process. Its claimant is never changed: a step works on a copy."""

    name: str
    number: int
    rate: tuple[int, int]
    claimant: Claimant | None
    holding: Holding | None
    position: int
    on_the_way: tuple[Append, ...] = ()
    failed: tuple[int, ...] = ()
    core: int = 0
    """A hash of the claimant and its observer."""
    delivered: tuple[int, ...] = ()

    def clock(self, ticks: int) -> int:
        return (START_TICKS + ticks) * TICK_NS * self.rate[0] // self.rate[1]


class State(NamedTuple):
    ticks: int
    log: tuple[bytes, ...]
    members: tuple[Member, ...]
    left: Limits


class Found(NamedTuple):
    """A violated invariant, and the steps that lead to it."""

    invariant: str
    steps: list[str]


@dataclass
class Report:
    """What the exploration of one world saw."""

    world: str
    states: int = 0
    steps: int = 0
    complete: bool = True
    seconds: float = 0.0
    held: int = 0
    """States in which somebody may act."""
    takeovers: int = 0
    """States after a second process has won the cell."""
    actions: Counter[str] = field(default_factory=Counter)
    found: Found | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "world": self.world,
            "states": self.states,
            "steps": self.steps,
            "complete": self.complete,
            "seconds": round(self.seconds, 1),
            "states_in_which_somebody_may_act": self.held,
            "states_after_a_second_holder": self.takeovers,
            "steps_by_kind": dict(sorted(self.actions.items())),
            "violation": None if self.found is None else self.found._asdict(),
        }


class Explorer:
    """Goes through one world, breadth first."""

    def __init__(self, name: str, limits: Limits, *, max_states: int) -> None:
        self.name = name
        self.limits = limits
        self.max_states = max_states
        self.log = Log()

    def run(self) -> Report:
        report = Report(self.name)
        started = time.monotonic()
        names = ("a", "a") if self.limits.twins else ("a", "b")
        one = self._new(names[0], 1, SLOW, ())
        first = State(0, (), (one,), self.limits)
        if self.limits.settled:
            turned = self._turn(_arrives(first, 0), 0, 1)
            assert turned is not None
            first = turned
        other = self._new(names[1], 2, FAST, first.log)
        first = first._replace(members=(*first.members, other))
        seen = {_hash(first)}
        trail: list[tuple[int, str]] = [(-1, "start")]
        level: list[tuple[int, State]] = [(0, first)]
        while level and report.found is None:
            following: list[tuple[int, State]] = []
            for at, state in level:
                for step, after in self._steps(state):
                    report.steps += 1
                    report.actions[_without_name(step)] += 1
                    key = _hash(after)
                    if key in seen:
                        continue
                    if len(seen) >= self.max_states:
                        report.complete = False
                        continue
                    seen.add(key)
                    trail.append((at, step))
                    following.append((len(trail) - 1, after))
                    try:
                        self._check(after, report)
                    except Broken as problem:
                        report.found = Found(str(problem), _path(trail, len(trail) - 1))
                        following = []
                        break
                if report.found is not None:
                    break
            level = following
        report.states = len(seen)
        report.seconds = time.monotonic() - started
        return report

    # Invariants

    def _check(self, state: State, report: Report) -> None:
        cell = self.log.at(state.log)[0].cells.get((GROUP, *KEY))
        acting = [
            member
            for member in state.members
            if member.holding is not None and member.holding.held(member.clock(state.ticks))
        ]
        report.held += bool(acting)
        report.takeovers += cell is not None and cell.epoch > 0
        if len(acting) > 1 and not self.limits.twins:
            raise Broken("two processes may act at the same time")
        for member in acting:
            assert member.holding is not None
            epoch = member.holding.epoch
            if cell is not None and cell.epoch == epoch and cell.held:
                if cell.instance_id != f"{member.name}.{member.number}":
                    raise Broken(f"the epoch of {member} is that of {cell.instance_id}")
            elif not self.limits.twins:
                raise Broken(f"{member.name} may act under epoch {epoch}; the log: {cell}")
            elif cell is not None and epoch > cell.epoch:
                raise Broken(f"a zombie of epoch {epoch}, the log is at {cell.epoch}")
        delivered = sorted(stop for member in state.members for stop in member.delivered)
        if any(one == other for one, other in pairwise(delivered)):
            raise Broken(f"a message is delivered twice: {delivered}")

    # Steps

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        left = state.left
        if state.ticks < left.ticks:
            yield "time passes", state._replace(ticks=state.ticks + 1)
        for n, member in enumerate(state.members):
            who = f"{member.name}{n}"
            if member.claimant is None:
                yield from self._steps_of_the_dead(who, state, n)
                continue
            behind = len(state.log) - member.position
            for count in {0, min(1, behind), behind if left.batches else 0}:
                after = self._turn(state, n, count)
                if after is not None:
                    yield f"{who} reads {count}", after
            if member.on_the_way:
                yield from self._fates(who, state, n)
            if left.crashes:
                dead = member._replace(claimant=None, holding=None, failed=(), core=0)
                yield f"{who} dies", _with(state, n, dead, crashes=left.crashes - 1)
            if left.releases and member.holding is not None:
                yield f"{who} releases", self._user_releases(state, n)
            acts = member.holding is not None and member.holding.held(member.clock(state.ticks))
            if left.messages and acts:
                yield f"{who} claims messages", self._user_claims_messages(state, n)
        if left.pauses and len(state.log) < left.records:
            yield self._operator(state)

    def _steps_of_the_dead(self, who: str, state: State, n: int) -> Iterator[tuple[str, State]]:
        left, member = state.left, state.members[n]
        if member.on_the_way and len(state.log) < left.records:
            yield f"{who} append arrives", _arrives(state, n)
        if left.restarts:
            fresh = self._new(member.name, member.number + 2, member.rate, state.log, state.ticks)
            fresh = fresh._replace(
                delivered=member.delivered,
                # What the dead one had sent may still arrive, in front of the new one's.
                on_the_way=member.on_the_way + fresh.on_the_way,
            )
            yield f"{who} restarts", _with(state, n, fresh, restarts=left.restarts - 1)

    def _fates(self, who: str, state: State, n: int) -> Iterator[tuple[str, State]]:
        """What may happen to the next append of a process."""
        left, member = state.left, state.members[n]
        room = len(state.log) < left.records
        if room:
            yield f"{who} append arrives", _arrives(state, n)
        if left.failures:
            append = member.on_the_way[0]
            failing = member._replace(
                on_the_way=member.on_the_way[1:], failed=(*member.failed, append.seq)
            )
            failed = _with(state, n, failing, failures=left.failures - 1)
            yield f"{who} append fails", failed
            if room:
                arrived = failed._replace(log=(*state.log, append.value))
                yield f"{who} append arrives and is reported as failed", arrived

    def _operator(self, state: State) -> tuple[str, State]:
        left = state.left
        group = self.log.at(state.log)[0].groups.get(GROUP)
        if group is not None and group.pause is not None:
            value = encode(ResumeGroup(2, "op", "op", GROUP, 1, group.pause.version))
            left = replace(left, pauses=left.pauses - 1)
            return "operator resumes", state._replace(log=(*state.log, value), left=left)
        value = encode(ReleaseGroup(2, "op", "op", GROUP, 0, 0))
        return "operator pauses", state._replace(log=(*state.log, value))

    def _new(
        self,
        name: str,
        number: int,
        rate: tuple[int, int],
        log: tuple[bytes, ...],
        ticks: int = 0,
    ) -> Member:
        member = Member(name, number, rate, None, None, len(log))
        now = member.clock(ticks)
        world = World(0)
        world.states = [self.log.at(log)[0]]
        observer = Observer()
        observer.caught_up_at_offset = len(log)
        observer.seen.note(len(log) - 1, now)
        claimant = Claimant(
            world,
            [observer],
            client_id=name,
            instance_id=f"{name}.{number}",
            group_id=GROUP,
            interval_ms=INTERVAL_MS,
            margin_ms=MARGIN_MS,
            member=False,
            cold_start_skew_ms=None,
        )
        claimant._seq = Counting(0)  # type: ignore[assignment]
        claimant._timers.numbers = Counting(0)  # type: ignore[assignment]
        claimant.caught_up(0, now)
        holding = claimant.want(*KEY, now)
        return _pumped(member._replace(claimant=claimant, holding=holding), now)

    def _turn(self, state: State, n: int, count: int) -> State | None:
        """One turn of the driver loop of process `n`, which receives `count` records."""
        before = state.members[n]
        now = before.clock(state.ticks)
        assert before.claimant is not None
        deadline = before.claimant.next_deadline_ns()
        if not count and not before.failed and (deadline is None or deadline > now):
            return None  # there is nothing to do
        member = _copy(before)
        claimant = member.claimant
        assert claimant is not None
        if count:
            position = member.position + count
            events: list[ev.Event] = []
            for at in range(member.position, position):
                events += self.log.at(state.log[: at + 1])[1]
            claimant.world.states[0] = self.log.at(state.log[:position])[0]
            claimant.observers[0].seen.note(position - 1, now)
            member = member._replace(position=position)
            claimant.applied(0, events, now)
        for seq in member.failed:
            claimant.append_failed(seq, now)
        claimant.tick(now)
        return _with(state, n, _pumped(member._replace(failed=()), now))

    def _user_releases(self, state: State, n: int) -> State:
        member = _copy(state.members[n])
        now = member.clock(state.ticks)
        assert member.claimant is not None
        assert member.holding is not None
        member.claimant.release(member.holding, now)
        return _with(state, n, _pumped(member, now), releases=state.left.releases - 1)

    def _user_claims_messages(self, state: State, n: int) -> State:
        member = _copy(state.members[n])
        now = member.clock(state.ticks)
        assert member.claimant is not None
        assert member.holding is not None
        stop = max(member.holding.claimed_offset, 0) + 1
        member.claimant.claim_messages(member.holding, stop, now)
        return _with(state, n, _pumped(member, now), messages=state.left.messages - 1)


def _with(state: State, n: int, member: Member, **left: int) -> State:
    """Return `state` with another process `n`, and less left of something."""
    members = tuple(member if k == n else other for k, other in enumerate(state.members))
    limits = replace(state.left, **left) if left else state.left  # type: ignore[arg-type]
    return state._replace(members=members, left=limits)


def _arrives(state: State, n: int) -> State:
    member = state.members[n]
    arrived = _with(state, n, member._replace(on_the_way=member.on_the_way[1:]))
    return arrived._replace(log=(*state.log, member.on_the_way[0].value))


def _pumped(member: Member, now: int) -> Member:
    """Put what the claimant sends on its way; take the notices."""
    claimant = member.claimant
    assert claimant is not None
    delivered = member.delivered
    for notice in claimant.take_notices():
        if notice.kind == "messages_claimed" and notice.holding.held(now):
            delivered = (*delivered, notice.holding.claimed_offset)
    holding = member.holding
    if holding is not None and holding.state is ClaimState.ENDED:
        # As a consumer does, want it again, unless a twin has come.
        holding = claimant.want(*KEY, now) if claimant.duplicate_instance_id is None else None
    return member._replace(
        holding=holding,
        delivered=delivered,
        on_the_way=member.on_the_way + tuple(claimant.take_appends()),
        core=_core(claimant, holding),
    )


# Copying and recognising

_HOLDING: Final = tuple(Holding.__slots__)
_FIELDS: Final = attrgetter(*(name for name in _HOLDING if name != "reason"))


def _copy(member: Member) -> Member:
    """Copy a process with everything in it that a step can change."""
    old: Any = member.claimant
    copies: dict[int, Holding] = {}

    def copy_of(holding: Any) -> Any:
        if holding is None:
            return None
        copied = copies.get(id(holding))
        if copied is None:
            copied = copies[id(holding)] = Holding.__new__(Holding)
            for name in _HOLDING:
                setattr(copied, name, getattr(holding, name))
        return copied

    new: Any = Claimant.__new__(Claimant)
    new.__dict__.update(old.__dict__)
    new.world = World(0)
    new.world.states = list(old.world.states)
    new.observers = [_copy_observer(observer) for observer in old.observers]
    new._wanted = {key: copy_of(holding) for key, holding in old._wanted.items()}
    new._releasing = {key: copy_of(holding) for key, holding in old._releasing.items()}
    new._ours = [{key: copy_of(h) for key, h in ours.items()} for ours in old._ours]
    new._seq = Counting(old._seq.at)
    new._timers = Timers()
    new._timers.numbers = Counting(old._timers.numbers.at)
    new._timers.pending = [t._replace(holding=copy_of(t.holding)) for t in old._timers.pending]
    new._heartbeats = HeartbeatSchedule(new._timers, 1)
    new._heartbeats.due_ns = list(old._heartbeats.due_ns)
    new._heartbeats.unread = list(old._heartbeats.unread)
    new._cold_start = ColdStart(old._cold_start.skew_ms, 1)
    new._cold_start.probe = list(old._cold_start.probe)
    new._cold_start.asked = list(old._cold_start.asked)
    new._sent = UnreadAppends(1)
    new._sent.by_seq = {
        seq: sent._replace(holding=copy_of(sent.holding)) for seq, sent in old._sent.by_seq.items()
    }
    new._sent.order = [order.copy() for order in old._sent.order]
    new._lapse_due_ns = list(old._lapse_due_ns)
    new._appends = []
    new._notices = []
    return member._replace(claimant=new, holding=copy_of(member.holding))


def _copy_observer(old: Observer) -> Observer:
    new = Observer.__new__(Observer)
    new.caught_up_at_offset = old.caught_up_at_offset
    new.stamped = old.stamped
    new.seen = Timeline(old.seen.resolution, old.seen.horizon)
    new.seen._offsets = list(old.seen._offsets)
    new.seen._times = list(old.seen._times)
    return new


def _core(claimant: Claimant, holding: Holding | None) -> int:
    """Hash everything about a claimant that can make a difference later."""
    any_claimant: Any = claimant
    observer = claimant.observers[0]
    holdings = [
        *claimant._wanted.values(),
        *claimant._releasing.values(),
        *claimant._ours[0].values(),
    ]
    if holding is not None:
        holdings.append(holding)
    order = {id(h): n for n, h in enumerate(holdings)}
    return hash(
        (
            tuple((order[id(h)], *_FIELDS(h)) for h in holdings),
            tuple(
                (seq, sent.t_send_ns, sent.kind, order.get(id(sent.holding)))
                for seq, sent in claimant._sent.by_seq.items()
            ),
            claimant._heartbeats.unread[0],
            claimant._heartbeats.due_ns[0],
            claimant._lapse_due_ns[0],
            claimant.duplicate_instance_id,
            any_claimant._seq.at,
            frozenset(
                (at, kind, order.get(id(h))) for at, _, kind, _, h in claimant._timers.pending
            ),
            observer.caught_up_at_offset,
            tuple(observer.seen._offsets),
            tuple(observer.seen._times),
        )
    )


def _hash(state: State) -> int:
    return hash(
        (
            state.ticks,
            state.log,
            tuple(
                (m.number, m.core, m.position, m.on_the_way, m.failed, m.delivered)
                for m in state.members
            ),
            state.left,
        )
    )


def _without_name(step: str) -> str:
    """``a0 reads 1`` is ``reads 1`` whoever does it."""
    who, what = step.split(" ", 1)
    return what if who[-1].isdigit() else step


def _path(trail: list[tuple[int, str]], at: int) -> list[str]:
    steps: list[str] = []
    while at >= 0:
        at, step = trail[at]
        steps.append(step)
    return steps[::-1]


def explore(name: str, *, max_states: int) -> Report:
    """Explore one of `WORLDS`."""
    return Explorer(name, WORLDS[name], max_states=max_states).run()


def main(
    world: Annotated[str, typer.Option(help=f"One of: {', '.join(WORLDS)}. All by default.")] = "",
    max_states: Annotated[int, typer.Option(min=1, help="States of a world at most.")] = 200_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Explore every interleaving of small worlds; print how many states there were.

    Exit status: 0 no invariant broke; 1 one did; 2 there is no such world.

    Example: python -m tests.simulation.explore --max-states 2000000
    """
    if world and world not in WORLDS:
        typer.echo(f"there is no world {world!r}", err=True)
        raise typer.Exit(2)
    reports = []
    for name in [world] if world else WORLDS:
        report = explore(name, max_states=max_states)
        reports.append(report)
        if not as_json:
            _print(report)
    if as_json:
        typer.echo(json.dumps([report.to_json() for report in reports], indent=1))
    raise typer.Exit(any(report.found is not None for report in reports))


def _print(report: Report) -> None:
    typer.echo(
        f"{report.world:<20}{report.states:>9} states ({'all' if report.complete else 'not all'}), "
        f"{report.steps} steps, somebody may act in {report.held}, "
        f"{report.takeovers} after a second holder, {report.seconds:.1f} s"
    )
    if report.found is not None:
        typer.echo(f"  VIOLATED: {report.found.invariant}")
        typer.echo("".join(f"    {step}\n" for step in report.found.steps))


if __name__ == "__main__":
    typer.run(main)
