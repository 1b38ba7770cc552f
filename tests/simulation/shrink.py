"""Make a failing history small, and print it as a timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.scenario import KINDS, Scenario
from tests.simulation.simulator import run


def shrink(scenario: Scenario, *, budget: int = 600) -> Scenario:
    """Return a scenario, as small as `budget` runs find, that breaks the same invariant.

    Incidents are left out, in halves, quarters and one by one; then processes, wishes, noise and
    coordination partitions, as long as anything can go.
    """
    outcome = run(scenario)
    if outcome.violation is None:
        return scenario
    invariant = outcome.violation[0]
    runs = 0

    def fails(candidate: Scenario) -> bool:
        nonlocal runs
        runs += 1
        violation = run(candidate).violation
        return violation is not None and violation[0] == invariant

    smaller = True
    while smaller and runs < budget:
        smaller = False
        for candidate in _simpler(scenario):
            if runs >= budget:
                break
            if fails(candidate):
                scenario, smaller = candidate, True
                break
        before = len(scenario.incidents)
        scenario = _fewer_incidents(scenario, fails, lambda: runs < budget)
        smaller = smaller or len(scenario.incidents) < before
    return scenario


def _fewer_incidents(
    scenario: Scenario, fails: Callable[[Scenario], bool], go_on: Callable[[], bool]
) -> Scenario:
    size = max(1, len(scenario.incidents) // 2)
    while True:
        at = 0
        while at < len(scenario.incidents) and go_on():
            candidate = scenario.without(set(range(at, at + size)))
            if fails(candidate):
                scenario = candidate
            else:
                at += size
        if size == 1 or not go_on():
            return scenario
        size //= 2


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    for slot, spec in enumerate(scenario.processes):
        if spec.start_us is not None:
            yield _with_process(scenario, slot, start_us=None)
    for slot, spec in enumerate(scenario.processes):
        for key in spec.keys:
            if len(spec.keys) > 1:
                yield _with_process(
                    scenario, slot, keys=tuple(other for other in spec.keys if other != key)
                )
    if len(set(scenario.noise)) > 1:
        yield replace(scenario, noise=(0.5,) * 7)
    if scenario.partitions > 1:
        yield replace(
            scenario,
            partitions=1,
            incidents=[
                i._replace(who=0)
                if i.kind in ("skew", "gap", "garbage", "truncate", "leader_change")
                else i
                for i in scenario.incidents
            ],
        )
    for slot, spec in enumerate(scenario.processes):
        if spec.start_us is None and not any(
            i.kind in ("start", "restart") and i.who == slot for i in scenario.incidents
        ):
            continue
        if spec.work != "hold":
            yield _with_process(scenario, slot, work="hold")
        if spec.rate_ppm != 1_000_000:
            yield _with_process(scenario, slot, rate_ppm=1_000_000)
        if spec.member:
            yield _with_process(scenario, slot, member=False)
        if spec.cold_start_skew_ms is not None:
            yield _with_process(scenario, slot, cold_start_skew_ms=None)
        if spec.staggered:
            yield _with_process(scenario, slot, staggered=False)


def _with_process(scenario: Scenario, slot: int, **changes: object) -> Scenario:
    processes = list(scenario.processes)
    processes[slot] = replace(processes[slot], **changes)  # type: ignore[arg-type]
    return replace(scenario, processes=processes)


def timeline(scenario: Scenario, *, last: int | None = None) -> str:
    """Run a scenario again and tell what happened, one line each; only the `last` lines of it."""
    outcome = run(scenario, trace=True)
    lines = [
        f"seed {scenario.seed}, kind {scenario.kind!r}: {KINDS[scenario.kind][1]}",
        f"{scenario.partitions} coordination partition(s), first offset {scenario.first_offset}, "
        f"a failed append is reported after {scenario.delivery_timeout_us / 1e3:.0f} ms at most",
        "",
    ]
    for slot, spec in enumerate(scenario.processes):
        starts = "later" if spec.start_us is None else f"at {spec.start_us / 1e3:.0f} ms"
        wants = ", ".join(
            f"{scenario.keys[k].topic}/{scenario.keys[k].partition}" for k in spec.keys
        )
        lines.append(
            f"slot {slot}: {spec.client_id} of group {scenario.groups[spec.group]} starts "
            f"{starts}, interval {spec.interval_ms} ms, margin {spec.margin_ms} ms, clock rate "
            f"{spec.rate_ppm / 1e6:.4f}, wants {wants}, works as {spec.work}"
        )
    lines += ["", "incidents:"]
    lines += [
        f"{i.at_us / 1e3:11.2f} ms  {i.kind} {i.who} {' '.join(map(str, i.args))}"
        for i in scenario.incidents
    ]
    told = outcome.trace or []
    shown = told if last is None else told[-last:]
    lines += ["", "timeline:" if len(shown) == len(told) else f"timeline, last {last} lines:"]
    lines += [f"{at_us / 1e3:11.2f} ms  {who:<9} {text}" for at_us, who, text in shown]
    if outcome.violation is not None:
        lines += ["", "VIOLATED: {}: {}".format(*outcome.violation)]
    return "\n".join(lines)
