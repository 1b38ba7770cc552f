"""The two versions of the records, as a reader of the log sees them.

`Wire` holds what of reading a coordination log depends on the version: the world that is built, the
fold, whether there are snapshots, and what records of the other version look like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import messages, rationalizer
from marshal_py.protocol.events import Event
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.text import codec
from marshal_py.protocol.world import World, coordinating_partition

__all__ = ["MSGPACK", "Wire", "WireName", "text_wire"]

WireName: TypeAlias = Literal["msgpack", "text"]


@dataclass(frozen=True)
class Wire:
    """One version of the records.

    - `world`: makes an empty world; by the given clock, in seconds, version 1 judges pauses.
    - `state`: makes the empty state of a coordination partition.
    - `apply`: the fold.
    - `coordinator`: which of so many coordination partitions decides about (group_id, topic,
      partition).
    - `home`: which of so many coordination partitions has all about a group; None: all may have.
    - `has_snapshots`: whether clients write snapshots of the state.
    - `is_other`: says whether a value that is no record of this version is one of the other.
    - `met_other`: what to tell a client on whose topic there are such records.
    """

    name: WireName
    world: Callable[[Callable[[], float]], World]
    state: Callable[[int], PartitionState]
    apply: Callable[[PartitionState, int, bytes | None, list[Event] | None], bool]
    coordinator: Callable[[str, str, int, int], int]
    home: Callable[[str, int], int] | None
    has_snapshots: bool
    is_other: Callable[[bytes], bool]
    met_other: str


def _is_text(value: bytes) -> bool:
    try:
        codec.decode_any(value)
    except MalformedRecord:
        return False
    return True


def _is_msgpack(value: bytes) -> bool:
    try:
        messages.decode(value)
    except MalformedRecord:
        return False
    return True


_BOTH_MAY_HOLD: Final = (
    "They are ignored here, and ours are there: clients of the two kinds do not see each other and "
    "may hold the same partition. "
)

MSGPACK: Final = Wire(
    name="msgpack",
    world=lambda _: World(0),
    state=PartitionState,
    apply=rationalizer.apply,
    coordinator=lambda group_id, _topic, _partition, partitions: coordinating_partition(
        group_id, partitions
    ),
    home=coordinating_partition,
    has_snapshots=True,
    is_other=_is_text,
    met_other=(
        "there are text records of version 1 on this topic, as Go Marshal and wire='text' write "
        f"them. {_BOTH_MAY_HOLD}Give each kind a topic of its own; `marshal group migrate` moves a "
        "group from one to the other"
    ),
)
"""Version 2, the default."""


def text_wire(interval_s: int) -> Wire:
    """Return version 1, with the heartbeat interval that all its clients agree on."""
    from marshal_py.protocol.text import rationalizer as text

    return Wire(
        name="text",
        world=partial(text.TextWorld, 0, interval_s),
        state=partial(text.TextState, interval_s=interval_s),
        apply=text.apply,
        coordinator=lambda _group_id, topic, _partition, partitions: codec.coordinating_partition(
            topic, partitions
        ),
        home=None,
        has_snapshots=False,
        is_other=_is_msgpack,
        met_other=(
            "there are records of version 2 (msgpack) on this topic, which belongs to version 1 "
            f"(wire='text'). {_BOTH_MAY_HOLD}Go clients that start may even miss part of the log "
            "because of them. Give version 2 a topic of its own; `marshal group migrate` moves a "
            "group from one to the other"
        ),
    )
