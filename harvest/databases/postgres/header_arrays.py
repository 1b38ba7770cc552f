"""Header arrays as PostgreSQL sends them: psycopg's loader of arrays costs more than all the rest.

A query selects `array_of(column)`: NULL for an empty array, else the array's binary form as bytes
(PostgreSQL's `array_send`): the numbers of dimensions, whether there is a NULL, and the type; for
each dimension its length and lower bound; then for each element its length, −1 for NULL, and bytes.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from struct import unpack_from
from typing import Any, Final

from psycopg import sql

__all__ = ["array_of", "elements", "with_headers"]

_HEAD_BYTES: Final = 12
_DIMENSION_BYTES: Final = 8
_FLAT: Final = b"\0\0\0\1\0\0\0\0"  # one dimension, no NULL
_ONE: Final = b"\0\0\0\1"
_CACHED_NAMES: Final = 1_024
_KEYS: Final = 4
_VALUES: Final = 5


def array_of(column: str) -> sql.Composed:
    """What selects a column of an array for `elements`."""
    return sql.SQL("array_send(nullif({}, '{{}}'))").format(sql.Identifier(column))


def elements(sent: bytes) -> tuple[bytes | None, ...]:
    """The elements of an array, one after the other."""
    if sent[:8] == _FLAT and sent[12:16] == _ONE:  # quick, for what most rows have
        return (sent[24:],)
    (dimensions,) = unpack_from(">i", sent)
    if not dimensions:
        return ()
    at = _HEAD_BYTES + _DIMENSION_BYTES * dimensions
    lengths = unpack_from(">" + "ii" * dimensions, sent, _HEAD_BYTES)[::2]
    found: list[bytes | None] = []
    for _ in range(prod(lengths)):
        (length,) = unpack_from(">i", sent, at)
        at += 4
        if length < 0:
            found.append(None)
            continue
        found.append(sent[at : at + length])
        at += length
    return tuple(found)


_names: Final = lru_cache(_CACHED_NAMES)(elements)  # the rows of an outbox have the same few


def with_headers(rows: list[Any]) -> list[Any]:
    """The rows as they came, with the header arrays (columns 4 and 5) as tuples, or None."""
    if not any(row[_KEYS] or row[_VALUES] for row in rows):
        return rows
    return [
        (
            *row[:_KEYS],
            row[_KEYS] and _names(row[_KEYS]),
            row[_VALUES] and elements(row[_VALUES]),
            *row[_VALUES + 1 :],
        )
        for row in rows
    ]
