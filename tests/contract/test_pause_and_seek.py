"""Pause, resume and seek of a partition in a program: librdkafka's mock cluster, and Kafka."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from marshal_py import AsyncConsumer, Claim
from marshal_py.consumer.options import Mode
from marshal_py.errors import InvalidArgument, NotHeld
from marshal_py.testing import TestBroker
from tests.support.consumers import until


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_loop_gets_nothing_of_what_it_paused_until_it_resumes(
    broker: TestBroker, topic: str, group: str, mode: Mode
) -> None:
    broker.send(topic, *map(str, range(50)), partition=0)
    broker.send(topic, *map(str, range(3)), partition=1)
    got: list[tuple[int, int]] = []
    with broker.consumer(topic, group_id=group, mode=mode, batch_size=10) as consumer:
        for message in consumer.messages(idle_timeout_s=5):
            got.append((message.partition() or 0, message.offset() or 0))
            time.sleep(0.005)  # work: what is claimed ahead is little
            if got[-1] == (0, 4):
                consumer.pause(topic, 0)
                assert consumer.paused() == [(topic, 0)]
                break
        while len([offset for p, offset in got if p == 1]) < 3:
            other = consumer.poll(30)
            assert other is not None, "the other one's come all the same"
            got.append((other.partition() or 0, other.offset() or 0))
        for message in consumer.messages(idle_timeout_s=0.7):
            got.append((message.partition() or 0, message.offset() or 0))
        before = [offset for p, offset in got if p == 0]
        if mode == "at_least_once":
            assert sorted(set(before)) == list(range(5))
        else:
            assert before == list(range(len(before)))
            assert len(before) < 50
        assert {offset for p, offset in got if p == 1} == {0, 1, 2}
        consumer.resume(topic, 0)
        for message in consumer.messages(idle_timeout_s=5):
            got.append((message.partition() or 0, message.offset() or 0))
            if got[-1] == (0, 49):
                break
    assert list(dict.fromkeys(offset for p, offset in got if p == 0)) == list(range(50))
    if mode == "at_most_once":
        assert len(got) == len(set(got)) == 53


def test_handlers_get_nothing_of_what_is_paused_and_it_is_given_back_all_the_same(
    broker: TestBroker,
    topic: str,
    group: str,
) -> None:
    broker.send(topic, *map(str, range(20)), partition=0)
    got: list[int] = []
    paused = threading.Event()
    consumer = broker.consumer(topic, group_id=group)

    def handle(message: Any) -> None:
        got.append(message.offset())
        if message.offset() == 3:
            consumer.pause(topic, 0)
            paused.set()

    thread = threading.Thread(
        target=consumer.run,
        args=(handle,),
        kwargs={"workers": 1, "ordering": "partition"},
        daemon=True,
    )
    thread.start()
    assert paused.wait(10)
    broker.send(topic, "later", partition=1)
    until(lambda: got == [0, 1, 2, 3, 0])
    consumer.resume(topic, 0)
    until(lambda: len(got) == 21)
    consumer.pause(topic, 0)
    broker.send(topic, "never", partition=0)
    consumer.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert len(got) == 21


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_loop_goes_back_and_forth(broker: TestBroker, topic: str, group: str, mode: Mode) -> None:
    broker.send(topic, *map(str, range(10)), partition=0)
    got: list[int] = []
    epochs: list[int] = []
    with broker.consumer(topic, group_id=group, mode=mode, on_assigned=lambda _: None) as consumer:
        for message in consumer.messages(idle_timeout_s=10):
            got.append(message.offset() or 0)
            epochs.append(consumer.claim_of(message).epoch)
            if len(got) == 3:
                consumer.seek(topic, 0, 1)
            if len(got) == 6:
                consumer.seek(topic, 0, 8)
            if got[-1] == 9:
                break
        assert got == [0, 1, 2, 1, 2, 3, 8, 9]
        assert epochs[0] == epochs[2] < epochs[3] == epochs[5] < epochs[6]
        consumer.commit()
    with broker.consumer(topic, group_id=group, mode=mode) as again:
        message_or_none = again.poll(2.0)
        # It was in hand when the loop was left: at least once, it comes again.
        assert [m.offset() for m in [message_or_none] if m] == [9] * (mode == "at_least_once")


def test_who_seeks_is_not_warned_of_a_lost_claim(
    broker: TestBroker, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.send(topic, "a", "b", partition=0)
    with broker.consumer(topic, group_id=group) as consumer:
        assert consumer.poll(10) is not None
        with caplog.at_level(logging.INFO, "marshal_py"):
            consumer.seek(topic, 0, 1)
    told = [r for r in caplog.records if "position was set" in r.getMessage()]
    assert [r.levelno for r in told] == [logging.INFO]


def test_what_is_done_above_a_gap_comes_again_after_a_seek(
    broker: TestBroker, topic: str, group: str
) -> None:
    broker.send(topic, *map(str, range(6)), partition=0)
    got: list[int] = []
    with broker.consumer(topic, group_id=group, auto_ack=False, interval_ms=100) as consumer:
        for message in consumer.messages(idle_timeout_s=5):
            got.append(message.offset() or 0)
            if len(got) <= 6 and message.offset() != 1:
                consumer.ack(message)
            if len(got) == 6:
                until(lambda: bool(consumer.marshal.cell(topic, 0).metadata))  # type: ignore[union-attr]
                consumer.seek(topic, 0, 0)
            if len(got) == 12:
                break
    assert got == [*range(6)] * 2


def test_on_assigned_may_say_where_to_begin(broker: TestBroker, topic: str, group: str) -> None:
    broker.send(topic, *map(str, range(5)), partition=0)
    got: list[int] = []

    def assigned(claim: Claim) -> None:
        if claim.partition == 0:
            consumer.seek(topic, 0, 3)

    consumer = broker.consumer(topic, group_id=group, on_assigned=assigned)
    broker.run(lambda message: got.append(message.offset()), consumer)
    assert got == [3, 4]


def test_to_begin_where_it_is_leaves_out_nothing_that_was_done_above(
    broker: TestBroker, topic: str, group: str
) -> None:
    broker.send(topic, *map(str, range(4)), partition=0)
    with broker.consumer(topic, group_id=group, auto_ack=False) as consumer:
        for message in consumer.messages(idle_timeout_s=10):
            if message.offset() in (0, 2):
                consumer.ack(message)
            if message.offset() == 3:
                break
    got: list[int] = []
    came: list[int] = []

    def assigned(claim: Claim) -> None:
        if claim.partition == 0:
            came.append(claim.position)
            again.seek(topic, 0, 1)

    again = broker.consumer(topic, group_id=group, on_assigned=assigned)
    broker.run(lambda message: got.append(message.offset()), again)
    assert got == [1, 2, 3]
    assert came == [1, 1], "it is assigned again, once"


def test_coroutines_pause_and_seek(broker: TestBroker, topic: str, group: str) -> None:
    broker.send(topic, *map(str, range(3)), partition=0)
    got: list[int] = []

    async def main() -> None:
        async with AsyncConsumer(
            broker.config, group_id=group, topics=topic, settle_ms=0
        ) as consumer:
            async for message in consumer.messages(idle_timeout_s=5):
                got.append(message.offset() or 0)
                if len(got) == 2:
                    await consumer.seek(topic, 0, 0)
                if len(got) == 5:
                    consumer.pause(topic, 0)
                    assert consumer.paused() == [(topic, 0)]
                    consumer.resume(topic, 0)
                    return

    asyncio.run(main())
    assert got == [0, 1, 0, 1, 2]


def test_what_is_not_held_is_refused(broker: TestBroker, topic: str, group: str) -> None:
    broker.send(topic, "1", partition=0)
    with broker.consumer(topic, group_id=group) as consumer:
        assert consumer.poll(5) is not None
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(NotHeld, match=f"{topic}/9 is not held"):
                call(topic, 9)
        with pytest.raises(NotHeld):
            consumer.seek(topic, 9, 1)
        with pytest.raises(InvalidArgument, match="offset = -1"):
            consumer.seek(topic, 0, -1)
