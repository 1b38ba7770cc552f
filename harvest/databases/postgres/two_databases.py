"""An outbox in two databases, in range mode (specs/RELAYER.md §8).

The *outbound* database has the payloads: an ordinary outbox table of range mode. The application's
own, the *primary*, has a small table of ids: `id`, in the order of which messages are published,
and `message_id`, the id of the outbound row. What is committed there is published.

Reading may be left to a *replica* of the primary, however far it lags. What may still commit an id
is asked of the primary, and a gap is looked up on the replica only when that has replayed
everything that the primary had written by then: whoever is no holder any more is visible there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from psycopg import sql

from harvest.core.gaps import Holders, Range, count_ids, union
from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.interfaces.range_store import Bounds, Window
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.core.source import Registration, Source
from harvest.core.table_name import TableName
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.errors import SchemaError, StoreUnavailable, TableMissing
from harvest.maintenance.partitions import PartitionPolicy

__all__ = ["PostgresIds", "TwoDatabasesStore", "archive_name"]

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
  id         BIGSERIAL PRIMARY KEY,
  message_id BIGINT NOT NULL UNIQUE
)
"""
_WRITTEN: Final = "SELECT pg_current_wal_insert_lsn()::text"
_REPLAYED: Final = """
SELECT NOT pg_is_in_recovery() OR coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false)
"""
_KNOWN: Final = "SELECT message_id FROM {table} WHERE message_id = ANY (%s)"
_BACKLOG: Final = """
SELECT count(*), CASE WHEN count(*) = %(most)s THEN (SELECT max(id) FROM {table}) - max(id) ELSE 0
       END
FROM (SELECT id FROM {table} WHERE id > %(after)s ORDER BY id LIMIT %(most)s) AS first
"""
_COLUMNS: Final = {"id", "message_id"}
_POLL_S: Final = 0.02


def archive_name(table: TableName) -> TableName:
    """Where orphans are kept: beside the outbound table."""
    return table.beside("orphans")


class PostgresIds(PostgresRangeStore):
    """The table of ids in the primary, or in a replica of it. Its rows are (id, message_id).

    `standby`: a server that only reads is welcome, too.
    """

    def __init__(self, conninfo: str, table: str | TableName, *, standby: bool = False) -> None:
        super().__init__(conninfo, table, session="any" if standby else "read-write")

    def _fetch_rows(self, template: Any, parameters: Sequence[Any]) -> list[Any]:
        return self._fetch(template, parameters)  # they have no headers

    def written(self) -> str:
        """The end of the log: what was committed before the call, is before it."""
        ((lsn,),) = self._execute(sql.SQL(_WRITTEN)).fetchall()
        return str(lsn.decode() if isinstance(lsn, bytes) else lsn)

    def has_replayed(self, lsn: str) -> bool:
        """Whether everything up to `lsn` is to be seen here."""
        ((replayed,),) = self._execute(sql.SQL(_REPLAYED), (lsn,)).fetchall()
        return bool(replayed)

    def lookup_behind(self, lsn: str, ranges: Sequence[Range]) -> list[Range] | None:
        """`lookup`, if everything up to `lsn` is to be seen; else None.

        In one transaction: behind a pooler, the next one may be another server's.
        """
        with self._transaction():
            return self.lookup(ranges) if self.has_replayed(lsn) else None

    def known(self, message_ids: Sequence[int]) -> set[int]:
        """Those of the messages that are committed."""
        return {row[0] for row in self._fetch(_KNOWN, (list(message_ids),))}

    def above(self, last_id: int) -> Backlog:
        """How many ids are above `last_id`; they have no ages: the oldest is 0 s old."""
        given = {"after": last_id, "most": COUNTED}
        ((rows, beyond),) = self._execute(self._range_sql(_BACKLOG), given).fetchall()
        return Backlog.of(rows, 0, 0.0 if rows else None, beyond)

    def init(
        self,
        *,
        value_type: Literal["text", "bytes"] = "text",
        policy: PartitionPolicy | None = None,
    ) -> bool:
        """Create the table, if it does not exist."""
        del value_type, policy
        created = not self._types()
        self._execute(self._sql(_CREATE))
        return created

    def check(self) -> list[Finding]:
        """Look at the table; see `RangeStore.check`."""
        types = self._types()
        if not types:
            text = f"{self._table} does not exist in the primary: run `harvest init --mode range`"
            return [Finding("ids", "error", text)]
        if not types.keys() >= _COLUMNS:
            text = f"{self._table} needs the columns id and message_id"
            return [Finding("ids", "error", text)]
        return [Finding("ids", "ok", f"{self._table} exists in the primary"), *self._found()]

    def _found(self) -> list[Finding]:
        return self._sequence_findings(self._sequences())

    def _looked_up(self) -> dict[str, sql.Composable]:
        self._connected()  # first: another session may find another table and sequence
        if self._parts is None:
            if not self._types():
                raise TableMissing(
                    f"the table {self._table} does not exist in the primary: run `harvest init`"
                )
            wrong = [finding.text for finding in self.check() if finding.level == "error"]
            if wrong:
                raise SchemaError(f"{self._table} cannot be harvested: {wrong[0]}")
            self._sequence = self._sequences()[0]
            self._parts = {
                "table": self._identifier,
                "columns": sql.SQL("id, message_id"),
                "shard": sql.SQL("0"),
                "mine": sql.Literal(0),
            }
        return self._parts


class TwoDatabasesStore:
    """Ids of the primary, payloads of the outbound database. Implements `RangeStore`.

    - `primary`: where ids are drawn. `outbound`: where payloads are, and copies of the position.
    - `replica`: where ids are read; None: from the primary.
    """

    def __init__(
        self,
        primary: PostgresIds,
        outbound: PostgresRangeStore,
        replica: PostgresIds | None = None,
    ) -> None:
        self._primary = primary
        self._outbound = outbound
        self._ids = replica or primary
        self._written: str | None = None
        """The log's end when the holders were asked."""
        self._cancelled = threading.Event()

    def connect(self) -> None:
        """See `RangeStore.connect`."""
        for store in {id(s): s for s in (self._primary, self._ids, self._outbound)}.values():
            store.connect()

    def bounds(self) -> Bounds:
        """See `RangeStore.bounds`."""
        return self._primary.bounds()

    def read(self, after: int, limit: int) -> Window:
        """See `RangeStore.read`."""
        window = self._ids.read(after, limit)
        return window._replace(rows=self._with_payloads(window.rows))

    def lookup(self, ranges: Sequence[Range]) -> list[Range]:
        """See `RangeStore.lookup`. Waits for the replica, until `cancel`."""
        written = self._written
        if written is None:
            return self._ids.lookup(ranges)
        while (found := self._ids.lookup_behind(written, ranges)) is None:
            if self._cancelled.wait(_POLL_S):
                raise StoreUnavailable("given up while the replica was waited for")
        return found

    def fetch(self, ids: Sequence[Range]) -> list[Row]:
        """See `RangeStore.fetch`."""
        found = self._ids.fetch(ids)
        if self._ids is not self._primary and len(found) != count_ids(ids):
            # They were there a moment ago: this is another replica, which has not got so far.
            raise StoreUnavailable(f"of {count_ids(ids)} ids the replica shows only {len(found)}")
        return self._with_payloads(found)

    def message_of(self, row_id: int) -> str | None:
        """Which message an id of the primary is of; None if it is not there.

        A primary that went back draws ids again, for other messages.
        """
        found: Sequence[Any] = self._primary.fetch([(row_id, row_id)])
        return str(found[0][1]) if found else None

    def holders(self) -> Holders:
        """See `RangeStore.holders`."""
        holders = self._primary.holders()
        self._written = self._primary.written() if self._ids is not self._primary else None
        return holders

    def source(self) -> Source:
        """See `SourceStore.source`: both servers; ids of the primary, visits beside payloads."""
        return self._joined(self._outbound.source())

    def promoted_at(self) -> int | None:
        """See `SourceStore.promoted_at`: of the primary."""
        return self._primary.promoted_at()

    def log_end(self) -> int:
        """See `SourceStore.log_end`: of the primary."""
        return self._primary.log_end()

    def visit(self, token: str) -> Source:
        """See `SourceStore.visit`: beside the payloads."""
        return self._joined(self._outbound.visit(token))

    def register(self, ours: Registration) -> Registration:
        """See `SourceStore.register`."""
        return self._outbound.register(ours)

    def registration(self) -> Registration | None:
        """See `SourceStore.registration`."""
        return self._outbound.registration()

    def register_anew(self, ours: Registration) -> None:
        """See `SourceStore.register_anew`."""
        self._outbound.register_anew(ours)

    def _joined(self, outbound: Source) -> Source:
        primary = self._primary.facts()
        return replace(
            primary,
            server=f"{primary.server}+{outbound.server}",
            table=f"{primary.table}+{outbound.table}",
            visit=outbound.visit,
            token=outbound.token,
        )

    def layout(self) -> int:
        """See `RangeStore.layout`."""
        return self._outbound.layout()

    def save(self, position: Position) -> None:
        """See `RangeStore.save`."""
        self._outbound.save(position)

    def saved(self) -> list[Position]:
        """See `RangeStore.saved`."""
        return self._outbound.saved()

    def rewrite(self, shards: int, positions: Sequence[Position]) -> None:
        """See `RangeStore.rewrite`."""
        self._outbound.rewrite(shards, positions)

    def ping(self) -> None:
        """See `RangeStore.ping`."""
        self._primary.ping()
        self._outbound.ping()

    def backlog(self, position: Position | None = None) -> Backlog:
        """See `RangeStore.backlog`. The ids have no ages: the oldest is 0 s old."""
        if position is None:
            position = next(iter(self.saved()), None)
        last_id = self.bounds().first - 1 if position is None else position.last_id
        return self._ids.above(last_id)

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `RangeStore.init`."""
        created = self._outbound.init(value_type=value_type)
        return self._primary.init() or created

    def check(self) -> list[Finding]:
        """See `RangeStore.check`."""
        return [*self._outbound.check(), *self._primary.check()]

    def check_around(self) -> list[Finding]:
        """See `PostgresTable.check_around`."""
        return []

    def first_rows(self, after: int, limit: int) -> list[tuple[int, str, bytes | None]]:
        """See `PostgresTable.first_rows`: of the payloads, whose ids are others."""
        del after
        return self._outbound.first_rows(-(1 << 63), limit)

    def topics(self) -> list[str]:
        """The topics of the first rows."""
        return self._outbound.topics()

    def cancel(self) -> None:
        """See `RangeStore.cancel`."""
        self._cancelled.set()
        for store in (self._primary, self._ids, self._outbound):
            store.cancel()

    def close(self) -> None:
        """See `RangeStore.close`."""
        for store in (self._primary, self._ids, self._outbound):
            store.close()
        self._cancelled.clear()

    def _with_payloads(self, found: Sequence[Any]) -> list[Row]:
        """Rows under the primary's ids. `found` has pairs of id and message id."""
        if not found:
            return []
        wanted = union((message, message) for _, message in found)
        payloads: Mapping[int, Any] = {row[0]: row for row in self._outbound.fetch(wanted)}
        try:
            return [(row_id, *payloads[message][1:]) for row_id, message in found]  # type: ignore[misc]
        except KeyError as error:
            raise StoreUnavailable(
                f"the message {error} is committed in the primary, and not in the outbound table: "
                "write it there first, and commit; was it taken for an orphan, or deleted?"
            ) from None
