"""The relay algorithm: a pure scheduler. Events in, actions out; no thread, clock, random or I/O.

It is mark mode for destinations that take messages one by one (specs/RELAYER.md): HTTP, NATS, …

    marked (tagged in the table) → offered → under way → delivered → purged (deleted)
                                        ↖ failed ↙   ↘ given up → dead letter

Nothing has to settle together, and nothing is fenced: delivery is at least once. What remains in
the table is the checkpoint. Invariants:

1. *One mark at a time*, of the lowest ids that are not ours. So the rows of a group are offered in
   the order of their ids, and of each group one is under way (`harvest.core.dispatcher`).
2. *An id is known from its mark until its purge.* A known row that a mark returns is not offered
   again, so a new term, which makes every row foreign, is harmless while messages are under way.
   Another row that came under a known id is marked again when that is forgotten, unpurged.
3. *Only what was delivered is purged*, one purge at a time, in the order of the deliveries, and
   named by id and tag.
4. *A message that is given up* is a dead letter before anything behind it in its group is sent
   (harvest/core/dead_letters.py).
5. *A row that goes to several destinations* is delivered when it is settled at each. What has it is
   remembered, by the row's content, when the row is forgotten before that: it is not sent there
   again in this leadership; nor in the next, as far as it was noted beside the table of it and of
   all before it in its key: else what comes last at a destination would not be what is last.

When there is no more room, what waits for a destination that takes nothing, but for one message
of it, is *shed*: forgotten, and its tags left in the table, so that the marks go on to the rows of
other destinations. As soon as the destination takes a message, a new term begins; and now and then
if it does not, as it may be that message which fails. So is shed what waits behind a message that
waits for its time or its next attempt, until that is decided.

If a mark may have been committed and its rows are unknown, a purge failed, or a row did not become
a dead letter, a new term begins: every row that is not known is then marked again, in the order of
the ids.
"""

# ruff: noqa: S101 - an invariant that does not hold must stop the harvest

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from harvest.core.actions import Finish, LeaseLost, Open, OpenFailed, Start, Stop, Tick
from harvest.core.dead_letters import (
    AddDeadLetters,
    AddFailed,
    BadRow,
    BadRowFilter,
    DeadLettersAdded,
    Key,
    waiting_row,
)
from harvest.core.dispatcher import (
    Delivered,
    Dispatcher,
    Failed,
    GivenUp,
    Group,
    Message,
    Outcome,
    Untried,
)
from harvest.core.mark_actions import (
    Mark,
    Marked,
    MarkFailed,
    Purge,
    Purged,
    PurgeFailed,
)
from harvest.core.mark_checkpoint import Term
from harvest.core.pacing import Limits, Pace
from harvest.core.row import Row, fingerprint, payload_bytes

__all__ = [
    "Action",
    "Event",
    "Forget",
    "Opened",
    "Post",
    "Record",
    "RelayScheduler",
    "Route",
    "Sent",
    "Settled",
    "Tick",
]

Route: TypeAlias = Callable[[Row], Sequence[Message]]
"""Where a row goes; messages with a `problem` if it can go nowhere. Does not raise."""

Settled: TypeAlias = tuple[int, frozenset[str]]
"""The `fingerprint` of a row, and the destinations, of several, that have it."""

_SHED_EVERY_MS: Final = 100.0
"""All groups are looked at, which takes its time."""
_ANEW_MS: Final = 60_000.0
_MAX_DOUBLINGS: Final = 6
"""What was shed is offered anew at the latest after that, doubled each time up to an hour: the one
message that probes its destination may be what fails. Not more often, as the whole table is marked
anew then."""
_MAX_SETTLED: Final = 1_000_000
"""Rows of which it is remembered that some of their destinations have them; then nothing is marked
before the others take messages again. Some 200 bytes each."""

# --- Events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """A term begins. `waiting` as in `harvest.core.mark_actions.Opened`; `retries` and `settled`,
    by row id, are what earlier leaders noted: only of a leadership's first term."""

    term: Term
    waiting: Mapping[Key, int] = field(default_factory=dict)
    retries: Mapping[int, int] = field(default_factory=dict)
    settled: Mapping[int, Settled] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a message of a `Post`; `destination` is for those who count.

    Messages of one `Post` are told of as `Dispatcher.finished` wants it.
    """

    row_id: int
    outcome: Outcome
    destination: str = ""
    lane: str = ""


Event: TypeAlias = (
    Start
    | Opened
    | OpenFailed
    | Marked
    | MarkFailed
    | Sent
    | Purged
    | PurgeFailed
    | DeadLettersAdded
    | AddFailed
    | Tick
    | LeaseLost
    | Stop
)

# --- Actions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Post:
    """Send a message to its destination, `more` in the same request; answer Sent for each.

    Any number at once.
    """

    message: Message
    more: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """Note a failure beside the table, for people and for the next leader. Needs no answer.

    `delivered`: the other destinations of the row that have it.
    """

    message: Message
    retries: int
    outcome: Outcome
    gave_up: bool
    delivered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the notes about a row that was delivered after all. Needs no answer."""

    row_id: int


Action: TypeAlias = Open | Mark | Post | Purge | AddDeadLetters | Record | Forget | Finish


@dataclass(slots=True)
class _Known:
    """A row that is marked and not purged, and the tags of which it has one.

    By lane: its messages that are not decided, those that were shed, and the lanes that are
    settled. `bad`: it becomes a dead letter when all are decided, and then what is `behind` it.
    `note`: what was noted last.
    """

    row: Row
    tags: tuple[UUID, ...]
    size: int
    open: set[str] = field(default_factory=set)
    shed: dict[str, Message] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    bad: BadRow | None = None
    behind: list[BadRow] = field(default_factory=list)
    note: Record | None = None
    noted: bool = False

    @property
    def delivered(self) -> tuple[str, ...]:
        return tuple(sorted(self.settled))


@dataclass(slots=True)
class RelayScheduler:
    """The state machine. Feed every event to `step` with the time, carry out every action."""

    epoch: int
    dispatcher: Dispatcher
    route: Route
    limits: Limits = field(default_factory=Limits)
    row_filter: BadRowFilter = field(default_factory=BadRowFilter)
    now: Callable[[], float] = lambda: 0.0
    """Milliseconds of any clock that does not go back."""
    in_flight_bytes: int = 0
    _pace: Pace = field(init=False)
    _term: Term | None = None
    _open: bool = False
    _opening: bool = False
    _marking: bool = False
    _batch: int = 0
    _known: dict[int, _Known] = field(default_factory=dict)
    """The rows that are marked and not purged."""
    _delivered: list[int] = field(default_factory=list)
    _purging: Mapping[int, tuple[UUID, ...]] = field(default_factory=dict)
    """The rows of the purge under way, and the tags of each when it began."""
    _purges_foreign: bool = False
    """Whether there are rows in it that a mark would tag anew."""
    _succeeded: set[int] = field(default_factory=set)
    """Known ids under which other rows have come: those are marked once ours are forgotten."""
    _settled: dict[int, Settled] = field(default_factory=dict)
    """Of rows that are not known: where they are settled already."""
    _shed: set[Group] = field(default_factory=set)
    """Groups of which rows were shed: none of their later rows is offered in this term."""
    _shed_destinations: set[str] = field(default_factory=set)
    _anew_ms: float | None = None
    """When a new term begins though nothing got through to these."""
    _anew: dict[str, int] = field(default_factory=dict)
    """How often a destination was shed since it took a message."""
    _shed_after_ms: float = float("-inf")
    _shed_waits: bool = False
    """Whether room was wanted before that."""
    _notes: list[Action] = field(default_factory=list)
    """To be carried out with the next step."""
    _bad_rows: list[BadRow] = field(default_factory=list)
    _adding: tuple[BadRow, ...] = ()
    _not_added: dict[int, int] = field(default_factory=dict)
    """How often a row that was given up did not become a dead letter."""
    _asked: int = 0
    _stopping: bool = False
    _done: bool = False

    def __post_init__(self) -> None:
        self._pace = Pace(self.limits)

    @property
    def running(self) -> bool:
        """Whether it works, and neither begins nor recovers, nor fails again and again."""
        return self._open and not self._stopping and not self._pace.failing

    @property
    def in_flight_records(self) -> int:
        """Rows that are marked and not purged."""
        return len(self._known)

    def due_ms(self) -> float | None:
        """When a `Tick` is due; None: when something else happens."""
        if self._stopping or not self._open:
            return None
        due = [self.dispatcher.due_ms(), self._anew_ms]
        if self._shed_waits:
            due.append(self._shed_after_ms)
        return min([due_ms for due_ms in due if due_ms is not None], default=None)

    def step(self, event: Event) -> list[Action]:
        """Apply one event; return the actions that follow from it, in order."""
        if self._done:
            return []
        actions: list[Action] = []
        match event:
            case Sent():
                self._sent(event)
            case Marked(batch, rows):
                self._marking = False
                self._pace.nothing_left()  # what destinations say is another matter
                self._marked(batch, rows)
            case Purged():
                for row_id, tags in self._purging.items():
                    if self._known[row_id].tags == tags:
                        self._known[row_id].settled.clear()  # it is gone for good
                        self._forget(row_id)
                    else:
                        self._delivered.append(row_id)  # it may have been marked before the purge
                self._purging = {}
                self._pace.succeeded()
            case PurgeFailed():
                self._delivered = [*self._purging, *self._delivered]
                self._purging = {}
                # What we purged may be there again under our tags (see `MarkScheduler`).
                self._open = False
                self._forget_succeeded()
                actions = [] if self._stopping else self._purge(self._pace.backoff_ms())
                if self._stopping:
                    self._delivered = []  # the next leader delivers them again
            case DeadLettersAdded(ids, waiting):
                self._dead_letters_added(ids, waiting)
            case MarkFailed(batch):
                self._marking = self._open = False
                self._mark_failed(batch)
            case AddFailed():
                self._dead_letters_added(frozenset(), self.row_filter.waiting)
            case Start() | Tick():
                pass
            case Opened(term, waiting, retries, settled):
                self._opening, self._open, self._term, self._batch = False, True, term, 0
                self._purges_foreign = bool(self._purging)  # it began in an earlier term
                self._set_waiting(waiting)
                self._settled = {**settled, **self._settled}
                self._shed.clear()
                self._shed_destinations.clear()
                self._anew_ms = None
                self.dispatcher.remember(retries)
            case OpenFailed():
                self._opening = False
            case LeaseLost():
                self._done = True
                return [Finish("the lease is lost")]
            case Stop():
                self._stopping = True
        self._forget_succeeded()
        if self._anew_ms is not None and self.now() >= self._anew_ms:
            self._open = False
        actions += self._continue(first=isinstance(event, Start))
        notes, self._notes = self._notes, []
        return notes + actions

    def _marked(self, batch: int, rows: Sequence[Row]) -> None:
        assert self._term is not None
        tag = self._term.tag(batch)
        self._pace.learn(len(rows), payload_bytes(rows), full=len(rows) >= self._asked)
        messages = []
        for row in rows:
            if (known := self._known.get(row.id)) is not None:
                if known.row == row:
                    known.tags = (tag,)
                    again, known.shed = known.shed, {}
                    if again:
                        if known.bad is None and self.row_filter.waits(row):
                            known.bad = waiting_row(row)  # one before it was given up meanwhile
                        if known.bad is None:
                            messages += self._offered(known, list(again.values()))
                        self._look_at(row.id)
                else:
                    self._succeeded.add(row.id)
                continue
            known = self._known[row.id] = _Known(row, (tag,), payload_bytes((row,)))
            self.in_flight_bytes += known.size
            self._remember(known)
            if self.row_filter.waits(row):
                known.bad = waiting_row(row)
                self._look_at(row.id)
                continue
            messages += self._offered(known, self.route(row))
            self._look_at(row.id)
        self.dispatcher.offer(messages, self.now())

    def _offered(self, known: _Known, messages: Sequence[Message]) -> list[Message]:
        """Those of a row's messages that are not settled or shed."""
        offered = []
        for message in messages:
            if message.lane in known.settled:
                continue
            if message.group in self._shed or (
                message.destination in self._shed_destinations and message.problem is None
            ):
                self._shed.add(message.group)
                known.shed[message.lane] = message
            else:
                known.open.add(message.lane)
                offered.append(message)
        return offered

    def _remember(self, known: _Known) -> None:
        """Where a row that was forgotten is settled already."""
        settled = self._settled.pop(known.row.id, None)
        if settled is not None and settled[0] == fingerprint(known.row):
            known.settled.update(settled[1])
            known.noted = True

    def _look_at(self, row_id: int) -> None:
        """What becomes of a row of which a message was decided."""
        known = self._known[row_id]
        if known.open:
            return
        if known.bad is not None:  # given up at one destination: set aside, though shed at another
            known.shed.clear()
            self._set_aside(known, known.bad)
        elif known.shed:  # it is marked again in another term
            (message, *_) = known.shed.values()
            noted = known.note is not None and known.note.delivered == known.delivered
            if known.settled and not noted:
                left = Outcome(error=f"{message.destination!r} is left alone")
                self._note(known, message, 0, left)
            self._forget(row_id)
        else:
            self._delivered.append(row_id)
            if known.noted:
                self._notes.append(Forget(row_id))

    def _note(
        self,
        known: _Known,
        message: Message,
        retries: int,
        outcome: Outcome,
        *,
        gave_up: bool = False,
    ) -> None:
        known.note = Record(message, retries, outcome, gave_up, known.delivered)
        known.noted = True
        self._notes.append(known.note)

    def _mark_failed(self, batch: int) -> None:
        """Every row that had a tag of an earlier term may have that of this mark now."""
        assert self._term is not None
        tag = self._term.tag(batch)
        for known in self._known.values():
            if self._foreign(known.tags):
                known.tags = (*known.tags, tag)

    def _sent(self, event: Sent) -> None:
        verdict = self.dispatcher.finished(event.row_id, event.outcome, self.now(), event.lane)
        message = verdict.message
        if isinstance(verdict, Untried):
            return
        if not isinstance(verdict, Failed) and (
            (message.destination in self._shed_destinations and message.problem is None)
            or message.group in self._shed
        ):
            self._open = False  # it takes messages again, or there is none to try it with
        known = self._known[event.row_id]
        match verdict:
            case Delivered(_, retries):
                self._anew.pop(message.destination, None)
                self._not_added.pop(event.row_id, None)
                known.open.discard(message.lane)
                known.noted |= retries > 0
                if message.lane:
                    known.settled.add(message.lane)
                    remains = known.open or known.shed or known.bad is not None
                    if remains and known.note is not None:
                        last = known.note
                        self._note(
                            known, last.message, last.retries, last.outcome, gave_up=last.gave_up
                        )
            case Failed(_, retries, outcome):
                self._note(known, message, retries, outcome)
            case GivenUp(_, retries, outcome):
                known.open.discard(message.lane)
                tries = "try" if retries == 1 else "tries"
                self._note(known, message, retries, outcome, gave_up=True)
                self._give_up(message, f"{outcome.error}; given up after {retries} {tries}")
                return
        self._look_at(event.row_id)

    # --- Dead letters ---

    def _give_up(self, message: Message, error: str) -> None:
        """Where the row goes to several destinations, it is set aside when all are decided."""
        if message.lane and message.problem is None:
            error = f"{message.destination}: {error}"
        self._known[message.row.id].bad = BadRow(message.row.id, error)
        self._look_at(message.row.id)
        if self.row_filter.policy.key_waits:
            self.row_filter.hold_back(message.key, message.row.id)
            for behind in self.dispatcher.withdraw(message.group):
                known = self._known[behind.row.id]
                known.open.discard(behind.lane)
                known.bad = known.bad or waiting_row(behind.row)
                self._look_at(behind.row.id)

    def _set_aside(self, known: _Known, bad: BadRow) -> None:
        """Not before the row that it waits for: it would be refused."""
        rows, known.behind = [bad, *known.behind], []
        key = known.row.topic, known.row.key
        first = self._known.get(self.row_filter.waiting.get(key, bad.id))
        if bad.waits and first is not None and first.bad is not None and first.open:
            first.behind += rows
        else:
            self._bad_rows += rows

    def _set_waiting(self, waiting: Mapping[Key, int]) -> None:
        """As the store has it; and what is given up, and not set aside yet."""
        self.row_filter.waiting = dict(waiting)
        if self.row_filter.policy.key_waits:
            for row_id, known in self._known.items():
                if known.bad is not None:
                    self.row_filter.hold_back((known.row.topic, known.row.key), row_id)

    def _add_dead_letters(self) -> list[Action]:
        """Before their term ends, and not while a mark may find other rows under their ids."""
        if self._marking or self._adding or self._opening or self._term is None:
            return []
        bad_rows, self._bad_rows = self._bad_rows, []
        self._adding = tuple([row for row in bad_rows if row.id not in self._succeeded])
        for row in bad_rows:
            if row.id in self._succeeded:
                self._forget(row.id)
        return [AddDeadLetters(self._term, self._adding)] if self._adding else []

    def _dead_letters_added(self, ids: frozenset[int], waiting: Mapping[Key, int]) -> None:
        """Dead letters are not ours any more. What is none will be marked again, in a new term."""
        for row in self._adding:
            if row.id in ids:
                self._not_added.pop(row.id, None)
            else:
                self._open = False
                if not row.waits:
                    self._postpone(row.id)
            self._forget(row.id)
        self._adding = ()
        if self._bad_rows:
            return  # the store does not know of these yet
        self._set_waiting(waiting)

    def _postpone(self, row_id: int) -> None:
        """It will be marked again, and is not sent at once each time."""
        known = self._known.get(row_id)
        if known is None:
            return
        failures = self._not_added[row_id] = self._not_added.get(row_id, 0) + 1
        pause_ms = self.limits.io_error_backoff_ms << min(failures - 1, 16)
        due_ms = self.now() + min(pause_ms, self.limits.max_io_error_backoff_ms)
        for message in self.route(known.row):
            if message.lane not in known.settled:
                self.dispatcher.postpone(message, due_ms)

    def _forget_succeeded(self) -> None:
        """Purge no id under which another row has come: ours is gone.

        The other one may have a tag that the purge names for a third row's sake.
        """
        for row_id in self._succeeded.intersection(self._delivered):
            self._delivered.remove(row_id)
            self._forget(row_id)

    def _forget(self, row_id: int) -> None:
        known = self._known.pop(row_id, None)
        if known is not None:
            self.in_flight_bytes -= known.size
            if known.settled:
                self._settled[row_id] = fingerprint(known.row), frozenset(known.settled)
        if row_id in self._succeeded:
            self._succeeded.discard(row_id)
            self._open = False

    # --- What next ---

    def _continue(self, *, first: bool) -> list[Action]:
        if self._stopping:
            return self._finish()
        actions = self._add_dead_letters()
        if self._open:
            actions += self._mark()
        elif not (self._opening or self._marking or self._adding):
            self._opening = True
            actions.append(Open(0 if first else self._pace.backoff_ms()))
        return actions + self._post() + self._purge(0)

    def _post(self) -> list[Action]:
        started = self.dispatcher.start(self.now())
        requests: list[list[Message]] = []
        for message in started:
            if message.joined:
                requests[-1].append(message)
            else:
                requests.append([message])
        return [Post(first, tuple(more)) for first, *more in requests]

    def _mark(self) -> list[Action]:
        self._shed_waits = False
        if self._marking or self._adding or self._term is None:
            return []
        foreign = self._purges_foreign if self._purging else self._delivered_foreign()
        if foreign or (self._shed_destinations and len(self._settled) >= _MAX_SETTLED):
            return []
        batches = 1 if self._known else 0
        room = self._pace.room(batches, len(self._known), self.in_flight_bytes)
        if not room:
            room = self._make_room()
        if not room:
            return []
        self._marking, self._asked = True, room
        self._batch += 1
        return [Mark(self._term, self._batch - 1, room, self._pace.idle_ms)]

    def _make_room(self) -> int:
        """Shed what cannot be sent now; return for how many rows there is room then."""
        now_ms = self.now()
        self._shed_waits = now_ms < self._shed_after_ms
        if self._shed_waits:
            return 0
        self._shed_after_ms = now_ms + _SHED_EVERY_MS
        shed = self.dispatcher.shed(now_ms)
        for name in shed.by_destination.keys() - self._shed_destinations:
            self._shed_destination(name, now_ms)
        forgotten = [*itertools.chain(*shed.by_destination.values()), *shed.behind]
        for message in forgotten:
            self._shed.add(message.group)
            known = self._known[message.row.id]
            known.open.discard(message.lane)
            known.shed[message.lane] = message
            self._look_at(message.row.id)
        behind = [known for known in self._known.values() if known.behind]
        for known in behind:
            # They take the room of others. A new term finds them when one of these is decided.
            self._shed.update([(known.row.topic, known.row.key, lane) for lane in known.open])
            for bad in known.behind:
                self._forget(bad.id)
            known.behind = []
        batches = 1 if self._known else 0
        freed = forgotten or behind
        return self._pace.room(batches, len(self._known), self.in_flight_bytes) if freed else 0

    def _shed_destination(self, name: str, now_ms: float) -> None:
        self._shed_destinations.add(name)
        destination = self.dispatcher.destinations[name]
        if destination.gone:
            return
        times = self._anew[name] = self._anew.get(name, -1) + 1
        pause_ms = _ANEW_MS * 2 ** min(times, _MAX_DOUBLINGS)
        anew_ms = max(now_ms, destination.closed_until_ms) + pause_ms
        self._anew_ms = anew_ms if self._anew_ms is None else min(self._anew_ms, anew_ms)

    def _purge(self, delay_ms: int) -> list[Action]:
        if self._purging or not self._delivered:
            return []
        self._purges_foreign = self._delivered_foreign()
        if self._purges_foreign and self._marking:
            return []
        self._purging = {row_id: self._known[row_id].tags for row_id in self._delivered}
        self._delivered = []
        tags = sorted({tag for tags in self._purging.values() for tag in tags})
        return [Purge(tuple(self._purging), tags, delay_ms)]

    def _delivered_foreign(self) -> bool:
        """Whether a mark of this term may give another tag to a row that is to be purged.

        The purge would then miss it, and delete later ones of its group; so the two take turns.
        """
        return any(self._foreign(self._known[row_id].tags) for row_id in self._delivered)

    def _foreign(self, tags: tuple[UUID, ...]) -> bool:
        assert self._term is not None
        return len(tags) > 1 or not self._term.first <= tags[0] <= self._term.last

    def _finish(self) -> list[Action]:
        """Wait for what is under way; what was not sent is the next leader's."""
        if self._marking or self._opening or self._adding or self.dispatcher.under_way:
            return self._purge(0)
        if purge := self._purge(0):
            return purge
        if self._purging:
            return []
        self._done = True
        return [Finish("stopped")]
