"""Exhaustive exploration of small books, and proof that it can fail."""

from __future__ import annotations

import pytest

from tests.simulation.explore_book import BROKEN, WORLDS, BookExplorer


@pytest.mark.parametrize("world", list(WORLDS))
def test_the_first_states_of_every_book_are_safe(world: str) -> None:
    report = BookExplorer(world, max_states=10_000).run()
    assert not report.violation
    assert report.states >= 10_000


@pytest.mark.slow
def test_every_interleaving_of_a_small_book_is_safe() -> None:
    report = BookExplorer("two clients, a record is lost", max_states=200_000).run()
    assert not report.violation
    assert report.complete
    assert report.finished, "all messages can be done"


@pytest.mark.parametrize("broken", BROKEN)
def test_a_client_that_breaks_a_rule_is_found(broken: str) -> None:
    assert BookExplorer("two clients", broken=broken, max_states=60_000).run().violation
