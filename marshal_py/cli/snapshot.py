"""`marshal snapshot`: write a snapshot of every coordination partition now."""

from __future__ import annotations

from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_writer import write_snapshots
from marshal_py.cli.command import command
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, note, print_json, show, table

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
    writer, written = write_snapshots(connection)
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
