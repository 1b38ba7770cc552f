"""The asyncio face of consumers against a real broker: iterating, running, and cancelling."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.serialization import StringDeserializer

from marshal_py import (
    AsyncConsumer,
    Closed,
    HandlerFailed,
    Retry,
    TopicMissing,
)
from marshal_py.client.topics import create_topics
from marshal_py.consumer.options import Mode
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import INTERVAL_MS, fill, pid_suffix

pytestmark = pytest.mark.kafka

_names = itertools.count()


@pytest.fixture(scope="module")
def coordination(kafka: EmbeddedKafka) -> str:
    kafka.start()
    name = f"__marshal.aio.consumer.{pid_suffix()}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=4)
    return name


@pytest.fixture
def settings(coordination: str) -> dict[str, Any]:
    return {"group_id": f"g{next(_names)}", "topic": coordination, "interval_ms": INTERVAL_MS}


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def within_a_minute() -> None:
        async with asyncio.timeout(60):
            await coroutine

    asyncio.run(within_a_minute(), debug=False)


def test_messages_and_batches(
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=3)
    fill(kafka.bootstrap_servers, topic, 3_000, partitions=3)

    async def main() -> None:
        numbers: list[int] = []
        async with AsyncConsumer(
            kafka.bootstrap_servers,
            topics=topic,
            value_deserializer=StringDeserializer(),
            **settings,
        ) as consumer:
            async for message in consumer:
                numbers.append(int(message.value()))  # type: ignore[arg-type]
                assert consumer.claim_of(message).held
                if len(numbers) == 1_500:
                    consumer.ack(message)
                    break
            async for batch in consumer.batches(idle_timeout_s=8):
                assert {m.partition() for m in batch} == {batch.partition}
                numbers += [int(m.value()) for m in batch]
            assert sorted(numbers) == list(range(3_000))
            assert await consumer.poll(0.05) is None
            await consumer.commit()
            assert sum(claim.stored_offset for claim in consumer.claims()) == 3_000
            assert set((await consumer.lag()).values()) == {0}
            fill(kafka.bootstrap_servers, topic, 1, partitions=3)
            assert await consumer.poll(20) is not None

    run(main())


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_cancelled_iteration_loses_nothing(
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str], mode: Mode
) -> None:
    topic = kafka_topic(partitions=2)

    async def main() -> None:
        numbers: list[int] = []

        async def take() -> None:
            async for message in consumer:
                numbers.append(int(message.value()))  # type: ignore[arg-type]

        async with AsyncConsumer(
            kafka.bootstrap_servers, topics=topic, mode=mode, **settings
        ) as consumer:
            sent = 0
            for _ in range(20):
                task = asyncio.create_task(take())
                await asyncio.sleep(0.02)
                await asyncio.to_thread(
                    fill, kafka.bootstrap_servers, topic, 10, partitions=2, start=sent
                )
                sent += 10
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async for message in consumer.messages(idle_timeout_s=8):
                numbers.append(int(message.value()))  # type: ignore[arg-type]
        assert sorted(numbers) == list(range(200))

    run(main())


def test_acknowledged_by_other_tasks_close_waits_for_them(
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)

    async def main() -> None:
        async def work(message: Message, work_s: float) -> None:
            await asyncio.sleep(work_s)
            consumer.ack(message)

        async with AsyncConsumer(
            kafka.bootstrap_servers, topics=topic, auto_ack=False, **settings
        ) as consumer:
            tasks: list[asyncio.Task[None]] = []
            async for message in consumer:
                tasks.append(asyncio.create_task(work(message, 0.05 * (len(tasks) % 4))))
                if len(tasks) == 10:
                    break
            await tasks[0]
        async with AsyncConsumer(kafka.bootstrap_servers, topics=topic, **settings) as successor:
            while not successor.claims():
                await asyncio.sleep(0.01)
            assert successor.claims()[0].position == 10

    run(main())


def test_leaving_in_the_middle_waits_for_nobody(
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with AsyncConsumer(
                kafka.bootstrap_servers, topics=topic, auto_ack=False, **settings
            ) as consumer:
                async for _ in consumer:
                    left_s = loop.time()
                    raise ZeroDivisionError
        assert loop.time() - left_s < 8, "close's timeout is 10"

    run(main())


def test_run_in_the_users_loop(
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 70, partitions=1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen: list[int] = []

        async def handler(message: Message) -> None:
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0.001)
            seen.append(int(message.value()))  # type: ignore[arg-type]
            if len(seen) == 70:
                consumer.stop()

        consumer = AsyncConsumer(kafka.bootstrap_servers, topics=topic, **settings)
        stats = await consumer.run(handler, workers=4)
        assert stats.handled == 70
        assert sorted(seen) == list(range(70))

    run(main())


def test_a_cancelled_run_finishes_what_it_has_begun(
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 700, partitions=1)

    async def main() -> None:
        seen: list[int] = []

        async def handler(message: Message) -> None:
            await asyncio.sleep(0.005)
            seen.append(int(message.value()))  # type: ignore[arg-type]

        consumer = AsyncConsumer(kafka.bootstrap_servers, topics=topic, **settings)
        running = asyncio.create_task(consumer.run(handler, workers=4))
        while len(seen) < 20:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(seen) < 700
        async with AsyncConsumer(kafka.bootstrap_servers, topics=topic, **settings) as successor:
            async for message in successor.messages(idle_timeout_s=8):
                seen.append(int(message.value()))  # type: ignore[arg-type]
        assert sorted(seen) == list(range(700))

    run(main())


def test_errors_come_through(
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 1, partitions=1)

    async def main() -> None:
        with pytest.raises(TopicMissing, match="did you mean"):
            await AsyncConsumer(kafka.bootstrap_servers, topics=topic + "x", **settings).start()

        async def handler(_: Message) -> None:
            raise OSError("no")

        with pytest.raises(HandlerFailed, match="OSError: no"):
            await AsyncConsumer(kafka.bootstrap_servers, topics=topic, **settings).run(
                handler, retry=Retry(attempts=1)
            )
        consumer = AsyncConsumer(kafka.bootstrap_servers, topics=topic, **settings)
        await consumer.close()
        with pytest.raises(Closed):
            async for _ in consumer:
                pass

    run(main())
