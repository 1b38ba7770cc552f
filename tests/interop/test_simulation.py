"""Mixed groups in virtual time: what can be relied on (INTEROP.md §5), and that it can fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from marshal_py.protocol.text import claimant as claimant_module
from marshal_py.protocol.text.claimant import TextClaimant
from tests.interop.gomodel import GoClient
from tests.interop.simulation import Plan, S, Sim

FAULTS: dict[str, Any] = {"crashes": 6, "releases": 20}
WILD: dict[str, Any] = {
    **FAULTS,
    "pauses": 6,
    "slow_append_s": 10.0,
    "lost_append": 0.05,
    "our_skew_s": 100.0,
}


def runs(seeds: int, **plan: Any) -> Iterator[Sim]:
    for seed in range(seeds):
        sim = Sim(Plan(seed=seed, **plan))
        sim.run()
        yield sim


def longest_s(sim: Sim, mine: str, theirs: str) -> float:
    return max((overlap for overlap, _, _ in sim.overlaps(mine, theirs)), default=0) / S


@pytest.mark.parametrize("go", [0, 2])
def test_two_of_ours_never_act_at_once_whatever_the_clocks_show(go: int) -> None:
    acted = 0
    for sim in runs(40, ours=3, go=go, go_skew_s=100.0, **WILD):
        assert sim.overlaps("py", "py") == [], sim.plan
        acted += sum(act.who.startswith("py") for act in sim.acts)
    assert acted > 40  # or the runs showed nothing


def test_with_clocks_within_a_second_go_and_ours_never_act_at_once() -> None:
    both = 0
    for sim in runs(40, **FAULTS):
        assert sim.overlaps("py", "go") == [], sim.plan
        both += len({act.who[:2] for act in sim.acts}) == 2
    assert both > 30


def test_with_clocks_half_an_interval_apart_they_overlap_for_no_longer_than_a_record_takes() -> (
    None
):
    for sim in runs(40, go_skew_s=30.0, **FAULTS):
        assert longest_s(sim, "py", "go") < 0.1, sim.plan


def test_ours_never_takes_a_cell_from_a_go_client_that_was_heard_within_two_intervals() -> None:
    for sim in runs(40, go_skew_s=100.0, **WILD):
        assert sim.takeovers == [], sim.plan


@pytest.mark.parametrize(("ours", "go"), [(3, 0), (2, 2)])
def test_somebody_holds_the_cell_when_the_faults_are_over(ours: int, go: int) -> None:
    for sim in runs(30, ours=ours, go=go, go_skew_s=100.0, **WILD | {"lost_append": 0.0}):
        assert sim.acts[-1].end >= sim.now - S, sim.plan


STOPPED: dict[str, Any] = {**FAULTS, "pauses": 6}


def test_a_stopped_process_that_wakes_overlaps_for_no_longer_than_a_record_takes() -> None:
    stopped = 0
    for sim in runs(40, go_skew_s=30.0, **STOPPED):
        assert sim.longest_awake_s("py", "go") < 0.1, sim.plan
        stopped += sum(len(client.stops) for client in sim.clients)
    assert stopped > 40


def test_a_go_client_works_on_until_it_next_looks() -> None:
    """At the latest three quarters of an interval later; what delays its reading comes on top."""
    longest = 0.0
    for sim in runs(40, ours=1, go=3, **STOPPED):
        longest = max(longest, sim.longest_awake_s("go", "go"))
    assert 10 < longest < 50


def test_a_go_client_stopped_between_look_and_heartbeat_takes_the_cell_back() -> None:
    taken_back = 0
    for sim in runs(40, ours=1, go=1, caught_looking=1.0, **STOPPED):
        holder, heard = None, 0
        for at, who, value in sim.log:
            if value.startswith(b"Heartbeat"):
                taken_back += who == "go0" and holder == "py0" and at - heard < sim.plan.hb * S
                holder, heard = who, at
    assert taken_back > 0


def test_a_stand_in_that_never_looks_works_on_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GoClient, "looks_ours", lambda *_: True)
    assert any(sim.longest_awake_s("go", "go") > 60 for sim in runs(40, ours=1, go=3, **STOPPED))


@pytest.mark.campaign
def test_a_thousand_mixed_groups() -> None:
    for sim in runs(1_000, go_skew_s=100.0, **WILD | {"lost_append": 0.0}):
        assert sim.overlaps("py", "py") == [], sim.plan
        assert sim.takeovers == [], sim.plan
        assert sim.acts[-1].end >= sim.now - S, sim.plan


def test_ours_is_taken_over_by_go_and_the_other_way_round() -> None:
    for sim in runs(10, ours=1, go=1, our_skew_s=0.5, go_skew_s=0.5, crashes=8, duration_s=3600):
        assert {act.who for act in sim.acts} == {"py0", "go0"}


# Each rule is there for something: without it, the runs above go wrong.


def test_without_the_wait_cells_are_taken_from_living_go_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from marshal_py.protocol.world import Observer

    monkeypatch.setattr(Observer, "silence_ns", lambda self, cell, now_ns: 10**15)
    plans = runs(40, go_skew_s=100.0, **WILD)
    assert any(sim.takeovers for sim in plans)


def test_without_the_rivals_cells_are_taken_from_living_go_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TextClaimant, "_doubt_left_ns", lambda *_: 0)
    assert any(sim.takeovers for sim in runs(40, go_skew_s=100.0, **FAULTS))


def test_without_asking_first_a_woken_process_steals_its_cell_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renew = TextClaimant._renew

    def at_once(self: TextClaimant, holding: Any, now_ns: int) -> bool:
        holding.known_ns = now_ns
        return renew(self, holding, now_ns)

    monkeypatch.setattr(TextClaimant, "_renew", at_once)
    steals = 0
    for sim in runs(40, ours=3, go=0, **WILD):
        holder, heard = None, 0
        for at, who, value in sim.log:
            if value.startswith(b"Heartbeat"):
                steals += holder not in (None, who) and at - heard < 2 * sim.plan.hb * S
                holder, heard = who, at
            elif value.startswith(b"Releasing") and who == holder:
                holder = None
    assert steals > 0


def test_with_a_lease_as_long_as_in_version_2_go_takes_what_we_still_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    init = TextClaimant.__init__

    def longer(self: TextClaimant, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.lease_ns *= 2

    monkeypatch.setattr(TextClaimant, "__init__", longer)
    plan = {**FAULTS, "go_skew_s": 30.0, "lost_append": 0.4, "slow_append_s": 20.0}
    assert any(longest_s(sim, "py", "go") > 1 for sim in runs(60, **plan))


def test_without_stamping_behind_go_takes_fresh_claims_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(sims: Iterator[Sim]) -> int:
        """Granted or not, claims of Go clients while ours was fresh by anyone's clock."""
        count = 0
        for sim in sims:
            holder, heard = None, 0
            for at, who, value in sim.log:
                if value.startswith(b"Heartbeat"):
                    holder, heard = who, at
                elif value.startswith(b"Releasing") and who == holder:
                    holder = None
                elif value.startswith(b"Claiming") and who.startswith("go"):
                    ours = holder is not None and holder.startswith("py")
                    count += ours and at - heard < sim.plan.hb * S
        return count

    plan = {"our_skew_s": 0.9, "go_skew_s": 0.9, "crashes": 4.0}
    with_it = taken(runs(40, **plan))
    monkeypatch.setattr(claimant_module, "STAMP_BEHIND_S", 0.0)
    assert taken(runs(40, **plan)) > 2 * with_it
