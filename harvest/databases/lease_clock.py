"""The clock by which leases run: a mark is late by the same one."""

from __future__ import annotations

from marshal_py.client.log_reader import boottime_ns

__all__ = ["boottime_s"]


def boottime_s() -> float:
    """Seconds of a monotonic clock that counts the time that the machine sleeps, if there is one.

    `time.monotonic` does not: what a machine that was suspended gives an hour for is an hour late.
    """
    return boottime_ns() / 1e9
