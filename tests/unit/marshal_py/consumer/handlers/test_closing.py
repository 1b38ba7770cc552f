"""`close` from within `run`: by a handler, or by what `run` calls."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from marshal_py import AsyncConsumer, Consumer
from marshal_py.testing import TestBroker


def left(broker: TestBroker) -> list[Any]:
    """Return what has not been done."""
    with broker.consumer("orders") as consumer:
        return [message.value() for message in consumer.messages(idle_timeout_s=1)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_may_close_the_consumer_and_its_message_is_done(
    mock_kafka: TestBroker, is_async: bool
) -> None:
    """It would wait for itself, for as long as it may, and the message would come again."""
    mock_kafka.send("orders", "a", partition=0)
    consumer = mock_kafka.consumer("orders")

    def handle(_: Any) -> None:
        consumer.close()

    async def handle_async(_: Any) -> None:
        consumer.close()

    stats = consumer.run(handle_async if is_async else handle)
    assert (stats.handled, stats.handed_back) == (1, 0)
    assert consumer.closing
    assert left(mock_kafka) == []


def test_a_coroutine_may_close_the_consumer_and_its_message_is_done(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", "a", partition=0)

    async def main() -> None:
        consumer = AsyncConsumer(mock_kafka.config, group_id="test", topics="orders", settle_ms=0)

        async def handle(_: Any) -> None:
            await consumer.close()

        stats = await consumer.run(handle)
        assert (stats.handled, stats.handed_back) == (1, 0)
        assert consumer.sync.closing

    asyncio.run(main())
    assert left(mock_kafka) == []


def test_on_stuck_may_close_the_consumer_and_what_is_stuck_is_waited_for(
    mock_kafka: TestBroker,
) -> None:
    mock_kafka.send("orders", "a", partition=0)
    may_return = threading.Event()

    def close(_: Any) -> None:
        consumer.close()
        may_return.set()

    consumer: Consumer = mock_kafka.consumer("orders")
    stats = consumer.run(lambda _: may_return.wait(30), stuck_after_s=0.01, on_stuck=close)
    assert (stats.handled, stats.handed_back) == (1, 0)
    assert left(mock_kafka) == []
