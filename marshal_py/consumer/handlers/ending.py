"""When `Consumer.run` ends, and when what runs of a partition that is given back is waited for."""

from __future__ import annotations

import math
import time
from typing import Final

from marshal_py.client.claim import core_of
from marshal_py.client.waiting import FOR_EVER_S
from marshal_py.consumer.handlers.schedule import PartitionId
from marshal_py.consumer.held_partition import HeldPartition, Stage

__all__ = ["Ending"]

PATIENCE_S: Final = 1.0
"""What is to be given back waits so long, if the drain time allows, for another attempt at messages
that failed: what is done behind them would come twice. A longer backoff is nobody's to wait for."""


class Ending:
    """Deadlines, by the monotonic clock. `drain_timeout_s`: how long what runs is waited for."""

    def __init__(self, drain_timeout_s: float) -> None:
        self.error: BaseException | None = None
        """What `run` raises in the end."""
        self._drain_timeout_s = min(drain_timeout_s, FOR_EVER_S)
        self._stop_by_s = math.inf
        self._stopped_s = math.inf
        """When the first stop was asked for."""
        self._drain_by_s: dict[PartitionId, float] = {}
        """Partitions that are given back → until when what runs is waited for."""

    # All of it

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """End soon. Takes no lock, so that a signal handler may call it."""
        wait_s = self._drain_timeout_s
        if drain_timeout_s is not None:
            wait_s = min(drain_timeout_s, FOR_EVER_S)
        now_s = time.monotonic()
        self._stopped_s = min(self._stopped_s, now_s)
        self._stop_by_s = now_s + wait_s

    def hurry(self) -> None:
        """Wait for nothing any more."""
        self._stop_by_s = time.monotonic()

    def fail(self, error: BaseException) -> None:
        """End with this error, unless there is one already."""
        self.error = self.error or error

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_by_s < math.inf

    @property
    def left_s(self) -> float:
        """For how long what runs is still waited for."""
        return max(0.0, self._stop_by_s - time.monotonic())

    @property
    def is_late(self) -> bool:
        """Whether nothing is waited for any more."""
        return time.monotonic() >= self._stop_by_s

    # One partition

    def drain(self, partition: PartitionId, now_s: float) -> bool:
        """It is given back. Returns whether that is new."""
        if partition in self._drain_by_s:
            return False
        self._drain_by_s[partition] = now_s + self._drain_timeout_s
        return True

    def drain_by_s(self, partition: PartitionId) -> float:
        """Until when what runs of it is waited for; without end if it is not given back."""
        return self._drain_by_s.get(partition, math.inf)

    def forget(self, partition: PartitionId) -> None:
        """Its claim has ended."""
        self._drain_by_s.pop(partition, None)

    # Failures

    def is_gone(self, part: HeldPartition) -> bool:
        """Whether others may have `part` by now: what runs of it counts for nothing."""
        return core_of(part.claim).ended.is_set() or part.stage is Stage.RELEASING

    def is_ending(self, part: HeldPartition) -> bool:
        """Whether nothing of `part` will be tried again here."""
        return (
            self.error is not None
            or self.is_stopping
            or part.stage is not Stage.ACTIVE
            or core_of(part.claim).ended.is_set()
        )

    def may_retry_at(self, part: HeldPartition, due_s: float) -> bool:
        """Whether there will be another attempt, at `due_s`."""
        if self.is_gone(part):
            return False
        return not self.is_ending(part) or due_s <= self.retry_by_s(part.key)

    def retry_by_s(self, partition: PartitionId) -> float:
        """Until when another attempt is waited for, as the partition is to be given back."""
        now_s = time.monotonic()
        by_s = min(self._stop_by_s, min(self._stopped_s, now_s) + PATIENCE_S)
        drain_by_s = self._drain_by_s.get(partition)
        if drain_by_s is not None:
            began_s = drain_by_s - self._drain_timeout_s
            by_s = min(by_s, drain_by_s, began_s + PATIENCE_S)
        return by_s
