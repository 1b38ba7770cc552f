"""What `close` leaves behind when it is interrupted, or interrupts `start`."""

from __future__ import annotations

import math
import threading
from typing import Any
from unittest import mock

import pytest

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.consumer.consumer import Consumer, core_of
from marshal_py.errors import AccessDenied, BrokerUnavailable, Closed, TopicMissing
from marshal_py.testing import TestBroker
from tests.support.consumers import until


def test_who_interrupts_close_holds_nothing_for_ever(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook, say, which lives on: a second `close` has nothing to do."""
    mock_kafka.send("orders", "a", partition=0)
    consumer = mock_kafka.consumer("orders", auto_ack=False)
    assert consumer.start().poll(20) is not None

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer._core.assignment._settled, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    consumer.close()
    assert not driver_of(consumer.marshal).running
    until(lambda: not consumer._core.assignment.is_alive, 20)
    with mock_kafka.consumer("orders", client_id="next") as other:
        assert other.poll(20) is not None


def test_who_waits_without_end_for_what_is_in_hand_closes_and_releases(
    mock_kafka: TestBroker,
) -> None:
    """Threads can be told of no such time: `close` raised, and waited for nothing."""
    mock_kafka.send("orders", "a", partition=0)
    with mock_kafka.consumer("orders", auto_ack=False) as consumer:
        message = consumer.poll(20)
        assert message is not None
        consumer.commit(math.inf)
        closing = threading.Thread(target=consumer.close, args=[math.inf])
        closing.start()
        until(lambda: consumer.closing, 20)
        consumer.ack(message)
        closing.join(20)
        assert not closing.is_alive()
        with Marshal(mock_kafka.config, group_id="test") as looks_on:
            cell = looks_on.cell("orders", 0)
            assert cell is not None
            assert (cell.holder, cell.position) == (None, 1)


@pytest.mark.parametrize(("when", "own"), [("connects", True), ("claims", True), ("claims", False)])
def test_a_signal_handler_may_close_what_is_being_started(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch, when: str, own: bool
) -> None:
    mock_kafka.send("orders", "a", partition=0)
    client = Marshal(mock_kafka.config, group_id="test", close_on_sigterm=False)
    if not own:
        client.start()
    consumer = Consumer(client, topics="orders")
    core, driver = core_of(consumer), driver_of(client)
    raised: list[BaseException] = []

    def and_then_close(do: Any) -> Any:
        def done(*given: Any) -> None:
            do(*given)
            consumer.close()

        return done

    def start() -> None:
        try:
            consumer.start()
        except BaseException as error:
            raised.append(error)

    if when == "connects":
        monkeypatch.setattr(driver, "_replay", and_then_close(driver._replay))
        monkeypatch.setattr(core.assignment, "start", None)  # it does not come so far
    else:
        monkeypatch.setattr(core.assignment, "start", and_then_close(core.assignment.start))
    starter = threading.Thread(target=start, daemon=True)
    starter.start()
    starter.join(20)
    assert [type(error) for error in raised] == [Closed]
    assert driver.running is not own
    assert driver.consumer is None
    until(lambda: not core.assignment.is_alive, 20)
    with pytest.raises(Closed):
        consumer.start()
    with mock_kafka.consumer("orders", client_id="next") as other:
        assert other.poll(20) is not None
    client.close()


def test_what_is_mirrored_at_the_end_is_what_was_held_and_as_it_was_stored(
    mock_kafka: TestBroker,
) -> None:
    """Which claims there are is looked at before they are released, where they stand after that."""
    mock_kafka.send("orders", "a", "b", partition=0)
    consumer = mock_kafka.consumer("orders", mirror_offsets=True)
    core, held, stand = core_of(consumer), list[Any](), list[Any]()

    def keep() -> None:
        held.extend(core.claims())

    def close(_: float) -> None:
        stand.extend(core.shared.standing_of(claim) for claim in held)

    core.mirror = mock.Mock(keep=keep, close=close)
    with consumer:
        until(lambda: len(consumer.claims()) == 4, 20)
        assert consumer.poll(20) is not None
        assert consumer.poll(20) is not None
        consumer.poll(0)
    assert (("orders", 0), 2) in stand
    assert len(stand) == 4


@pytest.mark.parametrize(
    ("problem", "told", "is_given_up"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, True),
        (BrokerUnavailable("no answer"), BrokerUnavailable, True),
        (Closed("by a signal handler"), Closed, True),
        (TopicMissing("__marshal"), AccessDenied, False),
    ],
)
def test_what_ends_a_start_ends_the_look_for_topics_beside_it(
    problem: BaseException, told: type[BaseException], is_given_up: bool
) -> None:
    """Unless that has something to tell, too: it does not ask the same."""
    core: Any = core_of(Consumer("127.0.0.1:1", group_id="g", topics="t"))
    begun, waited = threading.Event(), list[bool]()

    def look(given_up: threading.Event) -> None:
        begun.set()
        waited.append(given_up.wait(20 if is_given_up else 0))
        raise AccessDenied("lacks Read on topic 't'")

    def connect() -> None:
        begun.wait(20)
        raise problem

    driver: Any = driver_of(core.marshal)
    core.topics.discover_at_start, driver.connect = look, connect
    with pytest.raises(told):
        core._discover_and_join()
    assert waited == [is_given_up]


@pytest.mark.parametrize(
    ("mine", "others", "wait_s"), [(True, False, 0.0), (True, True, 7.0), (False, False, 7.0)]
)
def test_what_others_have_in_hand_is_waited_for_and_what_the_closer_has_is_not(
    mine: bool, others: bool, wait_s: float
) -> None:
    core: Any = core_of(Consumer("127.0.0.1:1", group_id="g", topics="t", auto_ack=False))
    core.started, core.iteration.thread = True, threading.get_ident()
    part = mock.Mock(is_over=False)
    acknowledging = threading.Thread(target=core.iteration.acknowledge, args=(part, 5))
    if others:
        acknowledging.start()
        acknowledging.join()
    else:
        core.iteration.acknowledge(part, 5)
    core.assignment.close = close = mock.Mock()
    core.fetcher.close = mock.Mock()
    core.close(7.0, mine=mine)
    assert close.call_args.args[0] == wait_s
    assert close.call_args.kwargs == {"release": True}
