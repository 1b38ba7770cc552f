"""The claims of all groups, as `marshal claims` lists them."""

from __future__ import annotations

from dataclasses import dataclass

from marshal_py.admin.sharing import open_range
from marshal_py.admin.world_reader import WorldView
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.slots import source_of

__all__ = ["ClaimRow", "claim_rows"]


@dataclass
class ClaimRow:
    """One cell. `holder` is None when nobody holds it; offsets are −1 where there is none.

    So is `epoch` in a log of version 1, which has none. `version` is the offset of the last record
    that renewed the cell: of its own, or a heartbeat of its holder's session.
    """

    group: str
    topic: str
    partition: int
    holder: str | None
    instance_id: str | None
    epoch: int
    version: int
    next_offset: int
    claimed_offset: int
    interval_ms: int
    liveness: str | None
    silence_ms: int | None
    silence_at_least: bool
    measured_by: str | None
    coordinator: int
    metadata: str
    source_topic: str
    """The topic whose messages it is about: that of a slot or a range is in its name."""
    source_partition: int
    end: int | None
    """Of an open range, the first message that is not its; `next_offset` is where it is (§5.18)."""
    granted: int | None
    """How often in a row it was granted at that position; None: it is no open range."""


def claim_rows(
    found: WorldView, *, group: str | None = None, topic: str | None = None, held: bool = False
) -> list[ClaimRow]:
    """Return the cells of a look at the log, sorted by group, topic and partition.

    `topic`: those alone that are about this topic, its slots and ranges among them.
    """
    rows = []
    for coordinator, key, cell in found.world.cells(group):
        source = source_of(*key[1:])
        if (topic is not None and topic not in (key[1], source[0])) or (held and not cell.held):
            continue
        open_ = open_range(found.world, *key)
        silence = found.cell_silence(coordinator, key, cell)
        rows.append(
            ClaimRow(
                *key,
                cell.holder,
                cell.instance_id,
                NO_OFFSET if found.is_text else cell.epoch,
                found.world.states[coordinator].version(*key),
                cell.next_offset,
                cell.claimed_offset,
                cell.interval_ms,
                silence and silence.liveness,
                silence and silence.ms,
                silence is not None and silence.at_least,
                silence and silence.basis,
                coordinator,
                cell.metadata.decode(errors="backslashreplace"),
                *source,
                None if open_ is None else open_.end,
                None if open_ is None else open_.granted,
            )
        )
    return sorted(rows, key=_place)


def _place(row: ClaimRow) -> tuple[str, str, int, bool, str, int]:
    """By group, topic and partition: a partition, its slots, its ranges as they follow."""
    is_part = (row.topic, row.partition) != (row.source_topic, row.source_partition)
    name, number = (row.topic, row.partition)
    if row.end is not None:
        name, number = "", int(row.topic.rpartition("@")[2])
    return row.group, row.source_topic, row.source_partition, is_part, name, number
