"""What is done above a position, in few bytes."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.protocol.claim_metadata import MAX_RELEASED, ClaimMetadata
from marshal_py.protocol.done_offsets import Ranges, decode_ranges, encode_ranges
from marshal_py.protocol.messages import MAX_METADATA_BYTES

bases = st.integers(0, 2**62)
FIELDS = ClaimMetadata.__struct_fields__


@st.composite
def ranges_above(draw: st.DrawFn) -> tuple[int, Ranges]:
    base = draw(bases)
    gaps = draw(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=200))
    marks = list(accumulate((n for gap in gaps for n in gap), initial=base))[1:]
    return base, tuple(zip(marks[::2], marks[1::2], strict=True))


@given(ranges_above())
def test_what_was_written_is_read(given_: tuple[int, Ranges]) -> None:
    base, ranges = given_
    assert decode_ranges(base, encode_ranges(base, ranges, 10**6)) == ranges


@given(ranges_above(), st.integers(0, 64))
def test_what_does_not_fit_is_left_out_from_the_far_end(
    given_: tuple[int, Ranges], most: int
) -> None:
    base, ranges = given_
    data = encode_ranges(base, ranges, most)
    kept = decode_ranges(base, data)
    assert len(data) <= most
    assert kept == ranges[: len(kept)]
    if len(kept) < len(ranges):
        assert len(encode_ranges(base, ranges[: len(kept) + 1], 10**6)) > most


@given(bases, st.binary(max_size=256))
def test_whatever_the_bytes_are_they_say_ranges_in_order_or_nothing(base: int, data: bytes) -> None:
    at = base
    for first, end in decode_ranges(base, data):
        assert at <= first < end
        at = end


@given(ranges_above(), st.text(max_size=64), st.integers(0, 2**62))
def test_the_metadata_of_a_claim_fits_whatever_is_done_and_fails(
    given_: tuple[int, Ranges], error: str, count: int
) -> None:
    base, ranges = given_
    bare = ClaimMetadata(cost=99, topic_id=bytes(range(16)), began_with=100_000, began_ms=2**42)
    full = bare.with_done(base, ranges)
    assert len(full.encode()) <= MAX_METADATA_BYTES
    assert full.done_ranges == ranges[: len(full.done_ranges)]
    failures = ClaimMetadata(
        retrying=count,
        stuck=1,
        dead_lettered=2,
        skipped=3,
        offset=count,
        error=error.encode("ascii", "ignore").decode(),
    )
    both = full.with_failures(failures)
    assert len(both.encode()) <= MAX_METADATA_BYTES
    assert both.done_ranges == ranges[: len(both.done_ranges)]
    assert (both.retrying, both.error) == (count, failures.error)
    assert both.inherited().done == both.done
    assert not both.inherited().has_failures
    assert ClaimMetadata.decode(both.encode()) == both
    led = both.with_leader_epoch(2**31 - 1)
    assert len(led.encode()) <= MAX_METADATA_BYTES
    assert led.done_ranges == ranges[: len(led.done_ranges)]
    assert led.inherited().leader_epoch == 2**31 - 1
    assert (
        msgspec.structs.replace(led, first_epoch_since_set=7).inherited().first_epoch_since_set == 7
    )


def test_a_slow_message_before_a_hundred_thousand_that_are_done_costs_a_few_bytes() -> None:
    assert len(encode_ranges(10**12, ((10**12 + 1, 10**12 + 100_000),), 256)) == 4


def test_the_next_holder_takes_over_all_but_the_failures() -> None:
    values: dict[type, Any] = {int: 7, str: "x", bytes: b"y", tuple: ((1, 2),)}
    told = {name: values[type(getattr(ClaimMetadata(), name))] for name in FIELDS}
    inherited = ClaimMetadata(**told).inherited()
    lost = {name for name in FIELDS if getattr(inherited, name) != told[name]}
    assert lost == {"retrying", "stuck", "dead_lettered", "skipped", "offset", "error"}
    assert ClaimMetadata(skipped=1).has_failures


@pytest.mark.parametrize(
    "data",
    [b"\xc1", b"\x81\xa1e\xa1\xff", b"\x81\xa1c\xa1x", b"\x81\xa1z" + b"\x91" * 5_000 + b"\xc0"],
    ids=["no msgpack", "no UTF-8", "another type", "a deep one"],
)
def test_metadata_that_is_something_else_says_nothing(data: bytes) -> None:
    assert ClaimMetadata.decode(data) == ClaimMetadata()


def test_what_is_released_and_what_is_done_share_the_room() -> None:
    """Of what is done some gives way; where a claim is full without it, what is released does."""
    done = tuple((10 * n, 10 * n + 5) for n in range(1, 200))
    full = ClaimMetadata(topic_id=bytes(16)).with_done(0, done)
    released = [(2**62 + n, 3) for n in range(20)]
    both = full.with_released(released)
    assert both.released == tuple(released[:MAX_RELEASED])
    assert len(both.encode()) <= MAX_METADATA_BYTES
    assert 0 < len(both.done_ranges) < len(full.done_ranges)
    long = ClaimMetadata(topic_id=bytes(16), error="e" * 150)
    assert len(msgspec.structs.replace(long, released=both.released).encode()) > MAX_METADATA_BYTES
    assert long.with_released(released).released == ()
