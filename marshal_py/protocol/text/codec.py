"""Version 1 records: text, fields split by ``/`` (specs/INTEROP.md §2).

A record is ``Type/Version/Time/InstanceID/ClientID/GroupID/Topic/Partition``, and all types but
`ClaimingPartition` have an offset after it. There is no escaping, so a name with a slash cannot be
written. Numbers follow Go's `strconv`: an optional sign and ASCII digits, within 64 bits. The
version is written as 1 and checked by nobody.

Decoding raises nothing but `MalformedRecord`, whatever the bytes are.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from marshal_py.errors import MalformedRecord

__all__ = [
    "CLAIMING_MESSAGES",
    "CLAIMING_PARTITION",
    "HEARTBEAT",
    "MAX_RECORD_BYTES",
    "RELEASE_GROUP",
    "RELEASING_PARTITION",
    "TextRecord",
    "check_name",
    "coordinating_partition",
    "decode",
    "decode_any",
    "encode",
]

HEARTBEAT: Final = "Heartbeat"
CLAIMING_PARTITION: Final = "ClaimingPartition"
RELEASING_PARTITION: Final = "ReleasingPartition"
CLAIMING_MESSAGES: Final = "ClaimingMessages"
RELEASE_GROUP: Final = "ReleaseGroup"

_CODES: Final = {
    HEARTBEAT: "hb",
    CLAIMING_PARTITION: "cp",
    RELEASING_PARTITION: "rp",
    CLAIMING_MESSAGES: "cm",
    RELEASE_GROUP: "rg",
}
"""Type → how complaints abbreviate it."""

MAX_RECORD_BYTES: Final = 8_192
"""A longer value is no record: the longest that anyone writes has less than 1,000 bytes."""

_INT: Final = re.compile(r"[+-]?[0-9]+")
_INT64: Final = range(-(2**63), 2**63)


class TextRecord(NamedTuple):
    """One version 1 record. `time_s` is the sender's clock, in seconds since 1970.

    `offset` is None in a `ClaimingPartition`, and the expiry in seconds in a `ReleaseGroup`.
    """

    type: str
    version: int
    time_s: int
    instance_id: str
    client_id: str
    group_id: str
    topic: str
    partition: int
    offset: int | None = None


def coordinating_partition(topic: str, partitions: int) -> int:
    """Return which of `partitions` coordination partitions decides all claims of `topic`.

    The first 8 bytes of the MD5 of the name, little-endian, modulo `partitions`. Neither the group
    nor the claimed partition matters.
    """
    digest = hashlib.md5(topic.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little") % partitions


def check_name(field: str, value: str) -> None:
    """Raise `MalformedRecord` for a name that a text record cannot carry."""
    if "/" in value:
        raise MalformedRecord(
            f"{field} = {value!r} has a slash, which separates the fields of version 1 records: "
            "Go clients would wait for ever. Choose a name without one"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MalformedRecord(f"{field} = {value!r} cannot be written as UTF-8") from None


def encode(record: TextRecord, *, check: bool = True) -> bytes:
    """Return the bytes of `record`.

    Raises `MalformedRecord`, naming the field, for what would not read back as it is. With
    `check=False` it is written all the same, as Go does.
    """
    if check:
        _check(record)
    text = (
        f"{record.type}/{record.version}/{record.time_s}/{record.instance_id}/{record.client_id}/"
        f"{record.group_id}/{record.topic}/{record.partition}"
    )
    if record.offset is not None:
        text = f"{text}/{record.offset}"
    return text.encode()


def _check(record: TextRecord) -> None:
    if record.type not in _CODES:
        raise MalformedRecord(f"type = {record.type!r} is not one of {', '.join(_CODES)}")
    for field in ("instance_id", "client_id", "group_id", "topic"):
        check_name(field, getattr(record, field))
    if (record.offset is None) != (record.type == CLAIMING_PARTITION):
        raise MalformedRecord(
            f"offset = {record.offset!r}: every record has one, but for {CLAIMING_PARTITION}"
        )
    for field in ("version", "time_s", "partition", "offset"):
        number = getattr(record, field)
        if number is not None and (type(number) is not int or number not in _INT64):
            raise MalformedRecord(f"{field} = {number!r} is no whole number of 64 bits")


def decode(value: bytes | None) -> TextRecord:
    """Return the record that the last version of Go Marshal would read from `value`.

    It knows no `ReleaseGroup`: see `decode_any`. Raises `MalformedRecord`.
    """
    record = decode_any(value)
    if record.type == RELEASE_GROUP:
        raise _invalid("", value)
    return record


def decode_any(value: bytes | None) -> TextRecord:
    """Return the record that `value` holds, the `ReleaseGroup` of early versions included.

    Bytes that are not UTF-8 become U+FFFD, one for each. Raises `MalformedRecord`.
    """
    raw = value or b""
    if len(raw) > MAX_RECORD_BYTES:
        raise MalformedRecord(f"a value of {len(raw)} bytes is no record")
    fields = _text(raw).split("/")
    count = len(fields)
    if count < 8:
        raise _invalid("length", raw)
    version = _int(fields[1], "version", raw)
    time_s = _int(fields[2], "timestamp", raw)
    partition = _int(fields[7], "partID", raw)
    kind = fields[0]
    code = _CODES.get(kind)
    if code is None:
        raise _invalid("", raw)
    if count != (8 if kind == CLAIMING_PARTITION else 9):
        raise _invalid(f"{code} length", raw)
    offset = _int(fields[8], f"{code} offset", raw) if count == 9 else None
    return TextRecord(
        kind, version, time_s, fields[3], fields[4], fields[5], fields[6], partition, offset
    )


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        text = raw.decode(errors="surrogateescape")
        return "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in text)


def _int(text: str, what: str, raw: bytes) -> int:
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    if _INT.fullmatch(text) is not None and len(text) <= _MAX_DIGITS:
        number = int(text)
        if number in _INT64:
            return number
    raise _invalid(what, raw)


_MAX_DIGITS: Final = 4_000
"""Leading zeros are allowed, in any number; Python's own limit for `int` is 4,300 digits."""


def _invalid(what: str, raw: bytes | None) -> MalformedRecord:
    where = f" ({what})" if what else ""
    return MalformedRecord(f"Invalid message{where}: [{_text(raw or b'')}]")
