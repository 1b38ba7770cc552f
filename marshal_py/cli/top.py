"""`marshal top`: groups, members, leaders and what happens, live."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

import typer
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from marshal_py.admin.connection import Connection
from marshal_py.admin.event_text import ROUTINE, as_json, as_line, touches, without_epoch
from marshal_py.admin.formatting import age, clock_time, count, iso_utc, safe
from marshal_py.admin.world_reader import WorldView, catch_up, open_reader, wire_of
from marshal_py.admin.world_summary import Leader, Member, WorldSummary, summarize
from marshal_py.cli.command import command
from marshal_py.cli.groups import group_table, member_table
from marshal_py.cli.options import GroupFilter, Interval, JsonFlag, WireFlag
from marshal_py.cli.output import console, print_json, show
from marshal_py.client.log_reader import Truncated
from marshal_py.errors import PartitionCountChanged
from marshal_py.protocol.events import Event

__all__ = ["Frame", "View", "top"]

KEPT_EVENTS: Final = 50
KEPT_STAMPS: Final = 100_000
HEADER_ROWS: Final = 3
_ORDER: Final = {"stale": 0, "unknown": 1, "fresh": 2}

Happened = tuple[int | None, int, Event]


@dataclass
class Frame:
    """One picture. Rates are per second, since the picture before; None in the first."""

    at_ms: int
    topic: str
    partitions: int
    records: int
    records_per_s: float | None
    moved_per_s: dict[str, float]
    """Group → offsets by which its positions moved on."""
    summary: WorldSummary
    events: list[Happened]
    mismatches: list[str] = field(default_factory=list)


class View:
    """The live world, of one group or of all, and what happened of late."""

    def __init__(self, found: WorldView, *, topic: str, group: str | None = None) -> None:
        self._found = found
        self._topic, self._group = topic, group
        self._events: deque[Happened] = deque(maxlen=KEPT_EVENTS)
        self._before: tuple[float, int, dict[str, int]] | None = None
        found.limit_timestamps(KEPT_STAMPS)

    def watch(self, seconds: float) -> None:
        """Take in what the log brings for so long. Raises `Truncated`, `PartitionCountChanged`."""
        deadline_s = time.monotonic() + seconds
        while True:
            left_s = deadline_s - time.monotonic()
            for stamp, p, event in self._found.watch(max(0.0, min(0.2, left_s))):
                if not isinstance(event, ROUTINE) and touches(event, self._group, None):
                    told = without_epoch(event) if self._found.is_text else event
                    self._events.append((stamp, p, told))
            error = self._found.reader.partition_count_error
            if error is not None:
                raise PartitionCountChanged(str(error))
            if left_s <= 0:
                return

    def frame(self) -> Frame:
        """Return the picture of this moment."""
        found, now_s = self._found, time.monotonic()
        records = sum(state.next_offset for state in found.world.states)
        positions: dict[str, int] = {}
        for _, (group, _, _), cell in found.world.cells(self._group):
            positions[group] = positions.get(group, 0) + max(0, cell.position)
        rate, moved = None, {}
        if self._before is not None:
            then_s, had, was = self._before
            seconds = max(1e-3, now_s - then_s)
            rate = (records - had) / seconds
            moved = {g: max(0, at - was.get(g, at)) / seconds for g, at in positions.items()}
        self._before = (now_s, records, positions)
        return Frame(
            found.taken_ms,
            self._topic,
            found.world.partitions,
            records,
            rate,
            moved,
            summarize(found, group=self._group),
            list(self._events),
            [str(mismatch) for mismatch in found.reader.mismatches],
        )


@command()
def top(
    connection: Connection,
    group: GroupFilter = None,
    every_s: Annotated[
        float, typer.Option("--every", "-d", min=0.1, metavar="SECONDS", help="Between pictures.")
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
                view = View(catch_up(connection, reader), topic=connection.topic, group=group)
                view.watch(0.0)
                while True:
                    draw(view.frame())
                    shown += 1
                    if number is not None and shown >= number:
                        return
                    view.watch(every_s)
            except Truncated:
                continue  # the log was made anew, or lost records: begin again
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
    leaders = [_leads(leader) for leader in summary.leaders if leader.leader is not None]
    lines = min(len(frame.events), max(3, rows // 3))
    left = rows - HEADER_ROWS - len(frame.mismatches) - lines - (2 if leaders else 0)
    parts: list[RenderableType] = [_header(frame)]
    parts += [Text(text, style="bold red") for text in frame.mismatches]

    groups = sorted(summary.groups, key=lambda g: (-g.stale, g.group))
    fit = max(1, left // 2 if summary.members else left)
    parts += ["", group_table(groups[:fit], frame.moved_per_s), *_more(len(groups), fit, "group")]
    left -= min(len(groups), fit) + 3
    if summary.members:
        fit = max(1, left)
        members = sorted(summary.members, key=_worst_first)
        parts += ["", member_table(members[:fit]), *_more(len(members), fit, "member")]
    if leaders:
        parts += ["", _line(f"[bold]LEADERS[/]  {', '.join(leaders)}")]
    if lines:
        parts.append("")
        parts += [_line(as_line(e, p, stamp, date=False)) for stamp, p, e in frame.events[-lines:]]
    return Stack(*parts)


def _header(frame: Frame) -> Text:
    stale = sum(group.stale for group in frame.summary.groups)
    rate = "" if frame.records_per_s is None else f", {frame.records_per_s:,.1f} records/s"
    colour, verdict = ("red", count(stale, "stale claim")) if stale else ("green", "no stale claim")
    return _line(
        f"[bold]{safe(frame.topic)}[/]  {count(frame.partitions, 'partition')}, "
        f"{count(frame.records, 'record')}{rate}  [{colour}]{verdict}[/]  "
        f"[dim]{clock_time(frame.at_ms)[:8]}  Ctrl-C leaves[/]"
    )


def _leads(leader: Leader) -> str:
    silence = "" if leader.silence_ms is None else f" ({age(leader.silence_ms)})"
    return f"{safe(leader.name)}: {safe(leader.leader or '')}{silence}"


def _line(markup: str) -> Text:
    return Text.from_markup(markup, overflow="ellipsis")


def _worst_first(member: Member) -> tuple[int, str, str]:
    return _ORDER[member.liveness], member.group, member.client_id


def _more(have: int, shown: int, what: str) -> list[RenderableType]:
    return [Text(f"… and {count(have - shown, what)} more", style="dim")] if have > shown else []
