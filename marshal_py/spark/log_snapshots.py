"""A record of the snapshot topic, as the folds of the audit and of the lake take it."""

from __future__ import annotations

from marshal_py.errors import MalformedRecord
from marshal_py.protocol.history.snapshot_checks import SnapshotSeen
from marshal_py.protocol.snapshots import Snapshot, decode_snapshot

__all__ = ["read_snapshot"]


def read_snapshot(
    partition: int, partitions: int, offset: int, at_ms: int, value: bytes
) -> tuple[Snapshot, SnapshotSeen]:
    """Decode the record at an offset of a partition of the snapshot topic, and restore it once.

    Raises `MalformedRecord`, which says what is wrong: also for the snapshot of another partition,
    or of a log of another size.
    """
    try:
        snapshot = decode_snapshot(value)
        state = snapshot.restore()
    except MalformedRecord as error:
        raise MalformedRecord(f"snapshot topic: {error}") from None
    if snapshot.partitions != partitions or state.partition != partition:
        what = f"snapshot of partition {state.partition} of {snapshot.partitions}"
        raise MalformedRecord(f"{what} stands in {partition}")
    seen = SnapshotSeen(
        snapshot.next_offset, snapshot.digest, snapshot.anchor, snapshot.writer, offset, at_ms
    )
    return snapshot, seen
