"""The mark scheduler: invariants by simulation, and its decisions one by one."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st

from harvest.core import mark as m
from harvest.core.dead_letters import BadRowPolicy
from harvest.core.failure import Failure
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.outbox.record import OutboxRecord
from harvest.testing.memory_table import MemoryMarkStore, MemoryTransaction
from tests.support.mark_simulation import KEYS, Leader, World

TERM = Term.of(1)
seeds = st.integers(0, 2**64 - 1)


def last_occurrences(ids: list[int]) -> list[int]:
    return list(dict.fromkeys(reversed(ids)))[::-1]


def disturb(world: World, leader: Leader) -> None:
    """One step of a world in which everything fails now and then."""
    rnd = world.random
    roll = rnd.random()
    if roll < 0.35:
        world.write()
    elif roll < 0.40:
        leader.store.fail_next = rnd.choice(["before", "after"])
    elif roll < 0.44:
        leader.sink.fault = rnd.choice(
            ["refused", "unknown, published", "unknown, lost", "partial"]
        )
    elif roll < 0.445:
        leader.sink.fail_open = True
    elif roll < 0.45:
        leader.dead_letters.fail_next = rnd.choice(["before", "after"])
    elif roll < 0.46:
        leader.feed(m.Stop())
    elif lanes := leader.busy_lanes():
        leader.run(rnd.choice(lanes))


def run(world: World, steps: int, *, crashes: bool) -> None:
    leader = world.elect()
    for _ in range(steps):
        disturb(world, leader)
        if leader.finished or (crashes and world.random.random() < 0.01):  # SIGKILL
            leader = world.elect()
    world.run_to_the_end(leader)


@given(seeds, st.integers(20, 300))
@settings(max_examples=300, deadline=None)
def test_atomic_sink_publishes_each_committed_row_once_in_order(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    run(world, steps, crashes=True)
    for key in KEYS:
        assert world.published_ids(key) == world.committed[key]


@given(seeds, st.integers(20, 300))
@settings(max_examples=300, deadline=None)
def test_a_woken_zombie_publishes_nothing_and_repeats_nothing(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    zombie = world.elect()
    for _ in range(steps):
        disturb(world, zombie)
    zombie.pause()
    published = len(world.broker.published)
    successor = world.elect()
    for _ in range(steps):
        leader = world.random.choice(world.leaders)
        if world.random.random() < 0.3:
            world.write()
        elif lanes := leader.busy_lanes():
            leader.run(world.random.choice(lanes))
            if leader is zombie:
                assert len(world.broker.published) == published
            published = len(world.broker.published)
    world.run_to_the_end(successor)
    for key in KEYS:
        assert world.published_ids(key) == world.committed[key]


@given(seeds, st.integers(20, 300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_plain_sink_loses_nothing_and_ends_in_order(seed: int, steps: int, pipelined: bool) -> None:
    world = World(random.Random(seed), atomic=False, pipelined=pipelined)
    run(world, steps, crashes=True)
    for key in KEYS:
        assert last_occurrences(world.published_ids(key)) == world.committed[key]


@given(seeds, st.integers(20, 300), st.integers(1, 5), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_broker_at_which_one_row_fits_a_delivery_gets_them_all(
    seed: int, steps: int, largest: int, atomic: bool
) -> None:
    limits = m.Limits(mark_query_records=50, max_in_flight_records=100)
    world = World(random.Random(seed), atomic=atomic, largest=largest, limits=limits)
    run(world, steps, crashes=True)
    for key in KEYS:
        assert last_occurrences(world.published_ids(key)) == world.committed[key]


@given(seeds, st.integers(20, 200), st.booleans())
@settings(max_examples=100, deadline=None)
def test_without_faults_every_sink_is_exactly_once(seed: int, steps: int, pipelined: bool) -> None:
    world = World(random.Random(seed), atomic=False, pipelined=pipelined)
    leader = world.elect()
    for _ in range(steps):
        if world.random.random() < 0.4:
            world.write()
        elif lanes := leader.busy_lanes():
            leader.run(world.random.choice(lanes))
    world.run_to_the_end(leader)
    for key in KEYS:
        assert world.published_ids(key) == world.committed[key]


# --- A database that goes back in time ---


class _CarefulStore(MemoryMarkStore):
    """Deletes nothing that is not published, by what it contains: its id may be another row's."""

    world: World

    def _published(self, ids: Sequence[int]) -> None:
        published = {row.value for row in self.world.broker.published}
        assert {self.table.committed[id].row.value for id in ids} <= published

    def purge(self, ids: Sequence[int], tags: Sequence[UUID]) -> int:
        there = self.table.committed
        self._published([id for id in ids if id in there and there[id].tag in tags])
        return super().purge(ids, tags)

    def clear(self, checkpoint: Checkpoint) -> int:
        first, last = checkpoint.term.first, checkpoint.term.tag(checkpoint.batch)
        tags = {id: row.tag for id, row in self.table.committed.items()}
        within = range(checkpoint.low_id, checkpoint.high_id + 1)
        self._published(
            [i for i, tag in tags.items() if i in within and tag and first <= tag <= last]
        )
        return super().clear(checkpoint)


class _RewoundWorld(World):
    """Every row has a value of its own."""

    def elect(self) -> Leader:
        leader = super().elect()
        leader.store = _CarefulStore(self.table)
        leader.store.world = self
        return leader

    def insert(self, transaction: MemoryTransaction, key: str) -> int:
        self.inserted = getattr(self, "inserted", 0) + 1
        return transaction.insert(OutboxRecord("t", key, f"{key}{self.inserted}"))

    def backup(self) -> tuple[dict[int, Any], int]:
        return copy.deepcopy(self.table.committed), self.table.next_id

    def rewind(self, backup: tuple[dict[int, Any], int], leader: Leader) -> None:
        """What was committed since is gone, ids come again, and connections break."""
        self.table.committed, self.table.next_id = backup
        self.table.running.clear()
        self.open_transactions.clear()
        leader.store.fail_next = "before"


@given(seeds, st.integers(20, 200), st.booleans())
@example(6_187_780_179, 147, False)  # only a purge hears of it
@settings(max_examples=200, deadline=None)
def test_no_row_is_deleted_for_another_of_its_id_when_the_database_goes_back(
    seed: int, steps: int, atomic: bool
) -> None:
    world = _RewoundWorld(random.Random(seed), atomic=atomic)
    leader = world.elect()
    backup = world.backup()
    for _ in range(steps):
        disturb(world, leader)
        roll = world.random.random()
        if roll < 0.03:
            backup = world.backup()
        elif roll < 0.06:
            world.rewind(backup, leader)
            backup = world.backup()
        if leader.finished:
            leader = world.elect()
    world.run_to_the_end(leader)


# --- Rows that cannot be published ---


@given(seeds, st.integers(20, 300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_bad_rows_are_set_aside_and_everything_else_is_published_once(
    seed: int, steps: int, key_waits: bool
) -> None:
    world = World(random.Random(seed), bad=0.15, bad_rows=BadRowPolicy(key_waits=key_waits))
    run(world, steps, crashes=True)
    for key in KEYS:
        expected = []
        for row_id in world.committed[key]:
            if row_id in world.bad_ids:
                if key_waits:
                    break
                continue
            expected.append(row_id)
        assert world.published_ids(key) == expected
    everything = {row_id for ids in world.committed.values() for row_id in ids}
    published = {row.id for row in world.broker.published}
    assert world.table.dead_letters.keys() == everything - published


@given(seeds, st.integers(20, 300), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_plain_sink_loses_nothing_beside_bad_rows(
    seed: int, steps: int, key_waits: bool, pipelined: bool
) -> None:
    world = World(
        random.Random(seed),
        atomic=False,
        pipelined=pipelined,
        bad=0.15,
        bad_rows=BadRowPolicy(key_waits=key_waits),
    )
    run(world, steps, crashes=True)
    everything = {row_id for ids in world.committed.values() for row_id in ids}
    published = {row.id for row in world.broker.published}
    assert world.bad_ids & everything <= world.table.dead_letters.keys()
    assert published | world.table.dead_letters.keys() == everything


@given(seeds, st.integers(20, 200))
@settings(max_examples=200, deadline=None)
def test_a_retry_while_the_harvest_goes_on_keeps_the_order(seed: int, steps: int) -> None:
    world = World(random.Random(seed), bad=0.1)
    leader = world.elect()
    for _ in range(steps):
        disturb(world, leader)
        if world.random.random() < 0.05:
            leader.dead_letters.retry()
        if leader.finished:
            leader = world.elect()
    for stored in [*world.table.committed.values()]:  # whoever looked after it has corrected them
        stored.row = corrected(stored.row)
    for row_id, (row, why) in [*world.table.dead_letters.items()]:
        world.table.dead_letters[row_id] = (corrected(row), why)
    for transaction, _ in world.open_transactions.values():
        transaction._rows = [corrected(row) for row in transaction._rows]
    world.bad = 0.0
    for lost in world.leaders:
        lost.held = False
    leader.dead_letters.retry()
    world.run_to_the_end(world.elect())
    assert not world.table.dead_letters
    for key in KEYS:
        assert world.published_ids(key) == world.committed[key]


def corrected(row: Row) -> Row:
    return row._replace(header_keys=(), value=b"v")


# --- Decisions, one by one ---

A = TypeVar("A", bound=m.Action)


def rows(*ids: int, key: str = "k", size: int = 10) -> list[Row]:
    return [Row(i, "t", key.encode(), b"x" * size) for i in ids]


def only(actions: Sequence[m.Action], kind: type[A]) -> A:
    (action,) = actions
    assert isinstance(action, kind)
    return action


def running(limits: m.Limits | None = None) -> tuple[m.MarkScheduler, m.Mark]:
    """A scheduler that has opened, and its first mark."""
    scheduler = m.MarkScheduler(7, limits or m.Limits())
    only(scheduler.step(m.Start()), m.Open)
    return scheduler, only(scheduler.step(m.Opened(TERM, None)), m.Mark)


def test_the_checkpoint_of_the_leader_before_is_cleared_before_the_first_mark() -> None:
    scheduler = m.MarkScheduler(7)
    assert scheduler.step(m.Start()) == [m.Open(0)]
    old = Checkpoint(6, Term.of(99), 3, 10, 20)
    assert scheduler.step(m.Opened(TERM, old)) == [m.Clear(old)]
    only(scheduler.step(m.Cleared()), m.Mark)


def test_a_send_carries_a_checkpoint_that_spans_everything_unpurged() -> None:
    scheduler, first = running()
    send, mark = scheduler.step(m.Marked(first.batch, rows(5, 9)))
    assert isinstance(send, m.Send)
    assert send.checkpoint == Checkpoint(7, TERM, first.batch, 5, 9)
    assert isinstance(mark, m.Mark)
    late, _ = scheduler.step(m.Marked(mark.batch, rows(3)))
    assert isinstance(late, m.Send)
    assert late.checkpoint == Checkpoint(7, TERM, mark.batch, 3, 9)


def test_rows_are_purged_only_when_the_sink_has_acknowledged() -> None:
    scheduler, first = running()
    send, *_ = scheduler.step(m.Marked(first.batch, rows(1, 2)))
    assert isinstance(send, m.Send)
    assert scheduler.in_flight_records == 2
    purge, *_ = scheduler.step(m.Settled((first.batch,)))
    assert purge == m.Purge([1, 2], [TERM.tag(first.batch)])
    assert scheduler.in_flight_records == 2
    scheduler.step(m.Purged())
    assert scheduler.in_flight_records == 0


def test_a_row_that_somebody_else_tagged_meanwhile_is_not_sent_twice() -> None:
    scheduler, first = running()
    _, second = scheduler.step(m.Marked(first.batch, rows(1, 2)))
    assert isinstance(second, m.Mark)
    send, third = scheduler.step(m.Marked(second.batch, rows(1, 2, 3)))
    assert isinstance(send, m.Send)
    assert [row.id for row in send.rows] == [3]
    assert isinstance(third, m.Mark)
    tags = [TERM.tag(first.batch), TERM.tag(second.batch)]
    assert scheduler.step(m.Settled((first.batch,))) == [m.Purge([1, 2], tags)]
    scheduler.step(m.Purged())
    assert [type(a) for a in scheduler.step(m.Marked(third.batch, rows(1)))] == [m.Send, m.Mark]


def test_a_row_that_is_tagged_anew_while_it_is_purged_is_purged_again() -> None:
    scheduler, first = running()
    _, second = scheduler.step(m.Marked(first.batch, rows(1, 2)))
    assert isinstance(second, m.Mark)
    scheduler.step(m.Settled((first.batch,)))
    scheduler.step(m.Marked(second.batch, rows(1)))
    tags = [TERM.tag(first.batch), TERM.tag(second.batch)]
    assert scheduler.step(m.Purged())[0] == m.Purge([1, 2], tags)
    scheduler.step(m.Purged())
    assert scheduler.in_flight_records == 0


def test_another_row_under_an_id_in_flight_is_sent_in_a_new_term() -> None:
    scheduler, first = running()
    _, second = scheduler.step(m.Marked(first.batch, rows(1, 2)))
    assert isinstance(second, m.Mark)
    other = rows(1)[0]._replace(value=b"another")
    assert scheduler.step(m.Marked(second.batch, [other, *rows(3)])) == []
    tags = [TERM.tag(first.batch)]
    assert scheduler.step(m.Settled((first.batch,))) == [m.Purge([1, 2], tags)]
    only(scheduler.step(m.Purged()), m.Open)


def test_after_a_failed_row_later_rows_of_its_key_are_not_purged() -> None:
    scheduler, first = running()
    mixed = [*rows(1, 3, key="a"), *rows(4, key="b")]
    _, second = scheduler.step(m.Marked(first.batch, mixed))
    assert isinstance(second, m.Mark)
    _, third = scheduler.step(m.Marked(second.batch, [*rows(5, key="a"), *rows(6, key="b")]))
    assert isinstance(third, m.Mark)
    failure = Failure("refused", frozenset({1}))
    tags = [TERM.tag(first.batch)], [TERM.tag(second.batch)]
    assert scheduler.step(m.Settled((first.batch,), failure)) == [m.Purge([4], tags[0])]
    assert scheduler.step(m.Settled((second.batch,))) == []
    assert scheduler.step(m.Purged())[0] == m.Purge([6], tags[1])
    assert scheduler.state is m.State.RECOVERING


def test_a_failure_of_unknown_extent_purges_nothing_and_opens_again() -> None:
    scheduler, first = running()
    _, second = scheduler.step(m.Marked(first.batch, rows(1)))
    assert isinstance(second, m.Mark)
    assert scheduler.step(m.Settled((first.batch,), Failure("timed out"))) == []
    assert only(scheduler.step(m.Marked(second.batch, rows(2))), m.Open).delay_ms > 0
    assert scheduler.in_flight_records == 0


def test_opening_waits_longer_after_each_failure_up_to_a_bound() -> None:
    limits = m.Limits(io_error_backoff_ms=100, max_io_error_backoff_ms=1_000)
    scheduler = m.MarkScheduler(7, limits)
    scheduler.step(m.Start())
    delays = [only(scheduler.step(m.OpenFailed()), m.Open).delay_ms for _ in range(6)]
    assert delays == [100, 200, 400, 800, 1_000, 1_000]


def test_a_purge_that_failed_is_tried_again() -> None:
    scheduler, first = running()
    scheduler.step(m.Marked(first.batch, rows(1)))
    purge, *_ = scheduler.step(m.Settled((first.batch,)))
    assert isinstance(purge, m.Purge)
    again, *_ = scheduler.step(m.PurgeFailed())
    assert isinstance(again, m.Purge)
    assert again.ids == [1]
    assert again.delay_ms > 0


def test_after_a_purge_that_failed_a_new_term_marks_what_is_in_the_table() -> None:
    """Rows that were purged may be there again, under tags of this term."""
    scheduler, first = running()
    _, second = scheduler.step(m.Marked(first.batch, rows(1)))
    assert isinstance(second, m.Mark)
    scheduler.step(m.Settled((first.batch,)))
    only(scheduler.step(m.PurgeFailed()), m.Purge)
    assert scheduler.step(m.Marked(second.batch, rows(2))) == []
    only(scheduler.step(m.Purged()), m.Open)


def test_stopping_finishes_what_is_in_flight_and_hands_back_what_was_not_sent() -> None:
    scheduler, first = running()
    _, second = scheduler.step(m.Marked(first.batch, rows(1)))
    assert isinstance(second, m.Mark)
    assert scheduler.step(m.Stop()) == []
    assert scheduler.step(m.Marked(second.batch, rows(2))) == [
        m.Reset((2,), TERM.tag(second.batch))
    ]
    assert scheduler.step(m.ResetDone()) == []
    assert scheduler.step(m.Settled((first.batch,))) == [m.Purge([1], [TERM.tag(first.batch)])]
    only(scheduler.step(m.Purged()), m.Finish)
    assert scheduler.step(m.Purged()) == []


def test_stopping_never_resets_rows_that_were_sent() -> None:
    scheduler, first = running()
    _, second = scheduler.step(m.Marked(first.batch, rows(1)))
    assert isinstance(second, m.Mark)
    scheduler.step(m.Stop())
    assert scheduler.step(m.Settled((first.batch,), Failure("timed out"))) == []
    only(scheduler.step(m.Marked(second.batch, ())), m.Finish)


def test_losing_the_lease_ends_everything_at_once() -> None:
    scheduler, first = running()
    scheduler.step(m.Marked(first.batch, rows(1)))
    only(scheduler.step(m.LeaseLost()), m.Finish)
    assert scheduler.step(m.Settled((first.batch,))) == []


def test_marks_grow_from_a_small_one_and_stop_at_the_record_limit() -> None:
    limits = m.Limits(mark_query_records=1_000, max_in_flight_records=1_500)
    scheduler, mark = running(limits)
    asked = []
    next_id = 1
    while True:
        asked.append(mark.limit)
        found = rows(*range(next_id, next_id + mark.limit))
        next_id += mark.limit
        actions = scheduler.step(m.Marked(mark.batch, found))
        if len(actions) == 1:
            break
        assert isinstance(actions[1], m.Mark)
        mark = actions[1]
    assert asked == [256, 1_000]
    assert scheduler.in_flight_records <= limits.max_in_flight_records


def test_large_rows_are_marked_few_at_a_time() -> None:
    limits = m.Limits(max_in_flight_bytes=1_000_000)
    scheduler, first = running(limits)
    actions = scheduler.step(m.Marked(first.batch, rows(1, 2, size=100_000)))
    assert isinstance(actions[1], m.Mark)
    assert actions[1].limit <= 8


def test_an_idle_harvester_polls_less_and_less_often() -> None:
    limits = m.Limits(min_poll_interval_ms=2, max_poll_interval_ms=9)
    scheduler, mark = running(limits)
    delays = []
    for _ in range(8):
        mark = only(scheduler.step(m.Marked(mark.batch, ())), m.Mark)
        delays.append(mark.delay_ms)
    assert delays == [2, 3, 4, 5, 6, 7, 8, 9]
    _, mark_after = scheduler.step(m.Marked(mark.batch, rows(1)))
    assert isinstance(mark_after, m.Mark)
    assert mark_after.delay_ms == 2


def test_a_failed_mark_leads_to_a_new_term() -> None:
    scheduler, first = running()
    only(scheduler.step(m.MarkFailed(first.batch)), m.Open)
    only(scheduler.step(m.Opened(Term.of(2), None)), m.Mark)
