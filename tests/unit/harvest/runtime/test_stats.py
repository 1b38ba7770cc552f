"""Counts of several shards, put together."""

from __future__ import annotations

import collections
import sys
from collections import Counter
from dataclasses import fields

from harvest.runtime import events
from harvest.runtime.events import Stats
from tests.support.interleave import Case, explore


def test_counts_of_several_add_up_and_breakers_are_those_of_all() -> None:
    numbers = [f.name for f in fields(Stats) if f.name not in ("messages", "breakers")]
    one, other = Stats(), Stats()
    for worth, name in enumerate(numbers, 1):
        setattr(one, name, worth)
        setattr(other, name, 100 * worth)
    one.messages = Counter({("a", "delivered"): 1})
    other.messages = Counter({("a", "delivered"): 2, ("b", "failed"): 4})
    one.breakers, other.breakers = {"a": "open"}, {"b": "closed"}
    total = Stats.total([one, other])
    assert [getattr(total, name) for name in numbers] == [
        101 * worth for worth, _ in enumerate(numbers, 1)
    ]
    assert total.messages == {("a", "delivered"): 3, ("b", "failed"): 4}
    assert total.breakers == {"a": "open", "b": "closed"}


def test_the_counts_of_each_stay_as_they_were() -> None:
    one = Stats(published=1, messages=Counter({("a", "delivered"): 1}))
    assert Stats.total([one, one]).published == 2
    assert Stats.total([one, one]).messages == {("a", "delivered"): 2}
    assert (one.messages, one.breakers) == ({("a", "delivered"): 1}, {})
    assert Stats.total([]) == Stats()


def test_counts_add_up_while_a_leader_counts_on() -> None:
    def case() -> Case:
        stats = Stats(messages=Counter({("a", "delivered"): 1}))

        def count() -> None:
            stats.messages["b", "delivered"] += 1

        def check(_: None, total: Stats) -> None:
            assert total.messages["a", "delivered"] == 2

        other = Stats(messages=Counter({("a", "delivered"): 1}))
        return Case(count, lambda: Stats.total([other, stats]), check)

    explore(case, [events, collections, sys.modules[__name__]], preemptions=1)
