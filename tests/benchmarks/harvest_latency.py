"""How long a row takes from its commit to a read_committed reader, beside bare loops.

A commit counts from its return to the writer. The brokers are compiled as in production, and warmed
up for 20 s at the highest rate.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import OPTIMIZED
from tests.benchmarks.harness import Figure, Options, median, percentile, run, say

PARTITIONS = 6
WARM_UP_S = 20.0
_READY_S = 30.0
_STATEMENT = re.compile(rb"LOG:  (statement|execute)")


RATES = (100, 1_000)
GOALS = {(1_000, "p50"): 1.8, (1_000, "p99"): 10.0}
WAL_GOALS = {(100, "p50"): 1.5, (100, "p99"): 4.0, (1_000, "p50"): 0.8, (1_000, "p99"): 6.0}


@dataclass(frozen=True)
class Side:
    """What is measured: a configuration of `harvest reap`, or a bare loop."""

    name: str
    settings: str | None
    notify: bool = True
    bare: str = "bare"
    """Which bare loop, without `settings`."""
    goals: Mapping[tuple[int, str], float] = field(default_factory=dict)
    """By rate and figure, in milliseconds."""
    of_bare: float | None = None
    """Its p50 is to be at most so much of the bare loop's, on any machine."""

    @property
    def reads_log(self) -> bool:
        """Whether it reads a replication slot."""
        return "wal" in (self.settings or "") or self.bare == "bare-slot"


SIDES = (  # each after the bare loop that is its ceiling
    Side("bare transactions", None, bare="bare-transactions"),
    Side("exactly once, range", "mode: range", of_bare=1.2),
    Side("exactly once, mark", "mode: mark"),
    Side("bare marking loop", None, bare="bare-marks"),
    Side("at least once", "delivery: idempotent", goals=GOALS, of_bare=1.2),
    Side("bare slot reader", None, bare="bare-slot"),
    Side("wal, at least once", "mode: wal\ndelivery: idempotent", goals=WAL_GOALS, of_bare=1.4),
    Side("wal, exactly once", "mode: wal", goals={(1_000, "p50"): 12.0}),
    Side("bare loop", None),
    Side("at least once, polling", "delivery: idempotent", notify=False),
)


@dataclass(frozen=True)
class Run:
    """One run of one side at one rate, in milliseconds."""

    p50: float
    p99: float
    commit_p50: float
    missing: int
    late_s: float
    """How far the writer was behind at the end."""


def child(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.benchmarks._latency", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def output_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


class Bench:
    """One outbox and one topic for each side."""

    def __init__(self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, folder: Path) -> None:
        self.kafka = kafka
        self.postgres = postgres
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def floors(self, count: int, warm_up: int) -> list[Figure]:
        """What Kafka alone takes, with nothing else to wait for; and the brokers are warm then."""
        topic = self.kafka.create_topic(partitions=PARTITIONS)
        process = child(
            "floor", self.kafka.bootstrap_servers, topic, "100", str(count), str(warm_up)
        )
        found = json.loads(output_of(process))
        process.wait(_READY_S)
        figures = []
        for name, what in (("record", "one record"), ("transaction", "one transaction")):
            p50, p99 = percentile(found[name], 50), percentile(found[name], 99)
            say(f"Kafka alone, {what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms ({_load()})")
            figures += [
                Figure(f"Kafka alone, {what}, p50", p50, "ms"),
                Figure(f"Kafka alone, {what}, p99", p99, "ms"),
            ]
        return figures

    def idle(self, seconds: float) -> tuple[float, float]:
        """Share of a core, and statements per second in the database, with nothing to do.

        The statements are counted in the server's log. Its counters of transactions do not tell: a
        session that listens has one for every notification, and reports them half a minute later.
        """
        time.sleep(6)  # until polling has slowed down
        with self._logged_statements() as log:
            start, before_s = log.stat().st_size, self._cpu_s()
            time.sleep(seconds)
            spent_s = self._cpu_s() - before_s
            with log.open("rb") as stream:
                stream.seek(start)
                statements = sum(1 for line in stream if _STATEMENT.search(line))
        return spent_s / seconds, statements / seconds

    @contextmanager
    def _logged_statements(self) -> Iterator[Path]:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET log_statement = 'all'")
            connection.execute("SELECT pg_reload_conf()")
            time.sleep(0.5)  # for every session to hear of it
            try:
                yield self.postgres.log_path
            finally:
                connection.execute("ALTER SYSTEM RESET log_statement")
                connection.execute("SELECT pg_reload_conf()")

    def _cpu_s(self) -> float:
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def harvesting(self, side: Side) -> Iterator[tuple[str, str]]:
        """Start the side; give the database and the topic."""
        dsn = self.postgres.create_database()
        topic = self.kafka.create_topic(partitions=PARTITIONS)
        in_ranges = side.settings is not None and "range" in side.settings
        store: PostgresRangeStore | PostgresMarkStore | PostgresWalSource
        if side.reads_log:
            store = PostgresWalSource(dsn, "outbox")
        else:
            store = (PostgresRangeStore if in_ranges else PostgresMarkStore)(dsn, "outbox")
        store.init()
        if side.notify and not side.reads_log:
            store.install_notify()
        store.close()
        if side.settings is None:
            process = child(side.bare, self.kafka.bootstrap_servers, dsn)
            output_of(process)
        else:
            process = self._reap(side, dsn, topic)
        self.process = process
        try:
            yield dsn, topic
        finally:
            process.terminate()
            process.wait(_READY_S)
            if isinstance(store, PostgresWalSource):
                store.slot.drop()
                store.close()
            self.postgres.drop_database(dsn.rpartition("/")[2].partition("?")[0])

    def _reap(self, side: Side, dsn: str, topic: str) -> subprocess.Popen[str]:
        config = self.folder / f"{topic}.yaml"
        config.write_text(
            f"kafka: {{bootstrap.servers: '{self.kafka.bootstrap_servers}'}}\n"
            f"database: {dsn}\ngroup: {topic}\n{side.settings}\n"
            f"coordination: {{topic: {topic}.marshal, create_topics: true}}\n"
        )
        log = self.folder / f"{topic}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "harvest.cli", "reap", "-c", str(config)],
                stderr=stream,
                text=True,
            )
        deadline = time.monotonic() + _READY_S
        while "harvesting as" not in log.read_text():
            if time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)
        return process

    def run(self, dsn: str, topic: str, rate: int, seconds: float) -> Run:
        """Write at `rate` for `seconds` and read it all."""
        count = int(rate * seconds)
        reader = child("read", self.kafka.bootstrap_servers, topic, str(count), str(seconds + 20))
        output_of(reader)
        writer = child("write", dsn, topic, str(rate), str(seconds))
        written = json.loads(output_of(writer))
        found = json.loads(output_of(reader))
        for process in (reader, writer):
            process.wait(_READY_S)
        committed = dict(written["commits_ns"])
        ages = [(read - committed[sent]) / 1e6 for sent, read in found]
        ages = ages[count // 10 :]  # connections, caches
        return Run(
            percentile(ages, 50),
            percentile(ages, 99),
            percentile([(end - sent) / 1e6 for sent, end in committed.items()], 50),
            count - count // 10 - len(ages),
            written["late_s"],
        )

    def warm_up(self, seconds: float) -> None:
        """The brokers' code is compiled by what it does most."""
        with self.harvesting(Side("warm-up", None)) as (dsn, topic):
            self.run(dsn, topic, max(RATES), seconds)


def measure(options: Options, sides: tuple[Side, ...] = SIDES) -> list[Figure]:
    figures: list[Figure] = []
    seconds = 2.0 if options.quick else 5.0
    with (
        EmbeddedKafka(jvm_options=OPTIMIZED) as kafka,
        EmbeddedPostgres(durable=True) as postgres,
        tempfile.TemporaryDirectory() as folder,
    ):
        bench = Bench(kafka, postgres, Path(folder))
        bench.warm_up(WARM_UP_S)
        figures += bench.floors(200, 1_000 if options.quick else 3_000)
        bare: dict[int, tuple[float, float]] = {}
        for side in sides:
            with bench.harvesting(side) as (dsn, topic):
                bench.run(dsn, topic, 100, 1.0)
                for rate in RATES:
                    runs = [bench.run(dsn, topic, rate, seconds) for _ in range(options.repeats)]
                    missing = sum(r.missing for r in runs)
                    late_s = max(r.late_s for r in runs)
                    if missing or late_s > 0.1:
                        say(
                            f"{side.name} at {rate}/s: {missing} rows are missing; the writer was "
                            f"{late_s:.1f} s late, so the machine is too busy for the rate"
                        )
                    p50, p99 = median(r.p50 for r in runs), median(r.p99 for r in runs)
                    is_bare = side.settings is None
                    if is_bare:
                        bare[rate] = p50, p99
                    say(f"{side.name} at {rate}/s: p50 {p50:.2f} ms, p99 {p99:.2f} ms ({_load()})")
                    for index, (name, value) in enumerate((("p50", p50), ("p99", p99))):
                        goal = None if is_bare else side.goals.get((rate, name))
                        figures.append(
                            Figure(
                                f"{side.name}, {rate}/s, {name}",
                                value,
                                "ms",
                                None if is_bare else bare[rate][index],
                                "" if goal is None else f"≤ {goal:g} ms",
                                None if goal is None else value <= goal,
                            )
                        )
                    if side.of_bare is not None:
                        share = p50 / bare[rate][0]
                        name = f"{side.name}, {rate}/s, p50, share of the bare loop"
                        met = share <= side.of_bare
                        figures.append(Figure(name, share, "", None, f"≤ {side.of_bare}", met))
                    figures.append(
                        Figure(
                            f"{side.name}, {rate}/s, the INSERT itself p50",
                            median(r.commit_p50 for r in runs),
                            "ms",
                        )
                    )
                if side.settings is not None:
                    share, per_s = bench.idle(4.0 if options.quick else 10.0)
                    say(f"{side.name}, idle: {share:.2%} of a core, {per_s:.2f} statements/s")
                    figures += [
                        Figure(
                            f"{side.name}, idle, CPU", 100 * share, "%", None, "≤ 1", share <= 0.01
                        ),
                        Figure(
                            f"{side.name}, idle, statements",
                            per_s,
                            "1/s",
                            None,
                            "≤ 2",
                            per_s <= 2,
                        ),
                    ]
            with psycopg.connect(postgres.dsn, autocommit=True) as connection:
                connection.execute("CHECKPOINT")
    return figures


if __name__ == "__main__":
    run(measure, __doc__)
