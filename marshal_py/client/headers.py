"""The headers of messages, also of those of which confluent-kafka can make no text."""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller
from typing import Any, Final

__all__ = ["UNREADABLE", "make_headers_readable"]

UNREADABLE: Final = "marshal-headers-unreadable"
"""The one header of a message whose own could not be read. Its value says why."""

# Not `message.headers()`: of a method that it has called often, CPython looks no more whether there
# is an exception beside the answer, which would then come at the next statement, whichever that is.
_ask: Final = methodcaller("headers")
_WHY: Final = b"the name of a header is not UTF-8"


def make_headers_readable(messages: Iterable[Any]) -> None:
    """Have each message answer whoever asks for its headers.

    Kafka takes any bytes as a header's name. Of one that is not UTF-8, confluent-kafka (2.16) makes
    a `SystemError` when it is asked first, and what it answers after that crashes the process: such
    a message gets the header `UNREADABLE` in place of all of its own.
    """
    for message in messages:
        try:
            _ask(message)
        except (SystemError, UnicodeDecodeError):
            message.set_headers([(UNREADABLE, _WHY)])
