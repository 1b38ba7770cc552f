"""What a consumer tells the others with each claim: how far behind it is, and which messages fail.

It travels as the metadata of the claim (at most 256 bytes, specs/PROTOCOL.md §3.3), which the fold
never looks into: a msgpack map with one-letter keys, of which all may be missing; unknown ones are
skipped. It goes when the claim goes to somebody else: the counts are of one claim.

| key | what |
|---|---|
| ``c`` | cost of the partition, from its lag (see `balance.weigh`); 1 when missing |
| ``r`` | messages that failed and wait for another attempt |
| ``k`` | handlers that have been running for too long |
| ``d`` | messages that went to the dead-letter topic |
| ``s`` | messages that failed for good and were skipped |
| ``o`` | offset of the first message that fails or is stuck now, else of the last one given up |
| ``e`` | class of the last exception, at most 64 characters |
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

__all__ = ["MAX_CLASS", "ClaimMetadata"]

MAX_CLASS: Final = 64
"""Characters of the name of an exception's class."""


class ClaimMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is published with one claim."""

    cost: int = msgspec.field(default=1, name="c")
    retrying: int = msgspec.field(default=0, name="r")
    stuck: int = msgspec.field(default=0, name="k")
    dead_lettered: int = msgspec.field(default=0, name="d")
    skipped: int = msgspec.field(default=0, name="s")
    offset: int = msgspec.field(default=-1, name="o")
    error: str = msgspec.field(default="", name="e")

    @property
    def has_failures(self) -> bool:
        """Whether some message failed, or does not come to an end."""
        return bool(self.retrying or self.stuck or self.dead_lettered or self.skipped)

    def encode(self) -> bytes:
        """Return the metadata; nothing at all if all is as by default."""
        return b"" if self == _DEFAULTS else _encoder.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> ClaimMetadata:
        """Return what a holder published; the defaults if it is something else."""
        return _decode(data) if data else _DEFAULTS


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ClaimMetadata)
_DEFAULTS: Final = ClaimMetadata()


@lru_cache(maxsize=4096)
def _decode(data: bytes) -> ClaimMetadata:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _DEFAULTS
