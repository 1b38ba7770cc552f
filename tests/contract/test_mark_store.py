"""What every mark store must do (harvest/core/interfaces/mark_store.py)."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.databases.lease_clock import boottime_s
from harvest.outbox.record import OutboxRecord
from tests.contract.conftest import StoreBench
from tests.support.databases import MYSQL

TERM, OTHER = Term.of(1), Term.of(2)
LONG_MS = 60_000.0


def record(number: int, key: str = "k") -> OutboxRecord:
    return OutboxRecord("orders", key, f"v{number}", {"n": str(number)})


def insert(bench: StoreBench, count: int) -> list[int]:
    transaction = bench.begin()
    ids = [transaction.insert(record(i)) for i in range(count)]
    transaction.commit()
    return ids


def test_a_mark_returns_the_lowest_ids_in_order_with_their_contents(bench: StoreBench) -> None:
    ids = insert(bench, 5)
    rows = bench.store().mark(TERM, 0, 3, LONG_MS)
    assert [row.id for row in rows] == ids[:3]
    first = rows[0]
    assert (first.topic, first.key, first.value) == ("orders", b"k", b"v0")
    assert (list(first.header_keys), list(first.header_values)) == ([b"n"], [b"0"])


def test_a_mark_returns_no_row_twice(bench: StoreBench) -> None:
    ids = insert(bench, 4)
    store = bench.store()
    seen = [row.id for n in range(4) for row in store.mark(TERM, n, 2, LONG_MS)]
    assert seen == ids


def test_a_mark_takes_over_the_rows_of_another_term(bench: StoreBench) -> None:
    ids = insert(bench, 3)
    bench.store().mark(OTHER, 7, 2, LONG_MS)
    assert [row.id for row in bench.store().mark(TERM, 0, 10, LONG_MS)] == ids


def test_a_mark_does_not_see_open_and_rolled_back_transactions(bench: StoreBench) -> None:
    if bench.one_writer:
        pytest.skip("one transaction writes at a time")
    open_one, dead, done = bench.begin(), bench.begin(), bench.begin()
    late = open_one.insert(record(0))
    dead.insert(record(1))
    seen = done.insert(record(2))
    dead.rollback()
    done.commit()
    store = bench.store()
    assert [row.id for row in store.mark(TERM, 0, 10, LONG_MS)] == [seen]
    open_one.commit()
    assert [row.id for row in store.mark(TERM, 1, 10, LONG_MS)] == [late]
    assert late < seen


def test_a_mark_that_comes_too_late_marks_nothing(bench: StoreBench) -> None:
    ids = insert(bench, 2)
    store = bench.store()
    assert store.mark(TERM, 0, 10, 0.0) == []
    assert store.backlog().tagged_rows == 0
    assert [row.id for row in store.mark(TERM, 1, 10, LONG_MS)] == ids


@pytest.mark.parametrize("bench", ["postgres", "sqlite", "mariadb", MYSQL], indirect=True)
def test_connecting_takes_of_the_time_that_a_mark_has(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = insert(bench, 1)
    store: Any = bench.store()
    connected, waits_s = store._connected, [0.3]

    def slowly() -> Any:
        time.sleep(waits_s.pop() if waits_s else 0)
        return connected()

    monkeypatch.setattr(store, "_connected", slowly)
    assert store.mark(TERM, 0, 10, 200.0) == []
    assert [row.id for row in store.mark(TERM, 1, 10, LONG_MS)] == ids


@pytest.mark.parametrize("bench", ["postgres", "mariadb", MYSQL], indirect=True)
def test_another_server_is_asked_for_its_clock(bench: StoreBench) -> None:
    insert(bench, 1)
    store: Any = bench.store()
    assert store.mark(TERM, 0, 10, 0.0) == []
    store._clock_ahead += 3600  # as that of a server which has failed since
    store.close()
    assert store.mark(TERM, 0, 10, 0.0) == []


@pytest.mark.parametrize("bench", ["postgres", "mariadb", MYSQL], indirect=True)
def test_a_slow_answer_about_the_clock_gives_no_more_time(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = insert(bench, 1)
    store: Any = bench.store()
    module: Any = sys.modules[type(store).__module__]
    late_s, execute = [0.0], store._execute

    def slowly(*given: Any, **options: Any) -> Any:
        found = execute(*given, **options)
        late_s[0] = 3_600.0  # from the first answer on
        return found

    store.connect()
    monkeypatch.setattr(store, "_execute", slowly)
    monkeypatch.setattr(module, "boottime_s", lambda: boottime_s() + late_s[0])
    assert store.mark(TERM, 0, 10, LONG_MS) == []
    assert [row.id for row in store.mark(TERM, 1, 10, LONG_MS)] == ids


def test_purge_deletes_and_counts_what_was_there(bench: StoreBench) -> None:
    ids = insert(bench, 3)
    store = bench.store()
    store.mark(TERM, 0, 10, LONG_MS)
    assert store.purge(ids[:2], [TERM.tag(0)]) == 2
    assert store.purge(ids, [TERM.tag(0)]) == 1
    assert bench.ids() == []


def test_purge_leaves_rows_that_carry_another_tag_or_none(bench: StoreBench) -> None:
    ids = insert(bench, 4)
    store = bench.store()
    store.mark(TERM, 0, 1, LONG_MS)
    store.mark(TERM, 1, 1, LONG_MS)
    bench.store().mark(OTHER, 1, 1, LONG_MS)  # takes the first one over
    assert store.purge(ids, [TERM.tag(0), TERM.tag(7)]) == 0
    assert store.purge(ids, [TERM.tag(0), TERM.tag(1)]) == 1
    assert bench.ids() == [ids[0], *ids[2:]]


def test_reset_frees_rows_for_the_same_term(bench: StoreBench) -> None:
    ids = insert(bench, 2)
    store = bench.store()
    store.mark(TERM, 0, 10, LONG_MS)
    assert store.reset([ids[1], 10**9], TERM.tag(0)) == 1
    assert [row.id for row in store.mark(TERM, 1, 10, LONG_MS)] == [ids[1]]


def test_reset_leaves_what_others_have_marked_since(bench: StoreBench) -> None:
    """Perhaps it is published, and not purged yet: without its tag it would be published again."""
    ids = insert(bench, 3)
    store, successor = bench.store(), bench.store()
    store.mark(TERM, 0, 10, LONG_MS)
    successor.mark(OTHER, 0, 2, LONG_MS)
    assert store.reset(ids, TERM.tag(0)) == 1
    assert successor.purge(ids, [OTHER.tag(0)]) == 2


def test_clear_deletes_exactly_the_rows_tagged_up_to_the_batch(bench: StoreBench) -> None:
    ids = insert(bench, 6)
    store = bench.store()
    for batch in range(3):
        store.mark(TERM, batch, 2, LONG_MS)
    assert store.clear(Checkpoint(1, OTHER, 2, ids[0], ids[-1])) == 0
    assert store.clear(Checkpoint(1, TERM, 1, ids[1], ids[-1])) == 3
    assert bench.ids() == [ids[0], *ids[4:]]


def test_tombstones_and_empty_values_differ(bench: StoreBench) -> None:
    transaction = bench.begin()
    transaction.insert(OutboxRecord("t", "k", None))
    transaction.insert(OutboxRecord("t", "", ""))
    transaction.commit()
    rows = bench.store().mark(TERM, 0, 10, LONG_MS)
    assert [(row.key, row.value) for row in rows] == [(b"k", None), (b"", b"")]


def test_the_backlog_counts_rows_and_tags(bench: StoreBench) -> None:
    store = bench.store()
    assert (store.backlog().rows, store.backlog().oldest_age_s) == (0, None)
    insert(bench, 3)
    store.mark(TERM, 0, 2, LONG_MS)
    backlog = store.backlog()
    assert (backlog.rows, backlog.tagged_rows) == (3, 2)
    assert backlog.oldest_age_s is not None
    assert backlog.oldest_age_s >= 0


def test_init_leaves_an_existing_table_alone(bench: StoreBench) -> None:
    ids = insert(bench, 1)
    assert bench.store().init() is False
    assert bench.ids() == ids
    assert all(finding.level == "ok" for finding in bench.store().check())


def test_a_closed_store_connects_again(bench: StoreBench) -> None:
    ids = insert(bench, 1)
    store = bench.store()
    store.connect()
    store.close()
    store.cancel()
    assert [row.id for row in store.mark(TERM, 0, 1, LONG_MS)] == ids
