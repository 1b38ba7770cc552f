"""Range partitions in MariaDB and MySQL. Implements `PartitionStore`.

The table is one that its owner has partitioned (specs/DATABASES.md §3). Ranges have no holes here:
a partition begins where the one before it ends, and the last, `rest`, takes all ids above. A new
one is cut off from `rest`. Changes wait a second at most for the table, and of two managers one
does nothing.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from harvest.databases.column_values import as_bytes, headers_from_json, topic_text
from harvest.databases.mysql.swept_rows import MysqlSweptRows
from harvest.errors import StoreUnavailable
from harvest.maintenance.partitions import Extent, Inventory, Partition

__all__ = ["MysqlPartitions"]

_REST: Final = "rest"
_NAME: Final = re.compile(r"p([0-9]+)")
_LIST: Final = """
SELECT partition_name, partition_description FROM information_schema.partitions
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s AND partition_method = 'RANGE'
  AND TRIM('`' FROM partition_expression) = 'id' AND subpartition_name IS NULL
ORDER BY partition_ordinal_position
"""
_DRAWN: Final = """
SELECT auto_increment - 1 FROM information_schema.tables
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
"""
_AGE: Final = """
SELECT TIMESTAMPDIFF(MICROSECOND, create_time, NOW(6)) / 1000000
FROM {table} PARTITION ({part}) ORDER BY id DESC LIMIT 1
"""
_STRAY: Final = "SELECT COUNT(*) FROM {table} PARTITION ({part})"
_EXTENT: Final = "SELECT COUNT(*), MIN(id), MAX(id) FROM {table} PARTITION ({part})"
_ROWS: Final = """
SELECT id, CAST(UNIX_TIMESTAMP(create_time) * 1000000 AS SIGNED), kafka_topic, kafka_key,
       kafka_value, kafka_header_keys, kafka_header_values
FROM {table} PARTITION ({part}) WHERE id > %s ORDER BY id LIMIT %s
"""
_CUT: Final = """
ALTER TABLE {table} REORGANIZE PARTITION {rest} INTO
  (PARTITION {part} VALUES LESS THAN ({high}), PARTITION {rest} VALUES LESS THAN MAXVALUE)
"""
_DROP: Final = "ALTER TABLE {table} DROP PARTITION {part}"
_SWEEP: Final = """
DELETE FROM {table} PARTITION ({part})
WHERE id < %s AND create_time < NOW(6) - INTERVAL %s MICROSECOND
"""
_IN_THE_WAY: Final = {1205, 1213, 1507, 1517}  # locks; what another manager has changed
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class MysqlPartitions(MysqlSweptRows):
    """The partitions of the outbox `table`, on a connection of their own.

    Without any, its published rows are deleted: see `harvest.databases.swept_rows`.
    """

    def inventory(self) -> Inventory:
        """See `PartitionStore.inventory`."""
        ranges = self._ranges()
        if not ranges:
            return super().inventory()
        ((drawn,),) = self._execute(_DRAWN, self._where) or ((0,),)
        partitions = [p._replace(age_s=self._age_s(p.name)) for p in ranges if p.name != _REST]
        ended = any(p.name == _REST for p in ranges)
        stray = int(self._one(_STRAY, _REST) or 0) if ended else 0
        return Inventory(partitions, int(drawn or 0), stray, ended)

    def create(self, low: int, high: int) -> str | None:
        """See `PartitionStore.create`. It begins where the last one ends, which may be below
        `low`: rows that outran the partitions are moved into it."""
        del low
        with self._managing() as alone:
            ends = [p.high for p in self._ranges() if p.name != _REST]
            begin = max(ends, default=0)
            if not alone or begin >= high:
                return None
            name = f"p{begin}"
            self._execute(self._sql(_CUT, name, high=str(int(high))))
            return name
        return None

    def extent(self, partition: Partition) -> Extent:
        """See `PartitionStore.extent`."""
        return Extent(*self._execute(self._sql(_EXTENT, partition.name))[0])

    def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """See `PartitionStore.rows`."""
        after = -(1 << 63)
        query = self._sql(_ROWS, partition.name)
        while found := self._execute(query, (after, limit)):
            after = found[-1][0]
            yield [
                (
                    id,
                    None if at is None else _EPOCH + dt.timedelta(microseconds=int(at)),
                    topic_text(topic),
                    as_bytes(key),
                    as_bytes(value),
                    headers_from_json(names) or (),
                    headers_from_json(values) or (),
                )
                for id, at, topic, key, value, names, values in found
            ]

    def drop(self, partition: Partition, expected: Extent | None = None) -> bool:
        """See `PartitionStore.drop`."""
        with self._managing() as alone:
            # Nobody writes between the last look and the drop.
            self._execute(f"LOCK TABLES {self._name} WRITE")
            there = partition._replace(age_s=None) in self._ranges()
            if not alone or not there:
                return False
            if expected is not None and self.extent(partition) != expected:
                return False
            self._execute(self._sql(_DROP, partition.name))
            return True
        return False

    def sweep(self, below: int, retain_s: float) -> int:
        """See `PartitionStore.sweep`."""
        if not self._ranges():
            return super().sweep(below, retain_s)
        return self._change(self._sql(_SWEEP, _REST), (below, int(retain_s * 1e6)))

    def _ranges(self) -> list[Partition]:
        """All partitions by id; the first begins where its name says."""
        found: list[Partition] = []
        end = 0
        for name, bound in self._execute(_LIST, self._where):
            text = name.decode()
            match = _NAME.fullmatch(text)
            low = int(match[1]) if match and not found else end
            end = (1 << 63) - 1 if bound == b"MAXVALUE" else int(bound)
            found.append(Partition(text, low, end))
        return found

    @contextmanager
    def _managing(self) -> Iterator[bool]:
        """True if no other manager is at work. What is in the way ends it quietly."""
        schema, table = self._where
        lock = f"harvest {schema or self._arguments['database']}.{table}"[-64:]
        ((alone,),) = self._execute("SELECT GET_LOCK(%s, 0)", (lock,))
        try:
            self._execute("SET SESSION lock_wait_timeout = 1")
            yield bool(alone)
        except StoreUnavailable as error:
            code = error.__cause__.args[0] if error.__cause__ and error.__cause__.args else None
            if code not in _IN_THE_WAY:
                raise
        finally:
            if self._connection is not None:
                self._execute("UNLOCK TABLES")
                self._execute("SELECT RELEASE_LOCK(%s)", (lock,))

    def _age_s(self, part: str) -> float | None:
        age_s = self._one(_AGE, part)
        return None if age_s is None else float(age_s)

    def _one(self, template: str, part: str) -> Any:
        """The only value of the only row; None if there is none."""
        found = self._execute(self._sql(template, part))
        return found[0][0] if found else None

    def _sql(self, template: str, part: str, **more: str) -> str:
        quoted = "`" + part.replace("`", "``") + "`"
        return template.format(table=self._name, part=quoted, rest=f"`{_REST}`", **more)
