"""What is kept by change is what it would be if it were counted from the start."""

from __future__ import annotations

import random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marshal_py.protocol.balance import target, target_of
from marshal_py.protocol.shares import Shares, Unit
from marshal_py.protocol.subscription import Subscription

Change: TypeAlias = tuple[str, object, object, int]

KINDS = [("xy", None), ("xy", None), ("x", None), ("x", None), ("y", None), ("z", "x|y")]
"""Topics and pattern: few, so that there are several members of most kinds."""
subscriptions = st.builds(
    lambda kind, **wants: Subscription(frozenset(kind[0]), kind[1], **wants),
    st.sampled_from(KINDS),
    max_claims=st.sampled_from([None, None, 0, 1, 3]),
    weight=st.sampled_from([1.0, 1.0, 2.0, 0.7]),
    prefer=st.sampled_from([(), (), ("x/1",), ("y", "x/2")]),
)
members = st.sampled_from("abcdefg")
units = st.tuples(st.sampled_from("xyz"), st.integers(0, 5))
holders = st.one_of(st.none(), members, st.just("stranger"))
changes = st.one_of(
    st.tuples(st.just("member"), members, st.one_of(st.none(), subscriptions), st.just(1)),
    st.tuples(st.just("unit"), units, holders, st.integers(1, 9)),
    st.tuples(st.just("no unit"), units, st.none(), st.just(1)),
)


@given(st.lists(changes, max_size=80), st.booleans())
@settings(max_examples=400, deadline=None)
def test_after_any_changes_the_target_is_that_of_the_world_as_a_whole(
    made: list[Change], by_cost: bool
) -> None:
    shares = Shares()
    there: dict[str, Subscription] = {}
    held: dict[Unit, str | None] = {}
    costs: dict[Unit, int] = {}
    for number, (what, key, value, cost) in enumerate(made):
        before = shares.version, dict(there), dict(held), dict(costs)
        if what == "member":
            there[key] = value  # type: ignore[index, assignment]
            if value is None:
                del there[key]  # type: ignore[arg-type]
            assert shares.set_member(key, value) == (there != before[1])  # type: ignore[arg-type]
        elif what == "unit":
            held[key], costs[key] = value, cost  # type: ignore[index, assignment]
            shares.set_unit(key, value, cost)  # type: ignore[arg-type]
        else:
            existed = held.pop(key, "no") != "no"  # type: ignore[call-overload]
            costs.pop(key, None)  # type: ignore[call-overload]
            assert shares.remove_unit(key) == existed  # type: ignore[arg-type]
        assert (shares.version > before[0]) == ((there, held, costs) != before[1:])
        assert (shares.members, shares.holders, shares.costs) == (there, held, costs)
        if number % 7 == 0 or number == len(made) - 1:
            whole = target(there, held, costs if by_cost else None)
            assert target_of(shares, by_cost=by_cost) == whole


@pytest.mark.parametrize("seed", range(20))
def test_members_that_come_go_and_change_their_minds_leave_no_trace(seed: int) -> None:
    order = random.Random(seed)
    shares, there = Shares(), dict[str, Subscription]()
    held: dict[Unit, str | None] = {}
    for unit in [(topic, n) for topic in "xyz" for n in range(8)]:
        held[unit] = order.choice([None, None, *"abcdefgh"])
        shares.set_unit(unit, held[unit])
    for _ in range(60):
        name, (topics, pattern) = order.choice("abcdefgh"), order.choice(KINDS)
        wants = None if order.random() < 0.3 else Subscription(frozenset(topics), pattern)
        there.pop(name, None)
        if wants is not None:
            there[name] = wants
        shares.set_member(name, wants)
        assert target_of(shares) == target(there, held)


@pytest.mark.parametrize("by_cost", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_it_does_not_matter_in_which_order_members_and_units_came(seed: int, by_cost: bool) -> None:
    """All members compute the same, whatever each has seen first."""
    order = random.Random(seed)
    there = {
        f"member-{n}": Subscription(
            frozenset(order.choice(["x", "y", "xy"])), weight=order.choice([1.0, 1.7, 3.0])
        )
        for n in range(20)
    }
    held: dict[Unit, str | None] = {
        (topic, n): order.choice([None, *there]) for topic in "xy" for n in range(60)
    }
    costs = {unit: order.randint(1, 20) for unit in held}
    expected = target(there, held, costs if by_cost else None)
    for _ in range(3):
        shares = Shares()
        things: list[object] = [*there, *held]
        order.shuffle(things)
        for thing in things:
            if isinstance(thing, str):
                shares.set_member(thing, there[thing])
            else:
                shares.set_unit(thing, held[thing], costs[thing])  # type: ignore[index, arg-type]
        assert target_of(shares, by_cost=by_cost) == expected
