"""How much is asked for: bounds, and smaller deliveries after those that failed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvest.core.pacing import Limits, Pace

LIMITS = Limits(mark_query_records=5_000, max_in_flight_records=20_000)


def learned(size_bytes: int = 100) -> Pace:
    pace = Pace(LIMITS)
    for _ in range(5):
        asked = pace.room(0, 0, 0)
        pace.learn(asked, asked * size_bytes, full=True)
    return pace


def test_a_delivery_that_failed_is_followed_by_smaller_ones_down_to_one_row() -> None:
    pace = learned()
    assert pace.room(0, 0, 0) == 5_000
    sizes = []
    for _ in range(8):
        size = pace.room(0, 0, 0)
        sizes.append(size)
        pace.failed(size)
    assert sizes == [5_000, 1_250, 312, 78, 19, 4, 1, 1]


def test_all_that_is_in_flight_counts_for_it_is_delivered_together() -> None:
    pace = learned()
    pace.failed(400)
    assert pace.room(0, 0, 0) == 100
    assert pace.room(1, 100, 0) == 0
    assert pace.room(1, 40, 0) == 60


def test_what_is_reported_late_of_larger_deliveries_makes_nothing_larger() -> None:
    pace = learned()
    pace.failed(40)
    pace.failed(5_000)
    assert pace.room(0, 0, 0) == 2


@given(st.integers(1, 5_000))
def test_most_deliveries_succeed_at_a_broker_that_takes_so_many_rows(largest: int) -> None:
    pace, failed, published = learned(), 0, 0
    for _ in range(200):
        size = pace.room(0, 0, 0)
        if size > largest:
            pace.failed(size)
            failed += 1
        else:
            pace.succeeded()
            published += size
    assert failed < 30
    assert published > 200 * largest / 4


def test_after_success_it_is_as_large_as_ever() -> None:
    pace = learned()
    pace.failed(5_000)
    for _ in range(80):
        pace.succeeded()
    assert pace.most is None
    assert pace.room(0, 0, 0) == 5_000


def test_a_page_of_small_rows_does_not_make_the_next_one_too_large() -> None:
    """Large rows may follow; what is larger counts at once."""
    pace = Pace(Limits(max_in_flight_bytes=10_000))
    pace.learn(256, 256 * 1_000, full=True)
    assert pace.room(0, 0, 0) == 10
    pace.learn(10, 10 * 8, full=True)
    assert pace.room(0, 0, 0) == 10_000 // 752
    pace.learn(10, 10 * 5_000, full=True)
    assert pace.room(0, 0, 0) == 2


@pytest.mark.parametrize("delivery", [True, False])
def test_what_succeeds_makes_the_next_failure_a_first_one_whatever_failed(delivery: bool) -> None:
    pace = Pace(Limits())
    if delivery:
        pace.failed(1_000)
    assert [pace.backoff_ms() for _ in range(3)] == [100, 200, 400]
    assert pace.failing
    pace.succeeded()
    assert not pace.failing
    assert pace.backoff_ms() == 100
