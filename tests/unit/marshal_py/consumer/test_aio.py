"""Loops of asyncio that somebody else closes, on the mock cluster."""

from __future__ import annotations

import asyncio

import pytest

from marshal_py import AsyncConsumer
from marshal_py.errors import Closed
from marshal_py.testing import TestBroker


def consumer_of(broker: TestBroker) -> AsyncConsumer:
    broker.send("orders", "1", "2", partition=0)
    return AsyncConsumer(broker.config, group_id="g", topics="orders", settle_ms=0)


def test_a_loop_that_is_closed_while_it_starts_ends(mock_kafka: TestBroker) -> None:
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

    asyncio.run(main())


def test_a_loop_that_another_task_closes_ends_with_the_message_in_hand(
    mock_kafka: TestBroker,
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

    asyncio.run(main())
