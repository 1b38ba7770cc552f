"""A row as the harvester reads it: bytes that go to the sink unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Row", "payload_bytes"]

_OVERHEAD_BYTES: Final = 64  # what a row costs beside its payload, roughly


class Row(NamedTuple):
    """One committed row of the outbox.

    Text columns come as their UTF-8 bytes. `value` None is a tombstone. The two header sequences
    have the lengths that the table has them in: whether they match is for the sink to judge.

    Stores of range mode return plain tuples of this shape, with None for no headers: making a named
    tuple costs as much as reading the row. Who handles such rows uses the `Sequence` face of them.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    header_keys: tuple[bytes | None, ...] = ()
    header_values: tuple[bytes | None, ...] = ()


def payload_bytes(rows: Sequence[Row]) -> int:
    """Roughly what the rows occupy in memory and in Kafka."""
    return sum([_OVERHEAD_BYTES + len(r[3] or b"") + len(r[2] or b"") for r in rows])
