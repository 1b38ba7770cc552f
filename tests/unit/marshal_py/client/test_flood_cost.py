"""What nonsense costs a reader: about what as much of sound records costs, in calls made."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Literal

import pytest

from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import ClaimingPartition, encode
from marshal_py.protocol.rationalizer import PartitionState, apply
from tests.support.messages import heartbeat

WHO: tuple[Literal[2], str, str, str] = (2, "a", "a.1", "g")
CELLS = 20


def _held() -> PartitionState:
    state = PartitionState(0)
    for n in range(CELLS):
        apply(state, n, encode(ClaimingPartition(*WHO, n, "t", n, 1_000, -1)))
    return state


def _calls(state: PartitionState, values: list[bytes]) -> int:
    """How many calls folding takes, of Python's functions and of C's: a cost without a clock."""
    calls = 0

    def count(_: FrameType, what: str, __: object) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    events: list[Event] = []
    offset = state.next_offset
    sys.setprofile(count)
    try:
        for value in values:
            apply(state, offset, value, events)
            offset += 1
    finally:
        sys.setprofile(None)
    return calls


CALLS_PER_RECORD = 120
"""Of any record, however short; a heartbeat of 20 claims takes 45."""


def _beat(epochs: Iterable[int]) -> bytes:
    return encode(heartbeat("a", 99, dict.fromkeys(epochs, 5), instance_id="a.1"))


SOUND = [_beat(range(CELLS))] * 50


@pytest.mark.parametrize(
    "values",
    [
        [_beat(range(7_000, 7_000 + CELLS))] * 50,
        [encode(heartbeat("b", 99, dict.fromkeys(range(CELLS), 5), instance_id="b.1"))] * 50,
        [random.Random(n).randbytes(200) for n in range(50)],
        [SOUND[0][:at] for at in range(10, 60)],
        [b"\x91" * 5_000, b"\xdd\xff\xff\xff\xff" + b"\x00" * 2_000] * 5,
    ],
    ids=["wrong epochs", "no session", "noise", "damaged", "bombs"],
)
def test_nonsense_costs_a_reader_what_as_many_bytes_of_sound_records_cost(
    values: list[bytes],
) -> None:
    per_byte = _calls(_held(), SOUND) / sum(map(len, SOUND))
    bound = CALLS_PER_RECORD * len(values) + 3 * per_byte * sum(map(len, values))
    assert _calls(_held(), values) <= bound


def test_refused_records_leave_nothing_behind() -> None:
    """Each of a stranger of its own, and of a cell that nobody has touched."""
    state = _held()
    before = len(state.encode())
    values = []
    for n in range(2_000):
        who = (f"b{n}", f"b{n}.1", "g")
        values.append(encode(heartbeat(who[0], 1, {7_000: 5}, instance_id=who[1])))
        values.append(encode(ClaimingPartition(2, *who, 2, "t", CELLS + n, 1_000, 5)))
    for offset, value in enumerate(values, state.next_offset):
        apply(state, offset, value)
    assert len(state.encode()) - before < 64
