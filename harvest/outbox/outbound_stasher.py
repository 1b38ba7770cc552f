"""Writing to an outbox in two databases, and what is left over when a transaction is given up.

A payload is committed in the outbound database first; then its id goes into the application's own
transaction in the primary. If that is rolled back, the payload is an *orphan*: it is never
published, and `archive_orphans` moves it away when it is old enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from harvest.core.table_name import TableName
from harvest.databases.postgres.conninfo import parsed_conninfo
from harvest.databases.postgres.two_databases import PostgresIds, archive_name
from harvest.errors import HarvestError, NoTransaction, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher

__all__ = ["OutboundStasher", "archive_orphans"]

_CHUNK: Final = 5_000
_OLD: Final = """
SELECT id FROM {table}
WHERE id > %s AND create_time < clock_timestamp() - make_interval(secs => %s)
ORDER BY id LIMIT %s
"""
_CREATE: Final = "CREATE TABLE IF NOT EXISTS {archive} (LIKE {table})"
_MOVE: Final = """
WITH gone AS (DELETE FROM {table} WHERE id = ANY (%s) RETURNING *)
INSERT INTO {archive} SELECT * FROM gone
"""
_INSERT_IDS: Final = "INSERT INTO {ids} (message_id) SELECT unnest(%s::bigint[])"


class OutboundStasher:
    """Writes messages to both databases, in the right order. For psycopg 3.

    `table` is the outbox in the outbound database, `ids` the table in the primary.
    """

    def __init__(self, table: str = "outbox", ids: str = "outbox_ids") -> None:
        self._stasher = Stasher(table)
        self._ids = sql.Identifier(*TableName.parse(ids).parts)

    def stash(
        self,
        primary: psycopg.Connection[Any],
        outbound: psycopg.Connection[Any],
        record: OutboxRecord,
    ) -> int:
        """As `stash_many`, of one record; return its id in the outbound database."""
        (message_id,) = self.stash_many(primary, outbound, (record,))
        return message_id

    def stash_many(
        self,
        primary: psycopg.Connection[Any],
        outbound: psycopg.Connection[Any],
        records: Iterable[OutboxRecord],
    ) -> list[int]:
        """Commit the payloads on `outbound`, then insert their ids in the transaction of `primary`.

        The messages are published if and only if that is committed, in their order.

        Raises `NoTransaction` when `primary` is in autocommit mode without a transaction,
        `HarvestError` when `outbound` has one open (its payloads would not be committed first),
        and what `Stasher.stash` and psycopg raise.
        """
        if outbound.info.transaction_status != TransactionStatus.IDLE:
            raise HarvestError(
                "the outbound connection has a transaction open: give one of its own, since the "
                "payload must be committed before its id"
            )
        if primary.autocommit and primary.info.transaction_status == TransactionStatus.IDLE:
            raise NoTransaction(
                "the primary connection is in autocommit mode, with no transaction: the ids would "
                "be published whatever becomes of your other changes. Begin a transaction "
                "(`with connection.transaction():`), then stash"
            )
        with outbound.transaction():
            message_ids = self._stasher.stash_returning(outbound, records)
        if message_ids:
            statement = sql.SQL(_INSERT_IDS).format(ids=self._ids)
            primary.execute(statement, (message_ids,))
        return message_ids


def archive_orphans(
    outbound: str, table: TableName, primary: PostgresIds, older_than_s: float, *, dry_run: bool
) -> int:
    """Move payloads to `TABLE_orphans` that are older than `older_than_s` and have no committed id
    in the primary; return how many there are.

    A transaction of the application that takes longer than that would find its payload moved, and
    stop the harvest: choose far more than the longest one takes. `primary` must be no replica.

    Raises `ConfigurationError`, `StoreUnavailable` and `SchemaError`.
    """
    names = {
        "table": sql.Identifier(*table.parts),
        "archive": sql.Identifier(*archive_name(table).parts),
    }
    parsed_conninfo(outbound)
    count, last = 0, -(1 << 63)
    try:
        with psycopg.connect(outbound, autocommit=True) as connection:
            if not dry_run:
                connection.execute(sql.SQL(_CREATE).format(**names))
            while True:
                old = sql.SQL(_OLD).format(**names)
                found = connection.execute(old, (last, older_than_s, _CHUNK)).fetchall()
                if not found:
                    return count
                ids = [row[0] for row in found]
                last = ids[-1]
                known = primary.known(ids)
                orphans = [i for i in ids if i not in known]
                if orphans and not dry_run:
                    connection.execute(sql.SQL(_MOVE).format(**names), (orphans,))
                count += len(orphans)
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        raise StoreUnavailable(f"orphans could not be archived: {text}") from error
