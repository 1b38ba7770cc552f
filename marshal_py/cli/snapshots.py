"""What is in the snapshot topic, and `marshal snapshot`, which writes to it now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from marshal_py.admin.connection import Connection
from marshal_py.admin.topic_offsets import extent
from marshal_py.admin.world_reader import look
from marshal_py.cli.framework import JsonFlag, command, console, note, print_json, show, table
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.settings import default_client_id, new_instance_id
from marshal_py.client.topics import admin_client
from marshal_py.errors import BrokerUnavailable, MalformedRecord
from marshal_py.protocol.snapshots import Snapshot, decode_snapshot

__all__ = ["FoundSnapshot", "read_snapshots", "snapshot"]


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
    return [_found(record) for record in records]


@command()
def snapshot(connection: Connection, as_json: JsonFlag = False) -> None:
    """Write a snapshot of every coordination partition now.

    Clients write them by themselves every 50,000 records. Do it by hand before
    `marshal topic trim`. A partition without a record since its newest snapshot is left out.

    [bold]Examples[/]

      marshal snapshot -b localhost:9092

      marshal snapshot && marshal topic trim --yes
    """
    found = look(connection)
    reader = found.reader
    if reader.mismatches:
        raise reader.mismatches[0]
    writer = default_client_id(new_instance_id())
    log = LogWriter(
        connection.kafka,
        topic=connection.topic,
        snapshot_topic=connection.snapshot_topic,
        timeout_ms=int(connection.timeout_s * 1000),
    )
    written: list[dict[str, int]] = []
    for p in range(reader.world.partitions):
        due = reader.snapshot_now(p)
        if due is None or due.next_offset == reader.newest_snapshot.get(p):
            continue
        log.write_snapshot(due, reader.world.partitions, writer)
        written.append(
            {"coordinator": p, "next_offset": due.next_offset, "state_bytes": len(due.state)}
        )
    _check_written(connection, log, written)
    if as_json:
        print_json({"topic": connection.snapshot_topic, "writer": writer, "written": written})
    elif not written:
        note("nothing new since the newest snapshots")
    else:
        made = table(
            "PARTITION", "UP TO", "STATE BYTES", right=("PARTITION", "UP TO", "STATE BYTES")
        )
        for row in written:
            made.add_row(*(f"{value:,}" for value in row.values()))
        show(console(), made)


def _check_written(connection: Connection, log: LogWriter, written: list[dict[str, int]]) -> None:
    """Read back what was written: the writer only logs a failure."""
    if not written:
        return
    if log.flush(connection.timeout_s) > 0:
        raise BrokerUnavailable(f"snapshots were not written within {connection.timeout_s:g} s")
    ends = extent(admin_client(connection.kafka), connection.snapshot_topic, connection)
    newest = read_snapshots(connection, {p: end for p, (_, end) in ends.items()})
    there = {r.coordinator: r.snapshot.next_offset for r in newest if r.snapshot is not None}
    for row in written:
        if there.get(row["coordinator"], 0) < row["next_offset"]:
            raise BrokerUnavailable(
                f"the snapshot of partition {row['coordinator']} was not accepted; is "
                f"max.message.bytes of {connection.snapshot_topic!r} large enough?"
            )


def _found(record: Any) -> FoundSnapshot:
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
