"""What is asked for with `AddDeadLetters` is done, counted and logged, in every mode."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from harvest.core.actions import LeaseLost
from harvest.core.dead_letters import (
    AddDeadLetters,
    AddFailed,
    BadRow,
    BadRowPolicy,
    DeadLettersAdded,
)
from harvest.core.mark_checkpoint import Term
from harvest.core.row import Row
from harvest.core.wal import AddRows
from harvest.outbox.record import OutboxRecord
from harvest.runtime.dead_letters import DeadLetterWriter
from harvest.runtime.leadership import Leadership
from harvest.testing.memory_table import MemoryDeadLetters, MemoryTable

BAD = AddDeadLetters(None, (BadRow(1, "too large"), BadRow(2, "behind it", waits=True)))


class Lease:
    epoch = 7
    held = True


class Bench:
    def __init__(self, policy: BadRowPolicy | None = None, *, stored: bool = True) -> None:
        self.table, self.lease = MemoryTable(), Lease()
        self.table.insert(OutboxRecord("t", "k", "1"), OutboxRecord("t", "k", "2"))
        given: Any = self.lease
        self.store = MemoryDeadLetters(self.table)
        leadership = Leadership(given)
        self.stats = leadership.stats
        self.writer = DeadLetterWriter(
            leadership, self.store if stored else None, policy or BadRowPolicy()
        )


def test_dead_letters_are_written_and_counted_and_what_is_wrong_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    with caplog.at_level(logging.DEBUG, "harvest"):
        answer = bench.writer.add(BAD)
    assert answer == DeadLettersAdded(frozenset({1, 2}), {("t", b"k"): 1})
    assert bench.table.dead_letters.keys() == {1, 2}
    assert bench.stats.dead_lettered == 2
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "row 1 is set aside: too large"),
        (logging.DEBUG, "row 2 is set aside: behind it"),
    ]


def test_rows_of_another_term_are_neither_moved_nor_counted() -> None:
    bench = Bench()
    action = AddDeadLetters(Term.of(1), BAD.rows)
    assert bench.writer.add(action) == DeadLettersAdded(frozenset())
    assert bench.stats.dead_lettered == 0


def test_a_database_that_does_not_answer_is_a_failed_add() -> None:
    bench = Bench()
    bench.store.fail_next = "before"
    assert bench.writer.add(BAD) == AddFailed()
    assert bench.stats.dead_lettered == 0


def test_without_waiting_keys_none_is_read() -> None:
    bench = Bench(BadRowPolicy(key_waits=False))
    assert bench.writer.add(BAD) == DeadLettersAdded(frozenset({1, 2}))
    assert bench.writer.waiting_keys() == {}


def test_without_a_table_for_them_bad_rows_stop_the_harvest() -> None:
    bench = Bench(stored=False)
    assert bench.writer.policy.on_bad_row == "stop"
    assert bench.writer.waiting_keys() == {}


def test_who_has_lost_the_lease_adds_no_dead_letters() -> None:
    bench = Bench()
    bench.lease.held = False
    assert bench.writer.add(BAD) == LeaseLost()
    assert not bench.table.dead_letters


def test_who_loses_the_lease_on_the_way_adds_none_either() -> None:
    bench = Bench()

    class Store(MemoryDeadLetters):
        def add(self, *given: Any) -> frozenset[int]:
            bench.lease.held = False  # a pause, as the store begins
            return super().add(*given)

        def add_rows(self, rows: Any, *given: Any) -> frozenset[int]:
            return self.add([bad for _, bad in rows], None, *given)

    bench.writer._store = Store(bench.table)
    assert bench.writer.add(BAD) == AddFailed()
    bench.lease.held = True
    rows = AddRows(((Row(1, "t", b"k", b"1"), BAD.rows[0]),))
    assert bench.writer.add_rows(rows) == AddFailed()
    assert not bench.table.dead_letters
