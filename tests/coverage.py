"""``python -m tests.coverage``: every line and branch of the protocol's pure modules is tested.

Runs their unit tests under coverage.py, and fails below 100 %. Settings: ``[tool.coverage]`` in
pyproject.toml. Only what is written out counts: of property tests, whose examples are drawn at
random, the explicit ones. So the result does not hang on chance, and whoever breaks a line breaks
a test that says what the line is for.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from hypothesis import Phase, settings

ROOT: Final = Path(__file__).parents[1]

MODULES: Final = (
    "harvest/checkpoint_text.py",
    "harvest/gaps.py",
    "harvest/mark.py",
    "harvest/pacing.py",
    "harvest/positions.py",
    "harvest/range.py",
    "harvest/terms.py",
    "marshal_py/balance.py",
    "marshal_py/claims.py",
    "marshal_py/delivery.py",
    "marshal_py/events.py",
    "marshal_py/messages.py",
    "marshal_py/ordering.py",
    "marshal_py/rationalizer.py",
    "marshal_py/snapshots.py",
    "marshal_py/subscription.py",
    "marshal_py/world.py",
)
TESTS: Final = (
    "balance",
    "claims",
    "claims_found",
    "claims_guards",
    "consumer_handover",
    "delivery",
    "handling",
    "harvest_gaps",
    "harvest_mark",
    "harvest_mark_steps",
    "harvest_range_steps",
    "messages",
    "ordering",
    "rationalizer",
    "snapshot_records",
    "spec_claimant",
    "vectors",
    "world",
)
"""Unit tests, by the names of their files."""
SLOW: Final = "test_a_herd"
"""Sharing among hundreds: it takes most of the time, and reaches no line that others do not."""

PROFILE: Final = "coverage"
settings.register_profile(PROFILE, phases=[Phase.explicit])


def main() -> int:
    """Run the tests and report. The exit status is that of the first that failed."""
    python = [sys.executable, "-m"]
    include = ",".join(MODULES)
    with tempfile.TemporaryDirectory() as folder:
        data = f"--data-file={folder}/coverage"
        names = [f"tests/unit/test_{name}.py" for name in TESTS]
        options = ["-p", "no:cacheprovider", "-p", "tests.coverage", "-k", f"not {SLOW}"]
        tests = ["pytest", "-q", *options, f"--hypothesis-profile={PROFILE}", *names]
        run = [*python, "coverage", "run", data, f"--include={include}", "-m", *tests]
        done = subprocess.run(run, cwd=ROOT, check=False).returncode
        report = [*python, "coverage", "report", data, "--show-missing", "--fail-under=100"]
        return done or subprocess.run(report, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
