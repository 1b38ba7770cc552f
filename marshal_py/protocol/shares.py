"""Who is there and who holds what, kept by change, as the computing of shares needs it. Pure.

A look at 1,000 members and 10,000 units must not cost what all of them cost each time that one
unit changes hands. So what `marshal_py.protocol.balance` counts and sorts is kept counted and
sorted here. A change costs what it changes; what is kept depends on what there is, not on how it
came about, and two members that see the same world have the same `Shares`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import mmh3

from marshal_py.protocol.subscription import Subscription

__all__ = [
    "MemberOrder",
    "Shares",
    "Unit",
    "UnitClass",
    "UnitOrder",
    "member_order",
    "shares_of",
    "unit_order",
]

Unit: TypeAlias = tuple[str, int]
"""(topic, partition), or (topic, 0) for a topic that is claimed as a whole."""

UnitOrder: TypeAlias = tuple[int, Unit]
MemberOrder: TypeAlias = tuple[int, str]

_Kind: TypeAlias = tuple[frozenset[str], str | None, int]
"""Topics, pattern and slots of a subscription: members of one kind may hold the same units."""


@lru_cache(1 << 16)
def unit_order(unit: Unit) -> UnitOrder:
    """Return what units are sorted by."""
    return (mmh3.hash(f"{unit[0]}/{unit[1]}", signed=False), unit)


@lru_cache(1 << 12)
def member_order(name: str) -> MemberOrder:
    """Return what members are sorted by where nothing else tells them apart."""
    return (mmh3.hash(name, signed=False), name)


class UnitClass:
    """Units that the same members may hold: they are alike."""

    __slots__ = ("free", "held", "load", "members")

    def __init__(self) -> None:
        self.members: list[str] = []
        """Who may hold them, sorted."""
        self.free: list[UnitOrder] = []
        """Those that nobody holds, sorted."""
        self.held: dict[str, list[UnitOrder]] = {}
        """Holder, who need not be one of `members`, → what it holds, sorted; never nothing."""
        self.load: dict[str, int] = {}
        """Holder → what that weighs."""

    def add(self, unit: Unit, holder: str | None, cost: int) -> None:
        if holder is None:
            insort(self.free, unit_order(unit))
        else:
            insort(self.held.setdefault(holder, []), unit_order(unit))
            self.load[holder] = self.load.get(holder, 0) + cost

    def discard(self, unit: Unit, holder: str | None, cost: int) -> None:
        if holder is None:
            del self.free[bisect_left(self.free, unit_order(unit))]
            return
        units = self.held[holder]
        del units[bisect_left(units, unit_order(unit))]
        self.load[holder] -= cost
        if not units:
            del self.held[holder], self.load[holder]


class Shares:
    """The members of a group and the units that they share. Changed by its methods alone."""

    def __init__(self) -> None:
        self.version = 0
        """Rises with every change."""
        self._members: dict[str, Subscription] = {}
        self._holders: dict[Unit, str | None] = {}
        self._costs: dict[Unit, int] = {}
        self._kinds: dict[_Kind, list[str]] = {}
        """Kind → its members, sorted."""
        self._classes: dict[frozenset[_Kind], UnitClass] = {}
        """Who may hold the units, by kind → the units. Of every class that has any."""
        self._class_of: dict[str, UnitClass] = {}
        """By topic."""
        self.members: Mapping[str, Subscription] = MappingProxyType(self._members)
        self.holders: Mapping[Unit, str | None] = MappingProxyType(self._holders)
        """Every unit that there is → who holds it, None: nobody."""
        self.costs: Mapping[Unit, int] = MappingProxyType(self._costs)
        """What each unit weighs."""

    def set_member(self, name: str, subscription: Subscription | None) -> bool:
        """Say what a member wants, None: it is not there. Returns whether that is news."""
        before = self._members.get(name)
        if subscription is before or subscription == before:
            return False
        self.version += 1
        old, new = _kind(before), _kind(subscription)
        if subscription is None:
            del self._members[name]
        else:
            self._members[name] = subscription
        if old != new:
            self._change_kind(name, old, new)
        return True

    def set_unit(self, unit: Unit, holder: str | None, cost: int = 1) -> None:
        """Say who holds a unit, None: nobody, and what it weighs."""
        is_known, before = unit in self._holders, self._holders.get(unit)
        cost_before = self._costs.get(unit, 1)
        if is_known and before == holder and cost_before == cost:
            return
        units = self._class_of.get(unit[0]) or self._class(unit[0])
        if is_known:
            units.discard(unit, before, cost_before)
        units.add(unit, holder, cost)
        self._holders[unit], self._costs[unit] = holder, cost
        self.version += 1

    def remove_unit(self, unit: Unit) -> bool:
        """Say that a unit does not exist any more. Returns whether that is news."""
        if unit not in self._holders:
            return False
        self.version += 1
        self._class_of[unit[0]].discard(unit, self._holders.pop(unit), self._costs.pop(unit))
        return True

    def classes(self) -> list[UnitClass]:
        """Return the units that concern the members, by who may hold them; in a fixed order."""
        found = [
            units
            for units in self._classes.values()
            if units.free or not units.held.keys().isdisjoint(units.members)
        ]
        return sorted((u for u in found if u.members), key=lambda units: units.members)

    def _change_kind(self, name: str, old: _Kind | None, new: _Kind | None) -> None:
        """A member wants other topics than before, has come, or has gone."""
        kinds = self._kinds
        is_new = new is not None and new not in kinds
        if new is not None:
            insort(kinds.setdefault(new, []), name)
        if old is not None:
            _remove(kinds[old], name)
            if not kinds[old]:
                del kinds[old]
        if is_new or (old is not None and old not in kinds):
            self._sort_into_classes()
            return
        for wanted_by, units in self._classes.items():
            was, is_now = old in wanted_by, new in wanted_by
            if was and not is_now:
                _remove(units.members, name)
            elif is_now and not was:
                insort(units.members, name)

    def _sort_into_classes(self) -> None:
        """Sort all units anew: some want now what nobody, or other members, wanted."""
        self._classes.clear()
        self._class_of.clear()
        for unit, holder in self._holders.items():
            units = self._class_of.get(unit[0]) or self._class(unit[0])
            if holder is None:
                units.free.append(unit_order(unit))
            else:
                units.held.setdefault(holder, []).append(unit_order(unit))
                units.load[holder] = units.load.get(holder, 0) + self._costs[unit]
        for units in self._classes.values():
            for where in (units.free, *units.held.values()):
                where.sort()

    def _class(self, topic: str) -> UnitClass:
        """Return the class of a topic that was in none."""
        wanted_by = frozenset(
            kind for kind, names in self._kinds.items() if self._members[names[0]].claims(topic)
        )
        units = self._classes.get(wanted_by)
        if units is None:
            units = self._classes[wanted_by] = UnitClass()
            units.members = sorted(name for kind in wanted_by for name in self._kinds[kind])
        self._class_of[topic] = units
        return units


def _kind(wants: Subscription | None) -> _Kind | None:
    return None if wants is None else (wants.topics, wants.pattern, wants.agreed)


def _remove(names: list[str], name: str) -> None:
    del names[bisect_left(names, name)]


def shares_of(
    members: Mapping[str, Subscription],
    holders: Mapping[Unit, str | None],
    costs: Mapping[Unit, int] | None = None,
) -> Shares:
    """Return the `Shares` of a world that is given as a whole."""
    shares = Shares()
    for name, subscription in members.items():
        shares.set_member(name, subscription)
    weights: Mapping[Unit, int] = costs or {}
    for unit, holder in holders.items():
        shares.set_unit(unit, holder, weights.get(unit, 1))
    return shares
