"""Histories of consumers that share each partition by ranges of messages; as `consumers` otherwise.

The ledger knows what the log calls done: what lies below the frontier, in no open range or below
the position of one. That only ever grows, and at least once, a user was done with all of it.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from marshal_py import AcknowledgeType, NotHeld
from marshal_py.consumer import range_stream, ranges  # noqa: F401 (simulated ground is laid there)
from marshal_py.protocol import events as ev
from marshal_py.protocol.ranges import range_of
from tests.simulation.whole import consumers, green
from tests.simulation.whole.checks import LOG, Key, Ledger, Tenure
from tests.simulation.whole.cluster import Cluster, Partition
from tests.simulation.whole.consumers import GROUP, TOPIC, UNLIMITED, Member, Scenario, Spec
from tests.simulation.whole.green import MS, Violation

if TYPE_CHECKING:
    from marshal_py import Claim
    from marshal_py.consumer.consumer import Consumer

NOT_HERE: Final = ("forget_group", "limit", "set_position")
"""Nobody takes a share, and the ledger takes no position for one that an operator has set."""
REQUIRED: Final = tuple(fault for fault in consumers.REQUIRED if fault not in NOT_HERE)
REQUIRED_COUNTS: Final = (
    *(*consumers.REQUIRED_COUNTS, "splits", "takeovers"),
    *("released", "died of poison", "poison given up"),
)
MAX_DELIVERIES: Final = 2
QUIET: Final = 10
"""Intervals at the end: what killed somebody, or was released, goes on message by message."""
FOREVER: Final = 1 << 62
_ALONE_MS: Final = 400
"""For a message that goes alone: a member that acknowledges several waits 300 for others."""

Span = tuple[int, int]

__all__ = ["REQUIRED", "REQUIRED_COUNTS", "World", "generate"]


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    made = consumers.generate(seed)
    rng = random.Random(f"messages {seed}")
    made.by_ranges = True
    made.partitions = min(made.partitions, rng.choice((1, 1, 2)))
    for spec in made.members:
        spec.limit = UNLIMITED
        spec.work_ms = rng.choice((0.2, 1.0, 5.0, 40.0))  # slow ones are relieved of what waits
    if rng.random() < 0.3:
        made.poison = rng.randrange(5, 60)
    made.end_ns += (QUIET - consumers.World.QUIET_INTERVALS) * made.interval_ms * MS
    made.incidents = [
        (at, kind, who % made.partitions if kind == "burst" else who, args)
        for at, kind, who, args in made.incidents
        if kind not in NOT_HERE
    ]
    return made


def source_of(key: Key) -> Key:
    """Whose messages a claim is about."""
    name = range_of(*key)
    return key if name is None else (name.topic, name.partition)


class RangeLedger(Ledger):
    """The truth about a group that shares by ranges. `delivered` is by partition here."""

    def __init__(self, cluster: Cluster, group_id: str, *, amo: bool) -> None:
        super().__init__(cluster, group_id, amo=amo)
        self.finished: defaultdict[Key, set[int]] = defaultdict(set)
        """What some user was done with."""
        self.key_of: dict[int, Key] = {}
        """By the epoch of a claim."""
        self.undone: dict[Key, list[Span]] = {}
        """Of each partition what the log does not call done, in order."""

    def messages(self, key: Key) -> Partition:
        topic, p = source_of(key)
        return self.cluster.topics[topic][p]

    # The log

    def written(self, topic: str, p: int, offset: int, value: bytes | None) -> None:
        super().written(topic, p, offset, value)
        if topic == LOG:
            for number in range(len(self.cluster.topics[TOPIC])):
                self._look_at_book((TOPIC, number))

    def _event(self, event: Any) -> None:
        super()._event(event)
        if isinstance(event, ev.RangeSplit):
            self.cluster.hub.counts["splits"] += 1

    def _claimed(self, event: ev.Claimed) -> None:
        super()._claimed(event)
        key = (event.topic, event.partition)
        self.key_of[event.epoch] = key
        if range_of(*key) is not None and event.previous_holder is not None:
            self.cluster.hub.counts["takeovers"] += 1

    def _stored(self, event: ev.Renewed | ev.Released) -> None:
        """See `_look_at_book`."""

    def _look_at_book(self, source: Key) -> None:
        """What the log calls done, it goes on calling done; and at least once, it was done."""
        group = self.state(source).groups.get(GROUP)
        book = None if group is None else group.cells.get(source)
        if group is None or book is None:
            return
        undone = [
            (max(each.start, group.cells[each.cell].position), each.end)
            for each in group.open_ranges.of(source)
        ]
        undone.append((max(0, book.position), FOREVER))
        before = self.undone.get(source, [(0, FOREVER)])
        self.undone[source] = undone
        if again := without(undone, before):
            raise Violation("what is done stays done", f"{source}: {again[0]} is open again")
        if self.amo:
            return
        partition = self.messages(source)
        for first, end in without(before, undone):
            text = f"{source}: {first} to {end} counts as done"
            if end > partition.end:
                raise Violation("at least once: what counts as done is there", text)
            for offset in offsets_in(partition, first, end):
                if offset not in self.finished[source]:
                    raise Violation("at least once: what counts as done is done", text)

    # What users get and do

    def handed(self, member: Member, message: Any, claim: Claim) -> None:
        tenure, text = self.entitled(member, message, claim)
        key, offset = (claim.topic, claim.partition), message.offset()
        source = source_of(key)
        group = self.state(key).groups[GROUP]
        held = group.open_ranges.of_cell.get(key)
        is_its = held is not None and held.start <= offset < held.end
        if not self.amo and self.exclusive and not is_its:
            raise Violation("each message from its own range", f"{text}, which is {held}")
        if tenure.handed and offset <= tenure.handed[-1]:
            raise Violation("order within a range", f"{text}, after {tenure.handed[-1]}")
        if self.amo:
            self.at_most_once(source, tenure, offset, text)
        else:
            self._all_before_is_done(source, tenure, offset, text)
            if offset in self.delivered[source]:
                self.cluster.hub.counts["came again"] += 1
        tenure.handed.append(offset)
        self.delivered[source].add(offset)

    def _all_before_is_done(self, source: Key, tenure: Tenure, offset: int, text: str) -> None:
        after = tenure.handed[-1] + 1 if tenure.handed else tenure.start
        for passed in offsets_in(self.messages(source), after, offset):
            if passed not in self.finished[source]:
                raise Violation("nothing of a range is skipped", f"{text}, {passed} was due")

    # The end

    def count_waiting(self, source: Key) -> int:
        """How many messages the log does not call done."""
        spans = self.undone.get(source, [(0, FOREVER)])
        return sum([len(offsets_in(self.messages(source), *span)) for span in spans])

    def nothing_waits(self, source: Key) -> None:
        """The log calls done all that there is."""
        for first, end in self.undone.get(source, [(0, FOREVER)]):
            if waiting := offsets_in(self.messages(source), first, end):
                raise Violation("everything is done in the end", f"{source}: {waiting[:3]}")


def without(spans: list[Span], others: list[Span]) -> list[Span]:
    """What lies in `spans` and in none of `others`; both are in order, and do not overlap."""
    left = []
    for first, end in spans:
        at = first
        for low, high in others:
            if high <= at or low >= end:
                continue
            if low > at:
                left.append((at, low))
            at = max(at, high)
        if at < end:
            left.append((at, end))
    return left


def offsets_in(partition: Partition, first: int, end: int) -> list[int]:
    """The messages that there are from `first` to below `end`."""
    offsets = partition.offsets
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]


class Sharing(Member):
    """A member that shares by ranges."""

    world: RangeWorld

    def more_settings(self) -> dict[str, Any]:
        return {"max_deliveries": MAX_DELIVERIES}

    def take(self, message: Any, claim: Claim) -> None:
        super().take(message, claim)
        is_poison = message.offset() == self.world.scenario.poison and message.partition() == 0
        if not is_poison or self.consumer is None:
            return
        try:
            count = self.consumer.delivery_count(message)
        except NotHeld:
            return
        if count > MAX_DELIVERIES:
            self.hub.counts["poison given up"] += 1
            return
        self.hub.counts["died of poison"] += 1
        who = next(who for who, members in self.world.members.items() if self in members)
        self.hub.at(self.hub.now, self.machine.kill)
        self.hub.at(
            self.hub.now + self.world.scenario.interval_ms * MS, self.world.start_again, who
        )
        green.sleep(1.0)

    def finish_with(self, consumer: Consumer, message: Any, epoch: int) -> None:
        if self.hub.random.random() < 0.05:
            self.hub.counts["released"] += 1
            ledger = self.world.ledger
            tenure = ledger.tenures[ledger.key_of[epoch], epoch]
            tenure.released.add(message.offset())
            delay_s = self.hub.random.choice((0.0, 0.3))
            consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_s=delay_s)
        else:
            self.done(message, epoch)  # first: what was its range's last is released at once
            consumer.ack(message)
            self.came_back()

    def done(self, message: Any, epoch: int) -> None:
        ledger = self.world.ledger
        key = ledger.key_of[epoch]
        ledger.finished[source_of(key)].add(message.offset())
        ledger.done(key, epoch, message.offset())
        self.unsaid.add((key, epoch))

    def acknowledged(self, consumer: Consumer, message: Any, epoch: int) -> None:
        self.done(message, epoch)
        self.came_back()

    def want(self, limit: int | None) -> None:
        """Nobody takes a share."""


class RangeWorld(consumers.World):
    """One history."""

    QUIET_INTERVALS = QUIET
    ledger: RangeLedger

    def new_ledger(self, *, amo: bool) -> RangeLedger:
        return RangeLedger(self.cluster, GROUP, amo=amo)

    def new_member(self, spec: Spec, number: int) -> Sharing:
        return Sharing(self, spec, number)

    def start_again(self, who: int) -> None:
        """Somebody starts a member that has died of a message."""
        if self.hub.now < self.scenario.settle_ns:
            self.start(who)

    def settled(self) -> None:
        self.working()
        self.settled_ns = self.hub.now

    def finish(self) -> None:
        self._work_off()
        self.working()
        for source in self.keys:
            self.ledger.nothing_waits(source)
        self.ledger.nothing_is_lost(self.keys, self.settled_ns)

    def _work_off(self) -> None:
        """Wait while messages wait, as long as slow members take: a stall is found all the same."""
        slowest_ms = max(spec.work_ms for spec in self.scenario.members) + _ALONE_MS
        left = max(self.ledger.count_waiting(source) for source in self.keys)
        until = self.hub.now + int(left * slowest_ms * MS)
        while self.hub.violation is None and self.hub.now < until:
            if not any(self.ledger.count_waiting(source) for source in self.keys):
                return
            self.hub.run(self.hub.now + self.scenario.interval_ms * MS)


World = RangeWorld
