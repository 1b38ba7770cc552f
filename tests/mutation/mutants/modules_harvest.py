"""Bugs in `harvest`, each with its test (see `modules`)."""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed, noticed

__all__ = ["HARVESTERS"]

CLI = "harvest.cli"
CONFIG = "harvest.config"
DB = "harvest.databases"
MY = "harvest.databases.mysql"
PG = "harvest.databases.postgres"
LITE = "harvest.databases.sqlite"
RUN = "harvest.runtime"
HTTP = "harvest.sinks.http"
KAFKA = "harvest.sinks.kafka"

HARVESTERS: tuple[Noticed, ...] = (
    noticed(
        "a broker that was the group's coordinator is not believed",
        "marshal_py.client.committed",
        "unit/harvest/sinks/test_committed_checkpoint.py::test_who_was_the_coordinator_is_not_believed",
        ("newest_committed.ask", "found if seen.metadata == text else None", "found"),
    ),
    noticed(
        "a mark is of one call",
        "marshal_py.client.committed",
        "unit/harvest/sinks/test_committed_checkpoint.py::test_the_mark_of_an_earlier_call_shows_nothing",
        ("newest_committed", 'text = f"{secrets.randbits(64):016x}"', 'text = "mark"'),
    ),
    noticed(
        "a mark that nobody has is committed again",
        "marshal_py.client.committed",
        "unit/harvest/sinks/test_committed_checkpoint.py::test_what_was_not_committed_is_committed_again",
        (
            "newest_committed",
            "    def ask() ->",
            "    consumer.commit(offsets=[marked], asynchronous=True)\n\n    def ask() ->",
        ),
        (
            "newest_committed.ask",
            "consumer.commit(offsets=[marked], asynchronous=True)",
            "pass",
        ),
    ),
    noticed(
        "who does not answer newly is told from who is not there",
        "marshal_py.client.committed",
        "unit/harvest/sinks/test_committed_checkpoint.py::test_one_that_shows_nothing_new_for_long_is_an_error",
        ("ask_again", "if is_last or not still():", "if is_last:"),
    ),
    noticed(
        "a mark is where no checkpoint is, and where a topic is",
        f"{KAFKA}.committed_checkpoint",
        "unit/harvest/sinks/test_committed_checkpoint.py::test_a_mark_is_where_no_checkpoint_is",
        ("_place_of_a_mark", "and partition in found.partitions", ""),
    ),
    noticed(
        "a mark is in the snapshots' first partition, which there always is",
        f"{KAFKA}.committed_checkpoint",
        "unit/harvest/sinks/test_committed_checkpoint.py::test_a_mark_is_where_no_checkpoint_is",
        ("_place_of_a_mark", '(f"{topic}.snapshots", 0)', '(f"{topic}.snapshots", 1)'),
    ),
    noticed(
        "a sink that is closed keeps no client",
        f"{KAFKA}.sink",
        "unit/harvest/sinks/test_nothing_is_left_behind.py::test_a_sink_that_is_closed_has_no_client_left",
        ("TransactionalSink.close", "self._reader = None", "pass"),
    ),
    noticed(
        "a sink that is closed keeps no client in advance",
        f"{KAFKA}.sink",
        "unit/harvest/sinks/test_nothing_is_left_behind.py::test_a_sink_that_is_closed_has_no_client_left",
        ("TransactionalSink.close", "self._producers.close()", "pass"),
    ),
    noticed(
        "nothing keeps an exception that has a client in its frames",
        "marshal_py.client.kafka_clients",
        "unit/harvest/sinks/test_nothing_is_left_behind.py::test_a_sink_that_is_closed_has_no_client_left",
        ("problem_of", "link.__traceback__ = None", "pass"),
    ),
    noticed(
        "what a handled exception has is not what confluent-kafka keeps for ever",
        f"{KAFKA}.sink",
        "unit/harvest/sinks/test_nothing_is_left_behind.py::test_a_sink_that_is_closed_has_no_client_left",
        (
            "TransactionalSink._fence",
            "            problem = problem_of((KafkaException,), producer.init_transactions, "
            "timeout_s)\n"
            "            if problem is None:\n"
            "                return producer\n"
            "            give_up(producer)\n",
            "            try:\n"
            "                producer.init_transactions(timeout_s)\n"
            "                return producer\n"
            "            except KafkaException as error:\n"
            "                problem = error\n"
            "                producer.abort_transaction(0)\n",
        ),
    ),
    noticed(
        "a sink without transactions keeps no client in advance",
        f"{KAFKA}.idempotent",
        "unit/harvest/sinks/test_nothing_is_left_behind.py::test_one_that_stands_by_and_is_closed_has_none_either",
        ("IdempotentSink.close", "self._producers.close()", "pass"),
    ),
    noticed(
        "what a producer says once more as it is given up is no failure",
        f"{KAFKA}.producers",
        "unit/harvest/sinks/test_nothing_is_left_behind.py::test_a_producer_that_failed_for_good_is_given_up_in_silence",
        ("give_up", "contextlib.suppress(*PRODUCER_FAILED)", "contextlib.suppress(KafkaException)"),
    ),
    noticed(
        "whoever selects dead letters says all of them, or which",
        f"{CLI}.dead_letters",
        "unit/harvest/cli/test_dead_letters.py::test_nothing_is_changed_until_somebody_has_said_which_rows",
        (
            "_selected",
            "if all_ == (selection != Selection()):",
            "if not all_ and selection == Selection():",
        ),
    ),
    noticed(
        "a dry run drops no dead letters",
        f"{CLI}.dead_letters",
        "unit/harvest/cli/test_dead_letters.py::test_a_dry_run_counts_and_changes_nothing",
        (
            "drop",
            "found = store.drop(selection, mode=outbox.mode, dry_run=dry_run)",
            "found = store.drop(selection, mode=outbox.mode)",
        ),
    ),
    noticed(
        "dead letters are a failure as JSON, too",
        f"{CLI}.dead_letters",
        "unit/harvest/cli/test_dead_letters.py::test_a_list_counts_all_and_shows_as_many_as_it_may",
        (
            "list_",
            "    if count:\n        raise typer.Exit(1)",
            "    if rows and not as_json:\n        raise typer.Exit(1)",
        ),
    ),
    noticed(
        "dead letters are chosen from a time until a time",
        f"{CLI}.dead_letters",
        "unit/harvest/cli/test_dead_letters.py::test_what_is_selected_by_each_option",
        (
            "_selection",
            '_time("--since", since), _time("--until", until)',
            '_time("--since", until), _time("--until", since)',
        ),
    ),
    noticed(
        "a slot that is lost is a failure",
        f"{CLI}.slot",
        "unit/harvest/cli/test_slot.py::test_a_slot_that_is_missing_or_lost_is_a_failure",
        (
            "show",
            "    if health.lost:\n        raise typer.Exit(1)",
            "    if not health.exists:\n        raise typer.Exit(1)",
        ),
    ),
    noticed(
        "who renews a slot chooses what becomes of the gap",
        f"{CLI}.slot",
        "unit/harvest/cli/test_slot.py::test_who_renews_a_slot_says_what_becomes_of_the_gap",
        ("renew", "if publish_table == begin_now:", "if publish_table and begin_now:"),
    ),
    noticed(
        "a slot is renewed after the id 0, too",
        f"{CLI}.slot",
        "unit/harvest/cli/test_slot.py::test_a_slot_is_renewed_as_it_was_asked_for",
        ("renew", "after=after, dry_run", "after=after or None, dry_run"),
    ),
    noticed(
        "a pause is in seconds",
        f"{CLI}.pause",
        "unit/harvest/cli/test_pause.py::test_a_pause_lasts_as_long_as_was_said",
        (
            "pause",
            "for_s = parse_duration_ms(duration) / 1000",
            "for_s = parse_duration_ms(duration)",
        ),
    ),
    noticed(
        "who still leads in a pause is a failure as JSON, too",
        f"{CLI}.pause",
        "unit/harvest/cli/test_pause.py::test_who_still_leads_is_named_and_makes_it_a_failure",
        ("pause", "    if held and wait_s:\n", "    if held and wait_s and not as_json:\n"),
    ),
    noticed(
        "who does not wait for a pause has not failed",
        f"{CLI}.pause",
        "unit/harvest/cli/test_pause.py::test_who_does_not_wait_is_told_and_it_is_no_failure",
        ("pause", "    if held and wait_s:\n", "    if held:\n"),
    ),
    noticed(
        "what is wrong in Kafka makes a check fail",
        f"{CLI}.check",
        "unit/harvest/cli/test_check.py::test_what_is_wrong_in_kafka_alone_is_a_failure",
        (
            "report",
            '"error" for finding in findings)\n    if as_json:',
            '"fatal" for finding in findings)\n    if as_json:',
        ),
    ),
    noticed(
        "a dry run begins at the lowest position",
        f"{CLI}.check",
        "unit/harvest/cli/test_check.py::test_a_dry_run_begins_at_the_lowest_position_of_the_shards",
        ("_preview", "after = min([after if p", "after = max([after if p"),
    ),
    noticed(
        "a warning of the database keeps nothing from being looked at",
        f"{CLI}.check",
        "unit/harvest/cli/test_check.py::test_a_warning_of_the_database_keeps_nothing_from_being_looked_at",
        (
            "report",
            'wrong = any(finding.level == "error" for finding in findings)\n    backlog',
            'wrong = any(finding.level != "ok" for finding in findings)\n    backlog',
        ),
    ),
    noticed(
        "destinations name no topics of Kafka",
        f"{CLI}.check",
        "unit/harvest/cli/test_check.py::test_with_destinations_the_column_names_no_topics_of_kafka",
        ("report", "[] if wrong or settings.destinations else", "[] if wrong else"),
    ),
    noticed(
        "nothing is behind what a position has passed",
        f"{CLI}.checkpoint",
        "unit/harvest/cli/test_checkpoint.py::test_a_place_in_the_log_is_shown_with_what_is_behind_it",
        (
            "_show_place",
            "max(0, source.slot.log_end() - found.lsn)",
            "source.slot.log_end() - found.lsn",
        ),
    ),
    noticed(
        "what was accepted is no failure",
        f"{CLI}.checkpoint",
        "unit/harvest/cli/test_checkpoint.py::test_what_differs_fails_a_dry_run_and_is_accepted_otherwise",
        (
            "accept",
            "raise typer.Exit(1 if dry_run and found.difference else 0)",
            "raise typer.Exit(1 if found.difference else 0)",
        ),
    ),
    noticed(
        "only positions of range mode are reset",
        f"{CLI}.checkpoint",
        "unit/harvest/cli/test_checkpoint.py::test_positions_are_those_of_range_mode",
        (
            "reset",
            "    settings = load_range_config(config)\n    last_id",
            "    settings = load(config)\n    last_id",
        ),
    ),
    noticed(
        "no rows to publish again are a failure",
        f"{CLI}.replay",
        "unit/harvest/cli/test_replay.py::test_no_such_rows_are_a_failure",
        ("replay", "raise typer.Exit(0 if done.rows else 1)", "raise typer.Exit(0)"),
    ),
    noticed(
        "the archive that is named goes before the configured one",
        f"{CLI}.replay",
        "unit/harvest/cli/test_replay.py::test_what_is_committed_is_told_apart_from_the_result",
        (
            "replay",
            "    if archive is not None:\n",
            "    if archive is not None and settings.partitions.archive is None:\n",
        ),
    ),
    noticed(
        "a switch goes on after the id 0, too",
        f"{CLI}.switch",
        "unit/harvest/cli/test_switch.py::test_a_switch_says_what_became_of_the_rows",
        ("switch", "if done.last_id is not None:", "if done.last_id:"),
    ),
    noticed(
        "a switch has the configuration as it was",
        f"{CLI}.switch",
        "unit/harvest/cli/test_switch.py::test_a_switch_says_what_became_of_the_rows",
        ("switch", "None if old is None else load(old)", "None if old is None else load(config)"),
    ),
    noticed(
        "partitions may be kept for no time at all",
        f"{CLI}.range_mode",
        "unit/harvest/cli/test_range_mode.py::test_options_go_before_what_is_configured",
        ("partitions", "    if retain_hours is not None:", "    if retain_hours:"),
    ),
    noticed(
        "what cannot be archived is a failure as JSON, too",
        f"{CLI}.range_mode",
        "unit/harvest/cli/test_range_mode.py::test_what_cannot_be_archived_stays_and_is_a_failure",
        (
            "partitions",
            "indent=None)\n        raise typer.Exit(1 if done.unarchived else 0)",
            "indent=None)\n        raise typer.Exit(0)",
        ),
    ),
    noticed(
        "orphans are older than so many hours",
        f"{CLI}.range_mode",
        "unit/harvest/cli/test_range_mode.py::test_orphans_are_older_than_so_many_hours",
        ("orphans", "older_than_hours * 3600", "older_than_hours * 60"),
    ),
    noticed(
        "the trigger is removed where that is asked for",
        f"{CLI}.init",
        "unit/harvest/cli/test_init.py::test_the_trigger_is_as_it_was_asked_for",
        ("init", "    if notify is not None:\n", "    if notify:\n"),
    ),
    noticed(
        "a table is made for the mode that is named",
        f"{CLI}.init",
        "unit/harvest/cli/test_init.py::test_range_mode_has_a_table_of_positions",
        (
            "init",
            "open_outbox(config, database, table, mode)",
            "open_outbox(config, database, table)",
        ),
    ),
    noticed(
        "a file and a database are not both named",
        f"{CLI}.outbox",
        "unit/harvest/cli/test_init.py::test_either_a_file_or_a_database_is_named",
        (
            "open_outbox",
            "if (config is None) == (database is None):",
            "if config is None and database is None:",
        ),
    ),
    noticed(
        "wal mode has its own dead letters",
        f"{CLI}.outbox",
        "unit/harvest/cli/test_init.py::test_wal_mode_has_its_own_parts",
        (
            "Outbox.dead_letters",
            '        if self.mode == "wal":\n            return self.database.wal_dead',
            '        if self.mode == "":\n            return self.database.wal_dead',
        ),
    ),
    noticed(
        "a signal stops the harvester that runs",
        f"{CLI}.reap",
        "unit/harvest/cli/test_reap.py::test_a_signal_stops_the_harvester_and_it_ends_in_order",
        ("_run", "        STOP_SIGNALS.call(running.harvester.stop)\n", ""),
    ),
    noticed(
        "the monitor ends with a harvest that fails",
        f"{CLI}.reap",
        "unit/harvest/cli/test_reap.py::test_the_monitor_ends_with_a_harvest_that_fails",
        ("_status_server", "            monitor.close()", "            pass"),
    ),
    noticed(
        "a paused group stands for no shard",
        f"{RUN}.candidacy",
        "unit/harvest/runtime/test_candidacy.py::test_a_paused_group_stands_for_nothing",
        ("FairShare.stand", "        if decision.paused:\n            return None\n", ""),
    ),
    noticed(
        "who leads a shard ends before it is let go",
        f"{RUN}.candidacy",
        "unit/harvest/runtime/test_candidacy.py::test_what_somebody_else_has_got_is_stood_for_no_more_but_leaders_end_first",
        (
            "FairShare._withdraw",
            "and unit not in wanted and unit[1] not in self._elected",
            "and unit not in wanted",
        ),
    ),
    noticed(
        "a shard that nobody takes does not hold up the next for ever",
        f"{RUN}.candidacy",
        "unit/harvest/runtime/test_candidacy.py::test_a_shard_that_nobody_takes_holds_up_the_next_for_two_intervals",
        (
            "FairShare._give_up_one",
            "is None and time.monotonic() < until_s",
            "is None or time.monotonic() < until_s",
        ),
    ),
    noticed(
        "news of the election wake",
        f"{RUN}.candidacy",
        "unit/harvest/runtime/test_candidacy.py::test_news_of_the_one_leadership_wake_and_no_others",
        (
            "Election.start.hear",
            'if any(getattr(event, "topic", None) == self._unit[0] for event in events):',
            'if any(getattr(event, "topic", None) == self._unit for event in events):',
        ),
    ),
    noticed(
        "what is accepted rests on no log of the server before",
        f"{RUN}.checkpoint_changes",
        "unit/harvest/runtime/test_checkpoint_changes.py::test_what_is_accepted_rests_on_no_log_any_more",
        (
            "_accept",
            "positions = [replace(p, timeline=0, log=0) for p in found if p is not None]",
            "positions = [p for p in found if p is not None]",
        ),
    ),
    noticed(
        "no position above all ids is accepted",
        f"{RUN}.checkpoint_changes",
        "unit/harvest/runtime/test_checkpoint_changes.py::test_a_position_above_all_ids_is_not_accepted",
        (
            "_accept",
            "if any(p.last_id > last for p in positions)",
            "if all(p.last_id > last for p in positions)",
        ),
    ),
    noticed(
        "leaders of shards that end are shut out, too",
        f"{RUN}.checkpoint_changes",
        "unit/harvest/runtime/test_checkpoint_changes.py::test_leaders_of_all_shards_that_there_were_are_shut_out",
        (
            "change_shards",
            "checkpoints.write(new, fence=before)",
            "checkpoints.write(new, fence=number)",
        ),
    ),
    noticed(
        "copies of another division are not restored",
        f"{RUN}.checkpoint_changes",
        "unit/harvest/runtime/test_checkpoint_changes.py::test_copies_of_this_division_are_restored",
        (
            "restore_checkpoints",
            "copies = [p for p in store.saved() if p.shards == config.shards]",
            "copies = list(store.saved())",
        ),
    ),
    noticed(
        "all shards may go on after the id 0",
        f"{RUN}.checkpoint_changes",
        "unit/harvest/runtime/test_checkpoint_changes.py::test_before_the_first_row_is_where_ids_begin",
        ("reset_checkpoints", "if after is None else after", "if not after else after"),
    ),
    noticed(
        "a shard without a checkpoint is not divided",
        f"{RUN}.checkpoint_changes",
        "unit/harvest/runtime/test_checkpoint_changes.py::test_a_shard_without_a_checkpoint_is_not_divided",
        ("change_shards", "if old and len(old) < before:", "if old and len(old) > before:"),
    ),
    noticed(
        "who stops a harvest while it begins is heard",
        f"{RUN}.embedding",
        "unit/harvest/runtime/test_embedding.py::test_who_stops_while_it_begins_is_heard",
        ("Harvest._run", "if self._stop_asked.is_set():", "if False:"),
    ),
    noticed(
        "what is wrong at the start of a harvest is raised there",
        f"{RUN}.embedding",
        "unit/harvest/runtime/test_embedding.py::test_what_is_wrong_at_the_start_is_raised_there_and_once",
        ("Harvest.start", "        if self._process is None:\n            self.await_()\n", ""),
    ),
    noticed(
        "a harvest that has ended is not healthy",
        f"{RUN}.embedding",
        "unit/harvest/runtime/test_embedding.py::test_a_harvest_begins_and_ends_in_order",
        (
            "Harvest.health",
            "if self._monitor is None or not self._thread.is_alive():",
            "if self._monitor is None:",
        ),
    ),
    noticed(
        "a harvest leaves no handlers in the log",
        f"{RUN}.embedding",
        "unit/harvest/runtime/test_embedding.py::test_a_logger_gets_what_its_level_lets_through_and_nothing_afterwards",
        ("Harvest._forwarding", "logging.getLogger(name).removeHandler(self._forward)", "pass"),
    ),
    noticed(
        "one replica needs no two in sync",
        f"{RUN}.kafka_check",
        "unit/harvest/runtime/test_kafka_check.py::test_replicas_in_sync",
        ("_check_topic", "elif replicas > 1 and minimum < 2:", "elif replicas > 1 or minimum < 2:"),
    ),
    noticed(
        "what the brokers do not say is not refused",
        f"{RUN}.kafka_check",
        "unit/harvest/runtime/test_kafka_check.py::test_a_topic_that_may_not_be_written_to_is_an_error_where_the_brokers_say_so",
        (
            "check_kafka",
            "if name in writable and not writable[name]:",
            "if not writable.get(name):",
        ),
    ),
    noticed(
        "an unclean leader is warned of",
        f"{RUN}.kafka_check",
        "unit/harvest/runtime/test_kafka_check.py::test_an_unclean_leader_may_lose_what_was_purged",
        (
            "_check_topic",
            '"unclean.leader.election.enable") == "true"',
            '"unclean.leader.election.enable") is True',
        ),
    ),
    noticed(
        "a group that may not be read is to be granted",
        f"{RUN}.kafka_check",
        "unit/harvest/runtime/test_kafka_check.py::test_a_checkpoint_that_cannot_be_read_says_what_to_grant",
        (
            "_check_group",
            "== KafkaError.GROUP_AUTHORIZATION_FAILED",
            "== KafkaError.TOPIC_AUTHORIZATION_FAILED",
        ),
    ),
    noticed(
        "marks are on the disk where a checkpoint rests on them",
        f"{RUN}.parts",
        "unit/harvest/runtime/test_parts.py::test_marks_are_on_the_disk_where_a_checkpoint_rests_on_them",
        (
            "make_store",
            'durable = config.delivery == "transactional"',
            'durable = config.delivery != "transactional"',
        ),
    ),
    noticed(
        "each shard has a transactional id of its own",
        f"{RUN}.parts",
        "unit/harvest/runtime/test_parts.py::test_each_shard_has_a_transactional_id_of_its_own",
        ("make_sink", "name=name or config.sink_name,", "name=config.sink_name,"),
    ),
    noticed(
        "one leader looks after the partitions",
        f"{RUN}.parts",
        "unit/harvest/runtime/test_parts.py::test_one_leader_looks_after_the_partitions",
        (
            "make_tools",
            "if shard == 0 and config.partitions.automatic",
            "if config.partitions.automatic",
        ),
    ),
    noticed(
        "all rows wait for a topic only where none is set aside",
        f"{RUN}.parts",
        "unit/harvest/runtime/test_parts.py::test_all_rows_wait_for_a_topic_only_where_none_can_be_set_aside",
        (
            "_waits_for_topics",
            'policy.unknown_topic == "wait" and policy.on_bad_row == "stop"',
            'policy.unknown_topic == "wait" or policy.on_bad_row == "stop"',
        ),
    ),
    noticed(
        "a replica is read as one",
        f"{RUN}.parts",
        "unit/harvest/runtime/test_parts.py::test_a_replica_is_read_as_one",
        ("make_range_store", "primary.ids, standby=True)", "primary.ids)"),
    ),
    noticed(
        "a client that has failed does not reach Kafka",
        f"{RUN}.probes",
        "unit/harvest/runtime/test_probes.py::test_a_client_that_has_failed_does_not_reach_kafka",
        ("ServerProbes.kafka", "        if failure is not None:\n            raise failure\n", ""),
    ),
    noticed(
        "shards have holders each",
        f"{RUN}.probes",
        "unit/harvest/runtime/test_probes.py::test_holders_are_those_of_each_shard",
        ("ServerProbes.holders", ' + (f".{partition}" if partition else "")', ""),
    ),
    noticed(
        "every connection of a probe is closed",
        f"{RUN}.probes",
        "unit/harvest/runtime/test_probes.py::test_every_connection_is_closed",
        ("ServerProbes.close", "        self._dead_letters.close()\n", ""),
    ),
    noticed(
        "the age of a row is in seconds",
        f"{RUN}.process",
        "unit/harvest/runtime/test_process.py::test_a_process_is_what_was_configured",
        ("Process.max_age_s", "None if limit_ms is None else limit_ms / 1000", "limit_ms"),
    ),
    noticed(
        "a harvester drains for seconds",
        f"{RUN}.process",
        "unit/harvest/runtime/test_process.py::test_a_process_is_what_was_configured",
        ("process", "config.limits.drain_timeout_ms / 1000", "config.limits.drain_timeout_ms"),
    ),
    noticed(
        "rows of destinations do not wait for topics",
        f"{RUN}.process",
        "unit/harvest/runtime/test_process.py::test_where_no_row_is_set_aside_for_its_topic_none_is_put_back",
        (
            "_retrying_missing_topics",
            'policy.unknown_topic != "wait" or config.destinations or not',
            'policy.unknown_topic != "wait" or not',
        ),
    ),
    noticed(
        "what goes together has the last checkpoint",
        f"{RUN}.publisher",
        "unit/harvest/runtime/test_publisher.py::test_what_waits_goes_together_under_the_last_checkpoint",
        ("Publisher._publish", "self._checkpoint(sends[-1])", "self._checkpoint(sends[0])"),
    ),
    noticed(
        "what was put in before an open is sent before it",
        f"{RUN}.publisher",
        "unit/harvest/runtime/test_publisher.py::test_what_was_put_in_before_an_open_is_sent_before_it",
        ("Publisher._merged", "if sends and (is_open or rows", "if sends and (rows"),
    ),
    noticed(
        "who refuses a database shows it",
        f"{RUN}.metrics",
        "unit/harvest/runtime/test_metrics.py::test_a_harvester_that_refuses_its_database_shows_it",
        ("HarvestMetrics._families", "harvester.refusal is not None", "harvester.refusal is None"),
    ),
    noticed(
        "no rows set aside are shown as none",
        f"{RUN}.metrics",
        "unit/harvest/runtime/test_metrics.py::test_what_was_not_counted_is_not_shown_and_nothing_is_shown_as_zero",
        (
            "HarvestMetrics._families",
            "if monitor.dead_letters is not None:",
            "if monitor.dead_letters:",
        ),
    ),
    noticed(
        "a slot about to be lost shows that nothing is left",
        f"{RUN}.metrics",
        "unit/harvest/runtime/test_metrics.py::test_a_slot_shows_what_it_costs",
        (
            "HarvestMetrics._families",
            "            if slot.safe_bytes is not None:\n",
            "            if slot.safe_bytes:\n",
        ),
    ),
    noticed(
        "nothing is marked when no time is left of the lease",
        f"{RUN}.marked_rows",
        "unit/harvest/runtime/test_marked_rows.py::test_nothing_is_marked_without_a_lease_or_time_left_of_it",
        (
            "MarkedRows.mark",
            "if valid_ms <= 0 or not leadership.may_act():",
            "if valid_ms <= 0 and not leadership.may_act():",
        ),
    ),
    noticed(
        "another database is no failed mark",
        f"{RUN}.marked_rows",
        "unit/harvest/runtime/test_marked_rows.py::test_another_database_ends_the_leadership_before_anything_is_marked",
        ("MarkedRows.mark", "        except DatabaseChanged:\n            raise\n", ""),
    ),
    noticed(
        "the guard hears of rows that were marked",
        f"{RUN}.marked_rows",
        "unit/harvest/runtime/test_marked_rows.py::test_a_term_begins_with_what_the_last_checkpoint_rests_on",
        ("MarkedRows.mark", "self._guard.saw(self._marker)", "pass"),
    ),
    noticed(
        "a checkpoint of mark mode says how far the log had come",
        f"{RUN}.mark_leader",
        "unit/harvest/runtime/test_mark_leader.py::test_a_checkpoint_says_how_far_the_log_had_come",
        (
            "MarkLeader._checkpoint",
            "checkpoint = replace(checkpoint, timeline=timeline, log=log)",
            "pass",
        ),
    ),
    noticed(
        "a term rests on what the last checkpoint says",
        f"{RUN}.mark_leader",
        "unit/harvest/runtime/test_mark_leader.py::test_a_term_begins_where_the_last_checkpoint_says_with_the_keys_that_wait",
        (
            "MarkLeader._opened",
            "self.rows.checkpoint_position = checkpoint.timeline, checkpoint.log",
            "pass",
        ),
    ),
    noticed(
        "the guard is closed with its leader",
        f"{RUN}.mark_leader",
        "unit/harvest/runtime/test_mark_leader.py::test_all_that_was_opened_is_closed",
        ("MarkTools.close", "            self.guard.close()\n", "            pass\n"),
    ),
    noticed(
        "a slot that does not go on is found out",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_a_slot_goes_on_where_the_position_is_in_it",
        (
            "goes_on",
            "    except (CheckpointError, ConfigurationError):\n        return False",
            "    except (CheckpointError, ConfigurationError):\n        pass",
        ),
    ),
    noticed(
        "columns that only wal mode reads are not left to others",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_columns_that_only_wal_mode_reads_are_not_left_to_another_mode",
        ("leave_slot", 'if config.wal.layout != "goharvest":', 'if config.wal.layout == "":'),
    ),
    noticed(
        "work waits for what comes before it",
        f"{RUN}.action_threads",
        "unit/harvest/runtime/test_action_threads.py::test_work_begins_when_what_comes_before_it_has_ended",
        ("ActionThread._run", "                    self._before()\n", ""),
    ),
    noticed(
        "an element that is NULL has no length",
        f"{PG}.header_arrays",
        "unit/harvest/databases/test_header_arrays.py::test_elements_come_in_their_order_nulls_and_empty_ones_too",
        (
            "elements",
            "        if length < 0:\n            found.append(None)\n            continue\n",
            "        if length < 0:\n            continue\n",
        ),
    ),
    noticed(
        "all dimensions of an array count",
        f"{PG}.header_arrays",
        "unit/harvest/databases/test_header_arrays.py::test_of_several_dimensions_all_elements_come_row_by_row",
        (
            "elements",
            "range(prod(lengths) if lengths else 0)",
            "range(lengths[0] if lengths else 0)",
        ),
    ),
    noticed(
        "a row with one of both arrays is not one without",
        f"{PG}.header_arrays",
        "unit/harvest/databases/test_header_arrays.py::test_a_row_with_one_of_both_arrays_is_not_taken_for_one_without",
        (
            "with_headers",
            "row[_KEYS] or row[_VALUES] for row in rows",
            "row[_KEYS] and row[_VALUES] for row in rows",
        ),
    ),
    noticed(
        "options that were given stay beside server settings",
        f"{PG}.conninfo",
        "unit/harvest/databases/test_conninfo.py::test_the_same_is_said_to_libpq",
        (
            "_split_off_server_settings",
            "            options.append(value)\n",
            "            options = [value]\n",
        ),
    ),
    noticed(
        "text that cannot be converted is that row's fault",
        f"{PG}.encoding",
        "unit/harvest/databases/test_encoding.py::test_what_cannot_be_converted_is_a_value_error_and_the_next_is",
        (
            "Converter._to_utf8",
            "except psycopg.DataError as error:",
            "except psycopg.InternalError as error:",
        ),
    ),
    noticed(
        "a converter that was closed connects again",
        f"{PG}.encoding",
        "unit/harvest/databases/test_encoding.py::test_who_closes_it_may_use_it_again",
        (
            "Converter.close",
            "connection, self._connection = self._connection, None",
            "connection = self._connection",
        ),
    ),
    noticed(
        "an element that is null stays one",
        f"{DB}.column_values",
        "unit/harvest/databases/test_column_values.py::test_headers_are_the_strings_of_an_array",
        ("_element", "    if element is None:\n        return None\n", ""),
    ),
    noticed(
        "no array is taken for one without headers",
        f"{DB}.column_values",
        "unit/harvest/databases/test_column_values.py::test_headers_are_the_strings_of_an_array",
        (
            "headers_from_json",
            "            return _UNREADABLE\n        return tuple",
            "            return None\n        return tuple",
        ),
    ),
    noticed(
        "a column that is NOT NULL cannot be marked",
        f"{DB}.schema",
        "unit/harvest/databases/test_schema.py::test_a_type_that_cannot_be_used_is_named_with_the_remedy",
        (
            "column_findings",
            'elif column == "leader_id" and required:',
            'elif column == "id" and not required:',
        ),
    ),
    noticed(
        "a deadlock is not tried for ever",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_a_deadlock_is_tried_again_but_not_for_ever",
        (
            "MysqlTable._change",
            "or attempt == _ATTEMPTS:\n                        raise",
            "or attempt == 1:\n                        raise",
        ),
    ),
    noticed(
        "a connection that timed out is not used again",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_an_error_says_what_to_do_and_a_broken_connection_is_replaced",
        (
            "MysqlTable._errors",
            "# a time-out of the socket\n            self.close()\n",
            "# a time-out of the socket\n",
        ),
    ),
    noticed(
        "a broken connection is replaced",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_a_connection_that_the_driver_has_closed_is_replaced",
        (
            "MysqlTable._errors",
            "gone or isinstance(error, pymysql.InterfaceError) or code in _BROKEN",
            "gone and isinstance(error, pymysql.InterfaceError) or code in _BROKEN",
        ),
    ),
    noticed(
        "a condition has no more terms than the optimizer bears",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_a_condition_is_no_longer_than_the_optimizer_bears",
        ("within", "chunk = ranges[start : start + _TERMS]", "chunk = ranges[start:]"),
    ),
    noticed(
        "a password of a URL is decoded",
        f"{MY}.table",
        "unit/harvest/databases/test_mysql_table.py::test_a_url_is_what_the_driver_takes",
        (
            "connect_arguments",
            '"password": unquote(parts.password or ""),',
            '"password": parts.password or "",',
        ),
    ),
    noticed(
        "a visit is on the disk before Kafka hears of it",
        f"{LITE}.sources",
        "unit/harvest/databases/test_registrations.py::test_a_visit_is_on_the_disk_before_kafka_hears_of_it",
        ("SqliteSources.visit", '        self._execute("PRAGMA synchronous = FULL")\n', ""),
    ),
    noticed(
        "what was durable stays so after a visit",
        f"{LITE}.sources",
        "unit/harvest/databases/test_registrations.py::test_a_visit_is_on_the_disk_before_kafka_hears_of_it",
        (
            "SqliteSources.visit",
            "            if not self._durable:\n",
            "            if self._durable:\n",
        ),
    ),
    noticed(
        "of two who register one is told of the other",
        f"{DB}.registrations",
        "unit/harvest/databases/test_registrations.py::test_of_two_who_make_it_at_once_one_finds_the_other",
        (
            "Registrations.register",
            "        except StoreUnavailable:\n            pass",
            "        except TableMissing:\n            pass",
        ),
    ),
    noticed(
        "who is registered anew is so where nobody was",
        f"{DB}.registrations",
        "unit/harvest/databases/test_registrations.py::test_who_is_registered_anew_where_nobody_is_is_registered",
        (
            "Registrations.register_anew",
            "        self.register(ours)\n        self._statement(_SET",
            "        self.create_registration()\n        self._statement(_SET",
        ),
    ),
    noticed(
        "what MySQL was given is committed at the end",
        f"{DB}.registry",
        "unit/harvest/databases/test_registry.py::test_the_same_with_mysql",
        (
            "_Mysql.transaction",
            "            yield connection\n            connection.commit()\n",
            "            yield connection\n",
        ),
    ),
    noticed(
        "a person may give what goharvest reads",
        f"{DB}.registry",
        "unit/harvest/databases/test_registry.py::test_a_person_may_give_settings_of_the_server_as_goharvest_reads_them",
        (
            "database_of_data_source",
            "source if separator and scheme in _KINDS else libpq_conninfo(source)",
            "source if separator or scheme in _KINDS else libpq_conninfo(source)",
        ),
    ),
    noticed(
        "no status at all may be expected",
        f"{CONFIG}.destinations",
        "unit/harvest/config/test_destinations.py::test_statuses_are_numbers_and_ranges",
        ("_parse_statuses", "    if value is None:\n        return frozenset()\n", ""),
    ),
    noticed(
        "what is refused is not what is expected",
        f"{CONFIG}.destinations",
        "unit/harvest/config/test_destinations.py::test_statuses_are_numbers_and_ranges",
        ("_http_sink", "refused=config.refuse,", "refused=config.expect,"),
    ),
    noticed(
        "a batch is bounded in bytes",
        f"{CONFIG}.destinations",
        "unit/harvest/config/test_destinations.py::test_a_batch_is_bounded_in_rows_and_bytes",
        (
            "DestinationConfig.policy",
            "given.update(batch_records=batch.records, batch_bytes=batch.bytes)",
            "given.update(batch_records=batch.records)",
        ),
    ),
    noticed(
        "settings of one Kafka go before those of all",
        f"{CONFIG}.destinations",
        "unit/harvest/config/test_destinations.py::test_settings_of_a_kafka_go_before_those_of_all",
        ("_kafka_sink", "{**settings, **config.settings}", "{**config.settings, **settings}"),
    ),
    noticed(
        "a secret is not shown",
        f"{CONFIG}.destinations",
        "unit/harvest/config/test_destinations.py::test_no_secret_is_shown",
        (
            "HttpConfig",
            "sign: Secrets = Field(default=(), repr=False)",
            "sign: Secrets = Field(default=())",
        ),
    ),
    noticed(
        "a secret is not empty",
        f"{CONFIG}.destinations",
        "unit/harvest/config/test_destinations.py::test_one_secret_may_be_given_and_none_is_none",
        ("", "Secret = Annotated[str, Field(min_length=1)]", "Secret = Annotated[str, Field()]"),
    ),
    noticed(
        "goharvest's group goes before its topic",
        f"{CONFIG}.goharvest",
        "unit/harvest/config/test_config.py::test_goharvests_group_goes_before_its_topic",
        (
            "convert",
            'go.leader_group_id or go.leader_topic or "reaper"',
            'go.leader_topic or go.leader_group_id or "reaper"',
        ),
    ),
    noticed(
        "goharvest's times keep within ours",
        f"{CONFIG}.goharvest",
        "unit/harvest/config/test_config.py::test_goharvests_times_keep_within_ours",
        (
            "convert",
            "max(20, round(limits.heartbeat_timeout / 2))",
            "round(limits.heartbeat_timeout / 2)",
        ),
    ),
    noticed(
        "what has no effect is told",
        f"{CONFIG}.goharvest",
        "unit/harvest/config/test_config.py::test_what_has_no_effect_is_told",
        ("convert", "if name in given]", "if name not in given]"),
    ),
    noticed(
        "variables are put into lists",
        f"{CONFIG}.load",
        "unit/harvest/config/test_config.py::test_variables_are_put_in_wherever_there_is_text",
        (
            "_expanded",
            "        return [_expanded(inner, source) for inner in value]",
            "        return value",
        ),
    ),
    noticed(
        "what nests without end is no YAML",
        f"{CONFIG}.load",
        "unit/harvest/config/test_config.py::test_what_is_no_yaml_says_where",
        (
            "parse",
            "except (yaml.YAMLError, ValueError, RecursionError) as error:",
            "except yaml.YAMLError as error:",
        ),
    ),
    noticed(
        "a file that is no text cannot be read",
        f"{CONFIG}.load",
        "unit/harvest/config/test_config.py::test_a_file_that_is_no_text_cannot_be_read",
        ("load", "except (OSError, UnicodeDecodeError) as error:", "except OSError as error:"),
    ),
    noticed(
        "what a route raises is that row's fault",
        f"{CONFIG}.routes",
        "unit/harvest/config/test_config.py::test_what_a_route_in_python_raises_is_that_rows_fault",
        (
            "_function.find",
            "        except Exception as error:\n            raise InvalidRecord",
            "        except ValueError as error:\n            raise InvalidRecord",
        ),
    ),
    noticed(
        "each of several routes is looked up",
        f"{CONFIG}.routes",
        "unit/harvest/config/test_config.py::test_of_several_routes_each_is_looked_up",
        ("load_routes", "return [load_route(one) for one in route]", "return list(route)"),
    ),
    noticed(
        "every mistake is told",
        f"{CONFIG}.validation",
        "unit/harvest/config/test_config.py::test_every_mistake_is_told_and_the_key_is_known_where_it_stands",
        ("validated", "error.errors(include_url=False)]", "error.errors(include_url=False)[:1]]"),
    ),
    noticed(
        "a relay is registered as one",
        f"{CONFIG}.model",
        "unit/harvest/config/test_config.py::test_who_harvests_is_a_relay_where_there_are_destinations",
        (
            "ReaperConfig.registration",
            'mode = "relay" if self.destinations else self.mode',
            "mode = self.mode",
        ),
    ),
    noticed(
        "partitions are kept for hours",
        f"{CONFIG}.model",
        "unit/harvest/config/test_config.py::test_times_are_in_the_units_that_are_used",
        ("PartitionsConfig.policy", "self.retain_hours * 3600", "self.retain_hours * 60"),
    ),
    noticed(
        "a table that is not ours keeps its rows",
        f"{CONFIG}.model",
        "unit/harvest/config/test_config.py::test_what_is_not_our_table_is_left_as_it_is",
        (
            "WalConfig.options",
            'self.purge or ("delete" if self.layout == "goharvest" else "keep")',
            'self.purge or "delete"',
        ),
    ),
    noticed(
        "rows that wait for a topic hold up their keys",
        f"{CONFIG}.model",
        "unit/harvest/config/test_config.py::test_rows_that_wait_for_a_topic_hold_up_their_keys",
        (
            "BadRowsConfig.policy",
            'self.key_waits or self.unknown_topic == "wait"',
            "self.key_waits",
        ),
    ),
    noticed(
        "a record is known by its outbox",
        f"{CONFIG}.model",
        "unit/harvest/config/test_config.py::test_a_record_is_known_by_database_outbox_and_id",
        ("ReaperConfig.envelope", 'f"{self.harvest_id}/{self.table}"', 'f"{self.harvest_id}"'),
    ),
    noticed(
        "the primary's password is not shown",
        f"{CONFIG}.model",
        "unit/harvest/config/test_config.py::test_no_connection_string_is_shown",
        (
            "PrimaryConfig",
            "    database: str = Field(repr=False, min_length=1)\n    replica",
            "    database: str = Field(min_length=1)\n    replica",
        ),
    ),
    noticed(
        "no archive is without columns of its rows",
        f"{CONFIG}.model",
        "unit/harvest/config/test_config.py::test_further_columns_are_refused_where_they_would_be_lost",
        (
            "ReaperConfig._consistent_columns",
            "elif self.partitions.archive is not None:",
            "elif False:",
        ),
    ),
    noticed(
        "a producer that was used is not taken again",
        f"{KAFKA}.producers",
        "unit/harvest/sinks/test_producers.py::test_the_one_that_was_prepared_is_taken_once",
        (
            "Producers.take",
            "producer, self._spare = self._spare or self._new(), None",
            "producer = self._spare = self._spare or self._new()",
        ),
    ),
    noticed(
        "an outage is told again",
        f"{KAFKA}.producers",
        "unit/harvest/sinks/test_producers.py::test_an_outage_is_told_and_again_half_a_minute_later",
        (
            "Producers._outage",
            "            self._warned_s = time.monotonic()\n",
            "            self._warned_s = float('inf')\n",
        ),
    ),
    noticed(
        "a row is judged by the code of its error",
        f"{KAFKA}.producers",
        "unit/harvest/sinks/test_producers.py::test_a_row_that_is_refused_is_named_with_the_code_by_which_it_is_judged",
        ("produce", "said(error), error.args[0].code())", "said(error))"),
    ),
    noticed(
        "what is given up is thrown away",
        f"{KAFKA}.producers",
        "unit/harvest/sinks/test_producers.py::test_what_is_given_up_is_thrown_away_and_nothing_is_raised",
        ("give_up", "        producer.purge()\n", ""),
    ),
    noticed(
        "what is given goes before the defaults",
        f"{KAFKA}.settings",
        "unit/harvest/sinks/test_kafka_settings.py::test_what_is_given_goes_before_the_defaults",
        (
            "producer_settings",
            "settings = {**_DEFAULTS, **settings}",
            "settings = {**settings, **_DEFAULTS}",
        ),
    ),
    noticed(
        "a row is tried for as long as it takes",
        f"{KAFKA}.settings",
        "unit/harvest/sinks/test_kafka_settings.py::test_without_transactions_a_row_is_tried_for_as_long_as_it_takes",
        (
            "producer_settings",
            'settings["delivery.timeout.ms"] = 0',
            'settings["delivery.timeout.ms"] = 30_000',
        ),
    ),
    noticed(
        "acknowledgements have two names",
        f"{KAFKA}.settings",
        "unit/harvest/sinks/test_kafka_settings.py::test_what_would_lose_or_reorder_rows_is_refused_without_secrets",
        ("", '"request.required.acks": (_ALL,', '"request.required.acks": (_ALL | {"0", "1"},'),
    ),
    noticed(
        "a setting that is refused is a mistake in the file",
        f"{KAFKA}.clients",
        "unit/harvest/sinks/test_producers.py::test_a_setting_that_is_refused_is_an_error_of_the_configuration",
        (
            "make_client",
            "except (KafkaException, TypeError, ValueError) as error:",
            "except (TypeError, ValueError) as error:",
        ),
    ),
    noticed(
        "the source is in a group of its own",
        f"{KAFKA}.source_record",
        "unit/harvest/sinks/test_source_record.py::test_it_is_in_a_group_of_its_own",
        ("SourceRecord.__init__", 'f"harvest.{name}.source"', 'f"harvest.{name}"'),
    ),
    noticed(
        "who waits for the source has it kept",
        f"{KAFKA}.source_record",
        "unit/harvest/sinks/test_source_record.py::test_what_was_saved_is_what_is_loaded",
        ("SourceRecord.save", "            if wait:\n", "            if not wait:\n"),
    ),
    noticed(
        "what was closed connects anew",
        f"{KAFKA}.source_record",
        "unit/harvest/sinks/test_source_record.py::test_who_closes_it_may_use_it_again",
        (
            "SourceRecord.close",
            "consumer, self._consumer = self._consumer, None",
            "consumer = self._consumer",
        ),
    ),
    noticed(
        "chunks go before a length",
        f"{HTTP}.exchange",
        "unit/harvest/sinks/test_http_exchange.py::test_an_answer_is_the_same_in_one_piece_and_in_two",
        ("_plain", 'elif name == b"transfer-encoding" or (', "elif ("),
    ),
    noticed(
        "an answer without a body has none whatever its length",
        f"{HTTP}.exchange",
        "unit/harvest/sinks/test_http_exchange.py::test_an_answer_is_the_same_in_one_piece_and_in_two",
        ("_plain", "    if status in (204, 304):\n        length = 0\n", ""),
    ),
    noticed(
        "a body without end fills no memory",
        f"{HTTP}.exchange",
        "unit/harvest/sinks/test_http_exchange.py::test_of_a_body_no_more_is_read_than_is_shown",
        ("_plain", "if length is None or length > _MAX_BODY_BYTES:", "if length is None:"),
    ),
    noticed(
        "a header of a row does not say where its request ends",
        f"{HTTP}.endpoint",
        "integration/harvest/sinks/test_http.py::test_a_header_of_a_row_does_not_say_where_its_request_ends",
        (
            "HttpSink._request_headers",
            "ours = {name.lower() for name, _ in headers} | _RESERVED",
            "ours = {name.lower() for name, _ in headers}",
        ),
    ),
    noticed(
        "a slot that was invalidated is lost whatever its log",
        f"{PG}.slot",
        "unit/harvest/databases/test_slot.py::test_a_slot_that_was_invalidated_is_lost_and_says_why",
        (
            "PostgresSlot.state",
            '"lost" if why_lost else about.get("wal_status")',
            'about.get("wal_status")',
        ),
    ),
    noticed(
        "who may not end the reader of a slot waits for it",
        f"{PG}.slot",
        "unit/harvest/databases/test_slot.py::test_who_reads_a_slot_is_ended_and_it_is_dropped",
        (
            "PostgresSlot.end_reader",
            "        except psycopg.errors.InsufficientPrivilege:\n            return\n",
            "",
        ),
    ),
    noticed(
        "a slot in use is not waited for without end",
        f"{PG}.slot",
        "unit/harvest/databases/test_slot.py::test_a_slot_that_stays_in_use_is_not_waited_for_without_end",
        (
            "PostgresSlot.drop",
            "deadline = time.monotonic() + _IN_USE_S",
            "deadline = time.monotonic() + 1000 * _IN_USE_S",
        ),
    ),
    noticed(
        "neither of two databases may be silent",
        f"{PG}.two_databases",
        "unit/harvest/databases/test_two_databases.py::test_neither_database_may_be_silent",
        ("TwoDatabasesStore.ping", "        self._primary.ping()\n", ""),
    ),
    noticed(
        "a payload that is not there yet is waited for",
        f"{PG}.two_databases",
        "unit/harvest/databases/test_two_databases.py::test_a_payload_that_is_not_there_yet_is_waited_for",
        (
            "TwoDatabasesStore._with_payloads",
            "for row_id, message in found]",
            "for row_id, message in found if message in payloads]",
        ),
    ),
    noticed(
        "all servers are broken off",
        f"{PG}.two_databases",
        "unit/harvest/databases/test_two_databases.py::test_what_is_broken_off_or_closed_is_so_on_every_server",
        (
            "TwoDatabasesStore.cancel",
            "            store.cancel()",
            "            store.cancel()\n            break",
        ),
    ),
    noticed(
        "a trigger that is disabled tells nobody",
        f"{PG}.notify",
        "integration/harvest/databases/test_postgres_notify.py::test_a_trigger_that_is_disabled_tells_nobody",
        ("", " AND t.tgenabled IN ('O', 'A')", ""),
    ),
    noticed(
        "a pooler is told of once",
        f"{PG}.notify",
        "unit/harvest/databases/test_notify.py::test_a_pooler_is_told_of_once_and_looked_for_again",
        ("PostgresListener._tell_of_pooler", "            self._told_of_pooler = True\n", ""),
    ),
    noticed(
        "who stops listening has the harvester look by itself",
        f"{PG}.notify",
        "unit/harvest/databases/test_notify.py::test_a_pooler_is_told_of_once_and_looked_for_again",
        (
            "PostgresListener._run",
            "                signal.listening = False\n                signal.wake()\n",
            "                signal.listening = False\n",
        ),
    ),
    noticed(
        "rows of no partition are kept for seconds",
        f"{MY}.partitions",
        "integration/harvest/databases/test_mariadb_partitions.py::test_rows_of_no_partition_are_deleted_when_they_are_old_enough",
        ("MysqlPartitions.sweep", "int(retain_s * 1e6)", "int(retain_s * 1e3)"),
    ),
    noticed(
        "who has changed partitions lets go of the lock",
        f"{MY}.partitions",
        "integration/harvest/databases/test_mariadb_partitions.py::test_who_is_done_is_in_nobodys_way",
        (
            "MysqlPartitions._managing",
            '                self._execute("SELECT RELEASE_LOCK(%s)", (lock,))\n',
            "",
        ),
    ),
    noticed(
        "what is no lock is an error",
        f"{MY}.partitions",
        "integration/harvest/databases/test_mariadb_partitions.py::test_what_is_no_lock_is_an_error",
        (
            "MysqlPartitions._managing",
            "            if code not in _IN_THE_WAY:\n                raise\n",
            "            del code\n",
        ),
    ),
    noticed(
        "the age of a row in SQLite is in seconds",
        f"{LITE}.mark",
        "unit/harvest/databases/test_sqlite_mark.py::test_the_age_of_the_oldest_row_is_in_seconds",
        ("", "* 86400.0)", "* 1440.0)"),
    ),
    noticed(
        "dead letters in SQLite are those of range mode, too",
        f"{LITE}.dead_letters",
        "unit/harvest/databases/test_sqlite_mark.py::test_dead_letters_are_those_of_either_mode",
        ("SqliteDeadLetters", "_marked = False  # of either mode", "_marked = True"),
    ),
    noticed(
        "what is not archived is not dropped",
        "harvest.maintenance.partitions",
        "unit/harvest/maintenance/test_partitions.py::test_with_an_archive_only_what_is_in_it_goes_and_as_it_is_there",
        (
            "carry_out",
            "            unarchived.append((partition, str(error)))\n            continue\n",
            "            unarchived.append((partition, str(error)))\n            extent = None\n",
        ),
    ),
    noticed(
        "rows of no partition are in no archive",
        "harvest.maintenance.partitions",
        "unit/harvest/maintenance/test_partitions.py::test_with_an_archive_only_what_is_in_it_goes_and_as_it_is_there",
        (
            "carry_out",
            "todo.sweep_below is not None and archive is None",
            "todo.sweep_below is not None",
        ),
    ),
    noticed(
        "a shard that comes later is told that somebody listens",
        f"{RUN}.wake",
        "unit/harvest/runtime/test_wake.py::test_all_shards_are_woken_and_told_whether_somebody_listens",
        (
            "WakeEvents.add",
            "        event.listening = self.listening\n        return event",
            "        return event",
        ),
    ),
    noticed(
        "a trace that the application has given stays",
        "harvest.outbox.trace_context",
        "unit/harvest/outbox/test_trace_context.py::test_a_context_that_the_application_has_given_stays",
        ("with_trace_context", " if name not in had]", "]"),
    ),
    noticed(
        "a table of MySQL has a number where ids are the position",
        f"{MY}.sources",
        "unit/harvest/databases/test_mysql_sources.py::test_where_ids_are_the_position_a_table_has_a_number",
        (
            "MysqlSources._table_number",
            '        if self._marked:\n            return ""  # ids may begin anew\n',
            '        if not self._marked:\n            return ""\n',
        ),
    ),
    noticed(
        "of two who register with MySQL at once neither fails",
        f"{MY}.sources",
        "unit/harvest/databases/test_mysql_sources.py::test_of_two_who_register_at_once_neither_fails",
        ("MysqlSources", '"INSERT IGNORE", 1)', '"INSERT", 1)'),
    ),
    noticed(
        "a row of archive and table is published again once",
        f"{RUN}.replay",
        "unit/harvest/runtime/test_replay.py::test_a_row_that_is_in_the_archive_and_the_table_comes_once",
        ("_rows", "        if row.id != last_id:\n", "        if row.id != 0:\n"),
    ),
    noticed(
        "what is in a gap is not published again",
        f"{RUN}.replay",
        "unit/harvest/runtime/test_replay.py::test_what_the_slowest_shard_may_still_publish_is_not_published_again",
        ("_check_published", "0 if p is None else p.low_id", "0 if p is None else p.last_id + 1"),
    ),
    noticed(
        "what is refused again and again is not tried until the end",
        f"{KAFKA}.clients",
        "unit/harvest/sinks/test_kafka_clients.py::test_what_is_refused_again_and_again_is_not_tried_until_the_end",
        (
            "connected_admin",
            "errors.nobody_answers or errors.repeated or",
            "errors.nobody_answers or",
        ),
    ),
    noticed(
        "what may not be asked for is not judged",
        f"{RUN}.kafka_check",
        "unit/harvest/runtime/test_kafka_check.py::test_settings_that_may_not_be_asked_for_are_not_judged",
        (
            "_check_topic",
            "    if not about:  # we may not ask: what the settings are is not known\n",
            "    if not replicas:\n",
        ),
    ),
    noticed(
        "a table that is missing is let go",
        f"{RUN}.process",
        "unit/harvest/runtime/test_process.py::test_a_table_that_is_missing_is_told_before_kafka_hears_of_anything",
        (
            "_check_table",
            "        with closing(make_store(config)) as store:\n            store.connect()\n",
            "        make_store(config).connect()\n",
        ),
    ),
)
