"""A leader in mark mode opens its sink, and marks, only under its lease (specs/HARVEST.md §6)."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.core import mark as m
from harvest.core.mark_checkpoint import Term
from harvest.core.row import Row
from harvest.errors import CheckpointError
from harvest.runtime.leadership import Leadership
from harvest.runtime.mark_leader import MarkLeader, MarkTools
from tests.unit.harvest.runtime.test_range_leader import Lease, Sink


class Store:
    """Has no rows, and notes for how long each mark was good."""

    def __init__(self) -> None:
        self.valid_ms: list[float] = []

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        del term, batch, limit
        self.valid_ms.append(valid_ms)
        return []

    def cancel(self) -> None: ...


def leader(lease: Lease, *, sink: Sink | None = None, store: Store | None = None) -> MarkLeader:
    given: Any = lease
    stores: Any = store or Store()
    takes: Any = sink
    return MarkLeader(Leadership(given), MarkTools(stores, stores, takes))


def test_who_has_lost_the_lease_during_the_back_off_does_not_open() -> None:
    sink = Sink()
    assert leader(Lease(False), sink=sink).publisher.open(m.Open(0)) == m.LeaseLost()
    assert sink.told == []


def test_a_sink_that_opens_slowly_hears_that_the_lease_is_lost() -> None:
    sink = Sink()
    assert isinstance(leader(Lease(True, False), sink=sink).publisher.open(m.Open(0)), m.Opened)
    assert sink.told == [False]


def test_a_checkpoint_that_cannot_be_read_ends_the_process() -> None:
    """As in the other modes: nobody knows what is published, and trying again changes nothing."""
    sink = Sink("no checkpoint")
    with pytest.raises(CheckpointError, match="cannot be read"):
        leader(Lease(True, True), sink=sink).publisher.open(m.Open(0))


def test_a_mark_is_good_for_what_is_left_of_the_lease() -> None:
    lease, store = Lease(True), Store()
    lease.remaining_ms = 300.0
    assert leader(lease, store=store).rows.mark(m.Mark(Term.of(1), 0, 10, 0)) == m.Marked(0, [])
    assert store.valid_ms == [300.0]
