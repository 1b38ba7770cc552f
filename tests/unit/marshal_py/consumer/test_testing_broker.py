"""When a handler that a `TestBroker` runs has done all that there is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.protocol.slots import slot_of, slots_cell
from marshal_py.testing import broker

SLOTS = slots_cell("t", 0, 3)


def consumer_of(held: list[int], others: list[int]) -> Any:
    """A consumer without lag that holds these slots of t/0; another one has `others`."""
    parts = {
        (SLOTS, n): SimpleNamespace(key=(SLOTS, n), slot=slot_of(SLOTS, n), source=("t", 0))
        for n in held
    }
    marshal = SimpleNamespace(
        client_id="a",
        cell=lambda topic, n: SimpleNamespace(
            holder="a" if n in held else "b" if (topic, n) in {(SLOTS, o) for o in others} else None
        ),
    )
    return SimpleNamespace(
        stats=lambda: SimpleNamespace(buffered=0, running=0),
        lag=lambda timeout_s: {("t", 0): 0},
        closing=False,
        marshal=marshal,
        _core=SimpleNamespace(
            fetcher=SimpleNamespace(active=parts), topics=SimpleNamespace(counts={"t": 1})
        ),
    )


@pytest.mark.parametrize(
    ("held", "others", "is_done"),
    [([0, 1, 2], [], True), ([0, 1], [2], True), ([0, 1], [], False), ([0], [2], False)],
)
def test_all_is_done_when_no_slot_of_a_partition_is_without_a_holder(
    held: list[int], others: list[int], is_done: bool
) -> None:
    """A slot that was not claimed yet has messages, though the lag that is told is 0."""
    assert broker._is_done(consumer_of(held, others)) is is_done
