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
_TABLE: Final = "unit/marshal_py/protocol/test_rationalizer.py"
_RULES: Final = "unit/marshal_py/protocol/test_claimant_spec.py"
_BALANCE: Final = "unit/marshal_py/protocol/test_balance.py"
_MARK: Final = "unit/harvest/core/test_mark.py"


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
        "G2",
        "claimant: lease: the margin",
        f"{_RULES}::test_the_lease_ends_before_a_takeover_whatever_the_delays",
    ),
    Broken(
        "G3",
        "fold: claim: a new epoch",
        f"{_FOLD}::test_epochs_are_unique_and_rise_and_a_cell_has_one_holder",
    ),
    Broken(
        "G3",
        "fold: claim: the epoch counts from the base",
        f"{_FOLD}::test_epochs_rise_over_a_topic_that_is_made_anew",
    ),
    Broken(
        "G3",
        "fold: release, messages: the epoch",
        f"{_TABLE}::test_the_epoch_alone_says_whose_claim_is_released_or_claims_messages",
    ),
    Broken(
        "G5",
        "fold: messages: only beyond what was claimed",
        f"{_FOLD}::test_no_message_is_claimed_twice",
    ),
    Broken(
        "G6",
        "fold: heartbeat: the position goes up only",
        f"{_RULES}::test_what_is_stored_only_goes_up",
    ),
    Broken(
        "G6",
        "claimant: commit: goes up only",
        f"{_RULES}::test_what_is_stored_only_goes_up",
    ),
    Broken(
        "G9",
        "claimant: renewal: while lapsed, too",
        f"{_RULES}::test_a_lapsed_claim_comes_back_under_the_same_epoch",
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
    Broken(
        "G19",
        "consumer: shares are evened out",
        f"{_BALANCE}::test_a_herd_that_arrives_one_by_one_stays_fair",
    ),
    Broken(
        "G27",
        "claimant: reconcile: what nobody wants is given back",
        f"{_RULES}::test_what_the_log_gives_and_nobody_wants_is_released",
    ),
    Broken(
        "G28",
        "claimant: level: who cannot follow stops",
        f"{_RULES}::test_who_cannot_follow_the_groups_level_takes_no_part",
    ),
    Broken(
        "G28",
        "fold: level: everybody can follow",
        f"{_TABLE}::test_a_level_is_set_when_every_session_can_follow",
    ),
    Broken(
        "H2",
        "harvest: the checkpoint names no batch too few",
        f"{_MARK}::test_atomic_sink_publishes_each_committed_row_once_in_order",
    ),
    Broken(
        "H3",
        "harvest: what was not delivered is not purged",
        f"{_MARK}::test_plain_sink_loses_nothing_and_ends_in_order",
    ),
    Broken(
        "H3",
        "harvest: behind a failed row, its key waits",
        f"{_MARK}::test_plain_sink_loses_nothing_and_ends_in_order",
    ),
    Broken(
        "H5",
        "dead letters: behind a row that is aside, its key waits",
        f"{_MARK}::test_bad_rows_are_set_aside_and_everything_else_is_published_once",
    ),
    Broken(
        "H5",
        "dead letters: behind a row that is aside, its key waits",
        f"{_MARK}::test_a_retry_while_the_harvest_goes_on_keeps_the_order",
    ),
    Broken(
        "H6",
        "range: what a window misses is a gap",
        "unit/harvest/core/test_range.py::test_each_committed_row_is_published_once_in_order",
    ),
    Broken(
        "H9",
        "wal: what is below the position is skipped",
        "unit/harvest/core/test_wal.py::test_every_committed_row_is_published_once_in_order_whatever_fails",
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
