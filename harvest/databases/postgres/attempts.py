"""What failed on its way to a destination, beside the outbox `t`: a table `t_attempts`.

One row for each message that has failed and is not delivered: `destination`, `retries`,
`relay_error`, `destination_response_status`, `tried_at`, and `gave_up`, when it was set aside. For
people, for `harvest dead-letters list`, and for the next leader, who goes on counting. Of a row
that goes to several destinations: `delivered`, those that have it, and `fingerprint`, of its
content; they are not sent it again, also when it was set aside and is put back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from psycopg import sql

from harvest.core.table_name import TableName
from harvest.databases.postgres.table import PostgresTable
from harvest.errors import SchemaError

__all__ = ["Attempt", "AttemptStore", "PostgresAttempts", "attempts_name"]

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {attempts} (
  id                          BIGINT PRIMARY KEY,
  destination                 TEXT NOT NULL,
  retries                     INTEGER NOT NULL,
  relay_error                 TEXT NOT NULL,
  destination_response_status INTEGER,
  tried_at                    TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp(),
  gave_up                     BOOLEAN NOT NULL,
  delivered                   TEXT[],
  fingerprint                 BIGINT
)
"""
_LATER: Final = {"delivered", "fingerprint"}
_ALTER: Final = """
ALTER TABLE {attempts} ADD COLUMN IF NOT EXISTS delivered TEXT[],
  ADD COLUMN IF NOT EXISTS fingerprint BIGINT
"""
_RECORD: Final = """
INSERT INTO {attempts} AS a
  (id, destination, retries, relay_error, destination_response_status, gave_up, delivered,
   fingerprint)
SELECT n.id, n.destination, n.retries, n.error, n.status, n.gave_up,
       CASE WHEN n.delivered <> '' THEN n.delivered::text[] END, n.fingerprint
FROM unnest(
  %(ids)s::bigint[], %(destinations)b::text[], %(retries)b::int[], %(errors)b::text[],
  %(statuses)b::int[], %(gave_up)b::bool[], %(delivered)b::text[], %(fingerprints)b::bigint[]
) AS n (id, destination, retries, error, status, gave_up, delivered, fingerprint)
ON CONFLICT (id) DO UPDATE SET
  destination = excluded.destination, retries = excluded.retries,
  relay_error = excluded.relay_error,
  destination_response_status = excluded.destination_response_status,
  tried_at = excluded.tried_at, gave_up = excluded.gave_up,
  delivered = excluded.delivered, fingerprint = excluded.fingerprint
"""
_FORGET: Final = "DELETE FROM {attempts} WHERE id = ANY (%s)"
_LOAD: Final = "SELECT id, retries FROM {attempts} WHERE NOT gave_up"
_SETTLED: Final = "SELECT id, fingerprint, delivered FROM {attempts} WHERE delivered IS NOT NULL"
_IS_NOTED: Final = "SELECT EXISTS (SELECT FROM {attempts} WHERE delivered IS NOT NULL)"
_FORGET_OVERTAKEN: Final = """
WITH noted AS MATERIALIZED (
  SELECT o.id, o.kafka_topic::text AS topic, o.kafka_key::text AS key, d.destination
  FROM {attempts} AS a JOIN {table} AS o USING (id), unnest(a.delivered) AS d (destination)
), last AS (
  SELECT topic, key, destination, max(id) AS id FROM noted GROUP BY topic, key, destination
), due AS (
  SELECT topic, key, l.destination, min(o.id) AS id
  FROM last AS l
  JOIN {table} AS o ON o.kafka_topic::text = topic AND o.kafka_key::text = key AND o.id < l.id
  LEFT JOIN {attempts} AS a ON a.id = o.id
  WHERE NOT coalesce(l.destination = ANY (a.delivered), false)
  GROUP BY topic, key, l.destination
), overtaken AS (
  SELECT n.id, array_agg(n.destination) AS destinations
  FROM noted AS n JOIN due AS d USING (topic, key, destination)
  WHERE n.id > d.id GROUP BY n.id
)
UPDATE {attempts} AS a SET delivered = nullif(ARRAY (
  SELECT d.destination FROM unnest(a.delivered) AS d (destination)
  WHERE d.destination <> ALL (o.destinations)
), '{{}}') FROM overtaken AS o WHERE o.id = a.id
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The last failure of a message, and how many there were; and which others have the row."""

    id: int
    destination: str
    retries: int
    error: str
    status: int | None
    gave_up: bool
    delivered: tuple[str, ...] = ()
    fingerprint: int | None = None


class AttemptStore(Protocol):
    """Notes of failures. Used by one thread. Raises `StoreUnavailable` and `SchemaError`."""

    def record(self, attempts: Sequence[Attempt]) -> None:
        """Note failures, over what was noted of the same rows."""

    def forget(self, ids: Sequence[int]) -> None:
        """Delete the notes of rows that were delivered after all."""

    def load(self) -> Mapping[int, int]:
        """How often each row failed that is not given up."""

    def settled(self) -> Mapping[int, tuple[int, frozenset[str]]]:
        """The fingerprints of rows that some of their destinations have, and which."""

    def forget_overtaken(self) -> None:
        """Forget that a destination has a row, where one before it in its key is still in the table
        and not noted to be there: that will be sent again, and so must be what comes after it."""

    def close(self) -> None:
        """Close the connection. The store can be used again."""


def attempts_name(table: TableName) -> TableName:
    """The table of attempts of an outbox. Raises `ConfigurationError` for a name too long."""
    return table.beside("attempts")


class PostgresAttempts(PostgresTable):
    """Notes of failures in PostgreSQL; the table is made when it is first needed."""

    def __init__(self, conninfo: str, table: str | TableName) -> None:
        super().__init__(conninfo, table)
        self._name = attempts_name(self._table)
        self._there = self._is_current = False

    def record(self, attempts: Sequence[Attempt]) -> None:
        """See `AttemptStore.record`."""
        last = {attempt.id: attempt for attempt in attempts}.values()
        given = {
            "ids": [a.id for a in last],
            "destinations": [a.destination for a in last],
            "retries": [a.retries for a in last],
            "errors": [self._storable(a.error) for a in last],
            "statuses": [a.status for a in last],
            "gave_up": [a.gave_up for a in last],
            "delivered": [_array(a.delivered) for a in last],
            "fingerprints": [a.fingerprint for a in last],
        }
        self.create()
        self._execute(self._statement(_RECORD), given)

    def forget(self, ids: Sequence[int]) -> None:
        """See `AttemptStore.forget`."""
        if self._exists():
            self._execute(self._statement(_FORGET), (list(ids),))

    def load(self) -> Mapping[int, int]:
        """See `AttemptStore.load`."""
        if not self._exists():
            return {}
        found = self._execute(self._statement(_LOAD)).fetchall()
        return dict(found)

    def settled(self) -> Mapping[int, tuple[int, frozenset[str]]]:
        """See `AttemptStore.settled`."""
        if not self._exists() or not self._is_current:
            return {}
        found = self._execute(self._statement(_SETTLED)).fetchall()
        return {id: (print_, frozenset([_text(d) for d in names])) for id, print_, names in found}

    def forget_overtaken(self) -> None:
        """See `AttemptStore.forget_overtaken`. Looks through the outbox if anything is noted."""
        if not self._exists() or not self._is_current:
            return
        ((is_noted,),) = self._execute(self._statement(_IS_NOTED)).fetchall()
        if is_noted:
            self._execute(self._statement(_FORGET_OVERTAKEN))

    def create(self) -> None:
        """Make the table, or make that of an earlier version what it is now.

        Raises `SchemaError` for who may not, and `StoreUnavailable`.
        """
        if not self._exists():
            self._execute(self._statement(_CREATE))
        elif not self._is_current:
            try:
                self._execute(self._statement(_ALTER))
            except SchemaError as error:
                statement = " ".join(_ALTER.format(attempts=self._name.quoted()).split())
                raise SchemaError(
                    f"{self._name} is of an earlier version, and may not be changed: run "
                    f"`{statement}` as its owner"
                ) from error

    def _exists(self) -> bool:
        """Whether the table is there, and whether it is that of an earlier version."""
        if not self._is_current:
            columns = self._types_of(self._name)
            self._there = bool(columns)
            self._is_current = columns.keys() >= _LATER
        return self._there

    def _statement(self, template: Any) -> sql.Composed:
        return sql.SQL(template).format(
            attempts=sql.Identifier(*self._name.parts), table=self._identifier
        )

    def _forget(self) -> None:
        self._there = self._is_current = False


def _array(names: Sequence[str]) -> str:
    """As PostgreSQL writes it, whose arrays of arrays must be square; empty for none."""
    quoted = [name.replace("\\", "\\\\").replace('"', '\\"') for name in names]
    return "{" + ",".join([f'"{name}"' for name in quoted]) + "}" if names else ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
