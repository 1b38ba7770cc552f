"""What PostgreSQL says about itself: system identifier, timeline, log and table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from psycopg import sql

from harvest.core.source import Source
from harvest.databases.postgres.table import PostgresTable
from harvest.databases.registrations import Registrations
from harvest.errors import TableMissing

__all__ = ["PostgresSources"]

# What is flushed: what a crash takes back was never to be seen, unless its transaction did not wait
# for the disk. The name of a file of the log begins with its timeline; in recovery there is none.
_FACTS: Final = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::bigint,
       (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint,
       (SELECT oid FROM pg_database WHERE datname = current_database())::text,
       to_regclass(%s)::oid::text
"""
# A crash is recovered from by replaying, too, but without noting the time of what was committed.
_PROMOTED: Final = """
SELECT (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint
WHERE pg_last_xact_replay_timestamp() IS NOT NULL
"""
_LOG_END: Final = "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"
# Durable also where the session's commits are not: a crash must not take a visit back.
_DURABLE: Final = "SET LOCAL synchronous_commit = on"


class PostgresSources(PostgresTable, Registrations):
    """A connection to PostgreSQL as a source of rows. Implements `SourceStore`."""

    _needs_table: ClassVar[bool] = True

    def promoted_at(self) -> int | None:
        """See `SourceStore.promoted_at`: what was replayed last, before it was promoted.

        A server that was restarted since, or has crashed, does not know.
        """
        found = self._execute(sql.SQL(_PROMOTED)).fetchall()
        return int(found[0][0]) if found else None

    def log_end(self) -> int:
        """See `SourceStore.log_end`."""
        ((end,),) = self._execute(sql.SQL(_LOG_END)).fetchall()
        return int(end)

    def visit(self, token: str) -> Source:
        """See `SourceStore.visit`."""
        with self._transaction():
            self._execute(sql.SQL(_DURABLE))
            return super().visit(token)

    def facts(self) -> Source:
        """See `Registrations.facts`."""
        found = self._execute(sql.SQL(_FACTS), (self._table.quoted(),)).fetchall()
        ((server, timeline, log, database, table),) = found
        if table is None and self._needs_table:
            raise TableMissing(f"the table {self._table} does not exist: run `harvest init`")
        name = "" if table is None else f"{_text(database)}.{_text(table)}"
        return Source(_text(server), int(timeline), int(log), name)

    def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
        table = sql.Identifier(*self.registration_table.parts)
        statement = sql.SQL(template).format(registration=table)
        cursor = self._execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
