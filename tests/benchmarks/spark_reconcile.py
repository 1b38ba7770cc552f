"""How long the reconciliation of an outbox with its topic takes, alike and not."""

from __future__ import annotations

import psycopg
from confluent_kafka import Producer

from harvest.spark.reconcile import Outbox, reconcile
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.embedded.postgres import EmbeddedPostgres
from marshal_py.spark.session import spark_session
from tests.benchmarks.harness import Figure, Options, median, run, say

KEYS = 10_000


def fill(dsn: str, servers: str, topic: str, count: int) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE outbox (id bigint PRIMARY KEY, create_time timestamptz NOT NULL, "
            "kafka_topic varchar(249) NOT NULL, kafka_key text NOT NULL, kafka_value text, "
            "kafka_header_keys text[] NOT NULL, kafka_header_values text[] NOT NULL, "
            "leader_id uuid)"
        )
        connection.execute(
            "INSERT INTO outbox SELECT n, now() - interval '1 hour', %s, 'key-' || n %% %s, "
            "repeat(md5(n::text), 8), '{}', '{}', NULL FROM generate_series(1, %s) n",
            (topic, KEYS, count),
        )
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
    )
    with psycopg.connect(dsn) as connection, connection.cursor("rows") as cursor:
        cursor.itersize = 20_000
        cursor.execute("SELECT kafka_key, kafka_value FROM outbox ORDER BY id")
        for key, value in cursor:
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
    if producer.flush(120):
        raise RuntimeError("the topic could not be filled")


def measure(options: Options) -> list[Figure]:
    count = 50_000 if options.quick else 1_000_000
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        servers, dsn = kafka.bootstrap_servers, postgres.create_database()
        topic = kafka.create_topic("orders", 4)
        say(f"writing {count:,} rows and records")
        fill(dsn, servers, topic, count)
        spark = spark_session("spark_reconcile", master="local[2]")
        alike, differing = [], []
        try:
            for repeat in range(options.repeats + 1):  # the first one warms the runtime
                say(f"comparison {repeat} of {options.repeats}")
                same = reconcile(spark, Outbox(dsn=dsn), servers)
                if not same.clean or same.rows != count:
                    raise RuntimeError(f"a wrong answer: {same}")
                with psycopg.connect(dsn) as connection:
                    connection.execute(
                        "INSERT INTO outbox SELECT 0, create_time, kafka_topic, kafka_key, 'gone', "
                        "'{}', '{}', NULL FROM outbox WHERE id = 77"
                    )
                other = reconcile(spark, Outbox(dsn=dsn), servers)
                if other.findings != {"missing": 1}:
                    raise RuntimeError(f"a wrong answer: {other}")
                with psycopg.connect(dsn) as connection:
                    connection.execute("DELETE FROM outbox WHERE id = 0")
                if repeat:
                    alike.append(same.seconds)
                    differing.append(other.seconds)
        finally:
            spark.stop()
    return [
        Figure(
            f"reconciliation of {count:,} rows, nothing differs",
            median(alike),
            "s",
            None,
            "≤ 5 s",
            median(alike) <= 5,
        ),
        Figure(
            f"reconciliation of {count:,} rows, one is missing",
            median(differing),
            "s",
            None,
            "≤ 10 s",
            median(differing) <= 10,
        ),
    ]


if __name__ == "__main__":
    run(measure, __doc__)
