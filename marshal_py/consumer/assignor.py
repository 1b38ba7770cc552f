"""What a consumer of a group should hold now, from what its client knows of the world.

`Assignor` looks at the world under the client's lock, copies what it needs, and asks
`balance.plan`. It knows when to keep still: after somebody joined, until no more come.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from marshal_py.client.marshal import Marshal
from marshal_py.protocol import balance
from marshal_py.protocol.balance import Plan, Unit
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.events import (
    Claimed,
    Event,
    GroupForgotten,
    GroupPaused,
    GroupResumed,
    MemberJoined,
    MemberLeft,
    PositionSet,
    Released,
)
from marshal_py.protocol.rationalizer import Cell, GroupState, Member
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS, Observer, World

__all__ = ["Assignor", "Decision"]

_RELEVANT: Final = (
    Claimed,
    Released,
    PositionSet,
    MemberJoined,
    MemberLeft,
    GroupPaused,
    GroupResumed,
    GroupForgotten,
)
"""Events after which the plan may be another."""

MAX_SETTLES: Final = 10
"""A member that joined waits for others to join for so many times `settle_ms`, at most."""


class Decision(NamedTuple):
    """One look at the world."""

    plan: Plan
    resume: tuple[Unit, ...]
    """Units that an earlier instance of this client still holds: nobody need be asked."""
    holders: dict[Unit, str | None]
    paused: bool
    settling: bool
    """Others have just joined: more may come, and what is claimed now would have to move."""
    newcomers_settling: bool = False
    """Somebody has just joined, and takes nothing yet: what is given up now would lie idle."""


class Assignor:
    """Plans for one member of one group.

    `settle_ms`: how long after the last member joined units begin to move.
    """

    def __init__(self, marshal: Marshal, subscription: Subscription, *, settle_ms: int) -> None:
        self.subscription = subscription
        self._marshal = marshal
        self._settle_ns = settle_ms * MS
        self._joined_ns: int | None = None
        self._quiet_since_ns = 0
        self._newcomers_since_ns = 0
        self._alive: frozenset[str] = frozenset()
        self._full_look_ns = 0

    def is_affected_by(self, events: list[Event]) -> bool:
        """Whether these events, which the driver has just read, may change the plan."""
        group = self._marshal.group_id
        affected = False
        for event in events:
            if isinstance(event, _RELEVANT) and event.group_id == group:
                affected = True
                if type(event) is MemberJoined:
                    now_ns = self._marshal.driver.clock()
                    if now_ns - self._quiet_since_ns >= self._settle_ns:
                        self._newcomers_since_ns = now_ns
                    self._quiet_since_ns = now_ns
        return affected

    def decide(self, units: list[Unit], lags: dict[Unit, int] | None = None) -> Decision:
        """Look at the world, and plan. `lags` are those that this member measured itself."""
        marshal = self._marshal
        me = marshal.client_id
        with marshal.world() as world:
            now_ns = marshal.driver.clock()
            observers = marshal.driver.observers
            members = self._members(world, observers, now_ns)
            holders: dict[Unit, str | None] = {}
            costs: dict[Unit, int] = {}
            resume: list[Unit] = []
            by_lag = bool(members) and all(s.by_lag for s in members.values())
            group = marshal.group_id
            home = world.home(group)
            state = world.states[home].groups.get(group) or GroupState()
            alive = _Alive(state, observers[home], now_ns)
            for unit in units:
                cell = state.cells.get(unit)
                holder = self._holder(cell, members, state, alive)
                holders[unit] = holder
                if cell is not None:
                    if holder == me and cell.instance_id != marshal.instance_id:
                        resume.append(unit)
                    if by_lag:
                        costs[unit] = _published_cost(cell)
            if by_lag and lags:
                costs.update((unit, balance.weigh(lag)) for unit, lag in lags.items())
            paused = world.paused(group)
            self._alive = frozenset(members)
        plan = balance.plan(me, members, holders, costs if by_lag else None)
        settling = self._is_settling(now_ns)
        return Decision(
            plan, tuple(resume), holders, paused, settling, self._are_newcomers_settling(now_ns)
        )

    def is_due(self) -> bool:
        """Whether somebody died or came back to life since the last look. Cheap."""
        marshal = self._marshal
        with marshal.world() as world:
            now_ns = marshal.driver.clock()
            members = self._members(world, marshal.driver.observers, now_ns)
        return frozenset(members) != self._alive

    def _members(
        self, world: World, observers: list[Observer], now_ns: int
    ) -> dict[str, Subscription]:
        marshal = self._marshal
        home = world.home(marshal.group_id)
        observer = observers[home]
        state = world.states[home].groups.get(marshal.group_id) or GroupState()
        me = state.members.get(marshal.client_id)
        if me is not None and me.instance_id != marshal.instance_id:
            me = None
        if me is not None and self._joined_ns is None:
            self._joined_ns = now_ns
            self._quiet_since_ns = max(self._quiet_since_ns, now_ns)
        members = {}
        for client_id, member in state.members.items():
            subscription = Subscription.decode(member.metadata)
            if subscription is not None and self._is_alive(member, me, observer, now_ns):
                members[client_id] = subscription
        members[marshal.client_id] = self.subscription
        return members

    def _is_alive(self, member: Member, me: Member | None, observer: Observer, now_ns: int) -> bool:
        if observer.liveness(member.version, member.interval_ms, now_ns) == "stale":
            return False
        # At a cold start nothing has been observed for long: the broker's clock tells of the dead,
        # as it does for claims (§5.3). Being wrong here costs a vain claim, and nothing else.
        skew_ms = self._marshal.settings.cold_start_skew_ms
        if me is None or skew_ms is None or member.version >= me.version:
            return True
        own_ms, last_ms = observer.stamped.at(me.version), observer.stamped.at(member.version)
        if own_ms is None or last_ms is None:
            return True
        return own_ms - last_ms <= 2 * member.interval_ms + skew_ms

    def _holder(
        self, cell: Cell | None, members: dict[str, Subscription], state: GroupState, alive: _Alive
    ) -> str | None:
        if cell is None or cell.holder is None:
            return None
        if cell.holder == self._marshal.client_id:
            return cell.holder
        if alive.is_stale(cell):
            return None
        if cell.holder in members:
            return cell.holder
        # Not a live member: one that died, whose claim goes stale at about the same time, and may
        # be wanted already; or a client that is no consumer, to be left alone.
        member = state.members.get(cell.holder)
        known = member is not None and Subscription.decode(member.metadata) is not None
        return None if known else cell.holder

    def _is_settling(self, now_ns: int) -> bool:
        if self._joined_ns is None:
            return True
        if now_ns - self._quiet_since_ns >= self._settle_ns:
            return False
        return now_ns - self._joined_ns < MAX_SETTLES * self._settle_ns

    def _are_newcomers_settling(self, now_ns: int) -> bool:
        return (
            now_ns - self._quiet_since_ns < self._settle_ns
            and now_ns - self._newcomers_since_ns < MAX_SETTLES * self._settle_ns
        )


class _Alive:
    """Which holders count as dead: looked at once for all that a session's heartbeat renewed."""

    def __init__(self, state: GroupState, observer: Observer, now_ns: int) -> None:
        self._state = state
        self._observer = observer
        self._now_ns = now_ns
        self._stale: dict[tuple[int, int], bool] = {}

    def is_stale(self, cell: Cell) -> bool:
        """Whether the holder of a held cell has been silent for over two of its intervals."""
        seen = (self._state.version(cell), cell.interval_ms)
        found = self._stale.get(seen)
        if found is None:
            found = self._stale[seen] = self._observer.liveness(*seen, self._now_ns) == "stale"
        return found


def _published_cost(cell: Cell) -> int:
    """The cost that the holder published with its claim, 1 where there is none."""
    return ClaimMetadata.decode(cell.metadata).cost
