"""The audit's tables: columns, types and units. specs/AUDIT.md is checked against this file."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

__all__ = ["TABLES", "Column", "schema", "to_arrow"]

_TYPES: Final[dict[str, pa.DataType]] = {
    "text": pa.string(),
    "int": pa.int64(),
    "time": pa.timestamp("ms", tz="UTC"),
}


class Column(NamedTuple):
    """One column: its name, its kind (`text`, `int` or `time`) and what it holds, with the unit."""

    name: str
    kind: str
    about: str


def _columns(text: str) -> tuple[Column, ...]:
    found = []
    for line in text.strip().splitlines():
        name, kind, about = line.split(None, 2)
        found.append(Column(name, kind, about))
    return tuple(found)


_COORDINATOR: Final = "coordinator int coordination partition that the row comes from\n"
_CELL: Final = """group_id text group
topic text topic, real or virtual
partition int partition of the topic
"""
_CLAIM: Final = """client_id text holder
instance_id text start of the holder's process
epoch int log's base and offset of the accepted claim: the fencing token
interval_ms int holder's declared heartbeat interval, milliseconds
from_at time broker time of the claim; null if it lies before the audited log
until_at time broker time of the record that ended it; null while it is held
how text released, taken_over, resumed, claimed_again, position_set; null while it is held
ended_by text client whose record ended it
end_log_offset int log offset of the record that ended it
"""

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "claims": _columns(
        _COORDINATOR
        + _CELL
        + _CLAIM
        + """first_offset int position at which the holder started
last_offset int next offset to process at the end, or by now
heartbeats int heartbeats of the holder's session that renewed it
last_beat_at time broker time of the last of them
longest_gap_ms int longest time between two of them, or from the claim to the first, milliseconds
late_heartbeats int how many came more than two intervals after the one before
batches int ranges of messages claimed for at-most-once delivery
"""
    ),
    "rejections": _columns(
        _COORDINATOR
        + """log_offset int offset of the rejected record
at time broker time
group_id text group
client_id text sender
instance_id text start of the sender's process
record text type of the record
reason text why it, or what it says of one cell, was not accepted
topic text topic of the cell; null for records about a group, and for heartbeats
partition int partition of the topic
cell_holder text who held the cell
cell_epoch int the cell's epoch
cell_version int log offset of the last record that renewed the cell, or began the pause
"""
    ),
    "takeovers": _columns(
        _COORDINATOR
        + _CELL
        + """epoch int epoch of the new claim
at time broker time of the new claim
how text taken_over, resumed (same client, new instance) or claimed_again
client_id text new holder
instance_id text its instance
from_client_id text previous holder
from_instance_id text its instance
from_epoch int its epoch
from_interval_ms int its heartbeat interval, milliseconds
silence_ms int time between its last accepted record and the new claim, milliseconds
first_beat_ms int time from the new claim to its first heartbeat, milliseconds; null: none came
"""
    ),
    "positions": _columns(
        _COORDINATOR
        + _CELL
        + """client_id text holder; null if nobody
epoch int its epoch
at time broker time at which the position was reached, or the claim ended
next_offset int next offset to process
claimed_offset int every message below was claimed for at-most-once delivery
"""
    ),
    "batches": _columns(
        _COORDINATOR
        + _CELL
        + """client_id text holder
instance_id text its instance
epoch int its epoch
from_offset int first offset claimed; null: everything that came before, none was claimed yet
to_offset int first offset not claimed
log_offset int offset of the record
at time broker time
"""
    ),
    "ranges": _columns(
        _COORDINATOR
        + """group_id text group
topic text topic whose messages they are
partition int partition of the topic
from_offset int first offset of the range
to_offset int first offset beyond it
what text granted, or cut: it ends there from here on, and what lies beyond is free
granted int how often in a row it was granted without progress; null for a cut
client_id text who got it, or gave a part of it back
instance_id text its instance
epoch int epoch of the grant, by which `claims` has it; null for a cut
log_offset int offset of the record
at time broker time
"""
    ),
    "elections": _columns(
        _COORDINATOR
        + """group_id text group
name text what the leader leads
"""
        + _CLAIM
        + """vacancy_ms int time without a leader before this one, milliseconds; null for the first
"""
    ),
    "operations": _columns(
        _COORDINATOR
        + """group_id text group
what text pause, resume, forget, set_position, level or found (a genesis)
detail text what exactly
client_id text sender
instance_id text its instance
log_offset int offset of the record
at time broker time
"""
    ),
    "anomalies": _columns(
        _COORDINATOR
        + """log_offset int offset of the record that shows it
at time broker time
kind text one of the kinds below
what text what is wrong, in words
group_id text group
client_id text sender of the record
instance_id text its instance
topic text topic of the cell
partition int partition of the topic
record text the record as JSON
"""
    ),
    "ends": _columns(
        """topic text topic that somebody claims
partition int partition of the topic
at time moment
end_offset int next offset that would have been written at that moment
"""
    ),
}
"""Table → columns. `coordinator` and `log_offset` together name a record of the log."""


def schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a table."""
    return pa.schema([pa.field(c.name, _TYPES[c.kind]) for c in TABLES[table]])


def to_arrow(table: str, rows: list[tuple[object, ...]]) -> pa.Table:
    """Return rows, as `PartitionHistory` gives them, as an Arrow table."""
    wanted = schema(table)
    columns = zip(*rows, strict=True) if rows else [[] for _ in wanted]
    arrays = [
        pa.array(values, type=field.type) for field, values in zip(wanted, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=wanted)
