"""A partition goes and comes back while messages of it are in the program's hands: two claims."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from marshal_py import AcknowledgeType, Consumer
from marshal_py.errors import NotHeld
from marshal_py.testing import TestBroker
from tests.support.consumers import until


def take(consumer: Consumer, count: int) -> list[Any]:
    """Take so many messages, and leave the loop."""
    found: list[Any] = []
    for message in consumer.messages(idle_timeout_s=10):
        found.append(message)
        if len(found) == count:
            break
    return found


def seek(consumer: Consumer, message: Any) -> None:
    """End the claim of a message, and wait for the next one."""
    before = consumer.claim_of(message)
    consumer.seek("orders", 0, 0)
    name = before.topic, before.partition
    until(lambda: name in [(c.topic, c.partition) for c in consumer.claims() if c is not before])


@pytest.mark.parametrize("sharing", ["partitions", "keys"])
def test_what_was_handed_out_under_an_earlier_claim_is_none_of_the_later_ones(
    mock_kafka: TestBroker, sharing: Any
) -> None:
    """Its work counts for nothing: the claim that it asks for would fence nobody."""
    mock_kafka.send("orders", *"abc", key="k", partition=0)
    with mock_kafka.consumer("orders", auto_ack=False, sharing=sharing, slots=1) as consumer:
        before = take(consumer, 3)
        epoch = consumer.claim_of(before[0]).epoch
        seek(consumer, before[0])
        for message in before[:2]:  # before the later claim has handed them out again, and after
            consumer.ack(message)
        again = take(consumer, 2)
        assert [message.offset() for message in again] == [0, 1]
        consumer.ack(before[2])
        for message in before:
            with pytest.raises(NotHeld):
                consumer.claim_of(message)
            with pytest.raises(NotHeld):
                consumer.acknowledge(message, AcknowledgeType.RENEW)
        (about,) = [each for each in consumer.assignment() if each.partition == 0]
        assert (about.position, about.done_above) == (0, 0)
        assert consumer.claim_of(again[0]).epoch > epoch
        for message in again:
            consumer.acknowledge(message, AcknowledgeType.RENEW)
            consumer.ack(message)
        (about,) = [each for each in consumer.assignment() if each.partition == 0]
        assert (about.position, about.done_above) == (2, 0)


def test_an_acknowledgement_of_an_earlier_claim_leaves_nothing_out_of_a_loop(
    mock_kafka: TestBroker,
) -> None:
    mock_kafka.send("orders", *"abc", partition=0)
    with mock_kafka.consumer("orders") as consumer:
        (before,) = take(consumer, 1)
        seek(consumer, before)
        late = threading.Thread(target=consumer.ack, args=(before,))
        late.start()
        late.join()
        assert [message.offset() for message in take(consumer, 3)] == [0, 1, 2]
