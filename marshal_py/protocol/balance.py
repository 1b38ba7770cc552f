"""Who should hold what: the fair share of each member, and the moves that lead there. Pure.

Theory of operation
-------------------
Nobody is in charge. Each member looks at the same world (who is there, what exists, who holds what)
and computes the same *target*: how many units each member should hold. A unit is a partition, or a
whole topic. Then each member does its own part only:

- it claims the free units that the target gives to it, all at once;
- it gives up *one* unit that the target takes from it, and looks again once somebody has it. Where
  a handler keeps that one, another one of the same kind does as well: nobody waits for a handler.

Everything that need not move goes on. The target is sticky, so that this ends:

1. Counts. Everybody starts with what they hold. Free units fill up whoever holds least for its
   weight. Then units go from the member that holds most to the one that holds least while that
   makes the two more alike: by two units at least, so that a tie moves nothing. These are the
   fewest moves that lead to fair shares.
2. Names. Free units are taken in the order of their hashes; each goes to the next member on a ring
   of hashes that still lacks one. When a member claims what was meant for it, its lack and the unit
   go away together, and what the others were given stays as it was. So a herd that starts all at
   once does not claim the same units twice, and needs no coordinator.

By lag, units weigh differently, and the costliest free one goes first to whoever will have least to
do with it for its weight. What is held moves only if that takes a good part of the gap between two
members off it, and if its taker will have less to do than its giver had: else it would come back.

A target depends on what there is, not on how it came about (`marshal_py.protocol.shares`), so what
is kept by change is what would be computed from the start.

Two members may see the world at different times. Then one of them claims in vain, which the log
rejects, or gives up later than it could: the one with most gives up first, and a unit that was
given up must have been taken before the next one goes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from marshal_py.protocol.shares import (
    MemberOrder,
    Shares,
    Unit,
    UnitClass,
    UnitOrder,
    member_order,
    shares_of,
)
from marshal_py.protocol.subscription import Subscription

__all__ = ["Plan", "Target", "Unit", "plan", "target", "target_of", "weigh"]

Members: TypeAlias = Mapping[str, Subscription]
Holders: TypeAlias = Mapping[Unit, str | None]
Costs: TypeAlias = Mapping[Unit, int]

HYSTERESIS: Final = 4
"""With costs, a move must take at least a quarter of the gap between two members off it."""


@dataclass(frozen=True)
class Plan:
    """What one member should do now: units to claim, and at most one to give up."""

    claim: tuple[Unit, ...] = ()
    give_up: Unit | None = None
    instead: tuple[Unit, ...] = ()
    """What would do as well as `give_up`, the first one first."""
    surplus: int = 1
    """With `give_up`: how many units should go, one after the other."""


@dataclass(frozen=True)
class Target:
    """Where things should be. `gains` are units that nobody holds, `surplus` what should go."""

    gains: Mapping[Unit, str]
    surplus: Mapping[str, tuple[Unit, ...]]
    """Member → the units that it should give up, the first one first."""
    load: Mapping[str, float]
    """Member → what it holds now, divided by its weight."""
    spare: Mapping[str, tuple[Unit, ...]] = field(default_factory=dict)
    """Member → other units that may go in the place of its surplus."""

    @property
    def moves(self) -> int:
        """How many units change hands, those that nobody holds not counted."""
        return sum(map(len, self.surplus.values()))

    def plan_of(self, member: str) -> Plan:
        """Return the part of one member: all that it should claim, and one unit to give up."""
        mine = self.surplus.get(member, ())
        most = max((self.load[name] for name, units in self.surplus.items() if units), default=0.0)
        claim = tuple(unit for unit, name in self.gains.items() if name == member)
        if not mine or self.load[member] < most:
            return Plan(claim)
        return Plan(claim, mine[0], (*mine[1:], *self.spare.get(member, ())), len(mine))


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
    return target_of(shares_of(members, holders, costs), by_cost=costs is not None)


def target_of(shares: Shares, *, by_cost: bool = False) -> Target:
    """Return the same for a world that is kept by change."""
    return _by_cost(shares) if by_cost else _by_count(shares)


def weigh(lag: int) -> int:
    """Return the cost of a unit that is `lag` messages behind: 1, and 1 for each doubling.

    Coarse on purpose: a lag that changes by a few per cent must not move anything.
    """
    return 1 + max(0, lag).bit_length()


def _cap(subscription: Subscription) -> int:
    return _NO_LIMIT if subscription.max_claims is None else subscription.max_claims


_NO_LIMIT: Final = 1 << 60


# By count


class _Counts:
    """How many units of each class each member holds, and should hold."""

    def __init__(self, members: Members, classes: list[UnitClass]) -> None:
        self.classes = classes
        self.weight = {name: wants.weight for name, wants in members.items()}
        self.cap = {name: _cap(wants) for name, wants in members.items()}
        self.total = dict.fromkeys(members, 0)
        self.held: dict[UnitClass, dict[str, int]] = {}
        for cls in classes:
            held = self.held[cls] = dict.fromkeys(cls.members, 0)
            for name, units in cls.held.items():
                if name in held:
                    held[name] = len(units)
                    self.total[name] += len(units)

    def can_take(self, name: str) -> bool:
        return self.total[name] < self.cap[name]

    def above(self, name: str) -> float:
        """How much the member would have after one more."""
        return (self.total[name] + 1) / self.weight[name]

    def level(self, name: str) -> float:
        return self.total[name] / self.weight[name]

    def is_over(self, name: str) -> bool:
        return self.total[name] > self.cap[name]

    def add(self, cls: UnitClass, name: str, by: int) -> None:
        self.held[cls][name] += by
        self.total[name] += by

    def least(self, cls: UnitClass) -> list[_Level]:
        """Return a heap of those who can take one more: whoever would have least comes first."""
        total, weight, cap = self.total, self.weight, self.cap
        heap = [
            ((total[name] + 1) / weight[name], member_order(name))
            for name in cls.members
            if total[name] < cap[name]
        ]
        heapq.heapify(heap)
        return heap

    def give_to_least(self, cls: UnitClass, least: list[_Level]) -> None:
        name = least[0][1][1]
        self.add(cls, name, 1)
        if self.can_take(name):
            heapq.heapreplace(least, (self.above(name), least[0][1]))
        else:
            heapq.heappop(least)

    def fill(self, cls: UnitClass) -> None:
        """Give its free units, one by one, to whoever has least."""
        free = len(cls.free)
        while free and (given := self._fill_up(cls, free)):
            free -= given
        least = self.least(cls) if free else []
        while free and least:
            self.give_to_least(cls, least)
            free -= 1

    def _fill_up(self, cls: UnitClass, free: int) -> int:
        """Give many of `free` units at once, as `fill` would; return how many.

        As water would fill the members up: what lies below the surface is given in any order.
        """
        given = 0
        rising = [name for name in cls.members if self.can_take(name)]
        while free > len(rising) > 0:
            water = free + sum(self.total[name] for name in rising)
            surface = water / sum(self.weight[name] for name in rising)
            below = [name for name in rising if self.level(name) < surface]
            if len(below) < len(rising):
                rising = below
                continue
            for name in rising:
                share = int(surface * self.weight[name] - self.total[name] - _ROUNDING)
                share = min(max(share, 0), self.cap[name] - self.total[name])
                self.add(cls, name, share)
                given += share
            break
        return given

    def even_out(self) -> None:
        """Move units from members with more to members with less, until that helps nobody."""
        moved = True
        while moved:
            moved = False
            for cls in self.classes:
                moved |= self._even_out_one(cls)
            if len(self.classes) == 1:
                return
        while (chain := self._best_chain()) is not None:
            for cls, giver, taker in chain:
                self.add(cls, giver, -1)
                self.add(cls, taker, 1)

    def _even_out_one(self, cls: UnitClass) -> bool:
        """Within one class: from the most to the least, until they meet. Whether any moved."""
        held, least, moved = self.held[cls], self.least(cls), False
        for name in sorted((m for m in cls.members if self.is_over(m)), key=member_order):
            while self.is_over(name) and held[name] and least:
                self.give_to_least(cls, least)
                self.add(cls, name, -1)
                moved = True
        if not least:
            return moved
        lowest = least[0][0]
        most = [
            (-self.level(m), member_order(m)) for m in held if held[m] and self.level(m) > lowest
        ]
        heapq.heapify(most)
        while most and least:
            level, giver = -most[0][0], most[0][1][1]
            if level != self.level(giver):  # it gave or took meanwhile
                _replace(most, self.level(giver), held[giver])
                continue
            if not least[0][0] < level:
                break
            self.give_to_least(cls, least)
            self.add(cls, giver, -1)
            moved = True
            _replace(most, self.level(giver), held[giver])
        return moved

    def _best_chain(self) -> _Chain | None:
        """Return the shortest chain of moves from a member with more to one with less.

        Among the shortest the one that evens out most. None when nothing can be improved.
        """
        best: tuple[int, float, MemberOrder] | None = None
        best_source = ""
        ends: dict[tuple[UnitClass, ...], list[_Level]] = {}
        for source in sorted(self.total, key=lambda m: (-self.level(m), member_order(m))):
            classes = tuple(cls for cls in self.classes if self.held[cls].get(source, 0) > 0)
            if classes not in ends:
                ends[classes] = self._ends(classes)
            level = self.level(source)
            limit = float("inf") if self.is_over(source) else level
            for length, (above, last) in enumerate(ends[classes], 1):
                if above < limit:
                    key = (length, self.level(last[1]) - level, last)
                    if best is None or key < best:
                        best, best_source = key, source
                    break
        return None if best is None else self._chain(best_source, best[2][1])

    def _ends(self, classes: tuple[UnitClass, ...]) -> list[_Level]:
        """Return who would have least after one more, of those whom one move reaches, two, …"""
        ends: list[_Level] = []
        reached: set[str] = set()
        visited = set(classes)
        while classes:
            near = {name for cls in classes for name in cls.members} - reached
            able = [(self.above(name), member_order(name)) for name in near if self.can_take(name)]
            ends.append(min(able, default=_NOBODY))
            reached |= near
            classes = tuple(
                cls
                for cls in self.classes
                if cls not in visited and any(self.held[cls].get(name, 0) > 0 for name in near)
            )
            visited.update(classes)
        return ends

    def _chain(self, source: str, end: str) -> _Chain:
        """Return the first of the shortest chains of moves from one member to another."""
        reached: dict[str, tuple[UnitClass, str] | None] = {source: None}
        queue = deque([source])
        while end not in reached:
            name = queue.popleft()
            for cls in self.classes:
                if self.held[cls].get(name, 0) > 0:
                    for other in cls.members:
                        if other not in reached:
                            reached[other] = (cls, name)
                            queue.append(other)
        chain: _Chain = []
        while (step := reached[end]) is not None:
            chain.append((step[0], step[1], end))
            end = step[1]
        return chain[::-1]


_Chain: TypeAlias = list[tuple[UnitClass, str, str]]
"""Moves: of a unit of which class, from whom, to whom."""

_Level: TypeAlias = tuple[float, MemberOrder]

_NOBODY: Final[_Level] = (float("inf"), (0, ""))

_ROUNDING: Final = 1e-6
"""Of a unit: what arithmetic may be wrong by."""


def _replace(most: list[_Level], level: float, still_holds: int) -> None:
    """Put the first of a heap of those with most where it belongs now."""
    if still_holds:
        heapq.heapreplace(most, (-level, most[0][1]))
    else:
        heapq.heappop(most)


def _by_count(shares: Shares) -> Target:
    members, classes = shares.members, shares.classes()
    counts = _Counts(members, classes)
    held_now = {cls: dict(held) for cls, held in counts.held.items()}
    total_now = dict(counts.total)
    load = {name: counts.level(name) for name in members}
    for cls in classes:
        counts.fill(cls)
    counts.even_out()
    gains: dict[Unit, str] = {}
    surplus: dict[str, list[Unit]] = {}
    spare: dict[str, list[Unit]] = {}
    tastes = _Tastes(members)
    for cls in classes:
        lack: dict[str, int] = {}
        for (name, before), after in zip(
            held_now[cls].items(), counts.held[cls].values(), strict=True
        ):
            if after > before:
                lack[name] = after - before
            elif after < before:
                own = tastes.least_liked([unit for _, unit in cls.held[name]], name)
                surplus.setdefault(name, []).extend(own[: before - after])
                spare.setdefault(name, []).extend(own[before - after :])
        if cls.free:
            gains.update(_hand_out(cls.free, tastes, lack))
    for name, cap in counts.cap.items():
        # Beyond its own limit a member gives up, whether anyone wants it or not.
        gone = set(surplus.get(name, ()))
        excess = total_now[name] - cap - len(gone)
        if excess > 0:
            own = [u for cls in classes for _, u in cls.held.get(name, ()) if u not in gone]
            surplus.setdefault(name, []).extend(tastes.least_liked(own, name)[:excess])
    return Target(
        gains,
        {name: tuple(units) for name, units in surplus.items()},
        load,
        {name: tuple(units) for name, units in spare.items()},
    )


def _hand_out(free: list[UnitOrder], tastes: _Tastes, lack: dict[str, int]) -> dict[Unit, str]:
    """Name who takes which free unit; `lack` says how many each takes."""
    gains: dict[Unit, str] = {}
    if any(tastes.members[name].prefer for name in lack):
        free = tastes.hand_out(free, lack, gains)
    # Units and members are in the order of their hashes: one walk around the ring serves all.
    ahead = deque(sorted(member_order(name) for name, n in lack.items() if n))
    behind: deque[MemberOrder] = deque()
    for order, unit in free:
        while ahead and ahead[0][0] < order:
            behind.append(ahead.popleft())
        ring = ahead or behind
        if not ring:
            break
        name = ring[0][1]
        gains[unit] = name
        lack[name] -= 1
        if not lack[name]:
            ring.popleft()
    return gains


class _Tastes:
    """What the members prefer, where any do."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self._tastes = Counter(wants.prefer for wants in members.values() if wants.prefer)
        self._of = {wants.prefer: wants for wants in members.values() if wants.prefer}

    def hand_out(
        self, free: list[UnitOrder], lack: dict[str, int], gains: dict[Unit, str]
    ) -> list[UnitOrder]:
        """Give free units to those that like them and lack some; return those that are left."""
        rings: dict[tuple[str, ...], list[MemberOrder]] = {}
        for name, n in lack.items():
            if n and self.members[name].prefer:
                insort(rings.setdefault(self.members[name].prefer, []), member_order(name))
        left: list[UnitOrder] = []
        for order, unit in free:
            liking = [ring for taste, ring in rings.items() if ring and self._of[taste].likes(unit)]
            if not liking:
                left.append((order, unit))
                continue
            nexts = [ring[bisect_left(ring, (order, "")) % len(ring)] for ring in liking]
            at, name = min(nexts, key=lambda o: (o[0] < order, o))
            gains[unit] = name
            lack[name] -= 1
            if not lack[name]:
                rings[self.members[name].prefer].remove((at, name))
        return left

    def least_liked(self, units: list[Unit], name: str) -> list[Unit]:
        """Sort units by how readily their holder gives them up."""
        if not self._tastes:
            return units
        mine = self.members[name]
        others = [self._of[t] for t, n in self._tastes.items() if n > (t == mine.prefer)]
        return sorted(units, key=lambda u: (mine.likes(u), not any(s.likes(u) for s in others)))


# By cost


class _Loads:
    """How much each member has to do, and should have to do."""

    def __init__(self, shares: Shares, classes: list[UnitClass]) -> None:
        self.members, self.costs = shares.members, shares.costs
        self.total = dict.fromkeys(self.members, 0)
        self.room = {name: _cap(wants) for name, wants in self.members.items()}
        self.surplus: dict[str, list[Unit]] = {}
        self._classes_of: dict[str, list[UnitClass]] = {name: [] for name in self.members}
        self._heaps: dict[UnitClass, dict[_Alike, list[tuple[int, MemberOrder]]]] = {}
        """Whoever has least to do comes first. What is out of date there is passed over."""
        self._of = {_alike(wants): wants for wants in self.members.values()}
        for cls in classes:
            self._heaps[cls] = {}
            for name in cls.members:
                self._classes_of[name].append(cls)
                if name in cls.held:
                    self.total[name] += cls.load[name]
                    self.room[name] -= len(cls.held[name])
        for name in self.members:
            self._push(name)

    def cost(self, unit: Unit) -> int:
        return self.costs.get(unit, 1)

    def level(self, name: str) -> float:
        return self.total[name] / self.members[name].weight

    def add(self, name: str, cost: int, units: int) -> None:
        self.total[name] += cost
        self.room[name] -= units
        self._push(name)

    def _push(self, name: str) -> None:
        if self.room[name] > 0:
            alike, entry = _alike(self.members[name]), (self.total[name], member_order(name))
            for cls in self._classes_of[name]:
                heapq.heappush(self._heaps[cls].setdefault(alike, []), entry)

    def least(self, cls: UnitClass) -> Iterator[tuple[str, Subscription]]:
        """Yield whoever has least to do and can take one more, of each kind of members."""
        for alike, heap in self._heaps[cls].items():
            while heap and not (
                heap[0][0] == self.total[heap[0][1][1]] and self.room[heap[0][1][1]] > 0
            ):
                heapq.heappop(heap)
            if heap:
                yield heap[0][1][1], self._of[alike]

    def taker(self, unit: Unit, cls: UnitClass) -> str | None:
        """Return who should take a free unit: who will have least to do with it."""
        cost = self.cost(unit)
        able = (
            ((self.total[name] + cost) / wants.weight, not wants.likes(unit), member_order(name))
            for name, wants in self.least(cls)
        )
        best = min(able, default=None)
        return None if best is None else best[2][1]

    def best_move(self, giver: str) -> tuple[UnitOrder, str | None] | None:
        """Return the unit that the member should give to whom; None if it should keep all."""
        best: tuple[float, UnitOrder, str] | None = None
        is_over = self.room[giver] < 0
        level, weight = self.level(giver), self.members[giver].weight
        gone = self.surplus.get(giver, ())
        for cls in self._classes_of[giver]:
            own = cls.held.get(giver, ())
            for taker, wants in self.least(cls) if own else ():
                gap, shift = level - self.level(taker), 1 / weight + 1 / wants.weight
                if is_over:
                    low, high = 0.0, float("inf")
                elif gap > 1:
                    # What a move takes off the gap is a good part of it; and the taker will have
                    # less to do than its giver had, or the unit would come back.
                    low, high = gap / HYSTERESIS / shift, gap * (2 - 1 / HYSTERESIS) / shift
                    high = min(high, gap * wants.weight * (1 - _ROUNDING))
                else:
                    continue
                for order in own:
                    cost = self.costs.get(order[1], 1)
                    if low <= cost <= high and order[1] not in gone:
                        move = (abs(gap - cost * shift) - gap, order, taker)
                        if best is None or move < best:
                            best = move
        if best is not None:
            return best[1], best[2]
        if is_over:  # beyond its limit, and nobody can take it
            own = [order for cls in self._classes_of[giver] for order in cls.held.get(giver, ())]
            rest = [order for order in own if order[1] not in gone]
            return (min(rest), None) if rest else None
        return None


_Alike: TypeAlias = tuple[float, tuple[str, ...]]


def _alike(wants: Subscription) -> _Alike:
    """Return what tells members apart that have the same to do."""
    return wants.weight, wants.prefer


def _by_cost(shares: Shares) -> Target:
    """As by count, where units weigh differently: the costliest free ones are handed out first.

    A held unit moves only if that takes a good part of the gap between two members off it; the
    costs change all the time.
    """
    classes = shares.classes()
    loads = _Loads(shares, classes)
    load = {name: loads.level(name) for name in shares.members}
    gains: dict[Unit, str] = {}
    free = [(-loads.cost(order[1]), order, cls) for cls in classes for order in cls.free]
    for negative, (_, unit), cls in sorted(free, key=lambda item: item[:2]):
        name = loads.taker(unit, cls)
        if name is not None:
            gains[unit] = name
            loads.add(name, -negative, 1)
    moved = True
    while moved:
        moved = False
        for giver in sorted(
            loads.total, key=lambda m: (loads.room[m] >= 0, -loads.level(m), member_order(m))
        ):
            while (move := loads.best_move(giver)) is not None:
                (_, unit), taker = move
                moved = True
                loads.surplus.setdefault(giver, []).append(unit)
                loads.add(giver, -loads.cost(unit), -1)
                if taker is not None:
                    loads.add(taker, loads.cost(unit), 1)
    return Target(gains, {name: tuple(units) for name, units in loads.surplus.items()}, load)
