"""Histories of whole consumers: members of one group share a topic while everything fails."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from marshal_py import Claim
from marshal_py.consumer.consumer import Consumer
from marshal_py.errors import Closed, DuplicateClientId
from marshal_py.protocol import events as ev
from marshal_py.protocol.claim_states import ClaimState
from marshal_py.protocol.messages import (
    ForgetGroup,
    Message,
    ReleaseGroup,
    ResumeGroup,
    SetPosition,
    encode,
)
from marshal_py.protocol.slots import Sharing, slot_of_key, slots_cell, source_of
from marshal_py.protocol.world import coordinating_partition
from tests.simulation.whole import green
from tests.simulation.whole.checks import LOG, Key, Ledger
from tests.simulation.whole.cluster import Cluster, Link
from tests.simulation.whole.green import MS, SECOND, Hub, Machine, Violation

GROUP: Final = "g"
TOPIC: Final = "m"
UNLIMITED: Final = 1 << 30
STYLES: Final = ("messages", "messages", "batches", "poll", "manual", "threads")
WHEN_CLOSED: Final = (Closed, DuplicateClientId)


@dataclass
class Spec:
    """One member: who it is, and how its user works."""

    client_id: str
    style: str
    work_ms: float
    rate_ppm: int
    limit: int = UNLIMITED
    weight: float = 1.0


@dataclass
class Scenario:
    """What happens in one history; `incidents` are (at, what, member, arguments)."""

    seed: int
    mode: str
    interval_ms: int
    coordination: int
    partitions: int
    members: list[Spec]
    incidents: list[tuple[int, str, int, tuple[Any, ...]]] = field(default_factory=list)
    heal_ns: int = 0
    settle_ns: int = 0
    end_ns: int = 0
    exclusive: bool = True
    slots: int = 0
    """So many to each partition, which is shared by keys; 0: by partitions, or by ranges."""
    by_ranges: bool = False
    poison: int = -1
    """A message of the first partition that kills who handles it, until it is given up."""

    @property
    def sharing(self) -> Sharing:
        """How members share."""
        return "ranges" if self.by_ranges else "keys" if self.slots else "partitions"


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    interval_ms = rng.choice((400, 600, 1_000))
    count = rng.choice((2, 2, 3, 3, 4))
    margin = 0.1 / (2 * 2 - 0.1)
    members = [
        Spec(
            client_id=f"c{n}",
            style=rng.choice(STYLES),
            work_ms=rng.choice((0.0, 0.2, 1.0, 5.0)),
            rate_ppm=1_000_000 + int(1e6 * margin * rng.choice((-1, -0.5, 0, 0, 0.5, 1))),
            limit=rng.choice((UNLIMITED,) * 6 + (1, 2)),
        )
        for n in range(count)
    ]
    if all(member.limit < UNLIMITED for member in members):
        members[0].limit = UNLIMITED
    heal = interval_ms * MS * rng.randint(8, 14)
    made = Scenario(
        seed=seed,
        mode=rng.choice(("at_least_once", "at_least_once", "at_most_once")),
        interval_ms=interval_ms,
        coordination=rng.choice((1, 1, 2)),
        partitions=rng.choice((1, 2, 3, 4, 6)),
        members=members,
        heal_ns=heal,
        settle_ns=heal + (9 * interval_ms + 3_000) * MS,
    )
    made.end_ns = made.settle_ns + 4 * interval_ms * MS
    for _ in range(rng.randint(3, 9)):
        _add(made, rng)
    made.incidents.sort()
    return made


def _add(made: Scenario, rng: random.Random) -> None:
    interval = made.interval_ms * MS
    at = int(rng.uniform(0.3 * interval, made.heal_ns - interval))
    who = rng.randrange(len(made.members))
    span = int(interval * rng.choice((0.3, 1, 1.8, 2.3, 3.5)))
    kind = rng.choices(
        ["kill", "freeze", "cut_write", "cut_read", "partition", "slow", "close", "keep",
         "leaderless", "pause_group", "twin", "limit", "late_start", "burst"],
        [4, 4, 4, 3, 2, 2, 3, 2, 2, 3, 1, 1, 1, 4],
    )[0]  # fmt: skip
    back = at + int(interval * rng.choice((0.05, 0.5, 1.2, 3)))
    match kind:
        case "kill":
            made.incidents.append((at, "kill", who, (rng.random() < 0.5,)))
            if rng.random() < 0.8:
                made.incidents.append((back, "start", who, ()))
        case "cut_write":
            mode = rng.choice(("hold", "fail", "late", "lost_ack"))
            by = int(interval * rng.choice((0.02, 0.3, 1.0)))
            if mode == "hold" and made.seed % 7 == 3:
                span = 8 * SECOND  # for longer than a producer tries
            made.incidents.append((at, "cut_write", who, (span, mode, by)))
        case "partition":
            made.incidents.append((at, "cut_write", who, (span, "hold", 0)))
            made.incidents.append((at, "cut_read", who, (span,)))
        case "slow":
            extra = int(interval * rng.uniform(0.1, 0.8))
            made.incidents.append((at, "slow", who, (span, extra)))
        case "close" | "keep":
            made.incidents.append((at, kind, who, (rng.choice((0.0, 0.2, 5.0)),)))
            if rng.random() < 0.8:
                made.incidents.append((back, "start", who, ()))
        case "leaderless":
            made.incidents.append((at, "leaderless", rng.randrange(made.coordination), (span,)))
        case "pause_group":
            made.incidents.append((at, "pause_group", 0, ()))
            for _ in range(rng.choice((0, 1, 2))):
                p, share = rng.randrange(made.partitions), rng.choice((0.0, 0.5, 1.0))
                made.incidents.append((at, "set_position", p, (share,)))
            if rng.random() < 0.3:
                made.incidents.append((at, "forget_group", 0, ()))
            made.incidents.append((at + span + interval, "resume_group", 0, ()))
        case "burst":
            many = 400 if made.seed % 5 == 2 else 150  # so many that some are claimed ahead
            made.incidents.append((at, "burst", rng.randrange(made.partitions), (many,)))
        case "twin":
            made.exclusive = False
            made.incidents.append((at, "freeze", who, (span,)))
            made.incidents.append((at + span // 2, "twin", who, ()))
        case "limit":
            made.incidents.append((at, "limit", who, (rng.choice((0, 1, 2)),)))
            made.incidents.append((back, "limit", who, (None,)))
        case "late_start":
            made.members.append(Spec(f"late{len(made.members)}", "messages", 0.2, 1_000_000))
            made.incidents.append((at, "start", len(made.members) - 1, ()))
        case _:
            made.incidents.append((at, kind, who, (span,)))


class Member:
    """One process of a member, and its user's program."""

    def __init__(self, world: World, spec: Spec, number: int) -> None:
        self.world, self.spec, self.hub = world, spec, world.hub
        self.machine = Machine(world.hub, f"{spec.client_id}.{number}", rate_ppm=spec.rate_ppm)
        self.name = self.machine.name
        self.limit = spec.limit
        self.limit_wanted: int | None = None
        self.paused_since: int | None = None
        self.unsaid: set[tuple[Key, int]] = set()
        """Where messages are done, and the consumer has not been told."""
        self.consumer: Consumer | None = None
        self.closing = self.twin = self.started = False
        self.link: Link = world.cluster.link(self.machine)
        self.link.about_to_produce = lambda topic, _, value: world.ledger.about_to_produce(
            self, topic, value
        )
        self.instance_id = f"{self.name}.?"
        self.machine.run(self.main)

    @property
    def alive(self) -> bool:
        return not (self.machine.dead or self.machine.exited)

    def paused_for_ns(self) -> int:
        """For how long it has been handing out messages although it has read of a pause."""
        assert self.consumer is not None
        if not self.consumer.marshal._driver.world.paused(GROUP):
            self.paused_since = None
        elif self.paused_since is None:
            self.paused_since = self.hub.now
        return 0 if self.paused_since is None else self.hub.now - self.paused_since

    def pausing(self, key: Key) -> bool:
        """Whether the claim of a partition ends because the group is paused."""
        part = None if self.consumer is None else self.consumer._core.partitions.by_key.get(key)
        return part is None or part.holding.paused

    def storing(self, key: Key) -> bool:
        """Whether heartbeats store the position of a partition: not while it is given back."""
        part = None if self.consumer is None else self.consumer._core.partitions.by_key.get(key)
        ours = (ClaimState.HELD, ClaimState.LAPSED)
        return part is not None and part.holding.state in ours and part.holding.renewable

    # The user's program

    def main(self) -> None:
        spec, scenario = self.spec, self.world.scenario
        manual = spec.style in ("manual", "threads") and scenario.mode == "at_least_once"
        consumer = self.consumer = Consumer(
            "simulated:9092",
            topics=TOPIC,
            group_id=GROUP,
            mode=scenario.mode,  # type: ignore[arg-type]
            auto_ack=not manual,
            max_claims=None if spec.limit == UNLIMITED else spec.limit,
            batch_size=self.hub.random.choice((1_000, 7)),
            discovery_interval_s=1.0,
            sharing=scenario.sharing,
            slots=scenario.slots or 16,
            client_id=spec.client_id,
            interval_ms=scenario.interval_ms,
            close_on_sigterm=False,
            **self.more_settings(),
        )
        self.instance_id = consumer.marshal.instance_id
        try:
            consumer.start()
            self.started = True
            self.work(consumer, manual)
        except DuplicateClientId:
            self.twin = True
            self.hub.counts["twins noticed"] += 1
            if self.world.scenario.exclusive:
                raise Violation("no twin is seen where there is none", self.name) from None
        except Closed:
            if not self.closing:
                raise
        if not self.closing:
            consumer.close(2.0)
            self.machine.exited = True

    def more_settings(self) -> dict[str, Any]:
        """Of the consumer, besides those of every kind."""
        return {}

    def work(self, consumer: Consumer, manual: bool) -> None:
        while not self.closing:
            if manual:
                self.manually(consumer, threads=self.spec.style == "threads")
            elif self.spec.style == "batches":
                for batch in consumer.batches(idle_timeout_s=0.5):
                    self.came_back()
                    for message in batch:
                        self.take(message, batch.claim)
                    for _ in batch:
                        self.toil()
                    for message in batch:
                        self.done(message, batch.claim.epoch)
                self.came_back()
            elif self.spec.style == "poll":
                message = consumer.poll(0.3)
                self.came_back()
                if message is not None:
                    self.handle(consumer, message)
            else:
                for message in consumer.messages(idle_timeout_s=0.5):
                    self.came_back()
                    self.handle(consumer, message)
                    if self.hub.random.random() < 0.02:
                        consumer.ack(message)
                        break
                self.came_back()

    def handle(self, consumer: Consumer, message: Any) -> None:
        claim = consumer.claim_of(message)
        self.take(message, claim)
        self.toil()
        self.done(message, claim.epoch)

    def came_back(self) -> None:
        """The loop has come back, so what it handed out counts as done."""
        for key, epoch in self.unsaid:
            self.world.ledger.told(key, epoch)
        self.unsaid.clear()

    def manually(self, consumer: Consumer, *, threads: bool) -> None:
        """Acknowledge a few messages at a time, in another order, perhaps in another thread."""
        waiting: list[tuple[Any, int]] = []

        def acknowledge(some: list[tuple[Any, int]]) -> None:
            self.hub.random.shuffle(some)
            for message, epoch in some:
                self.toil()
                self.finish_with(consumer, message, epoch)

        for message in consumer.messages(idle_timeout_s=0.3):
            claim = consumer.claim_of(message)
            self.take(message, claim)
            waiting.append((message, claim.epoch))
            if len(waiting) >= 5:
                some, waiting = waiting, []
                if threads:
                    green.Thread(target=acknowledge, args=(some,), name="worker").start()
                else:
                    acknowledge(some)
        acknowledge(waiting)

    def finish_with(self, consumer: Consumer, message: Any, epoch: int) -> None:
        """Say what became of a message that is acknowledged by itself."""
        self.world.ledger.ever_done[self.world.unit_of(message)].add(message.offset())
        consumer.ack(message)
        self.acknowledged(consumer, message, epoch)

    def take(self, message: Any, claim: Claim) -> None:
        self.world.ledger.handed(self, message, claim)

    def toil(self) -> None:
        if self.spec.work_ms:
            green.sleep(self.spec.work_ms / 1_000 * 2 * self.hub.random.random())

    def done(self, message: Any, epoch: int) -> None:
        key = self.world.unit_of(message)
        self.world.ledger.done(key, epoch, message.offset())
        self.unsaid.add((key, epoch))

    def acknowledged(self, consumer: Consumer, message: Any, epoch: int) -> None:
        part = consumer._core.partitions.by_key.get(self.world.unit_of(message))
        if part is not None and part.claim.epoch == epoch:
            self.done(message, epoch)
            self.came_back()

    def want(self, limit: int | None) -> None:
        """An operator lets it take so many, None for as many as it was started with."""
        assert self.consumer is not None
        self.limit = self.spec.limit if limit is None else limit
        with contextlib.suppress(*WHEN_CLOSED):
            self.consumer.set_max_claims(None if self.limit == UNLIMITED else self.limit)

    # Ending

    def close(self, timeout_s: float, *, keep: bool) -> None:
        """SIGTERM: another thread closes the consumer."""
        if self.consumer is None or self.closing or not self.started or not self.alive:
            return
        self.closing = True
        consumer = self.consumer
        consumer._core.keep_on_close = keep

        def shut() -> None:
            began = self.machine.now_ns
            consumer.close(timeout_s)
            took_s = (self.machine.now_ns - began) / 1e9
            self.machine.exited = True
            self.hub.counts["closed"] += 1
            self.world.closed(self, timeout_s, took_s, keep=keep)

        self.machine.run(shut, "closer")


class World:
    """One history."""

    QUIET_INTERVALS = 2
    """So long before the end, nothing is written any more."""

    def __init__(self, hub: Hub, cluster: Cluster, scenario: Scenario) -> None:
        self.hub, self.cluster, self.scenario = hub, cluster, scenario
        cluster.create(LOG, scenario.coordination)
        cluster.create(f"{LOG}.snapshots", scenario.coordination)
        cluster.create(TOPIC, scenario.partitions)
        self.ledger = self.new_ledger(amo=scenario.mode == "at_most_once")
        self.ledger.exclusive = scenario.exclusive
        self.members: dict[int, list[Member]] = {}
        self.started = 0
        self.seq = 0
        self.keys: list[Key] = [
            unit for p in range(scenario.partitions) for unit in self.units_of(p)
        ]
        self.settled_ns = 0

    def new_ledger(self, *, amo: bool) -> Ledger:
        return Ledger(self.cluster, GROUP, amo=amo)

    def new_member(self, spec: Spec, number: int) -> Member:
        return Member(self, spec, number)

    def run(self) -> None:
        scenario, hub = self.scenario, self.hub
        for n, spec in enumerate(scenario.members):
            if not spec.client_id.startswith("late"):
                hub.at(hub.random.randrange(scenario.interval_ms * MS), self.start, n)
        for at, kind, who, args in scenario.incidents:
            hub.at(at, getattr(self, f"do_{kind}"), who, *args)
        hub.at(0, self.traffic)
        hub.at(scenario.heal_ns, self.heal)
        hub.at(scenario.settle_ns, self.settled)
        hub.run(scenario.end_ns)
        if hub.violation is None:
            try:
                self.finish()
            except Violation as problem:
                hub.fail(*problem.args)

    def units_of(self, p: int) -> list[Key]:
        """What is claimed of a partition: all of it, or its slots."""
        if not self.scenario.slots:
            return [(TOPIC, p)]
        name = slots_cell(TOPIC, p, self.scenario.slots)
        return [(name, slot) for slot in range(self.scenario.slots)]

    def unit_of(self, message: Any) -> Key:
        """What a message is claimed with."""
        units = self.units_of(message.partition())
        return units[slot_of_key(message.key(), message.offset(), len(units))]

    def write(self, p: int, gap: int = 0) -> None:
        """A message is written: some keys come often, and some messages have none."""
        key = None
        if self.scenario.slots:
            key = self.hub.random.choice((None, b"hot", b"", b"%d" % self.hub.random.randrange(9)))
        self.cluster.append(TOPIC, p, b"%d" % self.hub.now, key, gap)

    def traffic(self) -> None:
        """Messages, a few at a time; their value is when they were written."""
        hub, scenario = self.hub, self.scenario
        if hub.now < scenario.end_ns - self.QUIET_INTERVALS * scenario.interval_ms * MS:
            p = hub.random.randrange(scenario.partitions)
            for _ in range(hub.random.choice((1, 1, 3, 12))):
                gap = hub.random.choice((0,) * 20 + (1, 3))
                self.write(p, gap)
            hub.at(hub.now + int(hub.random.uniform(5, 150) * MS), self.traffic)

    def live(self) -> list[Member]:
        return [m for members in self.members.values() for m in members if m.alive]

    # Incidents

    def start(self, who: int, *, beside: bool = False) -> None:
        running = [m for m in self.members.get(who, []) if m.alive]
        if running and not beside:
            return
        if running:
            self.hub.fired["twin"] += 1
        elif who in self.members:
            self.hub.fired["restart"] += 1
        self.started += 1
        member = self.new_member(self.scenario.members[who], self.started)
        self.members.setdefault(who, []).append(member)

    do_start = start

    def do_twin(self, who: int) -> None:
        self.start(who, beside=True)

    def _each(self, who: int) -> list[Member]:
        return [m for m in self.members.get(who, []) if m.alive]

    def _do(self, what: str, who: int, act: Callable[[Member], None]) -> None:
        for member in self._each(who):
            self.hub.fired[what] += 1
            self.hub.tell(member.name, what)
            act(member)

    def do_kill(self, who: int, lose_in_flight: bool) -> None:
        def kill(member: Member) -> None:
            member.link.lose_in_flight = lose_in_flight
            member.machine.kill()

        self._do("kill", who, kill)

    def do_freeze(self, who: int, span: int) -> None:
        self._do("freeze", who, lambda member: member.machine.freeze(span))

    def do_cut_write(self, who: int, span: int, mode: str, by: int) -> None:
        def cut(member: Member) -> None:
            member.link.write_cut = (self.hub.now + span, mode, by)

        self._do(f"cut_write_{mode}", who, cut)

    def do_cut_read(self, who: int, span: int) -> None:
        def cut(member: Member) -> None:
            member.link.read_cut_until = self.hub.now + span

        self._do("cut_read_begins", who, cut)

    def do_slow(self, who: int, span: int, extra: int) -> None:
        def slow(member: Member) -> None:
            member.link.slow_until, member.link.slow_ns = self.hub.now + span, extra

        self._do("slow", who, slow)

    def do_close(self, who: int, timeout_s: float) -> None:
        self._do("close", who, lambda member: member.close(timeout_s, keep=False))

    def do_keep(self, who: int, timeout_s: float) -> None:
        self._do("close and keep", who, lambda member: member.close(timeout_s, keep=True))

    def do_leaderless(self, p: int, span: int) -> None:
        self.hub.fired["leaderless"] += 1
        self.cluster.topics[LOG][p].down_until = self.hub.now + span

    def do_burst(self, p: int, count: int) -> None:
        self.hub.fired["burst"] += 1
        for _ in range(count):
            self.write(p)

    def do_limit(self, who: int, limit: int | None) -> None:
        def change(member: Member) -> None:
            member.limit_wanted = limit  # who thaws does all at once, in any order
            if member.consumer is not None and member.started and not member.closing:
                member.machine.run(lambda: member.want(member.limit_wanted), "limiter")

        self._do("limit", who, change)

    # The operator, whose records enter the log at once

    def _send(self, p: int, record: Message) -> None:
        self.cluster.append(LOG, p, encode(record))

    def _next(self) -> int:
        self.seq += 1
        return self.seq

    def do_pause_group(self, _: int) -> None:
        self.hub.fired["pause_group"] += 1
        self._send(self._home, ReleaseGroup(2, "op", "op.1", GROUP, self._next(), 2**50))

    def do_resume_group(self, _: int) -> None:
        group = self.ledger.states[self._home].groups.get(GROUP)
        if group is not None and group.pause is not None:
            version = group.pause.version
            self._send(self._home, ResumeGroup(2, "op", "op.1", GROUP, self._next(), version))

    @property
    def _home(self) -> int:
        return coordinating_partition(GROUP, self.scenario.coordination)

    def do_set_position(self, p: int, share: float) -> None:
        for key in self.units_of(p):
            self.set_position(key, p, share)

    def set_position(self, key: Key, p: int, share: float) -> None:
        state, cell = self.ledger.state(key), self.ledger.cell(key)
        if GROUP not in state.paused:
            return
        if cell is not None and cell.held:
            self.hub.at(self.hub.now + 20 * MS, self.set_position, key, p, share)
            return
        self.hub.fired["set_position"] += 1
        to = int(share * self.cluster.topics[TOPIC][p].end)
        version = state.version(GROUP, *key)
        self._send(
            state.partition,
            SetPosition(2, "op", "op.1", GROUP, self._next(), *key, to, version),
        )

    def do_forget_group(self, _: int) -> None:
        again = False
        for p, state in enumerate(self.ledger.states):
            if GROUP in state.paused:
                if any(k[0] == GROUP and cell.held for k, cell in state.cells.items()):
                    again = True
                elif any(k[0] == GROUP for k in state.cells):
                    self.hub.fired["forget_group"] += 1
                    pause = state.groups[GROUP].pause
                    version = -1 if pause is None else pause.version
                    self._send(p, ForgetGroup(2, "op", "op.1", GROUP, self._next(), version))
        if again:
            self.hub.at(self.hub.now + 20 * MS, self.do_forget_group, 0)

    # Peace

    def heal(self) -> None:
        self.hub.tell("-", "all faults end")
        self.cluster.healed = True
        for member in self.live():
            member.link.heal()
            member.machine.frozen_until = min(member.machine.frozen_until, self.hub.now)
        for who in self.members:
            self.hub.at(self.hub.now + self.scenario.interval_ms * MS, self.do_limit, who, None)
        for partition in self.cluster.topics[LOG]:
            partition.down_until = 0
        self.do_resume_group(0)
        if not [m for m in self.live() if not m.closing and m.spec.limit == UNLIMITED]:
            self.scenario.members.append(Spec("rescue", "messages", 0.2, 1_000_000))
            self.start(len(self.scenario.members) - 1)

    def settled(self) -> None:
        members = self.working()
        self.ledger.shares_are_fair(members, self.keys)
        self.ledger.calm = True
        self.settled_ns = self.hub.now

    def working(self) -> list[Member]:
        members = self.live()
        for member in members:
            failure = None if member.consumer is None else member.consumer._core.wakeup.failure
            if isinstance(failure, DuplicateClientId) and not self.scenario.exclusive:
                continue  # its loop ends when its handlers have
            if failure is not None and not member.twin:
                raise Violation("nobody fails", f"{member.name}: {failure!r}")
            if member.closing:
                raise Violation("closing ends", member.name)
        return members

    def finish(self) -> None:
        self.working()
        if self.ledger.moved_in_calm:
            raise Violation("what is fair stays", self.ledger.moved_in_calm)
        self.ledger.nothing_is_lost(self.keys, self.settled_ns)
        interval = self.scenario.interval_ms * MS
        for key in self.keys:
            cell = self.ledger.cell(key)
            offsets = self.cluster.topics[TOPIC][source_of(*key)[1]].offsets
            assert cell is not None
            stored = max(cell.next_offset, cell.claimed_offset)
            if offsets and stored < offsets[-1] + 1 and interval:
                raise Violation("the position follows", f"{key}: {stored}, end {offsets[-1] + 1}")

    def closed(self, member: Member, timeout_s: float, took_s: float, *, keep: bool) -> None:
        """`close` has returned: it kept to its time, and nothing of the member is left."""
        longest = timeout_s + 4.0
        froze = any(i[1] in ("freeze", "twin") for i in self.scenario.incidents)
        if took_s > longest and not froze:
            raise Violation("closing takes its time and no more", f"{member.name}: {took_s:.1f} s")
        if keep or timeout_s < 1 or member.link.appends_failed or took_s >= timeout_s:
            return
        for state in self.ledger.states:
            for key, cell in state.cells.items():
                if cell.instance_id == member.instance_id and cell.held:
                    raise Violation("who closes holds nothing", f"{member.name}: {key} {cell}")


REQUIRED: Final = (
    "append_fails",
    "burst",
    "close",
    "close and keep",
    "cut_read",
    "cut_write",
    "delivery_timeout",
    "forget_group",
    "freeze",
    "in_flight_lost",
    "kill",
    "leaderless",
    "limit",
    "long_tail",
    "lost_ack",
    "pause_group",
    "request_timeout",
    "restart",
    "set_position",
    "slow",
    "twin",
    "written_after_death",
    "written_after_failure",
)
REQUIRED_COUNTS: Final = ("came again", "closed", "messages", "overlaps", "twins noticed")

__all__ = ["REQUIRED", "REQUIRED_COUNTS", "SECOND", "Scenario", "World", "ev", "generate"]
