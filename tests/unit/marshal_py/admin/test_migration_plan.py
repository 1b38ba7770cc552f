"""Where a partition is between two versions: what may move, and what is not touched."""

from __future__ import annotations

import pytest

from marshal_py.admin.migration_plan import (
    MAX_MOVABLE_LENGTH,
    Sides,
    Step,
    assess,
    explain,
    partitions_of,
)
from marshal_py.protocol.messages import MAX_TOPIC_LENGTH
from marshal_py.protocol.migration import GRANT_PREFIX, MIGRATION_PREFIX, migration_topic
from marshal_py.protocol.rationalizer import Cell

BRIDGE = "bridge"


def cell(holder: str | None = None, position: int = -1) -> Cell:
    return Cell(("t", 3), holder, None if holder is None else "i", next_offset=position)


def step(
    source: Cell | None,
    target: Cell | None = None,
    grant: Cell | None = None,
    *,
    back: bool = False,
    resumed: bool = False,
    skips: bool = False,
) -> Step:
    return assess(
        ("t", 3),
        Sides(source, target, grant),
        BRIDGE,
        back=back,
        resumed=resumed,
        skip_to_target=skips,
    )


def test_what_nobody_holds_moves_and_what_a_process_holds_waits_for_it() -> None:
    assert step(None).state == "free"
    assert step(cell(position=5)).state == "free"
    assert step(cell(BRIDGE)).state == "free"
    held = step(cell("go", 5), cell(position=5))
    assert held == Step("t", 3, "held", "go", 5, None, 5)
    assert explain(held) == "t/3: go holds it; it moves when that process is stopped"


def test_a_position_that_would_skip_messages_keeps_all_from_moving() -> None:
    ahead = step(cell(position=5), cell(position=6))
    assert ahead.state == "target_ahead"
    assert "position 6 is beyond the source's 5" in explain(ahead)
    assert step(cell(position=5), cell(position=5)).state == "free"
    assert step(None, cell(position=0)).state == "target_ahead", "it begins at the first"
    assert step(cell(position=5), cell(position=6), skips=True).state == "free"
    assert step(cell(position=5), cell(position=6), resumed=True).state == "free", "a bridge's own"


def test_what_a_process_of_the_target_holds_is_its_own_only_through_a_bridge() -> None:
    in_use = step(cell(position=5), cell("new"))
    assert in_use.state == "in_use"
    assert "new of the target holds it already" in explain(in_use)
    assert step(cell(position=5), cell("new"), resumed=True).state == "free"
    assert step(cell(position=5), cell(BRIDGE)).state == "free"
    assert step(cell(position=5), cell("new"), cell(BRIDGE)).state == "moved"
    assert step(cell(position=5), cell("new"), cell("another bridge")).state == "in_use"


@pytest.mark.parametrize(
    ("resumed", "granted", "state"),
    [(True, False, "moved"), (True, True, "held"), (False, False, "held"), (False, True, "held")],
)
def test_on_the_way_back_what_is_not_granted_any_more_has_moved(
    resumed: bool, granted: bool, state: str
) -> None:
    grant = cell(BRIDGE) if granted else None
    assert step(cell("new"), None, grant, back=True, resumed=resumed).state == state


def test_all_partitions_move_that_the_group_or_kafka_knows() -> None:
    cells = [("t", 0), ("t", 5), ("u", 1), (f"{GRANT_PREFIX}t", 9), (f"{MIGRATION_PREFIX}x", 0)]
    counts = {"t": 4, "u": 8}
    assert partitions_of(cells, lambda topic: counts.get(topic, 0)) == {"t": 6, "u": 8}
    assert partitions_of([("gone", 2)], lambda _: 0) == {"gone": 3}


def test_the_longest_topic_that_moves_leaves_room_for_its_grant() -> None:
    topic = "t" * MAX_MOVABLE_LENGTH
    for name in (GRANT_PREFIX + topic, migration_topic(topic, every=False)):
        assert len(name) <= MAX_TOPIC_LENGTH
