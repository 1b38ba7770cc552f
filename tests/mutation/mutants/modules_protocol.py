"""Bugs in what judges and tells a log, and in what both versions of it are made of.

Each with the test that notices it.
"""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed, noticed

__all__ = ["PROTOCOL_MODULES"]

PROTOCOL_MODULES: tuple[Noticed, ...] = (
    noticed(
        "a snapshot from which a log is read is compared, too",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Verifier.__init__",
            "s[0].next_offset >= self._begin",
            "s[0].next_offset > self._begin",
        ),
    ),
    noticed(
        "a snapshot from which a log is read is compared before the first record",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Verifier._audit",
            "            if self._snapshots:\n"
            "                self._compare_reached()\n"
            "            self._history.feed",
            "            self._history.feed",
        ),
    ),
    noticed(
        "a record that was trimmed is not asked for its digest",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Verifier._compare",
            "elif snapshot.next_offset > self._begin and snapshot.anchor",
            "elif snapshot.anchor",
        ),
    ),
    noticed(
        "a snapshot of more partitions is none of this log",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_snapshot_of_another_number_of_partitions_is_none_of_this_log",
        (
            "Verifier._compare",
            "if snapshot.partitions != self._partitions:",
            "if snapshot.partitions < self._partitions:",
        ),
    ),
    noticed(
        "that a snapshot has another pause is told",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_each_difference_of_a_snapshot_is_told",
        (
            "differences",
            "        if group.pause != other_group.pause:\n"
            '            found.append(f"the pause of {name} differs")\n',
            "",
        ),
    ),
    noticed(
        "that a snapshot has a higher level is told",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_each_difference_of_a_snapshot_is_told",
        (
            "differences",
            "        if group.level != other_group.level:",
            "        if group.level > other_group.level:",
        ),
    ),
    noticed(
        "findings are in the order of the log",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_findings_are_in_the_order_of_the_log_each_with_its_place",
        (
            "Verifier.finish",
            "        self.findings.sort(key=lambda f: f.offset)\n",
            "",
        ),
    ),
    noticed(
        "what is wrong at the end names its cell",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_wrong_at_the_end_names_its_cell",
        (
            "Verifier.finish",
            "            finding.group, finding.topic, finding.partition = group, "
            "topic, partition\n",
            "",
        ),
    ),
    noticed(
        "a late heartbeat breaks no rule",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_the_protocol_withstands_is_a_warning[late_heartbeat-late_heartbeat]",
        (
            "",
            '        "late_heartbeat",\n',
            "",
        ),
    ),
    noticed(
        "records that were appended twice break no rule",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_the_protocol_withstands_is_a_warning[appended_twice-appended_twice]",
        (
            "",
            '        "appended_twice",\n',
            "",
        ),
    ),
    noticed(
        "what a snapshot has too much is told from what it lacks",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_each_difference_of_a_snapshot_is_told",
        (
            "differences",
            "'not ' if mine is None else 'only '",
            "'only ' if mine is None else 'not '",
        ),
    ),
    noticed(
        "that records carry their senders' time is told",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_findings_are_in_the_order_of_the_log_each_with_its_place",
        (
            "Verifier.feed",
            "        if create_time:\n"
            "            self._history.saw_create_time(offset, stamp_ms)\n",
            "",
        ),
    ),
    noticed(
        "that a session of a snapshot is another is told",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_each_difference_of_a_snapshot_is_told",
        (
            "differences",
            "            if group.sessions.get(who) != other_group.sessions.get(who):",
            "            if group.sessions.keys() != other_group.sessions.keys():",
        ),
    ),
    noticed(
        "that a snapshot has another base of epochs is told",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_each_difference_of_a_snapshot_is_told",
        (
            "differences",
            'for field in ("identity", "base", "partitions"):',
            'for field in ("identity", "partitions"):',
        ),
    ),
    noticed(
        "a snapshot that holds no state ends no verification",
        "marshal_py.protocol.history.verifier",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_snapshot_that_holds_no_state_is_told_and_ends_nothing",
        (
            "Verifier._differences",
            "        except MalformedRecord as error:\n            return [str(error)]",
            "        except ZeroDivisionError as error:\n            return [str(error)]",
        ),
    ),
    noticed(
        "a session of a snapshot was renewed when it says",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Invariants.__init__",
            "_Session(len(session.claims), session.version)",
            "_Session(len(session.claims))",
        ),
    ),
    noticed(
        "a session of a snapshot holds all its claims",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Invariants.__init__",
            "_Session(len(session.claims), session.version)",
            "_Session(1, session.version)",
        ),
    ),
    noticed(
        "a group of a snapshot may be paused",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Invariants.__init__",
            "            if group.pause is not None:\n"
            "                self._pauses[name] = group.pause.version\n",
            "",
        ),
    ),
    noticed(
        "a group of a snapshot may be at another level",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Invariants.__init__",
            "            if group.level != LEVEL:\n"
            "                self._levels[name] = group.level\n",
            "",
        ),
    ),
    noticed(
        "a log of a snapshot may have been founded",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_left_of_a_log_is_sound_from_its_snapshot_on",
        (
            "Invariants.__init__",
            "self._identity, self._base = state.identity, state.base\n        self._offset",
            "self._identity, self._base = state.identity, 0\n        self._offset",
        ),
    ),
    noticed(
        "a level that came up untold is found",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_the_events_did_not_tell_is_found_at_the_end",
        (
            "Invariants.finish",
            "            if self._levels.get(group, LEVEL) != levels.get(group, LEVEL):",
            "            if group in levels and self._levels.get(group, LEVEL) > "
            "levels.get(group, LEVEL):",
        ),
    ),
    noticed(
        "a pause that is another one is found",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_another_than_it_was_told_to_be_is_found_at_the_end",
        (
            "Invariants.finish",
            "if self._pauses.get(group) != pauses.get(group):",
            "if (group in self._pauses) != (group in pauses):",
        ),
    ),
    noticed(
        "who sets a position expects the version that was",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_forged_report_breaks_an_invariant",
        (
            "Invariants._expect",
            "isinstance(record, ClaimingPartition | SetPosition)",
            "isinstance(record, ClaimingPartition)",
        ),
    ),
    noticed(
        "who renews is the holder",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_forged_report_breaks_an_invariant",
        (
            "Invariants.check",
            "                and account.holder == event.client_id\n",
            "",
        ),
    ),
    noticed(
        "who renews is the holder's process",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_forged_report_breaks_an_invariant",
        (
            "Invariants.check",
            "                and account.instance_id == event.instance_id\n",
            "",
        ),
    ),
    noticed(
        "no version lies beyond the end of the log",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_another_than_it_was_told_to_be_is_found_at_the_end",
        (
            "Invariants.finish",
            "            if found >= state.next_offset:",
            "            if found > state.next_offset:",
        ),
    ),
    noticed(
        "epochs begin no lower than before",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_epochs_never_begin_below_those_that_were",
        (
            "Invariants._founded",
            "        if event.base < self._base:",
            "        if event.base < 0:",
        ),
    ),
    noticed(
        "nobody claims in a paused group",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_claim_in_a_paused_group_and_a_range_too_many_break_an_invariant",
        (
            "Invariants._claimed",
            "        if event.group_id in self._pauses:\n"
            '            wrong.append("a claim was accepted while the group was '
            'paused")\n',
            "",
        ),
    ),
    noticed(
        "only what is paused is forgotten",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_forged_report_breaks_an_invariant",
        (
            "Invariants._forgotten",
            "        if event.group_id not in self._pauses:\n"
            '            wrong.append("a group was forgotten that was not paused")\n',
            "",
        ),
    ),
    noticed(
        "no more ranges are open than may be",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_a_claim_in_a_paused_group_and_a_range_too_many_break_an_invariant",
        (
            "Invariants._granted",
            "        if len(ranges) >= MAX_OPEN_RANGES:",
            "        if len(ranges) > MAX_OPEN_RANGES:",
        ),
    ),
    noticed(
        "a base of epochs that is another one is found",
        "marshal_py.protocol.history.invariants",
        "unit/marshal_py/protocol/history/test_verifier.py::test_what_is_another_than_it_was_told_to_be_is_found_at_the_end",
        (
            "Invariants.finish",
            "        if (self._identity, self._base) != (state.identity, state.base):",
            "        if self._identity != state.identity:",
        ),
    ),
    noticed(
        "a second between the clocks of brokers is none",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_what_the_clocks_of_brokers_may_differ_is_none",
        (
            "AnomalyChecks.clock",
            "behind_ms > an.CLOCK_SKEW_MS",
            "behind_ms >= an.CLOCK_SKEW_MS",
        ),
    ),
    noticed(
        "a claimant's clock may differ",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_claimant_waits_for_two_intervals_less_what_clocks_may_differ",
        (
            "AnomalyChecks.takeover",
            "silence_ms < 2 * interval - interval // 10 - 1:",
            "silence_ms < 2 * interval:",
        ),
    ),
    noticed(
        "a claimant's clock may not differ by a fifth",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_claimant_waits_for_two_intervals_less_what_clocks_may_differ",
        (
            "AnomalyChecks.takeover",
            "silence_ms < 2 * interval - interval // 10 - 1:",
            "silence_ms < 2 * interval - interval // 5 - 1:",
        ),
    ),
    noticed(
        "changes now and then are no flapping",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_six_changes_within_twelve_intervals_are_flapping",
        (
            "AnomalyChecks.change_of_holder",
            "now - changes[0] <= window_ms",
            "now - changes[0] <= 10 * window_ms",
        ),
    ),
    noticed(
        "who comes back to its own is not flapping",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_client_that_comes_back_to_its_own_is_not_flapping",
        (
            "AnomalyChecks.change_of_holder",
            "if track.last_client_id is None or track.last_client_id == event.client_id:",
            "if track.last_client_id is None:",
        ),
    ),
    noticed(
        "a late heartbeat begins the count of slow ones anew",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_clock_is_slow_if_no_gap_is_as_it_should_be",
        (
            "AnomalyChecks.slow_heartbeat",
            "            self.late_heartbeat(track, event, gap)\n"
            "            track.slow_gaps = track.slow_sum_ms = 0\n"
            "            return",
            "            self.late_heartbeat(track, event, gap)\n            return",
        ),
    ),
    noticed(
        "a gap of two intervals is not late",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_clock_is_slow_if_no_gap_is_as_it_should_be",
        (
            "AnomalyChecks.slow_heartbeat",
            "        if gap > 2 * track.interval_ms:\n"
            "            self.late_heartbeat(track, event, gap)\n"
            "            track",
            "        if gap >= 2 * track.interval_ms:\n"
            "            self.late_heartbeat(track, event, gap)\n"
            "            track",
        ),
    ),
    noticed(
        "in a founded log heartbeats tell of claims by their offsets",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_planted_anomaly_is_found_once_and_nothing_else",
        (
            "AnomalyChecks.position_back",
            "{base + claimed_at: said for",
            "{claimed_at: said for",
        ),
    ),
    noticed(
        "in a founded log a lost claim is one that was",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_planted_anomaly_is_found_once_and_nothing_else",
        (
            "AnomalyChecks._lost_claims",
            "lost = [base + at for at in named if base + at not in held]",
            "lost = [at for at in named if at not in held]",
        ),
    ),
    noticed(
        "in a founded log an epoch is not beyond the log",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_later_epoch_than_the_cells_is_impossible_even_if_another_cell_has_it",
        (
            "AnomalyChecks._unknown_epoch",
            "        end = self.memory.state.base + event.offset\n",
            "        end = event.offset\n",
        ),
    ),
    noticed(
        "an epoch above the cell's is impossible",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_later_epoch_than_the_cells_is_impossible_even_if_another_cell_has_it",
        (
            "AnomalyChecks._unknown_epoch",
            "if epoch >= end or (event.epoch != UNKNOWN and epoch > event.epoch):",
            "if epoch >= end:",
        ),
    ),
    noticed(
        "a claim of messages that was overtaken is no lie",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_claim_of_messages_that_was_overtaken_is_no_anomaly",
        (
            "AnomalyChecks._claimed_before",
            "if track is not None and not late and proposed",
            "if track is not None and proposed",
        ),
    ),
    noticed(
        "a zombie was heard for more than two intervals",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_the_third_refused_heartbeat_after_two_intervals_is_a_zombies",
        (
            "AnomalyChecks._lost_claims",
            "memory.at_ms - 2 * interval:",
            "memory.at_ms - interval:",
        ),
    ),
    noticed(
        "the third refused heartbeat may be a zombie's",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_the_third_refused_heartbeat_after_two_intervals_is_a_zombies",
        (
            "AnomalyChecks._lost_claims",
            "seen.count >= an.ZOMBIE_BEATS",
            "seen.count > an.ZOMBIE_BEATS",
        ),
    ),
    noticed(
        "each lost claim has its own count",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_heartbeats_for_a_claim_that_was_lost_later_are_counted_for_themselves",
        (
            "AnomalyChecks._lost_claims",
            "if seen is None or seen.epoch not in lost:",
            "if seen is None:",
        ),
    ),
    noticed(
        "metadata of a lost claim is a sign of life",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_zombie_may_tell_of_metadata_alone",
        (
            "AnomalyChecks._lost_claims",
            "        named = [*record.positions[::2], *(entry.claimed_at for entry "
            "in record.metadata)]",
            "        named = record.positions[::2]",
        ),
    ),
    noticed(
        "nobody tells of a claim before it is written",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_heartbeat_cannot_tell_of_a_claim_that_comes_after_it",
        (
            "AnomalyChecks._lost_claims",
            "if max(lost, default=UNKNOWN) >= base + event.offset:",
            "if max(lost, default=UNKNOWN) > base + event.offset:",
        ),
    ),
    noticed(
        "a cell that was ended had any version",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_who_looked_at_a_cell_before_it_was_ended_expects_nothing_impossible",
        (
            "AnomalyChecks._unknown_version",
            "expected > event.version and (event.version != UNKNOWN or expected >= event.offset)",
            "expected > event.version",
        ),
    ),
    noticed(
        "a heartbeat that tells of two lost claims is one",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_the_third_refused_heartbeat_after_two_intervals_is_a_zombies",
        (
            "AnomalyChecks._lost_claims",
            "        if self._refused_at == event.offset:\n"
            "            return\n"
            "        self._refused_at = event.offset\n",
            "",
        ),
    ),
    noticed(
        "two late records of an earlier process are no twin",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_two_late_records_of_an_earlier_process_are_no_sign_of_two",
        (
            "AnomalyChecks._older_instance",
            "sender.after_newer >= an.OLDER_RECORDS",
            "sender.after_newer >= an.OLDER_RECORDS - 1",
        ),
    ),
    noticed(
        "who holds something is remembered",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds",
        (
            "AnomalyChecks.forget_silent",
            "            if memory.state.session(*key) is not None:\n                continue\n",
            "",
        ),
    ),
    noticed(
        "who is silent for long is forgotten, and no other",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds",
        (
            "AnomalyChecks.forget_silent",
            "if sender.offset < oldest]",
            "if sender.offset > oldest]",
        ),
    ),
    noticed(
        "of an instance that is forgotten nothing is kept",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds",
        (
            "AnomalyChecks.forget_silent",
            "            if memory.newest.get(key[:2]) == key[2]:\n"
            "                del memory.newest[key[:2]]\n",
            "",
        ),
    ),
    noticed(
        "a newer process is remembered when the older is forgotten",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds",
        (
            "AnomalyChecks.forget_silent",
            "            if memory.newest.get(key[:2]) == key[2]:\n"
            "                del memory.newest[key[:2]]\n",
            "            memory.newest.pop(key[:2], None)\n",
        ),
    ),
    noticed(
        "lost claims are forgotten in time",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds",
        (
            "AnomalyChecks.forget_silent",
            "        for key in [key for key, seen in memory.lost.items() if "
            "seen.offset < oldest]:\n"
            "            del memory.lost[key]\n",
            "",
        ),
    ),
    noticed(
        "a genesis of fewer partitions is another log's",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_genesis_of_fewer_partitions_or_of_a_base_that_is_too_low_is_told",
        (
            "AnomalyChecks.founded",
            "if event.partitions != self.partitions:",
            "if event.partitions > self.partitions:",
        ),
    ),
    noticed(
        "a record that was overtaken is new once",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_record_that_was_overtaken_comes_once",
        (
            "AnomalyChecks._out_of_order",
            "sender.seen |= 1 << behind\n            sender.prints",
            "sender.prints",
        ),
    ),
    noticed(
        "a number from before the window comes again, too",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_number_that_comes_again_is_found_however_many_came_since",
        (
            "AnomalyChecks._out_of_order",
            "if behind < SEEN_BITS and not",
            "if behind <= SEEN_BITS and not",
        ),
    ),
    noticed(
        "who founds a log with a base too low took it for new",
        "marshal_py.protocol.history.anomaly_checks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_genesis_of_fewer_partitions_or_of_a_base_that_is_too_low_is_told",
        (
            "AnomalyChecks.__init__",
            '            "base_too_low": self._refused_genesis,\n',
            "",
        ),
    ),
    noticed(
        "many records at once do not grow memory",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds",
        (
            "PartitionHistory.feed",
            "        memory.records += len(offsets)\n"
            "        if len(instances) > an.MANY_INSTANCES:\n"
            "            self._checks.forget_silent()\n",
            "        memory.records += len(offsets)\n",
        ),
    ),
    noticed(
        "many records one by one do not grow memory",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds",
        (
            "PartitionHistory.note",
            "if len(memory.instances) > an.MANY_INSTANCES and memory.records % "
            "an.MANY_INSTANCES == 0:",
            "if len(memory.instances) > an.MANY_INSTANCES and memory.records == an.MANY_INSTANCES:",
        ),
    ),
    noticed(
        "who takes a leadership over leaves no vacancy",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_leader_that_was_replaced_left_no_vacancy",
        (
            "PartitionHistory._on_claimed",
            "            vacancy_ms = 0\n",
            "",
        ),
    ),
    noticed(
        "who claims more does not hide a late heartbeat",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_to_claim_more_does_not_make_up_for_a_late_heartbeat",
        (
            "PartitionHistory._sender_of_claim",
            "if session is not None and len(session.claims) == 1:",
            "if session is not None:",
        ),
    ),
    noticed(
        "a heartbeat in time begins the count of slow ones anew",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_clock_is_slow_if_no_gap_is_as_it_should_be",
        (
            "PartitionHistory.feed",
            "                        sender.slow_gaps = sender.slow_sum_ms = 0\n",
            "",
        ),
    ),
    noticed(
        "ranges that an operator closed are forgotten",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_of_ranges_that_were_closed_and_groups_that_were_forgotten_nothing_is_kept",
        (
            "PartitionHistory._on_position_set",
            "            if other not in self.state.cells:  # the open ranges of "
            "this partition went (§5.18)\n"
            "                del self._memory.cells[other]",
            "            if other in self.state.cells:\n                continue",
        ),
    ),
    noticed(
        "cells of a group that was forgotten are forgotten",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_of_ranges_that_were_closed_and_groups_that_were_forgotten_nothing_is_kept",
        (
            "PartitionHistory._on_forgotten",
            "        for key in [key for key in memory.cells if key[0] == "
            "event.group_id]:\n"
            "            del memory.cells[key]\n",
            "",
        ),
    ),
    noticed(
        "a genesis that was refused is of no group",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_genesis_that_was_refused_has_no_group_that_belongs_elsewhere",
        (
            "PartitionHistory._on_rejected",
            '        if event.record != "Genesis":  # it is of no group\n'
            "            self._checks.sender(event)",
            "        self._checks.sender(event)",
        ),
    ),
    noticed(
        "whoever goes on samples as often",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_what_is_said_once_is_not_said_again_by_whoever_goes_on",
        (
            "PartitionHistory.decode",
            "return cls(memory.state.partition, partitions, sample_ms=sample_ms, memory=memory)",
            "return cls(memory.state.partition, partitions, memory=memory)",
        ),
    ),
    noticed(
        "another process of the holder's name is another",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_another_process_of_the_holders_name_may_not_set_its_position_while_it_lives",
        (
            "PartitionHistory._on_position_set",
            "            if event.instance_id != track.instance_id:  # a holder may",
            "            if event.client_id != track.client_id:  # a holder may",
        ),
    ),
    noticed(
        "late heartbeats count",
        "marshal_py.protocol.history.tracks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_late_heartbeats_count_for_the_claims_that_stood_then_and_once",
        (
            "PartitionMemory.settle",
            "            track.late += sender.late - track.late_from\n",
            "",
        ),
    ),
    noticed(
        "the gap before a claim is none of its own",
        "marshal_py.protocol.history.tracks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_the_gap_before_a_claim_is_none_of_its_own",
        (
            "InstanceTrack.longest_gap_ms",
            "for number, gap in self.gaps if number > after)",
            "for number, gap in self.gaps if number >= after)",
        ),
    ),
    noticed(
        "a word later than the last heartbeat counts",
        "marshal_py.protocol.history.tracks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_silence_counts_from_the_latest_word_whatever_it_was",
        (
            "PartitionMemory.settle",
            "            track.version_ms = max(track.version_ms, sender.last_beat_ms)\n",
            "            track.version_ms = sender.last_beat_ms\n",
        ),
    ),
    noticed(
        "that times are senders' is said once",
        "marshal_py.protocol.history.tracks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_what_is_said_once_is_not_said_again_by_whoever_goes_on",
        (
            "PartitionMemory.decode",
            "        memory.create_time = saved.create_time\n",
            "",
        ),
    ),
    noticed(
        "a late heartbeat counts once",
        "marshal_py.protocol.history.tracks",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_late_heartbeats_count_for_the_claims_that_stood_then_and_once",
        (
            "PartitionMemory.settle",
            "            track.beats_from, track.late_from = sender.beats, sender.late\n",
            "            track.beats_from = sender.beats\n",
        ),
    ),
    noticed(
        "a claim ends where messages were claimed to",
        "marshal_py.protocol.history.rows",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_claim_ends_where_its_messages_were_claimed_to",
        (
            "Rows.claim",
            "or_none(max(track.next_offset, track.claimed_offset)),",
            "or_none(track.next_offset),",
        ),
    ),
    noticed(
        "a leader's other partitions are no elections",
        "marshal_py.protocol.history.rows",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_leader_that_was_replaced_left_no_vacancy",
        (
            "Rows.claim",
            "if topic.startswith(LEADER_PREFIX) and partition == 0:",
            "if topic.startswith(LEADER_PREFIX):",
        ),
    ),
    noticed(
        "a cell that is not there has no version",
        "marshal_py.protocol.history.rows",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_rejection_says_what_it_knows_of_the_cell",
        (
            "Rows",
            "                or_none(event.version),\n            ),\n        )\n\n    def anomaly",
            "                event.version,\n            ),\n        )\n\n    def anomaly",
        ),
    ),
    noticed(
        "a claim that was seen is not begun anew",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_claim_that_was_seen_is_known_though_its_session_began_before_the_history",
        (
            "PartitionHistory._adopt",
            "            if key not in self._memory.cells:\n"
            "                track = self._memory.cells[key] = "
            "CellTrack(changes_ms=[])\n"
            "                track.adopt(cell",
            "            if True:\n"
            "                track = self._memory.cells[key] = "
            "CellTrack(changes_ms=[])\n"
            "                track.adopt(cell",
        ),
    ),
    noticed(
        "a takeover that no heartbeat followed is told",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_a_takeover_that_no_heartbeat_followed_has_a_row",
        (
            "PartitionHistory._end",
            "        if track.takeover is not None:\n"
            "            rows.takeover(track.takeover, None)\n"
            "        holder",
            "        holder",
        ),
    ),
    noticed(
        "the first identity of a log stands instead of none",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_partition_history.py::test_operations",
        (
            "PartitionHistory._on_founded",
            'instead = f" instead of {event.previous}" if event.previous else ""\n'
            "        self.rows",
            'instead = f" instead of {event.previous}"\n        self.rows',
        ),
    ),
    noticed(
        "a rejection of version 1 has no epoch",
        "marshal_py.protocol.history.partition_history",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_a_history_of_version_1_looks_for_what_its_records_can_show",
        (
            "PartitionHistory._on_rejected",
            "        epoch = or_none(event.epoch) if self._epochs else None",
            "        epoch = or_none(event.epoch)",
        ),
    ),
    noticed(
        "two intervals may lie between times either way",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_a_heartbeat_long_before_the_owners_is_of_a_wrong_clock_and_no_early_takeover",
        (
            "TextVerifier._check_wait",
            "if abs(silence_s) < self._span_s:",
            "if silence_s < self._span_s:",
        ),
    ),
    noticed(
        "each wrong clock is told",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_each_wrong_clock_and_each_misplaced_topic_is_told_once",
        (
            "TextVerifier._check_clock",
            'self._once("clock", *sender)',
            'self._once("clock")',
        ),
    ),
    noticed(
        "each misplaced topic is told",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_each_wrong_clock_and_each_misplaced_topic_is_told_once",
        (
            "TextVerifier._check_place",
            'self._once("wrong_partition", record.topic)',
            'self._once("wrong_partition")',
        ),
    ),
    noticed(
        "a clock is compared with the latest of the others",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_each_wrong_clock_and_each_misplaced_topic_is_told_once",
        (
            "TextVerifier._check_clock",
            "self._latest_s = max(self._latest_s, own_s)",
            "self._latest_s = own_s",
        ),
    ),
    noticed(
        "a clock behind the broker's is wrong",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_each_wrong_clock_and_each_misplaced_topic_is_told_once",
        (
            "TextVerifier._check_clock",
            "if broker_s and abs(own_s - broker_s) > self._slack_s:",
            "if broker_s and own_s - broker_s > self._slack_s:",
        ),
    ),
    noticed(
        "a claim in doubt is a warning",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_what_two_clients_may_both_have_done_is_an_error_and_what_is_in_doubt_a_warning",
        (
            "",
            'frozenset({"foreign_record", "in_doubt", "clock"})',
            'frozenset({"foreign_record", "clock"})',
        ),
    ),
    noticed(
        "a clock may be off by the slack",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_each_wrong_clock_and_each_misplaced_topic_is_told_once",
        (
            "TextVerifier._check_clock",
            "        elif self._latest_s - own_s > self._slack_s:",
            "        elif self._latest_s - own_s >= self._slack_s:",
        ),
    ),
    noticed(
        "who takes up its own takes nothing early",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_a_process_that_takes_up_what_its_name_held_takes_nothing_early",
        (
            "TextVerifier._check_wait",
            "if event.previous_holder in (None, event.client_id) or not heard_s:",
            "if event.previous_holder is None or not heard_s:",
        ),
    ),
    noticed(
        "records of version 1 are counted",
        "marshal_py.protocol.history.text_verifier",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_what_two_clients_may_both_have_done_is_an_error_and_what_is_in_doubt_a_warning",
        (
            "TextVerifier.feed",
            "        self.records += 1\n        try:\n            record = decode_any(value)",
            "        try:\n            record = decode_any(value)",
        ),
    ),
    noticed(
        "in version 1 nobody's clock is called slow",
        "marshal_py.protocol.history.text_history",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_a_history_of_version_1_looks_for_what_its_records_can_show",
        (
            "TextChecks.slow_heartbeat",
            "        if gap > 2 * track.interval_ms:\n"
            "            self.late_heartbeat(track, event, gap)",
            "        super().slow_heartbeat(track, event, gap)",
        ),
    ),
    noticed(
        "in version 1 no epoch is impossible",
        "marshal_py.protocol.history.text_history",
        "unit/marshal_py/protocol/history/test_text_verifier.py::test_a_history_of_version_1_looks_for_what_its_records_can_show",
        (
            "TextChecks.rejected",
            "    def rejected(self, event: ev.Rejected) -> None:\n"
            '        """Nothing: there are no epochs and versions that could be '
            'impossible."""\n',
            "",
        ),
    ),
    noticed(
        "offsets of a log that is gone mean nothing in the next",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_offsets_of_another_log_keep_nobody_from_winning",
        (
            "TextClaimant.truncated",
            "        self._foreign_at.clear()\n",
            "",
        ),
    ),
    noticed(
        "records of a log that is gone are not waited for in the next",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_a_claim_is_not_taken_for_the_one_that_went_into_another_log",
        (
            "TextClaimant.truncated",
            "        for queue in self._unread:\n            queue.clear()\n        self._foreign",
            "        self._foreign",
        ),
    ),
    noticed(
        "a log of version 1 may have more partitions when it is made anew",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_a_log_of_more_partitions_is_written_to_where_it_decides",
        (
            "TextClaimant.reshape",
            "        super().reshape()\n        self._unread = _none_unread(self.world.partitions)",
            "        super().reshape()",
        ),
    ),
    noticed(
        "a living process of our name is not resumed",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_a_process_that_came_to_live_under_our_name_is_not_resumed",
        (
            "TextClaimant._is_left_by_us",
            "            and cell.epoch < caught_up_at\n",
            "",
        ),
    ),
    noticed(
        "who wrote between a claim that was given up and its record is known",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_who_came_between_is_known_though_nothing_was_wanted_meanwhile",
        (
            "TextClaimant._note_foreign",
            "if key in self._wanted or key in self._foreign_at:",
            "if key in self._wanted:",
        ),
    ),
    noticed(
        "a claim that failed is the one of the same second",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_what_was_to_ask_first_and_failed_is_asked_again",
        (
            "TextClaimant._on_refused",
            "            if holding.claim_seq not in {unread.seq} | alike:\n",
            "            if holding.claim_seq != unread.seq:\n",
        ),
    ),
    noticed(
        "a heartbeat from before a doubt does not settle it",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_a_heartbeat_of_before_a_doubt_settles_nothing_however_late_it_is_read",
        (
            "TextClaimant._on_own_renewed",
            "if unread.t_send_ns >= holding.renew_from_ns:",
            "if now_ns >= holding.renew_from_ns:",
        ),
    ),
    noticed(
        "what was to ask first and failed asks again",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_what_was_to_ask_first_and_failed_is_asked_again",
        (
            "TextClaimant.append_failed",
            "if holding.state in _OURS and holding.claim_seq == seq:  # it was to "
            "ask first\n"
            "                holding.claim_seq = -1\n",
            "if holding.state in _OURS and holding.claim_seq == seq:  # it was to ask first\n",
        ),
    ),
    noticed(
        "heartbeats that failed are not on their way",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_heartbeats_that_failed_are_not_waited_for",
        (
            "TextClaimant.append_failed",
            "                self._heartbeat_settled(_text(sent.holding), now_ns)\n"
            "                self._heartbeats.arrange(sent.coordinator, now_ns + "
            "RETRY_NS)\n"
            "            return",
            "                self._heartbeats.arrange(sent.coordinator, now_ns + "
            "RETRY_NS)\n"
            "            return",
        ),
    ),
    noticed(
        "an operator works in a paused group of version 1",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_whoever_sets_positions_works_in_a_paused_group",
        (
            "TextClaimant._paused_for_ns",
            "if until_ms is None or not self.heeds_pauses:",
            "if until_ms is None:",
        ),
    ),
    noticed(
        "nothing is flushed for a claim that has ended",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_what_was_to_be_flushed_when_the_claim_ended_is_not",
        (
            "TextClaimant._heartbeat_settled",
            "        if holding.flush and holding.state in _OURS:",
            "        if holding.flush:",
        ),
    ),
    noticed(
        "a claim that a pause ends is not renewed",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_a_claim_that_a_pause_ends_says_nothing_more",
        (
            "TextClaimant._renew",
            "        if self.silent or holding.paused or holding.unread",
            "        if self.silent or holding.unread",
        ),
    ),
    noticed(
        "a record of version 1 in a wrong partition is none",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_a_record_where_its_topic_is_not_decided_is_nothing_to_us",
        (
            "TextClaimant.applied",
            "            if topic is not None and "
            "self.world.coordinator(self.group_id, topic, 0) != coordinator:\n"
            "                continue  # a record where its topic's claims are not "
            "decided\n",
            "",
        ),
    ),
    noticed(
        "in version 1 a group that is resumed is claimed at once",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_who_resumes_a_group_is_heard_at_once",
        (
            "TextClaimant.applied",
            "            elif kind is ev.GroupResumed:\n"
            "                touched.update((h.key, None) for h in "
            "self._waiting(coordinator))\n",
            "",
        ),
    ),
    noticed(
        "in version 1 records that were late now and then are no reason to give back",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_records_that_were_read_too_late_now_and_then_cost_nothing",
        (
            "TextClaimant._on_own_renewed",
            "        if holding.lease_until_ns > now_ns:\n            holding.late_renewals = 0\n",
            "",
        ),
    ),
    noticed(
        "a position that was found is stored",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_the_position_that_was_found_is_stored_already",
        (
            "TextClaimant._on_own_claimed",
            "            holding.next_offset = holding.stored_offset = "
            "cell.next_offset\n"
            "        holding.epoch",
            "            holding.next_offset = cell.next_offset\n        holding.epoch",
        ),
    ),
    noticed(
        "a flush without anything new is none",
        "marshal_py.protocol.text.claimant",
        "unit/marshal_py/protocol/text/test_claimant.py::test_a_flush_without_anything_new_sends_nothing",
        (
            "TextClaimant.commit",
            "        if flush and holding.next_offset > holding.stored_offset:",
            "        if flush:",
        ),
    ),
    noticed(
        "names of version 1 are not remembered without end",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_names_that_were_seen_are_not_remembered_without_end",
        (
            "_heartbeat",
            "        if len(state.renewals) >= _MAX_RENEWALS:\n"
            "            state.renewals.clear()\n",
            "",
        ),
    ),
    noticed(
        "an earlier process of the same name is no rival",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_an_earlier_process_of_the_owners_name_is_no_rival",
        (
            "_own",
            "if cell.holder is not None and cell.holder != client:",
            "if cell.holder is not None:",
        ),
    ),
    noticed(
        "a release settles doubts that are old",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_release_settles_what_its_time_settles",
        (
            "_release",
            "    _settle(state, cell, record.time_s)\n    current",
            "    current",
        ),
    ),
    noticed(
        "a pause of version 1 counts wherever it was written",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_group_is_paused_while_any_coordination_partition_says_so",
        (
            "TextWorld.paused",
            "return any(now_ms < state.paused",
            "return all(now_ms < state.paused",
        ),
    ),
    noticed(
        "a pause of version 1 is over at its time",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_group_is_paused_while_any_coordination_partition_says_so",
        (
            "TextWorld.paused",
            "return any(now_ms < state.paused.get(group_id, 0)",
            "return any(now_ms <= state.paused.get(group_id, 0)",
        ),
    ),
    noticed(
        "cells of version 1 are those of the group",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_the_cells_of_one_group_are_its_own",
        (
            "TextWorld.cells",
            "            if group_id is None or found[1][0] == group_id:\n"
            "                yield found",
            "            yield found",
        ),
    ),
    noticed(
        "a pause of version 1 is judged by the moment that is looked at",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_group_is_paused_while_any_coordination_partition_says_so",
        (
            "TextWorld.paused",
            "        now_ms = self._wall_s() * 1000 if self.at_ms is None else self.at_ms",
            "        now_ms = self._wall_s() * 1000",
        ),
    ),
    noticed(
        "a pause of version 1 ends before time does",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_pause_ends_once_and_never_lies_beyond_what_a_number_can_say",
        (
            "_pause",
            "until_ms = max(0, min((record.offset or 0) * 1000, _MAX_MS))",
            "until_ms = (record.offset or 0) * 1000",
        ),
    ),
    noticed(
        "a pause of version 1 ends once",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_pause_ends_once_and_never_lies_beyond_what_a_number_can_say",
        (
            "_pause",
            "    if events is None or not (paused or was_paused):",
            "    if events is None:",
        ),
    ),
    noticed(
        "what is released twice is told once",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_what_is_released_twice_was_released_once",
        (
            "_release",
            "    if not was_held:\n"
            '        _reject(events, offset, record, "not_held", cell)\n'
            "        return\n",
            "",
        ),
    ),
    noticed(
        "a number of version 1 has 64 bits in a replay, too",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_number_that_is_too_large_is_none_when_the_log_is_replayed_either",
        (
            "_renew",
            "if not time_s.isdigit() or not current.isdigit() or len(time_s) > 18 or "
            "len(current) > 18:",
            "if not time_s.isdigit() or not current.isdigit():",
        ),
    ),
    noticed(
        "doubts are not settled by another owner's clock",
        "marshal_py.protocol.text.rationalizer",
        "unit/marshal_py/protocol/text/test_rationalizer.py::test_a_doubt_is_not_forgotten_because_the_next_owners_clock_is_ahead",
        (
            "_own",
            "    cell.rival_s = cell.doubt_s = time_s  # from here on another clock counts\n",
            "    cell.rival_s = time_s\n",
        ),
    ),
    noticed(
        "the longest record of version 1 is one",
        "marshal_py.protocol.text.codec",
        "unit/marshal_py/protocol/text/test_codec.py::test_the_longest_record_is_one",
        (
            "decode_any",
            "if len(raw) > MAX_RECORD_BYTES:",
            "if len(raw) >= MAX_RECORD_BYTES:",
        ),
    ),
    noticed(
        "the longest name is one",
        "marshal_py.protocol.messages",
        "unit/marshal_py/protocol/test_messages.py::test_names_are_as_long_as_records_can_carry",
        (
            "check_names",
            "        if not 0 < len(value) <= longest:",
            "        if not 0 < len(value) < longest:",
        ),
    ),
    noticed(
        "migrations of a log that is gone end with it",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_a_migration_of_a_log_that_is_gone_withholds_nothing",
        (
            "Grants.caught_up",
            "        self._migrations.clear()\n        self._said",
            "        self._said",
        ),
    ),
    noticed(
        "another partition of a migration is none, when it is read",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_another_partition_of_a_migrations_topic_is_none",
        (
            "Grants.caught_up",
            "if partition == 0 and topic.startswith(MIGRATION_PREFIX):",
            "if topic.startswith(MIGRATION_PREFIX):",
        ),
    ),
    noticed(
        "another partition of a migration is none, when it is heard",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_another_partition_of_a_migrations_topic_is_none",
        (
            "Grants.heard",
            "if topic.startswith(MIGRATION_PREFIX) and event.partition == 0:",
            "if topic.startswith(MIGRATION_PREFIX):",
        ),
    ),
    noticed(
        "of migrations one coordination partition tells",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_another_coordination_partition_that_has_been_read_says_nothing_of_grants",
        (
            "Grants.caught_up",
            "        if coordinator != self._world.home(self._group_id):\n            return\n",
            "",
        ),
    ),
    noticed(
        "what was said of a grant ends with its claim",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_what_was_said_of_a_grant_before_it_was_claimed_again_counts_for_nothing",
        (
            "Grants.heard",
            "            self._said.discard((topic.removeprefix(GRANT_PREFIX), event.partition))\n",
            "",
        ),
    ),
    noticed(
        "a new word on a grant does not end the lease before it",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_a_lease_that_was_passed_on_is_not_shortened_by_a_later_word",
        (
            "Grants.renewed",
            '                self._known[unit] = _Known(b"", self._known[unit].until_ns)',
            '                self._known[unit] = _Known(b"", 0)',
        ),
    ),
    noticed(
        "a new word on a grant does not shorten the lease before it",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_a_lease_that_was_passed_on_is_not_shortened_by_a_later_word",
        (
            "Grants.until_ns",
            "            until_ns = max(until_ns, left_ns)",
            "            until_ns = left_ns",
        ),
    ),
    noticed(
        "a lease that is too long to be said is said as far as it can be",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_a_lease_survives_its_encoding_and_other_bytes_are_none",
        (
            "encode_lease",
            "min(int(remaining_ms), 2**32 - 1)",
            "int(remaining_ms)",
        ),
    ),
    noticed(
        "a lease ends when its grant is taken back",
        "marshal_py.protocol.migration",
        "unit/marshal_py/protocol/test_migration.py::test_a_grant_that_was_taken_back_is_not_there_again_because_it_is_claimed",
        (
            "Grants.until_ns",
            "            self._known.pop((topic, partition), None)\n            return 0",
            "            return 0",
        ),
    ),
    noticed(
        "a number of slots is a number",
        "marshal_py.protocol.slots",
        "unit/marshal_py/protocol/test_slots.py::test_how_operators_say_it_and_what_stands_in_the_log",
        (
            "agreed_for",
            "    if type(slots) is not int or not 0 <= slots <= MAX_SLOTS:\n"
            "        raise ConfigurationError(\n"
            '            f"slots = {slots!r} must be a number from 0',
            "    if not isinstance(slots, int) or not 0 <= slots <= MAX_SLOTS:\n"
            "        raise ConfigurationError(\n"
            '            f"slots = {slots!r} must be a number from 0',
        ),
    ),
    noticed(
        "the largest state is one",
        "marshal_py.protocol.snapshots",
        "unit/marshal_py/protocol/test_snapshot_records.py::test_a_bomb_is_refused",
        (
            "decode_snapshot",
            "unpacker.decompress(envelope.state, MAX_STATE_BYTES)",
            "unpacker.decompress(envelope.state, MAX_STATE_BYTES - 1)",
        ),
    ),
    noticed(
        "a state that is cut off is none",
        "marshal_py.protocol.snapshots",
        "unit/marshal_py/protocol/test_snapshot_records.py::test_a_snapshot_whose_state_is_cut_off_is_refused",
        (
            "Snapshot.restore",
            "        except msgspec.MsgspecError as error:\n"
            '            raise MalformedRecord(f"snapshot of',
            "        except msgspec.ValidationError as error:\n"
            '            raise MalformedRecord(f"snapshot of',
        ),
    ),
    noticed(
        "when a group began with a topic goes to the next holder",
        "marshal_py.protocol.claim_metadata",
        "unit/marshal_py/protocol/test_done_offsets.py::test_the_next_holder_takes_over_all_but_the_failures",
        (
            "ClaimMetadata.inherited",
            "            began_ms=self.began_ms,\n",
            "",
        ),
    ),
    noticed(
        "what is released gives way where a claim's metadata is full",
        "marshal_py.protocol.claim_metadata",
        "unit/marshal_py/protocol/test_done_offsets.py::test_what_is_released_and_what_is_done_share_the_room",
        (
            "ClaimMetadata.with_done",
            "        if len(bare.encode()) > MAX_METADATA_BYTES:\n"
            "            bare = msgspec.structs.replace(bare, released=())\n",
            "",
        ),
    ),
    noticed(
        "metadata that is no UTF-8 says nothing",
        "marshal_py.protocol.claim_metadata",
        "unit/marshal_py/protocol/test_done_offsets.py::test_metadata_that_is_something_else_says_nothing",
        (
            "_decode",
            "except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):",
            "except msgspec.MsgspecError:",
        ),
    ),
    noticed(
        "what is done makes room for what is released",
        "marshal_py.protocol.claim_metadata",
        "unit/marshal_py/protocol/test_done_offsets.py::test_what_is_released_and_what_is_done_share_the_room",
        (
            "ClaimMetadata.with_released",
            "        return msgspec.structs.replace(self, released=told).with_done(\n"
            "            self.done_from, self.done_ranges\n"
            "        )",
            "        return msgspec.structs.replace(self, released=told)",
        ),
    ),
    noticed(
        "the cost of a partition goes to the next holder",
        "marshal_py.protocol.claim_metadata",
        "unit/marshal_py/protocol/test_done_offsets.py::test_the_next_holder_takes_over_all_but_the_failures",
        (
            "ClaimMetadata.inherited",
            "            cost=self.cost,\n",
            "",
        ),
    ),
    noticed(
        "a cell that was free where the log begins is said to be",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_a_cell_that_was_free_where_the_log_begins",
        (
            "CellTimeline.begin",
            '            self._free_why = "it was free where the log begins"',
            "            pass",
        ),
    ),
    noticed(
        "who was heard when it was taken over is not heard of again",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_who_was_heard_at_the_moment_of_the_takeover_is_not_heard_of_again",
        (
            "CellTimeline.finish",
            "                if heard_ms > entry.at_ms",
            "                if heard_ms >= entry.at_ms",
        ),
    ),
    noticed(
        "who has won again what it lost has not lost it",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_who_has_won_again_what_it_lost_does_not_beat_in_vain",
        (
            "CellTimeline._claimed",
            "        self._lost.pop(who, None)\n",
            "",
        ),
    ),
    noticed(
        "a holder that is silent for two intervals may live",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_who_may_still_live_is_not_called_dead",
        (
            "_liveness",
            '"unknown" if silence_ms <= 2 * interval_ms',
            '"unknown" if silence_ms < 2 * interval_ms',
        ),
    ),
    noticed(
        "a takeover is not too early by what clocks may differ",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_a_takeover_is_too_early_by_the_margin_of_clocks",
        (
            "_why_taken",
            "if silence_ms >= 2 * interval_ms - interval_ms // 10 - 1:",
            "if silence_ms >= 2 * interval_ms:",
        ),
    ),
    noticed(
        "only a silence of over two intervals is told of a claim",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_a_claim_is_summed_up",
        (
            "CellTimeline._sum_up_claim",
            "if claim.longest_gap_ms > 2 * claim.interval_ms:",
            "if claim.longest_gap_ms > claim.interval_ms:",
        ),
    ),
    noticed(
        "a claim is told from its first position on",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_a_claim_is_summed_up",
        (
            "CellTimeline._claimed",
            "who, event.epoch, event.interval_ms, at_ms, at_ms, first_position=self._position",
            "who, event.epoch, event.interval_ms, at_ms, at_ms",
        ),
    ),
    noticed(
        "a claim of messages is a word of the holder",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_a_claim_is_summed_up",
        (
            "CellTimeline._messages",
            "            self._claim.batches += 1\n            self._claim.last_ms = at_ms",
            "            self._claim.batches += 1",
        ),
    ),
    noticed(
        "who claims again what it holds is told as that",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_who_claims_again_what_it_holds",
        (
            "CellTimeline._claimed",
            "                if previous == who:\n"
            '                    why = "it claimed again what it held"\n',
            "",
        ),
    ),
    noticed(
        "what a snapshot says was claimed is the position",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_a_cell_that_was_free_where_the_log_begins",
        (
            "CellTimeline.begin",
            "self._position, self._epoch = cell.position, cell.epoch",
            "self._position, self._epoch = cell.next_offset, cell.epoch",
        ),
    ),
    noticed(
        "a group that was forgotten is so since a time",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_a_group_that_was_forgotten_is_so_since_then",
        (
            "CellTimeline.feed",
            "self._claim, self._position, self._epoch = None, -1, None\n"
            "                self._free_since_ms = at_ms",
            "self._claim, self._position, self._epoch = None, -1, None",
        ),
    ),
    noticed(
        "the latest time does not go back",
        "marshal_py.admin.cell_timeline",
        "unit/marshal_py/admin/test_cell_timeline.py::test_the_latest_time_is_that_of_no_slower_clock",
        (
            "CellTimeline.feed",
            "self.latest_ms = max(self.latest_ms, at_ms)",
            "self.latest_ms = at_ms",
        ),
    ),
    noticed(
        "a range that was granted once is not told to be granted again",
        "marshal_py.admin.event_text",
        "unit/marshal_py/admin/test_formatting.py::test_ranges_are_told_by_their_first_and_last_message",
        (
            "_say",
            "if event.granted > 1 else",
            "if event.granted > 0 else",
        ),
    ),
    noticed(
        "the part of a range that is kept ends before the other",
        "marshal_py.admin.event_text",
        "unit/marshal_py/admin/test_formatting.py::test_ranges_are_told_by_their_first_and_last_message",
        (
            "_say",
            'f"{event.start}–{event.at - 1}", f"{event.at}–',
            'f"{event.start}–{event.at}", f"{event.at}–',
        ),
    ),
    noticed(
        "a rejection of partition 0 names it",
        "marshal_py.admin.event_text",
        "unit/marshal_py/admin/test_formatting.py::test_a_rejection_names_its_cell",
        (
            "_say",
            "            if event.topic is not None and event.partition is not None:\n"
            "                cell =",
            "            if event.topic is not None and event.partition:\n                cell =",
        ),
    ),
    noticed(
        "a topic of two groups is one of each",
        "marshal_py.admin.world_summary",
        "unit/marshal_py/admin/test_world_summary.py::test_each_group_has_its_own_topics_its_level_and_its_members_wherever_it_is_decided",
        (
            "summarize",
            "            if (name, share.topic) not in topics:\n"
            "                topics.add((name, share.topic))",
            "            if share.topic not in {t for _, t in topics}:\n"
            "                topics.add((name, share.topic))",
        ),
    ),
    noticed(
        "members are heard where their group is",
        "marshal_py.admin.world_summary",
        "unit/marshal_py/admin/test_world_summary.py::test_each_group_has_its_own_topics_its_level_and_its_members_wherever_it_is_decided",
        (
            "summarize",
            "        silence = view.silence(world.home(name), member.version, member.interval_ms)",
            "        silence = view.silence(0, member.version, member.interval_ms)",
        ),
    ),
    noticed(
        "the level of a group is where it is",
        "marshal_py.admin.world_summary",
        "unit/marshal_py/admin/test_world_summary.py::test_each_group_has_its_own_topics_its_level_and_its_members_wherever_it_is_decided",
        (
            "summarize",
            "        counted.level = world.states[world.home(name)].level(name)",
            "        counted.level = world.states[0].level(name)",
        ),
    ),
    noticed(
        "members are in order",
        "marshal_py.admin.world_summary",
        "unit/marshal_py/admin/test_world_summary.py::test_each_group_has_its_own_topics_its_level_and_its_members_wherever_it_is_decided",
        (
            "summarize",
            "    summary.members.sort(key=lambda m: (m.group, m.client_id))\n",
            "",
        ),
    ),
    noticed(
        "how a topic is shared is no claim",
        "marshal_py.admin.world_summary",
        "unit/marshal_py/admin/test_world_summary.py::test_how_a_topic_is_shared_is_no_claim",
        (
            "summarize",
            "            if share is None:\n"
            "                continue  # how a topic is shared, or was\n",
            "            if share is None:\n"
            "                counted.free += 1\n"
            "                continue\n",
        ),
    ),
    noticed(
        "the lowest level of a member is not its highest",
        "marshal_py.admin.world_summary",
        "unit/marshal_py/admin/test_world_summary.py::test_each_group_has_its_own_topics_its_level_and_its_members_wherever_it_is_decided",
        (
            "summarize",
            "                member.lowest,\n                member.highest,",
            "                member.highest,\n                member.lowest,",
        ),
    ),
    noticed(
        "records that were trimmed are not there",
        "marshal_py.admin.status",
        "unit/marshal_py/admin/test_status.py::test_what_was_trimmed_counts_as_no_record_and_clocks_that_are_ahead_as_now",
        (
            "read_status",
            "sum(end - first for first, end in ends.values())",
            "sum(end for _, end in ends.values())",
        ),
    ),
    noticed(
        "no record is newer than now",
        "marshal_py.admin.status",
        "unit/marshal_py/admin/test_status.py::test_what_was_trimmed_counts_as_no_record_and_clocks_that_are_ahead_as_now",
        (
            "read_status",
            "None if newest is None else max(0, found.taken_ms - newest)",
            "None if newest is None else found.taken_ms - newest",
        ),
    ),
    noticed(
        "nothing fails where nobody holds",
        "marshal_py.admin.status",
        "unit/marshal_py/admin/test_status.py::test_of_a_partition_that_nobody_holds_nothing_fails",
        (
            "_add_failing",
            "        if cell.holder is None or not note.has_failures:",
            "        if not note.has_failures:",
        ),
    ),
    noticed(
        "that there is no topic of snapshots is said once",
        "marshal_py.admin.status",
        "unit/marshal_py/admin/test_status.py::test_without_a_topic_of_snapshots_that_is_said_once",
        (
            "_add_snapshots",
            "        if since > MANY_RECORDS and ends:",
            "        if since > MANY_RECORDS:",
        ),
    ),
    noticed(
        "no snapshot is newer than now",
        "marshal_py.admin.status",
        "unit/marshal_py/admin/test_status.py::test_what_was_trimmed_counts_as_no_record_and_clocks_that_are_ahead_as_now",
        (
            "_add_snapshots",
            "max(0, found.taken_ms - record.written_ms)",
            "found.taken_ms - record.written_ms",
        ),
    ),
    noticed(
        "snapshots are read to their end",
        "marshal_py.admin.status",
        "unit/marshal_py/admin/test_status.py::test_what_was_trimmed_counts_as_no_record_and_clocks_that_are_ahead_as_now",
        (
            "_add_snapshots",
            "for p, (_, end) in ends.items()}",
            "for p, (end, _) in ends.items()}",
        ),
    ),
    noticed(
        "a pause of version 1 is none at its end",
        "marshal_py.admin.status",
        "unit/marshal_py/admin/test_status.py::test_in_version_1_a_pause_that_is_over_is_none",
        (
            "_add_pauses",
            "        if found.is_text and expires_ms <= now_ms:",
            "        if found.is_text and expires_ms < now_ms:",
        ),
    ),
)
