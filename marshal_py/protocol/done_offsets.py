"""Offsets that are done above a position, in few bytes: lengths of what is open and done, in turn.

A consumer that works on many messages at a time stores the lowest offset that is not done. What is
done above it travels with the claim (`ClaimMetadata.done`), so that a successor does not do it
again. Lengths are written as varints, seven bits to a byte, the lowest first; the first length is
of what is open. What does not fit is left out from the far end: it is done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

__all__ = ["Ranges", "decode_ranges", "encode_ranges"]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Offsets from the first to below the second number, in order, none touching another."""

_MAX_OFFSET = 2**63 - 1


def encode_ranges(base: int, ranges: Iterable[tuple[int, int]], most: int) -> bytes:
    """Return `ranges`, all at or above `base`, in at most `most` bytes."""
    found = b""
    at = base
    for first, end in ranges:
        piece = _varint(first - at) + _varint(end - first)
        if len(found) + len(piece) > most:
            break
        found += piece
        at = end
    return found


def decode_ranges(base: int, data: bytes) -> Ranges:
    """Return what `encode_ranges` wrote; nothing at all for other bytes."""
    lengths = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            lengths.append(number)
            number = shift = 0
    if shift or len(lengths) % 2 or base < 0:
        return ()
    ranges = []
    at = base
    for open_count, done_count in zip(lengths[::2], lengths[1::2], strict=True):
        first = at + open_count
        at = first + done_count
        if not done_count or at > _MAX_OFFSET:
            return ()
        ranges.append((first, at))
    return tuple(ranges)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
