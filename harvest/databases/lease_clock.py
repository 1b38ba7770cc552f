"""Leases, as the databases need them: the clock by which they run, and whether one is held."""

from __future__ import annotations

from harvest.core.interfaces.sink import StillHeld
from harvest.errors import StoreUnavailable
from marshal_py.client.log_reader import boottime_ns

__all__ = ["always", "boottime_s", "require"]


def always() -> bool:
    """Where there is no lease to lose."""
    return True


def require(still_held: StillHeld) -> None:
    """Raise `StoreUnavailable` once the lease is lost. Called last before a commit."""
    if not still_held():
        raise StoreUnavailable("the lease was lost meanwhile")


def boottime_s() -> float:
    """Seconds of a monotonic clock that counts the time that the machine sleeps, if there is one.

    `time.monotonic` does not: what a machine that was suspended gives an hour for is an hour late.
    """
    return boottime_ns() / 1e9
