"""Replaying a coordination partition and saying what is wrong with it. No I/O.

Three judges look at every record: the invariants of the protocol
(`marshal_py.protocol.history.invariants`), the checks of the audit
(`marshal_py.protocol.history.partition_history`) for what no correct client writes, and the
snapshots, each of which must be the state that the log leads to, or be told in what it differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import events as ev
from marshal_py.protocol.history.anomalies import MEANING
from marshal_py.protocol.history.invariants import Invariants
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.history.rows import record_text
from marshal_py.protocol.rationalizer import GroupState, PartitionState
from marshal_py.protocol.snapshots import Snapshot, anchor_of

__all__ = ["WARNINGS", "Finding", "Verifier", "differences"]

WARNINGS: Final = frozenset(
    {
        "late_heartbeat",
        "clock_drift",
        "flapping",
        "zombie",
        "foreign_record",
        "broker_clock",
        "second_genesis",
        "level",
        "appended_twice",
    }
)
"""Kinds that tell of trouble which the protocol withstands; all others break a rule."""

SHOWN_DIFFERENCES: Final = 3
BATCH: Final = 1_000


@dataclass
class Finding:
    """One thing that is wrong, and where. `at_ms` is the broker's time of the record."""

    level: Literal["error", "warning"]
    kind: str
    coordinator: int
    offset: int
    at_ms: int
    what: str
    meaning: str
    group: str | None = None
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    record: str | None = None


class Verifier:
    """Judges one coordination partition of `partitions`, from `state` on.

    `snapshots` are those of the partition that can be read, with the offset of their record and its
    time. Feed the records in offset order, then `finish`; `findings` grows as it goes.
    """

    def __init__(
        self,
        partition: int,
        partitions: int,
        state: PartitionState,
        snapshots: Iterable[tuple[Snapshot, int, int]] = (),
    ) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self.snapshots = 0
        """How many snapshots were compared."""
        self._partition = partition
        self._partitions = partitions
        self._state = state
        self._history = PartitionHistory(partition, partitions, state=state, sample_ms=2**60)
        self._invariants = Invariants(state)
        self._begin = state.next_offset
        ahead = [s for s in snapshots if s[0].next_offset >= self._begin]
        self._snapshots = sorted(ahead, key=lambda s: s[0].next_offset, reverse=True)
        self._batch: list[tuple[int, bytes | None, int]] = []
        self._value: bytes | None = None

    def feed(
        self, offset: int, value: bytes | None, stamp_ms: int, *, create_time: bool = False
    ) -> None:
        """Take the next record."""
        if create_time:
            self._history.saw_create_time(offset, stamp_ms)
        self._batch.append((offset, value, stamp_ms))
        if len(self._batch) >= BATCH:
            self._audit()

    def _judge(self, value: bytes | None, stamp_ms: int, events: list[ev.Event]) -> None:
        """Look at a record that was applied just now."""
        for event in events:
            for what in self._invariants.check(event, value):
                self._wrong(event, what, stamp_ms, value)
        self._value = value
        self.records += 1
        if self._snapshots:
            self._compare_reached()

    def _compare_reached(self) -> None:
        """Compare the snapshots that were taken up to here."""
        while self._snapshots and self._snapshots[-1][0].next_offset <= self._state.next_offset:
            self._compare(*self._snapshots.pop())

    def finish(self) -> list[Finding]:
        """Judge what can only be judged at the end; return all findings in the log's order."""
        self._audit()
        self._compare_reached()
        for snapshot, offset, at_ms in self._snapshots:
            self._snapshot_is_wrong(snapshot, offset, at_ms, "it lies beyond the end of the log")
        end = self._state.next_offset
        for (group, topic, partition), what in self._invariants.finish(self._state):
            finding = self._finding("invariant", end, self._history.latest_ms, what)
            finding.group, finding.topic, finding.partition = group, topic, partition
        self.findings.sort(key=lambda f: f.offset)
        return self.findings

    def _audit(self) -> None:
        if self._batch:
            offsets, values, stamps = zip(*self._batch, strict=True)
            if self._snapshots:
                self._compare_reached()
            self._history.feed(offsets, values, stamps, judge=self._judge)
            self._batch.clear()
        for row in self._history.take_rows().get("anomalies", ()):
            _, offset, at_ms, kind, what, group, client, _, topic, partition, record = row
            finding = self._finding(kind, offset, at_ms, what)
            finding.group, finding.client_id, finding.record = group, client, record
            finding.topic, finding.partition = topic, partition

    def _compare(self, snapshot: Snapshot, offset: int, at_ms: int) -> None:
        """The state stands just where the snapshot was taken."""
        self.snapshots += 1
        if snapshot.partitions != self._partitions:
            what = f"it is of a topic of {snapshot.partitions} partitions, not {self._partitions}"
        elif snapshot.next_offset != self._state.next_offset:
            what = "it was taken at an offset that no record precedes"
        elif snapshot.next_offset > self._begin and snapshot.anchor != anchor_of(self._value):
            what = "it belongs to another log: the record before it is not this one's"
        elif snapshot.digest != self._state.digest():
            what = "; ".join(self._differences(snapshot))
        else:
            return
        self._snapshot_is_wrong(snapshot, offset, at_ms, what)

    def _differences(self, snapshot: Snapshot) -> list[str]:
        try:
            found = differences(snapshot.restore(), self._state)
        except MalformedRecord as error:
            return [str(error)]
        more = len(found) - SHOWN_DIFFERENCES
        return found[:SHOWN_DIFFERENCES] + ([f"and {more} more differences"] if more > 0 else [])

    def _snapshot_is_wrong(self, snapshot: Snapshot, offset: int, at_ms: int, what: str) -> None:
        finding = self._finding(
            "snapshot_differs",
            snapshot.next_offset,
            at_ms,
            f"the snapshot of {snapshot.writer} at offset {snapshot.next_offset} (record {offset} "
            f"of the snapshot topic): {what}",
        )
        finding.client_id = snapshot.writer

    def _wrong(self, event: ev.Event, what: str, at_ms: int, value: bytes | None) -> None:
        finding = self._finding("invariant", event.offset, at_ms, what)
        finding.group = getattr(event, "group_id", None)
        finding.client_id = getattr(event, "client_id", None)
        finding.topic = getattr(event, "topic", None)
        finding.partition = getattr(event, "partition", None)
        finding.record = record_text(value)

    def _finding(self, kind: str, offset: int, at_ms: int, what: str) -> Finding:
        level: Literal["error", "warning"] = "warning" if kind in WARNINGS else "error"
        meaning = MEANING.get(kind, "a rule of the protocol is broken (specs/PROTOCOL.md §4)")
        finding = Finding(level, kind, self._partition, offset, at_ms, what, meaning)
        self.findings.append(finding)
        return finding


def differences(claimed: PartitionState, replayed: PartitionState) -> list[str]:
    """Say in what the state of a snapshot differs from the one that the log gives."""
    found = []
    for key in sorted(claimed.cells.keys() | replayed.cells.keys()):
        mine, other = replayed.cells.get(key), claimed.cells.get(key)
        name = f"{key[1]}/{key[2]} of {key[0]}"
        if mine is None or other is None:
            found.append(f"{name} is {'not ' if mine is None else 'only '}in the log's state")
        elif mine != other:
            found += [
                f"{name}: {field} is {getattr(other, field)!r} in it and {getattr(mine, field)!r} "
                "by the log"
                for field in mine.__struct_fields__
                if getattr(mine, field) != getattr(other, field)
            ]
    for name in sorted(claimed.groups.keys() | replayed.groups.keys()):
        group, other_group = (
            state.groups.get(name) or GroupState() for state in (replayed, claimed)
        )
        for who in sorted(group.sessions.keys() | other_group.sessions.keys()):
            if group.sessions.get(who) != other_group.sessions.get(who):
                found.append(f"the session of {who[0]} (instance {who[1]}) in {name} differs")
        if group.pause != other_group.pause:
            found.append(f"the pause of {name} differs")
        if group.level != other_group.level:
            found.append(
                f"{name} is at level {other_group.level} in it and {group.level} by the log"
            )
    for field in ("identity", "base", "partitions"):
        mine, other = getattr(replayed, field), getattr(claimed, field)
        if mine != other:
            found.append(f"the log's {field} is {other!r} in it and {mine!r} by the log")
    return found or ["its digest is not that of its own state"]
