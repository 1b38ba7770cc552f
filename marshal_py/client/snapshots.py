"""Snapshots as a reader of the log meets them: the newest one to start from, and those of others.

(specs/PROTOCOL.md §6.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import MalformedRecord, SnapshotMismatch
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.snapshots import Snapshot, decode_snapshot

__all__ = ["SnapshotComparison", "newest_snapshots"]

logger = logging.getLogger("marshal_py.log")

KEPT_DIGESTS: Final = 8
"""Boundaries per coordination partition whose digest is kept to compare snapshots with."""


class SnapshotComparison:
    """Compares the snapshots that clients write with what this process made of the log (§6.5)."""

    def __init__(self, topic: str) -> None:
        self.newest: dict[int, int] = {}
        """Coordination partition → `next_offset` of the newest valid snapshot seen."""
        self.mismatches: list[SnapshotMismatch] = []
        self._topic = topic
        self._digests: list[dict[int, bytes]] = []

    def reset(self, partitions: int) -> None:
        """Begin anew, with a log of so many coordination partitions."""
        self.newest.clear()
        self._digests = [{} for _ in range(partitions)]

    def note(self, coordinator: int, next_offset: int, digest: bytes) -> None:
        """Keep the digest of the state at a boundary."""
        digests = self._digests[coordinator]
        digests[next_offset] = digest
        while len(digests) > KEPT_DIGESTS:
            del digests[next(iter(digests))]

    def compare(self, snapshot: Snapshot, state: PartitionState) -> None:
        """Take in a snapshot that was written; `state` is the present one of its partition."""
        p = snapshot.coordinator
        self.newest[p] = max(snapshot.next_offset, self.newest.get(p, 0))
        own = self._digests[p].get(snapshot.next_offset)
        if own is None and snapshot.next_offset == state.next_offset:
            own = state.digest()
        if own is not None and own != snapshot.digest:
            mismatch = SnapshotMismatch(
                f"{snapshot.writer}'s snapshot of {self._topic}/{p} at offset "
                f"{snapshot.next_offset} differs from the state of this process: one of the two "
                "does not follow the protocol: compare their versions"
            )
            self.mismatches.append(mismatch)
            logger.error("%s", mismatch)


def newest_snapshots(
    config: KafkaConfig,
    topic: str,
    ends: dict[int, int],
    deadline: float,
    acceptable: Callable[[Snapshot], PartitionState | None],
) -> dict[int, tuple[Snapshot, PartitionState]]:
    """Return the newest acceptable snapshot of each partition that has one, and its state.

    Looks at the last record of each partition, and at all of them only if that one will not do.
    """
    newest: dict[int, tuple[Snapshot, PartitionState]] = {}
    starts = {p: end - 1 for p, end in ends.items() if end > 0}
    for attempt in (starts, dict.fromkeys(starts, 0)):
        missing = {p: at for p, at in attempt.items() if p not in newest}
        if not missing:
            break
        for message in read_to_end(config, topic, missing, ends, deadline):
            try:
                snapshot = decode_snapshot(message.value())
            except MalformedRecord as error:
                logger.error("%s/%d: %s; it is not used", topic, message.partition(), error)
                continue
            if snapshot.coordinator != message.partition():
                continue
            state = acceptable(snapshot)
            if state is not None:
                newest[snapshot.coordinator] = snapshot, state
    return newest
