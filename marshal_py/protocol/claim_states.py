"""The states of a claim, and what leads from one to another (specs/PROTOCOL.md §5.14).

A table, and one function that looks it up. The table of the specification is the same: a test lays
them beside each other.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["TRANSITIONS", "ClaimEvent", "ClaimState", "next_state"]


class ClaimState(Enum):
    WAITING = "waiting"
    """Wanted; nothing is on its way."""
    CLAIMING = "claiming"
    """A ClaimingPartition is on its way."""
    HELD = "held"
    """Ours, and the holder may act until the lease ends."""
    LAPSED = "lapsed"
    """Ours by the log, but nobody may act."""
    RELEASING = "releasing"
    """Given up; the release has not been read yet."""
    ENDED = "ended"


class ClaimEvent(Enum):
    CLAIM_SENT = "claim sent"
    CLAIM_ACCEPTED = "claim accepted"
    CLAIM_REJECTED = "claim rejected"
    CLAIM_FAILED = "claim failed"
    CANCELLED = "cancelled"
    LEASE_RENEWED = "lease renewed"
    LEASE_OVER = "lease over"
    PAUSED = "paused"
    KEPT = "kept"
    RELEASE_DECIDED = "release decided"
    RELEASE_READ = "release read"
    LOST = "lost"
    LOST_UNTOLD = "lost untold"
    TRUNCATED = "truncated"


_S, _E = ClaimState, ClaimEvent

TRANSITIONS: Final[dict[tuple[ClaimState, ClaimEvent], ClaimState]] = {
    (_S.WAITING, _E.CLAIM_SENT): _S.CLAIMING,
    (_S.WAITING, _E.CLAIM_ACCEPTED): _S.LAPSED,
    (_S.WAITING, _E.CLAIM_REJECTED): _S.WAITING,
    (_S.WAITING, _E.CANCELLED): _S.ENDED,
    (_S.WAITING, _E.TRUNCATED): _S.WAITING,
    (_S.WAITING, _E.RELEASE_DECIDED): _S.RELEASING,
    (_S.CLAIMING, _E.CLAIM_ACCEPTED): _S.LAPSED,
    (_S.CLAIMING, _E.CLAIM_REJECTED): _S.WAITING,
    (_S.CLAIMING, _E.CLAIM_FAILED): _S.WAITING,
    (_S.CLAIMING, _E.CANCELLED): _S.ENDED,
    (_S.CLAIMING, _E.TRUNCATED): _S.WAITING,
    (_S.HELD, _E.LEASE_OVER): _S.LAPSED,
    (_S.HELD, _E.PAUSED): _S.LAPSED,
    (_S.HELD, _E.KEPT): _S.LAPSED,
    (_S.HELD, _E.RELEASE_DECIDED): _S.RELEASING,
    (_S.HELD, _E.LOST): _S.ENDED,
    (_S.HELD, _E.TRUNCATED): _S.ENDED,
    (_S.LAPSED, _E.LEASE_RENEWED): _S.HELD,
    (_S.LAPSED, _E.PAUSED): _S.LAPSED,
    (_S.LAPSED, _E.KEPT): _S.LAPSED,
    (_S.LAPSED, _E.RELEASE_DECIDED): _S.RELEASING,
    (_S.LAPSED, _E.LOST): _S.ENDED,
    (_S.LAPSED, _E.LOST_UNTOLD): _S.WAITING,
    (_S.LAPSED, _E.TRUNCATED): _S.ENDED,
    (_S.RELEASING, _E.RELEASE_READ): _S.ENDED,
    (_S.RELEASING, _E.TRUNCATED): _S.ENDED,
}


def next_state(state: ClaimState, event: ClaimEvent) -> ClaimState:
    """Return the state that `event` leads to. Raises `RuntimeError` for what cannot happen."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise RuntimeError(
            f"{event.value!r} cannot happen to a claim that is {state.value}"
        ) from None
