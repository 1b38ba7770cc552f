"""Writing a snapshot of every coordination partition now, instead of when a client thinks fit."""

from __future__ import annotations

from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_reader import read_snapshots
from marshal_py.admin.topic_offsets import extent
from marshal_py.admin.world_reader import read_world
from marshal_py.client.acl import denied
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.settings import default_client_id, new_instance_id
from marshal_py.client.topics import admin_client
from marshal_py.errors import BrokerUnavailable

__all__ = ["write_snapshots"]


def write_snapshots(connection: Connection) -> tuple[str, list[dict[str, int]]]:
    """Write one of each partition that has records since its newest snapshot.

    Returns the writer's name and, of each snapshot, its partition, next offset and size in bytes.
    Raises what `read_world` raises, `SnapshotMismatch`, `AccessDenied` without the right to write
    them, and `BrokerUnavailable` when one is not in the topic afterwards.
    """
    found = read_world(connection)
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
    return writer, written


def _check_written(connection: Connection, log: LogWriter, written: list[dict[str, int]]) -> None:
    """Read back what was written: the writer only logs a failure."""
    if not written:
        return
    unsent = log.flush(connection.timeout_s)
    if log.was_refused:
        raise denied(connection.kafka, connection.snapshot_topic, "Write")
    if unsent > 0:
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
