"""Msgpack structure without msgpack values: what the codec needs for records that it does not fully
know (specs/PROTOCOL.md §3.1, §4.3).

A newer writer may add elements at the end of a record, or of a heartbeat's entry. Their content
is skipped, whatever it is, and must not change what a reader decides. A general decoder would let
it: how deep a nesting it bears depends on the stack of the moment, so that one reader would take a
record that another one skips. Here the walk is a loop, and the depth has a limit.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_NESTING", "NotWellFormed", "array_header", "cut_array", "int_at", "skip"]

MAX_NESTING: Final = 32
"""How many arrays and maps may lie within one another, the record's own array included."""


class NotWellFormed(Exception):
    """The bytes are no msgpack value, or one that is nested too deeply."""


# opcode → how many bytes the length takes that follows it: bin, ext (one more for its type), str
_LENGTH_BYTES: Final = dict(
    zip((0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xD9, 0xDA, 0xDB), (1, 2, 4) * 3, strict=True)
)
# opcode → how many bytes follow it: nil, booleans, floats, integers, fixext (with its type)
_FIXED_BYTES: Final = dict.fromkeys((0xC0, 0xC2, 0xC3), 0) | dict(
    zip(range(0xCA, 0xD9), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), strict=True)
)
_ARRAY_COUNT_BYTES: Final = {0xDC: 2, 0xDD: 4}
_MAP_COUNT_BYTES: Final = {0xDE: 2, 0xDF: 4}


def skip(data: bytes, start: int, level: int) -> int:
    """Return the position after the msgpack value at `start`, which `level` arrays enclose.

    Strings need not be UTF-8, extension types need not be known, map keys may be anything.

    Raises `NotWellFormed` where the value does not end within `data`, has an opcode that msgpack
    does not define, or is nested deeper than `MAX_NESTING`.
    """
    position = start
    to_come = [1]  # values that are yet to come, in each open container
    while to_come:
        if not to_come[-1]:
            to_come.pop()
            continue
        to_come[-1] -= 1
        if position >= len(data):
            raise NotWellFormed
        opcode = data[position]
        position += 1
        values: int | None = None
        if opcode <= 0x7F or opcode >= 0xE0:
            pass
        elif opcode <= 0x8F:
            values = 2 * (opcode & 0x0F)
        elif opcode <= 0x9F:
            values = opcode & 0x0F
        elif opcode <= 0xBF:
            position += opcode & 0x1F
        elif opcode in _FIXED_BYTES:
            position += _FIXED_BYTES[opcode]
        elif opcode in _LENGTH_BYTES:
            length, position = _unsigned(data, position, _LENGTH_BYTES[opcode])
            position += length + (0xC7 <= opcode <= 0xC9)
        elif opcode in _ARRAY_COUNT_BYTES:
            values, position = _unsigned(data, position, _ARRAY_COUNT_BYTES[opcode])
        elif opcode in _MAP_COUNT_BYTES:
            values, position = _unsigned(data, position, _MAP_COUNT_BYTES[opcode])
            values *= 2
        else:
            raise NotWellFormed
        if values is not None:
            if level + len(to_come) > MAX_NESTING:
                raise NotWellFormed
            to_come.append(values)
    if position > len(data):
        raise NotWellFormed
    return position


def array_header(data: bytes, start: int) -> tuple[int, int]:
    """Return the element count of the array at `start`, and where its first element lies.

    Raises `NotWellFormed` if there is no array.
    """
    opcode = data[start] if start < len(data) else 0
    if 0x90 <= opcode <= 0x9F:
        return opcode & 0x0F, start + 1
    if opcode not in _ARRAY_COUNT_BYTES:
        raise NotWellFormed
    return _unsigned(data, start + 1, _ARRAY_COUNT_BYTES[opcode])


def int_at(data: bytes, start: int) -> tuple[int, int]:
    """Return the integer at `start` and the position after it; raise `NotWellFormed` for others."""
    opcode = data[start] if start < len(data) else 0xC1
    if opcode <= 0x7F:
        return opcode, start + 1
    if opcode >= 0xE0:
        return opcode - 0x100, start + 1
    if not 0xCC <= opcode <= 0xD3:
        raise NotWellFormed
    value, end = _unsigned(data, start + 1, _FIXED_BYTES[opcode])
    bits = 8 * _FIXED_BYTES[opcode]
    return (value - (1 << bits) if opcode >= 0xD0 and value >> (bits - 1) else value), end


def cut_array(data: bytes, start: int, known: int, level: int) -> tuple[list[bytes], int]:
    """Return the first `known` elements of the array at `start`, and the position after all.

    Raises `NotWellFormed`.
    """
    count, position = array_header(data, start)
    kept: list[bytes] = []
    for index in range(count):
        end = skip(data, position, level)
        if index < known:
            kept.append(data[position:end])
        position = end
    return kept, position


def _unsigned(data: bytes, start: int, size: int) -> tuple[int, int]:
    end = start + size
    if end > len(data):
        raise NotWellFormed
    return int.from_bytes(data[start:end], "big"), end
