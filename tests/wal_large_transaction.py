"""One transaction of millions of rows, harvested in wal mode, on real servers.

    python -m tests.wal_large_transaction [--rows 10000000] [--source table|message] [--kill]

Says how many rows a second were published, exactly once, and the most memory that the harvester
had; with `--kill`, the leader is killed when some are, and another one goes on. Exits with 1 if a
row was lost, doubled or out of the order of its key.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from harvest.core.message import pack_message
from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import World, wait_until
from tests.wal_kills import most_memory_mb

TOPIC = "large"
PARTITIONS = 6
KEYS = 1_000
SIZE = 256
"""Bytes of a value; its beginning is the row's number."""
INSERT = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys,
                    kafka_header_values)
SELECT now(), %s, 'key-' || n %% %s, rpad(n::text, %s, ' '), '{}', '{}'
FROM generate_series(1, %s) AS n
"""
# A message is packed once; the number takes the place of its value's first bytes.
EMIT = """
SELECT count(pg_logical_emit_message(
    true, 'harvest.outbox', overlay(%s::bytea placing convert_to(rpad(n::text, 12), 'UTF8') from %s)
)) FROM generate_series(1, %s) AS n
"""


def write(database: str, source: str, rows: int) -> None:
    """Commit the rows, all in one transaction."""
    with psycopg.connect(database) as connection:
        if source == "table":
            connection.execute(INSERT, (TOPIC, KEYS, SIZE, rows))
        else:
            mark = b"123456789012"
            packed = pack_message(TOPIC, b"key", mark.ljust(SIZE), [])
            connection.execute(EMIT, (packed, packed.index(mark) + 1, rows))


class Ledger:
    """What came into the topic, each partition in the order of its offsets."""

    def __init__(self, servers: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "ledger",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign(
            [TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)]
        )
        self._last: dict[bytes, int] = {}
        self.count = 0
        self.wrong = 0
        """Rows that came again, or behind a later row of their key."""

    def read(self, timeout_s: float) -> None:
        """Take in what has come."""
        for message in self._consumer.consume(10_000, timeout_s):
            number, key = int((message.value() or b"")[:12]), message.key() or b""
            self.wrong += number <= self._last.get(key, 0)
            self._last[key] = number
            self.count += 1

    def close(self) -> None:
        self._consumer.close()


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--source", choices=["table", "message"], default="table")
    parser.add_argument("--kill", action="store_true", help="kill the leader in the middle")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka() as kafka,
        EmbeddedPostgres() as postgres,
    ):
        kafka.create_topic(TOPIC, PARTITIONS)
        servers, database = kafka.bootstrap_servers, postgres.create_database()
        purge = "" if given.source == "message" else ", purge: keep"
        more = f"wal: {{source: {given.source}{purge}}}\n"
        world = World(Path(folder), servers, database, TOPIC, mode="wal", more=more)
        with world.opened(kafka, PostgresWalSource(database, "outbox", WalOptions(given.source))):
            harvester = world.harvester()
            harvester.wait_said("harvesting as leader")
            ledger, memory_mb = Ledger(servers), 0.0
            began_s = time.monotonic()
            write(database, given.source, given.rows)
            committed_s = time.monotonic()
            print(f"committed after {committed_s - began_s:.0f} s", flush=True)
            told, killed = 0, not given.kill
            while ledger.count < given.rows:
                ledger.read(1.0)
                memory_mb = max(memory_mb, most_memory_mb(harvester.process.pid))
                if ledger.count >= told + given.rows // 10:
                    told = ledger.count
                    print(f"{told} rows, {memory_mb:.0f} MB", flush=True)
                if not killed and ledger.count > given.rows // 3:
                    killed = True
                    harvester.kill()
                    harvester = world.harvester()
                    harvester.wait_said("harvesting as leader")
            passed_s = time.monotonic() - committed_s
            harvester.stop()
            wait_until(lambda: harvester.process.poll() is not None, "its end")
            ledger.read(2.0)
            ledger.close()
    print(
        f"one transaction of {given.rows} rows: {ledger.count - given.rows} too many, "
        f"{ledger.wrong} doubled or out of order; {given.rows / passed_s:,.0f} rows/s; "
        f"the harvester's memory: {memory_mb:.0f} MB at most"
    )
    return int(ledger.count != given.rows or ledger.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
