"""Members that share a partition by ranges of its messages, against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from confluent_kafka import Message, TopicPartition

from marshal_py import (
    AcknowledgeType,
    AsyncConsumer,
    Batch,
    DeliveriesExhausted,
    Failure,
    MarshalError,
    SharingDiffers,
    TopicMissing,
)
from marshal_py.admin.positions import committed_offsets
from marshal_py.client.marshal import driver_of
from marshal_py.client.topics import admin_client
from marshal_py.consumer.consumer import Consumer
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import (
    INTERVAL_MS,
    Loop,
    Make,
    consumers,
    fill,
    new_coordination_topic,
    read_messages,
    until,
)
from tests.support.messages import offset_of

pytestmark = pytest.mark.kafka


@pytest.fixture
def coordination(kafka: EmbeddedKafka) -> str:
    return new_coordination_topic(kafka)


@pytest.fixture
def topic(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> str:
    return kafka_topic(partitions=1)


@pytest.fixture
def make(kafka: EmbeddedKafka, coordination: str, topic: str) -> Iterator[Make]:
    with consumers(kafka, topic=coordination, topics=topic, sharing="ranges") as make:
        yield make


class Ledger:
    """How often each message was handled, and by whom."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.by: dict[int, str] = {}
        self._changed = threading.Condition()

    def take(self, message: Message, who: str) -> None:
        offset = message.offset()
        assert offset is not None
        with self._changed:
            self.times[offset] += 1
            self.by[offset] = who
            self._changed.notify_all()

    def wait(self, count: int, timeout_s: float = 60) -> None:
        """Wait until so many different messages were handled."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.times) >= count, timeout_s), (
                f"{len(self.times)} of {count}"
            )

    def check(self, count: int) -> None:
        """Each came once."""
        assert self.times == Counter(range(count))


def positions(consumer: Consumer, topic: str) -> tuple[int, list[int]]:
    """The frontier, and the positions of the open ranges."""
    with consumer.marshal.world() as world:
        group = world.group("g")
        assert group is not None
        found = [group.cells[each.cell].position for each in group.open_ranges.of((topic, 0))]
        return group.cells[topic, 0].position, found


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_members_come_and_go_and_each_message_is_handled_once(
    kafka: EmbeddedKafka, make: Make, topic: str, mode: str
) -> None:
    ledger = Ledger()
    loops: list[Loop] = []
    count = 0
    for name in "abc":
        fill(kafka.bootstrap_servers, topic, 700, partitions=1, start=count)
        count += 700
        loops.append(Loop(make(name, mode=mode), lambda m, who=name: ledger.take(m, who)))  # type: ignore[misc]
        ledger.wait(count)
    fill(kafka.bootstrap_servers, topic, 700, partitions=1, start=count)
    loops[1].close()
    ledger.wait(count + 700)
    for loop in loops:
        loop.close()
        assert loop.error is None
    ledger.check(count + 700)
    last = make("last", mode=mode)
    assert list(last.messages(idle_timeout_s=0.5)) == []


def test_a_message_that_takes_long_holds_up_no_other_while_somebody_is_idle(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    ledger, others_done = Ledger(), threading.Event()

    def handle(message: Message, who: str) -> None:
        if message.offset() == 0:
            assert others_done.wait(60)
        ledger.take(message, who)

    loops = [
        Loop(make(name), lambda m, who=name: handle(m, who))  # type: ignore[misc]
        for name in "ab"
    ]
    until(lambda: len({c.topic for loop in loops for c in loop.consumer.claims()}) == 2)
    fill(kafka.bootstrap_servers, topic, 50, partitions=1)
    ledger.wait(49)
    assert 0 not in ledger.times
    others_done.set()
    ledger.wait(50)
    for loop in loops:
        loop.close()
        assert loop.error is None
    ledger.check(50)


def test_so_it_is_with_handlers(kafka: EmbeddedKafka, make: Make, topic: str) -> None:
    ledger, others_done = Ledger(), threading.Event()

    def handle(message: Message, who: str) -> None:
        if message.offset() in (0, 1):
            assert others_done.wait(60)
        ledger.take(message, who)

    consumers = {name: make(name) for name in "ab"}
    threads = [
        threading.Thread(
            target=consumer.run, args=(lambda m, who=name: handle(m, who),), kwargs={"workers": 2}
        )
        for name, consumer in consumers.items()
    ]
    for thread in threads:
        thread.start()
    until(lambda: len({c.topic for each in consumers.values() for c in each.claims()}) == 2)
    fill(kafka.bootstrap_servers, topic, 300, partitions=1)
    ledger.wait(298)
    others_done.set()
    ledger.wait(300)
    for consumer in consumers.values():
        consumer.stop()
    for thread in threads:
        thread.join(60)
    ledger.check(300)


def test_what_a_dead_member_had_begun_comes_again_elsewhere(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    ledger, is_in_hand, is_over = Ledger(), threading.Event(), threading.Event()

    def hang(message: Message) -> None:
        is_in_hand.set()
        assert is_over.wait(60)

    fill(kafka.bootstrap_servers, topic, 40, partitions=1)
    dying = Loop(make("dying"), hang)
    assert is_in_hand.wait(60)
    driver_of(dying.consumer.marshal).abandon()
    heir = Loop(make("heir"), lambda m: ledger.take(m, "heir"))
    ledger.wait(40)
    heir.close()
    is_over.set()
    ledger.check(40)


def test_batches_asyncio_and_positions_for_others_tools(
    kafka: EmbeddedKafka, make: Make, coordination: str, topic: str
) -> None:
    ledger = Ledger()
    consumer = make("a", mirror_offsets=True, batch_size=7)
    fill(kafka.bootstrap_servers, topic, 200, partitions=1)
    for batch in consumer.batches(idle_timeout_s=60):
        assert isinstance(batch, Batch)
        assert (batch.topic, batch.partition) == (topic, 0)
        assert 0 < len(batch) <= 7
        for message in batch:
            assert consumer.claim_of(message).epoch == batch.claim.epoch
            ledger.take(message, "a")
        if len(ledger.times) == 200:
            break
    assert consumer.lag()[topic, 0] <= 7
    consumer.close()
    admin = admin_client({"bootstrap.servers": kafka.bootstrap_servers})
    assert set(committed_offsets(admin, "g", 10.0)) == {(topic, 0)}

    async def beside() -> None:
        async with AsyncConsumer(
            kafka.bootstrap_servers,
            group_id="g",
            client_id="b",
            topic=coordination,
            topics=topic,
            interval_ms=INTERVAL_MS,
            sharing="ranges",
        ) as other:
            await asyncio.to_thread(
                fill, kafka.bootstrap_servers, topic, 100, partitions=1, start=200
            )
            async for message in other.messages(idle_timeout_s=60):
                ledger.take(message, "b")
                if len(ledger.times) == 300:
                    break

    asyncio.run(beside())
    assert len(ledger.times) == 300


def test_acknowledged_one_by_one_in_any_order(kafka: EmbeddedKafka, make: Make, topic: str) -> None:
    fill(kafka.bootstrap_servers, topic, 30, partitions=1)
    consumer = make("a", auto_ack=False)
    got = list(itertools.islice(consumer.messages(idle_timeout_s=60), 30))
    for message in reversed(got[1:]):
        consumer.ack(message)
    consumer.close(timeout_s=0.1)
    again = make("b")
    assert [m.offset() for m in again.messages(idle_timeout_s=1)] == [0]


def test_a_released_message_alone_comes_again_and_is_counted(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 40, partitions=1)
    consumer = make("a", auto_ack=False)
    times: Counter[int] = Counter()
    counts: dict[int, list[int]] = {4: [], 6: [], 9: []}
    for message in consumer.messages(idle_timeout_s=60):
        offset = offset_of(message)
        times[offset] += 1
        if offset in counts:
            consumer.acknowledge(message, AcknowledgeType.RENEW)
            counts[offset].append(consumer.delivery_count(message))
        if offset in counts and times[offset] < 4:
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
        else:
            consumer.acknowledge(message)
        if len(times) == 40 and all(times[each] == 4 for each in counts):
            break
    assert times == Counter(dict.fromkeys(range(40), 1) | dict.fromkeys(counts, 4))
    assert counts == {4: [1, 2, 3, 4], 6: [1, 2, 3, 4], 9: [1, 2, 3, 4]}
    consumer.close()
    assert list(make("b").messages(idle_timeout_s=0.5)) == []


def test_what_another_member_takes_up_of_it_is_the_released_message(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    consumer = make("a", auto_ack=False)
    got = list(itertools.islice(consumer.messages(idle_timeout_s=60), 10))
    for message in got:
        is_third = message.offset() == 3
        kind = AcknowledgeType.RELEASE if is_third else AcknowledgeType.ACCEPT
        consumer.acknowledge(message, kind, delay_s=600)
    consumer.close()  # before the delay is over
    other = make("b", auto_ack=False)
    (again,) = itertools.islice(other.messages(idle_timeout_s=60), 1)
    assert (again.offset(), other.delivery_count(again)) == (3, 2)
    other.ack(again)
    assert list(other.messages(idle_timeout_s=0.5)) == []


def test_a_rejected_message_is_a_dead_letter_as_it_came(
    kafka: EmbeddedKafka, make: Make, topic: str, kafka_topic: Callable[..., str]
) -> None:
    letters = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    consumer = make(
        "a",
        auto_ack=False,
        dead_letter_topic=letters,
        value_deserializer=lambda value, _: int(value),
    )
    got = list(itertools.islice(consumer.messages(idle_timeout_s=60), 10))
    values: list[Any] = [message.value() for message in got]
    assert values == list(range(10))
    for message in got:
        if message.offset() == 7:
            consumer.acknowledge(message, AcknowledgeType.REJECT, reason="no such customer")
        else:
            consumer.ack(message)
    consumer.close()
    assert list(make("b").messages(idle_timeout_s=0.5)) == []
    (letter,) = read_messages(kafka, letters, 1)
    headers = dict(letter.headers() or ())
    assert (letter.key(), letter.value()) == (b"0", b"7")
    assert headers["dlq-offset"] == b"7"
    assert headers["dlq-attempts"] == b"1"
    assert headers["dlq-error-class"] == b"marshal_py.errors.MessageRejected"
    assert headers["dlq-error-message"] == b"no such customer"


def test_what_is_rejected_needs_its_topic_from_the_start(make: Make, topic: str) -> None:
    with pytest.raises(TopicMissing, match=f"{topic}.dlq"):
        make("a", auto_ack=False, dead_letter_topic="{topic}.dlq").start()


def test_a_message_that_kills_who_handles_it_is_found_and_given_up(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    ledger, is_over = Ledger(), threading.Event()
    deaths: list[str] = []
    threads: list[threading.Thread] = []
    given_up: list[Failure] = []

    def start(name: str) -> None:
        consumer = make(name, max_deliveries=2)

        def handle(message: Message) -> None:
            if message.offset() == 3:
                deaths.append(name)
                driver_of(consumer.marshal).abandon()
                died.release()
                assert is_over.wait(60)
                return
            ledger.take(message, name)

        def on_failure(failure: Failure) -> Literal["skip"]:
            given_up.append(failure)
            died.release()
            return "skip"

        def work() -> None:
            with contextlib.suppress(MarshalError):  # it is abandoned
                consumer.run(handle, workers=1, on_failure=on_failure)

        threads.append(threading.Thread(target=work))
        threads[-1].start()

    died = threading.Semaphore(0)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    for name in "abcde":
        start(name)
        assert died.acquire(timeout=60)
        if given_up:
            break
    ledger.wait(9)
    is_over.set()
    (failure,) = given_up
    assert isinstance(failure.error, DeliveriesExhausted)
    assert failure.message.offset() == 3
    assert len(deaths) == 2
    assert set(ledger.times) == {*range(10)} - {3}


def test_a_paused_partition_is_left_to_others(kafka: EmbeddedKafka, make: Make, topic: str) -> None:
    ledger = Ledger()
    loops = [
        Loop(make(name), lambda m, who=name: ledger.take(m, who))  # type: ignore[misc]
        for name in "ab"
    ]
    until(lambda: all(loop.consumer.claims() for loop in loops))
    loops[0].consumer.pause(topic, 0)
    assert loops[0].consumer.paused() == [(topic, 0)]
    until(lambda: not loops[0].consumer.claims())
    fill(kafka.bootstrap_servers, topic, 50, partitions=1)
    ledger.wait(50)
    assert set(ledger.by.values()) == {"b"}
    loops[0].consumer.resume(topic, 0)
    until(lambda: bool(loops[0].consumer.claims()))
    for loop in loops:
        loop.close()
    ledger.check(50)


def test_members_that_disagree_are_told(kafka: EmbeddedKafka, make: Make, topic: str) -> None:
    ledger = Ledger()
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    loop = Loop(make("a"), lambda m: ledger.take(m, "a"))
    ledger.wait(10)
    for arguments in ({"sharing": "partitions"}, {"sharing": "keys"}):
        other = make("other", **arguments)
        with pytest.raises(SharingDiffers, match="sharing='ranges'"):
            next(other.messages(idle_timeout_s=60))
        other.close()
    loop.close()


def test_who_comes_to_a_group_that_shares_by_partitions_is_told(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    loop = Loop(make("a", sharing="partitions"))
    until(lambda: len(loop.got) == 10)
    other = make("other")
    with pytest.raises(SharingDiffers, match="sharing='partitions'"):
        next(other.messages(idle_timeout_s=60))
    loop.close()
    after = make("after")
    fill(kafka.bootstrap_servers, topic, 10, partitions=1, start=10)
    got = [m.offset() for m in itertools.islice(after.messages(idle_timeout_s=60), 10)]
    assert got == list(range(10, 20))  # where the partition stood


def test_what_kafka_has_deleted_is_passed_over(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 100, partitions=1)
    first = make("a")
    assert len(list(itertools.islice(first.messages(idle_timeout_s=60), 5))) == 5
    first.close()
    admin = admin_client({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 60)]).values():
        future.result()
    after = make("b")
    got = [m.offset() for m in itertools.islice(after.messages(idle_timeout_s=60), 40)]
    assert got == list(range(60, 100))


def test_a_topic_that_was_made_anew_is_consumed_from_its_first_message(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 100, partitions=1)
    ledger, anew = Ledger(), Ledger()
    loop = Loop(make("a", discovery_interval_s=0.2), lambda m: ledger.take(m, "a"))
    ledger.wait(100)
    loop.close()
    admin = admin_client({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    until(lambda: topic not in admin.list_topics(timeout=10).topics)
    kafka.create_topic(topic, partitions=1)
    fill(kafka.bootstrap_servers, topic, 30, partitions=1)
    loop = Loop(make("b", discovery_interval_s=0.2), lambda m: anew.take(m, "b"))
    anew.wait(30)
    loop.close()
    anew.check(30)
