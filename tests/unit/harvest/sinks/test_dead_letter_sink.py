"""The sink that sets aside, on fakes: what range mode does with rows that cannot be published."""

from __future__ import annotations

from typing import Any

from harvest.core.dead_letters import BadRowFilter, BadRowPolicy
from harvest.core.row import Row
from harvest.outbox.record import OutboxRecord
from harvest.runtime.events import Stats
from harvest.sinks.dead_letter_sink import DeadLetterSink
from harvest.testing.memory_broker import REFUSED, MemoryBroker, MemorySink
from harvest.testing.memory_table import MemoryDeadLetters, MemoryTable


class Bench:
    def __init__(self, policy: BadRowPolicy | None = None) -> None:
        self.table, self.broker, self.stats = MemoryTable(), MemoryBroker(), Stats()
        self.dead_letters = MemoryDeadLetters(self.table)
        self.policy = policy or BadRowPolicy()
        self.sink = self.open()

    def open(self) -> DeadLetterSink:
        sink = DeadLetterSink(MemorySink(self.broker), self.dead_letters, self.policy, self.stats)
        sink.open(lambda: True)
        return sink

    def rows(self, *kinds: str) -> list[Row]:
        """One row for each: its key, then ``!`` if Kafka refuses it, ``?`` if it is malformed."""
        made = []
        for kind in kinds:
            value = REFUSED if "!" in kind else b"v"
            (row_id,) = self.table.insert(OutboxRecord("t", kind[0], value))
            stored = self.table.committed[row_id]
            if "?" in kind:
                stored.row = stored.row._replace(header_keys=(b"a",))
            made.append(stored.row)
        return made

    def published(self) -> list[int]:
        return [row.id for row in self.broker.published]


def test_a_malformed_row_and_what_is_behind_it_are_left_out_at_once() -> None:
    bench = Bench()
    assert bench.sink.deliver(bench.rows("a", "b?", "b", "a"), "one") is None
    assert bench.published() == [1, 4]
    assert bench.table.dead_letters.keys() == {2, 3}
    assert bench.broker.checkpoint == "one"
    assert bench.stats.dead_lettered == 2
    assert bench.sink.deliver(bench.rows("b", "a"), "two") is None
    assert bench.published() == [1, 4, 6]


def test_a_refused_row_is_left_out_once_the_sink_is_open_again() -> None:
    bench = Bench()
    rows = bench.rows("a", "b!", "b", "a")
    assert bench.sink.deliver(rows, "one") is not None
    assert bench.table.dead_letters.keys() == {2}
    assert bench.sink.deliver(rows, "one") is not None
    assert bench.published() == []
    bench.sink.open(lambda: True)
    assert bench.sink.deliver(rows, "one") is None
    assert bench.published() == [1, 4]
    assert bench.table.dead_letters.keys() == {2, 3}


def test_the_next_leader_finds_out_for_itself() -> None:
    bench = Bench()
    rows = bench.rows("a", "b!", "a")
    bench.sink.deliver(rows, "one")
    successor = bench.open()
    assert successor.deliver(rows, "one") is not None
    successor.open(lambda: True)
    assert successor.deliver(rows, "one") is None
    assert bench.published() == [1, 3]


def test_without_waiting_keys_go_on() -> None:
    bench = Bench(BadRowPolicy(key_waits=False))
    assert bench.sink.deliver(bench.rows("b?", "b"), "one") is None
    assert bench.published() == [2]


def test_without_waiting_keys_go_on_in_later_deliveries_and_for_the_next_leader() -> None:
    bench = Bench(BadRowPolicy(key_waits=False))
    assert bench.sink.deliver(bench.rows("b?"), "one") is None
    assert bench.sink.deliver(bench.rows("b"), "two") is None
    assert bench.open().deliver(bench.rows("b"), "three") is None
    assert bench.published() == [2, 3]
    assert bench.table.dead_letters.keys() == {1}


def test_with_stop_nothing_is_set_aside() -> None:
    bench = Bench(BadRowPolicy(on_bad_row="stop"))
    failure = bench.sink.deliver(bench.rows("a", "b?"), "one")
    assert failure is not None
    assert bench.published() == []
    assert not bench.table.dead_letters


def test_what_cannot_be_set_aside_is_not_passed_by_a_later_checkpoint() -> None:
    bench = Bench()
    bad, later = bench.rows("b?"), bench.rows("a")
    bench.dead_letters.fail_next = "before"
    assert bench.sink.deliver(bad, "one") is not None
    assert bench.sink.deliver(later, "two") is not None
    assert bench.broker.checkpoint is None
    bench.sink.open(lambda: True)
    assert bench.sink.deliver([*bad, *later], "two") is None
    assert bench.published() == [2]


def test_a_refused_row_that_could_not_be_set_aside_is_not_left_out() -> None:
    bench = Bench()
    rows = bench.rows("a", "b!")
    bench.dead_letters.fail_next = "before"
    assert bench.sink.deliver(rows, "one") is not None
    assert not bench.table.dead_letters
    bench.sink.open(lambda: True)
    assert bench.sink.deliver(rows, "one") is not None, "it is neither published nor aside"
    assert bench.broker.checkpoint is None
    assert bench.table.dead_letters.keys() == {2}


def test_a_retried_row_comes_back_under_a_new_id() -> None:
    bench = Bench()
    bench.sink.deliver(bench.rows("b?"), "one")
    bench.table.dead_letters.clear()  # as `harvest dead-letters retry` does
    assert bench.sink.deliver(bench.rows("b", "b"), "two") is None
    assert bench.published() == [2, 3]


def test_rows_may_be_plain_tuples_without_headers() -> None:
    rows: list[Any] = [
        (1, "t", b"k", b"v", None, None),
        (2, "t", None, b"v", None, None),
        (3, "t", b"k", b"v", [b"a"], None),
        (4, "t", b"k", b"v", None, None),
        (5, "no/topic", b"k", b"v", None, None),
    ]
    bad_rows = BadRowFilter().find_bad(rows)
    assert [(row.id, row.waits) for row in bad_rows] == [
        (2, False),
        (3, False),
        (4, True),
        (5, False),
    ]
    assert "the key is NULL" in bad_rows[0].error
    assert "1 header keys and 0 header values" in bad_rows[1].error
