"""`marshal lag`: how far each group is behind the ends of its topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, liveness_style, safe
from marshal_py.admin.lag import PartitionLag, measure_lag, require_online, require_readable
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
from marshal_py.errors import InvalidArgument

__all__ = ["lag", "lag_table"]


@command(coordination_topic=("--coordination-topic",))
def lag(
    connection: Connection,
    group: GroupFilter = None,
    topic: TopicFilter = None,
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max",
            min=0,
            metavar="N",
            help="Exit with 1 if a partition is above; one without a position is all behind.",
        ),
    ] = None,
    by_slot: Annotated[
        bool,
        typer.Option("--by-slot", help="Each slot of the partitions that are shared by keys."),
    ] = False,
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

    A partition that is shared by keys is where the last of its slots is; --by-slot lists them.

    What it cannot know is an error, not a lag of 0: a group or topic that nobody knows (exit code
    2), a topic that the brokers hide for want of Describe (2, with the command that grants it), and
    partitions without a leader (3, after the others).

    [bold]Examples[/]

      marshal lag -b localhost:9092 --group billing

      marshal lag --group billing --topic orders --at 02:13

      marshal lag --max 10000 || echo "somebody is behind"
    """
    found = read_world(connection, at_ms=moment(at), wire=wire_of(wire, interval_s))
    found.require_group(group)
    rows = measure_lag(connection, found, group=group, topic=topic, by_slot=by_slot)
    if as_json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        note("no group consumes a Kafka topic" + (" that matches" if group or topic else ""))
    else:
        lag_table(rows)
        if found.at_ms is not None:
            note(found.explain())
    require_readable(connection, found, group=group, topic=topic)
    require_online(rows)
    if topic is not None and not rows:
        raise InvalidArgument(f"no group consumes a topic {topic!r} that exists")
    if max_lag is not None and any(_behind(row) > max_lag for row in rows):
        raise typer.Exit(FINDING)


def _behind(row: PartitionLag) -> int:
    """The lag; where no position was ever stored, all that there is."""
    if row.lag is not None:
        return row.lag
    return (row.next_offset or 0) - (row.first_offset or 0)


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
            str(row.partition) if row.slot is None else f"{row.partition}, slot {row.slot}",
            "–" if row.position is None else str(row.position),
            "–" if row.next_offset is None else str(row.next_offset),
            "–" if row.lag is None else f"{row.lag:,}",
            safe(row.holder or ("(nobody)" if row.claimed else "(never claimed)")),
            liveness_style(row.liveness),
        )
    show(console(), made)
    known = [row.lag for row in rows if row.lag is not None]
    unheld = sum(row.holder is None for row in rows)
    offline = sum(row.offline for row in rows)
    note(
        f"{count(len(rows), 'partition')}, {count(sum(known), 'message')} behind altogether"
        + (f"; {count(unheld, 'partition')} held by nobody" if unheld else "")
        + (f"; {count(offline, 'partition')} without a leader in Kafka" if offline else "")
    )
