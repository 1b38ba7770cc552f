"""The harvesting process: stand for election, harvest while leading, hand over, stand again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from harvest.errors import HarvestError
from harvest.events import Event, LeaderAcquired, LeaderFenced, LeaderRevoked, Stats
from harvest.leader import MarkLeader
from harvest.lease import Candidate, Lease
from harvest.mark import Limits
from harvest.sink.base import Sink, SinkFactory
from harvest.store.base import MarkStore, StoreFactory
from harvest.wake import Bell, Listener

__all__ = ["Reaper"]

_LOG: Final = logging.getLogger("harvest")
_CAMPAIGN_S: Final = 0.5


@dataclass(slots=True)
class _Tools:
    """What one leadership works with; made and connected while standing by."""

    marker: MarkStore
    purger: MarkStore
    sink: Sink

    def connect(self) -> None:
        self.marker.connect()
        self.purger.connect()
        self.sink.prepare()

    def close(self) -> None:
        self.sink.close()
        self.marker.close()
        self.purger.close()


class Reaper:
    """Harvests one outbox whenever it leads.

    Killed at any instruction, it leaves nothing that the next leader cannot resume: see
    `harvest.mark`. `on_event` is called from the thread of `run`.
    """

    def __init__(
        self,
        *,
        candidate: Candidate,
        stores: StoreFactory,
        sinks: SinkFactory,
        limits: Limits | None = None,
        on_event: Callable[[Event], None] | None = None,
        listener: Listener | None = None,
        drain_timeout_s: float = 10.0,
    ) -> None:
        self.stats = Stats()
        self._candidate = candidate
        self._stores = stores
        self._sinks = sinks
        self._limits = limits or Limits()
        self._on_event = on_event or (lambda _: None)
        self._drain_timeout_s = drain_timeout_s
        self._listener = listener
        self._bell = Bell()
        self._stopping = threading.Event()
        self._leader: MarkLeader | None = None

    def stop(self) -> None:
        """Finish what is in flight, hand over, and let `run` return. From any thread or handler."""
        self._stopping.set()
        leader = self._leader
        if leader is not None:
            leader.stop()

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
            if self._listener is not None:
                self._listener.close()
            tools.close()

    def _lead(self, lease: Lease, tools: _Tools) -> None:
        epoch = lease.epoch
        _LOG.info("leader acquired: epoch %d", epoch)
        self._on_event(LeaderAcquired(epoch))
        self._leader = MarkLeader(
            lease,
            marker=tools.marker,
            purger=tools.purger,
            sink=tools.sink,
            limits=self._limits,
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
                _LOG.info("leader revoked: epoch %d, handing over", epoch)
                self._on_event(LeaderRevoked(epoch))
            else:
                _LOG.warning("leader fenced: the lease of epoch %d is lost", epoch)
                self._on_event(LeaderFenced(epoch))
        finally:
            self._leader = None
            self._candidate.resign()

    def _tools(self) -> _Tools:
        return _Tools(self._stores(), self._stores(), self._sinks())

    def _reconnect(self, tools: _Tools) -> bool:
        """While standing by: connect, so that taking over is quick. A failure can wait."""
        try:
            tools.connect()
        except HarvestError as error:
            _LOG.warning("standing by without a connection: %s", error)
        return True
