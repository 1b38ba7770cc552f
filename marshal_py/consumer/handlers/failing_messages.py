"""The messages that handlers fail with or do not return from, counted by partition."""

from __future__ import annotations

from collections.abc import Iterable

from marshal_py.consumer.handlers.schedule import PartitionId
from marshal_py.protocol.claim_metadata import MAX_CLASS, ClaimMetadata

__all__ = ["FailingMessages"]


class _PartitionFailures:
    __slots__ = ("dead", "error", "failing", "last", "skipped", "stuck")

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.stuck: frozenset[int] = frozenset()
        self.dead = 0
        self.skipped = 0
        self.last = -1
        self.error = ""

    def metadata(self) -> ClaimMetadata:
        now = self.failing | self.stuck
        return ClaimMetadata(
            retrying=len(self.failing),
            stuck=len(self.stuck),
            dead_lettered=self.dead,
            skipped=self.skipped,
            offset=min(now) if now else self.last,
            error=self.error,
        )


class FailingMessages:
    """The messages that fail, by partition. Not for several threads at once."""

    def __init__(self) -> None:
        self._of: dict[PartitionId, _PartitionFailures] = {}
        self._changed: set[PartitionId] = set()

    def failing(self, partition: PartitionId, offset: int, error: BaseException) -> None:
        """A message failed, and will be tried again."""
        failures = self._of.setdefault(partition, _PartitionFailures())
        failures.failing.add(offset)
        failures.error = type(error).__name__[:MAX_CLASS]
        self._changed.add(partition)

    def recovered(self, partition: PartitionId, offset: int) -> None:
        """It is done after all, or somebody else's."""
        failures = self._of.get(partition)
        if failures is not None and offset in failures.failing:
            failures.failing.discard(offset)
            self._changed.add(partition)

    def given_up(
        self, partition: PartitionId, offset: int, error: BaseException, *, dead: bool
    ) -> None:
        """It went to the dead-letter topic, or was skipped."""
        failures = self._of.setdefault(partition, _PartitionFailures())
        failures.failing.discard(offset)
        failures.dead += dead
        failures.skipped += not dead
        failures.last = offset
        failures.error = type(error).__name__[:MAX_CLASS]
        self._changed.add(partition)

    def stuck(self, messages: Iterable[tuple[PartitionId, int]]) -> None:
        """These are all that are stuck now."""
        now: dict[PartitionId, set[int]] = {}
        for partition, offset in messages:
            now.setdefault(partition, set()).add(offset)
        for partition in now.keys() | self._of.keys():
            offsets = frozenset(now.get(partition, ()))
            if offsets != (self._of[partition].stuck if partition in self._of else frozenset()):
                self._of.setdefault(partition, _PartitionFailures()).stuck = offsets
                self._changed.add(partition)

    @property
    def stuck_now(self) -> int:
        """How many are stuck."""
        return sum(len(failures.stuck) for failures in self._of.values())

    def of(self, partition: PartitionId) -> ClaimMetadata:
        """Return what is to be said of a partition."""
        failures = self._of.get(partition)
        return ClaimMetadata() if failures is None else failures.metadata()

    def all(self) -> dict[PartitionId, ClaimMetadata]:
        """Return what is to be said of each partition."""
        return {partition: failures.metadata() for partition, failures in self._of.items()}

    def forget(self, partition: PartitionId) -> None:
        """The claim has ended: the next holder counts for itself."""
        self._of.pop(partition, None)
        self._changed.discard(partition)

    def publish_again(self, partition: PartitionId) -> None:
        """What changed there could not be published yet."""
        if partition in self._of:
            self._changed.add(partition)

    def take_changed(self) -> list[tuple[PartitionId, ClaimMetadata]]:
        """Return what changed since the last call."""
        changed, self._changed = self._changed, set()
        return [(partition, self.of(partition)) for partition in changed]
