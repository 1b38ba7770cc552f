"""What an outbox in wal mode is read from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harvest.core.table_name import TableName
from harvest.core.wal_layout import GOHARVEST, Layout

__all__ = ["WalOptions", "message_prefix"]


@dataclass(frozen=True, slots=True)
class WalOptions:
    """What is read, and from where.

    - `source`: rows of the table, or logical messages.
    - `slot`, `publication`, `prefix`: their names; None for those that are made of the outbox's.
    - `purge`: whether published rows are deleted, or the partitions that they are in dropped.
    - `standby`: the connection string of the replica that is read instead (PostgreSQL 16).
    """

    source: Literal["table", "message"] = "table"
    slot: str | None = None
    publication: str | None = None
    prefix: str | None = None
    layout: Layout = GOHARVEST
    purge: Literal["delete", "partitions", "keep"] = "delete"
    standby: str | None = None


def message_prefix(table: str | TableName) -> str:
    """The prefix of the logical messages of an outbox, unless another is given."""
    return f"harvest.{table}"
