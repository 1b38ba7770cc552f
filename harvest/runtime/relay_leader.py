"""A leadership that relays messages to destinations, one by one.

The lanes are marks and rows that are set aside (one database connection), purges (a second), and
notes of failures (a third). Messages are sent by a crew of threads.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty
from typing import Any, Final

from harvest.core import relay as r
from harvest.core.actions import LeaseLost, Open, OpenFailed
from harvest.core.dead_letters import BadRowPolicy
from harvest.core.dispatcher import Dispatcher, Message, Outcome, Policy
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.interfaces.message_sink import MessageSink
from harvest.core.interfaces.sink import StillHeld
from harvest.core.mark_actions import (
    AddDeadLetters,
    AddFailed,
    DeadLettersAdded,
    Mark,
    Marked,
    MarkFailed,
    Purge,
    Purged,
    PurgeFailed,
)
from harvest.core.mark_checkpoint import Term
from harvest.core.pacing import Limits
from harvest.core.routes import Router
from harvest.databases.postgres.attempts import Attempt, AttemptStore
from harvest.errors import HarvestError, SinkUnavailable
from harvest.runtime.events import Event, LeaderRefreshed, Stats
from harvest.runtime.leadership import Leader, Work
from harvest.runtime.lease import Lease
from harvest.runtime.sender_threads import Crew
from harvest.runtime.wake import Bell

__all__ = ["NoSink", "RelayLeader", "RelayTools"]

_LOG: Final = logging.getLogger("harvest")
_MAX_THREADS: Final = 256
_CLOSE_TIMEOUT_S: Final = 5.0
_LANES: Final[dict[type[r.Action], str]] = {
    Open: "mark",
    Mark: "mark",
    AddDeadLetters: "mark",
    Purge: "purge",
    r.Record: "note",
    r.Forget: "note",
    r.Post: "post",
}


class NoSink:
    """What a leadership has in place of a sink that is opened and fenced."""

    atomic = False

    def prepare(self) -> None:
        """Nothing."""

    def open(self, still_held: StillHeld) -> str | None:
        """Nothing."""
        del still_held
        return None

    def deliver(self, rows: Sequence[Any], checkpoint: str) -> Any:
        """Never called."""
        del rows, checkpoint
        raise SinkUnavailable("messages are sent one by one")

    def close(self) -> None:
        """Nothing."""


def _now_ms() -> float:
    return time.monotonic() * 1000


class RelayLeader(Leader[r.RelayScheduler]):
    """A leadership; see `Leader`. `marker` and `purger` are stores of one table.

    Without `dead_letters`, no message is ever given up.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        marker: MarkStore,
        purger: MarkStore,
        sinks: Mapping[str, MessageSink],
        policies: Mapping[str, Policy],
        router: Router,
        limits: Limits,
        stats: Stats,
        on_event: Callable[[Event], None],
        bell: Bell | None = None,
        dead_letters: DeadLetterStore | None = None,
        attempts: AttemptStore | None = None,
        bad_rows: BadRowPolicy | None = None,
        drain_timeout_s: float = 10.0,
    ) -> None:
        policy = bad_rows or BadRowPolicy()
        if dead_letters is None:
            policy = BadRowPolicy(on_bad_row="stop")
        threads = min(_MAX_THREADS, sum([p.concurrency for p in policies.values()]))
        give_up = policy.on_bad_row == "dead_letter"
        dispatcher = Dispatcher(policies, random.random, give_up=give_up, total=threads)
        super().__init__(
            lease,
            r.RelayScheduler(lease.epoch, dispatcher, router.message, limits, policy, _now_ms),
            NoSink(),
            drain_timeout_s,
            bell=bell,
            notified_poll_ms=limits.notified_poll_interval_ms,
        )
        self._marker = marker
        self._purger = purger
        self._sinks = sinks
        self._router = router
        self._dead_letters = dead_letters
        self._attempts = attempts
        self._bad_rows = policy
        self._stats = stats
        self._on_event = on_event
        self._crew: Crew[Message] = Crew(threads, self._post, self._crashed)

    def run(self) -> bool:
        """See `Leader.run`."""
        try:
            return super().run()
        finally:
            if not self._crew.close(_CLOSE_TIMEOUT_S):
                _LOG.warning("requests are still under way; they are left behind")

    def _works(self) -> Mapping[str, Work]:
        return {
            "mark": self._mark_work,
            "purge": self._purge_work,
            "note": self._note_work,
            "post": self._post_work,
        }

    def _lane_of(self, action: r.Action) -> str:
        return _LANES[type(action)]

    def _break_off(self, lane: str) -> None:
        if lane in ("mark", "purge"):
            (self._marker if lane == "mark" else self._purger).cancel()

    def _in_flight(self) -> int:
        return self._scheduler.in_flight_records

    def _next(self) -> Any:
        due_ms = self._scheduler.due_ms()
        if due_ms is None:
            return super()._next()
        try:
            return self._events.get(timeout=max(0.0, due_ms - _now_ms()) / 1000)
        except Empty:
            return r.Tick()

    # --- Sending ---

    def _post_work(self, actions: Sequence[r.Post]) -> None:
        for action in actions:
            self._crew.put(action.message)

    def _post(self, message: Message) -> None:
        self._heartbeat.wait(self._over)
        if not self._may_act():
            return
        if message.problem is not None:
            outcome = Outcome(error=message.problem, lasting=True)
        else:
            sink = self._sinks[message.destination]
            outcome = sink.send(message.row, self._router.unique(message.row), self._lease.epoch)
        self._events.put(r.Sent(message.row.id, outcome, message.destination))

    # --- The lanes ---

    def _mark_work(self, actions: Sequence[r.Action]) -> None:
        for action in actions:
            if isinstance(action, Open):
                self._events.put(self._open(action))
            elif isinstance(action, AddDeadLetters):
                self._events.put(self._add_dead_letters(action))
            elif isinstance(action, Mark):
                self._events.put(self._mark(action))

    def _open(self, action: Open) -> r.Event:
        self._hurry.wait(action.delay_ms / 1000)
        if not self._may_act():
            return LeaseLost()
        try:
            waiting = {}
            if self._dead_letters is not None and self._bad_rows.key_waits:
                waiting = dict(self._dead_letters.waiting_keys())
            retries = {} if self._attempts is None else self._attempts.load()
        except HarvestError as error:
            _LOG.warning("the database did not say what is set aside: %s", error)
            return OpenFailed()
        return r.Opened(Term.of(secrets.randbits(60)), waiting, retries)

    def _mark(self, action: Mark) -> r.Event:
        if not self._wait_for_rows(action.delay_ms):
            return Marked(action.batch, ())
        valid_ms = self._lease.remaining_ms
        if valid_ms <= 0 or not self._may_act():
            return LeaseLost()
        try:
            rows = self._marker.mark(action.term, action.batch, action.limit, valid_ms)
        except HarvestError as error:
            _LOG.warning("rows could not be marked: %s", error)
            return MarkFailed(action.batch)
        return Marked(action.batch, rows)

    def _add_dead_letters(self, action: AddDeadLetters) -> r.Event:
        assert self._dead_letters is not None  # noqa: S101 - nothing is given up without it
        if not self._may_act():
            return LeaseLost()
        try:
            moved = self._dead_letters.add(action.rows, action.term)
            waiting = self._dead_letters.waiting_keys() if self._bad_rows.key_waits else {}
        except HarvestError as error:
            _LOG.warning("messages that were given up could not be set aside: %s", error)
            return AddFailed()
        for row in action.rows:
            if row.id in moved:
                level = logging.DEBUG if row.waits else logging.WARNING
                _LOG.log(level, "row %d is set aside: %s", row.id, row.error)
        self._stats.dead_lettered += len(moved)
        return DeadLettersAdded(moved, waiting)

    def _purge_work(self, actions: Sequence[Purge]) -> None:
        for action in actions:
            self._hurry.wait(action.delay_ms / 1000)
            try:
                found = self._purger.purge(action.ids)
            except HarvestError as error:
                _LOG.warning("delivered rows could not be deleted: %s", error)
                self._events.put(PurgeFailed())
                continue
            self._stats.purged += found
            self._stats.purged_by_others += len(action.ids) - found
            self._events.put(Purged())

    def _note_work(self, actions: Sequence[r.Action]) -> None:
        """The notes of all that waits, in two statements. The last one of a row counts."""
        last: dict[int, r.Record | None] = {}
        for action in actions:
            if isinstance(action, r.Record):
                message, outcome = action.message, action.outcome
                _LOG.debug("row %d to %s: %s", message.row.id, message.destination, outcome.error)
                last[message.row.id] = action
            elif isinstance(action, r.Forget):
                last[action.row_id] = None
        if self._attempts is None:
            return
        failed = [
            Attempt(
                row_id,
                "" if note.message.problem else note.message.destination,
                note.retries,
                note.outcome.error or "",
                note.outcome.status,
                note.gave_up,
            )
            for row_id, note in last.items()
            if note is not None
        ]
        try:
            if failed:
                self._attempts.record(failed)
            if len(failed) < len(last):
                self._attempts.forget([row_id for row_id, note in last.items() if note is None])
        except HarvestError as error:
            _LOG.warning("failures could not be noted: %s", error)

    def _count(self, event: Any) -> None:
        stats = self._stats
        match event:
            case Marked(_, rows):
                stats.marked += len(rows)
            case r.Sent(_, outcome, destination):
                stats.deliveries += 1
                stats.failed_deliveries += outcome.error is not None
                how = "unavailable" if outcome.unavailable else "failed"
                stats.messages[destination, "delivered" if outcome.error is None else how] += 1
            case Purged():
                stats.published = stats.purged + stats.purged_by_others
            case r.Opened(term, _, _):
                stats.terms += 1
                _LOG.info("relaying as leader id %s…, epoch %d", term, self._lease.epoch)
                self._on_event(LeaderRefreshed(self._lease.epoch, term))


@dataclass(slots=True)
class RelayTools:
    """Two stores of the table, the destinations, and what is noted beside. Implements `Tools`."""

    marker: MarkStore
    purger: MarkStore
    sinks: Mapping[str, MessageSink]
    policies: Mapping[str, Policy]
    router: Router
    limits: Limits = field(default_factory=Limits)
    dead_letters: DeadLetterStore | None = None
    attempts: AttemptStore | None = None
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)

    def connect(self) -> None:
        """See `Tools.connect`. Destinations are first seen when there is a message for them."""
        self.marker.connect()
        self.purger.connect()

    def leader(
        self,
        lease: Lease,
        *,
        stats: Stats,
        on_event: Callable[[Event], None],
        bell: Bell,
        drain_timeout_s: float,
    ) -> RelayLeader:
        """See `Tools.leader`."""
        return RelayLeader(
            lease,
            marker=self.marker,
            purger=self.purger,
            sinks=self.sinks,
            policies=self.policies,
            router=self.router,
            limits=self.limits,
            stats=stats,
            on_event=on_event,
            bell=bell,
            dead_letters=self.dead_letters,
            attempts=self.attempts,
            bad_rows=self.bad_rows,
            drain_timeout_s=drain_timeout_s,
        )

    def close(self) -> None:
        """See `Tools.close`."""
        self.marker.close()
        self.purger.close()
        for sink in self.sinks.values():
            sink.close()
        for store in (self.dead_letters, self.attempts):
            if store is not None:
                store.close()
