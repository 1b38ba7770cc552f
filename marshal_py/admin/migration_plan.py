"""Where the partitions of a group are on their way from one version to the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from marshal_py.protocol.messages import MAX_TOPIC_LENGTH, NO_OFFSET
from marshal_py.protocol.migration import GRANT_PREFIX, MIGRATION_PREFIX
from marshal_py.protocol.rationalizer import Cell

__all__ = [
    "BLOCKING",
    "MAX_MOVABLE_LENGTH",
    "Key",
    "Sides",
    "Step",
    "StepState",
    "assess",
    "explain",
    "partitions_of",
    "position_of",
]

Key: TypeAlias = tuple[str, int]

StepState: TypeAlias = Literal["free", "held", "moved", "in_use", "target_ahead"]
"""Where a partition is on its way.

- ``free``: nobody holds it on the source side; it moves at once.
- ``held``: a process of the source holds it; it moves when that process releases it or dies.
- ``moved``: it belongs to the target.
- ``in_use``: a process of the target holds it, and it was not given to it by a bridge.
- ``target_ahead``: the position on the target side is beyond the source's: to go on from there
  would skip messages.
"""

BLOCKING: Final = ("in_use", "target_ahead")

MAX_MOVABLE_LENGTH: Final = MAX_TOPIC_LENGTH - max(len(GRANT_PREFIX), len(MIGRATION_PREFIX))
"""Longer names of topics leave no room for those of their migration and grants."""


class Step(NamedTuple):
    """One partition on its way. Offsets are the next to process; −1: there is no position."""

    topic: str
    partition: int
    state: StepState
    source_holder: str | None
    source_offset: int
    target_holder: str | None
    target_offset: int


class Sides(NamedTuple):
    """What both logs say of a partition; None where they say nothing."""

    source: Cell | None
    target: Cell | None
    grant: Cell | None


def assess(
    key: Key,
    sides: Sides,
    bridge_id: str,
    *,
    back: bool,
    resumed: bool,
    skip_to_target: bool = False,
) -> Step:
    """Say where a partition is on its way.

    `resumed`: an earlier run of the bridge has begun. Then what the target has is what a bridge
    gave to it; before that, it is looked at with suspicion.
    """
    source, target, grant = sides
    source_holder = None if source is None else source.holder
    target_holder = None if target is None else target.holder
    is_granted = grant is not None and grant.holder == bridge_id
    state: StepState
    if (resumed and not is_granted) if back else is_granted:
        state = "moved"
    elif not resumed and target_holder not in (None, bridge_id):
        state = "in_use"
    elif not resumed and position_of(target) > position_of(source) and not skip_to_target:
        state = "target_ahead"
    elif source_holder in (None, bridge_id):
        state = "free"
    else:
        state = "held"
    return Step(*key, state, source_holder, position_of(source), target_holder, position_of(target))


def explain(step: Step) -> str:
    """Say in a sentence what keeps a partition from moving, or where it is."""
    name = f"{step.topic}/{step.partition}"
    if step.state == "in_use":
        return (
            f"{name}: {step.target_holder} of the target holds it already, without a bridge: if "
            "the group has moved, there is nothing left to do; otherwise stop it first"
        )
    if step.state == "target_ahead":
        return (
            f"{name}: the target's position {step.target_offset} is beyond the source's "
            f"{step.source_offset}, so messages would be skipped: set it with `marshal group "
            "set-position`, or accept it with --skip-to-target"
        )
    if step.state == "held":
        return f"{name}: {step.source_holder} holds it; it moves when that process is stopped"
    return f"{name}: {step.state}"


def partitions_of(
    cells: Iterable[tuple[str, int]], count_of: Callable[[str], int]
) -> dict[str, int]:
    """Return topic → partitions, for the (topic, partition) of a group's cells.

    `count_of` returns how many partitions a Kafka topic has, 0 for one that does not exist. What
    only migrations use is left out.
    """
    found: dict[str, int] = {}
    for topic, partition in cells:
        if not topic.startswith((MIGRATION_PREFIX, GRANT_PREFIX)):
            found[topic] = max(found.get(topic, 0), partition + 1)
    return {topic: max(count, count_of(topic)) for topic, count in sorted(found.items())}


def position_of(cell: Cell | None) -> int:
    """Return where a new holder of the cell starts, −1 where there is no position."""
    return NO_OFFSET if cell is None else cell.position
