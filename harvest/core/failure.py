"""Why a delivery failed: what a sink answers, and a scheduler judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a delivery failed.

    `undelivered` has the ids that were not acknowledged; the other rows were. None: of no row is it
    known that it was published. `errors` says what was wrong with single rows, where that is known.
    `refused` are those that will be refused again however often they are sent, until something is
    changed; none of them was published. `fenced`: somebody has opened the same sink since.
    """

    reason: str
    undelivered: frozenset[int] | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    refused: frozenset[int] = frozenset()
    fenced: bool = False
