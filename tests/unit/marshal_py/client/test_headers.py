"""Headers of messages, with names that are no text."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import ANY

import pytest
from confluent_kafka import Message

from marshal_py.client.headers import UNREADABLE, make_headers_readable
from tests.support.unreadable import make_unreadable, unreadable_message


def test_headers_with_a_name_that_is_no_text_are_told_as_one_that_says_so() -> None:
    """Also to whoever asks after that: confluent-kafka's second answer crashes the process."""
    message = unreadable_message()
    told = [(UNREADABLE, b"the name of a header is not UTF-8")]
    others = [Message(topic="t", headers=[("a", b"b")]) for _ in range(1_000)]
    make_headers_readable([*others[:500], message, *others[500:]])
    assert [message.headers(), message.headers()] == [told, told]
    assert all(other.headers() == [("a", b"b")] for other in others)
    assert (message.topic(), message.value()) == ("t", b"x")


def test_of_several_each_gets_one() -> None:
    """Also where a copy stands for a message, in another process."""
    fakes = [make_unreadable(SimpleNamespace()) for _ in range(3)]
    make_headers_readable(fakes)
    assert [fake.headers() for fake in fakes] == [[(UNREADABLE, ANY)]] * 3
    make_headers_readable([])


@pytest.mark.parametrize("headers", [None, [], [("é", b"\xff"), ("é", None)]])
def test_others_are_as_they_came(headers: list[tuple[str, str | bytes | None]] | None) -> None:
    message = Message(topic="t", headers=headers)
    make_headers_readable([message])
    assert message.headers() == headers
