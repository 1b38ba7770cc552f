"""Range partitions in PostgreSQL. Implements `harvest.maintenance.partitions.PartitionStore`.

Every statement gives up soon if it does not get its locks: an outbox that waits behind a manager of
partitions would be worse than a partition that comes a minute later. A new one is attached, which
does not stop inserts, as creating it in place would. Of two managers one does nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from harvest.core.table_name import TableName
from harvest.databases.postgres.table import PostgresTable, readable
from harvest.errors import ArchiveError, StoreUnavailable
from harvest.maintenance.partitions import Extent, Inventory, Partition

__all__ = ["SEQUENCES_OF_ID", "PostgresPartitions", "identifier_of"]

_BOUNDS: Final = re.compile(r"FOR VALUES FROM \('?(-?\d+)'?\) TO \('?(-?\d+)'?\)")
# The bounds are NULL when another manager drops the partition just now.
_LIST: Final = """
SELECT n.nspname::text, c.relname::text, coalesce(pg_get_expr(c.relpartbound, c.oid), '')
FROM pg_inherits i
JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.inhparent = to_regclass(%s)
"""
_BY_ID: Final = "SELECT coalesce(pg_get_partkeydef(to_regclass(%s)) = 'RANGE (id)', false)"
SEQUENCES_OF_ID: Final = """
SELECT d.objid FROM pg_depend d
  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
  AND d.deptype = 'i' AND d.refobjid = to_regclass(%(table)s) AND a.attname = 'id'
UNION
SELECT d.refobjid FROM pg_attrdef f
  JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
  JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
WHERE d.refclassid = 'pg_class'::regclass
  AND f.adrelid = to_regclass(%(table)s) AND a.attname = 'id'
"""
"""Of an identity column, and in the column's default, whether the column owns it or not."""
_DRAWN: Final = f"""
SELECT max(pg_sequence_last_value(seqrelid)) FROM pg_sequence
WHERE seqrelid IN ({SEQUENCES_OF_ID})
"""  # noqa: S608
_AGE: Final = """
SELECT CASE WHEN isfinite(create_time) THEN extract(epoch FROM now() - create_time) ELSE 0
       END::float8 FROM {part} ORDER BY id DESC LIMIT 1
"""
_SWEEP: Final = """
DELETE FROM {part} WHERE id < %s AND create_time < now() - make_interval(secs => %s)
"""
_EXTENT: Final = "SELECT count(*), min(id), max(id) FROM {part}"
_ROWS: Final = """
SELECT id, CASE WHEN create_time BETWEEN '0001-01-02' AND '9999-12-30' THEN {created} END,
       kafka_topic::text, {key}, {value}, kafka_header_keys, kafka_header_values
FROM {part} ORDER BY id
"""
_NO_WRITES: Final = "LOCK TABLE {part} IN SHARE MODE"
_LOCK: Final = "SELECT pg_try_advisory_xact_lock(1751675766, to_regclass(%s)::oid::int)"
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '500ms'"
_CREATE: Final = """
CREATE TABLE {part} (
  LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE
)
"""
_ATTACH: Final = "ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM ({low}) TO ({high})"
_IN_THE_WAY: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.CheckViolation,  # rows in the default partition
    psycopg.errors.InvalidObjectDefinition,  # it would overlap another one
    psycopg.errors.DuplicateTable,
    psycopg.errors.DeadlockDetected,
)


class PostgresPartitions(PostgresTable):
    """The partitions of the outbox `table`, on a connection of their own."""

    def inventory(self) -> Inventory:
        """See `PartitionStore.inventory`."""
        name = self._table.quoted()
        ((by_id,),) = self._execute(sql.SQL(_BY_ID), (name,)).fetchall()
        if not by_id:  # numbers of another column are no ids
            return Inventory((), 0, partitioned=False)
        ((drawn,),) = self._execute(sql.SQL(_DRAWN), {"table": name}).fetchall()
        partitions, stray = [], 0
        for schema, table, bounds in self._execute(sql.SQL(_LIST), (name,)).fetchall():
            part = sql.Identifier(schema, table)
            match = _BOUNDS.fullmatch(bounds)
            if match is not None:
                low, high = int(match[1]), int(match[2])
                its = _name(schema, table)
                partitions.append(Partition(its, low, high, self._age_s(part)))
            elif bounds == "DEFAULT":
                count = sql.SQL("SELECT count(*) FROM {part}").format(part=part)
                ((stray,),) = self._execute(count).fetchall()
        partitions.sort(key=lambda partition: partition.low)
        return Inventory(partitions, drawn or 0, stray)

    def create(self, low: int, high: int) -> str | None:
        """See `PartitionStore.create`."""
        part = TableName((*self._table.parts[:-1], f"{self._table.table}_p{low}"))
        names = {"table": self._identifier, "part": sql.Identifier(*part.parts)}
        bounds = {"low": sql.Literal(low), "high": sql.Literal(high)}
        with self._managing() as alone:
            if alone:
                self._run(sql.SQL(_CREATE).format(**names))
                self._run(sql.SQL(_ATTACH).format(**names, **bounds))
            return str(part) if alone else None
        return None

    def extent(self, partition: Partition) -> Extent:
        """See `PartitionStore.extent`."""
        query = sql.SQL(_EXTENT).format(part=identifier_of(partition))
        return Extent(*self._execute(query).fetchall()[0])

    def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """See `PartitionStore.rows`."""
        types = self._types()
        is_day = types["create_time"][0] == "date"
        query = sql.SQL(_ROWS).format(
            part=identifier_of(partition),
            created=sql.SQL("create_time::timestamp" if is_day else "create_time"),
            key=readable(types, "kafka_key"),
            value=readable(types, "kafka_value"),
        )
        connection = self._connected()
        try:
            with connection.transaction(), connection.cursor("archive", binary=True) as cursor:
                cursor.execute(query)
                while found := cursor.fetchmany(limit):
                    yield [
                        (row[0], row[1], None if row[2] is None else row[2].decode(), *row[3:])
                        for row in found
                    ]
        except psycopg.DataError as error:  # and no other partition waits for this one
            said = " ".join(str(error).split())
            text = f"{partition.name} has a row that the database cannot hand over: {said}"
            raise ArchiveError(text) from error
        except psycopg.Error as error:
            if connection.broken:
                self.close()
            raise StoreUnavailable(f"{partition.name} could not be read: {error}") from error

    def drop(self, partition: Partition, expected: Extent | None = None) -> bool:
        """See `PartitionStore.drop`."""
        with self._managing() as alone:
            found = self._run(sql.SQL(_LIST), (self._table.quoted(),)).fetchall()
            as_it_was = [
                (schema, table)
                for schema, table, bounds in found
                if _name(schema, table) == partition.name
                and (match := _BOUNDS.fullmatch(bounds)) is not None
                and (int(match[1]), int(match[2])) == (partition.low, partition.high)
            ]
            if not alone or not as_it_was:
                return False
            part = sql.Identifier(*as_it_was[0])
            if expected is not None:
                self._run(sql.SQL(_NO_WRITES).format(part=part))
                found = self._run(sql.SQL(_EXTENT).format(part=part)).fetchall()
                if Extent(*found[0]) != expected:
                    return False
            if not self._may_go(part):
                return False
            self._run(sql.SQL("DROP TABLE {}").format(part))
            return True
        return False

    def sweep(self, below: int, retain_s: float) -> int:
        """See `PartitionStore.sweep`."""
        part = self._default()
        if part is None:
            return 0
        return self._execute(sql.SQL(_SWEEP).format(part=part), (below, retain_s)).rowcount

    def _default(self) -> sql.Identifier | None:
        """The partition of what is in no other."""
        found = self._execute(sql.SQL(_LIST), (self._table.quoted(),)).fetchall()
        its = [sql.Identifier(schema, table) for schema, table, b in found if b == "DEFAULT"]
        return its[0] if its else None

    def _may_go(self, part: sql.Identifier) -> bool:
        """Whether it may be dropped, in the transaction that does."""
        del part
        return True

    @contextlib.contextmanager
    def _managing(self) -> Iterator[bool]:
        """A transaction; True if no other manager has one. What is in the way ends it quietly."""
        connection = self._connected()
        try:
            with contextlib.suppress(*_IN_THE_WAY), connection.transaction():
                self._run(sql.SQL(_LOCK_TIMEOUT))
                ((alone,),) = self._run(sql.SQL(_LOCK), (self._table.quoted(),)).fetchall()
                yield bool(alone)
        except psycopg.Error as error:
            if connection.broken:
                self.close()
            raise StoreUnavailable(f"partitions could not be changed: {error}") from error

    def _run(
        self, statement: sql.SQL | sql.Composed, parameters: tuple[object, ...] = ()
    ) -> psycopg.Cursor[TupleRow]:
        """Without turning errors into ours: the transaction decides what they mean."""
        return self._connected().execute(statement, parameters or None)

    def _age_s(self, part: sql.Identifier) -> float | None:
        found = self._execute(sql.SQL(_AGE).format(part=part)).fetchall()
        return float(found[0][0]) if found else None


def _name(schema: str, table: str) -> str:
    return str(TableName((schema, table)))


def identifier_of(partition: Partition) -> sql.Identifier:
    """Its schema and name, quoted."""
    return sql.Identifier(*TableName.parse(partition.name).parts)
