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
    """What the audit knows of one cell, and of the claim on it. Times in ms."""

    client_id: str | None = None
    instance_id: str | None = None
    epoch: int = UNKNOWN
    interval_ms: int = 0
    from_ms: int = UNKNOWN
    first_offset: int = UNKNOWN
    next_offset: int = UNKNOWN
    claimed_offset: int = UNKNOWN
    version_ms: int = UNKNOWN
    """When the last record came that was accepted for the cell."""
    renewed_ms: int = UNKNOWN
    last_beat_ms: int = UNKNOWN
    heartbeats: int = 0
    late: int = 0
    longest_gap_ms: int = 0
    batches: int = 0
    slow_ms: int = 0
    """A gap above it is longer than the interval and what clocks and networks may add."""
    slow_gaps: int = 0
    slow_sum_ms: int = 0
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
        self.version_ms = self.renewed_ms = at_ms

    def vacate(self, at_ms: int) -> None:
        """Note that the claim has ended."""
        self.last_client_id = self.client_id
        self.client_id = self.instance_id = self.takeover = None
        self.vacant_ms = at_ms


class InstanceTrack(Struct, gc=False):
    """What was seen of one instance of a client."""

    seq: int
    offset: int
    newer: str | None = None
    """The instance of the same client that was first seen after this one."""
    after_newer: int = 0
    """Records of this one since then."""
    seen: int = 1
    """Bit n: seq − n was read."""
    flags: int = 0


class LostClaim(Struct, gc=False):
    """Rejected heartbeats of one instance for a claim that it no longer has."""

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
    lost: list[tuple[tuple[CellKey, str], LostClaim]]
    forgotten: list[str]
    latest_ms: int
    records: int
    value: bytes | None
    create_time: bool


_decoder: Final = msgspec.msgpack.Decoder(_Saved)


class PartitionMemory:
    """The state of the fold, what is tracked beside it, and the record that it is at."""

    __slots__ = (
        "at_ms",
        "cells",
        "create_time",
        "forgotten",
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
        self.lost: dict[tuple[CellKey, str], LostClaim] = {}
        self.forgotten: set[str] = set()
        """Groups that were forgotten."""
        self.latest_ms = UNKNOWN
        """The latest broker timestamp so far."""
        self.records = 0
        self.create_time = False
        """Whether a record carried its sender's time."""
        self.at_ms = UNKNOWN
        """When the record came that is being looked at."""
        self.value: bytes | None = None
        """Its bytes."""

    def encode(self) -> bytes:
        """Return everything that `decode` needs to go on after the last record."""
        return msgspec.msgpack.encode(
            _Saved(
                self.state.encode(),
                list(self.cells.items()),
                list(self.instances.items()),
                list(self.newest.items()),
                list(self.lost.items()),
                sorted(self.forgotten),
                self.latest_ms,
                self.records,
                self.value,
                self.create_time,
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
        memory.forgotten = set(saved.forgotten)
        memory.latest_ms = saved.latest_ms
        memory.records = saved.records
        memory.value = saved.value
        memory.create_time = saved.create_time
        return memory


def slow_gap_ms(interval_ms: int) -> int:
    """Return the longest gap between heartbeats that clocks and networks explain."""
    return int(interval_ms * an.DRIFT_RATE) + an.DRIFT_MS
