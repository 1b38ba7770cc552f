"""An image of a state, taken quickly, leads to the same canonical bytes as the state itself."""

from __future__ import annotations

from hypothesis import given

from marshal_py.protocol.messages import VERSION, ClaimingPartition, Genesis, encode
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.state_image import canonical_bytes, identity_in, image_of
from tests.support import strategies as some
from tests.support.strategies import Log


@given(some.logs)
def test_an_image_leads_to_the_canonical_bytes(log: Log) -> None:
    state = PartitionState(0)
    for offset, value in log:
        apply(state, offset, value)
        assert canonical_bytes(image_of(state)) == state.encode()


def test_an_image_is_of_the_moment_when_it_was_taken() -> None:
    state = PartitionState(3)
    genesis = Genesis(VERSION, "a", "i", "-", 0, "the log", "", 10, 4, 0)
    apply(state, 0, encode(genesis))
    for n in range(20, 0, -1):  # not in the order of the canonical bytes
        claim = ClaimingPartition(VERSION, f"client {n % 3}", "i", f"g{n % 2}", n, "t", n, 100, -1)
        apply(state, 30 - n, encode(claim))
    then, image = state.encode(), image_of(state)
    apply(state, 40, encode(ClaimingPartition(VERSION, "a", "i", "g0", 1, "t", 99, 100, -1)))
    assert canonical_bytes(image) == then != state.encode()
    assert identity_in(image) == identity_in(then) == "the log"
