"""The records of the snapshot topic (specs/PROTOCOL.md §6.2)."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import example, given

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import snapshots
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.snapshots import anchor_of, decode_snapshot, encode_snapshot
from tests.support import reference_fold as reference
from tests.support import strategies as some
from tests.support.spec import spec
from tests.support.strategies import Log, pack


def state_after(log: Log) -> PartitionState:
    state = PartitionState(3)
    for offset, value in log:
        apply(state, offset, value)
    return state


def value_of(state: PartitionState, last: bytes | None) -> bytes:
    return encode_snapshot(
        state.encode(),
        coordinator=3,
        partitions=8,
        next_offset=state.next_offset,
        anchor=anchor_of(last),
        writer="billing-1",
    )


@spec("S-5", "S-4")
@given(some.logs)
@example([(5, b"junk")])
def test_the_layout_of_a_snapshot(log: Log) -> None:
    state, last = state_after(log), log[-1][1]
    expected = reference.new_state(3)
    for offset, value in log:
        reference.apply(expected, offset, value)
    array: list[Any] = msgpack.unpackb(value_of(state, last))
    assert array[:4] == [1, 3, 8, state.next_offset]
    assert array[4] == hashlib.blake2b(last or b"", digest_size=16).digest()
    assert array[5].hex() == reference.digest(expected)
    assert array[6] == "billing-1"
    assert zlib.decompress(array[7]) == reference.canonical(expected)
    assert len(array) == 8
    again = decode_snapshot(value_of(state, last)).restore()
    assert again.encode() == state.encode()
    # What another implementation compresses differs in bytes, not in content; and it may add some.
    array[7] = zlib.compress(reference.canonical(expected), 1)
    assert decode_snapshot(pack([*array, "more"])).restore().encode() == state.encode()


def good() -> list[Any]:
    state = state_after([(0, None), (1, b"junk")])
    array: list[Any] = msgpack.unpackb(value_of(state, b"junk"))
    return array


@spec("S-6")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 2),
        (1, -1),
        (1, "3"),
        (2, 0),
        (3, 0),
        (4, b"short"),
        (5, b"x" * 16),
        (5, b"x" * 15),
        (7, b""),
        (7, b"no zlib"),
        (7, zlib.compress(b"other content")),
        (7, zlib.compress(b"x" * 100)[:-3]),
    ],
)
def test_a_snapshot_that_does_not_agree_with_itself_is_refused(place: int, value: Any) -> None:
    array = good()
    array[place] = value
    with pytest.raises(MalformedRecord):
        decode_snapshot(pack(array)).restore()


@spec("S-6")
@pytest.mark.parametrize(("place", "value"), [(1, 4), (3, 99)])
def test_a_snapshot_of_another_place_is_refused(place: int, value: Any) -> None:
    array = good()
    array[place] = value
    with pytest.raises(MalformedRecord, match="holds the state"):
        decode_snapshot(pack(array)).restore()


@spec("S-6")
def test_a_snapshot_whose_state_is_none_is_refused() -> None:
    array = good()
    array[5] = hashlib.blake2b(b"\xc0", digest_size=16).digest()
    array[7] = zlib.compress(b"\xc0")
    with pytest.raises(MalformedRecord):
        decode_snapshot(pack(array)).restore()


@spec("S-6")
def test_a_snapshot_whose_state_is_cut_off_is_refused() -> None:
    array = good()
    state = zlib.decompress(array[7])[:-1]
    array[5] = hashlib.blake2b(state, digest_size=16).digest()
    array[7] = zlib.compress(state)
    with pytest.raises(MalformedRecord, match="snapshot of partition 3"):
        decode_snapshot(pack(array)).restore()


@spec("S-6")
@pytest.mark.parametrize("value", [None, b"", b"\x90", b"junk", pack({"format": 1})])
def test_other_records_are_no_snapshots(value: bytes | None) -> None:
    with pytest.raises(MalformedRecord):
        decode_snapshot(value)


@spec("S-6")
def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert snapshots.MAX_STATE_BYTES == 256 * 1024 * 1024
    monkeypatch.setattr(snapshots, "MAX_STATE_BYTES", 1_000_000)
    array = good()
    array[7] = zlib.compress(bytes(1_000_001))
    with pytest.raises(MalformedRecord, match="unpacks to over"):
        decode_snapshot(pack(array))
    array = good()
    monkeypatch.setattr(snapshots, "MAX_STATE_BYTES", len(zlib.decompress(array[7])))
    assert decode_snapshot(pack(array)).restore().partition == 3
