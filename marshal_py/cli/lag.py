"""`marshal lag`: how far each group is behind the ends of its topics."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _Spec  # type: ignore[attr-defined]

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, liveness_style, safe
from marshal_py.admin.world_reader import Look, look, wire_of
from marshal_py.admin.world_summary import LEADER, Census, take_census
from marshal_py.cli.framework import (
    FINDING,
    AtMoment,
    GroupFilter,
    Interval,
    JsonFlag,
    TopicFilter,
    WireFlag,
    command,
    console,
    moment,
    note,
    print_json,
    show,
    table,
)
from marshal_py.client.topics import admin_client
from marshal_py.protocol.rationalizer import Cell

__all__ = ["LagRow", "lag", "lag_rows", "lag_table"]


@dataclass
class LagRow:
    """One partition that a group consumes, or wants to.

    `position` is None where nothing was stored yet, and `lag` with it. `holder` is None when nobody
    holds the partition; `claimed` is False when nobody ever has. Of the past, `next_offset` is
    where the topic ended then, and `first_offset` is today's.
    """

    group: str
    topic: str
    partition: int
    position: int | None
    first_offset: int
    next_offset: int
    lag: int | None
    holder: str | None
    liveness: str | None
    claimed: bool


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
    found = look(connection, at_ms=moment(at), wire=wire_of(wire, interval_s))
    rows = lag_rows(connection, found, group=group, topic=topic)
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


def lag_rows(
    connection: Connection, found: Look, *, group: str | None = None, topic: str | None = None
) -> list[LagRow]:
    """Ask the brokers for the ends of all topics that the groups consume; compare.

    Of a look at the past, the ends are those of then, by the timestamps of the messages: the first
    message that is later, or the end where there is none.
    """
    admin = admin_client(connection.kafka)
    there = {
        name: sorted(metadata.partitions)
        for name, metadata in admin.list_topics(timeout=connection.timeout_s).topics.items()
        if metadata.error is None
    }
    wanted = _wanted(take_census(found, group=group), there)
    cells: dict[tuple[str, str, int], tuple[int, Cell]] = {}
    for coordinator, key, cell in found.world.cells(group):
        if key[1] in there and not key[1].startswith(LEADER):
            cells[key] = coordinator, cell
            wanted.add((key[0], key[1]))
    wanted = {(g, t) for g, t in wanted if topic is None or t == topic}
    extents = _extents(
        admin, {(t, p) for _, t in wanted for p in there[t]}, connection.timeout_s, found.at_ms
    )
    rows = []
    for g, t in sorted(wanted):
        for p in there[t]:
            first, end = extents[t, p]
            row = LagRow(g, t, p, None, first, end, None, None, None, (g, t, p) in cells)
            rows.append(row)
            if not row.claimed:
                continue
            coordinator, cell = cells[g, t, p]
            silence = found.cell_silence(coordinator, cell)
            row.holder = cell.holder
            row.liveness = silence and silence.liveness
            if cell.position >= 0:
                # Deleted messages wait for nobody; of the past, it is not known which were.
                begin = cell.position if found.at_ms is not None else max(cell.position, first)
                row.position, row.lag = cell.position, max(0, end - begin)
    return rows


def _wanted(census: Census, there: Iterable[str]) -> set[tuple[str, str]]:
    """Return (group, topic) for every topic that a member says it consumes, and that exists."""
    found = set()
    for member in census.members:
        for name in member.wants or ():
            is_pattern = name.startswith("/") and name.endswith("/") and len(name) > 1
            for topic in there:
                if re.fullmatch(name[1:-1], topic) if is_pattern else name == topic:
                    found.add((member.group, topic))
    return found


def _extents(
    admin: AdminClient,
    partitions: set[tuple[str, int]],
    timeout_s: float,
    at_ms: int | None = None,
) -> dict[tuple[str, int], tuple[int, int]]:
    if not partitions:
        return {}
    asked = [TopicPartition(t, p) for t, p in sorted(partitions)]

    def ask(spec: _Spec) -> dict[tuple[str, int], int]:
        futures = admin.list_offsets(dict.fromkeys(asked, spec), request_timeout=timeout_s)
        return {(p.topic, p.partition): f.result().offset for p, f in futures.items()}

    firsts = ask(_Spec.earliest())  # type: ignore[no-untyped-call]
    ends = ask(_Spec.latest())  # type: ignore[no-untyped-call]
    if at_ms is not None:
        # −1: no message is later.
        later = ask(_Spec.for_timestamp(at_ms + 1))
        ends |= {key: end for key, end in later.items() if end >= 0}
    return {key: (first, ends[key]) for key, first in firsts.items()}


def lag_table(rows: list[LagRow]) -> None:
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
