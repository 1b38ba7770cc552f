"""One leadership: carries out what the mark scheduler asks for, in three lanes, until it ends.

The lanes are marks and clears (one database connection), the sink, and purges and resets (a second
connection). The scheduler runs in the calling thread.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from harvest import mark as m
from harvest.errors import HarvestError
from harvest.events import Event, LeaderRefreshed, Stats
from harvest.lanes import Lane
from harvest.lease import Lease
from harvest.sink.base import Sink
from harvest.store.base import MarkStore
from harvest.terms import Checkpoint, Term

__all__ = ["MarkLeader"]

_LOG: Final = logging.getLogger("harvest")
_MERGED_ROWS: Final = 10_000
_CLOSE_TIMEOUT_S: Final = 5.0
_WATCH_S: Final = 0.5

_LANES: Final[dict[type[m.Action], str]] = {
    m.Mark: "mark",
    m.Clear: "mark",
    m.Open: "sink",
    m.Send: "sink",
    m.Purge: "purge",
    m.Reset: "purge",
}


class _Crashed:
    """A lane ended with an error that nobody foresaw."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class MarkLeader:
    """Harvests while `lease` is held. Use once: `run` returns when leadership is over.

    `marker` and `purger` are two stores of the same table. `stop` may be called from any thread or
    signal handler.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        marker: MarkStore,
        purger: MarkStore,
        sink: Sink,
        limits: m.Limits,
        stats: Stats,
        on_event: Callable[[Event], None],
        drain_timeout_s: float = 10.0,
    ) -> None:
        self._lease = lease
        self._marker = marker
        self._purger = purger
        self._sink = sink
        self._stats = stats
        self._on_event = on_event
        self._drain_timeout_s = drain_timeout_s
        self._scheduler = m.MarkScheduler(lease.epoch, limits)
        self._events: SimpleQueue[m.Event | _Crashed] = SimpleQueue()
        self._hurry = threading.Event()
        """Set when nothing may wait any more: idle polls and back-offs end at once."""
        self._over = threading.Event()
        self._stop_at_s: float | None = None

    def stop(self) -> None:
        """Finish what is in flight, then let `run` return. At most `drain_timeout_s` later."""
        self._events.put(m.Stop())

    def run(self) -> bool:
        """Harvest until stopped (True) or until the lease is lost (False).

        Raises what a lane raised unexpectedly.
        """
        lanes: dict[str, Lane[m.Action]] = {
            "mark": Lane("mark", self._mark_work, self._crashed),
            "sink": Lane("sink", self._sink_work, self._crashed),
            "purge": Lane("purge", self._purge_work, self._crashed),
        }
        watcher = threading.Thread(target=self._watch, name="harvest-lease", daemon=True)
        watcher.start()
        try:
            return self._loop(lanes)
        finally:
            self._over.set()
            self._hurry.set()
            self._close(lanes)

    def _loop(self, lanes: dict[str, Lane[m.Action]]) -> bool:
        actions = self._scheduler.step(m.Start())
        while True:
            for action in actions:
                if isinstance(action, m.Finish):
                    _LOG.info("harvesting ends: %s", action.reason)
                    return self._stop_at_s is not None
                lanes[_LANES[type(action)]].put(action)
            event = self._next()
            if isinstance(event, _Crashed):
                raise event.error
            if isinstance(event, m.Stop) and self._stop_at_s is None:
                self._stop_at_s = time.monotonic() + self._drain_timeout_s
                self._hurry.set()
            self._count(event)
            actions = self._scheduler.step(event)

    def _next(self) -> m.Event | _Crashed:
        if self._stop_at_s is None:
            return self._events.get()
        try:
            return self._events.get(timeout=max(0.0, self._stop_at_s - time.monotonic()))
        except Empty:
            _LOG.warning(
                "%d rows in flight were not settled within %g s; the next leader decides on them",
                self._scheduler.in_flight_records,
                self._drain_timeout_s,
            )
            return m.LeaseLost()

    def _close(self, lanes: dict[str, Lane[m.Action]]) -> None:
        if not lanes["mark"].close(0.05):
            self._marker.cancel()
        if not lanes["purge"].close(0.05):
            self._purger.cancel()
        for name, lane in lanes.items():
            if not lane.close(_CLOSE_TIMEOUT_S):
                _LOG.error("the %s thread hangs; it is left behind", name)
        self._sink.close()

    def _watch(self) -> None:
        while not self._over.is_set():
            if self._lease.wait_lost(_WATCH_S):
                self._hurry.set()
                self._events.put(m.LeaseLost())
                return

    def _crashed(self, error: BaseException) -> None:
        self._events.put(_Crashed(error))

    def _may_act(self) -> bool:
        return self._lease.held and not self._over.is_set()

    # --- The lanes ---

    def _mark_work(self, actions: Sequence[m.Action]) -> None:
        for action in actions:
            if isinstance(action, m.Clear):
                self._events.put(self._clear(action))
            elif isinstance(action, m.Mark):
                self._events.put(self._mark(action))

    def _clear(self, action: m.Clear) -> m.Event:
        try:
            found = self._marker.clear(action.checkpoint)
        except HarvestError as error:
            _LOG.warning("published rows could not be deleted: %s", error)
            return m.ClearFailed()
        if found:
            self._stats.found_published += found
            _LOG.info("%d rows were published already; deleted", found)
        return m.Cleared()

    def _mark(self, action: m.Mark) -> m.Event:
        if action.delay_ms and self._hurry.wait(action.delay_ms / 1000):
            return m.Marked(action.batch, ())
        valid_ms = self._lease.remaining_ms
        if valid_ms <= 0 or not self._may_act():
            return m.LeaseLost()
        try:
            rows = self._marker.mark(action.term, action.batch, action.limit, valid_ms)
        except HarvestError as error:
            _LOG.warning("rows could not be marked: %s", error)
            return m.MarkFailed(action.batch)
        return m.Marked(action.batch, rows)

    def _sink_work(self, actions: Sequence[m.Action]) -> None:
        for sends in _merged(actions):
            if isinstance(sends, m.Open):
                self._events.put(self._open(sends))
                continue
            rows = sends[0].rows
            if len(sends) > 1:
                rows = [row for send in sends for row in send.rows]
            failure = self._sink.deliver(rows, sends[-1].checkpoint.encode())
            if failure is not None:
                _LOG.warning("%d rows were not published: %s", len(rows), failure.reason)
            self._events.put(m.Settled(tuple([send.batch for send in sends]), failure))

    def _open(self, action: m.Open) -> m.Event:
        self._hurry.wait(action.delay_ms / 1000)
        if not self._may_act():
            return m.LeaseLost()
        try:
            found = self._sink.open(self._may_act)
            checkpoint = None if found is None else Checkpoint.decode(found)
        except HarvestError as error:
            _LOG.warning("the sink could not be opened: %s", error)
            return m.OpenFailed()
        return m.Opened(Term.of(secrets.randbits(60)), checkpoint)

    def _purge_work(self, actions: Sequence[m.Action]) -> None:
        for action in actions:
            if isinstance(action, m.Purge):
                self._events.put(self._purge(action))
            elif isinstance(action, m.Reset):
                try:
                    self._purger.reset(action.ids)
                except HarvestError as error:
                    _LOG.warning("marked rows could not be handed back: %s", error)
                self._events.put(m.ResetDone())

    def _purge(self, action: m.Purge) -> m.Event:
        self._hurry.wait(action.delay_ms / 1000)
        ids = action.ids
        try:
            found = self._purger.purge(ids)
        except HarvestError as error:
            _LOG.warning("published rows could not be deleted: %s", error)
            return m.PurgeFailed()
        self._stats.purged += found
        if found < len(ids):
            self._stats.purged_by_others += len(ids) - found
            _LOG.warning(
                "%d of %d published rows were deleted by somebody else: does another harvester "
                "work on this table?",
                len(ids) - found,
                len(ids),
            )
        return m.Purged()

    # --- Telling ---

    def _count(self, event: m.Event) -> None:
        stats = self._stats
        match event:
            case m.Marked(_, rows):
                stats.marked += len(rows)
            case m.Settled(_, failure):
                stats.deliveries += 1
                stats.failed_deliveries += failure is not None
            case m.Purged():
                stats.published = stats.purged + stats.purged_by_others
            case m.Opened(term, _):
                stats.terms += 1
                _LOG.info("harvesting as leader id %s…, epoch %d", term, self._lease.epoch)
                self._on_event(LeaderRefreshed(self._lease.epoch, term))


def _merged(actions: Iterable[m.Action]) -> Iterator[m.Open | list[m.Send]]:
    """Sends that follow one another as one delivery, up to a bound; opens as they are."""
    sends: list[m.Send] = []
    rows = 0
    for action in actions:
        if isinstance(action, m.Send):
            if sends and rows + len(action.rows) > _MERGED_ROWS:
                yield sends
                sends, rows = [], 0
            sends.append(action)
            rows += len(action.rows)
        elif isinstance(action, m.Open):
            if sends:
                yield sends
                sends, rows = [], 0
            yield action
    if sends:
        yield sends
