"""The thread of a consumer that claims partitions and gives them back, as the assignor decides.

It goes round whenever something happened, and at least every tenth of an interval; less often while
nothing comes and nobody goes. Each round looks at every partition, and now and then at what this
member should hold.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.agreement import Agreement
from marshal_py.consumer.assignor import Assignor, Decision
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.consumer.held_partition import Stage
from marshal_py.consumer.partitions import Partitions
from marshal_py.consumer.positions import Positions
from marshal_py.consumer.topics import Topics
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import BrokerUnavailable, Closed, DuplicateClientId, MarshalError
from marshal_py.protocol.balance import Unit, weigh
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.events import Beat, Event
from marshal_py.protocol.subscription import Subscription

if TYPE_CHECKING:  # what only some need is imported there: a restart is mostly imports
    from marshal_py.consumer.assignor_version1 import Version1Assignor
    from marshal_py.consumer.ranges import RangeClaims

__all__ = ["Assignment"]

MIN_GAP_S: Final = 0.005
"""Between two plans: a flood of events must not keep the thread busy."""

REST_S: Final = 1.0
"""Between two rounds, while nothing comes and nothing changes hands; a quarter of an interval, if
that is less. What happens wakes it, and so does the silence of a member that has died."""

STORE_S: Final = 0.2
"""What an earlier instance held was taken up: so soon positions are stored, then after as long
again, twice as long, and so on up to an interval. A process that is restarted over and over, as it
crashes or another one has its client_id, gets on."""

TWIN_INTERVALS: Final = 3
"""So long another instance of our client_id must be heard: one that is closing is not, by then."""

LOOK_AT_ENDS_S: Final = 0.5
"""At most once: between two looks at how many messages wait, while there are many."""


class Assignment:
    """Keeps `partitions` as the assignor decides, from `start` to `close`."""

    def __init__(
        self,
        marshal: Marshal,
        topics: Topics,
        partitions: Partitions,
        positions: Positions,
        agreement: Agreement,
        fetcher: Fetcher,
        delivery: Delivery,
        log: Fields,
        wakeup: Wakeup,
        subscription: Subscription,
        ranges: RangeClaims | None,
        *,
        greedy: bool,
        settle_ms: int,
    ) -> None:
        self.subscription = subscription
        """What this member wants, and tells the others that it does."""
        self._marshal = marshal
        self._topics = topics
        self._partitions = partitions
        self._positions = positions
        self._agreement = agreement
        self._fetcher = fetcher
        self._delivery = delivery
        self._log = log
        self._wakeup = wakeup
        self._ranges = ranges
        self._look_again_s: float | None = None
        self._greedy = greedy
        self._settle_ms = settle_ms
        self._is_text = marshal.settings.wire == "text"
        self._assignor: Assignor | Version1Assignor
        self._is_settling = True
        self._closing = False
        self._settled = threading.Event()
        self._giving: tuple[Unit, float] | None = None
        """What is being given to another member, and since when."""
        self._twin: tuple[str, float, float] | None = None
        """Another instance of our client_id, and when its heartbeats were read: first and last."""
        self._store_at_s, self._store_in_s = math.inf, STORE_S
        """When positions are stored next, before a heartbeat is due, and how long after that."""
        self._planned_s = 0.0
        self._all_units: list[Unit] = []
        self._units_of: tuple[dict[str, int], bool] = ({}, False)
        self._lags: dict[Unit, int] = {}
        self._looked_at_ends_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="marshal-assignment", daemon=True)
        self._stopped = threading.Event()

    # Life

    def start(self) -> None:
        """Begin to claim."""
        marshal = self._marshal
        if self._is_text:
            from marshal_py.consumer.assignor_version1 import Version1Assignor

            self._assignor = Version1Assignor(marshal, self.subscription, greedy=self._greedy)
        else:
            self._assignor = Assignor(marshal, self.subscription, settle_ms=self._settle_ms)
        with driver_of(marshal).lock:
            driver_of(marshal).watchers.append(self._on_events)
            driver_of(marshal).restarted.append(self._on_restart)
            driver_of(marshal).before_heartbeat.append(self._partitions.refresh_offsets)
        self._wakeup.wake()
        self._thread.start()
        self._topics.start(self._stopped, self._on_look_at_topics)

    @property
    def is_alive(self) -> bool:
        """Whether its thread works."""
        return self._thread.is_alive()

    def close(self, wait_s: float, deadline: float, *, release: bool) -> None:
        """Give everything back, or keep it (`release=False`), and end."""
        if not self._thread.is_alive():
            return
        self._partitions.end(hurry_s=time.monotonic() + wait_s, release=release)
        self._closing = True
        self._wakeup.wake()
        self._settled.wait(max(0.1, deadline - time.monotonic()))
        self._stopped.set()
        self._topics.stop()
        self._wakeup.wake()
        self._thread.join(max(1.0, deadline - time.monotonic()))
        driver = driver_of(self._marshal)
        with driver.lock:
            driver.watchers.remove(self._on_events)
            driver.restarted.remove(self._on_restart)
            if release:
                driver.before_heartbeat.remove(self._partitions.refresh_offsets)

    def change(self, **changes: Any) -> None:
        """Want something else from now on: other values of the `Subscription`."""
        subscription = dataclasses.replace(self.subscription, **changes)
        self.subscription = subscription
        self._assignor.subscription = subscription
        if not self._is_text:
            self._marshal.set_member_metadata(subscription.encode())
        self._wakeup.plan_due = True
        self._wakeup.wake()

    def _on_events(self, _: int, events: list[Event]) -> None:
        me = self._marshal
        for event in events:
            if (
                type(event) is Beat
                and event.client_id == me.client_id
                and event.instance_id != me.instance_id
                and event.group_id == me.group_id
            ):
                now_s, before = time.monotonic(), self._twin
                is_same = before is not None and before[0] == event.instance_id
                since_s = before[1] if before is not None and is_same else now_s
                self._twin = (event.instance_id, since_s, now_s)
        if self._ranges is not None:
            if self._ranges.is_affected_by(events):
                self._wakeup.wake()
            return
        if self._assignor.is_affected_by(events):
            self._wakeup.plan_due = True
            self._wakeup.wake()

    def _on_restart(self, _: str) -> None:
        self._wakeup.plan_due = True
        self._wakeup.wake()

    def _on_look_at_topics(self, changed: bool) -> None:
        if changed:
            self._wakeup.plan_due = True
            self._wakeup.wake()
        if self.subscription.by_lag:
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

    def _run(self) -> None:
        name = self._marshal.client_id
        while not self._stopped.is_set():
            self._wakeup.wait(self._wait_s())
            self._wakeup.clear()
            try:
                self._round()
            except Closed:
                if self._marshal.failure is None or self._closing:
                    self._remove_all()
                    return
            except MarshalError as error:  # the client has failed for good: leases lapse
                self._wakeup.fail(error)
                if self._closing:
                    self._remove_all()
                    return
            except Exception as error:
                self._log.exception("%s: the assignment of a consumer failed", name)
                failure = MarshalError(f"the consumer's assignment failed: {error}")
                failure.__cause__ = error
                self._wakeup.fail(failure)
                if self._closing:
                    self._remove_all()
                    return

    def _wait_s(self) -> float:
        """Return when to go round next if nothing happens, in seconds."""
        if self._look_again_s is not None:
            return self._look_again_s
        if self._closing or (self._is_settling and self._ranges is None):
            return 0.02
        interval_s = self._marshal.settings.interval_ms / 1000
        tick_s = min(0.25, max(0.02, interval_s / 10))
        if not self._is_at_rest():
            return tick_s
        return max(0.02, min(REST_S, interval_s / 4, self._assignor.due_in_s()))

    def _is_at_rest(self) -> bool:
        """Whether nothing has to be looked at again before something happens."""
        return (
            self._fetcher.is_resting
            and not self._wakeup.plan_due
            and self._giving is None
            and not self._partitions.is_waiting
        )

    def _remove_all(self) -> None:
        for part in self._partitions.all():
            self._partitions.remove(part)
        self._partitions.tell_of_lost(now=True)
        self._settled.set()

    def _round(self) -> None:
        for part in self._partitions.all():
            self._partitions.advance(part)
        self._partitions.tell_of_lost()
        if self._closing:
            self._look_again_s = None
            if self._ranges is not None:
                self._ranges.close()
            if self._partitions.wind_up():
                self._settled.set()
            return
        now_s = time.monotonic()
        if now_s >= self._store_at_s:
            self._store()
        if self._delivery.is_behind and now_s - self._looked_at_ends_s > LOOK_AT_ENDS_S:
            self._looked_at_ends_s, self._delivery.is_behind = now_s, False
            if not self._is_text:
                self._positions.request_ends(list(self._fetcher.active.values()))
        plan_again_s = self._marshal.settings.interval_ms / 2_000
        self._look_for_a_twin(now_s)
        is_due = self._wakeup.plan_due or now_s - self._planned_s > plan_again_s
        if self._ranges is not None:
            if self._wakeup.failure is not None:  # the loop has ended: it would take nothing
                return
            if is_due:
                self._wakeup.plan_due, self._planned_s = False, now_s
                self._ranges.follow(self._agreement.ready(self._topics.counts))
            self._look_again_s = self._ranges.round(now_s)
            return
        if is_due or self._assignor.is_due():
            self._plan(now_s)

    def _store(self) -> None:
        self._partitions.store()
        self._store_at_s += self._store_in_s
        self._store_in_s *= 2
        if self._store_in_s > self._marshal.settings.interval_ms / 1000:
            self._store_at_s = math.inf

    def _look_for_a_twin(self, now_s: float) -> None:
        """End if another process has our client_id, and all there is for us, for good.

        Who has something hears of it when it is taken away (PROTOCOL.md §5.8); who has nothing
        would wait for ever.
        """
        if self._twin is None or self._wakeup.failure is not None:
            return
        instance_id, since_s, last_s = self._twin
        interval_s = self._marshal.settings.interval_ms / 1000
        if last_s - since_s < TWIN_INTERVALS * interval_s or now_s - last_s > 2 * interval_s:
            return
        wanted = self._partitions.all()
        if not wanted or any(part.stage is not Stage.WANTED for part in wanted):
            return
        cells = [self._marshal.cell(*part.key) for part in wanted]
        if all(cell is not None and cell.instance_id == instance_id for cell in cells):
            name, group_id = self._marshal.client_id, self._marshal.group_id
            error = DuplicateClientId(
                f"client_id {name!r} is used by another live process in group {group_id!r} "
                f"(instance {instance_id}), which holds all that this one wants; give each process "
                "its own client_id"
            )
            self._log.error("%s: %s", name, error)
            self._wakeup.fail(error)

    # The plan

    def _units(self) -> list[Unit]:
        """Return the units that exist: the same list, as long as the same ones do."""
        counts, whole = self._agreement.ready(self._topics.counts), self.subscription.entire_topics
        if self._units_of != (counts, whole):
            self._units_of = (counts, whole)
            if self.subscription.sharing == "keys":
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
            count = self._topics.counts.get(part.topic, 0)
            if part.stage is Stage.ACTIVE and part.partition >= count:
                partitions.drain(part)  # the topic is gone
        self._cancel(decision)
        if decision.newcomers_settling:
            self._wakeup.plan_due = True
        else:
            self._give_up_one(decision, now_s)
        if self.subscription.entire_topics:
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
        """One unit at a time goes to whoever has too few."""
        me, partitions = self._marshal.client_id, self._partitions
        if self._giving is not None:
            unit, since_s = self._giving
            patience_s = 2 * self._marshal.settings.interval_ms / 1000
            holder = decision.holders.get(unit, "gone")
            given = partitions.by_key.get(unit)
            if holder == me and given is not None and given.stage is not Stage.ACTIVE:
                return  # still being drained; if it is active, it has come back to us
            if holder is None and now_s - since_s < patience_s:
                return  # whoever lacks one will take it
            self._giving = None
        unit_or_none = decision.plan.give_up
        if unit_or_none is None:
            return
        part = partitions.by_key.get(unit_or_none)
        if part is None or part.stage is not Stage.ACTIVE:
            return
        self._log.info("%s: %s/%d goes to another member", me, *unit_or_none, extra=part.log_fields)
        self._giving = (unit_or_none, now_s)
        partitions.drain(part)
        if self.subscription.entire_topics:
            for other in partitions.all():
                if other.topic == part.topic and other.stage is Stage.ACTIVE:
                    partitions.drain(other)
        self._wakeup.wake()

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
