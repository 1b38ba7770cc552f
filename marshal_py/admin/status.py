"""The state of a coordination topic: groups, members, leaders, snapshots, what needs attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, count, iso_utc
from marshal_py.admin.snapshot_reader import read_snapshots
from marshal_py.admin.topic_offsets import extent
from marshal_py.admin.world_reader import WorldView, read_world
from marshal_py.admin.world_summary import Group, Leader, Member, paused_until_ms, summarize
from marshal_py.client.topics import admin_client
from marshal_py.errors import AccessDenied, TopicMissing
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.wire import MSGPACK, Wire

__all__ = ["FailingPartition", "Pause", "SnapshotAge", "Status", "read_status"]

MANY_RECORDS: Final = 500_000
"""So many records beyond the newest snapshot, and starting takes seconds."""


@dataclass
class Pause:
    """A paused group. `version` is the log offset of the record that paused it, −1 in version 1."""

    group: str
    version: int
    expires: str
    expires_ms: int
    expired: bool


@dataclass
class SnapshotAge:
    """The newest snapshot of a coordination partition; None where there is none, or it is bad."""

    coordinator: int
    next_offset: int | None
    records_since: int
    age_ms: int | None
    size_bytes: int | None
    writer: str | None
    problem: str | None = None


@dataclass
class FailingPartition:
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
    identities: list[str | None]
    """Of each coordination partition, what its genesis says; None: nobody has founded it yet."""
    bases: list[int]
    """What the epochs of each coordination partition are counted from."""
    newest_record_ms_ago: int | None
    clock_behind_ms: int
    groups: list[Group] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    snapshots: list[SnapshotAge] = field(default_factory=list)
    failing: list[FailingPartition] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)
    measured: str = ""


def read_status(connection: Connection, observe_s: float = 0.0, wire: Wire = MSGPACK) -> Status:
    """Read the log and return what is to be said of it. Raises as `read_world` does."""
    found = read_world(connection, observe_s=observe_s, wire=wire)
    ends = found.reader.extent()
    newest = found.newest_ms
    status = Status(
        connection.topic,
        len(ends),
        sum(end - first for first, end in ends.values()),
        [ends[p][0] for p in sorted(ends)],
        [ends[p][1] for p in sorted(ends)],
        [state.identity for state in found.world.states],
        [state.base for state in found.world.states],
        None if newest is None else max(0, found.taken_ms - newest),
        found.behind_ms,
        measured=found.explain(),
    )
    _add_groups(status, found)
    _add_failing(status, found)
    _add_pauses(status, found)
    if wire.has_snapshots:
        _add_snapshots(status, found, connection)
    if found.reader.met_other_wire:
        other = "msgpack" if wire.name == "text" else "text"
        status.attention.append(f"{wire.met_other}. `--wire {other}` shows what they say")
    status.attention += [str(mismatch) for mismatch in found.reader.mismatches]
    return status


def _add_groups(status: Status, found: WorldView) -> None:
    summary = summarize(found)
    status.groups, status.members, status.leaders = summary.groups, summary.members, summary.leaders
    status.attention += [
        f"group {group.group}: {count(group.stale, 'claim')} held by clients that are silent for "
        "over two intervals; anyone may take them"
        for group in summary.groups
        if group.stale
    ]


def _add_failing(status: Status, found: WorldView) -> None:
    if found.is_text:  # its records have no room for notes
        return
    for _, key, cell in found.world.cells():
        note = ClaimMetadata.decode(cell.metadata)
        if cell.holder is None or not note.has_failures:
            continue
        counts = (note.retrying, note.stuck, note.dead_lettered, note.skipped)
        status.failing.append(FailingPartition(*key, cell.holder, *counts, note.offset, note.error))
        if note.retrying or note.stuck:
            what = "fails again and again" if note.retrying else "does not come to an end"
            status.attention.append(
                f"group {key[0]}: a message of {key[1]}/{key[2]} at offset {note.offset} {what}"
                f"{f' ({note.error})' if note.error else ''}; see the log of {cell.holder}"
            )


def _add_pauses(status: Status, found: WorldView) -> None:
    now_ms = found.taken_ms
    for name in found.world.groups():
        expires_ms = paused_until_ms(found.world, name)
        if expires_ms is None:
            continue
        if found.is_text and expires_ms <= now_ms:
            continue  # a pause of version 1 ends by itself
        state = found.world.group(name)
        version = NO_OFFSET if state is None or state.pause is None else state.pause.version
        pause = Pause(name, version, iso_utc(expires_ms), expires_ms, expires_ms <= now_ms)
        status.pauses.append(pause)
        if pause.expired:
            status.attention.append(
                f"group {name}: its pause expired {age(now_ms - expires_ms)} ago and nobody ended "
                "it; `marshal group resume` does"
            )


def _add_snapshots(status: Status, found: WorldView, connection: Connection) -> None:
    try:
        ends = extent(admin_client(connection.kafka), connection.snapshot_topic, connection)
    except TopicMissing:
        status.attention.append(
            f"there is no topic {connection.snapshot_topic!r}: every start replays the whole log; "
            "`marshal topic create` makes it"
        )
        ends = {}
    except AccessDenied as problem:
        status.attention.append(f"how old the snapshots are is not known: {problem}")
        return
    newest = {
        record.coordinator: record
        for record in read_snapshots(connection, {p: end for p, (_, end) in ends.items()})
    }
    for p, (first, end) in sorted(found.reader.extent().items()):
        record = newest.get(p)
        if record is None:
            since = end - first
            status.snapshots.append(SnapshotAge(p, None, since, None, None, None))
        else:
            snapshot = record.snapshot
            since = end - (first if snapshot is None else snapshot.next_offset)
            status.snapshots.append(
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
                status.attention.append(
                    f"the newest snapshot of partition {p} is not usable: {record.problem}"
                )
        if since > MANY_RECORDS and ends:
            status.attention.append(
                f"partition {p}: {since:,} records since the newest snapshot; `marshal snapshot` "
                "writes one"
            )
