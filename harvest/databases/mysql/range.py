"""The outbox table in MariaDB or MySQL, in range mode (specs/DATABASES.md §3).

Who may still commit an id: `harvest.databases.mysql.innodb`. The server answers from a copy of its
list of transactions, which it renews only when nobody has read it for 0.1 s. A look therefore
counts only if it sees itself, by a mark in the text of its own statement.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final, Literal

from harvest.core.extra_columns import NO_EXTRA, Extra, with_extra
from harvest.core.gaps import Holders, Range, missing, union
from harvest.core.interfaces.mark_store import COUNTED, Backlog, Finding
from harvest.core.interfaces.range_store import Bounds, Window, waiting_after
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.core.shards import HEX_DIGITS, shard_of
from harvest.core.table_name import TableName
from harvest.databases.checkpoint_copies import LAYOUT, CheckpointCopies
from harvest.databases.column_values import as_bytes, headers_from_json
from harvest.databases.mysql.innodb import Names, Transaction
from harvest.databases.mysql.sources import MysqlSources
from harvest.databases.mysql.table import within
from harvest.errors import SchemaError, StoreUnavailable

__all__ = ["MysqlRangeStore"]

_COLUMNS: Final = (
    "id, COALESCE(kafka_topic, '') AS kafka_topic, kafka_key, kafka_value, "
    "NULLIF(kafka_header_keys, '[]') AS k, NULLIF(kafka_header_values, '[]') AS v"
)
_READ: Final = """
SELECT {columns} FROM {table} FORCE INDEX (PRIMARY) WHERE id > %s ORDER BY id LIMIT %s
"""
# Of other shards' rows only the ids.
_READ_SHARD: Final = """
SELECT id, IF(mine, kafka_topic, NULL), IF(mine, kafka_key, NULL), IF(mine, kafka_value, NULL),
       IF(mine, k, NULL), IF(mine, v, NULL){chosen}
FROM (
  SELECT {columns}, {shard} = %s AS mine
  FROM {table} FORCE INDEX (PRIMARY) WHERE id > %s ORDER BY id LIMIT %s
) AS page
ORDER BY id
"""
_WITHIN: Final = "SELECT {columns} FROM {table} FORCE INDEX (PRIMARY) WHERE {within} ORDER BY id"
_BOUNDS: Final = "SELECT MIN(id), MAX(id) FROM {table}"
_DRAWN: Final = """
SELECT auto_increment - 1 FROM information_schema.tables
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
"""
_BEGIN: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
# Not idle, and not the server's own: of replication, the thread that applies transactions counts.
_STATEMENTS: Final = """
SELECT id, {query} FROM information_schema.processlist
WHERE id <> CONNECTION_ID()
  AND command NOT IN ('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID', 'Slave_IO')
"""
_TRANSACTIONS: Final = """
SELECT /* {mark} */ trx_id, trx_mysql_thread_id, CAST(trx_started AS CHAR), trx_is_read_only,
       trx_mysql_thread_id = CONNECTION_ID(), COALESCE(trx_query LIKE '%{mark}%', 0)
FROM information_schema.innodb_trx
"""
_CACHED_S: Final = 0.105
_LOOKS: Final = 30
# The first rows above the lowest position, or in a gap below.
_FIRST: Final = """
(SELECT id, kafka_key, create_time FROM {table} WHERE id > {lowest}{open} ORDER BY id LIMIT {most})
AS first
"""
_AGE: Final = """
SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(create_time), NOW(6)) / 1000000
FROM {first} WHERE (id > {lowest} AND id > CASE {shard}{after} END){gaps}
"""
_AGES: Final = """
SELECT id, kafka_key, TIMESTAMPDIFF(MICROSECOND, create_time, NOW(6)) / 1000000
FROM {first}
"""
_BEYOND: Final = """
SELECT IF(COUNT(*) = {most}, (SELECT MAX(id) FROM {table}) - MAX(id), 0) FROM {first}
"""
_NO_FUNCTION: Final = 1305
_CREATE_POSITIONS: Final = """
CREATE TABLE IF NOT EXISTS {positions} (
  shard      INT NOT NULL PRIMARY KEY,
  shards     INT NOT NULL,
  last_id    BIGINT,
  checkpoint TEXT,
  saved_at   TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
"""
_SETTINGS: Final = "SELECT @@GLOBAL.auto_increment_increment, @@GLOBAL.auto_increment_offset"


class MysqlRangeStore(MysqlSources, CheckpointCopies):
    """One shard of the outbox table, for the range algorithm. Implements `RangeStore`."""

    _marked = False
    _isolation = "REPEATABLE READ"  # several statements of one lookup see one moment
    _set_layout = "INSERT IGNORE INTO {positions} (shard, shards) VALUES (%s, %s)"
    _get_layout = "SELECT shards FROM {positions} WHERE shard = %s"
    # Assignments are made from left to right: last_id decides until it is changed itself.
    _save = """
    INSERT INTO {positions} (shard, shards, last_id, checkpoint) VALUES (%s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE
      shards = IF(last_id <= VALUES(last_id), VALUES(shards), shards),
      checkpoint = IF(last_id <= VALUES(last_id), VALUES(checkpoint), checkpoint),
      last_id = GREATEST(last_id, VALUES(last_id))
    """

    def __init__(
        self,
        url: str,
        table: str | TableName,
        *,
        shard: int = 0,
        shards: int = 1,
        extra: Extra = NO_EXTRA,
    ) -> None:
        super().__init__(url, table)
        self._extra = extra
        self._columns = _COLUMNS + "".join(
            [f", {TableName((c,)).quoted('`')} AS x{n}" for n, c in enumerate(extra.values())]
        )
        self._chosen = "".join([f", IF(mine, x{n}, NULL)" for n in range(len(extra))])
        self._shard = shard
        self._shards = shards
        self._names = Names()
        self._looked_s = float("-inf")
        self._query_id: str | None = None
        self._topics: dict[bytes, str] = {}
        self._shard_sql: str | None = None
        self._md5: bool | None = None

    def connect(self) -> None:
        """See `RangeStore.connect`."""
        self._connected()
        self._usable_types()
        findings = [self._look_for_positions(), self._increment_finding(), self._process_finding()]
        wrong = [finding.text for finding in findings if finding.level == "error"]
        if wrong:
            raise SchemaError(f"{self._table} cannot be harvested in ranges: {wrong[0]}")

    def bounds(self) -> Bounds:
        """See `RangeStore.bounds`."""
        ((lowest, highest),) = self._execute(self._sql(_BOUNDS))
        if lowest is None:
            return Bounds(1, self._drawn())
        return Bounds(min(1, lowest), max(self._drawn(), highest))

    def read(self, after: int, limit: int) -> Window:
        """See `RangeStore.read`."""
        if self._shards == 1 or not self._has_md5():
            found = self._execute(self._sql(_READ), (after, limit))
        else:
            found = self._execute(self._sql(_READ_SHARD), (self._shard, after, limit))
        if not found:
            return Window((), after)
        last = found[-1][0]
        gaps = () if last - after == len(found) else missing(after, [row[0] for row in found])
        rows = self._rows(found)
        if self._shards > 1 and not self._has_md5():
            rows = self._ours(rows)
        return Window(rows, last, gaps, len(found) == limit)

    def lookup(self, ranges: Sequence[Range]) -> list[Range]:
        """See `RangeStore.lookup`."""
        return union((id, id) for (id,) in self._found(ranges, "id"))

    def fetch(self, ids: Sequence[Range]) -> list[Row]:
        """See `RangeStore.fetch`."""
        return self._ours(self._rows(self._found(ids, self._columns)))

    def holders(self) -> Holders:
        """See `RangeStore.holders`. Takes 0.1 s longer when the last call was just now.

        Raises `StoreUnavailable` also when others read the list of transactions all the time.
        """
        drawn = self._drawn()  # first: what is drawn later has other holders
        for _ in range(_LOOKS):
            time.sleep(max(0.0, self._looked_s + _CACHED_S - time.monotonic()))
            looked = self._look()
            self._looked_s = time.monotonic()
            if looked is not None:
                running, nameless = self._names.seen(*looked)
                return Holders(running, nameless, drawn)
            # Not all at once: another harvester may be waiting, too.
            self._looked_s += _CACHED_S * secrets.randbelow(100) / 100
        raise StoreUnavailable(
            "information_schema.innodb_trx is read more than ten times a second by others: its "
            "copy is never renewed, and nobody knows who may still commit a row"
        )

    def rewrite(self, shards: int, positions: Sequence[Position]) -> None:
        """See `RangeStore.rewrite`."""
        self._execute(_BEGIN)
        try:
            self._execute(self._sql("DELETE FROM {positions}"))
            self._execute(self._sql(self._set_layout), (LAYOUT, shards))
            for position in positions:  # not tried again: a deadlock has undone what came before
                self._execute(self._sql(self._save), self._values(position))
            self._execute("COMMIT")
        except BaseException:
            self.close()  # which rolls back
            raise

    def backlog(self, position: Position | None = None) -> Backlog:
        """See `RangeStore.backlog`."""
        after, gaps = waiting_after(self, self._shards, position)
        lowest = str(min(after))
        ranges = union((low, high) for _, low, high in gaps)
        open_ = "".join([f" OR {part}" for part in within(ranges)])
        most = str(COUNTED)
        first = self._sql(_FIRST, lowest=lowest, open=open_, most=most)
        ((beyond,),) = self._execute(self._sql(_BEYOND, first=first, most=most))
        if self._shards > 1 and not self._has_md5():
            found = self._execute(self._sql(_AGES, first=first))
            keyed = [(id, shard_of(as_bytes(key), self._shards), age) for id, key, age in found]
            ages = [
                age
                for id, mine, age in keyed
                if id > after[mine] or any(n == mine and a <= id <= b for n, a, b in gaps)
            ]
            known = [float(age) for age in ages if age is not None]
            return Backlog.of(len(ages), 0, max(known) if known else None, int(beyond))
        each = "".join([f" WHEN {n} THEN {last}" for n, last in enumerate(after)])
        mine = [
            f" OR ({self._sql('{shard}')} = {n} AND {part})"
            for n in range(self._shards)
            for part in within([(low, high) for shard, low, high in gaps if shard == n])
        ]
        query = self._sql(_AGE, first=first, lowest=lowest, after=each, gaps="".join(mine))
        ((rows, age_s),) = self._execute(query)
        return Backlog.of(rows, 0, None if age_s is None else float(age_s), int(beyond))

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `RangeStore.init`."""
        created = self._create_table(value_type)
        self._execute(_CREATE_POSITIONS.format(positions=self.positions_table.quoted("`")))
        self.create_registration()
        return created

    def check(self) -> list[Finding]:
        """See `RangeStore.check`."""
        probes = [("SELECT", f"SELECT id FROM {self._name} LIMIT 1")]  # noqa: S608
        findings = self._check_table(probes)
        if self._types():
            findings.append(self._look_for_positions())
            findings += [self._increment_finding(), self._process_finding()]
        return findings

    # --- Who holds ids ---

    def _look(self) -> tuple[dict[int, str], list[Transaction]] | None:
        """Statements, then transactions; None if the answer about the latter was an old one."""
        mark = f"harvest {secrets.token_hex(8)}"
        self._execute(_BEGIN)  # to be on the list ourselves
        try:
            query = self._query_column()
            statements = {
                connection: _text(number)
                for connection, number in self._execute(_STATEMENTS.format(query=query))
            }
            found = self._execute(_TRANSACTIONS.format(mark=mark))
        finally:
            if self._connection is not None:
                self._execute("COMMIT")
        if not any(own and marked for *_, own, marked in found):
            return None
        others = [
            Transaction(id, connection, _text(started), bool(read_only))
            for id, connection, started, read_only, own, _ in found
            if not own
        ]
        return statements, others

    def _query_column(self) -> str:
        """What tells one statement of a connection from the next; MySQL does not say."""
        if self._query_id is None:
            ((version,),) = self._execute("SELECT VERSION()")
            self._query_id = "query_id" if b"mariadb" in version.lower() else "''"
        return self._query_id

    # --- Statements ---

    def _sql(self, template: str, **more: str) -> str:
        if self._shard_sql is None:
            self._shard_sql = self._shard_of_key()
        return template.format(
            **{
                "table": self._name,
                "columns": self._columns,
                "chosen": self._chosen,
                "positions": self.positions_table.quoted("`"),
                "shard": self._shard_sql,
                **more,
            }
        )

    def _shard_of_key(self) -> str:
        """`shard_of`, in SQL: over the UTF-8 of text, or over bytes."""
        if self._shards == 1 or not self._has_md5():
            return "0"
        charset = self._usable_types()["kafka_key"][3]
        key = "kafka_key" if charset in (None, "utf8mb4") else "CONVERT(kafka_key USING utf8mb4)"
        digest = f"LEFT(MD5(COALESCE({key}, '')), {HEX_DIGITS})"
        return f"(CONV({digest}, 16, 10) MOD {self._shards})"

    def _forget(self) -> None:
        self._query_id = None
        self._shard_sql = None
        self._md5 = None

    def _has_md5(self) -> bool:
        """MySQL 9.7 does not, without a component: then rows are told apart here."""
        if self._md5 is None:
            try:
                self._execute("SELECT MD5('')")
                self._md5 = True
            except StoreUnavailable as error:
                if error.__cause__ is None or error.__cause__.args[:1] != (_NO_FUNCTION,):
                    raise
                self._md5 = False
        return self._md5

    def _is_ours(self, key: bytes | None) -> bool:
        return shard_of(key, self._shards) == self._shard

    def _ours(self, rows: list[Row]) -> list[Row]:
        return rows if self._shards == 1 else [row for row in rows if self._is_ours(row[2])]

    def _drawn(self) -> int:
        ((drawn,),) = self._execute(_DRAWN, self._where)
        return int(drawn or 0)

    def _found(self, ranges: Sequence[Range], columns: str) -> list[tuple[Any, ...]]:
        """The rows with these ids, as they were at one moment."""
        parts = [self._sql(_WITHIN, columns=columns, within=part) for part in within(ranges)]
        if len(parts) == 1:
            return list(self._execute(parts[0]))
        self._execute(_BEGIN)
        try:
            return [row for part in parts for row in self._execute(part)]
        finally:
            if self._connection is not None:
                self._execute("COMMIT")

    def _rows(self, found: Sequence[tuple[Any, ...]]) -> list[Row]:
        """Those of this shard, as tuples of the shape of `Row`."""
        topics = self._topics
        rows: list[Any] = []
        for id, topic, key, value, names, values, *extra in found:
            if topic is None:
                continue  # another shard's
            name = topics.get(topic)
            if name is None:
                if len(topics) > 10_000:
                    topics.clear()
                name = topics[topic] = topic.decode(errors="replace")
            if names is not None or values is not None:
                names, values = headers_from_json(names), headers_from_json(values)
            row = (id, name, as_bytes(key), as_bytes(value), names, values)
            rows.append((*row, *[as_bytes(value) for value in extra]) if extra else row)
        return with_extra(rows, self._extra) if self._extra else rows

    def _look_for_positions(self) -> Finding:
        *schema, table = self.positions_table.parts
        query = (
            "SELECT 1 FROM information_schema.tables "
            "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"
        )
        found = self._execute(query, (schema[0] if schema else None, table))
        return self._positions_finding(exists=bool(found))

    def _increment_finding(self) -> Finding:
        ((increment, offset),) = self._execute(_SETTINGS)
        if (increment, offset) == (1, 1):
            return Finding("sequence", "ok", "ids are drawn one by one")
        text = (
            f"auto_increment_increment is {increment} and auto_increment_offset {offset}, must be "
            "1: with several writing servers ids are not in the order in which they are drawn"
        )
        return Finding("sequence", "error", text)

    def _process_finding(self) -> Finding:
        try:
            self._execute("SELECT trx_id FROM information_schema.innodb_trx LIMIT 1")
        except SchemaError:
            text = (
                "without the privilege PROCESS nobody knows who may still commit a row: "
                "GRANT PROCESS ON *.* TO this user"
            )
            return Finding("privilege", "error", text)
        return Finding("privilege", "ok", "may see transactions (PROCESS)")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
