"""A leader in range mode opens its sink only under its lease (specs/HARVEST.md §14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harvest.core import range as r
from harvest.runtime.leadership import Leadership
from harvest.runtime.range_leader import RangeLeader, RangeTools


class Lease:
    epoch = 7
    remaining_ms = 1_000.0

    def __init__(self, *held: bool) -> None:
        self._answers = list(held)

    @property
    def held(self) -> bool:
        return self._answers.pop(0)


class Sink:
    """Notes whether it was opened, and what it was told of the lease."""

    def __init__(self, checkpoint: str | None = None) -> None:
        self.checkpoint = checkpoint
        self.told: list[bool] = []

    def open(self, still_held: Callable[[], bool]) -> str | None:
        self.told.append(still_held())
        return self.checkpoint


class Store:
    def cancel(self) -> None: ...


def leader(lease: Lease, sink: Sink) -> RangeLeader:
    given: Any = lease
    store: Any = Store()
    takes: Any = sink
    return RangeLeader(Leadership(given), RangeTools(store, store, takes))


def test_who_has_lost_the_lease_during_the_back_off_does_not_open() -> None:
    sink = Sink()
    assert leader(Lease(False), sink).publisher.open(r.Open(0)) == r.LeaseLost()
    assert sink.told == []


def test_a_sink_that_opens_slowly_hears_that_the_lease_is_lost() -> None:
    sink = Sink()
    assert leader(Lease(True, False), sink).publisher.open(r.Open(0)) == r.Opened(None)
    assert sink.told == [False]
