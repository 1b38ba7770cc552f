"""A leader in mark mode.

Its threads carry out marks, clears and dead letters (one database connection), what goes to the
sink, and purges and resets (a second connection).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from harvest.core import mark as m
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy
from harvest.core.failure import Failure
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.interfaces.sink import Sink
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.errors import HarvestError
from harvest.runtime.action_threads import ActionThread, Handler
from harvest.runtime.dead_letters import DeadLetterWriter
from harvest.runtime.events import LeaderRefreshed
from harvest.runtime.leadership import Leadership
from harvest.runtime.marked_rows import MarkedRows
from harvest.runtime.publisher import Publisher
from harvest.runtime.source_guard import SourceGuard

__all__ = ["MarkLeader", "MarkTools"]

_MERGED_ROWS: Final = 10_000


class MarkLeader:
    """Carries out the actions of a `MarkScheduler`. Implements `Leader`."""

    def __init__(self, leadership: Leadership, tools: MarkTools) -> None:
        self.dead_letters = DeadLetterWriter(leadership, tools.dead_letters, tools.bad_rows)
        self.scheduler = m.MarkScheduler(
            leadership.lease.epoch, tools.limits, BadRowFilter(self.dead_letters.policy)
        )
        self.publisher = Publisher(
            leadership,
            tools.sink,
            m.Send,
            opened=self._opened,
            checkpoint=self._checkpoint,
            settled=_settled,
            most_rows=_MERGED_ROWS,
        )
        self.rows = MarkedRows(
            leadership,
            tools.marker,
            tools.purger,
            tools.limits,
            deliveries=self.publisher.thread,
            fenced=True,
            guard=tools.guard,
        )
        marking: dict[type, Handler] = {
            m.Mark: self.rows.mark,
            m.Clear: self._clear,
            m.AddDeadLetters: self.dead_letters.add,
        }
        purging: dict[type, Handler] = {m.Purge: self.rows.purge, m.Reset: self._reset}
        report = leadership.report
        self.threads: Sequence[ActionThread[Any]] = (
            ActionThread.answering("mark", marking, report, cancel=tools.marker.cancel),
            self.publisher.thread,
            ActionThread.answering("purge", purging, report, cancel=tools.purger.cancel),
        )
        self._leadership = leadership
        self._stores = tools

    def observe(self, event: Any) -> None:
        """See `Leader.observe`."""
        leadership, stats = self._leadership, self._leadership.stats
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
                epoch = leadership.lease.epoch
                leadership.log.info("harvesting as leader id %s…, epoch %d", term, epoch)
                leadership.on_event(LeaderRefreshed(epoch, term))

    def every_tick(self) -> None:
        """See `Leader.every_tick`."""
        self.publisher.check()

    def due_s(self) -> float | None:
        """See `Leader.due_s`: never."""
        return None

    def close(self) -> None:
        """See `Leader.close`."""
        self.publisher.close()

    def _opened(self, found: str | None) -> m.Event:
        checkpoint = None if found is None else Checkpoint.decode(found)
        if checkpoint is not None:
            self.rows.checkpoint_position = checkpoint.timeline, checkpoint.log
        waiting = self.dead_letters.waiting_keys()
        return m.Opened(Term.of(secrets.randbits(60)), checkpoint, waiting)

    def _checkpoint(self, send: m.Send) -> str:
        checkpoint = send.checkpoint
        if self._stores.guard is not None:
            timeline, log = self._stores.guard.log_position
            checkpoint = replace(checkpoint, timeline=timeline, log=log)
        return checkpoint.encode()

    def _clear(self, action: m.Clear) -> m.Event:
        leadership = self._leadership
        try:
            found = self._stores.marker.clear(action.checkpoint)
        except HarvestError as error:
            leadership.failed("published rows could not be deleted: %s", error)
            return m.ClearFailed()
        if found:
            leadership.stats.found_published += found
            leadership.log.info("%d rows were published already; deleted", found)
        return m.Cleared()

    def _reset(self, action: m.Reset) -> m.Event:
        try:
            self._stores.purger.reset(action.ids, action.tag)
        except HarvestError as error:
            self._leadership.log.warning("marked rows could not be handed back: %s", error)
        return m.ResetDone()


def _settled(sends: Sequence[m.Send], failure: Failure | None) -> m.Event:
    return m.Settled(tuple([send.batch for send in sends]), failure)


@dataclass(slots=True)
class MarkTools:
    """Two stores of the table, a sink, and the table of dead letters. Implements `Tools`.

    Without `dead_letters`, a row that cannot be published stops the harvest.
    """

    marker: MarkStore
    purger: MarkStore
    sink: Sink
    limits: m.Limits = field(default_factory=m.Limits)
    dead_letters: DeadLetterStore | None = None
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    guard: SourceGuard | None = None

    def connect(self) -> None:
        """See `Tools.connect`."""
        self.marker.connect()
        self.purger.connect()
        self.sink.prepare()

    def leader(self, leadership: Leadership) -> MarkLeader:
        """See `Tools.leader`."""
        return MarkLeader(leadership, self)

    def close(self) -> None:
        """See `Tools.close`."""
        self.sink.close()
        self.marker.close()
        self.purger.close()
        if self.guard is not None:
            self.guard.close()
        if self.dead_letters is not None:
            self.dead_letters.close()
