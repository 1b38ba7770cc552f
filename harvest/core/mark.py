"""The mark algorithm: a pure scheduler. Events in, actions out; no thread, clock, random or I/O.

Theory of operation (specs/HARVEST.md §3 to §6)
-----------------------------------------------
One `MarkScheduler` lives as long as one leadership. It moves rows through

    marked (tagged in the table) → sent (in the sink) → settled → purged (deleted)

with many rows, of one key too, in each stage at once, and keeps these invariants:

1. *One mark at a time, sends in mark order.* A mark takes the lowest ids that are not ours, and
   rows are sent in id order within a mark. So a key's rows are sent in the order in which the
   marks saw them.
2. *Nothing is sent twice while we know of it.* An id is known from its mark until its purge. A mark
   that returns a known id (somebody else tagged the row in between) does not send it again. If it
   is another row of that id (the database went back in time, or the table was emptied), the term
   ends, and the next one sends it.
3. *Only what the sink has acknowledged is purged*, one purge at a time, in the order of the sends,
   and named by id and tag: a row that came under the id of a published one is none of ours.
4. *After a failure*, of a purge, too, everything stops, drains, and starts again as if by a new
   leader: open the sink (which fences every earlier writer and tells the committed checkpoint),
   delete what the checkpoint says is published, take a new term, and mark from the head of the
   table. There is no other recovery path, so takeover and repair are the same code.

Why order survives a failure, without a barrier of one row in flight per key:

- *A sink with transactions* settles a batch as a whole, and batches one after the other. If batch n
  fails, or its outcome is unknown, the sink refuses every later one until it is opened again.
  Opening decides the outcome: the checkpoint is in the same transaction, so either the batch is
  published and the checkpoint names it, or neither. Its rows still carry their tags, therefore
  exactly the published ones are deleted, and exactly the others are marked again, in id order.
- *A sink without transactions* may acknowledge A2 after it failed A1 (same key A). Purging A2 would
  make the reversal permanent. So from the first failed row of a key on, no later row of that key is
  purged in this term, acknowledged or not: they are marked and sent again, in order. A reader sees
  the key's rows from A1 on again, at least once, and the last one last.

Rows that cannot be published become dead letters, as in every mode (harvest/core/dead_letters.py).

Tags of rows that were sent are never reset: the tag is what tells the next term whether they were
published. `Reset` gives back only rows that were marked and never sent.

Losing the lease ends the scheduler at once. Whatever is unpurged is the next leader's to decide,
by the same rule.
"""

# ruff: noqa: S101 - an invariant that does not hold must stop the harvest

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from harvest.core.actions import Finish, LeaseLost, Open, OpenFailed, Start, State, Stop
from harvest.core.dead_letters import (
    AddDeadLetters,
    AddFailed,
    BadRow,
    BadRowFilter,
    DeadLettersAdded,
)
from harvest.core.failure import Failure
from harvest.core.mark_actions import (
    Action,
    Clear,
    Cleared,
    ClearFailed,
    Event,
    Mark,
    Marked,
    MarkFailed,
    Opened,
    Purge,
    Purged,
    PurgeFailed,
    Reset,
    ResetDone,
    Send,
    Settled,
)
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.pacing import Limits, Pace
from harvest.core.row import Row, payload_bytes

__all__ = [
    "Action",
    "AddDeadLetters",
    "AddFailed",
    "Clear",
    "ClearFailed",
    "Cleared",
    "DeadLettersAdded",
    "Event",
    "Finish",
    "LeaseLost",
    "Limits",
    "Mark",
    "MarkFailed",
    "MarkScheduler",
    "Marked",
    "Open",
    "OpenFailed",
    "Opened",
    "Purge",
    "PurgeFailed",
    "Purged",
    "Reset",
    "ResetDone",
    "Send",
    "Settled",
    "Start",
    "State",
    "Stop",
]


@dataclass(slots=True)
class _Batch:
    rows: Sequence[Row]
    size_bytes: int
    low_id: int
    high_id: int
    tags: list[UUID]
    """Of its rows: that of its mark, and of later marks that returned some of them again."""
    published_ids: Sequence[int] | None = None
    """What is to be purged, once the batch is settled."""


@dataclass(slots=True)
class MarkScheduler:
    """The state machine. Feed every event to `step`, carry out every action it returns."""

    epoch: int
    limits: Limits = field(default_factory=Limits)
    row_filter: BadRowFilter = field(default_factory=BadRowFilter)
    state: State = State.NEW
    in_flight_records: int = 0
    in_flight_bytes: int = 0
    _term: Term | None = None
    _next_batch: int = 0
    _marking: bool = False
    _opening: bool = False
    _resetting: bool = False
    _purging: Mapping[int, int] = field(default_factory=dict)
    """The batches of the purge under way, and how many tags each had when it began."""
    _batches: dict[int, _Batch] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    _broken_keys: set[tuple[str, bytes | None]] = field(default_factory=set)
    _giving_up: bool = False
    _adding: bool = False
    _held: Marked | None = None
    """A mark that is sent when its bad rows are dead letters."""
    _held_bad_rows: tuple[BadRow, ...] = ()
    _refused: dict[int, BadRow] = field(default_factory=dict)
    """What the sink refused, until it is a dead letter."""
    _relieved: bool = False
    """What a delivery failed for is out of the way: no reason to wait before the next."""
    _pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self._pace = Pace(self.limits)

    @property
    def running(self) -> bool:
        """Whether it works, and neither begins nor recovers, nor fails again and again."""
        return self.state is State.RUNNING and not self._pace.failing

    def step(self, event: Event) -> list[Action]:
        """Apply one event; return the actions that follow from it, in order."""
        if self.state is State.DONE:
            return []
        match event:
            case Settled():
                actions = self._settled(event)
            case Marked():
                actions = self._marked(event)
            case Purged():
                actions = self._purged()
            case Start():
                assert self.state is State.NEW
                actions = self._open(0)
            case Opened():
                actions = self._opened(event)
            case Cleared():
                self._opening = False
                if self.state is State.OPENING:
                    self.state = State.RUNNING
                actions = []
            case OpenFailed() | ClearFailed():
                self._opening = False
                actions = (
                    [] if self.state is State.STOPPING else self._open(self._pace.backoff_ms())
                )
            case MarkFailed():
                self._marking = False
                self._fail()
                actions = []
            case PurgeFailed():
                actions = self._purge_failed()
            case ResetDone():
                self._resetting = False
                actions = []
            case DeadLettersAdded():
                actions = self._dead_letters_added(event)
            case AddFailed():
                self._adding, self._held = False, None
                self._fail()
                actions = []
            case LeaseLost():
                self.state = State.DONE
                return [Finish("the lease is lost")]
            case Stop():
                if self.state is State.NEW:
                    self.state = State.DONE
                    return [Finish("stopped")]
                self.state = State.STOPPING
                actions = []
        return actions + self._continue()

    # --- Opening ---

    def _open(self, delay_ms: int) -> list[Action]:
        self.state = State.OPENING
        self._opening = True
        return [Open(delay_ms)]

    def _opened(self, event: Opened) -> list[Action]:
        assert not self._batches
        assert event.term != self._term, "a term is never used twice"
        self._term = event.term
        self._next_batch = 0
        self._broken_keys.clear()
        self.row_filter.waiting = dict(event.waiting)
        if event.checkpoint is None or self.state is State.STOPPING:
            self._opening = False
            if self.state is State.OPENING:
                self.state = State.RUNNING
            return []
        return [Clear(event.checkpoint)]

    # --- The way of a row ---

    def _marked(self, event: Marked) -> list[Action]:
        self._marking = False
        rows = event.rows
        size = payload_bytes(rows)
        self._pace.learn(len(rows), size, full=len(rows) >= self._pace.asked)
        if not self._known.isdisjoint([row.id for row in rows]):
            if not self._marked_again(event.batch, rows):
                self._fail()
            rows = [row for row in rows if row.id not in self._known]
            size = payload_bytes(rows)
        if not rows:
            if self.state is State.RUNNING and not self._batches:
                self._pace.nothing_left()
            return []
        if self.state is not State.RUNNING:
            if self.state is State.STOPPING:
                return self._reset(event.batch, rows)
            return []  # the next term marks them again
        bad_rows = self.row_filter.find_bad(rows)
        if not bad_rows:
            return self._send(event.batch, rows, size)
        self._held, self._held_bad_rows = Marked(event.batch, rows), tuple(bad_rows)
        return self._add_dead_letters(self._held_bad_rows)

    def _marked_again(self, number: int, rows: Sequence[Row]) -> bool:
        """Note the new tag of the known rows among `rows`; False if some are others of their ids.

        Such rows are not ours to purge: the term ends, and the next one marks and sends them.
        """
        assert self._term is not None
        batch_of = {row.id: (row, batch) for batch in self._batches.values() for row in batch.rows}
        again = [(row, *batch_of[row.id]) for row in rows if row.id in self._known]
        if any(row != sent for row, sent, _ in again):
            return False
        for batch in {id(batch): batch for _, _, batch in again}.values():
            batch.tags.append(self._term.tag(number))
        return True

    def _reset(self, number: int, rows: Sequence[Row]) -> list[Action]:
        assert self._term is not None
        self._resetting = True
        return [Reset(tuple([row.id for row in rows]), self._term.tag(number))]

    def _send(self, number: int, rows: Sequence[Row], size: int) -> list[Action]:
        assert self._term is not None
        tags = [self._term.tag(number)]
        self._batches[number] = _Batch(rows, size, rows[0].id, rows[-1].id, tags)
        self._known.update([row.id for row in rows])
        self.in_flight_records += len(rows)
        self.in_flight_bytes += size
        return [Send(number, rows, self._checkpoint(number))]

    def _checkpoint(self, batch: int) -> Checkpoint:
        assert self._term is not None
        low = min([b.low_id for b in self._batches.values()])
        high = max([b.high_id for b in self._batches.values()])
        return Checkpoint(self.epoch, self._term, batch, low, high)

    def _settled(self, event: Settled) -> list[Action]:
        if event.failure is None:
            self._pace.succeeded()
        elif self.state is State.RUNNING and not event.failure.refused:
            self._pace.failed(sum([len(self._batches[n].rows) for n in event.batches]))
        for number in event.batches:
            batch = self._batches[number]
            assert batch.published_ids is None
            published = self._published(batch.rows, event.failure)
            if event.failure is not None:
                blamed = self.row_filter.find_refused(batch.rows, event.failure)
                self._refused.update({row.id: row for row in blamed})
            if published and not self._giving_up:
                batch.published_ids = published
            else:
                self._forget(number)
        if event.failure is not None:
            self._fail()
        return self._purge(0)

    def _published(self, rows: Sequence[Row], failure: Failure | None) -> list[int]:
        """The ids that may be purged: acknowledged, and no earlier row of their key failed."""
        if failure is not None and failure.undelivered is None:
            self._broken_keys.update((row.topic, row.key) for row in rows)
            return []
        if failure is None and not self._broken_keys:
            return [row.id for row in rows]
        undelivered = (failure and failure.undelivered) or frozenset()
        published = []
        for row in rows:
            key = (row.topic, row.key)
            if row.id in undelivered:
                self._broken_keys.add(key)
            elif key not in self._broken_keys:
                published.append(row.id)
        return published

    def _purge(self, delay_ms: int) -> list[Action]:
        """Purge all that may be purged, unless a purge is under way.

        One at a time: if a later row of a key could be gone while an earlier one is not, a crash
        in between would publish the earlier one last.
        """
        if self._purging:
            return []
        settled = [n for n, batch in self._batches.items() if batch.published_ids is not None]
        if not settled:
            return []
        self._purging = {n: len(self._batches[n].tags) for n in settled}
        ids = [i for n in settled for i in self._batches[n].published_ids or ()]
        tags = [tag for n in settled for tag in self._batches[n].tags]
        return [Purge(ids, tags, delay_ms)]

    def _purged(self) -> list[Action]:
        for number, tags in self._purging.items():
            if len(self._batches[number].tags) == tags:  # else the purge may have missed some
                self._forget(number)
        self._purging = {}
        return self._purge(0)

    def _purge_failed(self) -> list[Action]:
        self._purging = {}
        # If the database went back in time, rows that we purged are there again, under our own
        # tags: only another term marks them. This may be all that is heard of it.
        self._fail()
        if self.state is not State.STOPPING:
            return self._purge(self._pace.backoff_ms())
        # What stays is tagged, and the next leader decides on it; a later purge would overtake it.
        self._giving_up = True
        for number in [n for n, b in self._batches.items() if b.published_ids is not None]:
            self._forget(number)
        return []

    def _forget(self, number: int) -> None:
        batch = self._batches.pop(number)
        self._known.difference_update([row.id for row in batch.rows])
        self.in_flight_records -= len(batch.rows)
        self.in_flight_bytes -= batch.size_bytes

    def _fail(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.RECOVERING

    # --- Dead letters ---

    def _add_dead_letters(self, bad_rows: tuple[BadRow, ...]) -> list[Action]:
        assert self._term is not None
        self._adding = True
        return [AddDeadLetters(self._term, bad_rows)]

    def _dead_letters_added(self, event: DeadLettersAdded) -> list[Action]:
        self._adding = False
        self.row_filter.waiting = dict(event.waiting)
        held, self._held = self._held, None
        if held is None:
            self._relieved = bool(event.ids)
            return []
        if any(a.waits and a.id not in event.ids for a in self._held_bad_rows):
            # Somebody retried what was before it, and it is in the table again: mark in order.
            self._relieved = True
            self._fail()
            return []
        # A bad row that was not moved is not ours any more, or gone.
        out = {a.id for a in self._held_bad_rows}
        rows = [row for row in held.rows if row.id not in out]
        if not rows:
            return []
        if self.state is State.STOPPING:
            return self._reset(held.batch, rows)
        if self.state is not State.RUNNING:
            return []
        return self._send(held.batch, rows, payload_bytes(rows))

    # --- What next ---

    def _continue(self) -> list[Action]:
        if self.state is State.RUNNING:
            return self._mark_if_room()
        busy = self._marking or self._opening or self._resetting or self._adding
        idle = not (self._batches or busy)
        if idle and self.state is State.RECOVERING:
            refused, self._refused = tuple(self._refused.values()), {}
            if refused:
                return self._add_dead_letters(refused)
            relieved, self._relieved = self._relieved, False
            return self._open(0 if relieved else self._pace.backoff_ms())
        if idle and self.state is State.STOPPING:
            self.state = State.DONE
            return [Finish("stopped")]
        return []

    def _mark_if_room(self) -> list[Action]:
        if self._marking or self._adding:
            return []
        limit = self._pace.room(len(self._batches), self.in_flight_records, self.in_flight_bytes)
        if not limit:
            return []
        assert self._term is not None
        self._marking = True
        mark = Mark(self._term, self._next_batch, limit, self._pace.idle_ms)
        self._next_batch += 1
        return [mark]
