"""The outbox table in PostgreSQL, in range mode (specs/HARVEST.md §15).

Who may still commit an id: PostgreSQL locks a sequence for whoever draws from it, in the mode ROW
EXCLUSIVE, before it gives him a value and until his transaction has ended (when what it committed
is already visible). It does so for every way to draw, and for prepared transactions, and `pg_locks`
shows it to everyone. The lock of an INSERT on the table says the same a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple

from psycopg import sql
from psycopg.types.string import TextBinaryLoader

from harvest.core.extra_columns import NO_EXTRA, Extra, with_extra
from harvest.core.gaps import Holders, Range, missing
from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.interfaces.range_store import Bounds, Window, waiting_after
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.core.shards import HEX_DIGITS, shard_of
from harvest.core.source import Source
from harvest.core.table_name import TableName
from harvest.databases.postgres.header_arrays import array_of, with_headers
from harvest.databases.postgres.partitions import SEQUENCES_OF_ID, PostgresPartitions
from harvest.databases.postgres.sources import PostgresSources
from harvest.databases.postgres.table import UnreadableRows, readable
from harvest.databases.schema import COLUMNS
from harvest.errors import SchemaError, StoreUnavailable
from harvest.maintenance.partitions import PartitionPolicy, carry_out, plan

__all__ = ["PostgresRangeStore"]

_READ: Final = "SELECT {columns} FROM {table} WHERE id > %s ORDER BY id LIMIT %s"
_NEXT: Final = "SELECT id FROM {table} WHERE id > %s ORDER BY id LIMIT 1"
# The rows of one shard, and one row about the page that they are from. All in one statement: they
# must be of one moment. The ids of the page are needed only if some are missing.
_READ_SHARD: Final = """
WITH page AS MATERIALIZED (
  SELECT id, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
         {shard} = {mine} AS mine{extra}
  FROM {table} WHERE id > %s ORDER BY id LIMIT %s
)
SELECT {columns}, NULL::bigint AS last, NULL::bigint AS seen, NULL::bigint[] AS ids
FROM page WHERE mine
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL{nulls}, max(id), count(*),
       CASE WHEN max(id) - %s > count(*) THEN array_agg(id) END
FROM page
"""
_TOPIC: Final = "coalesce(kafka_topic::bpchar, '')"
"""Of the one type that arrives as text. One that is NULL is empty: no name that Kafka allows."""
_OF_PAGE: Final = set(COLUMNS) - {"create_time", "leader_id"}
# The ids that are there, as ranges: what is the same distance from its row number is one. They are
# looked up first, else the planner goes through the whole table, for the order that numbers need.
_LOOKUP: Final = """
WITH found AS MATERIALIZED (
  SELECT id FROM unnest(%s::bigint[], %s::bigint[]) AS wanted (low, high)
  CROSS JOIN LATERAL (SELECT id FROM {table} WHERE id BETWEEN low AND high OFFSET 0) AS there
)
SELECT min(id), max(id)
FROM (SELECT id, id - row_number() OVER (ORDER BY id) AS island FROM found) AS numbered
GROUP BY island
"""
_FETCH: Final = """
SELECT {columns}
FROM unnest(%s::bigint[], %s::bigint[]) AS wanted (low, high)
JOIN {table} ON id BETWEEN low AND high
WHERE {shard} = {mine}
"""
_SEQUENCES: Final = f"""
SELECT s.seqrelid, s.seqrelid::regclass::text, s.seqincrement, s.seqcache, s.seqmin, s.seqcycle,
       has_sequence_privilege(s.seqrelid, 'SELECT')
FROM pg_sequence s
WHERE s.seqrelid IN ({SEQUENCES_OF_ID})
"""  # noqa: S608
_SEQUENCE_FILE: Final = "SELECT pg_relation_filenode(%s)"
_DRAWN: Final = "SELECT pg_sequence_last_value(%s)"
_HOLDERS: Final = """
SELECT extract(epoch FROM pg_postmaster_start_time())::float8::text, virtualtransaction, pid IS NULL
FROM pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation IN (%s, to_regclass(%s))
"""
_LOWEST: Final = "SELECT min(id) FROM {table}"
_BACKLOG: Final = """
WITH first AS MATERIALIZED (
  SELECT id, {shard} AS shard, create_time FROM {table}
  WHERE id > %(above)s ORDER BY id LIMIT %(most)s
), late AS (
  SELECT create_time
  FROM unnest(%(shards)s::int[], %(low)s::bigint[], %(high)s::bigint[]) AS open (shard, low, high)
  JOIN {table} ON id BETWEEN low AND high
  WHERE {shard} = open.shard LIMIT %(most)s
), waiting AS (
  SELECT create_time FROM first WHERE id > (%(after)s::bigint[])[shard + 1]
  UNION ALL SELECT create_time FROM late
)
SELECT (SELECT count(*) FROM waiting),
  (SELECT extract(epoch FROM now() - min(create_time) FILTER (WHERE isfinite(create_time)))::float8
   FROM waiting),
  (SELECT CASE WHEN count(*) = %(most)s THEN (SELECT max(id) FROM {table}) - max(id) ELSE 0 END
   FROM first)
"""
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
  id                  BIGSERIAL PRIMARY KEY,
  create_time         TIMESTAMP WITH TIME ZONE NOT NULL,
  kafka_topic         VARCHAR(249) NOT NULL,
  kafka_key           {payload} NOT NULL,
  kafka_value         {payload},
  kafka_header_keys   TEXT[] NOT NULL,
  kafka_header_values TEXT[] NOT NULL
) PARTITION BY RANGE (id)
"""
_CREATE_DEFAULT: Final = "CREATE TABLE IF NOT EXISTS {rest} PARTITION OF {table} DEFAULT"
_CREATE_POSITIONS: Final = """
CREATE TABLE IF NOT EXISTS {positions} (
  shard      INTEGER PRIMARY KEY,
  shards     INTEGER NOT NULL,
  last_id    BIGINT,
  checkpoint TEXT,
  saved_at   TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now()
)
"""
_LAYOUT: Final = -1  # the row that says how many shards there are
_SET_LAYOUT: Final = """
INSERT INTO {positions} (shard, shards) VALUES (%s, %s) ON CONFLICT (shard) DO NOTHING
"""
_GET_LAYOUT: Final = "SELECT shards FROM {positions} WHERE shard = %s"
_SAVE: Final = """
INSERT INTO {positions} AS p (shard, shards, last_id, checkpoint) VALUES (%s, %s, %s, %s)
ON CONFLICT (shard) DO UPDATE
  SET shards = excluded.shards, last_id = excluded.last_id, checkpoint = excluded.checkpoint,
      saved_at = excluded.saved_at
  WHERE p.last_id <= excluded.last_id
"""
_SAVED: Final = "SELECT checkpoint FROM {positions} WHERE shard >= 0 ORDER BY shard"


_id: Final = itemgetter(0)


class _Sequence(NamedTuple):
    oid: int
    name: str
    increment: int
    cache: int
    first: int
    cycles: bool
    readable: bool


class PostgresRangeStore(PostgresSources):
    """One shard of the outbox table, for the range algorithm. Implements `RangeStore`."""

    _marked = False
    # Every statement has one good plan, along the primary key.
    _settings: Mapping[str, str] = {
        "enable_seqscan": "off",
        "enable_sort": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
    }

    def __init__(
        self,
        conninfo: str,
        table: str | TableName,
        *,
        shard: int = 0,
        shards: int = 1,
        session: str = "read-write",
        extra: Extra = NO_EXTRA,
    ) -> None:
        super().__init__(conninfo, table, session=session)
        self._extra = extra
        self._shard = shard
        self._shards = shards
        self._parts: dict[str, sql.Composable] | None = None
        self._topic_and_key: Sequence[sql.Composable] = ()
        self._sequence: _Sequence | None = None
        self._known_types: Mapping[str, tuple[str, bool]] | None = None
        """Of the columns, when the statements were made."""

    @property
    def positions_table(self) -> TableName:
        """Where copies of the checkpoints are kept: beside the outbox."""
        *schema, table = self._table.parts
        return TableName((*schema, f"{table}_positions"))

    def connect(self) -> None:
        """See `RangeStore.connect`."""
        self._connected()
        self._looked_up()

    def bounds(self) -> Bounds:
        """See `RangeStore.bounds`."""
        self._looked_up()
        assert self._sequence is not None  # noqa: S101 - _looked_up has found it
        ((lowest,),) = self._execute(self._range_sql(_LOWEST)).fetchall()
        first = self._sequence.first
        # Not the highest that is there: a sequence may be set back while rows are kept.
        return Bounds(first if lowest is None else min(first, lowest), self._drawn())

    def read(self, after: int, limit: int) -> Window:
        """See `RangeStore.read`."""
        try:
            if self._shards > 1:
                return self._read_shard(after, limit)
            return _window(self._fetch_rows(_READ, (after, limit)), after, limit)
        except UnreadableRows:
            return self.read(after, limit // 2) if limit > 1 else self._read_next(after)

    def _read_shard(self, after: int, limit: int) -> Window:
        found = self._fetch_typed(_READ_SHARD, (after, limit, after))
        *_, last, seen, ids = found.pop(next(n for n, row in enumerate(found) if row[0] is None))
        if not seen:
            return Window((), after)
        found.sort(key=_id)  # UNION promises no order
        gaps = missing(after, sorted(ids)) if ids else ()
        return Window(self._with_headers(found), last, gaps, seen == limit)

    def lookup(self, ranges: Sequence[Range]) -> list[Range]:
        """See `RangeStore.lookup`."""
        return sorted([(low, high) for low, high in self._fetch(_LOOKUP, _columns(ranges))])

    def fetch(self, ids: Sequence[Range]) -> list[Row]:
        """See `RangeStore.fetch`."""
        try:
            rows = self._fetch_rows(_FETCH, _columns(ids))
        except UnreadableRows as error:
            self._require_types()
            return self._fetch_halves(ids, error)
        rows.sort(key=_id)
        return rows

    def _fetch_halves(self, ids: Sequence[Range], error: UnreadableRows) -> list[Row]:
        """The same, of each half of the ids: what cannot be read comes to be one alone."""
        (low, high), *_ = ids
        if len(ids) > 1:
            half = len(ids) // 2
            return [*self.fetch(ids[:half]), *self.fetch(ids[half:])]
        if low < high:
            middle = (low + high) // 2
            return [*self.fetch([(low, middle)]), *self.fetch([(middle + 1, high)])]
        row = self._unreadable(low, self._topic_and_key, error)
        return [row] if self._is_ours(row) else []

    def _read_next(self, after: int) -> Window:
        """The lowest row above `after`: its id first, and then what of it can be read.

        Rows may be deleted in between, and the next one may be sound.
        """
        found = self._fetch(_NEXT, (after,))
        rows = self.fetch([(id, id) for (id,) in found])
        return _window(found, after, 1)._replace(rows=rows)

    def _require_types(self) -> None:
        """Raises `StoreUnavailable`, once, if a column has another type than the statements expect:
        then it is they that fail, and not a row."""
        if self._known_types is not None and self._types() != self._known_types:
            self._forget()
            raise StoreUnavailable(f"a column of {self._table} has another type now")

    def _is_ours(self, row: Row) -> bool:
        """Of a row that cannot be read: by its key as it can be had, which all shards agree on."""
        return shard_of(row.key, self._shards) == self._shard

    def holders(self) -> Holders:
        """See `RangeStore.holders`."""
        self._looked_up()
        assert self._sequence is not None  # noqa: S101
        drawn = self._drawn()  # before the locks: what is drawn later has other holders
        parameters = (self._sequence.oid, self._table.quoted())
        found = self._execute(sql.SQL(_HOLDERS), parameters).fetchall()
        # The names of transactions begin anew when the server does.
        running = frozenset([f"{start} {name}" for start, name, prepared in found if not prepared])
        nameless = frozenset([f"{start} {name}" for start, name, prepared in found if prepared])
        return Holders(running, nameless, drawn)

    def layout(self) -> int:
        """See `RangeStore.layout`."""
        self._execute(self._range_sql(_SET_LAYOUT), (_LAYOUT, self._shards))
        ((shards,),) = self._execute(self._range_sql(_GET_LAYOUT), (_LAYOUT,)).fetchall()
        return int(shards)

    def save(self, position: Position) -> None:
        """See `RangeStore.save`."""
        values = (position.shard, position.shards, position.last_id, position.encode())
        self._execute(self._range_sql(_SAVE), values)

    def saved(self) -> list[Position]:
        """See `RangeStore.saved`."""
        found = self._execute(self._range_sql(_SAVED)).fetchall()
        return [Position.decode(_text(checkpoint)) for (checkpoint,) in found]

    def rewrite(self, shards: int, positions: Sequence[Position]) -> None:
        """See `RangeStore.rewrite`."""
        with self._transaction():
            self._execute(self._range_sql("DELETE FROM {positions}"))
            self._execute(self._range_sql(_SET_LAYOUT), (_LAYOUT, shards))
            for position in positions:
                self.save(position)

    def backlog(self, position: Position | None = None) -> Backlog:
        """See `RangeStore.backlog`."""
        after, gaps = waiting_after(self, self._shards, position)
        shards, ranges = [shard for shard, *_ in gaps], [(low, high) for _, low, high in gaps]
        low, high = _columns(ranges)
        given = {"above": min(after), "after": after, "shards": shards, "low": low, "high": high}
        query = self._range_sql(_BACKLOG)
        ((rows, age_s, beyond),) = self._execute(query, {**given, "most": COUNTED}).fetchall()
        return Backlog.of(rows, 0, age_s, beyond)

    def init(
        self,
        *,
        value_type: Literal["text", "bytes"] = "text",
        policy: PartitionPolicy | None = None,
    ) -> bool:
        """See `RangeStore.init`. `policy`: of a new table's first partitions."""
        created = not self._types()
        if created:
            payload = sql.SQL("BYTEA" if value_type == "bytes" else "TEXT")
            rest = TableName((*self._table.parts[:-1], f"{self._table.table}_default"))
            names = {"table": self._identifier, "rest": sql.Identifier(*rest.parts)}
            with self._transaction():
                self._execute(sql.SQL(_CREATE).format(payload=payload, **names))
                self._execute(sql.SQL(_CREATE_DEFAULT).format(**names))
        self._execute(
            sql.SQL(_CREATE_POSITIONS).format(positions=sql.Identifier(*self.positions_table.parts))
        )
        if created:
            policy = policy or PartitionPolicy()
            partitions = PostgresPartitions(self._conninfo, self._table)
            carry_out(plan(partitions.inventory(), (), policy), partitions, policy)
            partitions.close()
        self.create_registration()
        return created

    def check(self) -> list[Finding]:
        """See `RangeStore.check`."""
        findings = self._check_table(("SELECT",))
        if not self._types():
            return findings
        findings += self._sequence_findings(self._sequences())
        return findings + self._positions_findings()

    # --- Statements ---

    def facts(self) -> Source:
        """See `Registrations.facts`. Ids begin anew with a new file of the sequence."""
        self._looked_up()
        assert self._sequence is not None  # noqa: S101
        found = self._execute(sql.SQL(_SEQUENCE_FILE), (self._sequence.oid,)).fetchall()
        return replace(super().facts(), sequence=f"{self._sequence.oid}.{found[0][0]}")

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.adapters.register_loader("bpchar", TextBinaryLoader)
        self._parts = None
        self._sequence = None
        self._known_types = None

    def _looked_up(self) -> dict[str, sql.Composable]:
        """What the statements are made of; it depends on the table and is looked up once."""
        self._connected()  # first: another session may find another table and sequence
        if self._parts is None:
            types = self._known_types = self._usable_types()
            sequences = self._sequences()
            findings = self._sequence_findings(sequences) + self._positions_findings()
            wrong = [finding.text for finding in findings if finding.level == "error"]
            if wrong:
                raise SchemaError(f"{self._table} cannot be harvested in ranges: {wrong[0]}")
            self._sequence = sequences[0]
            key = sql.SQL("coalesce({}, '')").format(readable(types, "kafka_key"))
            if types["kafka_key"][0] != "bytea":
                key = sql.SQL("convert_to({}, 'UTF8')").format(key)
            columns: list[sql.Composable] = [
                sql.Identifier("id"),
                sql.SQL(f"{_TOPIC} AS topic"),
                sql.SQL("{} AS key").format(_readable(types, "kafka_key")),
                sql.SQL("{} AS value").format(_readable(types, "kafka_value")),
                sql.SQL("{} AS header_keys").format(array_of("kafka_header_keys")),
                sql.SQL("{} AS header_values").format(array_of("kafka_header_values")),
                *self._extra_columns(types),
            ]
            self._topic_and_key = (sql.SQL(_TOPIC), _readable(types, "kafka_key"))
            shard: sql.Composable = sql.SQL("0")
            if self._shards > 1:
                shard = sql.SQL("('x' || left(md5({}), {}))::bit({})::int %% {}").format(
                    key, HEX_DIGITS, 4 * HEX_DIGITS, self._shards
                )
            self._parts = {
                "table": self._identifier,
                "columns": sql.SQL(", ").join(columns),
                "shard": shard,
                "mine": sql.Literal(self._shard),
                "extra": sql.SQL("").join(
                    [
                        sql.SQL(", ") + sql.Identifier(column)
                        for column in dict.fromkeys(self._extra.values())
                        if column not in _OF_PAGE
                    ]
                ),
                "nulls": sql.SQL(", NULL" * len(self._extra)),
                "positions": sql.Identifier(*self.positions_table.parts),
            }
        return self._parts

    def _range_sql(self, template: Any) -> sql.Composed:
        return sql.SQL(template).format(**self._looked_up())

    def _fetch(self, template: Any, parameters: Sequence[Any]) -> list[Any]:
        """Tuples; those of rows have the shape of `Row`."""
        return self._execute(self._range_sql(template), parameters, binary=True).fetchall()

    def _fetch_typed(self, template: Any, parameters: Sequence[Any]) -> list[Any]:
        """The same, of a statement that selects the columns of `Row`, and further ones."""
        cursor = self._execute(self._range_sql(template), parameters, binary=True)
        return self._same_types(cursor, range(1, 6 + len(self._extra)))

    def _fetch_rows(self, template: Any, parameters: Sequence[Any]) -> list[Any]:
        return self._with_headers(self._fetch_typed(template, parameters))

    def _with_headers(self, rows: list[Any]) -> list[Any]:
        rows = with_headers(rows)
        return with_extra(rows, self._extra) if self._extra else rows

    def _drawn(self) -> int:
        assert self._sequence is not None  # noqa: S101
        ((drawn,),) = self._execute(sql.SQL(_DRAWN), (self._sequence.oid,)).fetchall()
        return self._sequence.first - 1 if drawn is None else int(drawn)

    def _sequences(self) -> list[_Sequence]:
        name = self._table.quoted()
        found = self._execute(sql.SQL(_SEQUENCES), {"table": name}).fetchall()
        return [_Sequence(row[0], _text(row[1]), *row[2:]) for row in found]

    def _positions_findings(self) -> list[Finding]:
        name = self.positions_table
        query = sql.SQL("SELECT to_regclass(%s) IS NULL")
        ((absent,),) = self._execute(query, (name.quoted(),)).fetchall()
        if absent:
            text = f"the table {name} does not exist: run `harvest init --mode range`"
            return [Finding("positions", "error", text)]
        return [Finding("positions", "ok", f"{name} exists")]

    def _sequence_findings(self, sequences: Sequence[_Sequence]) -> list[Finding]:
        """Whether the ids keep the contract of `RangeStore`."""
        if len(sequences) != 1:
            text = (
                f"id is filled from {len(sequences)} sequences, must be one: make it BIGSERIAL or "
                "an identity column (range mode tells from the sequence who may commit an id)"
            )
            return [Finding("sequence", "error", text)]
        (sequence,) = sequences
        name = sequence.name
        if sequence.cache != 1 or sequence.increment != 1 or sequence.cycles:
            text = (
                f"the sequence {name} has CACHE {sequence.cache}, INCREMENT {sequence.increment}"
                f"{', CYCLE' if sequence.cycles else ''}: ids would not be in the order in which "
                f"they are drawn; ALTER SEQUENCE {name} CACHE 1 INCREMENT BY 1 NO CYCLE, and let "
                "sessions reconnect"
            )
            return [Finding("sequence", "error", text)]
        if not sequence.readable:
            text = f"the sequence {name} may not be read: GRANT SELECT ON SEQUENCE {name}"
            return [Finding("sequence", "error", text)]
        return [Finding("sequence", "ok", f"id comes from {name}, one by one")]


def _window(rows: Sequence[Any], after: int, limit: int) -> Window:
    if not rows:
        return Window((), after)
    last = rows[-1][0]
    gaps = () if last - after == len(rows) else missing(after, [row[0] for row in rows])
    return Window(rows, last, gaps, len(rows) == limit)


def _readable(types: Mapping[str, tuple[str, bool]], column: str) -> sql.Composable:
    if types[column][0] == "character":
        return sql.SQL("bpcharsend({})").format(sql.Identifier(column))
    return readable(types, column)


def _columns(ranges: Sequence[Range]) -> tuple[list[int], list[int]]:
    return [low for low, _ in ranges], [high for _, high in ranges]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
