"""The wal scheduler: simulated histories with faults, kills and zombies; its rules one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from harvest.core import wal as w
from harvest.core.dead_letters import BadRowPolicy, Key
from harvest.core.failure import Failure
from harvest.core.pacing import Limits
from harvest.core.row import Row
from harvest.core.source import Source
from harvest.core.wal_position import WalPosition, format_lsn, parse_lsn
from harvest.core.wal_slot import (
    ServerState,
    SlotState,
    TimelineSwitch,
    gone_back,
    starting_position,
)
from harvest.errors import CheckpointError
from harvest.testing.memory_broker import Fault
from tests.support.wal_simulation import Leader, World

FAULTS: tuple[Fault, ...] = ("refused", "unknown, published", "unknown, lost")


def history(world: World, steps: int = 300, *, zombies: bool = True) -> None:
    """Writers, faults, kills and takeovers at random; then everything comes to an end."""
    choose = world.random
    leader = world.elect()
    others: list[Leader] = []
    for _ in range(steps):
        roll = choose.random()
        if roll < 0.3:
            world.write()
        elif roll < 0.32:
            leader.sink.fault = choose.choice(FAULTS)
        elif roll < 0.33:
            leader.sink.fail_open = True
        elif roll < 0.34 and leader.stream is not None:
            leader.stream.fail_next = True
        elif roll < 0.35:
            world.log.fail_next = True
        elif roll < 0.36:
            world.dead_letters.fail_next = True
        elif roll < 0.37 and leader.stream is not None:
            leader.stream.asks = True
        elif roll < 0.39:
            if zombies and choose.random() < 0.5:
                leader.pause()
                others.append(leader)
            else:
                leader.finished = "killed"
            leader = world.elect()
        elif roll < 0.395:
            leader.feed(w.Stop())
        elif others and roll < 0.45:
            zombie = choose.choice(others)
            if zombie.finished or not zombie.choices():
                others.remove(zombie)
            else:
                choose.choice(zombie.choices())()
        else:
            if leader.finished:
                assert leader.refused is None
                leader = world.elect()
            choices = leader.choices()
            if choices:
                choose.choice(choices)()
    world.run_to_the_end()


@pytest.mark.parametrize("seed", range(80))
def test_every_committed_row_is_published_once_in_order_whatever_fails(seed: int) -> None:
    world = World(random.Random(seed))
    history(world)
    world.assert_once_in_order()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("key_waits", [True, False])
def test_rows_that_cannot_be_published_are_set_aside_and_keys_wait(
    seed: int, key_waits: bool
) -> None:
    world = World(random.Random(seed), bad=0.1, bad_rows=BadRowPolicy(key_waits=key_waits))
    history(world)
    world.assert_once_in_order()


@pytest.mark.parametrize("seed", range(80))
def test_at_least_once_nothing_is_lost_and_the_last_of_each_is_in_order(seed: int) -> None:
    world = World(random.Random(seed), atomic=False, fault=0.05)
    # Nobody fences a producer without transactions: a zombie may write late (specs/HARVEST.md §2).
    history(world, zombies=False)
    world.assert_last_in_order()


@pytest.mark.parametrize("seed", range(60))
def test_at_least_once_rows_that_are_refused_are_found_and_set_aside(seed: int) -> None:
    world = World(random.Random(seed), atomic=False, fault=0.03, bad=0.1)
    history(world, zombies=False)
    world.assert_last_in_order()
    refused = {row_id for row_id, (_, bad) in world.dead_letters.rows.items() if not bad.waits}
    assert refused <= world.bad_ids


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_a_broker_at_which_one_row_fits_a_delivery_gets_them_all(seed: int, atomic: bool) -> None:
    limits = Limits(mark_query_records=50, max_in_flight_records=100)
    world = World(random.Random(seed), atomic=atomic, limits=limits, largest=1 + seed % 5)
    history(world, zombies=atomic)
    world.assert_last_in_order()


@pytest.mark.parametrize("seed", range(50))
def test_a_slot_that_is_lost_or_made_anew_is_refused_and_not_read(seed: int) -> None:
    choose = random.Random(seed)
    world = World(choose)
    history(world, 150)
    before = list(world.broker.published)
    world.log.record()
    what = choose.choice(["dropped", "lost", "remade", "other server", "promoted too early"])
    last_row = max((chunk.end_lsn for chunk in world.log.committed), default=0)
    match what:
        case "dropped":
            world.log.exists = False
        case "lost":
            world.log.lost = True
        case "remade":
            world.log.remake_slot()
        case "other server":
            world.log.system = "another"
        case "promoted too early":
            world.log.promote(last_row - 1)
    if not before:
        return
    leader = world.elect()
    while leader.finished is None:
        choose.choice(leader.choices())()
    assert isinstance(leader.refused, CheckpointError)
    assert "harvest slot renew" in str(leader.refused)
    assert world.broker.published == before


@pytest.mark.parametrize("seed", range(50))
def test_a_replica_with_all_that_was_published_takes_over_without_loss(seed: int) -> None:
    choose = random.Random(seed)
    world = World(choose)
    history(world, 150)
    last_row = max((chunk.end_lsn for chunk in world.log.committed), default=0)
    world.log.record()
    world.log.record()
    world.log.promote(max(last_row, 100))
    world.elect()
    history(world, 150)
    world.assert_once_in_order()


def opened(atomic: bool = True, limits: Limits | None = None) -> w.WalScheduler:
    """A scheduler that works, from place 100, with a checkpoint there."""
    scheduler = w.WalScheduler(1, atomic, limits or Limits())
    scheduler.step(w.Start())
    position = WalPosition(0, "s", 1, 100)
    assert scheduler.step(w.Opened(position)) == [w.OpenStream(position)]
    (read,) = scheduler.step(w.StreamOpened(position))
    assert isinstance(read, w.Read)
    return scheduler


def row(row_id: int) -> Row:
    return Row(row_id, "t", b"k", b"v")


def test_rows_stay_in_the_table_until_the_checkpoint_has_passed_them() -> None:
    """`python -m tests.simulation.whole --kind wals`, seeds 1034 and 1325: a row came again alone,
    the slot was lost, and the row behind it had been purged."""
    scheduler = opened(atomic=False)
    actions = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110)], 210)]))
    (send,) = [a for a in actions if isinstance(a, w.Send)]
    scheduler.step(w.Settled((send.number,)))
    assert scheduler.purgeable_lsn == 100
    (save, *_) = scheduler.step(w.Refresh())
    assert isinstance(save, w.Save)
    scheduler.step(w.Saved(save.position))
    assert scheduler.purgeable_lsn == 210
    scheduler.step(w.ReadDone([], 500))
    assert scheduler.purgeable_lsn == 500


def test_a_large_transaction_is_sent_in_parts_and_read_again_from_its_middle() -> None:
    scheduler = opened()
    actions = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110), row(120)], 0)]))
    (send,) = [a for a in actions if isinstance(a, w.Send)]
    assert (send.position.lsn, send.position.part_lsn, send.position.part_rows) == (100, 200, 2)
    again = w.WalScheduler(2)
    again.step(w.Start())
    again.step(w.Opened(send.position))
    again.step(w.StreamOpened(send.position))
    chunk = w.Chunk(200, 0, [row(110), row(120), row(130)], 210)
    (rest, _) = again.step(w.ReadDone([chunk]))
    assert isinstance(rest, w.Send)
    assert [r.id for r in rest.rows] == [130]
    assert (rest.position.lsn, rest.position.part_rows) == (210, 0)


def test_nothing_is_read_without_room_for_it() -> None:
    limits = Limits(max_in_flight_records=4, mark_query_records=4)
    scheduler = opened(limits=limits)
    rows = [row(110 + n) for n in range(4)]
    actions = scheduler.step(w.ReadDone([w.Chunk(200, 0, rows, 210)]))
    assert [type(a) for a in actions] == [w.Send]
    actions = scheduler.step(w.Settled((0,)))
    assert [type(a) for a in actions] == [w.Confirm, w.Read]


def test_rows_that_come_as_plain_tuples_are_set_aside_with_their_names() -> None:
    plain: Any = [(110, "no topic", b"k", b"v", (), ()), (120, "t", b"k", b"v", (), ())]
    scheduler = opened()
    (add,) = scheduler.step(w.ReadDone([w.Chunk(200, 0, plain[:1], 210)]))
    assert isinstance(add, w.AddRows)
    assert [found.topic for found, _ in add.rows] == ["no topic"]
    scheduler = opened()
    (send, *_) = scheduler.step(w.ReadDone([w.Chunk(200, 0, plain[1:], 210)]))
    assert isinstance(send, w.Send)
    failure = Failure("refused", frozenset({120}), refused=frozenset({120}))
    (_, add) = scheduler.step(w.Settled((send.number,), failure))
    assert isinstance(add, w.AddRows)
    assert [found.topic for found, _ in add.rows] == ["t"]


@pytest.mark.parametrize("atomic", [True, False])
def test_a_row_that_was_copied_is_not_published_when_its_cause_is_gone(atomic: bool) -> None:
    """The leader before ended between the copy and the checkpoint that passes it."""
    scheduler = w.WalScheduler(2, atomic)
    scheduler.step(w.Start())
    scheduler.step(w.Opened(WalPosition(1, "s", 1, 100), {("t", b"k"): 120}))
    scheduler.step(w.StreamOpened(WalPosition(1, "s", 1, 100)))
    rows = [row(110), row(120), row(130)]
    (add,) = scheduler.step(w.ReadDone([w.Chunk(200, 0, rows, 210)]))
    assert isinstance(add, w.AddRows)
    assert [(found.id, bad.waits) for found, bad in add.rows] == [(120, True), (130, True)]
    waiting: dict[Key, int] = {("t", b"k"): 120}
    send, *_ = scheduler.step(w.DeadLettersAdded(frozenset({120, 130}), waiting))
    assert isinstance(send, w.Send)
    assert [r.id for r in send.rows] == [110]
    assert send.position.lsn == 210


def read_again(scheduler: w.WalScheduler, sent: int, failure: Failure) -> tuple[int, int]:
    """A send of so many rows fails: how long it waits, and for how many rows it asks then."""
    rows = [row(110 + n) for n in range(sent)]
    send, *_ = scheduler.step(w.ReadDone([w.Chunk(200, 0, rows, 210)]))
    assert isinstance(send, w.Send)
    close, again = scheduler.step(w.Settled((send.number,), failure))
    assert isinstance(close, w.CloseStream)
    if isinstance(again, w.AddRows):
        (again,) = scheduler.step(w.DeadLettersAdded(frozenset({110}), {}))
    assert isinstance(again, w.Open)
    scheduler.step(w.Opened(scheduler.saved))
    (read,) = scheduler.step(w.StreamOpened(WalPosition(0, "s", 1, 100)))
    assert isinstance(read, w.Read)
    return again.delay_ms, read.limit


@pytest.mark.parametrize("atomic", [True, False])
def test_after_a_delivery_that_failed_less_is_read_and_later_until_one_succeeds(
    atomic: bool,
) -> None:
    limits = Limits(mark_query_records=100, max_in_flight_records=100, io_error_backoff_ms=100)
    scheduler = opened(atomic, limits)
    assert read_again(scheduler, 80, Failure("timed out")) == (100, 20)
    assert read_again(scheduler, 20, Failure("timed out")) == (200, 5)
    for n in range(60):
        chunk = w.Chunk(300 + 10 * n, 0, [row(295 + 10 * n)], 305 + 10 * n)
        send, *_ = scheduler.step(w.ReadDone([chunk]))
        assert isinstance(send, w.Send)
        scheduler.step(w.Settled((send.number,)))
    assert scheduler.step(w.StreamFailed())[-1] == w.Open(100)
    scheduler.step(w.Opened(scheduler.saved))
    assert scheduler.step(w.StreamOpened(WalPosition(0, "s", 1, 900)))[-1] == w.Read(
        100, limits.max_in_flight_bytes
    )


def test_after_rows_that_are_refused_as_much_is_read_as_before() -> None:
    scheduler = opened(limits=Limits(mark_query_records=100, max_in_flight_records=100))
    refused = Failure("refused", None, {110: "refused"}, frozenset({110}))
    assert read_again(scheduler, 80, refused) == (0, 100)


@pytest.mark.parametrize("atomic", [True, False])
def test_of_rows_that_were_refused_only_those_are_remembered_that_may_come_again(
    atomic: bool,
) -> None:
    """Of a large transaction, all of it may: another stream may begin before it."""
    scheduler = opened(atomic)
    refused = Failure("refused", None, {110: "refused"}, frozenset({110}))
    send, *_ = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110), row(120)], 0)]))
    assert isinstance(send, w.Send)
    scheduler.step(w.Settled((send.number,), refused))
    scheduler.step(w.DeadLettersAdded(frozenset({110}), {}))
    for lsn, part_rows, left in ((100, 0, [120]), (200, 0, [120]), (201, 0, [110, 120])):
        found = WalPosition(0, "s", 1, lsn, part_rows=part_rows)
        scheduler.step(w.Opened(found))
        scheduler.step(w.StreamOpened(found))
        send, *_ = scheduler.step(w.ReadDone([w.Chunk(205, 0, [row(110), row(120)], 210)]))
        assert isinstance(send, w.Send)
        assert [row.id for row in send.rows] == left
        scheduler.step(w.Settled((send.number,), Failure("timed out")))


def opened_again(scheduler: w.WalScheduler, actions: list[Any]) -> list[Any]:
    """Go on from the end of `actions`, which waits and opens anew, to the stream's first read."""
    assert isinstance(actions[-1], w.Open)
    scheduler.step(w.Opened(scheduler.saved))
    return scheduler.step(w.StreamOpened(scheduler.saved or WalPosition(0, "s", 1, 100)))


@pytest.mark.parametrize("atomic", [True, False])
def test_it_is_not_well_while_its_rows_fail_again_and_again(atomic: bool) -> None:
    scheduler = opened(atomic)
    assert scheduler.running
    for _ in range(3):
        send, *_ = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110)], 210)]))
        assert isinstance(send, w.Send)
        opened_again(scheduler, scheduler.step(w.Settled((send.number,), Failure("timed out"))))
        assert not scheduler.running
        scheduler.step(w.ReadDone([], 150))
        assert not scheduler.running, "the row is still to come"
    send, *_ = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110)], 210)]))
    assert isinstance(send, w.Send)
    scheduler.step(w.Settled((send.number,)))
    assert scheduler.running


@pytest.mark.parametrize("atomic", [True, False])
def test_it_is_well_when_nothing_is_left_of_what_failed(atomic: bool) -> None:
    """Somebody has deleted the row, say: nothing else may come for days."""
    scheduler = opened(atomic)
    send, *_ = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110)], 210)]))
    assert isinstance(send, w.Send)
    opened_again(scheduler, scheduler.step(w.Settled((send.number,), Failure("timed out"))))
    scheduler.step(w.ReadDone([], 210))
    assert scheduler.running


@pytest.mark.parametrize("atomic", [True, False])
def test_a_position_that_could_not_be_saved_is_saved_as_soon_as_it_is_open_again(
    atomic: bool,
) -> None:
    """A right may be missing: an idle outbox would look well between two attempts."""
    scheduler = opened(atomic)
    save: Any
    save, *_ = scheduler.step(w.Refresh(anyway=True))
    for _ in range(2):
        if isinstance(save, w.Send):
            failed = scheduler.step(w.Settled((save.number,), Failure("timed out")))
        else:
            failed = scheduler.step(w.SaveFailed())
        save, *_ = opened_again(scheduler, failed)
        assert isinstance(save, w.Send if atomic else w.Save)
        scheduler.step(w.ReadDone([], 100))
        assert not scheduler.running
    good: Any = w.Settled((save.number,)) if isinstance(save, w.Send) else w.Saved(save.position)
    scheduler.step(good)
    assert scheduler.running


def test_it_is_not_well_while_a_row_cannot_be_set_aside() -> None:
    scheduler = opened()
    bad: Any = (110, "no topic", b"k", b"v", (), ())
    for _ in range(2):
        (add,) = scheduler.step(w.ReadDone([w.Chunk(200, 0, [bad], 210)]))
        assert isinstance(add, w.AddRows)
        opened_again(scheduler, scheduler.step(w.AddFailed()))
        scheduler.step(w.ReadDone([], 150))
        assert not scheduler.running
    scheduler.step(w.ReadDone([w.Chunk(200, 0, [bad], 210)]))
    scheduler.step(w.DeadLettersAdded(frozenset({110}), {}))
    assert scheduler.running


def test_it_is_not_well_while_the_stream_ends_as_soon_as_it_is_open() -> None:
    scheduler = opened()
    for _ in range(2):
        opened_again(scheduler, scheduler.step(w.StreamFailed()))
        assert not scheduler.running
    scheduler.step(w.ReadDone([], 100))
    assert scheduler.running


def test_the_slot_is_told_nothing_that_is_not_saved() -> None:
    scheduler = opened(atomic=False)
    (send, _) = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110)], 210)]))
    assert isinstance(send, w.Send)
    assert scheduler.step(w.Settled((send.number,))) == []
    (save,) = scheduler.step(w.Refresh())
    assert isinstance(save, w.Save)
    assert save.position.lsn == 210
    assert scheduler.step(w.Saved(save.position)) == [w.Confirm(210)]


def test_acknowledgements_behind_one_that_is_missing_do_not_count() -> None:
    scheduler = opened(atomic=False)
    (first, _) = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110)], 210)]))
    (second, _) = scheduler.step(w.ReadDone([w.Chunk(220, 0, [row(215)], 230)]))
    assert isinstance(first, w.Send)
    assert isinstance(second, w.Send)
    scheduler.step(w.Settled((second.number,)))
    assert scheduler.settled is not None
    assert scheduler.settled.lsn == 100
    scheduler.step(w.Settled((first.number,)))
    assert scheduler.settled.lsn == 230


def test_a_busy_database_without_rows_of_ours_moves_the_checkpoint_now_and_then() -> None:
    scheduler = opened()
    scheduler.step(w.ReadDone([], 200))
    assert scheduler.step(w.Refresh()) == []
    scheduler.step(w.ReadDone([], 100 + (1 << 20)))
    (send,) = scheduler.step(w.Refresh())
    assert isinstance(send, w.Send)
    assert not send.rows
    assert send.position.lsn == 100 + (1 << 20)


def test_a_server_that_asks_is_told_at_once() -> None:
    """It does not shut down before it hears that all of its log was read."""
    (send, _) = opened().step(w.ReadDone([], 200, asked=True))
    assert isinstance(send, w.Send)
    assert send.position.lsn == 200


def test_the_first_checkpoint_is_saved_before_anything_is_read() -> None:
    scheduler = w.WalScheduler(1)
    scheduler.step(w.Start())
    assert scheduler.step(w.Opened(None)) == [w.OpenStream(None)]
    actions = scheduler.step(w.StreamOpened(WalPosition(1, "s", 1, 100)))
    assert isinstance(actions[0], w.Send)
    assert actions[0].position == WalPosition(1, "s", 1, 100)


def test_a_position_reads_as_it_was_written() -> None:
    position = WalPosition(7, "7711061580071636380", 3, 0x16_B374_D848, 0x16_B374_D800, 5, 6)
    assert WalPosition.decode(position.encode()) == position
    assert format_lsn(0x16_B374_D848) == "16/B374D848"
    assert parse_lsn("16/B374D848") == 0x16_B374_D848
    with pytest.raises(CheckpointError):
        WalPosition.decode('[2,0,0,1,5,""]')


def test_a_stopped_leader_saves_what_is_published_before_it_ends() -> None:
    scheduler = opened(atomic=False)
    (send, _) = scheduler.step(w.ReadDone([w.Chunk(200, 0, [row(110)], 210)]))
    assert isinstance(send, w.Send)
    assert scheduler.step(w.Stop()) == []
    (save,) = scheduler.step(w.Settled((send.number,)))
    assert isinstance(save, w.Save)
    assert save.position.lsn == 210
    ended = scheduler.step(w.Saved(save.position))
    assert ended == [w.Confirm(210), w.Finish("stopped")]


def test_after_a_promotion_the_position_goes_back_to_where_the_timelines_parted() -> None:
    """Behind the last rows it had passed what is not on the new timeline: other rows are there."""
    found = WalPosition(1, "s", 1, 500, row_lsn=300)
    server = ServerState("s", 2, 420, [TimelineSwitch(1, 400)])
    begin = starting_position(2, found, "slot", SlotState("slot", confirmed_lsn=350), server, "")
    assert (begin.timeline, begin.lsn, begin.row_lsn) == (2, 400, 300)


LAST = Source("s", 1, 500, visit=5, token="e")


@pytest.mark.parametrize(
    ("now", "kept", "is_old"),
    [
        (replace(LAST, log=400), 400, False),
        (replace(LAST, log=900, visit=6, token="f"), 900, False),
        (replace(LAST, log=900, visit=4, token="d"), 900, True),
        (replace(LAST, log=900, token="x"), 900, True),
        # A replica may lack the last visit, and no row: of rows, the position tells.
        (replace(LAST, timeline=2, log=900, visit=4, token="d"), 499, False),
        (replace(LAST, timeline=2, log=900, visit=4, token="d"), 500, True),
        (Source("another", 1, 900), 900, False),
    ],
)
def test_an_old_copy_is_told_by_its_visit_however_far_its_log_has_grown(
    now: Source, kept: int, is_old: bool
) -> None:
    asked: list[int] = []

    def end_of(timeline: int) -> int:
        asked.append(timeline)
        return kept

    problem = gone_back(LAST, now, end_of)
    assert (problem is not None) is is_old
    assert "harvest slot renew" in (problem or "harvest slot renew")
    assert set(asked) <= {LAST.timeline}
