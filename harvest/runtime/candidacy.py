"""Standing for election: which shards this process should lead, by claims of `marshal_py`.

An outbox without shards has one leader, elected as by `marshal_py.Marshal.leader`: every process
stands at all times, and whoever claims leads (specs/PROTOCOL.md §8). Shards are claimed one by one
and divided as the partitions of a consumer group are (`marshal_py.consumer.assignor`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final, Protocol

from harvest.runtime.lease import Lease
from marshal_py import Claim, ClaimTimeout, Marshal
from marshal_py.client.leader_election import leader_topic
from marshal_py.consumer.assignor import Assignor, Decision
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.subscription import Subscription

__all__ = ["Candidacy", "Election", "FairShare"]

_RELEASE_TIMEOUT_S: Final = 5.0


class Candidacy(Protocol):
    """What a harvester asks about leadership. Used from one thread."""

    @property
    def interval_s(self) -> float:
        """The heartbeat interval."""

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to listen. `wake` is called when there may be news, from another thread."""

    def elected(self) -> list[tuple[int, Lease]]:
        """The shards that this process has come to lead since the last call, and their leases."""

    def stand(self, leading: Collection[int]) -> int | None:
        """Stand for what this process should lead beside `leading`.

        Return one of `leading` that another process should have: stop it, then `resign`.
        """

    def withdraw(self) -> None:
        """Stand for nothing until the next `stand`; others may have the share of this process."""

    def resign(self, shard: int, *, wait: bool = False) -> None:
        """Give up a shard that was led, or stood for. Whoever acted on its lease has stopped."""

    def close(self) -> None:
        """Stand no more, for anything."""


class Election:
    """A candidacy for the one leadership of an outbox without shards. Implements `Candidacy`."""

    def __init__(self, marshal: Marshal, name: str) -> None:
        self._marshal = marshal
        self._unit: Unit = (leader_topic(name), 0)
        self._claim: Claim | None = None
        self._is_elected = False
        self._stop_listening: Callable[[], None] = lambda: None

    @property
    def interval_s(self) -> float:
        """See `Candidacy.interval_s`."""
        return self._marshal.settings.interval_ms / 1000

    def start(self, wake: Callable[[], None]) -> None:
        """See `Candidacy.start`."""

        def hear(_: int, events: list[Any]) -> None:
            if any(getattr(event, "topic", None) == self._unit[0] for event in events):
                wake()

        self._stop_listening = self._marshal.listen(hear)

    def elected(self) -> list[tuple[int, Lease]]:
        """See `Candidacy.elected`."""
        if self._claim is None or self._is_elected or not self._claim.held:
            return []
        self._is_elected = True
        return [(0, self._claim)]

    def stand(self, leading: Collection[int]) -> int | None:
        """See `Candidacy.stand`. Raises what `Marshal.want` raises."""
        del leading
        if not self._is_elected:
            self._claim = self._marshal.want(*self._unit)  # the same one, until it has ended
        return None

    def withdraw(self) -> None:
        """See `Candidacy.withdraw`."""
        if not self._is_elected:
            self.resign(0)

    def resign(self, shard: int, *, wait: bool = False) -> None:
        """See `Candidacy.resign`."""
        del shard
        claim, self._claim, self._is_elected = self._claim, None, False
        if claim is not None:
            _release(claim, wait=wait)

    def close(self) -> None:
        """See `Candidacy.close`."""
        self._stop_listening()
        self.resign(0, wait=True)


class FairShare:
    """A candidacy for a fair share of `shards` shards. Implements `Candidacy`.

    `name`: the virtual topic whose partitions are the shards.
    """

    def __init__(self, marshal: Marshal, name: str, shards: int) -> None:
        self._marshal = marshal
        self._units: list[Unit] = [(name, shard) for shard in range(shards)]
        # The label tells the exporter of groups which claims are left of more shards.
        self._subscription = Subscription(topics=frozenset({name}), labels={"shards": str(shards)})
        interval_ms = marshal.settings.interval_ms
        self._assignor = Assignor(marshal, self._subscription, settle_ms=interval_ms // 2)
        self._is_withdrawn = False
        self._claims: dict[int, Claim] = {}
        """Of the shards that are stood for, or led."""
        self._elected: set[int] = set()
        self._given_up: tuple[int, Claim, float] | None = None
        """The shard that goes to another process, and how long it may lie idle (monotonic)."""
        self._stop_listening: Callable[[], None] = lambda: None

    @property
    def interval_s(self) -> float:
        """See `Candidacy.interval_s`."""
        return self._marshal.settings.interval_ms / 1000

    def start(self, wake: Callable[[], None]) -> None:
        """See `Candidacy.start`."""

        def hear(_: int, events: list[Any]) -> None:
            if self._assignor.is_affected_by(events):
                wake()

        self._subscribe(self._subscription)
        self._stop_listening = self._marshal.listen(hear)

    def elected(self) -> list[tuple[int, Lease]]:
        """See `Candidacy.elected`."""
        found: list[tuple[int, Lease]] = []
        for shard, claim in list(self._claims.items()):
            if shard in self._elected:
                continue
            if claim.reason is not None:  # it came to nothing
                self.resign(shard)
            elif claim.held:
                self._elected.add(shard)
                found.append((shard, claim))
        return found

    def stand(self, leading: Collection[int]) -> int | None:
        """See `Candidacy.stand`. Raises what `Marshal.want` raises."""
        if self._is_withdrawn:
            self._is_withdrawn = False
            self._subscribe(self._subscription)
        decision = self._assignor.decide(self._units)
        wanted = (
            {*decision.resume} if decision.settling else {*decision.resume, *decision.plan.claim}
        )
        if decision.paused:
            return None
        for unit in sorted(wanted):
            if unit[1] not in self._claims:
                self._claims[unit[1]] = self._marshal.want(*unit)
        if decision.settling:
            return None
        self._resign_what_others_hold(decision, wanted)
        return self._give_up_one(decision, leading)

    def withdraw(self) -> None:
        """See `Candidacy.withdraw`. Raises what `Marshal.set_member_metadata` raises."""
        if self._is_withdrawn:
            return
        self._is_withdrawn = True
        self._subscribe(replace(self._subscription, max_claims=0))
        for shard in self._claims.keys() - self._elected:
            self.resign(shard)

    def resign(self, shard: int, *, wait: bool = False) -> None:
        """See `Candidacy.resign`."""
        self._elected.discard(shard)
        claim = self._claims.pop(shard, None)
        if claim is not None:
            _release(claim, wait=wait)

    def close(self) -> None:
        """See `Candidacy.close`."""
        self._stop_listening()
        for shard in list(self._claims):
            self.resign(shard, wait=True)

    def _subscribe(self, subscription: Subscription) -> None:
        self._assignor.subscription = subscription
        self._marshal.set_member_metadata(subscription.encode())

    def _resign_what_others_hold(self, decision: Decision, wanted: set[Unit]) -> None:
        """Stand no more for what others got."""
        for unit in self._units:
            elsewhere = decision.holders.get(unit) not in (None, self._marshal.client_id)
            if elsewhere and unit not in wanted and unit[1] not in self._elected:
                self.resign(unit[1])

    def _give_up_one(self, decision: Decision, leading: Collection[int]) -> int | None:
        """One shard at a time goes to whoever has too few."""
        if self._given_up is not None:
            shard, claim, until_s = self._given_up
            if self._claims.get(shard) is claim:
                return None  # its leader is still about to end
            if decision.holders.get(self._units[shard]) is None and time.monotonic() < until_s:
                return None  # whoever lacks one will take it
            self._given_up = None
        unit = decision.plan.give_up
        if unit is None or unit[1] not in leading:
            return None
        until_s = time.monotonic() + 2 * self.interval_s
        self._given_up = (unit[1], self._claims[unit[1]], until_s)
        return unit[1]


def _release(claim: Claim, *, wait: bool) -> None:
    # Beyond the timeout the release goes on being tried, and the lease ends in any case.
    with contextlib.suppress(ClaimTimeout):
        claim.release(wait=wait, timeout_s=_RELEASE_TIMEOUT_S)
