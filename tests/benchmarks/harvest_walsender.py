"""What bounds a walsender: protocol versions, binary values, streaming, and two slots at once.

A log with rows of two tables waits. Each side only takes what the server sends and counts the rows:
nothing is decoded here, so the server is what is measured. The baseline is what `harvest` asks for:
protocol version 1, binary values, both tables in one slot.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from marshal_py.embedded import EmbeddedPostgres
from tests.benchmarks.harness import Figure, Options, median, run, say

_DATA = 25  # bytes before pgoutput's message
_WAIT_S = 60.0


@dataclass(frozen=True)
class Side:
    """Options of START_REPLICATION, and which publications are read, each through its slot."""

    name: str
    options: str
    publications: tuple[str, ...] = ("of_both",)
    minimum: int = 140_000


SIDES = (
    Side("version 1, binary", "proto_version '1', binary 'true'"),
    Side("version 1, text", "proto_version '1'"),
    Side("version 2, binary, streaming", "proto_version '2', binary 'true', streaming 'on'"),
    Side(
        "version 4, binary, parallel streaming",
        "proto_version '4', binary 'true', streaming 'parallel'",
        minimum=160_000,
    ),
    Side("two slots, a table each", "proto_version '1', binary 'true'", ("of_a", "of_b")),
)
COMMITS = {"single-row commits": 1, "100 rows per commit": 100, "one transaction": 0}


def read(dsn: str, slot: str, publication: str, options: str, count: int) -> None:
    """Take what a slot sends until there were so many rows. Runs in a process of its own."""
    settings = {**conninfo_to_dict(dsn), "replication": "database"}
    connection = pq.PGconn.connect(make_conninfo("", **settings).encode())
    command = (
        f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (publication_names '{publication}', {options})"
    )
    found = connection.exec_(command.encode())
    if found.status != pq.ExecStatus.COPY_BOTH:
        raise RuntimeError(connection.error_message.decode())
    connection.nonblocking = 1
    began_s, seen = time.monotonic(), 0
    while seen < count:
        length, data = connection.get_copy_data(1)
        if length > 0:
            seen += bytes(data[_DATA : _DATA + 1]) == b"I"
        elif length < 0 or time.monotonic() > began_s + _WAIT_S:
            raise RuntimeError(f"{seen} of {count} rows came")
        else:
            select.select([connection.socket], [], [], 1.0)
            connection.consume_input()
    connection.finish()
    print(json.dumps([began_s, time.monotonic()]))  # one clock for all processes


def measure(options: Options) -> list[Figure]:
    rows = 100_000 if options.quick else 400_000
    found: dict[str, list[float]] = defaultdict(list)
    with EmbeddedPostgres() as postgres:
        for commits, size in COMMITS.items():
            for _ in range(options.repeats):
                for side in SIDES:
                    if (rate := one(postgres, side, rows, size)) is not None:
                        found[f"{side.name}, {commits}"].append(rate)
                        say(f"{side.name}, {commits}: {rate:,.0f} rows/s")
    return [
        Figure(
            name,
            median(rates),
            "rows/s",
            median(found[f"{SIDES[0].name}, {name.rpartition(', ')[2]}"]),
        )
        for name, rates in found.items()
    ]


def one(postgres: EmbeddedPostgres, side: Side, rows: int, size: int) -> float | None:
    """Rows a second of all readers together; None if the server is too old for the options."""
    dsn = postgres.create_database()
    slots = [f"walsender_{n}" for n in range(len(side.publications))]
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.info.server_version < side.minimum:
            return None
        for table in ("a", "b"):
            connection.execute(
                f"CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY, key text, "
                "value text)".encode()
            )
        connection.execute("CREATE PUBLICATION of_both FOR TABLE a, b")
        connection.execute("CREATE PUBLICATION of_a FOR TABLE a")
        connection.execute("CREATE PUBLICATION of_b FOR TABLE b")
        for slot in slots:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        commit = f"IF n % {size} = 0 THEN COMMIT; END IF;" if size else ""
        insert = "INSERT INTO {} (key, value) VALUES ('key-' || n % 1000, repeat('x', 256));"
        loop = (
            f"DO $$ BEGIN FOR n IN 1..{rows} LOOP IF n % 2 = 0 THEN {insert.format('a')} "
            f"ELSE {insert.format('b')} END IF; {commit} END LOOP; END $$"
        )
        connection.execute(loop.encode())
        connection.execute("CHECKPOINT")
        readers = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "tests.benchmarks.harvest_walsender", "read",
                    dsn, slot, publication, side.options, str(rows // len(slots)),
                ],
                stdout=subprocess.PIPE, text=True,
            )
            for slot, publication in zip(slots, side.publications, strict=True)
        ]  # fmt: skip
        said = [reader.communicate()[0] for reader in readers]
        if any(reader.returncode for reader in readers):
            raise RuntimeError(f"{side.name}: a reader failed")
        began_s, ended_s = zip(*map(json.loads, said), strict=True)
        for slot in slots:
            wait_until_free(connection, slot)
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    postgres.drop_database(dsn.rpartition("/")[2].partition("?")[0])
    return float(rows / (max(ended_s) - min(began_s)))


def wait_until_free(connection: psycopg.Connection[tuple[object, ...]], slot: str) -> None:
    """Wait until the walsender has noticed that its reader is gone."""
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    while connection.execute(query, (slot,)).fetchall() != [(False,)]:
        time.sleep(0.01)


def main() -> None:
    if sys.argv[1:2] == ["read"]:
        dsn, slot, publication, options, count = sys.argv[2:]
        read(dsn, slot, publication, options, int(count))
    else:
        run(measure, __doc__)


if __name__ == "__main__":
    main()
