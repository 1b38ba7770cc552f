"""The world counted: groups, members and leaders, for `status`, `groups`, `members` and `top`."""

from __future__ import annotations

from dataclasses import dataclass, field

from marshal_py.admin.sharing import Sharings, has_open_ranges
from marshal_py.admin.world_reader import SilenceEstimate, WorldView
from marshal_py.protocol.messages import LEVEL, NO_OFFSET
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.text.rationalizer import TextCell, TextWorld
from marshal_py.protocol.world import LEADER_PREFIX, Liveness, World

__all__ = ["Group", "Leader", "Member", "WorldSummary", "paused_until_ms", "summarize"]


@dataclass
class Group:
    """One group. `held`, `stale` and `free` count its claims; `stale` ones are held, too.

    `paused_until_ms` is when the pause ends that stands, by the clock of whoever paused it. `level`
    is what the members work by (specs/PROTOCOL.md §5.15).
    """

    group: str
    members: int
    held: int
    stale: int
    free: int
    paused: bool
    topics: int = 0
    leaders: int = 0
    paused_until_ms: int | None = None
    level: int = LEVEL
    open_ranges: int = 0
    """Those of `held` and `free` that are ranges of messages (§5.18)."""


@dataclass
class Member:
    """One member. `wants` are the topics that it consumes, None where it did not say.

    It can follow the levels from `lowest_level` to `highest_level`.
    """

    group: str
    client_id: str
    instance_id: str
    interval_ms: int
    claims: int
    liveness: Liveness
    silence_ms: int
    silence_at_least: bool
    wants: list[str] | None = None
    lowest_level: int = LEVEL
    highest_level: int = LEVEL


@dataclass
class Leader:
    """Who leads what; `leader` is None where nobody does. `epoch` is −1 in a version 1 log."""

    group: str
    name: str
    leader: str | None
    epoch: int
    liveness: Liveness | None
    silence_ms: int | None


@dataclass
class WorldSummary:
    """All of them, sorted by name."""

    groups: list[Group] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)


def summarize(view: WorldView, *, group: str | None = None) -> WorldSummary:
    """Count what `view` shows, of one group or of all."""
    world, summary = view.world, WorldSummary()
    groups = {
        name: Group(name, 0, 0, 0, 0, world.paused(name))
        for name in world.groups()
        if group is None or name == group
    }
    for name, counted in groups.items():
        counted.level = world.states[world.home(name)].level(name)
        if counted.paused:
            counted.paused_until_ms = paused_until_ms(world, name)
    sharings = Sharings(world, group)
    held_by: dict[tuple[str, str], int] = {}
    topics: set[tuple[str, str]] = set()
    for coordinator, key, cell in world.cells(group):
        name, topic, _ = key
        counted = groups[name]
        silence = view.cell_silence(coordinator, key, cell)
        if topic.startswith(LEADER_PREFIX):
            counted.leaders += 1
            summary.leaders.append(_leader(name, topic, cell, silence))
        else:
            share = sharings.share(*key)
            if share is None:
                continue  # how a topic is shared, or was
            if (name, share.topic) not in topics:
                topics.add((name, share.topic))
                counted.topics += 1
            if share.range is not None:
                counted.open_ranges += 1
            elif has_open_ranges(world, *key):
                continue  # nobody can claim it: its ranges are what counts
        if silence is None or cell.holder is None:
            counted.free += 1
            continue
        counted.held += 1
        counted.stale += silence.liveness == "stale"
        held_by[name, cell.holder] = held_by.get((name, cell.holder), 0) + 1
    for name, client_id, member in world.members(group):
        groups[name].members += 1
        silence = view.silence(world.home(name), member.version, member.interval_ms)
        summary.members.append(
            Member(
                name,
                client_id,
                member.instance_id,
                member.interval_ms,
                held_by.get((name, client_id), 0),
                silence.liveness,
                silence.ms,
                silence.at_least,
                wanted_topics(member.metadata),
                member.lowest,
                member.highest,
            )
        )
    summary.groups = list(groups.values())
    summary.members.sort(key=lambda m: (m.group, m.client_id))
    summary.leaders.sort(key=lambda m: (m.group, m.name))
    return summary


def paused_until_ms(world: World, group: str) -> int | None:
    """Return until when a group is paused, ms since 1970; None where it is not.

    In version 1, a pause is in all coordination partitions: the one that ends last counts.
    """
    if isinstance(world, TextWorld):
        return max((s.paused[group] for s in world.states if group in s.paused), default=None)
    found = world.group(group)
    return None if found is None or found.pause is None else found.pause.expires_at_ms


def _leader(group: str, topic: str, cell: Cell, silence: SilenceEstimate | None) -> Leader:
    return Leader(
        group,
        topic.removeprefix(LEADER_PREFIX),
        cell.holder,
        NO_OFFSET if isinstance(cell, TextCell) else cell.epoch,
        None if silence is None else silence.liveness,
        None if silence is None else silence.ms,
    )


def wanted_topics(metadata: bytes) -> list[str] | None:
    """Return the topics in a member's metadata, a pattern as /pattern/; None if it names none."""
    wanted = Subscription.decode(metadata) if metadata else None
    if wanted is None:
        return None
    return [*sorted(wanted.topics), *([] if wanted.pattern is None else [f"/{wanted.pattern}/"])]
