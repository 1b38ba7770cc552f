"""Rows are marked under the lease, and by leave of the guard; what is deleted is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from harvest.core.mark_actions import Mark, Marked, MarkFailed, Purge, Purged, PurgeFailed
from harvest.core.mark_checkpoint import Term
from harvest.core.pacing import Limits
from harvest.core.row import Row
from harvest.errors import DatabaseChanged, HarvestError, StoreUnavailable
from harvest.runtime.leadership import Leadership
from harvest.runtime.marked_rows import MarkedRows
from harvest.runtime.source_guard import LogPosition

TERM = Term.of(1)
ROWS = [Row(1, "t", b"k", b"v"), Row(2, "t", b"k", b"v")]


class Guard:
    """Notes what it is asked; `found` is what it finds."""

    def __init__(self) -> None:
        self.lease: object = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.seen: list[object] = []
        self.found: Exception | None = None

    def begin(self, checkpoint: LogPosition) -> None:
        self._say("begin", checkpoint)

    def look(self) -> None:
        self._say("look")

    def saw(self, store: object) -> None:
        self._say("saw", store)

    def _say(self, *what: object) -> None:
        self.seen.append(what)
        self.meanwhile()
        if self.found is not None:
            raise self.found


class Store:
    """A table of two rows, of which one is deleted by somebody else."""

    fails: HarvestError | None = None
    rows: Sequence[Row] = ROWS
    left = 1

    def __init__(self) -> None:
        self.marks = 0
        self.valid_ms = 0.0

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> Sequence[Row]:
        del term, batch, limit
        self.valid_ms = valid_ms
        if self.fails is not None:
            raise self.fails
        self.marks += 1
        return self.rows

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        del ids, tags
        if self.fails is not None:
            raise self.fails
        return self.left


class World:
    def __init__(
        self,
        *,
        fenced: bool = True,
        held: bool = True,
        left_ms: float = 500.0,
        purger: Store | None = None,
    ) -> None:
        lease: Any = SimpleNamespace(epoch=1, held=held, remaining_ms=left_ms)
        self.lease = lease
        self.leadership = Leadership(lease)
        self.guard, self.marker, self.purger = Guard(), Store(), purger or Store()
        marker: Any = self.marker
        deletes: Any = self.purger
        guard: Any = self.guard
        self.rows = MarkedRows(
            self.leadership, marker, deletes, Limits(), fenced=fenced, guard=guard
        )

    def mark(self, batch: int = 0) -> object:
        return self.rows.mark(Mark(TERM, batch, 10, 0))

    def purge(self) -> object:
        return self.rows.purge(Purge((1, 2), (TERM.tag(0),), 0))


def test_a_term_begins_with_what_the_last_checkpoint_rests_on() -> None:
    world = World()
    world.rows.checkpoint_position = (3, 70)
    assert world.mark(0) == Marked(0, ROWS)
    assert world.leadership.source_accepted
    assert world.guard.lease is world.leadership.lease
    assert world.mark(1) == Marked(1, ROWS)
    saw = ("saw", world.marker)
    assert world.guard.seen == [("begin", (3, 70)), saw, ("look",), saw]


def test_where_there_were_no_rows_none_were_seen() -> None:
    world = World()
    world.marker.rows = ()
    assert world.mark(0) == Marked(0, ())
    assert world.guard.seen == [("begin", (0, 0))]


@pytest.mark.parametrize("batch", [0, 1])
def test_another_database_ends_the_leadership_before_anything_is_marked(batch: int) -> None:
    """It is no failure of the database, after which the mark is tried again."""
    world = World()
    world.guard.found = DatabaseChanged("another server")
    with pytest.raises(DatabaseChanged):
        world.mark(batch)
    assert world.marker.marks == 0
    assert not world.leadership.source_accepted


def test_a_mark_that_failed_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.marker.fails = StoreUnavailable("no database")
    assert world.mark(4) == MarkFailed(4)
    assert "rows could not be marked: no database" in caplog.text


@pytest.mark.parametrize(("held", "left_ms"), [(False, 500.0), (True, 0.0), (True, -1.0)])
def test_nothing_is_marked_without_a_lease_or_time_left_of_it(held: bool, left_ms: float) -> None:
    world = World(held=held, left_ms=left_ms)
    assert type(world.mark()).__name__ == "LeaseLost"
    assert world.marker.marks == 0


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("left_ms", [200.0, 0.0])
def test_a_mark_is_good_for_what_the_look_has_left_of_the_lease(batch: int, left_ms: float) -> None:
    """With what it was before, rows would be tagged for one who leads no more."""
    world = World()

    def late() -> None:
        world.lease.remaining_ms = left_ms

    world.guard.meanwhile = late
    world.mark(batch)
    assert (world.marker.marks, world.marker.valid_ms) == (int(left_ms > 0), left_ms)


@pytest.mark.parametrize("fenced", [True, False])
def test_rows_that_somebody_else_deleted_are_counted(
    fenced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody else can have published, it is told: another harvester works on the table."""
    world = World(fenced=fenced)
    assert world.purge() == Purged()
    stats = world.leadership.stats
    assert (stats.purged, stats.purged_by_others) == (1, 1)
    assert world.guard.seen == [("saw", world.purger)]
    told = "1 of 2 published rows were deleted or marked by somebody else"
    assert (told in caplog.text) is fenced
    caplog.clear()
    world.purger.left = 2
    assert world.purge() == Purged()
    assert not caplog.records


def test_a_purge_that_failed_is_reported_and_not_counted() -> None:
    world = World()
    world.purger.fails = StoreUnavailable("no database")
    assert world.purge() == PurgeFailed()
    assert (world.leadership.stats.purged, world.guard.seen) == (0, [])


def test_a_purge_is_made_after_the_delay_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is down is not asked all the time."""
    seen: list[object] = []

    class Noting(Store):
        def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
            seen.append("purge")
            return super().purge(ids, tags)

    world = World(purger=Noting())
    monkeypatch.setattr(world.leadership, "pause", seen.append)
    assert world.rows.purge(Purge((1, 2), (TERM.tag(0),), 250)) == Purged()
    assert seen == [250, "purge"]
