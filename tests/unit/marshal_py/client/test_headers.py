"""Headers of messages, with names that are no text."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from marshal_py.client.headers import UNREADABLE, make_headers_readable
from tests.support.unreadable import unreadable_message


def test_headers_with_a_name_that_is_no_text_are_told_as_one_that_says_so() -> None:
    """Also to whoever asks after that: confluent-kafka's second answer crashes the process."""
    message = unreadable_message()
    told = [(UNREADABLE, b"the name of a header is not UTF-8")]
    make_headers_readable([*[Message(topic="t")] * 1_000, message])
    assert [message.headers(), message.headers()] == [told, told]
    assert (message.topic(), message.value()) == ("t", b"x")


@pytest.mark.parametrize("headers", [None, [], [("é", b"\xff"), ("é", None)]])
def test_others_are_as_they_came(headers: list[tuple[str, str | bytes | None]] | None) -> None:
    message = Message(topic="t", headers=headers)
    make_headers_readable([message])
    assert message.headers() == headers
