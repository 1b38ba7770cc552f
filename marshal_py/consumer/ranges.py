"""The ranges of a consumer that shares partitions by ranges: asked for, worked on, given back.

Part of the thread of `Assignment`. For each partition it looks at the book in the log and at what
this member has begun, and does what `range_choice` says. A partition's book begins where the
group's `start` says: whoever comes first claims the partition's own cell for that, and lets go.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Final

import msgspec

from marshal_py.client.claim import core_of
from marshal_py.client.marshal import Claim, Marshal, driver_of, registry_of
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.agreement import Agreement
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.consumer.held_partition import HeldPartition, Stage
from marshal_py.consumer.partitions import Partitions
from marshal_py.consumer.positions import Positions
from marshal_py.consumer.topics import Topics
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.consumer.work import Work
from marshal_py.errors import Closed, NotHeld
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import Notice, RangeHolding
from marshal_py.protocol.events import Event, RangeGranted, RangeSplit, Released
from marshal_py.protocol.holding import Holding
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.range_choice import Ask, Own, View, ahead_s, choose, is_suspect, piece
from marshal_py.protocol.ranges import Range

__all__ = ["RangeClaims"]

TICK_S: Final = 0.05
"""While something is worked on, it is looked at so often."""

GIVING_TICK_S: Final = 0.01
"""And so often while others are idle, who could have what was not begun of it."""

EVERYTHING: Final = 2**31 - 1
"""Messages: what was granted before is ended whole."""

LOOK_S: Final = 0.1
"""So often ranges of members that are gone are looked for, and ten times in an interval if that is
oftener. A log that has refused a range is asked again after as long."""

TAKEN_AT_ONCE: Final = 8
"""Ranges of a partition that are taken over in one go: a dead member hardly has more."""


class _Source:
    """One partition whose ranges this member takes part in."""

    def __init__(self, source: Unit) -> None:
        self.source = source
        self.opening: HeldPartition | None = None
        """The claim on the partition's own cell, while its book is begun."""
        self.asked: Claim | None = None
        self.taking: list[Claim] = []
        """Claims on ranges whose holders are gone."""
        self.splitting: list[Claim] = []
        """Ranges that are taken in pieces."""
        self.parts: list[HeldPartition] = []
        """In the order of their messages."""
        self.free_since_s = 0.0
        self.floor = 0
        """What lay below it is gone from Kafka, as far as is known."""
        self.topic_id = b""
        """Of the topic of which `floor` is known."""
        self.set_back: tuple[int, int] | None = None
        """Where its book is to go on, as the partition was truncated, and the epoch of the book's
        cell that this holds for."""
        self.ask_after_s = 0.0
        """The log has refused: it is asked again then."""


class RangeClaims:
    """The ranges that one consumer takes part in."""

    def __init__(
        self,
        marshal: Marshal,
        partitions: Partitions,
        positions: Positions,
        fetcher: Fetcher,
        delivery: Delivery,
        topics: Topics,
        agreement: Agreement,
        work: Callable[[], Work],
        log: Fields,
        wakeup: Wakeup,
        *,
        max_deliveries: int | None,
    ) -> None:
        self.paused: set[Unit] = set()
        """Partitions of which the program wants nothing for now."""
        self._marshal = marshal
        self._partitions = partitions
        self._positions = positions
        self._fetcher = fetcher
        self._delivery = delivery
        self._topics = topics
        self._agreement = agreement
        self._work = work
        self._log = log
        self._wakeup = wakeup
        self._max_deliveries = max_deliveries
        self._sources: dict[Unit, _Source] = {}
        self._suspect: Claim | None = None
        """A range that may have a message that kills, from when it is asked for. One at a time:
        should it end this process, no other such range, of any partition, has been claimed once
        more for it."""
        self._leaving: list[HeldPartition] = []
        """What may still be acknowledged though no more is claimed of its partition."""
        self._pace = 0.0
        self._paced_s = 0.0
        """When the last range was done."""
        self._progress: object | None = None
        self._standing_since_s = 0.0
        self._followed_s = self._looked_s = 0.0
        self._look_s = min(LOOK_S, marshal.settings.interval_ms / 10_000)
        partitions.done_to = lambda source: self.undone(source)[0]
        self._split: set[Holding] = set()
        """Those whose splitting the log has answered."""

    # What there is

    def start(self) -> None:
        """The rounds find out what there is."""

    def follow(self, counts: Mapping[str, int]) -> None:
        """Take part in the partitions of these topics, and in no others."""
        found = {(topic, p) for topic, count in counts.items() for p in range(count)}
        for source in sorted(found - self._sources.keys()):
            self._sources[source] = _Source(source)
            self._fetcher.streams_ranges = True
        for source in sorted(self._sources.keys() - found):
            about = self._sources[source]
            self._part_with(about.parts)
            del self._sources[source]
            self._leave(about)

    def _part_with(self, parts: list[HeldPartition]) -> None:
        left = [part for part in self._leaving if part.stage is not Stage.RELEASING]
        self._leaving = [*left, *parts]

    def _leave(self, about: _Source) -> None:
        self._split -= {_range_of(claim) for claim in about.splitting}
        claims = [*about.taking, *about.splitting]
        claims += [claim for claim in (about.asked,) if claim is not None]
        claims += [part.claim for part in (about.opening,) if part is not None]
        for claim in claims:
            claim.release(wait=False)
        for part in about.parts:
            if part.stage is Stage.ACTIVE:
                self._partitions.drain(part)
        self._fetcher.leave(about.source)

    def close(self) -> None:
        """Ask for nothing more. May be called again."""
        sources = list(self._sources.values())
        self._part_with([part for about in sources for part in about.parts])
        self._sources.clear()
        for about in sources:
            about.parts = []
            self._leave(about)

    def part_of(self, topic: str, partition: int, offset: int) -> HeldPartition | None:
        """Return the range that a message was handed out from, if it is held."""
        about = self._sources.get((topic, partition))
        for part in [*([] if about is None else about.parts), *self._leaving]:
            if part.source == (topic, partition) and part.first_offset <= offset < (
                part.end_offset or 0
            ):
                return part
        return None

    def undone(self, source: Unit) -> tuple[int, Unit | None]:
        """Return the first message of a partition that is not done, and the range that it is in.

        −1: nothing is known; without a range: nothing is open.
        """
        driver, group_id = driver_of(self._marshal), self._marshal.group_id
        with driver.lock:  # also when it is closed: what was stored at the end counts
            group = driver.world.group(group_id)
            if group is None:
                return -1, None
            for each in group.open_ranges.of(source):
                return group.cells[each.cell].position, each.cell
            book = group.cells.get(source)
            return (-1 if book is None else book.position), None

    def lags(self, timeout_s: float) -> dict[Unit, int]:
        """Return how far each partition is behind its end. Raises `BrokerUnavailable`."""
        ends = self._positions.ends_of(list(self._sources), timeout_s)
        return {
            source: max(0, end - max(0, self.undone(source)[0])) for source, end in ends.items()
        }

    def standing_of(self, claim: Claim) -> tuple[Unit, int] | None:
        """Return what a claim tells of where its partition stands; None if another one does."""
        source = _range_of(claim).source
        position, cell = self.undone(source)
        is_its = cell is None or cell == (claim.topic, claim.partition)
        return (source, position) if is_its else None

    def release(self, part: HeldPartition, offset: int, delay_s: float) -> None:
        """Have a message that was handed out come again, after `delay_s`."""
        if part.release(offset):
            part.drain_at_s = min(part.drain_at_s, time.monotonic() + delay_s)
            self._wakeup.wake()

    def is_affected_by(self, events: Iterable[Event]) -> bool:
        """Whether something may have become free, or somebody idle."""
        mine = self._marshal.client_id
        for event in events:
            if not isinstance(event, Released | RangeGranted | RangeSplit):
                continue
            is_news = event.client_id != mine
            if isinstance(event, Released):
                is_news &= not event.ended
            elif isinstance(event, RangeGranted):  # who holds nothing but what is to come is idle
                is_news &= event.start >= self._fetcher.end_of((event.topic, event.partition))
            if is_news:
                return True
        return False

    def pause(self, source: Unit, is_paused: bool) -> None:
        """Give back what was not begun of a partition, and claim nothing of it; or claim again."""
        (self.paused.add if is_paused else self.paused.discard)(source)
        self._wakeup.wake()

    # Rounds

    def look_at_lags(self) -> None:
        """Who shares by ranges takes what waits, whatever lag that is."""

    def rest_s(self) -> float:
        """Return when something has to be looked at if nothing happens: never."""
        return math.inf

    def round(self, now_s: float) -> float | None:
        """Do what is to be done. Returns when to look again at the latest, None: no sooner."""
        if self._wakeup.failure is not None:  # the loop has ended: it would take nothing
            return None
        follow_again_s = self._marshal.settings.interval_ms / 2_000
        if self._wakeup.plan_due or now_s - self._followed_s > follow_again_s:
            self._wakeup.plan_due, self._followed_s = False, now_s
            self.follow(self._agreement.ready(self._topics.counts))
        self._look_at_progress(now_s)
        looks = now_s - self._looked_s >= self._look_s
        if looks:
            self._looked_s = now_s
        if self._suspect is not None and core_of(self._suspect).ended.is_set():
            self._suspect = None
        again_s: float | None = None
        open_ones: list[_Source] = []
        for about in list(self._sources.values()):
            if self._is_open(about):
                self._take_up(about, now_s)
                open_ones.append(about)
            else:
                again_s = GIVING_TICK_S
        if looks:
            self._take_over(open_ones)
        asks: list[tuple[int, _Source, int]] = []
        for about in open_ones:
            if about.source in self.paused:
                for part in about.parts:
                    self._give_back(part)
                continue
            view = self._view(about, now_s)
            for action in choose(view):
                if isinstance(action, Ask):
                    if now_s >= about.ask_after_s:
                        asks.append((self._grants_next(about), about, action.messages))
                else:
                    for part in about.parts:
                        if part.first_offset == action.start:
                            self._give_back(part)
            if view.idle and any(own.next < own.end for own in view.own):
                again_s = GIVING_TICK_S
            elif view.free or any(own.begun for own in view.own):
                again_s = again_s or TICK_S
        for _, about, messages in sorted(asks, key=itemgetter(0)):
            self._ask(about, messages)
        return again_s

    def _look_at_progress(self, now_s: float) -> None:
        progress = self._work().progress()
        if progress is None or progress != self._progress:
            self._standing_since_s = now_s
        self._progress = progress

    def _take_up(self, about: _Source, now_s: float) -> None:
        """Take up what was granted, and let go of what is over."""
        resets = [part.reset_to for part in about.parts if part.reset_to is not None]
        if resets and about.set_back is None:
            about.set_back = min(resets), self._epoch_of(about.source)
        for part in about.parts:
            if part.started_at > part.first_offset:
                about.floor = max(about.floor, part.started_at)
            if part.stage is Stage.ACTIVE and now_s >= part.drain_at_s:
                self._partitions.drain(part)
            if part.stage is Stage.ACTIVE and part.is_over and not self._is_busy_with(part):
                self._measure(part, now_s)
                self._partitions.give_back_range(part)
        about.parts = [part for part in about.parts if part.stage is not Stage.RELEASING]
        asked = about.asked
        if asked is not None and (asked.held or core_of(asked).ended.is_set()):
            about.asked = None
            if asked.held:
                self._granted(about, asked)
            elif (asked.reason or "").startswith("refused"):
                about.ask_after_s = now_s + LOOK_S
        for claim in list(about.taking):
            core = core_of(claim)
            if claim.held:
                about.taking.remove(claim)
                self._granted(about, claim)
            elif core.ended.is_set() or core.decided:  # somebody else has it
                about.taking.remove(claim)
                claim.release(wait=False)
        for claim in list(about.splitting):
            if core_of(claim).ended.is_set():
                about.splitting.remove(claim)
                self._split.discard(_range_of(claim))
            elif _range_of(claim) in self._split and claim.held:
                about.splitting.remove(claim)
                self._split.discard(_range_of(claim))
                self._begin(about, claim)

    def _is_busy_with(self, part: HeldPartition) -> bool:
        """Whether messages of it are still to be handled, though they count as done.

        At most once they do so when they are claimed, and handlers get them later.
        """
        return self._delivery.has_claimed(part) or self._work().busy_with(part)

    def _granted(self, about: _Source, claim: Claim) -> None:
        held = _range_of(claim)
        if held.granted > 1 and self._is_to_come(about.source, claim.position):
            held.granted = 1  # who had it can have begun nothing
        if is_suspect(held.granted, self._max_deliveries):
            if self._suspect is not None and self._suspect is not claim:
                claim.release(wait=False)
                return
            self._suspect = claim
        elif self._suspect is claim:
            self._suspect = None
        at = piece(held.granted, claim.position, held.end, self._max_deliveries)
        if ClaimMetadata.decode(claim.metadata).done:
            at = held.end  # what is done of it is told of this cell; and who had it got on
        if at < held.end:
            about.splitting.append(claim)
            driver = driver_of(self._marshal)
            with contextlib.suppress(NotHeld), driver.lock:
                driver.claimant.split(held, at, driver.clock())
                driver.carry_out()
            return
        self._begin(about, claim)

    def _is_to_come(self, source: Unit, position: int) -> bool:
        """Whether there are no messages from a position on."""
        if position < self._fetcher.end_of(source):
            return False
        end = self._look_at_end(source)
        return end is not None and position >= end

    def _look_at_end(self, source: Unit) -> int | None:
        """Ask Kafka where a partition ends; None: no answer."""
        end = self._positions.end_of(source)
        if end is not None:
            self._fetcher.set_end(source, end)
        return end

    def _begin(self, about: _Source, claim: Claim) -> None:
        """Have the messages of a range fetched."""
        is_beyond = claim.position > self._fetcher.end_of(about.source)
        end = self._look_at_end(about.source) if is_beyond else None
        if is_beyond and end is None:
            claim.release(wait=False)  # others may have it, or this member once there is an answer
            return
        part = self._partitions.begin_range(claim)
        # A list of its own: one that is being sorted is empty to whoever acknowledges meanwhile.
        about.parts = sorted([*about.parts, part], key=lambda each: each.first_offset)
        if end is not None:
            self._positions.look_beyond(part, self.undone(about.source)[0], end)

    def _measure(self, part: HeldPartition, now_s: float) -> None:
        """A range is done: how many messages in a second is that?"""
        took_s = part.worked_s  # waiting, for the log to claim messages for one, is no work
        if part.manual or not self._work().is_loop:  # who acknowledges works on several at a time
            took_s = now_s - max(part.first_s, self._paced_s)
        self._paced_s = now_s
        if part.handed <= 0:
            return
        pace = part.handed / max(took_s, 1e-6)
        self._pace = pace if not self._pace else (self._pace + pace) / 2

    # Giving back

    def _give_back(self, part: HeldPartition) -> None:
        """Give back what was not begun of a range."""
        if part.stage is not Stage.ACTIVE or not part.claim.held:
            return
        # First: the cut takes what waits for a handler from its queue. What is begun only grows.
        begun_to = self._work().next_offset(part)
        if any(done_to > begun_to for _, done_to in part.done_before):
            return  # what is done of it is told of this range alone: it is not cut

        driver = driver_of(self._marshal)

        def give_back(begun: int) -> None:
            at = begun
            if self._delivery.claims_messages:
                at = max(at, part.proposed, part.claim.claimed_offset)
            end = part.end_offset or 0
            if at >= end:
                return
            if at <= max(part.position(), part.claim.position, part.first_offset):
                if at == begun:  # else what was claimed goes out first
                    self._partitions.give_back_range(part, at)
                return
            with contextlib.suppress(NotHeld):
                driver.claimant.split(_range_of(part.claim), at, driver.clock())
                driver.carry_out()

        def in_turn(begun: int) -> None:
            with driver.lock:  # what the log has claimed stays as it is meanwhile
                give_back(begun)

        self._work().cut(part, in_turn)

    # Asking

    def _view(self, about: _Source, now_s: float) -> View:
        marshal, source = self._marshal, about.source
        begun = self._work().next_offset
        own = tuple(
            Own(part.first_offset, part.end_offset or 0, begun(part), part.first_s > 0)
            for part in about.parts
            if part.stage is Stage.ACTIVE
        )
        log_end = self._fetcher.end_of(source)
        free: list[tuple[int, int]] = []
        lowest: dict[str, int] = {}
        idle: dict[str, bool] = {}
        with marshal.world() as world:
            group = world.group(marshal.group_id)
            frontier = -1
            if group is not None:
                book = group.cells.get(source)
                frontier = -1 if book is None else book.position
                for each in group.open_ranges.of(source):
                    cell = group.cells[each.cell]
                    if cell.holder is None:
                        free.append((cell.position, each.end))
                        continue
                    lowest.setdefault(cell.holder, each.start)
                    idle[cell.holder] = idle.get(cell.holder, True) and cell.position >= log_end
        me = marshal.client_id
        mine = lowest.pop(me, None)
        idle.pop(me, None)
        if not free:
            about.free_since_s = 0.0
        elif not about.free_since_s:
            about.free_since_s = now_s
        others = [start for holder, start in lowest.items() if idle[holder]]
        return View(
            own,
            about.asked is not None,
            tuple(free),
            now_s - about.free_since_s if free else 0.0,
            frontier,
            log_end,
            len(lowest) + 1,
            len(others),
            len(others) if mine is None else sum(start < mine for start in others),
            self._pace,
            ahead_s(self._marshal.settings.interval_ms),
            now_s - self._standing_since_s,
        )

    def _ask(self, about: _Source, count: int) -> None:
        """Ask for a range of so many messages: for the lowest that is free, if there is one."""
        may_kill = self._grants_next(about) > 0
        if may_kill and self._suspect is not None:
            return
        with contextlib.suppress(Closed):
            wanted = registry_of(self._marshal).want_range(*about.source, about.floor, count)
            about.asked = self._hear(wanted)
            if may_kill:
                self._suspect = about.asked

    def _grants_next(self, about: _Source) -> int:
        """How often the range that would be granted next was granted, if it may have a message that
        kills; else 0."""
        with self._marshal.world() as world:
            group = world.group(self._marshal.group_id)
            free = None if group is None else group.open_ranges.lowest_free(about.source)
            if group is None or free is None:
                return 0
            at = group.cells[free.cell].position
            return free.grants(at) if self._may_kill(free, at) else 0

    def _hear(self, claim: Claim) -> Claim:
        """Have this thread look when something is told of a claim."""

        def hear(notice: Notice) -> None:
            if notice.kind == "split":
                self._split.add(notice.holding)
            if notice.kind != "stored":
                self._wakeup.wake()

        core_of(claim).on_notice = hear
        return claim

    def _take_over(self, sources: list[_Source]) -> None:
        """Claim the ranges of members that are gone, or of an earlier instance, the lowest first.

        All at once; but of those that may have a message that kills only one, which was granted
        least often: those that were only beside it get through before.
        """
        driver = driver_of(self._marshal)
        with driver.lock:
            group = driver.world.group(self._marshal.group_id)
            if group is None or group.pause is not None:
                return
            now_ns = driver.clock()
            suspects: list[tuple[int, Unit, _Source]] = []
            for about in sources:
                if about.taking:
                    continue
                for each in group.open_ranges.of(about.source):
                    cell = group.cells[each.cell]
                    if not cell.held or not driver.claimant.is_stale(*each.cell, now_ns):
                        continue
                    if self._may_kill(each, cell.position):
                        suspects.append((each.grants(cell.position), each.cell, about))
                        continue
                    about.taking.append(self._hear(self._marshal.want(*each.cell)))
                    if len(about.taking) == TAKEN_AT_ONCE:
                        break
            if suspects and self._suspect is None:
                _, suspect, about = min(suspects, key=itemgetter(0))
                self._suspect = self._hear(self._marshal.want(*suspect))
                about.taking.append(self._suspect)

    def _may_kill(self, found: Range, position: int) -> bool:
        """Whether a range that this member would claim may have a message that kills."""
        end = self._fetcher.end_of(found.source)  # as far as is known
        exists = end < 0 or position < end
        return exists and is_suspect(found.grants(position), self._max_deliveries)

    # The book

    def _epoch_of(self, source: Unit) -> int:
        with self._marshal.world() as world:
            cell = world.cell(self._marshal.group_id, *source)
            return NO_OFFSET if cell is None else cell.epoch

    def _is_open(self, about: _Source) -> bool:
        """Whether the book stands, of the topic that is there now. Sees to it if it does not."""
        marshal, source = self._marshal, about.source
        now = self._positions.id_of(source)
        if now != about.topic_id:
            about.topic_id, about.floor = now, 0
        if about.set_back is not None and about.set_back[1] != self._epoch_of(source):
            about.set_back = None  # it was set back, or begun anew
        with marshal.world() as world:
            group = world.group(marshal.group_id)
            cell = None if group is None else group.cells.get(source)
            has_ranges = group is not None and group.open_ranges.count(source) > 0
            has_free = group is not None and group.open_ranges.lowest_free(source) is not None
            is_paused = group is not None and group.pause is not None
            holder = None if cell is None else cell.holder
        if is_paused:
            return False
        told = ClaimMetadata.decode(b"" if cell is None else cell.metadata)
        known = told.topic_id
        is_right = not (known and now and known != now) and about.set_back is None
        if not is_right and has_ranges:
            self._close_book(about, has_free=has_free)
            return False
        # The position moves with its ranges, and the epoch would stay.
        is_told = has_ranges or (bool(known or not now) and told.leader_epoch < 0)
        if cell is not None and cell.position >= 0 and holder is None and is_told and is_right:
            if about.opening is not None:
                about.opening.claim.release(wait=False)
                about.opening = None
            return True
        if holder is None or holder == marshal.client_id or self._is_stale(source):
            self._open(about)
        elif about.opening is not None:  # somebody else sees to it
            about.opening.claim.release(wait=False)
            about.opening = None
        return False

    def _is_stale(self, cell: Unit) -> bool:
        driver = driver_of(self._marshal)
        with driver.lock:
            return driver.claimant.is_stale(*cell, driver.clock())

    def _open(self, about: _Source) -> None:
        """Find out where the book begins, and say so in the log."""
        part = about.opening
        if part is None or core_of(part.claim).ended.is_set():
            claim = self._hear(self._marshal.want(*about.source))
            about.opening = part = HeldPartition(claim, manual=False)
            part.reset_to = None if about.set_back is None else about.set_back[0]
        claim, source = part.claim, about.source
        if part.reset_to is not None:  # until the log has it
            with contextlib.suppress(NotHeld, Closed):
                claim.set_position(part.reset_to)
            return
        if not claim.held:
            return
        position = self._positions.start_of(part)
        if position is not None and position < 0:
            position = self._positions.first_of(source)
        if position is None:
            return
        told = msgspec.structs.replace(
            part.metadata.inherited(),
            topic_id=self._positions.id_of(source),
            done_from=0,
            done=b"",
            leader_epoch=-1,
        ).encode()
        with contextlib.suppress(NotHeld, Closed):
            if claim.metadata != told or claim.next_offset < position:
                claim.commit(position)
                claim.set_metadata(told, flush=True)
            elif part.holding.stored_metadata == told and claim.stored_offset >= position:
                claim.release(wait=False)

    def _close_book(self, about: _Source, *, has_free: bool) -> None:
        """End all that is open, of a topic that is gone, or beyond an end that was cut off."""
        for part in about.parts:
            self._partitions.end_range(part.claim)
        about.parts = []
        self._take_over([about])
        for claim in [*about.taking, *about.splitting, *([about.asked] if about.asked else [])]:
            if claim.held:
                self._partitions.end_range(claim)
        about.taking = [claim for claim in about.taking if not core_of(claim).ended.is_set()]
        self._split -= {_range_of(claim) for claim in about.splitting}
        about.splitting = []
        if self._suspect is not None and _range_of(self._suspect).source == about.source:
            self._suspect = None
        if about.asked is not None and core_of(about.asked).ended.is_set():
            about.asked = None
        if has_free and about.asked is None:
            self._ask(about, EVERYTHING)


def _range_of(claim: Claim) -> RangeHolding:
    holding = core_of(claim).holding
    if not isinstance(holding, RangeHolding):
        raise TypeError(f"{claim!r} is on no range")
    return holding
