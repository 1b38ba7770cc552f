"""What a leader in wal mode tells its scheduler of the sink (specs/HARVEST.md §18)."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest

from harvest.core import wal as w
from harvest.core.failure import Failure
from harvest.core.wal_position import WalPosition
from harvest.runtime.leadership import Leadership
from harvest.runtime.wal_leader import WalLeader, WalTools
from tests.unit.harvest.runtime.test_range_leader import Lease, Store

WAIT_S = 60.0
FIRST, SECOND = WalPosition(7, "s", 1, 200), WalPosition(7, "s", 1, 300)


class Sink:
    """Takes checkpoints, or fails."""

    def __init__(self, failure: Failure | None) -> None:
        self.failure = failure
        self.told: list[tuple[int, str]] = []

    def deliver(self, rows: Any, checkpoint: str) -> Failure | None:
        self.told.append((len(rows), checkpoint))
        return self.failure

    def close(self) -> None: ...


class Reporting(Leadership):
    """Keeps what the scheduler would hear."""

    def __init__(self, lease: Any) -> None:
        super().__init__(lease)
        self.reported: SimpleQueue[Any] = SimpleQueue()

    def report(self, event: Any) -> None:
        self.reported.put(event)


@pytest.mark.parametrize(
    ("failure", "event"), [(None, w.Saved(FIRST)), (Failure("no broker answers"), w.SaveFailed())]
)
def test_a_checkpoint_counts_as_saved_only_if_the_sink_has_taken_it(
    failure: Failure | None, event: w.Event
) -> None:
    sink: Any = Sink(failure)
    store: Any = Store()
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, store, sink, pipeline=sink))
    thread = leader.publisher.thread
    thread.start(leadership.report)
    thread.put(w.Save(FIRST))
    assert leadership.reported.get(timeout=WAIT_S) == event
    assert thread.close(WAIT_S)
    assert sink.told == [(0, FIRST.encode())]


def test_of_several_checkpoints_the_last_is_saved() -> None:
    sink: Any = Sink(None)
    store: Any = Store()
    leadership = Reporting(Lease())
    leader = WalLeader(leadership, WalTools(store, store, sink, pipeline=sink))
    thread = leader.publisher.thread
    for position in (FIRST, SECOND):
        thread.put(w.Save(position))
    thread.start(leadership.report)
    assert leadership.reported.get(timeout=WAIT_S) == w.Saved(SECOND)
    assert thread.close(WAIT_S)
    assert sink.told == [(0, SECOND.encode())]
