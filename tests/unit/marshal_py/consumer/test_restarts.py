"""A process that is restarted over and over gets on, however short each of its lives is.

So does one whose start failed; and one whose client was closed is told.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.consumer.consumer import Consumer, core_of
from marshal_py.consumer.leader_epochs import LeaderEpochs
from marshal_py.errors import Closed, TopicMissing
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.testing import TestBroker
from tests.support.consumers import until


def is_stored(marshal: Marshal, position: int) -> bool:
    cell = marshal.cell("orders", 0)
    return cell is not None and cell.position >= position


def test_positions_of_who_resumes_are_stored_before_an_interval_is_over(
    mock_kafka: TestBroker,
) -> None:
    """As when two processes with one client_id take all from each other, and are restarted."""
    mock_kafka.send("orders", *map(str, range(10)), partition=0)
    began_at = 0
    for life in range(3):
        with mock_kafka.consumer("orders", client_id="same", interval_ms=600_000) as consumer:
            first = consumer.poll(30)
            assert first is not None
            assert first.offset() == began_at
            assert consumer.poll(30) is not None
            if life == 0:
                consumer.commit()
            began_at += 1  # the second one is in hand
            until(partial(is_stored, consumer.marshal, began_at))
            driver_of(consumer.marshal).abandon()


def test_what_was_polled_is_in_hand_until_the_next_poll(mock_kafka: TestBroker) -> None:
    """So its partition is not handed over, not even between the poll and the work."""
    mock_kafka.send("orders", "1", "2", partition=0)
    with mock_kafka.consumer("orders", group_id="g") as consumer:
        core = core_of(consumer)
        leave, seen = core.iteration.leave, []

        def leave_and_look(**how: bool) -> None:
            leave(**how)
            seen.append(core.iteration.is_looping)

        core.iteration.leave = leave_and_look  # type: ignore[method-assign]
        for _ in range(2):
            message = consumer.poll(30)
            assert message is not None
            part = core.shared.part_of(message)
            assert part is not None
            assert core.busy_with(part)
        assert all(seen)
        assert consumer.poll(0.01) is None
        assert part is not None
        assert not core.busy_with(part)


@pytest.mark.parametrize("own", [True, False])
def test_a_start_that_failed_may_be_tried_again(mock_kafka: TestBroker, own: bool) -> None:
    mock_kafka.send("orders", "1")
    client = Marshal(mock_kafka.config, group_id="g", topic="missing", close_on_sigterm=False)
    consumer = (
        Consumer(client, topics="orders")
        if own
        else Consumer(
            mock_kafka.config,
            group_id="g",
            topics="orders",
            topic="missing",
            close_on_sigterm=False,
        )
    )
    with pytest.raises(TopicMissing):
        consumer.start()
    for topic in ("missing", "missing.snapshots"):
        mock_kafka.create_topic(topic)
    with consumer:
        message = next(consumer.messages(idle_timeout_s=60), None)
    assert message is not None
    assert message.value() == b"1"


def test_a_start_that_came_too_far_to_be_tried_again_says_so(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", "1")
    consumer = mock_kafka.consumer("orders", dead_letter_topic="missing")
    with pytest.raises(TopicMissing):
        consumer.start()
    mock_kafka.create_topic("missing")
    with pytest.raises(Closed):
        consumer.start()


@pytest.mark.parametrize("how", ["loops", "runs"])
def test_who_consumes_hears_that_the_client_was_closed(mock_kafka: TestBroker, how: str) -> None:
    mock_kafka.send("orders", "1")
    client = Marshal(mock_kafka.config, group_id="g", close_on_sigterm=False)
    consumer = Consumer(client, topics="orders")
    threads: list[threading.Thread] = []

    def close(_: object = None) -> None:
        threads.append(threading.Thread(target=client.close))
        threads[0].start()

    def consume() -> None:
        if how == "runs":
            consumer.run(close)
        else:
            for message in consumer.messages(idle_timeout_s=20):
                close(message)

    with pytest.raises(Closed), consumer:
        consume()
    threads[0].join()
    assert not consumer.health().ok
    looking = core_of(consumer).topics._thread
    looking.join(60)
    assert not looking.is_alive(), "nobody needs to know of topics any more"


def test_a_client_that_was_connected_before_its_topics_were_missing_may_be_started_again(
    mock_kafka: TestBroker,
) -> None:
    client = Marshal(mock_kafka.config, group_id="g", close_on_sigterm=False)
    consumer = Consumer(client, topics="orders")
    with pytest.raises(TopicMissing, match="orders"):
        consumer.start()
    mock_kafka.send("orders", "1")
    with consumer:
        message = next(consumer.messages(idle_timeout_s=60), None)
    assert message is not None


def test_whose_consumer_is_closed_wants_nothing_any_more_though_its_client_goes_on(
    mock_kafka: TestBroker,
) -> None:
    """Its share would lie idle, for as long as the client lives."""
    mock_kafka.send("orders", "1")
    with Marshal(
        mock_kafka.config, group_id="g", client_id="me", interval_ms=500, close_on_sigterm=False
    ) as client:
        with Consumer(client, topics="orders", settle_ms=0) as consumer:
            until(lambda: len(consumer.claims()) == 4)
        assert client.claims() == []
        driver: Any = driver_of(client)
        assert driver.watchers == driver.restarted == driver.before_heartbeat == []
        with mock_kafka.consumer("orders", group_id="g", client_id="other") as other:
            until(lambda: len(other.claims()) == 4, 30)


def test_the_leader_epoch_that_a_consumer_tells_stays_beside_the_position_that_it_stores(
    mock_kafka: TestBroker,
) -> None:
    """A program's own claims tell none: what they store is no position of Kafka's, perhaps."""
    mock_kafka.send("orders", "1", "2", partition=0)
    with mock_kafka.consumer("orders", auto_ack=False, interval_ms=60_000) as consumer:
        message = consumer.poll(20)
        assert message is not None
        part = core_of(consumer).shared.part_of(message)
        assert part is not None
        part.epochs = LeaderEpochs()
        part.epochs.note(5, 0)  # the mock cluster tells none
        consumer.ack(message)
    with Marshal(mock_kafka.config, group_id="test", close_on_sigterm=False) as marshal:
        cell = marshal.cell("orders", 0)
    assert cell is not None
    assert cell.position == 1
    assert ClaimMetadata.decode(cell.metadata).leader_epoch == 5
