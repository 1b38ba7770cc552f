"""A leader that relays messages to destinations, each or several in a request.

Its threads carry out marks and dead letters (one database connection), purges (a second), and notes
of failures (a third). Messages are sent by threads of their own, many at once.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from harvest.core import relay as r
from harvest.core.actions import LeaseLost, Open, OpenFailed
from harvest.core.dead_letters import AddDeadLetters, BadRowFilter, BadRowPolicy
from harvest.core.dispatcher import Destination, Dispatcher, Group, Message, Outcome, Policy
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.interfaces.message_sink import BatchSink, MessageSink
from harvest.core.mark_actions import (
    Mark,
    Marked,
    Purge,
    Purged,
)
from harvest.core.mark_checkpoint import Term
from harvest.core.pacing import Limits
from harvest.core.routes import Router
from harvest.core.row import fingerprint
from harvest.databases.postgres.attempts import Attempt, AttemptStore
from harvest.errors import HarvestError
from harvest.runtime.action_threads import ActionThread, Handler
from harvest.runtime.dead_letters import DeadLetterWriter
from harvest.runtime.events import LeaderRefreshed
from harvest.runtime.leadership import Leadership
from harvest.runtime.marked_rows import MarkedRows
from harvest.runtime.sender_threads import SenderThreads
from harvest.runtime.source_guard import SourceGuard

__all__ = ["RelayLeader", "RelayTools"]

_STATES: Final = ("closed", "open")
_MAX_THREADS: Final = 256
_CLOSE_TIMEOUT_S: Final = 5.0
_UNTRIED: Final = Outcome(error="an earlier one of its key failed", untried=True)

Request: TypeAlias = tuple[Message, ...]
"""What is sent together."""


def _now_ms() -> float:
    return time.monotonic() * 1000


class RelayLeader:
    """Carries out the actions of a `RelayScheduler`. Implements `Leader`."""

    def __init__(self, leadership: Leadership, tools: RelayTools) -> None:
        self.dead_letters = DeadLetterWriter(leadership, tools.dead_letters, tools.bad_rows)
        policy = self.dead_letters.policy
        policies, limits = tools.policies, tools.limits
        threads = min(_MAX_THREADS, sum([p.concurrency for p in policies.values()]))
        give_up = policy.on_bad_row == "dead_letter"
        dispatcher = Dispatcher(policies, random.random, give_up=give_up, total=threads)
        self.scheduler = r.RelayScheduler(
            leadership.lease.epoch,
            dispatcher,
            tools.router.messages,
            limits,
            BadRowFilter(policy),
            _now_ms,
        )
        self.rows = MarkedRows(
            leadership,
            tools.marker,
            tools.purger,
            limits,
            fenced=False,
            guard=tools.guard,
        )
        self._senders: SenderThreads[Request] = SenderThreads(threads, self._send, leadership.crash)
        marking: dict[type, Handler] = {
            Open: self._open,
            Mark: self.rows.mark,
            AddDeadLetters: self.dead_letters.add,
        }
        report = leadership.report
        self.threads: Sequence[ActionThread[Any]] = (
            ActionThread.answering("mark", marking, report, cancel=tools.marker.cancel),
            ActionThread.answering(
                "purge", {Purge: self.rows.purge}, report, cancel=tools.purger.cancel
            ),
            ActionThread("note", self._note, (r.Record, r.Forget)),
            ActionThread("post", self._post, (r.Post,)),
        )
        self._leadership = leadership
        self._tools = tools
        self._left_alone: set[str] = set()
        """Destinations of which the log says so."""
        self._has_taken_over = False
        self._errors: dict[str, str | None] = {}
        """What went wrong last, by destination."""

    # --- Leader ---

    def observe(self, event: Any) -> None:
        """See `Leader.observe`."""
        leadership, stats = self._leadership, self._leadership.stats
        for name, destination in self.scheduler.dispatcher.destinations.items():
            stats.breakers[name] = "gone" if destination.gone else _STATES[destination.trips > 0]
            if destination.takes_none != (name in self._left_alone):
                self._tell_of(name, destination)
        match event:
            case Marked(_, rows):
                stats.marked += len(rows)
            case r.Sent(_, outcome, name) if not outcome.untried:
                stats.deliveries += 1
                stats.failed_deliveries += outcome.error is not None
                how = "unavailable" if outcome.unavailable else "failed"
                stats.messages[name, "delivered" if outcome.error is None else how] += 1
                self._errors[name] = outcome.error
            case Purged():
                stats.published = stats.purged + stats.purged_by_others
            case r.Opened(term=term):
                stats.terms += 1
                epoch = leadership.lease.epoch
                leadership.log.info("relaying as leader id %s…, epoch %d", term, epoch)
                leadership.on_event(LeaderRefreshed(epoch, term))

    def _tell_of(self, name: str, destination: Destination) -> None:
        """Log that a destination is left alone, or no more."""
        self._left_alone ^= {name}
        log, error = self._leadership.log, self._errors.get(name)
        if destination.gone:
            said = "destination %r is gone: nothing is sent there until a process leads anew: %s"
            log.error(said, name, error)
        elif destination.takes_none:
            log.warning("destination %r is left alone, but for probes: %s", name, error)
        else:
            log.info("destination %r takes messages again", name)

    def every_tick(self) -> None:
        """See `Leader.every_tick`: nothing."""

    def due_s(self) -> float | None:
        """See `Leader.due_s`: when a message is to be sent, or to be sent again."""
        due_ms = self.scheduler.due_ms()
        return None if due_ms is None else due_ms / 1000

    def close(self) -> None:
        """See `Leader.close`."""
        if not self._senders.close(_CLOSE_TIMEOUT_S):
            self._leadership.log.warning("requests are still under way; they are left behind")

    # --- Sending ---

    def _post(self, actions: Sequence[r.Post]) -> None:
        for action in actions:
            self._senders.put((action.message, *action.more))

    def _send(self, request: Request) -> None:
        outcome = self._send_one(request[0]) if len(request) == 1 else self._send_batch(request)
        if outcome is None:
            return
        if len(request) == 1 or outcome.error is None:
            for message in request:
                self._report(message, outcome)
        elif outcome.lasting:  # of one of them; which one?
            self._send_each(request)
        else:
            firsts = {message.group: message for message in reversed(request)}
            for message in request:
                if firsts[message.group] is not message:
                    self._report(message, _UNTRIED)
            for message in firsts.values():
                shared = replace(outcome, shared=message is not request[0])
                self._report(message, shared)

    def _send_each(self, request: Request) -> None:
        failed: dict[Group, tuple[Message, Outcome]] = {}
        for message in request:
            if message.group in failed:
                self._report(message, _UNTRIED)
                continue
            outcome = self._send_one(message)
            if outcome is None:
                return
            if outcome.error is None:
                self._report(message, outcome)
            else:
                failed[message.group] = message, outcome
        for message, outcome in failed.values():
            self._report(message, outcome)

    def _send_one(self, message: Message) -> Outcome | None:
        """None if the lease is lost."""
        leadership, tools = self._leadership, self._tools
        leadership.wait_for_heartbeat()
        if not leadership.may_act():
            return None
        if message.problem is not None:
            return Outcome(error=message.problem, lasting=True)
        row, sink = message.row, tools.sinks[message.destination]
        return sink.send(row, tools.router.unique(row), leadership.lease.epoch)

    def _send_batch(self, request: Request) -> Outcome | None:
        """All in one; None if the lease is lost."""
        leadership, tools = self._leadership, self._tools
        leadership.wait_for_heartbeat()
        if not leadership.may_act():
            return None
        sink = tools.sinks[request[0].destination]
        assert isinstance(sink, BatchSink)  # noqa: S101 - others have a policy without batches
        rows = [(message.row, tools.router.unique(message.row)) for message in request]
        return sink.send_batch(rows, leadership.lease.epoch)

    def _report(self, message: Message, outcome: Outcome) -> None:
        sent = r.Sent(message.row.id, outcome, message.destination, message.lane)
        self._leadership.report(sent)

    # --- The table, and what is noted beside it ---

    def _open(self, action: Open) -> r.Event:
        leadership, attempts = self._leadership, self._tools.attempts
        leadership.pause(action.delay_ms)
        if not leadership.may_act():
            return LeaseLost()
        retries: Mapping[int, int] = {}
        settled: Mapping[int, r.Settled] = {}
        try:
            waiting = dict(self.dead_letters.waiting_keys())
            if attempts is not None and not self._has_taken_over:
                attempts.forget_overtaken()
                retries, settled = attempts.load(), attempts.settled()
                self._has_taken_over = True  # what is noted from now on is ours, and known
        except HarvestError as error:
            leadership.failed("the database did not say what is set aside: %s", error)
            return OpenFailed()
        return r.Opened(Term.of(secrets.randbits(60)), waiting, retries, settled)

    def _note(self, actions: Sequence[r.Record | r.Forget]) -> None:
        """The notes of all that waits, in two statements. The last one of a row counts."""
        log, attempts = self._leadership.log, self._tools.attempts
        last: dict[int, r.Record | None] = {}
        for action in actions:
            if isinstance(action, r.Record):
                message, outcome = action.message, action.outcome
                log.debug("row %d to %s: %s", message.row.id, message.destination, outcome.error)
                last[message.row.id] = action
            else:
                last[action.row_id] = None
        if attempts is None or not self._leadership.may_act():
            return  # the next leader has read them already, perhaps
        failed = [
            Attempt(
                row_id,
                "" if note.message.problem else note.message.destination,
                note.retries,
                note.outcome.error or "",
                note.outcome.status,
                note.gave_up,
                note.delivered,
                fingerprint(note.message.row) if note.delivered else None,
            )
            for row_id, note in last.items()
            if note is not None
        ]
        try:
            if failed:
                attempts.record(failed)
            if len(failed) < len(last):
                attempts.forget([row_id for row_id, note in last.items() if note is None])
        except HarvestError as error:
            log.warning("failures could not be noted: %s", error)


@dataclass(slots=True)
class RelayTools:
    """Two stores of the table, the destinations, and what is noted beside. Implements `Tools`.

    Without `dead_letters`, no message is ever given up.
    """

    marker: MarkStore
    purger: MarkStore
    sinks: Mapping[str, MessageSink]
    policies: Mapping[str, Policy]
    router: Router
    limits: Limits = field(default_factory=Limits)
    dead_letters: DeadLetterStore | None = None
    attempts: AttemptStore | None = None
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    guard: SourceGuard | None = None

    def connect(self) -> None:
        """See `Tools.connect`. Destinations are first seen when there is a message for them."""
        self.marker.connect()
        self.purger.connect()

    def leader(self, leadership: Leadership) -> RelayLeader:
        """See `Tools.leader`."""
        return RelayLeader(leadership, self)

    def close(self) -> None:
        """See `Tools.close`."""
        self.marker.close()
        self.purger.close()
        for sink in self.sinks.values():
            sink.close()
        for store in (self.dead_letters, self.attempts, self.guard):
            if store is not None:
                store.close()
