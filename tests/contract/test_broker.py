"""What handlers, consumers and leaders see of a broker: librdkafka's mock cluster, and Kafka.

What a user tests with `TestBroker` holds on Kafka; where the two differ, the last tests say how.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message, Producer

from marshal_py import (
    AcknowledgeType,
    AsyncConsumer,
    ClaimTimeout,
    HandlerFailed,
    InvalidArgument,
    Marshal,
    Retry,
)
from marshal_py.client.kafka_clients import is_mock
from marshal_py.consumer.rejections import Rejections
from marshal_py.testing import TestBroker
from tests.support.consumers import until

ONCE = Retry(attempts=2, backoff_ms=1)


def values(messages: list[Any]) -> list[Any]:
    return [message.value() for message in messages]


def test_all_is_handled_in_the_order_of_its_key(broker: TestBroker, topic: str, group: str) -> None:
    for key in ("a", "b", "c"):
        broker.send(topic, *[f"{key}{n}" for n in range(20)], key=key)
    seen: dict[bytes, list[bytes]] = {}

    def handle(message: Message) -> None:
        seen.setdefault(message.key() or b"", []).append(message.value() or b"")

    stats = broker.run(handle, broker.consumer(topic, group_id=group))
    assert stats.handled == 60
    assert seen == {k.encode(): [f"{k}{n}".encode() for n in range(20)] for k in "abc"}


def test_coroutines_and_batches_are_handled(broker: TestBroker, topic: str, group: str) -> None:
    broker.send(topic, *map(str, range(10)), partition=0)
    sizes: list[int] = []

    async def handle(batch: list[Message]) -> None:
        sizes.append(len(batch))

    broker.run(handle, broker.consumer(topic, group_id=group), batch_size=4)
    assert sum(sizes) == 10
    assert max(sizes) <= 4


def test_what_fails_comes_again_and_then_is_a_dead_letter(
    broker: TestBroker, topic: str, group: str
) -> None:
    dead = broker.create_topic(f"{topic}.dlq")
    broker.send(topic, "bad", "good", key="k")
    calls: list[bytes | None] = []

    def handle(message: Message) -> None:
        calls.append(message.value())
        if message.value() == b"bad":
            raise ValueError("no such customer")

    stats = broker.run(
        handle, broker.consumer(topic, group_id=group), retry=ONCE, on_failure="dead_letter"
    )
    assert calls == [b"bad", b"bad", b"good"]
    assert (stats.handled, stats.dead_lettered) == (1, 1)
    assert values(broker.messages(dead)) == [b"bad"]


def test_a_failure_stops_the_run_and_is_raised(broker: TestBroker, topic: str, group: str) -> None:
    broker.send(topic, "bad")

    def handle(_: Message) -> None:
        raise ValueError("no such customer")

    with pytest.raises(HandlerFailed, match="no such customer"):
        broker.run(handle, broker.consumer(topic, group_id=group), retry=Retry(attempts=1))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_the_next_consumer_of_a_group_goes_on_where_the_last_one_stopped(
    broker: TestBroker, topic: str, group: str, mode: Any
) -> None:
    seen: list[Message] = []
    for n in range(3):
        broker.send(topic, str(n), partition=0)
        broker.run(seen.append, broker.consumer(topic, group_id=group, mode=mode))
    assert values(seen) == [b"0", b"1", b"2"]


def test_a_loop_gets_messages_and_batches(broker: TestBroker, topic: str, group: str) -> None:
    broker.send(topic, "0", "1", partition=2)
    with broker.consumer(topic, group_id=group) as consumer:
        loop = consumer.messages()
        assert values([next(loop), next(loop)]) == [b"0", b"1"]
        loop = consumer.messages(idle_timeout_s=0.01)
        broker.send(topic, "2", "3", partition=2)
        batch = next(consumer.batches())
        assert batch[0].partition() == 2


def test_a_coroutine_that_rejects_a_message_holds_up_no_other(
    broker: TestBroker, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = broker.create_topic(f"{topic}.dlq")
    broker.send(topic, "bad", partition=0)
    may_go_on, write = threading.Event(), Rejections.write

    def wait_and_write(rejections: Rejections, *about: Any) -> None:
        assert may_go_on.wait(60)
        write(rejections, *about)

    monkeypatch.setattr(Rejections, "write", wait_and_write)

    async def main() -> None:
        async with AsyncConsumer(
            broker.config,
            group_id=group,
            topics=topic,
            settle_ms=0,
            auto_ack=False,
            dead_letter_topic=letters,
        ) as consumer:
            message = await consumer.poll(60)
            assert message is not None
            with pytest.raises(InvalidArgument, match="delay_s = -1"):
                await consumer.acknowledge(message, AcknowledgeType.REJECT, delay_s=-1)
            rejecting = asyncio.create_task(
                consumer.acknowledge(message, AcknowledgeType.REJECT, reason="no customer")
            )
            await asyncio.sleep(0)  # it has begun
            assert not rejecting.done()
            may_go_on.set()
            await rejecting
            await consumer.commit()

    asyncio.run(main())
    (letter,) = broker.messages(letters)
    assert letter.value() == b"bad"
    with broker.consumer(topic, group_id=group) as again:
        assert again.poll(1.0) is None


def test_two_members_share_a_topic(broker: TestBroker, topic: str, group: str) -> None:
    with broker.consumer(topic, group_id=group) as one, broker.consumer(topic, group_id=group) as b:

        def both_loop_and_have_half() -> bool:
            for member in (one, b):
                for _ in member.messages(idle_timeout_s=0.01):
                    pass
            return len(one.claims()) == len(b.claims()) == 2

        until(both_loop_and_have_half, what="one member kept everything")


def test_one_leads_and_the_next_one_takes_over(broker: TestBroker, group: str) -> None:
    with (
        Marshal(broker.config, group_id=group, interval_ms=500) as a,
        Marshal(broker.config, group_id=group, interval_ms=500) as b,
    ):
        with a.leader("job") as first:
            epoch = first.epoch
            assert b.try_claim("other", 0) is not None
        with b.leader("job") as second:
            assert second.epoch > epoch


def test_what_is_never_done_is_told_and_not_waited_for(
    broker: TestBroker, topic: str, group: str
) -> None:
    broker.send(topic, "bad")

    def handle(_: Message) -> None:
        raise ValueError("not today")

    with pytest.raises(ClaimTimeout, match="not all messages were done"):
        broker.run(
            handle,
            broker.consumer(topic, group_id=group),
            timeout_s=0.2,
            retry=Retry(attempts=None, backoff_ms=60_000, jitter=0),
        )


# Where they differ


def test_differs_what_was_aborted_is_read_from_the_mock(broker: TestBroker, topic: str) -> None:
    producer = Producer({**broker.config, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"never was")
    producer.flush(30)
    producer.abort_transaction(30)
    assert values(broker.messages(topic)) == ([b"never was"] if broker.is_mock else [])


def test_differs_the_mock_keeps_the_timestamps_of_producers(broker: TestBroker, group: str) -> None:
    with Marshal(broker.config, group_id=group) as marshal:
        marshal.claim("t", 0)
        stamps = {message.timestamp()[0] for message in broker.messages(marshal.settings.topic)}
    assert stamps == {TIMESTAMP_CREATE_TIME if broker.is_mock else TIMESTAMP_LOG_APPEND_TIME}


def test_differs_topics_of_the_mock_have_no_id(broker: TestBroker, topic: str) -> None:
    cluster = Producer(broker.config).list_topics(topic, timeout=30)
    assert is_mock(cluster) is broker.is_mock
