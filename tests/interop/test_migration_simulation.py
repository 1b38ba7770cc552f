"""A group moves between the versions while everything may die: what holds, and that it can fail."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marshal_py.admin.migration import Bridge
from marshal_py.protocol.migration import UNLIMITED_NS, Grants, decode_lease, encode_lease
from tests.interop.migration_simulation import TOPIC, Migration, Plan, S

WILD: dict[str, Any] = {"one_log": True, "bridge_stops": 12.0, "new_topics": 6.0}
"""Outages of one log alone, standbys that are stopped when needed, topics that are added."""

CALM: dict[str, Any] = {"kills": 0, "stops": 0, "cuts": 0, "releases": 6}
"""Only bridges die, the topic grows, and processes of the source leave in order."""


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "marshal_py")


def plan_of(seed: int, **changes: Any) -> Plan:
    """There and back in turns; one or two bridges; clocks within a second."""
    rng = random.Random(f"migration {seed}")
    drawn: dict[str, Any] = {
        "back": bool(seed % 2),
        "bridges": rng.choice((1, 2, 2)),
        "hb": rng.choice((60, 60, 20)),
        "skew_s": 0.5,
    }
    return Plan(seed=seed, **drawn | changes)


def runs(seeds: int, **changes: Any) -> Iterator[Migration]:
    for seed in range(seeds):
        yield Migration(plan_of(seed, **changes)).run()


def check(sim: Migration) -> None:
    assert sim.overlaps() == [], sim.plan
    assert sim.idle() == set(), sim.plan
    assert sim.skipped() == set(), sim.plan
    assert sim.refusals == 0, sim.plan
    assert sim.turned == sim.plan.turn, sim.plan


def test_both_sides_never_work_on_a_partition_at_once_whoever_dies() -> None:
    moves = bridges = grown = 0
    for sim in runs(24):
        check(sim)
        moves += sim.moves
        bridges += sim.takeovers
        grown += sim.partitions - sim.plan.partitions
    assert moves > 40
    assert bridges > 60
    assert grown > 20


def wild(seeds: int) -> Iterator[Migration]:
    for seed in range(seeds):
        changes = {"turn": seed % 4 == 0, "bridges": 1 + seed % 3}
        yield Migration(plan_of(seed, **WILD | changes)).run()


def test_outages_of_one_log_stopped_standbys_new_topics_and_the_way_back() -> None:
    turned = topics = 0
    for sim in wild(8):
        check(sim)
        turned += sim.turned
        topics += len(sim.counts) - 1
    assert turned == 2
    assert topics > 4


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_a_thousand_migrations() -> None:
    """INTEROP §7.3 has what this prints (`-s`)."""
    bridges = moves = grown = 0
    for sim in wild(1_000):
        check(sim)
        bridges += sim.takeovers
        moves += sim.moves
        grown += sim.partitions - sim.plan.partitions
    print(f"{bridges} runs of bridges, {moves} moves, {grown} new partitions")


STEPS: dict[str, Any] = {
    **dict.fromkeys(("kills", "stops", "cuts", "bridge_kills", "growths"), 0.0),
    **dict.fromkeys(("bridges", "go", "new"), 1),
    "partitions": 2,
    "releases": 60,
    "bridge_back_s": 20,
    "skew_s": 0.5,
    "duration_s": 200,
    "quiet_s": 250,
    "seed": 5,
}
"""One process of each kind, and nothing fails but what a test says."""


def died_at(record: int, **plan: Any) -> Migration:
    sim = Migration(Plan(**STEPS | plan, kill_at=record)).run()
    check(sim)
    return sim


@pytest.mark.parametrize("lost", [False, True])
def test_a_bridge_may_die_with_any_record_of_the_end(lost: bool) -> None:
    runs = [died_at(record, turn=True, kill_loses=lost) for record in range(54, 63)]
    assert any(sim.takeovers == 3 for sim in runs)  # it ended what the one before had left


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("where", [{}, {"back": True}, {"turn": True}])
def test_a_bridge_may_die_with_any_record(where: dict[str, bool], lost: bool) -> None:
    record, written = 0, 1
    while record < written:
        record += 1
        written = died_at(record, kill_loses=lost, **where).bridge_records


def test_a_lease_that_is_over_in_version_1_is_not_passed_on_again() -> None:
    sim = Migration(Plan(**STEPS | {"releases": 0, "quiet_s": 0}))

    def outage() -> None:
        for bridge in sim.bridges:
            bridge.cut_until[1] = 1_000 * S

    sim.after(60, sim.go[0].leave)
    sim.after(90, outage)
    sim.run()
    cell = sim.new[0].client.cell(f"migrated:{TOPIC}", 0)
    assert cell is not None
    lease = decode_lease(cell.metadata)
    assert lease is not None
    assert lease.remaining_ms == 0


@pytest.mark.parametrize("back", [False, True])
def test_with_a_standby_nothing_is_handled_on_both_sides(back: bool) -> None:
    moves = bridges = 0
    for sim in runs(6, back=back, bridges=3, bridge_back_s=20, **CALM):
        check(sim)
        assert sim.handled_on_both_sides() == 0, sim.plan
        moves += sim.moves
        bridges += sim.takeovers
    assert moves > 6
    assert bridges > 20


def test_what_comes_again_after_a_bridge_was_away_is_bounded() -> None:
    """At most what was handled in an interval and a half, for each time it was taken back."""
    again = 0
    for sim in runs(8, back=False, bridges=1, hb=60, growths=0, **CALM):
        check(sim)
        per_partition = 1.5 * sim.plan.hb / 2
        assert sim.handled_on_both_sides() <= sim.takeovers * sim.partitions * per_partition
        again += sim.handled_on_both_sides()
    assert again > 0  # or nothing was ever taken back


def test_clocks_that_differ_by_a_quarter_of_an_interval_cost_the_time_that_is_seen() -> None:
    for sim in runs(12, hb=60, skew_s=7.5):
        assert max((seconds for seconds, _, _ in sim.overlaps()), default=0) < 3, sim.plan
        assert sim.idle() == set(), sim.plan


def test_a_stopped_go_process_that_takes_back_by_force_stops_version_2() -> None:
    """As soon as a bridge sees it; without one, when its lease is over."""
    conflicts = 0
    for sim in runs(16, back=False, hb=60, go_stops=12.0):
        assert max((seconds for seconds, _, _ in sim.overlaps()), default=0) < 60, sim.plan
        assert sim.idle() == set(), sim.plan
        conflicts += sim.conflicts
    assert conflicts > 0


# Each rule is there for something: without it, the runs above go wrong.


def leases_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    until_ns = Grants.until_ns
    monkeypatch.setattr(
        Grants, "until_ns", lambda *args: UNLIMITED_NS if until_ns(*args) > 0 else 0
    )


def what_is_not_granted_is_not_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grants, "withholds", lambda *_: False)
    monkeypatch.setattr(Grants, "until_ns", lambda *_: UNLIMITED_NS)


def grants_are_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bridge, "_taken", lambda *_: None)


def a_bridge_passes_on_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_on(self: Any) -> None:
        for part in self._in_order:
            if part.grant is not None and not part.revoking:
                part.grant.set_metadata(encode_lease(60_000, self._wall_s()))

    monkeypatch.setattr(Bridge, "_pass_leases_on", pass_on)


@pytest.mark.parametrize(
    "mutant",
    [
        leases_never_end,
        what_is_not_granted_is_not_withheld,
        a_bridge_passes_on_more_than_it_has,
    ],
)
def test_without_it_both_sides_work_on_a_partition_at_once(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(sim.overlaps() for sim in runs(40))


def test_without_taking_grants_back_version_2_works_on_beside_who_took_by_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def longest(sims: Iterator[Migration]) -> float:
        return max(
            seconds for sim in sims for seconds, _, _ in [(0.0, None, None), *sim.overlaps()]
        )

    plan: dict[str, Any] = {"back": False, "hb": 60, "bridges": 3, "go_stops": 12.0, **CALM}
    plan["bridge_kills"] = 0
    assert longest(runs(8, **plan)) < 3
    grants_are_not_taken_back(monkeypatch)
    assert longest(runs(8, **plan)) > 3
