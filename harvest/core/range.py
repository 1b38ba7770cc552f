"""The range algorithm: a pure scheduler. Events in, actions out; no thread, clock, random or I/O.

Theory of operation (specs/HARVEST.md §14 to §15)
-------------------------------------------------
Rows are read in the order of their ids, above a *position* that only grows, and never touched. A
row that is sent is above the position, or in an open *gap* below it: an id that was drawn and was
not to be seen, because its transaction had not committed yet, or never will. Position and gaps are
the checkpoint, committed in the same Kafka transaction as the rows; so after any failure, whoever
opens the sink knows exactly which rows are published. After one, everything drains and starts again
from there: takeover and repair are the same code.

One question to the table is under way at a time; sends are another thread's, many at a time.
The questions go round in a cycle:

    read → (any gap open?) holders → (a suspect ended?) lookup → (rows appeared?) fetch → send

1. *Read* a window above the position. What it did not see between the ids it saw is a new gap.
2. *Holders*: the transactions that may still commit an id they have drawn. Taken after the read,
   they include every transaction that may yet commit a gap of it: they are its suspects.
3. *Lookup*, if a gap has no evidence yet or a suspect has ended: which ids of the gaps are to be
   seen now? It comes after the holders, so a gap whose suspects had all ended by then and that is
   still not seen is dead. The others wait with the suspects that remain. (`harvest.core.gaps`)
4. *Fetch* the rows that appeared, if any: committed rows do not change, so it may take many steps.
5. *Send* them and the window, in the order of the ids.

Why the order of a key holds, for an application that lets its transactions follow one another: let
row 5 be committed before row 9 of its key was inserted, and let a window show 9. If 5 is a gap, its
transaction ended before the window was read, hence is not among the holders taken after it, hence
there is a lookup, and it finds 5 before the window is sent; and 5 is sent first. Should a lookup
find 9, it finds 5 too, since it sees all gaps at one moment.

A gap waits for the transactions that were inserting when it was noticed, and for no others: one
that never touches the outbox delays nothing, and one that holds an id open delays nothing but it.

If the gaps are too many for the checkpoint, the position stands still, until gaps are closed;
late rows are still published. No gap is ever dropped to make room.

Rows that cannot be published become dead letters, as in every mode (harvest/core/dead_letters.py):
copies, for rows are never touched. Their ids are passed like those of the rows that are published.
"""

# ruff: noqa: S101 - an invariant that does not hold must stop the harvest

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import itemgetter
from typing import Final, TypeAlias

from harvest.core.actions import Finish, LeaseLost, Open, OpenFailed, Start, State, Stop
from harvest.core.dead_letters import (
    AddDeadLetters,
    AddFailed,
    BadRow,
    BadRowFilter,
    DeadLettersAdded,
    Key,
)
from harvest.core.failure import Failure
from harvest.core.gaps import Gaps, Holders, Range, bridged, clip, first_ids, subtract, union
from harvest.core.interfaces.range_store import Bounds, Window
from harvest.core.pacing import Limits, Pace
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row, payload_bytes

__all__ = [
    "Action",
    "AddDeadLetters",
    "AddFailed",
    "AskFailed",
    "AskHolders",
    "CheckTable",
    "DeadLettersAdded",
    "Event",
    "Fetch",
    "Fetched",
    "Finish",
    "Found",
    "HoldersSeen",
    "LeaseLost",
    "Lookup",
    "Open",
    "OpenFailed",
    "Opened",
    "RangeScheduler",
    "Read",
    "ReadDone",
    "Refresh",
    "Send",
    "Settled",
    "Start",
    "State",
    "Stop",
    "TableChecked",
]

_CHECKPOINT_BYTES: Final = 3_960  # of the 4,096 of a broker's default offset.metadata.max.bytes
"""Without the position in the database's log, which takes at most 30 more."""
_HEAD_BYTES: Final = 100  # of a checkpoint without gaps, at most
_GAP_BYTES: Final = 25  # of one gap, at most
_BEFORE_ALL: Final = -(1 << 63) - 1
_EMPTY: Final = Window((), 0)
_id: Final = itemgetter(0)

# --- Events: what has happened ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The sink is open and every earlier writer fenced; `position` is the last one committed.

    `waiting`: the keys that have a dead letter, and the lowest id of each.
    """

    position: Position | None
    waiting: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableChecked:
    """The bounds of the ids in the table, which fit the position."""

    bounds: Bounds


@dataclass(frozen=True, slots=True)
class ReadDone:
    """A window of the table."""

    window: Window


@dataclass(frozen=True, slots=True)
class HoldersSeen:
    """Who may still commit what was drawn."""

    holders: Holders


@dataclass(frozen=True, slots=True)
class Found:
    """The ids of the gaps that are to be seen now."""

    ids: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows of the ids that were found; of this shard."""

    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class AskFailed:
    """The database did not answer."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The sink has decided about these sends: published, or not as `failure` says."""

    sends: tuple[int, ...]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Refresh:
    """Commit the checkpoint without rows: if it has changed, or `anyway` lest Kafka forget it."""

    anyway: bool = False


Event: TypeAlias = (
    Start
    | Opened
    | OpenFailed
    | TableChecked
    | ReadDone
    | HoldersSeen
    | Found
    | Fetched
    | AskFailed
    | Settled
    | DeadLettersAdded
    | AddFailed
    | Refresh
    | LeaseLost
    | Stop
)

# --- Actions: what is to be done -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckTable:
    """Check that table and `position` belong together; answer TableChecked or AskFailed."""

    position: Position | None


@dataclass(frozen=True, slots=True)
class Read:
    """After `delay_ms`, read up to `limit` rows above `after`; answer ReadDone or AskFailed."""

    after: int
    limit: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class AskHolders:
    """Ask who holds ids; answer HoldersSeen or AskFailed."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """See which ids of `ranges` are there, all at one moment; answer Found or AskFailed."""

    ranges: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the rows `ids`, which are there; answer Fetched or AskFailed."""

    ids: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Send:
    """Publish `rows` in this order, with `position`; answer Settled. Sends keep their order."""

    number: int
    rows: Sequence[Row]
    position: Position


Action: TypeAlias = (
    Open | CheckTable | Read | AskHolders | Lookup | Fetch | Send | AddDeadLetters | Finish
)


class _Question(Enum):
    """Which comes next."""

    READ = "read"
    HOLDERS = "holders"
    LOOKUP = "lookup"
    FETCH = "fetch"


@dataclass(slots=True)
class RangeScheduler:
    """The state machine of one shard. Feed every event to `step`, carry out every action."""

    epoch: int
    shard: int = 0
    shards: int = 1
    limits: Limits = field(default_factory=Limits)
    checkpoint_bytes: int = _CHECKPOINT_BYTES
    row_filter: BadRowFilter = field(default_factory=BadRowFilter)
    state: State = State.NEW
    in_flight_records: int = 0
    in_flight_bytes: int = 0
    last_id: int = 0
    """The position: of what was sent, not of what is settled."""
    gaps: Gaps = field(default_factory=Gaps)
    """Those up to the position; within a cycle, also those of its window."""
    crowded: bool = False
    """The gaps do not fit into a checkpoint, and the position stands still."""
    _pace: Pace = field(init=False)
    _next_send: int = 0
    _sends: dict[int, tuple[Sequence[Row], int]] = field(default_factory=dict)
    """Rows and bytes of every send that is not settled."""
    _sent: Position | None = None
    """The checkpoint that was sent last."""
    _asking: bool = False
    _opening: bool = False
    _question: _Question = _Question.READ
    _window: Window = _EMPTY
    """What was read in this cycle and is not sent yet."""
    _window_bytes: int = 0
    _late: Sequence[Range] = ()
    """Ids of gaps that were found and are not sent yet."""
    _dead: Sequence[Range] = ()
    """Ids beside them that will never come. A checkpoint that has no room for ranges with holes may
    name these, too: whoever goes on from there looks for them once more, in vain."""
    _fetching: Sequence[Range] = ()
    _adding: bool = False
    _held: Send | None = None
    """What is sent when its bad rows are dead letters."""
    _refused: dict[int, BadRow] = field(default_factory=dict)
    """What the sink refused, until it is a dead letter."""
    _left_out: set[int] = field(default_factory=set)
    """What the sink refused, and is a dead letter: it is read again, and not sent again. What is
    behind the position goes when the sink is opened, as it is after each such row."""
    _relieved: bool = False
    """What a delivery failed for is out of the way: no reason to wait before the next."""

    def __post_init__(self) -> None:
        self._pace = Pace(self.limits)

    @property
    def open_gaps(self) -> int:
        """How many ranges of ids are undecided, or decided and not sent yet."""
        return len(self.gaps) + len(self._late)

    @property
    def position(self) -> Position:
        """Of what was sent, with all gaps."""
        return Position(self.epoch, self.shard, self.shards, self.last_id, tuple(self.gaps.ranges))

    @property
    def running(self) -> bool:
        """Whether it works, and neither begins nor recovers, nor fails again and again."""
        return self.state is State.RUNNING and not self._pace.failing

    def step(self, event: Event) -> list[Action]:
        """Apply one event; return the actions that follow from it, in order."""
        if self.state is State.DONE:
            return []
        actions: list[Action] = []
        match event:
            case ReadDone() | HoldersSeen() | Found() | Fetched():
                self._asking = False
                if self.state is State.RUNNING:
                    actions = self._answered(event)
            case Settled():
                self._settled(event)
            case Refresh(anyway):
                if self.state is State.RUNNING and not (self._sends or self._adding):
                    changed = self._position(self.last_id, self._late) != self._sent
                    actions = self._send((), 0) if changed or anyway else []
            case Start():
                assert self.state is State.NEW
                actions = self._open(0)
            case Opened(position, waiting):
                actions = self._opened(position, waiting)
            case TableChecked(bounds):
                self._opening = False
                if self.state is State.OPENING:
                    self.state = State.RUNNING
                    self.last_id = max(self.last_id, bounds.first - 1)
            case OpenFailed():
                actions = self._open_again()
            case AskFailed():
                if self._opening:
                    actions = self._open_again()
                else:
                    self._asking = False
                    self._fail()
            case DeadLettersAdded(ids, waiting):
                actions = self._dead_letters_added(ids, waiting)
            case AddFailed():
                self._adding, self._held = False, None
                self._fail()
            case LeaseLost():
                self.state = State.DONE
                return [Finish("the lease is lost")]
            case Stop():
                if self.state is State.NEW:
                    self.state = State.DONE
                    return [Finish("stopped")]
                self.state = State.STOPPING
        return actions + self._continue()

    # --- Opening ---

    def _open(self, delay_ms: int) -> list[Action]:
        self.state = State.OPENING
        self._opening = True
        return [Open(delay_ms)]

    def _open_again(self) -> list[Action]:
        self._opening = False
        return [] if self.state is State.STOPPING else self._open(self._pace.backoff_ms())

    def _opened(self, position: Position | None, waiting: Mapping[Key, int]) -> list[Action]:
        assert not self._sends
        assert not self._asking
        assert not self._adding
        if self.state is State.STOPPING:
            self._opening = False
            return []
        self.last_id = _BEFORE_ALL
        self.gaps = Gaps(dead_ids=self.gaps.dead_ids)
        if position is not None:
            self.last_id = position.last_id
            self.gaps = self.gaps.plus(position.gaps)
        gaps = self.gaps.ranges
        self._left_out = {id for id in self._left_out if id > self.last_id or _within(id, gaps)}
        self._question = _Question.READ
        self._late = ()
        self._dead = ()
        self._sent = position and replace(position, timeline=0, log=0)
        self.row_filter.waiting = dict(waiting)
        self.crowded = False
        return [CheckTable(position)]

    # --- The cycle ---

    def _ask(self) -> list[Action]:
        """The next question of the cycle, if there is room for what it may return."""
        if self._asking or self._adding:
            return []
        limit = 0
        if self._question in (_Question.READ, _Question.FETCH):
            limit = self._pace.room(len(self._sends), self.in_flight_records, self.in_flight_bytes)
            if not limit:
                return []
        self._asking = True
        match self._question:
            case _Question.READ:
                return [Read(self.last_id, limit, self._pace.idle_ms)]
            case _Question.HOLDERS:
                return [AskHolders()]
            case _Question.LOOKUP:
                return [Lookup(self.gaps.ranges)]
            case _Question.FETCH:
                self._fetching = first_ids(self._late, limit)
                return [Fetch(self._fetching)]

    def _answered(self, event: ReadDone | HoldersSeen | Found | Fetched) -> list[Action]:
        match event:
            case ReadDone(window):
                self._window, self._window_bytes = window, payload_bytes(window.rows)
                if not self.crowded:  # what is read again is no reason to ask sooner
                    self._pace.learn(len(window.rows), self._window_bytes, full=window.full)
                self.gaps = self.gaps.plus(window.missing)
                if self.gaps:
                    self._question = _Question.HOLDERS
                    return []
            case HoldersSeen(holders):
                self.gaps = self.gaps.judged(holders)
                if self.gaps.due:
                    self._question = _Question.LOOKUP
                    return []
            case Found(ids):
                before, self.gaps = self.gaps.ranges, self.gaps.looked(ids)
                self._late = union((*self._late, *ids))
                still_open = union((*self.gaps.ranges, *self._late))
                self._dead = subtract(bridged(still_open, (*self._dead, *before)), still_open)
            case Fetched(rows):
                upto = self._fetching[-1][1]
                full = upto < self._late[-1][1]
                self._pace.learn(len(rows), payload_bytes(rows), full=full)
                if full:
                    return self._advance(upto, rows)
                return self._advance(self._window.last_id, rows)
        if self._late:
            self._question = _Question.FETCH
            return []
        return self._advance(self._window.last_id, ())

    def _advance(self, upto: int, late: Sequence[Row]) -> list[Action]:
        """Send late rows, and those of the window, up to an id or as far as the gaps fit."""
        window = self._window.rows
        reach = self._reach(upto, late)
        here = window if reach >= self._window.last_id else window[: _count(window, reach)]
        late = late if reach >= upto else late[: _count(late, reach)]
        before, (self.last_id, self._late) = self.last_id, self._after(reach)
        if reach < upto:  # what is above the position is read again: it may change until it fits
            self.gaps = self.gaps.upto(self.last_id)
            self._late = clip(self._late, _BEFORE_ALL, self.last_id)
            self.crowded = True
            if self.last_id == before:
                self._pace.wait_longer()
            else:
                self._pace.learn(len(here), payload_bytes(here), full=False)
            self._question = _Question.READ
        else:
            self._window = self._window._replace(rows=window[len(here) :])
            if not self._late:
                self.crowded = False
                self._question = _Question.READ
        if late:
            here = sorted((*late, *here), key=_id)
        if not here:
            if not self._sends:
                self._pace.nothing_left()
            return []
        return self._send(here, self._window_bytes if here is window else payload_bytes(here))

    def _after(self, upto: int) -> tuple[int, Sequence[Range]]:
        """Position, and late ids that are left, once everything up to an id is sent."""
        late = clip(self._late, upto + 1, self._late[-1][1]) if self._late else ()
        return max(self.last_id, min(upto, self._window.last_id)), late

    def _reach(self, upto: int, late: Sequence[Row]) -> int:
        """How far what is sent may go, up to `upto`, for the gaps to fit into the checkpoint."""
        if self._fits(upto):
            return upto
        steps = sorted({row[0] for row in (*late, *self._window.rows) if row[0] < upto})
        low, high = 0, len(steps)  # what is sent up to steps[low - 1] fits
        while low < high:
            middle = (low + high) // 2
            if self._fits(steps[middle]):
                low = middle + 1
            else:
                high = middle
        return steps[low - 1] if low else _BEFORE_ALL

    def _fits(self, upto: int) -> bool:
        return self._has_room(self._position(*self._after(upto)))

    def _has_room(self, position: Position) -> bool:
        most = _HEAD_BYTES + _GAP_BYTES * len(position.gaps)  # so few need not be encoded
        return most <= self.checkpoint_bytes or len(position.encode()) <= self.checkpoint_bytes

    def _position(self, last_id: int, late: Sequence[Range]) -> Position:
        ranges: Sequence[Range] = ()
        if self.gaps or late:
            ranges = clip(union((*self.gaps.ranges, *late)), _BEFORE_ALL, last_id)
        position = Position(self.epoch, self.shard, self.shards, last_id, tuple(ranges))
        if self._dead and not self._has_room(position):
            joined = bridged(ranges, clip(self._dead, _BEFORE_ALL, last_id))
            position = Position(self.epoch, self.shard, self.shards, last_id, tuple(joined))
        return position

    # --- Sends ---

    def _send(self, rows: Sequence[Row], size: int) -> list[Action]:
        """Send rows, with the checkpoint, once the bad ones among them are dead letters."""
        if self._left_out:
            rows = [row for row in rows if row[0] not in self._left_out]
            size = payload_bytes(rows)
        send = Send(self._next_send, rows, self._position(self.last_id, self._late))
        self._next_send += 1
        self._sent = send.position
        bad_rows = self.row_filter.find_bad(rows, copied=True)
        if not bad_rows:
            return [self._begin(send, size)]
        self._held, self._adding = send, True
        return [AddDeadLetters(None, tuple(bad_rows))]

    def _begin(self, send: Send, size: int) -> Send:
        self._sends[send.number] = (send.rows, size)
        self.in_flight_records += len(send.rows)
        self.in_flight_bytes += size
        return send

    def _settled(self, event: Settled) -> None:
        failure = event.failure
        if failure is not None and self.state is State.RUNNING and not failure.refused:
            self._pace.failed(sum([len(self._sends[n][0]) for n in event.sends]))
        for number in event.sends:
            rows, size = self._sends.pop(number)
            self.in_flight_records -= len(rows)
            self.in_flight_bytes -= size
            if event.failure is not None:
                refused = self.row_filter.find_refused(rows, event.failure)
                self._refused.update({row.id: row for row in refused})
        if event.failure is None:
            self._pace.succeeded()
        else:
            self._fail()

    def _dead_letters_added(self, ids: frozenset[int], waiting: Mapping[Key, int]) -> list[Action]:
        self._adding = False
        self.row_filter.waiting = dict(waiting)
        held, self._held = self._held, None
        if held is None:
            self._left_out |= ids
            self._relieved = bool(ids)
        elif self.state is State.RUNNING:
            rows = [row for row in held.rows if row[0] not in ids]
            return [self._begin(replace(held, rows=rows), payload_bytes(rows))]
        return []

    def _fail(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.RECOVERING

    def _continue(self) -> list[Action]:
        if self.state is State.RUNNING:
            return self._ask()
        idle = not (self._sends or self._asking or self._opening or self._adding)
        if idle and self.state is State.RECOVERING:
            refused, self._refused = tuple(self._refused.values()), {}
            if refused:
                self._adding = True
                return [AddDeadLetters(None, refused)]
            relieved, self._relieved = self._relieved, False
            return self._open(0 if relieved else self._pace.backoff_ms())
        if idle and self.state is State.STOPPING:
            self.state = State.DONE
            return [Finish("stopped")]
        return []


def _count(rows: Sequence[Row], upto: int) -> int:
    """How many of the rows, which ascend, have ids up to `upto`."""
    return bisect_right(rows, upto, key=_id)


def _within(row_id: int, ranges: Sequence[Range]) -> bool:
    """Whether an id is in one of the ranges, which ascend."""
    below = bisect_right(ranges, row_id, key=_id)
    return below > 0 and row_id <= ranges[below - 1][1]
