"""The mark scheduler: invariants by simulation, and its decisions one by one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvest import mark as m
from harvest.rows import Row
from harvest.sink.base import Failure
from harvest.terms import Checkpoint, Term
from tests.unit.harvest_simulation import KEYS, Leader, World

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
    elif roll < 0.45:
        leader.sink.fail_open = True
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


@given(seeds, st.integers(20, 300))
@settings(max_examples=300, deadline=None)
def test_plain_sink_loses_nothing_and_ends_in_order(seed: int, steps: int) -> None:
    world = World(random.Random(seed), atomic=False)
    run(world, steps, crashes=True)
    for key in KEYS:
        assert last_occurrences(world.published_ids(key)) == world.committed[key]


@given(seeds, st.integers(20, 200))
@settings(max_examples=100, deadline=None)
def test_without_faults_every_sink_is_exactly_once(seed: int, steps: int) -> None:
    world = World(random.Random(seed), atomic=False)
    leader = world.elect()
    for _ in range(steps):
        if world.random.random() < 0.4:
            world.write()
        elif lanes := leader.busy_lanes():
            leader.run(world.random.choice(lanes))
    world.run_to_the_end(leader)
    for key in KEYS:
        assert world.published_ids(key) == world.committed[key]
