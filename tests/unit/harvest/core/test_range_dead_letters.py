"""Range mode and rows that cannot be published, one leader at a time (specs/HARVEST.md §11)."""

from __future__ import annotations

import random
import re
from typing import Any

from harvest.core import range as r
from harvest.core.dead_letters import (
    MISSING_TOPIC,
    BadRow,
    BadRowFilter,
    BadRowPolicy,
    missing_topic_pattern,
    problem,
)
from harvest.core.failure import Failure
from harvest.core.interfaces.range_store import Bounds, Window
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.outbox.record import OutboxRecord
from harvest.testing.memory_broker import REFUSED
from tests.support.range_simulation import Leader, World


class Bench:
    """An outbox, and one leader after the other."""

    def __init__(self, policy: BadRowPolicy | None = None) -> None:
        self.world = World(random.Random(1), bad_rows=policy or BadRowPolicy())
        self.table, self.broker = self.world.table, self.world.brokers[0]
        self.leader = self.world.elect()

    def insert(self, *kinds: str) -> None:
        """One row for each: its key, then ``!`` if Kafka refuses it, ``?`` if it is malformed."""
        with self.table.transaction() as transaction:
            for kind in kinds:
                value = REFUSED if "!" in kind else b"v"
                row_id = transaction.insert(OutboxRecord("t", kind[0], value))
                if "?" in kind:
                    self.world.bad_ids.add(row_id)
        for row_id in self.world.bad_ids:
            stored = self.table.committed[row_id]
            stored.row = stored.row._replace(header_keys=(b"a",))

    def harvest(self, leader: Leader | None = None, *, until: type | None = None) -> list[Any]:
        """Let a leader work, up to an action of kind `until`, or until it has nothing to do."""
        leader = leader or self.leader
        done: list[Any] = []
        while True:
            lane = "sink" if leader.lanes["sink"] else "table"
            action = leader.lanes[lane][0]
            if until is not None and isinstance(action, until):
                return done
            if isinstance(action, r.Read) and self.is_idle(leader, action):
                return done
            done.append(action)
            leader.run(lane)

    def is_idle(self, leader: Leader, read: r.Read) -> bool:
        nothing_new = not any(row_id > read.after for row_id in self.table.committed)
        return nothing_new and bool(read.delay_ms) and leader.scheduler.running

    def published(self) -> list[int]:
        return [row.id for row in self.broker.published]


def kinds(actions: list[Any]) -> list[type]:
    return [type(action) for action in actions if isinstance(action, r.AddDeadLetters | r.Send)]


def test_a_malformed_row_and_what_is_behind_it_are_dead_letters_before_others_are_sent() -> None:
    bench = Bench()
    bench.insert("a", "b?", "b", "a")
    assert kinds(bench.harvest()) == [r.AddDeadLetters, r.Send]
    assert bench.published() == [1, 4]
    assert bench.table.dead_letters.keys() == {2, 3}
    assert bench.broker.checkpoint is not None
    assert Position.decode(bench.broker.checkpoint).last_id == 4
    bench.insert("b", "a")
    bench.harvest()
    assert bench.published() == [1, 4, 6]


def test_a_refused_row_is_a_dead_letter_before_the_sink_is_opened_again() -> None:
    bench = Bench()
    bench.insert("a", "b!", "b", "a")
    bench.harvest(until=r.AddDeadLetters)
    assert bench.published() == []
    assert not bench.table.dead_letters
    add, again, *_ = bench.harvest()
    assert [row.id for row in add.rows] == [2]
    assert again == r.Open(0), "the cause is gone"
    assert bench.published() == [1, 4]
    assert bench.table.dead_letters.keys() == {2, 3}


def test_the_next_leader_finds_out_for_itself() -> None:
    bench = Bench()
    bench.insert("a", "b!", "a")
    bench.harvest(until=r.AddDeadLetters)
    bench.leader.run("table")
    assert bench.table.dead_letters.keys() == {2}
    bench.harvest(bench.world.elect())
    assert bench.published() == [1, 3]


def test_a_row_that_was_copied_is_not_published_when_its_cause_is_gone() -> None:
    """The leader ends between the copy and the checkpoint that passes it."""
    bench = Bench()
    bench.insert("a", "b!", "b!", "b")
    bench.harvest(until=r.AddDeadLetters)
    bench.leader.run("table")
    assert bench.table.dead_letters.keys() == {2, 3}
    for row_id in (2, 3):
        stored = bench.table.committed[row_id]
        stored.row = stored.row._replace(value=b"v")  # as when the topic is there
    bench.harvest(bench.world.elect())
    assert bench.published() == [1]
    assert bench.table.dead_letters.keys() == {2, 3, 4}


def test_without_waiting_keys_go_on() -> None:
    bench = Bench(BadRowPolicy(key_waits=False))
    bench.insert("b?", "b")
    bench.harvest()
    assert bench.published() == [2]


def test_without_waiting_keys_go_on_in_later_sends_and_for_the_next_leader() -> None:
    bench = Bench(BadRowPolicy(key_waits=False))
    bench.insert("b?")
    bench.harvest()
    bench.insert("b")
    bench.harvest()
    successor = bench.world.elect()
    bench.insert("b")
    bench.harvest(successor)
    assert bench.published() == [2, 3]
    assert bench.table.dead_letters.keys() == {1}


def test_with_stop_there_are_no_dead_letters() -> None:
    bench = Bench(BadRowPolicy(on_bad_row="stop"))
    bench.insert("a", "b?")
    bench.harvest(until=r.Send)
    bench.leader.run("sink")
    bench.harvest(until=r.Send)
    assert bench.published() == []
    assert not bench.table.dead_letters


def test_what_is_no_dead_letter_is_not_passed_by_a_later_checkpoint() -> None:
    bench = Bench()
    bench.leader.dead_letters.fail_next = "before"
    bench.insert("b?", "a")
    bench.harvest(until=r.AddDeadLetters)
    bench.leader.feed(r.Refresh(anyway=True))
    assert bench.leader.busy_lanes() == ["table"], "no checkpoint while rows are held"
    bench.leader.run("table")
    bench.harvest(until=r.Read)
    assert bench.broker.checkpoint is None
    bench.harvest()
    assert bench.published() == [2]
    assert bench.table.dead_letters.keys() == {1}


def test_a_refused_row_that_is_no_dead_letter_is_not_left_out() -> None:
    bench = Bench()
    bench.insert("a", "b!")
    bench.harvest(until=r.AddDeadLetters)
    bench.leader.dead_letters.fail_next = "before"
    bench.leader.run("table")
    assert not bench.table.dead_letters
    bench.harvest(until=r.AddDeadLetters)
    assert bench.published() == [], "it is neither published nor a dead letter"
    assert bench.broker.checkpoint is None
    bench.harvest()
    assert bench.published() == [1]
    assert bench.table.dead_letters.keys() == {2}


def test_of_rows_that_were_refused_only_those_are_remembered_that_may_come_again() -> None:
    """A topic that is not there may be written to for as long as a leadership lasts."""
    bench = Bench(BadRowPolicy(key_waits=False))
    for _ in range(5):
        bench.insert("a", "b!")
        bench.harvest()
    assert bench.table.dead_letters.keys() == {2, 4, 6, 8, 10}
    assert bench.published() == [1, 3, 5, 7, 9]
    assert bench.leader.scheduler._left_out == {10}


def test_a_row_that_was_refused_in_a_gap_is_left_out_as_long_as_that_is_open() -> None:
    scheduler = r.RangeScheduler(0)
    scheduler.step(r.Start())
    scheduler.step(r.Opened(None))
    scheduler.step(r.TableChecked(Bounds(1, 9)))
    (send, _) = scheduler.step(r.ReadDone(Window(rows(2, 3, 4, 5), 5, ())))
    assert isinstance(send, r.Send)
    failure = Failure("refused", None, refused=frozenset({2, 3, 4}))
    scheduler.step(r.Settled((send.number,), failure))
    (add,) = scheduler.step(r.ReadDone(Window((), 5, ())))
    assert isinstance(add, r.AddDeadLetters)
    scheduler.step(r.DeadLettersAdded(frozenset({2, 3, 4})))
    scheduler.step(r.Opened(Position(0, 0, 1, 3, ((1, 1), (3, 3)))))
    assert scheduler._left_out == {3, 4}


def test_a_retried_row_comes_back_under_a_new_id() -> None:
    bench = Bench()
    bench.insert("b?")
    bench.harvest()
    bench.insert("b", "b")
    bench.harvest(until=r.AddDeadLetters)
    bench.table.dead_letters.clear()  # as `harvest dead-letters retry` does
    bench.harvest()
    assert bench.published() == [2, 3], "what only waited is sent when nothing is before it"
    assert not bench.table.dead_letters


# --- One event at a time ---


def rows(*ids: int) -> list[Row]:
    return [Row(i, "t", str(i).encode(), b"v") for i in ids]


def holding() -> r.RangeScheduler:
    """A scheduler that has sent 1, and holds 3 since 2 is to be a dead letter."""
    scheduler = r.RangeScheduler(0)
    scheduler.step(r.Start())
    scheduler.step(r.Opened(None))
    scheduler.step(r.TableChecked(Bounds(1, 9)))
    scheduler.step(r.ReadDone(Window(rows(1), 1, ())))
    bad = Row(2, "t", None, b"v")
    (add,) = scheduler.step(r.ReadDone(Window([bad, *rows(3)], 3, ())))
    assert isinstance(add, r.AddDeadLetters)
    assert (add.term, [row.id for row in add.rows]) == (None, [2])
    return scheduler


def test_nothing_is_read_while_rows_are_held_and_the_position_follows_the_answer() -> None:
    scheduler = holding()
    assert scheduler.step(r.Settled((0,))) == []
    send, read = scheduler.step(r.DeadLettersAdded(frozenset({2})))
    assert send == r.Send(1, rows(3), Position(0, 0, 1, 3))
    assert isinstance(read, r.Read)


def test_a_bad_row_that_is_no_dead_letter_is_sent_for_the_sink_to_judge() -> None:
    send, _ = holding().step(r.DeadLettersAdded(frozenset()))
    assert isinstance(send, r.Send)
    assert [row.id for row in send.rows] == [2, 3]


def test_a_failed_delivery_meanwhile_begins_anew_with_the_answer() -> None:
    scheduler = holding()
    assert scheduler.step(r.Settled((0,), Failure("broken"))) == []
    assert scheduler.step(r.DeadLettersAdded(frozenset({2}))) == [r.Open(100)]


def test_a_stop_while_rows_are_held_sends_nothing_more() -> None:
    scheduler = holding()
    assert scheduler.step(r.Stop()) == []
    assert scheduler.step(r.Settled((0,))) == []
    assert scheduler.step(r.DeadLettersAdded(frozenset({2}))) == [r.Finish("stopped")]


def test_a_store_that_fails_is_tried_again_after_a_pause() -> None:
    scheduler = holding()
    scheduler.step(r.Settled((0,)))
    assert scheduler.step(r.AddFailed()) == [r.Open(100)]


def test_what_waits_is_what_the_database_says_after_the_opening() -> None:
    scheduler = r.RangeScheduler(0)
    scheduler.step(r.Start())
    scheduler.step(r.Opened(None, {("t", b"3"): 2}))
    scheduler.step(r.TableChecked(Bounds(1, 9)))
    (add,) = scheduler.step(r.ReadDone(Window(rows(3), 3, ())))
    assert isinstance(add, r.AddDeadLetters)
    assert [(row.id, row.waits) for row in add.rows] == [(3, True)]


def test_what_waits_is_what_the_database_says_when_dead_letters_were_added() -> None:
    scheduler = holding()
    scheduler.step(r.DeadLettersAdded(frozenset({2}), {("t", b"5"): 4}))
    (add,) = scheduler.step(r.ReadDone(Window(rows(4, 5), 5, ())))
    assert isinstance(add, r.AddDeadLetters)
    assert [(row.id, row.waits) for row in add.rows] == [(5, True)]


# --- The filter ---


def test_rows_may_be_plain_tuples_without_headers() -> None:
    given: list[Any] = [
        (1, "t", b"k", b"v", None, None),
        (2, "t", None, b"v", None, None),
        (3, "t", b"k", b"v", [b"a"], None),
        (4, "t", b"k", b"v", None, None),
        (5, "no/topic", b"k", b"v", None, None),
    ]
    bad_rows = BadRowFilter().find_bad(given)
    assert [(row.id, row.waits) for row in bad_rows] == [
        (2, False),
        (3, False),
        (4, True),
        (5, False),
    ]
    assert "the key is NULL" in bad_rows[0].error
    assert "1 header keys and 0 header values" in bad_rows[1].error


def test_good_headers_of_a_known_topic_are_no_problem() -> None:
    given = [Row(1, "t", b"k", b"v"), Row(2, "t", b"k", b"v", (b"h",), (None,))]
    assert BadRowFilter().find_bad(given) == []


def test_topics_without_number_are_not_all_remembered() -> None:
    given = [Row(i, f"t{i}", b"k", b"v") for i in range(10_001)]
    assert BadRowFilter().find_bad([*given, Row(10_001, "no/topic", b"k", b"v")]) == [
        BadRow(10_001, problem(Row(10_001, "no/topic", b"k", b"v")) or "")
    ]


def test_errors_about_a_missing_topic_are_found_by_their_beginning() -> None:
    error = MISSING_TOPIC.format("orders")
    assert re.match(missing_topic_pattern().replace("%", ".*"), error)
