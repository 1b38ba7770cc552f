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
from dataclasses import dataclass

import psycopg
from confluent_kafka import Consumer, TopicPartition

from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say

PARTITIONS = 6
KEYS = 10_000
FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value,
                    kafka_header_keys, kafka_header_values)
SELECT now(), %s, 'key-' || mod(n, %s), repeat('x', 256), '{}', '{}'
FROM generate_series(1, %s) AS n
"""


@dataclass(frozen=True)
class Outcome:
    rate: float
    cpu: float
    """Seconds of CPU for 100,000 rows."""
    peak_mb: float


class Bench:
    """Servers, a topic, and a filled table for each side."""

    def __init__(self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, count: int) -> None:
        self._kafka = kafka
        self._postgres = postgres
        self._count = count
        self._coordination = new_topic(kafka)
        self._topic = kafka.create_topic(partitions=PARTITIONS)
        self._range_database = self._database(1, "range")

    def bare(self, side: str) -> Outcome:
        return child(side, self._range_database, self._kafka.bootstrap_servers, self._topic)

    def range(self, database: str | None = None) -> Outcome:
        database = database or self._range_database
        with psycopg.connect(database) as connection:
            connection.execute("TRUNCATE outbox_positions")
        return self._ours(database, "range")

    def one_key(self, mode: str) -> Outcome:
        database = self._database(self._count, mode)
        return self._ours(database, mode)

    def mark(self) -> Outcome:
        return self._ours(self._database(1, "mark"), "mark")

    def _database(self, rows_per_key: int, mode: str) -> str:
        database = self._postgres.create_database()
        store = (PostgresRangeStore if mode == "range" else PostgresMarkStore)(database, "outbox")
        store.init()
        store.close()
        keys = KEYS if rows_per_key == 1 else 1
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(FILL, (self._topic, keys, self._count))
            connection.execute("VACUUM ANALYZE outbox")
            connection.execute("CHECKPOINT")
        return database

    def _ours(self, database: str, mode: str) -> Outcome:
        before = self._committed()
        config = {
            "kafka": {"bootstrap.servers": self._kafka.bootstrap_servers},
            "database": database,
            "group": f"drain-{uuid.uuid4().hex[:8]}",
            "mode": mode,
            "coordination": {"topic": self._coordination},
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
    count = 20_000 if options.quick else 500_000
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        bench = Bench(kafka, postgres, count)
        bench.bare("loop")  # into the page cache
        for _ in range(options.repeats):
            for side in ("loop", "produce", "read"):
                outcomes[side].append(bench.bare(side))
            outcomes["range"].append(bench.range())
            outcomes["range, one key"].append(bench.one_key("range"))
            outcomes["mark"].append(bench.mark())
            outcomes["mark, one key"].append(bench.one_key("mark"))
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
    for name in ("range", "range, one key"):
        value = rate[name]
        met = value >= 150_000 and value >= 0.7 * loop
        found.append(Figure(name, value, "rows/s", loop, "≥ 150,000 and ≥ 0.7 of loop", met))
    for name in ("mark", "mark, one key"):
        found.append(Figure(name, rate[name], "rows/s", loop, "≥ 50,000", rate[name] >= 50_000))
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
