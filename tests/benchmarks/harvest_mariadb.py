"""How fast a backlog of 256-byte rows in MariaDB is drained to Kafka, exactly once, in range mode.

Each repeat drains the same table, in a process of its own, beside a bare read in the same run.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import closing

import pymysql

from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.mysql.table import connect_arguments
from marshal_py.embedded import EmbeddedKafka, EmbeddedMariaDB
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.harvest_drain import KEYS, PARTITIONS, Outcome, child

FILL = """
INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
SELECT '{topic}', CONCAT('key-', seq MOD {keys}), REPEAT('x', 256), '[]', '[]'
FROM seq_1_to_{count}
"""
PAGE = 5_000


def execute(url: str, statement: str) -> None:
    with (
        pymysql.connect(**connect_arguments(url), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def bare_read(url: str) -> float:
    """Rows per second with the driver alone, as it comes."""
    last = seen = 0
    with (
        pymysql.connect(**connect_arguments(url), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        started = time.perf_counter()
        while cursor.execute(
            "SELECT id, kafka_key, kafka_value FROM outbox WHERE id > %s ORDER BY id LIMIT %s",
            (last, PAGE),
        ):
            rows = cursor.fetchall()
            last, seen = rows[-1][0], seen + len(rows)
        return seen / (time.perf_counter() - started)


def drain(kafka: EmbeddedKafka, url: str, coordination: str, count: int) -> Outcome:
    """`harvest reap`, as a new group, which begins at the first row."""
    execute(url, "DELETE FROM outbox_positions")
    config = {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "database": url,
        "group": f"drain-{uuid.uuid4().hex[:8]}",
        "mode": "range",
        "coordination": {"topic": coordination},
    }
    return child("ours", json.dumps(config), str(count))


def measure(options: Options) -> list[Figure]:
    count = 20_000 if options.quick else 200_000
    with EmbeddedKafka() as kafka, EmbeddedMariaDB() as mariadb:
        topic, coordination = kafka.create_topic(partitions=PARTITIONS), new_topic(kafka)
        url = mariadb.create_database()
        with closing(MysqlRangeStore(url, "outbox")) as store:
            store.init()
        execute(url, FILL.format(topic=topic, keys=KEYS, count=count))
        reads, outcomes = [], []
        bare_read(url)  # into the page cache
        for _ in range(options.repeats):
            reads.append(bare_read(url))
            outcomes.append(drain(kafka, url, coordination, count))
            say(f"bare read {reads[-1]:,.0f}, range {outcomes[-1].rate:,.0f} rows/s")
    rate = median(outcome.rate for outcome in outcomes)
    return [
        Figure("bare read", median(reads), "rows/s"),
        Figure("range", rate, "rows/s", None, "≥ 40,000", rate >= 40_000),
        Figure("CPU, range", median(o.cpu for o in outcomes), "s/100,000 rows"),
        Figure("memory, range", max(o.peak_mb for o in outcomes), "MB"),
    ]


if __name__ == "__main__":
    run(measure, __doc__)
