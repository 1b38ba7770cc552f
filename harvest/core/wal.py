"""The wal algorithm: a pure scheduler. Events in, actions out; no thread, clock, random or I/O.

Theory of operation (specs/HARVEST.md §18)
------------------------------------------
A replication slot streams committed transactions in the order of their commits; the stream can be
read again from any commit that was not confirmed to the slot. The scheduler keeps three places in
the log, each at or behind the one before:

    sent → settled (published) → saved (the checkpoint, in Kafka) → confirmed to the slot

1. *Nothing is lost*: the slot is told only what is saved, and what is saved is published. So the
   slot always has what comes after the checkpoint. A slot that is ahead of the checkpoint was
   changed by somebody else, or made anew, and is refused (`harvest.core.wal_slot`).
2. *Once*: with a sink that is `atomic`, rows and checkpoint are one Kafka transaction. After any
   failure, or as a new leader, everything begins again from the checkpoint that opening the sink
   returns: a transaction whose commit record begins below it is skipped.
3. *At least once*: rows are sent without waiting for those before. Sends settle in any order; the
   checkpoint follows the longest beginning that is settled. After a failure everything behind it is
   sent again, in order.
4. *Progress*: after a delivery that failed for no row's sake, less is in flight, down to one row
   (harvest/core/pacing.py).
5. *Large transactions* are sent in parts, since they are committed when the first row is read; the
   checkpoint then says how many rows of which transaction are published. Rows that are read and not
   settled are bounded, and nothing is read without room: the server keeps the rest on its disk.

Rows that cannot be published become dead letters, as in every mode (harvest/core/dead_letters.py):
the stream's rows themselves, since there may be no table. Their ids, and those of all rows, are
places in the log, so they grow in the order in which transactions that exclude each other commit.
"""

# ruff: noqa: S101 - an invariant that does not hold must stop the harvest

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from harvest.core.actions import Finish, LeaseLost, Open, OpenFailed, Start, State, Stop
from harvest.core.dead_letters import AddFailed, BadRow, BadRowFilter, DeadLettersAdded, Key
from harvest.core.failure import Failure
from harvest.core.pacing import Limits, Pace
from harvest.core.row import Row, named, payload_bytes
from harvest.core.wal_position import WalPosition

__all__ = [
    "Action",
    "AddFailed",
    "AddRows",
    "Chunk",
    "CloseStream",
    "Confirm",
    "DeadLettersAdded",
    "Event",
    "Finish",
    "LeaseLost",
    "Open",
    "OpenFailed",
    "OpenStream",
    "Opened",
    "Read",
    "ReadDone",
    "Refresh",
    "Save",
    "SaveFailed",
    "Saved",
    "Send",
    "Settled",
    "Start",
    "State",
    "Stop",
    "StreamFailed",
    "StreamOpened",
    "WalScheduler",
]

_IDLE_BYTES: Final = 1 << 20
"""So much of the log may pass without rows of ours before the checkpoint follows."""

# --- Events: what has happened ---------------------------------------------------------------


class Chunk(NamedTuple):
    """Rows of one committed transaction, in their order: all, or a part of a large one.

    - `commit_lsn`: where its commit record begins. Transactions come in the order of these.
    - `first`: how many of its rows came before these.
    - `rows`: may be plain tuples; see `harvest.core.row.Row`.
    - `end_lsn`: where its commit record ends; 0 if more rows of it are to come.
    """

    commit_lsn: int
    first: int
    rows: Sequence[Row]
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The sink is open and every earlier writer of checkpoints fenced; `position` is the last one.

    `waiting`: the keys that have a dead letter, and the lowest id of each.
    """

    position: WalPosition | None
    waiting: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The stream begins at `position`: the one that was asked for, or that of a new slot.

    It may have been moved to another timeline of the server, never to another place with rows.
    """

    position: WalPosition


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The stream could not be opened, or broke off."""


@dataclass(frozen=True, slots=True)
class ReadDone:
    """What came from the stream; everything below `lsn` was read, 0 if that is not known.

    `asked`: the server wants to hear how far we are, say because it shuts down.
    """

    chunks: Sequence[Chunk]
    lsn: int = 0
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The sink has decided about these sends: published, or not as `failure` says."""

    sends: tuple[int, ...]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoint of the last `Save` is committed."""

    position: WalPosition


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """It is not known whether it is; or another leader has opened the sink."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Save the checkpoint if it has moved; or `anyway`, lest Kafka forget it."""

    anyway: bool = False


Event: TypeAlias = (
    Start
    | Opened
    | OpenFailed
    | StreamOpened
    | StreamFailed
    | ReadDone
    | Settled
    | Saved
    | SaveFailed
    | DeadLettersAdded
    | AddFailed
    | Refresh
    | LeaseLost
    | Stop
)

# --- Actions: what is to be done -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Check that slot and `position` belong together, and stream from it.

    Whoever reads the slot is ended first. Answer StreamOpened or StreamFailed.
    """

    position: WalPosition | None


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Read no more. Not answered."""


@dataclass(frozen=True, slots=True)
class Read:
    """When something comes, take up to `limit` rows of about `limit_bytes`; answer ReadDone."""

    limit: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Send:
    """Publish `rows` in this order, and with an atomic sink `position`; answer Settled."""

    number: int
    rows: Sequence[Row]
    position: WalPosition


@dataclass(frozen=True, slots=True)
class Save:
    """Commit `position`, without rows; answer Saved or SaveFailed. Not for atomic sinks."""

    position: WalPosition

    @property
    def rows(self) -> Sequence[Row]:
        """None: for whoever delivers sends and saves alike."""
        return ()


@dataclass(frozen=True, slots=True)
class Confirm:
    """Tell the slot that what is below `lsn` is not needed any more. Not answered."""

    lsn: int


@dataclass(frozen=True, slots=True)
class AddRows:
    """Make rows dead letters, with their contents; answer DeadLettersAdded or AddFailed."""

    rows: tuple[tuple[Row, BadRow], ...]


Action: TypeAlias = (
    Open | OpenStream | CloseStream | Read | Send | Save | Confirm | AddRows | Finish
)


_Step: TypeAlias = Literal["read", "deliver", "set aside", "save"]


@dataclass(slots=True)
class _Sent:
    rows: Sequence[Row]
    size_bytes: int
    position: WalPosition
    is_settled: bool = False


class _Refused(NamedTuple):
    """A row that the sink refused; `end_lsn`: what begins there does not read it again."""

    row: Row
    bad: BadRow
    end_lsn: int


@dataclass(slots=True)
class WalScheduler:
    """The state machine. Feed every event to `step`, carry out every action it returns."""

    epoch: int
    atomic: bool = True
    limits: Limits = field(default_factory=Limits)
    row_filter: BadRowFilter = field(default_factory=BadRowFilter)
    state: State = State.NEW
    in_flight_records: int = 0
    in_flight_bytes: int = 0
    position: WalPosition | None = None
    """Of what was sent."""
    settled: WalPosition | None = None
    """Of what is published."""
    saved: WalPosition | None = None
    """The checkpoint."""
    _pace: Pace = field(init=False)
    _next_send: int = 0
    _sends: dict[int, _Sent] = field(default_factory=dict)
    """Those that are not settled, and those behind one that is not, in their order."""
    _reading: bool = False
    _opening: bool = False
    _saving: bool = False
    _asked: bool = False
    """The server waits for the checkpoint to follow the log."""
    _broken: bool = False
    """A send has failed: what was sent behind it is sent again, acknowledged or not."""
    _ended: bool = False
    """The last checkpoint was sent."""
    _adding: bool = False
    _held: tuple[Sequence[Row], WalPosition] | None = None
    """What is sent when its bad rows are dead letters."""
    _refused: dict[int, _Refused] = field(default_factory=dict)
    """What the sink refused, until it is a dead letter."""
    _setting_aside: Sequence[_Refused] = ()
    _left_out: dict[int, int] = field(default_factory=dict)
    """What the sink refused, and is a dead letter: it is read again, and not sent again, until the
    stream begins at this place in the log, or behind it."""
    _relieved: bool = False
    """What a delivery failed for is out of the way: no reason to wait before the next."""
    _failing: set[_Step] = field(default_factory=set)
    """What has failed, and has not succeeded since then."""
    _failed_lsn: int = 0
    """How far the rows went of which some could not be delivered, or set aside."""

    def __post_init__(self) -> None:
        self._pace = Pace(self.limits)

    def rows_of(self, send: int) -> int:
        """How many rows a send has that is not settled yet."""
        return len(self._sends[send].rows) if send in self._sends else 0

    @property
    def purgeable_lsn(self) -> int:
        """All rows of transactions whose commit record begins below it are behind the checkpoint.

        What is published and not behind it is needed in the table: were the slot lost, an earlier
        row of a key that came again would be the last of it. From any thread.
        """
        settled, saved = self.settled, self.saved
        if settled is None or saved is None:
            return 0
        no_rows = (settled.row_lsn, settled.part_rows) == (saved.row_lsn, saved.part_rows)
        return max(saved.lsn, settled.lsn) if no_rows else saved.lsn

    @property
    def running(self) -> bool:
        """Whether it works, and neither begins nor recovers, nor fails again and again."""
        return self.state is State.RUNNING and not self._failing

    def step(self, event: Event) -> list[Action]:
        """Apply one event; return the actions that follow from it, in order."""
        if self.state is State.DONE:
            return []
        actions: list[Action] = []
        match event:
            case ReadDone():
                self._reading = False
                self._failing.discard("read")
                if self.state is State.RUNNING:
                    actions = self._read(event)
            case Settled():
                actions = self._settled(event)
            case Refresh(anyway):
                actions = self._refresh(anyway=anyway)
            case Saved(position):
                self._saving = False
                self._failing.discard("save")
                self.saved = position
                actions = [Confirm(position.lsn)]
            case SaveFailed():
                self._saving = False
                self._failing.add("save")
                actions = self._fail()
            case Start():
                assert self.state is State.NEW
                actions = self._open(0)
            case Opened(position, waiting):
                actions = self._opened(position, waiting)
            case StreamOpened(position):
                actions = self._stream_opened(position)
            case OpenFailed():
                actions = self._open_again()
            case StreamFailed():
                self._failing.add("read")
                actions = self._open_again() if self._opening else self._fail()
            case DeadLettersAdded(ids, waiting):
                actions = self._dead_letters_added(ids, waiting)
            case AddFailed():
                self._failing.add("set aside")
                self._note_how_far(self.position if self._held is None else self._held[1])
                self._adding, self._held = False, None
                actions = self._fail()
            case LeaseLost():
                self.state = State.DONE
                return [Finish("the lease is lost")]
            case Stop():
                if self.state is State.NEW:
                    self.state = State.DONE
                    return [Finish("stopped")]
                self.state = State.STOPPING
                self._reading = False
        return actions + self._continue()

    # --- Opening ---

    def _open(self, delay_ms: int) -> list[Action]:
        self.state = State.OPENING
        self._opening = True
        return [Open(delay_ms)]

    def _open_again(self) -> list[Action]:
        self._opening = False
        return [] if self.state is State.STOPPING else self._open(self._pace.backoff_ms())

    def _opened(self, found: WalPosition | None, waiting: Mapping[Key, int]) -> list[Action]:
        assert not self._sends
        assert not self._adding
        assert not self._saving
        self._broken = False
        self.row_filter.waiting = dict(waiting)
        self.saved = found
        # At least once, what this leadership has published may not be saved yet. With an atomic
        # sink, what it does not know to be published may be saved.
        if self.atomic or found is None or self.settled is None or not self.settled.covers(found):
            self.settled = found
        if self.state is State.STOPPING:
            self._opening = False
            return []
        return [OpenStream(self.settled)]

    def _stream_opened(self, position: WalPosition) -> list[Action]:
        self._opening = False
        if self.state is not State.OPENING:
            return []
        self.state = State.RUNNING
        self.position = self.settled = replace(position, epoch=self.epoch)
        self._left_out = {id: lsn for id, lsn in self._left_out.items() if lsn > position.lsn}
        # The first checkpoint is what shows a slot that is made anew: at once. What could not be
        # saved is tried again at once, too: until then nobody knows whether it can be.
        return self._save_now() if self.saved is None or "save" in self._failing else []

    # --- The way of a row ---

    def _read(self, event: ReadDone) -> list[Action]:
        rows, position = self._new_rows(event.chunks)
        if event.lsn:
            position = position.passed(event.lsn)
        self._asked = self._asked or event.asked
        if not rows:
            self.position = position
            if not self._sends:
                self.settled = position
                if position.lsn >= self._failed_lsn:  # nothing is left of what failed
                    self._failing -= {"deliver", "set aside"}
            return self._refresh() if self._asked else []
        bad_rows = self.row_filter.find_bad(rows, copied=True)
        if not bad_rows:
            return self._send(rows, position)
        self._held = rows, position
        self._adding = True
        return [AddRows(_with_rows(bad_rows, rows))]

    def _new_rows(self, chunks: Sequence[Chunk]) -> tuple[Sequence[Row], WalPosition]:
        """The rows of `chunks` that were not sent yet, and the position behind them."""
        position = self.position
        assert position is not None
        lsn, row_lsn = position.lsn, position.row_lsn
        part_lsn, part_rows = position.part_lsn, position.part_rows
        rows: list[Row] = []
        for commit_lsn, first, its, end_lsn in chunks:
            if commit_lsn < lsn:
                continue
            skip = 0
            if part_rows and commit_lsn == part_lsn:
                skip = part_rows - first
                assert skip >= 0, "rows of a transaction are missing"
            rows += its[skip:] if skip else its
            if end_lsn:
                lsn = row_lsn = end_lsn
                part_lsn = part_rows = 0
            else:
                part_lsn, part_rows = commit_lsn, max(first + len(its), skip + first)
        if self._left_out:
            rows = [row for row in rows if row[0] not in self._left_out]
        if not chunks:
            return rows, position
        return rows, replace(
            position, lsn=lsn, row_lsn=row_lsn, part_lsn=part_lsn, part_rows=part_rows
        )

    def _send(self, rows: Sequence[Row], position: WalPosition) -> list[Action]:
        number, size = self._next_send, payload_bytes(rows)
        self._next_send += 1
        self._sends[number] = _Sent(rows, size, position)
        self.in_flight_records += len(rows)
        self.in_flight_bytes += size
        self.position = position
        return [Send(number, rows, position)]

    def _settled(self, event: Settled) -> list[Action]:
        failure = event.failure
        had_rows = any(self._sends[number].rows for number in event.sends)
        if failure is not None:
            if not failure.refused:
                self._failing.add("deliver" if had_rows else "save")
                self._note_how_far(self.position)
            if self.in_flight_records and self.state is State.RUNNING and not failure.refused:
                self._pace.failed(self.in_flight_records)
            for number in event.sends:
                sent = self._sends[number]
                blamed = self.row_filter.find_refused(sent.rows, failure)
                end = sent.position.part_lsn + 1 if sent.position.part_rows else sent.position.lsn
                self._refused.update(
                    {bad.id: _Refused(row, bad, end) for row, bad in _with_rows(blamed, sent.rows)}
                )
                self._forget(number)
            self._broken = True
            for number in [n for n, sent in self._sends.items() if sent.is_settled]:
                self._forget(number)
            return self._fail()
        if not self._broken:
            self._pace.succeeded()
            self._failing.discard("deliver" if had_rows else "save")
        for number in event.sends:
            self._sends[number].is_settled = True
            if self._broken:
                self._forget(number)
        last: WalPosition | None = None
        for number in list(self._sends):
            if not self._sends[number].is_settled:
                break
            last = self._forget(number)
        if last is None or self._broken:
            return []
        # What came behind the last rows is none of ours.
        self.settled = last if self._sends else self.position
        if not self.atomic:
            return []
        self.saved = last
        return [Confirm(last.lsn)]

    def _note_how_far(self, position: WalPosition | None) -> None:
        self._failed_lsn = 0 if position is None else position.lsn

    def _forget(self, number: int) -> WalPosition:
        sent = self._sends.pop(number)
        self.in_flight_records -= len(sent.rows)
        self.in_flight_bytes -= sent.size_bytes
        return sent.position

    def _fail(self) -> list[Action]:
        if self.state is not State.RUNNING:
            return []
        self.state = State.RECOVERING
        self._reading = False
        return [CloseStream()]

    # --- The checkpoint ---

    def _refresh(self, *, anyway: bool = False) -> list[Action]:
        """Save what is settled, if it is worth it."""
        settled, saved = self.settled, self.saved
        if self.state is not State.RUNNING or settled is None or saved is None:
            return []
        has_rows = (settled.row_lsn, settled.part_rows) != (saved.row_lsn, saved.part_rows)
        is_far = settled.lsn >= saved.lsn + _IDLE_BYTES
        if not (has_rows or is_far or anyway or self._asked):
            return []
        return self._save_now()

    def _save_now(self) -> list[Action]:
        position = self.settled
        assert position is not None
        if self._saving or self._adding or (self.atomic and self._sends):
            return []
        self._asked = False
        if self.atomic:
            return self._send((), position)
        self._saving = True
        return [Save(position)]

    # --- Dead letters ---

    def _dead_letters_added(self, ids: frozenset[int], waiting: Mapping[Key, int]) -> list[Action]:
        self._adding = False
        self._failing.discard("set aside")
        self.row_filter.waiting = dict(waiting)
        held, self._held = self._held, None
        if held is None:
            aside = [one for one in self._setting_aside if one.bad.id in ids]
            self._left_out.update({one.bad.id: one.end_lsn for one in aside})
            self._relieved = bool(ids)
            return []
        rows, position = held
        if self.state is not State.RUNNING:
            return []  # they are read again
        # One that only waited may not wait any more: then it goes with the others.
        return self._send([row for row in rows if row[0] not in ids], position)

    # --- What next ---

    def _continue(self) -> list[Action]:
        if self.state is State.RUNNING:
            return self._read_if_room()
        if self._sends or self._opening or self._adding or self._saving:
            return []
        if self._refused and self.state in (State.RECOVERING, State.STOPPING):
            self._setting_aside, self._refused = tuple(self._refused.values()), {}
            self._adding = True
            return [AddRows(tuple([(one.row, one.bad) for one in self._setting_aside]))]
        if self.state is State.RECOVERING:
            delay_ms = 0 if self._relieved else self._pace.backoff_ms()
            self._relieved = False
            return self._open(delay_ms)
        if self.state is State.STOPPING:
            return self._finish()
        return []

    def _finish(self) -> list[Action]:
        """A last checkpoint, for the next leader to repeat nothing; then the end."""
        settled, saved = self.settled, self.saved
        if settled is not None and saved is not None and settled != saved and not self._ended:
            self._ended = True
            if not self.atomic:
                self._saving = True
                return [Save(settled)]
            return self._send((), settled)
        self.state = State.DONE
        return [Finish("stopped")]

    def _read_if_room(self) -> list[Action]:
        if self._reading or self._adding:
            return []
        limits = self.limits
        room = self._pace.most_records - self.in_flight_records
        room_bytes = limits.max_in_flight_bytes - self.in_flight_bytes
        if (room <= 0 or room_bytes <= 0) and self._sends:
            return []
        self._reading = True
        return [Read(max(1, min(room, limits.mark_query_records)), max(1, room_bytes))]


def _with_rows(bad_rows: Sequence[BadRow], rows: Sequence[Row]) -> tuple[tuple[Row, BadRow], ...]:
    """Each with its row, of `rows`, which may be plain tuples."""
    if not bad_rows:
        return ()
    by_id = {row[0]: row for row in rows}
    found = named([by_id[bad.id] for bad in bad_rows])
    return tuple(zip(found, bad_rows, strict=True))
