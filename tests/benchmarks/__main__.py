"""Run every benchmark, one after the other, and print one table: `python -m tests.benchmarks`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time

from tests import benchmarks
from tests.benchmarks import harness


def names() -> list[str]:
    """Return the names of all benchmarks: the modules here that have a `measure`."""
    found = []
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name not in ("__main__", "harness") and not module.name.startswith("_"):
            found.append(module.name)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(names())}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: list[harness.Figure] = []
    where, started = harness.conditions(), time.perf_counter()
    for name in options.names or names():
        print(f"{name} ...", file=sys.stderr, flush=True)
        module = importlib.import_module(f"tests.benchmarks.{name}")
        found = module.measure(harness.Options(options.repeats, options.quick))
        figures += [
            harness.Figure(f"{name}: {f.name}", f.value, f.unit, f.baseline, f.target, f.met)
            for f in found
        ]
    file = sys.stderr if options.json else sys.stdout
    harness.show("All benchmarks", figures, where, time.perf_counter() - started, file)
    if options.json:
        print(harness.as_json(figures), flush=True)


if __name__ == "__main__":
    main()
