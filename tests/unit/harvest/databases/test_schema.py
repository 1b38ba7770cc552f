"""Which columns make a table of PostgreSQL an outbox."""

from __future__ import annotations

import pytest

from harvest.databases.schema import column_findings

GOOD: dict[str, tuple[str, bool]] = {
    "id": ("bigint", True),
    "create_time": ("timestamp with time zone", True),
    "kafka_topic": ("character varying(249)", True),
    "kafka_key": ("text", True),
    "kafka_value": ("text", False),
    "kafka_header_keys": ("text[]", True),
    "kafka_header_values": ("text[]", True),
    "leader_id": ("uuid", False),
}


def errors(changes: dict[str, tuple[str, bool] | None], *, marked: bool = True) -> list[str]:
    types = {n: t for n, t in {**GOOD, **changes}.items() if t is not None}
    found = column_findings(types, marked=marked)
    assert all(finding.level in ("ok", "error") for finding in found)
    return [finding.text for finding in found if finding.level == "error"]


def test_goharvests_table_is_one() -> None:
    assert errors({}) == []
    said = [finding.text for finding in column_findings(GOOD)]
    assert said[0] == "id bigint"
    assert len(said) == len(GOOD)


@pytest.mark.parametrize("column", GOOD)
def test_no_column_may_be_missing(column: str) -> None:
    (text,) = errors({column: None})
    assert text.startswith(f"the column {column} is missing")


@pytest.mark.parametrize(
    ("column", "type_name", "required", "remedy"),
    [
        ("id", "text", True, "make it BIGINT"),
        ("create_time", "bigint", True, "make it TIMESTAMP WITH TIME ZONE"),
        ("leader_id", "text", False, "make it UUID"),
        ("leader_id", "uuid", True, "ALTER COLUMN leader_id DROP NOT NULL"),
        ("kafka_header_keys", "text", True, "make it TEXT[]"),
        ("kafka_header_values", "jsonb", True, "make it TEXT[]"),
    ],
)
def test_a_type_that_cannot_be_used_is_named_with_the_remedy(
    column: str, type_name: str, required: bool, remedy: str
) -> None:
    (text,) = errors({column: (type_name, required)})
    assert text.startswith(f"the column {column} is ")
    assert remedy in text


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ("integer", True)},
        {"id": ("smallint", True)},
        {"create_time": ("timestamp without time zone", False)},
        {"create_time": ("date", True)},
        {"kafka_key": ("bytea", False)},
        {"kafka_value": ("jsonb", False)},
        {"kafka_header_values": ("bytea[]", True)},
        {"kafka_header_keys": ("character varying[]", True)},
    ],
)
def test_other_types_do_as_well(changes: dict[str, tuple[str, bool] | None]) -> None:
    assert errors(changes) == []


def test_only_mark_mode_needs_the_column_of_marks() -> None:
    assert errors({"leader_id": None}, marked=False) == []
    assert errors({"leader_id": ("text", True)}, marked=False) == []


def test_a_further_column_that_is_missing_is_told_once() -> None:
    extra = {"trace": "trace_id", "also": "trace_id", "topic": "kafka_topic"}
    found = [f.text for f in column_findings(GOOD, extra=extra) if f.level == "error"]
    assert [text.split(",")[0] for text in found] == ["the column trace_id is missing"]
