"""`marshal snapshot`: write a snapshot of every coordination partition now."""

from __future__ import annotations

from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_reader import read_snapshots
from marshal_py.admin.topic_offsets import extent
from marshal_py.admin.world_reader import read_world
from marshal_py.cli.command import command
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, note, print_json, show, table
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.settings import default_client_id, new_instance_id
from marshal_py.client.topics import admin_client
from marshal_py.errors import BrokerUnavailable

__all__ = ["snapshot"]


@command()
def snapshot(connection: Connection, as_json: JsonFlag = False) -> None:
    """Write a snapshot of every coordination partition now.

    Clients write them by themselves every 50,000 records. Do it by hand before
    `marshal topic trim`. A partition without a record since its newest snapshot is left out.

    [bold]Examples[/]

      marshal snapshot -b localhost:9092

      marshal snapshot && marshal topic trim --yes
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
