"""The rationalizer: the fold that turns the coordination log into the state of the world.

Theory of operation (specs/PROTOCOL.md §4)
------------------------------------------
One `PartitionState` belongs to one partition of the coordination topic and is changed by `apply`
alone, one record at a time, in offset order. `apply` is

- **deterministic**: it sees the record's offset and value, nothing else. No clock, no randomness,
  no identity of the reader, no record of another coordination partition. Any two readers of the
  same prefix have equal states;
- **total**: no bytes raise. What is no record of this protocol is reported and skipped;
- **atomic per cell**: a rejected record (or heartbeat entry) changes nothing, and says why.

The transition table. `o` is the record's offset; `cell` is the state of (group, topic, partition),
and `cell.version` is −1 where there is no cell.

===================  ==============================================  ===============================
record               accepted when                                   effect
===================  ==============================================  ===============================
ClaimingPartition    group not paused,                               holder = sender,
                     expected_version = cell.version                 epoch = version = o, interval
Heartbeat, an entry  held, epoch = cell.epoch                        version = o, metadata,
                                                                     next_offset = max(old, new)
Heartbeat, member    always                                          the sender is a member, or left
ReleasingPartition   held, epoch = cell.epoch                        holder = none, version = o,
                                                                     next_offset = max(old, new)
ClaimingMessages     held, epoch = cell.epoch,                       version = o,
                     proposed_offset > claimed_offset                claimed_offset = proposed
ReleaseGroup         always                                          the group is paused
ResumeGroup          group paused                                    the pause ends
SetPosition          group paused or held by the sender,             holder = none, version = o,
                     expected_version = cell.version                 next_offset = claimed_offset
                                                                     = the given offset,
                                                                     metadata empty
ForgetGroup          group paused, none of its cells held            its cells and members go
===================  ==============================================  ===============================

The epoch is the offset of the accepted claim, so it is unique and increasing in a coordination
partition: it is the fencing token. The version is the offset of the last record accepted for the
cell, so that a claim is a compare-and-swap against everything the claimant has seen.

State does not grow with time: a dead member is dropped once `MEMBER_HORIZON` records have come
after its last one (visibility only, never a claim), looked at every `SWEEP_EVERY` offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from marshal_py.protocol import events as ev
from marshal_py.protocol.events import Event, Reason
from marshal_py.protocol.messages import (
    DECODE_ERRORS,
    NO_OFFSET,
    ClaimingMessages,
    ClaimingPartition,
    ForgetGroup,
    Heartbeat,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetPosition,
    decode_extended,
    decode_known,
    why_malformed,
)

__all__ = ["MEMBER_HORIZON", "SWEEP_EVERY", "Cell", "CellKey", "Member", "PartitionState", "apply"]

SWEEP_EVERY: Final = 4096
"""Offsets between two looks for dead members; snapshots are compared at the same boundaries."""

MEMBER_HORIZON: Final = 65_536
"""A member whose last record lies more than this many offsets back is dropped."""

CellKey: TypeAlias = tuple[str, str, int]
"""(group_id, topic, partition)"""


class Cell(Struct, array_like=True, gc=False):
    """The state of one (group_id, topic, partition). `holder` is None when nobody holds it."""

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


class Member(Struct, array_like=True, gc=False):
    """A client that says it belongs to a group, seen in its last heartbeat that said so."""

    instance_id: str
    version: int
    interval_ms: int
    metadata: bytes


class PartitionState:
    """The fold's state of one coordination partition. Changed by `apply` and nothing else."""

    __slots__ = ("cells", "members", "next_offset", "partition", "paused")

    def __init__(self, partition: int) -> None:
        self.partition: int = partition
        self.next_offset: int = 0
        """One more than the offset of the last record applied."""
        self.cells: dict[CellKey, Cell] = {}
        self.members: dict[tuple[str, str], Member] = {}
        """(group_id, client_id) → member."""
        self.paused: dict[str, int] = {}
        """Paused group → expires_at_ms."""

    def encode(self) -> bytes:
        """Return the canonical bytes of this state: equal states have equal bytes (§6.1)."""
        return msgspec.msgpack.encode(
            [
                self.partition,
                self.next_offset,
                sorted(self.cells.items()),
                sorted(self.members.items()),
                sorted(self.paused.items()),
            ]
        )

    def digest(self) -> bytes:
        """Return 16 bytes that differ where states differ: BLAKE2b of `encode()` (§6.1)."""
        return hashlib.blake2b(self.encode(), digest_size=16).digest()

    @classmethod
    def decode(cls, data: bytes) -> PartitionState:
        """Return the state that `encode` wrote. Raises `msgspec.MsgspecError` for other bytes."""
        partition, next_offset, cells, members, paused = _state_decoder.decode(data)
        state = cls(partition)
        state.next_offset = next_offset
        state.cells = dict(cells)
        state.members = dict(members)
        state.paused = dict(paused)
        return state


_state_decoder: Final = msgspec.msgpack.Decoder(
    tuple[
        int,
        int,
        list[tuple[CellKey, Cell]],
        list[tuple[tuple[str, str], Member]],
        list[tuple[str, int]],
    ]
)


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
    if offset // SWEEP_EVERY != (state.next_offset - 1) // SWEEP_EVERY:
        _drop_dead_members(state, offset, events)
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
    group = record.group_id
    cells = state.cells
    if events is not None:
        events.append(
            ev.Beat(
                offset,
                record.client_id,
                record.instance_id,
                group,
                record.seq,
                len(record.entries),
                record.membership,
            )
        )
    for entry in record.entries:
        cell = cells.get((group, entry.topic, entry.partition))
        if cell is None or cell.holder is None or cell.epoch != entry.epoch:
            if events is not None:
                reason: Reason = "not_held" if cell is None or not cell.held else "wrong_epoch"
                _reject(events, offset, record, reason, entry.topic, entry.partition, cell)
            continue
        cell.version = offset
        cell.metadata = entry.metadata
        if entry.next_offset > cell.next_offset:
            cell.next_offset = entry.next_offset
        if events is not None:
            events.append(
                ev.Renewed(
                    offset,
                    record.client_id,
                    record.instance_id,
                    group,
                    record.seq,
                    entry.topic,
                    entry.partition,
                    entry.epoch,
                    cell.next_offset,
                )
            )
    if record.membership:
        _membership(state, offset, record, events)


def _membership(
    state: PartitionState, offset: int, record: Heartbeat, events: list[Event] | None
) -> None:
    key = (record.group_id, record.client_id)
    known = state.members.get(key)
    if record.membership == 2:
        # Only the instance that is known can leave: a late goodbye of an earlier instance must not
        # hide the one that runs now.
        if known is None or known.instance_id != record.instance_id:
            return
        del state.members[key]
        if events is not None:
            events.append(
                ev.MemberLeft(offset, record.client_id, known.instance_id, record.group_id, "left")
            )
        return
    state.members[key] = Member(
        record.instance_id, offset, record.interval_ms, record.member_metadata
    )
    if events is not None and (known is None or known.instance_id != record.instance_id):
        events.append(
            ev.MemberJoined(
                *_from(offset, record),
                record.interval_ms,
            )
        )


def _claim(
    state: PartitionState, offset: int, record: ClaimingPartition, events: list[Event] | None
) -> None:
    key = (record.group_id, record.topic, record.partition)
    cell = state.cells.get(key)
    reason: Reason | None = None
    if record.group_id in state.paused:
        reason = "group_paused"
    elif record.expected_version != (NO_OFFSET if cell is None else cell.version):
        reason = "stale_version"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason, record.topic, record.partition, cell)
        return
    if cell is None:
        cell = state.cells[key] = Cell()
    if events is not None:
        events.append(
            ev.Claimed(
                *_about(offset, record),
                offset,
                record.interval_ms,
                cell.holder,
                cell.instance_id,
                cell.epoch,
            )
        )
    cell.holder = record.client_id
    cell.instance_id = record.instance_id
    cell.epoch = cell.version = offset
    cell.interval_ms = record.interval_ms


def _release(
    state: PartitionState, offset: int, record: ReleasingPartition, events: list[Event] | None
) -> None:
    cell = _held_cell(state, offset, record, events)
    if cell is None:
        return
    _vacate(cell, offset)
    if record.next_offset > cell.next_offset:
        cell.next_offset = record.next_offset
    if events is not None:
        events.append(
            ev.Released(
                *_about(offset, record),
                record.epoch,
                cell.next_offset,
            )
        )


def _claim_messages(
    state: PartitionState, offset: int, record: ClaimingMessages, events: list[Event] | None
) -> None:
    cell = _held_cell(state, offset, record, events)
    if cell is None:
        return
    if record.proposed_offset <= cell.claimed_offset:
        if events is not None:
            _reject(
                events, offset, record, "offset_not_ahead", record.topic, record.partition, cell
            )
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
    state.paused[record.group_id] = record.expires_at_ms
    if events is not None:
        events.append(
            ev.GroupPaused(
                *_from(offset, record),
                record.expires_at_ms,
            )
        )


def _resume_group(
    state: PartitionState, offset: int, record: ResumeGroup, events: list[Event] | None
) -> None:
    if state.paused.pop(record.group_id, None) is None:
        if events is not None:
            _reject(events, offset, record, "not_paused")
        return
    if events is not None:
        events.append(
            ev.GroupResumed(
                *_from(offset, record),
            )
        )


def _set_position(
    state: PartitionState, offset: int, record: SetPosition, events: list[Event] | None
) -> None:
    key = (record.group_id, record.topic, record.partition)
    cell = state.cells.get(key)
    reason: Reason | None = None
    is_holder = cell is not None and (
        (cell.holder, cell.instance_id) == (record.client_id, record.instance_id)
    )
    if record.group_id not in state.paused and not is_holder:
        reason = "not_paused"
    elif record.expected_version != (NO_OFFSET if cell is None else cell.version):
        reason = "stale_version"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason, record.topic, record.partition, cell)
        return
    if cell is None:
        cell = state.cells[key] = Cell()
    _vacate(cell, offset)
    cell.next_offset = cell.claimed_offset = record.next_offset
    cell.metadata = b""
    if events is not None:
        events.append(
            ev.PositionSet(
                *_about(offset, record),
                record.next_offset,
            )
        )


def _forget_group(
    state: PartitionState, offset: int, record: ForgetGroup, events: list[Event] | None
) -> None:
    group = record.group_id
    reason: Reason | None = None
    if group not in state.paused:
        reason = "not_paused"
    elif any(key[0] == group and cell.held for key, cell in state.cells.items()):
        reason = "still_held"
    if reason is not None:
        if events is not None:
            _reject(events, offset, record, reason)
        return
    gone = [key for key in state.cells if key[0] == group]
    for key in gone:
        del state.cells[key]
    for member in [member for member in state.members if member[0] == group]:
        del state.members[member]
    if events is not None:
        events.append(ev.GroupForgotten(*_from(offset, record), len(gone)))


_OTHER: Final[dict[type, Callable[[PartitionState, int, Any, list[Event] | None], None]]] = {
    ClaimingPartition: _claim,
    ReleasingPartition: _release,
    ClaimingMessages: _claim_messages,
    ReleaseGroup: _pause_group,
    ResumeGroup: _resume_group,
    SetPosition: _set_position,
    ForgetGroup: _forget_group,
}


def _vacate(cell: Cell, offset: int) -> None:
    cell.holder = cell.instance_id = None
    cell.version = offset


def _held_cell(
    state: PartitionState,
    offset: int,
    record: ReleasingPartition | ClaimingMessages,
    events: list[Event] | None,
) -> Cell | None:
    """Return the cell that `record` speaks of if it is held under the record's epoch."""
    cell = state.cells.get((record.group_id, record.topic, record.partition))
    if cell is not None and cell.held and cell.epoch == record.epoch:
        return cell
    if events is not None:
        reason: Reason = "not_held" if cell is None or not cell.held else "wrong_epoch"
        _reject(events, offset, record, reason, record.topic, record.partition, cell)
    return None


def _drop_dead_members(state: PartitionState, offset: int, events: list[Event] | None) -> None:
    dead = [key for key, m in state.members.items() if offset - m.version > MEMBER_HORIZON]
    for key in sorted(dead):
        member = state.members.pop(key)
        if events is not None:
            group, client = key
            events.append(ev.MemberLeft(offset, client, member.instance_id, group, "expired"))


def _from(offset: int, record: Message) -> tuple[int, str, str, str, int]:
    """The first fields of an event: where the record is, and who sent it."""
    return offset, record.client_id, record.instance_id, record.group_id, record.seq


def _about(
    offset: int, record: ClaimingPartition | ReleasingPartition | ClaimingMessages | SetPosition
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
) -> None:
    events.append(
        ev.Rejected(
            *_from(offset, record),
            type(record).__name__,
            reason,
            topic,
            partition,
            NO_OFFSET if cell is None else cell.epoch,
            NO_OFFSET if cell is None else cell.version,
            None if cell is None else cell.holder,
        )
    )
