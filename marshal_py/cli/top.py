"""`marshal top`: groups, members, leaders and what happens, live."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from marshal_py.admin.connection import Connection
from marshal_py.admin.event_text import as_json, as_line
from marshal_py.admin.formatting import age, clock_time, count, iso_utc, safe, zone
from marshal_py.admin.live_world import Frame, LiveWorld
from marshal_py.admin.world_reader import catch_up, open_reader, wire_of
from marshal_py.admin.world_summary import Leader, Member
from marshal_py.cli.command import command
from marshal_py.cli.groups import group_table, member_table
from marshal_py.cli.options import LONGEST_S, GroupFilter, Interval, JsonFlag, WireFlag
from marshal_py.cli.output import console, note, print_json, show
from marshal_py.client.log_reader import Truncated

__all__ = ["top"]

HEADER_ROWS: Final = 3
_ORDER: Final = {"stale": 0, "unknown": 1, "fresh": 2}


@command()
def top(
    connection: Connection,
    group: GroupFilter = None,
    every_s: Annotated[
        float,
        typer.Option(
            "--every", "-d", min=0.1, max=LONGEST_S, metavar="SECONDS", help="Between pictures."
        ),
    ] = 1.0,
    number: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Stop after N pictures.")
    ] = None,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    json_lines: JsonFlag = False,
) -> None:
    """Watch groups, members, leaders and what happens, live, until Ctrl-C.

    Silence is what this process has seen, on its own clock, once it has watched for a while.
    Reads the log and takes no part. With --json, one line for each picture.

    [bold]Examples[/]

      marshal top -b localhost:9092

      marshal top --group billing --every 5 --json | jq '.groups[0].stale'

      marshal top --wire text     (a log shared with Go Marshal)
    """
    with _printer(json_lines) as draw:
        shown = 0
        while True:
            reader = open_reader(connection, wire_of(wire, interval_s))
            try:
                found = catch_up(connection, reader)
                if not shown:  # into a log that was made anew, it may be still to come
                    found.require_group(group)
                live = LiveWorld(found, topic=connection.topic, group=group)
                live.watch(0.0)
                while True:
                    draw(live.frame())
                    shown += 1
                    if number is not None and shown >= number:
                        return
                    live.watch(every_s)
            except Truncated as error:
                note(f"{error}; beginning again")
            except KeyboardInterrupt:
                return
            finally:
                reader.close()


@contextmanager
def _printer(json_lines: bool) -> Iterator[Callable[[Frame], None]]:
    if json_lines:
        yield lambda frame: print_json(_document(frame), indent=None)
        return
    if not sys.stdout.isatty():
        yield lambda frame: show(console(), render(frame, 10_000), "")
        return
    out = console(wide=False)
    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda frame: live.update(render(frame, out.height), refresh=True)


def _document(frame: Frame) -> dict[str, Any]:
    return {
        "time": iso_utc(frame.at_ms),
        "topic": frame.topic,
        "partitions": frame.partitions,
        "records": frame.records,
        "records_per_s": frame.records_per_s,
        "moved_per_s": frame.moved_per_s,
        **asdict(frame.summary),
        "events": [as_json(event, p, stamp) for stamp, p, event in frame.events],
        "snapshot_mismatches": frame.mismatches,
    }


def render(frame: Frame, rows: int) -> RenderableType:
    """Return the picture for a terminal of so many rows."""
    summary = frame.summary
    leaders = [_leader_text(leader) for leader in summary.leaders if leader.leader is not None]
    event_rows = min(len(frame.events), max(3, rows // 3))
    left = rows - HEADER_ROWS - len(frame.mismatches) - event_rows - (2 if leaders else 0)
    parts: list[RenderableType] = [_header(frame)]
    parts += [Text(text, style="bold red") for text in frame.mismatches]

    groups = sorted(summary.groups, key=lambda g: (-g.stale, g.group))
    fit = max(1, left // 2 if summary.members else left)
    parts += [
        "",
        group_table(groups[:fit], frame.moved_per_s),
        *_and_more(len(groups), fit, "group"),
    ]
    left -= min(len(groups), fit) + 3
    if summary.members:
        fit = max(1, left)
        members = sorted(summary.members, key=_worst_first)
        parts += ["", member_table(members[:fit]), *_and_more(len(members), fit, "member")]
    if leaders:
        parts += ["", _one_line(f"[bold]LEADERS[/]  {', '.join(leaders)}")]
    if event_rows:
        parts.append("")
        parts += [
            _one_line(as_line(e, p, stamp, date=False))
            for stamp, p, e in frame.events[-event_rows:]
        ]
    return Stack(*parts)


def _header(frame: Frame) -> Text:
    stale = sum(group.stale for group in frame.summary.groups)
    rate = "" if frame.records_per_s is None else f", {frame.records_per_s:,.1f} records/s"
    colour, verdict = ("red", count(stale, "stale claim")) if stale else ("green", "no stale claim")
    return _one_line(
        f"[bold]{safe(frame.topic)}[/]  {count(frame.partitions, 'partition')}, "
        f"{count(frame.records, 'record')}{rate}  [{colour}]{verdict}[/]  "
        f"[dim]{clock_time(frame.at_ms)[:8]} ({zone(frame.at_ms)})  Ctrl-C leaves[/]"
    )


def _leader_text(leader: Leader) -> str:
    silence = "" if leader.silence_ms is None else f" ({age(leader.silence_ms)})"
    return f"{safe(leader.name)}: {safe(leader.leader or '')}{silence}"


def _one_line(markup: str) -> Text:
    return Text.from_markup(markup, overflow="ellipsis")


def _worst_first(member: Member) -> tuple[int, str, str]:
    return _ORDER[member.liveness], member.group, member.client_id


def _and_more(have: int, shown: int, what: str) -> list[RenderableType]:
    return [Text(f"… and {count(have - shown, what)} more", style="dim")] if have > shown else []
