"""What a consumer tells the others with each claim: what its position means, and what fails.

It travels as the metadata of the claim (at most 256 bytes, specs/PROTOCOL.md §3.3), which the fold
never looks into: a msgpack map with one-letter keys, of which all may be missing; unknown ones are
skipped. It stays with the cell when the claim goes to somebody else (§4.4). The next holder takes
over what says what the position means, and counts failures for itself.

| key | what |
|---|---|
| ``c`` | cost of the partition, from its lag (see `balance.weigh`); 1 when missing |
| ``r`` | messages that failed and wait for another attempt |
| ``k`` | handlers that have been running for too long |
| ``d`` | messages that went to the dead-letter topic |
| ``s`` | messages that failed for good and were skipped |
| ``o`` | offset of the first message that fails or is stuck now, else of the last one given up |
| ``e`` | class of the last exception, at most 64 characters |
| ``t`` | Kafka's id of the topic that the position is of, 16 bytes |
| ``n``, ``m`` | how many partitions the topic had when the group began with it, and when (ms) |
| ``f``, ``w`` | what is done above the position: from which offset on, and `done_offsets` |
| ``g`` | leader epoch (KIP-320) of what comes right before the position; −1 when missing |
| ``p`` | epoch of the first claim since the position was set (SetPosition); −1 when missing |
| ``l`` | of a range, released messages: [offset, deliveries that its grants do not count] |
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Final

import msgspec

from marshal_py.protocol.done_offsets import Ranges, decode_ranges, encode_ranges
from marshal_py.protocol.messages import MAX_METADATA_BYTES

__all__ = ["MAX_CLASS", "MAX_RELEASED", "ClaimMetadata"]

MAX_CLASS: Final = 64
"""Characters of the name of an exception's class."""

MAX_RELEASED: Final = 8
"""Messages of one range whose deliveries are told, at most."""


class ClaimMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is published with one claim."""

    cost: int = msgspec.field(default=1, name="c")
    retrying: int = msgspec.field(default=0, name="r")
    stuck: int = msgspec.field(default=0, name="k")
    dead_lettered: int = msgspec.field(default=0, name="d")
    skipped: int = msgspec.field(default=0, name="s")
    offset: int = msgspec.field(default=-1, name="o")
    error: str = msgspec.field(default="", name="e")
    topic_id: bytes = msgspec.field(default=b"", name="t")
    began_with: int = msgspec.field(default=0, name="n")
    began_ms: int = msgspec.field(default=0, name="m")
    done_from: int = msgspec.field(default=0, name="f")
    done: bytes = msgspec.field(default=b"", name="w")
    leader_epoch: int = msgspec.field(default=-1, name="g")
    first_epoch_since_set: int = msgspec.field(default=-1, name="p")
    released: tuple[tuple[int, int], ...] = msgspec.field(default=(), name="l")

    @property
    def has_failures(self) -> bool:
        """Whether some message failed, or does not come to an end."""
        return bool(self.retrying or self.stuck or self.dead_lettered or self.skipped)

    def encode(self) -> bytes:
        """Return the metadata; nothing at all if all is as by default."""
        return b"" if self == _DEFAULTS else _encoder.encode(self)

    def inherited(self) -> ClaimMetadata:
        """Return what the next holder of the cell takes over: all but the failures."""
        return msgspec.structs.replace(
            _DEFAULTS,
            cost=self.cost,
            topic_id=self.topic_id,
            began_with=self.began_with,
            began_ms=self.began_ms,
            done_from=self.done_from,
            done=self.done,
            leader_epoch=self.leader_epoch,
            first_epoch_since_set=self.first_epoch_since_set,
            released=self.released,
        )

    def with_failures(self, failures: ClaimMetadata) -> ClaimMetadata:
        """Return this, with the failures of `failures`; less of what is done, if it must."""
        changed = msgspec.structs.replace(
            self,
            retrying=failures.retrying,
            stuck=failures.stuck,
            dead_lettered=failures.dead_lettered,
            skipped=failures.skipped,
            offset=failures.offset,
            error=failures.error,
        )
        return _fitting(changed)

    def with_leader_epoch(self, epoch: int) -> ClaimMetadata:
        """Return this, with the leader epoch; less of what is done, if it must."""
        return _fitting(msgspec.structs.replace(self, leader_epoch=epoch))

    def with_done(self, base: int, ranges: Ranges) -> ClaimMetadata:
        """Return this, with as much of what is done above `base` as there is room for."""
        bare = msgspec.structs.replace(self, done_from=0, done=b"")
        if len(bare.encode()) > MAX_METADATA_BYTES:
            bare = msgspec.structs.replace(bare, released=())
        if not ranges:
            return bare
        least = msgspec.structs.replace(bare, done_from=base, done=b"-")
        room = MAX_METADATA_BYTES - len(least.encode())
        done = encode_ranges(base, ranges, room)
        return msgspec.structs.replace(bare, done_from=base, done=done) if done else bare

    def with_released(self, released: Iterable[tuple[int, int]]) -> ClaimMetadata:
        """Return this, with what is told of the first `MAX_RELEASED` messages that come again."""
        told = tuple(islice(released, MAX_RELEASED))
        return msgspec.structs.replace(self, released=told).with_done(
            self.done_from, self.done_ranges
        )

    @property
    def done_ranges(self) -> Ranges:
        """The offsets above the position that are done."""
        return decode_ranges(self.done_from, self.done)

    @classmethod
    def decode(cls, data: bytes) -> ClaimMetadata:
        """Return what a holder published; the defaults if it is something else."""
        return _decode(data) if data else _DEFAULTS


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ClaimMetadata)
_DEFAULTS: Final = ClaimMetadata()


def _fitting(metadata: ClaimMetadata) -> ClaimMetadata:
    if len(metadata.encode()) <= MAX_METADATA_BYTES:
        return metadata
    return metadata.with_done(metadata.done_from, metadata.done_ranges)


@lru_cache(maxsize=4096)
def _decode(data: bytes) -> ClaimMetadata:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _DEFAULTS
