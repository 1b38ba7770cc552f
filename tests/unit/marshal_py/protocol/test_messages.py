"""The codec: what it writes, what it takes and what it refuses (specs/PROTOCOL.md §3)."""

from __future__ import annotations

import re
import struct
import sys
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import messages as m
from marshal_py.protocol.msgpack_scan import MAX_NESTING, int_at
from tests.support import reference_fold as reference
from tests.support import strategies as some
from tests.support.paths import SPECS
from tests.support.spec import spec
from tests.support.strategies import pack

COMMON: list[Any] = ["c", "i", "g", 7]
MINIMAL: dict[int, list[Any]] = {
    1: [1, 2, *COMMON, "t", 0, 1000, -1],
    2: [2, 2, *COMMON, 1000],
    3: [3, 2, *COMMON, "t", 0, 5, -1],
    4: [4, 2, *COMMON, "t", 0, 5, 0],
    5: [5, 2, *COMMON, 0],
    6: [6, 2, *COMMON, -1],
    7: [7, 2, *COMMON, "t", 0, 0, -1],
    8: [8, 2, *COMMON, -1],
    9: [9, 2, *COMMON, "one", "", 0, 1, 0],
    10: [10, 2, *COMMON, 1, 1],
    11: [11, 2, *COMMON, "t", 0, 1000, 0, 1],
    12: [12, 2, *COMMON, "t/0@0", 0, 5, 1],
}
SHORTEST = MINIMAL[8]
WITH_ENTRY: list[Any] = [2, 2, *COMMON, 1000, 0, [5, -1], [[5, b"e"]]]


def decodes(value: Any) -> bool:
    """Whether the bytes, or the bytes of the Python value, are a record, for both decoders."""
    data = value if isinstance(value, bytes) or value is None else pack(value)
    try:
        m.decode(data)
        ours = "record"
    except MalformedRecord:
        ours = m.why_malformed(data)
    try:
        reference.read_record(data)
        theirs = "record"
    except reference.Foreign as foreign:
        theirs = foreign.args[0]
    assert ours == theirs, data
    return ours == "record"


# ------------------------------------------------------------------ round trips


@spec("R-1", "R-2", "R-3")
@given(some.any_records)
def test_every_record_comes_back_as_it_was(record: m.Message) -> None:
    data = m.encode(record)
    assert m.decode(data) == record
    array = msgpack.unpackb(data)
    assert array[0] == type(record).__struct_config__.tag
    assert array[1] == 2
    assert array[2:6] == [record.client_id, record.instance_id, record.group_id, record.seq]


@spec("R-4")
@given(some.any_records)
def test_what_is_written_is_the_shortest_msgpack_with_all_elements(record: m.Message) -> None:
    data = m.encode(record)
    array = msgpack.unpackb(data)
    assert len(array) == 1 + len(record.__struct_fields__)
    assert data == pack(array)


@given(some.any_records)
def test_both_decoders_read_the_same_fields(record: m.Message) -> None:
    read = reference.read_record(m.encode(record))
    assert read.pop("record") == type(record).__name__
    fields = msgspec.structs.asdict(record)
    del fields["version"]
    assert read == _hex(fields)


def _hex(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, m.MetadataEntry):
        return _hex(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {key: _hex(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hex(inner) for inner in value]
    return value


# ------------------------------------------------------------------ numbers and names


@spec("R-1")
def test_type_numbers() -> None:
    assert m.TYPE_NAMES == reference.NAMES
    for number, name in m.TYPE_NAMES.items():
        assert type(m.decode(pack(MINIMAL[number]))).__name__ == name


@spec("R-20")
@pytest.mark.parametrize("number", range(13, 16))
def test_reserved_types_are_unknown(number: int) -> None:
    assert not decodes([number, 2, *COMMON])
    assert m.why_malformed(pack([number, 2, *COMMON])) == "unknown_type"


# ------------------------------------------------------------------ missing and added elements


@spec("R-5")
@pytest.mark.parametrize("number", MINIMAL)
def test_no_required_element_may_be_missing(number: int) -> None:
    array = MINIMAL[number]
    assert decodes(array)
    for length in range(len(array)):
        assert not decodes(array[:length])


@spec("R-5")
def test_no_required_element_of_an_entry_may_be_missing() -> None:
    assert decodes([*WITH_ENTRY[:9], [[5, b"e"]]])
    for length in range(2):
        assert not decodes([*WITH_ENTRY[:9], [[5, b"e"][:length]]])


@spec("R-6")
def test_optional_elements_have_defaults() -> None:
    short = m.decode(pack(MINIMAL[2]))
    assert isinstance(short, m.Heartbeat)
    assert (short.membership, short.positions, short.metadata) == (0, [], [])
    assert (short.member_metadata, short.lowest, short.highest) == (None, 1, 1)
    for length in range(7, 13):
        assert decodes([*WITH_ENTRY, b"m", 1, 2][:length])
    given = m.decode(pack(MINIMAL[3]))
    assert isinstance(given, m.ReleasingPartition)
    assert given.ends == 0


@spec("R-7", "X-1")
@pytest.mark.parametrize(
    "added",
    [
        b"\xc0",
        b"\xc3",
        b"\x05",
        b"\xcb" + b"\xff" * 8,
        b"\xa1\xff",  # a string that is not UTF-8
        b"\xc4\x01\x00",
        b"\xd4\x05\x00",  # an extension type that nobody knows
        b"\xc7\x05\xff\x01\x02\x03\x04\x05",  # a timestamp of a wrong length
        b"\x93\x01\x90\x80",
        b"\x81\x91\x01\xc0",  # a map whose key is an array
        b"\x82\x01\x02\x01\x03",  # a map with a key twice
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_unknown_elements_are_skipped(added: bytes, times: int) -> None:
    full: dict[int, list[Any]] = {**MINIMAL, 2: [*WITH_ENTRY, b"m", 1, 1], 3: [*MINIMAL[3], 1]}
    for array in full.values():
        data = pack(array)
        longer = bytes([0x90 + len(array) + times]) + data[1:] + added * times
        if len(array) + times > 15:
            longer = b"\xdc\x00" + bytes([len(array) + times]) + data[1:] + added * times
        assert decodes(longer)
        assert m.decode(longer) == m.decode(data)
    entry = pack([5, b"e"])
    longer_entry = bytes([0x92 + times]) + entry[1:] + added * times
    data = pack([*WITH_ENTRY[:9], []])
    longer = data[:-1] + b"\x91" + longer_entry
    assert decodes(longer)
    assert m.decode(longer) == m.decode(data[:-1] + b"\x91" + entry)


@spec("R-8")
@pytest.mark.parametrize(
    "added", [b"", b"\xc1", b"\xa5ab", b"\x91", b"\xdd\xff\xff\xff\xff", b"\xd9"]
)
def test_an_unknown_element_must_still_be_whole(added: bytes) -> None:
    assert not decodes(b"\x98" + pack(SHORTEST)[1:] + added)


def sample(opcode: int) -> bytes:
    """The bytes of a small value that starts with `opcode`."""
    head = bytes([opcode])
    if opcode <= 0x7F or opcode >= 0xE0 or opcode in (0xC0, 0xC2, 0xC3):
        return head
    if opcode <= 0x9F:
        return head + b"\xc0" * ((opcode & 0x0F) * (2 if opcode <= 0x8F else 1))
    if opcode <= 0xBF:
        return head + b"x" * (opcode & 0x1F)
    counted = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
    if opcode in counted:
        extra = b"\x05" if 0xC7 <= opcode <= 0xC9 else b""
        return head + (3).to_bytes(counted[opcode], "big") + extra + b"xyz"
    containers = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
    if opcode in containers:
        size, per_item = containers[opcode]
        return head + (3).to_bytes(size, "big") + b"\xc0" * 3 * per_item
    fixed = [4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17]  # 0xca to 0xd8
    return head + b"\x00" * fixed[opcode - 0xCA]


@spec("R-7", "R-8")
@pytest.mark.parametrize("opcode", [n for n in range(256) if n != 0xC1])
def test_every_opcode_is_skipped_as_a_whole(opcode: int) -> None:
    value = sample(opcode)
    record = pack(SHORTEST)[1:]
    for header in (b"\x98", b"\xdc\x00\x08", b"\xdd\x00\x00\x00\x08"):
        assert decodes(header + record + value)
        assert not decodes(header + record + value[:-1])
        assert not decodes(header + record + value + b"\xc0")
    assert decodes(b"\x99" + record + value + b"\xc0")
    inside = b"\x9a" + pack([*WITH_ENTRY[:9], []])[1:-1] + b"\x91\x93" + pack([5, b"e"])[1:]
    assert decodes(inside + value)
    assert not decodes(inside + value[:-1])
    assert not decodes(inside + value + b"\xc0")


@spec("R-8")
def test_nothing_may_follow_the_array() -> None:
    for array in (SHORTEST, [*SHORTEST, None]):
        assert decodes(pack(array))
        assert not decodes(pack(array) + b"\x00")
        assert not decodes(pack(array)[:-1])


def nested(depth: int, opener: bytes = b"\x91") -> bytes:
    """A record whose added element consists of `depth` arrays or maps within one another."""
    return b"\x98" + pack(SHORTEST)[1:] + opener * depth + b"\xc0"


@spec("R-9")
@pytest.mark.parametrize(
    "opener", [b"\x91", b"\x81\x01", b"\xdc\x00\x01", b"\xdf\x00\x00\x00\x01\x01"]
)
def test_nesting_has_a_limit(opener: bytes) -> None:
    assert MAX_NESTING == 32
    assert decodes(nested(31, opener))
    assert not decodes(nested(32, opener))
    assert m.why_malformed(nested(32, opener)) == "undecodable"


@spec("R-9", "F-1")
@pytest.mark.parametrize("depth", [31, 32, 400, 900, 5000, 200_000])
def test_the_readers_stack_does_not_decide_what_a_record_is(depth: int) -> None:
    def verdict(value: bytes, frames: int) -> bool:
        if frames:
            return verdict(value, frames - 1)
        try:
            m.decode(value)
        except MalformedRecord:
            return False
        return True

    for value in (nested(depth), b"\x92\x01\x03" + b"\x91" * depth + b"\xc0"):
        here = verdict(value, 0), m.why_malformed(value)
        deep = verdict(value, sys.getrecursionlimit() - 300), m.why_malformed(value)
        assert here == deep


@spec("R-9")
def test_a_bad_stack_of_the_reader_is_not_taken_for_a_bad_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(value: bytes) -> m.Message:
        raise RecursionError

    monkeypatch.setattr(m, "decode_known", exhausted)
    with pytest.raises(RecursionError):
        m.decode(pack(SHORTEST))


# ------------------------------------------------------------------ types, strictly

NOT_INTEGERS = [
    None,
    True,
    False,
    1.0,
    1.5,
    "1",
    b"1",
    [],
    {},
    float("nan"),
    msgpack.ExtType(1, b""),
]
NOT_STRINGS = [None, True, 1, 1.0, b"c", [], {}, ["c"], msgpack.ExtType(1, b"c")]
NOT_BYTES = [None, True, 1, 1.0, "c", [], {}, [1], msgpack.ExtType(1, b"c")]
NOT_ARRAYS = [None, True, 0, 1.0, "c", b"c", {}, {0: 1}, msgpack.ExtType(1, b"c")]


def put(array: list[Any], path: tuple[int, ...], value: Any) -> list[Any]:
    """A copy of nested lists with one element replaced."""
    copy = list(array)
    copy[path[0]] = put(array[path[0]], path[1:], value) if len(path) > 1 else value
    return copy


FULL: dict[int, list[Any]] = {
    **MINIMAL,
    2: [*WITH_ENTRY, b"m", 1, 1],
    3: [*MINIMAL[3], 1],
}
BOUNDS: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {
    **{(number, (1,)): (2, 2) for number in FULL},
    **{(number, (5,)): (0, 2**63 - 1) for number in FULL},
    **{(number, (7,)): (0, 2**31 - 1) for number in (1, 3, 4, 7, 11, 12)},
    (1, (8,)): (1, 86_400_000),
    (1, (9,)): (-1, 2**63 - 1),
    (2, (6,)): (0, 86_400_000),
    (2, (7,)): (0, 2),
    (2, (8, 0)): (-1, 2**63 - 1),
    (2, (8, 1)): (-1, 2**63 - 1),
    (2, (9, 0, 0)): (0, 2**63 - 1),
    (2, (11,)): (1, 255),
    (2, (12,)): (1, 255),
    (3, (8,)): (0, 2**63 - 1),
    (3, (9,)): (-1, 2**63 - 1),
    (3, (10,)): (0, 1),
    (4, (8,)): (0, 2**63 - 1),
    (4, (9,)): (0, 2**63 - 1),
    (5, (6,)): (0, 2**63 - 1),
    (6, (6,)): (-1, 2**63 - 1),
    (7, (8,)): (0, 2**63 - 1),
    (7, (9,)): (-1, 2**63 - 1),
    (8, (6,)): (-1, 2**63 - 1),
    (9, (8,)): (0, 2**62),
    (9, (9,)): (1, 2**31 - 1),
    (9, (10,)): (0, 2**63 - 1),
    (10, (6,)): (1, 255),
    (10, (7,)): (1, 255),
    (11, (8,)): (1, 86_400_000),
    (11, (9,)): (0, 2**63 - 1),
    (11, (10,)): (1, 2**31 - 1),
    (12, (8,)): (0, 2**63 - 1),
    (12, (9,)): (0, 2**63 - 1),
}
STRINGS: dict[tuple[int, tuple[int, ...]], int] = {
    **{(number, (at,)): 255 for number in FULL for at in (2, 3, 4)},
    **{(number, (6,)): 249 for number in (1, 3, 4, 7, 12)},
    (11, (6,)): 218,
    (9, (6,)): 255,
}
BINARIES: dict[tuple[int, tuple[int, ...]], int] = {(2, (9, 0, 1)): 256, (2, (10,)): 4096}


@spec("R-10", "R-11")
@pytest.mark.parametrize("place", BOUNDS, ids=str)
def test_integers(place: tuple[int, tuple[int, ...]]) -> None:
    number, path = place
    low, high = BOUNDS[place]
    for value in (low, high):
        assert decodes(put(FULL[number], path, value)), value
    for value in (low - 1, high + 1, -(2**63), 2**64 - 1):
        assert not decodes(put(FULL[number], path, value)), value
    for value in NOT_INTEGERS:
        assert not decodes(put(FULL[number], path, value)), value


@spec("R-10", "R-12")
@pytest.mark.parametrize("place", STRINGS, ids=str)
def test_strings(place: tuple[int, tuple[int, ...]]) -> None:
    number, path = place
    longest = STRINGS[place]
    for value in ("x", "\x00", "x" * longest, "\U0001f600" * longest, "e\u0301" * (longest // 2)):
        assert decodes(put(FULL[number], path, value)), value
    for value in ("", "x" * (longest + 1), "\U0001f600" * (longest + 1)):
        assert not decodes(put(FULL[number], path, value)), value
    for value in NOT_STRINGS:
        assert not decodes(put(FULL[number], path, value)), value


@spec("R-12")
@pytest.mark.parametrize(
    "octets", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"a\x80"]
)
@pytest.mark.parametrize("place", STRINGS, ids=str)
def test_strings_must_be_utf_8(place: tuple[int, tuple[int, ...]], octets: bytes) -> None:
    number, path = place
    data = pack(put(FULL[number], path, "@" * len(octets)))
    assert decodes(data)
    assert not decodes(data.replace(b"@" * len(octets), octets))


@spec("R-10", "R-13")
@pytest.mark.parametrize("place", BINARIES, ids=str)
def test_binaries(place: tuple[int, tuple[int, ...]]) -> None:
    number, path = place
    longest = BINARIES[place]
    for value in (b"", b"\xff", b"x" * longest):
        assert decodes(put(FULL[number], path, value)), value
    assert not decodes(put(FULL[number], path, b"x" * (longest + 1)))
    for wrong in NOT_BYTES:
        may_be_nil = wrong is None and path == (10,)
        assert decodes(put(FULL[number], path, wrong)) is may_be_nil, wrong


@spec("R-12")
def test_the_previous_identity_may_be_empty() -> None:
    for value in ("", "x" * 255):
        assert decodes(put(FULL[9], (7,), value))
    for value in ("x" * 256, *NOT_STRINGS):
        assert not decodes(put(FULL[9], (7,), value))


@spec("R-10", "R-14")
def test_entries_are_an_array_of_arrays() -> None:
    head = WITH_ENTRY[:9]
    for value in NOT_ARRAYS:
        assert not decodes([*head[:8], value])
        assert not decodes([*head, value])
        assert not decodes([*head, [value]])
    # The same when elements that nobody knows follow, which is another way through the codec.
    for value in ([], [[5, b"e"]]):
        assert decodes([*head, value, b"", 1, 1, None])
    for value in [*NOT_ARRAYS, ""]:
        assert not decodes([*head, value, b"", 1, 1, None])
        assert not decodes([*head, [value], b"", 1, 1, None])
    for value in NOT_INTEGERS:
        assert not decodes([*head, [[value, b"e", None]]])
    entry = [5, b"e"]
    assert decodes([*head, [entry] * 8192])
    assert not decodes([*head, [entry] * 8193])
    longer = [*entry, None]
    assert decodes([*head, [longer] * 8192])
    assert not decodes([*head, [longer] * 8193])
    assert decodes([*head[:8], [0] * 16384])
    assert not decodes([*head[:8], [0] * 16385])


@spec("R-15")
@pytest.mark.parametrize(
    "octets",
    [
        b"\xdc\x00\x07\x08\x02",
        b"\xdd\x00\x00\x00\x07\x08\x02",
        b"\x97\xcc\x08\x02",
        b"\x97\xcd\x00\x08\xce\x00\x00\x00\x02",
        b"\x97\xcf" + b"\x00" * 7 + b"\x08\xd0\x02",
        b"\x97\xd1\x00\x08\xd2\x00\x00\x00\x02",
        b"\x97\xd3" + b"\x00" * 7 + b"\x08\x02",
    ],
)
def test_longer_forms_of_numbers_and_headers_are_read(octets: bytes) -> None:
    data = octets + pack(SHORTEST)[3:]
    assert decodes(data)
    assert m.decode(data) == m.decode(pack(SHORTEST))


@spec("R-15")
@pytest.mark.parametrize("octets", [b"\xd9\x01c", b"\xda\x00\x01c", b"\xdb\x00\x00\x00\x01c"])
def test_longer_forms_of_strings_are_read(octets: bytes) -> None:
    data = b"\x97\x08\x02" + octets + pack(SHORTEST)[5:]
    assert m.decode(data) == m.decode(pack(SHORTEST))
    assert decodes(data + b"") is True


@spec("R-15")
@pytest.mark.parametrize("octets", [b"\xc4\x01m", b"\xc5\x00\x01m", b"\xc6\x00\x00\x00\x01m"])
def test_longer_forms_of_binaries_are_read(octets: bytes) -> None:
    data = pack(FULL[2])
    assert data.endswith(b"\xc4\x01m\x01\x01")
    assert m.decode(data[:-5] + octets + b"\x01\x01") == m.decode(data)
    assert decodes(data[:-5] + octets + b"\x01\x01")


@spec("R-10")
@pytest.mark.parametrize("octets", [b"\xca" + struct.pack(">f", 7), b"\xcb" + struct.pack(">d", 7)])
def test_a_whole_float_is_no_integer(octets: bytes) -> None:
    assert decodes(pack(SHORTEST)[:-1] + b"\x07")
    assert not decodes(pack(SHORTEST)[:-1] + octets)


# ------------------------------------------------------------------ foreign records


@spec("F-10", "F-11", "F-12", "F-13")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "undecodable"),
        (b"", "undecodable"),
        (b"Heartbeat/2/1/client/group/topic/0/17", "undecodable"),
        (b'{"type": "claim"}', "undecodable"),
        (b"\x80", "undecodable"),
        (b"\x90", "undecodable"),
        (b"\x91\x01", "undecodable"),
        (b"\x91\x01\x03", "undecodable"),
        (b"\x92\x01", "undecodable"),
        (b"\xdc", "undecodable"),
        (b"\xdc\x00", "undecodable"),
        (b"\xdd\x00\x00\x00", "undecodable"),
        (b"\x92\xcd\x00", "undecodable"),
        (pack(["1", 2]), "undecodable"),
        (pack([1, "2"]), "undecodable"),
        (pack([1.0, 2]), "undecodable"),
        (pack([1, 3.0]), "undecodable"),
        (pack([True, 2]), "undecodable"),
        (pack([1, None]), "undecodable"),
        (pack([[1], 3]), "undecodable"),
        (pack([1, 2]), "undecodable"),
        (pack([*MINIMAL[1][:9]]), "undecodable"),
        (pack([1, 1]), "unknown_version"),
        (pack([1, 3]), "unknown_version"),
        (pack([99, 3]), "unknown_version"),
        (pack([1, -2]), "unknown_version"),
        (pack([-5, -128]), "unknown_version"),
        (pack([1, -(2**63)]), "unknown_version"),
        (pack([1, 2**64 - 1]), "unknown_version"),
        (b"\x92\x01\xcc\x02"[:3] + b"\x03", "unknown_version"),
        (b"\x92\x01\xd0\xfe", "unknown_version"),
        (b"\x92\x01\x03 and whatever follows", "unknown_version"),
        (b"\x95\x01\x03\xc1", "unknown_version"),
        (pack([13, 2, "c"]), "unknown_type"),
        (pack([0, 2]), "unknown_type"),
        (pack([-1, 2]), "unknown_type"),
        (pack([2**64 - 1, 2]), "unknown_type"),
        (b"\x95\x0d\x02\xc1", "unknown_type"),
    ],
)
def test_kinds_of_foreign_records(value: bytes | None, kind: str) -> None:
    assert not decodes(value)
    assert m.why_malformed(value) == kind
    with pytest.raises(MalformedRecord, match=kind):
        m.decode(value)


@spec("F-1", "F-10")
@given(st.one_of(some.raw_values, some.near_records(), some.nested_records(), st.binary()))
def test_both_decoders_agree_on_anything(value: bytes | None) -> None:
    decodes(value)


@given(some.near_records())
def test_decoded_records_can_be_written_again(value: bytes) -> None:
    try:
        record = m.decode(value)
    except MalformedRecord:
        return
    assert m.decode(m.encode(record)) == record


EDGES = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
EDGES += [-1, -32, -33, -128, -129, -(2**15), -(2**15) - 1, -(2**31), -(2**31) - 1, -(2**63)]
FORMS = {"B": 0xCC, "H": 0xCD, "I": 0xCE, "Q": 0xCF, "b": 0xD0, "h": 0xD1, "i": 0xD2, "q": 0xD3}


@spec("F-12", "F-13")
@pytest.mark.parametrize("number", EDGES)
def test_a_type_or_version_may_be_any_int_in_any_form(number: int) -> None:
    forms = [pack(number)]
    for code, opcode in FORMS.items():
        try:
            forms.append(bytes([opcode]) + struct.pack(f">{code}", number))
        except struct.error:
            continue
    for form in forms:
        assert int_at(b"?" + form + b"?", 1) == (number, 1 + len(form))
        assert m.why_malformed(b"\x92\x01" + form) == "unknown_version"
        assert m.why_malformed(b"\x92" + form + b"\x02") == (
            "undecodable" if number == 1 else "unknown_type"
        )
        for short in range(len(form)):
            assert m.why_malformed(b"\x92\x01" + form[:short]) == "undecodable"


@spec("F-11")
@pytest.mark.parametrize("opcode", range(256))
def test_only_an_int_is_a_type_or_version(opcode: int) -> None:
    is_int = opcode <= 0x7F or opcode >= 0xE0 or 0xCC <= opcode <= 0xD3
    value = sample(opcode) if opcode != 0xC1 else b"\xc1"
    assert (m.why_malformed(b"\x92\x01" + value) != "undecodable") == (is_int and opcode != 2)
    assert (m.why_malformed(b"\x92" + value + b"\x03") != "undecodable") == is_int


@spec("F-11")
@pytest.mark.parametrize("opcode", range(256))
def test_only_an_array_of_two_or_more_is_asked_for_its_version(opcode: int) -> None:
    counts = {0xDC: b"\x00\x02", 0xDD: b"\x00\x00\x00\x02"}
    value = bytes([opcode]) + counts.get(opcode, b"") + b"\x01\x03"
    is_array = 0x92 <= opcode <= 0x9F or opcode in counts
    assert m.why_malformed(value) == ("unknown_version" if is_array else "undecodable")


# ------------------------------------------------------------------ refusing to write


def claim(**changes: Any) -> m.ClaimingPartition:
    values: dict[str, Any] = {
        "version": 2,
        "client_id": "c",
        "instance_id": "i",
        "group_id": "g",
        "seq": 0,
        "topic": "t",
        "partition": 0,
        "interval_ms": 1000,
        "expected_version": -1,
    }
    return m.ClaimingPartition(**{**values, **changes})


@spec("R-16")
@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("version", 3, "version"),
        ("client_id", "", "length >= 1"),
        ("client_id", "x" * 256, "length <= 255"),
        ("client_id", None, "Expected `str`"),
        ("client_id", b"c", "Expected `str`"),
        ("group_id", "\ud800", "surrogates"),
        ("instance_id", object(), "object"),
        ("seq", -1, ">= 0"),
        ("seq", 2**63, "<= 9223372036854775807"),
        ("seq", 2**64, ""),
        ("seq", True, "Expected `int`"),
        ("topic", "t" * 250, "length <= 249"),
        ("partition", 2**31, "<= 2147483647"),
        ("partition", 1.0, "Expected `int`"),
        ("interval_ms", 0, ">= 1"),
        ("interval_ms", 86_400_001, "<= 86400000"),
        ("expected_version", -2, ">= -1"),
    ],
)
def test_what_nobody_would_read_is_not_written(field: str, value: Any, says: str) -> None:
    with pytest.raises(MalformedRecord, match="ClaimingPartition cannot be written") as caught:
        m.encode(claim(**{field: value}))
    assert says in str(caught.value)


@spec("R-16")
@pytest.mark.parametrize(
    ("record", "field"),
    [
        (claim(topic=""), "topic"),
        (claim(client_id=""), "client_id"),
        (claim(expected_version=-2), "expected_version"),
        (m.ReleaseGroup(2, "c", "i", "g", 0, -1), "expires_at_ms"),
        (m.Heartbeat(2, "c", "i", "g", 0, 1, 0, [0, -2]), r"positions\[1\]"),
        (m.Heartbeat(2, "c", "i", "g", 0, 1, 0, [0] * 16385), "positions"),
        (
            m.Heartbeat(2, "c", "i", "g", 0, 1, 0, [], [m.MetadataEntry(-1, b"")]),
            r"metadata\[0\]\[0\]",
        ),
        (m.Heartbeat(2, "c", "i", "g", 0, 1, 0, [], [], b"x" * 4097), "member_metadata"),
        (m.Genesis(2, "c", "i", "-", 0, "one", "", 2**62 + 1, 1, 0), "base"),
        (m.SetLevel(2, "c", "i", "g", 0, 0, 1), "level"),
        (m.ClaimingRange(2, "c", "i", "g", 0, "t" * 219, 0, 5, 0, 1), "topic"),
        (m.ClaimingRange(2, "c", "i", "g", 0, "t", 0, 5, 0, 0), "count"),
        (m.SplittingRange(2, "c", "i", "g", 0, "t/0@0", 0, 5, -1), "at"),
    ],
)
def test_the_refusal_names_the_field(record: m.Message, field: str) -> None:
    with pytest.raises(MalformedRecord, match=field):
        m.encode(record)


def test_something_else_is_no_record() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for junk in ("text", None, 5, [1, 2], object(), loop):
        with pytest.raises(MalformedRecord, match="cannot be written"):
            m.encode(junk)  # type: ignore[arg-type]


# ------------------------------------------------------------------ the specification's examples


def test_the_examples_of_the_specification_are_true() -> None:
    text = (SPECS / "PROTOCOL.md").read_text("utf-8")
    examples = re.findall(r"^Example: `(.*?)` is\n+```hex\n([0-9a-f\s]+)```", text, re.M)
    assert {json_of(example)[0] for example, _ in examples} == set(m.TYPE_NAMES)
    for example, octets in examples:
        data = bytes.fromhex(octets)
        assert pack(json_of(example)) == data
        assert m.encode(m.decode(data)) == data


def json_of(example: str) -> list[Any]:
    """The array of an example, in which ``h'6d'`` stands for bytes."""
    scope: dict[str, Any] = {"h": bytes.fromhex}
    value: list[Any] = eval(re.sub(r"h'([0-9a-f]*)'", r"h('\1')", example), scope)
    return value


def test_names_are_as_long_as_records_can_carry() -> None:
    m.check_names("t" * m.MAX_TOPIC_LENGTH, client_id="c" * m.MAX_ID_LENGTH)
    for topic, client_id in (("t" * 250, "c"), ("", "c"), ("t", "c" * 256), ("t", "")):
        with pytest.raises(msgspec.ValidationError):
            m.check_names(topic, client_id=client_id)
