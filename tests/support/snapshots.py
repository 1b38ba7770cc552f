"""A snapshot as it is found in the log's topic of snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from marshal_py.admin.snapshot_reader import FoundSnapshot
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.snapshots import anchor_of, decode_snapshot, encode_snapshot

__all__ = ["found_snapshot", "snapshot_record"]


def found_snapshot(
    records: Sequence[bytes],
    upto: int,
    *,
    partitions: int = 1,
    state_of: Sequence[bytes] | None = None,
) -> FoundSnapshot:
    """Of what is below `upto` in `records`. `state_of`: it has the state that these lead to."""
    state = PartitionState(0)
    for offset, value in enumerate((state_of or records)[:upto]):
        apply(state, offset, value)
    value = encode_snapshot(
        state.encode(),
        coordinator=0,
        partitions=partitions,
        next_offset=upto,
        anchor=anchor_of(records[upto - 1]),
        writer="w",
    )
    return FoundSnapshot(0, upto, 0, len(value), decode_snapshot(value))


def snapshot_record(partition: int, next_offset: int) -> bytes:
    """Return the record of an empty snapshot, of a log of two partitions."""
    state = PartitionState(partition)
    state.next_offset = next_offset
    return encode_snapshot(
        state.encode(),
        coordinator=partition,
        partitions=2,
        next_offset=next_offset,
        anchor=b"\0" * 16,
        writer="w",
    )
