"""Histories of `Consumer.run`: handlers that fail, retries, dead letters; as `consumers` otherwise.

What becomes of a message is drawn from its offset: most are handled at once, some when they are
tried again, and some never, which have to end as dead letters.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.dead_letters import PREFIX
from marshal_py.consumer.handlers import runner, workers  # noqa: F401 (simulated ground is laid there)
from marshal_py.consumer.handlers.options import Retry
from marshal_py.protocol import events as ev
from tests.simulation.whole import consumers
from tests.simulation.whole.checks import Key, Ledger, Tenure
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.consumers import TOPIC, Member, Scenario, Spec
from tests.simulation.whole.green import SECOND, Violation, current_thread

if TYPE_CHECKING:
    from marshal_py import Claim

DEAD: Final = f"{TOPIC}.dlq"
ATTEMPTS: Final = 3
NEVER: Final = 99

REQUIRED: Final = consumers.REQUIRED
REQUIRED_COUNTS: Final = (
    *("came again", "closed", "messages", "overlaps", "twins noticed"),
    *("dead letters", "failed attempts", "repeated dead letters", "stopped"),
)

__all__ = ["REQUIRED", "REQUIRED_COUNTS", "World", "generate"]


class Sour(Exception):
    """What a handler raises."""


def failures_of(seed: int, p: int, offset: int) -> int:
    """How often a handler fails with a message."""
    kind = crc32(b"%d %d/%d" % (seed, p, offset)) % 80
    return {0: NEVER, 1: NEVER, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1}.get(kind, 0)


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    made = consumers.generate(seed)
    for spec in made.members:
        spec.style, spec.work_ms = "run", min(spec.work_ms, 1.0)
    made.end_ns += 5 * SECOND  # for what was written last, and is tried again
    return made


class Lane:
    """Messages that have to come one after the other, under one claim."""

    def __init__(self) -> None:
        self.last = -1
        """The last one that came to its end."""
        self.open: int | None = None
        """The one that was begun, and has not come to its end."""
        self.runs = False


class HandlerLedger(Ledger):
    """The truth about a group whose members work by `run`. `delivered`: what came to its end."""

    def __init__(self, cluster: Cluster, group_id: str, seed: int, *, amo: bool) -> None:
        super().__init__(cluster, group_id, amo=amo)
        self.seed = seed
        self.lanes: defaultdict[tuple[Key, int, bytes], Lane] = defaultdict(Lane)
        self.calls: defaultdict[tuple[Key, int], int] = defaultdict(int)
        self.dead: set[tuple[Key, int]] = set()
        self.own: dict[tuple[Key, int], int] = {}
        """Everything below was done under this claim."""
        self.paused: set[tuple[Key, int]] = set()
        """Claims that were there when the group was paused."""
        self.finished: defaultdict[Key, set[int]] = defaultdict(set)
        """What was done by whoever gave the partition back in good order."""
        self.hurried: set[str] = set()
        """Instances that were closed and waited for no handler."""

    def begins(self, member: Member, message: Any, claim: Claim, *, by_key: bool) -> None:
        """A handler is called."""
        tenure, text = self.entitled(member, message, claim)
        key, offset = (claim.topic, claim.partition), message.offset()
        self.calls[key, offset] += 1
        if self.amo:
            self.at_most_once(key, tenure, offset, text)
            self.delivered[key].add(offset)
        elif offset in self.delivered[key]:
            self.cluster.hub.counts["came again"] += 1
            if offset in self.finished[key]:
                raise Violation("what was finished before a release does not come again", text)
        tenure.handed.append(offset)
        lane = self._lane(key, claim.epoch, message.key(), by_key=by_key)
        if lane is None:
            return
        if lane.runs:
            raise Violation("order: one at a time", f"{text}, beside {lane.open}")
        if lane.open not in (None, offset) and not self.amo:
            raise Violation("order: what failed comes first", f"{text}, and {lane.open} is open")
        if offset <= lane.last:
            raise Violation("order", f"{text}, after {lane.last}")
        self._lane_is_whole(key, tenure, lane, message, text, by_key=by_key)
        lane.open, lane.runs = offset, True

    def _lane(
        self, key: Key, epoch: int, message_key: bytes | None, *, by_key: bool
    ) -> Lane | None:
        if not by_key:
            return self.lanes[key, epoch, b""]
        return None if message_key is None else self.lanes[key, epoch, b"k" + message_key]

    def _lane_is_whole(
        self, key: Key, tenure: Tenure, lane: Lane, message: Any, text: str, *, by_key: bool
    ) -> None:
        """Everything before it in its order has come to its end, here or at an earlier holder."""
        if self.amo:
            return
        partition = self.messages(key)
        low = partition.index(max(tenure.start, lane.last + 1))
        for n in range(low, partition.index(message.offset())):
            before = partition.offsets[n]
            if by_key and partition.records[n][0] != message.key():
                continue
            if before not in self.delivered[key]:
                raise Violation("at least once: nothing is skipped", f"{text}, {before} was due")

    def ends(
        self,
        key: Key,
        epoch: int,
        offset: int,
        message_key: bytes | None,
        *,
        by_key: bool,
        ok: bool,
    ) -> None:
        """A handler returned, or raised."""
        tenure = self.tenures[key, epoch]
        tenure.handed.remove(offset)
        lane = self._lane(key, epoch, message_key, by_key=by_key)
        if lane is not None:
            lane.runs = False
        if ok:
            self.delivered[key].add(offset)
            tenure.done.add(offset)
            if lane is not None:
                lane.open, lane.last = None, offset

    def told(self, key: Key, epoch: int) -> None:
        """What was done under a claim is known to the consumer from now on."""
        tenure = self.tenures.get((key, epoch))
        if tenure is not None:
            below = self._whole(key, self.own.get((key, epoch), tenure.start), tenure.done)
            self.own[key, epoch] = below
            tenure.tellings.append((self.cluster.hub.now, below))
            tenure.settle(self.cluster.hub.now)

    def _whole(self, key: Key, at: int, done: set[int]) -> int:
        """Where the first message lies from `at` on that is not done."""
        partition = self.messages(key)
        for n in range(partition.index(at), len(partition.offsets)):
            if partition.offsets[n] not in done:
                return at
            at = partition.offsets[n] + 1
        return at

    def _stored(self, event: ev.Renewed | ev.Released) -> None:
        key = (event.topic, event.partition)
        tenure = self.tenures.get((key, event.epoch))
        if tenure is None or self.amo:
            return
        tenure.prefix = self._whole(key, tenure.prefix, self.delivered[key])
        super()._stored(event)
        if (
            isinstance(event, ev.Released)
            and (key, event.epoch) not in self.paused
            and event.instance_id not in self.hurried
            and self._could_write(event.instance_id)
        ):
            self.finished[key] |= tenure.done

    def _could_write(self, instance_id: str) -> bool:
        """Whether all of its appends came through: what lies above a gap goes by heartbeat."""
        links = self.cluster.links.items()
        return all(
            not link.appends_failed and link.write_cut is None
            for machine, link in links
            if instance_id.startswith(f"{machine.name}.")
        )

    def _event(self, event: Any) -> None:
        super()._event(event)
        if isinstance(event, ev.GroupPaused):  # which waits for nothing
            self.paused.update(self.tenures)

    def _reset(self, key: Key, next_offset: int) -> None:
        super()._reset(key, next_offset)
        self.finished[key].clear()

    # Dead letters

    def written(self, topic: str, p: int, offset: int, value: bytes | None) -> None:
        super().written(topic, p, offset, value)
        if topic == DEAD:
            self._buried(*self._record(p, offset))

    def _record(self, p: int, offset: int) -> tuple[dict[str, bytes], Any]:
        partition = self.cluster.topics[DEAD][p]
        n = partition.index(offset)
        return dict(partition.headers[n]), partition.records[n]

    def _buried(self, headers: dict[str, bytes], record: Any) -> None:
        hub = self.cluster.hub
        told = {name: int(headers[PREFIX + name]) for name in ("partition", "offset", "attempts")}
        key, offset, attempts = (TOPIC, told["partition"]), told["offset"], told["attempts"]
        epoch = int(headers[f"{PREFIX}epoch"])
        text = f"{key[1]}/{offset} after {attempts} attempts, under epoch {epoch}"
        hub.counts["dead letters"] += 1
        hub.counts["repeated dead letters"] += (key, offset) in self.dead
        self.dead.add((key, offset))
        original = self.messages(key)
        found = original.records[original.offsets.index(offset)]
        if found[:2] != record[:2]:
            raise Violation("a dead letter is the message as it came", text)
        if failures_of(self.seed, key[1], offset) < (1 if self.amo else NEVER):
            raise Violation("only what fails for good becomes a dead letter", text)
        if not (1 if self.amo else ATTEMPTS) <= attempts <= self.calls[key, offset]:
            raise Violation("a dead letter has had its attempts", text)
        if (key, epoch) not in self.tenures:
            raise Violation("a dead letter names the claim", text)
        self.delivered[key].add(offset)
        for lane in (self.lanes[key, epoch, b""], self.lanes[key, epoch, b"k" + (found[0] or b"")]):
            if lane.open == offset:
                lane.open, lane.last = None, offset


class Handling(Member):
    """A member whose program is `consumer.run(handler)`."""

    world: HandlerWorld

    def work(self, consumer: Consumer, manual: bool) -> None:
        dice = self.hub.random
        self.by_key = dice.random() < 0.7
        self.unsaid_by: dict[Any, tuple[Key, int]] = {}
        retry = Retry(attempts=ATTEMPTS, backoff_ms=dice.choice((2, 10, 40)), jitter=0)
        consumer.run(
            self.handler,
            workers=dice.choice((1, 2, 4)),
            ordering="key" if self.by_key else "partition",
            retry=None if self.world.ledger.amo else retry,
            on_failure="dead_letter",
            max_buffered=dice.choice((10, 10_000)),
            max_ahead=dice.choice((20, 100_000)),
            drain_timeout_s=5.0,
        )

    def handler(self, message: Any, claim: Claim) -> None:
        try:
            self.handle_one(message, claim)
        except Violation as problem:  # `run` would take it for a failure of the handler
            self.hub.fail(*problem.args)

    def handle_one(self, message: Any, claim: Claim) -> None:
        ledger, me = self.world.ledger, current_thread()
        if me in self.unsaid_by:  # the worker has come back, so what it had done is known
            ledger.told(*self.unsaid_by.pop(me))
        key, epoch, offset = (claim.topic, claim.partition), claim.epoch, message.offset()
        ledger.begins(self, message, claim, by_key=self.by_key)
        self.toil()
        ok = ledger.calls[key, offset] > failures_of(ledger.seed, key[1], offset)
        ledger.ends(key, epoch, offset, message.key(), by_key=self.by_key, ok=ok)
        if not ok:
            self.hub.counts["failed attempts"] += 1
            raise Sour(offset)
        self.unsaid_by[me] = (key, epoch)

    def close(self, timeout_s: float, *, keep: bool) -> None:
        """SIGTERM: `stop`, or `close` in another thread."""
        ready = self.consumer is not None and self.started and self.alive and not self.closing
        if keep or timeout_s == 0.0 or not ready:
            self.world.ledger.hurried.add(self.instance_id)
            super().close(timeout_s, keep=keep)
            return
        assert self.consumer is not None
        self.closing = True
        self.hub.counts["stopped"] += 1
        self.consumer.stop(timeout_s)

    def main(self) -> None:
        super().main()
        self.machine.exited = self.machine.exited or self.closing


class HandlerWorld(consumers.World):
    """One history."""

    ledger: HandlerLedger

    def new_ledger(self, *, amo: bool) -> HandlerLedger:
        self.cluster.create(DEAD, 1)
        return HandlerLedger(self.cluster, consumers.GROUP, self.scenario.seed, amo=amo)

    def new_member(self, spec: Spec, number: int) -> Handling:
        return Handling(self, spec, number)

    def traffic(self) -> None:
        if self.hub.now < self.scenario.end_ns - 5 * SECOND:
            super().traffic()

    def write(self, p: int, gap: int = 0) -> None:
        """Some keys come often, and some messages have none."""
        dice = self.hub.random
        key = dice.choice((None, b"hot", b"", b"%d" % dice.randrange(9)))
        self.cluster.append(TOPIC, p, b"%d" % self.hub.now, key, gap)


World = HandlerWorld
