"""The claims of all groups, as `marshal claims` lists them."""

from __future__ import annotations

from dataclasses import dataclass

from marshal_py.admin.world_reader import WorldView
from marshal_py.protocol.messages import NO_OFFSET

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


def claim_rows(
    found: WorldView, *, group: str | None = None, topic: str | None = None, held: bool = False
) -> list[ClaimRow]:
    """Return the cells of a look at the log, sorted by group, topic and partition."""
    rows = []
    for coordinator, key, cell in found.world.cells(group):
        if (topic is not None and key[1] != topic) or (held and not cell.held):
            continue
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
            )
        )
    return sorted(rows, key=lambda row: (row.group, row.topic, row.partition))
