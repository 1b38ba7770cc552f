"""The partitions of a consumer: wanted, held, given back, each through its `Stage`s.

`advance` does for one partition what its claim and its stage ask for; nothing depends on having
seen what happened in between. Called by the thread of `Assignment`, which decides what is wanted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

import msgspec

from marshal_py.client.claim import core_of
from marshal_py.client.marshal import Claim, Marshal, driver_of
from marshal_py.client.structured_logs import Fields
from marshal_py.client.waiting import FOR_EVER_S
from marshal_py.consumer.agreement import Agreement
from marshal_py.consumer.callbacks import Callbacks
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.consumer.held_partition import HeldPartition, Stage
from marshal_py.consumer.positions import Positions
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import ClaimTimeout, Closed, NotHeld
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import RangeHolding
from marshal_py.protocol.done_offsets import Ranges
from marshal_py.protocol.holding import metadata_unsent

__all__ = ["Partitions"]

OWED_INTERVALS: Final = 2
"""At most once: what was claimed ahead has so long to be fetched before its partition goes."""

LEFT_S: Final = 30.0
"""`on_revoked` waits so long for what still runs of a partition that was lost."""


class Partitions:
    """All partitions that are wanted, held or being given back.

    `busy_with` says whether something of a partition is in the user's hands; `manual`, whether
    messages are acknowledged one by one; `in_use`, whether the user works on a message of it now.
    """

    def __init__(
        self,
        marshal: Marshal,
        fetcher: Fetcher,
        delivery: Delivery,
        positions: Positions,
        agreement: Agreement,
        log: Fields,
        wakeup: Wakeup,
        *,
        callbacks: Callbacks,
        busy_with: Callable[[HeldPartition], bool],
        in_use: Callable[[HeldPartition], bool],
        manual: bool,
    ) -> None:
        self.by_key: dict[Unit, HeldPartition] = {}
        self.done_to: Callable[[Unit], int] = lambda _: -1
        """Below what all of a partition that is shared by ranges is done; −1: not known."""
        self._marshal = marshal
        self._fetcher = fetcher
        self._delivery = delivery
        self._positions = positions
        self._agreement = agreement
        self._log = log
        self._wakeup = wakeup
        self._callbacks = callbacks
        self._busy_with = busy_with
        self._in_use = in_use
        self._leaving: list[tuple[HeldPartition, float]] = []
        """Whose claims have ended, and since when, without `on_revoked` having been called."""
        self._in_hands: dict[Unit, Ranges] = {}
        """What the program had in hand of partitions when claims on them ended."""
        self._manual = manual
        self._is_text = marshal.settings.wire == "text"
        self._release = True
        self._hurry_s: float | None = None
        """When what is in the user's hands is no longer waited for."""

    def all(self) -> list[HeldPartition]:
        """Return them; the list is the caller's."""
        return list(self.by_key.values())

    @property
    def is_waiting(self) -> bool:
        """Whether some partition is on its way to be fetched, or to somebody else."""
        return bool(self._leaving) or not all(part.is_settled for part in self.all())

    def is_busy(self, part: HeldPartition) -> bool:
        """Whether something of a partition is in the user's hands: it could not go at once."""
        return self._busy_with(part)

    # From a claim to messages

    def want(self, key: Unit) -> None:
        """Claim a partition; it becomes active when the claim is held."""
        marshal = self._marshal
        with driver_of(marshal).lock:
            claim = marshal.want(*key)
            core_of(claim).on_notice = self._delivery.on_notice
            core_of(claim).tells_epochs = True
            part = HeldPartition(claim, manual=self._manual)
            part.in_hands_before = self._in_hands.get(part.source, ())
            self.by_key[key] = part
        if claim.held:
            self._wakeup.wake()

    def advance(self, part: HeldPartition) -> None:
        """Do for one partition what its claim and its stage ask for."""
        claim = part.claim
        if core_of(claim).ended.is_set():
            self.remove(part)
            return
        if part.holding.paused and part.stage is Stage.ACTIVE:
            self.drain(part)
        if part.stage is Stage.WANTED:
            if claim.held and part.reset_to is None:
                self._activate(part)
        elif part.stage is Stage.ACTIVE:
            self._positions.look_after(part)
            self._fetcher.suspend(part, not part.claim.held)
            if part.out_of_range and part.reset_to is None:
                self._restart(part)
            if not self._is_text:
                self._say_what_is_done(part)
        if part.reset_to is not None and part.range is not None:
            self._fetcher.truncated(part.source, part.reset_to)
            if not self._delivery.claims_messages:  # all that is open ends with it
                part.reset_to = min(part.reset_to, max(0, self.done_to(part.source)))
            self.end_range(part.claim)  # the partition's book goes on there
        elif part.reset_to is not None:
            self._reset(part, part.reset_to)
        if part.stage is Stage.DRAINING:
            if self._is_drained(part):
                self._give_back(part)
            elif part.is_owed:
                part.suspended = not part.claim.held
                self._fetcher.pause_or_resume(part)  # it may be claimed ahead since the pause

    def _activate(self, part: HeldPartition) -> None:
        """The claim is held: find the position, and have its messages fetched."""
        if any(left.key == part.key for left, _ in self._leaving):
            return  # in the program's eyes it is still there
        if not self._agreement.allows(part):
            return
        part.floor = part.claim.claimed_offset
        position = self._positions.start_of(part)
        if position is None or not self._callbacks.assigned(part):
            return
        if part.reset_to is not None:
            return  # `on_assigned` went elsewhere
        self._start(part, position)

    def _start(self, part: HeldPartition, position: int) -> None:
        done = part.metadata.done_ranges
        if self._delivery.claims_messages:
            part.start(max(position, -1))
        else:
            is_stored = position == part.claim.stored_offset  # the epoch is of what was stored
            part.start(max(position, -1), done, part.metadata.leader_epoch if is_stored else -1)
            part.fetched_from = self._positions.topic_id(part)
        part.stage = Stage.ACTIVE
        self._fetcher.assign(part, position)

    # Ranges

    def begin_range(self, claim: Claim) -> HeldPartition:
        """Have the messages of a range that is held fetched and handed out."""
        with driver_of(self._marshal).lock:
            core_of(claim).on_notice = self._delivery.on_notice
            part = HeldPartition(claim, manual=self._manual)
            part.in_hands_before = self._in_hands.get(part.source, ())
            part.first_offset = claim.position
            part.floor = claim.claimed_offset
            inherited = ClaimMetadata.decode(claim.metadata).inherited()
            # Of which topic it is, the book tells.
            part.metadata = msgspec.structs.replace(
                inherited, topic_id=self._positions.id_of(part.source)
            )
            self.by_key[part.key] = part
        self._start(part, claim.position)
        return part

    def give_back_range(self, part: HeldPartition, at: int | None = None) -> None:
        """Give back a range: it is done, or nothing of it from `at` on was begun."""
        part.stage = Stage.RELEASING
        self._fetcher.unassign(part)
        self._delivery.give_up(part)
        self._say_whether_begun(part, at)
        with contextlib.suppress(NotHeld, Closed):
            # At most once, the claims say how far it is; but not where no message is at its end.
            if not self._delivery.claims_messages or part.is_over:
                part.claim.commit(part.position())
            part.claim.release(wait=False)

    def _say_whether_begun(self, part: HeldPartition, at: int | None = None) -> None:
        if part.range is not None:
            at = part.next_offset if at is None else at
            # Where there is no message, nothing is begun, and it is done all the same.
            part.range.begun = max(at, part.position()) > part.first_offset

    def end_range(self, claim: Claim) -> None:
        """Count a range as done whatever became of it: its messages are gone."""
        part = self.by_key.get((claim.topic, claim.partition))
        if part is not None:
            part.stage = Stage.RELEASING
            self._fetcher.unassign(part)
            self._delivery.give_up(part)
        driver = driver_of(self._marshal)
        with contextlib.suppress(NotHeld, Closed), driver.lock:
            holding = core_of(claim).holding
            if isinstance(holding, RangeHolding):
                holding.begun = True
                driver.claimant.advance(holding, holding.end)
            claim.release(wait=False)

    def _restart(self, part: HeldPartition) -> None:
        first = self._positions.restart_of(
            part, self._fetcher.end_of(part.source), self._fetcher.look
        )
        if first is None:
            return  # the next round tries again
        part.out_of_range, part.truncated_at = False, -1
        if part.number is not None and first <= part.read_to:
            self._fetcher.pause_or_resume(part)  # it was another slot's messages that are gone
            return
        self._fetcher.unassign(part)
        fetched_to = part.last_end
        if self._delivery.claims_messages:
            part.start(first)
            # From there to `first` is no message. If none follows, no claim will say so.
            part.last_end = fetched_to
        elif part.range is not None or first < fetched_to:
            # The next range is asked for from here on; in version 1, a position goes back.
            part.start(first)
        else:
            part.read_on(first)
        self._fetcher.assign(part, first)

    def _reset(self, part: HeldPartition, offset: int) -> None:
        """Set the position, even back, which ends the claim; the next one goes on there."""
        if part.stage is not Stage.WANTED:
            part.stage = Stage.RELEASING  # nothing more goes out; what is out counts for nothing
            self._fetcher.unassign(part)
        with contextlib.suppress(NotHeld, Closed):
            part.claim.set_position(offset)

    def _say_of_which_topic(self, part: HeldPartition) -> None:
        """Publish the topic's id together with the first position that is told."""
        if part.metadata.topic_id or not part.has_begun:
            return
        topic_id = self._positions.id_to_tell(part)
        if topic_id:
            self.publish(part, lambda told: msgspec.structs.replace(told, topic_id=topic_id))

    def _say_leader_epoch(self, part: HeldPartition, position: int) -> None:
        """Publish the epoch that goes with the position: with it, or before it.

        Kafka takes an older one than its own for a sign that messages were lost.
        """
        epoch = -1 if self._delivery.claims_messages else part.epochs.before(position)
        if epoch != part.metadata.leader_epoch:
            self.publish(part, lambda told: told.with_leader_epoch(epoch))

    def _say_what_is_done(self, part: HeldPartition, *, flush: bool = False) -> None:
        """Publish of which topic the position is, and what is done above it."""
        # Of which topic an inherited position is, nobody knows before there was something at it.
        topic_id = self._positions.id_to_tell(part) if part.has_begun else b""
        base, ranges = part.done_above()
        if self._delivery.claims_messages:
            ranges = ()
        known = part.metadata
        if (topic_id and not known.topic_id) or ranges or known.done:
            self.publish(
                part,
                lambda metadata: msgspec.structs.replace(
                    metadata, topic_id=metadata.topic_id or topic_id
                ).with_done(base, ranges),
                flush=flush,
            )

    # From messages back to a claim

    def drain(self, part: HeldPartition) -> None:
        """Hand out nothing more of it; it is given back when what is out is done."""
        interval_s = self._marshal.settings.interval_ms / 1000
        part.owed_until_s = time.monotonic() + OWED_INTERVALS * interval_s
        part.stage = Stage.DRAINING
        if not self._delivery.claims_messages:
            self._fetcher.unassign(part)
        elif part.assigned:
            self._fetcher.pause_or_resume(part)

    def _is_drained(self, part: HeldPartition) -> bool:
        if self._busy_with(part) or not self._positions.may_be_told(part):
            return self._hurry_s is not None and time.monotonic() >= self._hurry_s
        return True

    def _give_back(self, part: HeldPartition) -> None:
        part.stage = Stage.RELEASING
        self._fetcher.unassign(part)
        self._delivery.give_up(part)
        self._callbacks.revoked(part)  # first: who comes next relies on it
        self._say_whether_begun(part)
        claim = part.claim
        position = part.position()
        if not self._delivery.claims_messages and position >= 0:
            try:
                self._say_leader_epoch(part, position)
                claim.commit(position)
            except (NotHeld, Closed):
                return
            if not self._is_text:
                if (released := part.released()) or part.metadata.released:
                    self.publish(part, lambda told: told.with_released(released))
                self._say_what_is_done(part, flush=bool(part.done_above()[1]))
        self._store_metadata(part)
        if self._release:
            claim.release(wait=False)

    def _store_metadata(self, part: HeldPartition) -> None:
        """Have one heartbeat carry what is new of all: else each release has one of its own."""
        holding = part.holding
        if not self._is_text and metadata_unsent(holding):
            part.claim.set_metadata(holding.metadata, flush=True)

    def cancel(self, part: HeldPartition) -> None:
        """Want it no more; the claim was never held."""
        part.claim.release(wait=False)
        self.remove(part)

    def remove(self, part: HeldPartition) -> None:
        """The claim has ended, whoever ended it."""
        was_active = part.stage in (Stage.ACTIVE, Stage.DRAINING)
        part.stage = Stage.RELEASING
        self._fetcher.unassign(part)
        if was_active:
            self._delivery.give_up(part)
        self.by_key.pop(part.key, None)
        if in_hands := part.in_hands():
            self._in_hands[part.source] = in_hands
        if part.is_told:
            self._leaving.append((part, time.monotonic()))
        self._wakeup.plan_due = True
        if was_active and part.claim.reason not in (None, "released"):
            self._log.warning(
                "%s: lost %s/%d: %s",
                self._marshal.client_id,
                *part.key,
                part.claim.reason,
                extra=part.log_fields,
            )

    def tell_of_lost(self, *, now: bool = False) -> None:
        """Call `on_revoked` for what is gone, once the user works on nothing of it, or `now`."""
        for left in list(self._leaving):
            part, since_s = left
            if now or not self._in_use(part) or time.monotonic() - since_s > LEFT_S:
                self._callbacks.revoked(part)
                self._leaving.remove(left)

    def end(self, *, hurry_s: float, release: bool) -> None:
        """All are to be given back, or kept (`release=False`), from the next `wind_up` on.

        What is in the user's hands is waited for until `hurry_s`, by the monotonic clock.
        """
        self._release = release
        self._hurry_s = hurry_s

    def wind_up(self) -> bool:
        """Give everything back. Returns whether that is done."""
        for part in self.all():
            if part.stage is Stage.WANTED:
                self.cancel(part)
            elif part.stage is Stage.ACTIVE:
                self.drain(part)
                self.advance(part)
        return not self._leaving and not any(
            part.stage is not Stage.RELEASING
            or (self._release and not core_of(part.claim).ended.is_set())
            for part in self.by_key.values()
        )

    # For other threads

    def acknowledge_each(self) -> None:
        """From now on messages are acknowledged one by one, unless they are claimed."""
        with driver_of(self._marshal).lock:  # no partition is made meanwhile
            self._manual = not self._delivery.claims_messages
            for part in self.all():
                part.manual = self._manual

    def throttle(self, part: HeldPartition, throttled: bool) -> None:
        """Fetch no more of `part` for now, or again."""
        part.throttled = throttled
        self._fetcher.pause_or_resume(part)

    def pause(self, part: HeldPartition, is_paused: bool) -> None:
        """Hand out nothing of `part` for now, or go on."""
        part.is_paused = is_paused
        self._fetcher.pause_or_resume(part)
        self._wakeup.wake()

    def seek(self, parts: list[HeldPartition], offset: int, timeout_s: float) -> None:
        """See `Consumer.seek`. `parts`: a partition, or all slots of one that were claimed."""
        deadline = time.monotonic() + min(timeout_s, FOR_EVER_S)
        within = self._callbacks.calling if self._callbacks.is_within else None
        for part in parts:
            if part is within:  # who would carry it out waits for `on_assigned`
                if part.stage is not Stage.WANTED:
                    raise NotHeld(f"{part.topic}/{part.partition} is being given back")
                # Where it begins there anyway, nothing need be set: but for what is done above it.
                if offset != part.claim.position or part.metadata.done:
                    part.reset_to = offset
                return
        for part in parts:  # before any is moved: of several slots, none goes without the others
            if part.stage is Stage.RELEASING or not part.claim.held:
                raise NotHeld(f"{part.key[0]}/{part.key[1]} is not held any more")
        for part in parts:
            part.reset_to = offset  # first: what is not active yet does not become so with it
            if part.stage is not Stage.WANTED:
                part.stage = Stage.RELEASING  # from here on nothing of it goes out
        self._wakeup.wake()
        if self._callbacks.is_within:
            return
        for part in parts:
            if not core_of(part.claim).ended.wait(max(0.0, deadline - time.monotonic())):
                raise ClaimTimeout(
                    f"{part.topic}/{part.partition}: the position {offset} was not in the log "
                    f"within {timeout_s:g} s; it is still being set"
                )
            if not (part.claim.reason or "").startswith("repositioned"):
                raise NotHeld(
                    f"{part.topic}/{part.partition} was not held any more: {part.claim.reason}"
                )

    def publish(
        self,
        part: HeldPartition,
        change: Callable[[ClaimMetadata], ClaimMetadata],
        *,
        flush: bool = False,
    ) -> None:
        """Tell the others, with the claim, how `part` fares: as `change` makes of what is told."""
        with driver_of(self._marshal).lock:
            before = part.metadata
            part.metadata = change(before)
            if (flush or part.metadata != before) and not self._is_text:  # which has no room
                part.claim.set_metadata(part.metadata.encode(), flush=flush)

    def refresh_offsets(self) -> None:
        """Hand the positions to the claims: called before each heartbeat, under the lock."""
        for part in self.all():
            holding = part.holding
            if holding.epoch < 0 or part.stage is Stage.RELEASING:
                continue
            if part.stage is not Stage.WANTED and not self._is_text:
                # A position without the topic that it is of would be taken for one of any topic.
                if not self._positions.may_be_told(part):
                    continue
                self._say_of_which_topic(part)
            if part.stage is not Stage.WANTED:  # a pause of the group releases without asking
                self._say_whether_begun(part)
            position = part.position()
            if self._delivery.claims_messages:
                # What was claimed is said by the claims; behind it there may be no message.
                behind, end = part.tail
                position = end if behind <= part.claim.position < end else -1
            if part.stage is not Stage.WANTED:
                self._say_leader_epoch(part, position)
            driver_of(self._marshal).claimant.advance(holding, position)

    def store(self) -> None:
        """Have a heartbeat store the positions now, if one has moved. Does not wait."""
        with driver_of(self._marshal).lock:
            self.refresh_offsets()
            for part in self.all():
                holding = part.holding
                if part.claim.held and holding.next_offset > holding.stored_offset:
                    part.claim.set_metadata(holding.metadata, flush=True)
                    return

    def commit(self, timeout_s: float) -> None:
        """See `Consumer.commit`."""
        deadline = time.monotonic() + min(timeout_s, FOR_EVER_S)
        with driver_of(self._marshal).lock:
            self.refresh_offsets()
        for part in self.all():
            position = part.position()
            if self._delivery.claims_messages or part.stage not in (Stage.ACTIVE, Stage.DRAINING):
                continue
            if position < 0:
                continue
            # It goes with the id of its topic, which is asked for while the consumer starts.
            if not self._positions.wait_until_told(part, deadline - time.monotonic()):
                raise ClaimTimeout(
                    f"{part.topic}/{part.partition}: Kafka did not tell the topic's id within "
                    f"{timeout_s:g} s; the position goes with a later heartbeat"
                )
            with contextlib.suppress(NotHeld):
                self._say_leader_epoch(part, position)
                part.claim.commit(
                    position, wait=True, timeout_s=max(0.001, deadline - time.monotonic())
                )
