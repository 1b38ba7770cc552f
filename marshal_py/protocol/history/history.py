"""What happened, as rows: claims, takeovers, rejections and anomalies out of the log. No I/O.

`History` folds one coordination partition with the rationalizer and keeps, beside its state, what
the tables of the audit need: when a claim began, when its last heartbeat came, who wrote what. Its
memory is bounded by the cells and the clients of late, not by the length of the log.

Times are those that the broker stamped, in milliseconds since 1970. They never enter the fold: they
only say when a record came. Columns and kinds of anomalies: specs/AUDIT.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from marshal_py.protocol import events as ev
from marshal_py.protocol.history import anomalies as an
from marshal_py.protocol.history.ledger import (
    LEADER_PREFIX,
    NONE,
    Row,
    SnapshotSeen,
    Track,
    known,
    slow_ms,
)
from marshal_py.protocol.history.suspicions import SEEN_BITS, SEEN_WINDOW, Suspicions
from marshal_py.protocol.messages import decode
from marshal_py.protocol.rationalizer import CellKey, PartitionState, apply
from marshal_py.protocol.world import home_partition

__all__ = ["LEADER_PREFIX", "History", "SnapshotSeen"]


class History(Suspicions):
    """The fold of one coordination partition, and the rows that follow from it.

    `partitions` is the number of coordination partitions; `sample_ms` how often the position of a
    cell becomes a row. `feed` records in offset order, then take what has become certain with
    `take_rows`; `open_rows` says what is so at this moment and may change (claims that are held).
    `encode` and `decode` carry a history over to another process.
    """

    handlers: ClassVar[Mapping[type, Callable[[Any, Any], None]]]
    """What to do with each kind of event."""

    def __init__(
        self,
        partition: int,
        partitions: int,
        *,
        state: PartitionState | None = None,
        sample_ms: int = 60_000,
        snapshots: Iterable[SnapshotSeen] = (),
    ) -> None:
        super().__init__(partition, partitions, state=state, sample_ms=sample_ms)
        self.watch(snapshots)

    def feed(
        self,
        offsets: Sequence[int],
        values: Sequence[bytes | None],
        stamps_ms: Sequence[int],
    ) -> None:
        """Apply records, given as parallel sequences in offset order. No value makes it raise.

        Records of version 2: `handlers` are not asked about heartbeats as they should be.
        """
        state, handlers = self.state, self.handlers
        tracks, senders = self.tracks, self.senders
        events: list[Any] = []
        for offset, value, now in zip(offsets, values, stamps_ms, strict=True):
            apply(state, offset, value, events)
            # As `note` does; a call for each record would cost a twentieth of the audit's speed.
            if now >= self.latest_ms:
                self.latest_ms = now
            else:
                self._stepped_back(offset, now)
            self._now, self._value = now, value
            for event in events:
                # Almost all records are heartbeats of which there is nothing to say but when they
                # came. What these branches do not take is for the handlers, which say the same.
                kind = type(event)
                if kind is ev.Renewed:
                    track = tracks.get((event.group_id, event.topic, event.partition))
                    if (
                        track is not None
                        and track.epoch == event.epoch
                        and track.instance_id == event.instance_id
                        and track.client_id == event.client_id
                        and track.heartbeats
                        and now < track.sample_due_ms
                        and event.next_offset > track.next_offset
                        and (gap := now - track.renewed_ms) <= track.slow_ms
                    ):
                        if gap > track.longest_gap_ms:
                            track.longest_gap_ms = gap
                        track.slow_gaps = track.slow_sum_ms = 0
                        track.version_ms = track.renewed_ms = track.last_beat_ms = now
                        track.heartbeats += 1
                        track.next_offset = event.next_offset
                        continue
                elif kind is ev.Beat:
                    sender = senders.get((event.group_id, event.client_id, event.instance_id))
                    if (
                        sender is not None
                        and sender.newer is None
                        and 0 < (ahead := event.seq - sender.seq) < SEEN_BITS
                    ):
                        sender.seen = ((sender.seen << ahead) | 1) & SEEN_WINDOW
                        sender.seq = event.seq
                        sender.offset = offset
                        continue
                handlers[kind](self, event)
            events.clear()
            if state.next_offset >= self._due:
                self._compare_snapshots()
        self.records += len(offsets)
        if len(self.senders) > an.MANY_SENDERS:
            self._forget_senders()

    def note(
        self, offset: int, value: bytes | None, at_ms: int, events: Sequence[ev.Event]
    ) -> None:
        """Take in a record that was applied to `state` just now, and the events that it gave.

        For whoever folds by himself; `feed` does both.
        """
        if at_ms >= self.latest_ms:
            self.latest_ms = at_ms
        else:
            self._stepped_back(offset, at_ms)
        self._now, self._value = at_ms, value
        for event in events:
            self.handlers[type(event)](self, event)
        self.records += 1
        if len(self.senders) > an.MANY_SENDERS and self.records % an.MANY_SENDERS == 0:
            self._forget_senders()

    def _stepped_back(self, offset: int, now: int) -> None:
        if now < self.latest_ms - an.CLOCK_SKEW_MS:
            self._time_went_back(offset, self.latest_ms, now)

    def saw_create_time(self, offset: int, at_ms: int) -> None:
        """Note that records carry their senders' time, not the broker's (once)."""
        if not self.create_time:
            self.create_time = True
            self.anomaly(
                "create_time",
                offset,
                at_ms,
                "records carry their senders' time: set message.timestamp.type=LogAppendTime",
            )

    def _on_claimed(self, event: ev.Claimed) -> None:
        self._sender(event)
        key = (event.group_id, event.topic, event.partition)
        track = self.tracks.get(key)
        if track is None:
            track = self.tracks[key] = Track(changes_ms=[])
            self._check_place(event)
        takeover: Row | None = None
        vacancy_ms = NONE if track.vacant_ms == NONE else self._now - track.vacant_ms
        if event.previous_holder is not None:
            if track.epoch != event.previous_epoch:  # it began before this history did
                track.client_id, track.instance_id = (
                    event.previous_holder,
                    event.previous_instance_id,
                )
                track.epoch = event.previous_epoch
                track.version_ms = NONE
            takeover = self._taken_over(key, track, event)
            vacancy_ms = 0
        self._changed(track, event)
        cell = self.state.cells[key]
        fresh = Track(
            client_id=event.client_id,
            instance_id=event.instance_id,
            epoch=event.epoch,
            interval_ms=event.interval_ms,
            slow_ms=slow_ms(event.interval_ms),
            from_ms=self._now,
            first_offset=cell.position,
            next_offset=cell.next_offset,
            claimed_offset=cell.claimed_offset,
            version_ms=self._now,
            renewed_ms=self._now,
            sample_due_ms=self._next_sample(self._now),
            takeover=takeover,
            vacancy_ms=vacancy_ms,
            last_client_id=track.last_client_id,
            changes_ms=track.changes_ms,
            flapping_until_ms=track.flapping_until_ms,
        )
        self.tracks[key] = fresh

    def _taken_over(self, key: CellKey, track: Track, event: ev.Claimed) -> Row:
        """End the claim that was held until now; return the row of the takeover, but its end."""
        if event.previous_holder != event.client_id:
            how = "taken_over"
        elif event.previous_instance_id != event.instance_id:
            how = "resumed"
        else:
            how = "claimed_again"
        silence_ms = None if track.version_ms == NONE else self._now - track.version_ms
        previous = (track.client_id, track.instance_id, track.epoch, track.interval_ms)
        if how == "taken_over":
            self._check_wait(track, event, silence_ms)
        self._end(key, track, self._now, how, event)
        return (
            *key,
            event.epoch,
            self._now,
            how,
            event.client_id,
            event.instance_id,
            *previous,
            silence_ms,
        )

    def _on_renewed(self, event: ev.Renewed) -> None:
        now = self._now
        key = (event.group_id, event.topic, event.partition)
        track = self.tracks.get(key)
        if track is None or track.epoch != event.epoch:
            track = self._adopt(key, now)
        elif event.instance_id != track.instance_id or event.client_id != track.client_id:
            self._foreign(track, event)
        if now >= track.sample_due_ms:
            self._position_row(key, track, track.version_ms)
            track.sample_due_ms = self._next_sample(now)
        gap = now - track.renewed_ms
        if track.heartbeats == 0:
            self._first_beat(track)
        elif gap > track.slow_ms:
            self._slow(track, event, gap)
        elif track.slow_gaps:
            track.slow_gaps = track.slow_sum_ms = 0
        if gap > track.longest_gap_ms:
            track.longest_gap_ms = gap
        track.version_ms = track.renewed_ms = track.last_beat_ms = now
        track.heartbeats += 1
        next_offset = event.next_offset
        if next_offset > track.next_offset:
            track.next_offset = next_offset
        elif next_offset != NONE:
            self._check_back(track, event)

    def _first_beat(self, track: Track) -> None:
        if track.takeover is not None:
            self._row("takeovers", (*track.takeover, self._now - track.from_ms))
            track.takeover = None

    def _on_released(self, event: ev.Released) -> None:
        self._sender(event)
        key = (event.group_id, event.topic, event.partition)
        track = self.tracks.get(key)
        if track is None or track.epoch != event.epoch:
            # The cell is vacant by now: what it was is only in the event.
            track = self.tracks[key] = Track(changes_ms=[])
            track.client_id, track.instance_id = event.client_id, event.instance_id
            track.epoch = event.epoch
        elif event.instance_id != track.instance_id or event.client_id != track.client_id:
            self._foreign(track, event)
        track.next_offset = max(track.next_offset, event.next_offset)
        track.version_ms = self._now
        self._end(key, track, self._now, "released", event)

    def _on_messages(self, event: ev.MessagesClaimed) -> None:
        self._sender(event)
        key = (event.group_id, event.topic, event.partition)
        track = self.tracks.get(key)
        if track is None or track.epoch != event.epoch:
            track = self._adopt(key, self._now)
        elif event.instance_id != track.instance_id or event.client_id != track.client_id:
            self._foreign(track, event)
        track.version_ms = self._now
        track.batches += 1
        track.claimed_offset = event.to_offset
        self._row(
            "batches",
            (
                *key,
                event.client_id,
                event.instance_id,
                event.epoch,
                known(event.from_offset),
                event.to_offset,
                event.offset,
                self._now,
            ),
        )

    def _on_position_set(self, event: ev.PositionSet) -> None:
        self._sender(event)
        key = (event.group_id, event.topic, event.partition)
        track = self.tracks.get(key)
        if track is None:
            track = self.tracks[key] = Track(changes_ms=[])
            self._check_place(event)
        if track.client_id is not None:
            silence_ms = None if track.version_ms == NONE else self._now - track.version_ms
            self._check_wait(track, event, silence_ms)
            self._end(key, track, self._now, "position_set", event)
        track.next_offset = track.claimed_offset = event.next_offset
        track.version_ms = self._now
        self._position_row(key, track, self._now)
        self._operation(
            event,
            "set_position",
            f"{event.topic}/{event.partition} to {event.next_offset}",
        )

    def _operation(self, event: Any, what: str, detail: str) -> None:
        self._row(
            "operations",
            (
                event.group_id,
                what,
                detail,
                event.client_id,
                event.instance_id,
                event.offset,
                self._now,
            ),
        )

    def _on_paused(self, event: ev.GroupPaused) -> None:
        self._sender(event)
        self._operation(event, "pause", f"until {event.expires_at_ms} ms")

    def _on_resumed(self, event: ev.GroupResumed) -> None:
        self._sender(event)
        self._operation(event, "resume", "")

    def _on_forgotten(self, event: ev.GroupForgotten) -> None:
        self._sender(event)
        self._operation(event, "forget", f"{event.cells} cells")
        self.forgotten.add(event.group_id)
        for key in [key for key in self.tracks if key[0] == event.group_id]:
            del self.tracks[key]

    def _on_joined(self, event: ev.MemberJoined) -> None:
        home = home_partition(event.group_id, self.partitions)
        if home != self.partition:
            self._report(
                "wrong_partition",
                event,
                f"members of this group report in coordination partition {home} (§2.2)",
            )

    def _on_ignored(self, event: ev.Ignored) -> None:
        kind: an.Kind
        if event.why == "offset_repeated":
            kind, what = "offset_repeated", "this offset was read before"
        else:
            kind, what = "foreign_record", f"no record of this protocol: {event.why}"
        self.anomaly(kind, event.offset, self._now, what, None, self._value)

    def _on_rejected(self, event: ev.Rejected) -> None:
        self._sender(event)
        self._row(
            "rejections",
            (
                event.offset,
                self._now,
                event.group_id,
                event.client_id,
                event.instance_id,
                event.record,
                event.reason,
                event.topic,
                event.partition,
                event.holder,
                known(event.epoch),
                known(event.version),
            ),
        )
        if event.reason == "offset_not_ahead":
            self._check_messages(event, decode(self._value))
        elif event.reason in ("wrong_epoch", "not_held"):
            self._check_epoch(event, decode(self._value))
        elif event.reason == "stale_version":
            self._check_version(event, decode(self._value))

    def _nothing(self, event: ev.Event) -> None:
        """Events that no table has: they are seen in others, or only concern visibility."""


History.handlers = {
    ev.Beat: History._sender,
    ev.Renewed: History._on_renewed,
    ev.Claimed: History._on_claimed,
    ev.Released: History._on_released,
    ev.MessagesClaimed: History._on_messages,
    ev.PositionSet: History._on_position_set,
    ev.Rejected: History._on_rejected,
    ev.GroupPaused: History._on_paused,
    ev.GroupResumed: History._on_resumed,
    ev.GroupForgotten: History._on_forgotten,
    ev.MemberJoined: History._on_joined,
    ev.MemberLeft: History._nothing,
    ev.Ignored: History._on_ignored,
}
