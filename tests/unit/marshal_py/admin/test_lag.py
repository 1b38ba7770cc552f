"""What is said of a partition whose slots are with several members."""

from __future__ import annotations

from marshal_py.admin.lag import PartitionLag, _together


def slot(number: int, position: int | None, lag: int | None, holder: str | None) -> PartitionLag:
    liveness = None if holder is None else "stale" if holder == "dead" else "fresh"
    return PartitionLag(
        "g", "t", 0, position, 0, 100, lag, holder, liveness, position is not None, 3, number
    )


def test_the_slowest_slot_is_what_counts() -> None:
    row = _together([slot(0, 70, 30, "b"), slot(1, 40, 60, "a"), slot(2, 90, 10, "b")])
    assert (row.position, row.lag, row.holder, row.liveness) == (40, 60, "a, b", "fresh")
    assert (row.claimed, row.slots, row.slot) == (True, 3, None)


def test_what_one_slot_does_not_tell_is_not_known() -> None:
    row = _together([slot(0, 70, 30, "a"), slot(1, None, None, "a"), slot(2, 90, 10, "a")])
    assert (row.position, row.lag, row.holder) == (None, None, "a")


def test_a_slot_that_nobody_holds_or_a_dead_member_shows() -> None:
    row = _together([slot(0, 70, 30, "a"), slot(1, 40, 60, None), slot(2, 90, 10, "dead")])
    assert (row.position, row.lag, row.holder, row.liveness) == (40, 60, None, "stale")
