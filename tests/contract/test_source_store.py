"""What every store must say of the database (harvest/core/interfaces/source_store.py)."""

from __future__ import annotations

from dataclasses import replace

from harvest.core.source import Registration, differences
from tests.contract.conftest import RangeBench, StoreBench

FIRST = Registration("cluster", "topic", "group", "mark")


def test_the_first_registration_stays_until_it_is_replaced(bench: StoreBench) -> None:
    store, other = bench.store(), bench.store()
    assert store.registration() is None
    assert store.register(FIRST) == FIRST
    second = replace(FIRST, mode="range", group="gr\u00fcppe 'x'")
    assert other.register(second) == FIRST
    other.register_anew(second)
    assert store.registration() == second


def test_visits_are_counted_and_seen_by_all(bench: StoreBench) -> None:
    store, other = bench.store(), bench.store()
    store.register(FIRST)
    before = store.source()
    after = store.visit("aa")
    assert (after.visit, after.token) == (before.visit + 1, "aa")
    assert other.visit("bb").visit == before.visit + 2
    assert differences(after, store.source()) is None
    assert differences(store.source(), after) is not None, "it has gone back"
    assert store.log_end() >= after.log or store.log_end() == 0


def test_a_range_store_says_the_same(range_bench: RangeBench) -> None:
    store = range_bench.store()
    store.register(FIRST)
    transaction = range_bench.begin()
    transaction.rollback()
    source = store.visit("aa")
    assert differences(source, range_bench.store().source()) is None
