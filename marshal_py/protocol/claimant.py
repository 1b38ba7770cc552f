"""The claimant: claims, leases, renewal and release of one client (specs/PROTOCOL.md §5).

Theory of operation
-------------------
A `Claimant` is a state machine without I/O. Four things go in: what the user wants (`want`,
`release`, `commit`, ...), what the fold reported (`applied`), the time (`tick`), and the news that
an append failed (`append_failed`). Two come out: records to append (`take_appends`) and notices for
the user (`take_notices`). Every `now_ns` is read by the caller from one monotonic clock that counts
time asleep; `next_deadline_ns` says when `tick` is due at the latest.

A claim goes through these states::

    WAITING ──claim sent──▶ CLAIMING ──accepted──▶ HELD ◀──heartbeat accepted── LAPSED
       ▲                        │                   │ └────lease over───────────▶ │
       └──────rejected──────────┘                   ▼                             │
                                   RELEASING ──release read──▶ ENDED ◀──taken over┘

The log decides; this machine only reads what was decided. A claim is ours when the fold says so,
and lost when the fold says so; an append whose outcome is unknown is settled by reading, never by
guessing (§5.12).

The lease (§5.4): `held` is true until ``t_send + 2 × interval − margin``, where `t_send` is taken
before the record is handed to the producer that the fold has since accepted: the claim, or any
heartbeat of this instance, which renews all that the instance holds. A challenger waits two
intervals from *seeing* that record, which is later than its sending. So the lease is over before
anyone takes over, whatever the clocks show, as long as their rates agree to within the margin.

A heartbeat names only what has changed. So what the log gives to this instance is compared with
what is wanted here whenever one is sent, and what nobody wants is given back: one heartbeat renews
it like everything else, and nobody could ever take it over.

Rules that the argument rests on, each tested by leaving it out (tests/simulation):

- the wait of two intervals before a takeover, measured from seeing the cell's last version;
- the compare-and-swap on that version;
- that a heartbeat renews what its own instance holds when it is read, and nothing else;
- that what the log gives to an instance that does not want it is released;
- measuring the lease from before the sending;
- from the decision to release, nothing renews the lease of that epoch any more;
- what an earlier instance of the same client_id sent renews nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal

from marshal_py.errors import Closed, DuplicateClientId, InvalidArgument, NotHeld
from marshal_py.protocol import events as ev
from marshal_py.protocol.claim_states import ClaimEvent, ClaimState
from marshal_py.protocol.cold_start import ColdStart
from marshal_py.protocol.heartbeat_schedule import HeartbeatSchedule
from marshal_py.protocol.holding import (
    Append,
    Holding,
    Notice,
    NoticeKind,
    RangeHolding,
    metadata_unsent,
)
from marshal_py.protocol.messages import (
    LEVEL,
    MAX_ENTRIES,
    MAX_MEMBER_METADATA_BYTES,
    MAX_METADATA_BYTES,
    MAX_PARTITION,
    MAX_RANGE_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH,
    NO_OFFSET,
    VERSION,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    Heartbeat,
    Membership,
    Message,
    MetadataEntry,
    ReleasingPartition,
    ResumeGroup,
    SetPosition,
    SplittingRange,
    encode,
)
from marshal_py.protocol.migration import Grants
from marshal_py.protocol.ranges import range_cell
from marshal_py.protocol.rationalizer import Cell, PartitionState
from marshal_py.protocol.timers import Timers
from marshal_py.protocol.unread_appends import AppendKind, Sent, UnreadAppends
from marshal_py.protocol.world import MS, Observer, World

__all__ = [
    "Append",
    "ClaimState",
    "Claimant",
    "Holding",
    "Notice",
    "NoticeKind",
    "RangeHolding",
]

MAX_METADATA_AT_ONCE: Final = 256 * 1024
"""Bytes of claims' metadata in one heartbeat, which stays well below Kafka's default limit of 1 MB
a record; the rest goes with another one."""

MAX_LATE_RENEWALS: Final = 4
"""So many heartbeats in a row, read when the lease that they gave was over already, and the claim
is given back: this client reads too late to hold it, and would only keep the others from it. Two of
them may have been on the way while the process was suspended."""

RETRY_NS: Final = 100 * MS
"""Pause before an append that failed, and must be made, is made again."""

MIN_ANSWER_TIMEOUT_MS: Final = 10_000
"""After 8 intervals, and at least this long, an append that was neither read nor reported as failed
counts as failed: a log that was truncated before this client had read so far never brings it."""


_PENDING: Final = (ClaimState.WAITING, ClaimState.CLAIMING)
_OURS: Final = (ClaimState.HELD, ClaimState.LAPSED)


class Claimant:
    """All claims of one (client_id, instance_id) in one group.

    `interval_ms` is the heartbeat interval, `margin_ms` what the lease keeps back for clocks whose
    rates differ. `resume` takes over the claims of an earlier instance of the same client_id
    without waiting (§5.8). `cold_start_skew_ms` allows takeovers at start-up by broker timestamps,
    which may be wrong by so much; None switches them off (§5.3). With `member`, the client is
    visible to its group, with `member_metadata` (at most 4,096 bytes). `levels` are the lowest and
    the highest level that it can follow (§5.15). `wall_s` is the wall clock that the leases of a
    migration's bridge are compared with (INTEROP.md §7.2), and nothing else.

    Not thread-safe, and does no I/O.

    Its parts are the table of states (`claim_states`), the timers, the schedule of heartbeats, what
    was sent and not read, and the cold start. What is left is long on purpose: every record that is
    read, every timer and every call of the user may move the same claims between the same lists,
    and the argument for one holder at a time (§5.4) is about the order of those moves. It is easier
    to check in one place than across objects that call each other back.
    """

    _holding: ClassVar[type[Holding]] = Holding

    def __init__(
        self,
        world: World,
        observers: list[Observer],
        *,
        client_id: str,
        instance_id: str,
        group_id: str,
        interval_ms: int,
        margin_ms: int,
        member: bool = True,
        member_metadata: bytes = b"",
        resume: bool = True,
        cold_start_skew_ms: int | None = 1_000,
        levels: tuple[int, int] = (LEVEL, LEVEL),
        wall_s: Callable[[], float] | None = None,
    ) -> None:
        if not 0 < margin_ms < interval_ms:
            raise InvalidArgument(
                f"margin_ms = {margin_ms} must lie between 0 and interval_ms = {interval_ms}: "
                "a tenth of the interval suits clocks whose rates differ by less than 5 %"
            )
        self.world = world
        self.observers = observers
        self.client_id = client_id
        self.instance_id = instance_id
        self.group_id = group_id
        self.interval_ms = interval_ms
        self.lease_ns = (2 * interval_ms - margin_ms) * MS
        self.member = member
        self.member_metadata = member_metadata
        self.resume = resume
        self.home = world.home(group_id)
        self.duplicate_instance_id: str | None = None
        """That of a live process with our client_id, once it has taken a claim."""
        self.refusal: str | None = None
        """Why this client takes no part in its group any more: it cannot follow its level."""
        self.leaving = False
        self.silent = False
        self._lowest, self._highest = levels
        self.heeds_pauses = True
        """Whether a pause of the group ends our claims. Those of admins and bridges go on."""
        self.grants = Grants(world, observers, group_id, client_id, wall_s)

        count = world.partitions
        self._wanted: dict[tuple[str, int], Holding] = {}
        self._releasing: dict[tuple[str, int], Holding] = {}
        self._ours: list[dict[tuple[str, int], Holding]] = [{} for _ in range(count)]
        self._past_epochs_end = 0
        """Claims of smaller epochs were made before this client had caught up."""
        self._changed: dict[tuple[str, int], Holding] = {}
        """Claims whose position or metadata the log does not have yet."""
        self._seq = itertools.count()
        self._timers = Timers()
        self._heartbeats = HeartbeatSchedule(self._timers, count)
        self._cold_start = ColdStart(cold_start_skew_ms, count)
        self._sent = UnreadAppends(count)
        self._answer_timeout_ns = max(8 * interval_ms, MIN_ANSWER_TIMEOUT_MS) * MS
        self._watches_sent = False
        """Whether a timer watches for answers that do not come."""
        self._lapse_due_ns: list[int | None] = [None] * count
        self._appends: list[Append] = []
        self._notices: list[Notice] = []
        self._granted: ev.RangeGranted | None = None
        """Of which range the claim is that is read next."""

    # What the user wants

    def want(self, topic: str, partition: int, now_ns: int, *, ephemeral: bool = False) -> Holding:
        """Ask for a claim; the notice ``acquired`` says when it is held.

        Asking again for what is already wanted or held returns the same `Holding`. With
        `ephemeral`, the cell goes when it is released, position and all.

        Raises `InvalidArgument` for a topic or partition that no record can carry,
        `DuplicateClientId` once another instance has fenced this one, `Closed` once this one has
        begun to leave: a claim in flight that is given up would be taken for the new one, and kept.
        """
        if not isinstance(topic, str) or not 0 < len(topic) <= MAX_TOPIC_LENGTH:
            raise InvalidArgument(
                f"topic = {topic!r} must be text of 1 to {MAX_TOPIC_LENGTH} characters"
            )
        if type(partition) is not int or not 0 <= partition <= MAX_PARTITION:
            raise InvalidArgument(f"partition = {partition!r} must be 0 to {MAX_PARTITION}")
        self._check_wanting()
        holding = self._wanted.get((topic, partition))
        if holding is None:
            holding = self._new_holding(topic, partition)
            holding.ephemeral = ephemeral
            self._wanted[holding.key] = holding
            self._consider(holding, now_ns)
        return holding

    def want_range(
        self, topic: str, partition: int, floor: int, count: int, now_ns: int
    ) -> RangeHolding:
        """Ask for a range of messages of topic/partition, once (§5.18).

        The log grants the lowest that nobody holds, or `count` new ones, none below `floor`. The
        notice ``acquired`` tells; ``lost``, that it was refused, or that nobody knows. Raises as
        `want` does.
        """
        if not isinstance(topic, str) or not 0 < len(topic) <= MAX_RANGE_TOPIC_LENGTH:
            raise InvalidArgument(
                f"topic = {topic!r} must be text of 1 to {MAX_RANGE_TOPIC_LENGTH} characters"
            )
        if type(partition) is not int or not 0 <= partition <= MAX_PARTITION:
            raise InvalidArgument(f"partition = {partition!r} must be 0 to {MAX_PARTITION}")
        if type(floor) is not int or not 0 <= floor < 2**63:
            raise InvalidArgument(f"floor = {floor!r} must be 0 or more")
        if type(count) is not int or not 1 <= count < 2**31:
            raise InvalidArgument(f"count = {count!r} must be 1 to {2**31 - 1}")
        self._check_wanting()
        place = self.world.coordinator(self.group_id, topic, partition)
        holding = RangeHolding(topic, partition, place)
        holding.claim_seq = seq = next(self._seq)
        self._wanted[holding.key] = holding
        if self.observers[place].caught_up_at_offset is None:
            self._end(holding, ClaimEvent.CANCELLED, "the log is being read")
            return holding
        holding.on(ClaimEvent.CLAIM_SENT)
        record = ClaimingRange(*self._header(seq), topic, partition, self.interval_ms, floor, count)
        self._append(record, place, "claim", holding, now_ns)
        return holding

    def split(self, holding: RangeHolding, at: int, now_ns: int) -> None:
        """Give back what of a range lies at and beyond `at`, of which nothing was begun (§5.18).

        It is not ours from here on. The notice ``split`` says when the log has it; `detail`, why it
        does not: the range ends at `at` all the same, and the rest is free when it is released.
        Raises `NotHeld`.
        """
        if holding.state not in _OURS:
            raise NotHeld(f"{_name(holding)} is not held any more: {holding.reason or 'released'}")
        position = max(holding.next_offset, holding.claimed_offset)
        if type(at) is not int or not position < at < holding.end:
            raise InvalidArgument(
                f"at = {at!r} must lie between the position, {position}, and the end, {holding.end}"
            )
        holding.end = at
        seq = next(self._seq)
        record = SplittingRange(*self._header(seq), *holding.key, holding.epoch, at)
        self._append(record, holding.coordinator, "split", holding, now_ns)

    def is_stale(self, topic: str, partition: int, now_ns: int) -> bool:
        """Whether a cell is held, by nobody who may act on it, and could be taken over now."""
        coordinator = self.world.coordinator(self.group_id, topic, partition)
        key = (topic, partition)
        cell = self.world.cell(self.group_id, *key)
        if cell is None or not cell.held or key in self._wanted or key in self._releasing:
            return False
        version = self.world.version(self.group_id, *key)
        return self._may_take(cell, version, coordinator, now_ns)

    def _check_wanting(self) -> None:
        if self.duplicate_instance_id is not None:
            raise DuplicateClientId(self._duplicate_text())
        if self.leaving:
            raise Closed(self.refusal or "the client is closing; make a new one")

    def _new_holding(self, topic: str, partition: int) -> Holding:
        place = self.world.coordinator(self.group_id, topic, partition)
        group = self.world.group(self.group_id)
        found = None if group is None else group.open_ranges.of_cell.get((topic, partition))
        if found is None:
            return self._holding(topic, partition, place)
        return RangeHolding(topic, partition, place, found.source)

    def release(self, holding: Holding, now_ns: int) -> None:
        """Give a claim back, or stop wanting it. The caller has stopped acting on it (§5.7).

        From here on `held` is false and nothing renews the lease.
        """
        if holding.state in _PENDING:
            # A claim in flight that is accepted all the same is given back when it is read.
            self._end(holding, ClaimEvent.CANCELLED, "cancelled")
        elif holding.state in _OURS and not holding.repositioned:  # which ends it, too
            self._start_release(holding, now_ns)

    def commit(self, holding: Holding, next_offset: int, now_ns: int, *, flush: bool) -> None:
        """Store `next_offset`, the next offset to process, with the next heartbeat.

        With `flush` the heartbeat goes at once; the notice ``stored`` says when it was read.
        Offsets only go up: a smaller one is ignored. Raises `NotHeld` once the claim is released
        or lost.
        """
        if type(next_offset) is not int or not 0 <= next_offset < 2**63:
            raise InvalidArgument(f"next_offset = {next_offset!r} must be 0 or more")
        if holding.state not in _OURS:
            raise NotHeld(f"{_name(holding)} is not held any more: {holding.reason or 'released'}")
        self.advance(holding, next_offset)
        if flush and holding.next_offset > holding.stored_offset:
            self._heartbeats.arrange(holding.coordinator, now_ns)
            self.tick(now_ns)

    def advance(self, holding: Holding, next_offset: int) -> None:
        """Have `next_offset` go with the next heartbeat, or with the release. Never goes back."""
        if next_offset > holding.next_offset:
            holding.next_offset = next_offset
            if holding.state in _OURS:
                self._changed[holding.key] = holding

    def set_metadata(self, holding: Holding, metadata: bytes) -> None:
        """Set the bytes (at most 256) that heartbeats publish with the claim.

        They stay with the cell when the claim goes to somebody else.
        """
        if not isinstance(metadata, bytes) or len(metadata) > MAX_METADATA_BYTES:
            raise InvalidArgument(f"metadata must be at most {MAX_METADATA_BYTES} bytes")
        holding.metadata = metadata
        if holding.state in _OURS:
            self._changed[holding.key] = holding

    def renew(self, holding: Holding, now_ns: int) -> None:
        """Send the heartbeat that carries this claim now."""
        if holding.state in _OURS:
            self._heartbeats.arrange(holding.coordinator, now_ns)
            self.tick(now_ns)

    def set_position(self, holding: Holding, next_offset: int, now_ns: int) -> None:
        """Set the position of a claim that is held, even back; the claim ends with it (§5.10).

        The caller has stopped acting on it, and nothing renews it from here on. It is sent until
        the log has it: the claim goes with no other position. Where the log refuses it for what it
        is, as a range that is held lies there, the claim is released when its lease would have
        ended. Raises `NotHeld`.
        """
        if type(next_offset) is not int or not 0 <= next_offset < 2**63:
            raise InvalidArgument(f"next_offset = {next_offset!r} must be 0 or more")
        version = self.world.version(self.group_id, *holding.key)
        if holding.state not in _OURS or version == NO_OFFSET:
            raise NotHeld(f"{_name(holding)} is not held any more: {holding.reason or 'released'}")
        if holding.reposition_to == next_offset:
            return
        if holding.renewable:
            holding.reposition_until_ns = max(now_ns, holding.lease_until_ns)
        holding.reposition_to, holding.lease_until_ns = next_offset, 0
        holding.release_at_ns = None  # of a group that was paused before
        if holding.state is ClaimState.HELD:
            holding.on(ClaimEvent.LEASE_OVER)
        self._send_position(holding, now_ns)

    def set_member_metadata(self, metadata: bytes, now_ns: int) -> None:
        """Set what this client tells the other members, at most 4,096 bytes, and tell it now."""
        if not isinstance(metadata, bytes) or len(metadata) > MAX_MEMBER_METADATA_BYTES:
            raise InvalidArgument(
                f"member_metadata must be at most {MAX_MEMBER_METADATA_BYTES} bytes"
            )
        self.member_metadata = metadata
        if self.member and self.observers[self.home].caught_up_at_offset is not None:
            self._heartbeats.arrange(self.home, now_ns)
            self.tick(now_ns)

    def claim_messages(self, holding: Holding, proposed_offset: int, now_ns: int) -> int:
        """Claim every message below `proposed_offset` for at-most-once delivery (§5.11).

        Returns the seq under which a notice ``messages_claimed`` or ``messages_rejected`` follows.
        Only after the first, and while `held`, may the messages be delivered. Raises `NotHeld`.
        """
        if type(proposed_offset) is not int or not 0 <= proposed_offset < 2**63:
            raise InvalidArgument(f"proposed_offset = {proposed_offset!r} must be 0 or more")
        if holding.state not in _OURS:
            raise NotHeld(f"{_name(holding)} is not held any more: {holding.reason or 'released'}")
        if isinstance(holding, RangeHolding) and proposed_offset > holding.end:
            raise InvalidArgument(
                f"proposed_offset = {proposed_offset} must be at most {holding.end}, where the "
                "range ends"
            )
        seq = next(self._seq)
        record = ClaimingMessages(
            *self._header(seq), holding.topic, holding.partition, holding.epoch, proposed_offset
        )
        self._append(record, holding.coordinator, "messages", holding, now_ns)
        return seq

    def end_expired_pause(self, now_ms: float) -> None:
        """Resume the group if its pause is over by `now_ms`, the wall clock's time (§5.9).

        Whoever else does so too is refused, and nothing waits for the outcome.
        """
        group = self.world.group(self.group_id)
        if self.leaving or group is None or group.pause is None:
            return
        if group.pause.expires_at_ms <= now_ms:
            seq = next(self._seq)
            record = ResumeGroup(*self._header(seq), group.pause.version)
            self._appends.append(Append(self.home, seq, encode(record)))

    def leave(self, now_ns: int) -> None:
        """Release everything, want nothing any more, and say goodbye to the group."""
        for coordinator, ours in enumerate(self._ours):
            if any(map(metadata_unsent, ours.values())):
                self._send_heartbeats(coordinator, now_ns)  # one for all of them
        self.leaving = True
        for holding in list(self._wanted.values()):
            self.release(holding, now_ns)
        if self.member and self.refusal is None:  # who takes no part has nothing to leave (§5.15)
            self._send_heartbeat(self.home, [], [], 2, now_ns)

    def keep(self, now_ns: int) -> None:
        """Stop without releasing: a last heartbeat stores the positions, then there is silence.

        The next instance of this client_id resumes the claims, or they end as after a crash. The
        caller has stopped acting on them.
        """
        for coordinator, ours in enumerate(self._ours):
            if ours and self.refusal is None:
                self._send_heartbeats(coordinator, now_ns)
            for holding in ours.values():
                holding.lease_until_ns = 0
                holding.on(ClaimEvent.KEPT)
        self.leaving = self.silent = True

    @property
    def settled(self) -> bool:
        """Whether nothing of ours is left in the log: every release has been read."""
        return (
            not self._releasing
            and not any(self._ours)
            and not any(
                sent.kind == "claim" and sent.holding and sent.holding.state is ClaimState.ENDED
                for sent in self._sent.by_seq.values()
            )
        )

    def holdings(self) -> Iterable[Holding]:
        """Return every claim that is wanted, held or being released."""
        return [*self._wanted.values(), *self._releasing.values()]

    # What happens

    def caught_up(self, coordinator: int, now_ns: int) -> None:
        """Say that everything that was in the log at start-up has been applied."""
        self.grants.caught_up(coordinator)
        if coordinator == self.home:
            caught_up_at = self.observers[coordinator].caught_up_at_offset or 0
            self._past_epochs_end = self.world.states[coordinator].base + caught_up_at
            if not self._can_follow(coordinator):
                return
        if not self.silent:
            self._reconcile(coordinator, now_ns)
        if self.member and coordinator == self.home:
            self._heartbeats.arrange(coordinator, now_ns)
        for holding in self._waiting(coordinator):
            self._consider(holding, now_ns)
        self.tick(now_ns)

    def applied(self, coordinator: int, events: list[ev.Event], now_ns: int) -> None:
        """Take in what the fold reported of one coordination partition.

        Call `tick` when everything that has been folded has been taken in, not before: the world is
        ahead of what the claimant has heard until then, and timers look at the world.
        """
        # Waiting claims that may go ahead now: those of these cells, or all of this partition.
        touched: dict[tuple[str, int], None] = {}  # ordered: a set's order differs by process
        reconsider_all = migrates = False
        event: Any
        for event in events:
            kind = type(event)
            if kind is ev.Renewed:  # the most frequent by far: one for each position that moved
                if event.instance_id == self.instance_id:
                    if event.group_id == self.group_id:
                        self._on_stored(coordinator, event, now_ns)
                elif self.grants.exist and event.group_id == self.group_id:
                    self.grants.renewed(event)
                continue
            if kind is ev.Founded:
                self._on_founded(coordinator, event, now_ns)
                continue
            if kind is ev.Ignored or event.group_id != self.group_id:
                continue
            if kind is ev.Beat:
                t_send_ns = self._on_heartbeat(coordinator, event, now_ns)
                if t_send_ns is not None:
                    self._renew_all(coordinator, t_send_ns, now_ns)
                    if self._cold_start.read(coordinator, event.offset):
                        reconsider_all = True
                if event.client_id in self.grants.bridges:
                    migrates = True
            elif kind is ev.RangeGranted:
                self._granted = event
            elif kind is ev.RangeSplit:
                self._on_split(coordinator, event)
            elif kind is ev.Claimed:
                self._on_claimed(coordinator, event, now_ns)
                self._granted = None
                touched[event.topic, event.partition] = None
                migrates = self.grants.heard(event) or migrates
            elif kind is ev.Released:
                self._on_released(coordinator, event)
                touched[event.topic, event.partition] = None
                migrates = self.grants.heard(event) or migrates
            elif kind is ev.Rejected:
                self._on_rejected(coordinator, event, now_ns)
                if event.instance_id == self.instance_id and event.topic is not None:
                    touched[event.topic, event.partition] = None
            elif kind is ev.MessagesClaimed:
                self._on_messages(coordinator, event)
            elif kind is ev.PositionSet:
                if event.instance_id == self.instance_id:
                    self._sent.pop(event.seq)
                self._lose(self._ours[coordinator].get((event.topic, event.partition)), event)
                touched[event.topic, event.partition] = None
                migrates = self.grants.heard(event) or migrates
            elif kind is ev.GroupPaused:
                self._on_paused(coordinator, now_ns)
            elif kind is ev.GroupResumed:
                reconsider_all = True
            elif kind is ev.GroupForgotten:  # its level, too
                reconsider_all = self._can_follow(coordinator)
            elif kind is ev.LevelSet:
                self._can_follow(coordinator)
        if migrates or (touched and self.grants.bridges):
            self._look_at_grants(now_ns)
        if migrates or reconsider_all:
            waiting = self._waiting(coordinator)
        else:
            found = [self._wanted.get(key) for key in touched]
            waiting = [h for h in found if h is not None and h.state is ClaimState.WAITING]
        for holding in waiting:
            self._consider(holding, now_ns)

    def append_failed(self, seq: int, now_ns: int) -> None:
        """Take in that an append failed, or that nobody knows whether it did (§5.12).

        It may still turn up in the log; nothing here depends on that it does not.
        """
        sent = self._sent.get(seq)
        if sent is None:
            return
        holding = sent.holding
        if sent.kind == "heartbeat":
            self._sent.pop(seq)
            for ours in (*self._ours[sent.coordinator].values(), *self._releasing.values()):
                if ours.coordinator == sent.coordinator:
                    ours.sent_metadata = ours.stored_metadata
            self._cold_start.failed(sent.coordinator)
            self._heartbeats.settled(sent.coordinator, now_ns)
            self.tick(now_ns)
        elif sent.kind == "claim" and holding is not None:
            # Its time of sending is kept, should it turn up; but nobody waits for it any more.
            self._sent.disown(seq)
            if holding.state is ClaimState.CLAIMING and holding.claim_seq == seq:
                holding.on(ClaimEvent.CLAIM_FAILED)
                if isinstance(holding, RangeHolding) and holding.is_asked_for:
                    self._end(holding, ClaimEvent.CANCELLED, "unknown outcome")
                else:
                    self._check_at(holding, now_ns + RETRY_NS)
        elif sent.kind == "release" and holding is not None:
            if holding.state is ClaimState.RELEASING:
                self._release_at(holding, now_ns + RETRY_NS)
        elif sent.kind == "position" and holding is not None:
            self._sent.pop(seq)
            if holding.state in _OURS:
                self._release_at(holding, now_ns + RETRY_NS)
        elif sent.kind == "messages" and holding is not None:
            self._sent.pop(seq)
            self._notices.append(Notice("messages_rejected", holding, "unknown outcome", seq))
        elif sent.kind == "split" and holding is not None:
            self._sent.pop(seq)
            self._notices.append(Notice("split", holding, "unknown outcome"))

    def _fail_overdue(self, now_ns: int) -> None:
        """Count as failed what has not been answered for long. It may turn up all the same."""
        self._watches_sent = False
        for seq in self._sent.sent_by(now_ns - self._answer_timeout_ns):
            self.append_failed(seq, now_ns)
            self._sent.pop(seq)
        self._watch_sent()

    def _watch_sent(self) -> None:
        oldest_ns = self._sent.oldest_ns()
        if oldest_ns is not None and not self._watches_sent:
            self._watches_sent = True
            self._timers.set(oldest_ns + self._answer_timeout_ns, "unread", 0)

    def truncated(self, why: str = "the coordination log was truncated") -> None:
        """Drop every lease: the log is not what was read, and will be replayed (§7).

        Nothing is sent before `caught_up`: what is wanted meanwhile waits for the log that is read.
        """
        for observer in self.observers:
            observer.caught_up_at_offset = None
        for holding in [*self._wanted.values(), *self._releasing.values()]:
            if holding.state in _PENDING:
                holding.on(ClaimEvent.TRUNCATED)
            else:
                self._end(holding, ClaimEvent.TRUNCATED, why)
        self._changed.clear()
        self._timers.clear()
        self._watches_sent = False
        self._heartbeats.clear()
        self._cold_start.clear()
        self._sent.clear()
        for p in range(self.world.partitions):
            self._lapse_due_ns[p] = None

    def reshape(self) -> None:
        """After `truncated`: the log that was read since may have another number of partitions."""
        count = self.world.partitions
        self.home = self.world.home(self.group_id)
        self._ours = [{} for _ in range(count)]
        self._heartbeats = HeartbeatSchedule(self._timers, count)
        self._cold_start = ColdStart(self._cold_start.skew_ms, count)
        self._sent = UnreadAppends(count)
        self._lapse_due_ns = [None] * count
        for holding in self._wanted.values():
            holding.coordinator = self.world.coordinator(self.group_id, *holding.key)

    def stop_claiming(self, reason: str) -> None:
        """Stop claiming and renewing: leases lapse by themselves. For a log that changed shape."""
        self.leaving = self.silent = True
        for holding in list(self._wanted.values()):
            if holding.state in _PENDING:
                self._end(holding, ClaimEvent.CANCELLED, reason)

    def disown(self, reason: str) -> None:
        """Hold nothing and say nothing: this is a copy, and the claims are the original's."""
        self.leaving = self.silent = True
        for holdings in (self._wanted, *self._ours, self._releasing):
            for holding in holdings.values():
                holding.lease_until_ns, holding.reason = 0, reason

    def tick(self, now_ns: int) -> None:
        """Do what is due: send heartbeats, let leases lapse, look again at waiting claims."""
        while (timer := self._timers.pop_due(now_ns)) is not None:
            due_ns, _, kind, coordinator, holding = timer
            if kind == "unread":
                self._fail_overdue(now_ns)
            elif kind == "heartbeat":
                if self._heartbeats.due_ns[coordinator] == due_ns:
                    self._send_heartbeats(coordinator, now_ns)
            elif kind == "lapse":
                if self._lapse_due_ns[coordinator] == due_ns:
                    self._let_lapse(coordinator, now_ns)
            elif kind == "claim" and holding is not None:
                if holding.check_at_ns == due_ns and holding.state is ClaimState.WAITING:
                    self._consider(holding, now_ns)
            elif holding is not None and holding.release_at_ns == due_ns:
                holding.release_at_ns = None
                if holding.state in _OURS and holding.repositioned:
                    self._send_position(holding, now_ns)
                elif holding.state in _OURS:
                    self._start_release(holding, now_ns)
                elif holding.state is ClaimState.RELEASING:
                    self._release(holding, now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when `tick` is due at the latest, None if only an event can change anything."""
        return self._timers.next_ns

    def take_appends(self) -> list[Append]:
        """Return the records to append, in order, and forget them."""
        appends, self._appends = self._appends, []
        return appends

    def take_notices(self) -> list[Notice]:
        """Return the notices for the user, in order, and forget them."""
        notices, self._notices = self._notices, []
        return notices

    # Claiming (§5.2)

    def _waiting(self, coordinator: int) -> list[Holding]:
        return [
            holding
            for holding in self._wanted.values()
            if holding.state is ClaimState.WAITING and holding.coordinator == coordinator
        ]

    def _consider(self, holding: Holding, now_ns: int) -> None:
        """Claim the cell if that is allowed now; otherwise arrange to look again."""
        holding.check_at_ns = None
        if isinstance(holding, RangeHolding) and holding.is_asked_for:
            self._end(holding, ClaimEvent.CANCELLED, "the log was read anew")
            return
        observer = self.observers[holding.coordinator]
        state = self.world.states[holding.coordinator]
        if observer.caught_up_at_offset is None or self.leaving:
            return
        group = state.groups.get(self.group_id)
        if group is not None and group.pause is not None:
            self._notices.append(Notice("waiting", holding, "the group is paused"))
            return
        if self.grants.withholds(*holding.key):
            why = "the migration of its group has not granted it to version 2"
            self._notices.append(Notice("waiting", holding, why))
            return
        is_open = group is not None and holding.key in group.open_ranges.of_cell
        if isinstance(holding, RangeHolding) and not is_open:
            self._end(holding, ClaimEvent.CANCELLED, "the range is done")
            return
        cell = None if group is None else group.cells.get(holding.key)
        version = NO_OFFSET if group is None else group.version(cell)
        if group is not None and group.open_ranges.count(holding.key):
            self._notices.append(Notice("waiting", holding, "ranges of it are open"))
            self._check_at(holding, now_ns + self.interval_ms * MS)
            return
        if cell is not None and cell.held:
            if holding.key in self._releasing:  # our own release is on its way
                self._check_at(holding, now_ns + self.interval_ms * MS)
                return
            if not self._may_take(cell, version, holding.coordinator, now_ns):
                silence_ns = observer.silence_ns(version, now_ns) or 0
                self._check_at(holding, now_ns + 2 * cell.interval_ms * MS - silence_ns + 1)
                if not self._cold_start.is_asking(holding.coordinator):
                    self._notices.append(Notice("waiting", holding, f"{cell.holder} holds it"))
                return
        holding.on(ClaimEvent.CLAIM_SENT)
        holding.claim_seq = seq = next(self._seq)
        record = ClaimingPartition(
            *self._header(seq),
            holding.topic,
            holding.partition,
            self.interval_ms,
            version,
        )
        self._append(record, holding.coordinator, "claim", holding, now_ns)

    def _may_take(self, cell: Cell, version: int, coordinator: int, now_ns: int) -> bool:
        """Say whether a held cell may be claimed now."""
        observer = self.observers[coordinator]
        if cell.holder == self.client_id:
            if cell.instance_id == self.instance_id:
                return True  # ours by the log, though we dropped the lease: nobody else acts on it
            if self.resume and cell.epoch < self._past_epochs_end:  # §5.8
                return True
        silence_ns = observer.silence_ns(version, now_ns)
        if silence_ns is not None and silence_ns > 2 * cell.interval_ms * MS:
            return True
        if self._cold_start.ask(coordinator):
            self._heartbeats.arrange(coordinator, now_ns)
        return self._cold_start.is_stale(version, cell.interval_ms, observer, coordinator)

    def _on_claimed(self, coordinator: int, event: ev.Claimed, now_ns: int) -> None:
        key = (event.topic, event.partition)
        current = self._ours[coordinator].get(key)
        if event.instance_id != self.instance_id or event.client_id != self.client_id:
            if current is not None:
                self._lose(current, event)
            releasing = self._releasing.get(key)
            if releasing is not None and releasing.epoch < event.epoch:
                self._end(releasing, ClaimEvent.RELEASE_READ, f"taken over by {event.client_id}")
            return
        sent = self._sent.pop(event.seq)
        if current is not None:  # an earlier attempt that turned up late: the newer epoch counts
            self._end(current, ClaimEvent.LOST, "claimed again")
        holding = self._granted_to(key, event.seq, sent)
        if holding is None or holding.state not in _PENDING:
            self._give_back(key, coordinator, event.epoch, now_ns)
            return
        cell = self.world.states[coordinator].cells.get((self.group_id, *key))
        holding.epoch = event.epoch
        holding.late_renewals = holding.renewed_ns = 0
        holding.claim_seq = -1
        holding.stored_metadata = b""
        if cell is not None:
            holding.next_offset = holding.stored_offset = cell.next_offset
            holding.claimed_offset = cell.claimed_offset
            holding.stored_metadata = cell.metadata
            holding.metadata = holding.metadata or cell.metadata
        if isinstance(holding, RangeHolding) and self._granted is not None:
            holding.end, holding.granted = self._granted.end, self._granted.granted
        if holding.metadata != holding.stored_metadata:
            self._changed[key] = holding
        self._ours[coordinator][key] = holding
        holding.on(ClaimEvent.CLAIM_ACCEPTED)
        if sent is not None:
            self._extend_lease(holding, sent.t_send_ns, now_ns)
        # Ranges come and go many times in an interval: they cost no heartbeat of their own.
        is_range = isinstance(holding, RangeHolding)
        self._heartbeats.arrange(coordinator, now_ns + is_range * self.interval_ms * MS)

    def _granted_to(self, key: tuple[str, int], seq: int, sent: Sent | None) -> Holding | None:
        """Return whose claim was accepted: who asked for a range has this one now."""
        asked = None if sent is None else sent.holding
        wanted = self._wanted.get(key)
        if not isinstance(asked, RangeHolding) or not asked.is_asked_for or asked.claim_seq != seq:
            return wanted
        if asked.state is not ClaimState.CLAIMING:
            return wanted
        if wanted is not None:  # who waited to take it over need not any more
            self._end(wanted, ClaimEvent.CANCELLED, "granted to this client")
        del self._wanted[asked.key]
        asked.place(*key)
        self._wanted[key] = asked
        return asked

    def _on_split(self, coordinator: int, event: ev.RangeSplit) -> None:
        if event.instance_id != self.instance_id:
            return
        source = (event.topic, event.partition)
        holding = self._ours[coordinator].get(range_cell(*source, event.start))
        if isinstance(holding, RangeHolding):
            holding.end = min(holding.end, event.at)
        sent = self._sent.get(event.seq)
        if sent is not None and sent.kind == "split" and sent.holding is not None:
            self._sent.pop(event.seq)
            self._notices.append(Notice("split", sent.holding))

    def _on_rejected(self, coordinator: int, event: ev.Rejected, now_ns: int) -> None:
        if event.instance_id != self.instance_id:
            return
        if event.record == "Heartbeat" and event.reason == "cannot_follow":
            self._on_heartbeat(coordinator, event, now_ns)
            self._can_follow(coordinator)
        if event.topic is None or event.partition is None:
            return
        key = (event.topic, event.partition)
        if event.record == "ClaimingPartition":
            self._sent.pop(event.seq)
            holding = self._wanted.get(key)
            if (
                holding is not None
                and holding.state is ClaimState.CLAIMING
                and holding.claim_seq == event.seq
            ):
                holding.on(ClaimEvent.CLAIM_REJECTED)
        elif event.record == "ClaimingRange":
            sent = self._sent.pop(event.seq)
            asked = None if sent is None else sent.holding
            if asked is not None and asked.state is ClaimState.CLAIMING:
                asked.on(ClaimEvent.CLAIM_REJECTED)
                self._end(asked, ClaimEvent.CANCELLED, f"refused: {event.reason}")
        elif event.record == "SplittingRange":
            sent = self._sent.pop(event.seq)
            if sent is not None and sent.holding is not None:
                self._notices.append(Notice("split", sent.holding, event.reason))
        elif event.record == "ClaimingMessages":
            sent = self._sent.pop(event.seq)
            if sent is not None and sent.holding is not None:
                self._notices.append(
                    Notice("messages_rejected", sent.holding, event.reason, event.seq)
                )
        elif event.record == "SetPosition":
            self._sent.pop(event.seq)
            held = self._ours[coordinator].get(key)
            if held is not None and held.repositioned:
                self._position_refused(held, event.reason, now_ns)
        elif event.record == "ReleasingPartition":
            sent = self._sent.pop(event.seq)
            if sent is not None and sent.holding is not None:
                self._end(sent.holding, ClaimEvent.RELEASE_READ, "it was not ours any more")

    def _can_follow(self, coordinator: int) -> bool:
        """Say whether this client understands its group; if not, take no part any more (§5.15)."""
        level = self.world.states[coordinator].level(self.group_id)
        if self._lowest <= level <= self._highest:
            return True
        self.refusal = (
            f"group {self.group_id!r} works by level {level}; this version follows levels "
            f"{self._lowest} to {self._highest}: use a version of the library that follows "
            f"level {level}, or set the level with `marshal group level`"
        )
        self.stop_claiming(self.refusal)
        return False

    def _on_founded(self, coordinator: int, event: ev.Founded, now_ns: int) -> None:  # noqa: ARG002
        """The log has another identity: it was founded, recovered, or lifted above epochs that some
        client had seen. What is held from before may be lost to it (§5.16)."""
        for holding in list(self._ours[coordinator].values()):
            self._give_back(holding.key, coordinator, holding.epoch, now_ns, holding.next_offset)
            self._end(holding, ClaimEvent.LOST, "the coordination log was recovered")

    def _reconcile(self, coordinator: int, now_ns: int) -> None:
        """Compare what the log gives to this instance with what it has, and mend both (§5.5).

        An accepted claim that nobody wants, or a release that got lost, would otherwise stay held
        for as long as this instance lives: each of its heartbeats renews everything. So with each
        heartbeat, and when the log was read again: what released a cell may be lost (§7.1).
        """
        state: PartitionState = self.world.states[coordinator]
        session = state.session(self.group_id, self.client_id, self.instance_id)
        given = {} if session is None else session.claims
        ours = self._ours[coordinator]
        known = {holding.epoch for holding in ours.values()}
        for epoch in known - given.keys():
            for holding in [holding for holding in ours.values() if holding.epoch == epoch]:
                self._end(holding, ClaimEvent.LOST, "the log says that it is not ours")
        unknown = given.keys() - known
        if unknown:
            unknown -= {holding.epoch for holding in self._releasing.values()}
        for epoch in sorted(unknown):
            unit = given[epoch].unit
            wanted = self._wanted.get(unit)
            if wanted is None or wanted.state is not ClaimState.CLAIMING:
                self._give_back(unit, coordinator, epoch, now_ns)

    # The lease (§5.4 to §5.6)

    def _extend_lease(self, holding: Holding, t_send_ns: int, now_ns: int) -> None:
        holding.renewed_ns = max(holding.renewed_ns, t_send_ns)
        until_ns = t_send_ns + self.lease_ns
        if self.grants.bridges:
            until_ns = min(until_ns, self.grants.until_ns(*holding.key, now_ns))
        if self.silent or until_ns <= holding.lease_until_ns:
            return
        holding.lease_until_ns = until_ns
        if holding.state is ClaimState.LAPSED and now_ns < until_ns and holding.renewable:
            holding.on(ClaimEvent.LEASE_RENEWED)
            self._notices.append(Notice("regained" if holding.acquired else "acquired", holding))
            holding.acquired = True
            due_ns = self._lapse_due_ns[holding.coordinator]
            if due_ns is None or until_ns < due_ns:
                self._lapse_due_ns[holding.coordinator] = until_ns
                self._timers.set(until_ns, "lapse", holding.coordinator)

    def _let_lapse(self, coordinator: int, now_ns: int) -> None:
        earliest_ns: int | None = None
        for holding in self._ours[coordinator].values():
            if holding.state is not ClaimState.HELD:
                continue
            if holding.lease_until_ns <= now_ns:
                holding.on(ClaimEvent.LEASE_OVER)
                self._notices.append(Notice("lapsed", holding))
            elif earliest_ns is None or holding.lease_until_ns < earliest_ns:
                earliest_ns = holding.lease_until_ns
        self._lapse_due_ns[coordinator] = earliest_ns
        if earliest_ns is not None:
            self._timers.set(earliest_ns, "lapse", coordinator)

    def _renew_all(self, coordinator: int, t_send_ns: int, now_ns: int) -> None:
        """A heartbeat of this instance was read: it renews all that the instance holds."""
        for holding in list(self._ours[coordinator].values()):
            if holding.renewable:
                self._renewed(holding, t_send_ns, now_ns)

    def _renewed(self, holding: Holding, t_send_ns: int, now_ns: int) -> None:
        self._extend_lease(holding, t_send_ns, now_ns)
        if holding.renewed_ns + self.lease_ns > now_ns:
            holding.late_renewals = 0
            return
        holding.late_renewals += 1
        if holding.late_renewals == MAX_LATE_RENEWALS and not self.silent:
            self._give_up(holding, "its heartbeats were read too late, again and again", now_ns)

    def _look_at_grants(self, now_ns: int) -> None:
        """Act on what a migration grants, for as long as it does (INTEROP.md §7.2)."""
        for ours in self._ours:
            for holding in list(ours.values()):
                if not holding.renewable or self.silent:
                    continue
                if self.grants.withholds(*holding.key):
                    self._give_up(holding, "its migration took it back to version 1", now_ns)
                    continue
                until_ns = self.grants.until_ns(*holding.key, now_ns)
                if until_ns < holding.lease_until_ns:
                    holding.lease_until_ns = until_ns
                    self._let_lapse(holding.coordinator, now_ns)
                elif holding.renewed_ns:
                    self._extend_lease(holding, holding.renewed_ns, now_ns)

    def _on_stored(self, coordinator: int, event: ev.Renewed, now_ns: int) -> None:
        """The log has a position or metadata of ours."""
        key = (event.topic, event.partition)
        cell = self.world.cell(self.group_id, *key)
        releasing, holding = self._releasing.get(key), self._ours[coordinator].get(key)
        for each in (releasing, holding):
            if each is not None and cell is not None and cell.epoch == each.epoch:
                # One that was late may have brought back what is older: then it is sent again.
                each.stored_metadata = each.sent_metadata = cell.metadata
        if releasing is not None and releasing.release_at_ns is not None:
            self._release_at(releasing, now_ns)
        if holding is None or holding.epoch != event.epoch:
            return
        if event.next_offset > holding.stored_offset:
            holding.stored_offset = event.next_offset
            self._notices.append(Notice("stored", holding, "", event.next_offset))
        if holding.stored_offset < holding.next_offset or (
            holding.stored_metadata != holding.metadata
        ):
            self._changed[key] = holding
        else:
            self._changed.pop(key, None)

    # Heartbeats (§5.5)

    def _send_heartbeats(self, coordinator: int, now_ns: int) -> None:
        """Send the heartbeat of one coordination partition, and arrange for the next."""
        self._heartbeats.begin(coordinator)
        if self.silent:
            return
        self._reconcile(coordinator, now_ns)
        is_home = self.member and coordinator == self.home and not self.leaving
        probing = self._cold_start.is_asking(coordinator)
        renewing = any(holding.renewable for holding in self._ours[coordinator].values())
        if not is_home and not probing and not renewing:
            return
        # The network hangs, or the user flushes faster than it answers?
        if self._heartbeats.hold_back(coordinator):
            return
        membership: Membership = 1 if is_home else 0
        for positions, metadata in self._changes(coordinator):
            self._send_heartbeat(coordinator, positions, metadata, membership, now_ns)
            membership = 0
        if renewing or is_home:
            self._heartbeats.arrange(coordinator, now_ns + self.interval_ms * MS)

    def _changes(self, coordinator: int) -> Iterable[tuple[list[int], list[MetadataEntry]]]:
        """Yield what the log does not have yet, for as many heartbeats as it takes: at least one.

        Positions and metadata of so many claims as a record may carry, each.
        """
        base = self.world.states[coordinator].base
        positions: list[int] = []
        metadata: list[MetadataEntry] = []
        size = 0
        for key, holding in list(self._changed.items()):
            if not holding.renewable or self._ours[coordinator].get(key) is not holding:
                continue
            if len(positions) == 2 * MAX_ENTRIES or size > MAX_METADATA_AT_ONCE:
                yield positions, metadata
                positions, metadata, size = [], [], 0
            claimed_at = holding.epoch - base
            if claimed_at < 0:
                continue  # a claim of before the last genesis: it is being given back
            if holding.next_offset > holding.stored_offset:
                positions += (claimed_at, holding.next_offset)
            if holding.metadata != holding.stored_metadata:
                metadata.append(MetadataEntry(claimed_at, holding.metadata))
                holding.sent_metadata = holding.metadata
                size += 16 + len(holding.metadata)
        yield positions, metadata

    def _send_heartbeat(
        self,
        coordinator: int,
        positions: list[int],
        metadata: list[MetadataEntry],
        membership: Membership,
        now_ns: int,
    ) -> None:
        seq = next(self._seq)
        state = self.world.states[coordinator]
        session = state.session(self.group_id, self.client_id, self.instance_id)
        known = session is not None and session.metadata == self.member_metadata
        record = Heartbeat(
            *self._header(seq),
            self.interval_ms,
            membership,
            positions,
            metadata,
            None if known or membership != 1 else self.member_metadata,
            self._lowest,
            self._highest,
        )
        self._heartbeats.sent(coordinator)
        self._append(record, coordinator, "heartbeat", None, now_ns)

    def _on_heartbeat(
        self, coordinator: int, event: ev.Beat | ev.Rejected, now_ns: int
    ) -> int | None:
        """Return when this client sent the heartbeat, None if another did."""
        if event.instance_id != self.instance_id or event.client_id != self.client_id:
            return None
        sent = self._sent.pop(event.seq)
        if sent is None:
            return None
        self._heartbeats.settled(coordinator, now_ns)
        return sent.t_send_ns

    # Release, loss and end (§5.7 to §5.9)

    def _start_release(self, holding: Holding, now_ns: int) -> None:
        holding.lease_until_ns = 0
        holding.on(ClaimEvent.RELEASE_DECIDED)
        self._drop(holding)
        self._releasing[holding.key] = holding
        self._release(holding, now_ns)

    def _release(self, holding: Holding, now_ns: int) -> None:
        """Send the release, if the log has the metadata that go with its position (§5.7)."""
        if holding.metadata != holding.stored_metadata and self._may_store(holding):
            self._store_metadata(holding, now_ns)  # a heartbeat that was asked for may be held back
            # It may fail, and a release that was sent behind it come through.
            self._release_at(holding, now_ns + RETRY_NS)
            return
        holding.release_at_ns = None
        self._send_release(holding, now_ns)

    def _may_store(self, holding: Holding) -> bool:
        """Whether the log takes metadata of this claim."""
        cell = self.world.cell(self.group_id, *holding.key)
        is_held = cell is not None and cell.held and cell.epoch == holding.epoch
        return is_held and not self.silent and self._claimed_at(holding) >= 0

    def _claimed_at(self, holding: Holding) -> int:
        """The offset of its claim in the log; below 0: that is from before the last genesis."""
        return holding.epoch - self.world.states[holding.coordinator].base

    def _store_metadata(self, holding: Holding, now_ns: int) -> None:
        """Send what no heartbeat has carried yet: a release has the position alone (§5.7).

        Some of it is about the position, and would be taken for what goes with the new one.
        """
        if not metadata_unsent(holding) or not self._may_store(holding):
            return
        parts = list(self._changes(holding.coordinator))  # what is new of the others, too
        if holding.sent_metadata != holding.metadata:  # it is paused: they leave it out
            holding.sent_metadata = holding.metadata
            parts[-1][1].append(MetadataEntry(self._claimed_at(holding), holding.metadata))
        for positions, metadata in parts:
            self._send_heartbeat(holding.coordinator, positions, metadata, 0, now_ns)

    def _give_back(
        self,
        key: tuple[str, int],
        coordinator: int,
        epoch: int,
        now_ns: int,
        next_offset: int = NO_OFFSET,
        *,
        of: Holding | None = None,
    ) -> None:
        """Release an epoch without a word to the user, who never heard of it or has lost it.

        `of`: whose metadata go with it, should what carried them fail.
        """
        holding = self._new_holding(*key)
        holding.coordinator = coordinator
        holding.epoch = epoch
        holding.next_offset = next_offset
        if of is not None:
            holding.metadata, holding.stored_metadata = of.metadata, of.stored_metadata
            holding.sent_metadata = of.sent_metadata
        if isinstance(holding, RangeHolding):
            holding.begun = next_offset != NO_OFFSET
        self._start_release(holding, now_ns)

    def _give_up(self, holding: Holding, reason: str, now_ns: int) -> None:
        """Release what is ours against the will of the user, who hears of it if it was told."""
        self._store_metadata(holding, now_ns)
        self._give_back(
            holding.key, holding.coordinator, holding.epoch, now_ns, holding.next_offset, of=holding
        )
        if holding.acquired:
            self._end(holding, ClaimEvent.LOST, reason)
        else:
            self._wait_on(holding)

    def _drop(self, holding: Holding) -> None:
        """Take `holding`, and no other one of the same cell, off the lists."""
        for holdings in (self._wanted, self._releasing, self._ours[holding.coordinator]):
            if holdings.get(holding.key) is holding:
                del holdings[holding.key]
        if self._changed.get(holding.key) is holding:
            del self._changed[holding.key]

    def _wait_on(self, holding: Holding) -> None:
        """Go on wanting what was ours for so short a time that nobody was told."""
        if self.duplicate_instance_id is not None:
            self._end(holding, ClaimEvent.LOST, self._duplicate_text())
            return
        del self._ours[holding.coordinator][holding.key]
        holding.on(ClaimEvent.LOST_UNTOLD)
        holding.lease_until_ns = 0

    def _send_release(self, holding: Holding, now_ns: int) -> None:
        seq = next(self._seq)
        # Of a range: −1 says that nothing of it was begun.
        has_begun = not isinstance(holding, RangeHolding) or holding.begun
        record = ReleasingPartition(
            *self._header(seq),
            holding.topic,
            holding.partition,
            holding.epoch,
            holding.next_offset if has_begun else NO_OFFSET,
            1 if holding.ephemeral else 0,
        )
        self._append(record, holding.coordinator, "release", holding, now_ns)

    def _send_position(self, holding: Holding, now_ns: int) -> None:
        seq = next(self._seq)
        record = SetPosition(
            *self._header(seq),
            holding.topic,
            holding.partition,
            holding.reposition_to,
            self.world.version(self.group_id, *holding.key),
        )
        self._append(record, holding.coordinator, "position", holding, now_ns)

    def _position_refused(self, holding: Holding, reason: str, now_ns: int) -> None:
        if reason == "stale_version":  # something of the claim was on its way to the log
            self._send_position(holding, now_ns)
        elif now_ns < holding.reposition_until_ns:
            self._release_at(holding, now_ns + RETRY_NS)
        else:
            self._start_release(holding, now_ns)

    def _on_released(self, coordinator: int, event: ev.Released) -> None:
        key = (event.topic, event.partition)
        releasing = self._releasing.get(key)
        if releasing is not None and releasing.epoch == event.epoch:
            self._sent.pop(event.seq)
            releasing.stored_offset = max(releasing.stored_offset, event.next_offset)
            why = "the group was paused" if releasing.paused else "released"
            self._end(releasing, ClaimEvent.RELEASE_READ, why)
        current = self._ours[coordinator].get(key)
        if current is not None and current.epoch == event.epoch:
            self._lose(current, event)

    def _on_messages(self, coordinator: int, event: ev.MessagesClaimed) -> None:
        holding = self._ours[coordinator].get((event.topic, event.partition))
        if holding is not None and holding.epoch == event.epoch:
            # Also what was taken for failed and turned up late: within our epoch nobody else can.
            holding.claimed_offset = event.to_offset
        sent = self._sent.pop(event.seq) if event.instance_id == self.instance_id else None
        if sent is not None and sent.holding is not None and sent.holding.epoch == event.epoch:
            sent.holding.claimed_offset = event.to_offset
            self._notices.append(Notice("messages_claimed", sent.holding, "", event.seq))

    def _on_paused(self, coordinator: int, now_ns: int) -> None:
        if not self.heeds_pauses:
            return
        for holding in list(self._ours[coordinator].values()):
            if holding.paused or holding.repositioned:
                continue
            if not holding.acquired:
                self._wait_on(holding)
                self._give_back(holding.key, coordinator, holding.epoch, now_ns)
                continue
            # Nobody may act from now on, but somebody may be in the middle of acting: the release
            # waits for the user's, or for the moment at which the lease would have ended.
            holding.paused = True
            holding.on(ClaimEvent.PAUSED)
            self._release_at(holding, max(now_ns, holding.lease_until_ns))
            self._notices.append(Notice("paused", holding))

    def _lose(
        self, holding: Holding | None, event: ev.Claimed | ev.Released | ev.PositionSet
    ) -> None:
        if holding is None:
            return
        if type(event) is ev.Claimed and event.client_id == self.client_id:
            self._meet_twin(holding, event.instance_id)
        if not holding.acquired:
            self._wait_on(holding)
            return
        deed = {ev.Claimed: "taken over", ev.Released: "released", ev.PositionSet: "repositioned"}
        self._end(holding, ClaimEvent.LOST, f"{deed[type(event)]} by {event.client_id}")

    def _meet_twin(self, holding: Holding, instance_id: str) -> None:
        """Claim nothing any more: another live process has our client_id."""
        if self.duplicate_instance_id is not None:
            return
        self.duplicate_instance_id = instance_id
        self._notices.append(Notice("duplicate_client_id", holding, self._duplicate_text()))
        for other in list(self._wanted.values()):
            if other.state in _PENDING:
                self._end(other, ClaimEvent.CANCELLED, self._duplicate_text())

    def _end(self, holding: Holding, event: ClaimEvent, reason: str) -> None:
        if holding.state is ClaimState.ENDED:
            return
        self._drop(holding)
        holding.on(event)
        holding.lease_until_ns = 0
        holding.reason = reason
        kind: NoticeKind = "released" if event is ClaimEvent.RELEASE_READ else "lost"
        self._notices.append(Notice(kind, holding, reason))

    def _duplicate_text(self) -> str:
        return (
            f"client_id {self.client_id!r} is used by another live process in group "
            f"{self.group_id!r} (instance {self.duplicate_instance_id}); give each process its own "
            "client_id. This one has stopped claiming"
        )

    # Small things

    def _header(self, seq: int) -> tuple[Literal[2], str, str, str, int]:
        return (VERSION, self.client_id, self.instance_id, self.group_id, seq)

    def _append(
        self,
        record: Message,
        coordinator: int,
        kind: AppendKind,
        holding: Holding | None,
        now_ns: int,
    ) -> None:
        seq = record.seq
        for forgotten in self._sent.add(seq, Sent(now_ns, coordinator, kind, holding)):
            if forgotten.kind == "heartbeat":
                self._heartbeats.settled(coordinator, now_ns)
            elif forgotten.kind == "position" and forgotten.holding is not None:
                self._release_at(forgotten.holding, now_ns + RETRY_NS)
        self._appends.append(Append(coordinator, seq, encode(record)))
        self._watch_sent()

    def _check_at(self, holding: Holding, at_ns: int) -> None:
        holding.check_at_ns = at_ns
        self._timers.set(at_ns, "claim", holding.coordinator, holding)

    def _release_at(self, holding: Holding, at_ns: int) -> None:
        holding.release_at_ns = at_ns
        self._timers.set(at_ns, "release", holding.coordinator, holding)


def _name(holding: Holding) -> str:
    return f"claim on {holding.topic}/{holding.partition}"
