"""How fast a backlog is drained when payloads and ids are in two databases, beside one database.

Range mode, 256-byte rows, the same rows and topic on both sides, in turn, each in a process of its
own, exactly once into Kafka. Both databases are on one server.
"""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from typing import Any

import psycopg

from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.two_databases import PostgresIds, TwoDatabasesStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.harvest_drain import FILL, KEYS, PARTITIONS, Outcome, child


def filled(postgres: EmbeddedPostgres, topic: str, count: int) -> dict[str, Any]:
    """Two databases with a backlog; what a configuration says of them."""
    primary, outbound = postgres.create_database(), postgres.create_database()
    ids = PostgresIds(primary, "outbox_ids")
    with closing(TwoDatabasesStore(ids, PostgresRangeStore(outbound, "outbox"))) as store:
        store.init()
    with psycopg.connect(outbound, autocommit=True) as connection:
        connection.execute(FILL, (topic, KEYS, count))
        connection.execute("VACUUM ANALYZE outbox")
    with psycopg.connect(primary, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO outbox_ids (message_id) SELECT n FROM generate_series(1, %s) n", (count,)
        )
        connection.execute("VACUUM ANALYZE outbox_ids")
    return {"database": outbound, "primary": {"database": primary}}


def drain(
    kafka: EmbeddedKafka, coordination: str, databases: dict[str, Any], count: int
) -> Outcome:
    """`harvest reap`, as a new group, which begins at the first row."""
    with psycopg.connect(databases["database"]) as connection:
        connection.execute("DELETE FROM outbox_positions")
    config = {
        **databases,
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "group": f"drain-{uuid.uuid4().hex[:8]}",
        "mode": "range",
        "coordination": {"topic": coordination},
        "partitions": {"automatic": False},
    }
    return child("ours", json.dumps(config), str(count))


def measure(options: Options) -> list[Figure]:
    count = 20_000 if options.quick else 300_000
    ones, twos = [], []
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        topic, coordination = kafka.create_topic(partitions=PARTITIONS), new_topic(kafka)
        two = filled(postgres, topic, count)
        one = {"database": two["database"]}  # the same table, harvested by itself
        drain(kafka, coordination, one, count)  # into the page cache
        for _ in range(options.repeats):
            ones.append(drain(kafka, coordination, one, count))
            twos.append(drain(kafka, coordination, two, count))
            say(f"one {ones[-1].rate:,.0f}, two {twos[-1].rate:,.0f} rows/s")
    base, rate = (median(outcome.rate for outcome in found) for found in (ones, twos))
    met = rate >= 40_000 and rate >= 0.7 * base
    return [
        Figure("one database", base, "rows/s"),
        Figure("two databases", rate, "rows/s", base, "≥ 40,000 and ≥ 0.7 of one", met),
        Figure("CPU, two", median(o.cpu for o in twos), "s/100,000 rows"),
        Figure("memory, two", max(o.peak_mb for o in twos), "MB"),
    ]


if __name__ == "__main__":
    run(measure, __doc__)
