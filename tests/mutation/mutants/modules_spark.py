"""Bugs in the pipelines on Spark, each with its test (see `modules`)."""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed, noticed

__all__ = ["SPARK"]

ON = "marshal_py.spark"
LAKE = "marshal_py.spark.lake"
OUTBOX = "harvest.spark"
UNIT = "unit/marshal_py/spark"
DAYS = "spark/test_lake_days.py"
RECONCILE = "unit/harvest/spark/test_reconcile.py"

SPARK: tuple[Noticed, ...] = (
    # The claim-gated source
    noticed(
        "what was planned under one claim is not handed out under another",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_what_was_planned_under_a_claim_that_is_gone_is_planned_again",
        (
            "ClaimedReader._same",
            '(claim.epoch, turn) == (entry["epoch"], entry["turn"])',
            'turn == entry["turn"]',
        ),
    ),
    noticed(
        "a range that was not handed out is planned again",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_lapse_within_one_epoch_skips_nothing",
        (
            "ClaimedReader.partitions",
            "self._turns[name] = self._turns.get(name, 0) + 1",
            "pass",
        ),
    ),
    noticed(
        "a micro-batch of Spark's that is empty stores no position",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_lapse_within_one_epoch_skips_nothing",
        (
            "ClaimedReader.commit",
            "or not self._same(name, entry, claim)",
            "or not claim.held",
        ),
    ),
    noticed(
        "at most once, a range that Spark asks for again is claimed once",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_at_most_once_a_range_is_claimed_once_and_before_it_is_handed_out",
        ("ClaimedReader._may_hand_out", "if key not in self._handed_out:", "if True:"),
    ),
    noticed(
        "at most once, a claim that is lost hands nothing out",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_at_most_once_a_range_that_was_not_won_is_dropped",
        (
            "ClaimedReader._may_hand_out",
            "self._handed_out[key] = False",
            "self._handed_out[key] = True",
        ),
    ),
    noticed(
        "a query that ends reads to where the topics ended when it began",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_available_now_reads_to_the_ends_that_it_found_and_gives_all_back",
        ("ClaimedReader.latestOffset", "(a, min(b, ends[n]))", "(a, b)"),
    ),
    noticed(
        "a query that ends gives back what was stored",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_available_now_reads_to_the_ends_that_it_found_and_gives_all_back",
        ("ClaimedReader.commit", "wait=name in self._draining", "wait=False"),
    ),
    noticed(
        "a start at the end is stored for the next run",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_start_that_was_chosen_is_stored_for_whoever_comes_next",
        ("ClaimedReader._position", "if begin != extents[name][0]:", "if False:"),
    ),
    noticed(
        "who has been silent for two intervals has no share",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_share_is_all_partitions_over_the_living_members_rounded_up",
        (
            "ClaimedReader._members",
            "2 * found[client].interval_ms / 1000",
            "2 * found[client].interval_ms",
        ),
    ),
    noticed(
        "a look begins where records are left",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_look_is_from_the_position_on_as_far_as_records_are_there",
        ("UncommittedReader.partitions", "max(begin, first)", "begin"),
    ),
    noticed(
        "a query that ends does not end well where a topic was made anew",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_position_beyond_the_end_is_told_also_if_no_id_is_known",
        ("ClaimedReader._is_due", "<= whole[name][1]", ""),
    ),
    noticed(
        "a partition that a topic does not have any more is noticed",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_position_beyond_the_end_is_told_also_if_no_id_is_known",
        ("ClaimedReader.latestOffset", "dict.fromkeys(self._wanted, (0, 0)) | ", ""),
    ),
    noticed(
        "of which topic a position is, who comes next is told",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_topic_that_was_made_anew_is_not_read_on",
        ("ClaimedReader.latestOffset", "self._ids.tell(claim)", "pass"),
    ),
    noticed(
        "a position that was set is of the topic that is there",
        f"{ON}.positions",
        f"{UNIT}/test_source.py::test_a_topic_that_was_made_anew_is_not_read_on",
        ("TopicIds.tell", " or claim.position < 0", ""),
    ),
    noticed(
        "a position is not compared with an older end",
        f"{ON}.positions",
        f"{UNIT}/test_source.py::test_a_position_that_is_younger_than_the_look_at_the_end_is_none_beyond_it",
        ("TopicIds.check", "if end < position and extent_now is not None:", "if False:"),
    ),
    noticed(
        "claims of a query that is stopped run out by themselves",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_query_that_is_stopped_keeps_its_claims_while_tasks_may_be_at_work",
        ("ClaimedReader.stop", "release=False", "release=True"),
    ),
    noticed(
        "a query that ends asks again for a claim that it lost",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_available_now_asks_again_for_what_it_lost_before_it_was_read",
        ("ClaimedReader._take", " or claim.reason is not None", ""),
    ),
    noticed(
        "headers are given to who asks for them",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_headers_are_a_column_for_who_asks_for_them",
        ("MarshalSource.schema", "SCHEMA + HEADERS if", "SCHEMA if"),
    ),
    # Claimed batches
    noticed(
        "a batch of a topic that was made anew is refused",
        f"{ON}.batch",
        f"{UNIT}/test_batch.py::test_a_topic_that_was_made_anew_or_cut_off_is_not_read_on",
        ("_ranges", "begin, claim.metadata, extent", 'begin, b"", extent'),
    ),
    noticed(
        "a batch that fails stores no position",
        f"{ON}.batch",
        f"{UNIT}/test_batch.py::test_a_block_that_fails_stores_nothing",
        (
            "claimed_batch",
            "        with cluster_watched(spark):\n",
            "        _commit(held, timeout_s)\n        with cluster_watched(spark):\n",
        ),
    ),
    noticed(
        "a batch that is at work keeps no client that only asked",
        f"{ON}.batch",
        f"{UNIT}/test_batch.py::test_a_batch_is_what_is_new_and_its_ends_are_stored_behind_the_block",
        ("claimed_batch", "            ids.close()\n", ""),
    ),
    noticed(
        "a partition that is gone at the second look is one without records",
        f"{ON}.source",
        f"{UNIT}/test_source.py::test_a_look_is_from_the_position_on_as_far_as_records_are_there",
        ("_extent", ".get(partition, (0, 0))", "[partition]"),
    ),
    noticed(
        "one claim that was lost keeps no other from being stored",
        f"{ON}.batch",
        f"{UNIT}/test_batch.py::test_of_claims_that_were_lost_the_others_are_stored_and_all_are_named",
        ("_commit", "except NotHeld:", "except ZeroDivisionError:"),
    ),
    noticed(
        "a batch begins where records are left",
        f"{ON}.batch",
        f"{UNIT}/test_batch.py::test_a_batch_is_what_is_new_and_its_ends_are_stored_behind_the_block",
        ("_ranges", "begin = max(begin, first)", "begin = max(begin, 0)"),
    ),
    noticed(
        "at most once, a batch has no range that was not won",
        f"{ON}.batch",
        f"{UNIT}/test_batch.py::test_at_most_once_a_range_is_claimed_before_the_block_or_is_not_in_it",
        (
            "_ranges",
            "not claim.claim_messages(end)",
            "claim.claim_messages(end) is None",
        ),
    ),
    noticed(
        "jobs of a cluster that is gone are cancelled",
        f"{ON}.watch",
        f"{UNIT}/test_watch.py::test_a_job_without_executors_is_cancelled_and_the_error_says_why",
        ("_Watch._run", "self._context.cancelAllJobs()", "pass"),
    ),
    noticed(
        "a cluster that does not tell ids is no failure",
        f"{ON}.positions",
        f"{UNIT}/test_source.py::test_ids_are_asked_for_and_a_cluster_that_does_not_tell_is_no_failure",
        ("TopicIds.ask", "contextlib.suppress(KafkaException)", "contextlib.nullcontext()"),
    ),
    noticed(
        "ids of topics are asked for",
        f"{ON}.positions",
        f"{UNIT}/test_source.py::test_ids_are_asked_for_and_a_cluster_that_does_not_tell_is_no_failure",
        ("TopicIds.ask", "if not self._admin.tells_ids:", "if True:"),
    ),
    # The audit
    noticed(
        "rows of the audit that have ended are written",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_what_has_ended_is_written_and_senders_time_is_told_once",
        ("_PartitionFold.feed", "        self._take()", "        pass"),
    ),
    noticed(
        "the senders' time is told by the audit",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_what_has_ended_is_written_and_senders_time_is_told_once",
        ("_PartitionFold.feed", "kind == TIMESTAMP_CREATE_TIME", "kind != TIMESTAMP_CREATE_TIME"),
    ),
    noticed(
        "a snapshot that was taken back is not damaged",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_a_damaged_snapshot_is_told_once_and_a_tombstone_never",
        ("_Driver._read_snapshots", "if message.value() is None:", "if False:"),
    ),
    noticed(
        "a slow end of a run leaves what the next one goes on from",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_a_slow_end_of_a_run_undoes_nothing_of_the_next",
        ("Store._sweep", 'if int(info.base_name.split("-")[1]) < run and info', "if info"),
    ),
    noticed(
        "rows that were written are written no more",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_rows_beyond_what_is_kept_in_memory_are_written_once",
        ("Rows._flush", "self._waiting[table], []", "self._waiting[table], self._waiting[table]"),
    ),
    noticed(
        "the newest record is that of all partitions",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_the_newest_record_is_that_of_all_partitions",
        ("Store.latest", "newest_ms = max(", "newest_ms = min("),
    ),
    noticed(
        "a download that fails is told by its exit code",
        f"{ON}.connector",
        f"{UNIT}/test_connector.py::test_a_way_that_fails_says_what_it_said",
        ("_run", "    if result.returncode:", "    if False:"),
    ),
    noticed(
        "a partition that had nothing new is known to the next run",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_a_run_folds_what_is_new_and_keeps_what_is_known_of_the_other_partitions",
        ("_Driver.run", "if int(p) not in parts}", "if int(p) in plan}"),
    ),
    noticed(
        "a snapshot that ends where the log begins covers what is gone",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_a_log_without_its_beginning_is_entered_at_the_oldest_snapshot_that_reaches_it",
        ("_Driver._plan", "begin <= s.next_offset <= end", "begin < s.next_offset <= end"),
    ),
    noticed(
        "rows that are missing are told though a snapshot covers the state",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_what_is_gone_is_told_where_no_snapshot_covers_it_and_where_rows_are_missing",
        ("_Driver._plan", "if oldest is None or known is not None:", "if oldest is None:"),
    ),
    noticed(
        "a damaged snapshot is told once",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_a_damaged_snapshot_is_told_once_and_a_tombstone_never",
        ("_Driver._read_snapshots", "if offset >= known.get(str(p), 0):", "if True:"),
    ),
    noticed(
        "where a topic ends is not where it begins",
        f"{ON}.audit",
        f"{UNIT}/test_audit.py::test_ends_are_those_of_the_claimed_topics_over_the_run_and_now",
        ("_Driver._ends", "now[p][1]", "now[p][0]"),
    ),
    noticed(
        "the commit of a run whose answer was lost is its own",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_a_commit_whose_answer_was_lost_is_ones_own",
        ("Store.commit", '.get("attempt") != attempt', '.get("attempt") is not None'),
    ),
    noticed(
        "a commit is on the disk before it has its name",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_a_commit_is_on_the_disk_before_it_has_its_name",
        ("Store._create", "os.fsync(file.fileno())", "pass"),
    ),
    noticed(
        "a recovery leaves the run that is under way",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_a_recovery_after_a_commit_leaves_the_run_that_is_under_way",
        ("Store._finish", "if _number(info.base_name) <= run:", "if True:"),
    ),
    noticed(
        "what was open goes before what takes its place comes",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_whoever_reads_while_files_are_moved_sees_no_row_twice",
        ("Store._finish", "            self._sweep(fs, base, document)\n", ""),
        (
            "Store._finish",
            "name, waiting)\n",
            "name, waiting)\n            self._sweep(fs, base, document)\n",
        ),
    ),
    noticed(
        "each attempt of a task writes files of its own",
        f"{ON}.audit_store",
        f"{UNIT}/test_audit_store.py::test_a_task_that_is_tried_twice_counts_once",
        ("Rows.__init__", 'f"{name}-{uuid.uuid4().hex}.parquet"', 'f"{name}-1.parquet"'),
    ),
    noticed(
        "times of the tables are in milliseconds",
        f"{ON}.audit_tables",
        f"{UNIT}/test_audit_store.py::test_a_report_has_the_newest_days_and_what_is_held",
        ("", 'pa.timestamp("ms", tz="UTC")', 'pa.timestamp("us", tz="UTC")'),
    ),
    noticed(
        "what was claimed at most once is no lag",
        f"{ON}.audit_report",
        f"{UNIT}/test_audit_report.py::test_lag_is_the_end_less_the_position_at_that_moment",
        (
            "_lag",
            'max(row["next_offset"] or 0, row["claimed_offset"] or 0)',
            'row["next_offset"] or 0',
        ),
    ),
    noticed(
        "a shared partition is as far as its last slot",
        f"{ON}.audit_report",
        f"{UNIT}/test_audit_report.py::test_lag_of_a_shared_partition_is_that_of_its_last_slot",
        ("_lag", "done = min(", "done = max("),
    ),
    noticed(
        "a restart is no takeover in the report",
        f"{ON}.audit_report",
        f"{UNIT}/test_audit_report.py::test_takeovers_are_those_from_clients_that_were_silent",
        ("_takeovers", 'if t["how"] == "taken_over"', 'if t["how"]'),
    ),
    # Jars
    noticed(
        "a jar for Spark is the published one",
        f"{ON}.connector",
        f"{UNIT}/test_connector.py::test_a_download_that_is_not_the_published_one_is_thrown_away_and_the_next_way_tried[exchange]",
        (
            "_check",
            "    check_jars(bundle.home, [folder / _file_name(c) for c in bundle.coordinates])",
            "",
        ),
    ),
    noticed(
        "jars for Spark of which one is missing are fetched",
        f"{ON}.connector",
        f"{UNIT}/test_connector.py::test_what_is_in_the_cache_but_for_a_jar_is_fetched_anew",
        (
            "_jars",
            "    if not all(jar.exists() for jar in wanted):\n        with",
            "    if not home.exists():\n        with",
        ),
    ),
    # The lake
    noticed(
        "a transaction that was aborted brings no record into the lake",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_committed_records_are_read_from_the_first_on_and_gaps_are_errors",
        ("_source", '"read_committed"', '"read_uncommitted"'),
    ),
    noticed(
        "records that are gone are told as what they are",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_records_that_are_gone_are_a_hole_and_another_failure_is_itself",
        ("_finish", 'or "was changed from" in text', ""),
    ),
    noticed(
        "a sampled position has the time at which it was reported",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_positions_are_sampled_and_the_last_is_kept",
        ("PartitionHistory._moved", "        track.version_ms = now\n", ""),
    ),
    noticed(
        "a position between two samples has the time at which it was reported",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_positions_are_sampled_and_the_last_is_kept",
        ("PartitionHistory.feed", "                        track.version_ms = now\n", ""),
    ),
    noticed(
        "a topic of the lake that was made anew is not read on",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_the_last_record_that_was_read_must_still_be_there",
        ("_check_same_topic", "extent[p][1] <= at", "extent[p][1] < at"),
    ),
    noticed(
        "a record that the lake does not have, before the last that it has, is of another topic",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_a_marker_in_the_place_of_the_last_record_hides_no_topic_that_was_made_anew",
        (
            "_check_same_topic",
            "if known.get((p, at)) != at_ms:",
            "if known.get((p, at), at_ms) != at_ms:",
        ),
    ),
    noticed(
        "a topic of which nothing of the newest day is left is compared by other days",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_a_marker_in_the_place_of_the_last_record_hides_no_topic_that_was_made_anew",
        (
            "_check_same_topic",
            "if not there or there.keys() - known.keys():",
            "if there.keys() - known.keys():",
        ),
    ),
    noticed(
        "what was deleted from the lake is no other topic's",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_a_marker_in_the_place_of_the_last_record_hides_no_topic_that_was_made_anew",
        ("_check_same_topic", "if place in known or ms >= oldest}", "}"),
    ),
    noticed(
        "a header that names no row is of no outbox",
        f"{LAKE}.bronze",
        f"{DAYS}::test_a_record_is_of_the_row_that_its_header_names",
        ("_published", "IF({number} IS NULL, NULL, ", "IF(_id IS NULL, NULL, "),
    ),
    noticed(
        "silver takes a micro-batch that is done again once",
        f"{LAKE}.silver",
        "spark/test_lake.py::test_runs_that_die_give_the_tables_of_one_that_lives",
        ("_fold_batch", ", once=(table, batch)", ""),
    ),
    noticed(
        "silver folds no record again that is in what it goes on from",
        f"{LAKE}.silver",
        f"{UNIT}/lake/test_silver.py::test_it_goes_on_from_what_it_knew",
        ("_CoordinatorFold.take", "            self._from = offsets[0]\n", ""),
    ),
    noticed(
        "a snapshot that ends where the log of silver begins covers what is gone",
        f"{LAKE}.silver",
        f"{UNIT}/lake/test_silver.py::test_a_log_without_its_beginning_is_entered_at_a_snapshot",
        ("_CoordinatorFold._begin", "s.next_offset >= offset]", "s.next_offset > offset]"),
    ),
    noticed(
        "a hole that silver has found is final",
        f"{LAKE}.silver",
        f"{UNIT}/lake/test_silver.py::test_what_no_snapshot_covers_is_told",
        (
            "_CoordinatorFold.close",
            '_rows({"anomalies": self._findings}, opened=False)',
            '_rows({"anomalies": self._findings}, opened=True)',
        ),
    ),
    noticed(
        "the senders' time is that of the record that has it",
        f"{LAKE}.silver",
        f"{UNIT}/lake/test_silver.py::test_senders_time_is_told_once",
        (
            "_CoordinatorFold.take",
            "to_pylist()[keep:]\n            if True",
            "to_pylist()\n            if True",
        ),
    ),
    noticed(
        "silver goes on behind what was folded",
        f"{LAKE}.silver",
        f"{UNIT}/lake/test_silver.py::test_a_log_without_its_beginning_is_entered_at_a_snapshot",
        ("_CoordinatorFold.take", "if offset >= self._from", "if offset > self._from"),
    ),
    noticed(
        "a record of the next day belongs to its row",
        f"{LAKE}.deliveries",
        f"{DAYS}::test_a_row_is_of_the_day_it_was_inserted_on_and_its_record_may_come_a_day_later",
        ("write_deliveries", "day + dt.timedelta(late_days)", "day"),
    ),
    noticed(
        "of copies of a record the first counts",
        f"{LAKE}.deliveries",
        f"{DAYS}::test_of_copies_the_first_counts_and_order_is_that_of_a_key_in_its_partition",
        ("", "  min_by(struct(topic", "  max_by(struct(topic"),
    ),
    noticed(
        "a value that is gone is altered",
        f"{LAKE}.deliveries",
        f"{DAYS}::test_a_record_is_altered_when_a_topic_a_key_or_a_value_is_another",
        ("", "r.value <=> p.place.value", "r.value = p.place.value"),
    ),
    noticed(
        "a claim has not handled what it ends before",
        f"{LAKE}.deliveries",
        f"{DAYS}::test_who_handled_a_record_is_whose_claim_went_past_it",
        ("", "d.offset < c.last_offset", "d.offset <= c.last_offset"),
    ),
    noticed(
        "who holds a claim still has handled what it went past",
        f"{LAKE}.deliveries",
        f"{DAYS}::test_who_handled_a_record_is_whose_claim_went_past_it",
        ("", "WHERE day IS NULL OR day >= {since}", "WHERE day >= {since}"),
    ),
    noticed(
        "a day is not written anew without what it was made of",
        f"{LAKE}.deliveries",
        f"{DAYS}::test_a_day_whose_rows_or_records_are_gone_is_not_written_anew",
        ("check_days", "wanted - late <= day <= wanted", "day == wanted"),
    ),
    noticed(
        "the gap of a day's outbox is not known where its rows are not",
        f"{LAKE}.gold",
        f"{DAYS}::test_an_outbox_is_counted_by_what_became_of_its_rows",
        ("", "IF(known, count_if(status = 'lost'), NULL)", "count_if(status = 'lost')"),
    ),
    noticed(
        "a takeover of gold is one from a silent client",
        f"{LAKE}.gold",
        f"{DAYS}::test_a_group_is_counted_by_what_happened_on_the_day",
        ("", " AND how = 'taken_over')", ")"),
    ),
    noticed(
        "what comes when an hour ends is of the next",
        f"{LAKE}.gold",
        f"{DAYS}::test_lag_is_what_had_come_and_was_not_done_when_an_hour_ended",
        ("", "FILTER (WHERE r.hour < m.at)", "FILTER (WHERE r.hour <= m.at)"),
    ),
    noticed(
        "lag of gold is that of the last slot",
        f"{LAKE}.gold",
        f"{DAYS}::test_lag_of_a_shared_partition_is_that_of_its_last_slot",
        ("", "min(position) AS position\n  FROM seen", "max(position) AS position\n  FROM seen"),
    ),
    noticed(
        "a client that stands still for days is behind",
        f"{LAKE}.gold",
        f"{DAYS}::test_lag_of_a_group_that_has_stood_still_for_days_is_known",
        (
            "",
            "    WHERE day >= date_sub({day}, {still}) AND day < date_sub({day}, {days})\n",
            "    WHERE false\n",
        ),
    ),
    noticed(
        "who holds nothing any more is not behind for ever",
        f"{LAKE}.gold",
        f"{DAYS}::test_lag_of_a_group_that_has_stood_still_for_days_is_known",
        ("", "FROM steps LEFT SEMI JOIN held USING (group_id, topic, partition)", "FROM steps"),
    ),
    noticed(
        "a leader that was silent led until it was heard of last",
        f"{LAKE}.gold",
        f"{DAYS}::test_who_was_taken_over_from_led_until_its_last_heartbeat",
        (
            "",
            "CASE WHEN how = 'taken_over' THEN coalesce(last_beat_at, from_at)\n      WHEN",
            "CASE WHEN",
        ),
    ),
    noticed(
        "findings of two outboxes are two",
        f"{LAKE}.gold",
        f"{DAYS}::test_a_finding_is_named_alike_in_each_run_and_unlike_any_other",
        ("", "concat_ws('|', kind, outbox, id)", "concat_ws('|', kind, id)"),
    ),
    noticed(
        "who makes the table of findings replaces none",
        f"{LAKE}.gold",
        f"{DAYS}::test_what_has_come_after_all_is_no_finding_any_more_and_a_day_is_judged_alone",
        (
            "_add_findings",
            'lake.append("gold.findings", found.limit(0))',
            'lake.replace("gold.findings", found.limit(0), None)',
        ),
    ),
    noticed(
        "what is not known does not meet what is expected",
        f"{LAKE}.gold",
        f"{DAYS}::test_what_has_come_after_all_is_no_finding_any_more_and_a_day_is_judged_alone",
        ("_gates", "met = value is not None and (", "met = value is None or ("),
    ),
    noticed(
        "findings stay until they expire",
        f"{LAKE}.maintenance",
        f"{UNIT}/lake/test_maintenance.py::test_days_go_when_they_are_older_than_is_wanted_and_findings_when_they_expire",
        ("maintain", "expires_on < DATE", "day < DATE"),
    ),
    noticed(
        "a lake of a later version is refused",
        f"{LAKE}.run",
        f"{UNIT}/lake/test_places.py::test_a_lake_of_a_later_version_is_refused",
        ("_check_version", "latest > SCHEMA_VERSION", "latest < SCHEMA_VERSION"),
    ),
    noticed(
        "a bucket where commits may be overwritten is refused",
        f"{LAKE}.tables",
        f"{UNIT}/lake/test_places.py::test_a_bucket_is_written_to_only_where_no_commit_can_be_overwritten",
        ("Lake.to_write", "if spark.conf.get(_S3_LOG, None) is None:", "if False:"),
    ),
    noticed(
        "checkpoints in a bucket are decided once",
        f"{LAKE}.tables",
        f"{UNIT}/lake/test_places.py::test_a_bucket_is_written_to_only_where_no_commit_can_be_overwritten",
        ("Lake.to_write", "spark.conf.set(*_S3_CHECKPOINTS)", "pass"),
    ),
    noticed(
        "a table of an earlier version gets its new columns",
        f"{LAKE}.tables",
        f"{DAYS}::test_a_table_of_an_earlier_version_has_its_new_columns_without_a_value",
        ("Lake.writer", '.option("mergeSchema", "true")', ""),
    ),
    noticed(
        "a report is in UTC wherever it is written",
        f"{LAKE}.report",
        f"{DAYS}::test_a_report_is_in_utc_wherever_it_is_written",
        ("render_lake", 'row["hour"], dt.UTC)', 'row["hour"])'),
    ),
    noticed(
        "a day of which the rows are left, and no records, is not written anew",
        f"{LAKE}.deliveries",
        f"{DAYS}::test_a_day_whose_rows_or_records_are_gone_is_not_written_anew",
        ("check_days", ' | (had_records - known("bronze.published"))', ""),
    ),
    noticed(
        "the name of a log is no pattern",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_a_run_reads_its_own_log_and_stops_what_it_started",
        ("ingest", 'f"{re.escape(topic)}(', 'f"{topic}('),
    ),
    noticed(
        "streams of a run that fails are stopped",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_a_run_reads_its_own_log_and_stops_what_it_started",
        ("ingest", "            query.stop()", "            pass"),
    ),
    noticed(
        "the table that several streams write is made before",
        f"{LAKE}.bronze",
        f"{UNIT}/lake/test_bronze.py::test_a_run_reads_its_own_log_and_stops_what_it_started",
        ("ingest", 'if published and not lake.exists(spark, "bronze.published"):', "if False:"),
    ),
    noticed(
        "a header that names no outbox makes none",
        f"{LAKE}.bronze",
        f"{DAYS}::test_a_record_is_of_the_row_that_its_header_names",
        ("_published", "'^(.+/.+)/[^/]*$'", "'^(.*)/[^/]*$'"),
    ),
    noticed(
        "a name that no topic can have is a topic that is missing",
        "marshal_py.admin.topic_offsets",
        f"{UNIT}/test_kafka.py::test_only_a_topic_that_is_not_there_is_missing",
        ("", "KafkaError.TOPIC_EXCEPTION,  # no topic", "# no topic"),
    ),
    noticed(
        "a table that cannot be read is not taken for one that was never written",
        f"{LAKE}.tables",
        f"{UNIT}/lake/test_places.py::test_a_table_that_cannot_be_read_is_not_taken_for_one_that_was_never_written",
        ("Lake.exists", "if error.getCondition() not in _NO_TABLE:", "if False:"),
    ),
    noticed(
        "days of a lake are in UTC",
        f"{LAKE}.tables",
        f"{UNIT}/lake/test_places.py::test_days_are_in_utc_whatever_zone_the_session_was_in",
        ("Lake.to_write", "spark.conf.set(*_UTC)", "pass"),
    ),
    # Outboxes
    noticed(
        "a topic that was made anew is left to a full reconciliation",
        f"{OUTBOX}.reconcile",
        f"{RECONCILE}::test_records_are_read_from_what_was_compared_to_what_is_there",
        ("_extent", "max(end, starts[topic][p])", "end"),
    ),
    noticed(
        "fingerprints of a bucket are added up over all tasks",
        f"{OUTBOX}.reconcile",
        f"{RECONCILE}::test_a_bucket_of_several_tasks_is_the_sum_of_all",
        ("_prints", "(before[1] + fingerprint) % 2**64", "fingerprint % 2**64"),
    ),
    noticed(
        "the highest id that was seen was passed",
        f"{OUTBOX}.reconcile",
        f"{RECONCILE}::test_a_row_is_late_if_its_id_was_passed_by_an_earlier_run",
        ("_only", "a <= {last_id:d}L", "a < {last_id:d}L"),
    ),
    noticed(
        "a window has findings of itself alone",
        f"{OUTBOX}.reconcile",
        f"{RECONCILE}::test_a_window_has_what_explains_it_and_findings_of_itself_alone",
        ("_Window.conditions", "{at} < {self.until_ms:d}", "{at} <= {self.until_ms:d}"),
    ),
    noticed(
        "each row of a table is read by one connection",
        f"{OUTBOX}.sources",
        f"{RECONCILE}::test_of_postgres_each_row_is_read_by_one_connection",
        ("", "& 2147483647, {shards}) = {n}", "& 2147483647, {shards}) >= {n}"),
    ),
    noticed(
        "the connection to a table is as safe as it is asked to be",
        f"{OUTBOX}.sources",
        f"{RECONCILE}::test_of_postgres_each_row_is_read_by_one_connection",
        ("postgres_rows", ', ("sslmode", "sslmode")', ""),
    ),
    noticed(
        "a record of an aborted transaction is none of an outbox",
        f"{OUTBOX}.sources",
        f"{RECONCILE}::test_of_kafka_committed_records_are_read_between_the_offsets_and_gaps_are_errors",
        ("of_kafka", '"read_committed"', '"read_uncommitted"'),
    ),
    noticed(
        "a file of an archive is read however old it is",
        f"{OUTBOX}.lake",
        "spark/test_lake_rows.py::test_each_file_is_read_once_also_one_that_is_older_than_the_others",
        ("", '"36500d"', '"7d"'),
    ),
    noticed(
        "rows of a table have any id",
        f"{OUTBOX}.lake",
        "spark/test_lake.py::test_rows_of_a_table_come_once_each",
        ("add_table", "IN ({n}, -{n})", "= {n}"),
    ),
    noticed(
        "a row is known by its outbox, too",
        f"{OUTBOX}.lake",
        "spark/test_lake.py::test_rows_of_a_table_come_once_each",
        ("", "ON known.outbox = found.outbox AND known.id", "ON known.id"),
    ),
    noticed(
        "rows that took long to commit are looked for",
        f"{OUTBOX}.lake",
        "spark/test_lake.py::test_rows_of_a_table_come_once_each",
        ("add_table", "max(at) - make_dt_interval(0, 0, 0, {late_s})", "max(at)"),
    ),
    noticed(
        "a row of tomorrow hides none of today's",
        f"{OUTBOX}.lake",
        "spark/test_lake.py::test_rows_of_a_table_come_once_each",
        ("add_table", '"at <= current_timestamp()"', '"true"'),
    ),
    noticed(
        "a row of two files is there once",
        f"{OUTBOX}.lake",
        "spark/test_lake_rows.py::test_a_row_that_is_in_two_files_or_was_in_a_table_before_is_there_once",
        ("_add", '.dropDuplicates(["outbox", "id", "day"])', ""),
    ),
    noticed(
        "a topic that one reconciliation leaves out is read on by the next",
        f"{OUTBOX}.reconcile",
        "spark/test_reconcile.py::test_a_topic_that_one_run_leaves_out_is_read_on_by_the_next",
        ("_Run.compare", "others | ends", "ends"),
    ),
    noticed(
        "what is not as it should be ends a reconciliation with 1",
        "harvest.cli.spark",
        "unit/harvest/cli/test_spark.py::test_what_differs_is_exit_code_1",
        ("reconcile", "if not result.clean:", "if not result.clean and not as_json:"),
    ),
    noticed(
        "a time of an option is in UTC",
        "harvest.cli.spark",
        "unit/harvest/cli/test_spark.py::test_a_time_without_a_zone_is_utc",
        (
            "_moment",
            "found if found.tzinfo else found.replace(tzinfo=dt.UTC)",
            "found.replace(tzinfo=dt.UTC)",
        ),
    ),
    noticed(
        "how long a transaction may take is given in hours",
        "harvest.cli.spark",
        "unit/harvest/cli/test_spark.py::test_options_become_what_is_compared",
        ("reconcile", "late_s=late_h * 3600", "late_s=late_h * 60"),
    ),
)
