"""An event of the log as one line for people, and as one JSON object."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from marshal_py.admin.formatting import clock_time, count, iso_utc, safe
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.ranges import range_of
from marshal_py.protocol.slots import source_of

__all__ = [
    "KINDS",
    "ROUTINE",
    "ROUTINE_KINDS",
    "as_json",
    "as_line",
    "as_text",
    "cell_text",
    "kinds_of",
    "touches",
    "without_epoch",
]

ROUTINE: Final = (ev.Beat, ev.Renewed)
"""Events that a healthy group produces without end; shown only when asked for."""

_COLOURS: Final = {
    "claimed": "green",
    "released": "cyan",
    "joined": "green",
    "left": "cyan",
    "rejected": "red",
    "ignored": "red",
    "paused": "yellow",
    "resumed": "yellow",
    "position": "yellow",
    "forgotten": "yellow",
    "founded": "yellow",
    "level": "yellow",
}

_REASONS: Final = {
    "group_paused": "the group is paused",
    "stale_version": "the cell had changed meanwhile",
    "not_held": "nobody holds it",
    "wrong_epoch": "it is held under another epoch",
    "offset_not_ahead": "these messages were claimed before",
    "not_paused": "the group is not paused",
    "still_held": "cells of the group are held",
    "cannot_follow": "a client, or its sender, cannot follow the level of the group",
    "stale_level": "the group has another level by now",
    "wrong_identity": "the log has another identity",
    "base_too_low": "epochs would not go on rising",
    "has_ranges": "ranges of it are open",
    "outside_range": "it lies outside of the range",
    "too_many_ranges": "too many ranges are open",
    "cell_exists": "another claim has the name that the range would have",
    "in_doubt": "refused here, but its sender may read it otherwise",
}

_WHY_IGNORED: Final = {
    "undecodable": "no record of this protocol",
    "unknown_type": "a record of an unknown type",
    "unknown_version": "a record of another protocol version",
    "offset_repeated": "an offset that came before",
}


_KIND_OF: Final[dict[type, str]] = {
    ev.Claimed: "claimed",
    ev.Released: "released",
    ev.Renewed: "renewed",
    ev.MessagesClaimed: "messages",
    ev.PositionSet: "position",
    ev.MemberJoined: "joined",
    ev.MemberLeft: "left",
    ev.Beat: "beat",
    ev.GroupPaused: "paused",
    ev.GroupResumed: "resumed",
    ev.GroupForgotten: "forgotten",
    ev.Founded: "founded",
    ev.LevelSet: "level",
    ev.RangeGranted: "range",
    ev.RangeSplit: "split",
    ev.Rejected: "rejected",
    ev.Ignored: "ignored",
}

KINDS: Final = (*_KIND_OF.values(), "takeover")
"""What events are called; a takeover is a claim of what somebody else held."""

ROUTINE_KINDS: Final = frozenset(_KIND_OF[kind] for kind in ROUTINE)


def kinds_of(event: ev.Event) -> set[str]:
    """Return what an event is called."""
    kinds = {_KIND_OF[type(event)]}
    if isinstance(event, ev.Claimed) and event.previous_holder not in (None, event.client_id):
        kinds.add("takeover")
    return kinds


def touches(
    event: ev.Event,
    group: str | None,
    topic: str | None,
    *,
    partition: int | None = None,
    client: str | None = None,
) -> bool:
    """Say whether the event is of this group, topic, partition and client (None: any).

    What is about a slot or a range of a partition is of that partition.
    """
    if group is not None and getattr(event, "group_id", None) != group:
        return False
    if topic is not None or partition is not None:
        t, p = getattr(event, "topic", None), getattr(event, "partition", None)
        places = [(t, p)] if t is None or p is None else [(t, p), source_of(t, p)]
        if not any(topic in (None, t) and partition in (None, p) for t, p in places):
            return False
    if client is None or getattr(event, "client_id", None) == client:
        return True
    return client in (getattr(event, "previous_holder", None), getattr(event, "holder", None))


def without_epoch(event: ev.Event) -> ev.Event:
    """Return an event of a version 1 log, whose records carry no epoch, with −1 for it."""
    if isinstance(event, ev.Claimed):
        return msgspec.structs.replace(event, epoch=NO_OFFSET, previous_epoch=NO_OFFSET)
    if isinstance(event, ev.Released | ev.Renewed | ev.Rejected):
        return msgspec.structs.replace(event, epoch=NO_OFFSET)
    return event


def as_json(event: ev.Event, coordinator: int, stamp_ms: int | None) -> dict[str, Any]:
    """Return the event with its place in the log and the broker's time, ready for JSON."""
    document: dict[str, Any] = {
        "time": None if stamp_ms is None else iso_utc(stamp_ms),
        "timestamp_ms": stamp_ms,
        "coordinator": coordinator,
    }
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return document | fields


def as_line(event: ev.Event, coordinator: int, stamp_ms: int | None, *, date: bool) -> str:
    """Return the event as one line in rich's markup."""
    time = "?" if stamp_ms is None else clock_time(stamp_ms, date=date)
    verb, text = _say(event)
    group = getattr(event, "group_id", "")
    colour = _COLOURS.get(verb, "default")
    where = f"{coordinator}@{event.offset}"
    return f"[dim]{time}  {where:>9}[/]  {safe(group):<12} [{colour}]{verb:<9}[/] {safe(text)}"


def as_text(event: ev.Event) -> str:
    """Return what happened, without place and time."""
    return " ".join(_say(event))


def _say(event: ev.Event) -> tuple[str, str]:
    match event:
        case ev.Claimed():
            return (
                "claimed",
                f"{_cell(event)} by {event.client_id}{_epoch(event.epoch)}{_was(event)}",
            )
        case ev.Released():
            at = "" if event.next_offset < 0 else f" at offset {event.next_offset}"
            ended = ", and ended" if event.ended else ""
            return "released", f"{_cell(event)} by {event.client_id}{at}{ended}"
        case ev.Renewed():
            at = "" if event.next_offset < 0 else f" at offset {event.next_offset}"
            return "renewed", f"{_cell(event)} by {event.client_id}{at}"
        case ev.MessagesClaimed():
            start = max(0, event.from_offset)
            return "messages", f"{_cell(event)} {start}–{event.to_offset - 1} by {event.client_id}"
        case ev.PositionSet():
            return "position", f"{_cell(event)} set to {event.next_offset} by {event.client_id}"
        case ev.MemberJoined():
            interval = f"interval {event.interval_ms} ms"
            return "joined", f"{event.client_id}, instance {event.instance_id}, {interval}"
        case ev.MemberLeft():
            how = "said goodbye" if event.why == "left" else "not heard of for a long time"
            return "left", f"{event.client_id}, {how}"
        case ev.Beat():
            return "beat", f"{event.client_id}, renews {count(event.cells, 'claim')}"
        case ev.GroupPaused():
            return "paused", f"by {event.client_id} until {iso_utc(event.expires_at_ms)}"
        case ev.GroupResumed():
            return "resumed", f"by {event.client_id}"
        case ev.GroupForgotten():
            return "forgotten", f"{event.cells} cells, by {event.client_id}"
        case ev.Founded():
            instead = f" instead of {event.previous}" if event.previous else ""
            return (
                "founded",
                f"log {event.identity}{instead} by {event.client_id}, epochs from {event.base}, "
                f"{count(event.partitions, 'partition')}",
            )
        case ev.LevelSet():
            return "level", f"{event.level}, was {event.previous}, by {event.client_id}"
        case ev.RangeGranted():
            again = f", time {event.granted} in a row" if event.granted > 1 else ""
            what = f"{_cell(event)} {event.start}–{event.end - 1}"
            return "range", f"{what} to {event.client_id}{again}"
        case ev.RangeSplit():
            kept, rest = f"{event.start}–{event.at - 1}", f"{event.at}–{event.end - 1}"
            return "split", f"{_cell(event)} {kept}, by {event.client_id}, who gives back {rest}"
        case ev.Rejected():
            cell = ""
            if event.topic is not None and event.partition is not None:
                cell = f" of {cell_text(event.topic, event.partition)}"
            held = ""
            if event.holder is not None:
                held = f"; {event.holder} holds it{_epoch(event.epoch)}"
            why = _REASONS.get(event.reason, event.reason)
            return "rejected", f"{event.record}{cell} by {event.client_id}: {why}{held}"
        case ev.Ignored():
            return "ignored", _WHY_IGNORED.get(event.why, event.why)


def _cell(
    event: ev.Claimed
    | ev.Released
    | ev.Renewed
    | ev.MessagesClaimed
    | ev.PositionSet
    | ev.RangeGranted
    | ev.RangeSplit,
) -> str:
    return cell_text(event.topic, event.partition)


def cell_text(topic: str, partition: int) -> str:
    """Return a cell's name: topic/partition; of a range, its topic says all (§5.18)."""
    return f"{topic}/{partition}" if range_of(topic, partition) is None else topic


def _epoch(epoch: int) -> str:
    return "" if epoch < 0 else f", epoch {epoch}"


def _was(event: ev.Claimed) -> str:
    if event.previous_holder is None:
        return ""
    if event.previous_holder == event.client_id:
        return ", resumed from its earlier instance"
    was = "" if event.previous_epoch < 0 else f" (epoch {event.previous_epoch})"
    return f", taken over from {event.previous_holder}{was}"
