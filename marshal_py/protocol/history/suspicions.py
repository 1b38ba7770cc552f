"""What looks wrong in one coordination partition: the checks behind `anomalies`. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from marshal_py.protocol import events as ev
from marshal_py.protocol.history import anomalies as an
from marshal_py.protocol.history.ledger import NONE, Ledger, Rejections, Sender, SnapshotSeen, Track
from marshal_py.protocol.messages import ClaimingPartition, Heartbeat, Message, decode
from marshal_py.protocol.rationalizer import MEMBER_HORIZON
from marshal_py.protocol.snapshots import anchor_of
from marshal_py.protocol.world import coordinating_partition

__all__ = ["SEEN_BITS", "SEEN_WINDOW", "Suspicions"]

# Bits of `Track.flags` and `Sender.flags`: what was reported once for this claim or instance.
_LATE, _DRIFT, _FOREIGN, _BACK = 1, 2, 4, 8
_SEQUENCE, _DUPLICATE = 1, 2

SEEN_BITS: Final = 63
"""So many of an instance's last sequence numbers are remembered in `Sender.seen`."""
SEEN_WINDOW: Final = 2**SEEN_BITS - 1


class Suspicions(Ledger):
    """The checks. None of them changes what the fold does."""

    _snapshots: list[SnapshotSeen]
    _due: int
    _late_offset: int = NONE

    def _check_wait(self, track: Track, event: Any, silence_ms: int | None) -> None:
        """A claimant waits for two intervals of silence, less what clocks may differ (§5.2)."""
        interval = track.interval_ms
        if silence_ms is not None and silence_ms < 2 * interval - interval // 10 - 1:
            self._report(
                "early_takeover",
                event,
                f"taken from {track.client_id} {silence_ms} ms after its last record; its interval "
                f"is {interval} ms, so nobody may before {2 * interval} ms of silence",
            )

    def _changed(self, track: Track, event: ev.Claimed) -> None:
        """Look for a cell that goes from client to client (flapping)."""
        if track.last_client_id is None or track.last_client_id == event.client_id:
            return
        changes = track.changes_ms
        changes.append(self._now)
        del changes[: -an.FLAPPING_CHANGES]
        window_ms = an.FLAPPING_INTERVALS * event.interval_ms
        if (
            len(changes) == an.FLAPPING_CHANGES
            and self._now - changes[0] <= window_ms
            and self._now > track.flapping_until_ms
        ):
            track.flapping_until_ms = self._now + window_ms
            self._report(
                "flapping",
                event,
                f"{len(changes)} changes of holder in {self._now - changes[0]} ms, at an interval "
                f"of {event.interval_ms} ms",
            )

    def _foreign(self, track: Track, event: Any) -> None:
        if not track.flags & _FOREIGN:
            track.flags |= _FOREIGN
            self._report(
                "foreign_sender",
                event,
                f"accepted under the epoch of {track.client_id} ({track.instance_id}), which did "
                "not send it",
            )

    def _late(self, track: Track, event: Any, gap: int) -> None:
        track.late += 1
        if not track.flags & _LATE:
            track.flags |= _LATE
            self._report(
                "late_heartbeat",
                event,
                f"{gap} ms after the one before, at an interval of {track.interval_ms} ms: the "
                "lease had lapsed",
            )

    def _slow(self, track: Track, event: Any, gap: int) -> None:
        """A gap was long. If there is none that is not, the holder's clock is slow (§5.4)."""
        if gap > 2 * track.interval_ms:
            self._late(track, event, gap)
            track.slow_gaps = track.slow_sum_ms = 0
            return
        track.slow_gaps += 1
        track.slow_sum_ms += gap
        if track.slow_gaps >= an.DRIFT_GAPS and not track.flags & _DRIFT:
            track.flags |= _DRIFT
            self._report(
                "clock_drift",
                event,
                f"{track.slow_gaps} heartbeats in a row came "
                f"{track.slow_sum_ms / track.slow_gaps:.0f} ms apart on average, each later than "
                f"the declared interval of {track.interval_ms} ms",
            )

    def _check_back(self, track: Track, event: ev.Renewed) -> None:
        """No progress: did the heartbeat say so, or did it say less than before?"""
        offset = event.offset
        if offset == self._late_offset:
            return  # what it says was true before
        if self._entries[0] != offset:
            record = decode(self._value)
            entries = record.entries if isinstance(record, Heartbeat) else []
            self._entries = (offset, entries, {})
        _, entries, said_of = self._entries
        if len(entries) == 1:
            said = entries[0].next_offset
        else:
            if not said_of:
                said_of |= {(e.topic, e.partition): e.next_offset for e in entries}
            said = said_of.get((event.topic, event.partition), NONE)
        if NONE < said < event.next_offset and not track.flags & _BACK:
            track.flags |= _BACK
            self._report(
                "position_went_back",
                event,
                f"the holder says {said} after it had said {event.next_offset}",
            )

    def _check_place(self, event: Any) -> None:
        place = coordinating_partition(event.topic, event.partition, self.partitions)
        if place != self.partition:
            self._report(
                "wrong_partition",
                event,
                f"coordination partition {place} decides about {event.topic}/{event.partition} "
                "(§2.2): two clients could both hold it",
            )

    def _check_version(self, event: ev.Rejected, record: Message) -> None:
        expected = getattr(record, "expected_version", NONE)
        known = event.version != NONE or event.group_id not in self.forgotten
        if expected > event.version and (known or expected >= event.offset):
            if event.version == NONE and isinstance(record, ClaimingPartition):
                place = coordinating_partition(record.topic, record.partition, self.partitions)
                if place != self.partition:
                    self._check_place(event)
                    return
            self._report(
                "impossible_version",
                event,
                f"expects version {expected}, which this cell has not had (it is at "
                f"{event.version}): the sender reads another log",
            )

    def _check_epoch(self, event: ev.Rejected, record: Message) -> None:
        epoch = _epoch_for(record, event)
        key = (event.group_id, event.topic or "", event.partition or 0)
        if epoch >= event.offset or (event.epoch != NONE and epoch > event.epoch):
            self._report(
                "impossible_epoch",
                event,
                f"names epoch {epoch}, which no claim of this cell has had: the sender reads "
                "another log",
            )
            return
        if event.record != "Heartbeat":
            return
        seen = self.lost.get((key, event.instance_id))
        if seen is None or seen.epoch != epoch:
            self.lost[key, event.instance_id] = Rejections(epoch, self._now, event.offset, 1)
            return
        seen.count += 1
        seen.offset = event.offset
        cell = self.state.cells.get(key)
        interval = cell.interval_ms if cell is not None and cell.interval_ms else 5_000
        if seen.count >= an.ZOMBIE_BEATS and NONE < seen.first_ms < self._now - 2 * interval:
            self._report(
                "zombie",
                event,
                f"still beats for epoch {epoch}, {self._now - seen.first_ms} ms and {seen.count} "
                "heartbeats after the log first said that it is lost",
            )
            seen.first_ms = NONE  # once for each lost claim

    def _check_messages(self, event: ev.Rejected, record: Message) -> None:
        """The same claim again is a retry whose first answer was lost; less was claimed before."""
        track = self.tracks.get((event.group_id, event.topic or "", event.partition or 0))
        proposed = getattr(record, "proposed_offset", NONE)
        late = event.offset == self._late_offset
        if track is not None and not late and proposed < track.claimed_offset:
            self._report(
                "claimed_not_ahead",
                event,
                f"claims the messages below {proposed}, and those below {track.claimed_offset} had "
                "been claimed before",
            )

    def _sender(self, event: Any) -> None:
        """Check the order and the identity of a record's sender."""
        key = (event.group_id, event.client_id, event.instance_id)
        sender = self.senders.get(key)
        if sender is None:
            before = self.current.get(key[:2])
            if before is not None and (*key[:2], before) in self.senders:
                self.senders[*key[:2], before].newer = event.instance_id
            self.senders[key] = Sender(event.seq, event.offset)
            self.current[key[:2]] = event.instance_id
            return
        if sender.offset == event.offset:
            return
        ahead = event.seq - sender.seq
        if ahead > 0:
            sender.seen = ((sender.seen << ahead) | 1) & SEEN_WINDOW if ahead < SEEN_BITS else 1
            sender.seq = event.seq
        else:
            self._out_of_order(sender, event, -ahead)
        sender.offset = event.offset
        if sender.newer is not None:
            self._older(sender, event)

    def _out_of_order(self, sender: Sender, event: Any, behind: int) -> None:
        """A producer that replaces a failed one may overtake it; nobody writes a number twice."""
        self._late_offset = event.offset
        if behind < SEEN_BITS and not sender.seen >> behind & 1:
            sender.seen |= 1 << behind
            return
        if not sender.flags & _SEQUENCE:
            sender.flags |= _SEQUENCE
            self._report(
                "sequence",
                event,
                f"seq {event.seq} comes again after seq {sender.seq} of the same instance: a copy "
                "of it runs, or its producer is not idempotent",
            )

    def _older(self, sender: Sender, event: Any) -> None:
        """A dead process's last records may come late. A living one goes on and on."""
        sender.after_newer += 1
        if sender.after_newer >= an.OLDER_RECORDS and not sender.flags & _DUPLICATE:
            sender.flags |= _DUPLICATE
            self._report(
                "duplicate_client_id",
                event,
                f"wrote {sender.after_newer} records after instance {sender.newer} of the same "
                "client_id had begun: two processes share it",
            )

    def _forget_senders(self) -> None:
        """Forget whoever has been silent for long, so that memory does not grow with time."""
        oldest = self.state.next_offset - 2 * MEMBER_HORIZON
        for key in [key for key, sender in self.senders.items() if sender.offset < oldest]:
            del self.senders[key]
            if self.current.get(key[:2]) == key[2]:
                del self.current[key[:2]]
        for lost in [lost for lost, seen in self.lost.items() if seen.offset < oldest]:
            del self.lost[lost]

    def _time_went_back(self, offset: int, latest: int, now: int) -> None:
        self.anomaly(
            "broker_clock",
            offset,
            self._now,
            f"stamped {latest - now} ms before an earlier record: the clocks of two brokers differ",
        )

    def watch(self, snapshots: Iterable[SnapshotSeen]) -> None:
        """Compare these snapshots with the state when it comes to where they were taken."""
        ahead = [s for s in snapshots if s.next_offset >= self.state.next_offset]
        self._snapshots = sorted(ahead, key=lambda s: s.next_offset, reverse=True)
        self._snapshot_due()

    def _snapshot_due(self) -> None:
        self._due = self._snapshots[-1].next_offset if self._snapshots else 2**63

    def _compare_snapshots(self) -> None:
        while self._snapshots and self._snapshots[-1].next_offset <= self.state.next_offset:
            snapshot = self._snapshots.pop()
            if snapshot.next_offset != self.state.next_offset:
                what = "was taken at an offset that no record precedes"
            elif snapshot.anchor != anchor_of(self._value):
                what = "belongs to another log: the record before it is not this one's"
            elif snapshot.digest != self.state.digest():
                what = "differs from the state that the log gives"
            else:
                continue
            self.anomaly(
                "snapshot_differs",
                snapshot.next_offset,
                snapshot.at_ms,
                f"the snapshot of {snapshot.writer} at offset {snapshot.next_offset} (record "
                f"{snapshot.snapshot_offset} of the snapshot topic) {what}",
            )
        self._snapshot_due()


def _epoch_for(record: Message, event: ev.Rejected) -> int:
    """Return the epoch under which the rejected record, or entry, was sent."""
    if isinstance(record, Heartbeat):
        for entry in record.entries:
            if (entry.topic, entry.partition) == (event.topic, event.partition):
                return entry.epoch
    return int(getattr(record, "epoch", NONE))
