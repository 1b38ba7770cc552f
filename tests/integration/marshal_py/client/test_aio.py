"""The asyncio face against a real broker: claims, leaders, and cancelling them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from marshal_py import (
    AsyncMarshal,
    ClaimTimeout,
    Closed,
    Marshal,
    NotHeld,
)
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import INTERVAL_MS, pid_suffix

pytestmark = pytest.mark.kafka

_names = itertools.count()


@pytest.fixture(scope="module")
def coordination(kafka: EmbeddedKafka) -> str:
    kafka.start()
    name = f"__marshal.aio.{pid_suffix()}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=4)
    return name


@pytest.fixture
def settings(coordination: str) -> dict[str, Any]:
    return {"group_id": f"g{next(_names)}", "topic": coordination, "interval_ms": INTERVAL_MS}


@pytest.fixture
def other(kafka: EmbeddedKafka, settings: dict[str, Any]) -> Iterator[Marshal]:
    """A client of the same group, with the blocking face."""
    with Marshal(kafka.bootstrap_servers, client_id="other", **settings) as marshal:
        yield marshal


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def within_a_minute() -> None:
        async with asyncio.timeout(60):
            await coroutine

    asyncio.run(within_a_minute(), debug=False)


# Claims


def test_a_claim_is_won_stored_and_released(
    kafka: EmbeddedKafka, settings: dict[str, Any], other: Marshal
) -> None:
    async def main() -> None:
        async with AsyncMarshal(kafka.bootstrap_servers, **settings) as marshal:
            async with await marshal.claim("t", 1) as claim:
                assert claim.held
                assert claim.epoch >= 0
                await claim.commit(7, wait=True)
                assert claim.stored_offset == 7
                assert await claim.claim_messages(20)
                assert not await claim.claim_messages(19)
                assert other.try_claim("t", 1) is None
            assert not claim.held
            taken = other.claim("t", 1, timeout_s=60)
            assert taken.position == 20
            while marshal.sync.cell("t", 1).holder != "other":  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
            assert await marshal.try_claim("t", 1) is None
            with pytest.raises(ClaimTimeout, match="other holds it"):
                await marshal.claim("t", 1, timeout_s=0.2)
            with pytest.raises(NotHeld):
                await claim.commit(8, wait=True)
        with pytest.raises(Closed):
            await marshal.claim("t", 2)

    run(main())


def test_waiting_for_a_claim_lets_other_tasks_run_and_can_be_cancelled(
    kafka: EmbeddedKafka, settings: dict[str, Any], other: Marshal
) -> None:
    async def main() -> None:
        held = other.claim("t", 0)
        async with AsyncMarshal(kafka.bootstrap_servers, **settings) as marshal:
            first = asyncio.create_task(marshal.claim("t", 0))
            second = asyncio.create_task(marshal.claim("t", 0))
            await asyncio.sleep(0.05)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            held.release()
            claim = await second  # it gave up for itself alone
            lost = asyncio.create_task(claim.wait_lost())
            assert not await claim.wait_lost(0.05)
            await claim.release()
            assert await lost
            assert other.claim("t", 0, timeout_s=60).held

    run(main())


def test_a_lease_that_lapses_wakes_who_waits(
    kafka: EmbeddedKafka, settings: dict[str, Any]
) -> None:
    async def main() -> None:
        async with AsyncMarshal(kafka.bootstrap_servers, **settings) as marshal:
            claim = await marshal.claim("t", 0)
            kafka.pause(0)
            try:
                assert await claim.wait_lost(60)
                assert not claim.held
            finally:
                kafka.resume(0)
            assert await claim.wait_held(30)

    run(main())


def test_leaders(kafka: EmbeddedKafka, settings: dict[str, Any]) -> None:
    async def main() -> None:
        async with (
            AsyncMarshal(kafka.bootstrap_servers, client_id="a", **settings) as a,
            AsyncMarshal(kafka.bootstrap_servers, client_id="b", **settings) as b,
            b.watch_leader("x") as watch,
        ):
            async with a.leader("x") as first:
                assert first.held
                second = b.leader("x")
                elected = asyncio.create_task(second.campaign())
                with pytest.raises(ClaimTimeout, match="not elected"):
                    await b.leader("x").campaign(0.1)
                elected.cancel()
                async for _, new in watch:
                    assert new is not None
                    assert (new.client_id, new.epoch) == ("a", first.epoch)
                    break
            await second.campaign(10)
            assert second.epoch > first.epoch
            changes = [await anext(watch), await anext(watch)]
            assert [new.client_id if new else None for _, new in changes] == [None, "b"]
            await second.resign()
            assert await second.wait_lost()

    run(main())
