"""What happens in one history: processes, the network they live in, and a schedule of incidents.

A `Scenario` is plain data made from one integer seed. The simulator draws nothing itself, so the
same scenario gives the same history to the byte, and a scenario with some incidents left out is
still a scenario: that is how a failing history is shrunk.

All durations are microseconds of true time, except where a name says otherwise.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

MILLION: Final = 1_000_000
MS: Final = 1_000
"""Microseconds in a millisecond."""

KINDS: Final = {
    # kind: (weight, what is different)
    "plain": (58, "every assumption of the protocol holds"),
    "twins": (12, "processes share a client_id: exclusion between those two is not promised"),
    "drift": (8, "clock rates differ by more than the margin: only the epoch fences"),
    "skew": (4, "broker clocks differ by more than allowed for: only the epoch fences"),
    "duplicates": (8, "the producer is not idempotent: records may be written twice"),
    "truncation": (5, "the log loses acknowledged records: no exclusion until all have noticed"),
    "gray": (5, "one process reads too late for good: the others get everything"),
    "levels": (6, "members of different versions: rolling upgrades and downgrades"),
}


class Key(NamedTuple):
    topic: str
    partition: int


class Incident(NamedTuple):
    """Something that happens at `at_us`. `who` is a slot, a coordination partition or a group."""

    at_us: int
    kind: str
    who: int
    args: tuple[Any, ...] = ()


@dataclass(slots=True)
class ProcessSpec:
    """One process: who it is, how its clock runs, how far away the log is, and what it wants."""

    client_id: str
    group: int
    interval_ms: int
    margin_ms: int
    local_ns: int
    rate_ppm: int
    append_us: tuple[int, int]
    read_us: tuple[int, int]
    keys: tuple[int, ...]
    work: str
    work_every_us: int
    start_us: int | None
    member: bool = True
    resume: bool = True
    cold_start_skew_ms: int | None = None
    staggered: bool = False
    levels: tuple[int, int] = (1, 1)
    """The lowest and the highest level that it can follow."""
    snapshots: bool = False
    """Starts from a snapshot where there is one, and knows one append time of its whole replay."""


@dataclass(slots=True)
class Scenario:
    seed: int
    kind: str
    partitions: int
    first_offset: int
    groups: tuple[str, ...]
    keys: tuple[Key, ...]
    processes: list[ProcessSpec]
    incidents: list[Incident]
    heal_us: int
    """From here on nothing fails any more."""
    settle_us: int
    """What must be claimed is claimed by then."""
    end_us: int
    delivery_timeout_us: int
    slow_slot: int = -1
    """A process that is slow for good, −1 for none, and how late it reads."""
    slow_read_us: int = 0
    noise: tuple[float, ...] = field(repr=False, default=())
    """Numbers in [0, 1) that latencies and loads are made from."""

    @property
    def exclusive(self) -> bool:
        """Whether two processes with different client ids may never act at the same time."""
        return self.kind in ("plain", "twins", "duplicates", "gray", "levels")

    @property
    def fenced(self) -> bool:
        """Whether epochs order all holders."""
        return self.kind != "truncation"

    def without(self, dropped: set[int]) -> Scenario:
        """Return the same scenario without some of its incidents, by index."""
        kept = [i for n, i in enumerate(self.incidents) if n not in dropped]
        return replace(self, incidents=kept)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Scenario:
        """Return what `to_json` wrote, also after a round trip through JSON text."""
        made = cls(**data)
        made.groups = tuple(made.groups)
        made.keys = tuple(Key(*key) for key in data["keys"])
        made.noise = tuple(made.noise)
        made.incidents = [
            Incident(at, kind, who, tuple(args)) for at, kind, who, args in data["incidents"]
        ]
        made.processes = [_spec(spec) for spec in data["processes"]]
        return made


def _spec(data: dict[str, Any]) -> ProcessSpec:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    return ProcessSpec(**fields)


def generate(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    return _Generator(seed).scenario()


class _Generator:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        self.interval = rng.choice((400, 600, 1000, 1000, 1500)) * MS
        self.partitions = rng.choice((1, 1, 2, 3))
        self.n_groups = rng.choice((1, 1, 1, 2))
        topic = rng.choice(("orders", "payments", "t"))
        self.keys = tuple(Key(topic, n) for n in range(rng.randint(1, 4)))
        self.incidents: list[Incident] = []
        self.processes: list[ProcessSpec] = []
        self.skew_ms = rng.choice((None, 100, 100, 1000))
        self.margin_of = rng.choice((10, 10, 10, 4, 20))
        self.network = rng.choice(("fast", "fast", "normal", "slow"))
        self.heal = int(self.interval * rng.uniform(12, 22))

    def scenario(self) -> Scenario:
        rng = self.rng
        for group in range(self.n_groups):
            for n in range(rng.choice((2, 2, 3)) if group == 0 else rng.choice((1, 2))):
                late = rng.random() < 0.15
                start = rng.uniform(0.2, 0.7) * self.heal if late else rng.uniform(0, self.interval)
                self._process(f"c{group}{n}", group, int(start))
        if self.kind == "drift":
            for spec in self.processes:
                spec.rate_ppm = int(MILLION * rng.choice((0.01, 0.6, 0.8, 1.0, 1.25, 1.6)))
            for _ in range(2):
                self._add(self._when(), "jump", self._slot(), rng.choice((500, 5_000, 50_000)))
        for _ in range(rng.randint(5, 13)):
            rng.choice(self._menu())(self._when())
        if self.kind == "twins":
            for _ in range(rng.randint(1, 2)):
                self._twin(self._when())
        if self.kind == "truncation":
            for _ in range(rng.randint(1, 2)):
                p = rng.randrange(self.partitions)
                self._add(self._when(), "truncate", p, rng.randint(1, 12))
        if self.kind == "duplicates":
            for _ in range(rng.randint(2, 5)):
                length = int(self.interval * rng.uniform(0.5, 4))
                delay = int(self.interval * rng.choice((0.01, 0.5, 1.5, 3)))
                self._add(self._when(), "duplicate", self._slot(), length, delay)
        if self.kind == "levels":
            self._rolling_upgrade()
        if self.kind == "skew":
            for _ in range(3):
                p = rng.randrange(self.partitions)
                self._add(self._when(), "skew", p, rng.choice((-8000, -3000, 3000, 8000)))
        longest = max(spec.interval_ms for spec in self.processes) * MS
        settle = self.heal + int(2.1 * longest) + self.interval + 300 * MS
        if self.kind == "truncation":  # lost answers are given up after 8 intervals, or 10 seconds
            settle += max(8 * longest, 10_000 * MS) + longest
        slow_slot, slow_read_us = -1, 0
        if self.kind == "gray":  # four heartbeats are read too late, then the claim is given back
            slow_slot = rng.randrange(len(self.processes))
            own = self.processes[slow_slot].interval_ms * MS
            slow_read_us = int(own * rng.choice((rng.uniform(2, 3.4), rng.uniform(2, 5))))
            settle += 4 * (slow_read_us + own) + 2 * longest
        if any(incident.kind == "stop_claiming" for incident in self.incidents):
            settle += 2 * longest  # who goes silent may claim messages until its lease ends
        self.incidents.sort()
        return Scenario(
            seed=self.seed,
            kind=self.kind,
            partitions=self.partitions,
            first_offset=rng.choice((0, 0, 4096 * rng.randint(1, 40) - rng.randint(0, 60))),
            groups=tuple(f"g{n}" for n in range(self.n_groups)),
            keys=self.keys,
            processes=self.processes,
            incidents=self.incidents,
            heal_us=self.heal,
            settle_us=settle,
            end_us=settle + 2 * longest,
            slow_slot=slow_slot,
            slow_read_us=slow_read_us,
            delivery_timeout_us=int(self.interval * rng.choice((0.3, 1.0, 2.5))),
            noise=tuple(round(rng.random(), 4) for _ in range(251)),
        )

    def _process(self, client_id: str, group: int, start_us: int | None) -> int:
        """Add a process and return its slot."""
        rng = self.rng
        interval_ms = self.interval // MS
        if rng.random() < 0.2:
            interval_ms = rng.choice((400, 700, 1200))
        margin_ms = max(10, interval_ms // self.margin_of)
        quick = min(self.interval // MS, interval_ms) * MS
        append_us, read_us = {
            "fast": ((300, 3 * MS), (300, 3 * MS)),
            "normal": ((1 * MS, 30 * MS), (1 * MS, 30 * MS)),
            "slow": ((quick // 20, quick // 5), (quick // 20, quick // 5)),
        }[self.network]
        keys = tuple(k for k in range(len(self.keys)) if rng.random() < 0.85) or (0,)
        self.processes.append(
            ProcessSpec(
                client_id=client_id,
                group=group,
                interval_ms=interval_ms,
                margin_ms=margin_ms,
                local_ns=rng.randrange(10**15),
                rate_ppm=self._rate(interval_ms, margin_ms),
                append_us=append_us,
                read_us=read_us,
                keys=keys,
                work=rng.choice(("hold", "alo", "alo", "amo")),
                work_every_us=int(quick * rng.choice((0.3, 0.7, 1.5))),
                start_us=start_us,
                member=rng.random() < 0.8,
                resume=rng.random() < 0.7,
                cold_start_skew_ms=self.skew_ms,
                staggered=rng.random() < 0.2,
                snapshots=rng.random() < 0.5,
            )
        )
        return len(self.processes) - 1

    def _rate(self, interval_ms: int, margin_ms: int) -> int:
        """A rate at or near the bound: the lease of the slowest must end before the wait of the
        fastest, (2 interval − margin) / slow ≤ 2 interval / fast, whatever pair it is."""
        x = margin_ms / (2 * interval_ms)
        bound = x / (2 - x)
        return MILLION + int(MILLION * bound * self.rng.choice((-1, -1, 1, 1, 0, 0.5)))

    def _menu(self) -> list[Any]:
        return [
            *[self._freeze] * 4,
            *[self._crash] * 4,
            *[self._cut_write] * 5,
            *[self._cut_read] * 3,
            *[self._partition] * 2,
            *[self._gray] * 2,
            *[self._slow] * 2,
            *[self._release] * 3,
            *[self._group_pause] * 2,
            *[self._slow_act] * 2,
            self._blackout,
            self._leave,
            self._clocks,
            self._leader_change,
            self._log_oddity,
            *[self._stranger] * 2,
            self._stop_claiming,
            self._recover,
            *([self._cold_start] * 2 if self.skew_ms is not None else []),
        ]

    # Incidents

    def _add(self, at: float, kind: str, who: int, *args: Any) -> None:
        self.incidents.append(Incident(min(int(at), self.heal), kind, who, args))

    def _when(self) -> int:
        return int(self.rng.uniform(0.5 * self.interval, self.heal - self.interval))

    def _slot(self) -> int:
        return self.rng.randrange(len(self.processes))

    def _span(self) -> int:
        """A duration that matters to leases: within one, about as long as one, or beyond."""
        low, high = self.rng.choice(((0.05, 0.9), (1.5, 2.4), (2, 5)))
        return int(self.interval * self.rng.uniform(low, high))

    def _freeze(self, at: int) -> None:
        kind = self.rng.choice(("freeze", "freeze_before_send"))
        self._add(at, kind, self._slot(), self._span())

    def _crash(self, at: int) -> None:
        rng, slot = self.rng, self._slot()
        if rng.random() < 0.4:
            self._add(at, "crash_amid_send", slot, rng.randint(0, 2), rng.random() < 0.5)
        else:
            self._add(at, "crash", slot, rng.random() < 0.5)
        if rng.random() < 0.8:
            self._add(at + rng.choice((0, 0.3, 1, 3)) * self.interval, "restart", slot)

    def _cut_write(self, at: int) -> None:
        rng = self.rng
        mode = rng.choice(("hold", "hold", "lost_ack", "late", "fail"))
        fail_after = int(self.interval * rng.choice((0.02, 0.3, 1.2)))
        late = int(self.interval * rng.uniform(0.1, 2.5)) if mode == "late" else 0
        self._add(at, "cut_write", self._slot(), self._span(), mode, fail_after, late)

    def _cut_read(self, at: int) -> None:
        self._add(at, "cut_read", self._slot(), self._span())

    def _partition(self, at: int) -> None:
        slot, span = self._slot(), self._span()
        self._add(at, "cut_write", slot, span, "hold", 0, 0)
        self._add(at + self.rng.choice((0, 0, span // 2)), "cut_read", slot, span)

    def _gray(self, at: int) -> None:
        """One process whose network fails in one way after the other, for a few intervals."""
        rng, slot = self.rng, self._slot()
        for _ in range(rng.randint(2, 4)):
            span = int(self.interval * rng.choice((0.2, 0.5, 1, 1.5, 2.5)))
            if rng.random() < 0.4:
                self._add(at, "cut_read", slot, span)
            else:
                mode = rng.choice(("hold", "lost_ack", "lost_ack", "late", "fail", "fail"))
                fail_after = int(self.interval * rng.choice((0.02, 0.3)))
                late = int(self.interval * rng.uniform(0.1, 1)) if mode == "late" else 0
                self._add(at, "cut_write", slot, span, mode, fail_after, late)
            at += int(span * rng.choice((0.5, 1, 1)))

    def _slow(self, at: int) -> None:
        rng = self.rng
        extra = int(self.interval * rng.uniform(0.1, 1.5))
        kind = rng.choice(("slow_read", "slow_write"))
        self._add(at, kind, self._slot(), 2 * self._span(), extra)

    def _release(self, at: int) -> None:
        rng, slot = self.rng, self._slot()
        key = rng.choice(self.processes[slot].keys)
        again = rng.choice((0, 0.05, 0.5, 2, None))
        self._add(at, "release", slot, key)
        if again is not None:
            self._add(at + again * self.interval, "want", slot, key)

    def _group_pause(self, at: int) -> None:
        rng, group = self.rng, self.rng.randrange(self.n_groups)
        self._add(at, "pause_group", group)
        at = int(at + self.interval * rng.uniform(0.1, 3))
        for _ in range(rng.choice((0, 1, 1, 2))):
            key = rng.randrange(len(self.keys))
            self._add(at, "set_position", group, key, rng.choice((0, 5, 50, 500)))
        if rng.random() < 0.3:
            self._add(at, "forget_group", group)
        self._add(at + self.interval * rng.uniform(0.1, 4), "resume_group", group)

    def _slow_act(self, at: int) -> None:
        self._add(at, "slow_act", self._slot(), self._span())

    def _blackout(self, at: int) -> None:
        """Every process of a group dies; some come back when the claims are old."""
        rng, group = self.rng, self.rng.randrange(self.n_groups)
        back = at + self.interval * rng.choice((0.5, 2.5, 4))
        for slot, spec in enumerate(self.processes):
            if spec.group == group:
                self._add(at, "crash", slot, False)
                if rng.random() < 0.7:
                    self._add(back + rng.uniform(0, self.interval), "restart", slot)

    def _cold_start(self, at: int) -> None:
        """A process starts while the broker's clock has just gone ahead, as far as is allowed."""
        rng, slot = self.rng, self._slot()
        skew_ms = self.skew_ms or 0
        for p in range(self.partitions):
            self._add(at, "skew", p, -skew_ms // 2)
        self._add(at, "crash", slot, False)
        later = at + self.interval * rng.uniform(0.2, 2.5)
        if rng.random() < 0.5:
            self._add(at, "cut_write", self._slot(), int(3 * self.interval), "fail", 1000, 0)
        for p in range(self.partitions):
            self._add(later, "skew", p, skew_ms // 2)
        self._add(later, "restart", slot)

    def _leave(self, at: int) -> None:
        slot = self._slot()
        self._add(at, "leave", slot)
        self._add(at + self.rng.choice((0.5, 2)) * self.interval, "restart", slot)

    def _clocks(self, at: int) -> None:
        rng = self.rng
        if self.skew_ms is not None and rng.random() < 0.5:
            p = rng.randrange(self.partitions)
            self._add(at, "skew", p, rng.choice((-1, 1)) * self.skew_ms // 2)
        elif self.kind != "drift":
            slot = self._slot()
            spec = self.processes[slot]
            self._add(at, "rate", slot, self._rate(spec.interval_ms, spec.margin_ms))

    def _leader_change(self, at: int) -> None:
        """A partition has no leader for a while; the next one's clock shows something else."""
        skew_ms = 0 if self.skew_ms is None else self.rng.choice((-1, 0, 1)) * self.skew_ms // 2
        p = self.rng.randrange(self.partitions)
        self._add(at, "leader_change", p, self._span(), skew_ms)

    def _log_oddity(self, at: int) -> None:
        rng = self.rng
        p = rng.randrange(self.partitions)
        if rng.random() < 0.4:
            self._add(at, "gap", p, rng.choice((1, 5000, 40_000, 65_530, 70_000)))
        else:
            self._add(at, "garbage", p, rng.randrange(8))

    def _stranger(self, at: int) -> None:
        for _ in range(self.rng.randint(1, 4)):
            p = self.rng.randrange(self.partitions)
            self._add(at, "stranger", p, self.rng.randrange(10_000))
            at += int(self.rng.uniform(0, 1) * self.interval)

    def _stop_claiming(self, at: int) -> None:
        slot = self._slot()
        self._add(at, "stop_claiming", slot)
        if self.rng.random() < 0.5:
            self._add(at + self.interval * self.rng.choice((1, 4)), "crash", slot, False)
            self._add(at + self.interval * 5, "restart", slot)

    def _recover(self, at: int) -> None:
        """The operator gives a coordination partition a new identity."""
        self._add(at, "recover", self.rng.randrange(self.partitions))

    def _rolling_upgrade(self) -> None:
        """Processes of version 1, of 2, and of both; they are replaced, and the level is set."""
        rng = self.rng
        for spec in self.processes:
            spec.levels = rng.choice(((1, 1), (1, 1), (1, 2), (2, 2)))
        for _ in range(rng.randint(1, 3)):
            levels = rng.choice(((1, 2), (1, 2), (2, 2), (1, 1), (2, 3)))
            at = self._when()
            for slot in rng.sample(range(len(self.processes)), len(self.processes)):
                if rng.random() < 0.8:
                    self._add(at, "upgrade", slot, *levels, rng.random() < 0.5)
                    self._add(at + rng.uniform(0.01, 0.5) * self.interval, "restart", slot)
                at += int(rng.uniform(0, 1) * self.interval)
        for _ in range(rng.randint(2, 6)):
            self._add(
                self._when(), "set_level", rng.randrange(self.n_groups), rng.choice((1, 2, 2))
            )

    def _twin(self, at: int) -> None:
        """Another process under the same client_id, beside the first or while that one sleeps."""
        rng = self.rng
        original = self._slot()
        spec = self.processes[original]
        slot = self._process(spec.client_id, spec.group, None)
        self.processes[slot].keys = spec.keys
        self.processes[slot].resume = rng.random() < 0.8
        if rng.random() < 0.5:
            self._add(at, "freeze", original, self._span())
        self._add(at + rng.uniform(0, 0.5) * self.interval, "start", slot)
