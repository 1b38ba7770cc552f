"""`marshal group …`: pauses, levels, positions, forgetting, and what there is of a group."""

from __future__ import annotations

import contextlib
import datetime as dt
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, iso_utc, parse_since, safe
from marshal_py.admin.group_admin import DEFAULT_PAUSE_S, GroupAdmin, SlotsChange
from marshal_py.admin.lag import measure_lag, require_online, require_readable
from marshal_py.admin.positions import Change, Extent, Key, Target, target_of
from marshal_py.admin.world_reader import read_world
from marshal_py.admin.world_summary import summarize
from marshal_py.cli.command import command, new_app
from marshal_py.cli.exit_codes import FINDING, fail
from marshal_py.cli.groups import group_table, groups, member_table
from marshal_py.cli.lag import lag_table
from marshal_py.cli.migrate import migrate
from marshal_py.cli.options import LONGEST_S, JsonFlag, Observe
from marshal_py.cli.output import console, note, print_json, show, table
from marshal_py.errors import ConfigurationError, GroupInUse, InvalidArgument
from marshal_py.protocol.messages import MAX_LEVEL
from marshal_py.protocol.slots import MAX_SLOTS, Slots

__all__ = ["app"]

app = new_app(help="Look after a group: its pause, its level, its positions, its version.")

_MAX_DIGITS: Final = 6
"""Of a partition's number: a whole cluster has no more than some hundred thousands."""

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.")]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", "-n", help="Show what would change, write nothing."),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0.0,
        max=LONGEST_S,
        metavar="SECONDS",
        help="How long holders may take to release; one that died takes two of its intervals.",
    ),
]


@contextlib.contextmanager
def _admin(connection: Connection, group: str) -> Iterator[GroupAdmin]:
    """An admin whose findings become exit code 1, and which SIGTERM ends as Ctrl-C does."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with GroupAdmin(
            connection.kafka,
            group,
            topic=connection.topic,
            connect_timeout_s=connection.timeout_s,
            say=note,
        ) as admin:
            yield admin
    except GroupInUse as error:
        fail(str(error), FINDING)
    finally:
        signal.signal(signal.SIGTERM, before)


# Looking


app.command("list", epilog="Example: marshal group list -b localhost:9092 --json")(groups)


@app.command(epilog="Example: marshal group describe billing --json")
@command()
def describe(
    connection: Connection,
    group: Group,
    observe_s: Observe = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Show one group: what `marshal groups`, `members` and `lag` say of it, and who leads what.

    After all else, what it cannot know is an error, as with `marshal lag`: a topic that the brokers
    hide for want of Describe, of which no partition is shown (exit code 2, with the command that
    grants it), and partitions without a leader (3).
    """
    found = read_world(connection, observe_s=observe_s)
    if group not in found.world.groups():
        with _admin(connection, group) as admin:
            admin.require()
    summary = summarize(found, group=group)
    rows = measure_lag(connection, found, group=group)
    if as_json:
        (counted,) = summary.groups
        print_json(
            asdict(counted)
            | {
                "members": [asdict(member) for member in summary.members],
                "leaders": [asdict(leader) for leader in summary.leaders],
                "partitions": [asdict(row) for row in rows],
            }
        )
    else:
        show(console(), group_table(summary.groups))
        if summary.members:
            show(console(), member_table(summary.members))
        if rows:
            lag_table(rows)
        for leader in summary.leaders:
            note(f"leader {leader.name}: {leader.leader or 'nobody'}")
        note(found.explain())
    require_readable(connection, found, group=group)
    require_online(rows)


# Pause and resume


@app.command(epilog="Example: marshal group pause billing --for 30m --wait 20")
@command()
def pause(
    connection: Connection,
    group: Group,
    duration: Annotated[
        str,
        typer.Option("--for", metavar="DURATION", help="When the pause ends by itself: 90s, 2h."),
    ] = f"{DEFAULT_PAUSE_S / 60:.0f}m",
    wait_s: Wait = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Pause a group: its members stop, release what they hold, and claim nothing.

    The pause ends by `marshal group resume`, or by itself after --for: the members see to that.
    With --wait, exit code 1 says that something was still held when the time was up.
    """
    for_s = _parse_duration_s(duration)
    with _admin(connection, group) as admin:
        admin.require()
        until_ms = admin.pause(for_s)
        held = admin.await_released(wait_s)
    if as_json:
        still = [{"topic": t, "partition": p, "holder": who} for (t, p), who in held.items()]
        print_json({"group": group, "paused_until_ms": until_ms, "held": still})
    else:
        console().print(f"paused {safe(group)} until {iso_utc(until_ms)}")
        if held:
            (topic, p), who = next(iter(held.items()))
            note(f"{count(len(held), 'partition')} still held, as {topic}/{p} by {who}")
    if held and wait_s:
        raise typer.Exit(FINDING)


@app.command(epilog="Example: marshal group resume billing")
@command()
def resume(connection: Connection, group: Group, as_json: JsonFlag = False) -> None:
    """End the pause of a group now: the one that stands, and no later one.

    Exit code 1 says that somebody else paused the group anew meanwhile: that pause stands.
    """
    with _admin(connection, group) as admin:
        admin.require()
        was_paused = admin.resume()
    if as_json:
        print_json({"group": group, "was_paused": was_paused})
    else:
        console().print(f"resumed {safe(group)}" if was_paused else f"{safe(group)} was not paused")


# Level


@app.command(
    epilog="Examples: marshal group level billing --json · marshal group level billing --set 2"
)
@command()
def level(
    connection: Connection,
    group: Group,
    to: Annotated[
        int | None,
        typer.Option("--set", min=1, max=MAX_LEVEL, metavar="LEVEL", help="Set it to this one."),
    ] = None,
    even_if_unknown: Annotated[
        bool,
        typer.Option("--even-if-unknown", help="Although this version could not follow it itself."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show by which level a group works, and which levels its clients can follow; or set it.

    A level is one set of rules that members keep together. It is raised when the last member runs a
    version that can follow it. Exit code 1 says that some client cannot: nothing was changed.
    """
    with _admin(connection, group) as admin:
        admin.require()
        before = admin.level
        if to is not None:
            before = admin.set_level(to, even_if_unknown=even_if_unknown)
        now, clients = admin.level, admin.levels_of_clients()
    if as_json:
        listed = [
            {"client_id": client, "instance_id": instance, "lowest": low, "highest": high}
            for (client, instance), (low, high) in clients.items()
        ]
        print_json({"group": group, "level": now, "before": before, "clients": listed})
        return
    was = "" if before == now else f", was {before}"
    console().print(f"{safe(group)} works by level {now}{was}")
    if clients:
        made = table("CLIENT", "INSTANCE", "FOLLOWS LEVELS")
        for (client, instance), (low, high) in clients.items():
            follows = str(low) if low == high else f"{low} to {high}"
            made.add_row(safe(client), safe(instance), follows)
        show(console(), made)


# Positions


@app.command(
    "set-position",
    epilog=(
        "Examples: marshal group set-position billing --topic orders --to earliest --dry-run · "
        "marshal group set-position billing --topic orders --partitions 3,7 --to -1000 · "
        "marshal group set-position billing --topic orders --to 2026-11-21T14:05:00Z"
    ),
)
@command(coordination_topic=("--coordination-topic",))
def set_position(
    connection: Connection,
    group: Group,
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Of this topic.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="earliest, latest, an offset, +N or -N messages, a duration ago (10m) or a time.",
        ),
    ],
    partitions: Annotated[
        str | None,
        typer.Option("--partitions", "-p", metavar="N,…", help="Only these; all by default."),
    ] = None,
    dry_run: DryRun = False,
    wait_s: Wait = 60.0,
    new: Annotated[
        bool, typer.Option("--new", help="The group may be one that the log does not know yet.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Set where a group goes on in a topic, back or forth.

    The group is paused meanwhile, and resumed at the end, whatever happens; one that was paused
    stays so. What is delivered from an earlier position on is delivered again, at most once or not.
    """
    target = _parse_target(to)
    with _admin(connection, group) as admin:
        if not new:
            admin.require()
        keys = admin.keys_of(topic, _parse_numbers(partitions))
        _set_positions(admin, dict.fromkeys(keys, target), dry_run, wait_s, as_json)


@app.command(
    "import",
    epilog="Example: marshal group import billing --from-kafka-group billing-old --dry-run",
)
@command()
def import_(
    connection: Connection,
    group: Group,
    kafka_group: Annotated[
        str | None,
        typer.Option(
            "--from-kafka-group", metavar="NAME", help="The Kafka consumer group: same name."
        ),
    ] = None,
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="T,…", help="Only these topics.")
    ] = None,
    even_if_active: Annotated[
        bool,
        typer.Option(
            "--even-if-active",
            help="Although the Kafka group has members, whose further work will be done again.",
        ),
    ] = False,
    dry_run: DryRun = False,
    wait_s: Wait = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Go on where a Kafka consumer group stopped: take over its committed offsets.

    Stop the consumers of the Kafka group, run this, start the new ones. Nothing of the Kafka group
    is changed; the same command can be run again.
    """
    names = None if topics is None else [name.strip() for name in topics.split(",")]
    with _admin(connection, group) as admin:
        found = admin.import_positions(
            kafka_group or group, topics=names, even_if_active=even_if_active
        )
        _set_positions(admin, found, dry_run, wait_s, as_json)


@app.command(
    epilog=(
        "Examples: marshal group slots billing orders · "
        "marshal group slots billing orders 32 --dry-run · "
        "marshal group slots billing orders ranges"
    ),
)
@command(coordination_topic=("--coordination-topic",))
def slots(
    connection: Connection,
    group: Group,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic that it consumes.")],
    sharing: Annotated[
        str | None,
        typer.Argument(metavar="SLOTS", help="So many slots; or partitions, or ranges."),
    ] = None,
    dry_run: DryRun = False,
    wait_s: Wait = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Show, or change, how a group shares a topic: by partitions, by keys (slots), or by ranges.

    Its members run with Consumer(sharing="keys", slots=SLOTS), or sharing="ranges", then. To change
    it, the group is paused; each partition goes on where the last of its slots was, so that a
    few messages come again (at most once: where the first was, and some are left out). Members that
    run with another number stop: start them again with the new one.
    """
    to = None if sharing is None else _parse_slots(sharing)
    with _admin(connection, group) as admin:
        admin.require()
        if to is None:
            change = SlotsChange(topic, admin.slots_of(topic), admin.slots_of(topic), {}, 0, True)
        elif dry_run:
            change = admin.plan_slots(topic, to)
        else:
            change = admin.set_slots(topic, to, timeout_s=max(1.0, wait_s))
    if as_json:
        positions = [
            {"topic": t, "partition": p, "position": at}
            for (t, p), at in sorted(change.positions.items())
        ]
        print_json(asdict(change) | {"dry_run": dry_run, "positions": positions})
        return
    now = change.before if dry_run else change.after
    words = {"partitions": "partitions", "ranges": "ranges of messages"}
    by = words[now] if isinstance(now, str) else f"keys, {count(now, 'slot')} to a partition"
    console().print(f"{safe(group)} shares {safe(topic)} by {by}")
    if change.before != change.after:
        verb = "comes again" if change.comes_again else "is left out"
        would = "would be set; nothing was written" if dry_run else "set"
        note(
            f"{count(len(change.positions), 'position')} {would}; of what the slots before had "
            f"done, {count(change.between, 'offset')} at most {verb}"
        )


def _set_positions(
    admin: GroupAdmin,
    positions: dict[Key, Target],
    dry_run: bool,
    wait_s: float,
    as_json: bool,
) -> None:
    if dry_run:
        changes = admin.plan(positions)
    else:
        changes = admin.set_positions(positions, timeout_s=max(1.0, wait_s))
    if as_json:
        print_json(
            {"dry_run": dry_run, "changes": [_change_document(change) for change in changes]}
        )
        return
    made = table(
        "TOPIC", "PARTITION", "BEFORE", "AFTER", "CHANGE", "LAG AFTER", "HOLDER",
        right=("PARTITION", "BEFORE", "AFTER", "CHANGE", "LAG AFTER"),
    )  # fmt: skip
    for c in changes:
        made.add_row(
            safe(c.topic), str(c.partition), _offset(c.before), str(c.after),
            f"{c.after - c.before:+,}" if c.before >= 0 else "–",
            _offset(_lag(c.extent, c.after)), safe(c.holder or ""),
        )  # fmt: skip
    show(console(), made)
    moved = sum(c.moved_into_range for c in changes)
    if moved:
        note(f"{count(moved, 'target')} lay outside of the messages that there are")
    done = "would be set; nothing was written" if dry_run else "set"
    note(f"{count(len(changes), 'position')} {done}")


def _change_document(change: Change) -> dict[str, Any]:
    document = asdict(change)
    extent = document.pop("extent")
    first, end = extent if extent is not None else (None, None)
    return document | {"first": first, "end": end}


def _lag(extent: Extent | None, position: int) -> int | None:
    return None if extent is None else max(0, extent.end - position)


# Forget


@app.command(epilog="Example: marshal group forget billing-old --yes")
@command()
def forget(
    connection: Connection,
    group: Group,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; only show it otherwise.")] = False,
    wait_s: Wait = 60.0,
    as_json: JsonFlag = False,
) -> None:
    """Remove a group that nobody uses any more, with its positions.

    Refused, with exit code 1, while a client of the group lives. One that died is waited for two of
    its intervals.
    """
    with _admin(connection, group) as admin:
        admin.require()
        cells = admin.cells()
        removed = admin.forget(timeout_s=max(1.0, wait_s)) if yes else 0
    if as_json:
        print_json({"group": group, "partitions": len(cells), "removed": removed})
    elif yes:
        console().print(f"forgot {safe(group)}: {count(removed, 'partition')}")
    else:
        note(f"{group}: {count(len(cells), 'partition')} would be forgotten; add --yes to do it")


app.command(
    epilog="Example: marshal group migrate billing --dry-run && marshal group migrate billing"
)(migrate)


# Values of options


def _parse_target(text: str) -> Target:
    with contextlib.suppress(InvalidArgument):
        return target_of(text)
    now_ms = int(time.time() * 1000)
    try:
        _, moment_ms = parse_since(text, now_ms)
    except InvalidArgument:
        moment_ms = None
    if moment_ms is None:
        raise ConfigurationError(
            f"--to {text!r} must be earliest, latest, an offset (1500), a number of messages "
            "(+100, -100), a duration ago (10m, 2h) or a time (14:05, 2026-11-21T14:05:00Z)"
        )
    if moment_ms > now_ms + 1000:
        when = dt.datetime.fromtimestamp(moment_ms / 1000, dt.UTC)
        raise ConfigurationError(f"--to {text!r} lies in the future ({when:%Y-%m-%d %H:%M} UTC)")
    return Target("time", moment_ms)


def _parse_duration_s(text: str) -> float:
    now_ms = int(time.time() * 1000)
    with contextlib.suppress(InvalidArgument):
        offset, before_ms = parse_since(text, now_ms)
        if offset is None and before_ms is not None and not {*text} & {*":-"}:
            return (now_ms - before_ms) / 1000
    raise ConfigurationError(f"--for {text!r} must be a duration such as 90s, 15m, 2h or 1d")


def _parse_slots(text: str) -> Slots:
    words: dict[str, Slots] = {"partitions": "partitions", "ranges": "ranges"}
    if text in words:
        return words[text]
    if not text.isascii() or not text.isdecimal() or int(text) > MAX_SLOTS:
        raise ConfigurationError(
            f"SLOTS {text!r} must be a number from 0 to {MAX_SLOTS}, partitions or ranges"
        )
    return int(text)


def _parse_numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    found: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        numbers = first.isdecimal() and (not dash or last.isdecimal())
        if numbers and max(len(first), len(last)) > _MAX_DIGITS:
            raise ConfigurationError(
                f"--partitions {text!r} has a number of more than {_MAX_DIGITS} digits, and no "
                "topic has so many partitions"
            )
        if not numbers or int(last or first) < int(first):  # 5-3 would be none at all
            raise ConfigurationError(f"--partitions {text!r} must be numbers such as 0,3 or 0-5")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


def _offset(offset: int | None) -> str:
    return "–" if offset is None or offset < 0 else str(offset)
