"""The claimant of version 1: claims beside Go clients, on the side of waiting (INTEROP.md §4).

Theory of operation
-------------------
The states and the interface are those of `marshal_py.protocol.claimant.Claimant`. What differs is
what can be relied on. Go decides by wall clocks, and a Go client that believes it holds a partition
never looks back: it goes on, whatever the log says. So everything here gives way.

Claiming. A free cell is claimed at once. One that is held is claimed when the log has been silent
about it for 2 HB on this client's monotonic clock, *and* the times in the records allow it. The
claim is won if the fold grants it and no other client wrote about the cell between our decision and
our record: a compare-and-swap that nobody but us enforces. A claim that the fold grants without
that is not acted on.

Holding. The first heartbeat that comes back starts the lease; each later one renews it. The lease
is 1 HB less the margin, where version 2 has 2 HB: Go clients whose clock is ahead by almost as much
as 1 HB still wait for longer than we act. Heartbeats go out every HB / 3, one record a claim. Their
times are a little behind our clock (`STAMP_BEHIND_S`): Go takes a time ahead of its own clock for
no claim at all, and clocks are never equal.

Asking first. A version 1 heartbeat overwrites whoever holds the cell. So it is sent only by who has
read, 1 HB ago at most, that the cell is its own. After a longer silence (an outage, a suspended
process) a `ClaimingPartition` is sent instead, which overwrites nobody; once it has been read, and
nothing of anyone else before it, the heartbeat follows.

Giving way. A heartbeat or a granted claim of anyone else ends a claim at once. A claim that is in
doubt (see the fold) suspends it: `held` is false for some seconds, in which the other's heartbeat
would come if it took its claim for granted. Then our next heartbeat makes it held again.

Nobody is fought: what was lost is wanted again as a stranger would want it, after the wait.

Restart. The claims that an earlier instance of our client_id left are taken with a heartbeat alone,
as Go does, if nobody wrote about the cell in between. Another live process of that name
hears of it by that, and stops.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, cast

from marshal_py.errors import InvalidArgument, MalformedRecord, NotInVersion1
from marshal_py.protocol import events as ev
from marshal_py.protocol.claim_states import ClaimEvent, ClaimState
from marshal_py.protocol.claimant import (
    MAX_LATE_RENEWALS,
    RETRY_NS,
    Claimant,
)
from marshal_py.protocol.holding import Append, Holding, Notice
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.text.codec import (
    CLAIMING_PARTITION,
    HEARTBEAT,
    RELEASING_PARTITION,
    TextRecord,
    check_name,
    encode,
)
from marshal_py.protocol.text.rationalizer import TextCell
from marshal_py.protocol.unread_appends import Sent
from marshal_py.protocol.world import MS, Observer, World

__all__ = ["STAMP_BEHIND_S", "TextClaimant", "TextHolding"]

STAMP_BEHIND_S: Final = 2.0
"""How far the times in our records are behind our clock, at most (a quarter of HB, if less)."""

SETTLE_S: Final = 10
"""How long a claim is suspended when another is in doubt, at most (half of HB, if less)."""

JITTER_S: Final = 3
"""How much later than 2 HB a stale cell is claimed, at most (a tenth of HB, if less)."""

HEARTBEATS_PER_INTERVAL: Final = 3
"""Heartbeats of a claim in one HB: one may get lost without a lapse."""

MAX_UNREAD_HEARTBEATS: Final = 2
"""Heartbeats of one claim that may be unread: more would only pile up in an outage."""

_S: Final = 1000 * MS
_MAX_UNREAD: Final = 20_000
_OURS: Final = (ClaimState.HELD, ClaimState.LAPSED)
_PENDING: Final = (ClaimState.WAITING, ClaimState.CLAIMING)


class TextHolding(Holding):
    """One claim of this client, with what only version 1 needs to know of it."""

    __slots__ = ("flush", "known_ns", "refused_at", "renew_from_ns", "unread_heartbeats")

    def __init__(self, topic: str, partition: int, coordinator: int) -> None:
        super().__init__(topic, partition, coordinator)
        self.unread_heartbeats = 0
        """Heartbeats that are on their way."""
        self.flush = False
        self.refused_at = NO_OFFSET
        """Offset of our last claim that was refused: we do not believe in it."""
        self.known_ns = 0
        """When we sent the last record that, when it was read, found the cell to be ours."""
        self.renew_from_ns = 0
        """Heartbeats sent earlier renew nothing: a doubt came up after them."""


class _Unread(NamedTuple):
    """A record of ours that has not been read yet. It carries no number, so its fields name it."""

    type: str
    topic: str
    partition: int
    time_s: int
    seq: int
    t_send_ns: int
    decided_at: int
    """The log offset that had been reached when it was decided to send it."""


class TextClaimant(Claimant):
    """All claims of one (client_id, instance_id) in one group, by version 1's rules.

    `interval_ms` must be the same in all clients of the log, Go's included, and whole seconds.
    `wall_s` is the wall clock that the times in our records are taken from; nothing that is read is
    compared with it, but for pauses and the decision when to send.

    As `Claimant`, it is one state machine, and as long as that: to split it would spread over files
    what each of its rules changes at once (a claim's state, its lease, what is on its way).
    """

    _holding: ClassVar[type[Holding]] = TextHolding

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
        wall_s: Callable[[], float],
        resume: bool = True,
    ) -> None:
        super().__init__(
            world,
            observers,
            client_id=client_id,
            instance_id=instance_id,
            group_id=group_id,
            interval_ms=interval_ms,
            margin_ms=margin_ms,
            member=False,
            resume=resume,
            cold_start_skew_ms=None,
        )
        self.wall_s = wall_s
        self.lease_ns = (interval_ms - margin_ms) * MS
        self._interval_s = interval_ms // 1000
        self._heartbeat_every_ns = interval_ms * MS // HEARTBEATS_PER_INTERVAL
        self._settle_ns = min(SETTLE_S * 1000, interval_ms // 2) * MS
        self._jitter_below_ns = min(JITTER_S * 1000, interval_ms // 10) * MS
        self._behind_s = min(STAMP_BEHIND_S, interval_ms / 4000)
        self._unread = _none_unread(world.partitions)
        self._foreign_at: dict[tuple[str, int], int] = {}
        """Offset of the last record of another client about a cell that this one has written about.

        It outlives the claim: what was sent for the last one may be read when there is a next one.
        """
        # Numbers for the log writer alone. Far from the times that events bring as their `seq`.
        self._seq = itertools.count(1 << 60)

    # What the user wants

    def want(self, topic: str, partition: int, now_ns: int, *, ephemeral: bool = False) -> Holding:
        """As `Claimant.want`; raises `InvalidArgument` for a topic with a slash, too.

        Raises `NotInVersion1` for an ephemeral claim.
        """
        if ephemeral:
            raise NotInVersion1("ephemeral claims: version 1 (wire='text') forgets no cell")
        if isinstance(topic, str):
            try:
                check_name("topic", topic)
            except MalformedRecord as error:
                raise InvalidArgument(str(error)) from None
        return super().want(topic, partition, now_ns)

    def commit(self, holding: Holding, next_offset: int, now_ns: int, *, flush: bool) -> None:
        """As `Claimant.commit`; with `flush`, one heartbeat goes at once, for this claim alone."""
        super().commit(holding, next_offset, now_ns, flush=False)
        if flush and holding.next_offset > holding.stored_offset:
            self._flush(_text(holding), now_ns)

    def _flush(self, holding: TextHolding, now_ns: int) -> None:
        holding.flush = not self._renew(holding, now_ns)

    def set_metadata(self, holding: Holding, metadata: bytes) -> None:  # noqa: ARG002
        """Raise `NotInVersion1`: its heartbeats have no room for metadata."""
        raise NotInVersion1(
            "claim metadata: version 1 heartbeats (wire='text') have no field for it"
        )

    def set_member_metadata(self, metadata: bytes, now_ns: int) -> None:  # noqa: ARG002
        """Raise `NotInVersion1`: it has no members."""
        raise NotInVersion1(
            "member metadata: version 1 (wire='text') has no members that could be told of it"
        )

    def claim_messages(
        self,
        holding: Holding,  # noqa: ARG002
        proposed_offset: int,  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
    ) -> int:
        """Raise `NotInVersion1`: no version 1 client looks at `ClaimingMessages`."""
        raise NotInVersion1(
            "at-most-once delivery: version 1 clients (wire='text') ignore claims of messages, so "
            "two of them could deliver the same one. Use wire='msgpack', after "
            "`marshal group migrate`"
        )

    # What happens

    def applied(self, coordinator: int, events: list[ev.Event], now_ns: int) -> None:
        """Take in what the fold reported of one coordination partition."""
        touched: dict[tuple[str, int], None] = {}
        beat_at = NO_OFFSET
        reclaimed: _Unread | None = None
        event: Any
        for event in events:
            kind = type(event)
            if kind is ev.Ignored or event.group_id != self.group_id:
                continue
            topic = getattr(event, "topic", None)
            if topic is not None and self.world.coordinator(self.group_id, topic, 0) != coordinator:
                continue  # a record where its topic's claims are not decided
            own = event.instance_id == self.instance_id and event.client_id == self.client_id
            if kind is ev.Beat:
                beat_at, reclaimed = event.offset, None
            elif kind is ev.Claimed:
                touched[event.topic, event.partition] = None
                if own:
                    by = HEARTBEAT if event.offset == beat_at else CLAIMING_PARTITION
                    unread = self._read_back(coordinator, by, event)
                    reclaimed = unread if by == HEARTBEAT else None
                    self._on_own_claimed(coordinator, event, unread, now_ns)
                else:
                    self._note_foreign(event)
                    super()._on_claimed(coordinator, event, now_ns)
                    self._note_twin(coordinator, event)
            elif kind is ev.Renewed:
                if own:
                    unread = reclaimed or self._read_back(coordinator, HEARTBEAT, event)
                    self._on_own_renewed(coordinator, event, unread, now_ns)
                else:
                    self._note_foreign(event)
                    self._note_twin(coordinator, event)
            elif kind is ev.Released:
                touched[event.topic, event.partition] = None
                if own:
                    self._read_back(coordinator, RELEASING_PARTITION, event)
                self._on_released(coordinator, event)
            elif kind is ev.Rejected:
                self._on_refused(coordinator, event, own, now_ns)
            elif kind is ev.GroupPaused:
                if self._paused_for_ns(self.world.states[coordinator]) > 0:
                    self._on_paused(coordinator, now_ns)
            elif kind is ev.GroupResumed:
                touched.update((h.key, None) for h in self._waiting(coordinator))
        for key in touched:
            holding = self._wanted.get(key)
            if holding is not None and holding.state is ClaimState.WAITING:
                self._consider(holding, now_ns)

    def append_failed(self, seq: int, now_ns: int) -> None:
        """Take in that an append failed, or that nobody knows whether it did."""
        sent = self._sent.get(seq)
        if sent is not None and sent.kind == "heartbeat":
            self._sent.pop(seq)
            if sent.holding is not None:
                self._heartbeat_settled(_text(sent.holding), now_ns)
                self._heartbeats.arrange(sent.coordinator, now_ns + RETRY_NS)
            return
        super().append_failed(seq, now_ns)
        if sent is not None and sent.kind == "claim" and sent.holding is not None:
            holding = sent.holding
            if holding.state in _OURS and holding.claim_seq == seq:  # it was to ask first
                holding.claim_seq = -1
                self._heartbeats.arrange(holding.coordinator, now_ns + RETRY_NS)

    def truncated(self, why: str = "the coordination log was truncated") -> None:
        """Drop every lease: the log is not what was read, and will be replayed."""
        super().truncated(why)
        for queue in self._unread:
            queue.clear()
        self._foreign_at.clear()
        for holding in map(_text, self.holdings()):
            holding.unread_heartbeats, holding.claim_seq = 0, -1

    def reshape(self) -> None:
        """See `Claimant.reshape`."""
        super().reshape()
        self._unread = _none_unread(self.world.partitions)

    # Our own records, recognised by their fields

    def _read_back(
        self,
        coordinator: int,
        type_: str,
        event: ev.Claimed | ev.Renewed | ev.Released | ev.Rejected,
    ) -> _Unread | None:
        """Find what we sent; the oldest that fits, so that its time of sending is no later."""
        queue = self._unread[coordinator]
        what = (type_, event.topic, event.partition, event.seq)
        for index, unread in enumerate(queue):
            if unread[:4] == what:
                del queue[index]
                self._sent.pop(unread.seq)
                return unread
        return None

    def _send(
        self, type_: str, holding: Holding, sent: Sent, offset: int | None, decided_at: int
    ) -> int:
        seq = next(self._seq)
        time_s = self._stamp_s()
        value = encode(
            TextRecord(
                type_,
                1,
                time_s,
                self.instance_id,
                self.client_id,
                self.group_id,
                holding.topic,
                holding.partition,
                offset,
            )
        )
        coordinator = holding.coordinator
        queue = self._unread[coordinator]
        while queue and queue[0].t_send_ns < sent.t_send_ns - _FORGET_AFTER * self.lease_ns:
            queue.popleft()  # it failed long ago
        queue.append(
            _Unread(
                type_, holding.topic, holding.partition, time_s, seq, sent.t_send_ns, decided_at
            )
        )
        self._sent.by_seq[seq] = sent
        self._foreign_at.setdefault(holding.key, NO_OFFSET)
        self._appends.append(Append(coordinator, seq, value))
        self._watch_sent()
        return seq

    def _stamp_s(self) -> int:
        return math.floor(self.wall_s() - self._behind_s)

    # Claiming

    def _consider(self, holding: Holding, now_ns: int) -> None:
        """Claim the cell if that is allowed now; otherwise arrange to look again."""
        holding.check_at_ns = None
        p = holding.coordinator
        observer, state = self.observers[p], self.world.states[p]
        if observer.caught_up_at_offset is None or self.leaving:
            return
        pause_ns = self._paused_for_ns(state)
        if pause_ns > 0:
            self._wait(
                holding, now_ns + min(pause_ns, self._heartbeat_every_ns), "the group is paused"
            )
            return
        cell = cast(TextCell | None, state.cells.get((self.group_id, *holding.key)))
        if cell is None:
            self._send_claim(holding, state, now_ns)
            return
        if not cell.held:
            wait_ns = self._doubt_left_ns(_text(holding), cell, observer, now_ns)
            if wait_ns > 0:
                self._wait(holding, now_ns + wait_ns, "another client may have claimed it")
            else:
                self._send_claim(holding, state, now_ns)
            return
        if holding.key in self._releasing:
            return  # our own release is on its way
        age_s = self._stamp_s() - cell.heartbeat_s
        granted = abs(age_s) >= 2 * self._interval_s
        if self._is_left_by_us(cell, observer):
            if granted:
                self._send_claim(holding, state, now_ns)
                return
            # Later, somebody else's claim may be on its way; to overwrite it would be no help.
            if 2 * age_s < 3 * self._interval_s:
                self._send_reclaim(holding, cell, state, now_ns)
                return
            # No other living client has our name, so only the times are waited for.
            self._wait(holding, now_ns + (2 * self._interval_s - age_s) * _S, "it was ours before")
            return
        # Two intervals of silence, and times that let our claim be granted. Truncation to seconds
        # and our stamps' delay cost up to three more.
        silence_ns = observer.silence_ns(cell.version, now_ns) or 0
        left_ns = 2 * self.interval_ms * MS - silence_ns
        if not granted:
            left_ns = max(left_ns, (2 * self._interval_s - age_s) * _S)
        left_ns += self._jitter_ns(cell, holding)
        if left_ns > 0:
            self._wait(holding, now_ns + left_ns, f"{cell.holder} holds it")
            return
        self._send_claim(holding, state, now_ns)

    def _jitter_ns(self, cell: TextCell, holding: Holding) -> int:
        """Spread the claims of those who wait for the same cell, so that the first one is read."""
        what = f"{self.instance_id}/{holding.topic}/{holding.partition}/{cell.version}"
        return zlib.crc32(what.encode()) % self._jitter_below_ns + 1

    def _wait(self, holding: Holding, until_ns: int, why: str) -> None:
        self._check_at(holding, until_ns)
        self._notices.append(Notice("waiting", holding, why))

    def _is_left_by_us(self, cell: TextCell, observer: Observer) -> bool:
        """Whether an earlier instance of this client holds the cell."""
        caught_up_at = observer.caught_up_at_offset
        return (
            self.resume
            and cell.holder == self.client_id
            and cell.instance_id != self.instance_id
            and caught_up_at is not None
            and cell.epoch < caught_up_at
        )

    def _doubt_left_ns(
        self, holding: TextHolding, cell: TextCell, observer: Observer, now_ns: int
    ) -> int:
        """Return how long a free cell is to be left alone: another may believe to hold it."""
        left_ns = 0
        doubt = NO_OFFSET if cell.doubt == holding.refused_at else cell.doubt
        for offset, for_ns in ((doubt, self._settle_ns), (cell.rival, 2 * self.interval_ms * MS)):
            seen_ns = observer.seen.at(offset)
            if offset != NO_OFFSET and seen_ns is not None:
                left_ns = max(left_ns, seen_ns + for_ns + 1 - now_ns)
        return left_ns

    def _paused_for_ns(self, state: PartitionState) -> int:
        """Return how much longer the group is paused; our clock decides when we send, as Go's."""
        until_ms = state.paused.get(self.group_id)
        if until_ms is None or not self.heeds_pauses:
            return 0
        return max(0, until_ms + 1000 - int(self.wall_s() * 1000)) * MS

    def _send_claim(self, holding: Holding, state: PartitionState, now_ns: int) -> None:
        holding.on(ClaimEvent.CLAIM_SENT)
        sent = Sent(now_ns, holding.coordinator, "claim", holding)
        holding.claim_seq = self._send(CLAIMING_PARTITION, holding, sent, None, state.next_offset)

    def _send_reclaim(
        self, holding: Holding, cell: TextCell, state: PartitionState, now_ns: int
    ) -> None:
        holding.on(ClaimEvent.CLAIM_SENT)
        sent = Sent(now_ns, holding.coordinator, "claim", holding)
        holding.claim_seq = self._send(
            HEARTBEAT, holding, sent, cell.current_offset, state.next_offset
        )

    def _note_foreign(self, event: ev.Claimed | ev.Renewed | ev.Rejected) -> None:
        if event.topic is None or event.partition is None:
            return
        key = (event.topic, event.partition)
        if key in self._wanted or key in self._foreign_at:
            self._foreign_at[key] = event.offset

    def _note_twin(self, coordinator: int, event: ev.Claimed | ev.Renewed) -> None:
        """Hear of a process that lives under our name and holds what we want.

        What we hold tells by itself. But a twin that flushes often may come between each decision
        of ours to claim and the record: then nothing is ever won that it could take away.
        """
        holding = self._wanted.get((event.topic, event.partition))
        if event.client_id != self.client_id or holding is None or holding.state not in _PENDING:
            return
        caught_up_at = self.observers[coordinator].caught_up_at_offset
        if caught_up_at is not None and event.offset >= caught_up_at:
            self._meet_twin(holding, event.instance_id)

    def _on_own_claimed(
        self, coordinator: int, event: ev.Claimed, unread: _Unread | None, now_ns: int
    ) -> None:
        """A record of ours made us the owner in the log. That alone does not make us the holder."""
        key = (event.topic, event.partition)
        current = self._ours[coordinator].get(key)
        if current is not None:
            # We had asked, for so long that the claim counts as a new one.
            current.epoch = event.epoch
            self._still_ours(_text(current), unread, now_ns)
            return
        wanted = self._wanted.get(key)
        if wanted is None or wanted.state not in _PENDING:
            # Nobody wants it any more. If it was free, it is given back; if somebody held it, that
            # one may still act, and its next heartbeat puts the log right: a twin of ours, too.
            if event.previous_instance_id in (None, self.instance_id):
                self._give_back(key, coordinator, event.epoch, now_ns)
            return
        holding = _text(wanted)
        holding.claim_seq = -1
        if unread is None or self._foreign_at.get(key, NO_OFFSET) >= unread.decided_at:
            holding.on(ClaimEvent.CLAIM_REJECTED)  # somebody else may believe that it is theirs
            return
        cell = self.world.states[coordinator].cells.get((self.group_id, *key))
        if cell is not None:
            holding.next_offset = holding.stored_offset = cell.next_offset
        holding.epoch = event.epoch
        holding.renew_from_ns, holding.known_ns = 0, unread.t_send_ns
        self._ours[coordinator][key] = holding
        holding.on(ClaimEvent.CLAIM_ACCEPTED)
        if unread.type == CLAIMING_PARTITION:
            self._renew(holding, now_ns)
        self._heartbeats.arrange(coordinator, now_ns + self._heartbeat_every_ns)

    def _still_ours(self, holding: TextHolding, unread: _Unread | None, now_ns: int) -> None:
        """What we asked has been read, and nobody had come between."""
        holding.claim_seq = -1
        if unread is None:
            return
        holding.known_ns = max(holding.known_ns, unread.t_send_ns)
        if self._renew(holding, now_ns) or now_ns - unread.t_send_ns < self.interval_ms * MS:
            return
        # This client reads too late to hold anything, and would only keep the others from it.
        holding.late_renewals += 1
        if holding.late_renewals == MAX_LATE_RENEWALS:
            self._give_back(
                holding.key, holding.coordinator, holding.epoch, now_ns, holding.next_offset
            )
            self._end(holding, ClaimEvent.LOST, "its records were read too late, again and again")

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
        """As `Claimant._give_back`. A version 1 release sets the position: it is to stay."""
        releasing = self._releasing.get(key)
        if releasing is not None:
            # What is on its way has no epoch, and gives this one back, too. A second one might
            # come when the cell was claimed anew, and set its position back.
            releasing.epoch = epoch
            return
        cell = self.world.states[coordinator].cells.get((self.group_id, *key))
        if next_offset == NO_OFFSET and cell is not None:
            next_offset = cell.next_offset
        super()._give_back(key, coordinator, epoch, now_ns, next_offset, of=of)

    def _on_refused(self, coordinator: int, event: ev.Rejected, own: bool, now_ns: int) -> None:
        if event.topic is None or event.partition is None:
            return
        key = (event.topic, event.partition)
        if own and event.record == CLAIMING_PARTITION:
            unread = self._read_back(coordinator, CLAIMING_PARTITION, event)
            holding = self._wanted.get(key)
            if holding is None or unread is None:
                return
            # What failed and was sent again within a second has the same fields.
            alike = {other.seq for other in self._unread[coordinator] if other[:4] == unread[:4]}
            if holding.claim_seq not in {unread.seq} | alike:
                return
            if holding.state in _OURS:
                self._still_ours(_text(holding), unread, now_ns)
            else:
                holding.claim_seq = -1
                _text(holding).refused_at = event.offset
                holding.on(ClaimEvent.CLAIM_REJECTED)
                self._consider(holding, now_ns)
        elif own and event.record == RELEASING_PARTITION:
            self._read_back(coordinator, RELEASING_PARTITION, event)
            releasing = self._releasing.get(key)
            if releasing is not None:
                self._end(releasing, ClaimEvent.RELEASE_READ, "it was not ours any more")
        elif event.reason == "in_doubt":
            self._note_foreign(event)
            current = self._ours[coordinator].get(key)
            if current is not None:
                self._suspend(_text(current), event, now_ns)

    # The lease

    def _suspend(self, holding: TextHolding, event: ev.Rejected, now_ns: int) -> None:
        """Stop acting until it is clear that another's claim was not taken for granted."""
        holding.renew_from_ns = now_ns + self._settle_ns
        holding.lease_until_ns = 0
        if holding.state is ClaimState.HELD:
            holding.on(ClaimEvent.LEASE_OVER)
            self._notices.append(
                Notice("lapsed", holding, f"{event.client_id} may have claimed it")
            )
        self._heartbeats.arrange(holding.coordinator, holding.renew_from_ns)

    def _on_own_renewed(
        self, coordinator: int, event: ev.Renewed, unread: _Unread | None, now_ns: int
    ) -> None:
        current = self._ours[coordinator].get((event.topic, event.partition))
        if current is None or current.epoch != event.epoch or unread is None:
            return
        holding = _text(current)
        holding.known_ns = max(holding.known_ns, unread.t_send_ns)
        if event.next_offset > holding.stored_offset:
            holding.stored_offset = event.next_offset
            self._notices.append(Notice("stored", holding, "", event.next_offset))
        if unread.t_send_ns >= holding.renew_from_ns:
            self._extend_lease(holding, unread.t_send_ns, now_ns)
        if holding.lease_until_ns > now_ns:
            holding.late_renewals = 0
        if event.offset != event.epoch:  # the heartbeat that reclaims is counted as a claim
            self._heartbeat_settled(holding, now_ns)

    # Heartbeats: one record a claim

    def _send_heartbeats(self, coordinator: int, now_ns: int) -> None:
        """Send the heartbeats of one coordination partition, and arrange for the next."""
        self._heartbeats.begin(coordinator)
        if self.silent:
            return
        renewing = [h for h in self._ours[coordinator].values() if not h.paused]
        for holding in renewing:
            self._renew(_text(holding), now_ns)
        if renewing:
            self._heartbeats.arrange(coordinator, now_ns + self._heartbeat_every_ns)

    def _renew(self, holding: TextHolding, now_ns: int) -> bool:
        """Send a heartbeat, if we know that we may; say whether one was sent."""
        if self.silent or holding.paused or holding.unread_heartbeats >= MAX_UNREAD_HEARTBEATS:
            return False
        if now_ns < holding.renew_from_ns:
            return False
        if now_ns - holding.known_ns >= self.interval_ms * MS:
            if holding.claim_seq == -1:
                state = self.world.states[holding.coordinator]
                sent = Sent(now_ns, holding.coordinator, "claim", holding)
                holding.claim_seq = self._send(
                    CLAIMING_PARTITION, holding, sent, None, state.next_offset
                )
            return False
        holding.unread_heartbeats += 1
        holding.flush = False
        sent = Sent(now_ns, holding.coordinator, "heartbeat", holding)
        self._send(HEARTBEAT, holding, sent, max(0, holding.next_offset), NO_OFFSET)
        return True

    def _heartbeat_settled(self, holding: TextHolding, now_ns: int) -> None:
        holding.unread_heartbeats = max(0, holding.unread_heartbeats - 1)
        if holding.flush and holding.state in _OURS:
            self._flush(holding, now_ns)

    def _send_release(self, holding: Holding, now_ns: int) -> None:
        if self.duplicate_instance_id is not None:
            # The other client of our name takes it for its own, whatever the instance says.
            self._end(holding, ClaimEvent.RELEASE_READ, self._duplicate_text())
            return
        sent = Sent(now_ns, holding.coordinator, "release", holding)
        offset = max(0, holding.next_offset)
        self._send(RELEASING_PARTITION, holding, sent, offset, NO_OFFSET)


def _none_unread(partitions: int) -> list[deque[_Unread]]:
    return [deque(maxlen=_MAX_UNREAD) for _ in range(partitions)]


def _text(holding: Holding) -> TextHolding:
    return cast(TextHolding, holding)


_FORGET_AFTER: Final = 20
"""Leases after which a record of ours that was never read is given up."""
