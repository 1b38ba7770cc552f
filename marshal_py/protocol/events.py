"""What the fold reports: one event for each thing that a record did, or failed to do (§4.4).

Every event carries the `offset` of its record in the coordination partition. They are the activity
stream: the claimant, elections, consumers, the command line and the audit read nothing else.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

__all__ = [
    "Beat",
    "Claimed",
    "Event",
    "Founded",
    "GroupForgotten",
    "GroupPaused",
    "GroupResumed",
    "Ignored",
    "LevelSet",
    "MemberJoined",
    "MemberLeft",
    "MessagesClaimed",
    "PositionSet",
    "RangeGranted",
    "RangeSplit",
    "Reason",
    "Rejected",
    "Released",
    "Renewed",
    "Sent",
]

Reason: TypeAlias = Literal[
    "group_paused",
    "stale_version",
    "not_held",
    "wrong_epoch",
    "offset_not_ahead",
    "not_paused",
    "still_held",
    "cannot_follow",
    "stale_level",
    "wrong_identity",
    "base_too_low",
    "has_ranges",
    "outside_range",
    "too_many_ranges",
    "cell_exists",
    "in_doubt",  # in version 1 only: refused, but its sender may have read it otherwise
]


class _Event(Struct, frozen=True, gc=False, tag=True, tag_field="event"):
    offset: int


class Ignored(_Event, frozen=True, gc=False, tag=True, tag_field="event"):
    """A record that is none of this protocol, or comes again, was skipped."""

    why: Literal["undecodable", "unknown_type", "unknown_version", "offset_repeated"]


class _FromClient(_Event, frozen=True, gc=False, tag=True, tag_field="event"):
    client_id: str
    instance_id: str
    group_id: str


class MemberLeft(_FromClient, frozen=True, gc=False, tag=True, tag_field="event"):
    """A member said goodbye, or was dropped after a long silence."""

    why: Literal["left", "expired"]


class Sent(_FromClient, frozen=True, gc=False, tag=True, tag_field="event"):
    """What a record did, or failed to do, and who sent it."""

    seq: int


class MemberJoined(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """A client, or a new instance of one, was seen in its group for the first time."""

    interval_ms: int


class Beat(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """A heartbeat was read: it renews all that its session holds. What it says follows.

    `cells` is how many cells it renews; `entries` how many positions and metadata follow, each with
    an event of its own; `membership` is 0 (says nothing), 1 (a member) or 2 (leaving).
    """

    cells: int
    entries: int
    membership: int


class Founded(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """The log has a new identity; epochs from here on are `base` plus their claim's offset."""

    identity: str
    previous: str
    base: int
    partitions: int


class LevelSet(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """The group works by another level from here on."""

    level: int
    previous: int


class GroupPaused(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """The group takes no claims until it is resumed."""

    expires_at_ms: int


class GroupResumed(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """The group takes claims again."""


class GroupForgotten(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """The cells of the group are gone from this coordination partition."""

    cells: int


class _OfCell(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    topic: str
    partition: int


class Claimed(_OfCell, frozen=True, gc=False, tag=True, tag_field="event"):
    """A claim was accepted. Whoever held the cell before holds it no longer."""

    epoch: int
    interval_ms: int
    previous_holder: str | None
    previous_instance_id: str | None
    previous_epoch: int


class Renewed(_OfCell, frozen=True, gc=False, tag=True, tag_field="event"):
    """A heartbeat brought a position or metadata of a claim. In version 1, it renewed the claim."""

    epoch: int
    next_offset: int


class Released(_OfCell, frozen=True, gc=False, tag=True, tag_field="event"):
    """A holder gave its claim back; with `ended`, the cell is gone."""

    epoch: int
    next_offset: int
    ended: bool = False


class MessagesClaimed(_OfCell, frozen=True, gc=False, tag=True, tag_field="event"):
    """The holder claimed the messages from `from_offset` (−1: none before) to below `to_offset`."""

    epoch: int
    from_offset: int
    to_offset: int


class PositionSet(_OfCell, frozen=True, gc=False, tag=True, tag_field="event"):
    """An operator set the position of a cell; it is held by nobody now."""

    next_offset: int


class RangeGranted(_OfCell, frozen=True, gc=False, tag=True, tag_field="event"):
    """The claim that follows is of the messages from `start` to below `end` of topic/partition.

    `granted` says how often in a row it was granted without its position having moved.
    """

    start: int
    end: int
    granted: int


class RangeSplit(_OfCell, frozen=True, gc=False, tag=True, tag_field="event"):
    """The range of topic/partition that starts at `start` ends at `at` from here on.

    What lies from there to below `end` is a range that nobody holds.
    """

    start: int
    at: int
    end: int


class Rejected(Sent, frozen=True, gc=False, tag=True, tag_field="event"):
    """A record, or one entry of a heartbeat, was not accepted and changed nothing.

    `epoch`, `version` and `holder` are the cell's, as they were (−1, −1, None: no such cell).
    """

    record: str
    reason: Reason
    topic: str | None
    partition: int | None
    epoch: int
    version: int
    holder: str | None


Event: TypeAlias = (
    Ignored
    | Beat
    | MemberLeft
    | MemberJoined
    | GroupPaused
    | GroupResumed
    | GroupForgotten
    | Claimed
    | Renewed
    | Released
    | MessagesClaimed
    | PositionSet
    | Founded
    | LevelSet
    | RangeGranted
    | RangeSplit
    | Rejected
)
