"""An SQLite file as a source of rows. It says nothing about itself: only visits tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harvest.core.source import Source
from harvest.databases.registrations import Registrations
from harvest.databases.sqlite.table import SqliteTable

__all__ = ["SqliteSources"]


class SqliteSources(SqliteTable, Registrations):
    """A connection to an SQLite file as a source of rows. Implements `SourceStore`."""

    def visit(self, token: str) -> Source:
        """See `SourceStore.visit`."""
        self._execute("PRAGMA synchronous = FULL")
        try:
            return super().visit(token)
        finally:
            if not self._durable:
                self._execute("PRAGMA synchronous = NORMAL")

    def facts(self) -> Source:
        """See `Registrations.facts`."""
        return Source()

    def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
        table = self.registration_table.quoted()
        statement = template.format(registration=table).replace("%s", "?")
        if statement.lstrip().startswith("SELECT"):
            return self._execute(statement, parameters)
        self._change(statement, parameters)
        return []
