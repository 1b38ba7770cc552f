"""A leadership in mark mode.

The lanes are marks and clears (one database connection), the sink, and purges and resets (a second
connection).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harvest.core import mark as m
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy, Key
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.interfaces.sink import Sink
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.errors import HarvestError
from harvest.runtime.events import Event, LeaderRefreshed, Stats
from harvest.runtime.leadership import Leader, Work, merged
from harvest.runtime.lease import Lease
from harvest.runtime.wake import Bell

__all__ = ["MarkLeader", "MarkTools"]

_MERGED_ROWS: Final = 10_000

_LANES: Final[dict[type[m.Action], str]] = {
    m.Mark: "mark",
    m.Clear: "mark",
    m.Open: "sink",
    m.Send: "sink",
    m.Purge: "purge",
    m.Reset: "purge",
    m.AddDeadLetters: "mark",
}


class MarkLeader(Leader[m.MarkScheduler]):
    """A leadership in mark mode; see `Leader`. `marker` and `purger` are stores of one table.

    `dead_letters` takes the rows that cannot be published; without it, such a row stops the
    harvest.
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
        bell: Bell | None = None,
        dead_letters: DeadLetterStore | None = None,
        bad_rows: BadRowPolicy | None = None,
        drain_timeout_s: float = 10.0,
    ) -> None:
        policy = bad_rows or BadRowPolicy()
        if dead_letters is None:
            policy = BadRowPolicy(on_bad_row="stop")
        super().__init__(
            lease,
            m.MarkScheduler(lease.epoch, limits, BadRowFilter(policy)),
            sink,
            drain_timeout_s,
            bell=bell,
            notified_poll_ms=limits.notified_poll_interval_ms,
        )
        self._bad_rows = policy
        self._dead_letters = dead_letters
        self._marker = marker
        self._purger = purger
        self._stats = stats
        self._on_event = on_event

    def _works(self) -> Mapping[str, Work]:
        return {"mark": self._mark_work, "sink": self._sink_work, "purge": self._purge_work}

    def _lane_of(self, action: m.Action) -> str:
        return _LANES[type(action)]

    def _break_off(self, lane: str) -> None:
        (self._marker if lane == "mark" else self._purger).cancel()

    def _in_flight(self) -> int:
        return self._scheduler.in_flight_records

    # --- The lanes ---

    def _mark_work(self, actions: Sequence[m.Action]) -> None:
        for action in actions:
            if isinstance(action, m.Clear):
                self._events.put(self._clear(action))
            elif isinstance(action, m.AddDeadLetters):
                self._events.put(self._add_dead_letters(action))
            elif isinstance(action, m.Mark):
                self._events.put(self._mark(action))

    def _clear(self, action: m.Clear) -> m.Event:
        try:
            found = self._marker.clear(action.checkpoint)
        except HarvestError as error:
            self._log.warning("published rows could not be deleted: %s", error)
            return m.ClearFailed()
        if found:
            self._stats.found_published += found
            self._log.info("%d rows were published already; deleted", found)
        return m.Cleared()

    def _add_dead_letters(self, action: m.AddDeadLetters) -> m.Event:
        assert self._dead_letters is not None  # noqa: S101 - the filter's policy is "stop" then
        if not self._may_act():
            return m.LeaseLost()
        try:
            moved = self._dead_letters.add(action.rows, action.term)
            waiting = self._waiting()
        except HarvestError as error:
            self._log.warning("rows that cannot be published could not be set aside: %s", error)
            return m.AddFailed()
        for row in action.rows:
            if row.id in moved:
                level = logging.DEBUG if row.waits else logging.WARNING
                self._log.log(level, "row %d is set aside: %s", row.id, row.error)
        self._stats.dead_lettered += len(moved)
        return m.DeadLettersAdded(moved, waiting)

    def _waiting(self) -> Mapping[Key, int]:
        if self._dead_letters is None or not self._bad_rows.key_waits:
            return {}
        return self._dead_letters.waiting_keys()

    def _mark(self, action: m.Mark) -> m.Event:
        if not self._wait_for_rows(action.delay_ms):
            return m.Marked(action.batch, ())
        valid_ms = self._lease.remaining_ms
        if valid_ms <= 0 or not self._may_act():
            return m.LeaseLost()
        try:
            rows = self._marker.mark(action.term, action.batch, action.limit, valid_ms)
        except HarvestError as error:
            self._log.warning("rows could not be marked: %s", error)
            return m.MarkFailed(action.batch)
        return m.Marked(action.batch, rows)

    def _sink_work(self, actions: Sequence[m.Action]) -> None:
        for sends in merged(actions, _MERGED_ROWS):
            if isinstance(sends, m.Open):
                self._events.put(self._open(sends))
                continue
            rows = sends[0].rows
            if len(sends) > 1:
                rows = [row for send in sends for row in send.rows]
            failure = self._sink.deliver(rows, sends[-1].checkpoint.encode())
            if failure is not None:
                self._log.warning("%d rows were not published: %s", len(rows), failure.reason)
            self._events.put(m.Settled(tuple([send.batch for send in sends]), failure))

    def _open(self, action: m.Open) -> m.Event:
        self._hurry.wait(action.delay_ms / 1000)
        if not self._may_act():
            return m.LeaseLost()
        try:
            found = self._sink.open(self._may_act)
            checkpoint = None if found is None else Checkpoint.decode(found)
            waiting = self._waiting()
        except HarvestError as error:
            self._log.warning("the sink could not be opened: %s", error)
            return m.OpenFailed()
        return m.Opened(Term.of(secrets.randbits(60)), checkpoint, waiting)

    def _purge_work(self, actions: Sequence[m.Action]) -> None:
        for action in actions:
            if isinstance(action, m.Purge):
                self._events.put(self._purge(action))
            elif isinstance(action, m.Reset):
                try:
                    self._purger.reset(action.ids)
                except HarvestError as error:
                    self._log.warning("marked rows could not be handed back: %s", error)
                self._events.put(m.ResetDone())

    def _purge(self, action: m.Purge) -> m.Event:
        self._hurry.wait(action.delay_ms / 1000)
        ids = action.ids
        try:
            found = self._purger.purge(ids)
        except HarvestError as error:
            self._log.warning("published rows could not be deleted: %s", error)
            return m.PurgeFailed()
        self._stats.purged += found
        if found < len(ids):
            self._stats.purged_by_others += len(ids) - found
            self._log.warning(
                "%d of %d published rows were deleted by somebody else: does another harvester "
                "work on this table?",
                len(ids) - found,
                len(ids),
            )
        return m.Purged()

    # --- Telling ---

    def _count(self, event: Any) -> None:
        stats = self._stats
        match event:
            case m.Marked(_, rows):
                stats.marked += len(rows)
            case m.Settled(_, failure):
                stats.deliveries += 1
                stats.failed_deliveries += failure is not None
            case m.Purged():
                stats.published = stats.purged + stats.purged_by_others
            case m.Opened(term, _, _):
                stats.terms += 1
                self._log.info("harvesting as leader id %s…, epoch %d", term, self._lease.epoch)
                self._on_event(LeaderRefreshed(self._lease.epoch, term))


@dataclass(slots=True)
class MarkTools:
    """Two stores of the table, a sink, and the table of rows set aside. Implements `Tools`."""

    marker: MarkStore
    purger: MarkStore
    sink: Sink
    limits: m.Limits = field(default_factory=m.Limits)
    dead_letters: DeadLetterStore | None = None
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)

    def connect(self) -> None:
        """See `Tools.connect`."""
        self.marker.connect()
        self.purger.connect()
        self.sink.prepare()

    def leader(
        self,
        lease: Lease,
        *,
        stats: Stats,
        on_event: Callable[[Event], None],
        bell: Bell,
        drain_timeout_s: float,
    ) -> MarkLeader:
        """See `Tools.leader`."""
        return MarkLeader(
            lease,
            marker=self.marker,
            purger=self.purger,
            sink=self.sink,
            limits=self.limits,
            stats=stats,
            on_event=on_event,
            bell=bell,
            dead_letters=self.dead_letters,
            bad_rows=self.bad_rows,
            drain_timeout_s=drain_timeout_s,
        )

    def close(self) -> None:
        """See `Tools.close`."""
        self.sink.close()
        self.marker.close()
        self.purger.close()
        if self.dead_letters is not None:
            self.dead_letters.close()
