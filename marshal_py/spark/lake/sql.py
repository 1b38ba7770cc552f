"""Pieces of SQL that the steps of the lake share."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

__all__ = [
    "PARTS",
    "STILL_DAYS",
    "date_literal",
    "days_before",
    "fill",
    "is_topic",
    "table_name",
    "time_literal",
]

PARTS: Final = "^([A-Za-z0-9._-]+)/(0|[1-9][0-9]*)(@|#[1-9][0-9]*)(|0|[1-9][0-9]*)$"
"""Names of cells that are parts of a partition: its topic, its number, and how it is divided. Slots
have # and how many there are (specs/PROTOCOL.md §5.17); ranges have @, and their start (§5.18).
Numbers have no zeros in front: such a name is that of a lock of somebody's own."""

STILL_DAYS: Final = 30
"""How long something may have stood still and is known: what a run costs must not grow with all
history."""


def fill(query: str, **values: str) -> str:
    """Put SQL in place of names in braces; those of frames stay, for Spark.

    Braces of a value, which may be a path, are none to Spark.
    """

    def put(found: re.Match[str]) -> str:
        value = values.get(found[1])
        return found[0] if value is None else value.replace("{", "{{").replace("}", "}}")

    return re.sub(r"\{(\w+)\}", put, query)


def is_topic(column: str) -> str:
    """Whether Kafka allows a topic to have the name that a column has, as `settings.is_topic`."""
    return (
        f"length({column}) BETWEEN 1 AND 249 AND {column} NOT IN ('.', '..') "
        f"AND NOT {column} RLIKE '[^a-zA-Z0-9._-]'"
    )


def date_literal(day: dt.date) -> str:
    """A day."""
    return f"DATE '{day}'"


def days_before(day: dt.date, count: int) -> dt.date:
    """The day that is so many days before another, or the first that there is."""
    return dt.date.fromordinal(max(1, day.toordinal() - count))


def time_literal(at: dt.datetime) -> str:
    """A moment."""
    return f"TIMESTAMP '{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S.%f}'"


def table_name(path: str) -> str:
    """A Delta table by its folder."""
    return "delta.`{}`".format(path.replace("`", "``"))
