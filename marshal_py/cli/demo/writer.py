"""The application: business transactions with outbox rows, some of which are rolled back.

`python -m marshal_py.cli.demo.writer CONFIG`, until SIGTERM. Several threads write at once, and
some transactions stay open for a while, so that ids become visible out of order, as in real life.
The rows of one key are in order all the same, since a transaction holds the key's row lock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import psycopg

from harvest import OutboxRecord, Stasher
from marshal_py.cli.demo.config import DemoConfig

__all__ = ["WriterStats", "create_archive", "create_tables", "drop_tables"]


class WriterStats(msgspec.Struct):
    """What has been committed and rolled back so far."""

    committed_transactions: int = 0
    committed_rows: int = 0
    rolled_back_transactions: int = 0
    rolled_back_rows: int = 0
    done: bool = False

    @classmethod
    def load(cls, path: Path) -> WriterStats:
        """Read what the writer last said; zeros before that."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()


_TABLES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.accounts (key TEXT PRIMARY KEY, seq BIGINT NOT NULL, balance BIGINT NOT NULL);
CREATE TABLE {schema}.ledger (row_id TEXT PRIMARY KEY, key TEXT NOT NULL, seq BIGINT NOT NULL);
INSERT INTO {schema}.accounts SELECT 'account-' || n, 0, 0 FROM generate_series(1, {keys}) AS n;
"""


def create_tables(config: DemoConfig) -> None:
    """Make the business tables in a schema of the demo's own; `harvest init` makes the outbox."""
    with psycopg.connect(config.dsn, connect_timeout=10) as connection:
        _run(connection, _TABLES.format(schema=config.schema, keys=config.keys))


_ARCHIVE = (
    "CREATE TABLE {archive} (LIKE {outbox} INCLUDING DEFAULTS)",
    "CREATE FUNCTION {schema}.keep() RETURNS trigger LANGUAGE plpgsql AS $$ "
    "BEGIN INSERT INTO {archive} SELECT NEW.*; RETURN NULL; END $$",
    "CREATE TRIGGER keep AFTER INSERT ON {outbox} FOR EACH ROW EXECUTE FUNCTION {schema}.keep()",
)


def create_archive(config: DemoConfig) -> None:
    """Keep a copy of each row of the outbox, in the transaction that writes it."""
    names = {"schema": config.schema, "outbox": config.outbox, "archive": config.archive}
    with psycopg.connect(config.dsn, connect_timeout=10) as connection:
        for statement in _ARCHIVE:
            connection.execute(statement.format(**names))


def drop_tables(config: DemoConfig) -> None:
    """Remove the schema with all that is in it."""
    with psycopg.connect(config.dsn, connect_timeout=10) as connection:
        _run(connection, f"DROP SCHEMA IF EXISTS {config.schema} CASCADE")


def _run(connection: psycopg.Connection[Any], statements: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            connection.execute(statement)


class _Writer:
    """Writes with one connection, at a steady rate, until told to stop."""

    def __init__(self, config: DemoConfig, number: int, stop: threading.Event) -> None:
        self.stats = WriterStats()
        self._config = config
        self._random = random.Random(f"{config.seed}-{number}")
        self._stop = stop
        self._stasher = Stasher(config.outbox)
        schema = config.schema
        self._move = (
            f"UPDATE {schema}.accounts SET seq = seq + 1, balance = balance + %s "  # noqa: S608
            "WHERE key = %s RETURNING seq, balance"
        )
        self._note = f"INSERT INTO {schema}.ledger VALUES (%s, %s, %s)"  # noqa: S608

    def run(self) -> None:
        interval_s = self._config.writers / self._config.rate  # per row
        with psycopg.connect(self._config.dsn, connect_timeout=10) as connection:
            due_s = time.monotonic()
            while not self._stop.wait(max(0.0, due_s - time.monotonic())):
                due_s += interval_s * self._transaction(connection)

    def _transaction(self, connection: psycopg.Connection[Any]) -> int:
        """Do one transaction; return how many rows it committed, or would have."""
        dice, config, stats = self._random, self._config, self.stats
        rows = dice.randint(1, 4)
        # In one order everywhere, so that two transactions cannot wait for each other.
        keys = sorted(f"account-{dice.randint(1, config.keys)}" for _ in range(rows))
        transaction = uuid.UUID(int=dice.getrandbits(128)).hex[:12]
        records = []
        for number, key in enumerate(keys):
            amount = dice.randint(-100, 100)
            moved = connection.execute(self._move, (amount, key)).fetchone()
            if moved is None:
                raise LookupError(f"account {key!r} is gone")
            row_id = f"{transaction}-{number}"
            connection.execute(self._note, (row_id, key, moved[0]))
            value = {"row": row_id, "seq": moved[0], "amount": amount, "balance": moved[1]}
            records.append(OutboxRecord(config.topic, key, json.dumps(value)))
        self._stasher.stash_many(connection, records)
        if dice.random() < 0.1:
            time.sleep(dice.uniform(0.02, 0.08))  # others commit later ids meanwhile
        if dice.random() < config.rollback_share:
            connection.rollback()
            stats.rolled_back_transactions += 1
            stats.rolled_back_rows += rows
        else:
            connection.commit()
            stats.committed_transactions += 1
            stats.committed_rows += rows
        return rows


def _total(writers: list[_Writer], *, done: bool) -> WriterStats:
    stats = [writer.stats for writer in writers]
    return WriterStats(
        sum(s.committed_transactions for s in stats),
        sum(s.committed_rows for s in stats),
        sum(s.rolled_back_transactions for s in stats),
        sum(s.rolled_back_rows for s in stats),
        done,
    )


def main() -> None:
    """Write until SIGTERM, and say how far every quarter of a second."""
    config = DemoConfig.load(sys.argv[1])
    stop = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    writers = [_Writer(config, number, stop) for number in range(config.writers)]
    failed: list[BaseException] = []

    def run(writer: _Writer) -> None:
        try:
            writer.run()
        except BaseException as error:
            failed.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    while not stop.wait(0.25):
        _say(config, _total(writers, done=False))
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    _say(config, _total(writers, done=True))


def _say(config: DemoConfig, stats: WriterStats) -> None:
    draft = config.writer_stats.with_suffix(".draft")
    draft.write_bytes(msgspec.json.encode(stats))
    os.replace(draft, config.writer_stats)


if __name__ == "__main__":
    main()
