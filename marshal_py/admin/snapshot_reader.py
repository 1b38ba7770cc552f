"""What is in the snapshot topic."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from marshal_py.admin.connection import Connection
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.errors import MalformedRecord
from marshal_py.protocol.snapshots import Snapshot, decode_snapshot

__all__ = ["FoundSnapshot", "read_snapshots"]


@dataclass(frozen=True)
class FoundSnapshot:
    """A record of the snapshot topic. If it is bad, `snapshot` is None and `problem` says why."""

    coordinator: int
    offset: int
    written_ms: int
    size_bytes: int
    snapshot: Snapshot | None
    problem: str | None = None


def read_snapshots(
    connection: Connection, ends: dict[int, int], *, newest_only: bool = True
) -> list[FoundSnapshot]:
    """Return what the snapshot topic holds, oldest first; `ends` are its partitions' ends."""
    starts = {p: end - 1 if newest_only else 0 for p, end in ends.items() if end > 0}
    if not starts:
        return []
    deadline = time.monotonic() + connection.timeout_s
    records = read_to_end(connection.kafka, connection.snapshot_topic, starts, ends, deadline)
    return [_decoded(record) for record in records]


def _decoded(record: Any) -> FoundSnapshot:
    value: bytes | None = record.value()
    snapshot, problem = None, None
    try:
        snapshot = decode_snapshot(value)
        if snapshot.coordinator != record.partition():
            problem = f"it is of partition {snapshot.coordinator}"
            snapshot = None
    except MalformedRecord as error:
        problem = str(error)
    return FoundSnapshot(
        record.partition(),
        record.offset(),
        record.timestamp()[1],
        len(value or b""),
        snapshot,
        problem,
    )
