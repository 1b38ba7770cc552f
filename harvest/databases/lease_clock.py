"""The clock by which leases run: a mark is late by the same one."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["boottime_s"]

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_s() -> float:
    """Seconds of a monotonic clock that counts the time that the machine sleeps, if there is one.

    `time.monotonic` does not: what a machine that was suspended gives an hour for is an hour late.
    """
    return time.clock_gettime(_CLOCK)
