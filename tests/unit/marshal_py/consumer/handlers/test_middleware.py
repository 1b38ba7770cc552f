"""Middleware, filters and retries by topic, on the mock cluster."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py import Batch, Retry
from marshal_py.consumer.handlers.middleware import CallNext
from marshal_py.consumer.handlers.options import HandlerOptions
from marshal_py.errors import ConfigurationError, HandlerFailed
from marshal_py.testing import TestBroker

ONCE = Retry(attempts=1)


def passing(message: Any, call_next: CallNext) -> Any:
    return call_next(message)


async def passing_later(message: Any, call_next: CallNext) -> Any:
    return await call_next(message)


def refusing(message: Any, call_next: CallNext) -> Any:
    raise OSError(f"not {message.value().decode()}")


def only_first(message: Any) -> bool:
    return bool(message.value() == b"first")


def nothing(message: Any) -> None: ...


async def nothing_later(message: Any) -> None: ...


def test_the_first_is_the_outermost_and_each_hands_on(mock_kafka: TestBroker) -> None:
    said: list[str] = []

    def outer(message: Any, call_next: CallNext) -> Any:
        said.append("outer")
        result = call_next(message)
        said.append(f"outer: {result}")
        return result

    def inner(message: Any, call_next: CallNext) -> Any:
        said.append("inner")
        return call_next(message).upper()

    def handle(message: Any, claim: Any) -> str:
        said.append(f"handler in {claim.epoch >= 0}")
        return "done"

    mock_kafka.send("orders", "1")
    stats = mock_kafka.run(handle, "orders", middleware=[outer, inner])
    assert said == ["outer", "inner", "handler in True", "outer: DONE"]
    assert stats.handled == 1


def test_around_coroutines_it_is_one(mock_kafka: TestBroker) -> None:
    said: list[str] = []

    async def around(message: Any, call_next: CallNext) -> None:
        said.append("before")
        await call_next(message)
        said.append("after")

    async def handle(message: Any) -> None:
        said.append("handler")

    mock_kafka.send("orders", "1")
    mock_kafka.run(handle, "orders", middleware=[around])
    assert said == ["before", "handler", "after"]


def test_what_it_raises_is_the_handlers_failure_and_a_batch_comes_whole(
    mock_kafka: TestBroker,
) -> None:
    given: list[Any] = []

    def around(batch: Batch, call_next: CallNext) -> None:
        assert isinstance(batch, Batch)
        given.extend(message.offset() for message in batch)
        call_next(batch)

    mock_kafka.send("orders", "1", "2", partition=0)
    mock_kafka.run(nothing, "orders", batch_size=10, middleware=[around])
    assert given == [0, 1]
    mock_kafka.send("other", "this")
    with pytest.raises(HandlerFailed, match="OSError: not this"):
        mock_kafka.run(nothing, "other", middleware=[refusing], retry=ONCE)


def test_in_processes_it_runs_beside_the_handler(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", "this")
    with pytest.raises(HandlerFailed, match="OSError: not this"):
        mock_kafka.run(
            nothing,
            "orders",
            executor="process",
            workers=1,
            middleware=[passing, refusing],
            retry=ONCE,
            timeout_s=30,
        )


@pytest.mark.parametrize(
    ("handler", "options", "text"),
    [
        (nothing, {"middleware": passing}, "must be a list of functions"),
        (nothing, {"middleware": [nothing]}, r"called with \(message, call_next\)"),
        (nothing, {"middleware": [passing_later]}, "must be a plain function"),
        (nothing_later, {"middleware": [passing]}, "must be `async def`"),
        (
            nothing,
            {"middleware": [lambda message, call_next: 1], "executor": "process"},
            "cannot be sent to another process",
        ),
        (nothing, {"filter": passing}, r"called with \(message\)"),
        (nothing, {"filter": nothing_later}, "must be a plain function"),
        (nothing, {"retry": {"orders": 3}}, "a Retry for each topic"),
        (nothing, {"retry": {"t": Retry(attempts=2)}, "at_most_once": True}, "leave retry out"),
    ],
)
def test_what_cannot_work_is_refused(handler: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        HandlerOptions(handler, **options)


def test_what_is_not_for_the_handler_is_done_and_counted(mock_kafka: TestBroker) -> None:
    given: list[Any] = []

    def handle(message: Any) -> None:
        given.append(message.value())

    mock_kafka.send("orders", "first", "second", "first", partition=0)
    consumer = mock_kafka.consumer("orders")
    stats = mock_kafka.run(handle, consumer, filter=only_first)
    assert given == [b"first"] * 2
    assert (stats.handled, stats.filtered) == (2, 1)
    with mock_kafka.consumer("orders") as again:
        assert again.poll(0.5) is None


def test_of_a_batch_only_those_that_pass_are_given(mock_kafka: TestBroker) -> None:
    given: list[Any] = []

    def handle(batch: Batch) -> None:
        given.extend(message.value() for message in batch)

    mock_kafka.send("orders", "first", "second", "first", partition=0)
    mock_kafka.send("orders", "second", partition=1)
    stats = mock_kafka.run(handle, "orders", filter=only_first, batch_size=10)
    assert given == [b"first", b"first"]
    assert (stats.handled, stats.filtered) == (2, 2)


def test_a_filter_that_raises_fails_the_message(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", "x")
    with pytest.raises(HandlerFailed, match="ZeroDivisionError"):
        mock_kafka.run(nothing, "orders", filter=lambda message: 1 / 0, retry=ONCE)


def test_each_topic_is_tried_again_in_its_own_way(mock_kafka: TestBroker) -> None:
    attempts = {"payments": 0, "orders": 0}

    def handle(message: Any) -> None:
        attempts[message.topic()] += 1
        raise OSError

    mock_kafka.send("payments", "x")
    mock_kafka.send("orders", "x")
    retry = {"payments": Retry(attempts=5, backoff_ms=1), "orders": Retry(attempts=2, backoff_ms=1)}
    stats = mock_kafka.run(
        handle, mock_kafka.consumer(["payments", "orders"]), retry=retry, on_failure="skip"
    )
    assert attempts == {"payments": 5, "orders": 2}
    assert stats.skipped == 2
    assert HandlerOptions(nothing, retry=retry).retry_of("others") == Retry()
