"""What shards of one outbox bring: in one process, and in processes of their own, beside one shard.

Range mode, rows of 256 bytes. The rows are inserted in one transaction when every process leads its
share; the clock runs from the first row that Kafka has acknowledged to the last. Processor time is
that of the harvesters, and of PostgreSQL.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import psycopg
from psycopg import sql

from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import OPTIMIZED, new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.harvest_drain import FILL, KEYS, PARTITIONS, SAME

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Side:
    """So many processes that share so many shards."""

    processes: int
    shards: int

    @property
    def name(self) -> str:
        """In words."""
        shards = "1 shard" if self.shards == 1 else f"{self.shards} shards"
        return (
            f"{shards} in {'1 process' if self.processes == 1 else f'{self.processes} processes'}"
        )


SIDES = (Side(1, 1), Side(1, 2), Side(2, 2), Side(1, 4), Side(4, 4))


@dataclass(frozen=True)
class Outcome:
    """Rows a second; processor time of a million rows, in seconds."""

    rate: float
    harvesters_s: float
    postgres_s: float


def measure(options: Options) -> list[Figure]:
    count = 40_000 if options.quick else 1_000_000
    outcomes: dict[Side, list[Outcome]] = defaultdict(list)
    with EmbeddedKafka(jvm_options=OPTIMIZED) as kafka, EmbeddedPostgres() as postgres:
        for repeat in range(options.repeats + 1):  # the first one warms the servers
            for side in SIDES:
                found = _drain(side, kafka, postgres, count)
                say(f"{side.name}: {found.rate:,.0f} rows/s")
                if repeat:
                    outcomes[side].append(found)
    one = median(o.rate for o in outcomes[SIDES[0]])
    figures = []
    for side, of_side in outcomes.items():
        figures.append(Figure(side.name, median(o.rate for o in of_side), "rows/s", one))
        for who in ("harvesters", "postgres"):
            spent = median(getattr(o, f"{who}_s") for o in of_side)
            figures.append(Figure(f"processor time of {who}, {side.name}", spent, "s/million rows"))
    return figures


def _drain(side: Side, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, count: int) -> Outcome:
    database = postgres.create_database()
    store = PostgresRangeStore(database, "outbox")
    store.init()
    store.close()
    topic = kafka.create_topic(partitions=PARTITIONS)
    config = {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "database": database,
        "group": f"shards-{uuid.uuid4().hex[:8]}",
        "mode": "range",
        "shards": side.shards,
        "coordination": {"topic": new_topic(kafka), "interval_ms": 500},
    }
    lines: Queue[tuple[int, int, int, float, float]] = Queue()
    processes = [_start(n, json.dumps(config), lines) for n in range(side.processes)]
    try:
        share = dict.fromkeys(range(side.processes), side.shards // side.processes)
        leading: dict[int, int] = {}
        while leading != share:
            n, leads, *_ = lines.get(timeout=PATIENCE_S)
            leading[n] = leads
        with psycopg.connect(database) as connection:
            fill = sql.SQL(FILL).format(
                value=sql.SQL(SAME), names=sql.SQL("'{}'"), values=sql.SQL("'{}'")
            )
            connection.execute(fill, {"topic": topic, "keys": KEYS, "count": count})
        before_s = _postgres_s(database)
        began = 0.0
        published = dict.fromkeys(range(side.processes), 0)
        spent: dict[int, tuple[float, float]] = {}
        while sum(published.values()) < count:
            n, _, rows, at, cpu = lines.get(timeout=PATIENCE_S)
            if rows:
                began = began or at
                spent[n] = (spent[n][0] if n in spent else cpu, cpu)
            published[n] = rows
        seconds = at - began
        millions = count / 1e6
        ours_s = sum(last - first for first, last in spent.values())
        theirs_s = _postgres_s(database) - before_s
        return Outcome(count / seconds, ours_s / millions, theirs_s / millions)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(
    n: int, config: str, lines: Queue[tuple[int, int, int, float, float]]
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks._shards", config],
        stdout=subprocess.PIPE,
        text=True,
    )

    def pass_on() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            leads, rows, at, cpu = json.loads(line)
            lines.put((n, leads, rows, at, cpu))

    threading.Thread(target=pass_on, daemon=True).start()
    return process


def _postgres_s(database: str) -> float:
    """Processor time of the backends that serve connections now."""
    with psycopg.connect(database) as connection:
        query = (
            "SELECT pid FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        pids = [pid for (pid,) in connection.execute(query)]
    ticks = 0
    for pid in pids:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


if __name__ == "__main__":
    run(measure, __doc__)
