"""Rules of the protocol that a client can be told to leave out, to see whether the checker notices.

Only for `--sabotage`: a checker that never fails shows nothing.
"""

from __future__ import annotations

from marshal_py.client.claim import ClaimCore
from marshal_py.consumer.at_most_once import AtMostOnce
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.protocol.claimant import ClaimState

__all__ = ["RULES", "apply"]


def _no_lease() -> None:
    """A holder believes that it may act until it reads otherwise."""
    believes = (ClaimState.HELD, ClaimState.LAPSED)
    ClaimCore.held = property(  # type: ignore[assignment]
        lambda self: self.holding.state in believes
    )
    ClaimCore.remaining_ms = property(  # type: ignore[assignment]
        lambda self: 1.0 if self.held else 0.0
    )


def _no_log() -> None:
    """Messages are delivered before the log says that they are claimed."""
    AtMostOnce._verdict = lambda self, run: True  # type: ignore[method-assign]


def _early_commit() -> None:
    """A consumer stores more than it has handled."""
    real = HeldPartition.position
    HeldPartition.position = lambda self: real(self) + 3  # type: ignore[method-assign]


RULES = {"no_lease": _no_lease, "no_log": _no_log, "early_commit": _early_commit}


def apply(rule: str) -> None:
    """Leave out one rule in this process; "" for none."""
    if rule:
        RULES[rule]()
