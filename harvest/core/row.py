"""A row as the harvester reads it: bytes that go to the sink unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Row", "Unreadable", "fingerprint", "named", "payload_bytes", "unreadable"]

_OVERHEAD_BYTES: Final = 64  # what a row costs beside its payload, roughly


class Row(NamedTuple):
    """One committed row of the outbox.

    Text columns come as their UTF-8 bytes. `value` None is a tombstone. The two header sequences
    have the lengths that the table has them in: whether they match is for the sink to judge.

    Stores of range mode, with None for no headers, and the log return plain tuples: making a named
    tuple costs as much as reading the row. `named` makes rows of them.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    header_keys: tuple[bytes | None, ...] = ()
    header_values: tuple[bytes | None, ...] = ()


class Unreadable(tuple[bytes | None, ...]):
    """In the place of the header keys: the database cannot hand the row over; `why`.

    It fits no headers, so nobody publishes such a row; see `harvest.core.dead_letters.problem`.
    """

    why: str

    @classmethod
    def because(cls, why: str, keys: Sequence[bytes | None] = ()) -> Unreadable:
        """The header keys, and one more, for which there is no value."""
        made = cls((None, *keys))
        made.why = why
        return made


def unreadable(row_id: int, topic: str, key: bytes | None, why: str) -> Row:
    """A row of which only the id, and what could be had of topic and key, are known."""
    return Row(row_id, topic, key, None, Unreadable.because(why), ())


def named(rows: Sequence[Row]) -> list[Row]:
    """Rows of any shape with names for their fields, and empty sequences for no headers."""
    return [Row(r[0], r[1], r[2], r[3], r[4] or (), r[5] or ()) for r in rows]


def payload_bytes(rows: Sequence[Row]) -> int:
    """Roughly what the rows occupy in memory and in Kafka."""
    return sum([_OVERHEAD_BYTES + len(r[3] or b"") + len(r[2] or b"") for r in rows])


def fingerprint(row: Row) -> int:
    """64 bits of the row's content: the same for the same row, in every process."""
    digest = hashlib.blake2b(repr(tuple(row)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
