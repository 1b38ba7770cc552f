"""`marshal groups` and `marshal members`: who is there, and how much they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rich.table import Table

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, clock_time, count, liveness_style, safe, zone
from marshal_py.admin.world_reader import read_world, wire_of
from marshal_py.admin.world_summary import Group, Member, summarize
from marshal_py.cli.command import command
from marshal_py.cli.options import (
    AtMoment,
    GroupFilter,
    Interval,
    JsonFlag,
    Observe,
    WireFlag,
    moment,
)
from marshal_py.cli.output import console, note, print_json, show, table
from marshal_py.protocol.messages import LEVEL

__all__ = ["group_table", "groups", "member_table", "members"]


@command()
def groups(
    connection: Connection,
    at: AtMoment = None,
    observe_s: Observe = 0.0,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """List the groups: members, topics, and how many claims are held, stale or free.

    [bold]Examples[/]

      marshal groups -b localhost:9092

      marshal groups --at 02:13 --json | jq '.[] | select(.stale > 0) | .group'

      marshal groups --wire text     (a log shared with Go Marshal)
    """
    found = read_world(
        connection, observe_s=observe_s, at_ms=moment(at), wire=wire_of(wire, interval_s)
    )
    rows = summarize(found).groups
    if as_json:
        print_json([asdict(row) for row in rows])
    elif not rows:
        note("no groups yet")
    else:
        show(console(), group_table(rows))
        note(f"{count(len(rows), 'group')}. {found.explain()}")


@command()
def members(
    connection: Connection,
    group: GroupFilter = None,
    at: AtMoment = None,
    observe_s: Observe = 0.0,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """List the members of the groups: what they want, what they hold, how alive they look.

    A member that died stays listed, as stale, for some 65,000 records of its coordination
    partition. Version 1 (--wire text) knows no members: there the list is empty.

    [bold]Examples[/]

      marshal members -b localhost:9092 --group billing

      marshal members --json | jq '.[] | select(.liveness == "stale") | .client_id'
    """
    found = read_world(
        connection, observe_s=observe_s, at_ms=moment(at), wire=wire_of(wire, interval_s)
    )
    found.require_group(group)
    rows = summarize(found, group=group).members
    if as_json:
        print_json([asdict(row) for row in rows])
    elif found.is_text:
        note("version 1 knows no members; `marshal claims --wire text --held` shows who holds what")
    elif not rows:
        note("no members" + (f" in group {group}" if group else " yet"))
    else:
        show(console(), member_table(rows))
        note(f"{count(len(rows), 'member')}. {found.explain()}")


def group_table(rows: list[Group], moved_per_s: Mapping[str, float] | None = None) -> Table:
    """Return the groups as a table; with `moved_per_s`, how fast their positions move."""
    made = table(
        "GROUP", "MEMBERS", "TOPICS", "LEADERS", "HELD", "STALE", "FREE", "",
        *(["OFFSETS/S"] if moved_per_s else []),
        right=("MEMBERS", "TOPICS", "LEADERS", "HELD", "STALE", "FREE", "OFFSETS/S"),
    )  # fmt: skip
    for g in rows:
        made.add_row(
            safe(g.group),
            str(g.members),
            str(g.topics),
            str(g.leaders),
            str(g.held),
            f"[red]{g.stale}[/]" if g.stale else "0",
            str(g.free),
            _notes(g),
            *([f"{moved_per_s.get(g.group, 0):,.0f}"] if moved_per_s else []),
        )
    return made


def _notes(group: Group) -> str:
    notes = [] if group.level == LEVEL else [f"level {group.level}"]
    if group.open_ranges:
        notes.append(count(group.open_ranges, "open range"))
    if group.paused_until_ms is not None:
        until = clock_time(group.paused_until_ms, date=True)[:16]
        notes.append(f"[yellow]paused until {until} ({zone(group.paused_until_ms)})[/]")
    elif group.paused:
        notes.append("[yellow]paused[/]")
    return ", ".join(notes)


def member_table(rows: list[Member]) -> Table:
    """Return the members as a table."""
    made = table(
        "MEMBER", "GROUP", "INSTANCE", "CLAIMS", "INTERVAL", "SILENCE", "LIVENESS", "WANTS",
        right=("CLAIMS", "INTERVAL", "SILENCE"),
    )  # fmt: skip
    for m in rows:
        made.add_row(
            safe(m.client_id),
            safe(m.group),
            safe(m.instance_id),
            str(m.claims),
            age(m.interval_ms),
            f"{'>' if m.silence_at_least else ''}{age(m.silence_ms)}",
            liveness_style(m.liveness),
            safe(", ".join(m.wants or ())),
        )
    return made
