"""``python -m tests.topics --histories 1000 --seed 1``: exit code 0 when everything held."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.topics.history import BROKER, Outcome, quiet, run


def main() -> int:
    """Run histories, as many at a time as there are processes, and print what they were."""
    parser = argparse.ArgumentParser(prog="python -m tests.topics", description=__doc__)
    parser.add_argument("--histories", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next ones follow")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    outcomes: list[Outcome] = []
    seeds = iter(range(options.seed, options.seed + options.histories))
    with (
        EmbeddedKafka(properties=BROKER, jvm_options=["-Xmx1g"]) as kafka,
        ProcessPoolExecutor(
            options.processes, mp_context=get_context("spawn"), initializer=quiet
        ) as pool,
    ):
        running: set[Future[Outcome]] = set()
        while True:
            while len(running) < options.processes and time.monotonic() - began < options.seconds:
                seed = next(seeds, None)
                if seed is None:
                    break
                running.add(pool.submit(run, kafka.bootstrap_servers, seed))
            if not running:
                break
            done = next(as_completed(running))
            running.remove(done)
            outcome = done.result()
            outcomes.append(outcome)
            if outcome.problems:
                print(json.dumps(vars(outcome)), file=sys.stderr, flush=True)
    by_case = Counter((o.kind, o.mode, o.style) for o in outcomes)
    counts: Counter[str] = sum((o.counts for o in outcomes), Counter())
    failures = [vars(o) for o in sorted(outcomes, key=lambda o: o.seed) if o.problems]
    result = {
        "seed": options.seed,
        "histories": len(outcomes),
        "seconds": round(time.monotonic() - began),
        "seconds of a history, at most": max((o.seconds for o in outcomes), default=0),
        "cases": len(by_case),
        "fewest of a case": min(by_case.values(), default=0),
        "counts": dict(sorted(counts.items())),
        "failures": failures,
    }
    print(json.dumps(result, indent=1) if options.json else f"{result}")
    return 1 if failures or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
