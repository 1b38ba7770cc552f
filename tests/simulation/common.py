"""Units, and small things that several parts of the simulator use."""

from __future__ import annotations

from typing import Any, Final

from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import ResumeGroup, encode
from marshal_py.protocol.rationalizer import Cell, PartitionState

US: Final = 1_000
"""Nanoseconds in a microsecond."""

MS: Final = 1_000_000
"""Nanoseconds in a millisecond."""

GARBAGE: Final[tuple[bytes | None, ...]] = (
    None,
    b"",
    b"\xc1",
    b"Heartbeat/1/a/b/c",
    b"\x93\x01\x02\xa1",
    encode(ResumeGroup(2, "x", "x", "elsewhere", 1, 0))[:-1],
    b"\x96\x0b\x02\xa1a\xa1b\xa1g\x00",
    b"\x96\x02\x03\xa1a\xa1b\xa1g\x00",
)


def cell_of(state: PartitionState, group_id: str, unit: tuple[str, int]) -> Cell | None:
    """As `state.cells.get`, without a view of all groups: it is asked in each step."""
    group = state.groups.get(group_id)
    return None if group is None else group.cells.get(unit)


def is_paused(state: PartitionState, group_id: str) -> bool:
    group = state.groups.get(group_id)
    return group is not None and group.pause is not None


def describe(events: list[ev.Event]) -> str:
    return "; ".join(_one(event) for event in events) or "nothing"


def _one(event: Any) -> str:
    kind = type(event).__name__
    who = getattr(event, "instance_id", "")
    where = f" {event.topic}/{event.partition}" if getattr(event, "topic", None) else ""
    more = ""
    for name in ("epoch", "previous_epoch", "next_offset", "to_offset", "seq", "reason", "record"):
        if hasattr(event, name):
            more += f" {name}={getattr(event, name)}"
    return f"{kind} by {who}{where}{more}"
