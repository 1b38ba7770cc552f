"""Bugs in what harvesters do with databases, and in what runs them, each with its test.

Of each, somebody thought that the tests might not notice it (see `modules`).
"""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed, noticed

__all__ = ["DATABASES"]

CORE = "harvest.core"
DB = "harvest.databases"
MY = "harvest.databases.mysql"
PG = "harvest.databases.postgres"
LITE = "harvest.databases.sqlite"
RUN = "harvest.runtime"

DATABASES: tuple[Noticed, ...] = (
    noticed(
        "a thread is idle when nothing is left to do",
        f"{RUN}.action_threads",
        "unit/harvest/runtime/test_action_threads.py::test_it_is_idle_when_all_that_was_put_in_is_done_and_not_before",
        (
            "ActionThread._run",
            "                        if not self._left:\n"
            "                            self._idle.set()",
            "                        self._idle.set()",
        ),
    ),
    noticed(
        "who has put work in does not find the thread idle",
        f"{RUN}.action_threads",
        "unit/harvest/runtime/test_action_threads.py::test_it_is_idle_when_all_that_was_put_in_is_done_and_not_before",
        ("ActionThread.put", "            self._idle.clear()\n", ""),
    ),
    noticed(
        "a thread that is told to end says so",
        f"{RUN}.action_threads",
        "unit/harvest/runtime/test_action_threads.py::test_whatever_ends_it_is_told",
        ("ActionThread._run", "except BaseException as error:", "except Exception as error:"),
    ),
    noticed(
        "a thread that hangs is not said to have ended",
        f"{RUN}.action_threads",
        "unit/harvest/runtime/test_action_threads.py::test_who_hangs_is_not_waited_for_and_said_to_hang",
        ("ActionThread.close", "return not self._thread.is_alive()", "return True"),
    ),
    noticed(
        "a statement under way is broken off when a leadership ends",
        f"{RUN}.leadership",
        "unit/harvest/runtime/test_leadership.py::test_a_statement_under_way_is_broken_off_at_the_end",
        ("Leadership._close", "                thread.cancel()\n", "                pass\n"),
    ),
    noticed(
        "who has ended acts no more",
        f"{RUN}.leadership",
        "unit/harvest/runtime/test_leadership.py::test_who_has_ended_acts_no_more_though_the_lease_is_held",
        ("Leadership.run", "            self._over.set()\n", ""),
    ),
    noticed(
        "the sink is closed when a leadership ends",
        f"{RUN}.leadership",
        "unit/harvest/runtime/test_leadership.py::test_a_thread_that_hangs_is_left_behind_and_the_sink_is_closed",
        ("Leadership._close", "        leader.close()\n", ""),
    ),
    noticed(
        "who is told twice to stop has no more time",
        f"{RUN}.leadership",
        "unit/harvest/runtime/test_leadership.py::test_who_is_told_twice_to_stop_has_no_more_time",
        (
            "Leadership._loop",
            "isinstance(event, Stop) and self._stop_at_s is None:",
            "isinstance(event, Stop):",
        ),
    ),
    noticed(
        "who stops waits for what is in flight no longer than he may",
        f"{RUN}.leadership",
        "unit/harvest/runtime/test_leadership.py::test_what_is_not_settled_in_time_is_left_to_the_next_leader",
        (
            "Leadership._next",
            "self._stop_at_s if due_s is None else due_s",
            "due_s",
        ),
    ),
    noticed(
        "what rang before the table is read is not heard again",
        f"{RUN}.leadership",
        "unit/harvest/runtime/test_leadership.py::test_what_rings_while_the_table_is_read_is_heard_after_it",
        ("Leadership.wait_for_rows", "        self._wake_event.clear()\n", ""),
    ),
    noticed(
        "what is lost of a slot makes it ill",
        f"{RUN}.monitor",
        "unit/harvest/runtime/test_monitor.py::test_a_slot_that_is_lost_is_shown_and_makes_it_ill",
        ("Monitor._count", "self.slot is not None and self.slot.lost", "self.slot is None"),
    ),
    noticed(
        "what a slot costs is not what it did cost once",
        f"{RUN}.monitor",
        "unit/harvest/runtime/test_monitor.py::test_what_a_slot_costs_is_not_shown_when_it_is_not_known_any_more",
        ("Monitor._count", "self.slot = None", "pass"),
    ),
    noticed(
        "a leader that cannot work is ill",
        f"{RUN}.monitor",
        "unit/harvest/runtime/test_monitor.py::test_who_does_not_work_is_ill",
        ("Monitor.health", "self._harvester.stuck_s > _STUCK_S", "self._harvester.stuck_s > 60"),
    ),
    noticed(
        "what Kafka's client raises does not end the monitor",
        f"{RUN}.monitor",
        "unit/harvest/runtime/test_monitor.py::test_of_servers_that_do_not_answer_each_is_named_and_the_others_are_asked",
        (
            "Monitor.check",
            "(HarvestError, MarshalError, KafkaException)",
            "(HarvestError, MarshalError)",
        ),
    ),
    noticed(
        "counting takes little of the time",
        f"{RUN}.monitor",
        "unit/harvest/runtime/test_monitor.py::test_counting_takes_one_part_in_twenty_of_the_time_at_most",
        ("Monitor._count", "max(_COUNT_EVERY_S, _COUNT_SHARE * took_s)", "_COUNT_EVERY_S"),
    ),
    noticed(
        "a rate is that of the last interval",
        f"{RUN}.monitor",
        "unit/harvest/runtime/test_monitor.py::test_rates_are_those_of_the_last_interval",
        ("Monitor._run", "            read_s, published = now_s, total\n", ""),
    ),
    noticed(
        "a heartbeat that cannot be sent does not end the monitor",
        f"{RUN}.monitor",
        "unit/harvest/runtime/test_monitor.py::test_a_handler_and_a_group_that_fail_do_not_end_it",
        ("Monitor._publish", "except MarshalError as error:", "except OSError as error:"),
    ),
    noticed(
        "what was not delivered is no checkpoint of which a copy is saved",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_only_what_was_delivered_is_committed",
        (
            "RangeLeader._settled",
            "            self._committed, self._committed_s = position, time.monotonic()\n",
            "        self._committed, self._committed_s = position, time.monotonic()\n",
        ),
    ),
    noticed(
        "of copies that wait, the last is saved",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_of_several_copies_the_last_is_saved",
        ("RangeLeader._save", "saver.save(positions[-1])", "saver.save(positions[0])"),
    ),
    noticed(
        "a database that went back keeps its copy",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_a_database_that_went_back_keeps_its_copy",
        ("RangeLeader._save", "guard is None or guard.fits(saver)", "True"),
    ),
    noticed(
        "a copy that is saved is not saved again",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_what_is_done_now_and_then",
        ("RangeLeader.every_tick", "            and committed is not self._saved\n", ""),
    ),
    noticed(
        "a checkpoint is renewed before Kafka forgets it",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_what_is_done_now_and_then",
        (
            "RangeLeader.every_tick",
            "anyway=now_s > self._committed_s + _RENEW_S",
            "anyway=now_s > self._refreshed_s + _RENEW_S",
        ),
    ),
    noticed(
        "a copy of another shard is no reason to stop",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_without_a_checkpoint_a_copy_of_the_same_shard_is_a_reason_to_stop",
        (
            "RangeLeader._check_table",
            "reader.saved() if copy.shard == scheduler.shard]",
            "reader.saved()]",
        ),
    ),
    noticed(
        "a position at the last id that was drawn is none ahead of it",
        f"{CORE}.interfaces.range_store",
        "unit/harvest/runtime/test_range_leader.py::test_a_checkpoint_ahead_of_the_table_is_refused",
        ("Bounds.problem", "coming > position.last_id", "coming > position.last_id + 1"),
    ),
    noticed(
        "an id that waits in a gap is not passed over",
        f"{CORE}.interfaces.range_store",
        "unit/harvest/runtime/test_range_leader.py::test_a_checkpoint_above_ids_that_wait_in_its_gaps_is_not_ahead",
        (
            "Bounds.problem",
            " or any(low <= coming <= high for low, high in position.gaps)",
            "",
        ),
    ),
    noticed(
        "which ids were drawn is asked of the sequence, and not of the rows",
        f"{DB}.postgres.range",
        "integration/harvest/runtime/test_source.py::test_a_sequence_that_was_set_back_below_rows_that_are_kept_is_noticed",
        (
            "PostgresRangeStore.bounds",
            ", self._drawn())",
            ", max(self._drawn(), "
            "self._execute(self._range_sql('SELECT max(id) FROM {table}')).fetchall()[0][0]))",
        ),
    ),
    noticed(
        "who fails again and again does not work (mark)",
        f"{CORE}.mark",
        "unit/harvest/core/test_mark_actions.py::test_after_a_failure_it_works_when_rows_are_published_or_there_are_none",
        ("MarkScheduler.running", " and not self._pace.failing", ""),
    ),
    noticed(
        "who fails again and again does not work (range)",
        f"{CORE}.range",
        "unit/harvest/core/test_range_actions.py::test_after_a_failure_it_works_when_rows_are_published_or_there_are_none",
        ("RangeScheduler.running", " and not self._pace.failing", ""),
    ),
    noticed(
        "who fails again and again does not work (relay)",
        f"{CORE}.relay",
        "unit/harvest/core/test_relay.py::test_after_a_failure_it_works_when_rows_were_marked",
        ("RelayScheduler.running", " and not self._pace.failing", ""),
    ),
    noticed(
        "who has rows on their way has not worked yet (mark)",
        f"{CORE}.mark",
        "unit/harvest/core/test_mark_actions.py::test_after_a_failure_it_works_when_rows_are_published_or_there_are_none",
        ("MarkScheduler._marked", " and not self._batches:", ":"),
    ),
    noticed(
        "who has rows on their way has not worked yet (range)",
        f"{CORE}.range",
        "unit/harvest/core/test_range_actions.py::test_after_a_failure_it_works_when_rows_are_published_or_there_are_none",
        ("RangeScheduler._advance", "if not self._sends:", "if True:"),
    ),
    noticed(
        "a topic that is NULL is an empty one, on PostgreSQL",
        f"{PG}.table",
        "integration/harvest/databases/test_odd_columns.py::test_a_row_without_a_topic_is_set_aside",
        ("topic_of", "coalesce(kafka_topic{}, '')", "kafka_topic{}"),
    ),
    noticed(
        "a topic that is NULL is an empty one, on MariaDB in range mode",
        f"{MY}.range",
        "integration/harvest/databases/test_odd_columns.py::test_a_row_without_a_topic_is_set_aside_on_mariadb",
        ("", "COALESCE(kafka_topic, '') AS kafka_topic", "kafka_topic"),
    ),
    noticed(
        "a domain is what it is made of",
        f"{PG}.table",
        "integration/harvest/databases/test_odd_columns.py::test_a_domain_is_what_it_is_made_of",
        ("", "coalesce(nullif(t.typbasetype, 0), t.oid)", "a.atttypid"),
    ),
    noticed(
        "in wal mode the table need not have a time",
        f"{PG}.wal",
        "integration/harvest/databases/test_odd_columns.py::test_wal_mode_counts_the_rows_of_a_table_that_has_what_is_published_and_no_more",
        ("PostgresWalSource.backlog", "NULL::timestamptz AS create_time", "create_time"),
    ),
    noticed(
        "who leads no more drops no partitions",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_who_leads_no_more_looks_after_no_partitions",
        ("RangeLeader._maintain", " or not self._leadership.may_act()", ""),
    ),
    noticed(
        "a connection that saves copies is closed",
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_every_connection_is_closed",
        ("RangeTools.close", "        self.saver.close()\n", ""),
    ),
    noticed(
        "whoever harvests with the new configuration is shut out of a switch, too",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_a_switch_is_made_while_nobody_harvests_with_either",
        ("switch", "(old,) if dry_run else (old, config)", "(old,)"),
    ),
    noticed(
        "a slot is dropped when nobody needs it any more",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_a_slot_is_dropped_once_the_next_mode_is_registered",
        (
            "switch",
            "                store.register_anew(ours)\n",
            "                drop_slot(old)\n                store.register_anew(ours)\n",
        ),
    ),
    noticed(
        "a dry run of a switch shuts nobody out",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_a_dry_run_shuts_nobody_out_and_registers_nobody",
        (
            "switch",
            "            if not dry_run:\n                Checkpoints(old).fence()\n",
            "            Checkpoints(old).fence()\n",
        ),
    ),
    noticed(
        "what was published is known in one cluster of Kafka only",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_another_cluster_is_refused_before_anybody_is_shut_out",
        ("switch", "if found.cluster != ours.cluster:", "if not found.cluster:"),
    ),
    noticed(
        "a dry run of a switch writes no positions",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_range_mode_goes_on_at_its_positions_in_another_group",
        ("_rename", "if found and not dry_run:", "if found:"),
    ),
    noticed(
        "what is registered is compared with what is configured",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_another_configuration_than_the_registered_one_is_refused",
        (
            "check_registration",
            "registration_problem(found, ours)",
            "registration_problem(ours, ours)",
        ),
    ),
    noticed(
        "rows that some destinations have keep a relay what it is",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_rows_that_some_destinations_have_keep_a_relay_what_it_is",
        ("_refuse_half_sent", "    if count:\n", "    if count > 1:\n"),
    ),
    noticed(
        "a session that cannot be set up is closed",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_sessions.py::test_a_session_that_cannot_be_set_up_is_closed",
        (
            "PostgresTable._connected",
            "            except BaseException:\n                connection.close()\n",
            "            except BaseException:\n",
        ),
    ),
    noticed(
        "a server that has become a standby is left",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_sessions.py::test_a_server_that_has_become_a_standby_is_left",
        (
            "PostgresTable._execute",
            "            self.close()  # the next connection finds the primary, if there is one\n",
            "",
        ),
    ),
    noticed(
        "statements see what is committed",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_sessions.py::test_statements_see_what_is_committed_whatever_the_database_is_set_to",
        (
            "PostgresTable._connected",
            "_set_config({**self._settings, **_SESSION})",
            "_set_config({**self._settings, 'jit': 'off'})",
        ),
    ),
    noticed(
        "a header without a value is none",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_wal_dead_letters.py::test_a_header_without_a_value_has_none_whatever_the_database_is_set_to",
        ("", '"array_nulls": "on"', '"jit": "off"'),
    ),
    noticed(
        "a table that was dropped is looked for again",
        f"{PG}.table",
        "contract/test_dead_letters.py::test_a_table_of_them_that_was_dropped_is_made_again[postgres]",
        (
            "PostgresTable._execute",
            "        except psycopg.errors.UndefinedTable as error:\n            self._forget()\n",
            "        except psycopg.errors.UndefinedTable as error:\n",
        ),
    ),
    noticed(
        "an index on some of the rows is none",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_sessions.py::test_an_index_that_does_not_have_each_row_by_its_id_is_none",
        ("PostgresTable._check_index", " AND i.indpred IS NULL", ""),
    ),
    noticed(
        "a dead network is given up after ten seconds",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_sessions.py::test_a_dead_network_is_given_up_unless_it_is_asked_to_be_waited_for",
        ("", '"tcp_user_timeout": "10000"', '"tcp_user_timeout": "10"'),
    ),
    noticed(
        "a row that cannot be read gives no more time to mark",
        f"{PG}.mark",
        "integration/harvest/databases/test_unreadable_rows.py::test_a_row_that_cannot_be_read_gives_no_more_time_to_mark",
        (
            "PostgresMarkStore.mark",
            "                limit //= 2  # and there is no more time for that\n",
            "                return self.mark(term, batch, limit // 2, valid_ms)\n",
        ),
    ),
    noticed(
        "a row that was waited for is not marked too late",
        f"{PG}.mark",
        "integration/harvest/databases/test_postgres_mark.py::test_a_mark_that_waited_beyond_its_time_takes_nothing_from_a_successor",
        (
            "",
            "  ORDER BY id LIMIT %s\n)) AND clock_timestamp()",
            "  ORDER BY id LIMIT %s\n)) AND now()",
        ),
    ),
    noticed(
        "of a mark that is late the last rows are missing",
        f"{PG}.mark",
        "integration/harvest/databases/test_postgres_mark.py::test_of_a_mark_that_waited_beyond_its_time_the_last_rows_are_missing",
        ("", '"enable_bitmapscan": "off"', '"enable_bitmapscan": "on"'),
    ),
    noticed(
        "what is prepared for another type is let go",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_sessions.py::test_a_type_that_changes_under_a_prepared_statement_is_an_outage_that_ends[PostgresRangeStore]",
        ("PostgresTable._execute", " or isinstance(error, _OF_PREPARED)", ""),
    ),
    noticed(
        "of two promotions the last one is not believed",
        f"{CORE}.source",
        "unit/harvest/core/test_source.py::test_what_was_promoted_twice_has_not_all_because_the_last_promotion_was_late",
        ("differences", "if now.timeline > before.timeline + 1:", "if False:"),
    ),
    noticed(
        "a row that MariaDB waited for is not marked too late",
        f"{MY}.mark",
        "integration/harvest/databases/test_mariadb.py::test_a_mark_that_waited_beyond_its_time_takes_nothing_from_a_successor",
        ("", "UNIX_TIMESTAMP(SYSDATE(6)) < %s", "UNIX_TIMESTAMP(NOW(6)) < %s"),
    ),
    noticed(
        "a slow answer about PostgreSQL's clock gives no more time",
        f"{PG}.mark",
        "contract/test_mark_store.py::test_a_slow_answer_about_the_clock_gives_no_more_time[postgres]",
        (
            "PostgresMarkStore._clock_ahead_s",
            "            ((database_s,),) = self._execute(sql.SQL(_CLOCK)).fetchall()\n"
            "            self._clock_asked_s = boottime_s()\n",
            "            self._clock_asked_s = boottime_s()\n"
            "            ((database_s,),) = self._execute(sql.SQL(_CLOCK)).fetchall()\n",
        ),
    ),
    noticed(
        "rows of PostgreSQL are in the order of their ids",
        f"{PG}.mark",
        "integration/harvest/databases/test_postgres_sessions.py::test_rows_that_come_in_another_order_are_sorted",
        ("PostgresMarkStore.mark", "rows.sort(key=_id)", "pass"),
    ),
    noticed(
        "columns may be changed between two sessions",
        f"{PG}.mark",
        "integration/harvest/databases/test_postgres_sessions.py::test_columns_that_were_changed_meanwhile_are_read_as_they_are",
        ("PostgresMarkStore._forget", "self._mark_sql = None", "pass"),
    ),
    noticed(
        "commits wait for the disk where they have to, in PostgreSQL",
        f"{PG}.mark",
        "integration/harvest/databases/test_postgres_sessions.py::test_commits_wait_for_the_disk_unless_they_need_not",
        ("PostgresMarkStore.__init__", "        if not durable:\n", "        if durable:\n"),
    ),
    noticed(
        "rows of no partition are kept for a while in PostgreSQL",
        f"{PG}.partitions",
        "integration/harvest/databases/test_postgres_range.py::test_rows_of_no_partition_are_swept_when_they_are_old_enough",
        ("", "make_interval(secs => %s)", "make_interval(mins => %s)"),
    ),
    noticed(
        "who has changed partitions lets go of PostgreSQL's lock",
        f"{PG}.partitions",
        "integration/harvest/databases/test_postgres_range.py::test_who_has_changed_partitions_is_in_nobodys_way",
        ("", "pg_try_advisory_xact_lock(", "pg_try_advisory_lock("),
    ),
    noticed(
        "a partition of other ids is another one",
        f"{PG}.partitions",
        "integration/harvest/databases/test_postgres_range.py::test_a_partition_of_the_same_name_and_other_ids_is_another_one",
        (
            "PostgresPartitions.drop",
            "(int(match[1]), int(match[2])) == (partition.low, partition.high)",
            "int(match[1]) == partition.low",
        ),
    ),
    noticed(
        "nobody writes while the rows of a partition are counted",
        f"{PG}.partitions",
        "integration/harvest/databases/test_postgres_range.py::test_nobody_writes_while_it_is_seen_that_all_rows_are_in_the_archive",
        (
            "PostgresPartitions.drop",
            "                self._run(sql.SQL(_NO_WRITES).format(part=part))\n",
            "",
        ),
    ),
    noticed(
        "the log ends where nobody writes into a partition any more",
        f"{PG}.wal_partitions",
        "integration/harvest/databases/test_postgres_wal_partitions.py::test_the_log_ends_where_nobody_writes_into_the_partition_any_more",
        (
            "PostgresWalPartitions._may_go",
            "        self._run(sql.SQL(_NO_WRITES).format(part=part))\n"
            "        return self._has_passed(self._log_end())",
            "        end = self._log_end()\n"
            "        self._run(sql.SQL(_NO_WRITES).format(part=part))\n"
            "        return self._has_passed(end)",
        ),
    ),
    noticed(
        "rows of no partition are kept for a while in wal mode",
        f"{PG}.wal_partitions",
        "integration/harvest/databases/test_postgres_wal_partitions.py::test_of_rows_in_no_partition_those_that_are_too_young_stay",
        ("", " AND create_time < now() - make_interval(secs => %s)", " AND %s::float8 >= 0"),
    ),
    noticed(
        "what could not be retried does not come",
        f"{PG}.wal_dead_letters",
        "integration/harvest/databases/test_postgres_wal_dead_letters.py::test_what_could_not_be_retried_is_still_aside_and_does_not_come",
        ("", "pg_logical_emit_message(true, ", "pg_logical_emit_message(false, "),
    ),
    noticed(
        "what is retried comes in the order of its ids",
        f"{PG}.wal_dead_letters",
        "integration/harvest/databases/test_postgres_wal_dead_letters.py::test_what_is_retried_comes_in_the_order_of_its_ids_with_what_waits",
        ("", "FROM taken ORDER BY id", "FROM taken ORDER BY id DESC"),
    ),
    noticed(
        "rows come before those that wait for them",
        f"{PG}.wal_dead_letters",
        "integration/harvest/databases/test_postgres_wal_dead_letters.py::test_what_is_retried_comes_in_the_order_of_its_ids_with_what_waits",
        (
            "PostgresWalDeadLetters.add_rows",
            "for waits in (False, True):",
            "for waits in (True, False):",
        ),
    ),
    noticed(
        "PostgreSQL: who has lost the lease meanwhile sets nothing aside",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_who_loses_the_lease_while_rows_are_copied_sets_none_aside[postgres]",
        ("PostgresDeadLetters._add", "            require(still_held)\n", ""),
    ),
    noticed(
        "PostgreSQL: whether the lease is held is asked last",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_who_loses_the_lease_while_rows_are_copied_sets_none_aside[postgres]",
        ("PostgresDeadLetters._add", "            require(still_held)\n", ""),
        (
            "PostgresDeadLetters.add",
            "        self.create()\n",
            "        self.create()\n        require(still_held)\n",
        ),
    ),
    noticed(
        "SQLite: who has lost the lease meanwhile sets nothing aside",
        "harvest.databases.portable_dead_letters",
        "contract/test_dead_letters.py::test_who_loses_the_lease_while_rows_are_copied_sets_none_aside[sqlite]",
        ("PortableDeadLetters.add", "            require(still_held)\n", ""),
    ),
    noticed(
        "wal mode: who has lost the lease meanwhile sets nothing aside",
        f"{PG}.wal_dead_letters",
        "integration/harvest/databases/test_postgres_wal_dead_letters.py::test_who_loses_the_lease_while_rows_are_copied_sets_none_aside",
        ("PostgresWalDeadLetters.add_rows", "            require(still_held)\n", ""),
    ),
    noticed(
        "the lease is asked for once more before rows are set aside",
        "harvest.runtime.dead_letters",
        "unit/harvest/runtime/test_dead_letters.py::test_who_loses_the_lease_on_the_way_adds_none_either",
        ("DeadLetterWriter.add", ", action.term, still_held)", ", action.term)"),
    ),
    noticed(
        "in wal mode, too, the lease is asked for once more before rows are set aside",
        "harvest.runtime.dead_letters",
        "unit/harvest/runtime/test_dead_letters.py::test_who_loses_the_lease_on_the_way_adds_none_either",
        ("DeadLetterWriter.add_rows", "(action.rows, still_held)", "(action.rows)"),
    ),
    noticed(
        "a damaged row is set aside without what is lost",
        f"{PG}.dead_letters",
        "integration/harvest/databases/test_unreadable_rows.py::test_a_damaged_row_is_set_aside_with_what_is_left_of_it[PostgresMarkStore]",
        ("PostgresDeadLetters.add", "self._lost_columns(rows[0].id)", "['create_time']"),
    ),
    noticed(
        "a damaged row loses nothing of others that are set aside with it",
        f"{PG}.dead_letters",
        "integration/harvest/databases/test_unreadable_rows.py::test_a_damaged_row_is_set_aside_with_what_is_left_of_it[PostgresRangeStore]",
        ("PostgresDeadLetters.add", "if len(rows) > 1:", "if False:"),
    ),
    noticed(
        "a damaged row is not put back",
        f"{PG}.dead_letters",
        "integration/harvest/databases/test_unreadable_rows.py::test_a_damaged_row_is_set_aside_with_what_is_left_of_it[PostgresRangeStore]",
        ("PostgresDeadLetters.retry", 'f"%{_LOST}%"', "'no such error'"),
    ),
    noticed(
        "in another session dead letters are looked for again",
        f"{PG}.dead_letters",
        "integration/harvest/databases/test_postgres_sessions.py::test_dead_letters_are_looked_for_again_in_another_session",
        ("PostgresDeadLetters._forget", "self._there = False", "pass"),
    ),
    noticed(
        "whether there are dead letters is asked in the session that is there",
        f"{PG}.dead_letters",
        "integration/harvest/databases/test_postgres_sessions.py::test_dead_letters_are_looked_for_again_in_another_session",
        ("PostgresDeadLetters._exists", "self._connected()", "pass"),
    ),
    noticed(
        "dead letters are moved in one transaction",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_a_move_that_fails_leaves_every_row_where_it_was[postgres]",
        (
            "PostgresDeadLetters._transaction",
            "        with super()._transaction():\n"
            "            self._execute(self._format(_LOCK))\n"
            "            yield",
            "        with super()._transaction():\n"
            "            self._execute(self._format(_LOCK))\n"
            "        yield",
        ),
    ),
    noticed(
        "a position that is refused leaves no walsender behind",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_a_position_that_is_refused_leaves_no_session_behind[open-1]",
        (
            "PostgresWalSource.open",
            "        except BaseException:\n            connection.close()\n            raise\n",
            "        except BaseException:\n            raise\n",
        ),
    ),
    noticed(
        "a standby that cannot be read is not shown",
        f"{PG}.wal",
        "unit/harvest/databases/test_postgres_connections.py::test_a_standby_that_cannot_be_read_is_named_and_not_shown",
        ("_parsed_standby", "except psycopg.ProgrammingError:", "except KeyError:"),
    ),
    noticed(
        "a slot that is of no use is dropped",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_a_slot_whose_making_is_broken_off_is_not_there",
        ("PostgresWalSource.new_slot", "                self.slot.drop()\n", ""),
    ),
    noticed(
        "the first slot appears when the table was looked at",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_a_first_slot_appears_when_the_table_was_looked_at",
        (
            "PostgresWalSource._make_first_slot",
            "create_slot(temporary, temporary=True)",
            "create_slot(temporary := name)",
        ),
        (
            "PostgresWalSource._make_first_slot",
            "replication.keep_slot(temporary, name)",
            "pass",
        ),
    ),
    noticed(
        "rows from before the first slot are a reason to make none",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_rows_from_before_the_slot_are_a_reason_to_make_none",
        ("PostgresWalSource._refuse_rows", "if rows:", "if False:"),
    ),
    noticed(
        "replicas keep the first slot, too",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_the_first_slot_is_kept_on_replicas",
        ("PostgresWalSource._fails_over", ">= 170000", ">= 990000"),
    ),
    noticed(
        "who leaves wal mode leaves no slot behind",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_who_leaves_wal_mode_leaves_no_slot_behind",
        (
            "PostgresWalSource.leaving",
            "create_slot(name, temporary=True)",
            "create_slot(name, temporary=False)",
        ),
    ),
    noticed(
        "the slot's session is closed with the source",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_sessions.py::test_what_is_closed_has_no_session_left",
        ("PostgresWalSource.close", "        self.slot.close()\n", ""),
    ),
    noticed(
        "a stream's session ends with the stream",
        f"{PG}.replication",
        "integration/harvest/databases/test_postgres_sessions.py::test_what_is_closed_has_no_session_left",
        ("PostgresWalStream.close", "        self._pg.finish()\n", ""),
    ),
    noticed(
        "rows are counted above an id, without it",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_rows_are_counted_above_an_id",
        ("PostgresWalSource.count_rows", "WHERE id > {a}", "WHERE id >= {a}"),
    ),
    noticed(
        "in another session the sequence is looked for again",
        f"{PG}.range",
        "contract/test_range_store.py::test_whatever_is_asked_first_of_a_closed_store_connects_again[postgres]",
        (
            "PostgresRangeStore._looked_up",
            "self._connected()  # first: another session may find another table and sequence",
            "pass",
        ),
    ),
    noticed(
        "a sequence may be made anew between two sessions",
        f"{PG}.range",
        "integration/harvest/databases/test_postgres_sessions.py::test_a_sequence_that_was_made_anew_meanwhile_is_the_one_that_is_asked",
        ("PostgresRangeStore._forget", "self._parts = None", "pass"),
        ("PostgresRangeStore._forget", "self._sequence = None", "pass"),
    ),
    noticed(
        "positions in PostgreSQL are rewritten whole or not at all",
        f"{PG}.range",
        "contract/test_range_store.py::test_a_rewrite_that_does_not_end_changes_nothing[postgres]",
        ("PostgresRangeStore.rewrite", "with self._transaction():", "if True:"),
    ),
    noticed(
        "an outage of the primary ends, with two databases",
        f"{PG}.two_databases",
        "contract/test_range_store.py::"
        "test_whatever_is_asked_first_of_a_closed_store_connects_again[two databases]",
        (
            "PostgresIds._looked_up",
            "self._connected()  # first: another session may find another table and sequence",
            "pass",
        ),
    ),
    noticed(
        "what the server is told is sent",
        f"{PG}.replication",
        "unit/harvest/databases/test_replication.py::test_what_is_told_is_sent_at_once_and_at_the_end_in_full",
        ("PostgresWalStream._tell", "            self._pg.flush()\n", ""),
    ),
    noticed(
        "the last that the server is told waits for the socket",
        f"{PG}.replication",
        "unit/harvest/databases/test_replication.py::test_what_is_told_is_sent_at_once_and_at_the_end_in_full",
        ("PostgresWalStream.close", "                self._pg.nonblocking = 0\n", ""),
    ),
    noticed(
        "a server that has asked is answered, though more came behind",
        f"{PG}.replication",
        "unit/harvest/databases/test_replication.py::test_a_server_that_has_asked_is_answered_though_more_came_behind",
        ("PostgresWalStream._read", "asked = asked or bool(data[17])", "asked = bool(data[17])"),
    ),
    noticed(
        "what the server says of what came is not what is published",
        f"{PG}.replication",
        "unit/harvest/databases/test_replication.py::test_a_server_that_has_asked_is_answered_though_more_came_behind",
        (
            "PostgresWalStream._tell",
            '_status(b"r", received, lsn, lsn, now, asks)',
            '_status(b"r", received, received, lsn, now, asks)',
        ),
    ),
    noticed(
        "only a slot in use is waited for",
        f"{PG}.replication",
        "unit/harvest/databases/test_replication.py::test_only_a_slot_in_use_is_waited_for",
        ("ReplicationConnection.start", "SlotInUse if in_use else StoreUnavailable", "SlotInUse"),
    ),
    noticed(
        "a character that Unicode has not makes a text unreadable, too",
        f"{PG}.replication",
        "unit/harvest/databases/test_replication.py::test_a_stream_that_ends_says_why",
        ("", '{b"22021", b"22P05"}', '{b"22021"}'),
    ),
    noticed(
        "a replication connection that is refused is ended",
        f"{PG}.replication",
        "unit/harvest/databases/test_replication.py::test_a_connection_that_is_refused_is_ended",
        ("ReplicationConnection.__init__", "            self._pg.finish()\n", ""),
    ),
    noticed(
        "a mark is late by a clock that counts sleep",
        f"{DB}.lease_clock",
        "unit/harvest/databases/test_lease_clock.py::test_it_counts_the_time_that_the_machine_sleeps",
        ("boottime_s", "boottime_ns() / 1e9", '__import__("time").monotonic()'),
    ),
    noticed(
        "a slow answer about MariaDB's clock gives no more time",
        f"{MY}.mark",
        "contract/test_mark_store.py::test_a_slow_answer_about_the_clock_gives_no_more_time[mariadb]",
        (
            "MysqlMarkStore._clock_ahead_s",
            "            ((database_s,),) = self._execute(_CLOCK)\n"
            "            self._clock_asked_s = boottime_s()\n",
            "            self._clock_asked_s = boottime_s()\n"
            "            ((database_s,),) = self._execute(_CLOCK)\n",
        ),
    ),
    noticed(
        "rows that somebody else has taken over are not returned",
        f"{MY}.mark",
        "integration/harvest/databases/test_mariadb.py::test_rows_that_somebody_else_takes_over_meanwhile_are_not_returned",
        (
            "",
            "WHERE {within} AND leader_id = %s ORDER BY id",
            "WHERE {within} AND leader_id >= %s ORDER BY id",
        ),
    ),
    noticed(
        "a rewrite of positions in MariaDB that does not end is undone",
        f"{MY}.range",
        "contract/test_range_store.py::test_a_rewrite_that_does_not_end_changes_nothing[mariadb]",
        ("MysqlRangeStore.rewrite", "self.close()  # which rolls back", "pass"),
    ),
    noticed(
        "a deadlock undoes all of a rewrite",
        f"{MY}.range",
        "unit/harvest/databases/test_mysql_range.py::test_no_part_of_a_rewrite_is_tried_again_by_itself",
        (
            "MysqlRangeStore.rewrite",
            "self._execute(self._sql(self._save), self._values(position))",
            "self.save(position)",
        ),
    ),
    noticed(
        "a lookup in MariaDB sees one moment",
        f"{MY}.range",
        "integration/harvest/databases/test_mariadb.py::test_a_lookup_sees_one_moment_in_all_its_parts",
        ("MysqlRangeStore._found", "        self._execute(_BEGIN)\n", ""),
    ),
    noticed(
        "what was looked up is not what is looked up next",
        f"{MY}.range",
        "integration/harvest/databases/test_mariadb.py::test_a_lookup_sees_one_moment_in_all_its_parts",
        (
            "MysqlRangeStore._found",
            '                self._execute("COMMIT")\n',
            "                pass\n",
        ),
    ),
    noticed(
        "a file that was replaced is opened anew",
        "harvest.databases.sqlite.table",
        "unit/harvest/databases/test_sqlite_mark.py::test_a_file_that_was_replaced_is_opened_anew",
        ("SqliteTable._connected", "if self._file() != self._opened:", "if False:"),
    ),
    noticed(
        "a file that was replaced is let go",
        "harvest.databases.sqlite.table",
        "unit/harvest/databases/test_sqlite_mark.py::test_a_file_that_was_replaced_is_opened_anew",
        ("SqliteTable._connected", "                self.close()\n", ""),
    ),
    noticed(
        "a move in MariaDB that fails is undone",
        f"{MY}.dead_letters",
        "contract/test_dead_letters.py::test_a_move_that_fails_leaves_every_row_where_it_was[mariadb]",
        (
            "MysqlDeadLetters._moving",
            "                connection.rollback()\n",
            "                pass\n",
        ),
    ),
    noticed(
        "dead letters in MariaDB are moved in one transaction",
        f"{MY}.dead_letters",
        "contract/test_dead_letters.py::test_a_move_that_fails_leaves_every_row_where_it_was[mariadb]",
        ("MysqlDeadLetters._moving", '            self._execute("START TRANSACTION")\n', ""),
    ),
    noticed(
        "who has moved rows in MariaDB lets go of the lock",
        f"{MY}.dead_letters",
        "contract/test_dead_letters.py::test_who_has_moved_rows_is_in_nobodys_way[mariadb]",
        (
            "MysqlDeadLetters._moving",
            'cursor.execute("SELECT RELEASE_LOCK(%s)", (self._lock,))',
            'cursor.execute("SELECT IS_FREE_LOCK(%s)", (self._lock,))',
        ),
    ),
    noticed(
        "rows that are being set aside in MariaDB are locked",
        f"{MY}.dead_letters",
        "integration/harvest/databases/test_mariadb.py::test_rows_that_are_being_set_aside_are_locked",
        ("MysqlDeadLetters", '_for_update: ClassVar[str] = " FOR UPDATE"', "pass"),
    ),
    noticed(
        "a file that is no database is let go of",
        "harvest.databases.sqlite.table",
        "integration/harvest/databases/test_sqlite.py::test_a_file_that_is_no_database_is_not_kept_open",
        (
            "SqliteTable._connected",
            "                connection.close()\n",
            "                pass\n",
        ),
    ),
    noticed(
        "a lock of MariaDB is waited for as long as elsewhere",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_a_lock_is_waited_for_as_long_as_elsewhere",
        ("", " innodb_lock_wait_timeout = 10,", ""),
    ),
    noticed(
        "what a server of MariaDB is set to changes nothing",
        f"{MY}.table",
        "integration/harvest/databases/test_mariadb.py::test_what_a_server_is_set_to_changes_nothing",
        ("", "sql_safe_updates = 0, ", ""),
    ),
    noticed(
        "MySQL tells how many ids are drawn now",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_mysql_tells_how_many_ids_are_drawn_now",
        (
            "MysqlTable._set_up",
            'cursor.execute("SET SESSION information_schema_stats_expiry = 0")',
            "pass",
        ),
    ),
    noticed(
        "a table of MariaDB that was dropped is looked for again",
        f"{MY}.table",
        "contract/test_dead_letters.py::test_a_table_of_them_that_was_dropped_is_made_again[mariadb]",
        ("MysqlTable._errors", "                self._forget()\n", "                pass\n"),
    ),
    noticed(
        "another server of MariaDB has another clock",
        f"{MY}.table",
        "contract/test_mark_store.py::test_another_server_is_asked_for_its_clock[mariadb]",
        ("MysqlTable._connected", "        self._forget()\n", ""),
    ),
    noticed(
        "what is retried without a table in PostgreSQL goes with what waits behind it",
        f"{DB}.portable_dead_letters",
        "contract/test_dead_letters.py::test_what_is_retried_is_as_it_was_with_what_waits_behind_it[sqlite]",
        (
            "PortableDeadLetters.retry",
            "                elif row.key in taken:\n                    chosen.append(row.id)\n",
            "",
        ),
    ),
    noticed(
        "rows that are set aside leave the outbox in the same transaction",
        f"{DB}.portable_dead_letters",
        "contract/test_dead_letters.py::test_a_move_that_fails_leaves_every_row_where_it_was[sqlite]",
        (
            "PortableDeadLetters.add",
            "            if term is not None:\n                self._run_each(_DELETE, moved)\n",
            "        if term is not None:\n            self._run_each(_DELETE, moved)\n",
        ),
    ),
    noticed(
        "many rows are put back in pieces that a statement bears",
        f"{DB}.portable_dead_letters",
        "contract/test_dead_letters.py::test_many_rows_at_once[sqlite]",
        ("_chunks", "yield ids[start : start + _CHUNK]", "yield ids[start : start + _CHUNK - 1]"),
    ),
    noticed(
        "a mark in SQLite that had to wait for a writer may be too late",
        f"{LITE}.mark",
        "integration/harvest/databases/test_sqlite.py::test_a_mark_that_had_to_wait_for_a_writer_may_be_too_late",
        (
            "SqliteMarkStore.mark",
            "        with self._writing() as connection, self._errors():\n"
            "            if boottime_s() >= until_s:  "
            "# the database's clock is this machine's\n"
            "                return []\n",
            "        if boottime_s() >= until_s:\n"
            "            return []\n"
            "        with self._writing() as connection, self._errors():\n",
        ),
    ),
    noticed(
        "rows of SQLite are in the order of their ids",
        f"{LITE}.mark",
        "integration/harvest/databases/test_sqlite.py::test_rows_that_come_in_another_order_are_sorted",
        ("SqliteMarkStore.mark", "found.sort(key=_id)", "pass"),
    ),
    noticed(
        "positions in SQLite are rewritten whole or not at all",
        f"{LITE}.range",
        "contract/test_range_store.py::test_a_rewrite_that_does_not_end_changes_nothing[sqlite]",
        ("SqliteRangeStore.rewrite", "with self._writing():", "if True:"),
    ),
    noticed(
        "ids in SQLite are known in whatever case the table was created",
        f"{LITE}.range",
        "integration/harvest/databases/test_sqlite.py::test_ids_are_known_in_whatever_case_the_table_was_created",
        ("", "name = ? COLLATE NOCASE", "name = ?"),
    ),
    noticed(
        "a connection with SQLite is of no one thread",
        f"{LITE}.table",
        "integration/harvest/databases/test_sqlite.py::test_a_connection_is_made_used_and_closed_by_different_threads",
        ("SqliteTable._connected", "check_same_thread=False", "check_same_thread=True"),
    ),
    noticed(
        "a table of SQLite that was dropped is looked for again",
        f"{LITE}.table",
        "contract/test_dead_letters.py::test_a_table_of_them_that_was_dropped_is_made_again[sqlite]",
        ("SqliteTable._errors", "                self._forget()\n", "                pass\n"),
    ),
    noticed(
        "a partition in a schema with a dot in its name is read",
        f"{PG}.partitions",
        "integration/harvest/maintenance/test_archive.py::test_names_with_dots_are_names",
        (
            "identifier_of",
            "TableName.parse(partition.name).parts",
            'partition.name.split(".", 1)',
        ),
    ),
    noticed(
        "a row that cannot be read keeps no other partition from the archive",
        f"{PG}.partitions",
        "integration/harvest/maintenance/test_archive.py::test_a_row_that_cannot_be_read_keeps_its_partition_and_no_other",
        ("PostgresPartitions.rows", "raise ArchiveError(text)", "raise StoreUnavailable(text)"),
    ),
    noticed(
        "partitions are made ahead of a sequence that the column does not own",
        f"{PG}.partitions",
        "integration/harvest/databases/test_postgres_range.py::test_partitions_are_made_ahead_whoever_owns_the_sequence",
        (
            "",
            "WHERE seqrelid IN (",
            "WHERE seqrelid = pg_get_serial_sequence(%(table)s, 'id')::regclass AND seqrelid IN (",
        ),
    ),
    noticed(
        "a lock of a partition that is not had is not waited for",
        f"{PG}.partitions",
        "integration/harvest/databases/test_postgres_range.py::test_a_transaction_in_the_way_is_not_waited_for",
        ("PostgresPartitions._managing", "self._run(sql.SQL(_LOCK_TIMEOUT))", "pass"),
    ),
    noticed(
        "row-level security is told",
        f"{PG}.table",
        "integration/harvest/databases/test_postgres_mark.py::test_policies_that_may_hide_rows_are_told",
        ("PostgresTable._check_row_security", "if not active:", "if active:"),
    ),
    noticed(
        "a table of MySQL is found by the name of its file",
        f"{MY}.sources",
        "integration/harvest/databases/test_mariadb.py::test_ids_that_begin_anew_have_another_source",
        ("MysqlSources._table_number", "map(_file_name, names)", "names"),
    ),
    noticed(
        "a connection with MySQL that cannot be set up is ended",
        f"{MY}.table",
        "integration/harvest/databases/test_mariadb.py::test_a_connection_that_cannot_be_set_up_is_ended",
        (
            "MysqlTable._connected",
            "                    connection.close()\n",
            "                    pass\n",
        ),
    ),
    noticed(
        "what fits into no message stays among the dead letters",
        f"{PG}.wal_dead_letters",
        "integration/harvest/databases/test_postgres_wal_dead_letters.py::test_what_fits_into_no_message_stays",
        ("", ")) < 65536", ")) <= 65536"),
    ),
    noticed(
        "rows of the table are published with their further columns when a slot is made",
        f"{RUN}.slot_changes",
        "integration/harvest/runtime/test_wal_slots.py::test_rows_of_the_table_are_published_with_all_that_a_harvester_publishes",
        (
            "_pages",
            "with_extra(with_headers(found), source.options.layout.headers)",
            "with_headers(found)",
        ),
    ),
    noticed(
        "a time that the log has as text is read in whatever style the database writes times",
        f"{PG}.replication",
        "integration/harvest/databases/test_extra_columns.py::test_records_have_them[wal]",
        ("ReplicationConnection.start", "; SET datestyle = ISO", ""),
    ),
    noticed(
        "PostgreSQL's timeline is that of its log",
        f"{PG}.sources",
        "integration/harvest/databases/test_postgres_sources.py::test_it_is_what_the_server_says",
        (
            "",
            "left(pg_walfile_name(pg_current_wal_flush_lsn()), 8)",
            "left(pg_walfile_name(pg_current_wal_flush_lsn()), 7)",
        ),
    ),
    noticed(
        "who was not promoted does not say where",
        f"{PG}.sources",
        "integration/harvest/databases/test_postgres_sources.py::test_it_is_what_the_server_says",
        (
            "PostgresSources.promoted_at",
            "return int(found[0][0]) if found else None",
            "return int(found[0][0]) if found else 0",
        ),
    ),
    noticed(
        "where a crash was recovered from is not where a replica was promoted",
        f"{PG}.sources",
        "integration/harvest/databases/test_postgres_sources.py::test_who_was_promoted_knows_up_to_where_it_has_all",
        ("", "WHERE pg_last_xact_replay_timestamp() IS NOT NULL\n", ""),
    ),
    noticed(
        "a replica that was promoted says up to where it has all",
        f"{PG}.sources",
        "integration/harvest/databases/test_postgres_sources.py::test_who_was_promoted_knows_up_to_where_it_has_all",
        ("", "SELECT (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint", "SELECT NULL"),
    ),
    noticed(
        "a visit waits for the disk in PostgreSQL",
        f"{PG}.sources",
        "integration/harvest/databases/test_postgres_sources.py::test_a_visit_is_on_the_disk_where_commits_need_not_be",
        ("PostgresSources.visit", "            self._execute(sql.SQL(_DURABLE))\n", ""),
    ),
    noticed(
        "what is published again goes where the other topic has it",
        f"{RUN}.replay",
        "unit/harvest/runtime/test_replay.py::test_a_row_keeps_its_time_and_not_its_partition",
        ("_publish", 'placed.pop("partition", None)', 'placed.pop("", None)'),
    ),
    noticed(
        "the file of a table that was made anew since is not taken for this one's",
        "harvest.maintenance.archive",
        "unit/harvest/maintenance/test_archive.py::test_the_file_of_a_table_that_was_made_anew_since_is_not_taken_for_this_ones",
        ("ParquetArchive.keep", "is_new or _has_rows(path, store.rows(partition, _BATCH))", "True"),
    ),
    noticed(
        "a file of the same ids may have other rows",
        "harvest.maintenance.archive",
        "unit/harvest/maintenance/test_archive.py::test_the_file_of_a_table_that_was_made_anew_since_is_not_taken_for_this_ones",
        ("_has_rows", "row == other for", "row['id'] == other['id'] for"),
    ),
    noticed(
        "an archived file is on the disk before it has its name",
        "harvest.maintenance.archive",
        "unit/harvest/maintenance/test_archive.py::test_a_file_has_its_name_when_it_is_on_the_disk_and_then_the_name_is",
        ("_write_parquet", "        os.fsync(file.fileno())\n", ""),
    ),
    noticed(
        "the name of an archived file is on the disk",
        "harvest.maintenance.archive",
        "unit/harvest/maintenance/test_archive.py::test_a_file_has_its_name_when_it_is_on_the_disk_and_then_the_name_is",
        ("ParquetArchive._write", "            _sync(self.folder)\n", ""),
    ),
    noticed(
        "a file of an archive with none of the ids is not read",
        "harvest.maintenance.archive",
        "unit/harvest/maintenance/test_archive.py::test_both_ends_of_what_is_read_are_in_it_and_other_files_are_left_alone",
        ("ParquetArchive.read", "or file.low > high", "or file.low > high + 1"),
    ),
    noticed(
        "of a large file of an archive only what may have the ids is read",
        "harvest.maintenance.archive",
        "unit/harvest/maintenance/test_archive.py::test_of_a_large_file_only_what_may_have_these_ids_is_read",
        ("_row_groups", "ids.max >= low", "True"),
    ),
    noticed(
        "a file that another manager writes now is left alone",
        "harvest.maintenance.archive",
        "unit/harvest/maintenance/test_archive.py::test_what_a_manager_left_behind_goes_and_what_one_writes_now_stays",
        ("ParquetArchive._sweep", "if time.time() - draft.stat().st_mtime > _STALE_S:", "if True:"),
    ),
    noticed(
        "partitions of PostgreSQL that are none of ids are left alone",
        f"{PG}.partitions",
        "integration/harvest/databases/test_postgres_range.py::test_partitions_of_another_column_are_left_alone",
        ("", "= 'RANGE (id)', false)", "LIKE 'RANGE (%%)', false)"),
    ),
    noticed(
        "partitions of MySQL that are none of ids are left alone",
        f"{MY}.partitions",
        "integration/harvest/databases/test_mariadb_partitions.py::test_partitions_of_another_column_are_left_alone",
        ("", "TRIM('`' FROM partition_expression) = 'id'", "partition_expression IS NOT NULL"),
    ),
    noticed(
        "which destinations have a row is noted anew each time",
        f"{PG}.attempts",
        "integration/harvest/databases/test_attempts.py::test_what_is_noted_last_of_a_row_is_what_is_known",
        ("", "  delivered = excluded.delivered, fingerprint", "  fingerprint"),
    ),
    noticed(
        "who stops looking for topics lets go of the database",
        f"{RUN}.waiting_topics",
        "unit/harvest/runtime/test_waiting_topics.py::test_who_stops_looking_lets_go_of_the_database",
        ("WaitingTopics.close", "        self._dead_letters.close()\n", ""),
    ),
    noticed(
        "a JetStream that has failed itself is unavailable",
        "harvest.sinks.nats",
        "unit/harvest/sinks/test_nats.py::test_who_is_to_blame",
        ("NatsSink.send", "code >= _UNAVAILABLE", "code > _UNAVAILABLE"),
    ),
    noticed(
        "the name of a table holds nothing that drivers read",
        "harvest.core.table_name",
        "unit/harvest/core/test_names_and_positions.py::test_a_name_of_a_table_has_63_bytes_at_most_and_no_nul",
        ("TableName.parse", '"%" in part or ', ""),
    ),
    noticed(
        "a claim that is let go of is waited for",
        f"{RUN}.checkpoints",
        "unit/harvest/runtime/test_checkpoints.py::test_a_claim_that_is_let_go_of_in_time_is_had",
        ("alone", "if time.monotonic() < until_s:", "if time.monotonic() > until_s:"),
    ),
    noticed(
        "who reads a checkpoint lets go of the brokers",
        f"{RUN}.checkpoints",
        "unit/harvest/runtime/test_checkpoints.py::test_who_reads_one_lets_go_of_the_brokers",
        ("Checkpoints._read", "            consumer.close()\n", "            pass\n"),
    ),
    noticed(
        "who could not read what is known of a database asks anew for the coordinator",
        "harvest.sinks.kafka.source_record",
        "unit/harvest/sinks/test_source_record.py::test_who_could_not_read_it_asks_any_broker_for_the_coordinator",
        ("SourceRecord.load", "            self._consumer = None", "            pass"),
    ),
    noticed(
        "what no topic can be named is not tried again",
        "harvest.sinks.kafka.destination",
        "unit/harvest/sinks/test_kafka_destination.py::test_what_no_topic_can_be_named_is_not_tried_again",
        ("KafkaDestination.send", "if not is_topic(topic):", "if not topic:"),
    ),
    noticed(
        "a producer of a destination that has given up is replaced",
        "harvest.sinks.kafka.destination",
        "unit/harvest/sinks/test_kafka_destination.py::test_a_producer_that_has_given_up_is_replaced",
        ("KafkaDestination._produce", "            self._discard(live)\n", "            pass\n"),
    ),
    noticed(
        "a right that is missing on a topic leaves the rest of the destination alone",
        "harvest.sinks.kafka.destination",
        "unit/harvest/sinks/test_kafka_destination.py::test_who_is_to_blame",
        ("", "    KafkaError.TOPIC_AUTHORIZATION_FAILED,\n", ""),
    ),
    noticed(
        "a record is given up when its destination says so",
        "harvest.sinks.kafka.destination",
        "unit/harvest/sinks/test_kafka_destination.py::test_a_record_is_given_up_when_the_destination_is",
        ("KafkaDestination.__init__", '        given.pop("message.timeout.ms", None)\n', ""),
    ),
    noticed(
        "batches are as small as the largest of their records",
        "harvest.sinks.kafka.refusals",
        "unit/harvest/sinks/test_kafka_destination.py::test_batches_that_are_too_large_become_as_small_as_their_largest_record",
        ("RowErrors.refused", "max(1, *suspects.values())", "max(1, min(suspects.values()))"),
    ),
    noticed(
        "a harvester serves its metrics",
        f"{RUN}.status_server",
        "unit/harvest/runtime/test_status_server.py::test_metrics_are_those_of_the_monitor_where_the_extra_is_installed",
        ("status_server", "scrape = lambda: scrape_monitor(monitor)", "del scrape_monitor"),
    ),
    noticed(
        "a row of a topic that is waited for is not to blame",
        "harvest.sinks.kafka.refusals",
        "unit/harvest/sinks/test_kafka_destination.py::test_a_row_of_a_topic_that_is_waited_for_is_not_to_blame",
        (
            "RowErrors.refused",
            "_LASTING - _UNKNOWN if self._wait_for_topics else _LASTING",
            "_LASTING",
        ),
    ),
    noticed(
        "a topic that is missing is looked for again",
        "harvest.sinks.kafka.refusals",
        "unit/harvest/sinks/test_kafka_destination.py::test_a_topic_that_is_missing_is_looked_for_again",
        ("TopicLook.look", "self._seen |= new - bad.keys()", "self._seen |= new"),
    ),
    noticed(
        "topics are told from others by the right to write",
        "harvest.sinks.kafka.refusals",
        "unit/harvest/sinks/test_kafka_destination.py::test_the_topics_that_may_not_be_written_to_are_asked_for",
        ("unwritable_topics", "AclOperation.WRITE not in", "AclOperation.WRITE in"),
    ),
    noticed(
        "a column of any name keeps no row from being set aside in PostgreSQL",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_a_column_of_any_name_keeps_no_row_from_being_set_aside[postgres]",
        ("PostgresDeadLetters._columns_of", ' and "%" not in name', ""),
    ),
    noticed(
        "a column of any name keeps no row from being set aside in SQLite",
        f"{DB}.portable_dead_letters",
        "contract/test_dead_letters.py::test_a_column_of_any_name_keeps_no_row_from_being_set_aside[sqlite]",
        ("PortableDeadLetters._ours_of", ' and "%" not in name', ""),
    ),
    noticed(
        "rows that others have marked since are not handed back in SQLite",
        f"{LITE}.mark",
        "contract/test_mark_store.py::test_reset_leaves_what_others_have_marked_since[sqlite]",
        (
            "",
            "IN (SELECT value FROM json_each(?)) AND leader_id = ?\n",
            "IN (SELECT value FROM json_each(?)) AND ? IS NOT NULL\n",
        ),
    ),
    noticed(
        "rows that others have marked since are not handed back in PostgreSQL",
        f"{PG}.mark",
        "contract/test_mark_store.py::test_reset_leaves_what_others_have_marked_since[postgres]",
        (
            "",
            "WHERE id = ANY (%s::bigint[]) AND leader_id = %s\n",
            "WHERE id = ANY (%s::bigint[]) AND %s::uuid IS NOT NULL\n",
        ),
    ),
    noticed(
        "rows are handed back under the tag of their mark",
        f"{CORE}.mark",
        "unit/harvest/core/test_mark_actions.py::test_a_stop_while_rows_are_set_aside_hands_back_the_others",
        ("MarkScheduler._reset", "self._term.tag(number)", "self._term.tag(number + 1)"),
    ),
    noticed(
        "nothing is deleted from a database whose log ends before what is published",
        f"{PG}.wal",
        "unit/harvest/databases/test_wal_purge.py::test_of_a_database_that_lacks_what_is_published_nothing_is_deleted",
        ("PostgresWalSource.purge", "check_log_end(end, already)", "pass"),
    ),
    noticed(
        "a server that is gone while its answer is waited for is noticed",
        f"{PG}.table",
        "unit/harvest/databases/test_postgres_connections.py::test_a_server_that_is_gone_while_its_answer_is_waited_for_is_noticed",
        ("", '"keepalives_idle": "10"', '"keepalives_idle": "0"'),
    ),
    noticed(
        "a bad row under the id of a dead letter is not lost in SQLite",
        f"{DB}.portable_dead_letters",
        "contract/test_dead_letters.py::test_a_row_that_came_under_the_id_of_one_that_is_aside_is_lost_to_nobody[sqlite]",
        ("PortableDeadLetters.add", "if is_another:", "if False:"),
    ),
    noticed(
        "a bad row under the id of a dead letter is not lost in PostgreSQL",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_a_row_that_came_under_the_id_of_one_that_is_aside_is_lost_to_nobody[postgres]",
        ("PostgresDeadLetters._add", "raise id_is_taken(id, self.name)", "pass"),
    ),
    noticed(
        "topics that are missing are waited for together",
        "harvest.sinks.kafka.refusals",
        "unit/harvest/sinks/test_kafka_destination.py::test_many_topics_that_are_missing_are_waited_for_together",
        ("missing_topics", "is_last = time.monotonic() > until_s", "is_last = True"),
    ),
    noticed(
        "a row that has the id of a dead letter stays in SQLite when that is retried",
        f"{DB}.portable_dead_letters",
        "contract/test_dead_letters.py::test_range_mode_takes_no_row_for_another_that_had_its_id[sqlite]",
        ("PortableDeadLetters._delete_originals", "if row_id not in others", ""),
    ),
    noticed(
        "a row that has the id of a dead letter stays in PostgreSQL when that is dropped",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_a_row_that_is_dropped_takes_no_other_with_it_that_has_its_id[postgres]",
        ("", "AND t.create_time = s.create_time AND", "AND"),
    ),
    noticed(
        "the ids of stashed rows are told whatever rows a connection makes",
        "harvest.outbox.connection_adapters",
        "integration/harvest/databases/test_two_databases.py::test_a_connection_may_make_rows_of_any_kind",
        ("Adapter.rows", "cursor(row_factory=lambda _: tuple)", "cursor()"),
    ),
    noticed(
        "who could listen begins anew with short pauses",
        f"{PG}.notify",
        "unit/harvest/databases/test_notify.py::test_who_was_connected_begins_anew_with_short_pauses",
        (
            "PostgresListener._run",
            "                    retry_s = _FIRST_RETRY_S\n                    if not",
            "                    if not",
        ),
    ),
    noticed(
        "a database that answers is reached though its table is missing",
        f"{RUN}.harvester",
        "unit/harvest/runtime/test_harvester.py::test_a_database_that_answers_is_reached_whatever_it_says",
        ("Harvester._reaches_database", "pass  # whoever", "return False  # whoever"),
    ),
    noticed(
        "who could not begin to lead does not try again at once",
        f"{RUN}.harvester",
        "unit/harvest/runtime/test_harvester.py::test_who_could_not_begin_to_lead_does_not_try_again_at_once",
        ("Harvester._lead", "led.lease.wait_lost(self._candidacy.interval_s)", "pass"),
    ),
    noticed(
        "mark mode forgets what a checkpoint of earlier days names",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_mark_mode_begins_with_a_checkpoint_that_names_no_row",
        ("_begin", "Checkpoints(new).write_mark(names_nothing)", "pass"),
    ),
    noticed(
        "a slot that is kept from a primary is on a replica",
        f"{PG}.slot",
        "unit/harvest/databases/test_slot.py::test_it_is_a_warning_when_no_replica_keeps_it",
        ("PostgresSlot.findings", "not (slot.failover or slot.synced)", "not slot.failover"),
    ),
    noticed(
        "a column of MariaDB is the same in whatever case it was written",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_a_column_is_the_same_in_whatever_case_it_was_written",
        ("MysqlTable._types", "name.decode().lower(): (", "name.decode(): ("),
    ),
    noticed(
        "what Kafka hears of the database at the end arrives",
        f"{RUN}.source_guard",
        "unit/harvest/runtime/test_source_guard.py::test_who_leads_to_its_end_tells_what_it_saw_last",
        ("SourceGuard.close", "self._save(self._source, wait=True)", "self._save(self._source)"),
    ),
    noticed(
        "Kafka forgets no database of an outbox that is idle",
        f"{RUN}.source_guard",
        "unit/harvest/runtime/test_source_guard.py::test_kafka_forgets_no_database_of_an_outbox_that_is_idle",
        ("SourceGuard.look", "self._busy or now_s > self._saved_s + _RENEW_S", "self._busy"),
    ),
    noticed(
        "a purge that failed is not tried again at once",
        f"{RUN}.marked_rows",
        "unit/harvest/runtime/test_marked_rows.py::test_a_purge_is_made_after_the_delay_that_it_has",
        ("MarkedRows.purge", "        leadership.pause(action.delay_ms)\n", ""),
    ),
    noticed(
        "a checkpoint of wal mode that was renewed is not old",
        f"{RUN}.wal_leader",
        "unit/harvest/runtime/test_wal_leader.py::test_a_checkpoint_is_renewed_an_hour_after_the_last",
        ("WalLeader._confirm", "        self._committed_s = time.monotonic()\n", ""),
    ),
    noticed(
        "of a key the first rows are shown, in SQLite",
        f"{DB}.portable_dead_letters",
        "contract/test_dead_letters.py::test_of_a_key_the_first_rows_are_shown[sqlite]",
        (
            "PortableDeadLetters.rows",
            "sorted(self._selected(selection))[:limit]",
            "list(self._selected(selection))[:limit]",
        ),
    ),
    noticed(
        "a column that MariaDB fills keeps no row from being put back",
        f"{MY}.dead_letters",
        "contract/test_dead_letters.py::test_a_column_that_the_database_fills_keeps_no_row_from_being_put_back[mariadb]",
        ("", "  AND COALESCE(generation_expression, '') = '' ORDER BY", "  ORDER BY"),
    ),
    noticed(
        "when a row was tried last is noted",
        f"{PG}.attempts",
        "integration/harvest/databases/test_attempts.py::test_what_is_noted_last_of_a_row_is_what_is_known",
        ("", "  tried_at = excluded.tried_at, gave_up", "  gave_up"),
    ),
    noticed(
        "in another session the notes of failures are looked for again",
        f"{PG}.attempts",
        "integration/harvest/databases/test_attempts.py::test_what_one_session_noted_another_knows_and_forgets",
        (
            "PostgresAttempts._forget",
            "self._there = self._is_current = False",
            "self._there = False",
        ),
    ),
    noticed(
        "bounds in MariaDB begin below ids that may still appear",
        f"{MY}.range",
        "contract/test_range_store.py::test_bounds_begin_below_ids_that_may_still_appear[mariadb]",
        ("MysqlRangeStore.bounds", "Bounds(min(1, lowest), ", "Bounds(lowest, "),
    ),
    noticed(
        "bounds in PostgreSQL begin below ids that may still appear",
        f"{PG}.range",
        "contract/test_range_store.py::test_bounds_begin_below_ids_that_may_still_appear[postgres]",
        ("PostgresRangeStore.bounds", "min(first, lowest)", "lowest"),
    ),
    noticed(
        "the rows of all shards are published again",
        f"{RUN}.replay",
        "unit/harvest/runtime/test_replay.py::test_ids_of_both_ends_are_wanted_and_no_others",
        ("_rows", "if config.shards > 1:", "if not config.shards:"),
    ),
    noticed(
        "a replica of two databases is one of PostgreSQL",
        "harvest.config.model",
        "unit/harvest/config/test_config.py::test_ids_are_drawn_by_postgresql",
        ("ReaperConfig._consistent_primary", ', self.primary.replica or ""):', "):"),
    ),
    noticed(
        "who renews a slot makes a publication that is missing",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_a_publication_is_there_before_the_slot_and_goes_with_it",
        ("renew_slot", "            source.create_publication()\n", ""),
    ),
    noticed(
        "who switches to wal mode makes a publication",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_a_publication_is_there_before_the_slot_and_goes_with_it",
        ("begin_slot", "        source.create_publication()\n", ""),
    ),
    noticed(
        "a publication goes with its slot",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_a_publication_is_there_before_the_slot_and_goes_with_it",
        ("drop_slot", "        source.drop_publication()\n", ""),
    ),
    noticed(
        "nobody writes into a partition of MariaDB that is about to go",
        f"{MY}.partitions",
        "integration/harvest/databases/test_mariadb_partitions.py::test_nobody_writes_between_the_last_look_at_a_partition_and_its_end",
        (
            "MysqlPartitions.drop",
            '            self._execute(f"LOCK TABLES {self._name} WRITE")\n',
            "",
        ),
    ),
    noticed(
        "rows that are found published are counted",
        f"{RUN}.mark_leader",
        "unit/harvest/runtime/test_mark_leader.py::test_rows_that_were_published_already_are_counted",
        ("MarkLeader._clear", "leadership.stats.found_published += found", "pass"),
    ),
    noticed(
        "a standby that ends closes what it had connected",
        f"{RUN}.harvester",
        "unit/harvest/runtime/test_harvester.py::test_a_standby_that_ends_closes_what_it_had_connected",
        ("Harvester._end", "            self._spare.close()", "            pass"),
    ),
    noticed(
        "a checkpoint of mark mode rests on a place in the log",
        f"{RUN}.parts",
        "unit/harvest/runtime/test_parts.py::test_checkpoints_rest_on_a_place_in_the_log_where_there_are_any",
        (
            "make_mark_tools",
            'exact=config.delivery == "transactional"',
            'exact=config.delivery != "transactional"',
        ),
    ),
    noticed(
        "a listener notices a dead network",
        f"{DB}.registry",
        "unit/harvest/databases/test_registry.py::test_a_listener_notices_a_dead_network_as_the_others_do",
        ("_Postgres.listener", "self.mark_store(table).conninfo", "self._conninfo"),
    ),
    noticed(
        "no row of a table overtakes one that is set aside when a slot is renewed",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_nothing_is_changed_while_rows_are_set_aside",
        ("renew_slot", "            refuse_dead_letters(config)\n", "            pass\n"),
    ),
    noticed(
        "wal mode is not left while rows are set aside that only it puts back",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_nothing_is_changed_while_rows_are_set_aside",
        ("leave_slot", "    if count:\n", "    if count < 0:\n"),
    ),
    noticed(
        "who is alone keeps to the heartbeat of the harvesters",
        f"{RUN}.checkpoints",
        "unit/harvest/runtime/test_checkpoints.py::test_a_claim_that_is_let_go_of_in_time_is_had",
        ("alone", "        interval_ms=config.coordination.interval_ms,\n", ""),
    ),
)
