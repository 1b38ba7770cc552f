"""The table with one row beside an outbox: who harvests it, and the last visit.

Only the dialect of its SQL differs. See `harvest.core.source`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from harvest.core.source import Registration, Source
from harvest.core.table_name import TableName
from harvest.errors import HarvestError, SchemaError, StoreUnavailable, TableMissing

__all__ = ["CREATE_REGISTRATION", "INSERT_REGISTRATION", "Registrations"]

CREATE_REGISTRATION: Final = """
CREATE TABLE IF NOT EXISTS {registration} (
  id         SMALLINT NOT NULL PRIMARY KEY,
  cluster    VARCHAR(255) NOT NULL,
  topic      VARCHAR(255) NOT NULL,
  group_id   VARCHAR(255) NOT NULL,
  mode       VARCHAR(16) NOT NULL,
  visit      BIGINT NOT NULL,
  token      VARCHAR(32) NOT NULL
)
"""
_GET: Final = "SELECT cluster, topic, group_id, mode FROM {registration} WHERE id = 1"
_LAST: Final = "SELECT visit, token FROM {registration} WHERE id = 1"
INSERT_REGISTRATION: Final = (
    "INSERT INTO {registration} (id, cluster, topic, group_id, mode, visit, token) "
    "VALUES (1, %s, %s, %s, %s, 0, '')"
)
_SET: Final = "UPDATE {registration} SET cluster = %s, topic = %s, group_id = %s, mode = %s"
_VISIT: Final = "UPDATE {registration} SET visit = visit + 1, token = %s WHERE id = 1"


class Registrations(ABC):
    """The part of a `SourceStore` that is a table. Statements have ``%s`` for parameters."""

    _insert: ClassVar[str] = f"{INSERT_REGISTRATION} ON CONFLICT (id) DO NOTHING"
    _create: ClassVar[str] = CREATE_REGISTRATION
    _table: TableName

    @abstractmethod
    def facts(self) -> Source:
        """What the database says of itself; without the last visit."""

    @abstractmethod
    def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Execute one statement on the table `{registration}`, and commit; return its rows."""

    @property
    def registration_table(self) -> TableName:
        """Where it is kept: beside the outbox."""
        return self._table.beside("registration")

    def source(self) -> Source:
        """See `SourceStore.source`."""
        try:
            found = self._statement(_LAST)
        except TableMissing:
            found = []
        visit, token = found[0] if found else (0, "")
        return replace(self.facts(), visit=int(visit), token=_text(token))

    def promoted_at(self) -> int | None:
        """See `SourceStore.promoted_at`: not known."""
        return None

    def log_end(self) -> int:
        """See `SourceStore.log_end`: there is none."""
        return 0

    def visit(self, token: str) -> Source:
        """See `SourceStore.visit`."""
        self._statement(_VISIT, (token,))
        return self.source()

    def registration(self) -> Registration | None:
        """See `SourceStore.registration`."""
        try:
            found = self._statement(_GET)
        except TableMissing:
            return None
        return Registration(*[_text(value) for value in found[0]]) if found else None

    def register(self, ours: Registration) -> Registration:
        """See `SourceStore.register`."""
        found = self.registration()
        if found is not None:
            return found
        values = (ours.cluster, ours.topic, ours.group, ours.mode)
        try:
            try:  # who may not make tables is refused even where this one is there
                self._statement(self._insert, values)
            except TableMissing:
                self.create_registration()
                self._statement(self._insert, values)
        except StoreUnavailable:
            pass  # of two who make it at once, one may fail: the other has made it
        except HarvestError as error:
            raise SchemaError(
                f"the table {self.registration_table}, which says who harvests the outbox, cannot "
                f"be made or written: {error}; run `harvest init` as the owner of the outbox, and "
                "grant SELECT, INSERT and UPDATE on it"
            ) from error
        found = self.registration()
        if found is None:
            raise StoreUnavailable(f"{self.registration_table} could not be written")
        return found

    def register_anew(self, ours: Registration) -> None:
        """See `SourceStore.register_anew`."""
        self.register(ours)
        self._statement(_SET, (ours.cluster, ours.topic, ours.group, ours.mode))

    def create_registration(self) -> None:
        """Create the table, if it does not exist."""
        self._statement(self._create)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
