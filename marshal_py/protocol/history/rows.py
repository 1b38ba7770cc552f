"""The rows of the audit's tables (specs/AUDIT.md), made of what the fold reports. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import events as ev
from marshal_py.protocol.history.anomalies import Kind
from marshal_py.protocol.history.tracks import UNKNOWN, CellTrack, Row
from marshal_py.protocol.messages import decode
from marshal_py.protocol.rationalizer import CellKey
from marshal_py.protocol.world import LEADER_PREFIX

__all__ = ["Rows", "or_none", "record_text"]

_SHOWN_BYTES: Final = 2_000


class Rows:
    """Rows of one coordination partition by table, until they are taken."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.tables: dict[str, list[Row]] = {}

    def take(self) -> dict[str, list[Row]]:
        """Return the rows since the last call, by table, and forget them."""
        tables, self.tables = self.tables, {}
        return tables

    def _add(self, table: str, row: Row) -> None:
        self.tables.setdefault(table, []).append((self.partition, *row))

    def claim(
        self,
        key: CellKey,
        track: CellTrack,
        *,
        until_ms: int | None = None,
        how: str | None = None,
        by: str | None = None,
        end_offset: int = UNKNOWN,
    ) -> None:
        """Add a claim to `claims`, and to `elections` if it is a leadership.

        Without `until_ms` it still stands. `by` is who ended it, with the record at `end_offset`.
        """
        group, topic, partition = key
        common = (
            track.client_id,
            track.instance_id,
            track.epoch,
            track.interval_ms,
            or_none(track.from_ms),
            until_ms,
            how,
            by,
            or_none(end_offset),
        )
        self._add(
            "claims",
            (
                group,
                topic,
                partition,
                *common,
                or_none(track.first_offset),
                or_none(max(track.next_offset, track.claimed_offset)),
                track.heartbeats,
                or_none(track.last_beat_ms),
                track.longest_gap_ms,
                track.late,
                track.batches,
            ),
        )
        if topic.startswith(LEADER_PREFIX) and partition == 0:
            name = topic[len(LEADER_PREFIX) :]
            self._add("elections", (group, name, *common, or_none(track.vacancy_ms)))

    def position(self, key: CellKey, track: CellTrack, at_ms: int) -> None:
        """Add to `positions` where the cell stands; nothing if that is not known."""
        if track.next_offset == UNKNOWN and track.claimed_offset == UNKNOWN:
            return
        self._add(
            "positions",
            (
                *key,
                track.client_id,
                or_none(track.epoch),
                at_ms,
                or_none(track.next_offset),
                or_none(track.claimed_offset),
            ),
        )

    def takeover(self, row: Row, first_beat_ms: int | None) -> None:
        """Add to `takeovers`; `first_beat_ms`: from the claim to its first heartbeat, if any."""
        self._add("takeovers", (*row, first_beat_ms))

    def batch(self, key: CellKey, event: ev.MessagesClaimed, at_ms: int) -> None:
        """Add messages that were claimed, at most once, to `batches`."""
        self._add(
            "batches",
            (
                *key,
                event.client_id,
                event.instance_id,
                event.epoch,
                or_none(event.from_offset),
                event.to_offset,
                event.offset,
                at_ms,
            ),
        )

    def range(
        self, event: ev.RangeGranted | ev.RangeSplit, end: int, epoch: int | None, at_ms: int
    ) -> None:
        """Add a range that was granted, or that ends earlier from here on, to `ranges`."""
        granted = event.granted if isinstance(event, ev.RangeGranted) else None
        self._add(
            "ranges",
            (
                *(event.group_id, event.topic, event.partition, event.start, end),
                "cut" if granted is None else "granted",
                granted,
                *(event.client_id, event.instance_id, epoch, event.offset, at_ms),
            ),
        )

    def operation(self, event: Any, what: str, detail: str, at_ms: int) -> None:
        """Add what an operator did to `operations`."""
        self._add(
            "operations",
            (
                event.group_id,
                what,
                detail,
                event.client_id,
                event.instance_id,
                event.offset,
                at_ms,
            ),
        )

    def rejection(self, event: ev.Rejected, at_ms: int, *, epoch: int | None) -> None:
        """Add a record that was not accepted to `rejections`; `epoch` is the cell's."""
        self._add(
            "rejections",
            (
                event.offset,
                at_ms,
                event.group_id,
                event.client_id,
                event.instance_id,
                event.record,
                event.reason,
                event.topic,
                event.partition,
                event.holder,
                epoch,
                or_none(event.version),
            ),
        )

    def anomaly(
        self,
        kind: Kind,
        offset: int,
        at_ms: int,
        what: str,
        event: Any = None,
        value: bytes | None = None,
    ) -> None:
        """Add to `anomalies`; `event` tells who and which cell, `value` is the record."""
        self._add(
            "anomalies",
            (
                offset,
                at_ms,
                kind,
                what,
                getattr(event, "group_id", None),
                getattr(event, "client_id", None),
                getattr(event, "instance_id", None),
                getattr(event, "topic", None),
                getattr(event, "partition", None),
                None if value is None else record_text(value),
            ),
        )


def or_none(number: int) -> int | None:
    """Return the number, or None where it is not known (−1)."""
    return None if number == UNKNOWN else number


def record_text(value: bytes | None) -> str:
    """Return a record as JSON, or the beginning of its bytes in hex where it is none."""
    try:
        record = decode(value)
    except MalformedRecord:
        return json.dumps({"bytes": (value or b"")[:64].hex(), "length": len(value or b"")})
    fields: dict[str, Any] = {"type": type(record).__name__}
    fields |= {name: getattr(record, name) for name in record.__struct_fields__}
    text = msgspec.json.encode(fields).decode()
    return text if len(text) <= _SHOWN_BYTES else text[:_SHOWN_BYTES] + "…"
