"""What the audit remembers of one coordination partition, and how rows are made of it. No I/O."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self, TypeAlias

import msgspec
from msgspec import Struct

from marshal_py.protocol.history import anomalies as an
from marshal_py.protocol.messages import Entry
from marshal_py.protocol.rationalizer import CellKey, PartitionState

__all__ = [
    "LEADER_PREFIX",
    "NONE",
    "Ledger",
    "Rejections",
    "Row",
    "Sender",
    "SnapshotSeen",
    "Track",
    "known",
    "slow_ms",
]

LEADER_PREFIX: Final = "leader:"
NONE: Final = -1

Row: TypeAlias = tuple[Any, ...]


class SnapshotSeen(NamedTuple):
    """A snapshot record that the fold compares with its own state. `at_ms`: when it came."""

    next_offset: int
    digest: bytes
    anchor: bytes
    writer: str
    snapshot_offset: int
    at_ms: int


class Track(Struct, gc=False):
    """What the audit knows of one cell beyond its state. Times in ms, −1 where unknown."""

    client_id: str | None = None
    instance_id: str | None = None
    epoch: int = NONE
    interval_ms: int = 0
    from_ms: int = NONE
    first_offset: int = NONE
    next_offset: int = NONE
    claimed_offset: int = NONE
    version_ms: int = NONE
    renewed_ms: int = NONE
    last_beat_ms: int = NONE
    heartbeats: int = 0
    late: int = 0
    longest_gap_ms: int = 0
    batches: int = 0
    slow_ms: int = 0
    """A gap above it is longer than the interval and what clocks and networks may add."""
    slow_gaps: int = 0
    slow_sum_ms: int = 0
    sample_due_ms: int = NONE
    flags: int = 0
    takeover: Row | None = None
    last_client_id: str | None = None
    vacant_ms: int = NONE
    vacancy_ms: int = NONE
    changes_ms: list[int] = []
    flapping_until_ms: int = NONE


class Sender(Struct, gc=False):
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


class Rejections(Struct, gc=False):
    """Heartbeats of one instance for a claim that it no longer has."""

    epoch: int
    first_ms: int
    offset: int
    count: int = 0


SenderKey: TypeAlias = tuple[str, str, str]
"""(group_id, client_id, instance_id)"""


class _Memory(Struct, array_like=True):
    state: bytes
    tracks: list[tuple[CellKey, Track]]
    senders: list[tuple[SenderKey, Sender]]
    current: list[tuple[tuple[str, str], str]]
    lost: list[tuple[tuple[CellKey, str], Rejections]]
    forgotten: list[str]
    latest_ms: int
    records: int
    value: bytes | None
    create_time: bool


_memory_decoder: Final = msgspec.msgpack.Decoder(_Memory)


class Ledger:
    """The state of the fold, what was noted beside it, and rows not taken yet."""

    def __init__(
        self,
        partition: int,
        partitions: int,
        *,
        state: PartitionState | None = None,
        sample_ms: int = 60_000,
    ) -> None:
        self.partition = partition
        self.partitions = partitions
        self.sample_ms = sample_ms
        self.state = state or PartitionState(partition)
        self.rows: dict[str, list[Row]] = {}
        self.tracks: dict[CellKey, Track] = {}
        self.senders: dict[SenderKey, Sender] = {}
        self.current: dict[tuple[str, str], str] = {}
        """(group_id, client_id) → the instance that was seen first latest."""
        self.lost: dict[tuple[CellKey, str], Rejections] = {}
        self.forgotten: set[str] = set()
        self.latest_ms = NONE
        """The latest broker timestamp so far."""
        self.records = 0
        self.create_time = False
        self._now = NONE
        self._value: bytes | None = None
        self._entries: tuple[int, list[Entry], dict[tuple[str, int], int]] = (NONE, [], {})

    def take_rows(self) -> dict[str, list[Row]]:
        """Return the rows since the last call, by table, and forget them."""
        rows, self.rows = self.rows, {}
        return rows

    def open_rows(self) -> dict[str, list[Row]]:
        """Return the rows of what has not ended: they hold until more records come."""
        kept, self.rows = self.rows, {}
        for key, track in self.tracks.items():
            if track.client_id is not None:
                self._claim_row(key, track, None, None, None, NONE)
                self._position_row(key, track, track.version_ms)
                if track.takeover is not None:
                    self._row("takeovers", (*track.takeover, None))
        found, self.rows = self.rows, kept
        return found

    # Carrying over

    def encode(self) -> bytes:
        """Return everything that `decode` needs to go on, except rows not taken."""
        memory = _Memory(
            self.state.encode(),
            list(self.tracks.items()),
            list(self.senders.items()),
            list(self.current.items()),
            list(self.lost.items()),
            sorted(self.forgotten),
            self.latest_ms,
            self.records,
            self._value,
            self.create_time,
        )
        return msgspec.msgpack.encode(memory)

    @classmethod
    def decode(cls, data: bytes, partitions: int, *, sample_ms: int = 60_000) -> Self:
        """Return the history that `encode` wrote. Raises `msgspec.MsgspecError`."""
        memory = _memory_decoder.decode(data)
        state = PartitionState.decode(memory.state)
        history = cls(state.partition, partitions, state=state, sample_ms=sample_ms)
        history.tracks = dict(memory.tracks)
        history.senders = dict(memory.senders)
        history.current = dict(memory.current)
        history.lost = dict(memory.lost)
        history.forgotten = set(memory.forgotten)
        history.latest_ms = memory.latest_ms
        history.records = memory.records
        history.create_time = memory.create_time
        history._value = memory.value
        return history

    def _row(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append((self.partition, *row))

    def anomaly(
        self,
        kind: an.Kind,
        offset: int,
        at_ms: int,
        what: str,
        event: Any = None,
        value: bytes | None = None,
    ) -> None:
        """Add a row to `anomalies`; `event` tells who and which cell, `value` is the record."""
        self._row(
            "anomalies",
            (
                offset,
                at_ms,
                kind,
                what,
                getattr(event, "group_id", None),
                getattr(event, "client_id", None),
                getattr(event, "instance_id", None),
                getattr(event, "topic", None),
                getattr(event, "partition", None),
                None if value is None else an.as_text(value),
            ),
        )

    def _report(self, kind: an.Kind, event: Any, what: str) -> None:
        """Add an anomaly that the record of `event` is, or makes visible."""
        self.anomaly(kind, event.offset, self._now, what, event, self._value)

    def _claim_row(
        self,
        key: CellKey,
        track: Track,
        until_ms: int | None,
        how: str | None,
        by: str | None,
        end_offset: int,
    ) -> None:
        group, topic, partition = key
        common = (
            track.client_id,
            track.instance_id,
            track.epoch,
            track.interval_ms,
            known(track.from_ms),
            until_ms,
            how,
            by,
            known(end_offset),
        )
        self._row(
            "claims",
            (
                group,
                topic,
                partition,
                *common,
                known(track.first_offset),
                known(max(track.next_offset, track.claimed_offset)),
                track.heartbeats,
                known(track.last_beat_ms),
                track.longest_gap_ms,
                track.late,
                track.batches,
            ),
        )
        if topic.startswith(LEADER_PREFIX) and partition == 0:
            name = topic[len(LEADER_PREFIX) :]
            self._row("elections", (group, name, *common, known(track.vacancy_ms)))

    def _position_row(self, key: CellKey, track: Track, at_ms: int) -> None:
        if track.next_offset == NONE and track.claimed_offset == NONE:
            return
        self._row(
            "positions",
            (
                *key,
                track.client_id,
                known(track.epoch),
                at_ms,
                known(track.next_offset),
                known(track.claimed_offset),
            ),
        )

    def _end(self, key: CellKey, track: Track, now: int, how: str, event: Any) -> None:
        """The claim of `track` ends with the record of `event`."""
        self._claim_row(key, track, now, how, event.client_id, event.offset)
        self._position_row(key, track, now)
        if track.takeover is not None:
            self._row("takeovers", (*track.takeover, None))
            track.takeover = None
        track.last_client_id = track.client_id
        track.client_id = track.instance_id = None
        track.vacant_ms = now

    def _adopt(self, key: CellKey, now: int) -> Track:
        """Track a claim that began before this history did."""
        cell = self.state.cells[key]
        track = self.tracks.get(key)
        if track is None:
            track = self.tracks[key] = Track(changes_ms=[])
        track.client_id, track.instance_id = cell.holder, cell.instance_id
        track.epoch, track.interval_ms = cell.epoch, cell.interval_ms
        track.slow_ms = slow_ms(cell.interval_ms)
        track.next_offset, track.claimed_offset = cell.next_offset, cell.claimed_offset
        track.version_ms = track.renewed_ms = now
        track.sample_due_ms = self._next_sample(now)
        return track

    def _next_sample(self, now: int) -> int:
        return (now // self.sample_ms + 1) * self.sample_ms


def known(number: int) -> int | None:
    """Return the number, or None where it is −1."""
    return None if number == NONE else number


def slow_ms(interval_ms: int) -> int:
    return int(interval_ms * an.DRIFT_RATE) + an.DRIFT_MS
