"""Several members on one partition, by keys and by ranges: on the mock cluster, and on Kafka."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Message

from marshal_py import AcknowledgeType, Consumer
from marshal_py.client.marshal import driver_of
from marshal_py.testing import TestBroker
from tests.support.consumers import Loop
from tests.support.messages import offset_of

Make = Callable[..., Consumer]

WAIT_S = 60


@pytest.fixture
def make(broker: TestBroker, topic: str, group: str) -> Iterator[Make]:
    made: list[Consumer] = []

    def make(name: str, sharing: str, **settings: Any) -> Consumer:
        made.append(
            broker.consumer(topic, group_id=group, client_id=name, sharing=sharing, **settings)
        )
        return made[-1]

    yield make
    for consumer in made:
        consumer.close(timeout_s=2)


class Ledger:
    """Who handled what, in order."""

    def __init__(self) -> None:
        self.handled: list[tuple[int, str, bytes | None]] = []
        self._changed = threading.Condition()

    def note(self, message: Message, who: str) -> None:
        with self._changed:
            self.handled.append((offset_of(message), who, message.key()))
            self._changed.notify_all()

    @property
    def times(self) -> Counter[int]:
        return Counter(offset for offset, _, _ in self.handled)

    def wait(self, count: int, *, but: int = -1) -> None:
        """Wait until so many different messages were handled, without that of an offset."""

        def is_enough() -> bool:
            return len(self.times.keys() - {but}) >= count

        with self._changed:
            assert self._changed.wait_for(is_enough, WAIT_S), self.handled


def send(broker: TestBroker, topic: str, count: int, start: int = 0) -> None:
    """Send so many messages to partition 0, of 20 keys in turn; a value is the message's offset."""
    for n in range(start, start + count):
        broker.send(topic, str(n), key=f"k{n % 20}", partition=0)


@pytest.mark.parametrize("sharing", ["keys", "ranges"])
def test_members_work_on_one_partition_at_a_time(
    broker: TestBroker, topic: str, make: Make, sharing: str
) -> None:
    ledger, both = Ledger(), threading.Barrier(2)
    met: set[str] = set()

    def handle(message: Message, who: str) -> None:
        if who not in met:
            met.add(who)
            both.wait(WAIT_S)  # each has one in hand while the other has
        ledger.note(message, who)

    loops = [Loop(make(name, sharing), lambda m, who=name: handle(m, who)) for name in "ab"]  # type: ignore[misc]
    send(broker, topic, 60)
    ledger.wait(60)
    for loop in loops:
        loop.close()
        assert loop.error is None
    assert ledger.times == Counter(range(60))


@pytest.mark.parametrize("sharing", ["keys", "ranges"])
def test_who_joins_does_not_wait_for_the_handler_of_another(
    broker: TestBroker, topic: str, make: Make, sharing: str
) -> None:
    ledger, is_in_hand, has_joined = Ledger(), threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if not is_in_hand.is_set():
            is_in_hand.set()
            assert has_joined.wait(WAIT_S)
        ledger.note(message, "first")

    def handle_too(message: Message) -> None:
        ledger.note(message, "second")
        has_joined.set()

    loops = [Loop(make("first", sharing), handle)]
    send(broker, topic, 60)
    assert is_in_hand.wait(WAIT_S)
    loops.append(Loop(make("second", sharing), handle_too))
    ledger.wait(60)
    for loop in loops:
        loop.close()
        assert loop.error is None
    assert has_joined.is_set()


def test_by_keys_each_key_stays_in_order_when_members_come_and_go(
    broker: TestBroker, topic: str, make: Make
) -> None:
    ledger = Ledger()
    first = Loop(make("a", "keys"), lambda m: ledger.note(m, "a"))
    send(broker, topic, 100)
    ledger.wait(40)
    second = Loop(make("b", "keys"), lambda m: ledger.note(m, "b"))
    ledger.wait(100)
    send(broker, topic, 100, start=100)
    first.close()
    ledger.wait(200)
    second.close()
    for key in {key for _, _, key in ledger.handled}:
        offsets = [offset for offset, _, each in ledger.handled if each == key]
        assert list(dict.fromkeys(offsets)) == sorted(set(offsets))


def test_by_ranges_a_slow_message_holds_up_no_other(
    broker: TestBroker, topic: str, make: Make
) -> None:
    ledger, is_in_hand, others_done = Ledger(), threading.Event(), threading.Event()

    def handle(message: Message, who: str) -> None:
        # Once: a lease that lapses gives it to the other one, who would wait for itself.
        if message.offset() == 0 and not is_in_hand.is_set():
            is_in_hand.set()
            assert others_done.wait(WAIT_S)
        ledger.note(message, who)

    loops = [Loop(make(name, "ranges"), lambda m, who=name: handle(m, who)) for name in "ab"]  # type: ignore[misc]
    send(broker, topic, 40)
    ledger.wait(39, but=0)
    assert 0 not in ledger.times
    others_done.set()
    ledger.wait(40)
    for loop in loops:
        loop.close()
        assert loop.error is None
    assert ledger.times == Counter(range(40))


def test_by_ranges_what_a_dead_member_had_comes_again_elsewhere(
    broker: TestBroker, topic: str, make: Make
) -> None:
    ledger, is_in_hand, is_over = Ledger(), threading.Event(), threading.Event()

    def hang(_: Message) -> None:
        is_in_hand.set()
        assert is_over.wait(WAIT_S)

    send(broker, topic, 40)
    dying = Loop(make("dying", "ranges"), hang)
    assert is_in_hand.wait(WAIT_S)
    driver_of(dying.consumer.marshal).abandon()
    heir = Loop(make("heir", "ranges"), lambda m: ledger.note(m, "heir"))
    ledger.wait(40)
    heir.close()
    is_over.set()
    assert ledger.times == Counter(range(40))


def test_by_ranges_a_released_message_alone_comes_again(
    broker: TestBroker, topic: str, make: Make
) -> None:
    send(broker, topic, 10)
    consumer = make("a", "ranges", auto_ack=False)
    counts: list[tuple[int, int]] = []
    for message in islice(consumer.messages(idle_timeout_s=WAIT_S), 11):
        counts.append((offset_of(message), consumer.delivery_count(message)))
        is_first = counts[-1] == (4, 1)
        kind = AcknowledgeType.RELEASE if is_first else AcknowledgeType.ACCEPT
        consumer.acknowledge(message, kind)
    assert sorted(counts) == sorted([*((offset, 1) for offset in range(10)), (4, 2)])
    consumer.close()
    assert list(make("b", "ranges").messages(idle_timeout_s=0.5)) == []


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("sharing", ["keys", "ranges"])
def test_handlers_get_each_message_once(
    broker: TestBroker, topic: str, make: Make, sharing: str, mode: str
) -> None:
    send(broker, topic, 30)
    ledger = Ledger()
    stats = broker.run(
        lambda message: ledger.note(message, "a"),
        make("a", sharing, mode=mode),
        timeout_s=WAIT_S,
        workers=3,
    )
    assert stats.handled == 30
    assert ledger.times == Counter(range(30))
