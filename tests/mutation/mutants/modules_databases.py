"""Bugs in what harvesters do with databases, and in what runs them, each with its test.

Of each, somebody thought that the tests might not notice it (see `modules`).
"""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed, noticed

__all__ = ["DATABASES"]

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
        f"{RUN}.range_leader",
        "unit/harvest/runtime/test_range_leader.py::test_a_checkpoint_ahead_of_the_table_is_refused",
        ("_check_bounds", "last_id > bounds.last", "last_id >= bounds.last"),
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
            "registration_problem(store.register(ours), ours)",
            "registration_problem(ours, store.register(ours) and ours)",
        ),
    ),
    noticed(
        "rows that some destinations have keep a relay what it is",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_rows_that_some_destinations_have_keep_a_relay_what_it_is",
        ("_refuse_half_sent", "    if count:\n", "    if count > 1:\n"),
    ),
)
