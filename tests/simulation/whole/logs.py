"""Histories of whole consumers whose coordination log is lost, in part or as a whole.

The log loses its last records, though they were acknowledged; its topic is deleted and made anew,
under another id; records come again; what snapshots cover is deleted; and there is much to replay.
Whoever is away meanwhile hears of it late, or from nobody.

Two members act for one partition only where the log was lost, and no longer than a lease. In the
end, all have the same state, that of the log; each partition has a holder; and all messages came.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from marshal_py.errors import BrokerUnavailable, TopicMissing
from marshal_py.protocol.messages import ReleaseGroup, ResumeGroup, encode
from marshal_py.protocol.rationalizer import BOUNDARY, PartitionState, apply
from marshal_py.protocol.state_image import canonical_bytes, image_of
from tests.simulation.whole import consumers
from tests.simulation.whole.checks import LOG, Key, Ledger
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.consumers import Member
from tests.simulation.whole.green import MS, SECOND, Violation, sleep

if TYPE_CHECKING:
    from marshal_py import Claim

SNAPSHOTS: Final = f"{LOG}.snapshots"
_KINDS: Final = (
    "kill", "start", "freeze", "cut_write", "cut_read", "slow", "close", "keep", "leaderless",
    "burst",
)  # fmt: skip
"""What else happens, of what happens to consumers."""
_HEARD_MS: Final = 300
"""So long it takes to hear of what has become of the log, beside the interval of looking."""


@dataclass
class Scenario(consumers.Scenario):
    """As of other consumers. `before`: records that the log has when they begin."""

    before: int = 0
    trims: bool = False


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"logs {seed}")
    made = Scenario(
        **vars(consumers.generate(seed)),
        before=rng.choice((0, 0, 100, 2_500)),
        trims=rng.random() < 0.3,
    )
    made.mode = "at_least_once"
    made.incidents = [incident for incident in made.incidents if incident[1] in _KINDS]
    interval = made.interval_ms * MS
    for _ in range(rng.randint(1, 4)):
        at = int(rng.uniform(1.5 * interval, made.heal_ns - interval))
        p = rng.randrange(made.coordination)
        kind = rng.choices(["truncate", "remake", "repeat", "markers"], [4, 3, 2, 4])[0]
        args: tuple[Any, ...] = {
            "truncate": (rng.choice((1, 2, 5, 30)),),
            "remake": (int(interval * rng.choice((0.01, 0.3, 1.5))), rng.random() < 0.5),
            "repeat": (rng.choice((1, 3)),),
            "markers": (rng.choice((1, 3, 10)),),
        }[kind]
        made.incidents.append((at, kind, p, args))
    made.incidents.sort()
    made.settle_ns += 4 * SECOND
    made.end_ns += 4 * SECOND
    return made


class LogLedger(Ledger):
    """What is true: the log, as it is now, and who acts."""

    def __init__(self, cluster: Cluster, group_id: str, *, amo: bool) -> None:
        super().__init__(cluster, group_id, amo=amo)
        self.acting: dict[Key, tuple[int, str]] = {}
        """The newest epoch under which messages went out, and whose it was."""
        self.lost_ns: int | None = None
        """When the log last lost something."""
        self.lease_ns = 0

    def written(self, topic: str, p: int, offset: int, value: bytes | None) -> None:
        if topic == LOG:
            apply(self.states[p], offset, value, None)
            self.cluster.hub.tell(f"log {p}", f"{offset}")

    def lost(self, *partitions: int) -> None:
        """The log is not what it was."""
        self.lost_ns = self.cluster.hub.now
        for p in partitions:
            self.states[p] = self.folded(p)

    def folded(self, p: int, end: int | None = None) -> PartitionState:
        """The state of a partition of the log, or of what is before an offset."""
        state, partition = PartitionState(p), self.cluster.topics[LOG][p]
        for offset, record in zip(partition.offsets, partition.records, strict=True):
            if end is None or offset < end:
                apply(state, offset, record[1], None)
        return state

    def about_to_produce(self, member: Member, topic: str, value: bytes) -> None:
        """What is written may be about a log that is no more."""

    def handed(self, member: Member, message: Any, claim: Claim) -> None:
        hub, key, offset = self.cluster.hub, (claim.topic, claim.partition), message.offset()
        text = f"{member.name} gets {key[0]}/{key[1]}/{offset} under epoch {claim.epoch}"
        hub.tell(member.name, text)
        hub.counts["messages"] += 1
        hub.counts["came again"] += offset in self.delivered[key]
        self.delivered[key].add(offset)
        shaken = self.lost_ns is not None and hub.now < self.lost_ns + self.lease_ns
        epoch, instance_id = self.acting.get(key, (-1, ""))
        overtaken = epoch > claim.epoch and instance_id != member.instance_id
        hub.counts["overlaps"] += overtaken
        if overtaken and not shaken:
            raise Violation("exclusion", f"{text}, after {instance_id} under {epoch}")
        if epoch < claim.epoch:
            self.acting[key] = claim.epoch, member.instance_id

    def forget_epochs(self) -> None:
        """Epochs may be given again now."""
        self.acting.clear()


class LogMember(Member):
    """A member whose program starts again until there is a log."""

    world: World

    def main(self) -> None:
        while True:
            try:
                super().main()
                return
            except (BrokerUnavailable, TopicMissing):
                self.hub.counts["started again"] += 1
                sleep(0.2)

    def more_settings(self) -> dict[str, Any]:
        return {"snapshot_every": 1, "trim_log": self.world.scenario.trims}


class World(consumers.World):
    """One history."""

    scenario: Scenario
    ledger: LogLedger

    def new_ledger(self, *, amo: bool) -> Ledger:
        made = LogLedger(self.cluster, consumers.GROUP, amo=amo)
        interval_ms = self.scenario.interval_ms
        made.lease_ns = (2 * interval_ms + max(interval_ms, 200) + _HEARD_MS) * MS
        return made

    def new_member(self, spec: consumers.Spec, number: int) -> Member:
        return LogMember(self, spec, number)

    def run(self) -> None:
        for n in range(self.scenario.before):
            self._send(n % self.scenario.coordination, self._of_others(n))
        super().run()

    def _of_others(self, n: int) -> Any:
        group = f"other{n // 2 % 50}"
        if n % 2:
            return ResumeGroup(2, "op", "op.1", group, self._next(), 0)
        return ReleaseGroup(2, "op", "op.1", group, self._next(), 2**50)

    def _send(self, p: int, record: Any) -> None:
        if LOG in self.cluster.topics:
            self.cluster.append(LOG, p, encode(record))

    # Incidents

    def do_truncate(self, p: int, count: int) -> None:
        if LOG not in self.cluster.topics:
            return
        partition = self.cluster.topics[LOG][p]
        index = max(partition.index(partition.begin) + 2, len(partition.offsets) - count)
        if index < len(partition.offsets):
            self.hub.fired["truncate"] += 1
            self.hub.tell("log", f"{p} loses {len(partition.offsets) - index} records")
            self.cluster.truncate(LOG, p, partition.offsets[index])
            self.ledger.lost(p)
            self.ledger.forget_epochs()

    def do_remake(self, _: int, gap_ns: int, grown: bool) -> None:
        if LOG not in self.cluster.topics:
            return
        self.hub.fired["remake"] += 1
        self.hub.tell("log", "is deleted")
        ends = [partition.end for partition in self.cluster.topics[LOG]]
        self.cluster.delete(LOG)
        self.ledger.lost_ns = self.hub.now + gap_ns
        self.hub.at(self.hub.now + gap_ns, self.made_anew, ends if grown else [])

    def made_anew(self, ends: list[int]) -> None:
        """The topic is there again; with `ends`, as if it had grown past its old ends meanwhile."""
        self.hub.tell("log", f"is made anew, {ends}")
        self.cluster.create(LOG, self.scenario.coordination)
        for partition, end in zip(self.cluster.topics[LOG], ends, strict=False):
            partition.end = end + self.hub.random.choice((0, 1, 10))
        self.ledger.lost(*range(self.scenario.coordination))

    def do_repeat(self, p: int, records: int) -> None:
        for member in self.live():
            if self.hub.random.random() < 0.5:
                for consumer in member.link.consumers:
                    consumer.go_back(LOG, p, records)

    def do_markers(self, p: int, before: int) -> None:
        """Offsets that no record has bring the log close to the next boundary of snapshots.

        Not before its first record: a snapshot of the log before would go with this one, too, and
        all would go on from there, which the ledger does not know.
        """
        if LOG in self.cluster.topics and self.cluster.topics[LOG][p].offsets:
            self.hub.fired["markers"] += 1
            partition = self.cluster.topics[LOG][p]
            partition.end = (partition.end // BOUNDARY + 1) * BOUNDARY - before
            if partition.end < (partition.offsets or [0])[-1] + 1:
                partition.end += BOUNDARY

    def do_leaderless(self, p: int, span: int) -> None:
        if LOG in self.cluster.topics:
            super().do_leaderless(p, span)

    # Peace

    def heal(self) -> None:
        if LOG not in self.cluster.topics:
            self.hub.at(self.hub.now + 10 * MS, self.heal)
            return
        super().heal()

    def finish(self) -> None:
        super().finish()
        self.hub.counts["snapshots"] += sum(
            len(partition.offsets) for partition in self.cluster.topics[SNAPSHOTS]
        )
        for member in self.working():
            assert member.consumer is not None
            reader = member.consumer.marshal._driver.reader
            for p in reader.partitions:
                self.follows(member, p, reader.world.states[p])

    def follows(self, member: Member, p: int, state: PartitionState) -> None:
        """A member has read the log up to a moment ago, and made of it what is to be made."""
        partition = self.cluster.topics[LOG][p]
        due = [
            offset
            for offset, record in zip(partition.offsets, partition.records, strict=True)
            if record[2] < partition.records[-1][2] - 1_000
        ]
        if due and state.next_offset <= due[-1]:
            raise Violation(
                "who reads keeps up", f"{member.name}: {state.next_offset} of {partition.end}"
            )
        true = self.ledger.folded(p, state.next_offset)
        if canonical_bytes(image_of(state)) != canonical_bytes(image_of(true)):
            raise Violation("equal logs, equal states", f"{member.name}: partition {p}")


REQUIRED: Final = (
    "burst",
    "close",
    "cut_read",
    "freeze",
    "kill",
    "log_trimmed",
    "markers",
    "offset_repeated",
    "reads_on_in_another_topic",
    "remake",
    "restart",
    "truncate",
    "written_to_no_topic",
)
REQUIRED_COUNTS: Final = ("came again", "messages", "overlaps", "snapshots", "started again")
