"""What every benchmark shares: repeats, medians, conditions, the table and the JSON line.

A benchmark is a module with a function ``measure(options) -> list[Figure]``; its ``main`` is
``harness.run(measure, __doc__)``. `python -m tests.benchmarks` runs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Figure", "Options", "compiled", "conditions", "median", "percentile", "run", "say"]


@dataclass(frozen=True)
class Figure:
    """One measured number. `ratio` is value / baseline where there is a baseline in the run.

    `target` says in words what the project wants to reach; `met` whether this run did.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    target: str = ""
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        return None if not self.baseline else self.value / self.baseline


@dataclass(frozen=True)
class Options:
    repeats: int
    quick: bool


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(percent * 10) // 1000) - 1)]


def compiled(folder: Path) -> dict[str, str]:
    """The environment of a process that finds its imports compiled, as installed packages are.

    A start is mostly imports. Without this, where Python may not write next to the sources, ours
    alone would be compiled anew at each start, confluent-kafka being installed.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def say(text: str) -> None:
    """Show progress on stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def conditions() -> str:
    """Say on what the figures were measured."""
    import confluent_kafka

    model = platform.processor() or platform.machine()
    return (
        f"{os.cpu_count()} cores ({model}), load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, librdkafka {confluent_kafka.libversion()[0]}"
    )


def run(measure: Callable[[Options], list[Figure]], doc: str | None) -> None:
    """Parse the command line, measure, and print a table, and with --json one line at the end."""
    summary = (doc or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over so many")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    before = conditions()
    started = time.perf_counter()
    figures = measure(Options(options.repeats, options.quick))
    seconds = time.perf_counter() - started
    show(summary, figures, before, seconds, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(as_json(figures), flush=True)


def as_json(figures: list[Figure]) -> str:
    """Return the line that programs read."""
    return json.dumps({"figures": [{**asdict(f), "ratio": f.ratio} for f in figures]})


def show(title: str, figures: list[Figure], where: str, seconds: float, file: object) -> None:
    """Print the figures as a table, with the conditions that they were measured under."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=f"{where}; {seconds:.0f} s", title_justify="left")
    for column in ("figure", "value", "unit", "baseline", "ratio", "to reach", ""):
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right")
    for f in figures:
        table.add_row(
            f.name,
            number(f.value),
            f.unit,
            "" if f.baseline is None else number(f.baseline),
            "" if f.ratio is None else f"{f.ratio:.2f}",
            f.target,
            "" if f.met is None else ("yes" if f.met else "NO"),
        )
    Console(file=file, width=None if sys.stdout.isatty() else 120).print(table)  # type: ignore[arg-type]


def number(value: float) -> str:
    """Write a number with as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
