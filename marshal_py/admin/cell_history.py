"""The history of one cell, or of one message, read from the log: who had it, when, and why."""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

from marshal_py.admin.cell_timeline import CellStatus, CellTimeline
from marshal_py.admin.connection import Connection
from marshal_py.admin.event_text import without_epoch
from marshal_py.admin.formatting import iso_utc
from marshal_py.admin.log_replay import LogReplay, open_replay
from marshal_py.admin.message_timeline import MessageStatus, MessageTimeline
from marshal_py.admin.world_reader import own_time_ms
from marshal_py.client.genesis import count_changed, counts_told
from marshal_py.errors import InvalidArgument, LogHole
from marshal_py.protocol import events as ev
from marshal_py.protocol.rationalizer import CellKey, PartitionState
from marshal_py.protocol.wire import MSGPACK, Wire

__all__ = ["read_cell_history", "read_message_history"]

_Status = TypeVar("_Status", covariant=True)


def read_cell_history(
    connection: Connection,
    group: str,
    topic: str,
    partition: int,
    at_ms: int | None = None,
    *,
    wire: Wire = MSGPACK,
) -> tuple[CellTimeline, CellStatus]:
    """Read the cell's coordination partition; return its timeline, and how it stood at `at_ms`.

    Raises `InvalidArgument` when the log does not reach back so far, `LogHole`,
    `PartitionCountChanged`.
    """
    key = (group, topic, partition)
    replay, p = _open(connection, key, wire)
    state = replay.state(p)
    timeline = CellTimeline(key, p, has_sessions=wire is MSGPACK)
    timeline.begin(state.cells.get(key), paused=group in state.paused)
    return timeline, _feed(timeline, replay, state, at_ms)


def read_message_history(
    connection: Connection,
    key: CellKey,
    topic: str,
    partition: int,
    message: int,
    at_ms: int | None = None,
) -> tuple[MessageTimeline, MessageStatus]:
    """Read what became of one message of topic/partition; return as `read_cell_history` does.

    `key` is the cell of the partition, or of the slot that the message belongs to. Raises as
    `read_cell_history` does.
    """
    replay, p = _open(connection, key, MSGPACK)
    state = replay.state(p)
    timeline = MessageTimeline(key, topic, partition, message, p)
    timeline.begin(state)
    return timeline, _feed(timeline, replay, state, at_ms)


def _open(connection: Connection, key: CellKey, wire: Wire) -> tuple[LogReplay, int]:
    replay = open_replay(connection, wire=wire)
    p = wire.coordinator(*key, replay.partitions)
    if p not in replay.starts:
        raise LogHole(
            f"records below offset {replay.extents[p][0]} of {connection.topic}/{p} are gone and "
            "no snapshot covers them: the history of this partition cannot be told"
        )
    return replay, p


class _Timeline(Protocol[_Status]):
    @property
    def coordinator(self) -> int: ...
    @property
    def latest_ms(self) -> int: ...
    def feed(self, event: ev.Event, at_ms: int) -> None: ...
    def status(self, at_ms: int, *, now: bool = False) -> _Status: ...
    def finish(self) -> None: ...


def _feed(
    timeline: _Timeline[_Status], replay: LogReplay, state: PartitionState, at_ms: int | None
) -> _Status:
    """Feed the timeline with its coordination partition; return how all stood at `at_ms`."""
    p, wire = timeline.coordinator, replay.wire
    status: _Status | None = None
    events: list[ev.Event] = []
    first_ms: int | None = None
    for record in replay.records([p]):
        stamp_ms = record.stamp_ms
        if wire is not MSGPACK:  # what its clients judge by
            stamp_ms = max(own_time_ms(record.value), 0) or stamp_ms
        if first_ms is None:
            first_ms = stamp_ms
        if at_ms is not None and status is None and stamp_ms > at_ms:
            cut_off = p in replay.bases or replay.starts[p] > 0
            if cut_off and at_ms < first_ms:
                raise InvalidArgument(
                    f"the log does not reach back to {iso_utc(at_ms)}: it begins at "
                    f"{iso_utc(first_ms)}"
                )
            status = timeline.status(at_ms)
        wire.apply(state, record.offset, record.value, events)
        for event in events:
            timeline.feed(event if wire is MSGPACK else without_epoch(event), stamp_ms)
        events.clear()
    _check_count(replay, state)
    if status is None:
        status = timeline.status(
            max(time.time_ns() // 1_000_000, timeline.latest_ms) if at_ms is None else at_ms,
            now=at_ms is None,
        )
    timeline.finish()
    return status


def _check_count(replay: LogReplay, state: PartitionState) -> None:
    """Make sure that the cell was looked for where it was written (§7.2).

    A partition without a genesis may be one that was added to a log: the others tell of how many it
    was made.
    """
    told = {state.partitions} - {0}
    if not told and replay.wire is MSGPACK:
        connection = replay.connection
        deadline = time.monotonic() + connection.timeout_s
        told = counts_told(connection.kafka, connection.topic, replay.extents, deadline)
        told |= {found.snapshot.partitions for found in replay.snapshots if found.snapshot}
    for count in told - {replay.partitions}:
        raise count_changed(replay.connection.topic, count, replay.partitions)
