"""An outbox in PostgreSQL in wal mode: the slot, the publication, and the table if there is one.

A *slot* keeps the place up to which the log was read; a *publication* says of which tables rows are
streamed: of the outbox alone, and of no table where records are messages (specs/HARVEST.md §18).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.table_name import TableName
from harvest.core.wal_options import WalOptions, message_prefix
from harvest.core.wal_position import WalPosition, format_lsn
from harvest.core.wal_slot import ServerState, SlotHealth, check_log_end, starting_position
from harvest.databases.postgres.conninfo import parsed_conninfo
from harvest.databases.postgres.encoding import Converter
from harvest.databases.postgres.header_arrays import array_of
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.partitions import PostgresPartitions
from harvest.databases.postgres.pgoutput import BINARY_TYPES, Decoder
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.replication import (
    PostgresWalStream,
    ReplicationConnection,
    SlotInUse,
)
from harvest.databases.postgres.slot import PostgresSlot
from harvest.databases.postgres.sources import PostgresSources
from harvest.databases.postgres.table import readable, refused
from harvest.databases.schema import TIMES
from harvest.errors import ConfigurationError, StoreUnavailable, TableMissing
from harvest.maintenance.partitions import PartitionPolicy

__all__ = ["PostgresWalSource"]

_IN_USE_S: Final = 10.0
_RETRY_S: Final = 0.02
_SNAPSHOT_S: Final = 0.2
_PURGE_WAIT_S: Final = 2.0
_MAX_NAME: Final = 63
_BEFORE_ALL: Final = -(1 << 63)
_BINARY: Final = {
    "text",
    "character varying",
    "character",
    "bytea",
    "json",
    "text[]",
    "character varying[]",
    "bytea[]",
}
_PUBLICATION: Final = "SELECT to_jsonb(p) FROM pg_publication p WHERE pubname = %s"
_PUBLISHED: Final = """
SELECT to_jsonb(t) FROM pg_publication_tables t WHERE pubname = %s
"""
_TABLE_OF: Final = """
SELECT n.nspname, c.relname, c.relkind::text = 'p' FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""

_TYPES: Final = """
SELECT a.attname, a.atttypid::bigint, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attname = ANY (%s) AND NOT a.attisdropped
"""
_BACKLOG: Final = """
SELECT count(*), extract(
  epoch FROM now() - min(create_time) FILTER (WHERE isfinite(create_time))
)::float8, CASE WHEN count(*) = %(most)s THEN (SELECT max(id) FROM {table}) - max(id) ELSE 0 END
FROM (SELECT id, {created} FROM {table} ORDER BY id LIMIT %(most)s) AS first
"""


class PostgresWalSource(PostgresSources):
    """The slot of the outbox `table`. Implements `harvest.core.interfaces.wal_stream.WalSource`
    and `harvest.runtime.source_guard.WalSourceStore`.

    One connection, and one walsender for each stream. Raises `ConfigurationError` as
    `PostgresTable` does, and for a `standby` that cannot be read.
    """

    _marked = False
    _needs_table = False

    def __init__(
        self, conninfo: str, table: str | TableName, options: WalOptions | None = None
    ) -> None:
        super().__init__(conninfo, table)
        self.options = options or WalOptions()
        self._extra = self.options.layout.headers
        given = conninfo_to_dict(self._conninfo)
        if self.options.standby is not None:
            given |= {
                **parsed_conninfo(self.options.standby, "wal.standby"),
                "target_session_attrs": "any",
            }
        self._stream_conninfo = make_conninfo("", **given)
        self._converter = Converter(self._conninfo)
        self._as_stored = False
        """Whether the next stream has texts as the database has them, and they are converted here:
        it cannot convert one of them, and says so by ending the stream."""
        self._in_text = False
        """Whether the next stream has values in text form, whatever types the columns have now: in
        the log, one of them has another."""
        self.slot = PostgresSlot(self._stream_conninfo, self._table, self.options.slot)

    # --- Names ---

    @property
    def publication_name(self) -> str:
        """The publication: of one database."""
        return self.options.publication or f"harvest_{self._table}".replace(".", "_")[:_MAX_NAME]

    @property
    def prefix(self) -> str:
        """The prefix of the messages that are records."""
        return self.options.prefix or message_prefix(self._table)

    # --- WalSource ---

    def connect(self) -> None:
        """See `WalSource.connect`."""
        self._connected()
        self.slot.connect()
        self._check(self._publication_findings() + self._partition_findings())

    def open(
        self, epoch: int, position: WalPosition | None
    ) -> tuple[PostgresWalStream, WalPosition]:
        """See `WalSource.open`."""
        self._check(self._publication_findings())
        as_stored, self._as_stored = self._as_stored, False
        in_text, self._in_text = self._in_text or as_stored, False
        conninfo = self._stream_conninfo
        if as_stored:
            conninfo = make_conninfo(conninfo, client_encoding="SQL_ASCII")
        connection = ReplicationConnection(conninfo)
        try:
            server = connection.server(None if position is None else position.timeline)
            if self.options.standby is not None and position is not None:
                _wait_for_standby(server, position)
            begin = self._begin(epoch, position, server)
            name = self.slot.name
            stream = self._start(connection, name, begin.lsn, as_stored=as_stored, in_text=in_text)
        except BaseException:
            connection.close()
            raise
        return stream, begin

    def begin(self, position: WalPosition) -> None:
        """Whether the slot goes on at `position`: raises as `open` does, and reads nothing."""
        connection = ReplicationConnection(self._stream_conninfo)
        try:
            self._begin(0, position, connection.server(position.timeline))
        finally:
            connection.close()

    def end_of(self, timeline: int) -> int:
        """See `WalSourceStore.end_of`."""
        with closing(ReplicationConnection(self._stream_conninfo)) as connection:
            return connection.server(timeline).end_of(timeline)

    def _begin(self, epoch: int, position: WalPosition | None, server: ServerState) -> WalPosition:
        name, state = self.slot.name, self.slot.state()
        database = self._connected().info.dbname
        return starting_position(epoch, position, name, state, server, database)

    def _start(
        self,
        connection: ReplicationConnection,
        slot: str,
        lsn: int,
        *,
        as_stored: bool,
        in_text: bool,
    ) -> PostgresWalStream:
        deadline = time.monotonic() + _IN_USE_S
        while True:
            self.slot.end_reader()
            types = frozenset[int]() if in_text else self._binary_types()
            binary = bool(types)
            decoder = Decoder(self.options.layout, self.prefix.encode(), binary, types)
            if as_stored:
                decoder.to_utf8 = self._converter.to_utf8
            publication = self.publication_name
            try:
                stream = connection.start(slot, lsn, publication, decoder, binary=binary)
                stream.on_unreadable = self._read_as_stored
                stream.on_not_binary = self._read_in_text
                return stream
            except SlotInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_S)

    def _read_as_stored(self) -> None:
        self._as_stored = True

    def _read_in_text(self) -> None:
        self._in_text = True

    def purge(self, published: Callable[[], int]) -> int | None:
        """See `WalSource.purge`.

        What a snapshot shows was committed before the log's end as it was right after; once
        `published` has passed that, all rows of the snapshot are published. So no list of rows is
        needed, and what a killed leader left behind is deleted, too.
        """
        if self.options.source == "message" or self.options.purge != "delete":
            return 0
        connection = self._connected()
        already = published()
        try:
            with connection.transaction():
                connection.execute(
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; "
                    "SET LOCAL synchronous_commit = off"
                )
                table = self._identifier
                found = connection.execute(
                    sql.SQL("SELECT EXISTS (SELECT FROM {t}), ").format(t=table)
                    + sql.SQL("(pg_current_wal_insert_lsn() - '0/0')::numeric::text")
                ).fetchone()
                if found is None or not found[0]:
                    return 0
                end = int(found[1])
                check_log_end(end, already)
                deadline = time.monotonic() + _PURGE_WAIT_S
                while published() < end:
                    if time.monotonic() > deadline:
                        return None
                    time.sleep(_RETRY_S)
                return connection.execute(sql.SQL("DELETE FROM {t}").format(t=table)).rowcount
        except psycopg.errors.UndefinedTable:
            raise TableMissing(
                f"the table {self._table} does not exist: run `harvest init`"
            ) from None
        except psycopg.Error as error:
            if connection.broken:
                self.close()
            said = " ".join(str(error).split())
            raise StoreUnavailable(f"published rows could not be deleted: {said}") from error

    def _binary_types(self) -> frozenset[int]:
        """The numbers of types that are the same in binary form, and cheaper so: those of the
        columns that are published among them. Empty if one of these has another type."""
        if self.options.source == "message":
            return frozenset()
        given = (self._table.quoted(), list(self.options.layout.columns))
        found = self._execute(sql.SQL(_TYPES), given).fetchall()
        if not all(name in _BINARY for *_, name in found):
            return frozenset()
        return BINARY_TYPES.union([number for _, number, _ in found])

    # --- Making and unmaking ---

    def init(
        self,
        *,
        value_type: Literal["text", "bytes"] = "text",
        begin_now: bool = False,
        policy: PartitionPolicy | None = None,
    ) -> bool:
        """Make the tables, publication and slot, as far as they do not exist.

        `policy`: of the first partitions of a table that is made with some.
        Returns whether anything was made. Rows that were committed before the slot would not be
        published: if there are any, raises `ConfigurationError` and makes no slot, unless
        `begin_now`.
        """
        made = False
        if self.options.source == "table" and self.options.layout.is_goharvest:
            partitioned = self.options.purge == "partitions"
            if partitioned:
                with closing(PostgresRangeStore(self._conninfo, self._table)) as ranges:
                    made = ranges.init(value_type=value_type, policy=policy)
                self._check(self._partition_findings())
            else:
                with closing(PostgresMarkStore(self._conninfo, self._table)) as marks:
                    made = marks.init(value_type=value_type)
        self.create_registration()
        made |= self.create_publication()
        if self.slot.state() is not None:
            return made
        self._make_first_slot(check_table=self.options.source == "table" and not begin_now)
        return True

    def before_all(self) -> WalPosition:
        """A place of this server from which no slot goes on, since each begins behind it."""
        replication = ReplicationConnection(self._stream_conninfo)
        try:
            server = replication.server()
        finally:
            replication.close()
        return WalPosition(0, server.system, server.timeline, 0)

    def _make_first_slot(self, *, check_table: bool) -> None:
        """Make a temporary slot, and keep it under the slot's name once the table was looked at.

        However this is interrupted, a slot that is there is one behind which nothing is missed:
        what its snapshot shows in the table would be purged, and never have been published.
        """
        name = self.slot.name
        temporary = f"harvest_init_{secrets.token_hex(8)}"
        replication = ReplicationConnection(self._stream_conninfo)
        try:
            with self._logging_snapshots():
                _, snapshot = replication.create_slot(temporary, temporary=True)
            if check_table:
                with self._seeing(snapshot) as connection:
                    self._refuse_rows(connection)
            replication.keep_slot(temporary, name)
            if self._fails_over(replication):
                replication.let_fail_over(name)
        except psycopg.Error as error:
            said = " ".join(str(error).split())
            raise StoreUnavailable(f"the slot {name} could not be made: {said}") from error
        finally:
            replication.close()

    def _refuse_rows(self, connection: psycopg.Connection[Any]) -> None:
        query = sql.SQL("SELECT count(*) FROM {t}").format(t=self._identifier)
        ((rows,),) = connection.execute(query).fetchall()
        if rows:
            raise ConfigurationError(
                f"{self._table} has {rows} rows that were committed before the slot, and "
                "would not be published: `harvest slot renew --publish-table` publishes "
                "them first; --begin-now leaves them out"
            )

    @contextmanager
    def _seeing(self, snapshot: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self._stream_conninfo) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(
                sql.SQL("SET TRANSACTION SNAPSHOT {s}").format(s=sql.Literal(snapshot))
            )
            yield connection

    def _fails_over(self, replication: ReplicationConnection) -> bool:
        return replication.version >= 170000 and self.options.standby is None

    def create_publication(self) -> bool:
        """Make the publication if it does not exist; whether it was made."""
        if self._execute(sql.SQL(_PUBLICATION), (self.publication_name,)).fetchall():
            return False
        name = sql.Identifier(self.publication_name)
        if self.options.source == "message":
            self._change(sql.SQL("CREATE PUBLICATION {n}").format(n=name))
            return True
        if not self._types():
            raise TableMissing(f"the table {self._table} does not exist: create it, then try again")
        columns: sql.Composable = sql.SQL("")
        if self._connected().info.server_version >= 150000:
            chosen = [sql.Identifier(c) for c in self.options.layout.columns]
            columns = sql.SQL(" ({})").format(sql.SQL(", ").join(chosen))
        self._change(
            sql.SQL(
                "CREATE PUBLICATION {n} FOR TABLE {t}{c} "
                "WITH (publish = 'insert', publish_via_partition_root = true)"
            ).format(n=name, t=self._identifier, c=columns)
        )
        return True

    @contextmanager
    def new_slot(self) -> Iterator[tuple[WalPosition, psycopg.Connection[Any]]]:
        """Make the slot: its place, and a connection that sees what was committed before it.

        If the block raises, the slot is dropped again. Whoever calls has dropped the one before.
        """
        name = self.slot.name
        replication = ReplicationConnection(self._stream_conninfo)
        try:
            try:
                failover = self._fails_over(replication)
                with self._logging_snapshots():
                    lsn, snapshot = replication.create_slot(name, failover=failover)
                with self._seeing(snapshot) as connection:
                    server = replication.server()
                    yield WalPosition(0, server.system, server.timeline, lsn), connection
            except BaseException:
                self.slot.drop()
                raise
        except psycopg.Error as error:
            said = " ".join(str(error).split())
            raise StoreUnavailable(f"the slot {name} could not be made: {said}") from error
        finally:
            replication.close()

    @contextmanager
    def _logging_snapshots(self) -> Iterator[None]:
        """A replica makes a slot when it hears from the primary which transactions run: which it
        tells every 15 s, and an idle one never, unless it is asked to."""
        if self.options.standby is None:
            yield
            return
        done = threading.Event()

        def ask() -> None:
            with (
                suppress(psycopg.Error),
                psycopg.connect(self._conninfo, autocommit=True) as asking,
            ):
                while not done.wait(_SNAPSHOT_S):
                    asking.execute("SELECT pg_log_standby_snapshot()")  # not everybody may

        thread = threading.Thread(target=ask, name="snapshots", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @contextmanager
    def leaving(self) -> Iterator[tuple[int, Callable[[], int]]]:
        """A place in the log, and what deletes the rows of the table that were committed before it.

        Those that begin to be committed at that place or behind stay: for the next mode. Raises
        `ConfigurationError` where a replica is read, `StoreUnavailable`, `SchemaError`.
        """
        if self.options.standby is not None:
            raise ConfigurationError(
                "wal.standby: the place where wal mode ends is found on the primary only: let "
                "`harvest slot renew` make a slot there, without standby, and switch then"
            )
        replication = ReplicationConnection(self._stream_conninfo)
        try:
            name = f"harvest_leaving_{secrets.token_hex(8)}"
            lsn, snapshot = replication.create_slot(name, temporary=True)
            with psycopg.connect(self._conninfo) as connection:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                connection.execute(
                    sql.SQL("SET TRANSACTION SNAPSHOT {s}").format(s=sql.Literal(snapshot))
                )

                def delete() -> int:
                    if self.options.source == "message":
                        return 0
                    statement = sql.SQL("DELETE FROM {t}").format(t=self._identifier)
                    return connection.execute(statement).rowcount

                yield lsn, delete
        except psycopg.Error as error:
            said = " ".join(str(error).split())
            text = f"the table {self._table} was not left: {said}; try again"
            raise StoreUnavailable(text) from error
        finally:
            replication.close()

    def drop_publication(self) -> None:
        """Drop the publication if it exists."""
        name = sql.Identifier(self.publication_name)
        self._change(sql.SQL("DROP PUBLICATION IF EXISTS {n}").format(n=name))

    def _change(self, statement: sql.Composed) -> None:
        try:
            self._connected().execute(statement)
        except psycopg.Error as error:
            raise refused("the database refused to change the publication", error) from error

    # --- How it is ---

    def health(self) -> SlotHealth:
        """What the slot costs, now."""
        return self.slot.health()

    def close(self) -> None:
        """See `WalSource.close`."""
        self.slot.close()
        self._converter.close()
        super().close()

    def backlog(self) -> Backlog | None:
        """What waits in the table, where published rows are deleted; else nobody knows."""
        if self.options.source == "message" or self.options.purge != "delete":
            return None
        if not self.options.layout.is_goharvest:
            return None
        # What is read are the columns of the publication: the table need not have the others.
        has_time = self._types().get("create_time", ("",))[0] in TIMES
        created = sql.SQL("create_time" if has_time else "NULL::timestamptz AS create_time")
        query = sql.SQL(_BACKLOG).format(table=self._identifier, created=created)
        ((rows, age_s, beyond),) = self._execute(query, {"most": COUNTED}).fetchall()
        return Backlog.of(rows, 0, age_s, beyond)

    def has_table(self) -> bool:
        """Whether there is a table of the outbox's name."""
        return bool(self._types())

    def rows_query(self, template: Any, after: int | None) -> sql.Composed:
        """A query of the table's rows above an id, in the columns of `harvest.core.row.Row`, with
        header arrays and further columns as the other modes select them."""
        types = self._types()
        columns = [
            sql.SQL("id, coalesce(kafka_topic::text, '')"),
            readable(types, "kafka_key"),
            readable(types, "kafka_value"),
            array_of("kafka_header_keys"),
            array_of("kafka_header_values"),
            *self._extra_columns(types),
        ]
        return sql.SQL(template).format(
            table=self._identifier,
            columns=sql.SQL(", ").join(columns),
            after=sql.Literal(_BEFORE_ALL if after is None else after),
        )

    def count_rows(self, after: int | None) -> int:
        """How many rows the table has above an id."""
        query = sql.SQL("SELECT count(*) FROM {t} WHERE id > {a}").format(
            t=self._identifier, a=sql.Literal(_BEFORE_ALL if after is None else after)
        )
        ((count,),) = self._execute(query).fetchall()
        return int(count)

    def topics(self) -> list[str]:
        """The topics of rows that are in the table, if there is one."""
        if self.options.source == "message" or not self.options.layout.is_goharvest:
            return []
        return super().topics()

    def _check(self, findings: Sequence[Finding]) -> None:
        """Raises `ConfigurationError`, `TableMissing` for errors."""
        wrong = [f for f in findings if f.level == "error"]
        if wrong:
            kind = TableMissing if wrong[0].subject == "table" else ConfigurationError
            raise kind("; ".join(f.text for f in wrong))

    def _publication_findings(self) -> list[Finding]:
        name = self.publication_name
        found = self._execute(sql.SQL(_PUBLICATION), (name,)).fetchall()
        if not found:
            text = f"the publication {name} does not exist: run `harvest init --mode wal`"
            return [Finding("publication", "error", text)]
        published = [t for (t,) in self._execute(sql.SQL(_PUBLISHED), (name,)).fetchall()]
        tables = self._execute(sql.SQL(_TABLE_OF), (self._table.quoted(),)).fetchall()
        if self.options.source == "message":
            its_own = [(schema, table) for schema, table, _ in tables]
            return [self._messages_finding([t for t in published if _named(t) not in its_own])]
        if not tables:
            return [Finding("table", "error", f"{self._table} does not exist: run `harvest init`")]
        ((schema, table, partitioned),) = tables
        its = [t for t in published if _named(t) == (schema, table)]
        about = found[0][0]
        problems = []
        if not its or len(published) > 1:
            names = ", ".join(".".join(_named(t)) for t in published) or "none"
            problems.append(f"it has the tables {names}, must have {schema}.{table} and no other")
        if not about["pubinsert"]:
            problems.append("it does not publish INSERT")
        if partitioned and not about["pubviaroot"]:
            problems.append("the table is partitioned, and publish_via_partition_root is off")
        if its and its[0].get("rowfilter"):
            problems.append("it has a row filter: rows would be passed over")
        missing = set(self.options.layout.columns) - set(self._types())
        if its and its[0].get("attnames"):
            missing |= set(self.options.layout.columns) - set(its[0]["attnames"])
        if missing:
            problems.append(f"the columns {', '.join(sorted(missing))} are missing in it")
        if problems:
            text = (
                f"the publication {name} does not fit: {'; '.join(problems)}; drop it and run "
                "`harvest init --mode wal`, or give another name, `wal: {publication: …}`"
            )
            return [Finding("publication", "error", text)]
        return [Finding("publication", "ok", f"{name}, for {schema}.{table}")]

    def _messages_finding(self, others: Sequence[Mapping[str, str]]) -> Finding:
        """`others`: the tables of the publication that are not the outbox, which may be left."""
        name = self.publication_name
        if not others:
            return Finding("publication", "ok", f"{name}, for messages with {self.prefix!r}")
        first = ".".join(_named(others[0]))
        more = f" and {len(others) - 1} more" if others[1:] else ""
        text = (
            f"the publication {name} has the table {first}{more}, must have none: records are "
            "messages; give another name, `wal: {publication: …}`, and run `harvest init`"
        )
        return Finding("publication", "error", text)

    def _partition_findings(self) -> list[Finding]:
        if self.options.purge != "partitions":
            return []
        with closing(PostgresPartitions(self._conninfo, self._table)) as partitions:
            if partitions.inventory().partitioned:
                return [Finding("partitions", "ok", "dropped when they are published")]
        text = (
            f"wal.purge is partitions, and {self._table} is not partitioned: write purge: delete, "
            "or harvest another outbox, which `harvest init` makes partitioned"
        )
        return [Finding("partitions", "error", text)]

    # --- check ---

    def check(self) -> list[Finding]:
        """What would keep a harvester from its work. Changes nothing."""
        connection = self._connected()
        version = connection.info.server_version
        where = f"PostgreSQL {version // 10000}, database {connection.info.dbname!r}"
        findings = [Finding("server", "ok", where)]
        if version < 140000:
            text = f"{where}: 14 is the oldest for mode: wal"
            return [Finding("server", "error", text)]
        if self.options.standby is not None and version < 160000:
            text = f"{where}: a standby can be read from PostgreSQL 16 on"
            return [Finding("server", "error", text)]
        findings += self.slot.server_findings()
        findings += self._publication_findings() + self._partition_findings()
        if self.options.source == "table" and self.options.purge == "delete":
            findings += self._check_privileges(self._table, ("SELECT", "DELETE"))
        return findings + self._check_beside() + self.slot.findings()

    def check_around(self) -> list[Finding]:
        """What `check` says beside the slot: nothing more."""
        return []


def _named(published: Mapping[str, str]) -> tuple[str, str]:
    """Schema and table, of a row of ``pg_publication_tables``."""
    return published["schemaname"], published["tablename"]


def _wait_for_standby(server: ServerState, position: WalPosition) -> None:
    """A replica that was started a moment ago has not replayed what it had."""
    if server.timeline == position.timeline and server.lsn < position.row_lsn:
        raise StoreUnavailable(
            f"the standby has replayed up to {format_lsn(server.lsn)}, and rows were published up "
            f"to {format_lsn(position.row_lsn)}: waiting for it"
        )
