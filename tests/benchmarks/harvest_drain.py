"""How fast a backlog of 256-byte rows is drained, in both modes, beside bare loops in the same run.

Each repeat runs all sides in turn, each in a process of its own. The clock of ours runs from the
moment it may publish until Kafka has committed the last row.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
from confluent_kafka import Consumer, TopicPartition
from psycopg import sql

from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import OPTIMIZED, new_topic
from tests.benchmarks._wal_logs import Logs
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.support.pgbouncer import Pgbouncer, pgbouncer, pgbouncer_program

PARTITIONS = 6
KEYS = 10_000
FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value,
                    kafka_header_keys, kafka_header_values)
SELECT now(), %(topic)s, 'key-' || mod(n, %(keys)s), {value}, {names}, {values}
FROM generate_series(1, %(count)s) AS n
"""
SAME = "repeat('x', 256)"
RANDOM = "(SELECT string_agg(md5(random()::text || n || m), '') FROM generate_series(1, 8) m)"
TRACE = "'00-' || md5(n::text) || '-00f067aa0ba902b7-01'"  # as OpenTelemetry adds it


@dataclass(frozen=True)
class Outcome:
    rate: float
    cpu: float
    """Seconds of CPU for 100,000 rows."""
    peak_mb: float


@dataclass(frozen=True)
class Rows:
    """What a table is filled with."""

    one_key: bool = False
    header: bool = False
    random: bool = False


@dataclass(frozen=True)
class Side:
    """A configuration of `harvest reap`, and the rows that it drains."""

    name: str
    mode: str
    rows: Rows = Rows()
    delivery: str = "transactional"
    pooled: bool = False
    """Through pgbouncer, in transaction mode."""


HEADER = Rows(header=True)
SIDES = (
    Side("range", "range"),
    Side("range, one header", "range", HEADER),
    Side("range, random values", "range", Rows(random=True)),
    Side("range, one key", "range", Rows(one_key=True)),
    Side("mark", "mark"),
    Side("mark, one header", "mark", HEADER),
    Side("mark, random values", "mark", Rows(random=True)),
    Side("mark, one key", "mark", Rows(one_key=True)),
    Side("at least once", "mark", delivery="idempotent"),
    Side("at least once, one header", "mark", HEADER, "idempotent"),
    Side("range, through pgbouncer", "range", pooled=True),
    Side("mark, through pgbouncer", "mark", pooled=True),
)


@dataclass(frozen=True)
class Log:
    """What a write-ahead log is filled with: rows with one header."""

    name: str
    source: str = "table"
    rows_per_commit: int = 1
    """0: all in one."""


LOGS = (
    Log("single-row commits"),
    Log("messages", "message"),
    Log("100 rows a commit", rows_per_commit=100),
    Log("one transaction", rows_per_commit=0),
)
DELIVERIES = {"at least once": "idempotent", "exactly once": "transactional"}
SHARES = {"at least once": 0.9, "exactly once": 0.8}
TARGETS = {"range": (150_000, 0.8), "mark": (50_000, 0.3)}


class Bench:
    """Servers, a topic, and a filled table for each side."""

    def __init__(
        self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, pooler: Pgbouncer | None, count: int
    ) -> None:
        self.sides = [side for side in SIDES if pooler is not None or not side.pooled]
        self._pooler = pooler
        self._kafka = kafka
        self._postgres = postgres
        self._count = count
        self._coordination = new_topic(kafka)
        self._topic = kafka.create_topic(partitions=PARTITIONS)
        self._range_databases: dict[Rows, str] = {}
        self._logs = Logs(postgres, self._topic, count)

    def bare(self, side: str) -> Outcome:
        database = self._range_database(Rows())
        return child(side, database, self._kafka.bootstrap_servers, self._topic)

    def ours(self, side: Side) -> Outcome:
        if side.mode == "mark":
            return self._ours(self._database(side.rows, "mark"), side)
        database = self._range_database(side.rows)
        with psycopg.connect(database) as connection:
            connection.execute("TRUNCATE outbox_positions")
        return self._ours(database, side)

    def _range_database(self, rows: Rows) -> str:
        """One for all repeats: range mode deletes nothing."""
        if rows not in self._range_databases:
            self._range_databases[rows] = self._database(rows, "range")
        return self._range_databases[rows]

    def _database(self, rows: Rows, mode: str) -> str:
        database = self._postgres.create_database()
        store = (PostgresRangeStore if mode == "range" else PostgresMarkStore)(database, "outbox")
        store.init()
        store.close()
        fill = sql.SQL(FILL).format(
            value=sql.SQL(RANDOM if rows.random else SAME),
            names=sql.SQL("'{traceparent}'" if rows.header else "'{}'"),
            values=sql.SQL(f"ARRAY[{TRACE}]" if rows.header else "'{}'"),
        )
        keys = 1 if rows.one_key else KEYS
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(fill, {"topic": self._topic, "keys": keys, "count": self._count})
            connection.execute("VACUUM ANALYZE outbox")
            connection.execute("CHECKPOINT")
        return database

    def wal(self, log: Log) -> dict[str, Outcome]:
        """A log that waits: only decoded, and harvested with either delivery."""
        database, slots = self._logs.fill(log.source, log.rows_per_commit or self._count, 3)
        outcomes = {
            f"slot reader, {log.name}": child(
                "slot", database, slots[0], log.source, str(self._count)
            )
        }
        for slot, (name, delivery) in zip(slots[1:], DELIVERIES.items(), strict=True):
            side = Side("", "wal", delivery=delivery)
            wal = {"source": log.source, "slot": slot}
            if log.source == "table":
                wal["purge"] = "keep"
            outcomes[f"wal, {log.name}, {name}"] = self._ours(database, side, wal=wal)
        self._logs.drop(database, slots)
        return outcomes

    def _ours(self, database: str, side: Side, **more: object) -> Outcome:
        before = self._committed()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS outbox_registration")  # of the last group
        if side.pooled and self._pooler is not None:
            database = self._pooler.url(database)
        config = {
            "kafka": {"bootstrap.servers": self._kafka.bootstrap_servers},
            "database": database,
            "group": f"drain-{uuid.uuid4().hex[:8]}",
            "mode": side.mode,
            "delivery": side.delivery,
            "coordination": {"topic": self._coordination},
            **more,
        }
        outcome = child("ours", json.dumps(config), str(self._count))
        found = self._committed() - before
        # In each partition a transaction leaves a marker, and may leave several.
        if found < self._count:
            raise RuntimeError(f"{found} of {self._count} rows are in Kafka")
        return outcome

    def _committed(self) -> int:
        """The last stable offsets of the topic, together."""
        consumer = Consumer(
            {"bootstrap.servers": self._kafka.bootstrap_servers, "group.id": "counting"}
        )
        ends = [
            consumer.get_watermark_offsets(TopicPartition(self._topic, p), timeout=10)[1]
            for p in range(PARTITIONS)
        ]
        consumer.close()
        return sum(ends)


def child(*arguments: str) -> Outcome:
    command = [sys.executable, "-m", "tests.benchmarks._drain", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: {done.stderr[-2000:]}")
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def measure(options: Options) -> list[Figure]:
    count = 100_000 if options.quick else 500_000
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    with (
        EmbeddedKafka(jvm_options=OPTIMIZED) as kafka,
        EmbeddedPostgres() as postgres,
        ExitStack() as stack,
    ):
        pooler = None
        if pgbouncer_program() is not None:
            pooler = stack.enter_context(pgbouncer(postgres, pool=8))
        bench = Bench(kafka, postgres, pooler, count)
        bench.bare("loop")  # into the page cache
        for _ in range(options.repeats):
            for side in ("loop", "produce", "read"):
                outcomes[side].append(bench.bare(side))
            for each in bench.sides:
                outcomes[each.name].append(bench.ours(each))
            for log in LOGS:
                for name, outcome in bench.wal(log).items():
                    outcomes[name].append(outcome)
            say(", ".join(f"{name} {found[-1].rate:,.0f}" for name, found in outcomes.items()))
    return figures(outcomes)


def figures(outcomes: dict[str, list[Outcome]]) -> list[Figure]:
    rate = {name: median(o.rate for o in found) for name, found in outcomes.items()}
    cpu = {name: median(o.cpu for o in found) for name, found in outcomes.items()}
    peak_mb = {name: max(o.peak_mb for o in found) for name, found in outcomes.items()}
    loop = rate["loop"]
    found = [
        Figure("bare loop", loop, "rows/s"),
        Figure("bare producer", rate["produce"], "rows/s"),
        Figure("bare read", rate["read"], "rows/s"),
    ]
    for side in SIDES:
        if side.name not in rate:
            say(f"not measured: {side.name}; pgbouncer is not installed")
            continue
        value, floor, share = rate[side.name], *TARGETS[side.mode]
        met = value >= floor and value >= share * loop
        target = f"≥ {floor:,} and ≥ {share} of loop"
        found.append(Figure(side.name, value, "rows/s", loop, target, met))
    for log in LOGS:
        reader = rate[f"slot reader, {log.name}"]
        found.append(Figure(f"slot reader, {log.name}", reader, "rows/s"))
        for delivery, share in SHARES.items():
            name = f"wal, {log.name}, {delivery}"
            met = rate[name] >= share * reader
            target = f"≥ {share} of the slot reader"
            found.append(Figure(name, rate[name], "rows/s", reader, target, met))
            is_cheap = cpu[name] <= 1.2
            found.append(
                Figure(f"CPU, {name}", cpu[name], "s/100,000 rows", None, "≤ 1.2", is_cheap)
            )
            fits = peak_mb[name] <= 120
            found.append(Figure(f"memory, {name}", peak_mb[name], "MB", None, "≤ 120", fits))
    for name in ("range", "mark"):
        if (pooled := rate.get(f"{name}, through pgbouncer")) is not None:
            share = pooled / rate[name]
            text = f"{name}: through pgbouncer, share of direct"
            found.append(Figure(text, share, "", None, "≥ 0.8", share >= 0.8))
    for name in ("range", "mark", "at least once"):
        value, plain = rate[f"{name}, one header"], rate[name]
        text = f"{name}: one header, share of none"
        found.append(Figure(text, value / plain, "", None, "≥ 0.75", value >= 0.75 * plain))
    for name in ("loop", "range", "mark"):
        ours = name != "loop"
        small = cpu[name] <= 1 if ours else None
        found.append(
            Figure(f"CPU, {name}", cpu[name], "s/100,000 rows", None, "≤ 1" if ours else "", small)
        )
        small = peak_mb[name] <= 120 if ours else None
        target = "≤ 120" if ours else ""
        found.append(Figure(f"memory, {name}", peak_mb[name], "MB", None, target, small))
    return found


if __name__ == "__main__":
    run(measure, __doc__)
