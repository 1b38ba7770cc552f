"""`marshal explain`: who held one partition, or had one message, when, and why that changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from marshal_py.admin.cell_history import read_cell_history, read_message_history
from marshal_py.admin.cell_timeline import CellStatus, CellTimeline, TimelineEntry
from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import clock_time, count, iso_utc, safe
from marshal_py.admin.message_timeline import MessageStatus, MessageTimeline
from marshal_py.admin.sharing import slots_of
from marshal_py.admin.world_reader import read_world, wire_of
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import AtMoment, Interval, JsonFlag, WireFlag, moment
from marshal_py.cli.output import console, note, print_json
from marshal_py.errors import InvalidArgument
from marshal_py.protocol.messages import MAX_PARTITION
from marshal_py.protocol.rationalizer import CellKey
from marshal_py.protocol.slots import slot_of_key, slots_cell

__all__ = ["explain"]

AFTER: Final = 5
"""So many entries are shown of what came after the moment that was asked for."""

_COLOURS: Final = {
    "claimed": "green",
    "resumed": "green",
    "taken_over": "yellow",
    "released": "cyan",
    "done": "green",
    "refused": "red",
    "held": "dim",
}


@command(coordination_topic=("--coordination-topic",))
def explain(
    connection: Connection,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="The topic; leader:NAME for a leadership.")
    ],
    partition: Annotated[
        int, typer.Argument(metavar="PARTITION", min=0, help="The partition; 0 for a leadership.")
    ],
    slot: Annotated[
        int | None,
        typer.Option("--slot", min=0, help="One slot of it, where it is shared by keys."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The slot of messages with this key (UTF-8).")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", min=0, metavar="N", help="Who had the message at this offset."),
    ] = None,
    at: AtMoment = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, help="So many entries of the past.")
    ] = 20,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """Tell the history of one partition, or of one message: who held it, when, and why it changed.

    Says first who holds it, or who held it at the moment that --at names. Times are local
    (TZ=UTC changes that), and the broker's; with --wire text those of the records. Exit code 1 if
    nobody ever claimed it. A partition that is shared by keys has a history for each of its slots:
    name one with --slot, or a key of the messages with --key.

    With --offset, what became of one message: who had it, in which range if the partition is shared
    by ranges, who gave it back or lost it, and who was done with it. The log tells that with the
    heartbeats: a message is done at that time at the latest. Exit code 1 if nobody had it yet.

    [bold]Examples[/]

      marshal explain billing orders 7 --at 02:13

      marshal explain billing orders 7 --key customer-4711

      marshal explain billing orders 7 --offset 4711

      marshal explain reports leader:nightly 0 --json | jq .standing.holder

      marshal explain billing orders 7 --wire text     (a log shared with Go Marshal)
    """
    if partition > MAX_PARTITION:
        raise InvalidArgument(f"PARTITION {partition} is above {MAX_PARTITION}")
    at_ms = moment(at)
    version = wire_of(wire, interval_s)
    if offset is not None:
        if version.name == "text":
            raise InvalidArgument("--offset: version 1 of the protocol is not told by message")
        cell = _cell_of_message(connection, group, topic, partition, slot, key)
        found = read_message_history(connection, cell, topic, partition, offset, at_ms)
        _show_message(*found, at_ms, lines, as_json)
        return
    if slot is not None or key is not None:
        topic, partition = _slot(connection, group, topic, partition, slot, key)
    timeline, status = read_cell_history(connection, group, topic, partition, at_ms, wire=version)
    if as_json:
        print_json(_document(timeline, status, at_ms))
    else:
        _print(timeline, status, at_ms, lines)
    if status.epoch is None:
        slots = 0 if version.name == "text" else _slots(connection, group, topic)
        if slots:
            note(
                f"group {group} shares {topic} by keys, {slots} slots to a partition: add --slot N "
                "or --key KEY"
            )
    if not timeline.entries and status.epoch is None:
        note(f"group {group} has never claimed {topic}/{partition}; `marshal claims` lists claims")
        raise typer.Exit(FINDING)


def _cell_of_message(
    connection: Connection,
    group: str,
    topic: str,
    partition: int,
    slot: int | None,
    key: str | None,
) -> CellKey:
    """Return the cell that a message belongs to. Raises `InvalidArgument`."""
    if slot is not None or key is not None:
        return group, *_slot(connection, group, topic, partition, slot, key)
    if _slots(connection, group, topic):
        raise InvalidArgument(
            f"group {group!r} shares {topic!r} by keys: add --key KEY, the message's, or --slot N"
        )
    return group, topic, partition


def _show_message(
    timeline: MessageTimeline,
    status: MessageStatus,
    at_ms: int | None,
    lines: int,
    as_json: bool,
) -> None:
    if as_json:
        where = {"topic": timeline.topic, "partition": timeline.partition}
        print_json(_document(timeline, status, at_ms) | where | {"offset": timeline.message})
    else:
        _print(timeline, status, at_ms, lines)
    if not timeline.known:
        note(f"group {timeline.key[0]} has not had {timeline.name} yet")
        raise typer.Exit(FINDING)


def _slots(connection: Connection, group: str, topic: str) -> int:
    """Return how many slots a group divides a partition of the topic in; 0: none."""
    return slots_of(read_world(connection).world, group, topic)


def _slot(
    connection: Connection,
    group: str,
    topic: str,
    partition: int,
    slot: int | None,
    key: str | None,
) -> tuple[str, int]:
    """Return the cell of the slot that is meant. Raises `InvalidArgument`."""
    slots = _slots(connection, group, topic)
    if not slots:
        raise InvalidArgument(f"group {group!r} shares {topic!r} by partitions: it has no slots")
    if slot is None:
        slot = slot_of_key((key or "").encode(), 0, slots)
    if slot >= slots:
        raise InvalidArgument(f"--slot {slot}: there are {slots}, numbered from 0")
    return slots_cell(topic, partition, slots), slot


def _document(
    timeline: CellTimeline | MessageTimeline, status: CellStatus | MessageStatus, at_ms: int | None
) -> dict[str, Any]:
    group, topic, partition = timeline.key
    return {
        "group": group,
        "topic": topic,
        "partition": partition,
        "coordinator": timeline.coordinator,
        "at": None if at_ms is None else iso_utc(at_ms),
        "standing": asdict(status) | {"at": iso_utc(status.at_ms)},
        "history": [
            asdict(entry) | {"time": iso_utc(entry.at_ms), "sentence": entry.sentence}
            for entry in timeline.entries
        ],
    }


def _print(
    timeline: CellTimeline | MessageTimeline,
    status: CellStatus | MessageStatus,
    at_ms: int | None,
    lines: int,
) -> None:
    out = console(wide=False)
    out.print(f"[bold]{safe(status.text)}[/]", soft_wrap=False)
    before = [e for e in timeline.entries if at_ms is None or e.at_ms <= at_ms]
    after = [] if at_ms is None else [e for e in timeline.entries if e.at_ms > at_ms]
    hidden = len(before) - lines
    if before:
        out.print("\nBefore that:" if at_ms is not None else "\nHow it came to that:")
    if hidden > 0:
        out.print(
            f"[dim]  … {count(hidden, 'earlier entry').replace('entrys', 'entries')}; "
            f"--lines {len(before)} shows all[/]"
        )
    day = _print_entries(out, timeline, before[-lines:], "")
    if after:
        out.print("\nAfter that:")
        _print_entries(out, timeline, after[:AFTER], day)
        if len(after) > AFTER:
            out.print(f"[dim]  … and {len(after) - AFTER} more until now[/]")


def _print_entries(
    out: Any, timeline: CellTimeline | MessageTimeline, entries: list[TimelineEntry], day: str
) -> str:
    for entry in entries:
        stamp = clock_time(entry.at_ms, date=True)
        if stamp[:10] != day:
            day = stamp[:10]
            out.print(f"[dim]{day}[/]")
        where = f"{timeline.coordinator}@{entry.offset}"
        colour = _COLOURS.get(entry.kind, "default")
        body = f"[{colour}]{safe(entry.sentence)}[/]"
        out.print(f"[dim]{stamp[11:]}  {where:>9}[/]  {body}", soft_wrap=True)
    return day
