"""Snapshots of the coordination state: what their records hold (specs/PROTOCOL.md §6). No I/O.

A snapshot is the state of one coordination partition after every record below `next_offset`. It is
kept in the compacted topic ``__marshal.snapshots``, in the partition of the same number. A reader
starts from the newest one and reads on from `next_offset`. It first checks `anchor`, a digest of
the record just below: a topic that was deleted and made again does not get the state of its
predecessor.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from marshal_py.errors import MalformedRecord
from marshal_py.protocol.rationalizer import PartitionState

__all__ = [
    "MAX_STATE_BYTES",
    "Snapshot",
    "SnapshotDue",
    "anchor_of",
    "decode_snapshot",
    "encode_snapshot",
]

MAX_STATE_BYTES: Final = 256 * 1024 * 1024
"""A snapshot that unpacks to more is refused: nobody's state is that large, but a bomb may be."""

Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]


class _Envelope(Struct, array_like=True, frozen=True):
    format: Literal[1]
    coordinator: Annotated[int, Meta(ge=0)]
    partitions: Annotated[int, Meta(ge=1)]
    next_offset: Annotated[int, Meta(ge=1)]
    anchor: Digest
    digest: Digest
    writer: str
    state: bytes


class Snapshot(Struct, frozen=True):
    """One coordination partition's state after every record below `next_offset`."""

    coordinator: int
    partitions: int
    next_offset: int
    anchor: bytes
    digest: bytes
    writer: str
    state: bytes

    def restore(self) -> PartitionState:
        """Return the state. Raises `MalformedRecord` if it is not what the digest says."""
        try:
            state = PartitionState.decode(self.state)
        except msgspec.MsgspecError as error:
            raise MalformedRecord(f"snapshot of partition {self.coordinator}: {error}") from None
        if state.next_offset != self.next_offset or state.partition != self.coordinator:
            raise MalformedRecord(
                f"snapshot of partition {self.coordinator} at {self.next_offset} holds the state "
                f"of partition {state.partition} at {state.next_offset}"
            )
        return state


class SnapshotDue(NamedTuple):
    """The state at a boundary, which the client whose record crossed it may write down."""

    coordinator: int
    next_offset: int
    anchor: bytes
    state: bytes
    crossed_by: str


def anchor_of(value: bytes | None) -> bytes:
    """Return the 16-byte digest of the last record that a snapshot covers."""
    return hashlib.blake2b(value or b"", digest_size=16).digest()


def encode_snapshot(
    state: bytes, *, coordinator: int, partitions: int, next_offset: int, anchor: bytes, writer: str
) -> bytes:
    """Return the value of a snapshot record; `state` is what `PartitionState.encode` returned."""
    return msgspec.msgpack.encode(
        _Envelope(
            1,
            coordinator,
            partitions,
            next_offset,
            anchor,
            hashlib.blake2b(state, digest_size=16).digest(),
            writer,
            zlib.compress(state, 6),
        )
    )


_decoder: Final = msgspec.msgpack.Decoder(_Envelope)


def decode_snapshot(value: bytes | None) -> Snapshot:
    """Return the snapshot that a record holds.

    Raises `MalformedRecord`, and nothing else, for bytes that are none, that were damaged, or that
    would unpack to more than `MAX_STATE_BYTES`.
    """
    try:
        envelope = _decoder.decode(value)  # type: ignore[arg-type]
        unpacker = zlib.decompressobj()
        state = unpacker.decompress(envelope.state, MAX_STATE_BYTES)
    except Exception as error:
        raise MalformedRecord(f"no snapshot: {error}") from None
    if not unpacker.eof:
        raise MalformedRecord(f"snapshot is cut off, or unpacks to over {MAX_STATE_BYTES} bytes")
    if hashlib.blake2b(state, digest_size=16).digest() != envelope.digest:
        raise MalformedRecord(
            f"snapshot of partition {envelope.coordinator} at {envelope.next_offset} does not "
            "match its own digest"
        )
    return Snapshot(
        envelope.coordinator,
        envelope.partitions,
        envelope.next_offset,
        envelope.anchor,
        envelope.digest,
        envelope.writer,
        state,
    )
