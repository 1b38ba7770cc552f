"""What happened in one coordination partition, as rows: claims, takeovers, anomalies. No I/O.

`PartitionHistory` folds the partition with the rationalizer and puts together what the tables of
the audit need: what is remembered beside the state (`tracks`), the checks (`anomaly_checks`,
`snapshot_checks`) and the rows (`rows`).

Times are those that the broker stamped, in milliseconds since 1970. They never enter the fold: they
only say when a record came. Columns and kinds of anomalies: specs/AUDIT.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias
from zlib import crc32

from marshal_py.protocol import events as ev
from marshal_py.protocol.history import anomalies as an
from marshal_py.protocol.history.anomaly_checks import (
    COPYING,
    MOST_PRINTS,
    SEEN_BITS,
    SEEN_WINDOW,
    AnomalyChecks,
    forget_prints,
)
from marshal_py.protocol.history.rows import Rows, or_none
from marshal_py.protocol.history.snapshot_checks import SnapshotChecks, SnapshotSeen
from marshal_py.protocol.history.tracks import (
    UNKNOWN,
    CellTrack,
    InstanceTrack,
    PartitionMemory,
    Row,
    slow_gap_ms,
)
from marshal_py.protocol.rationalizer import CellKey, PartitionState, apply
from marshal_py.protocol.snapshots import anchor_of

__all__ = ["PartitionHistory"]

Judge: TypeAlias = Callable[[bytes | None, int, list[Any]], None]


class PartitionHistory:
    """The fold of one coordination partition, and the rows that follow from it.

    `partitions` is the number of coordination partitions; `sample_ms` how often the position of a
    cell becomes a row. `feed` records in offset order, then take what has become certain with
    `take_rows`; `open_rows` says what is so at this moment and may change (claims that are held).
    `encode` and `decode` carry a history over to another process. `memory` is for `decode`, and
    `checks` and `epochs` for version 1 (`text_history`).
    """

    def __init__(
        self,
        partition: int,
        partitions: int,
        *,
        state: PartitionState | None = None,
        sample_ms: int = 60_000,
        snapshots: Iterable[SnapshotSeen] = (),
        memory: PartitionMemory | None = None,
        checks: type[AnomalyChecks] = AnomalyChecks,
        epochs: bool = True,
    ) -> None:
        self.partition = partition
        self.partitions = partitions
        self.sample_ms = sample_ms
        self._memory = memory or PartitionMemory(state or PartitionState(partition))
        self.rows = Rows(partition)
        """The rows that were not taken yet."""
        self._checks = checks(self._memory, self.rows, partitions)
        self._snapshots = SnapshotChecks(self._memory, self.rows)
        self._snapshots.watch(snapshots)
        self._epochs = epochs
        self.state = self._memory.state
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.Beat: self._on_beat if epochs else self._checks.sender,
            ev.Renewed: self._on_renewed if epochs else self._on_renewed_alone,
            ev.Claimed: self._on_claimed,
            ev.Released: self._on_released,
            ev.MessagesClaimed: self._on_messages,
            ev.PositionSet: self._on_position_set,
            ev.Rejected: self._on_rejected,
            ev.GroupPaused: self._on_paused,
            ev.GroupResumed: self._on_resumed,
            ev.GroupForgotten: self._on_forgotten,
            ev.Founded: self._on_founded,
            ev.LevelSet: self._on_level,
            ev.RangeGranted: self._on_range_granted,
            ev.RangeSplit: self._on_range_split,
            ev.MemberJoined: _nothing,
            ev.MemberLeft: _nothing,
            ev.Ignored: self._checks.ignored,
        }

    @property
    def tracks(self) -> Mapping[CellKey, CellTrack]:
        """What is known of each cell beyond its state, without the latest heartbeats."""
        return self._memory.cells

    def track(self, key: CellKey) -> CellTrack | None:
        """Return what is known of one cell beyond its state."""
        found = self._memory.cells.get(key)
        return None if found is None else self._memory.settle(key, found)

    @property
    def records(self) -> int:
        """How many records were taken in."""
        return self._memory.records

    @property
    def latest_ms(self) -> int:
        """The latest broker timestamp so far; −1: there was none."""
        return self._memory.latest_ms

    @property
    def create_time(self) -> bool:
        """Whether records carry their senders' time."""
        return self._memory.create_time

    @property
    def anchor(self) -> bytes:
        """What a snapshot taken here would name the last record by (`anchor_of`)."""
        return anchor_of(self._memory.value)

    def encode(self) -> bytes:
        """Return everything that `decode` needs to go on, except rows not taken."""
        return self._memory.encode()

    @classmethod
    def decode(cls, data: bytes, partitions: int, *, sample_ms: int = 60_000) -> Self:
        """Return the history that `encode` wrote. Raises `msgspec.MsgspecError`."""
        memory = PartitionMemory.decode(data)
        return cls(memory.state.partition, partitions, sample_ms=sample_ms, memory=memory)

    # Records in, rows out

    def feed(
        self,
        offsets: Sequence[int],
        values: Sequence[bytes | None],
        stamps_ms: Sequence[int],
        *,
        judge: Judge | None = None,
    ) -> None:
        """Apply records, given as parallel sequences in offset order. No value makes it raise.

        Records of version 2: the handlers are not asked about heartbeats as they should be. `judge`
        is told of each record when it was applied: its value, the broker's time, and its events.
        """
        memory, snapshots = self._memory, self._snapshots
        state, handlers = memory.state, self._handlers
        tracks, instances = memory.cells, memory.instances
        events: list[Any] = []
        for offset, value, now in zip(offsets, values, stamps_ms, strict=True):
            apply(state, offset, value, events)
            # As `note` does; a call for each record would cost a twentieth of the audit's speed.
            if now >= memory.latest_ms:
                memory.latest_ms = now
            else:
                self._checks.clock(offset, now)
            memory.at_ms, memory.value = now, value
            if judge is not None:
                judge(value, now, events)
            for event in events:
                # Almost all records are heartbeats of which there is nothing to say but when they
                # came. What these branches do not take is for the handlers, which say the same.
                kind = type(event)
                if kind is ev.Renewed:
                    track = tracks.get((event.group_id, event.topic, event.partition))
                    if (
                        track is not None
                        and track.epoch == event.epoch
                        and now < track.sample_due_ms
                        and event.next_offset > track.next_offset
                    ):
                        track.next_offset = event.next_offset
                        track.moved_ms = now
                        continue
                elif kind is ev.Beat:
                    sender = instances.get((event.group_id, event.client_id, event.instance_id))
                    if (
                        sender is not None
                        and event.cells
                        and sender.newer is None
                        and not (sender.pending or sender.is_first)
                        and (gap := now - sender.renewed_ms) <= sender.slow_ms
                        and 0 < (ahead := event.seq - sender.seq) < SEEN_BITS
                    ):
                        sender.seen = ((sender.seen << ahead) | 1) & SEEN_WINDOW
                        if sender.twice:
                            sender.twice = (sender.twice << ahead) & SEEN_WINDOW
                        sender.flags &= ~COPYING
                        sender.prints[event.seq] = crc32(value or b"")
                        if len(sender.prints) > MOST_PRINTS:
                            forget_prints(sender)
                        sender.seq = event.seq
                        sender.offset = offset
                        sender.slow_gaps = sender.slow_sum_ms = 0
                        sender.beat(now, gap)
                        continue
                handlers[kind](event)
            events.clear()
            if state.next_offset >= snapshots.due:
                snapshots.compare()
        memory.records += len(offsets)
        if len(instances) > an.MANY_INSTANCES:
            self._checks.forget_silent()

    def note(
        self, offset: int, value: bytes | None, at_ms: int, events: Sequence[ev.Event]
    ) -> None:
        """Take in a record that was applied to `state` just now, and the events that it gave.

        For whoever folds by himself; `feed` does both.
        """
        memory, handlers = self._memory, self._handlers
        if at_ms >= memory.latest_ms:
            memory.latest_ms = at_ms
        else:
            self._checks.clock(offset, at_ms)
        memory.at_ms, memory.value = at_ms, value
        for event in events:
            handlers[type(event)](event)
        memory.records += 1
        if len(memory.instances) > an.MANY_INSTANCES and memory.records % an.MANY_INSTANCES == 0:
            self._checks.forget_silent()

    def watch(self, snapshots: Iterable[SnapshotSeen]) -> None:
        """Compare these snapshots with the state when it comes to where they were taken."""
        self._snapshots.watch(snapshots)

    def saw_create_time(self, offset: int, at_ms: int) -> None:
        """Note that records carry their senders' time, not the broker's (once)."""
        if not self._memory.create_time:
            self._memory.create_time = True
            self._checks.create_time(offset, at_ms)

    def take_rows(self) -> dict[str, list[Row]]:
        """Return the rows since the last call, by table, and forget them."""
        return self.rows.take()

    def open_rows(self) -> dict[str, list[Row]]:
        """Return the rows of what has not ended: they hold until more records come."""
        found = Rows(self.partition)
        for key, track in self.tracks.items():
            if track.client_id is not None:
                self._memory.settle(key, track)
                found.claim(key, track)
                found.position(key, track, track.moved_ms)
                if track.takeover is not None:
                    found.takeover(track.takeover, None)
        return found.take()

    # Claims

    def _on_claimed(self, event: ev.Claimed) -> None:
        self._checks.sender(event)
        memory, now = self._memory, self._memory.at_ms
        key = (event.group_id, event.topic, event.partition)
        before = self._track(event)
        takeover: Row | None = None
        vacancy_ms = UNKNOWN if before.vacant_ms == UNKNOWN else now - before.vacant_ms
        if event.previous_holder is not None:
            if before.epoch != event.previous_epoch:  # it began before this history did
                before.client_id = event.previous_holder
                before.instance_id = event.previous_instance_id
                before.epoch = event.previous_epoch
                before.version_ms = UNKNOWN
            takeover = self._taken_over(key, before, event)
            vacancy_ms = 0
        self._checks.change_of_holder(before, event)
        cell = memory.state.cells[key]
        sender = self._sender_of_claim(key, event)
        memory.cells[key] = CellTrack(
            client_id=event.client_id,
            instance_id=event.instance_id,
            epoch=event.epoch,
            interval_ms=event.interval_ms,
            slow_ms=slow_gap_ms(event.interval_ms),
            from_ms=now,
            first_offset=cell.position,
            next_offset=cell.next_offset,
            claimed_offset=cell.claimed_offset,
            version_ms=now,
            renewed_ms=now,
            moved_ms=now,
            beats_from=0 if sender is None else sender.beats,
            late_from=0 if sender is None else sender.late,
            sample_due_ms=self._next_sample(),
            takeover=takeover,
            vacancy_ms=vacancy_ms,
            last_client_id=before.last_client_id,
            changes_ms=before.changes_ms,
            flapping_until_ms=before.flapping_until_ms,
        )

    def _sender_of_claim(self, key: CellKey, event: ev.Claimed) -> InstanceTrack | None:
        """Return whose heartbeats renew a claim that was accepted just now."""
        sender = self._memory.instances.get((event.group_id, event.client_id, event.instance_id))
        if sender is None:
            return None  # version 1
        sender.watch(event.interval_ms)
        sender.pending[key] = event.epoch
        session = self.state.session(event.group_id, event.client_id, event.instance_id)
        if session is not None and len(session.claims) == 1:  # it held nothing before
            sender.is_first, sender.renewed_ms = True, self._memory.at_ms
        return sender

    def _taken_over(self, key: CellKey, track: CellTrack, event: ev.Claimed) -> Row:
        """End the claim that was held until now; return the row of the takeover, but its end."""
        if event.previous_holder != event.client_id:
            how = "taken_over"
        elif event.previous_instance_id != event.instance_id:
            how = "resumed"
        else:
            how = "claimed_again"
        now = self._memory.at_ms
        self._memory.settle(key, track)
        silence_ms = None if track.version_ms == UNKNOWN else now - track.version_ms
        previous = (track.client_id, track.instance_id, track.epoch, track.interval_ms)
        if how == "taken_over":
            self._checks.takeover(track, event, silence_ms)
        self._end(key, track, how, event)
        return (
            *key,
            event.epoch,
            now,
            how,
            event.client_id,
            event.instance_id,
            *previous,
            silence_ms,
        )

    def _on_beat(self, event: ev.Beat) -> None:
        """A heartbeat renews all that its session holds; what it says of single cells follows."""
        self._checks.sender(event)
        memory, now = self._memory, self._memory.at_ms
        who = (event.group_id, event.client_id, event.instance_id)
        sender = memory.instances[who]
        if not event.cells:
            return
        if sender.renewed_ms == UNKNOWN:  # it holds since before this history began
            self._adopt(who, sender)
        gap = now - sender.renewed_ms
        if sender.is_first:
            sender.is_first = False
        elif gap > sender.slow_ms:
            self._checks.slow_heartbeat(sender, event, gap)
        elif sender.slow_gaps:
            sender.slow_gaps = sender.slow_sum_ms = 0
        sender.beat(now, gap)
        for key, epoch in sender.pending.items():
            track = memory.cells.get(key)
            if track is not None and track.epoch == epoch and track.client_id is not None:
                track.longest_gap_ms = now - track.from_ms
                track.heartbeats, track.beats_from, track.late_from = 1, sender.beats, sender.late
                track.version_ms = track.last_beat_ms = now
                self._first_beat(track)
        sender.pending.clear()

    def _adopt(self, who: tuple[str, str, str], sender: InstanceTrack) -> None:
        """Take over what a session holds that was not seen to claim it."""
        session = self.state.session(*who)
        if session is None:
            return
        sender.watch(session.interval_ms)
        sender.renewed_ms = self._memory.at_ms
        for cell in session.claims.values():
            key = (who[0], *cell.unit)
            if key not in self._memory.cells:
                track = self._memory.cells[key] = CellTrack(changes_ms=[])
                track.adopt(cell, self._memory.at_ms)
                track.sample_due_ms = self._next_sample()

    def _on_renewed(self, event: ev.Renewed) -> None:
        """A heartbeat has said something of one cell."""
        key = (event.group_id, event.topic, event.partition)
        self._moved(key, self._held(key, event), event)

    def _on_renewed_alone(self, event: ev.Renewed) -> None:
        """In version 1, a heartbeat renews one cell."""
        now = self._memory.at_ms
        key = (event.group_id, event.topic, event.partition)
        track = self._held(key, event)
        gap = now - track.renewed_ms
        if track.heartbeats == 0:
            self._first_beat(track)
        elif gap > track.slow_ms:
            self._checks.slow_heartbeat(track, event, gap)
        if gap > track.longest_gap_ms:
            track.longest_gap_ms = gap
        self._moved(key, track, event)
        track.version_ms = track.renewed_ms = track.last_beat_ms = now
        track.heartbeats += 1

    def _moved(self, key: CellKey, track: CellTrack, event: ev.Renewed) -> None:
        if self._moves(track, event):
            self._sample(key, track)
            track.next_offset = event.next_offset
        elif event.next_offset != UNKNOWN:
            self._checks.position_back(track, event)

    def _moves(self, track: CellTrack, event: ev.Renewed | ev.Released) -> bool:
        """Say whether the record moves the cell: in version 1, back as well."""
        if self._epochs:
            return event.next_offset > track.next_offset
        return event.next_offset != track.next_offset

    def _sample(self, key: CellKey, track: CellTrack) -> None:
        """Before a cell moves: note where it was from when on, if nothing was noted for long."""
        now = self._memory.at_ms
        if now >= track.sample_due_ms:
            self.rows.position(key, track, track.moved_ms)
            track.sample_due_ms = self._next_sample()
        track.moved_ms = now

    def _first_beat(self, track: CellTrack) -> None:
        if track.takeover is not None:
            self.rows.takeover(track.takeover, self._memory.at_ms - track.from_ms)
            track.takeover = None

    def _on_released(self, event: ev.Released) -> None:
        self._checks.sender(event)
        key = (event.group_id, event.topic, event.partition)
        track = self.tracks.get(key)
        if track is None or track.epoch != event.epoch:
            # The cell is vacant by now: what it was is only in the event.
            track = self._memory.cells[key] = CellTrack(changes_ms=[])
            track.client_id, track.instance_id = event.client_id, event.instance_id
            track.epoch = event.epoch
        elif event.instance_id != track.instance_id or event.client_id != track.client_id:
            self._checks.other_sender(track, event)
        if self._moves(track, event):
            self._sample(key, track)
            track.next_offset = event.next_offset
        self._memory.settle(key, track)
        track.version_ms = self._memory.at_ms
        self._end(key, track, "released", event)
        if event.ended:
            del self._memory.cells[key]

    def _on_messages(self, event: ev.MessagesClaimed) -> None:
        self._checks.sender(event)
        key = (event.group_id, event.topic, event.partition)
        track = self._held(key, event)
        track.version_ms = self._memory.at_ms
        track.batches += 1
        self._sample(key, track)
        track.claimed_offset = event.to_offset
        self.rows.batch(key, event, self._memory.at_ms)

    def _on_range_granted(self, event: ev.RangeGranted) -> None:
        epoch = self.state.base + event.offset
        self.rows.range(event, event.end, epoch, self._memory.at_ms)

    def _on_range_split(self, event: ev.RangeSplit) -> None:
        self.rows.range(event, event.at, None, self._memory.at_ms)

    def _on_position_set(self, event: ev.PositionSet) -> None:
        self._checks.sender(event)
        now = self._memory.at_ms
        key = (event.group_id, event.topic, event.partition)
        track = self._track(event)
        if track.client_id is not None:
            self._memory.settle(key, track)
            if event.instance_id != track.instance_id:  # a holder may, and its claim ends with it
                silence_ms = None if track.version_ms == UNKNOWN else now - track.version_ms
                self._checks.takeover(track, event, silence_ms)
            self._end(key, track, "position_set", event)
        for other in [key for key in self._memory.cells if key[0] == event.group_id]:
            if other not in self.state.cells:  # the open ranges of this partition went (§5.18)
                del self._memory.cells[other]
        track.next_offset = track.claimed_offset = event.next_offset
        track.version_ms = track.moved_ms = now
        self.rows.position(key, track, now)
        what = f"{event.topic}/{event.partition} to {event.next_offset}"
        self.rows.operation(event, "set_position", what, now)

    def _track(self, event: ev.Claimed | ev.PositionSet) -> CellTrack:
        """Return the track of the event's cell, a new one if this is the first of it."""
        key = (event.group_id, event.topic, event.partition)
        track = self.tracks.get(key)
        if track is None:
            track = self._memory.cells[key] = CellTrack(changes_ms=[])
        return track

    def _held(self, key: CellKey, event: ev.Renewed | ev.MessagesClaimed) -> CellTrack:
        """Return the track of the claim under which the event's record was accepted."""
        track = self.tracks.get(key)
        if track is None or track.epoch != event.epoch:  # it began before this history did
            if track is None:
                track = self._memory.cells[key] = CellTrack(changes_ms=[])
            track.adopt(self.state.cells[key], self._memory.at_ms)
            track.sample_due_ms = self._next_sample()
        elif event.instance_id != track.instance_id or event.client_id != track.client_id:
            self._checks.other_sender(track, event)
        return track

    def _end(self, key: CellKey, track: CellTrack, how: str, event: Any) -> None:
        """The claim of `track` ends with the record of `event`."""
        rows, now = self.rows, self._memory.at_ms
        rows.claim(key, track, until_ms=now, how=how, by=event.client_id, end_offset=event.offset)
        self._sample(key, track)
        rows.position(key, track, now)
        if track.takeover is not None:
            rows.takeover(track.takeover, None)
        holder = (key[0], track.client_id or "", track.instance_id or "")
        sender = self._memory.instances.get(holder)
        if sender is not None:
            sender.pending.pop(key, None)
        track.vacate(now)

    def _next_sample(self) -> int:
        return (self._memory.at_ms // self.sample_ms + 1) * self.sample_ms

    # Groups

    def _on_paused(self, event: ev.GroupPaused) -> None:
        self._operation(event, "pause", f"until {event.expires_at_ms} ms")

    def _on_resumed(self, event: ev.GroupResumed) -> None:
        self._operation(event, "resume", "")

    def _on_forgotten(self, event: ev.GroupForgotten) -> None:
        self._operation(event, "forget", f"{event.cells} cells")
        memory = self._memory
        for key in [key for key in memory.cells if key[0] == event.group_id]:
            del memory.cells[key]

    def _on_founded(self, event: ev.Founded) -> None:
        self._checks.founded(event)
        instead = f" instead of {event.previous}" if event.previous else ""
        self.rows.operation(
            event,
            "found",
            f"log {event.identity}{instead}, epochs from {event.base}, {event.partitions} "
            "partitions",
            self._memory.at_ms,
        )

    def _on_level(self, event: ev.LevelSet) -> None:
        self._operation(event, "level", f"{event.level}, was {event.previous}")

    def _operation(self, event: Any, what: str, detail: str) -> None:
        self._checks.sender(event)
        self.rows.operation(event, what, detail, self._memory.at_ms)

    # Rejected records

    def _on_rejected(self, event: ev.Rejected) -> None:
        if event.record != "Genesis":  # it is of no group
            self._checks.sender(event)
        epoch = or_none(event.epoch) if self._epochs else None
        self.rows.rejection(event, self._memory.at_ms, epoch=epoch)
        self._checks.rejected(event)


def _nothing(event: ev.Event) -> None:
    """Events that no table has: they are seen in others, or only concern visibility."""
