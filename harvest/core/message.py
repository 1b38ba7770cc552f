"""A record as the content of one logical message: an outbox without a table. Pure.

The layout, big-endian, for writers in other languages (specs/HARVEST.md §18): a byte 1; the lengths
of topic (2 bytes), key (4) and value (4), and the number of headers (2); then topic, key and value;
then for each header the lengths of name (2) and value (4), name and value. A length of -1 is NULL,
0 is empty; a NULL value is a tombstone, a NULL key makes a dead letter. Text is UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Message", "pack_message", "unpack_message"]

_HEAD: Final = struct.Struct("!BHiiH")
_HEADER: Final = struct.Struct("!Hi")
_HEAD_BYTES: Final = _HEAD.size
_HEADER_BYTES: Final = _HEADER.size
_VERSION: Final = 1


class Message(NamedTuple):
    """What `unpack_message` found; headers as in `harvest.core.row.Row`."""

    topic: str
    key: bytes | None
    value: bytes | None
    header_keys: tuple[bytes, ...]
    header_values: tuple[bytes | None, ...]


def pack_message(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
) -> bytes:
    """The content of a message. Raises `ValueError` for what is too long, 64 KiB of a name say."""
    name = topic.encode()
    try:
        head = _HEAD.pack(_VERSION, len(name), _length(key), _length(value), len(headers))
        parts = [head, name, key or b"", value or b""]
        for header, its in headers:
            parts += (_HEADER.pack(len(header), _length(its)), header, its or b"")
    except struct.error as error:
        raise ValueError(f"it is too long ({error})") from None
    return b"".join(parts)


def unpack_message(content: bytes) -> Message:
    """The reverse. Raises `ValueError` for what no `pack_message` made."""
    try:
        version, topic_length, key_length, value_length, headers = _HEAD.unpack_from(content)
        if version != _VERSION:
            raise ValueError(f"version {version}")
        begin, at = _HEAD_BYTES, _HEAD_BYTES + topic_length
        topic = content[begin:at].decode()
        key = value = None
        if key_length >= 0:
            begin, at = at, at + key_length
            key = content[begin:at]
        if value_length >= 0:
            begin, at = at, at + value_length
            value = content[begin:at]
        names: list[bytes] = []
        values: list[bytes | None] = []
        for _ in range(headers):
            name_length, length = _HEADER.unpack_from(content, at)
            begin = at + _HEADER_BYTES
            at = begin + name_length
            names.append(content[begin:at])
            if length < 0:
                values.append(None)
            else:
                begin, at = at, at + length
                values.append(content[begin:at])
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is cut off, or no text ({error})") from None
    if at != len(content):
        raise ValueError(f"it has {len(content)} bytes, and should have {at}")
    return Message(topic, key, value, tuple(names), tuple(values))


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)
