"""Bugs in modules that read, write and run, each with the test that notices it.

Nobody looked at the tests when they were planted. Most of the tests start a database or Kafka, so
no campaign of `tests.mutation` tries these: ``python -m tests.mutation.modules`` does.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.mutation.load import Edit, Mutant

__all__ = ["MODULES", "Noticed"]


class Noticed(NamedTuple):
    """A bug, and the test that fails with it: below ``tests``."""

    mutant: Mutant
    test: str


def _m(name: str, module: str, test: str, *edits: tuple[str, str, str]) -> Noticed:
    changes = tuple(Edit(*edit) for edit in edits)
    return Noticed(Mutant(f"module: {name}", module, changes, "modules"), test)


PG = "harvest.databases.postgres"
MY = "harvest.databases.mysql"
LITE = "harvest.databases.sqlite"
RUN = "harvest.runtime"

MODULES: tuple[Noticed, ...] = (
    _m(
        "who moves rows aside and back locks the table",
        f"{PG}.dead_letters",
        "contract/test_dead_letters.py::test_nothing_begins_to_wait_behind_a_row_that_is_being_put_back[postgres]",
        ("PostgresDeadLetters._transaction", "self._execute(self._format(_LOCK))", "pass"),
    ),
    _m(
        "of rows that cannot be read, the lowest is what others wait behind",
        f"{PG}.dead_letters",
        "integration/harvest/databases/test_unreadable_rows.py::test_mark_mode_marks_every_row_and_says_which_cannot_be_read",
        (
            "PostgresDeadLetters.waiting_keys",
            "min(id, lowest.get((topic, key), id))",
            "id",
        ),
    ),
    _m(
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
    _m(
        "a copy of a position never goes back",
        f"{PG}.range",
        "contract/test_range_store.py::test_copies_only_move_forward[postgres]",
        ("", "WHERE p.last_id <= excluded.last_id", "WHERE p.last_id >= excluded.last_id"),
    ),
    _m(
        "another server has another clock",
        f"{PG}.mark",
        "contract/test_mark_store.py::test_another_server_is_asked_for_its_clock[postgres]",
        ("PostgresMarkStore._forget", 'self._clock_asked_s = float("-inf")', "pass"),
    ),
    _m(
        "a mark is valid from before the table is looked at",
        f"{PG}.mark",
        "contract/test_mark_store.py::test_connecting_takes_of_the_time_that_a_mark_has[postgres]",
        (
            "PostgresMarkStore.mark",
            "until_s += self._clock_ahead_s()",
            "until_s = self._clock_ahead_s() + time.monotonic() + valid_ms / 1000",
        ),
    ),
    _m(
        "who does not listen any more says so",
        f"{PG}.notify",
        "integration/harvest/databases/test_postgres_notify.py::test_who_cannot_connect_again_does_not_say_that_it_listens",
        ("PostgresListener._run", "signal.listening = False", "pass"),
    ),
    _m(
        "who was given up is not counted on",
        f"{PG}.attempts",
        "integration/harvest/databases/test_attempts.py::test_its_columns_are_added_when_there_is_something_to_write",
        ("", ' WHERE NOT gave_up"', '"'),
    ),
    _m(
        "the name of a destination may have quotes",
        f"{PG}.attempts",
        "integration/harvest/databases/test_attempts.py::test_names_of_destinations_come_back_as_they_are",
        (
            "_array",
            """name.replace("\\\\", "\\\\\\\\").replace('"', '\\\\"')""",
            """name.replace('"', '\\\\"').replace("\\\\", "\\\\\\\\")""",
        ),
    ),
    _m(
        "who waits, waits behind an earlier row",
        "harvest.databases.portable_dead_letters",
        "contract/test_dead_letters.py::test_nothing_waits_behind_a_later_row[sqlite]",
        ("PortableDeadLetters.add", "waiting.get(key, row.id) >= row.id", "key not in waiting"),
    ),
    _m(
        "times are compared in UTC",
        "harvest.databases.portable_dead_letters",
        "contract/test_dead_letters.py::test_rows_are_selected_by_what_is_given[sqlite]",
        ("PortableDeadLetters._condition", "time.astimezone(UTC).strftime", "time.strftime"),
    ),
    _m(
        "a shard that is behind has all above its position to publish",
        f"{RUN}.checkpoints",
        "unit/harvest/core/test_gaps.py::test_divided_anew_each_row_is_still_to_be_published_once",
        (
            "divided",
            "rest = [(position.last_id + 1, last_id)]",
            "rest = [(position.last_id + 2, last_id)]",
        ),
    ),
    _m(
        "what one shard has found dead is dead",
        f"{RUN}.checkpoints",
        "unit/harvest/core/test_gaps.py::test_divided_anew_each_row_is_still_to_be_published_once",
        ("divided", "unseen = subtract(candidates, there)", "unseen: list[Range] = []"),
    ),
    _m(
        "all leaders are shut out before positions are written",
        f"{RUN}.checkpoints",
        "unit/harvest/runtime/test_checkpoints.py::test_all_leaders_are_shut_out_before_anything_is_written",
        (
            "Checkpoints._write",
            "[self._fenced(name) for name in fenced]",
            "[self._fenced(name) for name in fenced[: len(texts)]]",
        ),
    ),
    _m(
        "what is behind the position is not deleted as published",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_what_range_mode_has_published_is_deleted_and_nothing_else",
        ("_delete_published", ".upto(position.last_id)", ""),
    ),
    _m(
        "what waits in a gap is not deleted as published",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_what_range_mode_has_published_is_deleted_and_nothing_else",
        ("_is_open", "low <= row_id <= high", "low < row_id <= high"),
    ),
    _m(
        "the new configuration is registered last",
        f"{RUN}.registration",
        "unit/harvest/runtime/test_switch.py::test_who_was_interrupted_is_not_registered",
        (
            "switch",
            "Checkpoints(old).fence()",
            "Checkpoints(old).fence()\n                store.register_anew(ours)",
        ),
    ),
    _m(
        "what begins to be committed at the place is the next mode's",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_what_begins_to_be_committed_behind_the_place_is_left",
        ("_publish_up_to", "chunk.commit_lsn < lsn", "chunk.commit_lsn <= lsn"),
    ),
    _m(
        "the checkpoint fits a new slot only when the whole table is published",
        f"{RUN}.slot_changes",
        "unit/harvest/runtime/test_slot_changes.py::test_who_was_interrupted_publishes_the_whole_table_when_it_is_repeated",
        ("_renewed", "_deliver(sink, last, found)", "_deliver(sink, last, position.encode())"),
    ),
    _m(
        "a partition waits for every shard",
        f"{RUN}.partition_upkeep",
        "unit/harvest/runtime/test_partition_upkeep.py::test_the_slowest_shard_keeps_a_partition",
        (
            "maintain_partitions",
            "for shard in range(config.shards)]\n        todo",
            "for shard in range(1)]\n        todo",
        ),
    ),
    _m(
        "a transaction is undone when it cannot go on",
        f"{LITE}.table",
        "integration/harvest/databases/test_sqlite.py::test_a_statement_that_fails_leaves_no_transaction_open",
        ("SqliteTable._writing", 'connection.execute("ROLLBACK")', "pass"),
    ),
    _m(
        "commits are on the disk where they have to be",
        f"{LITE}.table",
        "integration/harvest/databases/test_sqlite.py::test_commits_wait_for_the_disk_where_they_have_to",
        ("SqliteTable._connected", "if self._durable else", "if not self._durable else"),
    ),
    _m(
        "a lock that is not got in time is not held",
        f"{MY}.dead_letters",
        "integration/harvest/databases/test_mariadb.py::test_who_does_not_get_the_lock_in_time_moves_nothing",
        ("MysqlDeadLetters._moving", "if not locked:", "if locked is None:"),
    ),
    _m(
        "an older copy of the list of transactions is no look",
        f"{MY}.range",
        "integration/harvest/databases/test_mariadb.py::test_an_older_copy_of_the_list_of_transactions_is_not_believed",
        ("MysqlRangeStore._look", "any(own and marked for", "any(own for"),
    ),
    _m(
        "a position that is older replaces no part of a newer one",
        f"{MY}.range",
        "contract/test_range_store.py::test_copies_only_move_forward[mariadb]",
        (
            "MysqlRangeStore",
            "IF(last_id <= VALUES(last_id), VALUES(checkpoint), checkpoint)",
            "VALUES(checkpoint)",
        ),
    ),
)
