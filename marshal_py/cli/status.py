"""`marshal status`: groups, members, leaders, pauses, snapshots and the size of the log."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Final

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, count, iso_utc, liveness_style, safe
from marshal_py.admin.snapshot_reader import read_snapshots
from marshal_py.admin.topic_offsets import extent
from marshal_py.admin.world_reader import WorldView, read_world, wire_of
from marshal_py.admin.world_summary import Group, Leader, Member, summarize
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.groups import group_table, member_table
from marshal_py.cli.options import Interval, JsonFlag, Observe, WireFlag
from marshal_py.cli.output import console, print_json, show, table
from marshal_py.client.topics import admin_client
from marshal_py.consumer.claim_metadata import ClaimMetadata
from marshal_py.errors import TopicMissing
from marshal_py.protocol.wire import MSGPACK, Wire

__all__ = ["Status", "status", "take_status"]

MANY_RECORDS: Final = 500_000
"""So many records beyond the newest snapshot, and starting takes seconds."""


@dataclass
class Pause:
    group: str
    partitions: int
    of: int
    expires: str
    expires_ms: int
    expired: bool


@dataclass
class SnapshotAge:
    coordinator: int
    next_offset: int | None
    records_since: int
    age_ms: int | None
    size_bytes: int | None
    writer: str | None
    problem: str | None = None


@dataclass
class Failing:
    """A partition of which messages failed, or do not come to an end, as its holder tells."""

    group: str
    topic: str
    partition: int
    holder: str
    retrying: int
    stuck: int
    dead_lettered: int
    skipped: int
    offset: int
    error: str


@dataclass
class Status:
    """What `marshal status --json` prints."""

    topic: str
    partitions: int
    records: int
    first_offsets: list[int]
    next_offsets: list[int]
    newest_record_ms_ago: int | None
    clock_behind_ms: int
    groups: list[Group] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    snapshots: list[SnapshotAge] = field(default_factory=list)
    failing: list[Failing] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)
    measured: str = ""


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
    taken = take_status(connection, observe_s, wire_of(wire, interval_s))
    if as_json:
        print_json(asdict(taken))
    else:
        _print(taken)
    if check and taken.attention:
        raise typer.Exit(FINDING)


def take_status(connection: Connection, observe_s: float = 0.0, wire: Wire = MSGPACK) -> Status:
    """Read the log and return what is to be said of it. Raises as `look` does."""
    found = read_world(connection, observe_s=observe_s, wire=wire)
    ends = found.reader.extent()
    newest = found.newest_ms
    taken = Status(
        connection.topic,
        len(ends),
        sum(end - first for first, end in ends.values()),
        [ends[p][0] for p in sorted(ends)],
        [ends[p][1] for p in sorted(ends)],
        None if newest is None else max(0, found.taken_ms - newest),
        found.behind_ms,
        measured=found.explain(),
    )
    _groups(taken, found)
    _failing(taken, found)
    _pauses(taken, found)
    if wire.has_snapshots:
        _snapshots(taken, found, connection)
    if found.reader.met_other_wire:
        other = "msgpack" if wire.name == "text" else "text"
        taken.attention.append(f"{wire.met_other}. `--wire {other}` shows what they say")
    taken.attention += [str(mismatch) for mismatch in found.reader.mismatches]
    return taken


def _groups(taken: Status, found: WorldView) -> None:
    summary = summarize(found)
    taken.groups, taken.members, taken.leaders = summary.groups, summary.members, summary.leaders
    taken.attention += [
        f"group {group.group}: {count(group.stale, 'claim')} held by clients that are silent for "
        "over two intervals; anyone may take them"
        for group in summary.groups
        if group.stale
    ]


def _failing(taken: Status, found: WorldView) -> None:
    if found.is_text:  # its records have no room for notes
        return
    for _, key, cell in found.world.cells():
        note = ClaimMetadata.decode(cell.metadata)
        if cell.holder is None or not note.has_failures:
            continue
        counts = (note.retrying, note.stuck, note.dead_lettered, note.skipped)
        taken.failing.append(Failing(*key, cell.holder, *counts, note.offset, note.error))
        if note.retrying or note.stuck:
            what = "fails again and again" if note.retrying else "does not come to an end"
            taken.attention.append(
                f"group {key[0]}: a message of {key[1]}/{key[2]} at offset {note.offset} {what}"
                f"{f' ({note.error})' if note.error else ''}; see the log of {cell.holder}"
            )


def _pauses(taken: Status, found: WorldView) -> None:
    now_ms = found.taken_ms
    for name in found.world.groups():
        expiries = [s.paused[name] for s in found.world.states if name in s.paused]
        if not expiries:
            continue
        expires_ms = max(expiries)
        if found.is_text and expires_ms <= now_ms:
            continue  # a pause of version 1 ends by itself
        pause = Pause(
            name,
            len(expiries),
            taken.partitions,
            iso_utc(expires_ms),
            expires_ms,
            expires_ms <= now_ms,
        )
        taken.pauses.append(pause)
        if pause.expired:
            taken.attention.append(
                f"group {name}: its pause expired {age(now_ms - expires_ms)} ago and nobody ended "
                "it; `marshal group resume` does"
            )
        elif pause.partitions < pause.of:
            taken.attention.append(
                f"group {name}: paused in {pause.partitions} of {pause.of} coordination "
                "partitions only; repeat `marshal group pause` or `marshal group resume`"
            )


def _snapshots(taken: Status, found: WorldView, connection: Connection) -> None:
    try:
        ends = extent(admin_client(connection.kafka), connection.snapshot_topic, connection)
    except TopicMissing:
        taken.attention.append(
            f"there is no topic {connection.snapshot_topic!r}: every start replays the whole log; "
            "`marshal topic create` makes it"
        )
        ends = {}
    newest = {
        record.coordinator: record
        for record in read_snapshots(connection, {p: end for p, (_, end) in ends.items()})
    }
    for p, (first, end) in sorted(found.reader.extent().items()):
        record = newest.get(p)
        if record is None:
            since = end - first
            taken.snapshots.append(SnapshotAge(p, None, since, None, None, None))
        else:
            snapshot = record.snapshot
            since = end - (first if snapshot is None else snapshot.next_offset)
            taken.snapshots.append(
                SnapshotAge(
                    p,
                    None if snapshot is None else snapshot.next_offset,
                    since,
                    max(0, found.taken_ms - record.written_ms),
                    record.size_bytes,
                    None if snapshot is None else snapshot.writer,
                    record.problem,
                )
            )
            if record.problem:
                taken.attention.append(
                    f"the newest snapshot of partition {p} is not usable: {record.problem}"
                )
        if since > MANY_RECORDS and ends:
            taken.attention.append(
                f"partition {p}: {since:,} records since the newest snapshot; `marshal snapshot` "
                "writes one"
            )


def _print(taken: Status) -> None:
    out = console()
    newest = taken.newest_record_ms_ago
    out.print(
        f"[bold]{taken.topic}[/]  {count(taken.partitions, 'partition')}, "
        f"{count(taken.records, 'record')}, "
        + ("empty" if newest is None else f"newest {age(newest)} ago")
    )
    if taken.groups:
        show(out, "", group_table(taken.groups))
    if taken.members:
        show(out, "", member_table(taken.members))
    if taken.leaders:
        leaders = table(
            "LEADER OF", "GROUP", "LEADER", "EPOCH", "SILENCE", "LIVENESS",
            right=("EPOCH", "SILENCE"),
        )  # fmt: skip
        for leader in taken.leaders:
            leaders.add_row(
                safe(leader.name),
                safe(leader.group),
                safe(leader.leader or "(none)"),
                "–" if leader.epoch < 0 else str(leader.epoch),
                "" if leader.silence_ms is None else age(leader.silence_ms),
                liveness_style(leader.liveness),
            )
        show(out, "", leaders)
    if taken.failing:
        failing = table(
            "FAILING", "PARTITION", "GROUP", "HOLDER", "RETRYING", "STUCK", "DEAD", "SKIPPED",
            "OFFSET", "ERROR",
            right=("PARTITION", "RETRYING", "STUCK", "DEAD", "SKIPPED", "OFFSET"),
        )  # fmt: skip
        for f in taken.failing:
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
    for pause in taken.pauses:
        out.print(
            f"\n[yellow]paused[/] {safe(pause.group)} in {pause.partitions} of {pause.of} "
            f"coordination partitions, {'expired' if pause.expired else 'until'} {pause.expires}"
        )
    _print_snapshots(taken)
    for text in taken.attention:
        out.print("[bold yellow]attention:[/] ", end="")
        out.print(safe(text))
    if taken.members or any(g.held for g in taken.groups):
        out.print(f"[dim]{taken.measured}[/]")


def _print_snapshots(taken: Status) -> None:
    out = console()
    written = [s for s in taken.snapshots if s.age_ms is not None]
    if not written:
        out.print(f"\nno snapshots; a start replays {count(taken.records, 'record')}\n")
        return
    snapshots = table(
        "SNAPSHOT OF", "UP TO", "RECORDS SINCE", "AGE", "BYTES", "WRITTEN BY",
        right=("SNAPSHOT OF", "UP TO", "RECORDS SINCE", "AGE", "BYTES"),
    )  # fmt: skip
    for s in taken.snapshots:
        snapshots.add_row(
            str(s.coordinator),
            "none" if s.next_offset is None else str(s.next_offset),
            f"{s.records_since:,}",
            "" if s.age_ms is None else age(s.age_ms),
            "" if s.size_bytes is None else f"{s.size_bytes:,}",
            safe(s.writer or ""),
        )
    show(out, "", snapshots, "")
