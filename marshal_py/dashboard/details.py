"""Answers to questions of the page about one cell, one row's past, and the time bar. No I/O."""

from __future__ import annotations

from typing import Any, Final

from marshal_py.admin.books import book_of
from marshal_py.client.log_reader import boottime_ns
from marshal_py.dashboard.groups import metadata_text
from marshal_py.dashboard.live_state import LiveState
from marshal_py.dashboard.log_follower import LogFollower
from marshal_py.dashboard.recent_claims import ClaimSpan, open_claim
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.rationalizer import CellKey

__all__ = ["cell_document", "lanes_document", "time_bar_document"]

SHOWN_CLAIMS: Final = 200
SHOWN_RANGES: Final = 500
MAX_BARS: Final = 60_000
"""Bars in one answer: of rows with more, each cell's latest."""

TIME_BAR_BINS: Final = 240


def cell_document(follower: LogFollower, *, key: CellKey) -> dict[str, Any]:
    """Return what is known of one cell, with its latest claims and rejections."""
    live = follower.live
    cell = None if live is None else live.world.cell(*key)
    document: dict[str, Any] = {"group": key[0], "topic": key[1], "partition": key[2]}
    if live is None or cell is None:
        return document | {"claims": [], "rejections": []}
    home = live.world.coordinator(*key)
    silence_ms = live.silence_ms(home, key, cell, boottime_ns()) if cell.held else None
    return document | {
        "holder": cell.holder,
        "instance": cell.instance_id,
        "epoch": NO_OFFSET if live.is_text else cell.epoch,
        "version": live.world.version(*key),
        "interval_ms": cell.interval_ms,
        "next_offset": cell.next_offset,
        "claimed_offset": cell.claimed_offset,
        "end": live.lags.ends.get(key[1], {}).get(key[2]),
        "lag": live.lags.of(*key),
        "book": _book_document(live, key),
        "silence_ms": silence_ms,
        "coordinator": home,
        "says": metadata_text(cell.metadata),
        "claims": [claim._asdict() for claim in _claims(live, key)][-SHOWN_CLAIMS:],
        "rejections": [r._asdict() for r in live.claims.rejections(key)][-SHOWN_CLAIMS:],
    }


def _book_document(live: LiveState, key: CellKey) -> dict[str, Any] | None:
    """Return the open ranges of a partition, lowest first; None: it has none.

    A range is ``[start, end, position, holder, granted]``.
    """
    book = book_of(live.world, *key)
    if book is None:
        return None
    return {
        "position": book.position,
        "frontier": book.frontier,
        "open": len(book.ranges),
        "ranges": [
            [r.about.start, r.about.end, r.cell.position, r.cell.holder, r.about.granted]
            for r in book.ranges[:SHOWN_RANGES]
        ],
    }


def _claims(live: LiveState, key: CellKey) -> list[ClaimSpan]:
    """Return the claims of a cell, oldest first; the last may stand. Epochs of −1: none."""
    found = _found_claims(live, key)
    return [claim._replace(epoch=NO_OFFSET) for claim in found] if live.is_text else found


def _found_claims(live: LiveState, key: CellKey) -> list[ClaimSpan]:
    found = list(live.claims.claims(key))
    track = live.histories[live.world.coordinator(*key)].track(key)
    standing = None if track is None else open_claim(track)
    if standing is not None:
        found.append(standing)
        return found
    cell = live.world.cell(*key)
    if cell is not None and cell.held and cell.holder is not None:
        # Held since before all that was read, and silent since.
        found.append(
            ClaimSpan(
                cell.holder,
                cell.instance_id or "",
                cell.epoch,
                cell.interval_ms,
                None,
                None,
                None,
                None,
                None,
                cell.position if cell.position >= 0 else None,
                0,
                0,
            )
        )
    return found


def lanes_document(
    follower: LogFollower, *, row: tuple[str, str], window_ms: tuple[int, int]
) -> dict[str, Any]:
    """Return the claims of every partition of a row that touch a window of time.

    A bar is ``[client, from, until, how, last record, interval, epoch]``; clients are indices into
    `clients`, times are relative to the window's start, null where not known or not yet. A mark is
    ``[at, client, reason]``: a rejection.
    """
    live = follower.live
    found = None if live is None else live.grid.rows.get(row)
    names: dict[str, int] = {}
    lanes: list[dict[str, Any]] = []
    start, end = window_ms
    bars_left, is_cut = MAX_BARS, False
    if live is not None and found is not None:
        for partition in sorted(found.partitions):
            key = (*row, partition)
            bars = [
                [
                    names.setdefault(claim.client_id, len(names)),
                    _since(claim.from_ms, start),
                    _since(claim.until_ms, start),
                    claim.how,
                    _since(claim.last_ms, start),
                    claim.interval_ms,
                    claim.epoch,
                ]
                for claim in _claims(live, key)
                if (claim.until_ms is None or claim.until_ms >= start)
                and (claim.from_ms is None or claim.from_ms <= end)
            ]
            marks = [
                [r.at_ms - start, names.setdefault(r.client_id, len(names)), r.reason]
                for r in live.claims.rejections(key)
                if start <= r.at_ms <= end
            ]
            allowed = max(1, bars_left)
            is_cut |= len(bars) > allowed
            bars = bars[-allowed:]
            bars_left -= len(bars)
            lanes.append({"partition": partition, "bars": bars, "marks": marks})
    return {
        "group": row[0],
        "topic": row[1],
        "start": start,
        "clients": list(names),
        "lanes": lanes,
        "cut": is_cut,
        "known_from": follower.known_from_ms(),
    }


def _since(at_ms: int | None, start: int) -> int | None:
    return None if at_ms is None else at_ms - start


_TIME_BAR_ROWS: Final = {"TakenOver": 0, "Rejected": 1, "Ignored": 1, "Claimed": 2, "Resumed": 2}


def time_bar_document(follower: LogFollower, *, window_ms: tuple[int, int]) -> dict[str, Any]:
    """Return how much happened when, for the time bar: takeovers, rejections, claims, others."""
    start, end = window_ms
    bins = [[0] * TIME_BAR_BINS for _ in range(4)]
    width = max(1, (end - start) / TIME_BAR_BINS)
    for line in () if follower.live is None else follower.live.activity:
        at = line.at_ms
        if start <= at < end:
            bins[_TIME_BAR_ROWS.get(line.kind, 3)][
                min(TIME_BAR_BINS - 1, int((at - start) / width))
            ] += 1
    return {"start": start, "end": end, "bins": bins}
