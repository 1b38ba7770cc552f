"""What SQLite, MariaDB and MySQL have in their columns, as the bytes of a row.

These databases have no arrays: headers are two JSON arrays of strings, of one length.
"""

from __future__ import annotations

import json
from typing import Final, TypeAlias

__all__ = ["Headers", "as_bytes", "headers_from_json", "topic_text"]

Headers: TypeAlias = tuple[bytes | None, ...] | None

_UNREADABLE: Final = (None,)
"""What is no JSON array becomes one header without a name, which no sink accepts."""


def headers_from_json(text: bytes | str | None) -> Headers:
    """The strings of a JSON array, as bytes; None for none. Other elements as their JSON text."""
    if text is None or text in (b"[]", "[]"):
        return None
    try:
        found = json.loads(text)
        if not isinstance(found, list):
            return _UNREADABLE
        return tuple([_element(element) for element in found]) or None
    except (TypeError, ValueError, RecursionError):  # a number; also what is no UTF-8
        return _UNREADABLE


def as_bytes(value: object) -> bytes | None:
    """A key or value as the database stored it; numbers in their text form."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else str(value).encode()


def topic_text(value: object) -> str:
    """The topic. One that is NULL is empty: no name that Kafka allows."""
    return (as_bytes(value) or b"").decode(errors="replace")


def _element(element: object) -> bytes | None:
    if element is None:
        return None
    return (element if isinstance(element, str) else json.dumps(element)).encode()
