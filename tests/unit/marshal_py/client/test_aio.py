"""The asyncio face of claims, on the mock cluster: what it leaves behind, and what it passes on."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py import AsyncMarshal
from marshal_py.client.aio import AsyncClaim, AsyncLeadership, AsyncLeaderWatch
from marshal_py.client.marshal import driver_of, registry_of
from marshal_py.client.waiting import Steps
from marshal_py.errors import ClaimTimeout
from marshal_py.testing import TestBroker
from tests.unit.marshal_py.client.test_leader_election import Driver

INTERVAL_MS = 5_000


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def within_a_minute() -> None:
        async with asyncio.timeout(60):
            await coroutine

    asyncio.run(within_a_minute())


def client(broker: TestBroker, **settings: Any) -> AsyncMarshal:
    return AsyncMarshal(broker.config, group_id="g", interval_ms=INTERVAL_MS, **settings)


def wakeup_fd() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


@pytest.mark.usefixtures("no_handler")
def test_a_client_that_was_closed_leaves_signals_as_they_were(mock_kafka: TestBroker) -> None:
    """Else SIGTERM would go on to be an exception, in a program that has no claims any more."""
    before = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        fd = wakeup_fd()
        async with client(mock_kafka):
            assert signal.getsignal(signal.SIGTERM) is not before
            assert wakeup_fd() != -1
        assert signal.getsignal(signal.SIGTERM) is before
        assert wakeup_fd() == fd

    run(main())


def test_a_start_that_is_cancelled_leaves_no_client(mock_kafka: TestBroker) -> None:
    async def main() -> None:
        marshal = client(mock_kafka)
        began, may_end, closed = (threading.Event() for _ in range(3))
        start, close = marshal.sync.start, marshal.sync.close

        def start_late() -> object:
            began.set()
            assert may_end.wait(60)
            return start()

        def close_and_say(*arguments: Any, **settings: Any) -> None:
            close(*arguments, **settings)
            closed.set()

        marshal.sync.start = start_late  # type: ignore[assignment,method-assign]
        marshal.sync.close = close_and_say  # type: ignore[method-assign]
        task = asyncio.create_task(marshal.start())
        while not began.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert wakeup_fd() == -1
        may_end.set()
        while not closed.is_set():
            await asyncio.sleep(0.001)

    run(main())


def test_who_waits_for_the_end_of_a_claim_is_told_whether_it_came(mock_kafka: TestBroker) -> None:
    async def main() -> None:
        async with client(mock_kafka) as marshal:
            claim = await marshal.claim("t", 0)
            assert await claim.wait_lost(0.01) is False
            waiting = asyncio.create_task(claim.wait_lost())
            await asyncio.sleep(0)
            await claim.release()
            assert await waiting is True
            assert await claim.wait_lost(0) is True
            leadership = marshal.leader("nobody yet")
            assert await leadership.wait_lost() is True, "there is nothing to lose"
            await leadership.resign()

    run(main())


def test_who_need_not_wait_for_a_release_does_not(mock_kafka: TestBroker) -> None:
    async def main() -> None:
        async with client(mock_kafka) as marshal:
            claim = await marshal.claim("t", 0)
            await claim.release(wait=False, timeout_s=0.0)
            assert not claim.held
            slow = await marshal.claim("t", 1)
            with pytest.raises(ClaimTimeout):
                await slow.release(timeout_s=0.0)

    run(main())


def test_what_waits_has_the_time_that_it_is_given() -> None:
    told: list[tuple[Any, ...]] = []

    def steps(name: str) -> Callable[..., Steps[bool]]:
        def call(*given: Any) -> Steps[bool]:
            told.append((name, *given))
            yield from ()
            return True

        return call

    names = ("commit", "claim_messages", "release", "wait_held")
    lock = threading.RLock()
    core: Any = SimpleNamespace(
        driver=SimpleNamespace(lock=lock), **{name: steps(name) for name in names}
    )
    claim: Any = SimpleNamespace(_core=core)
    leadership: Any = SimpleNamespace(campaign_steps=steps("campaign"), claim=claim)

    async def main() -> None:
        await AsyncClaim(claim).commit(7, wait=True, timeout_s=1.5)
        assert await AsyncClaim(claim).claim_messages(9, timeout_s=2.5)
        await AsyncClaim(claim).release(timeout_s=3.5)
        assert await AsyncClaim(claim).wait_held(4.5)
        await AsyncLeadership(leadership, lock).campaign(5.5)
        await AsyncLeadership(leadership, lock).resign(wait=False, timeout_s=6.5)

    run(main())
    assert told == [
        ("commit", 7, True, 1.5),
        ("claim_messages", 9, 2.5),
        ("release", True, 3.5),
        ("wait_held", 4.5),
        ("campaign", 5.5),
        ("release", False, 6.5),
    ]


def test_a_claim_is_tried_and_waited_for_as_long_as_is_said() -> None:
    told: list[tuple[Any, ...]] = []

    def steps(name: str, result: Any) -> Callable[..., Steps[Any]]:
        def call(*given: Any, ephemeral: bool) -> Steps[Any]:
            told.append((name, *given, ephemeral))
            yield from ()
            return result

        return call

    async def main() -> None:
        marshal = AsyncMarshal("127.0.0.1:1", group_id="g")
        registry: Any = registry_of(marshal.sync)
        registry.claim_many, registry.try_claim = steps("many", [None]), steps("try", None)
        await marshal.claim("t", 1, timeout_s=1.5, ephemeral=True)
        await marshal.claim_many([("t", 2)], timeout_s=2.5)
        assert await marshal.try_claim("t", 3, timeout_s=3.5, ephemeral=True) is None

    run(main())
    assert told == [
        ("many", [("t", 1)], 1.5, True),
        ("many", [("t", 2)], 2.5, False),
        ("try", "t", 3, 3.5, True),
    ]


def test_a_block_whose_release_takes_too_long_ends_all_the_same(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did is done; the release takes its course."""

    async def too_long(self: AsyncClaim, **_: Any) -> None:
        raise ClaimTimeout("the release was not seen")

    monkeypatch.setattr(AsyncClaim, "release", too_long)

    async def main() -> None:
        async with client(mock_kafka) as marshal:
            async with await marshal.claim("t", 0):
                pass
            async with marshal.leader("x"):
                pass

    run(main())


def test_what_is_ephemeral_is_gone_after_its_release(mock_kafka: TestBroker) -> None:
    async def main() -> None:
        async with client(mock_kafka) as marshal:
            one = await marshal.claim("t", 0, ephemeral=True)
            two = await marshal.try_claim("t", 1, ephemeral=True)
            (three,) = await marshal.claim_many([("t", 2)], ephemeral=True)
            lasting = await marshal.claim("t", 3)
            assert two is not None
            for claim in (one, two, three, lasting):
                await claim.release()
            left = [n for n in range(4) if marshal.sync.cell("t", n) is not None]
            assert left == [3]

    run(main())


def test_changes_of_leaders_come_one_by_one(mock_kafka: TestBroker) -> None:
    async def main() -> None:
        async with client(mock_kafka) as marshal, marshal.watch_leader("x") as watch:
            assert watch.current is None
            async with marshal.leader("x") as leadership:
                old, new = await anext(watch)
                assert old is None
                assert new is not None
                assert (new.epoch, leadership.held) == (leadership.epoch, True)
            old, new = await anext(watch)
            assert (old is None, new) == (False, None)

    run(main())


@pytest.mark.parametrize("way", ["client", "watch"])
def test_changes_of_leaders_end_with_the_client_and_with_the_watch(
    mock_kafka: TestBroker, way: str
) -> None:
    async def main() -> None:
        async with client(mock_kafka) as marshal:
            watch = marshal.watch_leader("x")

            async def changes() -> list[Any]:
                return [change async for change in watch]

            listening = asyncio.create_task(changes())
            await asyncio.sleep(0)  # it has begun
            if way == "client":
                await marshal.close()
            else:
                watch.close()
            assert await asyncio.wait_for(listening, 10) == []
            assert [change async for change in watch] == [], "nor does it begin again"
            watch.close()
            assert driver_of(marshal.sync).on_ended == [], (
                "of a watch that was closed nothing stays"
            )

    run(main())


def test_a_watch_of_a_client_that_has_just_ended_ends_at_once() -> None:
    """Who ended is heard of once: whoever comes a moment later would wait for ever."""
    driver = Driver()
    driver.has_ended = True
    marshal: Any = SimpleNamespace(_driver=driver)

    async def main() -> None:
        assert [change async for change in AsyncLeaderWatch(marshal, "x")] == []

    run(main())


def test_who_keeps_its_claims_as_it_closes_has_them_again(mock_kafka: TestBroker) -> None:
    async def main() -> None:
        marshal = await client(mock_kafka, client_id="me").start()
        kept = await marshal.claim("t", 0)
        epoch = kept.epoch
        await marshal.close(release=False)
        async with client(mock_kafka, client_id="other") as other:
            assert await other.try_claim("t", 0) is None
        async with client(mock_kafka, client_id="me") as again:
            assert (await again.claim("t", 0)).epoch > epoch

    run(main())
