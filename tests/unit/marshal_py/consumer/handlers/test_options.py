"""What `Consumer.run` is told, and what it tells others: retries, dead-letter headers, notes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.consumer.dead_letters import headers_of
from marshal_py.consumer.handlers import options as module
from marshal_py.consumer.handlers.failing_messages import FailingMessages
from marshal_py.consumer.handlers.message_copy import MessageCopy, copy_of
from marshal_py.consumer.handlers.options import ClaimSnapshot, HandlerOptions, Retry
from marshal_py.errors import (
    ConfigurationError,
    DeliveriesExhausted,
    DeserializationFailed,
    NotInVersion1,
)
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.messages import MAX_METADATA_BYTES

PARTITION = ("orders", 3)


# Retries


def test_waits_double_up_to_the_longest() -> None:
    retry = Retry(attempts=None, backoff_ms=100, max_backoff_ms=500, jitter=0)
    assert [retry.delay_s(n, 0.5) for n in range(1, 6)] == [0.1, 0.2, 0.4, 0.5, 0.5]


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_jitter_stays_within_its_part(failures: int, chance: float, jitter: float) -> None:
    retry = Retry(attempts=None, backoff_ms=100, max_backoff_ms=1_000, jitter=jitter)
    plain = Retry(attempts=None, backoff_ms=100, max_backoff_ms=1_000, jitter=0)
    wait_s, plain_s = retry.delay_s(failures, chance), plain.delay_s(failures, 0)
    assert (1 - jitter) * plain_s - 1e-9 <= wait_s <= (1 + jitter) * plain_s + 1e-9


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"attempts": 0}, "attempts = 0"),
        ({"attempts": "3"}, "attempts = '3'"),
        ({"backoff_ms": -1}, "backoff_ms = -1"),
        ({"max_backoff_ms": 1e12}, "max_backoff_ms = 1000000000000.0"),
        ({"jitter": 2}, "jitter = 2"),
    ],
)
def test_a_retry_that_cannot_work_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Retry(**options)


@pytest.mark.parametrize("name", [None, b"dlq", "", "{topic} dlq", "."])
def test_a_topic_for_dead_letters_that_cannot_be_is_refused(name: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=f"dead_letter_topic = {re.escape(repr(name))} must"
    ):
        HandlerOptions(print, dead_letter_topic=name)


@pytest.mark.parametrize("name", ["on_stuck", "on_failure", "filter"])
def test_a_function_that_cannot_be_called_is_told_before_it_is_needed(name: str) -> None:
    HandlerOptions(print, **{name: lambda about: about})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"{name} = "):
        HandlerOptions(print, **{name: lambda: None})  # type: ignore[arg-type]


def test_what_another_process_cannot_be_sent_is_told_before_it_runs() -> None:
    def handle(message: Message) -> None: ...

    def around(message: Message, call_next: Callable[..., Any]) -> Any: ...

    with pytest.raises(ConfigurationError, match=r"handler = .* cannot be sent"):
        HandlerOptions(handle, executor="process")
    with pytest.raises(ConfigurationError, match=r"middleware = .* cannot be sent"):
        HandlerOptions(print, executor="process", middleware=[around])


def test_attempts_are_counted_with_the_first() -> None:
    handling = HandlerOptions(print, retry=Retry(attempts=3), not_retriable=(KeyError,))
    assert [handling.may_retry("t", OSError(), n) for n in (1, 2, 3)] == [True, True, False]
    assert not handling.may_retry("t", KeyError(), 1)
    assert not HandlerOptions(print, at_most_once=True).may_retry("t", OSError(), 1)


def test_the_claim_goes_to_handlers_that_ask_for_it() -> None:
    def one(message: Any) -> Any:
        return message

    def two(message: Any, epoch_of: Any) -> Any:
        return message, epoch_of

    def named(message: Any, *, claim: Any) -> Any:
        return message, claim

    def defaulted(message: Any, limit: int = 5) -> Any:
        return message, limit

    class Bound:
        def handle(self, message: Any, claim: Any) -> Any:
            return message, claim

    assert HandlerOptions(one).whole("m", "c") == "m"
    assert HandlerOptions(two).whole("m", "c") == ("m", "c")
    assert HandlerOptions(named).whole("m", "c") == ("m", "c")
    assert HandlerOptions(defaulted).whole("m", "c") == ("m", 5)
    assert HandlerOptions(Bound().handle).whole("m", "c") == ("m", "c")


# Messages for other processes


def test_a_copy_answers_as_the_message_does() -> None:
    message = Message(
        topic="orders",
        partition=3,
        offset=7,
        key=b"k",
        value=b"value",
        headers=[("a", b"1"), ("a", None)],
        timestamp=(1, 1_700_000_000_000),
    )
    copied = pickle.loads(pickle.dumps(copy_of(message)))
    for name in ("topic", "partition", "offset", "key", "value", "headers", "timestamp", "error"):
        assert getattr(copied, name)() == getattr(message, name)(), name
    assert len(copied) == len(message) == 5


# Dead letters


def test_a_dead_letter_of_a_message_with_nothing() -> None:
    message = Message(topic="orders", partition=3, offset=7)
    error = KeyError("\udc80")
    told = headers_of(message, error, attempts=2, group_id="g", client_id="c", epoch=None)
    headers = dict(told)
    assert "dlq-timestamp" not in headers
    assert "dlq-epoch" not in headers
    assert headers["dlq-error-message"] == b"'\\udc80'"
    assert headers["dlq-attempts"] == b"2"


def test_a_message_may_be_called_claim() -> None:
    def insurance(claim: Any) -> Any:
        return claim

    def by_position(message: Any, claim: Any, /) -> Any:
        return message, claim

    def any_keyword(message: Any, **rest: Any) -> Any:
        return message, rest

    claim: Any = "claim"
    assert HandlerOptions(insurance).whole("m", claim) == "m"
    assert HandlerOptions(by_position).whole("m", claim) == ("m", "claim")
    assert HandlerOptions(any_keyword).whole("m", claim) == ("m", {})


def test_a_handler_that_no_message_can_be_given_to_is_told_at_once() -> None:
    def three(message: Any, claim: Any, more: Any) -> Any: ...

    def none() -> Any: ...

    refused: list[tuple[Callable[..., Any], str]] = [
        (three, r"'three' takes \(message: 'Any'"),
        (none, "'none' takes"),
    ]
    for handler, text in refused:
        with pytest.raises(ConfigurationError, match=text):
            HandlerOptions(handler)


# What is published with a claim


@given(
    st.builds(
        ClaimMetadata,
        cost=st.integers(0, 255),
        retrying=st.integers(0, 2**40),
        stuck=st.integers(0, 2**20),
        dead_lettered=st.integers(0, 2**62),
        skipped=st.integers(0, 2**62),
        offset=st.integers(-1, 2**62),
        error=st.text(max_size=40),
    )
)
def test_metadata_survives_its_way_and_fits(metadata: ClaimMetadata) -> None:
    data = metadata.encode()
    assert ClaimMetadata.decode(data) == metadata
    assert len(data) <= MAX_METADATA_BYTES


@given(st.binary(max_size=300))
def test_no_bytes_are_more_than_no_note(data: bytes) -> None:
    assert isinstance(ClaimMetadata.decode(data), ClaimMetadata)


def test_a_note_that_says_nothing_takes_no_room() -> None:
    assert ClaimMetadata().encode() == b""
    assert not ClaimMetadata(cost=9).has_failures


def test_troubles_tell_the_first_that_fails_now_else_the_last_given_up() -> None:
    troubles = FailingMessages()
    troubles.failing(PARTITION, 9, OSError())
    troubles.failing(PARTITION, 4, ValueError())
    assert troubles.take_changed() == [
        (PARTITION, ClaimMetadata(retrying=2, offset=4, error="ValueError"))
    ]
    assert troubles.take_changed() == []
    troubles.given_up(PARTITION, 4, ValueError(), dead=True)
    troubles.recovered(PARTITION, 9)
    assert troubles.of(PARTITION) == ClaimMetadata(dead_lettered=1, offset=4, error="ValueError")
    troubles.stuck([(PARTITION, 11)])
    assert troubles.of(PARTITION).offset == 11
    assert troubles.stuck_now == 1
    troubles.stuck([])
    assert (troubles.of(PARTITION).offset, troubles.stuck_now) == (4, 0)
    troubles.forget(PARTITION)
    assert troubles.all() == {}
    assert troubles.take_changed() == []


def test_a_long_class_name_fits_all_the_same() -> None:
    troubles = FailingMessages()
    kind = type("Ä" * 500, (Exception,), {})
    troubles.failing(PARTITION, 1, kind())
    assert len(troubles.of(PARTITION).encode()) <= MAX_METADATA_BYTES


def test_what_a_deserializer_raised_is_what_may_not_be_tried_again() -> None:
    message: Any = Message(topic="t", partition=0, offset=1)
    broken = DeserializationFailed(message, "value", ValueError("no JSON"))
    broken.__cause__ = ValueError("no JSON")
    options = HandlerOptions(print, retry=Retry(attempts=3), not_retriable=(ValueError,))
    assert not options.may_retry("t", broken, 1)
    assert HandlerOptions(print, retry=Retry(attempts=3)).may_retry("t", broken, 1)


def test_who_was_delivered_too_often_does_not_come_again() -> None:
    options = HandlerOptions(print, retry=Retry(attempts=None))
    assert options.may_retry("t", ValueError(), 99)
    assert not options.may_retry("t", DeliveriesExhausted("delivered 5 times"), 1)


def test_a_topic_without_a_choice_of_its_own_has_the_usual_one() -> None:
    options = HandlerOptions(print, retry={"a": Retry(attempts=7)})
    assert (options.retry_of("a").attempts, options.retry_of("b")) == (7, Retry())
    assert HandlerOptions(print, at_most_once=True).retry_of("a").attempts == 1


def test_a_lease_that_another_process_is_told_of_ends_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_now_ns", lambda: 100)
    assert ClaimSnapshot("t", 0, 7, lease_until_ns=101).held
    assert not ClaimSnapshot("t", 0, 7, lease_until_ns=100).held


def test_another_process_is_told_of_no_epoch_where_version_1_has_none() -> None:
    assert ClaimSnapshot("t", 0, 7, lease_until_ns=1).epoch == 7
    with pytest.raises(NotInVersion1, match="fencing"):
        _ = ClaimSnapshot("t", 0, None, lease_until_ns=1).epoch


def test_that_a_message_fails_no_more_is_told_and_again_until_it_is_published() -> None:
    troubles = FailingMessages()
    troubles.failing(PARTITION, 9, OSError())
    troubles.take_changed()
    troubles.recovered(PARTITION, 9)
    told = [(PARTITION, ClaimMetadata(error="OSError"))]
    assert troubles.take_changed() == told
    troubles.publish_again(PARTITION)
    assert troubles.take_changed() == told
    troubles.forget(PARTITION)
    troubles.publish_again(PARTITION)
    assert troubles.take_changed() == [], "the next holder counts for itself"


def test_a_copy_of_a_message_has_its_epoch_and_shows_no_value() -> None:
    fields = ("orders", 3, 7, b"key", {"a": 1}, None, (1, 5), 4)
    copy = copy_of(MessageCopy(fields))
    assert (copy.key(), copy.value(), copy.leader_epoch()) == (b"key", {"a": 1}, 4)
    assert len(copy) == 0, "as of a message whose value is no bytes"
    assert repr(copy) == "<MessageCopy orders/3@7>"
