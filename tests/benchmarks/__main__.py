"""Run every benchmark, or some, one after the other, and print one table."""

from __future__ import annotations

import argparse
import ast
import importlib
import pkgutil
import sys
import time
from pathlib import Path

from tests import benchmarks
from tests.benchmarks import harness


def names() -> list[str]:
    """Return the names of all benchmarks: the modules here that have a `measure`."""
    found = []
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name not in ("__main__", "harness") and not module.name.startswith("_"):
            found.append(module.name)
    return sorted(found)


def summary(name: str) -> str:
    """Return what a benchmark says of itself in its first sentence, without importing it."""
    text = (Path(__file__).parent / f"{name}.py").read_text("utf-8")
    doc = ast.get_docstring(ast.parse(text)) or ""
    return " ".join(doc.split("\n\n")[0].split())


def group(name: str) -> str:
    """Return what a benchmark is of: the first part of its name, or the core."""
    return {"harvest": "the harvester", "spark": "Spark"}.get(name.split("_")[0], "coordination")


def listing() -> str:
    """Return all benchmarks with one line each, by what they are of."""
    lines = []
    for title in dict.fromkeys(map(group, names())):
        found = [name for name in names() if group(name) == title]
        lines += [f"benchmarks of {title}:", *(f"  {n:<22} {summary(n)}" for n in found), ""]
    return "\n".join([*lines, "example: python -m tests.benchmarks claim takeover --quick"])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        epilog=listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a benchmark; none: of all")
    parser.add_argument("--repeats", type=int, default=5, help="medians are taken over so many")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}")
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
