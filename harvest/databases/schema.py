"""Which columns, of which types, make a table an outbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harvest.core.extra_columns import NO_EXTRA, Extra
from harvest.core.interfaces.mark_store import Finding
from harvest.core.table_name import TableName
from harvest.errors import SchemaError

__all__ = ["COLUMNS", "TIMES", "column_findings", "extra_findings", "id_is_taken"]

COLUMNS: Final = (
    "id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
    "leader_id",
)
_INTEGERS: Final = {"bigint", "integer", "smallint"}
TIMES: Final = {"timestamp with time zone", "timestamp without time zone", "date"}
"""What `create_time` may be, by which ages are told."""
_ARRAYS: Final = {"text[]", "character varying[]", "bytea[]"}
_REMEDIES: Final = {
    "id": (_INTEGERS, "make it BIGINT"),
    "create_time": (TIMES, "make it TIMESTAMP WITH TIME ZONE"),
    "leader_id": ({"uuid"}, "make it UUID"),
    "kafka_header_keys": (_ARRAYS, "make it TEXT[]"),
    "kafka_header_values": (_ARRAYS, "make it TEXT[]"),
}


def extra_findings(types: Mapping[str, object], extra: Extra) -> list[Finding]:
    """Whether the columns that become headers are there."""
    absent = [column for column in dict.fromkeys(extra.values()) if column not in types]
    return [
        Finding(
            "column",
            "error",
            f"the column {column} is missing, and `columns` names it: add it to the table, or "
            "leave it out there",
        )
        for column in absent
    ]


def column_findings(
    types: Mapping[str, tuple[str, bool]], *, marked: bool = True, extra: Extra = NO_EXTRA
) -> list[Finding]:
    """Judge PostgreSQL columns: name to (type, whether NOT NULL). `marked`: for mark mode."""
    findings = []
    for column in COLUMNS:
        if column == "leader_id" and not marked:
            continue
        if column not in types:
            text = f"the column {column} is missing: see the table in specs/HARVEST.md §1"
            findings.append(Finding("column", "error", text))
            continue
        type_name, required = types[column]
        allowed, remedy = _REMEDIES.get(column, (None, ""))
        if allowed is not None and type_name not in allowed:
            text = f"the column {column} is {type_name}: {remedy}"
            findings.append(Finding("column", "error", text))
        elif column == "leader_id" and required:
            text = "the column leader_id is NOT NULL: ALTER COLUMN leader_id DROP NOT NULL"
            findings.append(Finding("column", "error", text))
        else:
            findings.append(Finding("column", "ok", f"{column} {type_name}"))
    return findings + extra_findings(types, extra)


def id_is_taken(id: int, dead_letters: TableName) -> SchemaError:
    """A row that cannot be published has the id of a dead letter: ids were begun anew."""
    return SchemaError(
        f"{dead_letters} has another row with the id {id}, from before ids were begun anew: see "
        f"`harvest dead-letters list --id {id}`; once it is not needed any more, `harvest "
        f"dead-letters drop --id {id}` makes room"
    )
