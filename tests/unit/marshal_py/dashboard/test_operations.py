"""A preview that means something else by now is refused."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from marshal_py.admin.positions import Change
from marshal_py.dashboard.operations import has_moved


def change(before: int, after: int, partition: int = 0) -> Change:
    return Change("orders", partition, before, after, None, None)


def test_a_group_that_went_on_a_little_is_no_reason() -> None:
    assert has_moved([change(100, 90)], [change(105, 90)]) is None
    assert has_moved([change(-1, 90)], [change(-1, 90)]) is None


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ([change(85, 90)], "orders/0 was at 100, and is at 85"),
        ([change(90, 90)], "orders/0 was at 100, and is at 90"),
        ([change(100, 95)], "orders/0 has no message at offset 90"),
        ([change(100, 90), change(3, 0, 1)], "the partitions are others"),
        ([], "the partitions are others"),
    ],
)
def test_what_means_something_else_is_refused(now: list[Change], why: str) -> None:
    said = has_moved([change(100, 90)], now)
    assert said is not None
    assert said.startswith(why)
