"""Exhaustive exploration at the size of a test run, and proof that it can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marshal_py.protocol import rationalizer
from marshal_py.protocol.claimant import Claimant
from marshal_py.protocol.messages import ClaimingPartition
from tests.simulation import explore
from tests.simulation.explore import WORLDS, Explorer


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", ["failed appends", "crash and restart", "pause"])
def test_every_interleaving_of_a_small_world_is_safe(world: str) -> None:
    report = explore.explore(world, max_states=200_000)
    assert report.found is None, "\n".join(report.found.steps)
    assert report.complete
    assert report.held > 1_000
    assert report.takeovers > 100


@pytest.mark.parametrize("world", list(WORLDS))
def test_the_first_states_of_every_world_are_safe(world: str) -> None:
    report = explore.explore(world, max_states=3_000)
    assert report.found is None, "\n".join(report.found.steps)
    assert report.states == 3_000
    assert report.held


def test_a_margin_that_the_clocks_do_not_keep_to_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explore, "MARGIN_MS", 49)
    report = explore.explore("takeover", max_states=20_000)
    assert report.found is not None
    assert "a may act" in report.found.invariant


def test_a_lease_measured_from_the_reading_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    extend = Claimant._extend_lease
    monkeypatch.setattr(
        Claimant,
        "_extend_lease",
        lambda self, holding, _, now_ns: extend(self, holding, now_ns, now_ns),
    )
    assert explore.explore("takeover", max_states=20_000).found is not None


def test_a_claim_without_compare_and_swap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = rationalizer._claim

    def careless(state, offset, record, events):  # type: ignore[no-untyped-def]
        version = state.version(record.group_id, record.topic, record.partition)
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        claim(state, offset, type(record)(**{**fields, "expected_version": version}), events)

    monkeypatch.setitem(rationalizer._OTHER, ClaimingPartition, careless)
    assert explore.explore("takeover", max_states=20_000).found is not None


def test_the_path_to_a_violation_starts_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MARGIN_MS", 10)
    found = explore.explore("takeover", max_states=20_000).found
    assert found is not None
    assert found.steps[0] == "start"
    assert "time passes" in found.steps


def test_what_is_left_of_each_thing_bounds_the_world() -> None:
    limits = replace(WORLDS["takeover"], ticks=1, records=2)
    report = Explorer("tiny", limits, max_states=10_000).run()
    assert report.complete
    assert report.actions["time passes"] > 0
    assert "dies" not in report.actions
