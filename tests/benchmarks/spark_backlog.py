"""How fast a Spark job publishes a backlog of 256-byte rows, on one core and on two, in one task
and in two.

Each session is a process of its own. The clock runs from the call to its return, without the start
of the session: claims, reading, transactions, the end of the job.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import defaultdict

import psycopg
from confluent_kafka import Consumer, TopicPartition

from harvest.databases.postgres.range import PostgresRangeStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.harvest_drain import FILL, KEYS, PARTITIONS

SHARDS = 2
CASES = ((1, 1), (2, 1), (2, 2))
"""Cores and tasks."""


def fill(postgres: EmbeddedPostgres, topic: str, count: int) -> str:
    database = postgres.create_database()
    store = PostgresRangeStore(database, "outbox", shards=SHARDS)
    store.init()
    store.close()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(FILL, (topic, KEYS, count))
        connection.execute("VACUUM ANALYZE outbox")
        connection.execute("CHECKPOINT")
    return database


def committed(servers: str, topic: str) -> int:
    """The last stable offsets of the topic, together."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "counting"})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1]
        for p in range(PARTITIONS)
    ]
    consumer.close()
    return sum(ends)


def session(cores: int, tasks: int, configs: list[str]) -> None:
    """A child: run one job for each configuration, print the seconds of each."""
    from harvest.config.load import parse
    from harvest.spark.backlog import backlog
    from marshal_py.spark.session import spark_session

    spark = spark_session("spark_backlog", master=f"local[{cores}]", kafka=False)
    found = []
    for config in configs:
        result = backlog(spark, [parse(config)], shards_per_task=SHARDS // tasks)
        if not result.done:
            raise RuntimeError(f"not done: {result}")
        found.append((result.published, result.seconds))
    print(json.dumps(found))
    spark.stop()


def measure(options: Options) -> list[Figure]:
    count = 50_000 if options.quick else 1_000_000
    rates: dict[tuple[int, int], list[float]] = defaultdict(list)
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        coordination = new_topic(kafka)
        topic = kafka.create_topic(partitions=PARTITIONS)
        say(f"writing {count:,} rows")
        database = fill(postgres, topic, count)
        small = fill(postgres, topic, 10_000)

        def config(of: str) -> str:
            return json.dumps(
                {
                    "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
                    "database": of,
                    "group": f"backlog-{uuid.uuid4().hex[:8]}",
                    "mode": "range",
                    "shards": SHARDS,
                    "coordination": {"topic": coordination},
                }
            )

        for repeat in range(options.repeats):
            for cores, tasks in CASES:
                for one in (database, small):
                    with psycopg.connect(one) as connection:
                        connection.execute("DELETE FROM outbox_positions WHERE shard >= 0")
                before = committed(kafka.bootstrap_servers, topic)
                # The first, small job starts the workers and warms the runtime.
                command = [sys.executable, "-m", "tests.benchmarks.spark_backlog", "session"]
                done = subprocess.run(
                    [*command, str(cores), str(tasks), config(small), config(database)],
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                if done.returncode:
                    raise RuntimeError(done.stderr[-3000:])
                published, seconds = json.loads(done.stdout.splitlines()[-1])[1]
                found = committed(kafka.bootstrap_servers, topic) - before
                if published != count or found < count:
                    raise RuntimeError(f"{published} published, {found} in Kafka, not {count}")
                rates[cores, tasks].append(count / seconds)
                say(f"repeat {repeat + 1}, local[{cores}], {tasks} tasks: {count / seconds:,.0f}/s")
    text = f"backlog of {count:,} rows in {SHARDS} shards"
    alone, *others = (median(rates[case]) for case in CASES)
    figures = [Figure(f"{text}, local[1], 1 task", alone, "rows/s")]
    for (cores, tasks), rate in zip(CASES[1:], others, strict=True):
        name = f"{text}, local[{cores}], {tasks} task{'s' if tasks > 1 else ''}"
        figures.append(Figure(name, rate, "rows/s", alone, "≥ 150,000/s", rate >= 150_000))
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["session"]:
        session(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    else:
        run(measure, __doc__)
