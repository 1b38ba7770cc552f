"""How Spark's jobs grow: with executors, with rows, with differences; and what memory they take.

Executors are processes of one core (Spark's local-cluster), so that one job needs the cores of the
machine for executors, driver, Kafka and PostgreSQL at once. A driver's memory is that of its JVM
and its Python, a worker's that of an executor and its Python. Each job runs once, however many
repeats are asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import psycopg

from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.embedded.postgres import EmbeddedPostgres
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, run, say
from tests.benchmarks.spark_reconcile import fill
from tests.spark.logs import busy, write
from tests.support.spark_cluster import SPARK_HOME

PARTITIONS = 8
EXECUTOR_MB = 512
DIFFERENT = {"0.001 %": 100_000, "1 %": 100, "100 %": 1}
"""Of so many rows one has another value than its record."""
_VIEW = """
CREATE VIEW {} AS SELECT id, create_time, kafka_topic, kafka_key,
  CASE WHEN id % {} = 0 THEN 'another' ELSE kafka_value END AS kafka_value,
  kafka_header_keys, kafka_header_values FROM outbox
"""
_OTHER_KEYS = """
CREATE VIEW other_keys AS SELECT id, create_time, kafka_topic, 'other-' || kafka_key AS kafka_key,
  kafka_value, kafka_header_keys, kafka_header_values FROM outbox
"""


@dataclass(frozen=True)
class Outcome:
    """What a job printed."""

    seconds: float
    found: int
    idle_mb: float
    driver_mb: float
    worker_mb: float


def _job(job: str, *, executors: int = 2, **more: Any) -> Outcome:
    asked = {"job": job, "executors": executors, "executor_mb": EXECUTOR_MB, **more}
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks._spark_job", json.dumps(asked)],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME)},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{job}: {done.stderr[-3000:]}")
    outcome = Outcome(**json.loads(done.stdout.splitlines()[-1]))
    say(f"{job}, {executors} executors: {outcome}")
    return outcome


def measure(options: Options) -> list[Figure]:
    records, rows = (100_000, 20_000) if options.quick else (2_000_000, 2_500_000)
    figures: list[Figure] = []
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        servers = kafka.bootstrap_servers
        log = new_topic(kafka, PARTITIONS)
        say(f"writing {records:,} records of the log")
        write(servers, log, busy(records, partitions=PARTITIONS))
        audits = [_job("audit", executors=n, servers=servers, topic=log) for n in (1, 2)]
        figures.append(_gain("audit fold", *audits))
        few, many = (FilledOutbox(kafka, postgres, count) for count in (rows, 4 * rows))
        one, two = (few.compare("outbox", executors=n) for n in (1, 2))
        figures.append(_gain("reconciliation, nothing differs", one, two))
        figures += growth("nothing differs", two, many.compare("outbox"))
        for share, every in DIFFERENT.items():
            pair = [each.compare_with(share, every) for each in (few, many)]
            figures += growth(f"{share} differs", *pair)
    return figures


class FilledOutbox:
    """A table and a topic with the same rows."""

    def __init__(self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, count: int) -> None:
        say(f"writing {count:,} rows and records")
        self.count, self._servers = count, kafka.bootstrap_servers
        self._dsn = postgres.create_database()
        fill(self._dsn, self._servers, kafka.create_topic(partitions=4), count)

    def compare(self, table: str, *, executors: int = 2, job: str = "reconcile") -> Outcome:
        more = {"servers": self._servers, "dsn": self._dsn, "table": table}
        return _job(job, executors=executors, **more)

    def compare_with(self, share: str, every: int) -> Outcome:
        """Compare with a value of its own in each so-manieth row."""
        view = f"differs_in_{every}"
        with psycopg.connect(self._dsn) as connection:
            connection.execute(_VIEW.format(view, every))
        outcome = self.compare(view)
        if outcome.found != self.count // every:
            raise RuntimeError(f"a wrong answer for {share}: {outcome}")
        return outcome

    def carry(self) -> Outcome:
        """Compare twice, with a state, when no row has its record."""
        with psycopg.connect(self._dsn) as connection:
            connection.execute(_OTHER_KEYS)
        outcome = self.compare("other_keys", job="carry")
        if outcome.found != self.count:
            raise RuntimeError(f"a wrong answer: {outcome}")
        return outcome


def _gain(name: str, one: Outcome, two: Outcome) -> Figure:
    gain = one.seconds / two.seconds
    return Figure(f"{name}: from 1 to 2 executors", gain, "times", None, "≥ 1.7", gain >= 1.7)


def growth(name: str, few: Outcome, many: Outcome) -> list[Figure]:
    """What four times the rows cost, and what memory they take."""
    cost = many.seconds / few.seconds
    found = [Figure(f"{name}: rows x 4, cost", cost, "times", None, "≤ 4.4", cost <= 4.4)]
    for who, most in (("driver", 400), ("worker", 1_000)):
        value, before = (getattr(outcome, f"{who}_mb") for outcome in (many, few))
        # The baseline is that of a quarter of the rows: what does not grow holds for more of them.
        found.append(
            Figure(f"{name}: memory of the {who}", value, "MB", before, f"≤ {most}", value <= most)
        )
    found.append(Figure(f"{name}: memory of the driver before it", many.idle_mb, "MB"))
    return found


if __name__ == "__main__":
    run(measure, __doc__)
