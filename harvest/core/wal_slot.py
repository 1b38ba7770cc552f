"""Whether a replication slot still has what comes after a checkpoint. Pure.

A slot that was lost, invalidated or made anew, a server that is another one, or a replica that was
promoted before it had everything: each would skip rows in silence. They are refused, and the error
says how to go on (specs/HARVEST.md §19).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harvest.core.source import Source, visit_problem
from harvest.core.wal_position import WalPosition, format_lsn
from harvest.errors import CheckpointError, ConfigurationError, StoreUnavailable

__all__ = [
    "ServerState",
    "SlotHealth",
    "SlotState",
    "TimelineSwitch",
    "check_log_end",
    "gone_back",
    "starting_position",
]

_WAY_OUT = (
    "; `harvest slot renew` makes a new one and goes on from there: with --publish-table it "
    "publishes what the table has first (rows that were published and are still there come again), "
    "with --begin-now it leaves the gap"
)


class TimelineSwitch(NamedTuple):
    """The timeline that ended, and where: what its primary wrote behind that is not ours."""

    timeline: int
    lsn: int


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server, as it names itself, and where its log ends.

    `history`: how its timeline came about, the oldest switch first.
    """

    system: str
    timeline: int
    lsn: int
    history: Sequence[TimelineSwitch] = ()

    def end_of(self, timeline: int) -> int:
        """How far it has the log of a timeline; 0 of one that is none of its own."""
        if timeline == self.timeline:
            return self.lsn
        return next((s.lsn for s in self.history if s.timeline == timeline), 0)


@dataclass(frozen=True, slots=True)
class SlotState:
    """A replication slot, as ``pg_replication_slots`` shows it."""

    name: str
    plugin: str = "pgoutput"
    database: str = ""
    confirmed_lsn: int | None = 0
    restart_lsn: int | None = 0
    wal_status: str | None = "reserved"
    """``lost``: the server has thrown away what it needs."""
    why_lost: str | None = None
    safe_bytes: int | None = None
    """How much may be written before the slot is lost; None: without a bound."""
    active_pid: int | None = None
    failover: bool = False
    """Kept on replicas, too (PostgreSQL 17)."""
    synced: bool = False

    @property
    def lost(self) -> bool:
        """Whether it cannot be read any more."""
        return self.wal_status == "lost" or self.confirmed_lsn is None


@dataclass(frozen=True, slots=True)
class SlotHealth:
    """What a slot costs its server.

    - `pinned_bytes`: log that is kept for it. `behind_bytes`: that was not confirmed yet.
    - `safe_bytes`: how much may be written before it is lost; None: without a bound.
    """

    exists: bool
    lost: bool = False
    active: bool = False
    pinned_bytes: int = 0
    behind_bytes: int = 0
    safe_bytes: int | None = None


def starting_position(
    epoch: int,
    found: WalPosition | None,
    slot_name: str,
    slot: SlotState | None,
    server: ServerState,
    database: str,
) -> WalPosition:
    """Where to stream from: `found`, on the server's timeline; without one, where the slot is.

    Raises `CheckpointError` where rows would be skipped, `ConfigurationError` for a slot that is
    none of ours.
    """
    if slot is None:
        if found is None:
            raise ConfigurationError(
                f"the slot {slot_name} does not exist: run `harvest init --mode wal`"
            )
        raise CheckpointError(
            f"the slot {slot_name} does not exist, and rows were published from it up to "
            f"{format_lsn(found.lsn)}: it was dropped, or a replica was promoted that has no copy "
            f"of it. What was committed since is not in any slot{_WAY_OUT}"
        )
    if slot.plugin != "pgoutput" or (slot.database and slot.database != database):
        raise ConfigurationError(
            f"the slot {slot_name} is one of {slot.plugin} in the database {slot.database!r}, must "
            f"be one of pgoutput in {database!r}: give another name, `wal: {{slot: …}}`"
        )
    if slot.lost:
        why = f" ({slot.why_lost})" if slot.why_lost else ""
        raise CheckpointError(
            f"the slot {slot_name} is lost{why}: the server has thrown away log that was not read "
            f"yet, for max_slot_wal_keep_size or since it was invalidated{_WAY_OUT}"
        )
    confirmed = slot.confirmed_lsn or 0
    if found is None:
        return WalPosition(epoch, server.system, server.timeline, confirmed)
    found = _on_this_timeline(found, server)
    if confirmed > found.lsn:
        raise CheckpointError(
            f"the slot {slot_name} is at {format_lsn(confirmed)}, and rows were published up to "
            f"{format_lsn(found.lsn)} only: it was made anew, or read or moved by somebody else. "
            f"What lies between would be skipped{_WAY_OUT}"
        )
    return found


def _on_this_timeline(found: WalPosition, server: ServerState) -> WalPosition:
    if found.system != server.system:
        raise CheckpointError(
            f"the checkpoint is of the server with the system identifier {found.system}, and this "
            f"one is {server.system}: another database, or one that was restored from a dump"
            f"{_WAY_OUT}"
        )
    end = server.end_of(found.timeline)
    if (found.part_rows and found.part_lsn >= end) or found.row_lsn > end:
        raise CheckpointError(
            f"rows were published up to {format_lsn(max(found.row_lsn, found.part_lsn))} of "
            f"timeline {found.timeline}, and this server has that timeline up to "
            f"{format_lsn(end)} only: it was promoted, or restored, without the last "
            f"transactions, and rows that are published are not in it{_WAY_OUT}"
        )
    # Behind the last rows it has only passed what was none of ours, and may not be here.
    return replace(found, timeline=server.timeline, lsn=min(found.lsn, max(end, found.row_lsn)))


def gone_back(before: Source, now: Source, end_of: Callable[[int], int]) -> str | None:
    """Why the database is an old copy of what Kafka knows, and the way out; None if it is not.

    Its log may have grown since, past all that is published, and then looks as if that were in it:
    only visits tell. The rest the position says more exactly (`starting_position`): which server it
    is, and whether a replica that was promoted has all that is published. That may lack a visit.

    `end_of`: how far the database has the log of a timeline.
    """
    problem = visit_problem(before, now) if before.server == now.server else None
    if problem is None:
        return None
    if before.timeline != now.timeline and end_of(before.timeline) < before.log:
        return None
    said = "its slot went back with it, and what was committed since may be published or not"
    return f"{problem}; {said}{_WAY_OUT}"


def check_log_end(end: int, published: int) -> None:
    """A log that ends before what is published is another one: that of a replica which was promoted
    without the last commits. What was committed there since is published by nobody: for whoever
    takes away what is published. Raises `StoreUnavailable`.

    `published`: asked for before the end.
    """
    if end < published:
        raise StoreUnavailable(
            f"the database has gone back in time: its log ends at {format_lsn(end)}, and rows are "
            f"published up to {format_lsn(published)}"
        )
