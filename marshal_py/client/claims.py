"""All claims of one client: made once each, told what the driver says, waited for together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from marshal_py.client.claim import Claim, core_of
from marshal_py.client.driver import Driver
from marshal_py.client.waiting import Steps, Wait
from marshal_py.errors import ClaimTimeout, DuplicateClientId, NotHeld
from marshal_py.protocol.claimant import Notice

__all__ = ["ClaimRegistry"]


class ClaimRegistry:
    """The claims of the client that `driver` drives.

    The calls that wait return generators, for `waiting.block` and `waiting.drive`.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._claims: dict[int, Claim] = {}
        """id(holding) → claim."""
        self._asked: Counter[Claim] = Counter()
        """How often each of them was asked for, less how often that was given up."""
        driver.on_notice = self._hear
        driver.on_stopped = self._end

    def want(self, topic: str, partition: int, *, ephemeral: bool = False) -> Claim:
        """See `Marshal.want`."""
        driver = self.driver
        with driver.lock:
            driver.check_open()
            holding = driver.claimant.want(topic, partition, driver.clock(), ephemeral=ephemeral)
            claim = self._claims.get(id(holding))
            if claim is None:
                claim = self._claims[id(holding)] = Claim(driver, holding)
            self._asked[claim] += 1
            driver.carry_out()
            return claim

    def give_up(self, claim: Claim) -> None:
        """Take back one `want`: the claim is released, unless this client asked for it besides.

        Others of this program may wait for it, or have it, or have it back soon.
        """
        with self.driver.lock:
            self._asked[claim] -= 1
            if self._asked[claim] <= 0:
                del self._asked[claim]  # one that has ended was forgotten before
                claim.release(wait=False)

    def want_range(self, topic: str, partition: int, floor: int, count: int) -> Claim:
        """Ask for a range of messages, once: see `Claimant.want_range`."""
        driver = self.driver
        with driver.lock:
            driver.check_open()
            now_ns = driver.clock()
            holding = driver.claimant.want_range(topic, partition, floor, count, now_ns)
            claim = self._claims[id(holding)] = Claim(driver, holding)
            driver.carry_out()
            return claim

    def held(self) -> list[Claim]:
        """Return the claims that this client holds now."""
        with self.driver.lock:
            return [claim for claim in self._claims.values() if claim.held]

    def claim_many(
        self, keys: Iterable[tuple[str, int]], timeout_s: float | None, *, ephemeral: bool = False
    ) -> Steps[list[Claim]]:
        """See `Marshal.claim_many`."""
        claims: list[Claim] = []
        try:
            for key in keys:
                claims.append(self.want(*key, ephemeral=ephemeral))
            yield from self.wait_held(claims, timeout_s)
        except BaseException:
            for claim in claims:
                self.give_up(claim)
            raise
        return claims

    def try_claim(
        self, topic: str, partition: int, timeout_s: float, *, ephemeral: bool = False
    ) -> Steps[Claim | None]:
        """See `Marshal.try_claim`."""
        claim = self.want(topic, partition, ephemeral=ephemeral)
        core = core_of(claim)
        try:
            yield Wait(core.changed, lambda: core.decided, timeout_s)
        except BaseException:
            self.give_up(claim)
            raise
        if claim.held:
            return claim
        self.give_up(claim)
        return None

    def wait_held(self, claims: list[Claim], timeout_s: float | None) -> Steps[None]:
        """Wait until all `claims` are held. Raises as `Marshal.claim` does."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for claim in claims:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if (yield from core_of(claim).wait_held(left)):
                continue
            if not core_of(claim).ended.is_set():
                raise ClaimTimeout(self._why_not(claim, timeout_s))
            self.driver.check_open()
            if self.driver.claimant.duplicate_instance_id is not None:
                raise DuplicateClientId(claim.reason)
            raise NotHeld(f"{claim!r} ended at once: {claim.reason}")

    def _why_not(self, claim: Claim, timeout_s: float | None) -> str:
        with self.driver.lock:
            group_id, world = self.driver.settings.group_id, self.driver.world
            topic, partition = claim.topic, claim.partition
            if world.paused(group_id):
                return f"{topic}/{partition}: the group is paused; `marshal group resume` ends that"
            cell = world.cell(group_id, topic, partition)
            if cell is not None and cell.held:
                return (
                    f"{topic}/{partition} was not won within {timeout_s} s: {cell.holder} holds it "
                    f"(epoch {cell.epoch}, interval {cell.interval_ms} ms)"
                )
            return f"{topic}/{partition} was not won within {timeout_s} s: no answer from the log"

    def _hear(self, notice: Notice) -> None:
        claim = self._claims.get(id(notice.holding))
        if claim is None:
            return
        claim.hear(notice)
        if notice.kind in ("lost", "released"):
            del self._claims[id(notice.holding)]
            self._asked.pop(claim, None)

    def _end(self) -> None:
        for claim in list(self._claims.values()):
            core_of(claim).end()
