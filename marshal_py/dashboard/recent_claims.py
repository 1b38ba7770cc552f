"""Who held each cell when: claims that ended and rejections, bounded in number. No I/O.

The rows come from `marshal_py.protocol.history.partition_history` (specs/AUDIT.md); this only
keeps the latest of them by cell. Claims that stand are asked of the history's own tracks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from marshal_py.protocol.history.tracks import CellTrack, Row
from marshal_py.protocol.rationalizer import CellKey

__all__ = ["ClaimSpan", "RecentClaims", "Rejection", "open_claim"]

MAX_CLAIMS: Final = 200_000
MAX_REJECTIONS: Final = 20_000


class ClaimSpan(NamedTuple):
    """One claim of one cell. Times are the broker's, in ms since 1970; None: not known, not yet.

    `how` says in what it ended: released, taken_over, resumed, claimed_again or position_set; None
    where it stands. `by` is who ended it. `last_ms`: its last accepted record.
    """

    client_id: str
    instance_id: str
    epoch: int
    interval_ms: int
    from_ms: int | None
    until_ms: int | None
    how: str | None
    by: str | None
    last_ms: int | None
    position: int | None
    heartbeats: int
    longest_gap_ms: int


class Rejection(NamedTuple):
    """A record about one cell that was not accepted."""

    at_ms: int
    client_id: str
    record: str
    reason: str
    holder: str | None
    offset: int


def open_claim(track: CellTrack) -> ClaimSpan | None:
    """Return the claim that stands, None if nobody holds the cell."""
    if track.client_id is None:
        return None
    position = max(track.next_offset, track.claimed_offset)
    return ClaimSpan(
        track.client_id,
        track.instance_id or "",
        track.epoch,
        track.interval_ms,
        _known(track.from_ms),
        None,
        None,
        None,
        _known(track.version_ms),
        _known(position),
        track.heartbeats,
        track.longest_gap_ms,
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


class RecentClaims:
    """The claims that ended and the rejections of late, by cell."""

    def __init__(self, max_claims: int = MAX_CLAIMS, max_rejections: int = MAX_REJECTIONS) -> None:
        self._max = (max_claims, max_rejections)
        self._claims: dict[CellKey, deque[ClaimSpan]] = {}
        self._rejections: dict[CellKey, deque[Rejection]] = {}
        self._claim_order: deque[CellKey] = deque()
        self._rejection_order: deque[CellKey] = deque()
        self.dropped = False
        """Whether claims were forgotten to stay within bounds."""

    def add(self, rows: dict[str, list[Row]]) -> None:
        """Keep what `PartitionHistory.take_rows` returned."""
        for row in rows.get("claims", ()):
            key: CellKey = (row[1], row[2], row[3])
            claim = ClaimSpan(
                client_id=row[4],
                instance_id=row[5],
                epoch=row[6],
                interval_ms=row[7],
                from_ms=row[8],
                until_ms=row[9],
                how=row[10],
                by=row[11],
                last_ms=row[16],
                position=row[14],
                heartbeats=row[15],
                longest_gap_ms=row[17],
            )
            self._claims.setdefault(key, deque()).append(claim)
            self._claim_order.append(key)
        for row in rows.get("rejections", ()):
            if row[8] is None:
                continue
            key = (row[3], row[8], row[9])
            rejection = Rejection(row[2], row[4], row[6], row[7], row[10], row[1])
            self._rejections.setdefault(key, deque()).append(rejection)
            self._rejection_order.append(key)
        self._bound()

    def _bound(self) -> None:
        while len(self._claim_order) > self._max[0]:
            _drop_oldest(self._claims, self._claim_order)
            self.dropped = True
        while len(self._rejection_order) > self._max[1]:
            _drop_oldest(self._rejections, self._rejection_order)

    def claims(self, key: CellKey) -> Iterable[ClaimSpan]:
        """Return the claims of a cell that ended, oldest first."""
        return self._claims.get(key, ())

    def rejections(self, key: CellKey) -> Iterable[Rejection]:
        """Return what was rejected of a cell, oldest first."""
        return self._rejections.get(key, ())


def _drop_oldest(kept: dict[CellKey, Any], order: deque[CellKey]) -> None:
    key = order.popleft()
    of_cell = kept[key]
    of_cell.popleft()
    if not of_cell:
        del kept[key]
