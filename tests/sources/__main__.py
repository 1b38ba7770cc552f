"""`python -m tests.sources --runs 500 [--only mark] [--json]`: exit code 0: nothing was silent."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from itertools import cycle, islice

from tests.sources.matrix import DATABASES, FAULTS, MODES, possible, run, servers


def main() -> int:
    """Go through the matrix, again and again, with another seed each time."""
    parser = argparse.ArgumentParser(prog="python -m tests.sources", description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cells = [
        (kind, mode, fault)
        for fault in FAULTS
        for mode in MODES
        for kind in DATABASES
        if possible(kind, mode, fault) and options.only in f"{kind}, {mode}, {fault}"
    ]
    results = []
    with servers() as made:
        for number, cell in enumerate(islice(cycle(cells), options.runs)):
            began_s = time.monotonic()
            result = run(made, *cell, options.seed + number)
            results.append(result)
            how = "passed" if result.passed else "FAILED"
            took = f"{time.monotonic() - began_s:.0f} s"
            said = (result.loud or "went on")[:90]
            text = f"{how} {result.name}, seed {result.seed}, {took}: {said}"
            more = f"; lost {result.lost[:5]}, doubled {result.doubled[:5]}"
            print(text + (more if not result.passed else ""), file=sys.stderr, flush=True)
    failed = [result for result in results if not result.passed]
    if options.json:
        print(json.dumps({"runs": len(results), "failed": [asdict(r) for r in failed]}, indent=1))
    else:
        loud = sum(result.loud is not None for result in results)
        bad = f"{len(failed)} with silent loss or doubling"
        print(f"{len(results)} runs, {loud} refused loudly, {bad}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
