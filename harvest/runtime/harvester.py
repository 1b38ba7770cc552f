"""The harvesting process: stand for election, harvest while leading, hand over, stand again.

Each shard is a leadership of its own, in a thread of its own: lease, epoch, transactional.id,
checkpoint. An outbox without shards is one shard. A shard that moves to another process is stopped
in order first: what is in flight is finished, then its claim is released, then the other process
opens the sink and reads the checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal

from harvest.core.interfaces.listener import Listener
from harvest.errors import DatabaseChanged, HarvestError, SinkHangs, StoreUnavailable
from harvest.runtime.candidacy import Candidacy
from harvest.runtime.events import Event, LeaderAcquired, LeaderFenced, LeaderRevoked, Stats
from harvest.runtime.leadership import Leadership, Tools
from harvest.runtime.lease import Lease
from harvest.runtime.wake import WakeEvents
from marshal_py.client.structured_logs import Fields

__all__ = ["Harvester"]

_LOG: Final = logging.getLogger("harvest")
_CLOSE_TIMEOUT_S: Final = 10.0
_REFUSES_S: Final = 10.0
"""So long it does not stand for election when it found the database to be another one."""
_CUT_OFF_S: Final = 15.0
"""So long a leader waits for its database before it lets another process try."""
_TRY_S: Final = 2.0
"""How often it is seen whether the database can be reached again."""
_CHECKS: Final = 10
"""How often in a heartbeat interval leaderships are looked at, if nothing happens."""


class _LedShard:
    """A shard that this process leads, in a thread, from its election to its end."""

    def __init__(self, shard: int, lease: Lease) -> None:
        self.shard = shard
        self.lease = lease
        self.leadership: Leadership | None = None
        self.stopping = False
        self.is_over = False
        self.thread: threading.Thread

    def stop(self) -> None:
        self.stopping = True
        if self.leadership is not None:
            self.leadership.stop()


class Harvester:
    """Harvests the shards of one outbox that it leads.

    Killed at any instruction, it leaves nothing that the next leader cannot resume: see
    `harvest.core.mark` and `harvest.core.range`.

    - `tools`: makes what one leadership of a shard works with.
    - `warm_standby`, for an outbox without shards: connect while another process leads, so that
      taking over is quick. With shards, nobody knows which one will come.
    - `on_event` is called from the threads of the shards.
    - `fields`: what every log record carries.
    """

    def __init__(
        self,
        candidacy: Candidacy,
        tools: Callable[[int], Tools],
        *,
        warm_standby: bool = False,
        on_event: Callable[[Event], None] | None = None,
        listener: Listener | None = None,
        drain_timeout_s: float = 10.0,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._candidacy = candidacy
        self._tools = tools
        self._warm_standby = warm_standby
        self._spare: Tools | None = None
        """Connected in advance."""
        self._on_event = on_event or (lambda _: None)
        self._listener = listener
        self._drain_timeout_s = drain_timeout_s
        self._log = Fields(_LOG, fields or {})
        self._led: dict[int, _LedShard] = {}
        self._wake_events = WakeEvents()
        self._stats: dict[int, Stats] = {}
        self._wake: SimpleQueue[None] = SimpleQueue()  # unlike an Event, safe in signal handlers
        self._stopping = False
        self._running = False
        self._failure: BaseException | None = None
        self._refusals: dict[int, str] = {}
        """By shard, why it publishes nothing although it could lead."""
        self._stands_again_s = float("-inf")
        self._is_cut_off = False
        """Whether it stands for nothing until it reaches the database."""
        self._tries_s = float("-inf")

    @property
    def refusal(self) -> str | None:
        """Why it publishes nothing although it could lead: the database is not the one it was."""
        return next(iter(list(self._refusals.values())), None)

    @property
    def stats(self) -> Stats:
        """Counts since the process began, of all shards together."""
        return Stats.total(list(self._stats.values()))

    @property
    def leading(self) -> list[int]:
        """The shards that it works on now."""
        return [led.shard for led in self._at_work()]

    @property
    def state(self) -> Literal["stopped", "standing by", "leading"]:
        """What it does now: leading if it leads any shard."""
        if self._at_work():
            return "leading"
        return "standing by" if self._running else "stopped"

    @property
    def in_flight(self) -> int:
        """Rows that are sent and not settled, or about to be sent."""
        return sum([leadership.in_flight for leadership in self._leaderships()])

    @property
    def stuck_s(self) -> float:
        """For how many seconds a leader has not been able to work; 0 while all work."""
        return max([leadership.idle_s for leadership in self._leaderships()], default=0.0)

    def stop(self) -> None:
        """Finish what is in flight, hand over, and let `run` return. From any thread or handler."""
        self._stopping = True
        self._wake.put(None)

    def run(self) -> None:
        """Run until `stop`.

        Raises what a leadership raised unexpectedly. With `warm_standby` also what `Tools.connect`
        raises at the very start; later, outages are waited for.
        """
        try:
            if self._warm_standby:
                self._spare = self._tools(0)
                self._spare.connect()
            if self._listener is not None:
                self._listener.start(self._wake_events)
            self._candidacy.start(lambda: self._wake.put(None))
            self._log.info("standing by")
            self._running = True
            while not self._stopping and self._failure is None:
                self._round()
                self._wait()
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _at_work(self) -> list[_LedShard]:
        return [led for led in list(self._led.values()) if led.leadership and not led.is_over]

    def _leaderships(self) -> list[Leadership]:
        return [led.leadership for led in self._at_work() if led.leadership]

    def _wait(self) -> None:
        """Until there may be news."""
        try:
            self._wake.get(timeout=self._candidacy.interval_s / _CHECKS)
            while True:
                self._wake.get_nowait()
        except Empty:
            pass

    def _round(self) -> None:
        for leadership in self._leaderships():
            if leadership.hangs is not None:  # it may hang at its end as well
                self._failure = leadership.hangs
                return
        for shard, led in list(self._led.items()):
            if led.is_over:
                del self._led[shard]
                self._candidacy.resign(shard)
            elif led.leadership is not None and led.leadership.source_accepted:
                self._refusals.pop(shard, None)
        for shard, lease in self._candidacy.elected():
            self._begin(_LedShard(shard, lease))
        if self._refusals and time.monotonic() < self._stands_again_s:
            return  # who is to put it right needs the claims
        if time.monotonic() > self._stands_again_s + _REFUSES_S:
            # Another process leads, and for longer than it takes to find the same.
            for shard in self._refusals.keys() - self._led.keys():
                del self._refusals[shard]
        if self._gives_way():
            return
        if self._warm_standby and not self._led:
            self._connect_spare()
        leaves = self._candidacy.stand([led.shard for led in self._at_work() if not led.stopping])
        if leaves is not None:
            led = self._led[leaves]
            self._log.info("shard %d goes to another process", leaves, extra=_fields(led))
            led.stop()

    def _connect_spare(self) -> None:
        if self._spare is not None:
            return
        try:
            self._spare = self._tools(0)
            self._spare.connect()
        except HarvestError as error:
            self._log.warning("standing by without a connection: %s", error)
            if self._spare is not None and isinstance(error, StoreUnavailable):
                self._spare.close()
                self._spare = None
                self._is_cut_off = True

    def _gives_way(self) -> bool:
        """Whether others are to lead for now, who may reach the database: this process does not."""
        for led in self._at_work():
            if not led.stopping and led.leadership and led.leadership.cut_off_s > _CUT_OFF_S:
                said = "shard %d: no work for %g s for want of the database; others may try"
                self._log.warning(said, led.shard, _CUT_OFF_S, extra=_fields(led))
                led.stop()
                self._is_cut_off = True
        if not self._is_cut_off:
            return False
        self._candidacy.withdraw()
        # Other shards that it leads may work on: the outage was short, or of one connection.
        is_stopping = any(led.stopping for led in self._led.values())
        if not is_stopping and time.monotonic() > self._tries_s:
            self._is_cut_off = not self._reaches_database()
            self._tries_s = time.monotonic() + _TRY_S
        return self._is_cut_off

    def _reaches_database(self) -> bool:
        try:
            with closing(self._tools(0)) as tools:
                tools.connect()
        except StoreUnavailable:
            return False
        except HarvestError:
            pass  # whoever leads tells of it
        self._log.info("the database can be reached again: standing by")
        return True

    def _end(self) -> None:
        """Give everything back, in order."""
        for led in self._led.values():
            led.stop()
        for shard, led in self._led.items():
            led.thread.join(self._drain_timeout_s + _CLOSE_TIMEOUT_S)
            self._candidacy.resign(shard, wait=True)
        self._candidacy.close()
        self._running = False
        if self._listener is not None:
            self._listener.close()
        if self._spare is not None:
            self._spare.close()

    # --- One leadership ---

    def _begin(self, led: _LedShard) -> None:
        self._led[led.shard] = led
        name = f"harvest-shard-{led.shard}"
        led.thread = threading.Thread(target=self._lead, args=(led,), name=name, daemon=True)
        led.thread.start()

    def _lead(self, led: _LedShard) -> None:
        spare, self._spare = self._spare, None
        try:
            with closing(spare or self._tools(led.shard)) as tools:
                if spare is None:
                    tools.connect()
                self._harvest(led, tools)
        except DatabaseChanged as error:
            said = "shard %d, epoch %d: NOTHING IS PUBLISHED: %s"
            self._log.error(said, led.shard, led.lease.epoch, error, extra=_fields(led))
            self._refusals[led.shard] = str(error)
            self._stands_again_s = time.monotonic() + _REFUSES_S
        except HarvestError as error:
            if error.blame != "environment" or isinstance(error, SinkHangs):
                self._failure = error
            else:
                place = (led.shard, led.lease.epoch)
                self._log.warning("shard %d, epoch %d: %s", *place, error, extra=_fields(led))
                led.lease.wait_lost(self._candidacy.interval_s)  # not again at once
                self._is_cut_off |= isinstance(error, StoreUnavailable)
        except BaseException as error:
            self._failure = error
        finally:
            self._wake_events.remove(led.shard)
            led.is_over = True
            self._wake.put(None)

    def _harvest(self, led: _LedShard, tools: Tools) -> None:
        """Raises what the leader, or a handler of events, raises."""
        shard, epoch, fields = led.shard, led.lease.epoch, _fields(led)
        self._log.info("leader acquired: shard %d, epoch %d", shard, epoch, extra=fields)
        stats = self._stats.setdefault(shard, Stats())
        stats.elections += 1
        self._on_event(LeaderAcquired(epoch, shard))
        led.leadership = Leadership(
            led.lease,
            shard=shard,
            stats=stats,
            on_event=self._on_event,
            wake_event=self._wake_events.add(shard),
            drain_timeout_s=self._drain_timeout_s,
        )
        if led.stopping or self._stopping:  # it came before there was a leadership to tell
            led.stop()
        if led.leadership.run(tools.leader(led.leadership)):
            said = "leader revoked: shard %d, epoch %d, handing over"
            self._log.info(said, shard, epoch, extra=fields)
            self._on_event(LeaderRevoked(epoch, shard))
        else:
            said = "leader fenced: the lease of shard %d, epoch %d, is lost"
            self._log.warning(said, shard, epoch, extra=fields)
            stats.fenced += 1
            self._on_event(LeaderFenced(epoch, shard))


def _fields(led: _LedShard) -> dict[str, int]:
    """What a log record about a leadership carries."""
    return {"partition": led.shard, "epoch": led.lease.epoch}
