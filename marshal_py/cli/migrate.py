"""`marshal group migrate`: move a group from version 1 to version 2 while it works, or back."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, safe
from marshal_py.admin.migration import Bridge, Step, assess, explain, partitions_of
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, note, print_json, show, table
from marshal_py.client.marshal import Marshal
from marshal_py.client.topics import admin_client
from marshal_py.errors import ConfigurationError, TopicMissing

__all__ = ["migrate"]

POLL_S = 0.2


@command(coordination_topic=("--text-topic", "--coordination-topic"))
def migrate(
    connection: Connection,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group to move.")],
    new_topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The coordination topic of version 2: that of version 1 and “.v2”."
        ),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="From version 2 to version 1.", show_default=False)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Rehearse: look and say, write nothing.", show_default=False
        ),
    ] = False,
    source_stopped: Annotated[
        bool,
        typer.Option(
            "--source-stopped",
            help="No process of the old side runs any more: end when everything has moved.",
            show_default=False,
        ),
    ] = False,
    topics: Annotated[
        str | None,
        typer.Option(metavar="T,…", help="Only these topics; all that the group has by default."),
    ] = None,
    interval_s: Annotated[
        int,
        typer.Option(
            "--interval", min=1, metavar="SECONDS", help="Heartbeat interval of the Go clients."
        ),
    ] = 60,
    client_id: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the bridge, kept over restarts.")
    ] = "marshal-migrate",
    skip_to_target: Annotated[
        bool,
        typer.Option(
            "--skip-to-target",
            help="Where the new side's position is ahead, go on from there.",
            show_default=False,
        ),
    ] = False,
    give_up_s: Annotated[
        float | None,
        typer.Option(
            "--give-up",
            min=0.0,
            metavar="SECONDS",
            help="End with exit code 1 if it takes longer; never by default.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Move a group from version 1 (text, Go Marshal) to version 2 while it works, or back.

    The two versions have a coordination topic each. This command holds every partition on the side
    where it must not be worked on. Start it; start processes of the new side when it says so; stop
    those of the old side one by one, in any order: what they leave moves over, with its position.
    Or stop all of them first, and use --source-stopped.

    It has to run until the last process of the old side has been stopped. If it dies, start it
    again within one heartbeat interval; it goes on where it was.
    """
    new_topic = new_topic or f"{connection.topic}.v2"
    if new_topic == connection.topic:
        raise ConfigurationError(
            f"--new-topic {new_topic!r} is the topic of version 1: give version 2 one of its own"
        )
    stop = threading.Event()
    common: dict[str, Any] = {
        "group_id": group,
        "client_id": client_id,
        "interval_ms": interval_s * 1000,
        "member": False,
        "connect_timeout_ms": int(connection.timeout_s * 1000),
        "close_on_sigterm": False,
    }
    with ExitStack() as closing:
        text = Marshal(connection.kafka, topic=connection.topic, wire="text", **common)
        new = Marshal(connection.kafka, topic=new_topic, create_topics=not dry_run, **common)
        source, target = (new, text) if back else (text, new)
        _open(source, closing)
        moving = _topics_to_move(connection, source, topics)
        if dry_run:
            _dry_run(source, _open_if_it_exists(target, closing), moving, skip_to_target, as_json)
            return
        _open(target, closing)
        bridge = Bridge(source, target, moving, skip_to_target=skip_to_target)
        _stop_on_signals(stop, closing)
        _run(bridge, stop, source_stopped, give_up_s, as_json)


def _open(marshal: Marshal, closing: ExitStack) -> None:
    marshal.start()
    # Whatever happens, nothing is given up by accident: claims are kept for two intervals.
    closing.callback(marshal.close, release=False)


def _open_if_it_exists(target: Marshal, closing: ExitStack) -> Marshal | None:
    try:
        _open(target, closing)
    except TopicMissing:
        note(f"{target.settings.topic} does not exist yet; it would be made")
        return None
    return target


def _topics_to_move(connection: Connection, source: Marshal, only: str | None) -> dict[str, int]:
    metadata = admin_client(connection.kafka).list_topics(timeout=connection.timeout_s).topics

    def count_of(topic: str) -> int:
        return len(metadata[topic].partitions) if topic in metadata else 0

    with source.world() as world:
        cells = [key[1:] for _, key, _ in world.cells(source.group_id)]
    names = None if only is None else {name.strip() for name in only.split(",")}
    if names is not None:
        cells = [cell for cell in cells if cell[0] in names]
        cells += [(name, 0) for name in names if count_of(name)]
    found = partitions_of(cells, count_of)
    missing = (names or set()) - set(found)
    if missing:
        raise ConfigurationError(f"--topics: there is no topic {sorted(missing)[0]!r}")
    if not found:
        raise ConfigurationError(
            f"group {source.group_id!r} has no partitions on {source.settings.topic!r}: check the "
            "name of the group, --text-topic and --new-topic; or name the topics with --topics"
        )
    return found


def _dry_run(
    source: Marshal,
    target: Marshal | None,
    topics: dict[str, int],
    skip_to_target: bool,
    as_json: bool,
) -> None:
    steps = [
        assess(
            (topic, p),
            source.cell(topic, p),
            None if target is None else target.cell(topic, p),
            source.client_id,
            skip_to_target=skip_to_target,
        )
        for topic, partitions in topics.items()
        for p in range(partitions)
    ]
    bad = [step for step in steps if step.state in ("in_use", "target_ahead")]
    if as_json:
        print_json([step._asdict() for step in steps])
    else:
        out = console()
        shown = table("TOPIC", "PARTITION", "STATE", "OLD HOLDER", "OFFSET", "NEW HOLDER", "OFFSET")
        for step in steps:
            shown.add_row(
                safe(step.topic),
                str(step.partition),
                f"[{_STYLES[step.state]}]{step.state.replace('_', ' ')}[/]",
                safe(step.source_holder or "-"),
                _offset(step.source_offset),
                safe(step.target_holder or "-"),
                _offset(step.target_offset),
            )
        show(out, shown)
        for step in bad:
            note(explain(step))
        ready = sum(step.state == "free" for step in steps)
        note(
            f"{count(len(steps), 'partition')}: {ready} would move at once, "
            f"{sum(step.state == 'held' for step in steps)} when their holders are stopped, "
            f"{sum(step.state == 'moved' for step in steps)} have moved, {len(bad)} cannot. "
            "Nothing was written"
        )
    if bad:
        raise typer.Exit(FINDING)


_STYLES = {
    "free": "green",
    "held": "yellow",
    "moved": "green",
    "in_use": "red",
    "target_ahead": "red",
}


def _offset(offset: int) -> str:
    return "-" if offset < 0 else str(offset)


def _run(
    bridge: Bridge,
    stop: threading.Event,
    source_stopped: bool,
    give_up_s: float | None,
    as_json: bool,
) -> None:
    started_s = time.monotonic()
    bridge.block(timeout_s=2.5 * bridge.target.settings.interval_ms / 1000 + 30)
    resumed = [step for step in bridge.plan() if step.state == "moved"]
    _report(
        as_json,
        "blocked",
        f"{count(len(bridge.keys), 'partition')} held for the new side: "
        "its processes may start, and those of the old side be stopped",
        moved=len(resumed),
    )
    announced = False
    while not stop.wait(POLL_S):
        for step in bridge.step():
            _print_moved(as_json, step, len(bridge.moved), len(bridge.keys))
        if bridge.complete and source_stopped:
            bridge.finish()
            _report(as_json, "finished", "everything has moved; the old side is released")
            return
        if bridge.complete and not announced:
            announced = True
            _report(
                as_json,
                "complete",
                "everything has moved. Stop the last processes of the old "
                "side, then end this with Ctrl-C, and run it once more with --source-stopped",
            )
        if give_up_s is not None and time.monotonic() - started_s > give_up_s:
            _report(as_json, "gave_up", _what_is_left(bridge))
            raise typer.Exit(FINDING)
    _report(
        as_json,
        "stopped",
        f"{_what_is_left(bridge)} Start this again within one heartbeat interval, or "
        "stop all processes of one side",
    )


def _what_is_left(bridge: Bridge) -> str:
    left = [step for step in bridge.plan() if step.state != "moved"]
    if not left:
        return "Everything has moved."
    return f"{count(len(left), 'partition')} left: {'; '.join(map(explain, left[:3]))}."


def _print_moved(as_json: bool, step: Step, done: int, total: int) -> None:
    if as_json:
        print_json({"event": "moved", **step._asdict()}, indent=None)
        return
    console().print(
        f"[green]moved[/] {safe(step.topic)}/{step.partition} at offset "
        f"{_offset(step.target_offset)} ({done} of {total})"
    )


def _report(as_json: bool, event: str, text: str, **fields: Any) -> None:
    if as_json:
        print_json({"event": event, "text": text, **fields}, indent=None)
    else:
        console().print(safe(text))


def _stop_on_signals(stop: threading.Event, closing: ExitStack) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.signal(number, lambda *_: stop.set())
        closing.callback(signal.signal, number, before)
