"""`python -m tests.sources --runs 500 [--only mark] [--json]`: exit code 0: nothing was silent.

What a run does is a function of its seed, and seeds that follow one another go through the whole
matrix: a campaign can be made in pieces. Most of a run is waiting, so there are several at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from tests.sources.matrix import (
    DATABASES,
    FAULTS,
    MODES,
    Result,
    Servers,
    possible,
    run,
    servers,
    worker,
)


def _run(made: Servers, cell: tuple[str, str, str], seed: int) -> Result:
    began_s = time.monotonic()
    try:
        result = run(made, *cell, seed)
    except Exception as error:
        result = Result(", ".join(cell), seed, lost=[f"the run broke off: {error!r}"])
    how = "passed" if result.passed else "FAILED"
    took = f"{time.monotonic() - began_s:.0f} s"
    said = (result.loud or "went on")[:90]
    text = f"{how} {result.name}, seed {result.seed}, {took}: {said}"
    more = f"; lost {result.lost[:5]}, doubled {result.doubled[:5]}"
    print(text + (more if not result.passed else ""), file=sys.stderr, flush=True)
    return result


def main() -> int:
    """Go through the matrix, again and again, with another seed each time."""
    parser = argparse.ArgumentParser(prog="python -m tests.sources", description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--workers", type=int, default=4, help="runs at a time")
    parser.add_argument("--for-s", type=float, default=None, help="begin no run after this time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mysql", action="store_true", help="MySQL in MariaDB's place")
    options = parser.parse_args()
    cells = [
        (kind, mode, fault)
        for fault in FAULTS
        for mode in MODES
        for kind in DATABASES
        if possible(kind, mode, fault) and options.only in f"{kind}, {mode}, {fault}"
    ]
    seeds = iter(range(options.seed, options.seed + options.runs))
    until_s = None if options.for_s is None else time.monotonic() + options.for_s
    results: list[Result] = []
    with servers(mysql=options.mysql) as made:

        def work() -> None:
            with worker(made) as ours:
                while until_s is None or time.monotonic() < until_s:
                    seed = next(seeds, None)
                    if seed is None:
                        return
                    results.append(_run(ours, cells[(seed - 1) % len(cells)], seed))

        with ThreadPoolExecutor(options.workers) as pool:
            for done in [pool.submit(work) for _ in range(options.workers)]:
                done.result()
    failed = [result for result in results if not result.passed]
    if options.json:
        print(json.dumps({"runs": len(results), "failed": [asdict(r) for r in failed]}, indent=1))
    else:
        loud = sum(result.loud is not None for result in results)
        bad = f"{len(failed)} with silent loss or doubling"
        after = max([result.seed for result in results], default=options.seed - 1) + 1
        print(f"{len(results)} runs, {loud} refused loudly, {bad}; the next --seed is {after}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
