"""One leadership, whatever the algorithm: lanes carry out what a scheduler asks for, until it ends.

The scheduler runs in the calling thread. Each lane is a thread; what lanes answer, and the end of
the lease, come back as events through one queue. No lane begins anything while the heartbeat that
renews the lease is late: who is busy in many threads would lose a lease that nobody else wants.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from harvest.core.actions import Finish, LeaseLost, Open, Start, Stop
from harvest.core.interfaces.sink import Sink
from harvest.runtime.action_threads import Lane
from harvest.runtime.events import Event, Stats
from harvest.runtime.lease import HeartbeatFirst, Lease
from harvest.runtime.wake import Bell
from marshal_py.client.structured_logs import Fields

__all__ = ["Leader", "Scheduler", "Tools", "Work", "merged"]

_LOG: Final = logging.getLogger("harvest")
_CLOSE_TIMEOUT_S: Final = 5.0
_WATCH_S: Final = 0.5
_LOOK_S: Final = 0.1


class Scheduler(Protocol):
    """A pure state machine: events in, actions out."""

    @property
    def running(self) -> bool:
        """Whether it works, and neither begins nor recovers."""

    def step(self, event: Any) -> Sequence[Any]:
        """Apply one event; return the actions that follow, in order."""


S = TypeVar("S", bound=Scheduler)
Work = Callable[[Sequence[Any]], None]


class _Crashed:
    """A lane ended with an error that nobody foresaw."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Leader(ABC, Generic[S]):
    """Harvests while `lease` is held. Use once: `run` returns when leadership is over.

    `stop` may be called from any thread or signal handler.
    """

    def __init__(
        self,
        lease: Lease,
        scheduler: S,
        sink: Sink,
        drain_timeout_s: float,
        *,
        bell: Bell | None = None,
        notified_poll_ms: int = 1_000,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        self._lease = lease
        self._log = Fields(_LOG, {"epoch": lease.epoch, **(place or {})})
        """Says which leadership it speaks of."""
        self._heartbeat = HeartbeatFirst(lease)
        self._scheduler = scheduler
        self._sink = sink
        self._drain_timeout_s = drain_timeout_s
        self._bell = bell or Bell()
        self._notified_poll_ms = notified_poll_ms
        self._lanes: Mapping[str, Lane[Any]] = {}
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._hurry = threading.Event()
        """Set when nothing may wait any more: idle polls and back-offs end at once."""
        self._over = threading.Event()
        self._stop_at_s: float | None = None
        self._ran_s = time.monotonic()

    # --- What an algorithm adds ---

    @abstractmethod
    def _works(self) -> Mapping[str, Work]:
        """The lanes by name, in the order in which they are closed, and what each does."""

    @abstractmethod
    def _lane_of(self, action: Any) -> str:
        """Which lane carries out `action`."""

    @abstractmethod
    def _break_off(self, lane: str) -> None:
        """Make what a lane is doing end soon, if that is possible."""

    @abstractmethod
    def _count(self, event: Any) -> None:
        """Tell statistics and listeners of an event, before the scheduler hears it."""

    @abstractmethod
    def _in_flight(self) -> int:
        """Rows that are not settled."""

    # --- How it is ---

    @property
    def in_flight(self) -> int:
        """Rows that are not settled. For information, from any thread."""
        return self._in_flight()

    @property
    def idle_s(self) -> float:
        """For how long it has not been able to work; 0 while it works."""
        return 0.0 if self._scheduler.running else time.monotonic() - self._ran_s

    # --- The loop ---

    def stop(self) -> None:
        """Finish what is in flight, then let `run` return. At most `drain_timeout_s` later."""
        self._events.put(Stop())

    def run(self) -> bool:
        """Harvest until stopped (True) or until the lease is lost (False).

        Raises what a lane raised unexpectedly.
        """
        works = self._works()
        self._lanes = lanes = {
            name: Lane(name, self._after_the_heartbeat(work), self._crashed)
            for name, work in works.items()
        }
        watcher = threading.Thread(target=self._watch, name="harvest-lease", daemon=True)
        watcher.start()
        try:
            return self._loop(lanes)
        finally:
            self._over.set()
            self._no_more_waiting()
            self._close(lanes)

    def _loop(self, lanes: Mapping[str, Lane[Any]]) -> bool:
        actions = self._scheduler.step(Start())
        while True:
            for action in actions:
                if isinstance(action, Finish):
                    self._log.info("harvesting ends: %s", action.reason)
                    return self._stop_at_s is not None
                lanes[self._lane_of(action)].put(action)
            event = self._next()
            if isinstance(event, _Crashed):
                raise event.error
            if isinstance(event, Stop) and self._stop_at_s is None:
                self._stop_at_s = time.monotonic() + self._drain_timeout_s
                self._no_more_waiting()
            self._count(event)
            actions = self._scheduler.step(event)
            if self._scheduler.running:
                self._ran_s = time.monotonic()

    def _next(self) -> Any:
        if self._stop_at_s is None:
            return self._events.get()
        try:
            return self._events.get(timeout=max(0.0, self._stop_at_s - time.monotonic()))
        except Empty:
            self._log.warning(
                "%d rows in flight were not settled within %g s; the next leader decides on them",
                self._in_flight(),
                self._drain_timeout_s,
            )
            return LeaseLost()

    def _close(self, lanes: Mapping[str, Lane[Any]]) -> None:
        for name, lane in lanes.items():
            if name != "sink" and not lane.close(0.05):
                self._break_off(name)
        for name, lane in lanes.items():
            if not lane.close(_CLOSE_TIMEOUT_S):
                self._log.error("the %s thread hangs; it is left behind", name)
        self._sink.close()

    def _watch(self) -> None:
        while not self._over.is_set():
            if self._lease.wait_lost(_WATCH_S):
                self._no_more_waiting()
                self._events.put(LeaseLost())
                return
            self._tick()

    def _tick(self) -> None:
        """Called about twice a second while the lease is held, in a thread of its own."""

    def _after_the_heartbeat(self, work: Work) -> Work:
        def begin(actions: Sequence[Any]) -> None:
            self._heartbeat.wait(self._over)
            work(actions)

        return begin

    def _put(self, lane: str, work: Any) -> None:
        """Give a lane something to do. For any thread."""
        self._lanes[lane].put(work)

    def _crashed(self, error: BaseException) -> None:
        self._events.put(_Crashed(error))

    def _no_more_waiting(self) -> None:
        self._hurry.set()
        self._bell.ring()

    def _wait_for_rows(self, delay_ms: float) -> bool:
        """Wait before the table is read again; False if there is no time left to read it.

        With the bell armed, for rows to be heard of; otherwise for `delay_ms`. Without a backlog,
        also for the delivery under way: what comes meanwhile could not be sent before its end, and
        a question for each row takes the processor from whoever delivers.
        """
        if delay_ms:
            self._bell.wait((self._notified_poll_ms if self._bell.armed else delay_ms) / 1000)
            sink = self._lanes.get("sink")
            while sink is not None and not self._hurry.is_set() and not sink.wait_idle(_LOOK_S):
                pass
        self._bell.clear()
        return not self._hurry.is_set()

    def _may_act(self) -> bool:
        return self._lease.held and not self._over.is_set()


class Tools(Protocol):
    """What one leadership works with; made and connected while standing by, used once."""

    def connect(self) -> None:
        """Connect to the database and to Kafka, without changing anything."""

    def leader(
        self,
        lease: Lease,
        *,
        stats: Stats,
        on_event: Callable[[Event], None],
        bell: Bell,
        drain_timeout_s: float,
    ) -> Leader[Any]:
        """A leadership that works with these tools."""

    def close(self) -> None:
        """Let go of all connections."""


def merged(actions: Iterable[Any], limit: int) -> Iterator[Any]:
    """Sends that follow one another as lists of up to `limit` rows; other actions as they are."""
    sends: list[Any] = []
    rows = 0
    for action in actions:
        if isinstance(action, Open):
            if sends:
                yield sends
                sends, rows = [], 0
            yield action
            continue
        if sends and rows + len(action.rows) > limit:
            yield sends
            sends, rows = [], 0
        sends.append(action)
        rows += len(action.rows)
    if sends:
        yield sends
