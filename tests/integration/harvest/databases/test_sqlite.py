"""The outbox in an SQLite file: commands, odd rows, and processes that are killed."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harvest import OutboxRecord, Stasher
from harvest.config.load import parse
from harvest.core.dead_letters import BadRowFilter
from harvest.core.mark_checkpoint import Term
from harvest.core.row import named
from harvest.databases.sqlite.mark import SqliteMarkStore
from harvest.databases.sqlite.range import SqliteRangeStore
from harvest.databases.sqlite.table import sqlite_path
from harvest.errors import ConfigurationError, SchemaError, StoreUnavailable, TableMissing
from marshal_py.embedded import EmbeddedKafka
from tests.integration.harvest.cli.test_commands import harvest
from tests.support.harvest_world import SqliteWorld, World, wait_until
from tests.support.kafka_reader import read_topic

TERM = Term.of(1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture(params=["mark", "range"])
def world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    url: str,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
) -> Iterator[SqliteWorld]:
    topic = kafka_topic(partitions=3)
    made = SqliteWorld(tmp_path, kafka.bootstrap_servers, url, topic, mode=request.param)
    store = (SqliteMarkStore if request.param == "mark" else SqliteRangeStore)(url, "outbox")
    with made.opened(kafka, store):
        yield made


@pytest.mark.kafka
def test_killed_leaders_lose_repeat_and_reorder_nothing(world: SqliteWorld) -> None:
    for _ in range(2):
        world.harvester()
    with world.writing():
        for _ in range(3):
            world.wait_published(world.published_count())
            world.leader().kill()
            world.harvester()
    world.assert_exactly_once()
    assert world.rolled_back


def assert_a_bad_row_stops_nothing(world: World) -> None:
    """Also: in range mode, `harvest partitions` deletes what is published."""
    missing = f"{world.topic}-missing"
    with world.connected() as connection:
        rows = [OutboxRecord(topic, "k", "v") for topic in (world.topic, missing, world.topic)]
        Stasher().stash_many(connection, rows)
        connection.commit()
    harvester = world.harvester()
    wait_until(lambda: world.published_count() == 2, "what is good is published", harvester.log)
    assert harvester.stop() == 0
    config = ("--config", str(world.config))
    listed = harvest("dead-letters", "list", *config, "--json")
    assert listed.returncode == 1, listed.stderr
    (letter,) = json.loads(listed.stdout)["rows"]
    assert (letter["topic"], letter["waits"]) == (missing, False)
    if world.mode == "range":
        swept = harvest("partitions", *config, "--retain-hours", "0", "--json")
        assert json.loads(swept.stdout)["swept_rows"] == 3, swept.stderr
    assert world.rows_left() == 0
    assert harvest("dead-letters", "drop", *config, "--all").returncode == 0
    assert harvest("dead-letters", "list", *config).returncode == 0


@pytest.mark.kafka
def test_a_bad_row_stops_nothing(world: SqliteWorld) -> None:
    assert_a_bad_row_stops_nothing(world)


@pytest.mark.kafka
def test_only_rows_of_a_missing_topic_wait_until_it_exists(
    world: SqliteWorld, kafka: EmbeddedKafka
) -> None:
    later = f"{world.topic}-later"
    world.config.write_text(world.config.read_text() + "bad_rows: {unknown_topic: wait}\n")
    with world.connected() as connection:
        rows = [OutboxRecord(t, "k", t) for t in (later, world.topic, later)]
        Stasher().stash_many(connection, rows)
        connection.commit()
    harvester = world.harvester()
    wait_until(lambda: world.published_count() == 1, "the other topic goes on", harvester.log)
    kafka.create_topic(later, partitions=1)
    try:
        wait_until(lambda: len(read_topic(world.servers, later)) == 2, "what waited", harvester.log)
        assert harvester.stop() == 0
        listed = harvest("dead-letters", "list", "--config", str(world.config))
        assert listed.returncode == 0, listed.stdout
    finally:
        kafka.delete_topic(later)


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_the_commands_take_a_file(url: str, mode: str) -> None:
    assert harvest("init", "-d", url, "--mode", mode).stdout == "outbox: created\n"
    again = harvest("init", "-d", url, "--mode", mode)
    assert again.stdout == "outbox: exists already, left as it is\n"
    if mode == "mark":
        stash = harvest("stash", "orders", "k", "v", "-H", "a=b", "-d", url)
        assert stash.returncode == 0, stash.stderr
        checked = harvest("check", "-d", url, "--json")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert json.loads(checked.stdout)["backlog_rows"] == 1


def test_a_file_that_is_not_there_is_not_made(url: str) -> None:
    found = harvest("check", "-d", url)
    assert found.returncode == 2
    assert "run `harvest init`" in found.stderr
    assert not sqlite_path(url).exists()


@pytest.mark.parametrize(
    "bad", ["sqlite://", "sqlite:///:memory:", "sqlite://host/a", "sqlite:///a?b=c"]
)
def test_what_is_no_file_is_refused(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a file"):
        SqliteMarkStore(bad, "outbox")


def test_a_file_that_is_no_database_is_not_kept_open(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    path.write_bytes(b"no database " * 1_000)
    with pytest.raises(StoreUnavailable, match="file is not a database") as error:
        SqliteMarkStore(f"sqlite:///{path}", "outbox").connect()
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert str(path) not in opened
    del error  # which has kept all that was on the stack


def test_ids_that_would_come_again_are_refused(url: str) -> None:
    with sqlite3.connect(sqlite_path(url)) as connection:
        connection.execute(
            "CREATE TABLE outbox (id INTEGER PRIMARY KEY, create_time TEXT, kafka_topic TEXT, "
            "kafka_key TEXT, kafka_value TEXT, kafka_header_keys TEXT, kafka_header_values TEXT, "
            "leader_id BLOB)"
        )
    connection.close()
    with pytest.raises(SchemaError, match="AUTOINCREMENT"):
        SqliteMarkStore(url, "outbox").connect()


def test_values_of_every_kind_arrive_as_bytes(url: str) -> None:
    store = SqliteMarkStore(url, "outbox")
    store.init(value_type="bytes")
    rows = [("k", b"\xff\x00", "[]", "[]"), (7, "ü", '["a", null, 3]', '["b", {}, "d"]')]
    with sqlite3.connect(sqlite_path(url)) as connection:
        connection.executemany(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values) VALUES (CURRENT_TIMESTAMP, 't', ?, ?, ?, ?)",
            [*rows, ("k", None, "no JSON", "{}")],
        )
    connection.close()
    first, second, third = store.mark(TERM, 0, 10, 60_000.0)
    assert (first.key, first.value, first.header_keys) == (b"k", b"\xff\x00", ())
    assert (second.key, second.value) == (b"7", "ü".encode())
    assert (second.header_keys, second.header_values) == ((b"a", None, b"3"), (b"b", b"{}", b"d"))
    assert third.header_keys == (None,)  # which no sink accepts
    store.close()


def test_a_writer_that_stays_is_an_outage_for_marks_and_not_for_reads(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.databases.sqlite.table._BUSY_TIMEOUT_S", 0.05)
    store = SqliteMarkStore(url, "outbox")
    store.init()
    writer = sqlite3.connect(sqlite_path(url), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.mark(TERM, 0, 10, 60_000.0)
    assert store.backlog().rows == 0
    writer.execute("COMMIT")
    assert store.mark(TERM, 0, 10, 60_000.0) == []
    writer.close()
    store.close()


def test_a_range_store_says_what_is_missing(url: str) -> None:
    SqliteMarkStore(url, "outbox").init()
    store = SqliteRangeStore(url, "outbox")
    with pytest.raises(SchemaError, match="harvest init --mode range"):
        store.connect()
    store.init()
    store.connect()
    store.close()
    with pytest.raises(TableMissing):
        SqliteRangeStore(url, "other").connect()


def test_ids_are_known_in_whatever_case_the_table_was_created(url: str) -> None:
    """To SQLite, Outbox and outbox are one table; and an empty one has drawn ids, too."""
    with closing(SqliteRangeStore(url, '"Outbox"')) as made:
        made.init()
    with closing(sqlite3.connect(sqlite_path(url))) as connection, connection:
        Stasher().stash_many(connection, [OutboxRecord("t", "k", "v")] * 3)
        connection.execute("DELETE FROM outbox")
    with closing(SqliteRangeStore(url, "outbox")) as store:
        store.connect()
        assert store.bounds().last == 3
        assert store.holders().drawn == 3


def test_a_configuration_names_the_file(url: str) -> None:
    text = f"kafka: {{bootstrap.servers: 'b:1'}}\ndatabase: {url}\ngroup: g\n"
    assert parse(text).database == url


@pytest.mark.parametrize("store_class", [SqliteMarkStore, SqliteRangeStore])
def test_a_topic_that_is_no_text_is_set_aside(
    url: str, store_class: type[SqliteMarkStore | SqliteRangeStore]
) -> None:
    with closing(store_class(url, "outbox")) as store:
        store.init()
        with closing(sqlite3.connect(sqlite_path(url))) as connection, connection:
            Stasher().stash(connection, OutboxRecord("t", "k", "v"))
            Stasher().stash(connection, OutboxRecord("t", "k", "v"))
            connection.execute("UPDATE outbox SET kafka_topic = CAST(x'74ff' AS TEXT) WHERE id = 1")
        if isinstance(store, SqliteMarkStore):
            rows = store.mark(TERM, 0, 10, 60_000)
        else:
            rows = named(store.read(0, 10).rows)
        assert [row.id for row in BadRowFilter().find_bad(rows)] == [1]
        assert store.first_rows(0, 1)[0][1] == store.topics()[1] == "t\ufffd"


def test_a_statement_that_fails_leaves_no_transaction_open(url: str) -> None:
    """It would keep everybody else from writing."""
    with (
        closing(SqliteMarkStore(url, "outbox")) as store,
        closing(SqliteMarkStore(url, "outbox")) as other,
    ):
        store.init()
        other._execute("DROP TABLE outbox")
        with pytest.raises(TableMissing):
            store.delete([1])
        assert other.init()
        assert store.delete([1]) == 0


@pytest.mark.parametrize(("durable", "level"), [(True, 2), (False, 1)])
def test_commits_wait_for_the_disk_where_they_have_to(url: str, durable: bool, level: int) -> None:
    with closing(SqliteMarkStore(url, "outbox", durable=durable)) as store:
        store.init()
        assert store._execute("PRAGMA synchronous") == [(level,)]


def test_a_mark_that_had_to_wait_for_a_writer_may_be_too_late(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteMarkStore(url, "outbox")) as store:
        store.init()
        with closing(sqlite3.connect(sqlite_path(url))) as connection, connection:
            Stasher().stash(connection, OutboxRecord("t", "k", "v"))

        def now_s() -> float:
            is_alone = store._connection is not None and store._connection.in_transaction
            return 3_600.0 if is_alone else 0.0

        with monkeypatch.context() as patch:
            patch.setattr("harvest.databases.sqlite.mark.boottime_s", now_s)
            assert store.mark(TERM, 0, 10, 60_000.0) == []
        assert store.backlog().tagged_rows == 0
        assert len(store.mark(TERM, 1, 10, 60_000.0)) == 1


def test_a_connection_is_made_used_and_closed_by_different_threads(url: str) -> None:
    with closing(SqliteMarkStore(url, "outbox")) as made:
        made.init()
    store = SqliteMarkStore(url, "outbox")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(store.connect).result()
    assert store.mark(TERM, 0, 10, 60_000.0) == []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(store.close).result()
    assert store.backlog().rows == 0
    store.close()


def test_rows_that_come_in_another_order_are_sorted(url: str) -> None:
    """RETURNING promises none."""
    with closing(SqliteMarkStore(url, "outbox")) as store:
        store.init()
        with closing(sqlite3.connect(sqlite_path(url))) as connection, connection:
            Stasher().stash_many(connection, [OutboxRecord("t", "k", v) for v in "abc"])
        real: Any = store._connected()

        class Backwards:
            def execute(self, statement: str, *given: Any) -> Any:
                found = real.execute(statement, *given)
                if "RETURNING" in statement:
                    return SimpleNamespace(fetchall=lambda: found.fetchall()[::-1])
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        store._connection = cast(Any, Backwards())
        rows = store.mark(TERM, 0, 10, 60_000.0)
        assert [row.value for row in rows] == [b"a", b"b", b"c"]
