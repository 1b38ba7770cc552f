"""For lines of GUARANTEES.md, a bug that breaks the promise, and the test named there that fails.

``python -m tests.mutation.guarantees`` runs each named test with its bug. A test that is named for
a promise and cannot fail for it shows nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final, NamedTuple

from tests.support.paths import ROOT

__all__ = ["BROKEN", "Broken", "notices"]

_FOLD: Final = "unit/marshal_py/protocol/test_rationalizer_properties.py"
_RULES: Final = "unit/marshal_py/protocol/test_claimant_spec.py"


class Broken(NamedTuple):
    """A line of GUARANTEES.md, a bug (a mutant's name), and a test that the line names."""

    line: str
    bug: str
    test: str


BROKEN: Final[tuple[Broken, ...]] = (
    Broken(
        "G1",
        "fold: snapshot: members",
        f"{_FOLD}::test_a_replay_from_any_snapshot_is_a_replay_from_the_start",
    ),
    Broken(
        "G5",
        "fold: messages: only beyond what was claimed",
        f"{_FOLD}::test_no_message_is_claimed_twice",
    ),
    Broken(
        "G10",
        "claimant: twin: the loser wants nothing new",
        f"{_RULES}::test_a_fenced_instance_stops_claiming_and_never_takes_back",
    ),
    Broken(
        "G11",
        "fold: members: the silent go",
        f"{_FOLD}::test_state_is_bounded_by_cells_and_live_members",
    ),
    Broken(
        "G14",
        "handlers: what failed comes before what is behind it",
        "unit/marshal_py/consumer/handlers/test_schedule.py"
        "::test_a_failed_message_comes_again_first_and_only_its_lane_waits",
    ),
)


def notices(broken: Broken) -> bool:
    """Whether the named test fails with the bug."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.plugin", "-x", "-q"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--timeout", "120", f"tests/{broken.test}"],
        cwd=ROOT,
        env={**os.environ, "MUTANT": broken.bug},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{broken}: pytest ended with {done.returncode}\n{done.stdout}")
    return done.returncode == 1


def main() -> int:
    """Print each line, and whether its test noticed. Exit status: 1 if one did not."""
    missed = 0
    for broken in BROKEN:
        seen = notices(broken)
        missed += not seen
        test = broken.test.rpartition("::")[2]
        print(
            f"{broken.line:<4} {'noticed' if seen else 'NOT NOTICED':<12} {broken.bug:<60} {test}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
