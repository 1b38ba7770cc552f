"""The checkpoint of range mode: how far a shard has published, and which ids are still open.

It is committed to Kafka in the same transaction as the rows (specs/HARVEST.md §14). As text it is
JSON, ``[2, epoch, shard, shards, last_id, "gaps", timeline, log]``, where the gaps are numbers of
variable length, each as far as possible from the one before, in base 85: two or three characters a
gap.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from harvest.core.checkpoint_text import reading
from harvest.core.gaps import Range

__all__ = ["Position"]

_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Position:
    """Every row of shard `shard` (of `shards`) with an id up to `last_id` is published, but for
    those that may still appear in `gaps`; and none above it is.

    `epoch` is the fencing token of the leader that wrote it. `log` is how far the database's log
    had come, in `timeline`, when the rows were seen (0: not known; see `harvest.core.source`).
    """

    epoch: int
    shard: int
    shards: int
    last_id: int
    gaps: tuple[Range, ...] = ()
    timeline: int = 0
    log: int = 0

    @property
    def low_id(self) -> int:
        """Every id below it is published, or will never appear."""
        return self.gaps[0][0] if self.gaps else self.last_id + 1

    def encode(self) -> str:
        """The position as text."""
        packed = base64.b85encode(_pack(self.gaps, self.last_id)).decode()
        head = [_VERSION, self.epoch, self.shard, self.shards, self.last_id]
        fields = [*head, packed, self.timeline, self.log]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Position:
        """The reverse of `encode`. Raises `CheckpointError`."""
        with reading(text, _VERSION) as fields:
            epoch, shard, shards, last_id, packed, timeline, log = fields
            gaps = _unpack(base64.b85decode(packed), int(last_id))
            numbers = int(epoch), int(shard), int(shards), int(last_id)
            return cls(*numbers, gaps, int(timeline), int(log))


def _pack(gaps: Sequence[Range], last_id: int) -> bytes:
    """From the last gap to the first: the distance down to its end, and its length less one."""
    out = bytearray()
    for low, high in reversed(gaps):
        _put(out, last_id - high)
        _put(out, high - low)
        last_id = low
    return bytes(out)


def _unpack(data: bytes, last_id: int) -> tuple[Range, ...]:
    gaps = []
    numbers = _numbers(data)
    for distance, length in zip(numbers, numbers, strict=True):
        high = last_id - distance
        last_id = high - length
        gaps.append((last_id, high))
    return tuple(reversed(gaps))


def _put(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("the gaps end in the middle of a number")
