"""`marshal tail`: the activity stream, one line an event."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.event_stream import TimedEvent, in_order, new_events, past_events
from marshal_py.admin.event_text import (
    KINDS,
    ROUTINE,
    ROUTINE_KINDS,
    as_json,
    as_line,
    kinds_of,
    touches,
)
from marshal_py.admin.formatting import parse_duration, parse_moment, parse_since, week_day, zone
from marshal_py.admin.world_reader import open_reader, wire_of
from marshal_py.cli.command import command
from marshal_py.cli.options import GroupFilter, Interval, JsonFlag, TopicFilter, WireFlag
from marshal_py.cli.output import console, note, print_json
from marshal_py.client.log_reader import LogReader, Truncated
from marshal_py.errors import BrokerUnavailable, InvalidArgument, LogHole, PartitionCountChanged
from marshal_py.protocol.world import MS

__all__ = ["tail"]

DEFAULT_LINES = 20
MOST_LINES = 1_000_000_000
AROUND = "30s"


@command(coordination_topic=("--coordination-topic",))
def tail(
    connection: Connection,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as events come, until Ctrl-C.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            "-s",
            metavar="WHEN",
            help="From an offset (1500), a duration ago (10m) or a time (14:05) on.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", "-u", metavar="TIME", help="Up to this time (14:05) or 5m ago."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="What happened around this time; see --around."),
    ] = None,
    around: Annotated[
        str | None,
        typer.Option(
            "--around", metavar="DURATION", help="With --at: so long before, after; by default 30s."
        ),
    ] = None,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "-n", min=0, max=MOST_LINES, help="Without a time: so many of the last."
        ),
    ] = DEFAULT_LINES,
    group: GroupFilter = None,
    topic: TopicFilter = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Of this partition only."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            "--client", "-c", metavar="ID", help="Sent by this client, or taking from it."
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            "-e",
            metavar="KIND",
            help=f"Only these; may be repeated: {', '.join(KINDS)}.",
            autocompletion=lambda: list(KINDS),
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Heartbeats and renewals too.")
    ] = False,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json_lines: JsonFlag = False,
) -> None:
    """Show what happened: claims, takeovers, releases, members, pauses, rejected records.

    Each line has the broker's time, where the record is (coordination partition@offset), and the
    group. Of partitions among themselves, only the time tells the order. Times are local; TZ=UTC
    changes that.

    [bold]Examples[/]

      marshal tail -b localhost:9092 -f

      marshal tail --at 02:13 --around 2m --topic orders

      marshal tail --since 1d -e takeover -e rejected

      marshal tail --since 10m --group billing --json | jq 'select(.event == "Rejected")'

      marshal tail --wire text -f     (a log shared with Go Marshal: its records' own times)
    """
    since_offset, since_ms, until_ms = _window(since, until, at, around)
    if follow and until_ms is not None:
        raise InvalidArgument("--follow goes on for ever: leave --until and --at out")
    unknown = set(kinds or ()) - set(KINDS)
    if unknown:
        raise InvalidArgument(f"--event {min(unknown)!r} is none of {', '.join(KINDS)}")
    if kinds and not ROUTINE_KINDS.isdisjoint(kinds):
        everything = True

    def wanted(found: TimedEvent) -> bool:
        event = found.event
        if isinstance(event, ROUTINE) and not everything:
            return False
        if since_offset is not None and event.offset < since_offset:
            return False
        if since_ms is not None and (found.stamp_ms or 0) < since_ms:
            return False
        if until_ms is not None and (found.stamp_ms or 0) > until_ms:
            return False
        if kinds and kinds_of(event).isdisjoint(kinds):
            return False
        return touches(event, group, topic, partition=partition, client=client)

    show = _json_printer() if as_json_lines else _line_printer()
    timed = since is not None or at is not None
    first, shown, failed = True, 0, 0
    reader = open_reader(connection, wire_of(wire, interval_s))
    try:
        while True:
            try:
                reader.open(
                    connection.timeout_s,
                    since_offset=since_offset,
                    since_ms=since_ms,
                    # Go's records have no time of the broker's: they are filtered one by one.
                    until_ms=None if wire == "text" else until_ms,
                )
                _warn_of_gaps(reader, since_offset)
                past = past_events(connection, reader, routine=everything)
                matching = filter(wanted, in_order(reader, past))
                for found in matching if timed or not first else deque(matching, maxlen=lines):
                    show(found)
                    shown += 1
                if shown == 0 and lines and not follow:
                    note(
                        "no such events in that time"
                        if timed
                        else "no such events since the newest snapshots; --since looks further back"
                    )
                first = False
                if not follow:
                    return
                while reader.partition_count_error is None:
                    for found in filter(wanted, new_events(reader)):
                        show(found)
                        shown += 1
                raise PartitionCountChanged(str(reader.partition_count_error))
            except LogHole:
                if until_ms is None:
                    raise
                raise InvalidArgument(
                    "the log does not reach back so far: older records are gone"
                ) from None
            except Truncated as error:
                failed += 1
                # Of another log, a snapshot is passed over the next time: one of each partition.
                if first and (shown or failed > reader.world.partitions):
                    raise BrokerUnavailable(
                        f"the log lost records while it was read: {error}"
                    ) from None
                if not first:
                    note(f"{error}; what follows is the log from its start")
    finally:
        reader.close()


def _window(
    since: str | None, until: str | None, at: str | None, around: str | None
) -> tuple[int | None, int | None, int | None]:
    """Return (first offset, first ms, last ms), None where there is no bound."""
    now_ms = time.time_ns() // MS
    if at is not None:
        if since is not None or until is not None:
            raise InvalidArgument("--at has its own window (--around): no --since or --until")
        middle_ms = parse_moment(at, now_ms)
        width_ms = parse_duration(AROUND if around is None else around, "--around")
        return None, max(0, middle_ms - width_ms), middle_ms + width_ms
    if around is not None:
        raise InvalidArgument(f"--around {around} is about --at: give it, too")
    since_offset, since_ms = (None, None) if since is None else parse_since(since, now_ms)
    until_ms = None if until is None else parse_moment(until, now_ms, "--until")
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise InvalidArgument(f"--until {until!r} is before --since {since!r}")
    return since_offset, since_ms, until_ms


def _warn_of_gaps(reader: LogReader, since_offset: int | None) -> None:
    trimmed = [p for p, (first, _) in reader.extent().items() if first > (since_offset or 0)]
    if trimmed and since_offset is not None:
        firsts = ", ".join(f"{p}: {reader.extent()[p][0]}" for p in trimmed)
        note(f"older records are gone; the log begins at (partition: offset) {firsts}")


def _json_printer() -> Callable[[TimedEvent], None]:
    def show(found: TimedEvent) -> None:
        print_json(as_json(found.event, found.coordinator, found.stamp_ms), indent=None)

    return show


def _line_printer() -> Callable[[TimedEvent], None]:
    out = console()
    last_day = ""

    def show(found: TimedEvent) -> None:
        nonlocal last_day
        if found.stamp_ms is not None:
            day = week_day(found.stamp_ms)
            if day != last_day:
                last_day = day
                out.print(f"[dim]{day} ({zone(found.stamp_ms)})[/]")
        out.print(as_line(found.event, found.coordinator, found.stamp_ms, date=False))

    return show
