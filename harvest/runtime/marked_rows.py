"""What mark mode and the relay do to the rows of an outbox table."""

from __future__ import annotations

from typing import Any

from harvest.core.actions import LeaseLost
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.mark_actions import (
    Mark,
    Marked,
    MarkFailed,
    Purge,
    Purged,
    PurgeFailed,
)
from harvest.core.pacing import Limits
from harvest.errors import DatabaseChanged, HarvestError
from harvest.runtime.action_threads import ActionThread
from harvest.runtime.leadership import Leadership
from harvest.runtime.source_guard import LogPosition, SourceGuard

__all__ = ["MarkedRows"]


class MarkedRows:
    """Marks rows and deletes them, under a lease. Every method returns the event.

    - `marker`, `purger`: stores of one table, for the thread that marks and the one that purges.
    - `deliveries`: the thread that publishes, if marks are to wait for what it does.
    - `fenced`: who published before can publish no more; so nobody else deletes what is published.
    - `guard`: looks at the database before the first mark of a term, and now and then. What it
      finds ends the leadership: `mark` raises `DatabaseChanged`.
    """

    def __init__(
        self,
        leadership: Leadership,
        marker: MarkStore,
        purger: MarkStore,
        limits: Limits,
        *,
        deliveries: ActionThread[Any] | None = None,
        fenced: bool,
        guard: SourceGuard | None = None,
    ) -> None:
        self._leadership = leadership
        self._marker = marker
        self._purger = purger
        self._notified_delay_ms = limits.notified_poll_interval_ms
        self._deliveries = deliveries
        self._fenced = fenced
        self._guard = guard
        if guard is not None:
            guard.lease = leadership.lease
        self.checkpoint_position: LogPosition = (0, 0)
        """What the checkpoint of the leader before rests on."""

    def mark(self, action: Mark) -> Marked | MarkFailed | LeaseLost:
        """Wait for rows, and mark them. A mark is good for as long as the lease."""
        leadership = self._leadership
        if not leadership.wait_for_rows(action.delay_ms, self._notified_delay_ms, self._deliveries):
            return Marked(action.batch, ())
        try:
            self._look(first=action.batch == 0)
            valid_ms = leadership.lease.remaining_ms
            if valid_ms <= 0 or not leadership.may_act():
                return LeaseLost()
            rows = self._marker.mark(action.term, action.batch, action.limit, valid_ms)
            if rows and self._guard is not None:
                self._guard.saw(self._marker)
        except DatabaseChanged:
            raise
        except HarvestError as error:
            leadership.failed("rows could not be marked: %s", error)
            return MarkFailed(action.batch)
        return Marked(action.batch, rows)

    def _look(self, *, first: bool) -> None:
        if self._guard is None:
            return
        if first:
            self._guard.begin(self.checkpoint_position)
            self._leadership.accept_source()
        else:
            self._guard.look()

    def purge(self, action: Purge) -> Purged | PurgeFailed:
        """Delete published rows."""
        leadership = self._leadership
        leadership.pause(action.delay_ms)
        try:
            found = self._purger.purge(action.ids, action.tags)
            if self._guard is not None:
                self._guard.saw(self._purger)
        except HarvestError as error:
            leadership.failed("published rows could not be deleted: %s", error)
            return PurgeFailed()
        missing = len(action.ids) - found
        leadership.stats.purged += found
        leadership.stats.purged_by_others += missing
        if missing and self._fenced:
            leadership.log.warning(
                "%d of %d published rows were deleted or marked by somebody else: does another "
                "harvester work on this table?",
                missing,
                len(action.ids),
            )
        return Purged()
