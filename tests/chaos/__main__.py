"""`python -m tests.chaos --minutes 3 --seed 1 [--json]`: exit code 0 when everything held."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.chaos.faults import FAULTS
from tests.chaos.run import run
from tests.chaos.sabotage import RULES


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults are made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interval-ms", type=int, default=1_000, help="the heartbeat interval")
    parser.add_argument("--folder", type=Path, help="keep the histories and logs here")
    parser.add_argument("--sabotage", choices=sorted(RULES), default="", help="must be noticed")
    parser.add_argument("--only", choices=FAULTS, nargs="+", default=(), help="no other faults")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = run(
        seconds=options.minutes * 60,
        seed=options.seed,
        folder=options.folder,
        sabotage=options.sabotage,
        interval_ms=options.interval_ms,
        only=options.only,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if options.json:
        print(json.dumps(result.as_dict(), indent=1))
    else:
        print(result.as_text())
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
