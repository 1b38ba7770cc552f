"""The fold of version 1 records (specs/INTEROP.md §3).

Theory of operation
-------------------
Go Marshal asks the reader's own clock, at the moment of reading, whether a cell is claimed. So two
of its readers can name two owners for one log. This fold never looks at a clock: it takes each
record's own time for the time at which it was read. It is deterministic and total, like that of
version 2, and where clocks agree and records arrive at once it answers what Go answers.

``HB`` is the heartbeat interval, which all clients of a log must agree on. A cell is **claimed at
t** if its last heartbeat h is not 0 and ``|t - h| < 2 HB``. Go has ``0 <= t - h < 2 HB``: it takes
a claim by an owner whose clock is a second ahead for no claim at all. Here it counts.

==================  =================================  ============================================
record, at time t   when                               effect
==================  =================================  ============================================
Heartbeat           always                             owner = sender, h = t, offset = the record's
ClaimingPartition   not claimed at t                   owner = sender, h = t; the offset is kept
ClaimingPartition   claimed at t, *in doubt*           the version moves, nothing else
ReleasingPartition  sender (with instance) = owner     h = 0, released = t, offset = the record's
ReleaseGroup        (versions before 2017)             the group is paused until the given time
==================  =================================  ============================================

A claim that is refused here is **in doubt** if its sender may have read it as granted: its clock
lies before h, or more than 2 HB less a slack after it (it may read its record that much later than
it wrote it). Whoever holds such a cell stops until the doubt is settled, and whoever waits for it
waits from there on (`marshal_py.protocol.text.claimant`). The doubt is forgotten when the holder's
own records have covered the slack: whoever takes its claim for granted sends a heartbeat at once.

An owner that was replaced without having released is a **rival**: a Go client goes on until it next
looks, and may take the cell back. It is forgotten when the records of one later owner have covered
3 HB without a word from it.

A cell costs a dictionary entry, whatever its partition number is; numbers that no Kafka partition
has are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import events as ev
from marshal_py.protocol.events import Event, Reason
from marshal_py.protocol.messages import MAX_PARTITION, NO_OFFSET
from marshal_py.protocol.rationalizer import Cell, CellKey, Member, PartitionState
from marshal_py.protocol.text.codec import (
    CLAIMING_PARTITION,
    HEARTBEAT,
    RELEASE_GROUP,
    RELEASING_PARTITION,
    TextRecord,
    coordinating_partition,
    decode_any,
)
from marshal_py.protocol.world import World

__all__ = ["TextCell", "TextState", "TextWorld", "apply", "slack_s"]


def slack_s(interval_s: int) -> int:
    """Return how late, in seconds, a sender is taken to read its own claim at the most."""
    return max(interval_s // 2, min(10, interval_s))


class TextCell(Cell, array_like=True, gc=False):
    """A cell as version 1 has it. What it shares with version 2 means the same.

    `holder` and `instance_id` are None when nobody holds it; `owner` and `owner_instance` keep the
    name. `epoch` is the offset of the record that made the holder the holder. It orders holders in
    one reader's state, but fences nothing: version 1 writers do not carry it.
    """

    owner: str = ""
    owner_instance: str = ""
    heartbeat_s: int = 0
    """Time in the owner's last claim or heartbeat; 0 once it has released."""
    release_s: int = 0
    current_offset: int = 0
    """As the records have it; `next_offset` is the same, with −1 for "none" where this is 0."""
    doubt: int = NO_OFFSET
    """Offset of the last refused claim that its sender may have taken for granted; −1: none."""
    doubt_s: int = 0
    """What the owner's clock had shown last when the doubt came up."""
    rival: int = NO_OFFSET
    """Offset of the last record of a replaced owner that may still act; −1: none."""
    rival_s: int = 0
    """What the owner's clock showed when it came, after the rival."""


class TextState(PartitionState):
    """The fold's state of one coordination partition. Changed by `apply` and nothing else.

    `paused` holds the time, in milliseconds of the admin's clock, until which a group is paused.
    Records do not end a pause, time does: who asks must compare.
    """

    __slots__ = ("cells", "interval_ms", "members", "paused", "renewals", "span_s", "sure_s")

    def __init__(self, partition: int, interval_s: int) -> None:
        super().__init__(partition)
        self.cells: dict[CellKey, Cell] = {}
        self.members: dict[tuple[str, str], Member] = {}
        """Always empty: version 1 knows no members."""
        self.paused: dict[str, int] = {}
        self.interval_ms = interval_s * 1000
        self.renewals: dict[bytes, tuple[TextCell, str, str, CellKey]] = {}
        """Names in a heartbeat, as bytes → cell, sender, key. A cache of `apply`, not state."""
        self.span_s = 2 * interval_s
        self.sure_s = self.span_s - slack_s(interval_s)

    def version(self, group_id: str, topic: str, partition: int) -> int:
        """Return the offset of the last record about a cell, −1 where there is none."""
        cell = self.cells.get((group_id, topic, partition))
        return NO_OFFSET if cell is None else cell.version


class TextWorld(World):
    """The states of all coordination partitions, placed by version 1's hash: the topic alone."""

    def __init__(self, partitions: int, interval_s: int, wall_s: Callable[[], float]) -> None:
        super().__init__(0)
        self.states = [TextState(p, interval_s) for p in range(partitions)]
        self.at_ms: int | None = None
        """The moment by which pauses are judged; None: now, by `wall_s`."""
        self._wall_s = wall_s

    def coordinator(self, group_id: str, topic: str, partition: int) -> int:  # noqa: ARG002
        """Return the coordination partition of the topic; nothing else matters."""
        return coordinating_partition(topic, len(self.states))

    def cells(self, group_id: str | None = None) -> Iterator[tuple[int, CellKey, Cell]]:
        """Yield (coordination partition, key, cell) of one group or, by default, of all."""
        for found in super().cells():
            if group_id is None or found[1][0] == group_id:
                yield found

    def paused(self, group_id: str) -> bool:
        """Say whether the group is paused at `at_ms`."""
        now_ms = self._wall_s() * 1000 if self.at_ms is None else self.at_ms
        return any(now_ms < state.paused.get(group_id, 0) for state in self.states)

    def home(self, group_id: str) -> int:  # noqa: ARG002
        """Return 0: version 1 knows no members."""
        return 0


def apply(
    state: PartitionState, offset: int, value: bytes | None, events: list[Event] | None = None
) -> bool:
    """Apply the record at `offset` to `state`, a `TextState`; append what happened to `events`.

    As `marshal_py.protocol.rationalizer.apply`. The `seq` of events is the time in the record.
    Never raises.
    """
    if offset < state.next_offset:
        if events is not None:
            events.append(ev.Ignored(offset, "offset_repeated"))
        return True
    state.next_offset = offset + 1

    if (
        events is None
        and value is not None
        and value[:12] == _USUAL
        and _renew(state, offset, value)
    ):
        return True
    try:
        record = decode_any(value)
        if not 0 <= record.partition <= MAX_PARTITION:
            raise MalformedRecord("no Kafka partition has this number")
    except MalformedRecord:
        if events is not None:
            events.append(ev.Ignored(offset, "undecodable"))
        return False
    if record.type in _OTHER:
        _OTHER[record.type](state, offset, record, events)  # type: ignore[arg-type]
    return True


def _renew(state: PartitionState, offset: int, value: bytes) -> bool:
    """Apply a heartbeat whose names were seen before; say whether it was one.

    Replay is made of these. Everything between the time and the offset is looked up as one piece,
    which saves splitting, decoding and comparing it.
    """
    head, _, current = value.rpartition(b"/")
    time_s, _, names = head[12:].partition(b"/")
    known = state.renewals.get(names)  # type: ignore[attr-defined]
    if known is None:
        return False
    if not time_s.isdigit() or not current.isdigit() or len(time_s) > 18 or len(current) > 18:
        return False
    cell, owner, instance, key = known
    seconds = int(time_s)
    if cell.holder == owner and cell.instance_id == instance and seconds:
        cell.heartbeat_s = seconds
        cell.version = offset
        if cell.doubt >= 0 or cell.rival >= 0:
            _settle(state, cell, seconds)  # type: ignore[arg-type]
    else:
        _own(state, cell, offset, seconds, instance, owner, key, None)  # type: ignore[arg-type]
    cell.current_offset = number = int(current)
    cell.next_offset = number or NO_OFFSET
    return True


def _any_heartbeat(
    state: TextState, offset: int, record: TextRecord, events: list[Event] | None
) -> None:
    _heartbeat(
        state,
        offset,
        record.time_s,
        record.instance_id,
        record.client_id,
        record.group_id,
        record.topic,
        record.partition,
        record.offset or 0,
        events,
    )


def _heartbeat(
    state: TextState,
    offset: int,
    time_s: int,
    instance: str,
    client: str,
    group: str,
    topic: str,
    partition: int,
    current: int,
    events: list[Event] | None,
) -> None:
    key = (group, topic, partition)
    cell: TextCell | None = state.cells.get(key)  # type: ignore[assignment]
    if cell is None:
        cell = state.cells[key] = TextCell(key[1:], interval_ms=state.interval_ms)
    if events is not None:
        events.append(ev.Beat(offset, client, instance, group, time_s, 1, 1, 0))
    if cell.holder != client or cell.instance_id != instance or not time_s:
        _own(state, cell, offset, time_s, instance, client, key, events)
    else:
        cell.heartbeat_s = time_s
        cell.version = offset
        if cell.doubt >= 0 or cell.rival >= 0:
            _settle(state, cell, time_s)
    cell.current_offset = current
    cell.next_offset = current if current > 0 else NO_OFFSET
    if events is None:
        if len(state.renewals) >= _MAX_RENEWALS:
            state.renewals.clear()
        names = f"{instance}/{client}/{group}/{topic}/{partition}"
        state.renewals[names.encode()] = (cell, client, instance, key)
    else:
        events.append(
            ev.Renewed(
                offset,
                client,
                instance,
                group,
                time_s,
                topic,
                partition,
                cell.epoch,
                cell.next_offset,
            )
        )


def _own(
    state: TextState,
    cell: TextCell,
    offset: int,
    time_s: int,
    instance: str,
    client: str,
    key: CellKey,
    events: list[Event] | None,
) -> None:
    """Make the sender the owner. A time of 0 means to Go that nobody holds the cell."""
    group, topic, partition = key
    if events is not None:
        events.append(
            ev.Claimed(
                offset,
                client,
                instance,
                group,
                time_s,
                topic,
                partition,
                offset,
                state.interval_ms,
                cell.holder,
                cell.instance_id,
                cell.epoch,
            )
        )
    if cell.holder is not None and cell.holder != client:
        cell.rival = cell.version
    cell.rival_s = cell.doubt_s = time_s  # from here on another clock counts
    cell.owner, cell.owner_instance = client, instance
    cell.holder, cell.instance_id = (client, instance) if time_s else (None, None)
    cell.heartbeat_s, cell.release_s = time_s, 0
    cell.epoch = cell.version = offset


def _settle(state: TextState, cell: TextCell, time_s: int) -> None:
    """Forget what came up long ago, by the owner's own clock."""
    if time_s - cell.doubt_s >= state.span_s - state.sure_s:
        cell.doubt = NO_OFFSET
    if time_s - cell.rival_s >= state.span_s + state.interval_ms // 1000:
        cell.rival = NO_OFFSET


def _claim(state: TextState, offset: int, record: TextRecord, events: list[Event] | None) -> None:
    key = (record.group_id, record.topic, record.partition)
    cell: TextCell | None = state.cells.get(key)  # type: ignore[assignment]
    if cell is None:
        cell = state.cells[key] = TextCell(key[1:], interval_ms=state.interval_ms)
    after_s = record.time_s - cell.heartbeat_s
    if not cell.heartbeat_s or abs(after_s) >= state.span_s:
        _own(
            state,
            cell,
            offset,
            record.time_s,
            record.instance_id,
            record.client_id,
            key,
            events,
        )
        return
    reason: Reason = "still_held"
    own = cell.holder == record.client_id and cell.instance_id == record.instance_id
    if not own and not 0 <= after_s < state.sure_s:
        reason = "in_doubt"
        cell.version = cell.doubt = offset
        cell.doubt_s = cell.heartbeat_s
    if events is not None:
        _reject(events, offset, record, reason, cell)


def _release(state: TextState, offset: int, record: TextRecord, events: list[Event] | None) -> None:
    key = (record.group_id, record.topic, record.partition)
    cell: TextCell | None = state.cells.get(key)  # type: ignore[assignment]
    if cell is None:  # Go makes an empty one, and shows it
        cell = state.cells[key] = TextCell(key[1:], interval_ms=state.interval_ms)
    if cell.owner != record.client_id or cell.owner_instance != record.instance_id:
        if events is not None:
            _reject(events, offset, record, "not_held", cell)
        return
    was_held = cell.held
    _settle(state, cell, record.time_s)
    current = record.offset or 0
    cell.holder = cell.instance_id = None
    cell.heartbeat_s, cell.release_s = 0, record.time_s
    cell.current_offset = current
    cell.next_offset = current if current > 0 else NO_OFFSET
    cell.version = offset
    if events is None:
        return
    if not was_held:
        _reject(events, offset, record, "not_held", cell)
        return
    events.append(
        ev.Released(
            offset,
            record.client_id,
            record.instance_id,
            record.group_id,
            record.time_s,
            record.topic,
            record.partition,
            cell.epoch,
            cell.next_offset,
        )
    )


def _pause(state: TextState, offset: int, record: TextRecord, events: list[Event] | None) -> None:
    until_ms = max(0, min((record.offset or 0) * 1000, _MAX_MS))
    paused = until_ms > record.time_s * 1000
    was_paused = record.group_id in state.paused
    if paused:
        state.paused[record.group_id] = until_ms
    else:
        state.paused.pop(record.group_id, None)
    if events is None or not (paused or was_paused):
        return
    sender = (record.client_id, record.instance_id, record.group_id, record.time_s)
    events.append(
        ev.GroupPaused(offset, *sender, until_ms) if paused else ev.GroupResumed(offset, *sender)
    )


_MAX_MS: Final = 2**63 - 1
_USUAL: Final = b"Heartbeat/1/"
_MAX_RENEWALS: Final = 100_000

_OTHER: Final[dict[str, Callable[[TextState, int, TextRecord, list[Event] | None], None]]] = {
    HEARTBEAT: _any_heartbeat,
    CLAIMING_PARTITION: _claim,
    RELEASING_PARTITION: _release,
    RELEASE_GROUP: _pause,
}
"""What has an effect. `ClaimingMessages` is read and has none: nobody ever built it."""


def _reject(
    events: list[Event],
    offset: int,
    record: TextRecord,
    reason: Reason,
    cell: TextCell | None,
) -> None:
    events.append(
        ev.Rejected(
            offset,
            record.client_id,
            record.instance_id,
            record.group_id,
            record.time_s,
            record.type,
            reason,
            record.topic,
            record.partition,
            NO_OFFSET if cell is None else cell.epoch,
            NO_OFFSET if cell is None else cell.version,
            None if cell is None else cell.holder,
        )
    )
