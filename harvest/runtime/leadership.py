"""One leadership, whatever the mode: threads carry out what a scheduler asks for, until it ends.

The scheduler runs in the calling thread. What the threads answer, and the end of the lease, come
back to it as events through one queue. No thread begins anything while the heartbeat that renews
the lease is late: who is busy in many threads would lose a lease that nobody else wants.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from harvest.core.actions import Finish, LeaseLost, Start, Stop, Tick
from harvest.errors import HarvestError, SinkHangs, StoreUnavailable
from harvest.runtime.action_threads import ActionThread
from harvest.runtime.events import Event, Stats
from harvest.runtime.lease import HeartbeatGuard, Lease
from harvest.runtime.wake import WakeEvent
from marshal_py.client.structured_logs import Fields

__all__ = ["Input", "Leader", "Leadership", "Scheduler", "Tools"]

_LONGEST_S: Final = threading.TIMEOUT_MAX
_LOG: Final = logging.getLogger("harvest")
_CANCEL_AFTER_S: Final = 0.05
_CLOSE_TIMEOUT_S: Final = 5.0
_TICK_S: Final = 0.5
_BUSY_CHECK_S: Final = 0.1


class Scheduler(Protocol):
    """A pure state machine: events in, actions out."""

    @property
    def running(self) -> bool:
        """Whether it works, and neither begins nor recovers, nor fails again and again."""

    @property
    def in_flight_records(self) -> int:
        """Rows that are not settled."""

    def step(self, event: Any) -> Sequence[Any]:
        """Apply one event; return the actions that follow, in order."""


class Leader(Protocol):
    """A mode: its scheduler, and what carries out its actions. Used for one `Leadership`."""

    @property
    def scheduler(self) -> Scheduler:
        """What decides."""

    @property
    def threads(self) -> Sequence[ActionThread[Any]]:
        """All of them, in the order in which they are closed."""

    def observe(self, event: Any) -> None:
        """Count an event, and tell listeners of it, before the scheduler hears of it."""

    def every_tick(self) -> None:
        """Called about twice a second while the lease is held, in a thread of its own."""

    def due_s(self) -> float | None:
        """When the scheduler is to hear a `Tick` (monotonic clock); None: when all else happens."""

    def close(self) -> None:
        """The threads have ended: end what is left."""


class Input(Protocol):
    """What the thread of a leadership waits for beside events, if a leader has it `listen`."""

    def wait(self, timeout_s: float | None) -> Any:
        """Wait until something has come, and return an event for it; None if it was woken."""

    def wake(self) -> None:
        """End the wait, now or the next. From any thread or signal handler."""


class Leadership:
    """The right to act on one shard, from an election to its end. Use once.

    Whoever was elected makes it, and calls `run` and `stop`. The leader of a mode uses it to act
    only under the lease (`may_act`), to wait (`pause`, `wait_for_rows`) and to tell its scheduler
    what has happened (`report`).
    """

    def __init__(
        self,
        lease: Lease,
        *,
        shard: int = 0,
        stats: Stats | None = None,
        on_event: Callable[[Event], None] | None = None,
        wake_event: WakeEvent | None = None,
        drain_timeout_s: float = 10.0,
    ) -> None:
        self.lease = lease
        self.shard = shard
        self.stats = stats or Stats()
        self.on_event = on_event or (lambda _: None)
        self.log = Fields(_LOG, {"epoch": lease.epoch, "partition": shard})
        """Says which leadership it speaks of."""
        self._heartbeat = HeartbeatGuard(lease)
        self._wake_event = wake_event or WakeEvent()
        self._drain_timeout_s = drain_timeout_s
        self._scheduler: Scheduler | None = None
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._input: Input | None = None
        self._hurry = threading.Event()
        """Set when nothing may wait any more: idle polls and back-offs end at once."""
        self._over = threading.Event()
        self._stop_at_s: float | None = None
        self._ran_s = time.monotonic()
        self.hangs: SinkHangs | None = None
        self._database_fails = False
        """Whether the last failure since it worked was one of the database."""
        self.source_accepted = False
        """Whether it has found the database to be the one whose rows were published."""

    # --- How it is: for any thread ---

    @property
    def in_flight(self) -> int:
        """Rows that are not settled. For information."""
        return 0 if self._scheduler is None else self._scheduler.in_flight_records

    @property
    def idle_s(self) -> float:
        """For how long it has not been able to work; 0 while it works."""
        works = self._scheduler is not None and self._scheduler.running
        return 0.0 if works else time.monotonic() - self._ran_s

    @property
    def cut_off_s(self) -> float:
        """For how long it has not been able to work because of its database; 0 otherwise."""
        return self.idle_s if self._database_fails else 0.0

    def stop(self) -> None:
        """Finish what is in flight, then let `run` return. At most `drain_timeout_s` later.

        From any thread or signal handler.
        """
        self.report(Stop())

    # --- What a leader uses: for its threads ---

    def may_act(self) -> bool:
        """Whether the lease is held, and it is not over."""
        return self.lease.held and not self._over.is_set()

    def accept_source(self) -> None:
        """The database is the one whose rows were published."""
        self.source_accepted = True

    def report(self, event: Any) -> None:
        """Something has happened that the scheduler must know."""
        self._events.put(event)
        if self._input is not None:
            self._input.wake()

    def listen(self, input: Input) -> None:
        """Wait for this, too. Before `run`."""
        self._input = input

    def failed(self, said: str, error: HarvestError) -> None:
        """An action failed, and will be tried again: log `said`, with the error in its %s."""
        self._database_fails = isinstance(error, StoreUnavailable)
        self.log.warning(said, error)

    def crash(self, error: BaseException) -> None:
        """An error that nobody foresaw ends it; `run` raises it.

        A sink that hangs may not even be closed any more: nobody waits for that.
        """
        if isinstance(error, SinkHangs):
            self.hangs = error
        self.report(_Crashed(error))

    def pause(self, delay_ms: float) -> None:
        """Wait; not if nothing may wait any more."""
        self._hurry.wait(delay_ms / 1000)

    def wait_for_heartbeat(self) -> None:
        """Wait while the heartbeat that renews the lease is late. To begin any work with."""
        self._heartbeat.wait(self._over)

    def wait_for_rows(
        self, delay_ms: float, notified_delay_ms: float, deliveries: ActionThread[Any] | None
    ) -> bool:
        """Wait before the table is read again; False if there is no time left to read it.

        For `delay_ms`; or for `notified_delay_ms` if new rows ring, which end the wait. Without a
        backlog, also for the delivery under way: what comes meanwhile could not be sent before its
        end, and a question for each row takes the processor from whoever delivers.
        """
        if delay_ms:
            self._wake_event.wait(
                (notified_delay_ms if self._wake_event.listening else delay_ms) / 1000
            )
            while deliveries is not None and not self._hurry.is_set():
                if deliveries.wait_idle(_BUSY_CHECK_S):
                    break
        self._wake_event.clear()
        return not self._hurry.is_set()

    # --- The loop ---

    def run(self, leader: Leader) -> bool:
        """Harvest until stopped (True) or until the lease is lost (False).

        Raises what a thread raised unexpectedly.
        """
        self._scheduler = leader.scheduler
        for thread in leader.threads:
            thread.start(self.crash, before=self.wait_for_heartbeat)
        watch = threading.Thread(
            target=self._watch, args=(leader,), name="harvest-lease", daemon=True
        )
        watch.start()
        try:
            return self._loop(leader)
        finally:
            self._over.set()
            self._end_waits()
            self._close(leader)

    def _loop(self, leader: Leader) -> bool:
        thread_of = {kind: thread for thread in leader.threads for kind in thread.actions}
        actions = leader.scheduler.step(Start())
        while True:
            for action in actions:
                if isinstance(action, Finish):
                    self.log.info("harvesting ends: %s", action.reason)
                    return self._stop_at_s is not None
                thread_of[type(action)].put(action)
            event = self._next(leader)
            if isinstance(event, _Crashed):
                raise event.error
            if isinstance(event, Stop) and self._stop_at_s is None:
                self._stop_at_s = time.monotonic() + self._drain_timeout_s
                self._end_waits()
            leader.observe(event)
            actions = leader.scheduler.step(event)
            if leader.scheduler.running:
                self._ran_s = time.monotonic()
                self._database_fails = False

    def _next(self, leader: Leader) -> Any:
        due_s = leader.due_s()
        until_s = self._stop_at_s if due_s is None else due_s
        try:
            return self._await_event(until_s)
        except Empty:
            if due_s is not None:
                return Tick()
            self.log.warning(
                "%d rows in flight were not settled within %g s; the next leader decides on them",
                self.in_flight,
                self._drain_timeout_s,
            )
            return LeaseLost()

    def _await_event(self, until_s: float | None) -> Any:
        """The next event. Raises `Empty` if there is none `until_s` (monotonic), or for as long as
        anybody can wait."""
        while True:
            left_s = None
            if until_s is not None:
                left_s = min(max(0.0, until_s - time.monotonic()), _LONGEST_S)
            if self._input is None:
                return self._events.get(timeout=left_s)
            try:
                return self._events.get_nowait()
            except Empty:
                if left_s == 0.0:
                    raise
            event = self._input.wait(left_s)
            if event is not None:
                return event

    def _close(self, leader: Leader) -> None:
        for thread in leader.threads:
            if thread.cancel is not None and not thread.close(_CANCEL_AFTER_S):
                thread.cancel()
        for thread in leader.threads:
            if not thread.close(_CLOSE_TIMEOUT_S):
                self.log.error("the %s thread hangs; it is left behind", thread.name)
        leader.close()

    def _watch(self, leader: Leader) -> None:
        while not self._over.is_set():
            if self.lease.wait_lost(_TICK_S):
                self._end_waits()
                self.report(LeaseLost())
                return
            leader.every_tick()

    def _end_waits(self) -> None:
        self._hurry.set()
        self._wake_event.wake()


class _Crashed:
    """A thread ended with an error that nobody foresaw."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Tools(Protocol):
    """What one leadership works with; made and connected while standing by, used once."""

    def connect(self) -> None:
        """Connect to the database and to Kafka, without changing anything."""

    def leader(self, leadership: Leadership) -> Leader:
        """A leader that works with these tools."""

    def close(self) -> None:
        """Let go of all connections."""
