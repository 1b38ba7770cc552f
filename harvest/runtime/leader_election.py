"""Leader election for a harvester, by `marshal_py` (specs/PROTOCOL.md §8)."""

from __future__ import annotations

import contextlib
from typing import Self

from harvest.runtime.lease import Lease
from marshal_py import ClaimTimeout, Leadership, Marshal

__all__ = ["MarshalCandidate"]

_RESIGN_TIMEOUT_S = 5.0


class MarshalCandidate:
    """A candidate for the leadership of `name` on a running `Marshal`. Implements `Candidate`."""

    def __init__(self, marshal: Marshal, name: str) -> None:
        self._marshal = marshal
        self._name = name
        self._leadership: Leadership | None = None

    def campaign(self, timeout_s: float) -> Lease | None:
        """See `Candidate.campaign`."""
        leadership = self._marshal.leader(self._name)
        try:
            self._leadership = leadership.campaign(timeout_s)
        except ClaimTimeout:
            return None
        return self._leadership

    def resign(self) -> None:
        """See `Candidate.resign`."""
        leadership, self._leadership = self._leadership, None
        if leadership is not None:
            # Beyond the timeout the release goes on being tried, and the lease ends in any case.
            with contextlib.suppress(ClaimTimeout):
                leadership.resign(timeout_s=_RESIGN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resign()
