"""The asyncio face against a real broker: claims, leaders, consumers, and cancelling them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from confluent_kafka import Message
from confluent_kafka.serialization import StringDeserializer

from marshal_py import (
    AsyncConsumer,
    AsyncMarshal,
    ClaimTimeout,
    Closed,
    HandlerFailed,
    Marshal,
    NotHeld,
    Retry,
    TopicMissing,
)
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import INTERVAL_MS, fill, pid_suffix

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
            # It gave up for both, as `Marshal.claim` does: the same claim is wanted once.
            with pytest.raises(NotHeld):
                await second
            third = asyncio.create_task(marshal.claim("t", 0))
            claim = await third
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


# Consumers


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
    kafka: EmbeddedKafka, settings: dict[str, Any], kafka_topic: Callable[..., str], mode: str
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
