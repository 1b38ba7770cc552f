"""`marshal status`: groups, members, leaders, pauses, snapshots and the size of the log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, count, liveness_style, safe
from marshal_py.admin.status import Status, read_status
from marshal_py.admin.world_reader import wire_of
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.groups import group_table, member_table
from marshal_py.cli.options import Interval, JsonFlag, Observe, WireFlag
from marshal_py.cli.output import console, print_json, show, table

__all__ = ["status"]


@command()
def status(
    connection: Connection,
    observe_s: Observe = 0.0,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if anything needs attention.")
    ] = False,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """Show groups, members, leaders, pauses, snapshots and the size of the log.

    Reads the log and takes no part: nothing is written, no member appears.

    [bold]Examples[/]

      marshal status -b localhost:9092

      marshal status --check --json | jq .attention

      marshal status --wire text     (a log shared with Go Marshal)
    """
    found = read_status(connection, observe_s, wire_of(wire, interval_s))
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)
    if check and found.attention:
        raise typer.Exit(FINDING)


def _print(found: Status) -> None:
    out = console()
    newest = found.newest_record_ms_ago
    out.print(
        f"[bold]{found.topic}[/]  {count(found.partitions, 'partition')}, "
        f"{count(found.records, 'record')}, "
        + ("empty" if newest is None else f"newest {age(newest)} ago")
    )
    founded = {pair for pair in zip(found.identities, found.bases, strict=True) if pair[0]}
    for identity, base in sorted(founded) if len(founded) == 1 else ():
        out.print(f"identity {safe(identity or '')}, epochs from {base}")
    if len(founded) > 1:
        out.print(f"{len(founded)} identities, one for each coordination partition; see --json")
    if found.groups:
        show(out, "", group_table(found.groups))
    if found.members:
        show(out, "", member_table(found.members))
    if found.leaders:
        leaders = table(
            "LEADER OF", "GROUP", "LEADER", "EPOCH", "SILENCE", "LIVENESS",
            right=("EPOCH", "SILENCE"),
        )  # fmt: skip
        for leader in found.leaders:
            leaders.add_row(
                safe(leader.name),
                safe(leader.group),
                safe(leader.leader or "(none)"),
                "–" if leader.epoch < 0 else str(leader.epoch),
                "" if leader.silence_ms is None else age(leader.silence_ms),
                liveness_style(leader.liveness),
            )
        show(out, "", leaders)
    if found.failing:
        failing = table(
            "FAILING", "PARTITION", "GROUP", "HOLDER", "RETRYING", "STUCK", "DEAD", "SKIPPED",
            "OFFSET", "ERROR",
            right=("PARTITION", "RETRYING", "STUCK", "DEAD", "SKIPPED", "OFFSET"),
        )  # fmt: skip
        for f in found.failing:
            failing.add_row(
                safe(f.topic),
                str(f.partition),
                safe(f.group),
                safe(f.holder),
                f"[red]{f.retrying}[/]" if f.retrying else "0",
                f"[red]{f.stuck}[/]" if f.stuck else "0",
                str(f.dead_lettered),
                str(f.skipped),
                str(f.offset),
                safe(f.error),
            )
        show(out, "", failing)
    for pause in found.pauses:
        out.print(
            f"\n[yellow]paused[/] {safe(pause.group)}, "
            f"{'expired' if pause.expired else 'until'} {pause.expires}"
        )
    _print_snapshots(found)
    for text in found.attention:
        out.print("[bold yellow]attention:[/] ", end="")
        out.print(safe(text))
    if found.members or any(g.held for g in found.groups):
        out.print(f"[dim]{found.measured}[/]")


def _print_snapshots(found: Status) -> None:
    out = console()
    written = [s for s in found.snapshots if s.age_ms is not None]
    if not written:
        out.print(f"\nno snapshots; a start replays {count(found.records, 'record')}\n")
        return
    snapshots = table(
        "SNAPSHOT OF", "UP TO", "RECORDS SINCE", "AGE", "BYTES", "WRITTEN BY",
        right=("SNAPSHOT OF", "UP TO", "RECORDS SINCE", "AGE", "BYTES"),
    )  # fmt: skip
    for s in found.snapshots:
        snapshots.add_row(
            str(s.coordinator),
            "none" if s.next_offset is None else str(s.next_offset),
            f"{s.records_since:,}",
            "" if s.age_ms is None else age(s.age_ms),
            "" if s.size_bytes is None else f"{s.size_bytes:,}",
            safe(s.writer or ""),
        )
    show(out, "", snapshots, "")
