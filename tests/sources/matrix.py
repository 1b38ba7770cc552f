"""One run: an outbox is harvested, something happens to it, and every row is accounted for.

A row is lost if it is in the database that is left, and not published in the end. It may come twice
only if the harvester said before that the database is not the one that it was.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pymysql

from harvest import Harvest, OutboxRecord, Stasher
from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.databases.registry import database
from harvest.errors import CheckpointError, ConfigurationError
from harvest.runtime.checkpoint_changes import (
    accept_database,
    reset_checkpoints,
    restore_checkpoints,
)
from harvest.runtime.parts import make_wal_source
from harvest.runtime.registration import switch
from harvest.runtime.slot_changes import renew_slot
from marshal_py.embedded import EmbeddedKafka, EmbeddedMariaDB, EmbeddedMySQL, EmbeddedPostgres
from tests.support.http_server import HttpServer, http_server
from tests.support.kafka_reader import read_topic
from tests.support.postgres_replica import Replica

__all__ = ["DATABASES", "FAULTS", "MODES", "Result", "Servers", "run", "servers", "worker"]

TABLE_MODES: Final = ("mark", "range", "relay")
MODES: Final = (*TABLE_MODES, "wal")
DATABASES: Final = ("postgres", "mariadb")
FAULTS: Final = (
    "failover",
    "failover, commits lost",
    "truncate",
    "restore",
    "ids again",
    "switch",
    "two configurations",
)
_WAIT_S: Final = 90.0
_TABLES: Final = ("outbox", "outbox_registration", "outbox_positions")


@dataclass
class Servers:
    """What all runs share."""

    kafka: EmbeddedKafka
    postgres: EmbeddedPostgres
    mariadb: EmbeddedMariaDB | EmbeddedMySQL


@dataclass
class Result:
    """What became of a run. `loud`: what the harvester said, if it refused to go on."""

    name: str
    seed: int
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    loud: str | None = None

    @property
    def passed(self) -> bool:
        """No silent loss, no silent doubling; and what must not be silent was not."""
        return not self.lost and (self.loud is not None or not self.doubled)


@contextlib.contextmanager
def servers(*, mysql: bool = False) -> Iterator[Servers]:
    """Real servers, for as many runs as one likes. `mysql`: MySQL in MariaDB's place."""
    other = EmbeddedMySQL if mysql else EmbeddedMariaDB
    with EmbeddedKafka() as kafka, other() as mariadb:
        yield Servers(kafka, EmbeddedPostgres(), mariadb)  # each worker has one of its own


@contextlib.contextmanager
def worker(made: Servers) -> Iterator[Servers]:
    """The same, with a PostgreSQL that nobody else kills."""
    with EmbeddedPostgres() as postgres:
        yield replace(made, postgres=postgres)


def possible(kind: str, mode: str, fault: str) -> bool:
    """Replicas are PostgreSQL's here. What becomes of slots, `test_wal_slots.py` shows."""
    if mode == "wal":
        return kind == "postgres" and fault in ("truncate", "restore", "ids again")
    return kind == "postgres" or not fault.startswith("failover")


def run(made: Servers, kind: str, mode: str, fault: str, seed: int) -> Result:
    """Make it happen once."""
    with contextlib.ExitStack() as stack:
        outbox = _Outbox(made, kind, mode, seed, stack)
        result = Result(f"{kind}, {mode}, {fault}", seed)
        outbox.happen(fault, result)
        counts = Counter(outbox.published())
        result.lost = sorted(outbox.expected - counts.keys())
        result.doubled = sorted(value for value, count in counts.items() if count > 1)
        return result


class _Outbox:
    def __init__(
        self, made: Servers, kind: str, mode: str, seed: int, stack: contextlib.ExitStack
    ) -> None:
        self.random = random.Random(f"{kind} {mode} {seed}")
        self.servers, self.kind, self.mode = made, kind, mode
        self.topic = made.kafka.create_topic()
        self.expected: set[str] = set()
        self.count = 0
        self.harvest: Harvest | None = None
        self.receiver: HttpServer = stack.enter_context(http_server())
        server = made.postgres if kind == "postgres" else made.mariadb
        self.url = server.create_database()
        self.application_url = self.url
        self.stack = stack
        tables = database(self.url)
        for store in (
            tables.mark_store(self.config().table),
            tables.range_store(self.config().table),
        ):
            with closing(store):
                store.init()
        if mode == "wal":
            source = stack.enter_context(closing(make_wal_source(self.config())))
            source.init()
            stack.callback(source.slot.drop)
        stack.callback(self.stop)

    def config(self, mode: str | None = None, group: str = "g") -> ReaperConfig:
        mode = mode or self.mode
        relay = {"hook": {"http": {"uri": f"{self.receiver.url}/"}, "backoff_ms": 20}}
        given: dict[str, Any] = {
            "kafka": {"bootstrap.servers": self.servers.kafka.bootstrap_servers},
            "database": self.url,
            "group": f"{self.topic}.{group}",
            "mode": "mark" if mode == "relay" else mode,
            "coordination": {
                "topic": f"{self.topic}.marshal",
                "interval_ms": 300,
                "create_topics": True,
            },
        }
        if mode == "relay":
            given["destinations"] = relay
        return validated(ReaperConfig, given, "the matrix")

    # --- The application ---

    def connect(self) -> Any:
        if self.kind == "postgres":
            return psycopg.connect(self.application_url)
        from harvest.databases.mysql.table import connect_arguments

        return pymysql.connect(**connect_arguments(self.application_url))

    def insert(self, count: int, *, expect: bool = True) -> list[str]:
        values = [f"v{self.count + n}" for n in range(count)]
        self.count += count
        with closing(self.connect()) as connection:
            records = [OutboxRecord(self.topic, v, v) for v in values]
            Stasher().stash_many(connection, records)
            connection.commit()
        if expect:
            self.expected |= set(values)
        return values

    def sql(self, *statements: str) -> None:
        with closing(self.connect()) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()

    def present(self) -> set[str]:
        """The rows of the table."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT kafka_value FROM outbox")
            return {str(value) for (value,) in cursor.fetchall()}

    # --- The harvester ---

    def start(self, config: ReaperConfig | None = None) -> None:
        self.harvest = Harvest(config or self.config(), meter_interval_s=0.3).start()

    def stop(self) -> None:
        harvest, self.harvest = self.harvest, None
        if harvest is not None:
            harvest.stop()
            harvest.await_(30)

    def refusal(self) -> str | None:
        if self.harvest is None:
            return None
        problems = self.harvest.health().problems
        return next((p for p in problems if p.startswith("nothing is published")), None)

    def published(self) -> list[str]:
        found = read_topic(self.servers.kafka.bootstrap_servers, self.topic)
        values = [(value or b"").decode() for _, value, _ in found]
        return values + [body.decode() for body in self.receiver.bodies()]

    def wait(self, condition: Callable[[], object]) -> bool:
        until_s = time.monotonic() + _WAIT_S
        while not condition():
            if time.monotonic() > until_s:
                return False
            time.sleep(0.1)
        return True

    def wait_published(self) -> bool:
        return self.wait(lambda: self.expected <= set(self.published()))

    # --- What happens ---

    def happen(self, fault: str, result: Result) -> None:
        if fault == "two configurations":
            return self.two_configurations(result)
        self.start()
        self.insert(self.random.randint(5, 60))
        self.wait_published()
        if fault == "switch":
            return self.switches()
        if self.random.random() < 0.5:
            self.stop()
        if fault.startswith("failover"):
            self.fail_over(lose=fault != "failover")
        else:
            faults = {"truncate": self.truncate, "restore": self.restore}
            faults.get(fault, self.ids_again)()
        if self.harvest is None:
            self.start()
        self.insert(self.random.randint(5, 120))
        if self.settle(result):
            self.insert(3)
            self.wait_published()
        return None

    def settle(self, result: Result) -> bool:
        """Until all is published, or it is refused; then do what is the way out."""
        done = lambda: self.refusal() or self.expected <= set(self.published())  # noqa: E731
        self.wait(done)
        time.sleep(0.5)
        result.loud = self.refusal()
        if result.loud is None:
            return True
        config = self.config()
        if self.mode == "wal":
            self.stop()
            renew_slot(config, publish_table=True)
            self.start()
        elif self.mode != "range":
            accept_database(config)
        elif "gone back" in result.loud or "promoted" in result.loud:
            try:
                restore_checkpoints(config)
            except CheckpointError:  # it went back to before the first copy
                reset_checkpoints(config, None)
        else:
            reset_checkpoints(config, None)
        return self.wait_published()

    def truncate(self) -> None:
        restart = " RESTART IDENTITY" if self.kind == "postgres" else ""
        self.sql(f"TRUNCATE TABLE outbox{restart}")

    def ids_again(self) -> None:
        self.sql("DELETE FROM outbox")
        if self.kind == "postgres":
            self.sql("SELECT setval('outbox_id_seq', 1, false)")
        else:
            self.sql("ALTER TABLE outbox AUTO_INCREMENT = 1")

    def restore(self) -> None:
        """What a dump brings back: rows, registration and positions, and the next id."""
        self.sql(*[f"CREATE TABLE b_{table} AS SELECT * FROM {table}" for table in _TABLES])
        highest = self.next_id()
        running = self.harvest is not None
        if not running:
            self.start()
        self.insert(self.random.randint(5, 40), expect=False)
        everything = {f"v{n}" for n in range(self.count)}
        self.wait(lambda: everything <= set(self.published()))
        self.wait(lambda: self.visit("outbox_registration") > self.visit("b_outbox_registration"))
        time.sleep(6)  # Kafka has heard of the visit
        self.stop()
        for table in _TABLES:
            self.sql(f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM b_{table}")
        if self.kind == "postgres":
            self.sql(f"SELECT setval('outbox_id_seq', {highest}, false)")
        else:
            self.sql(f"ALTER TABLE outbox AUTO_INCREMENT = {highest}")

    def visit(self, table: str) -> int:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT max(visit) FROM {table}")
            ((number,),) = cursor.fetchall()
            return int(number or 0)

    def next_id(self) -> int:
        query = "SELECT last_value + 1 FROM outbox_id_seq"
        if self.kind != "postgres":
            query = (
                "SELECT auto_increment FROM information_schema.tables "
                "WHERE table_schema = DATABASE() AND table_name = 'outbox'"
            )
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            ((number,),) = cursor.fetchall()
            return int(number)

    def fail_over(self, *, lose: bool) -> None:
        """To a replica that had everything; or that lacked rows which were published."""
        postgres = self.servers.postgres
        running = self.harvest is not None
        self.stop()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        replica = Replica(postgres, folder)
        self.stack.callback(postgres.start)
        self.stack.callback(replica.close)
        url = replica.url(self.url)
        name = psycopg.conninfo.conninfo_to_dict(self.url)
        self.url = (
            f"host=127.0.0.1,127.0.0.1 port={name['port']},{replica.port} user={name['user']} "
            f"dbname={name['dbname']} target_session_attrs=read-write"
        )
        self.start()
        if lose:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
                connection.execute("SELECT pg_reload_conf()")
            time.sleep(0.5)
        self.insert(self.random.randint(5, 60), expect=not lose)
        everything = {f"v{n}" for n in range(self.count)}
        self.wait(lambda: everything <= set(self.published()))
        if not lose:
            self.wait_for_replica(url)
        if not running:
            self.stop()
        postgres.kill()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")
        self.application_url = url

    def wait_for_replica(self, url: str) -> None:
        with psycopg.connect(self.application_url, autocommit=True) as primary:
            ((end,),) = primary.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        with psycopg.connect(url, autocommit=True) as standby:

            def replayed() -> bool:
                query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
                ((there,),) = standby.execute(query, (end,)).fetchall()
                return bool(there)

            self.wait(replayed)

    def switches(self) -> None:
        modes: Sequence[str] = [mode for mode in TABLE_MODES if mode != self.mode]
        for mode in (self.random.choice(modes), self.mode):
            if self.random.random() < 0.5:
                self.stop()
                self.insert(self.random.randint(1, 20))
            self.stop()
            config = self.config(mode)
            switch(config, dry_run=True)
            switch(config)
            self.start(config)
            self.insert(self.random.randint(1, 20))
            self.wait_published()

    def two_configurations(self, result: Result) -> None:
        """Both at once: one is refused, and what is published is published once."""
        other = self.config(group="h")
        if self.random.random() < 0.5:
            modes = [mode for mode in TABLE_MODES if mode != self.mode]
            other = self.config(self.random.choice(modes))
        configs = [self.config(), other]
        self.random.shuffle(configs)
        self.start(configs[0])
        self.insert(10)
        try:
            Harvest(configs[1]).start().stop()
        except ConfigurationError as error:
            result.loud = str(error)
        if result.loud is None:
            result.lost.append("the second configuration was not refused")
        self.insert(20)
        self.wait_published()
        counts = Counter(self.published())
        if any(count > 1 for count in counts.values()):
            result.loud = None  # being refused excuses nothing
