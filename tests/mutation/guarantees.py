"""For lines of GUARANTEES.md, a bug that breaks the promise, and the test named there that fails.

``python -m tests.mutation.guarantees`` runs each named test with its bug, which the processes that
it starts have, too; with lines (``G7 H13``), those of these alone. A test that is named for a
promise and cannot fail for it shows nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.paths import ROOT

__all__ = ["BROKEN", "Broken", "notices"]

_FOLD: Final = "unit/marshal_py/protocol/test_rationalizer_properties.py"
_TABLE: Final = "unit/marshal_py/protocol/test_rationalizer.py"
_RULES: Final = "unit/marshal_py/protocol/test_claimant_spec.py"
_BALANCE: Final = "unit/marshal_py/protocol/test_balance.py"
_MARK: Final = "unit/harvest/core/test_mark.py"
_CLIENT: Final = "integration/marshal_py/client/test_marshal.py"
_LEADER: Final = "integration/marshal_py/client/test_leader_election.py"
_SECURITY: Final = "integration/marshal_py/client/test_security.py"
_RUN: Final = "integration/marshal_py/consumer/handlers/test_run.py"
_CLUSTER: Final = "spark/test_cluster.py"
_FLOOD: Final = "unit/marshal_py/client/test_flood_cost.py"
_ANY_PROCESS: Final = Path(__file__).parent / "any_process"
"""Has the module that Python imports when it starts."""


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
    Broken(
        "G4",
        "claimant: lease: a lapse is noticed",
        "integration/marshal_py/client/test_marshal.py::test_the_lease_ends_by_itself_when_the_network_hangs",
    ),
    Broken(
        "G8",
        "claimant: release: with the position",
        "integration/marshal_py/client/test_marshal.py::test_a_release_hands_over_with_the_position",
    ),
    Broken(
        "G12",
        "claimant: truncation: leases are dropped",
        "integration/marshal_py/client/test_marshal.py::test_a_truncated_log_drops_every_lease",
    ),
    Broken(
        "G12",
        "shell: an offset that comes again is a truncation",
        "integration/marshal_py/client/test_marshal.py::test_a_truncated_log_drops_every_lease",
    ),
    Broken(
        "G12",
        "module: what comes after a silence is not read before the topic is known",
        "unit/marshal_py/client/test_log_reader.py::test_what_comes_after_a_silence_is_of_the_same_topic_or_is_not_read",
    ),
    Broken(
        "G21",
        "consumer: another id is another topic",
        "unit/marshal_py/consumer/test_positions.py::test_what_became_of_a_position",
    ),
    Broken(
        "G22",
        "consumer: a position passes what no message is in",
        "unit/marshal_py/consumer/test_held_partition.py::test_the_end_of_a_partition_is_reached_when_all_before_it_is_done",
    ),
    Broken(
        "G22",
        "consumer: at most once, a position passes what no message is in",
        "unit/marshal_py/consumer/test_positions.py::test_at_most_once_a_position_passes_what_no_message_is_in",
    ),
    Broken(
        "G23",
        "shell: partitions that came later begin at their first message",
        "unit/marshal_py/consumer/test_positions.py::test_a_partition_that_the_topic_got_later_begins_at_its_first_message",
    ),
    Broken(
        "G24",
        "consumer: the pace of handlers is measured over some of their turns",
        "unit/marshal_py/consumer/test_pace.py::test_handlers_have_no_more_claimed_than_a_crash_may_cost",
    ),
    Broken(
        "G25",
        "consumer: an acknowledgement between two runs moves nothing past what is unhandled",
        "unit/marshal_py/consumer/test_held_partition.py::test_between_two_runs_an_acknowledgement_moves_no_position_past_what_is_unhandled",
    ),
    Broken(
        "G26",
        "consumer: what an earlier holder has done is passed over",
        "unit/marshal_py/consumer/test_held_partition.py::test_what_an_earlier_holder_has_done_is_not_handed_out_again",
    ),
    Broken(
        "G29",
        "shell: who was not told that a partition came is not told that it goes",
        "unit/marshal_py/consumer/test_callbacks.py::test_each_partition_is_assigned_before_its_first_message_and_revoked_after_its_last",
    ),
    Broken(
        "H4",
        "module: who may harvest an outbox has its transactional id",
        "contract/test_sink.py::test_opening_fences_the_writer_before",
    ),
    Broken(
        "H4",
        "harvest: the checkpoint names no batch too few",
        "unit/harvest/core/test_mark.py::test_a_woken_zombie_publishes_nothing_and_repeats_nothing",
    ),
    Broken(
        "H7",
        "module: a shard is given away when its leader has ended",
        "unit/harvest/runtime/test_sharded_harvester.py::test_a_shard_that_goes_is_stopped_and_the_next_one_waits_for_it",
    ),
    Broken(
        "H7",
        "range: what a window misses is a gap",
        "unit/harvest/core/test_range.py::test_the_same_in_shards",
    ),
    Broken(
        "H8",
        "shell: what one shard has not published stays",
        "unit/harvest/maintenance/test_partitions.py::test_only_what_every_shard_has_published_is_dropped",
    ),
    Broken(
        "H10",
        "wal: a lost slot is refused",
        "unit/harvest/core/test_wal.py::test_a_slot_that_is_lost_or_made_anew_is_refused_and_not_read",
    ),
    Broken(
        "H11",
        "harvest: database: what gives ids",
        "unit/harvest/core/test_source.py::test_what_does_not_go_on",
    ),
    Broken(
        "H12",
        "harvest: another row of a known id is no repetition",
        "unit/harvest/core/test_mark.py::test_another_row_under_an_id_in_flight_is_sent_in_a_new_term",
    ),
    Broken(
        "S1",
        "shell: no bytes raise",
        "unit/marshal_py/protocol/test_rationalizer_properties.py::test_no_bytes_raise",
    ),
    Broken(
        "S2",
        "shell: what a snapshot unpacks to is bounded",
        "unit/marshal_py/protocol/test_snapshot_records.py::test_a_bomb_is_refused",
    ),
    Broken(
        "G7",
        "promise: two intervals of silence, and not one",
        f"{_CLIENT}::test_a_crashed_holder_is_replaced_after_two_intervals_and_not_before",
    ),
    Broken(
        "G13",
        "promise: candidates of one name stand in one election",
        f"{_LEADER}::test_the_block_is_entered_by_the_leader_alone",
    ),
    Broken(
        "G13",
        "promise: a deposed leader is told",
        f"{_LEADER}::test_a_deposed_leader_hears_that_it_lost",
    ),
    Broken(
        "G15",
        "promise: what stopped `run` is not done",
        f"{_RUN}::test_failing_for_good_stops_run_and_what_failed_is_not_done",
    ),
    Broken(
        "G15",
        "promise: a dead letter is awaited",
        f"{_RUN}::test_a_dead_letter_is_the_message_and_why",
    ),
    Broken(
        "G16",
        "promise: no handler is started without a lease",
        f"{_RUN}::test_a_lapsed_lease_starts_nothing_until_it_is_regained",
    ),
    Broken(
        "G16",
        "promise: a lapsed lease ends nothing",
        f"{_RUN}::test_a_lapsed_lease_starts_nothing_until_it_is_regained",
    ),
    Broken(
        "G17",
        "promise: what is finished last counts, too",
        f"{_RUN}::test_stopped_under_load_nothing_comes_twice",
    ),
    Broken(
        "G17",
        "promise: a partition that goes waits for what runs of it",
        f"{_RUN}::test_partitions_move_to_a_new_member_and_nothing_comes_twice",
    ),
    Broken(
        "G18",
        "promise: what waits is bounded in bytes",
        f"{_RUN}::test_a_hot_key_neither_fills_memory_nor_stops_other_partitions",
    ),
    Broken(
        "G18",
        "promise: how far `run` gets ahead is bounded",
        f"{_RUN}::test_how_far_it_runs_ahead_of_a_message_that_fails_is_bounded",
    ),
    Broken(
        "G20",
        "promise: no partition is worked on that was not granted",
        "interop/test_migration_simulation.py"
        "::test_both_sides_never_work_on_a_partition_at_once_whoever_dies",
    ),
    Broken(
        "G30",
        "promise: a seek is in the log",
        "contract/test_pause_and_seek.py::test_a_loop_goes_back_and_forth",
    ),
    Broken(
        "G31",
        "keys: what a slot has had is passed over",
        "integration/marshal_py/consumer/test_sharing_by_keys.py"
        "::test_members_share_one_partition_and_keys_stay_in_order_while_slots_move",
    ),
    Broken(
        "G32",
        "promise: of two runs after one commit one counts",
        "unit/marshal_py/spark/test_audit_store.py"
        "::test_of_two_runs_after_one_commit_the_second_fails",
    ),
    Broken(
        "G33",
        "promise: a query that goes on begins where the last batch ended",
        f"{_CLUSTER}::test_an_executor_is_lost_and_the_checkpoint_goes_on",
    ),
    Broken(
        "G33",
        "promise: at least once, a task that is tried again has its records",
        f"{_CLUSTER}::test_an_executor_is_lost_and_the_checkpoint_goes_on",
    ),
    Broken(
        "G33",
        "promise: at least once, a task that is tried again has its records",
        f"{_CLUSTER}::test_a_copy_of_a_task_counts_once",
    ),
    Broken(
        "G34",
        "promise: at most once, the first attempt alone has records",
        f"{_CLUSTER}::test_at_most_once_nothing_comes_twice_when_an_executor_is_lost",
    ),
    Broken(
        "G34",
        "promise: nothing is claimed before speculation is refused",
        f"{_CLUSTER}::test_at_most_once_refuses_speculation",
    ),
    Broken(
        "G35",
        "promise: a driver whose cluster is gone says so",
        "unit/marshal_py/spark/test_watch.py"
        "::test_a_job_without_executors_is_cancelled_and_the_error_says_why",
    ),
    Broken(
        "G36",
        "by ranges: what is split off is not ours",
        "unit/marshal_py/protocol/test_claimant_ranges.py"
        "::test_no_message_has_two_holders_whatever_members_do",
    ),
    Broken(
        "G37",
        "by ranges: message by message at last",
        "unit/marshal_py/protocol/test_range_choice.py"
        "::test_what_is_granted_again_is_taken_in_smaller_and_smaller_pieces",
    ),
    Broken(
        "H1",
        "range: what a window misses is a gap",
        "integration/harvest/runtime/test_process.py"
        "::test_what_is_committed_is_published_and_nothing_else",
    ),
    Broken(
        "H13",
        "promise: an outbox has one configuration",
        "integration/harvest/runtime/test_source.py"
        "::test_another_configuration_is_refused_and_a_switch_repeats_nothing",
    ),
    Broken(
        "H13",
        "promise: a switch leaves nothing that was published",
        "integration/harvest/runtime/test_source.py"
        "::test_another_configuration_is_refused_and_a_switch_repeats_nothing",
    ),
    Broken(
        "S3",
        "promise: a bomb in a file is no traceback",
        "fuzz/test_fuzz.py::test_extremes",
    ),
    Broken(
        "S3",
        "promise: what is read of files is text or numbers",
        "fuzz/test_fuzz.py::test_nothing_but_the_documented_errors",
    ),
    Broken(
        "S4",
        "promise: no right on a group is needed",
        f"{_SECURITY}::test_read_and_write_on_two_topics_are_enough",
    ),
    Broken(
        "S4",
        "promise: a missing right is named with its command",
        f"{_SECURITY}::test_a_missing_right_is_named_and_granting_it_helps",
    ),
    Broken(
        "S5",
        "promise: settings show no password",
        f"{_SECURITY}::test_a_password_is_in_no_log_repr_or_error",
    ),
    Broken(
        "S6",
        "promise: a stranger's heartbeat makes no session",
        f"{_FLOOD}::test_refused_records_leave_nothing_behind",
    ),
    Broken(
        "S6",
        "promise: a refused claim makes no cell",
        f"{_FLOOD}::test_refused_records_leave_nothing_behind",
    ),
    Broken(
        "S6",
        "fold: claim: compare and swap",
        "integration/marshal_py/client/test_flood.py"
        "::test_a_flood_of_nonsense_takes_nothing_from_anybody",
    ),
)


def notices(broken: Broken) -> bool:
    """Whether the named test fails with the bug."""
    return fails_with(broken.bug, broken.test)


def fails_with(bug: str, test: str) -> bool:
    """Whether a test, below ``tests``, fails with the mutant of that name."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.plugin", "-x", "-q"]
    path = os.pathsep.join((str(_ANY_PROCESS), str(ROOT)))
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-m", "", "--timeout", "300", f"tests/{test}"],
        cwd=ROOT,
        env={**os.environ, "MUTANT": bug, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1) or "sitecustomize" in done.stderr:
        raise RuntimeError(
            f"{bug}: {test}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.returncode == 1


def main(lines: list[str]) -> int:
    """Print each line, and whether its test noticed. Exit status: 1 if one did not."""
    missed = 0
    for broken in BROKEN:
        if lines and broken.line not in lines:
            continue
        seen = notices(broken)
        missed += not seen
        test = broken.test.rpartition("::")[2]
        said = "noticed" if seen else "NOT NOTICED"
        print(f"{broken.line:<4} {said:<12} {broken.bug:<60} {test}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
