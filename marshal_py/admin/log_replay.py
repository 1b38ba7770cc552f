"""Replaying the log: some coordination partitions from as far back as it goes, by record."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME

from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_reader import FoundSnapshot, read_snapshots
from marshal_py.admin.topic_offsets import extent
from marshal_py.admin.world_reader import stamp_ms
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.topics import admin_client
from marshal_py.errors import AccessDenied, TopicMissing
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.snapshots import Snapshot
from marshal_py.protocol.wire import MSGPACK, Wire

__all__ = ["LogRecord", "LogReplay", "open_replay"]

_TOLD_EVERY: Final = 10_000
"""Records, until somebody hears how far it is."""
REPLAY_S: Final = 3_600.0
"""A replay may take long; brokers that do not answer are found out when it begins."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of the coordination log. `stamp_ms` is 0 where it has none."""

    coordinator: int
    offset: int
    value: bytes | None
    stamp_ms: int
    create_time: bool


@dataclass
class LogReplay:
    """Where the history of each partition begins, and what it begins from.

    `starts` lacks the partitions of which records are gone that no snapshot covers.
    """

    connection: Connection
    partitions: int
    """How many coordination partitions there are."""
    extents: dict[int, tuple[int, int]]
    starts: dict[int, int] = field(default_factory=dict)
    bases: dict[int, Snapshot] = field(default_factory=dict)
    snapshots: list[FoundSnapshot] = field(default_factory=list)
    has_snapshots: bool = True
    wire: Wire = MSGPACK

    def state(self, p: int) -> PartitionState:
        """Return the state that the history of `p` begins from."""
        base = self.bases.get(p)
        return self.wire.state(p) if base is None else base.restore()

    def records(self, ps: Collection[int] | None = None) -> Iterator[LogRecord]:
        """Yield the records of `ps` (default: all that have a start), each in offset order."""
        chosen = self.starts.keys() if ps is None else ps
        starts = {p: self.starts[p] for p in chosen if self.starts[p] < self.extents[p][1]}
        if not starts:
            return
        ends = {p: self.extents[p][1] for p in starts}
        deadline = time.monotonic() + REPLAY_S
        topic = self.connection.topic
        total = sum(ends[p] - start for p, start in starts.items())
        found = read_to_end(self.connection.kafka, topic, starts, ends, deadline)
        for done, message in enumerate(found):
            if done % _TOLD_EVERY == 0:
                self.connection.progress(done, total)
            yield _record(message, self.wire)


def open_replay(
    connection: Connection, ps: Collection[int] | None = None, wire: Wire = MSGPACK
) -> LogReplay:
    """Find out where the log of the partitions (default: all) begins, with which snapshots.

    In a log of version 1 there are no snapshots: the history of each begins where its records do.

    Raises `TopicMissing`, `BrokerUnavailable`; `AccessDenied` where the log, or, if it was trimmed,
    the snapshots may not be read.
    """
    admin = admin_client(connection.kafka)
    extents = extent(admin, connection.topic, connection)
    replay = LogReplay(connection, len(extents), extents, wire=wire)
    if not wire.has_snapshots:
        replay.has_snapshots = False
        replay.starts = {p: first for p, (first, _) in extents.items()}
        return replay
    try:
        ends = {p: e for p, (_, e) in extent(admin, connection.snapshot_topic, connection).items()}
    except TopicMissing:
        replay.has_snapshots, ends = False, {}
    except AccessDenied:
        if any(first for first, _ in extents.values()):
            raise  # what was trimmed is in the snapshots alone
        replay.has_snapshots, ends = False, {}
    if ps is not None:
        ends = {p: end for p, end in ends.items() if p in ps}
    replay.snapshots = read_snapshots(connection, ends, newest_only=False)
    for p, (first, end) in extents.items():
        if first == 0:
            replay.starts[p] = 0
            continue
        reaching = [
            found.snapshot
            for found in replay.snapshots
            if found.snapshot is not None
            and found.coordinator == p
            and found.snapshot.partitions == len(extents)
            and first <= found.snapshot.next_offset <= end
        ]
        if reaching:
            replay.bases[p] = min(reaching, key=lambda s: s.next_offset)
            replay.starts[p] = replay.bases[p].next_offset
    return replay


def _record(message: Any, wire: Wire) -> LogRecord:
    return LogRecord(
        message.partition(),
        message.offset(),
        message.value(),
        max(0, stamp_ms(message, wire)),
        message.timestamp()[0] == TIMESTAMP_CREATE_TIME,
    )
