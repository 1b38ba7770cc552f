"""The checks behind `anomalies`: what looks wrong in one coordination partition. No I/O.

None of them changes what the fold does. Which kinds there are, and the limits: `anomalies`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from marshal_py.protocol import events as ev
from marshal_py.protocol.history import anomalies as an
from marshal_py.protocol.history.rows import Rows
from marshal_py.protocol.history.tracks import (
    UNKNOWN,
    CellTrack,
    InstanceTrack,
    LostClaim,
    PartitionMemory,
)
from marshal_py.protocol.messages import Heartbeat, Message, decode
from marshal_py.protocol.rationalizer import MEMBER_HORIZON
from marshal_py.protocol.world import coordinating_partition

__all__ = ["MOST_PRINTS", "SEEN_BITS", "SEEN_WINDOW", "AnomalyChecks", "forget_prints"]

# Bits of `CellTrack.flags` and `InstanceTrack.flags`: what was reported once for this claim or
# instance.
_LATE, _DRIFT, _FOREIGN, _BACK = 1, 2, 4, 8
_SEQUENCE, _DUPLICATE, _LEVEL, _TWICE = 16, 32, 64, 128
COPYING: Final = 256
"""Bit of `InstanceTrack.flags`: the instance's last record was a copy of an earlier one."""

SEEN_BITS: Final = 63
"""So many of an instance's last sequence numbers are remembered in `InstanceTrack.seen`."""
SEEN_WINDOW: Final = 2**SEEN_BITS - 1
MOST_PRINTS: Final = 2 * SEEN_BITS
"""So many checksums of an instance's records are kept before the older half is forgotten."""


def forget_prints(sender: InstanceTrack) -> None:
    """Forget the checksums of records that are too old to come again."""
    oldest = sender.seq - SEEN_BITS
    sender.prints = {seq: found for seq, found in sender.prints.items() if seq > oldest}


class AnomalyChecks:
    """The checks of a version 2 log. `PartitionHistory` asks them as it goes from event to event.

    `memory.at_ms` and `memory.value` are the record of the event. What is found goes to `rows`.
    """

    def __init__(self, memory: PartitionMemory, rows: Rows, partitions: int) -> None:
        self.memory = memory
        self.rows = rows
        self.partitions = partitions
        self._out_of_order_at = UNKNOWN
        """The offset of the last record that came later than its sender's next one."""
        self._said: tuple[int, dict[int, int]] = (UNKNOWN, {})
        """The offset of a heartbeat, and epoch → position of what it says."""
        self._refused_at = UNKNOWN
        """The offset of the last heartbeat of which an entry was refused."""
        self._rejected: dict[str, Callable[[ev.Rejected, Message], None]] = {
            "offset_not_ahead": self._claimed_before,
            "wrong_epoch": self._unknown_epoch,
            "not_held": self._unknown_epoch,
            "stale_version": self._unknown_version,
            "wrong_identity": self._refused_genesis,
            "base_too_low": self._refused_genesis,
            "cannot_follow": self._wrong_level,
        }

    def report(self, kind: an.Kind, event: Any, what: str) -> None:
        """Add an anomaly that the record of `event` is, or makes visible."""
        memory = self.memory
        self.rows.anomaly(kind, event.offset, memory.at_ms, what, event, memory.value)

    # Records

    def ignored(self, event: ev.Ignored) -> None:
        """Report a record that the fold skipped."""
        kind: an.Kind
        if event.why == "offset_repeated":
            kind, what = "offset_repeated", "this offset was read before"
        else:
            kind, what = "foreign_record", f"no record of this protocol: {event.why}"
        memory = self.memory
        self.rows.anomaly(kind, event.offset, memory.at_ms, what, None, memory.value)

    def clock(self, offset: int, at_ms: int) -> None:
        """Check a timestamp that is before the latest one."""
        behind_ms = self.memory.latest_ms - at_ms
        if behind_ms > an.CLOCK_SKEW_MS:
            self.rows.anomaly(
                "broker_clock",
                offset,
                self.memory.at_ms,
                f"stamped {behind_ms} ms before an earlier record: the clocks of two brokers "
                "differ",
            )

    def create_time(self, offset: int, at_ms: int) -> None:
        """Report that records carry their senders' time."""
        self.rows.anomaly(
            "create_time",
            offset,
            at_ms,
            "records carry their senders' time: set message.timestamp.type=LogAppendTime",
        )

    def place(self, event: Any) -> None:
        """Check that this coordination partition is that of the event's group."""
        place = coordinating_partition(event.group_id, self.partitions)
        if place != self.rows.partition:
            self.report(
                "wrong_partition",
                event,
                f"all records of this group belong in coordination partition {place} (§2.2): two "
                "clients could hold the same",
            )

    def founded(self, event: ev.Founded) -> None:
        """Check that a genesis speaks of the log that it is in."""
        self.memory.founded_ms = self.memory.at_ms
        if event.partitions != self.partitions:
            self.report(
                "wrong_genesis",
                event,
                f"speaks of a log of {event.partitions} partitions; this one has "
                f"{self.partitions}: it was grown, or made anew",
            )

    def rejected(self, event: ev.Rejected) -> None:
        """Check whether a correct client could have sent what was rejected."""
        check = self._rejected.get(event.reason)
        if check is not None:
            check(event, decode(self.memory.value))

    # Claims

    def takeover(self, track: CellTrack, event: Any, silence_ms: int | None) -> None:
        """A claimant waits for two intervals of silence, less what clocks may differ (§5.2)."""
        interval = track.interval_ms
        if silence_ms is not None and silence_ms < 2 * interval - interval // 10 - 1:
            self.report(
                "early_takeover",
                event,
                f"taken from {track.client_id} {silence_ms} ms after its last record; its interval "
                f"is {interval} ms, so nobody may before {2 * interval} ms of silence",
            )

    def change_of_holder(self, track: CellTrack, event: ev.Claimed) -> None:
        """Look for a cell that goes from client to client (flapping)."""
        if track.last_client_id is None or track.last_client_id == event.client_id:
            return
        now, changes = self.memory.at_ms, track.changes_ms
        changes.append(now)
        del changes[: -an.FLAPPING_CHANGES]
        window_ms = an.FLAPPING_INTERVALS * event.interval_ms
        if (
            len(changes) == an.FLAPPING_CHANGES
            and now - changes[0] <= window_ms
            and now > track.flapping_until_ms
        ):
            track.flapping_until_ms = now + window_ms
            self.report(
                "flapping",
                event,
                f"{len(changes)} changes of holder in {now - changes[0]} ms, at an interval "
                f"of {event.interval_ms} ms",
            )

    def other_sender(self, track: CellTrack, event: Any) -> None:
        """Report a record under the epoch of `track` that its holder did not send."""
        if not track.flags & _FOREIGN:
            track.flags |= _FOREIGN
            self.report(
                "foreign_sender",
                event,
                f"accepted under the epoch of {track.client_id} ({track.instance_id}), which did "
                "not send it",
            )

    def slow_heartbeat(self, track: CellTrack | InstanceTrack, event: Any, gap: int) -> None:
        """A gap was long. If there is none that is not, the holder's clock is slow (§5.4)."""
        if gap > 2 * track.interval_ms:
            self.late_heartbeat(track, event, gap)
            track.slow_gaps = track.slow_sum_ms = 0
            return
        track.slow_gaps += 1
        track.slow_sum_ms += gap
        if track.slow_gaps >= an.DRIFT_GAPS and not track.flags & _DRIFT:
            track.flags |= _DRIFT
            self.report(
                "clock_drift",
                event,
                f"{track.slow_gaps} heartbeats in a row came "
                f"{track.slow_sum_ms / track.slow_gaps:.0f} ms apart on average, each later than "
                f"the declared interval of {track.interval_ms} ms",
            )

    def late_heartbeat(self, track: CellTrack | InstanceTrack, event: Any, gap: int) -> None:
        """Count a heartbeat that came when the lease had lapsed."""
        track.late += 1
        if not track.flags & _LATE:
            track.flags |= _LATE
            self.report(
                "late_heartbeat",
                event,
                f"{gap} ms after the one before, at an interval of {track.interval_ms} ms: the "
                "lease had lapsed",
            )

    def position_back(self, track: CellTrack, event: ev.Renewed) -> None:
        """No progress: did the heartbeat say so, or did it say less than before?"""
        offset = event.offset
        if offset == self._out_of_order_at:
            return  # what it says was true before
        if self._said[0] != offset:
            record = decode(self.memory.value)
            positions = record.positions if isinstance(record, Heartbeat) else []
            base = self.memory.state.base
            pairs = zip(positions[::2], positions[1::2], strict=False)
            self._said = (offset, {base + claimed_at: said for claimed_at, said in pairs})
        said = self._said[1].get(event.epoch, UNKNOWN)
        if UNKNOWN < said < event.next_offset and not track.flags & _BACK:
            track.flags |= _BACK
            self.report(
                "position_went_back",
                event,
                f"the holder says {said} after it had said {event.next_offset}",
            )

    # Rejected records

    def _claimed_before(self, event: ev.Rejected, record: Message) -> None:
        """The same claim again is a retry whose first answer was lost; less was claimed before."""
        track = self.memory.cells.get((event.group_id, event.topic or "", event.partition or 0))
        proposed = getattr(record, "proposed_offset", UNKNOWN)
        late = event.offset == self._out_of_order_at
        if track is not None and not late and proposed < track.claimed_offset:
            self.report(
                "claimed_not_ahead",
                event,
                f"claims the messages below {proposed}, and those below {track.claimed_offset} had "
                "been claimed before",
            )

    def _unknown_epoch(self, event: ev.Rejected, record: Message) -> None:
        if isinstance(record, Heartbeat):
            self._lost_claims(event, record)
            return
        epoch = getattr(record, "epoch", UNKNOWN)
        end = self.memory.state.base + event.offset
        if epoch >= end or (event.epoch != UNKNOWN and epoch > event.epoch):
            self._impossible_epoch(event, epoch)

    def _impossible_epoch(self, event: ev.Rejected, epoch: int) -> None:
        self.report(
            "impossible_epoch",
            event,
            f"names epoch {epoch}, which no claim of this cell has had: the sender reads another "
            "log",
        )

    def _lost_claims(self, event: ev.Rejected, record: Heartbeat) -> None:
        """A heartbeat tells of claims that its session does not hold: looked at once, as one."""
        memory, who = self.memory, (event.group_id, event.client_id, event.instance_id)
        if self._refused_at == event.offset:
            return
        self._refused_at = event.offset
        session = memory.state.session(*who)
        held = {} if session is None else session.claims
        named = [*record.positions[::2], *(entry.claimed_at for entry in record.metadata)]
        base = memory.state.base
        lost = [base + at for at in named if base + at not in held]
        if max(lost, default=UNKNOWN) >= base + event.offset:
            self._impossible_epoch(event, max(lost))
            return
        seen = memory.lost.get(who)
        if seen is None or seen.epoch not in lost:
            memory.lost[who] = LostClaim(min(lost), memory.at_ms, event.offset, 1)
            return
        seen.count += 1
        seen.offset = event.offset
        interval = record.interval_ms or 5_000
        if seen.count >= an.ZOMBIE_BEATS and UNKNOWN < seen.first_ms < memory.at_ms - 2 * interval:
            self.report(
                "zombie",
                event,
                f"still beats for epoch {seen.epoch}, {memory.at_ms - seen.first_ms} ms and "
                f"{seen.count} heartbeats after the log first said that it is lost",
            )
            seen.first_ms = UNKNOWN  # once for each lost claim

    def _unknown_version(self, event: ev.Rejected, record: Message) -> None:
        expected = getattr(record, "expected_version", UNKNOWN)
        # A cell or a pause that is gone may have had any version before.
        if expected > event.version and (event.version != UNKNOWN or expected >= event.offset):
            self.report(
                "impossible_version",
                event,
                f"expects version {expected}, which this has not had (it is at "
                f"{event.version}): the sender reads another log",
            )

    def _refused_genesis(self, event: ev.Rejected, record: Message) -> None:
        memory = self.memory
        if memory.at_ms <= memory.founded_ms + an.FOUNDING_MS:
            return  # its sender may have founded the log at the same time (§5.16)
        identity = getattr(record, "identity", "?")
        self.report(
            "second_genesis",
            event,
            f"would have made this log {identity}: its sender took it for a new one",
        )

    def _wrong_level(self, event: ev.Rejected, record: Message) -> None:
        sender = self.memory.instances.get((event.group_id, event.client_id, event.instance_id))
        if isinstance(record, Heartbeat) and sender is not None and not sender.flags & _LEVEL:
            sender.flags |= _LEVEL
            level = self.memory.state.level(event.group_id)
            self.report(
                "level",
                event,
                f"follows levels {record.lowest} to {record.highest}; the group works by {level}",
            )

    # Senders

    def sender(self, event: Any) -> None:
        """Check the order and the identity of a record's sender."""
        key = (event.group_id, event.client_id, event.instance_id)
        memory = self.memory
        sender = memory.instances.get(key)
        if sender is None:
            before = memory.newest.get(key[:2])
            if before is not None and (*key[:2], before) in memory.instances:
                memory.instances[*key[:2], before].newer = event.instance_id
            sender = memory.instances[key] = InstanceTrack(event.seq, event.offset)
            sender.prints[event.seq] = crc32(memory.value or b"")
            self.place(event)
            memory.newest[key[:2]] = event.instance_id
            return
        if sender.offset == event.offset:
            return
        ahead = event.seq - sender.seq
        if ahead > 0:
            is_near = ahead < SEEN_BITS
            sender.seen = ((sender.seen << ahead) | 1) & SEEN_WINDOW if is_near else 1
            sender.twice = (sender.twice << ahead) & SEEN_WINDOW if is_near else 0
            sender.seq = event.seq
            sender.flags &= ~COPYING
            sender.prints[event.seq] = crc32(memory.value or b"")
            if len(sender.prints) > MOST_PRINTS:
                forget_prints(sender)
        else:
            self._out_of_order(sender, event, -ahead)
        sender.offset = event.offset
        if sender.newer is not None:
            self._older_instance(sender, event)

    def _out_of_order(self, sender: InstanceTrack, event: Any, behind: int) -> None:
        """A producer that replaces a failed one may overtake it; nobody writes a number twice.

        But a producer that has given up a record may append what was around it again (§2.3).
        """
        self._out_of_order_at = event.offset
        copy = crc32(self.memory.value or b"")
        if behind < SEEN_BITS and not sender.seen >> behind & 1:
            sender.seen |= 1 << behind
            sender.prints[event.seq] = copy
            return
        if sender.prints.get(event.seq) == copy:
            if not sender.flags & COPYING:  # of copies in a row, the first counts
                sender.twice |= 1 << behind & SEEN_WINDOW
            sender.flags |= COPYING
            if sender.twice.bit_count() <= an.COPIES:
                self._appended_twice(sender, event)
                return
        if not sender.flags & _SEQUENCE:
            sender.flags |= _SEQUENCE
            self.report(
                "sequence",
                event,
                f"seq {event.seq} comes again after seq {sender.seq} of the same instance: a copy "
                "of it runs, or its producer is not idempotent",
            )

    def _appended_twice(self, sender: InstanceTrack, event: Any) -> None:
        if not sender.flags & _TWICE:
            sender.flags |= _TWICE
            self.report(
                "appended_twice",
                event,
                f"seq {event.seq} comes again after seq {sender.seq} of the same instance, the "
                "same bytes: its producer gave up a record, and sent again what was in flight",
            )

    def _older_instance(self, sender: InstanceTrack, event: Any) -> None:
        """A dead process's last records may come late. A living one goes on and on."""
        sender.after_newer += 1
        if sender.after_newer >= an.OLDER_RECORDS and not sender.flags & _DUPLICATE:
            sender.flags |= _DUPLICATE
            self.report(
                "duplicate_client_id",
                event,
                f"wrote {sender.after_newer} records after instance {sender.newer} of the same "
                "client_id had begun: two processes share it",
            )

    def forget_silent(self) -> None:
        """Forget whoever has been silent for long, so that memory does not grow with time."""
        memory = self.memory
        oldest = memory.state.next_offset - 2 * MEMBER_HORIZON
        silent = [key for key, sender in memory.instances.items() if sender.offset < oldest]
        for key in silent:
            if memory.state.session(*key) is not None:
                continue
            del memory.instances[key]
            if memory.newest.get(key[:2]) == key[2]:
                del memory.newest[key[:2]]
        for key in [key for key, seen in memory.lost.items() if seen.offset < oldest]:
            del memory.lost[key]
