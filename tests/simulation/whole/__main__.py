"""``python -m tests.simulation.whole``: many histories of whole clients, or a look at one."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import typer

from tests.simulation.whole.history import KINDS, run

CHUNK: Final = 10
RICH: Final = 500
"""From so many histories of a kind on, a fault that never fired is a failure of the campaign."""

app = typer.Typer(add_completion=False)


class Failure(NamedTuple):
    kind: str
    seed: int
    invariant: str
    text: str


@dataclass
class Result:
    """What the histories of one kind were."""

    kind: str
    histories: int = 0
    virtual_s: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        self.histories += other.histories
        self.virtual_s += other.virtual_s
        self.fired += other.fired
        self.counts += other.counts
        self.failures += other.failures

    @property
    def never_fired(self) -> list[str]:
        if self.histories < RICH:
            return []
        module = KINDS[self.kind]
        missing = [name for name in module.REQUIRED if not self.fired[name]]
        return missing + [name for name in module.REQUIRED_COUNTS if not self.counts[name]]

    def to_json(self) -> dict[str, Any]:
        return {
            "histories": self.histories,
            "virtual_hours": round(self.virtual_s / 3600, 2),
            "fired": dict(sorted(self.fired.items())),
            "counts": dict(sorted(self.counts.items())),
            "never_fired": self.never_fired,
            "failures": [failure._asdict() for failure in sorted(self.failures)],
        }


def run_seeds(kind: str, first: int, count: int, stop_after: int | None = None) -> Result:
    """Run the histories of `count` seeds from `first` on, in this process."""
    result = Result(kind)
    for seed in range(first, first + count):
        outcome = run(kind, seed)
        result.histories += 1
        result.virtual_s += outcome.virtual_s
        result.fired += outcome.fired
        result.counts += outcome.counts
        if outcome.violation is not None:
            result.failures.append(Failure(kind, seed, *outcome.violation))
            if stop_after is not None and len(result.failures) >= stop_after:
                break
    return result


def run_campaign(kinds: list[str], first: int, histories: int, processes: int) -> list[Result]:
    """Run `histories` of each kind, of the seeds from `first` on."""
    totals = {kind: Result(kind) for kind in kinds}
    chunks = [
        (kind, start, min(CHUNK, first + histories - start))
        for kind in kinds
        for start in range(first, first + histories, CHUNK)
    ]
    if processes == 1:
        for chunk in chunks:
            totals[chunk[0]].add(run_seeds(*chunk))
        return list(totals.values())
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(run_seeds, *chunk) for chunk in chunks]):
            part = future.result()
            totals[part.kind].add(part)
    return list(totals.values())


@app.command()
def main(
    histories: Annotated[int, typer.Option(min=1, help="How many, of each kind.")] = 200,
    seed: Annotated[int, typer.Option(help="The seed of the first; the next ones follow.")] = 0,
    kind: Annotated[str, typer.Option(help=f"Only {' or '.join(KINDS)}.")] = "",
    processes: Annotated[int, typer.Option(min=1, help="Processes to use.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the timeline of the one history of --seed.")
    ] = False,
) -> None:
    """Run HISTORIES simulated histories of whole clients of each kind, and check them.

    Exit status: 0 all held; 1 an invariant was violated, or a kind of fault never fired.

    Example: python -m tests.simulation.whole --histories 500 --seed 1 --json
    """
    if kind and kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} must be one of {', '.join(KINDS)}", param_hint="--kind")
    kinds = [kind] if kind else list(KINDS)
    if show:
        outcome = run(kinds[0], seed, trace=True)
        for at_us, who, text in outcome.trace or []:
            typer.echo(f"{at_us / 1e3:11.2f} ms  {who:<9} {text}")
        raise typer.Exit(outcome.violation is not None)
    began = time.monotonic()
    results = run_campaign(kinds, seed, histories, processes)
    seconds = time.monotonic() - began
    if as_json:
        document = {result.kind: result.to_json() for result in results}
        typer.echo(json.dumps({"seed": seed, "seconds": round(seconds, 1), **document}, indent=1))
    else:
        typer.echo(f"{seconds:.0f} s")
        for result in results:
            typer.echo(f"\n{result.kind}:")
            typer.echo(json.dumps(result.to_json(), indent=1))
    failed = any(result.failures or result.never_fired for result in results)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
