"""What the audit remembers of one coordination partition beyond the fold's state. No I/O.

Its size is bounded by the cells and the clients of late, not by the length of the log. Field names
are what `PartitionMemory.encode` writes, and Spark's audit keeps that between its runs.
"""

from __future__ import annotations

from typing import Any, Final, Self, TypeAlias

import msgspec
from msgspec import Struct

from marshal_py.protocol.history import anomalies as an
from marshal_py.protocol.rationalizer import Cell, CellKey, PartitionState

__all__ = [
    "UNKNOWN",
    "CellTrack",
    "InstanceTrack",
    "LostClaim",
    "PartitionMemory",
    "Row",
    "slow_gap_ms",
]

UNKNOWN: Final = -1
"""A time, an offset or an epoch that is not known."""

Row: TypeAlias = tuple[Any, ...]


class CellTrack(Struct, gc=False):
    """What the audit knows of one cell, and of the claim on it. Times in ms.

    What the heartbeats of the holder's session did for the claim is taken in by
    `PartitionMemory.settle`, when somebody asks.
    """

    client_id: str | None = None
    instance_id: str | None = None
    epoch: int = UNKNOWN
    interval_ms: int = 0
    from_ms: int = UNKNOWN
    first_offset: int = UNKNOWN
    next_offset: int = UNKNOWN
    claimed_offset: int = UNKNOWN
    version_ms: int = UNKNOWN
    """When the last record came that renewed the cell."""
    renewed_ms: int = UNKNOWN
    """When its last heartbeat came, in version 1, where each renews one cell."""
    last_beat_ms: int = UNKNOWN
    heartbeats: int = 0
    late: int = 0
    longest_gap_ms: int = 0
    batches: int = 0
    beats_from: int = 0
    """How many heartbeats of its session are taken in, or came before the claim."""
    late_from: int = 0
    slow_ms: int = 0
    """A gap above it is longer than the interval and what clocks and networks may add."""
    slow_gaps: int = 0
    slow_sum_ms: int = 0
    moved_ms: int = UNKNOWN
    """When it came to be known that the cell is where it is."""
    sample_due_ms: int = UNKNOWN
    flags: int = 0
    """What was reported once for this claim; for `anomaly_checks`."""
    takeover: Row | None = None
    """The row of the takeover that began the claim, until its first heartbeat completes it."""
    last_client_id: str | None = None
    vacant_ms: int = UNKNOWN
    vacancy_ms: int = UNKNOWN
    changes_ms: list[int] = []
    flapping_until_ms: int = UNKNOWN

    def adopt(self, cell: Cell, at_ms: int) -> None:
        """Take over a claim that began before this history did."""
        self.client_id, self.instance_id = cell.holder, cell.instance_id
        self.epoch, self.interval_ms = cell.epoch, cell.interval_ms
        self.slow_ms = slow_gap_ms(cell.interval_ms)
        self.next_offset, self.claimed_offset = cell.next_offset, cell.claimed_offset
        self.version_ms = self.renewed_ms = self.moved_ms = at_ms

    def vacate(self, at_ms: int) -> None:
        """Note that the claim has ended."""
        self.last_client_id = self.client_id
        self.client_id = self.instance_id = self.takeover = None
        self.vacant_ms = at_ms


class InstanceTrack(Struct):
    """What was seen of one instance of a client: its records, and the heartbeats of its session."""

    seq: int
    offset: int
    interval_ms: int = 0
    beats: int = 0
    last_beat_ms: int = UNKNOWN
    renewed_ms: int = UNKNOWN
    """When what it holds was renewed last: by a heartbeat, or by the first claim."""
    is_first: bool = True
    """Whether no heartbeat has come yet since it held nothing."""
    late: int = 0
    slow_ms: int = 0
    slow_gaps: int = 0
    slow_sum_ms: int = 0
    gaps: list[tuple[int, int]] = []
    """(number of the heartbeat, gap before it), each larger than all that came after it."""
    pending: dict[CellKey, int] = {}
    """Cell → epoch of the claims whose first heartbeat has not come yet."""
    newer: str | None = None
    """The instance of the same client that was first seen after this one."""
    after_newer: int = 0
    """Records of this one since then."""
    seen: int = 1
    """Bit n: seq − n was read."""
    twice: int = 0
    """Bit n: seq − n was read twice, the same bytes, and a record that was new before that."""
    prints: dict[int, int] = {}
    """seq → a checksum of the record, of the last ones at least."""
    flags: int = 0

    def watch(self, interval_ms: int) -> None:
        """Take over the interval that its heartbeats have."""
        self.interval_ms = interval_ms
        self.slow_ms = slow_gap_ms(interval_ms)

    def beat(self, now_ms: int, gap_ms: int) -> None:
        """Note a heartbeat that came so long after what was renewed before."""
        self.beats += 1
        self.last_beat_ms = self.renewed_ms = now_ms
        gaps = self.gaps
        while gaps and gaps[-1][1] <= gap_ms:
            gaps.pop()
        gaps.append((self.beats, gap_ms))

    def longest_gap_ms(self, after: int) -> int:
        """Return the longest gap before a heartbeat later than the one of this number."""
        return next((gap for number, gap in self.gaps if number > after), 0)


class LostClaim(Struct, gc=False):
    """Heartbeats of one instance that told of a claim that it no longer has."""

    epoch: int
    first_ms: int
    offset: int
    count: int = 0


InstanceKey: TypeAlias = tuple[str, str, str]
"""(group_id, client_id, instance_id)"""


class _Saved(Struct, array_like=True):
    state: bytes
    cells: list[tuple[CellKey, CellTrack]]
    instances: list[tuple[InstanceKey, InstanceTrack]]
    newest: list[tuple[tuple[str, str], str]]
    lost: list[tuple[InstanceKey, LostClaim]]
    latest_ms: int
    records: int
    value: bytes | None
    create_time: bool
    founded_ms: int


_decoder: Final = msgspec.msgpack.Decoder(_Saved)


class PartitionMemory:
    """The state of the fold, what is tracked beside it, and the record that it is at."""

    __slots__ = (
        "at_ms",
        "cells",
        "create_time",
        "founded_ms",
        "instances",
        "latest_ms",
        "lost",
        "newest",
        "records",
        "state",
        "value",
    )

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self.cells: dict[CellKey, CellTrack] = {}
        self.instances: dict[InstanceKey, InstanceTrack] = {}
        self.newest: dict[tuple[str, str], str] = {}
        """(group_id, client_id) → the instance that was seen first latest."""
        self.lost: dict[InstanceKey, LostClaim] = {}
        self.latest_ms = UNKNOWN
        """The latest broker timestamp so far."""
        self.records = 0
        self.create_time = False
        """Whether a record carried its sender's time."""
        self.founded_ms = UNKNOWN
        """When the log's genesis came."""
        self.at_ms = UNKNOWN
        """When the record came that is being looked at."""
        self.value: bytes | None = None
        """Its bytes."""

    def settle(self, key: CellKey, track: CellTrack) -> CellTrack:
        """Take in what heartbeats of the holder's session did for a claim. Returns the track."""
        sender = self.instances.get((key[0], track.client_id or "", track.instance_id or ""))
        if sender is not None and sender.beats > track.beats_from:
            track.heartbeats += sender.beats - track.beats_from
            longest_ms = sender.longest_gap_ms(track.beats_from)
            track.longest_gap_ms = max(track.longest_gap_ms, longest_ms)
            track.late += sender.late - track.late_from
            track.last_beat_ms = sender.last_beat_ms
            track.version_ms = max(track.version_ms, sender.last_beat_ms)
            track.beats_from, track.late_from = sender.beats, sender.late
        return track

    def encode(self) -> bytes:
        """Return everything that `decode` needs to go on after the last record."""
        return msgspec.msgpack.encode(
            _Saved(
                self.state.encode(),
                list(self.cells.items()),
                list(self.instances.items()),
                list(self.newest.items()),
                list(self.lost.items()),
                self.latest_ms,
                self.records,
                self.value,
                self.create_time,
                self.founded_ms,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the memory that `encode` wrote. Raises `msgspec.MsgspecError`."""
        saved = _decoder.decode(data)
        memory = cls(PartitionState.decode(saved.state))
        memory.cells = dict(saved.cells)
        memory.instances = dict(saved.instances)
        memory.newest = dict(saved.newest)
        memory.lost = dict(saved.lost)
        memory.latest_ms = saved.latest_ms
        memory.records = saved.records
        memory.value = saved.value
        memory.create_time = saved.create_time
        memory.founded_ms = saved.founded_ms
        return memory


def slow_gap_ms(interval_ms: int) -> int:
    """Return the longest gap between heartbeats that clocks and networks explain."""
    return int(interval_ms * an.DRIFT_RATE) + an.DRIFT_MS
