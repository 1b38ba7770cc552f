"""`marshal topic trim`: delete the records that a valid snapshot covers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count
from marshal_py.admin.log_trimming import delete_records, plan_cuts
from marshal_py.cli.command import command
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, note, print_json, show, table
from marshal_py.client.topics import admin_client

__all__ = ["trim"]


@command()
def trim(
    connection: Connection,
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it, only say what.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete the records that the newest valid snapshot covers. A dry run without --yes.

    A snapshot is valid when it decodes, agrees with its digest, belongs to this log (the record
    just below it is the one that it names), and replaying the records that are to go leads to the
    very same state. The record just below a snapshot stays, for that check.

    [bold]Examples[/]

      marshal topic trim -b localhost:9092          (says what would go)

      marshal snapshot && marshal topic trim --yes
    """
    admin = admin_client(connection.kafka)
    cuts = plan_cuts(admin, connection)
    if yes:
        delete_records(admin, connection, cuts)
    records = sum(cut.records for cut in cuts)
    if as_json:
        print_json(
            {
                "topic": connection.topic,
                "deleted": yes,
                "records": records,
                "partitions": [{**asdict(cut), "records": cut.records} for cut in cuts],
            }
        )
        return
    made = table(
        *("PARTITION", "FIRST", "END", "SNAPSHOT AT"),
        "DELETED" if yes else "WOULD DELETE",
        "SNAPSHOT",
        right=("PARTITION", "FIRST", "END", "SNAPSHOT AT", "DELETED", "WOULD DELETE"),
    )
    for cut in cuts:
        made.add_row(
            str(cut.coordinator),
            str(cut.first_offset),
            str(cut.next_offset),
            "–" if cut.snapshot_offset is None else str(cut.snapshot_offset),
            f"{cut.records:,}",
            cut.verified,
        )
    show(console(), made)
    if records == 0:
        note("nothing to delete; `marshal snapshot` writes a snapshot now")
    elif not yes:
        note(f"dry run: {count(records, 'record')} would go; add --yes to delete them")
