"""Loops of asyncio, its own and uvloop's, on the mock cluster; some are closed by somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from confluent_kafka import Message

from marshal_py import AsyncConsumer, AsyncMarshal
from marshal_py.errors import Closed
from marshal_py.testing import TestBroker
from tests.support.messages import value_of

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def within_a_minute(coroutine: Coroutine[Any, Any, None]) -> None:
        async def limited() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, uvloop.Loop) is (request.param is uvloop.new_event_loop)
            async with asyncio.timeout(60):
                await coroutine

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(limited())

    return within_a_minute


def consumer_of(broker: TestBroker) -> AsyncConsumer:
    broker.send("orders", "1", "2", partition=0)
    return AsyncConsumer(broker.config, group_id="g", topics="orders", settle_ms=0)


def test_a_loop_that_is_closed_while_it_starts_ends(mock_kafka: TestBroker, run: Run) -> None:
    async def main() -> None:
        consumer = consumer_of(mock_kafka)
        is_starting = asyncio.Event()
        start = consumer.sync.start

        def start_and_be_closed() -> object:
            started = start()
            consumer.sync.close()
            return started

        consumer.sync.start = start_and_be_closed  # type: ignore[assignment,method-assign]
        async for _ in consumer:
            is_starting.set()
        assert not is_starting.is_set()
        with pytest.raises(Closed):
            await anext(aiter(consumer))

    run(main())


def test_a_loop_that_another_task_closes_ends_with_the_message_in_hand(
    mock_kafka: TestBroker, run: Run
) -> None:
    async def main() -> None:
        consumer = consumer_of(mock_kafka)
        got: list[bytes | None] = []
        works, may_go_on = asyncio.Event(), asyncio.Event()

        async def loop() -> None:
            async for message in consumer:
                got.append(message.value())
                works.set()
                await may_go_on.wait()

        task = asyncio.create_task(loop())
        await works.wait()
        await consumer.close(0.05)
        may_go_on.set()
        await task
        assert got == [b"1"]
        with pytest.raises(Closed):
            await anext(aiter(consumer))

    run(main())


def test_handlers_run_side_by_side_while_a_claim_is_held(mock_kafka: TestBroker, run: Run) -> None:
    async def main() -> None:
        in_flight = 0
        got: list[bytes] = []
        both = asyncio.Event()

        async def handle(message: Message) -> None:
            nonlocal in_flight
            in_flight += 1
            if in_flight == 2:
                both.set()
            await both.wait()
            got.append(value_of(message))
            if len(got) == 2:
                consumer.sync.stop()

        consumer = AsyncConsumer(mock_kafka.config, group_id="g", topics="orders", settle_ms=0)
        mock_kafka.send("orders", "1", partition=0)
        mock_kafka.send("orders", "2", partition=1)
        async with AsyncMarshal(mock_kafka.config, group_id="other") as marshal:
            async with await marshal.claim("x", 0) as claim, consumer:
                stats = await consumer.run(handle, workers=2)
                assert claim.held
            assert not claim.held
        assert (stats.handled, sorted(got)) == (2, [b"1", b"2"])

    run(main())


def test_a_task_that_is_cancelled_ends_at_once_and_loses_nothing(
    mock_kafka: TestBroker, run: Run
) -> None:
    async def main() -> None:
        async with consumer_of(mock_kafka) as consumer:
            got: list[bytes | None] = []
            works = asyncio.Event()

            async def loop() -> None:
                async for message in consumer:
                    got.append(message.value())
                    works.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(loop())
            await works.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for message in consumer:  # what was not finished comes again
                got.append(message.value())
                if len(got) == 3:
                    break
            assert got == [b"1", b"1", b"2"]

    run(main())
