"""`marshal claims`: who holds what, since which epoch, up to where."""

from __future__ import annotations

from typing import Annotated

import typer

from marshal_py.admin.claim_list import ClaimRow, claim_rows
from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, count, liveness_style, safe
from marshal_py.admin.world_reader import read_world, wire_of
from marshal_py.cli.command import command
from marshal_py.cli.options import (
    AtMoment,
    GroupFilter,
    Interval,
    JsonFlag,
    Observe,
    TopicFilter,
    WireFlag,
    moment,
)
from marshal_py.cli.output import console, note, print_json, show, table

__all__ = ["claims"]


@command(coordination_topic=("--coordination-topic",))
def claims(
    connection: Connection,
    group: GroupFilter = None,
    topic: TopicFilter = None,
    held: Annotated[bool, typer.Option("--held", help="Without the free ones.")] = False,
    at: AtMoment = None,
    observe_s: Observe = 0.0,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """List the claims: group, topic, partition, holder, epoch, offsets and liveness.

    A partition that is shared by ranges is where its next range will begin; its open ranges follow
    it, with their messages, and how often in a row each was granted if its holders got nowhere.

    [bold]Examples[/]

      marshal claims -b localhost:9092 --group billing

      marshal claims --topic orders --at 02:13

      marshal claims --topic orders --json | jq '.[] | select(.liveness == "stale")'

      marshal claims --wire text --held     (a log shared with Go Marshal)
    """
    found = read_world(
        connection, observe_s=observe_s, at_ms=moment(at), wire=wire_of(wire, interval_s)
    )
    found.require_group(group)
    rows = claim_rows(found, group=group, topic=topic, held=held)
    if as_json:
        print_json([vars(row) for row in rows])
        return
    if not rows:
        note("no claims" + (" match" if group or topic or held else " yet"))
        return
    made = table(
        "GROUP", "TOPIC", "PARTITION", "HOLDER", "EPOCH", "NEXT", "CLAIMED", "LIVENESS", "SILENCE",
        right=("PARTITION", "EPOCH", "NEXT", "CLAIMED", "SILENCE"),
    )  # fmt: skip
    for row in rows:
        made.add_row(
            safe(row.group),
            safe(row.topic if row.end is None else row.source_topic),
            str(row.partition) if row.end is None else _messages(row),
            safe(row.holder or "(free)"),
            _offset(row.epoch),
            _offset(row.next_offset),
            _offset(row.claimed_offset),
            liveness_style(row.liveness),
            ""
            if row.silence_ms is None
            else f"{'>' if row.silence_at_least else ''}{age(row.silence_ms)}",
        )
    show(console(), made)
    note(f"{count(len(rows), 'claim')}. {found.explain()}")


def _messages(row: ClaimRow) -> str:
    """Say which messages an open range is of, and how often it was granted without progress."""
    start, end = row.topic.rpartition("@")[2], row.end or 0
    again = f", {row.granted} times" if (row.granted or 0) > 1 else ""
    return f"{row.source_partition}: {start}–{end - 1}{again}"


def _offset(offset: int) -> str:
    return "–" if offset < 0 else str(offset)
