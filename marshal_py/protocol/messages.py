"""The records of the coordination topic, and their msgpack codec (specs/PROTOCOL.md §3).

A record is one msgpack array. Its first six elements are the same for every type::

    [type, version, client_id, instance_id, group_id, seq, ...]

`type` is the number in `TYPE_NAMES`; `version` is 2; `seq` is a number that the sending instance
counts up, so that it recognises its own records when it reads them. What follows depends on the
type. Elements beyond the ones that a reader knows are skipped, so fields can be added at the end.

Decoding validates everything (types, ranges, lengths) and raises nothing but `MalformedRecord`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from marshal_py.errors import MalformedRecord
from marshal_py.protocol.msgpack_scan import NotWellFormed, array_header, cut_array, int_at

__all__ = [
    "LEVEL",
    "MAX_BASE",
    "MAX_ENTRIES",
    "MAX_ID_LENGTH",
    "MAX_INTERVAL_MS",
    "MAX_LEVEL",
    "MAX_MEMBER_METADATA_BYTES",
    "MAX_METADATA_BYTES",
    "MAX_PARTITION",
    "MAX_RANGE_TOPIC_LENGTH",
    "MAX_TOPIC_LENGTH",
    "NO_OFFSET",
    "TYPE_NAMES",
    "VERSION",
    "ClaimingMessages",
    "ClaimingPartition",
    "ClaimingRange",
    "ForgetGroup",
    "Genesis",
    "Heartbeat",
    "Membership",
    "Message",
    "MetadataEntry",
    "ReleaseGroup",
    "ReleasingPartition",
    "ResumeGroup",
    "SetLevel",
    "SetPosition",
    "SplittingRange",
    "check_names",
    "decode",
    "encode",
]

VERSION: Final = 2
"""The protocol version that every record carries."""

NO_OFFSET: Final = -1
"""`next_offset` and `claimed_offset` of a cell that has no position; `expected_version` of a cell
that was never touched."""

MAX_ID_LENGTH: Final = 255
MAX_TOPIC_LENGTH: Final = 249
MAX_RANGE_TOPIC_LENGTH: Final = 218
"""So that the name of a range's cell is one that a record can carry (§5.18)."""
MAX_PARTITION: Final = 2**31 - 1
MAX_INTERVAL_MS: Final = 86_400_000
MAX_METADATA_BYTES: Final = 256
MAX_MEMBER_METADATA_BYTES: Final = 4096
MAX_ENTRIES: Final = 8192
MAX_LEVEL: Final = 255
MAX_BASE: Final = 2**62
"""The largest base of epochs that a genesis may set: what follows fits into 63 bits."""

LEVEL: Final = 1
"""The level of a group that nobody has raised, and all that this version of the code follows."""

_MAX_INT64: Final = 2**63 - 1

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH)]
Topic: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC_LENGTH)]
RangeTopic: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_RANGE_TOPIC_LENGTH)]
Partition: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_PARTITION)]
IntervalMs: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_INTERVAL_MS)]
LogOffset: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_INT64)]
Offset: TypeAlias = Annotated[int, Meta(ge=NO_OFFSET, le=_MAX_INT64)]
Metadata: TypeAlias = Annotated[bytes, Meta(max_length=MAX_METADATA_BYTES)]
MemberMetadata: TypeAlias = Annotated[bytes, Meta(max_length=MAX_MEMBER_METADATA_BYTES)]

Level: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_LEVEL)]

Membership: TypeAlias = Literal[0, 1, 2]
"""What a heartbeat says of its sender: 0 nothing, 1 a member of the group, 2 leaving it."""


class MetadataEntry(Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The metadata of one claim inside a `Heartbeat`: ``[claimed_at, metadata]``."""

    claimed_at: LogOffset
    metadata: Metadata


class _Record(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: Literal[2]
    client_id: Id
    instance_id: Id
    group_id: Id
    seq: LogOffset


class ClaimingPartition(_Record, tag=1, frozen=True, array_like=True, gc=False):
    """Claim a cell, if its version is still `expected_version` (−1: never touched)."""

    topic: Topic
    partition: Partition
    interval_ms: IntervalMs
    expected_version: Offset


class Heartbeat(_Record, tag=2, frozen=True, array_like=True, gc=False):
    """Renew everything that the instance holds; say what has changed since the last time.

    `positions` holds two numbers for each claim whose position moved: the offset of the claim in
    the coordination partition (its epoch less the log's base) and the next offset to process.
    `metadata` does the same for the claims' metadata. `member_metadata` is None where it is as it
    was. `lowest` and `highest` are the levels that the sender can follow.
    """

    interval_ms: Annotated[int, Meta(ge=0, le=MAX_INTERVAL_MS)]
    membership: Membership = 0
    positions: Annotated[list[Offset], Meta(max_length=2 * MAX_ENTRIES)] = []
    metadata: Annotated[list[MetadataEntry], Meta(max_length=MAX_ENTRIES)] = []
    member_metadata: MemberMetadata | None = None
    lowest: Level = LEVEL
    highest: Level = LEVEL


class ReleasingPartition(_Record, tag=3, frozen=True, array_like=True, gc=False):
    """Give a claim back; the next claim need not wait. With `ends`, the cell goes as well."""

    topic: Topic
    partition: Partition
    epoch: LogOffset
    next_offset: Offset
    ends: Literal[0, 1] = 0


class ClaimingMessages(_Record, tag=4, frozen=True, array_like=True, gc=False):
    """Claim every message below `proposed_offset` for at-most-once delivery."""

    topic: Topic
    partition: Partition
    epoch: LogOffset
    proposed_offset: LogOffset


class ReleaseGroup(_Record, tag=5, frozen=True, array_like=True, gc=False):
    """Pause the group: claims are rejected, holders stop and release."""

    expires_at_ms: LogOffset


class ResumeGroup(_Record, tag=6, frozen=True, array_like=True, gc=False):
    """End the pause of a group that the record at `expected_version` began."""

    expected_version: Offset


class SetPosition(_Record, tag=7, frozen=True, array_like=True, gc=False):
    """Set the position of a cell that the sender holds, or of a paused group; it may go back."""

    topic: Topic
    partition: Partition
    next_offset: LogOffset
    expected_version: Offset


class ForgetGroup(_Record, tag=8, frozen=True, array_like=True, gc=False):
    """Remove all of a group that holds nothing, while the pause from `expected_version` stands."""

    expected_version: Offset


class Genesis(_Record, tag=9, frozen=True, array_like=True, gc=False):
    """Give the log an identity, and a base that all epochs from here on are counted from.

    `previous` is the identity that it replaces, empty where there is none. Its group_id is not
    looked at.
    """

    identity: Id
    previous: Annotated[str, Meta(max_length=MAX_ID_LENGTH)]
    base: Annotated[int, Meta(ge=0, le=MAX_BASE)]
    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITION)]
    made_ms: LogOffset


class SetLevel(_Record, tag=10, frozen=True, array_like=True, gc=False):
    """Set the level of a group, if it is still `expected_level` and every session can follow."""

    level: Level
    expected_level: Level


class ClaimingRange(_Record, tag=11, frozen=True, array_like=True, gc=False):
    """Claim some messages of a partition: the lowest free range of its book, or `count` new ones.

    New ones begin at the book's frontier, at `floor` if that is higher.
    """

    topic: RangeTopic
    partition: Partition
    interval_ms: IntervalMs
    floor: LogOffset
    count: Annotated[int, Meta(ge=1, le=MAX_PARTITION)]


class SplittingRange(_Record, tag=12, frozen=True, array_like=True, gc=False):
    """Give back the messages of a range from `at` on, of which none was begun; keep the others.

    `topic` and `partition` are those of the range's cell.
    """

    topic: Topic
    partition: Partition
    epoch: LogOffset
    at: LogOffset


Message: TypeAlias = (
    ClaimingPartition
    | Heartbeat
    | ReleasingPartition
    | ClaimingMessages
    | ReleaseGroup
    | ResumeGroup
    | SetPosition
    | ForgetGroup
    | Genesis
    | SetLevel
    | ClaimingRange
    | SplittingRange
)

TYPE_NAMES: Final[dict[int, str]] = {
    1: "ClaimingPartition",
    2: "Heartbeat",
    3: "ReleasingPartition",
    4: "ClaimingMessages",
    5: "ReleaseGroup",
    6: "ResumeGroup",
    7: "SetPosition",
    8: "ForgetGroup",
    9: "Genesis",
    10: "SetLevel",
    11: "ClaimingRange",
    12: "SplittingRange",
}

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)

decode_known = _decoder.decode
"""The bare decoder, for the fold's hot path. It raises one of `DECODE_ERRORS` for what is no
record, and for a record with elements that it does not know: `decode_extended` takes those."""

DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, TypeError)
"""What `decode_known` raises because of the bytes. Anything else that comes out of it (memory or
stack exhausted) is the reader's own trouble, and must not pass for a foreign record: this reader
would skip what the others apply."""


def encode(message: Message) -> bytes:
    """Return the bytes of `message`.

    Raises `MalformedRecord`, naming the field and what is wrong with it, for a value that no reader
    would accept (too long, out of range, of another type).
    """
    try:
        data = _encoder.encode(message)
        _decoder.decode(data)
    except (
        *DECODE_ERRORS,
        OverflowError,
        RecursionError,
        UnicodeEncodeError,
    ) as error:
        name = type(message).__name__
        raise MalformedRecord(f"{name} cannot be written: {_explain(name, error)}") from None
    return data


def decode(value: bytes | None) -> Message:
    """Return the record that `value` holds.

    Raises `MalformedRecord`, and nothing else, whatever the bytes are.
    """
    try:
        return decode_known(value)  # type: ignore[arg-type]
    except DECODE_ERRORS as error:
        record = decode_extended(value)
        if record is None:
            raise MalformedRecord(f"{why_malformed(value)}: {error}") from None
        return record


def decode_extended(value: bytes | None) -> Message | None:
    """Return the record that `value` holds once the elements that nobody knows are cut off.

    They may follow the last known element of a record, and of each metadata entry of a heartbeat
    (§10).
    None if there is no such record.
    """
    try:
        return decode_known(_without_unknown(value or b""))
    except (*DECODE_ERRORS, NotWellFormed):
        return None


def _without_unknown(value: bytes) -> bytes:
    _, position = array_header(value, 0)
    kind, position = int_at(value, position)
    version, _ = int_at(value, position)
    if version != VERSION or kind not in _KNOWN_ELEMENTS:
        raise NotWellFormed  # before the walk: what others write may be long
    elements, end = cut_array(value, 0, _KNOWN_ELEMENTS[kind], level=1)
    if end != len(value):
        raise NotWellFormed
    if kind == _HEARTBEAT and len(elements) > _METADATA_AT:
        entries = elements[_METADATA_AT]
        pieces, _ = cut_array(entries, 0, MAX_ENTRIES + 1, level=2)
        known = len(MetadataEntry.__struct_fields__)
        cut = [cut_array(piece, 0, known, level=3)[0] for piece in pieces]
        elements[_METADATA_AT] = _array([_array(fields) for fields in cut])
    return _array(elements)


def _array(elements: list[bytes]) -> bytes:
    return b"\xdd" + len(elements).to_bytes(4, "big") + b"".join(elements)


_HEARTBEAT: Final = 2
_METADATA_AT: Final = 9
_KNOWN_ELEMENTS: Final[dict[int, int]] = {
    record.__struct_config__.tag: 1 + len(record.__struct_fields__) for record in get_args(Message)
}


def why_malformed(value: bytes | None) -> Literal["undecodable", "unknown_type", "unknown_version"]:
    """Say which kind of foreign record `value`, which does not decode, is (§4.3).

    Its first two elements alone decide: what else another version or type holds is its own matter.
    """
    try:
        count, position = array_header(value or b"", 0)
        kind, position = int_at(value or b"", position)
        version, position = int_at(value or b"", position)
    except NotWellFormed:
        return "undecodable"
    if count < 2:
        return "undecodable"
    if version != VERSION:
        return "unknown_version"
    return "undecodable" if kind in TYPE_NAMES else "unknown_type"


def check_names(topic: str = "-", **ids: str) -> None:
    """Raise `msgspec.ValidationError` for a name that no record can carry (§3.1)."""
    for name, value, longest in (
        ("topic", topic, MAX_TOPIC_LENGTH),
        *((name, value, MAX_ID_LENGTH) for name, value in ids.items()),
    ):
        if not 0 < len(value) <= longest:
            raise msgspec.ValidationError(f"{name} of {len(value)} characters")


def _explain(name: str, error: Exception) -> str:
    """Turn msgspec's ``$[6]`` into the name of the field."""
    text = str(error)
    record = globals().get(name)
    if isinstance(record, type) and issubclass(record, Struct):
        fields = record.__struct_fields__
        for index in range(len(fields), 0, -1):
            text = text.replace(f"$[{index}]", f"{fields[index - 1]}")
    return text
