"""Who should hold what: the fair share of each member, and the moves that lead there. Pure.

Theory of operation
-------------------
Nobody is in charge. Each member looks at the same world (who is there, what exists, who holds what)
and computes the same *target*: how many units each member should hold. A unit is a partition, or a
whole topic. Then each member does its own part only:

- it claims the free units that the target gives to it, all at once;
- it gives up *one* unit that the target takes from it, and looks again once somebody has it.

Everything that need not move goes on. The target is sticky, so that this ends:

1. Counts. Everybody starts with what they hold. Free units fill up whoever holds least for its
   weight. Then units go from the member that holds most to the one that holds least while that
   makes the two more alike: by two units at least, so that a tie moves nothing. These are the
   fewest moves that lead to fair shares.
2. Names. Free units are taken in the order of their hashes; each goes to the next member on a ring
   of hashes that still lacks one. When a member claims what was meant for it, its lack and the unit
   go away together, and what the others were given stays as it was. So a herd that starts all at
   once does not claim the same units twice, and needs no coordinator.

Two members may see the world at different times. Then one of them claims in vain, which the log
rejects, or gives up later than it could: the one with most gives up first, and a unit that was
given up must have been taken before the next one goes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import mmh3

from marshal_py.protocol.subscription import Subscription

__all__ = ["Plan", "Target", "Unit", "plan", "target", "weigh"]

Unit: TypeAlias = tuple[str, int]
"""(topic, partition), or (topic, 0) for a topic that is claimed as a whole."""

Members: TypeAlias = Mapping[str, Subscription]
Holders: TypeAlias = Mapping[Unit, str | None]
Costs: TypeAlias = Mapping[Unit, int]

_Class: TypeAlias = tuple[str, ...]
"""The members that may hold a unit, sorted: units of one class are alike."""

HYSTERESIS: Final = 4
"""With costs, a move must take at least a quarter of the gap between two members off it."""


@dataclass(frozen=True)
class Plan:
    """What one member should do now: units to claim, and at most one to give up."""

    claim: tuple[Unit, ...] = ()
    give_up: Unit | None = None


@dataclass(frozen=True)
class Target:
    """Where things should be. `gains` are units that nobody holds, `surplus` what should go."""

    gains: Mapping[Unit, str]
    surplus: Mapping[str, tuple[Unit, ...]]
    """Member → the units that it should give up, the first one first."""
    load: Mapping[str, float]
    """Member → what it holds now, divided by its weight."""

    @property
    def moves(self) -> int:
        """How many units change hands, those that nobody holds not counted."""
        return sum(map(len, self.surplus.values()))

    def plan_of(self, member: str) -> Plan:
        """Return the part of one member: all that it should claim, and one unit to give up."""
        mine = self.surplus.get(member, ())
        most = max((self.load[name] for name, units in self.surplus.items() if units), default=0.0)
        give_up = mine[0] if mine and self.load[member] >= most else None
        return Plan(tuple(unit for unit, name in self.gains.items() if name == member), give_up)


def plan(me: str, members: Members, holders: Holders, costs: Costs | None = None) -> Plan:
    """Return what the member `me` should do now.

    `members` are the live members, with what they want; `holders` tells of every unit that exists
    who holds it (None: it is free, or its holder is dead). A unit that somebody holds who is no
    member, or does not want it, is left alone. `costs` weighs units (see `weigh`); without it, all
    count the same. The same arguments give the same answer in every process.
    """
    if me not in members:
        return Plan()
    return target(members, holders, costs).plan_of(me)


def target(members: Members, holders: Holders, costs: Costs | None = None) -> Target:
    """Return where each unit should be, and what has to move for it."""
    classes = _classes(members, holders)
    if costs is None:
        return _by_count(members, holders, classes)
    return _by_cost(members, holders, classes, costs)


def weigh(lag: int) -> int:
    """Return the cost of a unit that is `lag` messages behind: 1, and 1 for each doubling.

    Coarse on purpose: a lag that changes by a few per cent must not move anything.
    """
    return 1 + max(0, lag).bit_length()


# Units that are alike


def _classes(members: Members, holders: Holders) -> dict[_Class, list[Unit]]:
    """Group the units that concern us by the members that may hold them."""
    by_topic: dict[str, tuple[frozenset[str], list[Unit]]] = {}
    classes: dict[_Class, list[Unit]] = {}
    names = sorted(members)
    for unit, holder in holders.items():
        topic = by_topic.get(unit[0])
        if topic is None:
            able = tuple(name for name in names if members[name].wants(unit[0]))
            topic = by_topic[unit[0]] = (frozenset(able), classes.setdefault(able, []))
        eligible, units = topic
        if eligible and (holder is None or holder in eligible):
            units.append(unit)
    return {cls: sorted(classes[cls], key=_unit_order) for cls in sorted(classes) if classes[cls]}


def _hash(text: str) -> int:
    return mmh3.hash(text, signed=False)


@lru_cache(1 << 16)
def _unit_order(unit: Unit) -> tuple[int, Unit]:
    return (_hash(f"{unit[0]}/{unit[1]}"), unit)


@lru_cache(1 << 12)
def _member_order(name: str) -> tuple[int, str]:
    return (_hash(name), name)


def _cap(subscription: Subscription) -> int:
    return _NO_LIMIT if subscription.max_claims is None else subscription.max_claims


_NO_LIMIT: Final = 1 << 60


# By count


class _Counts:
    """How many units of each class each member holds, and should hold."""

    def __init__(self, members: Members, classes: Mapping[_Class, list[Unit]]) -> None:
        self.members = members
        self.classes = list(classes)
        self.total = dict.fromkeys(members, 0)
        self.held: dict[_Class, dict[str, int]] = {c: dict.fromkeys(c, 0) for c in classes}

    def can_take(self, name: str) -> bool:
        return self.total[name] < _cap(self.members[name])

    def above(self, name: str) -> tuple[float, tuple[int, str]]:
        """How much the member would have after one more, and the order between equals."""
        return ((self.total[name] + 1) / self.members[name].weight, _member_order(name))

    def level(self, name: str) -> float:
        return self.total[name] / self.members[name].weight

    def add(self, cls: _Class, name: str, by: int) -> None:
        self.held[cls][name] += by
        self.total[name] += by

    def fill(self, cls: _Class, units: int) -> None:
        """Give free units, one by one, to whoever has least."""
        heap = [(*self.above(name), name) for name in cls if self.can_take(name)] if units else []
        heapq.heapify(heap)
        held = self.held[cls]
        while units and heap:
            name = heap[0][-1]
            held[name] += 1
            self.total[name] += 1
            units -= 1
            if self.can_take(name):
                heapq.heapreplace(heap, (*self.above(name), name))
            else:
                heapq.heappop(heap)

    def path(self) -> list[tuple[_Class, str, str]] | None:
        """Return the shortest chain of moves from a member with more to one with less.

        Among the shortest the one that evens out most. None when nothing can be improved.
        """
        best: list[tuple[_Class, str, str]] | None = None
        best_key: tuple[int, float, tuple[int, str]] | None = None
        sources = sorted(self.total, key=lambda m: (-self.level(m), _member_order(m)))
        for source in sources:
            if best is not None and len(best) == 1:
                break  # the sources are sorted: a later one has less to give
            over = self.total[source] > _cap(self.members[source])
            found = self._shortest(source, over)
            if found is not None:
                last = found[-1][2]
                key = (len(found), self.level(last) - self.level(source), _member_order(last))
                if best_key is None or key < best_key:
                    best, best_key = found, key
        return best

    def _shortest(self, source: str, over: bool) -> list[tuple[_Class, str, str]] | None:
        reached: dict[str, tuple[_Class, str] | None] = {source: None}
        queue = deque([source])
        depth = {source: 0}
        ends: list[str] = []
        while queue:
            name = queue.popleft()
            if ends and depth[name] >= depth[ends[0]]:
                break
            for cls in self.classes:
                if self.held[cls].get(name, 0) <= 0:
                    continue
                for other in cls:
                    if other in reached:
                        continue
                    reached[other] = (cls, name)
                    depth[other] = depth[name] + 1
                    queue.append(other)
                    if self.can_take(other) and (over or self.above(other)[0] < self.level(source)):
                        ends.append(other)
        if not ends:
            return None
        end = min(ends, key=self.above)
        chain: list[tuple[_Class, str, str]] = []
        while (step := reached[end]) is not None:
            chain.append((step[0], step[1], end))
            end = step[1]
        return chain[::-1]

    def even_out(self) -> None:
        if len(self.classes) == 1:
            self._even_out_one(self.classes[0])
            return
        while (chain := self.path()) is not None:
            for cls, giver, taker in chain:
                self.add(cls, giver, -1)
                self.add(cls, taker, 1)

    def _even_out_one(self, cls: _Class) -> None:
        """The same for units that are all alike: from the most to the least, until they meet."""
        held = self.held[cls]
        most = [(-self.level(m), _member_order(m), m) for m in cls if held[m]]
        least = [(*self.above(m), m) for m in cls if self.can_take(m)]
        heapq.heapify(most)
        heapq.heapify(least)
        over = [m for m in cls if not self.can_take(m) and self.total[m] > _cap(self.members[m])]
        for name in sorted(over, key=_member_order):
            while self.total[name] > _cap(self.members[name]) and least:
                self._move(cls, name, least)
        while most and least:
            level, _, giver = heapq.heappop(most)
            if -level != self.level(giver):
                if held[giver]:
                    heapq.heappush(most, (-self.level(giver), _member_order(giver), giver))
                continue
            if not least[0][0] < -level:
                break
            self._move(cls, giver, least)
            if held[giver]:
                heapq.heappush(most, (-self.level(giver), _member_order(giver), giver))

    def _move(
        self, cls: _Class, giver: str, least: list[tuple[float, tuple[int, str], str]]
    ) -> None:
        taker = least[0][-1]
        self.add(cls, giver, -1)
        self.add(cls, taker, 1)
        if self.can_take(taker):
            heapq.heapreplace(least, (*self.above(taker), taker))
        else:
            heapq.heappop(least)


def _by_count(members: Members, holders: Holders, classes: Mapping[_Class, list[Unit]]) -> Target:
    counts = _Counts(members, classes)
    for cls, units in classes.items():
        held = counts.held[cls]
        for unit in units:
            holder = holders[unit]
            if holder is not None:
                held[holder] += 1
                counts.total[holder] += 1
    held_now = {cls: dict(held) for cls, held in counts.held.items()}
    load = {name: counts.level(name) for name in members}
    for cls, units in classes.items():
        counts.fill(cls, sum(holders[unit] is None for unit in units))
    counts.even_out()
    gains: dict[Unit, str] = {}
    surplus: dict[str, list[Unit]] = {}
    for cls, units in classes.items():
        held, before = counts.held[cls], held_now[cls]
        change = {m: held[m] - before[m] for m in cls}
        lack = {m: n for m, n in change.items() if n > 0}
        gains.update(_hand_out([u for u in units if holders[u] is None], members, lack))
        for name in cls:
            too_many = max(-change[name], 0)
            if too_many:
                own = [unit for unit in units if holders[unit] == name]
                surplus.setdefault(name, []).extend(_least_liked(own, name, members)[:too_many])
    for name in members:  # beyond its own limit a member gives up, whether anyone wants it or not
        excess = sum(held.get(name, 0) for held in held_now.values()) - _cap(members[name])
        excess -= len(surplus.get(name, ()))
        if excess > 0:
            gone = set(surplus.get(name, ()))
            own = [u for us in classes.values() for u in us if holders[u] == name and u not in gone]
            surplus.setdefault(name, []).extend(_least_liked(own, name, members)[:excess])
    return Target(gains, {name: tuple(units) for name, units in surplus.items()}, load)


def _hand_out(free: Iterable[Unit], members: Members, lack: dict[str, int]) -> dict[Unit, str]:
    """Name who takes which free unit; `lack` says how many each takes."""
    gains: dict[Unit, str] = {}
    left = list(free)
    fond = [name for name in lack if members[name].prefer]
    if fond:
        for unit in list(left):
            liking = [m for m in fond if lack[m] > 0 and members[m].likes(unit)]
            if liking:
                name = _Ring(liking).take(_unit_order(unit)[0])
                gains[unit] = name
                lack[name] -= 1
                left.remove(unit)
    ring = _Ring(name for name, n in lack.items() if n > 0)
    for unit in left:
        if not ring:
            break
        name = ring.take(_unit_order(unit)[0])
        gains[unit] = name
        lack[name] -= 1
        if not lack[name]:
            ring.remove(name)
    return gains


class _Ring:
    """Members in the order of their hashes; a unit goes to the next one after its own hash."""

    def __init__(self, names: Iterable[str]) -> None:
        self._order = sorted(_member_order(name) for name in names)

    def __bool__(self) -> bool:
        return bool(self._order)

    def take(self, at: int) -> str:
        return self._order[bisect_left(self._order, (at, "")) % len(self._order)][1]

    def remove(self, name: str) -> None:
        del self._order[bisect_left(self._order, _member_order(name))]


def _least_liked(units: list[Unit], name: str, members: Members) -> list[Unit]:
    """Sort units by how readily their holder gives them up."""
    if not any(subscription.prefer for subscription in members.values()):
        return units
    others = [s for other, s in members.items() if other != name and s.prefer]
    mine = members[name]
    return sorted(units, key=lambda u: (mine.likes(u), not any(s.likes(u) for s in others)))


# By cost


def _by_cost(
    members: Members, holders: Holders, classes: Mapping[_Class, list[Unit]], costs: Costs
) -> Target:
    """As by count, where units weigh differently: the costliest free ones are handed out first.

    A held unit moves only if that takes a good part of the gap between two members off it; the
    costs change all the time.
    """
    total = dict.fromkeys(members, 0.0)
    owned: dict[str, dict[Unit, _Class]] = {name: {} for name in members}
    free: list[tuple[Unit, _Class]] = []
    for cls, units in classes.items():
        for unit in units:
            holder = holders[unit]
            if holder is None:
                free.append((unit, cls))
            else:
                owned[holder][unit] = cls
                total[holder] += costs.get(unit, 1) / members[holder].weight
    load = dict(total)
    room = {name: _cap(members[name]) - len(owned[name]) for name in members}
    gains: dict[Unit, str] = {}
    free.sort(key=lambda item: (-costs.get(item[0], 1), _unit_order(item[0])))
    for unit, cls in free:
        cost = costs.get(unit, 1)
        able = [m for m in cls if room[m] > 0]
        if able:
            name = min(
                able,
                key=lambda m: (
                    total[m] + cost / members[m].weight,
                    not members[m].likes(unit),
                    _hash(f"{m}/{unit}"),
                ),
            )
            gains[unit] = name
            room[name] -= 1
            total[name] += cost / members[name].weight
    surplus: dict[str, list[Unit]] = {}
    while (move := _best_move(members, owned, total, room, costs)) is not None:
        unit, giver, taker = move
        del owned[giver][unit]
        surplus.setdefault(giver, []).append(unit)
        total[giver] -= costs.get(unit, 1) / members[giver].weight
        room[giver] += 1
        if taker is not None:
            total[taker] += costs.get(unit, 1) / members[taker].weight
            room[taker] -= 1
    return Target(gains, {name: tuple(units) for name, units in surplus.items()}, load)


def _best_move(
    members: Members,
    owned: Mapping[str, Mapping[Unit, _Class]],
    total: Mapping[str, float],
    room: Mapping[str, int],
    costs: Costs,
) -> tuple[Unit, str, str | None] | None:
    """Return the move from the most to a less loaded member that evens them out most."""
    for giver in sorted(members, key=lambda m: (room[m] >= 0, -total[m], _member_order(m))):
        best: tuple[float, tuple[int, Unit], Unit, str | None] | None = None
        for unit, cls in owned[giver].items():
            cost = costs.get(unit, 1)
            for taker in cls:
                if taker == giver or room[taker] <= 0:
                    continue
                gap = total[giver] - total[taker]
                after = abs(gap - cost / members[giver].weight - cost / members[taker].weight)
                gain = gap - after
                if room[giver] < 0 or (gain > 0 and gain * HYSTERESIS >= gap and gap > 1):
                    candidate = (-gain, _unit_order(unit), unit, taker)
                    if best is None or candidate[:2] < best[:2]:
                        best = candidate
        if best is not None:
            return best[2], giver, best[3]
        if room[giver] < 0 and owned[giver]:  # beyond its limit, and nobody can take it
            return min(owned[giver], key=_unit_order), giver, None
    return None
