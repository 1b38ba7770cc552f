"""The version 1 codec against the vectors recorded from Go, and against any bytes at all."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marshal_py.errors import MalformedRecord
from marshal_py.protocol.text.codec import (
    CLAIMING_PARTITION,
    HEARTBEAT,
    MAX_RECORD_BYTES,
    RELEASE_GROUP,
    TextRecord,
    check_name,
    coordinating_partition,
    decode,
    decode_any,
    encode,
)
from tests.support.paths import INTEROP_DATA

DATA = INTEROP_DATA
VECTORS: dict[str, Any] = json.loads((DATA / "vectors.json").read_text())


def record(fields: dict[str, Any]) -> TextRecord:
    return TextRecord(
        fields["type"],
        fields["version"],
        fields["time"],
        fields["instance_id"],
        fields["client_id"],
        fields["group_id"],
        fields["topic"],
        fields["partition"],
        fields.get("offset"),
    )


@pytest.mark.parametrize("vector", VECTORS["encode"], ids=lambda v: v["bytes_utf8"][:60])
def test_encodes_as_go(vector: dict[str, Any]) -> None:
    assert encode(record(vector["input"]), check=False) == bytes.fromhex(vector["hex"])


@pytest.mark.parametrize("vector", VECTORS["decode"], ids=lambda v: repr(v["raw_text"])[:60])
def test_decodes_as_go_with_its_complaints(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["raw_hex"])
    if vector["go"] is None:
        with pytest.raises(MalformedRecord) as caught:
            decode(raw)
        assert str(caught.value) == vector["error"]
    else:
        assert decode(raw) == record(vector["go"])


def test_hashes_as_go() -> None:
    for vector in VECTORS["hash"]:
        found = coordinating_partition(vector["topic"], vector["marshal_partitions"])
        assert found == vector["partition"], vector
    assert len(VECTORS["hash"]) > 300


def test_reads_what_was_captured_live() -> None:
    captured = [v for kind in VECTORS["captured_live"].values() for v in kind]
    for vector in captured:
        raw = bytes.fromhex(vector["hex"])
        assert encode(decode_any(raw)) == raw
    assert len(captured) >= 10


@pytest.mark.parametrize("field", ["instance_id", "client_id", "group_id", "topic"])
@pytest.mark.parametrize("name", ["a/b", "/", "\ud800"])
def test_a_name_that_cannot_be_carried_is_refused_by_field(field: str, name: str) -> None:
    good = TextRecord(HEARTBEAT, 1, 2, "i", "c", "g", "t", 3, 4)
    with pytest.raises(MalformedRecord, match=field):
        encode(good._replace(**cast(dict[str, Any], {field: name})))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_s", 2**63),
        ("partition", -(2**63) - 1),
        ("offset", 1.0),
        ("offset", None),
        ("version", True),
        ("type", "Banana"),
    ],
)
def test_a_value_that_would_not_read_back_is_refused_by_field(field: str, value: Any) -> None:
    good = TextRecord(HEARTBEAT, 1, 2, "i", "c", "g", "t", 3, 4)
    with pytest.raises(MalformedRecord, match=field):
        encode(good._replace(**{field: value}))


def test_a_claim_has_no_offset() -> None:
    claim = TextRecord(CLAIMING_PARTITION, 1, 2, "i", "c", "g", "t", 3)
    assert decode(encode(claim)) == claim
    with pytest.raises(MalformedRecord, match="offset"):
        encode(claim._replace(offset=1))


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("+5", 5),
        ("-0", 0),
        ("0" * 3_000 + "7", 7),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", None),
        ("1e3", None),
        (" 1", None),
        ("1 ", None),
        ("1_0", None),
        ("0x1", None),
        ("٣", None),
        ("１", None),
        ("²", None),
        ("+", None),
        ("--1", None),
        ("1\n", None),
        ("", None),
    ],
)
def test_numbers_are_read_as_strconv_reads_them(number: str, value: int | None) -> None:
    raw = f"Heartbeat/1/2/i/c/g/t/3/{number}".encode()
    if value is None:
        with pytest.raises(MalformedRecord, match="hb offset"):
            decode(raw)
    else:
        assert decode(raw).offset == value


def test_the_pause_of_early_versions_is_known_to_decode_any_alone() -> None:
    raw = b"ReleaseGroup/0/1795223406/ae803ff8/adm1/ga//0/1795223426"
    assert decode_any(raw).type == RELEASE_GROUP
    assert decode_any(raw).offset == 1795223426
    with pytest.raises(MalformedRecord):
        decode(raw)


def test_a_value_too_long_for_a_record_is_none() -> None:
    raw = b"Heartbeat/1/2/i/c/g/" + b"t" * MAX_RECORD_BYTES + b"/0/0"
    with pytest.raises(MalformedRecord, match="bytes"):
        decode_any(raw)


@given(st.binary(max_size=200) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "replace")))
@example(b"Heartbeat/1/2/\xe6\x97/c/g/t/3/4")
@example(b"Heartbeat/1/2/\xed\xa0\x80/c/g/t/3/4")
def test_no_bytes_raise_anything_else(raw: bytes) -> None:
    for value in (raw, b"Heartbeat/1/2/" + raw + b"/c/g/t/3/4"):
        try:
            found = decode_any(value)
        except MalformedRecord:
            continue
        assert isinstance(found, TextRecord)


def test_each_byte_that_is_no_utf8_becomes_one_replacement_character() -> None:
    assert decode(b"Heartbeat/1/2/\xe6\x97/c/g/t/3/4").instance_id == "\ufffd\ufffd"
    assert decode(b"Heartbeat/1/2/\xed\xa0\x80/c/g/t/3/4").instance_id == "\ufffd" * 3


names = st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=30)
numbers = st.integers(-(2**63), 2**63 - 1)


@given(names, names, names, names, numbers, numbers, numbers)
def test_what_is_written_reads_back(
    instance: str, client: str, group: str, topic: str, time_s: int, partition: int, offset: int
) -> None:
    for name in (instance, client, group, topic):
        check_name("name", name)
    beat = TextRecord(HEARTBEAT, 1, time_s, instance, client, group, topic, partition, offset)
    assert decode(encode(beat)) == beat


def test_the_longest_record_is_one() -> None:
    for more, is_one in ((0, True), (1, False)):
        value = b"Heartbeat/1/2/i/c/g/t/0/1"
        value = value.replace(
            b"/c/", b"/" + b"c" * (MAX_RECORD_BYTES - len(value) + 1 + more) + b"/"
        )
        if is_one:
            assert decode_any(value).partition == 0
        else:
            with pytest.raises(MalformedRecord):
                decode_any(value)
