"""The rationalizer: the fold that turns the coordination log into the state of the world.

Theory of operation (specs/PROTOCOL.md §4)
------------------------------------------
One `PartitionState` belongs to one partition of the coordination topic and is changed by `apply`
alone, one record at a time, in offset order. `apply` is

- **deterministic**: it sees the record's offset and value, nothing else. No clock, no randomness,
  no identity of the reader, no record of another coordination partition. Any two readers of the
  same prefix have equal states;
- **total**: no bytes raise. What is no record of this protocol is reported and skipped;
- **atomic per cell**: a rejected record (or what a heartbeat says of one claim) changes nothing,
  and says why;
- **bounded**: what a record costs depends on its own bytes, not on how much the state holds. The
  sweep is the exception that is paid for by the offsets that were passed.

The transition table. `o` is the record's offset, `cell` the state of (group, topic, partition), and
*version* what `PartitionState.version` says of it.

===================  ==============================================  ===============================
record               accepted when                                   effect
===================  ==============================================  ===============================
ClaimingPartition    group not paused,                               holder = sender, epoch = base
                     expected_version = version                      + o, version = o, interval
Heartbeat            the sender can follow the group's level         its session's version = o
... a position,      its session holds the cell                      next_offset = max(old, new),
    metadata                                                         metadata
... membership                                                       the sender is a member, or left
ReleasingPartition   held, epoch = cell.epoch                        holder = none, version = o,
                                                                     next_offset = max(old, new)
ClaimingMessages     held, epoch = cell.epoch,                       version = o,
                     proposed_offset > claimed_offset                claimed_offset = proposed
ReleaseGroup         always                                          the group is paused
ResumeGroup          paused by the record at expected_version        the pause ends
SetPosition          group paused or held by the sender,             holder = none, version = o,
                     expected_version = version                      next_offset = claimed_offset
                                                                     = the given offset,
                                                                     metadata empty
ForgetGroup          paused by the record at expected_version,       its cells and members go
                     none of its cells held
Genesis              previous = the log's identity, base higher      the log's identity and base
SetLevel             expected_level = level, all sessions can follow the group's level
ClaimingRange        group not paused, the partition's cell free     the lowest free range, or new
                                                                     messages, as a claimed cell
SplittingRange       a range held under epoch,                       the range ends at `at`; the
                     position < at < end                             rest is a free one
===================  ==============================================  ===============================

A **session** is one instance of a client that holds cells or is a member. Its heartbeats renew all
that it holds, in one assignment: the version of a held cell, which a claim is compared with, is the
larger of the cell's own and its holder's session's.

The epoch is the log's base plus the offset of the accepted claim, so it is unique and increasing:
it is the fencing token. A log that is made anew starts with a higher base.

A **range** of messages is a cell with an end (§5.18). While ranges of a partition are open, its own
cell is their book, which nobody can claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from marshal_py.protocol import events as ev
from marshal_py.protocol.events import Event, Reason
from marshal_py.protocol.messages import (
    DECODE_ERRORS,
    LEVEL,
    MAX_BASE,
    MAX_INTERVAL_MS,
    MAX_LEVEL,
    MAX_MEMBER_METADATA_BYTES,
    MAX_METADATA_BYTES,
    MAX_PARTITION,
    MAX_RANGE_TOPIC_LENGTH,
    NO_OFFSET,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ForgetGroup,
    Genesis,
    Heartbeat,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetLevel,
    SetPosition,
    SplittingRange,
    check_names,
    decode_extended,
    decode_known,
    why_malformed,
)
from marshal_py.protocol.ranges import MAX_OPEN_RANGES, Range, Ranges, range_cell

__all__ = [
    "BOUNDARY",
    "MEMBER_HORIZON",
    "Cell",
    "CellKey",
    "GroupState",
    "Member",
    "PartitionState",
    "Pause",
    "Session",
    "apply",
    "ranges_told",
]

BOUNDARY: Final = 4096
"""Offsets between two states that are compared, and fit for a snapshot (§6.3)."""

MEMBER_HORIZON: Final = 65_536
"""A member without cells whose session's version lies more than this many offsets back is
dropped."""

CellKey: TypeAlias = tuple[str, str, int]
"""(group_id, topic, partition)"""

Unit: TypeAlias = tuple[str, int]
"""(topic, partition)"""

SessionKey: TypeAlias = tuple[str, str]
"""(client_id, instance_id)"""

K = TypeVar("K")
V = TypeVar("V")


class Cell(Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """The state of one (group_id, topic, partition). `holder` is None when nobody holds it.

    `version` is the offset of the last record that was accepted for the cell itself; what a claim
    has to name, and how long a holder was silent, goes by `PartitionState.version`.
    """

    unit: Unit
    """Its (topic, partition)."""
    holder: str | None = None
    instance_id: str | None = None
    epoch: int = NO_OFFSET
    version: int = NO_OFFSET
    interval_ms: int = 0
    next_offset: int = NO_OFFSET
    claimed_offset: int = NO_OFFSET
    metadata: bytes = b""

    @property
    def held(self) -> bool:
        return self.holder is not None

    @property
    def position(self) -> int:
        """The offset at which a new holder starts, −1 where there is none (§4.2)."""
        return max(self.next_offset, self.claimed_offset)


@dataclass(slots=True)
class Session:
    """One instance of a client that holds cells or is a member, as its last heartbeat left it."""

    instance_id: str
    version: int
    interval_ms: int
    metadata: bytes = b""
    member: int = 0
    """1 if this is the client's instance in the group's membership, 0 otherwise."""
    lowest: int = LEVEL
    highest: int = LEVEL
    claims: dict[int, Cell] = field(default_factory=dict)
    """Epoch → each cell that it holds. Follows from the cells."""
    most: int = field(default=0, compare=False, repr=False)
    """How many it held at a time since `claims` was made."""
    awaited: bool = field(default=False, compare=False, repr=False)
    """Whether it is in `PartitionState.silent`."""

    def add(self, epoch: int, cell: Cell) -> None:
        """Take in a cell that it holds now."""
        claims = self.claims
        claims[epoch] = cell
        if len(claims) > self.most:
            self.most = len(claims)

    def remove(self, epoch: int) -> None:
        """Take out a cell that it holds no more."""
        claims = self.claims
        del claims[epoch]
        if len(claims) <= _COPIED_AT_ONCE and 2 * len(claims) <= self.most:
            self.claims = dict(claims)  # a dict keeps the room of the most that it ever held
            self.most = len(claims)


_COPIED_AT_ONCE: Final = 256


Member = Session
"""A session whose client is a member of the group."""


class Pause(Struct, array_like=True, frozen=True, gc=False):
    """Since when (the offset of the ReleaseGroup) and until when a group is paused."""

    version: int
    expires_at_ms: int


class GroupState:
    """What the log says of one group."""

    __slots__ = (
        "cells",
        "held",
        "level",
        "members",
        "open_ranges",
        "pause",
        "ranges",
        "sessions",
    )

    def __init__(self) -> None:
        self.cells: dict[Unit, Cell] = {}
        self.sessions: dict[SessionKey, Session] = {}
        self.members: dict[str, Session] = {}
        """client_id → the session of the instance that is the member."""
        self.pause: Pause | None = None
        self.level: int = LEVEL
        self.held = 0
        """How many of the cells are held."""
        self.ranges: dict[tuple[int, int], int] = {}
        """(lowest, highest) → how many sessions can follow just these levels."""
        self.open_ranges = Ranges()

    @property
    def empty(self) -> bool:
        """Whether it is as if the group had never been."""
        return not (self.cells or self.sessions or self.pause or self.level != LEVEL)

    def version(self, cell: Cell | None) -> int:
        """Return the version of a cell of this group: what a claim has to name (§4.2)."""
        if cell is None:
            return NO_OFFSET
        if cell.holder is not None:
            session = self.sessions.get((cell.holder, cell.instance_id))  # type: ignore[arg-type]
            if session is not None and session.version > cell.version:
                return session.version
        return cell.version

    def count(self, session: Session, by: int) -> None:
        """Count a session in or out, by the levels that it can follow."""
        key = (session.lowest, session.highest)
        left = self.ranges.get(key, 0) + by
        if left:
            self.ranges[key] = left
        else:
            self.ranges.pop(key, None)


class PartitionState:
    """The fold's state of one coordination partition. Changed by `apply` and nothing else.

    `cells`, `members` and `paused` show all groups as one mapping each.
    """

    __slots__ = (
        "base",
        "forgotten",
        "groups",
        "identity",
        "next_offset",
        "partition",
        "partitions",
        "silent",
        "sweep_at",
    )

    def __init__(self, partition: int) -> None:
        self.partition: int = partition
        self.next_offset: int = 0
        """One more than the offset of the last record applied."""
        self.identity: str | None = None
        """That of the log, None before its genesis."""
        self.base: int = 0
        """What the epochs of claims from here on are counted from."""
        self.partitions: int = 0
        """How many coordination partitions the genesis speaks of, 0 before it."""
        self.groups: dict[str, GroupState] = {}
        self.silent: list[tuple[int, tuple[str, str, str], Session]] = []
        """A heap of (a version that it had, (group_id, client_id, instance_id), session) of the
        members; without those that would be dropped if they held nothing, maybe with some that
        are members no more."""
        self.sweep_at: int = 0
        """No member is to be dropped before this offset."""
        self.forgotten: list[dict[Any, Any]] = []
        """What forgotten groups held: freed a few pieces at a time."""

    def version(self, group_id: str, topic: str, partition: int) -> int:
        """Return the version of a cell: the offset of the last record that renewed it (§4.2).

        The larger of the cell's own and, where it is held, of its holder's session; −1 for none.
        """
        group = self.groups.get(group_id)
        return NO_OFFSET if group is None else group.version(group.cells.get((topic, partition)))

    def session(self, group_id: str, client_id: str, instance_id: str) -> Session | None:
        """Return the session of one instance, None if it neither holds cells nor is a member."""
        group = self.groups.get(group_id)
        return None if group is None else group.sessions.get((client_id, instance_id))

    def level(self, group_id: str) -> int:
        """Return the level that the group works by."""
        group = self.groups.get(group_id)
        return LEVEL if group is None else group.level

    @property
    def cells(self) -> Mapping[CellKey, Cell]:
        """(group_id, topic, partition) → cell."""
        return _Cells(self.groups)

    @property
    def members(self) -> Mapping[tuple[str, str], Session]:
        """(group_id, client_id) → the session of the member."""
        return _Members(self.groups)

    @property
    def paused(self) -> Mapping[str, int]:
        """Paused group → expires_at_ms."""
        return {
            name: group.pause.expires_at_ms for name, group in self.groups.items() if group.pause
        }

    def encode(self, *, canonical: bool = True) -> bytes:
        """Return the canonical bytes of this state: equal states have equal bytes (§6.1).

        Without `canonical`, nothing is sorted, which is many times faster; `decode` reads it.
        """
        order: Callable[..., list[Any]] = partial(sorted, key=_by_key) if canonical else list
        return msgspec.msgpack.encode(
            [
                self.partition,
                self.next_offset,
                self.identity,
                self.base,
                self.partitions,
                [
                    [
                        name,
                        group.level,
                        group.pause,
                        [
                            [client_id, *_told(session)]
                            for (client_id, _), session in order(group.sessions.items())
                        ],
                        [cell for _, cell in order(group.cells.items())],
                        *ranges_told(group),
                    ]
                    for name, group in order(self.groups.items())
                ],
            ]
        )

    def digest(self) -> bytes:
        """Return 16 bytes that differ where states differ: BLAKE2b of `encode()` (§6.1)."""
        return hashlib.blake2b(self.encode(), digest_size=16).digest()

    @classmethod
    def decode(cls, data: bytes) -> PartitionState:
        """Return the state that `encode` wrote.

        Raises `msgspec.MsgspecError` for other bytes, and for a state that no log leads to: what
        lies outside the ranges of §3, a holder without an instance, a version at or beyond the
        state's own offset, a session that holds nothing and is no member.
        """
        partition, next_offset, identity, base, partitions, groups = _state_decoder.decode(data)
        state = cls(partition)
        state.next_offset = next_offset
        state.identity, state.base, state.partitions = identity, base, partitions
        for told in groups:
            name, level, pause = told.name, told.level, told.pause
            sessions, cells = told.sessions, told.cells
            group = state.groups[name] = GroupState()
            group.level, group.pause = level, pause
            for cell in cells:
                topic, partition = cell.unit
                cell.unit = (_same(topic), partition)
                group.cells[cell.unit] = cell
            for client_id, instance_id, version, interval, metadata, member, low, high in sessions:
                client_id = _same(client_id)
                session = Session(instance_id, version, interval, metadata, member, low, high, {})
                group.sessions[client_id, instance_id] = session
                group.count(session, +1)
                if member:
                    group.members[client_id] = session
            for cell in cells:
                cell.interval_ms = _same(cell.interval_ms)
                if cell.holder is not None:
                    key = (cell.holder, cell.instance_id or "")
                    _require(key in group.sessions, "the holder of a cell has no session")
                    session = group.sessions[key]
                    session.add(cell.epoch, cell)
                    cell.holder, cell.instance_id = _same(cell.holder), session.instance_id
                    group.held += 1
            for found in told.ranges:
                _require(found.cell in group.cells, "a range without its cell")
                group.open_ranges.add(found, free=not group.cells[found.cell].held)
            _check(state, name, group, len(sessions), len(cells))
            _check_ranges(group, len(told.ranges))
        _require(len(groups) == len(state.groups), "a group comes twice")
        _require((identity is None) == (partitions == 0), "an identity without its partitions")
        for name, group in state.groups.items():
            for client_id, session in group.members.items():
                _await(state, name, client_id, session)
        return state


def _by_key(item: tuple[Any, ...]) -> Any:
    return item[0]


@lru_cache(maxsize=8192)
def _same(value: V) -> V:
    """Return one object for equal texts or numbers: each record brings its own, for many cells."""
    return value


def _told(session: Session) -> tuple[Any, ...]:
    """What of a session does not follow from the cells."""
    return (
        session.instance_id,
        session.version,
        session.interval_ms,
        session.metadata,
        session.member,
        session.lowest,
        session.highest,
    )


def ranges_told(group: GroupState) -> list[list[Range]]:
    """The last element of a group in the bytes of a state, if it has open ranges (§6.1)."""
    ranges = sorted(group.open_ranges.of_cell.values(), key=_place)
    return [ranges] if ranges else []


def _place(found: Range) -> tuple[str, int, int]:
    return found.topic, found.partition, found.start


class _Flat(Mapping[K, V]):
    """All groups' cells or members as one mapping. A view: it shows what is there when asked."""

    __slots__ = ("_groups",)

    def __init__(self, groups: dict[str, GroupState]) -> None:
        self._groups = groups

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


class _Cells(_Flat[CellKey, Cell]):
    __slots__ = ()

    def __getitem__(self, key: CellKey) -> Cell:
        group = self._groups.get(key[0])
        if group is None:
            raise KeyError(key)
        return group.cells[key[1], key[2]]

    def __iter__(self) -> Iterator[CellKey]:
        for name, group in self._groups.items():
            for topic, partition in group.cells:
                yield name, topic, partition

    def __len__(self) -> int:
        return sum(len(group.cells) for group in self._groups.values())


class _Members(_Flat[tuple[str, str], Session]):
    __slots__ = ()

    def __getitem__(self, key: tuple[str, str]) -> Session:
        group = self._groups.get(key[0])
        if group is None:
            raise KeyError(key)
        return group.members[key[1]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for name, group in self._groups.items():
            for client_id in group.members:
                yield name, client_id


class _Told(Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """A group in the bytes of a state."""

    name: str
    level: int
    pause: Pause | None
    sessions: list[tuple[str, str, int, int, bytes, int, int, int]]
    cells: list[Cell]
    ranges: list[Range] = []


_state_decoder: Final = msgspec.msgpack.Decoder(tuple[int, int, str | None, int, int, list[_Told]])


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise msgspec.ValidationError(f"no log leads to this state: {otherwise}")


def _check(state: PartitionState, name: str, group: GroupState, sessions: int, cells: int) -> None:
    """Refuse what the fold cannot have made (§6.2)."""
    end = state.next_offset
    check_names(group_id=name)
    _require(not group.empty, f"group {name!r} is empty")
    _require(len(group.sessions) == sessions, f"a session of {name!r} comes twice")
    _require(len(group.cells) == cells, f"a cell of {name!r} comes twice")
    _require(1 <= group.level <= MAX_LEVEL, f"the level of {name!r}")
    _require(0 <= state.base <= MAX_BASE, "its base")
    if group.pause is not None:
        _require(0 <= group.pause.version < end, f"the pause of {name!r} is of the future")
        _require(group.pause.expires_at_ms >= 0, f"the pause of {name!r}")
    members = 0
    for (client_id, instance_id), session in group.sessions.items():
        check_names(client_id=client_id, instance_id=instance_id)
        members += session.member
        _require(0 <= session.version < end, f"the session of {client_id!r} is of the future")
        _require(0 <= session.interval_ms <= MAX_INTERVAL_MS, f"the interval of {client_id!r}")
        _require(session.member in (0, 1), f"the membership of {client_id!r}")
        _require(bool(session.member or session.claims), f"{client_id!r} holds nothing")
        _require(len(session.metadata) <= MAX_MEMBER_METADATA_BYTES, "a member's metadata")
        _require(
            1 <= session.lowest <= MAX_LEVEL and 1 <= session.highest <= MAX_LEVEL,
            f"the levels of {client_id!r}",
        )
    _require(members == len(group.members), f"a client of {name!r} is a member twice")
    _check_cells(state, group.cells)
    held = sum(len(session.claims) for session in group.sessions.values())
    _require(held == group.held, f"two cells of {name!r} are held under one epoch")


def _check_cells(state: PartitionState, cells: dict[Unit, Cell]) -> None:
    """Refuse cells that the fold cannot have made. There may be many: text is for the wrong one."""
    for topic in {topic for topic, _ in cells}:
        check_names(topic=topic)
    end, epochs_end = state.next_offset, state.base + state.next_offset
    for (topic, partition), cell in cells.items():
        if not 0 <= partition <= MAX_PARTITION:
            wrong = "its number"
        elif (cell.holder is None) != (cell.instance_id is None):
            wrong = "half a holder"
        elif not 0 <= cell.version < end:
            wrong = "its version is of the future"
        elif not NO_OFFSET <= cell.epoch < epochs_end:
            wrong = "its epoch is of the future"
        elif cell.holder is not None and cell.epoch < 0:
            wrong = "it is held under no epoch"
        elif not 0 <= cell.interval_ms <= MAX_INTERVAL_MS:
            wrong = "its interval"
        elif cell.next_offset < NO_OFFSET or cell.claimed_offset < NO_OFFSET:
            wrong = "its position"
        elif len(cell.metadata) > MAX_METADATA_BYTES:
            wrong = "its metadata"
        else:
            continue
        _require(False, f"{topic!r}/{partition}: {wrong}")


def _check_ranges(group: GroupState, told: int) -> None:
    """Refuse open ranges that the fold cannot have made."""
    ranges = sorted(group.open_ranges.of_cell.values(), key=_place)
    _require(len(ranges) == told, "a range comes twice")
    before: Range | None = None
    for found in ranges:
        cell, book = group.cells[found.cell], group.cells.get(found.source)
        overlaps = before is not None and before.source == found.source and before.end > found.start
        before = found
        farthest = max(cell.claimed_offset, NO_OFFSET if cell.held else cell.next_offset)
        if not 1 <= len(found.topic) <= MAX_RANGE_TOPIC_LENGTH:
            wrong = "its topic"
        elif not 0 <= found.partition <= MAX_PARTITION:
            wrong = "its number"
        elif not 0 <= found.start < found.end <= _MAX_OFFSET or overlaps:
            wrong = "its messages"
        elif book is None or book.held or book.position < found.end:
            wrong = "it is beyond the frontier"
        elif cell.position < found.start or farthest > found.end:
            wrong = "its position"
        elif found.granted < 0 or not NO_OFFSET <= found.granted_at <= _MAX_OFFSET:
            wrong = "how often it was granted"
        elif group.open_ranges.count(found.source) > MAX_OPEN_RANGES:
            wrong = "there are too many"
        else:
            continue
        _require(False, f"the range {found.cell[0]!r}: {wrong}")


_MAX_OFFSET: Final = 2**63 - 1


def apply(
    state: PartitionState, offset: int, value: bytes | None, events: list[Event] | None = None
) -> bool:
    """Apply the record at `offset` to `state`, in place; append what happened to `events`.

    Returns False for a foreign record, which changes nothing (§4.3), and True otherwise.

    Without `events` the transitions are the same, and faster: nobody is told of them. Records must
    come in increasing offset order; one that does not is reported and changes nothing. Offsets may
    have gaps (transaction markers). No value, whatever it is, makes it raise (§4.1).
    """
    if offset < state.next_offset:
        if events is not None:
            events.append(ev.Ignored(offset, "offset_repeated"))
        return True
    if offset >= state.sweep_at:
        _drop_silent_members(state, offset, events)
    if state.forgotten:
        _free(state.forgotten)
    state.next_offset = offset + 1

    try:
        record: Message | None = decode_known(value)  # type: ignore[arg-type]
    except DECODE_ERRORS:
        record = decode_extended(value)
        if record is None:
            if events is not None:
                events.append(ev.Ignored(offset, why_malformed(value)))
            return False

    if type(record) is Heartbeat:
        _heartbeat(state, offset, record, events)
    else:
        _OTHER[type(record)](state, offset, record, events)
    return True


def _heartbeat(
    state: PartitionState, offset: int, record: Heartbeat, events: list[Event] | None
) -> None:
    name, client_id = record.group_id, record.client_id
    group = state.groups.get(name)
    level = LEVEL if group is None else group.level
    if not record.lowest <= level <= record.highest:
        if events is not None:
            _reject(events, offset, record, "cannot_follow")
        return
    key = (client_id, record.instance_id)
    session = None if group is None else group.sessions.get(key)
    if events is not None:
        events.append(
            ev.Beat(  # not `*_from(…)`: with starred arguments the call takes half as long again
                offset,
                client_id,
                record.instance_id,
                name,
                record.seq,
                0 if session is None else len(session.claims),
                len(record.positions) // 2 + len(record.metadata),
                record.membership,
            )
        )
    if group is None or session is None:
        if record.membership != 1:
            if events is not None:
                for _ in range(len(record.positions) // 2 + len(record.metadata)):
                    _reject(events, offset, record, "not_held")
            return
        if group is None:
            group = state.groups[name] = GroupState()
        session = group.sessions[key] = Session(
            record.instance_id, offset, 0, b"", 0, record.lowest, record.highest, {}
        )
        group.count(session, +1)
    session.version = offset
    session.interval_ms = record.interval_ms
    if record.member_metadata is not None:
        session.metadata = record.member_metadata
    if record.lowest != session.lowest or record.highest != session.highest:
        group.count(session, -1)
        session.lowest, session.highest = record.lowest, record.highest
        group.count(session, +1)
    if record.positions or record.metadata:
        _changes(state, session, offset, record, events)
    if record.membership > session.member:  # what a member says with each heartbeat is no news
        _membership(state, group, session, offset, record, events)


def _changes(
    state: PartitionState,
    session: Session,
    offset: int,
    record: Heartbeat,
    events: list[Event] | None,
) -> None:
    """Take in what a heartbeat says of single claims: positions first, then metadata."""
    claims, base = session.claims, state.base
    numbers = iter(record.positions)
    for claimed_at in numbers:
        next_offset = next(numbers, None)
        if next_offset is None:
            break  # an odd one speaks of no position
        cell = claims.get(base + claimed_at)
        if cell is None:
            if events is not None:
                _reject(events, offset, record, "not_held")
            continue
        if next_offset > cell.next_offset:
            cell.next_offset = next_offset
        if events is not None:
            topic, partition = cell.unit  # and no starred arguments, which take half as long again
            events.append(
                ev.Renewed(
                    offset,
                    record.client_id,
                    record.instance_id,
                    record.group_id,
                    record.seq,
                    topic,
                    partition,
                    cell.epoch,
                    cell.next_offset,
                )
            )
    for entry in record.metadata:
        cell = claims.get(base + entry.claimed_at)
        if cell is None:
            if events is not None:
                _reject(events, offset, record, "not_held")
            continue
        cell.metadata = entry.metadata
        if events is not None:
            renewed = (*cell.unit, cell.epoch, cell.next_offset)
            events.append(ev.Renewed(*_from(offset, record), *renewed))


def _membership(
    state: PartitionState,
    group: GroupState,
    session: Session,
    offset: int,
    record: Heartbeat,
    events: list[Event] | None,
) -> None:
    name, client_id = record.group_id, record.client_id
    if record.membership == 2:
        # Only the instance that is known can leave: a late goodbye of an earlier instance must not
        # hide the one that runs now.
        if not session.member:
            return
        _no_member(state, group, name, client_id, session)
        if events is not None:
            events.append(ev.MemberLeft(offset, client_id, session.instance_id, name, "left"))
        return
    before = group.members.get(client_id)
    if before is not None:
        _no_member(state, group, name, client_id, before)
    session.member = 1
    group.members[client_id] = session
    _await(state, name, client_id, session)
    if events is not None:
        events.append(ev.MemberJoined(*_from(offset, record), record.interval_ms))


def _await(state: PartitionState, name: str, client_id: str, session: Session) -> None:
    """Have a member looked at again when it could have been silent for too long."""
    if not session.awaited:
        session.awaited = True
        who = (name, client_id, session.instance_id)
        heappush(state.silent, (session.version, who, session))
        state.sweep_at = min(state.sweep_at, session.version + MEMBER_HORIZON + 1)


def _no_member(
    state: PartitionState, group: GroupState, name: str, client_id: str, session: Session
) -> None:
    """Take a session out of the membership; it goes altogether if it holds nothing."""
    session.member = 0
    del group.members[client_id]
    _end_if_idle(state, group, name, client_id, session)


def _end_if_idle(
    state: PartitionState, group: GroupState, name: str, client_id: str, session: Session
) -> None:
    """End the session of an instance that is no member, if it holds nothing either."""
    if session.claims:
        return
    del group.sessions[client_id, session.instance_id]
    group.count(session, -1)
    if group.empty:
        del state.groups[name]


def _claim(
    state: PartitionState, offset: int, record: ClaimingPartition, events: list[Event] | None
) -> None:
    name = record.group_id
    group = state.groups.get(name)
    unit = (_same(record.topic), record.partition)
    cell = None if group is None else group.cells.get(unit)
    reason: Reason | None = None
    if group is not None and group.pause is not None:
        reason = "group_paused"
    elif group is not None and group.open_ranges.count(unit):
        reason = "has_ranges"
    elif record.expected_version != (NO_OFFSET if group is None else group.version(cell)):
        reason = "stale_version"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason, *unit, cell, group)
        return
    if group is None:
        group = state.groups[name] = GroupState()
    if cell is None:
        cell = group.cells[unit] = Cell(unit)
    _take(state, group, offset, record, cell, events)


def _take(
    state: PartitionState,
    group: GroupState,
    offset: int,
    record: ClaimingPartition | ClaimingRange,
    cell: Cell,
    events: list[Event] | None,
) -> None:
    """Give a cell to the sender of an accepted claim, whoever had it."""
    name = record.group_id
    epoch = state.base + offset
    found = group.open_ranges.of_cell.get(cell.unit)
    if found is not None:
        found.grant(cell.position)
        group.open_ranges.hold(found)
        if events is not None:
            events.append(
                ev.RangeGranted(
                    *_from(offset, record), *found.source, found.start, found.end, found.granted
                )
            )
    if events is not None:
        events.append(
            ev.Claimed(
                *_from(offset, record),
                *cell.unit,
                epoch,
                record.interval_ms,
                cell.holder,
                cell.instance_id,
                cell.epoch,
            )
        )
    key = (record.client_id, record.instance_id)
    session = group.sessions.get(key)
    if session is None:
        session = group.sessions[key] = Session(
            record.instance_id, offset, record.interval_ms, b"", 0, group.level, group.level, {}
        )
        group.count(session, +1)
    session.add(epoch, cell)  # before the old holder's goes: it may be the same session
    if cell.holder is not None:
        _vacate(state, group, name, cell, offset)
    cell.holder = _same(record.client_id)
    cell.instance_id = session.instance_id
    cell.epoch = epoch
    cell.version = offset
    cell.interval_ms = _same(record.interval_ms)
    group.held += 1


def _claim_range(
    state: PartitionState, offset: int, record: ClaimingRange, events: list[Event] | None
) -> None:
    """Grant the lowest free range, else new messages at the frontier: the log allocates."""
    name = record.group_id
    group = state.groups.get(name)
    source = (_same(record.topic), record.partition)
    book = None if group is None else group.cells.get(source)
    free = None if group is None else group.open_ranges.lowest_free(source)
    start = max(record.floor, NO_OFFSET if book is None else book.position)
    unit = range_cell(*source, start) if free is None else free.cell
    reason: Reason | None = None
    if group is not None and group.pause is not None:
        reason = "group_paused"
    elif group is not None and source in group.open_ranges.of_cell:
        reason = "cell_exists"
    elif book is not None and book.held:
        reason = "still_held"
    elif free is None:
        if start + record.count > _MAX_OFFSET:
            reason = "outside_range"
        elif group is not None and group.open_ranges.count(source) >= MAX_OPEN_RANGES:
            reason = "too_many_ranges"
        elif group is not None and unit in group.cells:
            reason = "cell_exists"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason, *source, book, group)
        return
    if group is None:
        group = state.groups[name] = GroupState()
    if free is None:
        if book is None:
            book = group.cells[source] = Cell(source)
        end = book.next_offset = start + record.count
        book.version = offset
        group.open_ranges.add(Range(*source, start, end), free=True)
        cell = group.cells[unit] = Cell(unit, next_offset=start)
        _take(state, group, offset, record, cell, events)
        return
    cell = group.cells[unit]
    _take(state, group, offset, record, cell, events)
    at = cell.position + record.count
    if cell.metadata:
        return  # what it says of the messages would be said of the first piece alone
    if _why_whole(group, free, cell, at) is None:
        _split(group, offset, record, free, at, events)


def _split_range(
    state: PartitionState, offset: int, record: SplittingRange, events: list[Event] | None
) -> None:
    group, cell = _held_cell(state, offset, record, events)
    if group is None or cell is None:
        return
    unit = (record.topic, record.partition)
    found = group.open_ranges.of_cell.get(unit)
    reason: Reason | None = "outside_range"
    if found is not None:
        reason = _why_whole(group, found, cell, record.at)
    if found is None or reason is not None:
        if events is not None and reason is not None:
            _reject(events, offset, record, reason, *unit, cell, group)
        return
    cell.version = offset
    _split(group, offset, record, found, record.at, events)


def _why_whole(group: GroupState, found: Range, cell: Cell, at: int) -> Reason | None:
    """Return why a range cannot be split there, None if it can."""
    if not cell.position < at < found.end:
        return "outside_range"
    if group.open_ranges.count(found.source) >= MAX_OPEN_RANGES:
        return "too_many_ranges"
    return "cell_exists" if range_cell(*found.source, at) in group.cells else None


def _split(
    group: GroupState,
    offset: int,
    record: ClaimingRange | SplittingRange,
    found: Range,
    at: int,
    events: list[Event] | None,
) -> None:
    """End a held range at `at`; the rest becomes a free one."""
    rest = found.split(at)
    group.open_ranges.add(rest, free=True)
    group.cells[rest.cell] = Cell(rest.cell, version=offset, next_offset=at)
    if events is not None:
        events.append(
            ev.RangeSplit(*_from(offset, record), *found.source, found.start, at, rest.end)
        )


def _release(
    state: PartitionState, offset: int, record: ReleasingPartition, events: list[Event] | None
) -> None:
    group, cell = _held_cell(state, offset, record, events)
    if group is None or cell is None:
        return
    if record.next_offset > cell.next_offset:
        cell.next_offset = record.next_offset
    unit = (record.topic, record.partition)
    ends = record.ends == 1
    found = group.open_ranges.of_cell.get(unit)
    if found is not None:
        ends = cell.position >= found.end
        if ends:
            group.open_ranges.remove(found)
        else:
            group.open_ranges.free(found)
            if record.next_offset == NO_OFFSET:
                found.take_back()
    if events is not None:
        events.append(
            ev.Released(*_about(offset, record), record.epoch, cell.next_offset, ended=ends)
        )
    if ends:
        del group.cells[unit]
    _vacate(state, group, record.group_id, cell, offset)


def _claim_messages(
    state: PartitionState, offset: int, record: ClaimingMessages, events: list[Event] | None
) -> None:
    group, cell = _held_cell(state, offset, record, events)
    if cell is None:
        return
    unit = (record.topic, record.partition)
    found = None if group is None else group.open_ranges.of_cell.get(unit)
    reason: Reason | None = None
    if record.proposed_offset <= cell.claimed_offset:
        reason = "offset_not_ahead"
    elif found is not None and record.proposed_offset > found.end:
        reason = "outside_range"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason, *unit, cell, group)
        return
    if events is not None:
        events.append(
            ev.MessagesClaimed(
                *_about(offset, record),
                record.epoch,
                cell.claimed_offset,
                record.proposed_offset,
            )
        )
    cell.claimed_offset = record.proposed_offset
    cell.version = offset


def _pause_group(
    state: PartitionState, offset: int, record: ReleaseGroup, events: list[Event] | None
) -> None:
    group = state.groups.get(record.group_id)
    if group is None:
        group = state.groups[record.group_id] = GroupState()
    group.pause = Pause(offset, record.expires_at_ms)
    if events is not None:
        events.append(ev.GroupPaused(*_from(offset, record), record.expires_at_ms))


def _resume_group(
    state: PartitionState, offset: int, record: ResumeGroup, events: list[Event] | None
) -> None:
    group = state.groups.get(record.group_id)
    pause = None if group is None else group.pause
    if group is None or pause is None or pause.version != record.expected_version:
        if events is not None:
            reason: Reason = "not_paused" if pause is None else "stale_version"
            version = NO_OFFSET if pause is None else pause.version
            _reject(events, offset, record, reason, version=version)
        return
    group.pause = None
    if group.empty:
        del state.groups[record.group_id]
    if events is not None:
        events.append(ev.GroupResumed(*_from(offset, record)))


def _set_position(
    state: PartitionState, offset: int, record: SetPosition, events: list[Event] | None
) -> None:
    group = state.groups.get(record.group_id)
    unit = (record.topic, record.partition)
    cell = None if group is None else group.cells.get(unit)
    is_holder = cell is not None and (
        (cell.holder, cell.instance_id) == (record.client_id, record.instance_id)
    )
    found = None if group is None else group.open_ranges.of_cell.get(unit)
    reason: Reason | None = None
    if group is None or (group.pause is None and not is_holder):
        reason = "not_paused"
    elif record.expected_version != group.version(cell):
        reason = "stale_version"
    elif found is not None and not found.start <= record.next_offset <= found.end:
        reason = "outside_range"
    elif group.open_ranges.held(unit):
        reason = "still_held"
    if group is None or reason is not None:
        if events is not None and reason is not None:
            _reject(events, offset, record, reason, *unit, cell, group)
        return
    if found is not None:
        group.open_ranges.free(found)
    for closed in group.open_ranges.of(unit):
        group.open_ranges.remove(closed)
        del group.cells[closed.cell]
    if cell is None:
        cell = group.cells[unit] = Cell(unit)
    if cell.holder is not None:
        _vacate(state, group, record.group_id, cell, offset)
    cell.version = offset
    cell.next_offset = cell.claimed_offset = record.next_offset
    cell.metadata = b""
    if events is not None:
        events.append(ev.PositionSet(*_about(offset, record), record.next_offset))


def _forget_group(
    state: PartitionState, offset: int, record: ForgetGroup, events: list[Event] | None
) -> None:
    group = state.groups.get(record.group_id)
    pause = None if group is None else group.pause
    if group is None or pause is None or pause.version != record.expected_version or group.held:
        if events is not None:
            reason: Reason = "not_paused"
            if pause is not None:
                stale = pause.version != record.expected_version
                reason = "stale_version" if stale else "still_held"
            version = NO_OFFSET if pause is None else pause.version
            _reject(events, offset, record, reason, version=version)
        return
    left = state.groups[record.group_id] = GroupState()
    left.pause = pause
    if events is not None:
        events.append(ev.GroupForgotten(*_from(offset, record), len(group.cells)))
    state.forgotten += [group.cells, group.sessions, group.open_ranges.of_cell]


def _genesis(
    state: PartitionState, offset: int, record: Genesis, events: list[Event] | None
) -> None:
    reason: Reason | None = None
    if record.previous != (state.identity or ""):
        reason = "wrong_identity"
    elif record.base <= state.base and not (state.identity is None and record.base == 0):
        reason = "base_too_low"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason)
        return
    state.identity, state.base, state.partitions = record.identity, record.base, record.partitions
    if events is not None:
        events.append(
            ev.Founded(
                *_from(offset, record),
                record.identity,
                record.previous,
                record.base,
                record.partitions,
            )
        )


def _set_level(
    state: PartitionState, offset: int, record: SetLevel, events: list[Event] | None
) -> None:
    group = state.groups.get(record.group_id)
    level = LEVEL if group is None else group.level
    reason: Reason | None = None
    if record.expected_level != level:
        reason = "stale_level"
    elif group is not None and not all(
        lowest <= record.level <= highest for lowest, highest in group.ranges
    ):
        reason = "cannot_follow"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason)
        return
    if group is None:
        group = state.groups[record.group_id] = GroupState()
    group.level = record.level
    if group.empty:
        del state.groups[record.group_id]
    if events is not None:
        events.append(ev.LevelSet(*_from(offset, record), record.level, level))


_OTHER: Final[dict[type, Callable[[PartitionState, int, Any, list[Event] | None], None]]] = {
    ClaimingPartition: _claim,
    ReleasingPartition: _release,
    ClaimingMessages: _claim_messages,
    ReleaseGroup: _pause_group,
    ResumeGroup: _resume_group,
    SetPosition: _set_position,
    ForgetGroup: _forget_group,
    Genesis: _genesis,
    SetLevel: _set_level,
    ClaimingRange: _claim_range,
    SplittingRange: _split_range,
}


def _vacate(state: PartitionState, group: GroupState, name: str, cell: Cell, offset: int) -> None:
    """Take a cell from its holder, whose session ends with its last cell, unless it is a member."""
    client_id, instance_id = cell.holder or "", cell.instance_id or ""
    session = group.sessions[client_id, instance_id]
    session.remove(cell.epoch)
    group.held -= 1
    cell.holder = cell.instance_id = None
    cell.version = offset
    if session.claims:
        return
    if session.member:
        _await(state, name, client_id, session)  # it may have been silent for too long already
        return
    _end_if_idle(state, group, name, client_id, session)


def _held_cell(
    state: PartitionState,
    offset: int,
    record: ReleasingPartition | ClaimingMessages | SplittingRange,
    events: list[Event] | None,
) -> tuple[GroupState | None, Cell | None]:
    """Return the cell that `record` speaks of if it is held under the record's epoch."""
    group = state.groups.get(record.group_id)
    cell = None if group is None else group.cells.get((record.topic, record.partition))
    if cell is not None and cell.holder is not None and cell.epoch == record.epoch:
        return group, cell
    if events is not None:
        reason: Reason = "not_held" if cell is None or not cell.held else "wrong_epoch"
        _reject(events, offset, record, reason, record.topic, record.partition, cell, group)
    return None, None


def _drop_silent_members(state: PartitionState, offset: int, events: list[Event] | None) -> None:
    """Drop the members without cells that were silent for more than `MEMBER_HORIZON` offsets."""
    silent, dropped = state.silent, []
    while silent and offset - silent[0][0] > MEMBER_HORIZON:
        version, who, session = heappop(silent)
        session.awaited = False
        if state.session(*who) is not session:
            continue  # it ended, or its group was forgotten
        if session.version > version:
            _await(state, who[0], who[1], session)
        elif not session.claims:
            dropped.append((who, session))
    oldest = silent[0][0] if silent else offset  # who is heard of from here on is younger
    state.sweep_at = oldest + MEMBER_HORIZON + 1
    for (name, client_id, instance_id), session in dropped:
        _no_member(state, state.groups[name], name, client_id, session)
        if events is not None:
            events.append(ev.MemberLeft(offset, client_id, instance_id, name, "expired"))


def _free(forgotten: list[dict[Any, Any]]) -> None:
    pieces = forgotten[-1]
    for _ in range(min(_FREED_AT_ONCE, len(pieces))):
        pieces.popitem()
    if not pieces:
        forgotten.pop()


_FREED_AT_ONCE: Final = 64


def _from(offset: int, record: Message) -> tuple[int, str, str, str, int]:
    """The first fields of an event: where the record is, and who sent it."""
    return offset, record.client_id, record.instance_id, record.group_id, record.seq


def _about(
    offset: int, record: ReleasingPartition | ClaimingMessages | SetPosition
) -> tuple[int, str, str, str, int, str, int]:
    """The first fields of an event about a cell."""
    return *_from(offset, record), record.topic, record.partition


def _reject(
    events: list[Event],
    offset: int,
    record: Message,
    reason: Reason,
    topic: str | None = None,
    partition: int | None = None,
    cell: Cell | None = None,
    group: GroupState | None = None,
    *,
    version: int = NO_OFFSET,
) -> None:
    events.append(
        ev.Rejected(
            *_from(offset, record),
            type(record).__name__,
            reason,
            topic,
            partition,
            NO_OFFSET if cell is None else cell.epoch,
            version if cell is None or group is None else group.version(cell),
            None if cell is None else cell.holder,
        )
    )
