"""What a consumer should hold beside Go consumers: whatever is free (specs/INTEROP.md §4.8).

Version 1 has no members: idle clients are invisible, so nobody can tell what a fair share is. As Go
consumers do, each takes what it finds free, one unit at a time with a pause of up to 3 s in
between, so that others that start at the same time get some, too; `greedy` takes all at once. What
is held stays where it is, unless a limit is lowered.
"""

from __future__ import annotations

import random
from typing import Final

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.consumer.assignor import Decision
from marshal_py.protocol.balance import Plan, Unit
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.events import Claimed, Event, GroupPaused, GroupResumed, Released
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS

__all__ = ["Version1Assignor"]

PAUSE_S: Final = 3.0
"""The longest pause between two claims, as in Go."""

_RELEVANT: Final = (Claimed, Released, GroupPaused, GroupResumed)
_PENDING: Final = (ClaimState.WAITING, ClaimState.CLAIMING)


class Version1Assignor:
    """Plans for one consumer, as `marshal_py.consumer.assignor.Assignor` does with members."""

    def __init__(self, marshal: Marshal, subscription: Subscription, *, greedy: bool) -> None:
        self.subscription = subscription
        self._marshal = marshal
        self._greedy = greedy
        self._random = random.Random()
        self._next_claim_ns = 0
        self._next_look_ns = 0
        self._released_ns: dict[Unit, int] = {}
        """Units that we gave back: others get them first, for one interval."""

    def is_affected_by(self, events: list[Event]) -> bool:
        """Whether these events, which the driver has just read, may change the plan."""
        affected = False
        marshal = self._marshal
        for event in events:
            if isinstance(event, _RELEVANT) and event.group_id == marshal.group_id:
                affected = True
                if type(event) is Released and event.client_id == marshal.client_id:
                    self._released_ns[event.topic, event.partition] = driver_of(marshal).clock()
        return affected

    def is_due(self) -> bool:
        """Whether it is time for the next claim."""
        return driver_of(self._marshal).clock() >= self._next_look_ns

    def due_in_s(self) -> float:
        """Return in how many seconds that is."""
        return (self._next_look_ns - driver_of(self._marshal).clock()) / 1e9

    def decide(self, units: list[Unit], lags: dict[Unit, int] | None = None) -> Decision:  # noqa: ARG002
        """Look at the world, and plan."""
        marshal = self._marshal
        with marshal.world() as world:
            now_ns = driver_of(marshal).clock()
            self._next_look_ns = now_ns + 500 * MS
            paused = world.paused(marshal.group_id)
            observers = driver_of(marshal).observers
            holders: dict[Unit, str | None] = {}
            resume: list[Unit] = []
            for unit in units:
                p = world.coordinator(marshal.group_id, *unit)
                cell = world.states[p].cells.get((marshal.group_id, *unit))
                holder = None if cell is None else cell.holder
                if cell is not None and holder == marshal.client_id:
                    caught_up = observers[p].caught_up_at_offset
                    left = cell.instance_id != marshal.instance_id
                    if left and caught_up is not None and cell.epoch < caught_up:
                        resume.append(unit)
                elif cell is not None and holder is not None:
                    holder = None if self._is_stale(cell, p, now_ns) else holder
                holders[unit] = holder
            states = {h.key: h.state for h in driver_of(marshal).claimant.holdings()}
        claim = self._choose(holders, states, now_ns)
        return Decision(
            Plan(claim, self._surplus(holders, states)),
            tuple(resume),
            holders,
            paused,
            settling=False,
        )

    def _is_stale(self, cell: Cell, coordinator: int, now_ns: int) -> bool:
        observer = driver_of(self._marshal).observers[coordinator]
        return observer.liveness(cell.version, cell.interval_ms, now_ns) == "stale"

    def _choose(
        self, holders: dict[Unit, str | None], states: dict[Unit, ClaimState], now_ns: int
    ) -> tuple[Unit, ...]:
        """Return what is wanted: what is on its way, and what comes next."""
        pending = [u for u, s in states.items() if s in _PENDING and holders.get(u, "") is None]
        if now_ns < self._next_claim_ns:
            return tuple(pending)
        since_ns = now_ns - self._marshal.settings.interval_ms * MS
        self._released_ns = {u: at for u, at in self._released_ns.items() if at > since_ns}
        free = [
            unit
            for unit, holder in holders.items()
            if holder is None and unit not in states and unit not in self._released_ns
        ]
        most = self.subscription.max_claims
        have = sum(s is not ClaimState.RELEASING for u, s in states.items() if u in holders)
        room = len(free) if most is None else max(0, most - have)
        if not self._greedy:
            room = min(room, 1)
        self._random.shuffle(free)
        chosen = free[:room]
        if chosen:
            self._next_claim_ns = now_ns + int(self._random.uniform(0, PAUSE_S) * 1000) * MS
        return (*pending, *chosen)

    def _surplus(
        self, holders: dict[Unit, str | None], states: dict[Unit, ClaimState]
    ) -> Unit | None:
        """Return one unit to give up, if a lowered limit asks for it."""
        most = self.subscription.max_claims
        held = sorted(u for u in holders if states.get(u) in (ClaimState.HELD, ClaimState.LAPSED))
        return held[-1] if most is not None and len(held) > most else None
