"""The harvesting process: stand for election, harvest while leading, hand over, stand again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

from harvest.errors import HarvestError
from harvest.runtime.events import Event, LeaderAcquired, LeaderFenced, LeaderRevoked, Stats
from harvest.runtime.leadership import Leader, Tools, ToolsFactory
from harvest.runtime.lease import Candidate, Lease
from harvest.runtime.wake import Bell, Listener

__all__ = ["Reaper"]

_LOG: Final = logging.getLogger("harvest")
_CAMPAIGN_S: Final = 0.5


class Reaper:
    """Harvests one outbox whenever it leads.

    Killed at any instruction, it leaves nothing that the next leader cannot resume: see
    `harvest.core.mark`. `on_event` is called from the thread of `run`.
    """

    def __init__(
        self,
        *,
        candidate: Candidate,
        tools: ToolsFactory,
        on_event: Callable[[Event], None] | None = None,
        listener: Listener | None = None,
        drain_timeout_s: float = 10.0,
    ) -> None:
        self.stats = Stats()
        self._candidate = candidate
        self._tools = tools
        self._on_event = on_event or (lambda _: None)
        self._drain_timeout_s = drain_timeout_s
        self._listener = listener
        self._bell = Bell()
        self._stopping = threading.Event()
        self._running = False
        self._leader: Leader[Any] | None = None

    def stop(self) -> None:
        """Finish what is in flight, hand over, and let `run` return. From any thread or handler."""
        self._stopping.set()
        leader = self._leader
        if leader is not None:
            leader.stop()

    @property
    def state(self) -> Literal["stopped", "standing by", "leading"]:
        """What it does now."""
        if self._leader is not None:
            return "leading"
        return "standing by" if self._running else "stopped"

    @property
    def in_flight(self) -> int:
        """Rows that are sent and not settled, or about to be sent."""
        leader = self._leader
        return 0 if leader is None else leader.in_flight

    @property
    def stuck_s(self) -> float:
        """For how many seconds a leader has not been able to work; 0 while it works."""
        leader = self._leader
        return 0.0 if leader is None else leader.idle_s

    def run(self) -> None:
        """Run until `stop`.

        Raises what `connect` of the store and `prepare` of the sink raise at the very start; later,
        outages are waited for.
        """
        tools = self._tools()
        tools.connect()
        ready = True
        if self._listener is not None:
            self._listener.start(self._bell)
        _LOG.info("standing by")
        self._running = True
        try:
            while not self._stopping.is_set():
                lease = self._candidate.campaign(_CAMPAIGN_S)
                if lease is None:
                    ready = ready or self._reconnect(tools)
                    continue
                self._lead(lease, tools)
                tools.close()
                tools, ready = self._tools(), False
        finally:
            self._running = False
            if self._listener is not None:
                self._listener.close()
            tools.close()

    def _lead(self, lease: Lease, tools: Tools) -> None:
        epoch = lease.epoch
        _LOG.info("leader acquired: epoch %d", epoch, extra={"epoch": epoch})
        self.stats.elections += 1
        self._on_event(LeaderAcquired(epoch))
        self._leader = tools.leader(
            lease,
            stats=self.stats,
            on_event=self._on_event,
            bell=self._bell,
            drain_timeout_s=self._drain_timeout_s,
        )
        if self._stopping.is_set():  # it came before there was a leader to tell
            self._leader.stop()
        try:
            in_order = self._leader.run()
            if in_order:
                _LOG.info("leader revoked: epoch %d, handing over", epoch, extra={"epoch": epoch})
                self._on_event(LeaderRevoked(epoch))
            else:
                _LOG.warning(
                    "leader fenced: the lease of epoch %d is lost", epoch, extra={"epoch": epoch}
                )
                self.stats.fenced += 1
                self._on_event(LeaderFenced(epoch))
        finally:
            self._leader = None
            self._candidate.resign()

    def _reconnect(self, tools: Tools) -> bool:
        """While standing by: connect, so that taking over is quick. A failure can wait."""
        try:
            tools.connect()
        except HarvestError as error:
            _LOG.warning("standing by without a connection: %s", error)
        return True
