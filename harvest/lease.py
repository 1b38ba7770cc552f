"""The right to harvest: what a harvester needs from leader election."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Candidate", "Lease"]


class Lease(Protocol):
    """The right to act, for a while. `marshal_py.Leadership` is one."""

    @property
    def held(self) -> bool:
        """Whether the holder may act now; false the moment the lease lapses."""

    @property
    def epoch(self) -> int:
        """The fencing token: larger for every later holder."""

    @property
    def remaining_ms(self) -> float:
        """Milliseconds that are left of the lease; 0 when it is not held."""

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the right to act ends; False if it has not after `timeout_s`."""


class Candidate(Protocol):
    """Stands for election, time after time."""

    def campaign(self, timeout_s: float) -> Lease | None:
        """Wait until elected; None if that took longer than `timeout_s`."""

    def resign(self) -> None:
        """Hand over. Whoever acted on the lease has stopped."""
