"""What a member sees of its group, kept by change: who is alive, and who holds what.

`GroupView` hears what the log brings, and looks again at what that concerns, and at what has been
silent for too long by now. So a look costs what has changed. All that a plan needs to know of the
world is read here.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Mapping
from typing import Final, TypeAlias

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.protocol.balance import weigh
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.events import (
    Beat,
    Claimed,
    Event,
    GroupForgotten,
    GroupPaused,
    GroupResumed,
    Ignored,
    MemberJoined,
    MemberLeft,
    PositionSet,
    Released,
    Renewed,
)
from marshal_py.protocol.rationalizer import Cell, GroupState, Member, PartitionState
from marshal_py.protocol.shares import Shares, Unit
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS, Observer, World

__all__ = ["GroupView"]

_Key: TypeAlias = tuple[str, int]
"""A unit, or (client_id, _MEMBER)."""

_MEMBER: Final = -1


class GroupView:
    """The group of a client, as its `Assignor` plans for it.

    Any thread may call `hear`; what it noted counts from the next `refresh`. All else is of one
    thread, `refresh` under the client's lock.
    """

    def __init__(self, marshal: Marshal) -> None:
        self.shares = Shares()
        self.to_resume: set[Unit] = set()
        """Units that an earlier instance of this client still holds."""
        self.has_joined = False
        """Whether this instance is a member in the log."""
        self.by_lag = False
        """Whether all members want units weighed by their lag."""
        self._marshal = marshal
        self._states: list[PartitionState] = []
        """What was looked at: other ones, and all is looked at again."""
        self._units: list[Unit] = []
        self._exist: set[Unit] = set()
        self._lags: Mapping[Unit, int] = {}
        self._all_due = True
        self._members_due: set[str] = set()
        self._units_due: set[Unit] = set()
        self._timers: list[tuple[int, _Key]] = []
        """A heap: when silence will have lasted for too long, if nothing comes until then."""
        self._timer_of: dict[_Key, int] = {}
        """The one that counts."""
        self._is_alive: dict[str, bool] = {}
        """Of everybody who is known to subscribe to something."""
        self._unheard: set[str] = set()
        """Members that this client has heard nothing of since it started."""
        self._logged: dict[Unit, str] = {}
        """Who holds what as the log says."""
        self._held_by: dict[str, set[Unit]] = {}
        self._doubted: dict[str, set[Unit]] = {}
        """Holder → what is free by our clock, and would not be if the holder were heard of."""

    def hear(self, event: Event) -> bool:
        """Note what is to be looked at again. Returns whether the plan may be another."""
        if isinstance(event, Ignored) or event.group_id != self._marshal.group_id:
            return False
        if isinstance(event, Beat):
            return self._hear_beat(event)
        if isinstance(event, Renewed):
            if self.by_lag:
                self._units_due.add((event.topic, event.partition))
            return False
        if isinstance(event, Claimed | Released | PositionSet):
            self._units_due.add((event.topic, event.partition))
        elif isinstance(event, MemberJoined | MemberLeft):
            self._members_due.add(event.client_id)
        elif isinstance(event, GroupForgotten):
            self._all_due = True
        elif not isinstance(event, GroupPaused | GroupResumed):
            return False
        return True

    def _hear_beat(self, beat: Beat) -> bool:
        name = beat.client_id
        self._members_due.add(name)
        if name == self._marshal.client_id:
            self._members_due.update(self._unheard)
        doubted = self._doubted.get(name, ())
        self._units_due.update(doubted)
        return bool(doubted) or self._is_alive.get(name) is False

    def refresh(
        self,
        world: World,
        now_ns: int,
        subscription: Subscription,
        units: list[Unit] | None = None,
        lags: Mapping[Unit, int] | None = None,
    ) -> bool:
        """Look at what is due. Returns whether anybody came or went, or holds something else.

        `subscription` is this member's own; `units` are those that exist and `lags` what this
        member measured, both as before if they are not given.
        """
        if self._all_due or not _are_same(self._states, world.states):
            self._begin_anew(world)
        if units is not None and units is not self._units:
            exist = set(units)
            self._units_due.update(exist ^ self._exist)
            self._units, self._exist = units, exist
        if lags is not None and lags != self._lags:
            self._units_due.update(lags, self._lags)
            self._lags = dict(lags)
        self._take_timers(now_ns)
        news = self.shares.set_member(self._marshal.client_id, subscription)
        while self._members_due:
            news |= self._look_at_member(world, self._members_due.pop(), now_ns)
        by_lag = all(wants.by_lag for wants in self.shares.members.values())
        if by_lag != self.by_lag:
            self.by_lag = by_lag
            self._units_due.update(self._exist)
        while self._units_due:
            news |= self._look_at_unit(world, self._units_due.pop(), now_ns)
        return news

    @property
    def next_silence_ns(self) -> int | None:
        """When somebody will have been silent for too long, if nothing comes; None: nobody will."""
        return self._timers[0][0] if self._timers else None

    def _begin_anew(self, world: World) -> None:
        """Look at everything: it is the first time, or the log is read again."""
        group = self._marshal.group_id
        self._all_due = False
        self._states = list(world.states)
        self._members_due.update((world.group(group) or _NOTHING).members)
        self._members_due.update(self._is_alive)
        self._units_due.update(self._exist)

    def _set_timer(self, at_ns: int, key: _Key) -> None:
        pending_ns = self._timer_of.get(key)
        if pending_ns is None or at_ns < pending_ns:
            self._timer_of[key] = at_ns
            heapq.heappush(self._timers, (at_ns, key))

    def _take_timers(self, now_ns: int) -> None:
        """Have another look at whatever was to fall silent by now."""
        while self._timers and self._timers[0][0] < now_ns:
            at_ns, key = heapq.heappop(self._timers)
            if self._timer_of.get(key) == at_ns:
                del self._timer_of[key]
                if key[1] == _MEMBER:
                    self._members_due.add(key[0])
                else:
                    self._units_due.add(key)

    # Members

    def _look_at_member(self, world: World, name: str, now_ns: int) -> bool:
        marshal = self._marshal
        home = world.home(marshal.group_id)
        members = (world.group(marshal.group_id) or _NOTHING).members
        observer = driver_of(marshal).observers[home]
        member, me = members.get(name), members.get(marshal.client_id)
        if me is not None and me.instance_id != marshal.instance_id:
            me = None
        if name == marshal.client_id:
            self.has_joined = me is not None
            return False
        subscription = None if member is None else Subscription.decode(member.metadata)
        is_alive: bool | None = None
        self._unheard.discard(name)
        if member is not None and subscription is not None:
            silent_ns = _silent_at(observer, member.version, member.interval_ms, now_ns)
            is_alive = now_ns <= silent_ns and not self._was_dead(member, me, observer)
            if is_alive:
                self._set_timer(silent_ns, (name, _MEMBER))
            if member.version < (observer.caught_up_at_offset or 0):
                self._unheard.add(name)
        if is_alive != self._is_alive.get(name):
            self._units_due.update(self._held_by.get(name, ()))
        if is_alive is None:
            self._is_alive.pop(name, None)
        else:
            self._is_alive[name] = is_alive
        return self.shares.set_member(name, subscription if is_alive else None)

    def _was_dead(self, member: Member, me: Member | None, observer: Observer) -> bool:
        """Whether a member had been silent for too long when this client joined.

        At a cold start nothing has been observed for long: the broker's clock tells of the dead,
        as it does for claims (§5.3). Being wrong here costs a vain claim, and nothing else.
        """
        skew_ms = self._marshal.settings.cold_start_skew_ms
        if me is None or skew_ms is None or member.version >= me.version:
            return False
        own_ms, last_ms = observer.stamped.at(me.version), observer.stamped.at(member.version)
        if own_ms is None or last_ms is None:
            return False
        return own_ms - last_ms > 2 * member.interval_ms + skew_ms

    # Units

    def _look_at_unit(self, world: World, unit: Unit, now_ns: int) -> bool:
        marshal, shares = self._marshal, self.shares
        group = world.group(marshal.group_id) or _NOTHING
        cell = group.cells.get(unit) if unit in self._exist else None
        observer = driver_of(marshal).observers[world.home(marshal.group_id)]
        holder = self._who_holds(unit, cell, group.version(cell), observer, now_ns)
        self._note(unit, None if cell is None else cell.holder, holder)
        if (
            cell is not None
            and holder == marshal.client_id
            and cell.instance_id != marshal.instance_id
        ):
            self.to_resume.add(unit)
        else:
            self.to_resume.discard(unit)
        if unit not in self._exist:
            return shares.remove_unit(unit)
        is_news = unit not in shares.holders or shares.holders[unit] != holder
        shares.set_unit(unit, holder, self._cost(unit, cell))
        return is_news

    def _who_holds(
        self, unit: Unit, cell: Cell | None, version: int, observer: Observer, now_ns: int
    ) -> str | None:
        """Return who holds a unit and can be expected to go on, None: it is there to be taken."""
        if cell is None or cell.holder is None or cell.holder == self._marshal.client_id:
            return None if cell is None else cell.holder
        silent_ns = _silent_at(observer, version, cell.interval_ms, now_ns)
        # Of a member that died the claim goes stale at about the same time, and may be wanted
        # already. A client that is no consumer is to be left alone.
        if now_ns > silent_ns or self._is_alive.get(cell.holder) is False:
            return None
        self._set_timer(silent_ns, unit)
        return cell.holder

    def _note(self, unit: Unit, logged: str | None, holder: str | None) -> None:
        """Keep the units by holder: the one that the log tells of."""
        before = self._logged.pop(unit, None)
        if before is not None:
            for units in (self._held_by, self._doubted):
                if before in units:
                    units[before].discard(unit)
                    if not units[before]:
                        del units[before]
        if logged is not None:
            self._logged[unit] = logged
            self._held_by.setdefault(logged, set()).add(unit)
            if holder is None:
                self._doubted.setdefault(logged, set()).add(unit)

    def _cost(self, unit: Unit, cell: Cell | None) -> int:
        """What a unit weighs: by what this member measured, else by what its holder published."""
        if not self.by_lag:
            return 1
        if unit in self._lags:
            return weigh(self._lags[unit])
        return 1 if cell is None else max(1, ClaimMetadata.decode(cell.metadata).cost)


_NOTHING: Final = GroupState()


def _are_same(some: list[PartitionState], others: list[PartitionState]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _silent_at(observer: Observer, version: int, interval_ms: int, now_ns: int) -> int:
    """Return when whoever wrote a version last is stale, if nothing comes until then (§5.1)."""
    seen_ns = observer.seen.at(version)
    return (now_ns if seen_ns is None else seen_ns) + 2 * interval_ms * MS
