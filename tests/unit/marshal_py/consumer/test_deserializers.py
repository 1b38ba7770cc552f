"""Keys and values as a program wants them, and as they came where that fails."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py.consumer.deserializers import Deserializers
from marshal_py.errors import DeserializationFailed


class Message:
    def __init__(self) -> None:
        self.fields: dict[str, Any] = {"key": b"k", "value": b"v"}

    def key(self) -> Any:
        return self.fields["key"]

    def value(self) -> Any:
        return self.fields["value"]

    def set_key(self, key: Any) -> None:
        self.fields["key"] = key

    def set_value(self, value: Any) -> None:
        self.fields["value"] = value

    def headers(self) -> list[tuple[str, bytes]]:
        return [("trace", b"1")]

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


def upper(raw: bytes, context: Any) -> tuple[str, str, Any]:
    return raw.decode().upper(), context.topic, context.headers


def fail(_raw: bytes, _context: Any) -> None:
    raise ValueError("no JSON")


def test_key_and_value_are_replaced_and_told_where_they_are_from() -> None:
    message = Message()
    assert Deserializers(upper, upper).apply(message) is message
    headers = [("trace", b"1")]
    assert message.fields == {"key": ("K", "orders", headers), "value": ("V", "orders", headers)}
    alone = Message()
    Deserializers(None, upper).apply(alone)
    assert (alone.fields["key"], alone.fields["value"][0]) == (b"k", "V")


@pytest.mark.parametrize(("key", "value", "field"), [(fail, upper, "key"), (upper, fail, "value")])
def test_a_message_that_cannot_be_read_is_as_it_came(key: Any, value: Any, field: str) -> None:
    """It may become a dead letter: which is no use with half of it replaced."""
    message = Message()
    with pytest.raises(DeserializationFailed) as raised:
        Deserializers(key, value).apply(message)
    assert raised.value.field == field
    assert message.fields == {"key": b"k", "value": b"v"}
    assert isinstance(raised.value.__cause__, ValueError)


def test_what_is_raised_without_a_text_is_told_as_what_cannot_be_read() -> None:
    class Mute(Exception):
        def __repr__(self) -> str:
            raise AttributeError("code")

    def read(_raw: bytes, _context: Any) -> None:
        raise Mute

    with pytest.raises(DeserializationFailed, match="raised <Mute, of which no text"):
        Deserializers(None, read).apply(Message())


def test_whether_there_is_something_to_do() -> None:
    assert not Deserializers(None, None)
    for one in (Deserializers(upper, None), Deserializers(None, upper)):
        assert one
    assert Deserializers(upper, None).changes_keys
    assert not Deserializers(None, upper).changes_keys
