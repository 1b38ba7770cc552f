"""Comparing snapshots with the state that the log gives. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from marshal_py.protocol.history.rows import Rows
from marshal_py.protocol.history.tracks import PartitionMemory
from marshal_py.protocol.snapshots import anchor_of

__all__ = ["SnapshotChecks", "SnapshotSeen"]


class SnapshotSeen(NamedTuple):
    """A snapshot record that the fold compares with its own state. `at_ms`: when it came."""

    next_offset: int
    digest: bytes
    anchor: bytes
    writer: str
    snapshot_offset: int
    at_ms: int


class SnapshotChecks:
    """Compares snapshots with the fold's state, each when the fold comes to where it was taken."""

    def __init__(self, memory: PartitionMemory, rows: Rows) -> None:
        self._memory = memory
        self._rows = rows
        self._snapshots: list[SnapshotSeen] = []
        self.due = 2**63
        """`compare` is due as soon as the state's next offset has come to this."""

    def watch(self, snapshots: Iterable[SnapshotSeen]) -> None:
        """Compare these snapshots with the state when it comes to where they were taken.

        One of where it stands is compared at once, if the record before it has been read.
        """
        memory = self._memory
        begin = memory.state.next_offset + (memory.records == 0)
        ahead = [s for s in snapshots if s.next_offset >= begin]
        self._snapshots = sorted(ahead, key=lambda s: s.next_offset, reverse=True)
        self.compare()

    def _set_due(self) -> None:
        self.due = self._snapshots[-1].next_offset if self._snapshots else 2**63

    def compare(self) -> None:
        """Compare what is due. Called between two records."""
        memory = self._memory
        while self._snapshots and self._snapshots[-1].next_offset <= memory.state.next_offset:
            snapshot = self._snapshots.pop()
            if snapshot.next_offset != memory.state.next_offset:
                what = "was taken at an offset that no record precedes"
            elif snapshot.anchor != anchor_of(memory.value):
                what = "belongs to another log: the record before it is not this one's"
            elif snapshot.digest != memory.state.digest():
                what = "differs from the state that the log gives"
            else:
                continue
            self._rows.anomaly(
                "snapshot_differs",
                snapshot.next_offset,
                snapshot.at_ms,
                f"the snapshot of {snapshot.writer} at offset {snapshot.next_offset} (record "
                f"{snapshot.snapshot_offset} of the snapshot topic) {what}",
            )
        self._set_due()
