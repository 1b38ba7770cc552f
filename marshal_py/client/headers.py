"""The headers of messages, also of those of which confluent-kafka can make no text."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import length_hint, methodcaller
from typing import Any, Final

from confluent_kafka import Message

__all__ = ["UNREADABLE", "make_headers_readable"]

UNREADABLE: Final = "marshal-headers-unreadable"
"""The one header of a message whose own could not be read. Its value says why."""

_WHY: Final = b"the name of a header is not UTF-8"
_ask_any: Final = methodcaller("headers")


def make_headers_readable(messages: Sequence[Any]) -> None:
    """Have each message answer whoever asks for its headers. All are of one kind.

    Kafka takes any bytes as a header's name. Of one that is not UTF-8, confluent-kafka (2.16) makes
    a `SystemError` when it is asked first, and what it answers after that crashes the process: such
    a message gets the header `UNREADABLE` in place of all of its own.
    """
    ask: Any = Message.headers if messages and isinstance(messages[0], Message) else _ask_any
    left = iter(messages)
    while True:
        try:
            # No loop of Python: all that is consumed passes here. And a method that Python calls
            # often is believed to give something: what was raised would come at the next statement.
            deque(map(ask, left), maxlen=0)
            return
        except (SystemError, UnicodeDecodeError):
            failed = messages[len(messages) - length_hint(left) - 1]
            failed.set_headers([(UNREADABLE, _WHY)])
