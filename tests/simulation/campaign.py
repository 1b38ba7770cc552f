"""Many histories: run them in several processes, add up what happened, shrink what failed."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.simulation.scenario import KINDS, Scenario, generate
from tests.simulation.simulator import Outcome, run

CHUNK: Final = 50

REQUIRED: Final = (
    # Faults and user actions that every campaign of RICH histories must have seen.
    "append_fails",
    "broker_clock_skew",
    "clock_jump",
    "clock_rate_change",
    "crash",
    "crash_amid_send",
    "cut_read",
    "cut_write",
    "delivery_timeout",
    "duplicate_record",
    "forget_group",
    "freeze",
    "freeze_before_send",
    "garbage_record",
    "in_flight_lost",
    "leader_change",
    "leave",
    "long_tail",
    "lost_ack",
    "offset_gap",
    "pause_group",
    "release_held",
    "release_lapsed",
    "release_waiting",
    "restart",
    "set_position",
    "set_position_of_held",
    "slow_for_good",
    "slow_read",
    "slow_write",
    "start_from_snapshot",
    "stop_claiming",
    "stranger",
    "suspended_before_acting",
    "truncation",
    "twin",
    "written_after_death",
    "written_after_failure",
)
REQUIRED_COUNTS: Final = (
    "acquired",
    "batches delivered at most once",
    "cold takeovers",
    "duplicate_client_id",
    "lapsed",
    "lost",
    "messages_rejected",
    "overlaps",
    "paused",
    "regained",
    "released",
    "resumes",
    "stored",
    "takeovers",
    "zombies",
)
RICH: Final = 400
"""From so many histories on, a fault that never fired is a failure of the campaign."""


class Failure(NamedTuple):
    seed: int
    kind: str
    invariant: str
    text: str


@dataclass
class Result:
    """What a campaign saw."""

    histories: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.histories += other.histories
        self.kinds.update(other.kinds)
        self.fired.update(other.fired)
        self.counts.update(other.counts)
        self.seconds += other.seconds
        self.virtual_s += other.virtual_s
        self.failures += other.failures

    @property
    def never_fired(self) -> list[str]:
        """Faults and events that a campaign of this size should have had, and had not."""
        if self.histories < RICH:
            return []
        return [name for name in REQUIRED if not self.fired[name]] + [
            name for name in REQUIRED_COUNTS if not self.counts[name]
        ]

    @property
    def good(self) -> bool:
        return not self.failures and not self.never_fired

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """The reverse of `to_json`, as exact as its rounding."""
        return cls(
            histories=data["histories"],
            seconds=data["seconds"],
            kinds=Counter(data["kinds"]),
            fired=Counter(data["fired"]),
            counts=Counter(data["counts"]),
            virtual_s=data["virtual_hours"] * 3600,
            failures=[Failure(**failure) for failure in data["failures"]],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "histories": self.histories,
            "seconds": round(self.seconds, 1),
            "histories_per_s": round(self.histories / max(self.seconds, 1e-9), 1),
            "virtual_hours": round(self.virtual_s / 3600, 1),
            "kinds": dict(sorted(self.kinds.items())),
            "fired": dict(sorted(self.fired.items())),
            "counts": dict(sorted(self.counts.items())),
            "never_fired": self.never_fired,
            "failures": [failure._asdict() for failure in sorted(self.failures)],
        }


def run_seeds(first: int, count: int, stop_after: int | None = None) -> Result:
    """Run the histories of `count` seeds from `first` on, in this process."""
    result = Result()
    for seed in range(first, first + count):
        scenario = generate(seed)
        outcome = run(scenario)
        _count(result, scenario, outcome)
        if stop_after is not None and len(result.failures) >= stop_after:
            break
    return result


def _count(result: Result, scenario: Scenario, outcome: Outcome) -> None:
    result.histories += 1
    result.kinds[scenario.kind] += 1
    result.fired.update(outcome.fired)
    result.counts.update(outcome.counts)
    result.virtual_s += outcome.at_us / 1e6
    if outcome.violation is not None:
        result.failures.append(Failure(scenario.seed, scenario.kind, *outcome.violation))


def run_campaign(
    first: int, histories: int, processes: int, progress: Callable[[Result], None] | None = None
) -> Result:
    """Run `histories` histories, of the seeds from `first` on, in `processes` processes."""
    total, started = Result(), time.monotonic()
    for part in _parts(first, histories, processes):
        total.add(part)
        total.seconds = time.monotonic() - started
        if progress is not None:
            progress(total)
    total.seconds = time.monotonic() - started
    return total


def _parts(first: int, histories: int, processes: int) -> Iterator[Result]:
    chunks = [
        (start, min(CHUNK, first + histories - start))
        for start in range(first, first + histories, CHUNK)
    ]
    if processes == 1:
        for start, count in chunks:
            yield run_seeds(start, count)
        return
    with ProcessPoolExecutor(processes, initializer=gc.set_threshold, initargs=(50_000,)) as pool:
        for future in as_completed([pool.submit(run_seeds, *chunk) for chunk in chunks]):
            yield future.result()


__all__ = ["KINDS", "Failure", "Result", "run_campaign", "run_seeds"]
