"""`marshal claims`: who holds what, since which epoch, up to where."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, count, liveness_style, safe
from marshal_py.admin.world_reader import WorldView, read_world, wire_of
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
from marshal_py.protocol.messages import NO_OFFSET

__all__ = ["ClaimRow", "claim_rows", "claims"]


@dataclass
class ClaimRow:
    """One cell. `holder` is None when nobody holds it; offsets are −1 where there is none.

    So is `epoch` in a log of version 1, which has none.
    """

    group: str
    topic: str
    partition: int
    holder: str | None
    instance_id: str | None
    epoch: int
    version: int
    next_offset: int
    claimed_offset: int
    interval_ms: int
    liveness: str | None
    silence_ms: int | None
    silence_at_least: bool
    measured_by: str | None
    coordinator: int
    metadata: str


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

    [bold]Examples[/]

      marshal claims -b localhost:9092 --group billing

      marshal claims --topic orders --at 02:13

      marshal claims --topic orders --json | jq '.[] | select(.liveness == "stale")'

      marshal claims --wire text --held     (a log shared with Go Marshal)
    """
    found = read_world(
        connection, observe_s=observe_s, at_ms=moment(at), wire=wire_of(wire, interval_s)
    )
    rows = claim_rows(found, group=group, topic=topic, held=held)
    if as_json:
        print_json([asdict(row) for row in rows])
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
            safe(row.topic),
            str(row.partition),
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


def claim_rows(
    found: WorldView, *, group: str | None = None, topic: str | None = None, held: bool = False
) -> list[ClaimRow]:
    """Return the cells of a look at the log, sorted by group, topic and partition."""
    rows = []
    for coordinator, key, cell in found.world.cells(group):
        if (topic is not None and key[1] != topic) or (held and not cell.held):
            continue
        silence = found.cell_silence(coordinator, cell)
        rows.append(
            ClaimRow(
                *key,
                cell.holder,
                cell.instance_id,
                NO_OFFSET if found.is_text else cell.epoch,
                cell.version,
                cell.next_offset,
                cell.claimed_offset,
                cell.interval_ms,
                silence and silence.liveness,
                silence and silence.ms,
                silence is not None and silence.at_least,
                silence and silence.basis,
                coordinator,
                cell.metadata.decode(errors="backslashreplace"),
            )
        )
    return sorted(rows, key=lambda row: (row.group, row.topic, row.partition))


def _offset(offset: int) -> str:
    return "–" if offset < 0 else str(offset)
