"""What consumers must keep to, checked at every record of the log and at every message handed out.

The ledger knows the truth: it folds the coordination topic the moment a record enters it, and hears
from the simulated users what they were given and when they were done. It shares with the product
only the fold.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import Heartbeat, ReleasingPartition, decode
from marshal_py.protocol.rationalizer import Cell, PartitionState, apply
from marshal_py.protocol.slots import Slot, agreement_of, slot_of, slot_of_key, source_of
from marshal_py.protocol.world import coordinating_partition
from tests.simulation.whole.cluster import Cluster, Partition
from tests.simulation.whole.green import MS, Violation

if TYPE_CHECKING:
    from marshal_py import Claim
    from tests.simulation.whole.consumers import Member

LOG = "__marshal"
MOMENT_NS = 50 * MS
PAUSE_NS = 100 * MS
"""Messages may be handed out for so long after the driver has read of a pause."""
Key = tuple[str, int]


@dataclass
class Tenure:
    """What one holder did with one partition under one epoch."""

    instance_id: str
    start: int
    """The position that the claim gave it."""
    handed: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    """What the user has said will not be done under this claim."""
    first: int = 0
    """The first of `handed` that is not done."""
    prefix: int = -1
    """Everything below was done, as far as it was handed out."""
    told: int = -1
    """And everything below this the product has been told of: the loop has come back for more."""
    proposals: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of messages that the log gave to it."""
    tellings: deque[tuple[int, int]] = field(default_factory=deque)

    def in_hand(self) -> set[int]:
        """What was handed out, and the user has said nothing of."""
        return {*self.handed[self.first :]} - self.done - self.released

    def tell(self, now: int) -> None:
        """The product is told now; what it sends counts on it a moment later.

        It looks at one partition after the other, and threads may acknowledge in between.
        """
        self.tellings.append((now, self.prefix))
        self.settle(now)

    def settle(self, now: int) -> None:
        """Take up in `told` what was told long enough ago."""
        while self.tellings and self.tellings[0][0] <= now - MOMENT_NS:
            self.told = self.tellings.popleft()[1]


class Messages:
    """The messages that one claim is about: of a partition, or of one slot of it."""

    def __init__(self, partition: Partition, slot: Slot | None) -> None:
        self._partition = partition
        self._slot = slot
        self._own = Partition()
        self._seen = 0

    @property
    def end(self) -> int:
        return self._partition.end

    def now(self) -> Partition:
        """What there is now."""
        if self._slot is None:
            return self._partition
        whole, own = self._partition, self._own
        for n in range(self._seen, len(whole.offsets)):
            offset, record = whole.offsets[n], whole.records[n]
            if slot_of_key(record[0], offset, self._slot.slots) == self._slot.number:
                own.offsets.append(offset)
                own.records.append(record)
        self._seen, own.end = len(whole.offsets), whole.end
        return own


class Ledger:
    """The truth about one group."""

    def __init__(self, cluster: Cluster, group_id: str, *, amo: bool) -> None:
        self._messages: dict[Key, Messages] = {}
        self.cluster = cluster
        self.group_id = group_id
        self.amo = amo
        self.partitions = len(cluster.topics[LOG])
        self.states = [PartitionState(p) for p in range(self.partitions)]
        self.tenures: dict[tuple[Key, int], Tenure] = {}
        self.delivered: defaultdict[Key, set[int]] = defaultdict(set)
        """What need not come (again)."""
        self.ever_done: defaultdict[Key, set[int]] = defaultdict(set)
        """What a user was done with, whether its consumer was told in time or not."""
        self.times: dict[tuple[Key, int], int] = {}
        self.exclusive = True
        """Whether different instances never act at the same time; not between twins."""
        self.calm = False
        self.moved_in_calm = ""
        cluster.watch = self.written

    def cell(self, key: Key) -> Cell | None:
        return self.state(key).cells.get((self.group_id, *key))

    def state(self, key: Key) -> PartitionState:
        return self.states[coordinating_partition(self.group_id, self.partitions)]

    def messages(self, key: Key) -> Partition:
        """What a claim of this name is about."""
        if key not in self._messages:
            topic, p = source_of(*key)
            self._messages[key] = Messages(self.cluster.topics[topic][p], slot_of(*key))
        return self._messages[key].now()

    # The log

    def written(self, topic: str, p: int, offset: int, value: bytes | None) -> None:
        if topic != LOG:
            return
        events: list[ev.Event] = []
        apply(self.states[p], offset, value, events)
        for event in events:
            self.cluster.hub.tell(f"log {p}", f"{offset}: {event}")
            if getattr(event, "group_id", None) == self.group_id:
                self._event(event)

    def _event(self, event: Any) -> None:
        if agreement_of(getattr(event, "topic", None) or "") is not None:
            return
        match event:
            case ev.Claimed():
                self._claimed(event)
            case ev.Renewed() | ev.Released():
                self._stored(event)
                if isinstance(event, ev.Released):
                    self._moved(f"released {event.topic}/{event.partition}")
            case ev.MessagesClaimed():
                tenure = self.tenures[(event.topic, event.partition), event.epoch]
                tenure.proposals.append((event.from_offset, event.to_offset))
            case ev.PositionSet():
                self._reset((event.topic, event.partition), event.next_offset)
            case ev.GroupForgotten():
                for key in list(self.delivered):
                    if self.cell(key) is None:
                        self._reset(key, 0)

    def _claimed(self, event: ev.Claimed) -> None:
        key = (event.topic, event.partition)
        cell = self.cell(key)
        assert cell is not None
        start = max(cell.next_offset, cell.claimed_offset, 0)
        self.tenures[key, event.epoch] = Tenure(event.instance_id, start, prefix=start, told=start)
        self._moved(f"{event.instance_id} claims {key}")

    def _moved(self, what: str) -> None:
        if self.calm and not self.moved_in_calm:
            self.moved_in_calm = what

    def _stored(self, event: ev.Renewed | ev.Released) -> None:
        """What is stored was done: nothing is lost when another goes on from there."""
        key = (event.topic, event.partition)
        tenure = self.tenures.get((key, event.epoch))
        if self.amo or tenure is None:
            return
        partition = self.messages(key)
        index = partition.index(tenure.prefix)  # offsets without a message need nobody
        while index < len(partition.offsets) and partition.offsets[index] in self.ever_done[key]:
            index += 1  # an earlier holder was done with it
        done_to = partition.offsets[index] if index < len(partition.offsets) else partition.end
        if event.next_offset > max(done_to, tenure.prefix):
            raise Violation(
                "at least once: stored is done",
                f"{event.instance_id} stores {event.next_offset} of {key}, done to {tenure.prefix}",
            )

    def _reset(self, key: Key, next_offset: int) -> None:
        """An operator moved the position: what lies beyond it comes (again), nothing before it."""
        self.delivered[key] = set(range(next_offset))
        self.ever_done[key] = {offset for offset in self.ever_done[key] if offset < next_offset}

    # What a member sends

    def about_to_produce(self, member: Member, topic: str, value: bytes) -> None:
        """Each heartbeat carries all that is done: so only one interval's work comes again."""
        if topic != LOG or self.amo:
            return
        record = decode(value)
        problem = None  # it is noted, not raised: this is within the product
        if isinstance(record, Heartbeat):
            state = self.states[coordinating_partition(self.group_id, self.partitions)]
            session = state.session(self.group_id, record.client_id, record.instance_id)
            said = dict(zip(record.positions[::2], record.positions[1::2], strict=True))
            for epoch, cell in session.claims.items() if session is not None else ():
                key = cell.unit
                tenure = self.tenures.get((key, epoch))
                if tenure is None or not member.storing(key):
                    continue
                tenure.settle(self.cluster.hub.now)
                stored = max(said.get(epoch - state.base, -1), cell.next_offset, tenure.start)
                if stored < tenure.told:
                    problem = "at least once: a heartbeat carries what is done"
                    text = f"{key}: {said}, the log has {cell}, done to {tenure.told}"
        elif isinstance(record, ReleasingPartition):
            key = (record.topic, record.partition)
            tenure = self.tenures.get((key, record.epoch))
            if tenure is not None and not member.closing:
                tenure.settle(self.cluster.hub.now)
                text = f"{record}, done to {tenure.told}"
                if max(record.next_offset, tenure.start) < tenure.told:
                    problem = "a release carries what is done"
                elif tenure.in_hand() and not member.pausing(key):
                    # (A pause waits no longer than the lease.)
                    problem = "a release waits for what is in hand"
        if problem is not None:
            self.cluster.hub.fail(problem, f"{member.name}: {text}")

    # What users get and do

    def handed(self, member: Member, message: Any, claim: Claim) -> None:
        """A member's loop got a message."""
        tenure, text = self.entitled(member, message, claim)
        key, offset = (claim.topic, claim.partition), message.offset()
        if tenure.handed and offset <= tenure.handed[-1]:
            raise Violation("order", f"{text}, after {tenure.handed[-1]}")
        if self.amo:
            self.at_most_once(key, tenure, offset, text)
        else:
            self._nothing_skipped(key, tenure, offset, text)
            if offset in self.delivered[key]:
                self.cluster.hub.counts["came again"] += 1
        tenure.handed.append(offset)
        self.delivered[key].add(offset)
        self.times[key, offset] = self.cluster.hub.now

    def entitled(self, member: Member, message: Any, claim: Claim) -> tuple[Tenure, str]:
        """Whether a member may have a message now; returns under what, and what to say of it."""
        hub, epoch = self.cluster.hub, claim.epoch
        key, offset = (claim.topic, claim.partition), message.offset()
        text = f"{member.name} gets {key[0]}/{key[1]}/{offset} under epoch {epoch}"
        hub.tell(member.name, text)
        hub.counts["messages"] += 1
        tenure = self.tenures.get((key, epoch))
        if offset not in self.messages(key).offsets:
            raise Violation("each message to its own slot", text)
        if tenure is None or tenure.instance_id != member.instance_id:
            raise Violation("who delivers has claimed", text)
        cell = self.cell(key)
        over = cell is None or cell.epoch != epoch or cell.holder is None
        if over and not self.amo:
            hub.counts["overlaps"] += 1
            if self.exclusive:
                raise Violation("exclusion", f"{text}, the log: {cell}")
        if member.paused_for_ns() > PAUSE_NS and not self.amo:
            raise Violation("a pause ends delivery", text)
        if not claim.held and not claim._core.holding.paused:
            raise Violation("a lease stands behind every message", text)
        return tenure, text

    def at_most_once(self, key: Key, tenure: Tenure, offset: int, text: str) -> None:
        if offset in self.delivered[key]:
            raise Violation("at most once", f"{text}, and it was delivered before")
        if not any(low <= offset < high for low, high in tenure.proposals):
            raise Violation("at most once: claimed", f"{text}: {tenure.proposals}")

    def _nothing_skipped(self, key: Key, tenure: Tenure, offset: int, text: str) -> None:
        partition = self.messages(key)
        after = tenure.handed[-1] + 1 if tenure.handed else tenure.start
        index = partition.index(after)
        # What was acknowledged above one that was not does not come again, if its holder told.
        while (due := partition.offsets[index]) < offset and due in self.ever_done[key]:
            index += 1
        if offset != due:
            raise Violation("at least once: nothing is skipped", f"{text}, but {due} was due")

    def done(self, key: Key, epoch: int, offset: int) -> None:
        """The user is done with a message: the loop asks for the next, or it was acknowledged."""
        self.ever_done[key].add(offset)
        tenure = self.tenures.get((key, epoch))
        if tenure is None:
            return
        tenure.done.add(offset)
        while tenure.first < len(tenure.handed):
            handed = tenure.handed[tenure.first]
            if handed not in tenure.done:
                break
            tenure.done.discard(handed)
            tenure.first += 1
            tenure.prefix = handed + 1

    def told(self, key: Key, epoch: int) -> None:
        """What the user is done with is known to the consumer from now on."""
        tenure = self.tenures.get((key, epoch))
        if tenure is not None:
            tenure.tell(self.cluster.hub.now)

    # The end

    def nothing_is_lost(self, keys: list[Key], since_ns: int) -> None:
        """At least once, all was delivered; at most once, all that was written in peace."""
        for key in keys:
            partition = self.messages(key)
            offsets = [
                offset
                for offset, (_, value, _) in zip(partition.offsets, partition.records, strict=True)
                if not self.amo or int(value or b"0") >= since_ns
            ]
            missing = sorted(set(offsets) - self.delivered[key])
            if missing:
                raise Violation(
                    "nothing is lost",
                    f"{key[0]}/{key[1]}: {len(missing)} of {len(offsets)} never came, from "
                    f"{missing[:3]}; the log: {self.cell(key)}",
                )

    def shares_are_fair(self, members: list[Member], keys: list[Key]) -> None:
        """Each partition has a live holder, and nobody has two more than another."""
        held = {member.spec.client_id: 0 for member in members}
        instances = {member.instance_id: member for member in members}
        for key in keys:
            cell = self.cell(key)
            if cell is None or cell.instance_id not in instances:
                raise Violation("every partition has a holder", f"{key}: {cell}")
            held[instances[cell.instance_id].spec.client_id] += 1
        counts = {m.spec.client_id: (held[m.spec.client_id], m.limit) for m in members}
        free = [count for count, limit in counts.values() if count < limit]
        if free and max(count for count, _ in counts.values()) - min(free) > 1:
            raise Violation("shares are fair", f"{counts}")
        if any(count > limit for count, limit in counts.values()):
            raise Violation("nobody holds more than it wants", f"{counts}")
