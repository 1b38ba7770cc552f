"""How fast a backlog of 256-byte rows is sent to a local HTTP server, in the order of its keys.

One harvester process, one request a row, beside what the server can take: prepared requests over as
many bare sockets.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from harvest.databases.postgres.mark import PostgresMarkStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.harvest_drain import FILL, Outcome, child

KEYS = 1_000
CONNECTIONS = 8


@contextmanager
def receiver() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "tests.benchmarks._http_server"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process
        process.kill()


def bare(url: str, count: int) -> float:
    """Requests per second that the server answers on CONNECTIONS sockets."""
    port = int(url.rpartition(":")[2])
    request = b"POST /bare%d/%d HTTP/1.1\r\nHost: x\r\nContent-Length: 256\r\n\r\n" + b"x" * 256

    def loop(connection: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for n in range(count // CONNECTIONS):
                client.sendall(request % (connection, n))
                if not client.recv(4096):
                    raise RuntimeError("the server has closed a connection")

    started = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(loop, range(CONNECTIONS)))
    return count / (time.perf_counter() - started)


def relay(kafka: EmbeddedKafka, postgres: EmbeddedPostgres, url: str, count: int) -> Outcome:
    database = postgres.create_database()
    store = PostgresMarkStore(database, "outbox")
    store.init()
    store.close()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(FILL, ("events", KEYS, count))
        connection.execute("VACUUM ANALYZE outbox")
    config = {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "database": database,
        "group": f"relay-{uuid.uuid4().hex[:8]}",
        "coordination": {"topic": new_topic(kafka)},
        "destinations": {
            "local": {"http": {"uri": url + "/{key}/{id}"}, "concurrency": CONNECTIONS}
        },
    }
    return child("ours", json.dumps(config), str(count))


def measure(options: Options) -> list[Figure]:
    count = 2_000 if options.quick else 20_000
    rates, outcomes = [], []
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        for _ in range(options.repeats):
            with receiver() as (url, process):
                rates.append(bare(url, count // 4))
                outcomes.append(relay(kafka, postgres, url, count))
                assert process.stdin is not None
                assert process.stdout is not None
                print(file=process.stdin, flush=True)
                counts = json.loads(process.stdout.readline())
                if counts["out_of_order"] or counts["requests"] < count + count // 4:
                    raise RuntimeError(f"the receiver saw {counts}")
            say(f"server {rates[-1]:,.0f}, relay {outcomes[-1].rate:,.0f} requests/s")
    rate = median(outcome.rate for outcome in outcomes)
    target = "≥ 3,000, keys in order"
    return [
        Figure("server, bare sockets", median(rates), "requests/s"),
        Figure("relay", rate, "requests/s", median(rates), target, rate >= 3_000),
        Figure("CPU, relay", median(o.cpu for o in outcomes), "s/100,000 rows"),
        Figure("memory, relay", max(o.peak_mb for o in outcomes), "MB"),
    ]


if __name__ == "__main__":
    run(measure, __doc__)
