"""What happened in a version 1 log, as rows: claims and rejections (specs/INTEROP.md §3). No I/O.

The same history, without the checks of what only version 2 has: sequence numbers, epochs, members,
one declared interval a claim. `marshal_py.protocol.history.text_verifier` has those of version 1.
"""

from __future__ import annotations

from typing import Any

from marshal_py.protocol import events as ev
from marshal_py.protocol.history.anomaly_checks import AnomalyChecks
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.history.tracks import CellTrack, InstanceTrack
from marshal_py.protocol.text.rationalizer import TextState

__all__ = ["text_history"]


def text_history(
    partition: int, partitions: int, *, state: TextState, sample_ms: int = 60_000
) -> PartitionHistory:
    """Return the history of one coordination partition of a version 1 log.

    Times are those that the records carry, where the broker has none. It takes `note`, not `feed`.
    """
    return PartitionHistory(
        partition, partitions, state=state, sample_ms=sample_ms, checks=TextChecks, epochs=False
    )


class TextChecks(AnomalyChecks):
    """Of the checks, those for which the records of version 1 have what it takes."""

    def sender(self, event: Any) -> None:
        """Nothing: there are no sequence numbers."""

    def other_sender(self, track: CellTrack, event: Any) -> None:
        """Nothing: there are no epochs that another sender could use."""

    def position_back(self, track: CellTrack, event: ev.Renewed) -> None:
        """Nothing: the fold itself takes what a heartbeat says."""

    def place(self, event: Any) -> None:
        """Nothing: `text_verifier` checks it."""

    def clock(self, offset: int, at_ms: int) -> None:
        """Nothing: times are those of many clocks; `text_verifier` compares them."""

    def rejected(self, event: ev.Rejected) -> None:
        """Nothing: there are no epochs and versions that could be impossible."""

    def slow_heartbeat(self, track: CellTrack | InstanceTrack, event: Any, gap: int) -> None:
        """Check for late ones alone: seconds are too coarse to show that a clock is slow."""
        if gap > 2 * track.interval_ms:
            self.late_heartbeat(track, event, gap)
