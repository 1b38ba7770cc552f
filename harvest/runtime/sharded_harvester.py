"""The harvesting process of an outbox in shards: lead as many shards as is fair, all at once.

Each shard is a claim (`marshal_py`), and a leadership of its own: lease, epoch, transactional.id,
checkpoint. Which process should have which is decided as for the partitions of a consumer group
(`marshal_py.consumer.assignor`). A shard that moves is stopped in order first: what is in flight is
finished, then the claim is released, then the other process opens the sink and reads the
checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from harvest.errors import HarvestError
from harvest.runtime.events import Event, LeaderAcquired, LeaderFenced, LeaderRevoked, Stats
from harvest.runtime.leadership import Leader, Tools
from harvest.runtime.wake import Bell, Listener
from marshal_py import Claim, ClaimTimeout, Marshal
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.assignor import Assignor, Decision
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.subscription import Subscription

__all__ = ["ShardReaper"]

_LOG: Final = logging.getLogger("harvest")
_TICKS: Final = 10
"""How often in a heartbeat interval the shards are looked at, if nothing happens."""


class _Shard:
    """A shard that this process wants, or leads."""

    def __init__(self, number: int, claim: Claim) -> None:
        self.number = number
        self.claim = claim
        self.thread: threading.Thread | None = None
        self.leader: Leader[Any] | None = None
        self.stopping = False

    @property
    def is_over(self) -> bool:
        return self.thread is not None and not self.thread.is_alive()

    def stop(self) -> None:
        self.stopping = True
        if self.leader is not None:
            self.leader.stop()


def _place(shard: _Shard) -> dict[str, int]:
    """What a log record about a shard carries."""
    return {"partition": shard.number, "epoch": shard.claim.epoch}


class ShardReaper:
    """Harvests a fair share of `shards` shards. The same faces as `Reaper`.

    - `name`: the virtual topic whose partitions are the shards.
    - `tools`: makes what one leadership of a shard works with.
    - `on_event` is called from the threads of the shards.
    """

    def __init__(
        self,
        marshal: Marshal,
        name: str,
        shards: int,
        *,
        tools: Callable[[int], Tools],
        on_event: Callable[[Event], None] | None = None,
        listener: Listener | None = None,
        drain_timeout_s: float = 10.0,
    ) -> None:
        self._stats: dict[int, Stats] = {}
        self._marshal = marshal
        who = {"group_id": marshal.group_id, "client_id": marshal.client_id, "topic": name}
        self._log = Fields(_LOG, who)
        self._units: list[Unit] = [(name, number) for number in range(shards)]
        self._tools = tools
        self._on_event = on_event or (lambda _: None)
        self._listener = listener
        self._drain_timeout_s = drain_timeout_s
        self._subscription = Subscription(topics=frozenset({name}))
        interval_ms = marshal.settings.interval_ms
        self._sharing = Assignor(marshal, self._subscription, settle_ms=interval_ms // 2)
        self._tick_s = interval_ms / 1000 / _TICKS
        self._shards: dict[int, _Shard] = {}
        self._bells: dict[int, Bell] = {}
        self._giving: tuple[Unit, float] | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._running = False
        self._failure: BaseException | None = None

    @property
    def stats(self) -> Stats:
        """Counts since the process began, of all shards together."""
        return Stats.total(list(self._stats.values()))

    @property
    def state(self) -> Literal["stopped", "standing by", "leading"]:
        """What it does now: leading if it leads any shard."""
        if self._leaders():
            return "leading"
        return "standing by" if self._running else "stopped"

    @property
    def in_flight(self) -> int:
        """Rows that are sent and not settled, or about to be sent."""
        return sum([leader.in_flight for leader in self._leaders()])

    @property
    def stuck_s(self) -> float:
        """For how many seconds a leader has not been able to work; 0 while all work."""
        return max([leader.idle_s for leader in self._leaders()], default=0.0)

    def stop(self) -> None:
        """Finish what is in flight, hand over, and let `run` return. From any thread or handler."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Run until `stop`. Raises what a shard's thread raised unexpectedly."""
        self._marshal.set_member_metadata(self._subscription.encode())
        if self._listener is not None:
            self._listener.start(_Peal(self._bells))
        self._log.info("standing by for %d shards", len(self._units))
        unlisten = self._marshal.listen(self._hear)
        self._running = True
        try:
            while not self._stopping.is_set() and self._failure is None:
                self._round()
                self._wake.wait(self._tick_s)
                self._wake.clear()
        finally:
            unlisten()
            self._end()
            self._running = False
            if self._listener is not None:
                self._listener.close()
        if self._failure is not None:
            raise self._failure

    def _leaders(self) -> list[Leader[Any]]:
        shards = list(self._shards.values())
        return [s.leader for s in shards if s.leader is not None and not s.is_over]

    def _hear(self, _: int, events: list[Any]) -> None:
        if self._sharing.is_affected_by(events):
            self._wake.set()

    def _end(self) -> None:
        """Give everything back, in order."""
        for shard in self._shards.values():
            shard.stop()
        for shard in self._shards.values():
            if shard.thread is not None:
                shard.thread.join(self._drain_timeout_s + 10.0)
            # Beyond the timeout the release goes on being tried, and the lease ends in any case.
            with contextlib.suppress(ClaimTimeout):
                shard.claim.release(timeout_s=5.0)

    # --- Rounds ---

    def _round(self) -> None:
        for number, shard in list(self._shards.items()):
            if shard.is_over or (shard.thread is None and shard.claim.reason is not None):
                shard.claim.release(wait=False)
                del self._shards[number]
            elif shard.thread is None and shard.claim.held:
                self._start(shard)
        look = self._sharing.decide(self._units)
        wanted = {*look.resume} if look.settling else {*look.resume, *look.plan.claim}
        if look.paused:
            return
        for unit in sorted(wanted):
            if unit[1] not in self._shards:
                self._shards[unit[1]] = _Shard(unit[1], self._marshal.want(*unit))
        if not look.settling:
            self._cancel(look, wanted)
            self._give_up_one(look)

    def _cancel(self, look: Decision, wanted: set[Unit]) -> None:
        """Stop wanting what others got."""
        for shard in list(self._shards.values()):
            unit = (self._units[shard.number][0], shard.number)
            elsewhere = look.holders.get(unit) not in (None, self._marshal.client_id)
            if shard.thread is None and elsewhere and unit not in wanted:
                shard.claim.release(wait=False)
                del self._shards[shard.number]

    def _give_up_one(self, look: Decision) -> None:
        """One shard at a time goes to whoever has too few."""
        if self._giving is not None:
            unit, until_s = self._giving
            if unit[1] in self._shards and self._shards[unit[1]].stopping:
                return
            if look.holders.get(unit) is None and time.monotonic() < until_s:
                return  # whoever lacks one will take it
            self._giving = None
        unit_or_none = look.plan.give_up
        shard = self._shards.get(unit_or_none[1]) if unit_or_none is not None else None
        if unit_or_none is None or shard is None or shard.leader is None or shard.stopping:
            return
        self._log.info("shard %d goes to another process", shard.number, extra=_place(shard))
        self._giving = (unit_or_none, time.monotonic() + 2 * self._tick_s * _TICKS)
        shard.stop()

    # --- One shard ---

    def _start(self, shard: _Shard) -> None:
        shard.thread = threading.Thread(
            target=self._lead, args=(shard,), name=f"harvest-shard-{shard.number}", daemon=True
        )
        shard.thread.start()

    def _lead(self, shard: _Shard) -> None:
        epoch, number = shard.claim.epoch, shard.number
        try:
            tools = self._tools(number)
            try:
                self._lead_with(tools, shard)
            finally:
                tools.close()
        except HarvestError as error:
            if error.blame != "environment":
                self._failure = error
            self._log.warning("shard %d, epoch %d: %s", number, epoch, error, extra=_place(shard))
            shard.claim.wait_lost(self._tick_s * _TICKS)  # not again at once
        except BaseException as error:
            self._failure = error
        finally:
            self._bells.pop(number, None)
            self._wake.set()

    def _lead_with(self, tools: Tools, shard: _Shard) -> None:
        epoch, number = shard.claim.epoch, shard.number
        tools.connect()
        bell = self._bells[number] = Bell()
        self._log.info("leader acquired: shard %d, epoch %d", number, epoch, extra=_place(shard))
        stats = self._stats.setdefault(number, Stats())
        stats.elections += 1
        self._on_event(LeaderAcquired(epoch, number))
        shard.leader = tools.leader(
            shard.claim,
            stats=stats,
            on_event=self._on_event,
            bell=bell,
            drain_timeout_s=self._drain_timeout_s,
        )
        if shard.stopping or self._stopping.is_set():
            shard.stop()
        if shard.leader.run():
            self._log.info(
                "leader revoked: shard %d, epoch %d, handing over",
                number,
                epoch,
                extra=_place(shard),
            )
            self._on_event(LeaderRevoked(epoch, number))
        else:
            self._log.warning(
                "leader fenced: the lease of shard %d, epoch %d, is lost",
                number,
                epoch,
                extra=_place(shard),
            )
            stats.fenced += 1
            self._on_event(LeaderFenced(epoch, number))


class _Peal(Bell):
    """One listener, and a bell for each shard."""

    def __init__(self, bells: dict[int, Bell]) -> None:
        self._bells = bells
        super().__init__()

    def ring(self) -> None:
        """See `Bell.ring`."""
        for bell in list(self._bells.values()):
            bell.armed = self.armed
            bell.ring()
