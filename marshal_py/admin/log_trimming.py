"""Deleting the records of the log that a valid snapshot covers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_reader import FoundSnapshot, read_snapshots
from marshal_py.admin.topic_offsets import extent
from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.errors import SnapshotMismatch
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.snapshots import Snapshot, anchor_of

__all__ = ["Cut", "delete_records", "plan_cuts"]


@dataclass
class Cut:
    """What can go from one coordination partition: the records below `below`."""

    coordinator: int
    first_offset: int
    next_offset: int
    below: int
    snapshot_offset: int | None
    verified: str
    """How the snapshot was checked: replayed, trusted, or why there is none to use."""

    @property
    def records(self) -> int:
        """How many records go."""
        return max(0, self.below - self.first_offset)


def plan_cuts(admin: AdminClient, connection: Connection) -> list[Cut]:
    """Find what may go. Raises `SnapshotMismatch` when a snapshot and a replay disagree."""
    log = extent(admin, connection.topic, connection)
    ends = {p: e for p, (_, e) in extent(admin, connection.snapshot_topic, connection).items()}
    cuts = {p: Cut(p, first, end, first, None, "none") for p, (first, end) in log.items()}
    by_partition: dict[int, list[FoundSnapshot]] = {p: [] for p in log}
    for record in read_snapshots(connection, ends, newest_only=False):
        if record.coordinator in by_partition:
            by_partition[record.coordinator].append(record)
    for p, found in by_partition.items():
        _plan(connection, cuts[p], len(log), found)
    return [cuts[p] for p in sorted(cuts)]


def _plan(connection: Connection, cut: Cut, partitions: int, found: list[FoundSnapshot]) -> None:
    problems = [f"unusable: {f.problem}" for f in found if f.snapshot is None]
    usable = [
        f.snapshot
        for f in found
        if f.snapshot is not None
        and f.snapshot.partitions == partitions
        and cut.first_offset <= f.snapshot.next_offset <= cut.next_offset
    ]
    if not usable:
        cut.verified = problems[-1] if problems else "none"
        return
    newest = max(usable, key=lambda s: s.next_offset)
    base = min(usable, key=lambda s: s.next_offset)
    verified = _verify(connection, cut.first_offset, base if base is not newest else None, newest)
    if verified is None:
        cut.verified = "of another log: the topic was made anew"
        return
    cut.verified = verified
    cut.snapshot_offset = newest.next_offset
    cut.below = max(cut.first_offset, newest.next_offset - 1)


def _verify(
    connection: Connection, first: int, base: Snapshot | None, newest: Snapshot
) -> str | None:
    """Replay up to `newest`; say how it was checked, None if it belongs to another log."""
    p, end = newest.coordinator, newest.next_offset
    if end <= first:
        return "nothing below it"
    state: PartitionState | None = None
    if first == 0:
        state, start = PartitionState(p), 0
    elif base is not None:
        state, start = base.restore(), base.next_offset
    else:
        start = end - 1
    last: bytes | None = None
    deadline = time.monotonic() + max(connection.timeout_s, 600.0)
    for message in read_to_end(connection.kafka, connection.topic, {p: start}, {p: end}, deadline):
        last = message.value()
        if state is not None:
            apply(state, message.offset(), last)
    if anchor_of(last) != newest.anchor:
        return None
    if state is None:
        return "trusted: the records that led to it are gone"
    if state.digest() != newest.digest:
        raise SnapshotMismatch(
            f"{newest.writer}'s snapshot of {connection.topic}/{p} at offset {end} is not the "
            "state that replaying the log leads to: nothing was deleted. One of the two programs "
            "does not follow the protocol; compare their versions"
        )
    return "verified by replay"


def delete_records(admin: AdminClient, connection: Connection, cuts: list[Cut]) -> None:
    """Delete what the cuts name. Raises `AccessDenied`, `confluent_kafka.KafkaException`."""
    wanted = [TopicPartition(connection.topic, c.coordinator, c.below) for c in cuts if c.records]
    if not wanted:
        return
    futures = admin.delete_records(wanted, request_timeout=max(30.0, connection.timeout_s))
    for future in futures.values():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() in REFUSED:
                raise denied(connection.kafka, connection.topic, "Delete") from None
            raise
