"""Payloads in one database, ids in another, read from a real replica that lags."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from harvest import OutboxRecord
from harvest.cli import app
from harvest.config import parse
from harvest.errors import ConfigurationError, HarvestError, NoTransaction, StoreUnavailable
from harvest.gaps import Gaps
from harvest.outbound import OutboundStasher
from harvest.store.range_postgres import PostgresRangeStore
from harvest.store.two_databases import PostgresIds, TwoDatabasesStore
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from marshal_py.embedded.binaries import find_binaries, server_user
from marshal_py.embedded.ports import free_ports
from tests.contract_harvest.conftest import TwoDatabasesBench, second_database
from tests.integration.harvest_world import World, wait_until
from tests.kafka_reader import read_topic

STASHER = OutboundStasher()


def record(value: str, key: str = "k", topic: str = "t") -> OutboxRecord:
    return OutboxRecord(topic, key, value)


@pytest.fixture
def bench(postgres_database: str) -> Iterator[TwoDatabasesBench]:
    made = TwoDatabasesBench(postgres_database, second_database(postgres_database))
    yield made
    made.close()


# --- Writing ---


def test_the_payload_is_committed_before_its_id(bench: TwoDatabasesBench) -> None:
    with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
        ids = STASHER.stash_many(primary, outbound, [record(f"v{n}") for n in range(3)])
        with psycopg.connect(bench.outbound) as other:
            values = other.execute("SELECT id, kafka_value FROM outbox ORDER BY id").fetchall()
        assert values == [(i, f"v{n}") for n, i in enumerate(ids)]
        store = bench.store()
        assert list(store.read(0, 10).rows) == []
        primary.commit()
    rows = store.read(0, 10).rows
    assert [(row[0], row[3]) for row in rows] == [(1, b"v0"), (2, b"v1"), (3, b"v2")]


def test_connections_that_would_write_in_the_wrong_order(bench: TwoDatabasesBench) -> None:
    with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
        outbound.execute("SELECT 1")
        with pytest.raises(HarvestError, match="one of its own"):
            STASHER.stash(primary, outbound, record("v"))
        outbound.rollback()
        primary.autocommit = True
        with pytest.raises(NoTransaction):
            STASHER.stash(primary, outbound, record("v"))


def test_a_missing_payload_stops_rather_than_loses(bench: TwoDatabasesBench) -> None:
    with psycopg.connect(bench.primary) as primary:
        primary.execute("INSERT INTO outbox_ids (message_id) VALUES (4711)")
    with pytest.raises(StoreUnavailable, match="the message 4711 is committed in the primary"):
        bench.store().read(0, 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode: mark", "need mode: range and one shard"),
        ("mode: range\nshards: 2", "need mode: range and one shard"),
        ("mode: range\ndatabase: sqlite:///x", "both databases must be PostgreSQL"),
    ],
)
def test_configurations_that_cannot_work(text: str, said: str) -> None:
    base = "kafka: {bootstrap.servers: x}\ngroup: g\nprimary: {database: postgresql://x/y}\n"
    if "database:" not in text:
        base += "database: postgresql://x/z\n"
    with pytest.raises(ConfigurationError, match=said):
        parse(base + text)


def test_orphans_are_archived_when_they_are_old(bench: TwoDatabasesBench, tmp_path: Path) -> None:
    kept, gone = [], []
    with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
        for n in range(6):
            message = STASHER.stash(primary, outbound, record(f"v{n}"))
            primary.commit() if n % 2 else primary.rollback()
            (kept if n % 2 else gone).append(message)
        young = gone.pop()
        outbound.execute(
            "UPDATE outbox SET create_time = now() - interval '3 h' WHERE id < %s", (young,)
        )
    config = tmp_path / "reaper.yaml"
    config.write_text(
        f"kafka: {{bootstrap.servers: x}}\ngroup: g\nmode: range\ndatabase: {bench.outbound}\n"
        f"primary: {{database: '{bench.primary}'}}\n"
    )

    def orphans(*options: str) -> int:
        arguments = ["orphans", "-c", str(config), "--older-than-hours", "2", "--json", *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return int(json.loads(result.stdout)["orphans"])

    assert [orphans("--dry-run"), orphans(), orphans()] == [2, 2, 0]
    with psycopg.connect(bench.outbound) as outbound:
        left = [row[0] for row in outbound.execute("SELECT id FROM outbox ORDER BY id").fetchall()]
        moved = outbound.execute("SELECT id FROM outbox_orphans ORDER BY id").fetchall()
    assert left == sorted([*kept, young])
    assert [row[0] for row in moved] == gone
    assert len(bench.store().read(0, 10).rows) == 3


# --- A replica ---


_AT_LEAST = (
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
)
_LEAST = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"


class Replica:
    """A streaming replica of `primary`, on a port of its own."""

    def __init__(self, primary: EmbeddedPostgres, folder: Path) -> None:
        binaries, self._user = find_binaries(), server_user()
        data, self.port = folder / "replica", free_ports(1)[0]
        backup = [str(binaries.folder / "pg_basebackup"), "-D", str(data), "-R", "-c", "fast"]
        self._run([*backup, "-d", primary.dsn])
        with psycopg.connect(primary.dsn) as connection:  # a replica must not have less
            least = connection.execute(_LEAST, (list(_AT_LEAST),)).fetchall()
        given = " ".join(f"-c {name}={value}" for name, value in least)
        options = (
            f"{given} -p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        )
        control = [str(binaries.folder / "pg_ctl"), "-D", str(data), "-w"]
        self._run([*control, "-l", str(folder / "log"), "-o", options, "start"])
        self._stop = [*control, "-m", "immediate", "stop"]

    def url(self, database: str) -> str:
        return psycopg.conninfo.make_conninfo(database, host="127.0.0.1", port=self.port)

    def replay(self, database: str, *, go_on: bool) -> None:
        call = "pg_wal_replay_resume()" if go_on else "pg_wal_replay_pause()"
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(f"SELECT {call}")  # type: ignore[arg-type]

    def close(self) -> None:
        self._run(self._stop)

    def _run(self, command: list[str]) -> None:
        user = self._user
        account = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60, **account)  # type: ignore[call-overload]


@pytest.fixture
def replica(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Replica]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        folder.chmod(0o777)
        made = Replica(postgres, folder)
        stack.callback(made.close)
        yield made


def wait_caught_up(bench: TwoDatabasesBench, replica: Replica) -> None:
    primary = PostgresIds(bench.primary, "outbox_ids")
    ids = PostgresIds(replica.url(bench.primary), "outbox_ids")
    written = primary.written()
    wait_until(lambda: ids.has_replayed(written), "the replica")
    primary.close()
    ids.close()


def test_a_gap_is_judged_only_when_the_replica_has_caught_up(
    bench: TwoDatabasesBench, replica: Replica
) -> None:
    late = bench.begin()
    (hole,) = [late.insert(record("late"))]
    with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
        STASHER.stash(primary, outbound, record("early"))
        primary.commit()
    wait_caught_up(bench, replica)
    replica.replay(bench.primary, go_on=False)
    ids = PostgresIds(replica.url(bench.primary), "outbox_ids")
    store = TwoDatabasesStore(
        PostgresIds(bench.primary, "outbox_ids"), PostgresRangeStore(bench.outbound, "outbox"), ids
    )
    window = store.read(0, 10)
    assert [row[0] for row in window.rows] == [hole + 1]
    gaps = Gaps().plus(window.missing if window.missing else ((hole, hole),))
    late.commit()  # the primary has it, the replica does not
    gaps = gaps.judged(store.holders())
    assert gaps.due
    assert ids.lookup(gaps.ranges) == []  # what would be wrong: it is not dead
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(store.lookup(gaps.ranges)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    replica.replay(bench.primary, go_on=True)
    thread.join(30)
    assert found == [[(hole, hole)]]
    assert [row[3] for row in store.fetch([(hole, hole)])] == [b"late"]
    store.close()


def test_waiting_for_a_replica_can_be_broken_off(
    bench: TwoDatabasesBench, replica: Replica
) -> None:
    replica.replay(bench.primary, go_on=False)
    ids = PostgresIds(replica.url(bench.primary), "outbox_ids")
    store = TwoDatabasesStore(
        PostgresIds(bench.primary, "outbox_ids"), PostgresRangeStore(bench.outbound, "outbox"), ids
    )
    transaction = bench.begin()
    transaction.insert(record("v"))
    transaction.commit()
    store.holders()
    threading.Timer(0.1, store.cancel).start()
    with pytest.raises(StoreUnavailable, match="given up"):
        store.lookup([(1, 1)])
    store.close()


@pytest.mark.kafka
def test_harvesting_from_a_lagging_replica(
    bench: TwoDatabasesBench,
    replica: Replica,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Writers commit late and roll back, the replica stops and goes on, leaders are killed."""
    topic = kafka_topic(partitions=3)
    world = World(tmp_path, kafka.bootstrap_servers, bench.outbound, topic, mode="range")
    world.config.write_text(
        world.config.read_text()
        + f"primary: {{database: '{bench.primary}', replica: '{replica.url(bench.primary)}'}}\n"
    )
    committed: dict[str, list[str]] = {}
    stop = threading.Event()

    def write(name: str) -> None:
        with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
            count = 0
            while not stop.is_set():
                count += 1
                values = [f"{name}.{count}.{n}" for n in range(1 + count % 3)]
                rows = [record(value, name, topic) for value in values]
                STASHER.stash_many(primary, outbound, rows)
                stop.wait(0.01 if count % 7 else 0.2)  # now and then a late commit
                if count % 5 == 0:
                    primary.rollback()
                    continue
                primary.commit()
                committed.setdefault(name, []).extend(values)

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            harvester = world.harvester()
            published = len(read_topic(kafka.bootstrap_servers, topic))
            replica.replay(bench.primary, go_on=False)
            time.sleep(0.5)  # lag, while rows are committed
            replica.replay(bench.primary, go_on=True)
            world.wait_published(published + 20)
            harvester.kill()
        world.harvester()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    total = sum(len(values) for values in committed.values())
    wait_until(lambda: world.published_count() >= total, "all published", world.leader().log)
    assert world.leader().stop() == 0
    got: dict[str, list[str]] = {}
    for key, value, _ in read_topic(kafka.bootstrap_servers, topic):
        assert key is not None
        assert value is not None
        got.setdefault(key.decode(), []).append(value.decode())
    world.close()
    for name in (f"{topic}.marshal", f"{topic}.marshal.snapshots"):
        kafka.delete_topic(name)
    assert got == committed
