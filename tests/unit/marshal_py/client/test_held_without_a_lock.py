"""`Claim.held`, `remaining_ms` and `epoch` take no lock, while the driver changes what they read.

A switch of threads comes between any two lines of the claimant and of the claim. Whatever the
user's thread reads has to be true at some moment of its call.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from marshal_py.client import claim as claim_module
from marshal_py.client import driver as driver_module
from marshal_py.client.claim import ClaimCore
from marshal_py.client.driver import Driver
from marshal_py.protocol import claim_states, claimant, holding
from marshal_py.protocol.claimant import Holding
from tests.support.claimant_harness import LEASE_MS, Bench, Client
from tests.support.interleave import Case, explore

MODULES = [claim_module, claimant, claim_states, holding]
Read = tuple[bool, float, int, bool]


def user_of(client: Client, held: Holding) -> ClaimCore:
    driver: Any = SimpleNamespace(clock=lambda: client.bench.now_ns, lock=threading.RLock())
    return ClaimCore(driver, held)


def read(core: ClaimCore) -> Read:
    """What a user looks at before it acts: held, for how long, under which epoch; held still?"""
    return core.held, core.remaining_ms, core.holding.epoch, core.held


def cell_held() -> tuple[Bench, Client, Holding]:
    bench = Bench()
    client = bench.client("a")
    return bench, client, client.get()


def test_a_snapshot_that_comes_while_a_replay_is_told_of_does_not_stop_the_driver() -> None:
    """The thread that looks at snapshots notes which is the newest, whenever that is."""

    def case() -> Case:
        newest = {0: 500}
        driver: Any = SimpleNamespace(
            reader=SimpleNamespace(newest_snapshot=newest, replayed=3), log=mock.Mock()
        )

        def check(*_: object) -> None:
            driver.log.info.assert_called_once()

        return Case(lambda: Driver._tell_replayed(driver), lambda: newest.update({1: 7}), check)

    assert explore(case, [driver_module], preemptions=1, grain="opcode") > 20


def test_who_is_told_that_it_holds_a_cell_knows_the_epoch() -> None:
    def case() -> Case:
        bench = Bench()
        client = bench.client("a")
        wanted = client.want()
        client.send()

        def check(_: Any, seen: Read) -> None:
            was_held, remaining_ms, epoch, _ = seen
            if was_held:
                assert epoch == 0
            assert remaining_ms <= LEASE_MS
            assert user_of(client, wanted).held

        core = user_of(client, wanted)
        return Case(client.read, lambda: read(core), check)

    assert explore(case, MODULES) > 100


@pytest.mark.parametrize("how", ["released", "taken over", "truncated"])
def test_a_claim_that_ended_is_held_never_again(how: str) -> None:
    def case() -> Case:
        bench, client, mine = cell_held()
        if how == "taken over":
            other = bench.client("b")
            other.want()
            bench.wait(3_000)
            other.turn()

        def end() -> None:
            if how == "released":
                client.release(mine)
            elif how == "truncated":
                client.claimant.truncated()
            else:
                client.read()

        def check(_: Any, seen: Read) -> None:
            assert not core.held
            assert core.remaining_ms == 0
            assert seen[0] or not seen[3], "it came back"
            if how == "taken over":
                assert seen[0] is seen[3] is False, "the lease was over before"

        core = user_of(client, mine)
        return Case(end, lambda: read(core), check)

    assert explore(case, MODULES) > 50


def test_a_lease_that_lapsed_is_held_again_only_with_time_left() -> None:
    def case() -> Case:
        bench, client, mine = cell_held()
        bench.wait(1_000)
        beats = client.appends()
        assert beats
        bench.wait(910)
        client.tick()  # it lapses, with the heartbeat on its way
        assert not client.held(mine)
        client.put(beats)

        def check(_: Any, seen: Read) -> None:
            was_held, remaining_ms, epoch, still = seen
            assert epoch == 0
            assert remaining_ms <= LEASE_MS - 910
            assert still or not was_held
            assert core.held

        core = user_of(client, mine)
        return Case(client.read, lambda: read(core), check)

    assert explore(case, MODULES) > 50
