"""The partitions, or slots of them, that one member claims and gives back, as the assignor decides.

Part of the thread of `Assignment`: each round looks now and then at what this member should hold.
"""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from marshal_py.client.marshal import Marshal
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.agreement import Agreement
from marshal_py.consumer.assignor import Assignor, Decision
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.consumer.held_partition import HeldPartition, Stage
from marshal_py.consumer.partitions import Partitions
from marshal_py.consumer.positions import Positions
from marshal_py.consumer.topics import Topics
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import BrokerUnavailable, DuplicateClientId
from marshal_py.protocol.balance import Plan, Unit, weigh
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.events import Event
from marshal_py.protocol.subscription import Subscription

if TYPE_CHECKING:  # what only some need is imported there: a restart is mostly imports
    from marshal_py.consumer.assignor_version1 import Version1Assignor

__all__ = ["PartitionClaims"]

MIN_GAP_S: Final = 0.005
"""Between two plans: a flood of events must not keep the thread busy."""

SETTLING_S: Final = 0.02
"""Between two rounds, while others are joining."""

STORE_S: Final = 0.2
"""What an earlier instance held was taken up: so soon positions are stored, then after as long
again, twice as long, and so on up to an interval. A process that is restarted over and over, as it
crashes or another one has its client_id, gets on."""


class PartitionClaims:
    """What is claimed and given back where each unit goes to one member. See `Claims`."""

    def __init__(
        self,
        marshal: Marshal,
        topics: Topics,
        partitions: Partitions,
        positions: Positions,
        agreement: Agreement,
        fetcher: Fetcher,
        log: Fields,
        wakeup: Wakeup,
        subscription: Subscription,
        *,
        greedy: bool,
        settle_ms: int,
    ) -> None:
        self._subscription = subscription
        self._marshal = marshal
        self._topics = topics
        self._partitions = partitions
        self._positions = positions
        self._agreement = agreement
        self._fetcher = fetcher
        self._log = log
        self._wakeup = wakeup
        self._greedy = greedy
        self._settle_ms = settle_ms
        self._is_text = marshal.settings.wire == "text"
        self._assignor: Assignor | Version1Assignor
        self._has_started = False
        self._is_settling = True
        self._giving: tuple[Unit, float] | None = None
        """What is being given to another member, and since when."""
        self._store_at_s, self._store_in_s = math.inf, STORE_S
        """When positions are stored next, before a heartbeat is due, and how long after that."""
        self._planned_s = 0.0
        self._all_units: list[Unit] = []
        self._units_of: tuple[dict[str, int], bool] = ({}, False)
        self._lags: dict[Unit, int] = {}

    @property
    def subscription(self) -> Subscription:
        """What this member wants, and tells the others that it does."""
        return self._subscription

    def start(self) -> None:
        """Begin to look at the group."""
        marshal = self._marshal
        if self._is_text:
            from marshal_py.consumer.assignor_version1 import Version1Assignor

            self._assignor = Version1Assignor(marshal, self._subscription, greedy=self._greedy)
        else:
            self._assignor = Assignor(marshal, self._subscription, settle_ms=self._settle_ms)
        self._has_started = True

    def close(self) -> None:
        """What is held is given back as it is."""

    def change(self, **changes: Any) -> None:
        """Want something else from now on: other values of the `Subscription`."""
        self._subscription = dataclasses.replace(self._subscription, **changes)
        if not self._has_started:  # the others are told with the start
            return
        self._assignor.subscription = self._subscription
        if not self._is_text:
            self._marshal.set_member_metadata(self._subscription.encode())
        self._wakeup.plan_due = True
        self._wakeup.wake()

    def is_affected_by(self, events: list[Event]) -> bool:
        """Whether what this member should hold may be another."""
        if not self._assignor.is_affected_by(events):
            return False
        self._wakeup.plan_due = True
        return True

    def look_at_lags(self) -> None:
        """Tell the others how far behind each partition is, if that counts."""
        if self._subscription.by_lag:
            self._publish_lags()

    def _publish_lags(self) -> None:
        """Tell the others, with the claims, how far behind each partition is."""
        try:
            self._lags = self._positions.lags(list(self._fetcher.active.values()), 5.0)
        except BrokerUnavailable:
            return
        for key, lag in self._lags.items():
            part = self._partitions.by_key.get(key)
            if part is not None and part.stage is Stage.ACTIVE:
                self._partitions.publish(part, partial(_with_cost, weigh(lag)))
        self._wakeup.plan_due = True

    # Rounds

    def round(self, now_s: float) -> float | None:
        """Claim and give back what is to be. Returns when to look again, None: no sooner."""
        if now_s >= self._store_at_s:
            self._store()
        plan_again_s = self._marshal.settings.interval_ms / 2_000
        is_due = self._wakeup.plan_due or now_s - self._planned_s > plan_again_s
        if is_due or self._assignor.is_due():
            self._plan(now_s)
        return SETTLING_S if self._is_settling else None

    def rest_s(self) -> float | None:
        """Return when somebody will have died if nothing happens; None: something is under way."""
        return None if self._giving is not None else self._assignor.due_in_s()

    def _store(self) -> None:
        self._partitions.store()
        self._store_at_s += self._store_in_s
        self._store_in_s *= 2
        if self._store_in_s > self._marshal.settings.interval_ms / 1000:
            self._store_at_s = math.inf

    # The plan

    def _units(self) -> list[Unit]:
        """Return the units that exist: the same list, as long as the same ones do."""
        counts, whole = self._agreement.ready(self._topics.counts), self._subscription.entire_topics
        if self._units_of != (counts, whole):
            self._units_of = (counts, whole)
            if self._subscription.sharing == "keys":
                self._all_units = self._agreement.units(counts)
                return self._all_units
            sizes = [(topic, min(n, 1) if whole else n) for topic, n in counts.items()]
            self._all_units = [(topic, p) for topic, n in sizes for p in range(n)]
        return self._all_units

    def _plan(self, now_s: float) -> None:
        if now_s - self._planned_s < MIN_GAP_S:
            self._wakeup.wait(MIN_GAP_S)
            now_s = time.monotonic()
        self._wakeup.plan_due = False
        self._planned_s = now_s
        partitions, by_key = self._partitions, self._partitions.by_key
        decision = self._assignor.decide(self._units(), self._lags)
        if isinstance(self._marshal.failure, DuplicateClientId):
            return
        self._is_settling = decision.settling or decision.newcomers_settling
        if decision.paused:
            return
        for unit in decision.resume:
            if unit not in by_key:
                partitions.want(unit)
                if self._store_in_s == STORE_S and not self._is_text:
                    self._store_at_s = min(self._store_at_s, now_s + STORE_S)
        if decision.settling:
            self._wakeup.plan_due = True  # the next tick looks again
            return
        for unit in decision.plan.claim:
            if unit not in by_key:
                partitions.want(unit)
        for part in partitions.all():
            if part.partition < self._topics.counts.get(part.topic, 0):
                continue
            if part.stage is Stage.ACTIVE:  # the topic is gone
                partitions.drain(part)
            elif part.stage is Stage.WANTED:
                partitions.cancel(part)
        self._cancel(decision)
        if decision.newcomers_settling:
            self._wakeup.plan_due = True
        else:
            self._give_up_one(decision, now_s)
        if self._subscription.entire_topics:
            self._follow()

    def _cancel(self, decision: Decision) -> None:
        """Stop wanting what others got."""
        me = self._marshal.client_id
        wanted = {*decision.plan.claim, *decision.resume}
        for part in self._partitions.all():
            unit = part.key
            if (
                part.stage is Stage.WANTED
                and unit in decision.holders
                and unit not in wanted
                and decision.holders[unit] != me
                and part.holding.state in (ClaimState.WAITING, ClaimState.CLAIMING)
            ):
                self._partitions.cancel(part)

    def _give_up_one(self, decision: Decision, now_s: float) -> None:
        """One unit at a time goes to whoever has too few; more, where handlers keep it."""
        me, partitions = self._marshal.client_id, self._partitions
        if self._giving is not None:
            unit, since_s = self._giving
            interval_s = self._marshal.settings.interval_ms / 1000
            holder = decision.holders.get(unit, "gone")
            given = partitions.by_key.get(unit)
            if holder == me and given is not None and given.stage is not Stage.ACTIVE:
                # Still being drained; if it is active, it has come back to us.
                if now_s - since_s < interval_s:
                    return
            elif holder is None and now_s - since_s < 2 * interval_s:
                return  # whoever lacks one will take it
            self._giving = None
        part = self._next_to_give(decision.plan)
        if part is None:
            return
        self._log.info("%s: %s/%d goes to another member", me, *part.key, extra=part.log_fields)
        self._giving = (part.key, now_s)
        partitions.drain(part)
        if self._subscription.entire_topics:
            for other in partitions.all():
                if other.topic == part.topic and other.stage is Stage.ACTIVE:
                    partitions.drain(other)
        self._wakeup.wake()

    def _next_to_give(self, plan: Plan) -> HeldPartition | None:
        """Return what can go: at best something of which nothing is in a handler's hands."""
        if plan.give_up is None:
            return None
        units = (plan.give_up, *plan.instead)
        parts = [part for unit in units if (part := self._partitions.by_key.get(unit)) is not None]
        if sum(part.stage is Stage.DRAINING for part in parts) >= plan.surplus:
            return None
        able = [part for part in parts if part.stage is Stage.ACTIVE]
        idle = (part for part in able if not self._partitions.is_busy(part))
        return next(idle, able[0] if able else None)

    def _follow(self) -> None:
        """Whole topics: the other partitions go where partition 0 is."""
        partitions, by_key = self._partitions, self._partitions.by_key
        for topic, count in self._topics.counts.items():
            lock = by_key.get((topic, 0))
            leads = lock is not None and lock.stage is Stage.ACTIVE
            for p in range(1, count):
                follower = by_key.get((topic, p))
                if leads and follower is None:
                    partitions.want((topic, p))
                elif not leads and follower is not None:
                    if follower.stage is Stage.ACTIVE:
                        partitions.drain(follower)
                        self._wakeup.wake()
                    elif follower.stage is Stage.WANTED:
                        partitions.cancel(follower)


def _with_cost(cost: int, told: ClaimMetadata) -> ClaimMetadata:
    return msgspec.structs.replace(told, cost=cost)
