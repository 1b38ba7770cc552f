"""Bugs in clients, consumers and operators' tools, each with its test (see `modules`)."""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed, noticed

__all__ = ["COORDINATION"]

ADMIN = "marshal_py.admin"
CLIENT = "marshal_py.client"
CONSUMER = "marshal_py.consumer"
OF_ADMIN = "unit/marshal_py/admin"
OF_CLIENT = "unit/marshal_py/client"
OF_CONSUMER = "unit/marshal_py/consumer"

COORDINATION: tuple[Noticed, ...] = (
    # What is deleted, written and restored
    noticed(
        "the last record that a snapshot covers is not trimmed",
        f"{ADMIN}.log_trimming",
        f"{OF_ADMIN}/test_log_trimming.py::test_the_last_record_that_the_newest_snapshot_covers_stays",
        ("_plan", "newest.next_offset - 1)", "newest.next_offset)"),
    ),
    noticed(
        "a snapshot of another number of partitions trims nothing",
        f"{ADMIN}.log_trimming",
        f"{OF_ADMIN}/test_log_trimming.py::test_a_snapshot_of_another_number_of_partitions_covers_nothing",
        ("_plan", "        and f.snapshot.partitions == partitions\n", ""),
    ),
    noticed(
        "a snapshot of another log trims nothing",
        f"{ADMIN}.log_trimming",
        f"{OF_ADMIN}/test_log_trimming.py::test_a_snapshot_of_another_log_covers_nothing",
        ("_verify", "if anchor_of(last) != newest.anchor:", "if last is None:"),
    ),
    noticed(
        "a right that is missing for trimming is named",
        f"{ADMIN}.log_trimming",
        f"{OF_ADMIN}/test_log_trimming.py::test_who_may_not_delete_is_told_which_right_is_missing",
        ("delete_records", "if error.args[0].code() in REFUSED:", "if error is None:"),
    ),
    noticed(
        "a snapshot that is not in the topic was not written",
        f"{ADMIN}.snapshot_writer",
        f"{OF_ADMIN}/test_snapshot_writer.py::test_a_snapshot_that_is_not_in_the_topic_was_not_written",
        (
            "_check_written",
            'there.get(row["coordinator"], 0) <',
            'there.get(row["coordinator"]) ==',
        ),
    ),
    noticed(
        "what snapshots differ about is not written down",
        f"{ADMIN}.snapshot_writer",
        f"{OF_ADMIN}/test_snapshot_writer.py::test_what_may_be_wrong_is_not_written_down",
        ("write_snapshots", "if reader.mismatches:", "if not reader.world:"),
    ),
    noticed(
        "no snapshot is written where nothing is new",
        f"{ADMIN}.snapshot_writer",
        f"{OF_ADMIN}/test_snapshot_writer.py::test_one_is_written_of_each_partition_that_has_records_since",
        (
            "write_snapshots",
            "if due is None or due.next_offset == reader.newest_snapshot.get(p):",
            "if due is None:",
        ),
    ),
    noticed(
        "a log that is new gets its genesis",
        f"{ADMIN}.topic_review",
        f"{OF_ADMIN}/test_topic_review.py::test_a_log_that_is_new_gets_its_genesis",
        ("create_and_review", "if not made[0].existed:", "if made[0].existed:"),
    ),
    noticed(
        "a topic has the partitions that it has",
        f"{ADMIN}.topic_review",
        f"{OF_ADMIN}/test_topic_review.py::test_a_topic_has_the_partitions_that_it_has_unless_others_were_asked_for",
        (
            "create_and_review",
            "partitions=made[0].partitions if partitions is None",
            "partitions=DEFAULT_PARTITIONS if partitions is None",
        ),
    ),
    noticed(
        "more replicas than needed are no difference",
        f"{ADMIN}.topic_review",
        f"{OF_ADMIN}/test_topic_review.py::test_more_than_is_needed_is_no_difference",
        (
            "_differences",
            "found.replication_factor < sound.replication_factor",
            "found.replication_factor != sound.replication_factor",
        ),
    ),
    # Operators
    noticed(
        "what is on its way to the log is not written twice",
        f"{ADMIN}.operator",
        f"{OF_ADMIN}/test_operator.py::test_what_is_on_its_way_is_not_written_twice",
        ("Operator._try", "seq in self._failed and seq not in", "seq not in"),
    ),
    noticed(
        "of an operator's two appends the accepted one counts",
        f"{ADMIN}.operator",
        f"{OF_ADMIN}/test_operator.py::test_of_an_append_that_was_made_twice_the_one_that_was_accepted_counts",
        ("Operator._answer", "[*accepted, *known]", "known"),
    ),
    noticed(
        "an operator's probe of the log before says nothing",
        f"{ADMIN}.operator",
        f"{OF_ADMIN}/test_operator.py::test_a_probe_in_a_log_that_was_read_again_since_says_nothing",
        ("Operator.replay", "self._probe = -1", "pass"),
    ),
    noticed(
        "an operator takes the broker's times as exact as they are",
        f"{ADMIN}.operator",
        f"{OF_ADMIN}/test_operator.py::test_by_the_brokers_clock_the_dead_are_silent_for_two_intervals_and_the_skew",
        ("Operator.is_stale", "own_ms -= observer.stamped.resolution", "own_ms -= 0"),
    ),
    noticed(
        "who said goodbye is not alive",
        f"{ADMIN}.operator",
        f"{OF_ADMIN}/test_operator.py::test_who_was_heard_is_alive_until_it_says_goodbye",
        ("Operator._hear", "self.alive.discard(event.client_id)", "pass"),
    ),
    noticed(
        "an operator that cannot start lets go of its connection",
        f"{ADMIN}.operator",
        f"{OF_ADMIN}/test_operator.py::test_who_cannot_start_leaves_no_connection_behind",
        ("Operator.start", "self._reader.close()", "pass"),
    ),
    noticed(
        "a pause of version 1 ends no sooner than asked for",
        f"{ADMIN}.version1",
        f"{OF_ADMIN}/test_version1.py::test_a_pause_is_written_to_every_partition_and_ends_no_sooner_than_asked_for",
        ("pause_group", "math.ceil(", "int("),
    ),
    noticed(
        "a pause of version 1 that one partition did not take is no pause",
        f"{ADMIN}.version1",
        f"{OF_ADMIN}/test_version1.py::test_a_pause_that_one_partition_did_not_take_is_no_pause",
        ("_write_pause", "    writer.flush(TIMEOUT_S)\n", ""),
    ),
    noticed(
        "a group of version 1 goes on when positions could not be set",
        f"{ADMIN}.version1",
        f"{OF_ADMIN}/test_version1.py::test_a_group_goes_on_when_its_positions_could_not_be_set",
        ("set_positions", "    finally:\n        resume", "    else:\n        resume"),
    ),
    noticed(
        "in version 1 a position of 0 is committed to Kafka, too",
        f"{ADMIN}.version1",
        f"{OF_ADMIN}/test_version1.py::test_to_begin_at_the_first_message_what_was_committed_to_kafka_is_set_as_well",
        ("_forget_committed", "committed.get(key, 0) > 0}", "committed.get(key, 0) > 1}"),
    ),
    noticed(
        "what Go committed is not unknown because nobody answers",
        f"{ADMIN}.version1_positions",
        f"{OF_ADMIN}/test_version1_positions.py::test_brokers_that_do_not_answer_are_no_group_without_a_position",
        (
            "committed_position",
            "error.args[0].code() not in {*REFUSED, KafkaError.GROUP_AUTHORIZATION_FAILED}",
            "error.args[0].code() is None",
        ),
    ),
    noticed(
        "what Go committed may be of a group that new brokers do not know",
        f"{ADMIN}.version1_positions",
        f"{OF_ADMIN}/test_version1_positions.py::test_a_group_that_is_unknown_or_hidden_has_no_position",
        ("committed_position", "== KafkaError.GROUP_ID_NOT_FOUND:", "is None:"),
    ),
    # Looks at the log
    noticed(
        "a reader of the log is closed",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_a_log_that_is_cut_off_meanwhile_is_read_again_and_every_reader_closed",
        ("read_world", "            reader.close()", "            pass"),
    ),
    noticed(
        "brokers that send nothing are given up",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_brokers_that_send_nothing_are_given_up",
        (
            "until_silent",
            "heard_s > connection.timeout_s:",
            "heard_s > 1000 * connection.timeout_s:",
        ),
    ),
    noticed(
        "by a clock that is behind nobody is younger",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_where_the_clock_is_behind_the_newest_record_is_now",
        ("WorldView._stamped", "now_ms = self.taken_ms + self.behind_ms", "now_ms = self.taken_ms"),
    ),
    noticed(
        "what lies before all that was read is as old at least",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_what_lies_before_all_that_was_read_is_as_old_at_least",
        ("_estimate", "elif ms < interval_ms and not at_least:", "elif ms < interval_ms:"),
    ),
    noticed(
        "who was not watched for long enough is not judged by that",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_who_is_watched_for_long_enough_is_judged_by_that_alone",
        ("WorldView._watched", "if watched_ms > 2 * interval_ms:", "if watched_ms:"),
    ),
    noticed(
        "times of records that are forgotten are forgotten with them",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_a_view_that_stays_open_forgets_the_oldest_times_and_mixes_up_none",
        (
            "_Timestamps.note",
            "del self.offsets[: self.limit], self.times[: self.limit]",
            "del self.offsets[: self.limit]",
        ),
    ),
    noticed(
        "the past of version 1 has the records of its moment",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_a_look_at_the_past_of_version_1_goes_by_the_times_in_records",
        ("_until", "if own_time_ms(value) <= at_ms:", "if own_time_ms(value) < at_ms:"),
    ),
    noticed(
        "a group that nobody knows is a wrong argument",
        f"{ADMIN}.world_reader",
        f"{OF_ADMIN}/test_world_reader.py::test_a_group_that_the_log_does_not_know_is_no_group_without_troubles",
        ("WorldView.require_group", "not in known:", "not in known and known:"),
    ),
    noticed(
        "a claim that may be alive is not stale",
        f"{ADMIN}.world_summary",
        f"{OF_ADMIN}/test_world_summary.py::test_claims_that_are_held_stale_and_free",
        ("summarize", 'silence.liveness == "stale"', 'silence.liveness != "fresh"'),
    ),
    noticed(
        "the pause of version 1 that ends last counts",
        f"{ADMIN}.world_summary",
        f"{OF_ADMIN}/test_world_summary.py::test_in_version_1_the_pause_that_ends_last_counts_and_epochs_are_none",
        ("paused_until_ms", "return max(", "return min("),
    ),
    noticed(
        "of ranges each counts, and their partition does not",
        f"{ADMIN}.world_summary",
        f"{OF_ADMIN}/test_world_summary.py::test_of_a_partition_that_is_shared_by_ranges_its_ranges_count",
        ("summarize", "elif has_open_ranges(world, *key):", "elif key is None:"),
    ),
    noticed(
        "what has come is not what moved",
        f"{ADMIN}.live_world",
        f"{OF_ADMIN}/test_live_world.py::test_rates_are_of_the_time_since_the_picture_before",
        ("LiveWorld.frame", "was.get(g, at)", "was.get(g, 0)"),
    ),
    noticed(
        "a topic that has grown ends the live view",
        f"{ADMIN}.live_world",
        f"{OF_ADMIN}/test_live_world.py::test_a_topic_that_has_grown_is_not_shown_as_if_nothing_were_missing",
        ("LiveWorld.watch", "if error is not None:", "if error is None and self is None:"),
    ),
    noticed(
        "messages that do not end need attention",
        f"{ADMIN}.status",
        f"{OF_ADMIN}/test_status.py::test_messages_that_fail_or_do_not_end_need_attention",
        ("_add_failing", "if note.retrying or note.stuck:", "if note.retrying:"),
    ),
    noticed(
        "a pause has expired when its time has come",
        f"{ADMIN}.status",
        f"{OF_ADMIN}/test_status.py::test_a_pause_that_nobody_ended_needs_attention",
        ("_add_pauses", "expires_ms, expires_ms <= now_ms)", "expires_ms, expires_ms < now_ms)"),
    ),
    noticed(
        "a start replays what came since the newest snapshot",
        f"{ADMIN}.status",
        f"{OF_ADMIN}/test_status.py::test_what_a_start_has_to_replay_counts_from_the_newest_snapshot",
        ("_add_snapshots", "(first if snapshot is None else snapshot.next_offset)", "first"),
    ),
    noticed(
        "snapshots that differ need attention",
        f"{ADMIN}.status",
        f"{OF_ADMIN}/test_status.py::test_snapshots_that_differ_and_records_of_the_other_version_are_told",
        ("read_status", "for mismatch in found.reader.mismatches]", "for mismatch in ()]"),
    ),
    noticed(
        "who was dropped by others was not heard of",
        f"{ADMIN}.cell_timeline",
        f"{OF_ADMIN}/test_cell_timeline.py::test_a_member_that_others_forgot_was_not_heard_of_again",
        ("CellTimeline.feed", "if not isinstance(event, ev.MemberLeft):", "if at_ms:"),
    ),
    noticed(
        "a group that was resumed is not told to be paused",
        f"{ADMIN}.cell_timeline",
        f"{OF_ADMIN}/test_cell_timeline.py::test_who_resumes_a_group_ends_the_pause_that_is_told",
        ("CellTimeline.feed", "self._paused = False", "pass"),
    ),
    noticed(
        "a holder of version 1 lives by its renewals",
        f"{ADMIN}.cell_timeline",
        f"{OF_ADMIN}/test_cell_timeline.py::test_in_version_1_each_renewal_is_a_word_of_the_holder",
        ("CellTimeline._renewed", "if not self.has_sessions:", "if self.has_sessions:"),
    ),
    noticed(
        "whoever had an operator set its position holds it no more",
        f"{ADMIN}.cell_timeline",
        f"{OF_ADMIN}/test_cell_timeline.py::test_nobody_holds_what_an_operator_has_set_or_forgotten",
        (
            "CellTimeline._position_set",
            "self._claim, self._position = None, event.next_offset",
            "self._position = event.next_offset",
        ),
    ),
    noticed(
        "what was claimed at most once is not called done",
        f"{ADMIN}.message_timeline",
        f"{OF_ADMIN}/test_message_timeline.py::test_what_was_claimed_at_most_once_is_never_called_done",
        ("MessageTimeline._done", 'if self._state == "claimed":', "if at_ms is None:"),
    ),
    noticed(
        "the message at which a range is split is given back",
        f"{ADMIN}.message_timeline",
        f"{OF_ADMIN}/test_message_timeline.py::test_the_message_at_which_a_range_is_split_is_given_back",
        ("MessageTimeline._split", "if self.message < event.at:", "if self.message <= event.at:"),
    ),
    noticed(
        "of a group that was forgotten no range is left to tell of",
        f"{ADMIN}.message_timeline",
        f"{OF_ADMIN}/test_message_timeline.py::test_of_a_group_that_was_forgotten_no_range_is_left",
        (
            "MessageTimeline.feed",
            "            case ev.GroupForgotten():\n                self._whole()\n",
            "            case ev.GroupForgotten():\n",
        ),
    ),
    noticed(
        "deleted messages of a range are no lag",
        f"{ADMIN}.books",
        f"{OF_ADMIN}/test_books.py::test_messages_that_were_deleted_or_are_not_there_yet_are_no_lag",
        ("OpenRange.left", "max(self.cell.position, first))", "self.cell.position)"),
    ),
    noticed(
        "a range that has ended belongs to its partition",
        f"{ADMIN}.books",
        f"{OF_ADMIN}/test_books.py::test_a_cell_stands_for_the_partition_whose_range_it_is_or_was",
        ("seen_as", "if is_open or world.cell(*key) is None else", "if is_open else"),
    ),
    noticed(
        "a message of the very moment was there",
        f"{ADMIN}.topic_offsets",
        f"{OF_ADMIN}/test_topic_offsets.py::test_at_a_moment_all_that_is_not_later_was_there",
        ("offset_ranges", "_Spec.for_timestamp(at_ms + 1)", "_Spec.for_timestamp(at_ms)"),
    ),
    noticed(
        "where no message is later the topic ended where it ends",
        f"{ADMIN}.topic_offsets",
        f"{OF_ADMIN}/test_topic_offsets.py::test_at_a_moment_all_that_is_not_later_was_there",
        ("offset_ranges", "in later.items() if end >= 0}", "in later.items()}"),
    ),
    noticed(
        "a topic that is hidden is not missing",
        f"{ADMIN}.topic_offsets",
        f"{OF_ADMIN}/test_topic_offsets.py::test_why_a_topic_cannot_be_looked_at",
        ("partitions_of", "if found.error.code() in REFUSED:", "if found.error is None:"),
    ),
    noticed(
        "a history begins at the oldest snapshot that is left",
        f"{ADMIN}.log_replay",
        f"{OF_ADMIN}/test_log_verification.py::test_what_is_left_is_read_from_the_oldest_snapshot_that_reaches_it",
        ("open_replay", "and first <= found.snapshot.next_offset <= end", ""),
    ),
    noticed(
        "one error among warnings is an error",
        f"{ADMIN}.log_verification",
        f"{OF_ADMIN}/test_log_verification.py::test_an_error_among_warnings_is_not_passed_over",
        ("verify_log", "verdict.ok = not any(", "verdict.ok = not all("),
    ),
    noticed(
        "records that no snapshot covers are an error",
        f"{ADMIN}.log_verification",
        f"{OF_ADMIN}/test_log_verification.py::test_records_that_are_gone_and_that_no_snapshot_covers_are_an_error",
        ("_holes", "if p not in replay.starts:", "if p not in replay.extents:"),
    ),
)
