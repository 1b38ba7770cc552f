"""`marshal tail`: the activity stream, one line an event."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import typer

from marshal_py.commands.connection import Connection
from marshal_py.commands.lines import ROUTINE, as_json, as_line, touches, without_epoch
from marshal_py.commands.look import open_reader, stamp_ms, until_silent, wire_of
from marshal_py.commands.run import (
    Interval,
    JsonFlag,
    WireFlag,
    command,
    console,
    note,
    print_json,
)
from marshal_py.commands.words import parse_since
from marshal_py.errors import BrokerUnavailable, PartitionCountChanged
from marshal_py.events import Event
from marshal_py.log import Batch, LogReader, Truncated
from marshal_py.world import MS

__all__ = ["Stamped", "in_order", "tail"]

DEFAULT_LINES = 20


class Stamped(NamedTuple):
    """An event with where and when it was: the broker's time in ms, None if the record has none.

    Of Go Marshal's records the broker has no time: it is theirs.
    """

    stamp_ms: int | None
    coordinator: int
    event: Event


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
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Without --since: so many of the last.")
    ] = DEFAULT_LINES,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Of this group only.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Of this topic only.")
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
    group. Of partitions among themselves, only the time tells the order.

    [bold]Examples[/]

      marshal tail -b localhost:9092 -f

      marshal tail --since 10m --group billing --json | jq 'select(.event == "Rejected")'

      marshal tail --wire text -f     (a log shared with Go Marshal: its records' own times)
    """
    since_offset, since_ms = None, None
    if since is not None:
        since_offset, since_ms = parse_since(since, time.time_ns() // MS)

    def wanted(found: Stamped) -> bool:
        if isinstance(found.event, ROUTINE) and not everything:
            return False
        if since_offset is not None and found.event.offset < since_offset:
            return False
        if since_ms is not None and (found.stamp_ms or 0) < since_ms:
            return False
        return touches(found.event, group, topic)

    show = _json_printer() if as_json_lines else _line_printer()
    reader = open_reader(connection, wire_of(wire, interval_s))
    try:
        reader.open(connection.timeout_s, since_offset=since_offset, since_ms=since_ms)
        _warn_of_gaps(reader, since_offset)
        past = filter(wanted, in_order(reader, _history(connection, reader)))
        shown = 0
        for found in past if since is not None else deque(past, maxlen=lines):
            show(found)
            shown += 1
        if shown == 0 and lines and not follow:
            note(
                "no such events in that time"
                if since is not None
                else "no such events since the newest snapshots; --since looks further back"
            )
        while follow:
            for found in filter(wanted, _live(reader)):
                show(found)
            if reader.partition_count_error is not None:
                raise PartitionCountChanged(str(reader.partition_count_error))
    except Truncated as error:
        raise BrokerUnavailable(f"the log lost records while it was read: {error}") from None
    finally:
        reader.close()


def _history(connection: Connection, reader: LogReader) -> Iterator[list[Stamped]]:
    for messages, batches in until_silent(connection, reader.history()):
        yield _stamped(reader, messages, batches)


def _live(reader: LogReader) -> list[Stamped]:
    messages = reader.poll(0.2)
    found = _stamped(reader, messages, list(reader.fold(messages)))
    return sorted(found, key=_when)


def _stamped(reader: LogReader, messages: list[Any], batches: list[Batch]) -> list[Stamped]:
    stamps: dict[tuple[int, int], int] = {}
    for message in messages:
        if message.error() is None and message.topic() == reader.topic:
            stamps[message.partition(), message.offset()] = stamp_ms(message, reader.wire)
    found = []
    for batch in batches:
        for event in batch.events:
            stamp = stamps.get((batch.coordinator, event.offset), -1)
            if reader.wire.name == "text":
                event = without_epoch(event)
            found.append(Stamped(stamp if stamp >= 0 else None, batch.coordinator, event))
    return found


def in_order(reader: LogReader, batches: Iterator[list[Stamped]]) -> Iterator[Stamped]:
    """Merge the partitions' events by time, holding back only what may be preceded yet.

    What a partition brings is in order. So everything up to the time that each partition has
    reached, or the end of those that are read to theirs, can go.
    """
    extent = reader.extent()
    waiting: dict[int, deque[Stamped]] = {p: deque() for p in extent}
    reached: dict[int, int] = dict.fromkeys(extent, -1)
    for batch in batches:
        for found in batch:
            p = found.coordinator
            # A topic with the producers' own times may step back; the merge must not.
            reached[p] = max(reached[p], found.stamp_ms or 0)
            waiting[p].append(found)
        horizon = min(
            (reached[p] for p in extent if reader.world.states[p].next_offset < extent[p][1]),
            default=None,
        )
        if horizon is not None:
            yield from _merged(waiting, horizon)
    yield from _merged(waiting, None)


def _merged(waiting: dict[int, deque[Stamped]], horizon: int | None) -> Iterator[Stamped]:
    ready: list[Stamped] = []
    for queue in waiting.values():
        while queue and (horizon is None or (queue[0].stamp_ms or 0) < horizon):
            ready.append(queue.popleft())
    return iter(sorted(ready, key=_when))


def _when(found: Stamped) -> tuple[int, int, int]:
    return found.stamp_ms or 0, found.coordinator, found.event.offset


def _warn_of_gaps(reader: LogReader, since_offset: int | None) -> None:
    trimmed = [p for p, (first, _) in reader.extent().items() if first > (since_offset or 0)]
    if trimmed and since_offset is not None:
        firsts = ", ".join(f"{p}: {reader.extent()[p][0]}" for p in trimmed)
        note(f"older records are gone; the log begins at (partition: offset) {firsts}")


def _json_printer() -> Callable[[Stamped], None]:
    def show(found: Stamped) -> None:
        print_json(as_json(found.event, found.coordinator, found.stamp_ms), indent=None)

    return show


def _line_printer() -> Callable[[Stamped], None]:
    out = console()
    last_day = ""

    def show(found: Stamped) -> None:
        nonlocal last_day
        if found.stamp_ms is not None:
            day = time.strftime("%A, %Y-%m-%d", time.localtime(found.stamp_ms / 1000))
            if day != last_day:
                last_day = day
                out.print(f"[dim]{day}[/]")
        out.print(as_line(found.event, found.coordinator, found.stamp_ms, date=False))

    return show
