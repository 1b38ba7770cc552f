"""What a member does that shares by ranges: how much it asks for, and what it gives back. Pure.

It looks at the book of one partition and at its own ranges, and follows four rules:

- It asks for what it can begin within `ahead_s` at its own pace, and for no more than its part of
  what waits. It holds one range ahead of those that it works on: no round trip of the log is waited
  for.
- Where nothing waits, it holds a small range beyond the end: a message that arrives is somebody's
  already. That is also how it says that it is idle.
- If it has begun nothing for `SLOW_S`, as its handlers work on what they have, and others are
  idle, it gives back all that it has not begun.
- What is granted again and again without having got any further is taken one range at a time, in
  smaller and smaller pieces: what kills who handles it is found, and the messages beside it get
  through. The first time, all that a dead member had is taken at once, as most die of something
  else.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeAlias

__all__ = ["Action", "Ask", "GiveBack", "Own", "View", "ahead_s", "choose", "is_suspect", "piece"]

AHEAD_S: Final = 0.15
"""So much work, at the pace that was measured, is asked for at a time; with a short interval less
(`ahead_s`): what a dead member has waits for two of them, and should not take long then."""

IDLE_S: Final = 0.01
"""And so much beyond the end: whoever has it may be at work when the next message arrives."""

SLOW_S: Final = 0.015
"""Who has begun nothing for so long gives back what waits, if others are idle."""

OTHERS_S: Final = 0.05
"""What is free is left to those whose turn it is for so long."""

FIRST: Final = 10
"""Messages to ask for while no pace is known."""

FEW: Final = 4
"""With fewer deliveries than that, the second may be needed to find what kills."""

MOST: Final = 50_000
MOST_IDLE: Final = 1_000
"""Messages in one range, at most: of those that wait, and beyond the end."""


class Own(NamedTuple):
    """A range of this member: messages below `next` are begun, those up to `end` are not."""

    start: int
    end: int
    next: int
    begun: bool


class Ask(NamedTuple):
    """Ask for a range of so many messages."""

    messages: int


class GiveBack(NamedTuple):
    """Give back what was not begun of the range at `start`."""

    start: int


Action: TypeAlias = Ask | GiveBack


class View(NamedTuple):
    """What a member knows of one partition."""

    own: tuple[Own, ...]
    asked: bool
    """It has asked for a range, and does not know what came of it."""
    free: tuple[tuple[int, int], ...]
    """(position, end) of the ranges that nobody holds, in order."""
    free_s: float
    """For how long some have been."""
    frontier: int
    log_end: int
    """Messages below it exist."""
    members: int
    """So many hold ranges, this one included."""
    idle: int
    """So many others have begun all that exists of theirs."""
    idle_before: int
    """So many of them come before this one where something is free."""
    pace: float
    """Messages that it does in a second; 0: not known."""
    ahead_s: float
    """So much work it asks for at a time."""
    standing_s: float
    """For how long it has begun nothing, while it works on something."""


def ahead_s(interval_ms: int) -> float:
    """Return how much work a member asks for at a time."""
    return min(AHEAD_S, interval_ms / 10_000)


def choose(view: View) -> list[Action]:
    """Return what to do now."""
    if view.standing_s >= SLOW_S:
        return _give_back(view) if view.idle else []
    if view.asked:
        return []
    unbegun = [own for own in view.own if own.next < own.end]
    if any(own.next < view.log_end and not own.begun for own in unbegun):
        return []  # something waits ahead of what it works on
    first = min((own.next for own in unbegun), default=None)
    reach = view.log_end if first is None else max(view.log_end, first)
    free = [(start, end) for start, end in view.free if start < reach]
    waiting = max(0, view.log_end - view.frontier)
    waiting += sum(max(0, min(end, view.log_end) - start) for start, end in free)
    if free and view.frontier >= view.log_end and unbegun:
        is_next = view.idle_before < len(free) or view.free_s >= OTHERS_S
        return [Ask(_count(view, waiting))] if is_next else []
    if waiting:
        return [Ask(_count(view, waiting))]
    if any(own.end > view.log_end for own in unbegun):
        return []
    return [Ask(max(1, min(MOST_IDLE, int(view.pace * IDLE_S))))]


def _give_back(view: View) -> list[Action]:
    """The last first: the others are granted the lowest."""
    return [GiveBack(own.start) for own in reversed(view.own) if own.next < own.end]


def _count(view: View, waiting: int) -> int:
    at_its_pace = int(view.pace * view.ahead_s) if view.pace else FIRST
    its_part = math.ceil(waiting / (2 * view.members))
    return max(1, min(at_its_pace, its_part, MOST))


def is_suspect(granted: int, max_deliveries: int | None) -> bool:
    """Whether a range that was granted so often in a row may have a message that kills.

    Who takes it has no other such range meanwhile: if it dies, no other was claimed once more.
    """
    return granted > _wholes(max_deliveries)


def piece(granted: int, position: int, end: int, max_deliveries: int | None) -> int:
    """Return where to end a range that was granted so often in a row without getting any further.

    Until it `is_suspect` it is taken whole; then by halves; message by message from the
    `max_deliveries`-th time on.
    """
    count = end - position
    if count <= 1 or not is_suspect(granted, max_deliveries):
        return end
    if max_deliveries is not None and granted >= max_deliveries:
        return position + 1
    return position + max(1, count >> (granted - _wholes(max_deliveries)))


def _wholes(max_deliveries: int | None) -> int:
    """Return how often a range is taken whole."""
    return 1 if max_deliveries is not None and max_deliveries < FEW else 2
