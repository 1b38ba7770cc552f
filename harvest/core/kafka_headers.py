"""The headers of a row as those of a Kafka record: one rule for whatever produces (HARVEST.md §11).

Names and values go along unchanged, in their order, as often as they come; a value may be NULL, a
name empty. A name that is NULL, no UTF-8, or holds a NUL is nothing that the producer can send
(librdkafka cuts it off at the NUL, confluent-kafka ends the process over other bytes), nor are two
arrays of different lengths: the row is bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from harvest.core.row import Row, Unreadable
from harvest.errors import InvalidRecord

__all__ = ["Headers", "header_problem", "headers_fit", "kafka_headers", "produced_headers"]

Headers = list[tuple[str, str | bytes | None]]

_CACHED_NAMES: Final = 1_024


def header_problem(row: Row) -> str | None:
    """What is wrong with the headers of a row; None if nothing is."""
    try:
        kafka_headers(row)
    except InvalidRecord as error:
        return str(error)
    return None


def kafka_headers(row: Row) -> Headers:
    """The headers of a row. Raises `InvalidRecord`."""
    return produced_headers(row.header_keys, row.header_values)


def produced_headers(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> Headers:
    """The same, of the two arrays of a row. Raises `InvalidRecord`."""
    if type(keys) is tuple and len(keys) == len(values):  # of nearly all rows
        return list(zip(_texts(keys), values, strict=True))
    return list(zip(_fitting_texts(keys, values), values, strict=True))


def headers_fit(keys: Sequence[bytes | None] | None, values: Sequence[bytes | None] | None) -> bool:
    """Whether nothing is wrong with the two arrays of a row."""
    try:
        _fitting_texts(keys or (), values or ())
    except InvalidRecord:
        return False
    return True


def _fitting_texts(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> tuple[str, ...]:
    if isinstance(keys, Unreadable):
        raise InvalidRecord(keys.why)
    if len(keys) != len(values):
        raise InvalidRecord(
            f"{len(keys)} header keys and {len(values)} header values: the two arrays must have "
            "one length"
        )
    return _texts(tuple(keys))


@lru_cache(_CACHED_NAMES)
def _texts(names: tuple[bytes | None, ...]) -> tuple[str, ...]:
    """The names as text. Cached: the rows of an outbox have the same few."""
    return tuple([_text(name) for name in names])


def _text(name: bytes | None) -> str:
    if name is None:
        raise InvalidRecord("a header key is NULL")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidRecord(f"the header key {name!r} is no text: UTF-8 without NUL")
    return text
