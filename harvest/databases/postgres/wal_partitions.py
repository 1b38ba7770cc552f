"""Range partitions of an outbox in wal mode: dropped once all their rows are published.

No id says what is published, a place in the log does. So a partition is closed to writers first:
then all that is in it was committed before the log's end as it is then, and when the position has
passed that, the partition may go. What the slot still has of it is decoded as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import sql

from harvest.core.table_name import TableName
from harvest.core.wal_slot import check_log_end
from harvest.databases.postgres.partitions import PostgresPartitions, identifier_of
from harvest.errors import StoreUnavailable
from harvest.maintenance.partitions import Partition

__all__ = ["PostgresWalPartitions"]

_WAIT_S: Final = 2.0
_RETRY_S: Final = 0.02
_NO_WRITES: Final = "LOCK TABLE {part} IN SHARE MODE"
_LOG_END: Final = "SELECT (pg_current_wal_insert_lsn() - '0/0')::numeric::text"
_SWEEP: Final = """
DELETE FROM {part} WHERE id < %s AND create_time < now() - make_interval(secs => %s)
"""


class PostgresWalPartitions(PostgresPartitions):
    """The partitions of the outbox `table`.

    `published`: all rows of transactions whose commit record begins below it are, by now.
    """

    def __init__(self, conninfo: str, table: str | TableName, published: Callable[[], int]) -> None:
        super().__init__(conninfo, table)
        self._published = published

    def sweep(self, below: int, retain_s: float) -> int:
        """See `PartitionStore.sweep`: what one snapshot shows, once that is published."""
        part = self._default()
        if part is None:
            return 0
        connection = self._connected()
        try:
            with connection.transaction():
                self._run(sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
                self._run(sql.SQL("SELECT FROM {part} LIMIT 1").format(part=part))
                if not self._has_passed(self._log_end()):
                    return 0
                statement = sql.SQL(_SWEEP).format(part=part)
                return self._run(statement, (below, retain_s)).rowcount
        except psycopg.Error as error:
            if connection.broken:
                self.close()
            said = " ".join(str(error).split())
            raise StoreUnavailable(f"published rows could not be deleted: {said}") from error

    def obstacle(self, partition: Partition) -> str | None:
        """Why it would not be dropped now; None if it would. Closes it to writers for a moment."""
        end = None
        with self._managing() as alone:
            if alone:
                part = identifier_of(partition)
                self._run(sql.SQL(_NO_WRITES).format(part=part))
                end = self._log_end()
        if end is None:
            return "somebody writes to it, or changes partitions"
        return None if self._has_passed(end) else "not all that is in it is published"

    def _may_go(self, part: sql.Identifier) -> bool:
        self._run(sql.SQL(_NO_WRITES).format(part=part))
        return self._has_passed(self._log_end())

    def _log_end(self) -> int:
        already = self._published()
        ((end,),) = self._run(sql.SQL(_LOG_END)).fetchall()
        check_log_end(int(end), already)
        return int(end)

    def _has_passed(self, end: int) -> bool:
        """Whether all below this place in the log is published, or will be in two seconds."""
        deadline = time.monotonic() + _WAIT_S
        while self._published() < end:
            if time.monotonic() > deadline:
                return False
            time.sleep(_RETRY_S)
        return True
