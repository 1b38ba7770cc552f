"""``python -m tests.mutation.modules``: plant each bug of `MODULES`, run the test that it names."""

from __future__ import annotations

import sys

from tests.mutation.guarantees import fails_with
from tests.mutation.mutants.modules import MODULES


def main(words: list[str]) -> int:
    """Print each bug whose name has one of the words, or all; whether its test noticed.

    Exit status: 1 if one did not.
    """
    missed = 0
    for bug, test in MODULES:
        if words and not any(word in bug.name for word in words):
            continue
        seen = fails_with(bug.name, test)
        missed += not seen
        print(f"{'noticed' if seen else 'NOT NOTICED':<12} {bug.name:<90} {test}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
