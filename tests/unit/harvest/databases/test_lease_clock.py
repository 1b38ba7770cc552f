"""The clock by which a mark is late."""

from __future__ import annotations

import time

import pytest

from harvest.databases.lease_clock import boottime_s


def test_it_counts_the_time_that_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine cannot be put to sleep here: it is asked which of its clocks is read."""
    asked: list[int] = []

    def look(clock: int) -> int:
        asked.append(clock)
        return 1_500_000_000

    monkeypatch.setattr(time, "clock_gettime_ns", look)
    assert boottime_s() == 1.5
    assert asked == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]
