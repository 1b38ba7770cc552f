"""Databases whose write-ahead log has rows that nobody has harvested, with a slot for each run."""

from __future__ import annotations

import psycopg

from harvest.core.message import pack_message
from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedPostgres

__all__ = ["EMIT", "INSERT", "Logs"]

_SLOTS = 9  # of the ten that a server has by default
INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) VALUES (now(), '{topic}', 'key-' || n % 10000, repeat('x', 256), "
    "'{{n}}', '{{1}}');"
)
EMIT = "PERFORM pg_logical_emit_message(true, 'harvest.outbox', decode('{content}', 'hex'));"


class Logs:
    """For each kind of rows one database at a time; its slots are used up one by one."""

    def __init__(self, postgres: EmbeddedPostgres, topic: str, count: int) -> None:
        self._postgres = postgres
        self._topic = topic
        self._count = count

    def fill(self, source: str, rows_per_commit: int, runs: int) -> tuple[str, list[str]]:
        """A database whose log has the rows, each with one header, and `runs` slots before them."""
        database = self._postgres.create_database()
        made = PostgresWalSource(
            database, "outbox", WalOptions("message" if source == "message" else "table")
        )
        made.init()
        name = made.slot.name
        slots = [f"s{n}_{name}"[:63] for n in range(min(runs, _SLOTS))]
        content = pack_message(self._topic, b"key", b"x" * 256, [(b"n", b"1")]).hex()
        step = (EMIT if source == "message" else INSERT).format(topic=self._topic, content=content)
        with psycopg.connect(database, autocommit=True) as connection:
            for slot in slots:
                connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (name, slot))
            made.slot.drop()
            loop = (
                f"DO $$ BEGIN FOR n IN 1..{self._count} LOOP {step} "
                f"IF n % {rows_per_commit} = 0 THEN COMMIT; END IF; END LOOP; END $$"
            )
            connection.execute(loop.encode())
            connection.execute("CHECKPOINT")
        made.close()
        return database, slots

    def drop(self, database: str, slots: list[str]) -> None:
        """Let go of the log, and of the database."""
        with psycopg.connect(database, autocommit=True) as connection:
            for slot in slots:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        self._postgres.drop_database(database.rpartition("/")[2])
