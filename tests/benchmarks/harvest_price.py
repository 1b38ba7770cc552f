"""What a harvested row costs the database, in each mode: log, processor time, space of the table.

Rows are committed one by one while a harvester runs, until all are published and purged. "Nobody
harvests" is the price of writing them, which each has in it. The baseline is mark mode.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from harvest.config.load import parse
from harvest.core.message import pack_message
from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.runtime.process import process
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import new_topic
from tests.benchmarks._wal_logs import EMIT, INSERT
from tests.benchmarks.harness import Figure, Options, median, run, say

_WAIT_S = 600.0
_SIZE = """
SELECT coalesce(pg_total_relation_size(to_regclass('outbox')), 0)::bigint + coalesce((
    SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(to_regclass('outbox'))
    WHERE level > 0), 0)::bigint
"""
_BASELINE = "mark"
_MESSAGE_SHARE = 0.5


@dataclass(frozen=True)
class Side:
    """A configuration of a harvester; None: nobody harvests."""

    name: str
    config: dict[str, Any] | None


SIDES = (
    Side("nobody harvests", None),
    Side("mark", {"mode": "mark"}),
    Side("range", {"mode": "range"}),
    Side("wal", {"mode": "wal"}),
    Side("wal, kept", {"mode": "wal", "wal": {"purge": "keep"}}),
    Side("message", {"mode": "wal", "wal": {"source": "message"}}),
)


@dataclass(frozen=True)
class Price:
    """Of all rows together, but for the table."""

    log_bytes: float
    cpu_s: float
    table_mb: float


def server_cpu_s(postmaster: int) -> float:
    """What all processes of a server have used, those that have ended, too."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == postmaster or int(stat.parent.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Bench:
    """Servers; each side gets a database and a topic."""

    def __init__(self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, rows: int) -> None:
        self._kafka = kafka
        self._postgres = postgres
        self._rows = rows
        self._coordination = new_topic(kafka)

    def price(self, side: Side) -> Price:
        """Write the rows, and harvest them."""
        config = side.config or {}
        is_message = config.get("wal") == {"source": "message"}
        database = self._postgres.create_database()
        topic = self._kafka.create_topic(partitions=6)
        store: PostgresMarkStore | PostgresRangeStore | PostgresWalSource
        if config.get("mode") == "wal":
            store = PostgresWalSource(
                database, "outbox", WalOptions("message" if is_message else "table")
            )
        else:
            kind = PostgresRangeStore if config.get("mode") == "range" else PostgresMarkStore
            store = kind(database, "outbox")
        try:
            with closing(store):
                store.init()
                with psycopg.connect(database, autocommit=True) as connection:
                    connection.execute("CHECKPOINT")
                    return self._price(side, connection, database, topic, is_message=is_message)
        finally:
            if isinstance(store, PostgresWalSource):
                store.slot.drop()
                store.close()
            self._postgres.drop_database(database.rpartition("/")[2].partition("?")[0])

    def _price(
        self,
        side: Side,
        connection: psycopg.Connection[Any],
        database: str,
        topic: str,
        *,
        is_message: bool,
    ) -> Price:
        stat = Path(f"/proc/{connection.info.backend_pid}/stat").read_text()
        postmaster = int(stat.rpartition(")")[2].split()[1])
        content = pack_message(topic, b"key", b"x" * 256, [(b"n", b"1")]).hex()
        step = (EMIT if is_message else INSERT).format(topic=topic, content=content)
        loop = f"DO $$ BEGIN FOR n IN 1..{self._rows} LOOP {step} COMMIT; END LOOP; END $$"
        with self._harvesting(side, database) as stats:
            began_lsn, began_s = self._log_end(connection), server_cpu_s(postmaster)
            connection.execute(loop.encode())
            deadline = time.monotonic() + _WAIT_S
            while stats is not None and not self._done(side, connection, stats):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{side.name}: {stats().published} rows were published")
                time.sleep(0.05)
            log_bytes = self._log_end(connection) - began_lsn
            cpu_s = server_cpu_s(postmaster) - began_s
        ((size,),) = connection.execute(_SIZE).fetchall()
        return Price(log_bytes, cpu_s, size / (1 << 20))

    @contextmanager
    def _harvesting(self, side: Side, database: str) -> Iterator[Any]:
        if side.config is None:
            yield None
            return
        config = {
            "kafka": {"bootstrap.servers": self._kafka.bootstrap_servers},
            "database": database,
            "group": f"price-{uuid.uuid4().hex[:8]}",
            "coordination": {"topic": self._coordination},
            **side.config,
        }
        with process(parse(json.dumps(config))) as running:
            harvester = running.harvester
            thread = threading.Thread(target=harvester.run)
            thread.start()
            try:
                yield lambda: harvester.stats
            finally:
                harvester.stop()
                thread.join()

    def _done(self, side: Side, connection: psycopg.Connection[Any], stats: Any) -> bool:
        if stats().published < self._rows:
            return False
        if side.name not in ("mark", "wal"):
            return True  # nothing is purged row by row
        ((some,),) = connection.execute("SELECT EXISTS (SELECT FROM outbox)").fetchall()
        return not some

    def _log_end(self, connection: psycopg.Connection[Any]) -> int:
        query = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
        ((end,),) = connection.execute(query).fetchall()
        return int(end)


def measure(options: Options) -> list[Figure]:
    rows = 20_000 if options.quick else 1_000_000
    found: dict[str, list[Price]] = defaultdict(list)
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        bench = Bench(kafka, postgres, rows)
        for _ in range(options.repeats):
            for side in SIDES:
                price = bench.price(side)
                found[side.name].append(price)
                say(f"{side.name}, {rows:,} rows: {price}")
    return figures(found, rows)


def figures(found: dict[str, list[Price]], rows: int) -> list[Figure]:
    made = []
    for name, prices in found.items():
        log = median(p.log_bytes / rows for p in prices)
        cpu = median(p.cpu_s / rows * 100_000 for p in prices)
        log_of_mark = median(p.log_bytes / rows for p in found[_BASELINE])
        cpu_of_mark = median(p.cpu_s / rows * 100_000 for p in found[_BASELINE])
        target, log_met, cpu_met = "", None, None
        if name == "message":
            target = f"≤ {_MESSAGE_SHARE} of mark mode's"
            log_met = log <= _MESSAGE_SHARE * log_of_mark
            cpu_met = cpu <= _MESSAGE_SHARE * cpu_of_mark
        made += [
            Figure(f"{name}: log", log, "bytes/row", log_of_mark, target, log_met),
            Figure(
                f"{name}: CPU of the server", cpu, "s/100,000 rows", cpu_of_mark, target, cpu_met
            ),
            Figure(f"{name}: table afterwards", median(p.table_mb for p in prices), "MB"),
        ]
    return made


if __name__ == "__main__":
    run(measure, __doc__)
