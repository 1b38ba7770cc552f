"""What a consumer of a group should hold now, from what its client knows of the world.

`Assignor` has its `GroupView` look at what has changed, under the client's lock, and asks `balance`
what follows. It knows when to keep still: after somebody joined, until no more come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.consumer.group_view import GroupView
from marshal_py.protocol import balance
from marshal_py.protocol.balance import Plan, Target, Unit
from marshal_py.protocol.events import Event, MemberJoined
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS

__all__ = ["Assignor", "Decision"]

MAX_SETTLES: Final = 10
"""A member that joined waits for others to join for so many times `settle_ms`, at most."""


class Decision(NamedTuple):
    """One look at the world."""

    plan: Plan
    resume: tuple[Unit, ...]
    """Units that an earlier instance of this client still holds: nobody need be asked."""
    holders: Mapping[Unit, str | None]
    """As they were at the assignor's last look."""
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
        self._view = GroupView(marshal)
        self._is_due = True
        self._target = Target({}, {}, {})
        self._target_of: tuple[int, bool] | None = None
        """The version of the shares that it was computed from, and whether by cost."""
        self._joined_ns: int | None = None
        self._quiet_since_ns = 0
        self._newcomers_since_ns = 0

    def is_affected_by(self, events: list[Event]) -> bool:
        """Whether these events, which the driver has just read, may change the plan."""
        affected = False
        for event in events:
            if self._view.hear(event):
                affected = True
                if type(event) is MemberJoined:
                    now_ns = driver_of(self._marshal).clock()
                    if now_ns - self._quiet_since_ns >= self._settle_ns:
                        self._newcomers_since_ns = now_ns
                    self._quiet_since_ns = now_ns
        return affected

    def decide(self, units: list[Unit], lags: Mapping[Unit, int] | None = None) -> Decision:
        """Look at the world, and plan. `lags` are those that this member measured itself.

        `units` are those that exist: another list, if others do.
        """
        marshal, view = self._marshal, self._view
        with marshal.world() as world:
            now_ns = driver_of(marshal).clock()
            view.refresh(world, now_ns, self.subscription, units, lags)
            paused = world.paused(marshal.group_id)
        self._is_due = False
        if view.has_joined and self._joined_ns is None:
            self._joined_ns = now_ns
            self._quiet_since_ns = max(self._quiet_since_ns, now_ns)
        if self._target_of != (view.shares.version, view.by_lag):
            self._target_of = (view.shares.version, view.by_lag)
            self._target = balance.target_of(view.shares, by_cost=view.by_lag)
        return Decision(
            self._target.plan_of(marshal.client_id),
            tuple(sorted(view.to_resume)),
            view.shares.holders,
            paused,
            self._is_settling(now_ns),
            self._are_newcomers_settling(now_ns),
        )

    def is_due(self) -> bool:
        """Whether somebody came, died or came back to life since the last look. Cheap."""
        marshal = self._marshal
        with marshal.world() as world:
            now_ns = driver_of(marshal).clock()
            self._is_due |= self._view.refresh(world, now_ns, self.subscription)
        return self._is_due

    def due_in_s(self) -> float:
        """Return in how many seconds somebody will have died, if nothing comes from them."""
        at_ns = self._view.next_silence_ns
        if at_ns is None:
            return math.inf
        return max(0.0, (at_ns - driver_of(self._marshal).clock()) / 1e9 + 0.001)

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
