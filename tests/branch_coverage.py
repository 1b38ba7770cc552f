"""``python -m tests.branch_coverage``: every line and branch of pure modules is tested.

Runs their unit tests under coverage.py, and fails below 100 %. Settings: ``[tool.coverage]`` in
pyproject.toml. Only what is written out counts: of property tests, whose examples are drawn at
random, the explicit ones. So the result does not hang on chance, and whoever breaks a line breaks
a test that says what the line is for.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Final

from hypothesis import Phase, settings

from tests.support.paths import ROOT

MODULES: Final = (
    "harvest/core/checkpoint_text.py",
    "harvest/core/dead_letters.py",
    "harvest/core/gaps.py",
    "harvest/core/mark.py",
    "harvest/core/pacing.py",
    "harvest/core/range_checkpoint.py",
    "harvest/core/range.py",
    "harvest/core/mark_checkpoint.py",
    "marshal_py/protocol/balance.py",
    "marshal_py/protocol/claim_states.py",
    "marshal_py/protocol/claimant.py",
    "marshal_py/protocol/cold_start.py",
    "marshal_py/protocol/heartbeat_schedule.py",
    "marshal_py/protocol/holding.py",
    "marshal_py/protocol/timers.py",
    "marshal_py/protocol/unread_appends.py",
    "marshal_py/consumer/held_partition.py",
    "marshal_py/protocol/events.py",
    "marshal_py/protocol/messages.py",
    "marshal_py/consumer/handlers/schedule.py",
    "marshal_py/protocol/rationalizer.py",
    "marshal_py/protocol/shares.py",
    "marshal_py/protocol/snapshots.py",
    "marshal_py/protocol/subscription.py",
    "marshal_py/protocol/world.py",
)
TESTS: Final = (
    "tests/unit/harvest/core/test_gaps.py",
    "tests/unit/harvest/core/test_mark.py",
    "tests/unit/harvest/core/test_mark_actions.py",
    "tests/unit/harvest/core/test_range_actions.py",
    "tests/unit/harvest/core/test_range_dead_letters.py",
    "tests/unit/harvest/core/test_kafka_headers.py",
    "tests/unit/marshal_py/consumer/handlers/test_options.py",
    "tests/unit/marshal_py/consumer/handlers/test_schedule.py",
    "tests/unit/marshal_py/consumer/test_held_partition.py",
    "tests/unit/marshal_py/consumer/test_handover.py",
    "tests/unit/marshal_py/protocol/test_balance.py",
    "tests/unit/marshal_py/protocol/test_claim_states.py",
    "tests/unit/marshal_py/protocol/test_claimant.py",
    "tests/unit/marshal_py/protocol/test_claimant_regressions.py",
    "tests/unit/marshal_py/protocol/test_claimant_edge_cases.py",
    "tests/unit/marshal_py/protocol/test_messages.py",
    "tests/unit/marshal_py/protocol/test_rationalizer.py",
    "tests/unit/marshal_py/protocol/test_shares.py",
    "tests/unit/marshal_py/protocol/test_snapshot_records.py",
    "tests/unit/marshal_py/protocol/test_claimant_spec.py",
    "tests/unit/marshal_py/protocol/test_vectors.py",
    "tests/unit/marshal_py/protocol/test_world.py",
)
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
        options = ["-p", "no:cacheprovider", "-p", "tests.branch_coverage", "-k", f"not {SLOW}"]
        tests = ["pytest", "-q", *options, f"--hypothesis-profile={PROFILE}", *TESTS]
        run = [*python, "coverage", "run", data, f"--include={include}", "-m", *tests]
        done = subprocess.run(run, cwd=ROOT, check=False).returncode
        report = [*python, "coverage", "report", data, "--show-missing", "--fail-under=100"]
        return done or subprocess.run(report, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
