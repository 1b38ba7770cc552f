"""Payloads in one database, ids in another, read from a real replica that lags."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row, namedtuple_row, scalar_row
from typer.testing import CliRunner

from harvest import OutboxRecord, Stasher
from harvest.cli.app import app
from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.core.gaps import Gaps
from harvest.core.table_name import TableName
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.two_databases import PostgresIds, TwoDatabasesStore
from harvest.errors import ConfigurationError, HarvestError, NoTransaction, StoreUnavailable
from harvest.outbox.outbound_stasher import OutboundStasher, archive_orphans
from harvest.runtime.events import Stats
from harvest.runtime.leadership import Leadership
from harvest.runtime.parts import make_range_store
from harvest.runtime.range_leader import RangeTools
from harvest.testing.memory_broker import MemoryBroker, MemorySink
from marshal_py.embedded import EmbeddedPostgres
from tests.contract.conftest import TwoDatabasesBench, second_database
from tests.support.harvest_world import wait_until
from tests.support.postgres_replica import Replica
from tests.unit.harvest.runtime.test_harvester import FakeLease

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


@pytest.mark.parametrize("made_as", [dict_row, scalar_row, namedtuple_row])
def test_a_connection_may_make_rows_of_any_kind(bench: TwoDatabasesBench, made_as: Any) -> None:
    with (
        psycopg.connect(bench.primary, row_factory=made_as) as primary,
        psycopg.connect(bench.outbound, row_factory=made_as) as outbound,
    ):
        ids = STASHER.stash_many(primary, outbound, [record("v0"), record("v1")])
        primary.commit()
        again = Stasher().stash_returning(outbound.cursor(), [record("v2")])
    assert [*ids, *again] == sorted({*ids, *again})
    assert [row[3] for row in bench.store().read(0, 10).rows] == [b"v0", b"v1"]


def test_connections_that_would_write_in_the_wrong_order(bench: TwoDatabasesBench) -> None:
    with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
        outbound.execute("SELECT 1")
        with pytest.raises(HarvestError, match="one of its own"):
            STASHER.stash(primary, outbound, record("v"))
        with pytest.raises(psycopg.Error):
            outbound.execute("SELECT nothing")
        with pytest.raises(HarvestError, match="one of its own"):
            STASHER.stash(primary, outbound, record("v"))
        outbound.rollback()
        primary.autocommit = True
        with pytest.raises(NoTransaction, match="the primary connection is in autocommit"):
            STASHER.stash(primary, outbound, record("v"))
        with primary.transaction():
            STASHER.stash(primary, outbound, record("v"))
    assert [row[3] for row in bench.store().read(0, 10).rows] == [b"v"]


def test_a_missing_payload_stops_rather_than_loses(bench: TwoDatabasesBench) -> None:
    with psycopg.connect(bench.primary) as primary:
        primary.execute("INSERT INTO outbox_ids (message_id) VALUES (4711)")
    with pytest.raises(StoreUnavailable, match="the message 4711 is committed in the primary"):
        bench.store().read(0, 10)


def test_an_id_that_was_given_again_is_told_by_its_message(bench: TwoDatabasesBench) -> None:
    """The primary went back, and has drawn ids up to the position again before anybody looked."""
    store: Any = bench.store()

    def messages(count: int) -> list[str | None]:
        with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
            ids = STASHER.stash_many(primary, outbound, [record("v") for _ in range(count)])
        return [str(id) for id in ids]

    before = messages(3)
    assert [store.message_of(id) for id in (1, 2, 3, 4)] == [*before, None]
    with psycopg.connect(bench.primary) as primary:
        primary.execute("DELETE FROM outbox_ids WHERE id > 1")
        primary.execute("SELECT setval('outbox_ids_id_seq', 1)")
    after = messages(2)
    assert [store.message_of(id) for id in (1, 2, 3, 4)] == [before[0], *after, None]
    assert not set(before) & set(after)


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
    kept: list[int] = []
    gone: list[int] = []
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

    assert orphans("--dry-run") == 2
    with psycopg.connect(bench.outbound) as outbound:
        made = outbound.execute("SELECT to_regclass('outbox_orphans')").fetchone()
    assert made == (None,), "it only looks"
    assert [orphans(), orphans()] == [2, 0]
    with psycopg.connect(bench.outbound) as outbound:
        left = [row[0] for row in outbound.execute("SELECT id FROM outbox ORDER BY id").fetchall()]
        moved = outbound.execute("SELECT id FROM outbox_orphans ORDER BY id").fetchall()
    assert left == sorted([*kept, young])
    assert [row[0] for row in moved] == gone
    assert len(bench.store().read(0, 10).rows) == 3


def test_orphans_are_found_in_whatever_order_they_are_stored(
    bench: TwoDatabasesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.outbox.outbound_stasher._CHUNK", 2)
    with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
        ids = STASHER.stash_many(primary, outbound, [record(f"v{n}") for n in range(6)])
        primary.rollback()
        for n in reversed(ids):  # an UPDATE stores a row anew, at the end
            outbound.execute(
                "UPDATE outbox SET create_time = now() - interval '3 h' WHERE id = %s", (n,)
            )
    as_stored = "-c enable_indexscan=off -c enable_bitmapscan=off"
    found = archive_orphans(
        make_conninfo(bench.outbound, options=as_stored),
        TableName.parse("outbox"),
        PostgresIds(bench.primary, "outbox_ids"),
        3600.0,
        dry_run=False,
    )
    assert found == 6


def test_orphans_of_no_table_are_an_error(bench: TwoDatabasesBench) -> None:
    table, ids = TableName.parse("nowhere"), PostgresIds(bench.primary, "outbox_ids")
    for dry_run in (True, False):
        with pytest.raises(StoreUnavailable, match=r"could not be archived: .*nowhere"):
            archive_orphans(bench.outbound, table, ids, 3600.0, dry_run=dry_run)


# --- A replica ---


@pytest.fixture(scope="module")
def replica(postgres: EmbeddedPostgres) -> Iterator[Replica]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        made = Replica(postgres, folder)
        stack.callback(made.close)
        yield made


def caught_up(bench: TwoDatabasesBench, replica: Replica) -> bool:
    with psycopg.connect(bench.primary) as primary:
        written = primary.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert written is not None
    try:
        with psycopg.connect(replica.url(bench.primary)) as there:
            query = "SELECT pg_last_wal_replay_lsn() >= %s"
            found = there.execute(query, written).fetchone()
            return found is not None and bool(found[0])
    except psycopg.OperationalError:  # it does not have the database yet
        return False


@pytest.fixture
def lagging(bench: TwoDatabasesBench, replica: Replica) -> Iterator[Replica]:
    """A replica that has the database of `bench`, and goes on in the end."""
    wait_until(lambda: caught_up(bench, replica), "the replica")
    yield replica
    replica.replay(bench.primary, go_on=True)


def test_a_gap_is_judged_only_when_the_replica_has_caught_up(
    bench: TwoDatabasesBench, lagging: Replica
) -> None:
    late = bench.begin()
    (hole,) = [late.insert(record("late"))]
    with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
        STASHER.stash(primary, outbound, record("early"))
        primary.commit()
    wait_until(lambda: caught_up(bench, lagging), "the replica")
    lagging.replay(bench.primary, go_on=False)
    ids = PostgresIds(lagging.url(bench.primary), "outbox_ids", standby=True)
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
    thread = threading.Thread(target=lambda: found.append(store.lookup(gaps.ranges)), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    lagging.replay(bench.primary, go_on=True)
    thread.join(60)
    assert found == [[(hole, hole)]]
    assert [row[3] for row in store.fetch([(hole, hole)])] == [b"late"]
    store.close()


def test_a_standby_is_no_database_to_harvest(bench: TwoDatabasesBench, lagging: Replica) -> None:
    standby, primary = urlsplit(lagging.url(bench.primary)), urlsplit(bench.primary)
    store = PostgresRangeStore(standby.geturl(), "outbox_ids")
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.ping()
    both = f"{standby.hostname}:{standby.port},{primary.hostname}:{primary.port}"
    store = PostgresRangeStore(f"postgresql://postgres@{both}{primary.path}", "outbox_ids")
    store.ping()
    assert store._connected().info.port == primary.port
    store.close()


def test_waiting_for_a_replica_can_be_broken_off(
    bench: TwoDatabasesBench, lagging: Replica
) -> None:
    lagging.replay(bench.primary, go_on=False)
    ids = PostgresIds(lagging.url(bench.primary), "outbox_ids", standby=True)
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


class Harvest:
    """A leadership in this process, with a broker in memory."""

    def __init__(self, config: ReaperConfig, broker: MemoryBroker, epoch: int) -> None:
        self.tools = RangeTools(
            make_range_store(config), make_range_store(config), MemorySink(broker)
        )
        self.lease = FakeLease(epoch)
        self.stats = Stats()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        leadership = Leadership(self.lease, stats=self.stats)
        leadership.run(self.tools.leader(leadership))

    def end(self) -> None:
        """Lose the lease."""
        self.lease.lost.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.tools.close()


def test_harvesting_from_a_lagging_replica(bench: TwoDatabasesBench, lagging: Replica) -> None:
    """Writers commit late and roll back, the replica stops and goes on, leaders are replaced."""
    config = parse(
        f"kafka: {{bootstrap.servers: x}}\ngroup: g\nmode: range\ndatabase: {bench.outbound}\n"
        f"primary: {{database: '{bench.primary}', replica: '{lagging.url(bench.primary)}'}}\n"
    )
    broker = MemoryBroker()
    committed: dict[bytes, list[bytes]] = {}
    rolled_back: set[bytes] = set()
    stop = threading.Event()

    def write(name: str) -> None:
        with psycopg.connect(bench.primary) as primary, psycopg.connect(bench.outbound) as outbound:
            count = 0
            while not stop.wait(0.005):
                count += 1
                values = [f"{name}.{count}.{n}" for n in range(1 + count % 3)]
                STASHER.stash_many(primary, outbound, [record(v, name) for v in values])
                stop.wait(0.2 if count % 7 == 0 else 0.0)  # now and then a late commit
                if count % 5 == 0:
                    primary.rollback()
                    rolled_back.update(value.encode() for value in values)
                    continue
                primary.commit()
                mine = committed.setdefault(name.encode(), [])
                mine.extend(value.encode() for value in values)

    def wait_published(count: int) -> None:
        wait_until(lambda: len(broker.published) >= count, f"{count} messages")

    threads = [threading.Thread(target=write, args=(f"w{n}",), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for epoch in range(1, 3):
            harvest = Harvest(config, broker, epoch)
            wait_published(len(broker.published) + 30)
            lagging.replay(bench.primary, go_on=False)
            before = sum(map(len, committed.values()))
            wait_until(lambda: sum(map(len, committed.values())) > before + 30, "lag")  # noqa: B023
            lagging.replay(bench.primary, go_on=True)
            wait_published(len(broker.published) + 30)
            harvest.end()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    harvest = Harvest(config, broker, 3)
    wait_published(sum(map(len, committed.values())))
    harvest.end()
    got: dict[bytes, list[bytes]] = {}
    for row in broker.published:
        assert row.key is not None
        assert row.value is not None
        got.setdefault(row.key, []).append(row.value)
    assert got == committed
    assert rolled_back
