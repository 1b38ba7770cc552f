"""Claims that are waited for together, tried and given up, on the mock cluster."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from marshal_py import Claim, GroupAdmin, Marshal
from marshal_py.client.claim import core_of
from marshal_py.client.claims import ClaimRegistry
from marshal_py.client.waiting import Steps, Wait, block
from marshal_py.errors import ClaimTimeout, Closed, InvalidArgument, PartitionCountChanged
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.wire import MSGPACK
from marshal_py.testing import TestBroker
from tests.support.consumers import until
from tests.support.spec import spec

SOON_S = 0.3


def client(broker: TestBroker, client_id: str) -> Marshal:
    return Marshal(broker.config, group_id="g", client_id=client_id, interval_ms=5_000)


def keys(marshal: Marshal) -> list[tuple[str, int]]:
    return sorted((claim.topic, claim.partition) for claim in marshal.claims())


def test_of_claims_that_cannot_all_be_won_those_from_before_are_kept(
    mock_kafka: TestBroker,
) -> None:
    with client(mock_kafka, "other") as other, client(mock_kafka, "me") as me:
        other.claim("t", 2)
        before = me.claim("t", 0)
        with pytest.raises(ClaimTimeout, match=r"t/2 was not won within 0.3 s: other holds it"):
            me.claim_many([("t", 0), ("t", 1), ("t", 2)], timeout_s=SOON_S)
        assert before.held
        assert keys(me) == [("t", 0)], "t/1 was won, and let go of"
        assert other.claim("t", 1, timeout_s=60).held


def test_a_claim_that_was_tried_in_vain_is_not_won_later(mock_kafka: TestBroker) -> None:
    with client(mock_kafka, "other") as other, client(mock_kafka, "me") as me:
        held = other.claim("t", 0)
        assert me.try_claim("t", 0) is None
        block(me._driver.lock, until_nothing_is_claimed(me._registry))
        held.release()
        third = other.claim("t", 0, timeout_s=60)
        assert third.held
        assert keys(me) == []


@pytest.mark.parametrize("is_lapsed", [False, True])
def test_what_the_client_has_or_waits_for_is_not_given_up_by_who_tries(
    mock_kafka: TestBroker, is_lapsed: bool
) -> None:
    with client(mock_kafka, "other") as other, client(mock_kafka, "me") as me:
        if is_lapsed:
            mine = me.claim("t", 0)
            driver, holding = me._driver, core_of(mine).holding
            with driver.lock:  # until the next heartbeat is read
                holding.lease_until_ns = 0
                driver.claimant._let_lapse(holding.coordinator, driver.clock())
                driver.carry_out()
            assert me.try_claim("t", 0) is None
        else:
            held = other.claim("t", 0)
            mine = me.want("t", 0)
            assert me.try_claim("t", 0) is None
            held.release()
        assert mine.wait_held(60)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_another_thread_waits_for_goes_on_when_one_has_waited_long_enough(
    mock_kafka: TestBroker, is_wanted: bool
) -> None:
    """It began to wait after the one that gives up."""
    with client(mock_kafka, "other") as other, client(mock_kafka, "me") as me:
        held = other.claim("t", 0)
        begun, won = threading.Event(), list[Claim]()

        def wait() -> None:
            assert begun.wait(30)
            won.append(me.want("t", 0) if is_wanted else me.claim("t", 0, timeout_s=60))

        waiting = threading.Thread(target=wait)
        waiting.start()
        registry, asked = me._registry, list[str]()
        want, steps = registry.want, registry.wait_held

        def count(*key: Any, **more: Any) -> Claim:
            claim = want(*key, **more)
            asked.append(threading.current_thread().name)
            return claim

        def wait_held(claims: list[Claim], timeout_s: float | None) -> Steps[None]:
            if threading.current_thread() is not waiting:
                begun.set()
                while waiting.name not in asked:
                    yield Wait(core_of(claims[0]).changed, lambda: False, 0.01)
            yield from steps(claims, timeout_s)

        registry.want = count  # type: ignore[method-assign]
        registry.wait_held = wait_held  # type: ignore[method-assign]
        with pytest.raises(ClaimTimeout):
            me.claim("t", 0, timeout_s=SOON_S)
        held.release()
        waiting.join(60)
        assert won[0].wait_held(60)


def test_what_is_to_leave_nothing_behind_is_forgotten_however_it_was_claimed(
    mock_kafka: TestBroker,
) -> None:
    with client(mock_kafka, "me") as me:
        tried = me.try_claim("t", 1, ephemeral=True)
        assert tried is not None
        claims = [
            me.claim("t", 0, ephemeral=True),
            tried,
            me.want("t", 2, ephemeral=True),
            *me.claim_many([("t", 3), ("t", 4)], ephemeral=True),
            me.claim("t", 5),
        ]
        assert claims[2].wait_held(60)
        for claim in claims:
            claim.release()
        block(me._driver.lock, until_nothing_is_claimed(me._registry))
        assert [n for n in range(6) if me.cell("t", n) is not None] == [5]


def test_of_keys_of_which_one_is_none_nothing_is_claimed(mock_kafka: TestBroker) -> None:
    with client(mock_kafka, "me") as me:
        with pytest.raises(InvalidArgument, match="partition = -1"):
            me.claim_many([("t", 0), ("t", -1)])
        registry = me._registry
        block(me._driver.lock, until_nothing_is_claimed(registry))


def until_nothing_is_claimed(registry: ClaimRegistry) -> Steps[None]:
    for claim in list(registry._claims.values()):
        assert (yield Wait(core_of(claim).changed, core_of(claim).ended.is_set, 30)), claim


def test_a_claim_that_was_released_is_made_anew(mock_kafka: TestBroker) -> None:
    with client(mock_kafka, "me") as me:
        first = me.claim("t", 0)
        assert me.claim("t", 0) is first
        first.release()
        second = me.claim("t", 0, timeout_s=60)
        assert second is not first
        assert (first.held, second.held) == (False, True)
        assert second.epoch > first.epoch


def test_who_waits_for_a_claim_hears_why_the_client_has_failed(mock_kafka: TestBroker) -> None:
    """Its claims end with it; that they did would say nothing."""
    with client(mock_kafka, "other") as other, client(mock_kafka, "me") as me:
        other.claim("t", 0)
        raised: list[Exception] = []

        def claim() -> None:
            try:
                me.claim("t", 0, timeout_s=60)
            except Exception as error:
                raised.append(error)

        waiting = threading.Thread(target=claim)
        waiting.start()
        until(lambda: len(me._registry._claims) == 1)
        failure = PartitionCountChanged("there are 8 now")
        with me._driver.lock:
            me._driver._fail(failure)
        waiting.join(60)
        assert raised == [failure]


def test_who_cannot_win_is_told_of_the_pause(mock_kafka: TestBroker) -> None:
    with client(mock_kafka, "me") as me, GroupAdmin(mock_kafka.config, "g") as admin:
        admin.pause(for_s=600)
        with pytest.raises(ClaimTimeout, match="t/0: the group is paused; `marshal group resume`"):
            me.claim("t", 0, timeout_s=SOON_S)


@spec("C-61")
def test_a_position_that_a_program_stores_has_no_leader_epoch_of_another(
    mock_kafka: TestBroker,
) -> None:
    """A consumer that comes next would take what was done since then for lost."""
    told = ClaimMetadata(topic_id=b"x", leader_epoch=3)
    with client(mock_kafka, "a") as marshal:
        claim = marshal.claim("orders", 0, timeout_s=30)
        claim.commit(5)
        claim.set_metadata(told.encode())
        claim.commit(5)
        assert ClaimMetadata.decode(claim.metadata) == told, "the same position"
        claim.commit(6, wait=True, timeout_s=30)
        assert ClaimMetadata.decode(claim.metadata) == ClaimMetadata(topic_id=b"x")
        claim.set_metadata(b'{"mine": 1}')
        claim.commit(7, wait=True, timeout_s=30)
        assert claim.metadata == b'{"mine": 1}'


def test_how_alive_a_holder_looks_is_told_and_of_a_cell_a_copy(mock_kafka: TestBroker) -> None:
    home = MSGPACK.home
    assert home is not None
    group_id = next(name for name in "abcdefgh" if home(name, 4))  # not the first partition's
    with Marshal(mock_kafka.config, group_id=group_id, client_id="me") as me:
        assert (me.cell("t", 0), me.liveness("t", 0)) == (None, None)
        claim = me.claim("t", 0)
        assert me.liveness("t", 0) == "fresh"
        cell = me.cell("t", 0)
        assert cell is not None
        assert (cell.holder, cell.epoch) == ("me", claim.epoch)
        cell.holder = "nobody"
        again = me.cell("t", 0)
        assert again is not None
        assert again.holder == "me"
        claim.release()
        assert me.liveness("t", 0) is None


def test_a_client_that_was_closed_tells_nothing_of_a_world_that_has_gone_on(
    mock_kafka: TestBroker,
) -> None:
    me = client(mock_kafka, "me")
    with me:
        me.claim("t", 0)
    for ask in (me.cell, me.liveness, me.claim, me.want, me.try_claim):
        with pytest.raises(Closed):
            ask("t", 0)
    with pytest.raises(Closed), me.world():
        pytest.fail("it is not known any more")
    with pytest.raises(Closed):
        me.set_member_metadata(b"news")
    with pytest.raises(Closed):
        me.listen(lambda *_: None)
    with pytest.raises(Closed):
        me.watch_leader("x")


def test_how_alive_a_holder_looks_is_told_by_its_own_interval(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks may have another one."""
    slow = Marshal(mock_kafka.config, group_id="g", client_id="slow", interval_ms=60_000)
    with slow, Marshal(mock_kafka.config, group_id="g", interval_ms=500) as me:
        slow.claim("t", 0)
        until(lambda: me.liveness("t", 0) is not None)
        now_ns = me._driver.clock()
        monkeypatch.setattr(me._driver, "clock", lambda: now_ns + 30 * 10**9)
        assert me.liveness("t", 0) == "fresh"
        monkeypatch.setattr(me._driver, "clock", lambda: now_ns + 130 * 10**9)
        assert me.liveness("t", 0) == "stale"
