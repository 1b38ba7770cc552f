"""Wal mode beside Debezium on the same rows: from commit to a reader, and a log that waits.

Needs Maven, which fetches Debezium.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, TopicPartition

from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks import _debezium
from tests.benchmarks._servers import OPTIMIZED
from tests.benchmarks._wal_logs import INSERT
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.harvest_latency import PARTITIONS, RATES, WARM_UP_S, Bench, Side

DEBEZIUM = Side("Debezium", None, bare="debezium")
SIDES = (
    DEBEZIUM,
    Side("wal, at least once", "mode: wal\ndelivery: idempotent"),
    Side("wal, exactly once", "mode: wal"),
)
_P50_SHARE = 0.15
_DRAIN_SHARE = 1.5
_DRAIN_S = 300.0


class Beside(Bench):
    """The servers, and Debezium's jars."""

    def __init__(
        self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, folder: Path, jars: Path
    ) -> None:
        super().__init__(kafka, postgres, folder)
        self.jars = jars

    @contextmanager
    def harvesting(self, side: Side) -> Iterator[tuple[str, str]]:
        """See `Bench.harvesting`."""
        if side is not DEBEZIUM:
            with super().harvesting(side) as made:
                yield made
            return
        dsn, topic = self._outbox()
        _debezium.prepare(dsn)
        with _debezium.debezium(self.jars, self.kafka.bootstrap_servers, dsn):
            yield dsn, topic
        self.postgres.drop_database(dsn.rpartition("/")[2])

    def _outbox(self) -> tuple[str, str]:
        """A database with a table and ours alone; a topic."""
        dsn = self.postgres.create_database()
        source = PostgresWalSource(dsn, "outbox")
        source.init()
        source.close()
        return dsn, self.kafka.create_topic(partitions=PARTITIONS)

    def drain(self, side: Side, count: int) -> float:
        """Rows a second, of single-row commits that wait, by the times of the first and the last
        record."""
        dsn, topic = self._outbox()
        source = PostgresWalSource(dsn, "outbox")
        if side is DEBEZIUM:
            source.slot.drop()
            _debezium.prepare(dsn)
        step = INSERT.format(topic=topic)
        loop = f"DO $$ BEGIN FOR n IN 1..{count} LOOP {step} COMMIT; END LOOP; END $$"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(loop.encode())
            connection.execute("CHECKPOINT")
        process: subprocess.Popen[str] | None = None
        if side is DEBEZIUM:
            with _debezium.debezium(self.jars, self.kafka.bootstrap_servers, dsn):
                rate = self._rate(topic, count)
        else:
            process = self._reap(side, dsn, topic)
            rate = self._rate(topic, count)
            process.terminate()
            process.wait(60)
            source.slot.drop()
        source.close()
        self.postgres.drop_database(dsn.rpartition("/")[2])
        return rate

    def _rate(self, topic: str, count: int) -> float:
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "group.id": "drain",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        times: list[int] = []
        deadline = time.monotonic() + _DRAIN_S
        while len(times) < count:
            found = consumer.consume(5_000, 0.5)
            times += [message.timestamp()[1] for message in found if message.error() is None]
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(times)} of {count} rows are in Kafka")
        consumer.close()
        return 1000 * count / max(1, max(times) - min(times))


def measure(options: Options) -> list[Figure]:
    seconds, count = (2.0, 50_000) if options.quick else (5.0, 200_000)
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory() as fetched,
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka(jvm_options=OPTIMIZED) as kafka,
        EmbeddedPostgres(durable=True) as postgres,
    ):
        jars = _debezium.program(Path(fetched))
        if jars is None:
            raise SystemExit("Maven fetches Debezium: install it (`apt install maven`)")
        bench = Beside(kafka, postgres, Path(folder), jars)
        bench.warm_up(WARM_UP_S)
        bench.floors(200, 1_000 if options.quick else 3_000)
        theirs: dict[int, float] = {}
        for side in SIDES:
            with bench.harvesting(side) as (dsn, topic):
                bench.run(dsn, topic, 1_000, 2 * seconds)  # warm-up
                for rate in RATES:
                    runs = [bench.run(dsn, topic, rate, seconds) for _ in range(options.repeats)]
                    p50, p99 = median(r.p50 for r in runs), median(r.p99 for r in runs)
                    say(f"{side.name} at {rate}/s: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
                    theirs.setdefault(rate, p50)
                    is_quick = p50 <= _P50_SHARE * theirs[rate]
                    judged = side.settings is not None and "idempotent" in side.settings
                    figures += [
                        Figure(
                            f"{side.name}, {rate}/s, p50",
                            p50,
                            "ms",
                            None if side is DEBEZIUM else theirs[rate],
                            f"≤ {_P50_SHARE} of Debezium" if judged else "",
                            is_quick if judged else None,
                        ),
                        Figure(f"{side.name}, {rate}/s, p99", p99, "ms"),
                    ]
        rates: dict[str, list[float]] = {side.name: [] for side in SIDES}
        for _ in range(options.repeats):
            for side in SIDES:
                rates[side.name].append(bench.drain(side, count))
                say(f"{side.name}: {rates[side.name][-1]:,.0f} rows/s")
        base = median(rates[DEBEZIUM.name])
        for side in SIDES:
            value = median(rates[side.name])
            name = f"{side.name}, single-row commits"
            if side is DEBEZIUM:
                figures.append(Figure(name, value, "rows/s"))
            else:
                met = value >= _DRAIN_SHARE * base
                figures.append(Figure(name, value, "rows/s", base, f"≥ {_DRAIN_SHARE}×", met))
    return figures


if __name__ == "__main__":
    run(measure, __doc__)
