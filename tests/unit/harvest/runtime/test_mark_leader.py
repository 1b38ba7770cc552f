"""A leader in mark mode opens its sink, and marks, only under its lease (specs/HARVEST.md §6)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from harvest.core import mark as m
from harvest.core.failure import Failure
from harvest.core.mark_checkpoint import Checkpoint, Term
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


def test_rows_that_were_published_already_are_counted() -> None:
    class Cleared(Store):
        def clear(self, checkpoint: Checkpoint) -> int:
            return checkpoint.high_id

    made = leader(Lease(True), store=Cleared())
    for high_id in (3, 0, 2):
        action = m.Clear(Checkpoint(1, Term.of(1), 0, 1, high_id))
        assert made._clear(action) == m.Cleared()
    assert made._leadership.stats.found_published == 5


class Letters:
    """A table of dead letters with one key that waits."""

    def __init__(self) -> None:
        self.closed = 0

    def waiting_keys(self) -> dict[tuple[str, bytes], int]:
        return {("t", b"k"): 7}

    def close(self) -> None:
        self.closed += 1


class Closing:
    """Notes that it was closed."""

    log_position = 3, 70

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def cancel(self) -> None: ...


def test_a_checkpoint_says_how_far_the_log_had_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, a failover that lost nothing cannot be told from one that did."""
    sent: list[str] = []

    class Publishing(Sink):
        def deliver(self, rows: object, checkpoint: str) -> None:
            del rows
            sent.append(checkpoint)

    given: Any = Lease(True)
    sink: Any = Publishing()
    stores: Any = Store()
    guard: Any = Closing()
    leadership, done = Leadership(given), threading.Event()
    monkeypatch.setattr(leadership, "report", lambda *_: done.set())
    leader = MarkLeader(leadership, MarkTools(stores, stores, sink, guard=guard))
    leader.publisher.thread.start(lambda error: pytest.fail(repr(error)))
    leader.publisher.thread.put(m.Send(0, [], Checkpoint(1, Term.of(1), 0, 1, 1)))
    assert done.wait(20)
    assert leader.publisher.thread.close(20)
    found = Checkpoint.decode(sent[0])
    assert (found.timeline, found.log) == (3, 70)


def test_a_term_begins_where_the_last_checkpoint_says_with_the_keys_that_wait() -> None:
    found = Checkpoint(1, Term.of(1), 0, 1, 1, timeline=3, log=70)
    letters, lease = Letters(), Lease(True, True)
    given: Any = lease
    sink: Any = Sink(found.encode())
    stores: Any = Store()
    aside: Any = letters
    made = MarkLeader(Leadership(given), MarkTools(stores, stores, sink, dead_letters=aside))
    opened = made.publisher.open(m.Open(0))
    assert (opened.checkpoint, opened.waiting) == (found, {("t", b"k"): 7})
    assert made.rows.checkpoint_position == (3, 70)


def test_what_it_did_is_counted() -> None:
    given: Any = Lease(True)
    leadership = Leadership(given)
    stores: Any = Store()
    unused: Any = None
    made = MarkLeader(leadership, MarkTools(stores, stores, unused))
    for failure in (None, Failure("no"), Failure("no")):
        made.observe(m.Settled((0,), failure))
    made.observe(m.Marked(0, [Row(1, "t", b"k", b"v")] * 3))
    stats = leadership.stats
    stats.purged, stats.purged_by_others = 5, 2
    made.observe(m.Purged())
    made.observe(m.Opened(Term.of(1), None))
    assert (stats.deliveries, stats.failed_deliveries) == (3, 2)
    assert (stats.marked, stats.published, stats.terms) == (3, 7, 1)


def test_all_that_was_opened_is_closed() -> None:
    marker, purger, sink, guard = Closing(), Closing(), Closing(), Closing()
    letters = Letters()
    parts: Any = (marker, purger, sink)
    more: Any = {"guard": guard, "dead_letters": letters}
    MarkTools(*parts, **more).close()
    assert [part.closed for part in (marker, purger, sink, guard, letters)] == [1] * 5
    MarkTools(*parts).close()
