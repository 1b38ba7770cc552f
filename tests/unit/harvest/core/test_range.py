"""The range scheduler: invariants by simulation, and its decisions one by one."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from harvest.core import range as r
from harvest.core.dead_letters import BadRowPolicy
from harvest.core.range_checkpoint import Position
from tests.support.range_simulation import Leader, World

seeds = st.integers(0, 2**64 - 1)


def disturb(world: World, leader: Leader) -> None:
    """One step of a world in which everything fails now and then."""
    rnd = world.random
    roll = rnd.random()
    if roll < 0.35:
        world.write()
    elif roll < 0.39:
        leader.store.fail_next = True
    elif roll < 0.42:
        leader.sink.fault = rnd.choice(["refused", "unknown, published", "unknown, lost"])
    elif roll < 0.43:
        leader.sink.fail_open = True
    elif roll < 0.44:
        leader.feed(r.Refresh(anyway=rnd.random() < 0.5))
    elif roll < 0.445:
        leader.dead_letters.fail_next = rnd.choice(["before", "after"])
    elif roll < 0.455:
        leader.feed(r.Stop())
    elif lanes := leader.busy_lanes():
        leader.run(rnd.choice(lanes))


def run(world: World, steps: int) -> None:
    leaders = [world.elect(shard) for shard in range(world.shards)]
    for _ in range(steps):
        shard = world.random.randrange(world.shards)
        disturb(world, leaders[shard])
        if leaders[shard].finished or world.random.random() < 0.01:  # SIGKILL
            leaders[shard] = world.elect(shard)
    for shard in range(world.shards):
        world.run_to_the_end(shard)
    world.assert_once_in_order()


@given(seeds, st.integers(20, 400))
@settings(max_examples=400, deadline=None)
def test_each_committed_row_is_published_once_in_order(seed: int, steps: int) -> None:
    run(World(random.Random(seed)), steps)


@given(seeds, st.integers(20, 400))
@settings(max_examples=200, deadline=None)
def test_the_same_in_shards(seed: int, steps: int) -> None:
    run(World(random.Random(seed), shards=3), steps)


@given(seeds, st.integers(20, 400), st.integers(40, 60))
@settings(max_examples=200, deadline=None)
def test_the_same_with_room_for_few_gaps(seed: int, steps: int, room: int) -> None:
    run(World(random.Random(seed), checkpoint_bytes=room), steps)


@given(seeds, st.integers(20, 300))
@settings(max_examples=200, deadline=None)
def test_a_woken_zombie_publishes_nothing_and_repeats_nothing(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    zombie = world.elect()
    for _ in range(steps):
        disturb(world, zombie)
    zombie.pause()
    broker = world.brokers[0]
    published = len(broker.published)
    world.elect()
    for _ in range(steps):
        leader = world.random.choice(world.leaders[0])
        if world.random.random() < 0.3:
            world.write()
        elif lanes := leader.busy_lanes():
            leader.run(world.random.choice(lanes))
            if leader is zombie:
                assert len(broker.published) == published
            published = len(broker.published)
    world.run_to_the_end()
    world.assert_once_in_order()


# --- Rows that cannot be published ---


@given(seeds, st.integers(20, 400), st.booleans(), st.sampled_from([1, 1, 3]))
@settings(max_examples=300, deadline=None)
def test_bad_rows_are_dead_letters_and_everything_else_is_published_once(
    seed: int, steps: int, key_waits: bool, shards: int
) -> None:
    policy = BadRowPolicy(key_waits=key_waits)
    world = World(random.Random(seed), shards=shards, bad=0.15, bad_rows=policy)
    run(world, steps)
    everything = {row_id for ids in world.committed.values() for row_id in ids}
    published = {row.id for broker in world.brokers for row in broker.published}
    assert world.table.dead_letters.keys() == everything - published


@given(seeds, st.integers(20, 300), st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_checkpoint_passes_a_row_that_is_neither_published_nor_a_dead_letter(
    seed: int, steps: int, key_waits: bool
) -> None:
    policy = BadRowPolicy(key_waits=key_waits)
    world = World(random.Random(seed), bad=0.15, bad_rows=policy)
    leader = world.elect()
    for _ in range(steps):
        disturb(world, leader)
        if leader.finished or world.random.random() < 0.02:  # SIGKILL
            leader = world.elect()
        checkpoint = world.brokers[0].checkpoint
        if checkpoint is None:
            continue
        position = Position.decode(checkpoint)
        decided = {row.id for row in world.brokers[0].published} | world.table.dead_letters.keys()
        for ids in world.committed.values():
            for row_id in ids:
                passed = row_id <= position.last_id
                in_gap = any(low <= row_id <= high for low, high in position.gaps)
                assert not passed or in_gap or row_id in decided
