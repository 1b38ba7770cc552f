"""Bugs in modules that read, write and run, each with the test that notices it.

Nobody looked at the tests when they were planted. Most of the tests start a database or Kafka, so
no campaign of `tests.mutation` tries these: ``python -m tests.mutation.modules`` does.
"""

from __future__ import annotations

from tests.mutation.mutants.modules_commands import COMMANDS
from tests.mutation.mutants.modules_coordination import COORDINATION
from tests.mutation.mutants.modules_databases import DATABASES
from tests.mutation.mutants.modules_harvest import HARVESTERS
from tests.mutation.mutants.modules_protocol import PROTOCOL_MODULES
from tests.mutation.mutants.modules_spark import SPARK
from tests.mutation.mutants.noticed import Noticed, noticed

__all__ = ["MODULES"]

PG = "harvest.databases.postgres"
MY = "harvest.databases.mysql"
LITE = "harvest.databases.sqlite"
RUN = "harvest.runtime"
CLIENT = "marshal_py.client"
CONSUMER = "marshal_py.consumer"
ADMIN = "marshal_py.admin"

MODULES: tuple[Noticed, ...] = (
    *HARVESTERS,
    *COORDINATION,
    *PROTOCOL_MODULES,
    *COMMANDS,
    *SPARK,
    *DATABASES,
    noticed(
        "who replayed for long looks again before it founds a log",
        f"{CLIENT}.driver",
        "integration/marshal_py/client/test_topic_made_anew.py::test_who_replayed_for_long_founds_no_log_that_others_have_founded_meanwhile",
        (
            "Driver._found",
            "(state.next_offset >= end or now_s >= first_s)",
            "True",
        ),
    ),
    noticed(
        "a log may end with what are no records",
        f"{CLIENT}.driver",
        "integration/marshal_py/client/test_topic_made_anew.py::test_a_log_that_ends_with_a_transaction_is_founded",
        (
            "Driver._found",
            "(state.next_offset >= end or now_s >= first_s)",
            "state.next_offset >= end",
        ),
    ),
    noticed(
        "offsets are not asked for on the connection that fetches",
        f"{CLIENT}.log_reader",
        "unit/marshal_py/client/test_log_reader.py::test_offsets_are_not_asked_for_behind_a_fetch",
        (
            "LogReader.check_founding",
            "begins = brokers.first_offsets(",
            "begins = self._metadata.first_offsets(",
        ),
    ),
    noticed(
        "a transaction that does not begin, or is not committed, is told as what it is",
        f"{PG}.table",
        "integration/harvest/databases/test_lost_sessions.py::test_an_ended_session_is_told_and_the_next_call_has_a_new_one[visit]",
        (
            "PostgresTable._transaction",
            "except psycopg.Error as error:",
            "except ZeroDivisionError as error:",
        ),
    ),
    noticed(
        "who moves rows aside and back locks the table",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_nothing_begins_to_wait_behind_a_row_that_is_being_put_back[postgres]",
        ("PostgresDeadLetters._transaction", "self._execute(self._format(_LOCK))", "pass"),
    ),
    noticed(
        "of rows that cannot be read, the lowest is what others wait behind",
        f"{PG}.dead_letters",
        "integration/harvest/databases/test_unreadable_rows.py::test_mark_mode_marks_every_row_and_says_which_cannot_be_read",
        (
            "PostgresDeadLetters.waiting_keys",
            "min(id, lowest.get((topic, key), id))",
            "id",
        ),
    ),
    noticed(
        "ids are counted before those who hold them are looked for",
        f"{PG}.range",
        "contract/test_range_store.py::test_what_is_drawn_while_the_holders_are_looked_for_is_not_dead[postgres]",
        (
            "PostgresRangeStore.holders",
            "drawn = self._drawn()",
            "pass",
        ),
        (
            "PostgresRangeStore.holders",
            "Holders(running, nameless, drawn)",
            "Holders(running, nameless, self._drawn())",
        ),
    ),
    noticed(
        "a copy of a position never goes back",
        f"{PG}.range",
        "contract/test_range_store.py::test_copies_only_move_forward[postgres]",
        ("", "WHERE p.last_id <= excluded.last_id", "WHERE p.last_id >= excluded.last_id"),
    ),
    noticed(
        "a sequence that was never used has drawn what lies below its first",
        f"{PG}.range",
        "integration/harvest/databases/test_postgres_range.py::test_ids_may_begin_anywhere",
        (
            "PostgresRangeStore._drawn",
            "self._sequence.first - 1 if drawn is None",
            "0 if drawn is None",
        ),
    ),
    noticed(
        "one column may be two headers of a shard's rows",
        f"{PG}.range",
        "integration/harvest/databases/test_extra_columns.py::test_range_mode_has_them",
        (
            "PostgresRangeStore._looked_up",
            "dict.fromkeys(self._extra.values())",
            "self._extra.values()",
        ),
    ),
    noticed(
        "a copy of a position has fewer gaps later",
        f"{PG}.range",
        "contract/test_range_store.py::test_copies_only_move_forward[postgres]",
        (
            "",
            "WHERE p.last_id <= excluded.last_id",
            "WHERE p.last_id < excluded.last_id",
        ),
    ),
    noticed(
        "another server has another clock",
        f"{PG}.mark",
        "contract/test_mark_store.py::test_another_server_is_asked_for_its_clock[postgres]",
        ("PostgresMarkStore._forget", 'self._clock_asked_s = float("-inf")', "pass"),
    ),
    noticed(
        "a mark is valid from before the table is looked at",
        f"{PG}.mark",
        "contract/test_mark_store.py::test_connecting_takes_of_the_time_that_a_mark_has[postgres]",
        (
            "PostgresMarkStore.mark",
            "until_s += self._clock_ahead_s()",
            "until_s = self._clock_ahead_s() + boottime_s() + valid_ms / 1000",
        ),
    ),
    noticed(
        "who does not listen any more says so",
        f"{PG}.notify",
        "integration/harvest/databases/test_postgres_notify.py::test_who_cannot_connect_again_does_not_say_that_it_listens",
        ("PostgresListener._run", "signal.listening = False", "pass"),
    ),
    noticed(
        "who was given up is not counted on",
        f"{PG}.attempts",
        "integration/harvest/databases/test_attempts.py::test_its_columns_are_added_when_there_is_something_to_write",
        ("", ' WHERE NOT gave_up"', '"'),
    ),
    noticed(
        "the name of a destination may have quotes",
        f"{PG}.attempts",
        "integration/harvest/databases/test_attempts.py::test_names_of_destinations_come_back_as_they_are",
        (
            "_array",
            """name.replace("\\\\", "\\\\\\\\").replace('"', '\\\\"')""",
            """name.replace('"', '\\\\"').replace("\\\\", "\\\\\\\\")""",
        ),
    ),
    noticed(
        "who waits, waits behind an earlier row",
        "harvest.databases.portable_dead_letters",
        "contract/test_dead_letters.py::test_nothing_waits_behind_a_later_row[sqlite]",
        ("PortableDeadLetters.add", "waiting.get(key, row.id) >= row.id", "key not in waiting"),
    ),
    noticed(
        "times are compared in UTC",
        "harvest.databases.portable_dead_letters",
        "contract/test_dead_letters.py::test_rows_are_selected_by_what_is_given[sqlite]",
        ("PortableDeadLetters._condition", "time.astimezone(UTC).strftime", "time.strftime"),
    ),
    noticed(
        "a shard that is behind has all above its position to publish",
        f"{RUN}.checkpoints",
        "unit/harvest/core/test_gaps.py::test_divided_anew_each_row_is_still_to_be_published_once",
        (
            "divided",
            "rest = [(position.last_id + 1, last_id)]",
            "rest = [(position.last_id + 2, last_id)]",
        ),
    ),
    noticed(
        "what one shard has found dead is dead",
        f"{RUN}.checkpoints",
        "unit/harvest/core/test_gaps.py::test_divided_anew_each_row_is_still_to_be_published_once",
        ("divided", "unseen = subtract(candidates, there)", "unseen: list[Range] = []"),
    ),
    noticed(
        "all leaders are shut out before positions are written",
        f"{RUN}.checkpoints",
        "unit/harvest/runtime/test_checkpoints.py::test_all_leaders_are_shut_out_before_anything_is_written",
        (
            "Checkpoints._write",
            "[self._fenced(name) for name in fenced]",
            "[self._fenced(name) for name in fenced[: len(texts)]]",
        ),
    ),
    noticed(
        "what is behind the position is not deleted as published",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_what_range_mode_has_published_is_deleted_and_nothing_else",
        ("_delete_published", ".upto(position.last_id)", ""),
    ),
    noticed(
        "what waits in a gap is not deleted as published",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_what_range_mode_has_published_is_deleted_and_nothing_else",
        ("_is_open", "low <= row_id <= high", "low < row_id <= high"),
    ),
    noticed(
        "the new configuration is registered last",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_who_was_interrupted_is_not_registered",
        (
            "switch",
            "Checkpoints(old).fence()",
            "Checkpoints(old).fence()\n                store.register_anew(ours)",
        ),
    ),
    noticed(
        "what begins to be committed at the place is the next mode's",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_what_begins_to_be_committed_behind_the_place_is_left",
        ("_publish_up_to", "chunk.commit_lsn < lsn", "chunk.commit_lsn <= lsn"),
    ),
    noticed(
        "the checkpoint fits a new slot only when the whole table is published",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_who_was_interrupted_publishes_the_whole_table_when_it_is_repeated",
        ("_renewed", "_deliver(sink, last, found)", "_deliver(sink, last, position.encode())"),
    ),
    noticed(
        "a partition waits for every shard",
        f"{RUN}.partition_upkeep",
        "unit/harvest/runtime/test_partition_upkeep.py::test_the_slowest_shard_keeps_a_partition",
        (
            "maintain_partitions",
            "for shard in range(config.shards)]\n        todo",
            "for shard in range(1)]\n        todo",
        ),
    ),
    noticed(
        "a transaction is undone when it cannot go on",
        f"{LITE}.table",
        "integration/harvest/databases/test_sqlite.py::test_a_statement_that_fails_leaves_no_transaction_open",
        ("SqliteTable._writing", 'connection.execute("ROLLBACK")', "pass"),
    ),
    noticed(
        "commits are on the disk where they have to be",
        f"{LITE}.table",
        "integration/harvest/databases/test_sqlite.py::test_commits_wait_for_the_disk_where_they_have_to",
        ("SqliteTable._connected", "if self._durable else", "if not self._durable else"),
    ),
    noticed(
        "a lock that is not got in time is not held",
        f"{MY}.dead_letters",
        "integration/harvest/databases/test_mariadb.py::test_who_does_not_get_the_lock_in_time_moves_nothing",
        ("MysqlDeadLetters._moving", "if not locked:", "if locked is None:"),
    ),
    noticed(
        "an older copy of the list of transactions is no look",
        f"{MY}.range",
        "integration/harvest/databases/test_mariadb.py::test_an_older_copy_of_the_list_of_transactions_is_not_believed",
        ("MysqlRangeStore._look", "any(own and marked for", "any(own for"),
    ),
    noticed(
        "a position that is older replaces no part of a newer one",
        f"{MY}.range",
        "contract/test_range_store.py::test_copies_only_move_forward[mariadb]",
        (
            "MysqlRangeStore",
            "IF(last_id <= VALUES(last_id), VALUES(checkpoint), checkpoint)",
            "VALUES(checkpoint)",
        ),
    ),
    noticed(
        "what is committed while published rows are deleted stays",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_what_is_committed_while_published_rows_are_deleted_stays",
        ("PostgresWalSource.purge", "REPEATABLE READ", "READ COMMITTED"),
    ),
    noticed(
        "a publication that leaves rows out is refused",
        f"{PG}.wal",
        "integration/harvest/databases/test_postgres_wal.py::test_a_publication_without_all_rows_and_columns_is_refused",
        ("PostgresWalSource._publication_findings", 'get("rowfilter")', 'get("row_filter")'),
    ),
    noticed(
        "a slot keeps the log of transactions that are not confirmed yet",
        f"{PG}.slot",
        "unit/harvest/databases/test_slot.py::test_it_keeps_the_log_from_its_oldest_transaction_on_not_from_what_is_confirmed",
        ("PostgresSlot.health", "end - slot.restart_lsn", "end - (slot.confirmed_lsn or 0)"),
    ),
    noticed(
        "a slot that is lost soon is a warning",
        f"{PG}.slot",
        "unit/harvest/databases/test_slot.py::test_it_is_a_warning_when_less_is_left_than_a_quarter_of_what_it_keeps",
        (
            "PostgresSlot._cost",
            "health.safe_bytes < health.pinned_bytes // 4",
            "health.safe_bytes > health.pinned_bytes // 4",
        ),
    ),
    noticed(
        "orphans are looked for in the order of their ids",
        "harvest.outbox.outbound_stasher",
        "integration/harvest/databases/test_two_databases.py::test_orphans_are_found_in_whatever_order_they_are_stored",
        ("", "ORDER BY id LIMIT", "LIMIT"),
    ),
    noticed(
        "an empty value in a row is no tombstone",
        "harvest.outbox.stasher",
        "unit/harvest/outbox/test_stasher.py::test_an_empty_value_is_no_tombstone",
        ("Stasher._values", "None if value is None else", "None if not value else"),
    ),
    noticed(
        "an empty value in a message is no tombstone",
        "harvest.outbox.stasher",
        "contract/test_wal_source.py::test_an_empty_value_is_no_tombstone[message]",
        ("Stasher._contents", "None if its.value is None else", "None if not its.value else"),
    ),
    noticed(
        "who wants ids needs a transaction, too",
        "harvest.outbox.stasher",
        "integration/harvest/databases/test_postgres_mark.py::test_psycopg_without_a_transaction_is_refused",
        (
            "Stasher.stash_returning",
            "target.require_transaction()",
            "pass",
        ),
    ),
    noticed(
        "messages are for PostgreSQL alone",
        "harvest.outbox.stasher",
        "unit/harvest/outbox/test_stasher.py::test_messages_are_for_postgresql_alone",
        (
            "Stasher._emit",
            "if not target.arrays:",
            "if target.arrays is None:",
        ),
    ),
    noticed(
        "a connection that commits by itself has no transaction",
        "harvest.outbox.connection_adapters",
        "integration/harvest/databases/test_mariadb.py::test_a_stash_without_a_transaction_is_refused",
        ("", "_IN_TRANSACTION: Final = 1", "_IN_TRANSACTION: Final = 2"),
    ),
    noticed(
        "who is in AUTOCOMMIT has no transaction",
        "harvest.outbox.connection_adapters",
        "integration/harvest/databases/test_postgres_mark.py::test_sqlalchemy",
        ("_SqlAlchemy.require_transaction", '== "AUTOCOMMIT"', '== "autocommit"'),
    ),
    noticed(
        "who is in autocommit, in small letters, has no transaction",
        "harvest.outbox.connection_adapters",
        "unit/harvest/outbox/test_stasher.py::test_sqlalchemy_in_autocommit_is_refused_however_that_is_written",
        ("_SqlAlchemy.require_transaction", "str(level).upper()", "level"),
    ),
    noticed(
        "an asynchronous session of a scope is asynchronous",
        "harvest.outbox.connection_adapters",
        "unit/harvest/outbox/test_stasher.py::test_an_asynchronous_session_of_a_scope_is_one",
        ("", '    "async_scoped_session",\n', ""),
    ),
    noticed(
        "a SQLAlchemy engine in AUTOCOMMIT has no transaction",
        "harvest.outbox.connection_adapters",
        "unit/harvest/outbox/test_stasher.py::test_sqlalchemy_whose_engine_or_driver_commits_by_itself_is_refused",
        ("_SqlAlchemy.require_transaction", '"_on_connect_isolation_level"', '"isolation_level"'),
    ),
    noticed(
        "a driver under SQLAlchemy that commits by itself has no transaction",
        "harvest.outbox.connection_adapters",
        "unit/harvest/outbox/test_stasher.py::test_sqlalchemy_whose_engine_or_driver_commits_by_itself_is_refused",
        ("_SqlAlchemy.require_transaction", "if is_told and", "if not is_told and"),
    ),
    noticed(
        "SQLite of Python 3.12 that commits by itself has no transaction",
        "harvest.outbox.connection_adapters",
        "unit/harvest/outbox/test_stasher.py::test_a_connection_that_commits_by_itself_since_python_3_12_is_refused",
        ("_commits_by_itself", ' or _is_on(connection, "autocommit")', ""),
    ),
    noticed(
        "any driver that commits by itself has no transaction",
        "harvest.outbox.connection_adapters",
        "unit/harvest/outbox/test_stasher.py::test_a_driver_that_commits_by_itself_is_refused",
        ("_commits_by_itself", 'return _is_on(connection, "autocommit")', "return False"),
    ),
    noticed(
        "any driver in a transaction is believed",
        "harvest.outbox.connection_adapters",
        "unit/harvest/outbox/test_stasher.py::test_a_driver_that_commits_by_itself_is_refused",
        ("_commits_by_itself", ' or _is_on(connection, "_in_transaction")', ""),
    ),
    noticed(
        "no header of NATS can pass for another",
        "harvest.sinks.nats",
        "contract/test_destination.py::test_no_header_can_pass_for_another",
        ("NatsSink._headers", ' or "\\r" in said or "\\n" in said', ""),
    ),
    noticed(
        "a connection to NATS that was lost is made again",
        "harvest.sinks.nats",
        "contract/test_destination.py::test_when_its_server_goes_another_one_is_connected_to",
        ("NatsSink._connected", " or not self._client.is_connected", ""),
    ),
    noticed(
        "the deadline of a request holds over TLS",
        "harvest.sinks.http.deadline",
        "unit/harvest/sinks/test_http_exchange.py::test_every_step_ends_at_the_deadline",
        ("_Stream.start_tls", "return _Stream(stream, self._deadline)", "return stream"),
    ),
    noticed(
        "who answers without reading on is heard",
        "harvest.sinks.http.deadline",
        "unit/harvest/sinks/test_http_exchange.py::test_who_answers_and_reads_no_more_is_heard",
        ("_Stream.read", "contextlib.suppress(httpcore.WriteError)", "contextlib.suppress()"),
    ),
    noticed(
        "the last id that is asked for is in the archive, too",
        "harvest.maintenance.archive",
        "integration/harvest/maintenance/test_archive.py::test_what_is_dropped_is_in_the_archive",
        ("ParquetArchive.read", "file.low > high", "file.low >= high"),
    ),
    noticed(
        "a file gets its name when it has what was counted",
        "harvest.maintenance.archive",
        "integration/harvest/maintenance/test_archive.py::test_a_file_that_does_not_have_what_was_counted_gets_no_name",
        ("ParquetArchive._write", "if found != wanted:", "if found is None:"),
    ),
    noticed(
        "who leads anew has not seen a topic missing",
        f"{RUN}.waiting_topics",
        "unit/harvest/runtime/test_waiting_topics.py::test_what_was_seen_before_another_led_is_not_enough",
        ("WaitingTopics._run", "self._seen = set()", "pass"),
    ),
    noticed(
        "an outage does not end the look for topics",
        f"{RUN}.waiting_topics",
        "unit/harvest/runtime/test_waiting_topics.py::test_a_broker_that_does_not_answer_is_asked_again",
        ("WaitingTopics._run", "except (HarvestError, KafkaException)", "except HarvestError"),
    ),
    noticed(
        "what is published is looked up each time",
        f"{RUN}.partition_upkeep",
        "unit/harvest/runtime/test_partition_upkeep.py::test_in_wal_mode_each_look_at_what_is_published_is_a_new_one",
        (
            "_saved_place",
            "    def lsn() -> int:\n        found = checkpoints.wal()\n",
            "    found = checkpoints.wal()\n\n    def lsn() -> int:\n",
        ),
    ),
    noticed(
        "the backlog is counted from the shard that is farthest behind",
        f"{LITE}.range",
        "contract/test_range_store.py::test_the_backlog_is_that_of_all_shards_with_their_gaps[sqlite]",
        ("SqliteRangeStore.backlog", "min(after)", "max(after)"),
    ),
    noticed(
        "what holders committed before they were looked for is to be seen",
        f"{PG}.two_databases",
        "unit/harvest/databases/test_two_databases.py::test_a_replica_is_waited_for_that_does_not_show_what_holders_committed",
        (
            "TwoDatabasesStore.holders",
            "holders = self._primary.holders()\n        ",
            "",
        ),
        ("TwoDatabasesStore.holders", "return holders", "return self._primary.holders()"),
    ),
    noticed(
        "who is used again after a close is not cancelled",
        f"{PG}.two_databases",
        "unit/harvest/databases/test_two_databases.py::test_who_was_cancelled_and_closed_waits_again_when_it_is_used_again",
        ("TwoDatabasesStore.close", "self._cancelled.clear()", "pass"),
    ),
    noticed(
        "every partition has a leader when a topic has been made",
        f"{CLIENT}.topics",
        "unit/marshal_py/client/test_topics.py::test_every_partition_is_waited_for_until_it_has_a_leader",
        ("_await_leaders", "all(part.leader", "any(part.leader"),
    ),
    noticed(
        "the topic of snapshots has as many partitions",
        f"{CLIENT}.topics",
        "unit/marshal_py/client/test_topics.py::test_snapshots_have_as_many_partitions_as_the_topic_that_was_there",
        ("create_topics", 'choices["partitions"] = len(there.partitions)', "pass"),
    ),
    noticed(
        "brokers without ids tell none",
        f"{CLIENT}.topic_watch",
        "unit/marshal_py/client/test_topic_watch.py::test_brokers_without_ids_tell_none",
        ("TopicWatch._take", "None if topic_id == _NO_ID else topic_id", "topic_id"),
    ),
    noticed(
        "a genesis is looked for behind the records of others",
        f"{CLIENT}.genesis",
        "unit/marshal_py/client/test_genesis.py::test_what_the_first_records_tell_is_found_behind_those_of_others",
        ("counts_told", "continue", "break"),
    ),
    noticed(
        "a partition with nothing but its genesis tells, too",
        f"{CLIENT}.genesis",
        "unit/marshal_py/client/test_genesis.py::test_what_the_first_records_tell_is_found_behind_those_of_others",
        (
            "counts_told",
            "first == 0 < end",
            "first == 0 < end - 1",
        ),
    ),
    noticed(
        "a partition without a leader has not ended",
        f"{CLIENT}.log_metadata",
        "unit/marshal_py/client/test_log_metadata.py::test_a_partition_without_a_leader_is_asked_for_again",
        (
            "LogMetadata._offsets",
            "p.error is None and (p.offset >= 0 or which >= 0)",
            "p.offset >= 0 or which >= 0",
        ),
    ),
    noticed(
        "snapshots that may be read again are not denied",
        f"{CLIENT}.log_metadata",
        "unit/marshal_py/client/test_log_metadata.py::test_snapshots_that_are_to_be_seen_again_are_not_denied_any_more",
        (
            "LogMetadata._snapshot_partitions",
            "found = self.snapshots_denied = None",
            "found = None",
        ),
    ),
    noticed(
        "a signal stops all that run",
        f"{CLIENT}.signals",
        "unit/marshal_py/client/test_signals.py::test_ctrl_c_stops_all_that_run_and_a_second_one_waits_for_none",
        (
            "_on_signal",
            "    taken = [requests.take(number) for requests in list(_entered)]  # all of them\n"
            "    if not any(taken):",
            "    if not any(requests.take(number) for requests in list(_entered)):",
        ),
    ),
    noticed(
        "topics are gone after looks in a row",
        f"{CONSUMER}.topics",
        "unit/marshal_py/consumer/test_topics.py::test_a_topic_is_gone_when_looks_in_a_row_have_not_found_it",
        ("Topics._look", "if t not in found}", "}"),
    ),
    noticed(
        "an id that is not told is no other id",
        f"{CONSUMER}.topics",
        "unit/marshal_py/consumer/test_fetcher.py::test_there_is_another_when_a_topic_has_another_id",
        ("Topics.note_ids", "if new and new not in", "if new not in"),
    ),
    noticed(
        "an id that another has replaced does not come back",
        f"{CONSUMER}.topics",
        "unit/marshal_py/consumer/test_fetcher.py::test_an_id_that_a_broker_tells_who_lags_is_passed_over",
        ("Topics.note_ids", " and new not in self._past_ids", ""),
    ),
    noticed(
        "a broker that lags tells of no other log",
        f"{CLIENT}.log_reader",
        "unit/marshal_py/client/test_log_reader.py::test_a_broker_that_lags_and_tells_of_the_topic_before_is_not_believed",
        ("LogReader._look", "facts is None or self._is_past(facts)", "facts is None"),
    ),
    noticed(
        "a log is not opened as a broker that lags tells of it",
        f"{CLIENT}.log_reader",
        "unit/marshal_py/client/test_log_reader.py::test_a_broker_that_lags_and_tells_of_the_topic_before_is_not_believed",
        ("LogReader._describe", " and not is_past", ""),
    ),
    noticed(
        "an offset that is not told is not the start",
        f"{CLIENT}.committed",
        "unit/marshal_py/consumer/test_transactions.py::test_an_offset_that_is_not_told_is_asked_for_again_and_no_reason_to_begin_at_the_start",
        ("committed", "if answer.error is not None:", "if answer is None:"),
    ),
    noticed(
        "who was the group's coordinator once is not believed, nor asked for ever",
        f"{CONSUMER}.transactions",
        "unit/marshal_py/consumer/test_transactions.py::test_one_that_may_not_be_read_is_asked_for_anew_by_another_consumer",
        (
            "Transactions._open",
            "            self._nobody = self._connect(KafkaConsumer, self._reader_config)\n",
            "",
        ),
    ),
    noticed(
        "others are fenced before it is read how far they came",
        f"{CONSUMER}.transactions",
        "unit/marshal_py/consumer/test_transactions.py::test_others_are_fenced_before_it_is_read_how_far_they_came",
        (
            "Transactions._open",
            "        self._step(claim, lambda: producer.init_transactions(STEP_S))\n",
            "",
        ),
        (
            "Transactions._open",
            "        return _ClaimProducer(",
            "        self._step(claim, lambda: producer.init_transactions(STEP_S))\n"
            "        return _ClaimProducer(",
        ),
    ),
    noticed(
        "a position that another mirrored meanwhile is mirrored again",
        f"{CONSUMER}.offset_mirror",
        "unit/marshal_py/consumer/test_offset_mirror.py::test_what_has_moved_is_written_and_what_comes_back_too",
        ("OffsetMirror._round", "self._written = now", "self._written |= now"),
    ),
    noticed(
        "claims that are about to be released are mirrored",
        f"{CONSUMER}.offset_mirror",
        "unit/marshal_py/consumer/test_offset_mirror.py::test_what_was_held_at_the_end_is_written_after_it_was_released",
        ("OffsetMirror.keep", "self._claims = lambda: claims", "pass"),
    ),
    noticed(
        "who has not read to the end does not end as if he had",
        f"{CLIENT}.kafka_clients",
        "unit/marshal_py/client/test_read_to_end.py::test_who_has_not_read_all_does_not_end_as_if_he_had",
        (
            "read_to_end",
            'raise BrokerUnavailable(f"no answer while reading {topic!r}")',
            "return",
        ),
    ),
    noticed(
        "the cause is told when the time is up",
        f"{CLIENT}.log_metadata",
        "unit/marshal_py/client/test_log_metadata.py::test_the_cause_is_told_whenever_the_time_is_up",
        (
            "LogMetadata._offsets",
            "            else:\n                self._pause(deadline, ",
            "            if True:\n                self._pause(deadline, ",
        ),
    ),
    noticed(
        "a process of another group is no twin",
        f"{CONSUMER}.assignment",
        "unit/marshal_py/consumer/test_assignment.py::test_whoever_is_of_another_group_or_name_is_no_twin",
        ("Assignment._on_events", "and event.group_id == me.group_id", ""),
    ),
    noticed(
        "a twin that is silent has gone",
        f"{CONSUMER}.assignment",
        "unit/marshal_py/consumer/test_assignment.py::test_a_twin_that_has_gone_or_that_was_started_anew_is_waited_for",
        ("Assignment._look_for_a_twin", " or now_s - last_s > 2 * interval_s", ""),
    ),
    noticed(
        "a commit that one partition refuses has failed",
        f"{ADMIN}.positions",
        "unit/marshal_py/admin/test_positions.py::test_a_commit_that_one_partition_refuses_has_failed",
        ("write_committed_offsets", "if written.error is not None:", "if written is None:"),
    ),
    noticed(
        "after the last message there is none so young",
        f"{ADMIN}.positions",
        "unit/marshal_py/admin/test_positions.py::test_after_the_last_message_there_is_none_so_young",
        ("offsets_at", "None if offset < 0 else offset", "offset"),
    ),
    noticed(
        "a recovery goes by the newest snapshot",
        f"{ADMIN}.log_recovery",
        "unit/marshal_py/admin/test_log_recovery.py::test_the_newest_snapshot_that_can_be_read_counts",
        (
            "_newest_states",
            "newest[found.coordinator] = found.snapshot.restore()",
            "newest.setdefault(found.coordinator, found.snapshot.restore())",
        ),
    ),
    noticed(
        "a slot that nobody holds shows",
        f"{ADMIN}.lag",
        "unit/marshal_py/admin/test_lag.py::test_a_slot_that_nobody_holds_or_a_dead_member_shows",
        ("_together", "if all(part.holder is not None for part in parts)", "if holders"),
    ),
    noticed(
        "a lag that one slot does not tell is not known",
        f"{ADMIN}.lag",
        "unit/marshal_py/admin/test_lag.py::test_what_one_slot_does_not_tell_is_not_known",
        ("_together", "max(lags) if is_known", "max(lags) if lags"),
    ),
    noticed(
        "count and sum are two numbers",
        "marshal_py.telemetry.opentelemetry",
        "unit/marshal_py/telemetry/test_opentelemetry.py::test_each_number_has_an_instrument_of_its_own_until_the_block_ends",
        ("_Shown._observe", "if suffix and sample.name != name + suffix:", "if sample is None:"),
    ),
    noticed(
        "what has ended says nothing more",
        "marshal_py.telemetry.opentelemetry",
        "unit/marshal_py/telemetry/test_opentelemetry.py::test_each_number_has_an_instrument_of_its_own_until_the_block_ends",
        ("_Shown.remove", "each for each in self._looks if each is not look", "self._looks"),
    ),
    noticed(
        "an instrument that is there asks a second source, too",
        "marshal_py.telemetry.opentelemetry",
        "unit/marshal_py/telemetry/test_opentelemetry.py::test_each_of_several_is_shown_while_its_block_lasts_and_let_go_then",
        ("_shown_by", "_shown.setdefault(meter, _Shown())", "_Shown()"),
    ),
    noticed(
        "before a provider is set, all are shown by one meter",
        "marshal_py.telemetry.opentelemetry",
        "unit/marshal_py/telemetry/test_opentelemetry.py::test_several_are_shown_that_began_before_a_provider_was_set",
        ("export_metrics", "meter or _default_meter()", "meter or metrics.get_meter(_NAME)"),
    ),
    noticed(
        "a pause that ends too early is made longer",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_a_group_is_paused_for_as_long_as_the_block_may_take",
        (
            "GroupAdmin.while_paused",
            "before is not None and before.expires_at_ms >= until_ms",
            "before is not None",
        ),
    ),
    noticed(
        "what was claimed at most once does not come again in other slots",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_all_go_on_where_the_last_was_or_at_most_once_where_the_first_was",
        (
            "GroupAdmin._plan_slots",
            "max(known.values()) if is_claimed else",
            "min(known.values()) if is_claimed else",
        ),
    ),
    noticed(
        "a pause is ended though it was not seen to be accepted",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_a_pause_of_which_nothing_was_heard_is_ended_all_the_same",
        (
            "GroupAdmin.while_paused",
            "self._restore(before, None if was_read else until_ms)",
            "self._restore(before)",
        ),
    ),
    noticed(
        "after Ctrl-C the log is read again before the group is left as it was",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_a_pause_of_which_nothing_was_heard_is_ended_all_the_same",
        (
            "GroupAdmin.while_paused",
            "self._log.replay()",
            "pass",
        ),
    ),
    noticed(
        "of slots the lowest is where Kafka's own consumers go on",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_kafka_goes_on_where_the_last_slot_is",
        (
            "GroupAdmin._align_kafka",
            "min(change.after, after.get(source, change.after))",
            "change.after",
        ),
    ),
    noticed(
        "a resume looks first what stands",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_a_resume_looks_first_what_stands",
        (
            "GroupAdmin.resume",
            "self.refresh(timeout_s)",
            "pass",
        ),
    ),
    noticed(
        "positions are written though the wait took all the time",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_what_was_waited_for_until_time_is_up_is_written_all_the_same",
        (
            "GroupAdmin._set",
            "max(1.0, deadline - time.monotonic())",
            "deadline - time.monotonic()",
        ),
    ),
    noticed(
        "a dead holder's range is set free within it",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_a_dead_holders_range_is_set_free_within_it",
        (
            "GroupAdmin._clipped",
            "min(position, found.end)",
            "position",
        ),
    ),
    noticed(
        "a book that gives way to slots is closed",
        f"{ADMIN}.group_admin",
        "integration/marshal_py/cli/test_ranges.py::test_a_book_gives_way_to_slots_and_is_forgotten",
        (
            "GroupAdmin.set_slots",
            "            self._set(books, deadline)\n",
            "            pass\n",
        ),
    ),
    noticed(
        "a level is set from the one that the group has now",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_a_level_is_set_from_the_one_that_the_group_has_now",
        (
            "GroupAdmin.set_level",
            "self.refresh(timeout_s)",
            "pass",
        ),
    ),
    noticed(
        "of those that may use a group, who was heard is named",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_who_was_heard_uses_a_group_and_the_others_are_not_waited_for",
        (
            "GroupAdmin.in_use_by",
            "sorted(heard or doubtful)",
            "sorted(doubtful)",
        ),
    ),
    noticed(
        "a holder that is dead uses no group",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_of_whom_nothing_was_heard_in_time_may_use_a_group",
        (
            "GroupAdmin.in_use_by",
            "if cell.holder is not None and not self._is_stale(key, cell)",
            "if cell.holder is not None",
        ),
    ),
    noticed(
        "who was heard before may have died since",
        f"{ADMIN}.group_admin",
        "unit/marshal_py/admin/test_group_admin.py::test_who_was_heard_uses_a_group_and_the_others_are_not_waited_for",
        (
            "GroupAdmin.in_use_by",
            "self._log.alive.clear()",
            "pass",
        ),
    ),
    noticed(
        "what is fatal is no outage",
        f"{CLIENT}.kafka_clients",
        "unit/marshal_py/client/test_connection_errors.py::test_what_cannot_be_mended_is_kept_apart_from_outages",
        ("connect", "error.fatal() or error.code() in FINAL", "error.code() in FINAL"),
    ),
    noticed(
        "the end of one does not keep a signal from others",
        f"{CLIENT}.signals",
        "unit/marshal_py/client/test_signals.py::test_the_end_of_one_does_not_keep_ctrl_c_from_the_others",
        ("StopRequests.__exit__", "if not _entered and signal.getsignal", "if signal.getsignal"),
    ),
    noticed(
        "callbacks are called while an answer is awaited",
        f"{CLIENT}.topic_watch",
        "unit/marshal_py/client/test_topic_watch.py::test_while_an_answer_is_awaited_callbacks_are_called",
        (
            "TopicWatch.look",
            "        self._asked.poll(0)  # what OAUTHBEARER wants to call\n",
            "",
        ),
    ),
    noticed(
        "who is not well says so by the status",
        "marshal_py.telemetry.status_server",
        "unit/marshal_py/telemetry/test_consumer_status.py::test_health_and_metrics_over_http",
        ("_Handler.do_GET", '200 if health["ok"] else 503', "200 if health else 503"),
    ),
    noticed(
        "nobody waits at a server that has been closed",
        "marshal_py.telemetry.status_server",
        "unit/marshal_py/telemetry/test_consumer_status.py::test_nobody_waits_at_a_server_that_has_been_closed",
        ("StatusServer.close", "self._server.server_close()", "pass"),
    ),
    noticed(
        "a full window says that there may be more",
        f"{LITE}.range",
        "contract/test_range_store.py::test_a_window_has_the_lowest_ids_in_order_with_their_contents[sqlite]",
        ("SqliteRangeStore.read", "gaps, len(found) == limit", "gaps, len(found) > limit"),
    ),
    noticed(
        "what is committed in the primary is no orphan",
        "harvest.outbox.outbound_stasher",
        "integration/harvest/databases/test_two_databases.py::test_orphans_are_archived_when_they_are_old",
        ("archive_orphans", "count += len(orphans)", "count += len(ids)"),
    ),
    noticed(
        "a transaction that failed is open, too",
        "harvest.outbox.outbound_stasher",
        "integration/harvest/databases/test_two_databases.py::test_connections_that_would_write_in_the_wrong_order",
        (
            "OutboundStasher.stash_many",
            "!= TransactionStatus.IDLE",
            "== TransactionStatus.INTRANS",
        ),
    ),
    noticed(
        "a connection in autocommit mode may have a transaction",
        "harvest.outbox.outbound_stasher",
        "integration/harvest/databases/test_two_databases.py::test_connections_that_would_write_in_the_wrong_order",
        (
            "OutboundStasher.stash_many",
            " and primary.info.transaction_status == TransactionStatus.IDLE",
            "",
        ),
    ),
    noticed(
        "who only looks for orphans makes no table",
        "harvest.outbox.outbound_stasher",
        "integration/harvest/databases/test_two_databases.py::test_orphans_are_archived_when_they_are_old",
        (
            "archive_orphans",
            "            if not dry_run:\n",
            "            if not dry_run or connection:\n",
        ),
    ),
    noticed(
        "orphans of no table are an error that is told",
        "harvest.outbox.outbound_stasher",
        "integration/harvest/databases/test_two_databases.py::test_orphans_of_no_table_are_an_error",
        (
            "archive_orphans",
            "except psycopg.Error as error:",
            "except psycopg.OperationalError as error:",
        ),
    ),
    noticed(
        "positions are restored when they are seen to be",
        f"{ADMIN}.log_recovery",
        "unit/marshal_py/admin/test_log_recovery.py::test_positions_are_restored_when_they_are_seen_to_be",
        ("_restore", "row.partition) < row.position:", "row.partition) < 0:"),
    ),
)
