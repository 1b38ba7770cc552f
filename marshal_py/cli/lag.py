"""`marshal lag`: how far each group is behind the ends of its topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, liveness_style, safe
from marshal_py.admin.lag import PartitionLag, measure_lag
from marshal_py.admin.world_reader import read_world, wire_of
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import (
    AtMoment,
    GroupFilter,
    Interval,
    JsonFlag,
    TopicFilter,
    WireFlag,
    moment,
)
from marshal_py.cli.output import console, note, print_json, show, table

__all__ = ["lag", "lag_table"]


@command(coordination_topic=("--coordination-topic",))
def lag(
    connection: Connection,
    group: GroupFilter = None,
    topic: TopicFilter = None,
    max_lag: Annotated[
        int | None,
        typer.Option("--max", min=0, metavar="N", help="Exit with 1 if a partition is above."),
    ] = None,
    at: AtMoment = None,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """Show for each partition how many messages its group is behind, and who holds it.

    Partitions of the topics that members want are listed too where nobody has claimed them.
    Claims on what is no Kafka topic have no lag and are left out. LAG counts offsets: transaction
    markers and compacted records are in it.

    With --at, as it was then: the positions that the log had, against where the topics ended by
    the timestamps of their messages.

    [bold]Examples[/]

      marshal lag -b localhost:9092 --group billing

      marshal lag --group billing --topic orders --at 02:13

      marshal lag --max 10000 || echo "somebody is behind"
    """
    found = read_world(connection, at_ms=moment(at), wire=wire_of(wire, interval_s))
    rows = measure_lag(connection, found, group=group, topic=topic)
    if as_json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        note("no group consumes a Kafka topic" + (" that matches" if group or topic else ""))
    else:
        lag_table(rows)
        if found.at_ms is not None:
            note(found.explain())
    if max_lag is not None and any((row.lag or 0) > max_lag for row in rows):
        raise typer.Exit(FINDING)


def lag_table(rows: list[PartitionLag]) -> None:
    """Print the rows, and what they come to."""
    made = table(
        "GROUP", "TOPIC", "PARTITION", "POSITION", "END", "LAG", "HOLDER", "LIVENESS",
        right=("PARTITION", "POSITION", "END", "LAG"),
    )  # fmt: skip
    for row in rows:
        made.add_row(
            safe(row.group),
            safe(row.topic),
            str(row.partition),
            "–" if row.position is None else str(row.position),
            str(row.next_offset),
            "–" if row.lag is None else f"{row.lag:,}",
            safe(row.holder or ("(nobody)" if row.claimed else "(never claimed)")),
            liveness_style(row.liveness),
        )
    show(console(), made)
    known = [row.lag for row in rows if row.lag is not None]
    unheld = sum(row.holder is None for row in rows)
    note(
        f"{count(len(rows), 'partition')}, {count(sum(known), 'message')} behind altogether"
        + (f"; {count(unheld, 'partition')} held by nobody" if unheld else "")
    )
