"""One run of one side of the drain benchmark, in a process of its own, so that its CPU and memory
are its own. Prints one line of JSON."""

from __future__ import annotations

import json
import resource
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from confluent_kafka import Producer
from psycopg.types.string import ByteaBinaryLoader

PAGE = 5_000
PRODUCER = {"compression.type": "lz4", "acks": "all", "queue.buffering.max.messages": 1_000_000}
READ = "SELECT id, kafka_key, kafka_value FROM outbox WHERE id > %s ORDER BY id LIMIT %s"


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def connect(database: str) -> psycopg.Cursor[tuple[Any, ...]]:
    connection = psycopg.connect(database, autocommit=True)
    for name in ("text", "varchar"):
        connection.adapters.register_loader(name, ByteaBinaryLoader)
    return connection.cursor(binary=True)


def bare(database: str, servers: str, topic: str, *, read: bool, write: bool) -> int:
    """The loop that a user would write without us: no recovery, no order after a failure.

    Without `read` it produces one page again and again; without `write` it only reads.
    """
    cursor = connect(database)
    producer = Producer({"bootstrap.servers": servers, **PRODUCER})
    acknowledged = 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            raise RuntimeError(error)
        acknowledged += 1

    ((total,),) = cursor.execute("SELECT count(*) FROM outbox").fetchall()
    last = seen = 0
    rows = cursor.execute(READ, (0, PAGE)).fetchall()
    while seen < total:
        if read:
            rows = cursor.execute(READ, (last, PAGE)).fetchall()
        last = rows[-1][0]
        seen += len(rows)
        if write:
            for _, key, value in rows:
                producer.produce(topic, value, key, on_delivery=delivered)
            producer.poll(0)
    producer.flush(60)
    if write and acknowledged != seen:
        raise RuntimeError(f"{acknowledged} of {seen} rows were acknowledged")
    return seen


def slot(database: str, name: str, source_of: str, count: int) -> int:
    """Only reads a slot and decodes what comes, so many rows."""
    from harvest.core.wal_options import WalOptions
    from harvest.databases.postgres.wal import PostgresWalSource

    options = WalOptions("message" if source_of == "message" else "table", slot=name)
    source = PostgresWalSource(database, "outbox", options)
    stream, _ = source.open(0, None)
    seen = 0
    while seen < count:
        found = stream.read(PAGE, 1 << 24)
        if found is None:
            stream.keep_alive()
            select.select([stream.fileno()], [], [], 0.2)
        else:
            seen += sum([len(chunk.rows) for chunk in found.chunks])
    stream.close()
    source.close()
    return seen


def ours(config: str, count: int) -> tuple[float, float]:
    """`harvest reap`, from the moment it may publish until everything is published."""
    from harvest.cli.reap import collect_less_often
    from harvest.config.load import parse
    from harvest.runtime.events import Event, LeaderRefreshed
    from harvest.runtime.process import process

    began: list[tuple[float, float]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, LeaderRefreshed):
            began.append((time.perf_counter(), cpu_s()))

    collect_less_often()
    with process(parse(config), on_event) as running:
        harvester = running.harvester
        thread = threading.Thread(target=harvester.run)
        thread.start()
        try:
            while harvester.stats.published < count and thread.is_alive():
                time.sleep(0.005)
            if len(began) != 1 or harvester.stats.published != count:
                raise RuntimeError(f"not in one go: {harvester.stats}")
            return time.perf_counter() - began[0][0], cpu_s() - began[0][1]
        finally:
            harvester.stop()
            thread.join()


def main() -> None:
    side, *arguments = sys.argv[1:]
    if side == "ours":
        config, count = arguments
        seconds, cpu = ours(config, int(count))
        rows = int(count)
    elif side == "slot":
        started, cpu = time.perf_counter(), cpu_s()
        rows = slot(arguments[0], arguments[1], arguments[2], int(arguments[3]))
        seconds, cpu = time.perf_counter() - started, cpu_s() - cpu
    else:
        database, servers, topic = arguments
        run: Callable[[], int] = lambda: bare(  # noqa: E731
            database, servers, topic, read=side != "produce", write=side != "read"
        )
        started, cpu = time.perf_counter(), cpu_s()
        rows = run()
        seconds, cpu = time.perf_counter() - started, cpu_s() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rate": rows / seconds, "cpu": cpu / rows * 100_000, "peak_mb": peak_mb}))


if __name__ == "__main__":
    main()
